#include "server/node/distant_parts.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <limits>
#include <optional>
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
constexpr size_t kKeptParts =
    4;  // of which what they consist of is kept, and a grant while it is used
// The engine counts its slabs up from 1 and never gets here.
constexpr SlabId kFirstScratch = SlabId{1} << 63;
// Of one call; below the patience of those who wait for chunks.
constexpr MonotonicNanos kReadPatience = 25 * kNanosPerSecond;

std::chrono::steady_clock::time_point TimePoint(Clock* clock, MonotonicNanos deadline) {
  return std::chrono::steady_clock::now() + std::chrono::nanoseconds(deadline - clock->Now());
}

}  // namespace

// --- memory

// Places for blocks. One that was read stays until its place is wanted, for a client reads a block in pieces.
// Thread-safe.
class DistantParts::Scratch {
 public:
  // Whose block it is: of which reader, and which.
  using Tag = std::pair<uint64_t, size_t>;
  struct Place {
    size_t slot = 0;
    bool has_it = false;  // the block is there
  };

  static StatusOr<std::shared_ptr<Scratch>> Make(transport::Transport* transport, Clock* clock,
                                                 SlabId slab) {
    CAIRN_ASSIGN_OR_RETURN(UniqueFd made,
                           MakeMemfd("cairn-scratch", kSlots * kBlockBytes, /*mode=*/0600));
    auto memory = std::make_shared<const UniqueFd>(std::move(made));
    CAIRN_RETURN_IF_ERROR(transport->Attach(slab, memory, kSlots * kBlockBytes));
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

  // Given back by Give.
  StatusOr<Place> Take(const Tag& tag, MonotonicNanos deadline) {
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
    auto at = std::find_if(free_.begin(), free_.end(),
                           [&](const auto& free) { return free.second == tag; });
    const bool has_it = at != free_.end();
    if (!has_it) at = free_.begin();
    const Place place{at->first, has_it};
    free_.erase(at);
    return place;
  }
  // `tag`: the verified block that is in it; nullopt: none is.
  void Give(size_t slot, const std::optional<Tag>& tag) {
    MutexLock lock(&mu_);
    if (tag.has_value()) {
      free_.emplace_back(slot, tag);
    } else {
      free_.emplace_front(slot, tag);
    }
    freed_.NotifyOne();
  }

  ExtentRef Extent(size_t slot) const { return {slab_, slot * kBlockBytes, kBlockBytes}; }
  Status Copy(size_t slot, uint64_t offset, absl::Span<char> into) const {
    return PreadAll(memory_->get(), into.data(), into.size(), slot * kBlockBytes + offset);
  }

 private:
  Scratch(transport::Transport* transport, Clock* clock, SlabId slab, SharedFd memory)
      : transport_(transport), clock_(clock), slab_(slab), memory_(std::move(memory)) {
    for (size_t slot = 0; slot < kSlots; ++slot) free_.emplace_back(slot, std::nullopt);
  }

  transport::Transport* const transport_;
  Clock* const clock_;
  const SlabId slab_;
  const SharedFd memory_;
  Mutex mu_;  // a leaf
  CondVar freed_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  // The one that was used longest ago first.
  std::deque<std::pair<size_t, std::optional<Tag>>> free_ ABSL_GUARDED_BY(mu_);
};

// --- grants

// A part, by a grant of one of its sources, that all its readers share. It is asked for anew when it has ended, and
// of the next source when one fails. Thread-safe; a member is asked by one thread at a time, with no lock held.
class DistantParts::Granted {
 public:
  Granted(DistantParts* of, PartElsewhere part) : of_(of), part_(std::move(part)) {}
  ~Granted() {
    if (grant_ != nullptr) End(SourceAt(at_), *grant_);
  }
  Granted(const Granted&) = delete;
  Granted& operator=(const Granted&) = delete;

  struct Ticket {
    Rank source = engine::kNoRank;
    uint64_t grant = 0;
    transport::ReadRequest request;  // of the object, but for where in it and where to
  };

