#include "server/journal/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/checksum.h"
#include "server/journal/frame.h"

namespace cairn::journal {
namespace {

static_assert(std::endian::native == std::endian::little, "the layout is little-endian");

constexpr uint64_t kHeaderPageBytes = kPageBytes;
constexpr uint64_t kMinHalfBytes = 64 << 10;
constexpr uint32_t kVersion = 1;
// Pages are made before they are written, this many bytes at a time. So Append fails with an error,
// and not with a SIGBUS, when the machine has no memory left.
constexpr uint64_t kPopulateBytes = 64 << 10;

struct Header {
  char magic[8] = {'C', 'A', 'I', 'R', 'N', 'J', 'L', '\x01'};
  uint32_t version = kVersion;
  uint32_t crc = 0;
  uint64_t bytes = 0;
  uint64_t state = 0;
};
static_assert(sizeof(Header) == 32 && offsetof(Header, state) == 24);

uint32_t HeaderCrc(const Header& header) {
  uint32_t crc = Crc32c(0, header.magic, sizeof(header.magic));
  crc = Crc32c(crc, &header.version, sizeof(header.version));
  return Crc32c(crc, &header.bytes, sizeof(header.bytes));
}

uint64_t EncodeState(uint32_t generation) {
  return generation | uint64_t{Crc32c(0, &generation, sizeof(generation))} << 32;
}

uint64_t HalfBytes(uint64_t file_bytes) {
  return (file_bytes - kHeaderPageBytes) / 2 / kPageBytes * kPageBytes;
}

// The generation that the header names, if all of the header verifies.
StatusOr<uint32_t> VerifyHeader(const Header& header, uint64_t file_bytes) {
  if (std::memcmp(header.magic, Header().magic, sizeof(header.magic)) != 0) {
    return absl::DataLossError("journal: the header's magic is wrong");
  }
  if (header.crc != HeaderCrc(header)) {
    return absl::DataLossError("journal: the header's checksum is wrong");
  }
  if (header.version != kVersion) {
    return absl::UnimplementedError(
        absl::StrCat("journal: version ", header.version, "; this build knows ", kVersion));
  }
  if (header.bytes != file_bytes) {
    return absl::DataLossError(absl::StrCat("journal: the file has ", file_bytes,
                                            " bytes, its header says ", header.bytes));
  }
  const uint32_t generation = static_cast<uint32_t>(header.state);
  if (header.state != EncodeState(generation)) {
    return absl::DataLossError("journal: the generation's checksum is wrong");
  }
  return generation;
}

class JournalImpl final : public Journal {
 public:
  JournalImpl(UniqueFd file, Mapping mapping, const Options& options, uint32_t generation,
              uint64_t used)
      : file_(std::move(file)),
        mapping_(std::move(mapping)),
        half_bytes_(HalfBytes(mapping_.length())),
        snapshot_bytes_(Share(options.snapshot_share)),
        refuse_bytes_(Share(options.refuse_share)),
        generation_(generation),
        used_(used),
        populated_(used / kPageBytes * kPageBytes) {}

  Status Append(absl::Span<const Fact> facts) override {
    if (facts.empty()) return absl::OkStatus();
    CAIRN_RETURN_IF_ERROR(EncodeFrame(facts, generation_, &frame_));
    CAIRN_RETURN_IF_ERROR(WriteFrame(generation_, used_, populated_));
    used_ += frame_.size();
    ++counters_.frames_appended;
    counters_.bytes_appended += frame_.size();
    return absl::OkStatus();
  }

  Status Switch(absl::Span<const Fact> snapshot) override {
    if (generation_ == std::numeric_limits<uint32_t>::max()) {
      return absl::ResourceExhaustedError("journal: out of generations");
    }
    const uint32_t next = generation_ + 1;
    CAIRN_RETURN_IF_ERROR(EncodeFrame(snapshot, next, &frame_));
    uint64_t populated = 0;
    CAIRN_RETURN_IF_ERROR(WriteFrame(next, 0, populated));
    // Before this store a new daemon reads the old half, after it the new one, which is complete.
    std::atomic_ref<uint64_t>(reinterpret_cast<Header*>(mapping_.data())->state)
        .store(EncodeState(next), std::memory_order_release);
    generation_ = next;
    populated_ = populated;
    used_ = frame_.size();
    ++counters_.snapshots_written;
    return absl::OkStatus();
  }

  // Clears the incomplete frame that a kill may have left: it must not stand behind the next
  // frames.
  Status EraseTail() { return EndAt(generation_, used_, populated_); }

  bool WantsSnapshot() const override { return used_ > snapshot_bytes_; }
  bool Full() const override { return used_ > refuse_bytes_; }
  uint64_t used_bytes() const override { return used_; }
  Counters counters() const override { return counters_; }

 private:
  uint64_t Share(double share) const {
    return static_cast<uint64_t>(share * static_cast<double>(half_bytes_));
  }

  char* Half(uint32_t generation) const {
    return mapping_.data() + kHeaderPageBytes + (generation % 2) * half_bytes_;
  }

  // Makes the pages of a half up to offset `end`. Up to `populated` they are known to exist.
  Status Populate(uint32_t generation, uint64_t end, uint64_t& populated) {
    while (populated < end) {
      const uint64_t step = std::min(kPopulateBytes, half_bytes_ - populated);
      if (::madvise(Half(generation) + populated, step, MADV_POPULATE_WRITE) == 0) {
        populated += step;
      } else if (errno != EINTR && errno != EAGAIN) {
        return ErrnoStatus(errno, absl::StrCat("journal: making pages for ", step, " bytes"));
      }
    }
    return absl::OkStatus();
  }

