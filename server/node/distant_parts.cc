#include "server/node/distant_parts.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/fd.h"
#include "server/node/fetch_plan.h"

namespace cairn::node {
namespace {

using engine::Rank;
using engine::reply::PartElsewhere;

constexpr size_t kSlots = 8;  // blocks on their way to clients
// The engine counts its slabs up from 1 and never gets here.
constexpr SlabId kFirstScratch = SlabId{1} << 63;
// Of one call; below the patience of those who wait for chunks.
constexpr MonotonicNanos kReadPatience = 25 * kNanosPerSecond;

std::chrono::steady_clock::time_point TimePoint(Clock* clock, MonotonicNanos deadline) {
  return std::chrono::steady_clock::now() + std::chrono::nanoseconds(deadline - clock->Now());
}

}  // namespace

// --- memory

// Thread-safe.
class DistantParts::Scratch {
 public:
  static StatusOr<std::shared_ptr<Scratch>> Make(transport::Transport* transport, Clock* clock,
                                                 SlabId slab) {
    CAIRN_ASSIGN_OR_RETURN(UniqueFd memory,
                           MakeMemfd("cairn-scratch", kSlots * kBlockBytes, /*mode=*/0600));
    CAIRN_ASSIGN_OR_RETURN(UniqueFd description, memory.Dup());
    CAIRN_RETURN_IF_ERROR(transport->Attach(slab, std::move(description), kSlots * kBlockBytes));
    return std::shared_ptr<Scratch>(new Scratch(transport, clock, slab, std::move(memory)));
  }
  ~Scratch() { Close(); }

  // Nothing is written into it on return.
  void Close() {
    {
      MutexLock lock(&mu_);
      if (std::exchange(closed_, true)) return;
      freed_.NotifyAll();
    }
    transport_->Detach(slab_);
  }

  // A place for one block, given back by Give.
  StatusOr<size_t> Take(MonotonicNanos deadline) {
    const auto until = TimePoint(clock_, deadline);
    MutexLock lock(&mu_);
    while (free_.empty() && !closed_) {
      if (!freed_.WaitUntil(&mu_, until)) break;
    }
    if (closed_) return absl::CancelledError("the daemon is stopping");
    if (free_.empty()) {
      return absl::UnavailableError(absl::StrCat(
          "all ", kSlots, " blocks of memory for what is read from other members are in use"));
    }
    return free_.extract(free_.begin()).value();
  }
  void Give(size_t slot) {
    MutexLock lock(&mu_);
    free_.insert(slot);
    freed_.NotifyOne();
  }

  ExtentRef Extent(size_t slot) const { return {slab_, slot * kBlockBytes, kBlockBytes}; }
  Status Copy(size_t slot, uint64_t offset, absl::Span<char> into) const {
    return PreadAll(memory_.get(), into.data(), into.size(), slot * kBlockBytes + offset);
  }

 private:
  Scratch(transport::Transport* transport, Clock* clock, SlabId slab, UniqueFd memory)
      : transport_(transport), clock_(clock), slab_(slab), memory_(std::move(memory)) {
    for (size_t slot = 0; slot < kSlots; ++slot) free_.insert(slot);
  }

  transport::Transport* const transport_;
  Clock* const clock_;
  const SlabId slab_;
  const UniqueFd memory_;
  Mutex mu_;  // a leaf
  CondVar freed_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  std::set<size_t> free_ ABSL_GUARDED_BY(mu_);
};

// --- grants

// A grant of one of the part's sources, asked for anew when it has ended, and of the next source when one fails. Not
// thread-safe.
class DistantParts::Granted {
 public:
  Granted(DistantParts* of, PartElsewhere part) : of_(of), part_(std::move(part)) {}
  ~Granted() { End(); }
  Granted(const Granted&) = delete;
  Granted& operator=(const Granted&) = delete;

  // UNAVAILABLE when no source grants it; that says why.
  Status Ensure(MonotonicNanos deadline) {
    if (grant_ != nullptr) return absl::OkStatus();
    std::string why;
    for (size_t asked = 0; asked < part_.sources.size(); ++asked, ++at_) {
      const Status status = Ask(deadline);
      if (status.ok()) return status;
      absl::StrAppend(&why, why.empty() ? "" : "; ", "rank ", Source(), ": ", status.message());
    }
    return absl::UnavailableError(absl::StrCat(part_.part.DebugString(), ": no member gives it: ",
                                               why.empty() ? "none is known that has it" : why));
  }
  // The next Ensure asks anew: the same source, or the next.
  void End() {
    if (grant_ != nullptr) of_->links_->EndGrant(Source(), grant_->answer.grant);
    grant_.reset();
  }
  void NextSource() {
    End();
    ++at_;
  }