  // UNAVAILABLE when no source grants it; that says why.
  StatusOr<std::shared_ptr<const PartTable>> Table(MonotonicNanos deadline) {
    MutexLock lock(&mu_);
    CAIRN_RETURN_IF_ERROR(Ensure(deadline, /*table_only=*/true));
    return plan_->table;
  }
  StatusOr<Ticket> For(size_t object, MonotonicNanos deadline) {
    MutexLock lock(&mu_);
    CAIRN_RETURN_IF_ERROR(Ensure(deadline, /*table_only=*/false));
    Ticket ticket;
    ticket.source = SourceAt(at_);
    ticket.grant = grant_->answer.grant;
    ticket.request.address = grant_->address;
    std::copy(grant_->answer.token.begin(), grant_->answer.token.end(),
              ticket.request.token.begin());
    ticket.request.region = grant_->answer.regions[object].descriptor;
    return ticket;
  }
  // The grant is used no more, and asked for anew: of the same source, or of the next.
  void Failed(const Ticket& ticket, bool next_source) {
    std::unique_ptr<const PeerLinks::Granted> ended;
    {
      MutexLock lock(&mu_);
      if (grant_ == nullptr || grant_->answer.grant != ticket.grant ||
          SourceAt(at_) != ticket.source) {
        return;
      }
      ended = std::move(grant_);
      if (next_source) ++at_;
    }
    End(ticket.source, *ended);
  }
  void AddSources(const std::vector<Rank>& sources) {
    MutexLock lock(&mu_);
    for (const Rank rank : sources) {
      if (std::find(part_.sources.begin(), part_.sources.end(), rank) == part_.sources.end()) {
        part_.sources.push_back(rank);
      }
    }
  }
  size_t sources() const {
    MutexLock lock(&mu_);
    return part_.sources.size();
  }
  const PartKey& key() const { return part_.part; }
  const std::string& digest() const { return part_.digest; }

 private:
  void End(Rank source, const PeerLinks::Granted& granted) const {
    transport::GrantToken token = {};
    std::copy(granted.answer.token.begin(), granted.answer.token.end(), token.begin());
    of_->links_->EndGrant(source,
                          {granted.answer.grant, of_->transport_->Finish(granted.address, token)});
  }
  Rank SourceAt(size_t at) const { return part_.sources[at % part_.sources.size()]; }

  Status Ensure(MonotonicNanos deadline, bool table_only) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto until = TimePoint(of_->clock_, deadline);
    while (asking_) {
      if (!asked_.WaitUntil(&mu_, until)) {
        return absl::UnavailableError(
            absl::StrCat(part_.part.DebugString(), ": a member was still being asked for it"));
      }
    }
    if (grant_ != nullptr || (table_only && plan_.has_value())) return absl::OkStatus();
    std::string why;
    for (size_t asked = 0; asked < part_.sources.size(); ++asked, ++at_) {
      const Status status = Ask(SourceAt(at_), deadline);
      if (status.ok()) return status;
      absl::StrAppend(&why, why.empty() ? "" : "; ", "rank ", SourceAt(at_), ": ",
                      status.message());
    }
    return absl::UnavailableError(absl::StrCat(part_.part.DebugString(), ": no member gives it: ",
                                               why.empty() ? "none is known that has it" : why));
  }
  Status Ask(Rank source, MonotonicNanos deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const MonotonicNanos until =
        std::min(deadline, of_->clock_->Now() + of_->options_.grant_timeout);
    asking_ = true;
    mu_.Unlock();
    StatusOr<PeerLinks::Granted> granted =
        of_->links_->AskGrant(source, {part_.part, part_.digest}, until);
    mu_.Lock();
    asking_ = false;
    asked_.NotifyAll();
    CAIRN_RETURN_IF_ERROR(granted.status());
    const Status good = Check(granted->answer);
    if (good.ok()) {
      grant_ = std::make_unique<const PeerLinks::Granted>(*std::move(granted));
    } else {
      End(source, *granted);
    }
    return good;
  }
  Status Check(const engine::peer::GrantAnswer& answer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (plan_.has_value()) return CheckSource(*plan_, answer);
    engine::action::Fetch fetch;
    fetch.part = part_.part;
    fetch.uid = part_.uid;
    fetch.digest = part_.digest;
    fetch.manifest_bytes = kMaxManifestBytes;
    fetch.slab_bytes = std::numeric_limits<uint64_t>::max();  // it goes into none
    CAIRN_ASSIGN_OR_RETURN(plan_, PlanFetch(fetch, answer));
    return absl::OkStatus();
  }

