#include "server/journal/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <limits>
#include <optional>
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
constexpr uint32_t kVersion = 2;
constexpr uint64_t kNonceOffsets[] = {32, 1024, 2048};
// Pages are made before they are written, this many bytes at a time. So Append fails with an error,
// and not with a SIGBUS, when the machine has no memory left.
constexpr uint64_t kPopulateBytes = 64 << 10;
constexpr size_t kFactsOfAFrame = 1000;  // of a snapshot that is written in one go

struct Header {
  char magic[8] = {'C', 'A', 'I', 'R', 'N', 'J', 'L', '\x01'};
  uint32_t version = kVersion;
  uint32_t crc = 0;
  uint64_t bytes = 0;
  uint64_t state = 0;
};
static_assert(sizeof(Header) == kNonceOffsets[0] && offsetof(Header, state) == 24);

uint32_t HeaderCrc(const Header& header) {
  uint32_t crc = Crc32c(0, header.magic, sizeof(header.magic));
  crc = Crc32c(crc, &header.version, sizeof(header.version));
  return Crc32c(crc, &header.bytes, sizeof(header.bytes));
}

StatusOr<uint64_t> NewNonce() {
  uint64_t nonce = 0;
  while (nonce == 0) {
    if (::getrandom(&nonce, sizeof(nonce), 0) != sizeof(nonce)) {
      return ErrnoStatus(errno, "getrandom");
    }
  }
  return nonce;
}

uint64_t NonceAt(const Mapping& mapping, uint64_t offset) {
  uint64_t nonce;
  std::memcpy(&nonce, mapping.data() + offset, sizeof(nonce));
  return nonce;
}

// The one that two of the three places agree on; a new one when no two do, or when they were wiped.
StatusOr<uint64_t> ReadNonce(const Mapping& mapping) {
  const uint64_t first = NonceAt(mapping, kNonceOffsets[0]);
  const uint64_t second = NonceAt(mapping, kNonceOffsets[1]);
  const uint64_t third = NonceAt(mapping, kNonceOffsets[2]);
  const uint64_t agreed = first == second || first == third ? first : second == third ? second : 0;
  if (agreed != 0) return agreed;
  return NewNonce();
}

uint64_t EncodeState(uint32_t generation) {
  return generation | uint64_t{Crc32c(0, &generation, sizeof(generation))} << 32;
}

uint64_t HalfBytes(uint64_t file_bytes) {
  return (file_bytes - kHeaderPageBytes) / 2 / kPageBytes * kPageBytes;
}

// The generation that the header names, if all of the header verifies. UNIMPLEMENTED when all of it
// but its version does.
StatusOr<uint32_t> VerifyHeader(const Header& header) {
  if (header.crc != HeaderCrc(header) ||
      std::memcmp(header.magic, Header().magic, sizeof(header.magic)) != 0) {
    return absl::DataLossError("journal: the header does not verify");
  }
  if (header.version != kVersion) {
    return absl::UnimplementedError(
        absl::StrCat("journal: version ", header.version, "; this build knows ", kVersion));
  }
  const uint32_t generation = static_cast<uint32_t>(header.state);
  if (header.state != EncodeState(generation)) {
    return absl::DataLossError("journal: the header's generation does not verify");
  }
  return generation;
}

// What of a half was written: it is written from its beginning on. Reading a hole would make pages.
absl::string_view WrittenOf(int file, const Mapping& mapping, uint64_t index) {
  const uint64_t half_bytes = HalfBytes(mapping.length());
  const uint64_t begin = kHeaderPageBytes + index * half_bytes;
  off_t hole = ::lseek(file, static_cast<off_t>(begin), SEEK_HOLE);
  if (hole < 0) hole = static_cast<off_t>(begin + half_bytes);
  return {mapping.data() + begin, std::min(static_cast<uint64_t>(hole) - begin, half_bytes)};
}

// What a daemon finds in the file.
struct Found {
  uint32_t generation = 0;       // of the half that was read
  uint32_t last_generation = 0;  // of both halves
  Replay replay;
};