  Status EndAt(uint32_t generation, uint64_t offset, uint64_t& populated) {
    CAIRN_RETURN_IF_ERROR(Populate(generation, offset + kEndBytes, populated));
    std::memset(Half(generation) + offset, 0, kEndBytes);
    return absl::OkStatus();
  }

  // Writes frame_ at `offset`: first the end behind it, last its magic. When the process is killed
  // in between, the frame does not count. (A killed process loses no store that it has made, so
  // only the compiler must be kept from moving the magic before the rest.)
  Status WriteFrame(uint32_t generation, uint64_t offset, uint64_t& populated) {
    if (offset + frame_.size() + kEndBytes > half_bytes_) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "journal: ", frame_.size(), " bytes do not fit behind ", offset, " of ", half_bytes_));
    }
    CAIRN_RETURN_IF_ERROR(Populate(generation, offset + frame_.size() + kEndBytes, populated));
    char* const at = Half(generation) + offset;
    std::atomic_ref<uint32_t> magic(*reinterpret_cast<uint32_t*>(at));
    magic.store(0, std::memory_order_relaxed);  // an earlier generation may have left one here
    std::atomic_signal_fence(std::memory_order_seq_cst);
    std::memset(at + frame_.size(), 0, kEndBytes);
    std::memcpy(at + sizeof(kFrameMagic), frame_.data() + sizeof(kFrameMagic),
                frame_.size() - sizeof(kFrameMagic));
    magic.store(kFrameMagic, std::memory_order_release);
    return absl::OkStatus();
  }

  // Constant after construction.
  const UniqueFd file_;
  const Mapping mapping_;
  const uint64_t half_bytes_;
  const uint64_t snapshot_bytes_;
  const uint64_t refuse_bytes_;

  uint32_t generation_;
  uint64_t used_;       // bytes of the current half that frames take; the end stands behind them
  uint64_t populated_;  // offset in the current half up to which its pages exist
  std::string frame_;   // a member only to reuse its memory
  Counters counters_;
};

}  // namespace

Status Options::Validate() const {
  if (bytes % kPageBytes != 0 || bytes < kHeaderPageBytes + 2 * kMinHalfBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("journal bytes: ", bytes, " is not a multiple of ", kPageBytes,
                     " of at least ", kHeaderPageBytes + 2 * kMinHalfBytes));
  }
  if (!(snapshot_share > 0 && snapshot_share <= refuse_share && refuse_share <= 1)) {
    return absl::InvalidArgumentError(absl::StrCat("journal shares: 0 < snapshot_share (",
                                                   snapshot_share, ") <= refuse_share (",
                                                   refuse_share, ") <= 1 does not hold"));
  }
  return absl::OkStatus();
}

StatusOr<UniqueFd> Journal::MakeFile(const Options& options) {
  CAIRN_RETURN_IF_ERROR(options.Validate());
  CAIRN_ASSIGN_OR_RETURN(UniqueFd file, MakeMemfd("cairn-journal", options.bytes, 0600));
  Header header;
  header.bytes = options.bytes;
  header.crc = HeaderCrc(header);
  header.state = EncodeState(0);
  CAIRN_RETURN_IF_ERROR(PwriteAll(file.get(), &header, sizeof(header), 0));
  std::string snapshot;  // empty, for every half begins with a snapshot
  CAIRN_RETURN_IF_ERROR(EncodeFrame({}, 0, &snapshot));
  CAIRN_RETURN_IF_ERROR(PwriteAll(file.get(), snapshot.data(), snapshot.size(), kHeaderPageBytes));
  return file;
}

StatusOr<std::unique_ptr<Journal>> Journal::Open(UniqueFd file, const Options& options,
                                                 Contents* contents) {
  CAIRN_RETURN_IF_ERROR(options.Validate());
  struct stat stat = {};
  if (::fstat(file.get(), &stat) != 0) return ErrnoStatus(errno, "fstat of the journal");
  const uint64_t bytes = static_cast<uint64_t>(stat.st_size);
  if (bytes < kHeaderPageBytes + 2 * kMinHalfBytes) {
    return absl::DataLossError(absl::StrCat("journal: the file has only ", bytes, " bytes"));
  }
  CAIRN_ASSIGN_OR_RETURN(Mapping mapping,
                         Mapping::Map(file.get(), 0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED));
  Header header;
  std::memcpy(&header, mapping.data(), sizeof(header));
  CAIRN_ASSIGN_OR_RETURN(const uint32_t generation, VerifyHeader(header, bytes));

  // Reading a hole would make its pages, so reading ends where the written bytes end.
  const uint64_t half_bytes = HalfBytes(bytes);
  const uint64_t begin = kHeaderPageBytes + (generation % 2) * half_bytes;
  off_t hole = ::lseek(file.get(), static_cast<off_t>(begin), SEEK_HOLE);
  if (hole < 0) hole = static_cast<off_t>(begin + half_bytes);
  const uint64_t written = std::min(static_cast<uint64_t>(hole) - begin, half_bytes);
  CAIRN_ASSIGN_OR_RETURN(Replay replay, ReplayHalf({mapping.data() + begin, written}, generation));
  contents->facts = std::move(replay.facts);
  contents->torn_tail = replay.torn_tail;

  auto journal = std::make_unique<JournalImpl>(std::move(file), std::move(mapping), options,
                                               generation, replay.end);
  CAIRN_RETURN_IF_ERROR(journal->EraseTail());
  return journal;
}

}  // namespace cairn::journal