  const PartElsewhere& part() const { return part_; }
  const std::shared_ptr<const PartTable>& table() const { return plan_->table; }  // after Ensure
  Rank Source() const { return part_.sources[at_ % part_.sources.size()]; }
  transport::ReadRequest RequestFor(size_t object) const {
    transport::ReadRequest request;
    request.address = grant_->address;
    std::copy(grant_->answer.token.begin(), grant_->answer.token.end(), request.token.begin());
    request.region = grant_->answer.regions[object].descriptor;
    return request;
  }

 private:
  Status Ask(MonotonicNanos deadline) {
    const MonotonicNanos until =
        std::min(deadline, of_->clock_->Now() + of_->options_.grant_timeout);
    CAIRN_ASSIGN_OR_RETURN(PeerLinks::Granted granted,
                           of_->links_->AskGrant(Source(), {part_.part, part_.digest}, until));
    grant_ = std::make_unique<const PeerLinks::Granted>(std::move(granted));
    const Status good = Check();
    if (!good.ok()) End();
    return good;
  }
  Status Check() {
    if (plan_.has_value()) return CheckSource(*plan_, grant_->answer);
    engine::action::Fetch fetch;
    fetch.part = part_.part;
    fetch.uid = part_.uid;
    fetch.digest = part_.digest;
    fetch.manifest_bytes = kMaxManifestBytes;
    fetch.slab_bytes = std::numeric_limits<uint64_t>::max();  // it goes into none
    CAIRN_ASSIGN_OR_RETURN(plan_, PlanFetch(fetch, grant_->answer));
    return absl::OkStatus();
  }

  DistantParts* const of_;
  const PartElsewhere part_;
  std::optional<FetchPlan> plan_;
  std::unique_ptr<const PeerLinks::Granted> grant_;  // null: none
  size_t at_ = 0;                                    // the source, counted on
};

// --- reading

class DistantParts::Reader : public storage::Reader {
 public:
  Reader(DistantParts* of, std::unique_ptr<Granted> granted, std::shared_ptr<Scratch> scratch,
         size_t object)
      : of_(of),
        scratch_(std::move(scratch)),
        object_(object),
        entry_(granted->table()->entries[object]),
        granted_(std::move(granted)) {}

  uint64_t length() const override { return entry_->length; }
  std::optional<int> Descriptor() const override { return std::nullopt; }

  Status ReadAt(uint64_t offset, absl::Span<char> into) const override {
    if (offset > length() || into.size() > length() - offset) {
      return absl::OutOfRangeError(absl::StrCat("offset: [", offset, ", ", offset, " + ",
                                                into.size(), ") of ", length(), " bytes"));
    }
    const MonotonicNanos deadline = of_->clock_->Now() + kReadPatience;
    MutexLock lock(&mu_);
    while (!into.empty()) {
      const size_t block = offset / entry_->block_bytes;
      const uint64_t skip = offset % entry_->block_bytes;
      const size_t n = std::min<uint64_t>(into.size(), LengthOf(block) - skip);
      CAIRN_ASSIGN_OR_RETURN(const size_t slot, scratch_->Take(deadline));
      Status status = ReadBlock(block, slot, deadline);
      if (status.ok()) status = scratch_->Copy(slot, skip, into.first(n));
      scratch_->Give(slot);
      CAIRN_RETURN_IF_ERROR(status);
      offset += n;
      into.remove_prefix(n);
    }
    return absl::OkStatus();
  }

 private:
  uint64_t LengthOf(size_t block) const {
    return std::min<uint64_t>(entry_->block_bytes, length() - block * entry_->block_bytes);
  }