// The half with the greatest generation below `below` whose first frame verifies, for a header that
// does not name one, or names one of which nothing verifies. It is whole: the first frame of an
// unfinished snapshot does not verify. It may be of an earlier time.
std::optional<Found> NewestHalf(const absl::string_view (&halves)[2], uint64_t nonce,
                                uint64_t below) {
  std::optional<Found> newest;
  for (const uint64_t index : {0, 1}) {
    const std::optional<uint32_t> generation = FirstGeneration(halves[index], nonce);
    if (!generation.has_value() || *generation >= below || *generation % 2 != index) continue;
    if (newest.has_value() && newest->generation >= *generation) continue;
    newest.emplace();
    newest->generation = newest->last_generation = *generation;
  }
  if (newest.has_value()) {
    newest->replay = ReplayHalf(halves[newest->generation % 2], {nonce, newest->generation});
  }
  return newest;
}

Found Find(const absl::string_view (&halves)[2], uint64_t nonce,
           const StatusOr<uint32_t>& current) {
  Found found;
  if (current.ok()) {
    found.generation = found.last_generation = *current;
    found.replay = ReplayHalf(halves[*current % 2], {nonce, *current});
    if (!found.replay.facts.empty() || found.replay.damage.ok()) return found;
  } else {
    found.replay.damage = current.status();
  }
  // The journal of another version may have anything in its halves.
  if (absl::IsUnimplemented(found.replay.damage)) return found;
  const uint64_t none = uint64_t{std::numeric_limits<uint32_t>::max()} + 1;
  std::optional<Found> other = NewestHalf(halves, nonce, current.ok() ? *current : none);
  if (!other.has_value()) return found;
  other->last_generation = std::max(other->last_generation, found.last_generation);
  // What was read is at best as new as the damage. When both halves cannot be read to their end, the
  // worse of the two decides what may be written.
  if (!absl::IsUnimplemented(other->replay.damage)) {
    const Status& damage = found.replay.damage;
    other->replay.damage = Status(
        damage.code(),
        absl::StrCat(damage.message(), "; generation ", other->generation, " was read instead"));
  }
  std::move(found.replay.behind.begin(), found.replay.behind.end(),
            std::back_inserter(other->replay.behind));
  return *std::move(other);
}

class JournalImpl final : public Journal {
 public:
  JournalImpl(UniqueFd file, Mapping mapping, const Options& options, uint64_t nonce,
              const Found& found)
      : file_(std::move(file)),
        mapping_(std::move(mapping)),
        half_bytes_(HalfBytes(mapping_.length())),
        snapshot_bytes_(Share(options.snapshot_share)),
        refuse_bytes_(Share(options.refuse_share)),
        nonce_(nonce),
        damage_(found.replay.damage),
        current_{found.generation, found.replay.end, found.replay.end / kPageBytes * kPageBytes},
        last_generation_(found.last_generation) {}

  Status Append(absl::Span<const Fact> facts) override {
    if (facts.empty()) return absl::OkStatus();
    if (!damage_.ok()) {
      next_.reset();
      return absl::FailedPreconditionError(
          absl::StrCat("nothing is written behind the damage: ", damage_.message()));
    }
    const Status appended = AppendTo(&current_, facts);
    if (!appended.ok()) {
      next_.reset();
      return appended;
    }
    ++counters_.frames_appended;
    counters_.bytes_appended += frame_.size();
    if (next_.has_value() && !AppendTo(&*next_, facts).ok()) next_.reset();
    return absl::OkStatus();
  }

  // In several frames, so that later damage to one leaves those before it.
  Status Switch(absl::Span<const Fact> snapshot) override {
    CAIRN_RETURN_IF_ERROR(BeginSnapshot());
    for (size_t at = 0; at < snapshot.size(); at += kFactsOfAFrame) {
      CAIRN_RETURN_IF_ERROR(AddToSnapshot(snapshot.subspan(at, kFactsOfAFrame)));
    }
    return FinishSnapshot();
  }

  Status BeginSnapshot() override {
    next_.reset();
    CAIRN_ASSIGN_OR_RETURN(Half next, Other());
    if (!damage_.ok()) CAIRN_RETURN_IF_ERROR(ClearOther());  // Clear has left it
    CAIRN_RETURN_IF_ERROR(EncodeFrame({}, {nonce_, next.generation}, &frame_));
    CAIRN_RETURN_IF_ERROR(WriteFrame(&next, 0));
    next_ = next;
    return absl::OkStatus();
  }

