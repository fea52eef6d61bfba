#include "server/engine/members.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/engine/restored.h"

namespace cairn::engine {

Members::Members(const Options& options, Outbox* out) : options_(options), out_(*out) {
  for (const auto& [rank, address] : options_.ring.members) {
    all_.insert(rank);
    if (rank == options_.ring.rank) continue;
    const auto at = static_cast<size_t>(rank);
    if (at >= by_rank_.size()) by_rank_.resize(at + 1);
    by_rank_[at] = &others_[rank];
  }
  self_.rank = options_.ring.rank;
}

void Members::Start(const Restored& restored, const std::optional<MemberId>& self) {
  seat_ = restored.ring_seat;
  if (options_.ring.from_catalog) {
    self_ = {options_.ring.rank, seat_.incarnation, seat_.instance};
    if (self_.rank == kNoRank) return;
  } else if (Alone()) {
    return;
  }
  // Of an earlier seat of this node it says nothing.
  const bool same =
      seat_.instance.empty() || (restored.member_life.instance == seat_.instance &&
                                 restored.member_life.incarnation >= seat_.incarnation);
  if (same && restored.member_life.incarnation != 0) {
    self_.incarnation = restored.member_life.incarnation;
    self_.instance = restored.member_life.instance;
    superseded_by_ = restored.member_life.superseded_by;
    believed_ = restored.member_life.believed;
    return;
  }
  if (self.has_value() && !options_.ring.from_catalog) self_ = *self;
  self_.rank = options_.ring.rank;
  Say();
}

fact::MemberLife Members::Life() const {
  return {self_.incarnation, self_.instance, superseded_by_, believed_};
}

void Members::Say() const { out_.Say(Life()); }

void Members::Snapshot(std::vector<Fact>* facts) const {
  if (!seat_.instance.empty()) facts->push_back(seat_);
  if (self_.incarnation == 0) return;
  facts->push_back(Life());
}

bool Members::On(const event::LifeMet& event) {
  const MemberId& life = event.life;
  if (Alone() || life.rank != self() || life.instance == self_.instance || superseded_by_ != 0 ||
      life.incarnation < self_.incarnation) {
    return false;
  }
  const std::string told =
      absl::StrCat("ring: rank ", event.by, " has met incarnation ", life.incarnation,
                   " at the address of this node's rank; this one is ", self_.incarnation);
  if (!believed_ && life.incarnation < kMostIncarnation) {
    self_.incarnation = life.incarnation + 1;
    Say();
    out_.Do(action::BecomeLife{self_});
    out_.Log(Severity::kWarning, absl::StrCat(told, ", and becomes ", self_.incarnation));
    return false;
  }
  if (life.incarnation == self_.incarnation) return false;  // nothing orders the two
  return Supersede(life.incarnation, told);
}

bool Members::On(const event::Fenced& event) {
  if (superseded_by_ != 0 || self_.incarnation == 0 || event.by.instance == self_.instance) {
    return false;
  }
  return Supersede(std::max(event.by.incarnation, self_.incarnation + 1),
                   absl::StrCat("ring: the catalog gives rank ", self(), " to incarnation ",
                                event.by.incarnation, "; this one is ", self_.incarnation));
}

bool Members::Supersede(int64_t by, const std::string& told) {
  superseded_by_ = by;
  Say();
  out_.Log(Severity::kError, absl::StrCat(told, ", and is superseded: it takes no saves any more"));
  return true;
}

void Members::On(const event::SeatChanged& event) {
  if (event.seat == seat_) return;
  seat_ = event.seat;
  out_.Say(seat_);
}

std::string Members::Superseded() const {
  if (superseded_by_ == 0) return "";
  return absl::StrCat("superseded: incarnation ", superseded_by_, " of rank ", self(),
                      options_.ring.from_catalog
                          ? std::string(" has it by the catalog")
                          : absl::StrCat(" was met at ", options_.ring.members.at(self())),
                      ", this node is incarnation ", self_.incarnation,
                      "; it takes no saves, and what it holds can be loaded until it is stopped");
}

void Members::On(const event::Exchanged& event) {
  Member* const at = Find(event.rank);
  if (at == nullptr) return;
  Member& member = *at;
  if (event.who.has_value()) {
    const bool came = !member.up || member.id != *event.who;
    if (came) {
      out_.Log(Severity::kInfo, absl::StrCat("ring: rank ", event.rank, " is up, incarnation ",
                                             event.who->incarnation));
    }
    if (member.id != *event.who) member.met = out_.now();
    if (came) member.up_since = out_.now();
    member.id = *event.who;
    member.up = true;
    if (!std::exchange(believed_, true) && self_.incarnation != 0) Say();
    if (std::exchange(member.lost, false)) lost_.erase(event.rank);
    member.failed = 0;
    member.heard = out_.now();
    if (!came) return;
    for (RingWatcher* watcher : watchers_) watcher->MemberCame(event.rank);
    return;
  }
  if (std::exchange(member.up, false)) {
    out_.Log(Severity::kWarning, absl::StrCat("ring: rank ", event.rank, " does not answer"));
    for (RingWatcher* watcher : watchers_) watcher->MemberWent(event.rank);
  }
  if (member.failed++ == 0) member.failing_since = std::max(out_.now() - event.took, late_);
  if (member.lost || member.failed < kFailedExchanges ||
      out_.now() - member.failing_since < lost_after()) {
    return;
  }
  member.lost = true;
  lost_.insert(event.rank);
  out_.Log(Severity::kWarning,
           absl::StrCat("ring: rank ", event.rank, " is lost: ", member.failed,
                        " exchanges failed over ",
                        (out_.now() - member.failing_since) / kNanosPerSecond, " s"));
  for (RingWatcher* watcher : watchers_) watcher->MemberLost(event.rank);
}

void Members::TimerWasLate() {
  late_ = out_.now();
  for (auto& [rank, member] : others_) {
    if (!member.lost) member.failed = 0;
  }
}

bool Members::Heard(const MemberId& from) {
  Member* const member = Find(from.rank);
  if (member == nullptr || member->id != from) return false;
  member->heard = out_.now();
  return true;
}

const Members::Member* Members::Find(Rank rank) const {
  const auto at = static_cast<size_t>(rank);  // of kNoRank beyond all
  return at < by_rank_.size() ? by_rank_[at] : nullptr;
}

bool Members::Up(Rank rank) const {
  if (rank == self()) return true;
  const Member* member = Find(rank);
  return member != nullptr && member->up;
}

MonotonicNanos Members::HeardAllSince() const {
  MonotonicNanos since = late_;
  for (const auto& [rank, member] : others_) {
    if (member.lost) continue;
    if (!member.up) return kNever;
    since = std::max(since, member.up_since);
  }
  return since;
}

int64_t Members::GreatestClock() const {
  int64_t greatest = 0;
  for (const auto& [rank, member] : others_) {
    if (!member.id.has_value()) continue;
    greatest =
        std::max(greatest, member.id->incarnation + (out_.now() - member.met) / kNanosPerMilli);
  }
  return greatest;
}

std::vector<Rank> Members::BackupsOf(Rank owner, const std::set<Rank>& passed_over,
                                     int replicas) const {
  return engine::BackupsOf(owner, all_, passed_over, replicas, options_.ring.placement);
}

std::vector<Rank> Members::Backups(int replicas) const {
  if (Alone()) return {};
  return BackupsOf(self(), Lost(), replicas);
}

int Members::ReplicasOf(const JobPolicy& policy) const {
  if (Alone()) return 0;
  const int asked =
      policy.replicas == kRingsReplicas ? options_.ring.replicas : int{policy.replicas};
  return std::min(asked, static_cast<int>(all_.size()) - 1);
}

Rank Members::HomeOf(const std::string& job) const {
  Rank home = self();
  uint64_t greatest = HomeHash(job, home);
  for (const auto& [rank, member] : others_) {
    if (!member.up) continue;
    const uint64_t hash = HomeHash(job, rank);
    if (hash < greatest || (hash == greatest && rank > home)) continue;
    home = rank;
    greatest = hash;
  }
  return home;
}

}  // namespace cairn::engine