  // Each source may have it wrong twice.
  Status ReadBlock(size_t block, size_t slot, MonotonicNanos deadline) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const size_t sources = granted_->part().sources.size();
    Status last, bad;
    int wrong = 0;
    for (size_t tries = 0; tries < 2 * sources + 1 && of_->clock_->Now() < deadline; ++tries) {
      CAIRN_RETURN_IF_ERROR(granted_->Ensure(deadline));
      const Rank source = granted_->Source();
      const StatusOr<uint32_t> crc = ReadOnce(block, slot, deadline);
      if (crc.ok() && *crc == entry_->block_crcs[block]) return absl::OkStatus();
      if (absl::IsCancelled(crc.status())) return crc.status();
      if (crc.ok() || absl::IsDataLoss(crc.status())) {
        bad = absl::DataLossError(absl::StrCat(
            "block ", block, " of \"", absl::CHexEscape(entry_->name), "\" of ",
            granted_->part().part.DebugString(), " came otherwise than its checksum says"));
        if (++wrong % 2 == 0) granted_->NextSource();
      } else if (absl::IsPermissionDenied(crc.status())) {
        granted_->End();  // nothing was read for longer than a grant lasts
      } else {
        granted_->NextSource();
      }
      last = crc.ok() ? bad : Annotate(crc.status(), absl::StrCat("rank ", source));
    }
    if (!bad.ok()) return bad;
    return absl::UnavailableError(
        absl::StrCat(granted_->part().part.DebugString(), ": ", last.message()));
  }

  StatusOr<uint32_t> ReadOnce(size_t block, size_t slot, MonotonicNanos deadline) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    struct Reading {
      Mutex mu;
      CondVar ended;
      std::optional<StatusOr<uint32_t>> crc ABSL_GUARDED_BY(mu);
    };
    const auto reading = std::make_shared<Reading>();
    transport::ReadRequest request = granted_->RequestFor(object_);
    request.offset = block * entry_->block_bytes;
    request.into = scratch_->Extent(slot);
    request.length = LengthOf(block);
    request.deadline = deadline;
    of_->transport_->Read(std::move(request), [reading](StatusOr<uint32_t> crc) {
      MutexLock lock(&reading->mu);
      reading->crc = std::move(crc);
      reading->ended.NotifyAll();
    });
    MutexLock lock(&reading->mu);
    while (!reading->crc.has_value()) reading->ended.Wait(&reading->mu);
    return *std::move(reading->crc);
  }

  DistantParts* const of_;
  const std::shared_ptr<Scratch> scratch_;
  const size_t object_;
  const std::shared_ptr<const ObjectEntry> entry_;
  mutable Mutex mu_;  // held while a member is waited for: who reads the same object waits, too
  const std::unique_ptr<Granted> granted_ ABSL_PT_GUARDED_BY(mu_);
};

// --- the parts

DistantParts::DistantParts(const MoverOptions& options, Links* links,
                           transport::Transport* transport, Clock* clock)
    : options_(options),
      links_(links),
      transport_(transport),
      clock_(clock),
      last_slab_(kFirstScratch) {}

StatusOr<std::shared_ptr<const PartTable>> DistantParts::Table(const PartElsewhere& part,
                                                               MonotonicNanos deadline) {
  Granted granted(this, part);
  CAIRN_RETURN_IF_ERROR(granted.Ensure(deadline));
  return granted.table();
}

StatusOr<DistantParts::Object> DistantParts::Open(const std::vector<PartElsewhere>& parts,
                                                  const std::string& name,
                                                  MonotonicNanos deadline) {
  for (const PartElsewhere& part : parts) {
    auto granted = std::make_unique<Granted>(this, part);
    CAIRN_RETURN_IF_ERROR(granted->Ensure(deadline));
    const size_t at = granted->table()->Find(name);
    if (at == PartTable::kNone) continue;
    CAIRN_ASSIGN_OR_RETURN(std::shared_ptr<Scratch> scratch, TakeScratch());
    Object object;
    object.part = part.part;
    object.entry = granted->table()->entries[at];
    object.reader = std::make_unique<Reader>(this, std::move(granted), std::move(scratch), at);
    return object;
  }
  return absl::NotFoundError(absl::StrCat("name: \"", absl::CHexEscape(name), "\" is in no part"));
}

StatusOr<std::shared_ptr<DistantParts::Scratch>> DistantParts::TakeScratch() {
  MutexLock lock(&mu_);
  if (stopped_) return absl::UnavailableError("the daemon is stopping");
  std::shared_ptr<Scratch> scratch = scratch_.lock();
  if (scratch == nullptr) {
    CAIRN_ASSIGN_OR_RETURN(scratch, Scratch::Make(transport_, clock_, ++last_slab_));
    scratch_ = scratch;
  }
  return scratch;
}

void DistantParts::Stop() {
  std::shared_ptr<Scratch> scratch;
  {
    MutexLock lock(&mu_);
    stopped_ = true;
    scratch = scratch_.lock();
  }
  if (scratch != nullptr) scratch->Close();
}

}  // namespace cairn::node