  Status AddToSnapshot(absl::Span<const Fact> facts) override {
    if (!next_.has_value()) return NoSnapshot();
    if (facts.empty()) return absl::OkStatus();
    const Status added = AppendTo(&*next_, facts);
    if (!added.ok()) next_.reset();
    return added;
  }

  Status FinishSnapshot() override {
    if (!next_.has_value()) return NoSnapshot();
    StoreMagic(*next_, 0, kFrameMagic);
    MakeCurrent(*next_);
    next_.reset();
    return absl::OkStatus();
  }

  bool WritingSnapshot() const override { return next_.has_value(); }

  // Makes a file without damage fit to be written on. Clears the incomplete frame that a kill may have
  // left, for it must not stand behind the next frames; and the half that is out of use, for a snapshot
  // that was not finished may have left frames of the generation that comes next. A damaged one stays
  // as it is until a snapshot is begun.
  Status Clear() {
    if (!damage_.ok()) return absl::OkStatus();
    WriteNonce();
    CAIRN_RETURN_IF_ERROR(EndAt(&current_, current_.used));
    return ClearOther();
  }

  bool WantsSnapshot() const override { return current_.used > snapshot_bytes_; }
  bool Full() const override { return current_.used > refuse_bytes_; }
  uint64_t used_bytes() const override { return current_.used; }
  uint64_t half_bytes() const override { return half_bytes_; }
  uint64_t nonce() const override { return nonce_; }
  Counters counters() const override { return counters_; }

 private:
  struct Half {
    uint32_t generation = 0;
    uint64_t used = 0;       // bytes that frames take; the end stands behind them
    uint64_t populated = 0;  // offset up to which its pages are known to exist
  };

  static Status NoSnapshot() {
    return absl::FailedPreconditionError("journal: no snapshot is being written");
  }

  uint64_t Share(double share) const {
    return static_cast<uint64_t>(share * static_cast<double>(half_bytes_));
  }

  char* At(const Half& half, uint64_t offset) const {
    return mapping_.data() + kHeaderPageBytes + (half.generation % 2) * half_bytes_ + offset;
  }

  void WriteNonce() {
    for (const uint64_t at : kNonceOffsets) {
      if (NonceAt(mapping_, at) == nonce_) continue;
      std::memcpy(mapping_.data() + at, &nonce_, sizeof(nonce_));
    }
  }