  DistantParts* const of_;
  mutable Mutex mu_;
  CondVar asked_;
  bool asking_ ABSL_GUARDED_BY(mu_) = false;
  PartElsewhere part_;  // its sources only grow
  std::optional<FetchPlan> plan_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<const PeerLinks::Granted> grant_ ABSL_GUARDED_BY(mu_);  // null: none
  size_t at_ ABSL_GUARDED_BY(mu_) = 0;                                    // the source, counted on
};

// --- reading

class DistantParts::Reader : public storage::Reader {
 public:
  Reader(DistantParts* of, uint64_t id, std::shared_ptr<Granted> granted,
         std::shared_ptr<Scratch> scratch, size_t object, std::shared_ptr<const ObjectEntry> entry)
      : of_(of),
        id_(id),
        granted_(std::move(granted)),
        scratch_(std::move(scratch)),
        object_(object),
        entry_(std::move(entry)) {}

  uint64_t length() const override { return entry_->length; }
  std::optional<int> Descriptor() const override { return std::nullopt; }

  Status ReadAt(uint64_t offset, absl::Span<char> into) const override {
    if (offset > length() || into.size() > length() - offset) {
      return absl::OutOfRangeError(absl::StrCat("offset: [", offset, ", ", offset, " + ",
                                                into.size(), ") of ", length(), " bytes"));
    }
    const MonotonicNanos deadline = of_->clock_->Now() + kReadPatience;
    while (!into.empty()) {
      const size_t block = offset / entry_->block_bytes;
      const uint64_t skip = offset % entry_->block_bytes;
      const size_t n = std::min<uint64_t>(into.size(), LengthOf(block) - skip);
      const Scratch::Tag tag{id_, block};
      CAIRN_ASSIGN_OR_RETURN(const Scratch::Place place, scratch_->Take(tag, deadline));
      const Status read = place.has_it ? absl::OkStatus() : ReadBlock(block, place.slot, deadline);
      const Status status = read.ok() ? scratch_->Copy(place.slot, skip, into.first(n)) : read;
      scratch_->Give(place.slot, read.ok() ? std::optional(tag) : std::nullopt);
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
  Status ReadBlock(size_t block, size_t slot, MonotonicNanos deadline) const {
    Status last = absl::DeadlineExceededError("it waited for its turn too long"), bad;
    int wrong = 0;
    const size_t most = 2 * granted_->sources() + 1;
    for (size_t tries = 0; tries < most && of_->clock_->Now() < deadline; ++tries) {
      CAIRN_ASSIGN_OR_RETURN(const Granted::Ticket ticket, granted_->For(object_, deadline));
      const StatusOr<uint32_t> crc = ReadOnce(ticket, block, slot, /*again=*/wrong > 0, deadline);
      if (crc.ok() && *crc == entry_->block_crcs[block]) return absl::OkStatus();
      if (absl::IsCancelled(crc.status())) return crc.status();
      if (crc.ok() || absl::IsDataLoss(crc.status())) {
        bad = absl::DataLossError(
            absl::StrCat("block ", block, " of \"", absl::CHexEscape(entry_->name), "\" of ",
                         granted_->key().DebugString(), " came otherwise than its checksum says"));
        if (++wrong % 2 == 0) granted_->Failed(ticket, /*next_source=*/true);
      } else {
        // Of a grant that has ended nothing is read: for longer than it lasts nothing was.
        granted_->Failed(ticket, /*next_source=*/!absl::IsPermissionDenied(crc.status()));
      }
      last = crc.ok() ? bad : Annotate(crc.status(), absl::StrCat("rank ", ticket.source));
    }
    if (!bad.ok()) return bad;
    return absl::UnavailableError(
        absl::StrCat(granted_->key().DebugString(), ": ", last.message()));
  }

  StatusOr<uint32_t> ReadOnce(const Granted::Ticket& ticket, size_t block, size_t slot, bool again,
                              MonotonicNanos deadline) const {
    struct Reading {
      Mutex mu;
      CondVar ended;
      std::optional<StatusOr<uint32_t>> crc ABSL_GUARDED_BY(mu);
    };
    const auto reading = std::make_shared<Reading>();
    transport::ReadRequest request = ticket.request;
    request.offset = block * entry_->block_bytes;
    request.into = scratch_->Extent(slot);
    request.length = LengthOf(block);
    request.deadline = deadline;
    request.again = again;
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
  const uint64_t id_;
  const std::shared_ptr<Granted> granted_;
  const std::shared_ptr<Scratch> scratch_;
  const size_t object_;
  const std::shared_ptr<const ObjectEntry> entry_;
};

// --- the parts

DistantParts::DistantParts(const MoverOptions& options, Links* links,
                           transport::Transport* transport, Clock* clock)
    : options_(options),
      links_(links),
      transport_(transport),
      clock_(clock),
      last_slab_(kFirstScratch) {}

// A loader opens one object after the other: they share what was asked for the first.
std::shared_ptr<DistantParts::Granted> DistantParts::GrantedOf(const PartElsewhere& part) {
  std::shared_ptr<Granted> oldest;  // its grant ends outside the lock
  MutexLock lock(&mu_);
  const auto known = std::find_if(kept_.begin(), kept_.end(), [&](const auto& granted) {
    return granted->key() == part.part && granted->digest() == part.digest;
  });
  std::shared_ptr<Granted> granted;
  if (known != kept_.end()) {
    granted = std::move(*known);
    kept_.erase(known);
    granted->AddSources(part.sources);
  } else {
    granted = std::make_shared<Granted>(this, part);
  }
  kept_.push_back(granted);
  if (kept_.size() > kKeptParts) {
    oldest = std::move(kept_.front());
    kept_.pop_front();
  }
  return granted;
}

StatusOr<std::shared_ptr<const PartTable>> DistantParts::Table(const PartElsewhere& part,
                                                               MonotonicNanos deadline) {
  return GrantedOf(part)->Table(deadline);
}

// Where an object is: in which part, and which of its objects.
struct DistantParts::Place {
  Found found;
  std::shared_ptr<Granted> granted;
  size_t object = 0;
};

StatusOr<DistantParts::Place> DistantParts::PlaceOf(const std::vector<PartElsewhere>& parts,
                                                    const std::string& name,
                                                    MonotonicNanos deadline) {
  for (const PartElsewhere& part : parts) {
    std::shared_ptr<Granted> granted = GrantedOf(part);
    CAIRN_ASSIGN_OR_RETURN(const std::shared_ptr<const PartTable> table, granted->Table(deadline));
    const size_t at = table->Find(name);
    if (at != PartTable::kNone) return Place{{part.part, table->entries[at]}, granted, at};
  }
  return absl::NotFoundError(absl::StrCat("name: \"", absl::CHexEscape(name), "\" is in no part"));
}

StatusOr<DistantParts::Found> DistantParts::Find(const std::vector<PartElsewhere>& parts,
                                                 const std::string& name, MonotonicNanos deadline) {
  CAIRN_ASSIGN_OR_RETURN(Place place, PlaceOf(parts, name, deadline));
  return std::move(place.found);
}

StatusOr<DistantParts::Object> DistantParts::Open(const std::vector<PartElsewhere>& parts,
                                                  const std::string& name,
                                                  MonotonicNanos deadline) {
  CAIRN_ASSIGN_OR_RETURN(Place place, PlaceOf(parts, name, deadline));
  CAIRN_ASSIGN_OR_RETURN(std::shared_ptr<Scratch> scratch, TakeScratch());
  Object object;
  object.found = place.found;
  object.reader = std::make_unique<Reader>(this, ++last_reader_, std::move(place.granted),
                                           std::move(scratch), place.object, place.found.entry);
  return object;
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
  std::deque<std::shared_ptr<Granted>> kept;  // their grants end outside the lock
  {
    MutexLock lock(&mu_);
    stopped_ = true;
    scratch = scratch_.lock();
    kept.swap(kept_);
  }
  if (scratch != nullptr) scratch->Close();
}

}  // namespace cairn::node