  Status ClearOther() {
    const auto begin = static_cast<off_t>(At({current_.generation + 1}, 0) - mapping_.data());
    if (::fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, begin,
                    static_cast<off_t>(half_bytes_)) != 0) {
      return ErrnoStatus(errno, "journal: clearing the half that is out of use");
    }
    return absl::OkStatus();
  }

  // The half that is out of use, under a generation that no frame in it has.
  StatusOr<Half> Other() {
    if (absl::IsUnimplemented(damage_)) {
      return absl::FailedPreconditionError(
          absl::StrCat("nothing is written over what another build wrote: ", damage_.message()));
    }
    const uint32_t step = last_generation_ % 2 == current_.generation % 2 ? 1 : 2;
    if (last_generation_ > std::numeric_limits<uint32_t>::max() - step) {
      return absl::ResourceExhaustedError("journal: out of generations");
    }
    last_generation_ += step;
    return Half{last_generation_, 0, 0};
  }

  // Before the store of the state a new daemon reads the old half, after it the new one, which is
  // complete.
  void MakeCurrent(const Half& half) {
    Header* const header = reinterpret_cast<Header*>(mapping_.data());
    if (!damage_.ok()) {
      Header whole;
      whole.bytes = mapping_.length();
      whole.crc = HeaderCrc(whole);
      std::memcpy(static_cast<void*>(header), &whole, offsetof(Header, state));
      WriteNonce();
    }
    std::atomic_ref<uint64_t>(header->state)
        .store(EncodeState(half.generation), std::memory_order_release);
    current_ = half;
    ++counters_.snapshots_written;
    if (damage_.ok()) return;
    damage_ = absl::OkStatus();
    (void)ClearOther();  // nothing reads it; its next snapshot has a generation of its own
  }

  Status Populate(Half* half, uint64_t end) {
    while (half->populated < end) {
      const uint64_t step = std::min(kPopulateBytes, half_bytes_ - half->populated);
      if (::madvise(At(*half, half->populated), step, MADV_POPULATE_WRITE) == 0) {
        half->populated += step;
      } else if (errno != EINTR && errno != EAGAIN) {
        return ErrnoStatus(errno, absl::StrCat("journal: making pages for ", step, " bytes"));
      }
    }
    return absl::OkStatus();
  }

  Status EndAt(Half* half, uint64_t offset) {
    CAIRN_RETURN_IF_ERROR(Populate(half, offset + kEndBytes));
    std::memset(At(*half, offset), 0, kEndBytes);
    return absl::OkStatus();
  }

  void StoreMagic(const Half& half, uint64_t offset, uint32_t magic) {
    std::atomic_ref<uint32_t>(*reinterpret_cast<uint32_t*>(At(half, offset)))
        .store(magic, std::memory_order_release);
  }

  Status AppendTo(Half* half, absl::Span<const Fact> facts) {
    CAIRN_RETURN_IF_ERROR(EncodeFrame(facts, {nonce_, half->generation}, &frame_));
    return WriteFrame(half, kFrameMagic);
  }

  // Writes frame_ behind the others: first the end behind it, last its magic. When the process is
  // killed in between, the frame does not count. (A killed process loses no store that it has made,
  // so only the compiler must be kept from moving the magic before the rest.)
  Status WriteFrame(Half* half, uint32_t magic) {
    const uint64_t offset = half->used;
    if (offset + frame_.size() + kEndBytes > half_bytes_) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "journal: ", frame_.size(), " bytes do not fit behind ", offset, " of ", half_bytes_));
    }
    CAIRN_RETURN_IF_ERROR(Populate(half, offset + frame_.size() + kEndBytes));
    char* const at = At(*half, offset);
    StoreMagic(*half, offset, 0);  // an earlier generation may have left one here
    std::atomic_signal_fence(std::memory_order_seq_cst);
    std::memset(at + frame_.size(), 0, kEndBytes);
    std::memcpy(at + sizeof(kFrameMagic), frame_.data() + sizeof(kFrameMagic),
                frame_.size() - sizeof(kFrameMagic));
    StoreMagic(*half, offset, magic);
    half->used += frame_.size();
    return absl::OkStatus();
  }

  // Constant after construction.
  const UniqueFd file_;
  const Mapping mapping_;
  const uint64_t half_bytes_;
  const uint64_t snapshot_bytes_;
  const uint64_t refuse_bytes_;
  const uint64_t nonce_;

  Status damage_;  // not OK: nothing may be appended (Open)
  Half current_;
  std::optional<Half> next_;  // the snapshot that is being written
  uint32_t last_generation_;  // that anything was written under, given-up snapshots included
  std::string frame_;         // a member only to reuse its memory
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
  uint64_t nonce = options.nonce;
  if (nonce == 0) {
    CAIRN_ASSIGN_OR_RETURN(nonce, NewNonce());
  }
  for (const uint64_t at : kNonceOffsets) {
    CAIRN_RETURN_IF_ERROR(PwriteAll(file.get(), &nonce, sizeof(nonce), at));
  }
  std::string snapshot;  // empty, for every half begins with a snapshot
  CAIRN_RETURN_IF_ERROR(EncodeFrame({}, {nonce, 0}, &snapshot));
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
  const StatusOr<uint32_t> current = VerifyHeader(header);
  if (current.ok() && header.bytes != bytes) {
    return absl::DataLossError(
        absl::StrCat("journal: the file has ", bytes, " bytes, its header says ", header.bytes));
  }
  const absl::string_view halves[2] = {WrittenOf(file.get(), mapping, 0),
                                       WrittenOf(file.get(), mapping, 1)};
  CAIRN_ASSIGN_OR_RETURN(const uint64_t nonce, ReadNonce(mapping));
  Found found = Find(halves, nonce, current);
  auto journal =
      std::make_unique<JournalImpl>(std::move(file), std::move(mapping), options, nonce, found);
  contents->facts = std::move(found.replay.facts);
  contents->skipped = std::move(found.replay.skipped);
  contents->torn_tail = found.replay.torn_tail;
  contents->damage = std::move(found.replay.damage);
  contents->behind = std::move(found.replay.behind);
  CAIRN_RETURN_IF_ERROR(journal->Clear());
  return journal;
}

}  // namespace cairn::journal
