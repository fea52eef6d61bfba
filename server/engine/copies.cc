#include "server/engine/copies.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/engine/evict_class.h"
#include "server/engine/restored.h"

namespace cairn::engine {

Copies::Copies(const Options& options, Outbox* out, const Members* members, Parts* parts,
               Fetches* fetches)
    : options_(options), out_(*out), members_(*members), parts_(*parts), fetches_(*fetches) {
  fetches_.OnEnded(
      [this](const Fetches::Order& order, const Status& status) { Ended(order, status); });
}

uint64_t Copies::quota() const {
  return options_.ring.replica_bytes != 0 ? options_.ring.replica_bytes : options_.budget_bytes / 2;
}

uint64_t Copies::Unused() const {
  return reserved_bytes_ - std::min(reserved_bytes_, fetches_.replica_bytes());
}

uint64_t Copies::HeldFor(Rank owner) const {
  uint64_t bytes = 0;
  const auto of = owners_.find(owner);
  if (of == owners_.end()) return 0;
  for (const PartKey& key : of->second.held) {
    const Part* part = parts_.Find(key);
    if (part != nullptr) bytes += part->content->bytes;
  }
  return bytes;
}

bool Copies::Hold(Rank owner, const PartKey& part) {
  held_for_.insert(owner);
  return owners_[owner].held.insert(part).second;
}

bool Copies::LetGo(Rank owner, const PartKey& part) {
  const auto of = owners_.find(owner);
  if (of == owners_.end() || of->second.held.erase(part) == 0) return false;
  if (of->second.held.empty()) held_for_.erase(owner);
  return true;
}

std::string Copies::CheckInvariants() const {
  for (const auto& [owner, of] : owners_) {
    if (of.held.empty() == held_for_.contains(owner)) {
      return absl::StrCat("copies: what is held for rank ", owner, " and the index of it differ");
    }
  }
  return "";
}

// --- what comes in

void Copies::On(const MemberId& from, const peer::WantList& list) {
  Of& of = owners_[from.rank];
  if (list.epoch != 0 && list.epoch != members_.epoch()) {
    out_.Count("wants_of_another_epoch");
    return;
  }
  of.wants_version = list.version;
  of.wants = list.wants;
  of.refused.clear();
  of.failed.clear();
  of.lacks.clear();
  due_.insert(from.rank);
  // What is on its way and not wanted any more need not come.
  std::set<PartKey> wanted;
  for (const peer::Want& want : list.wants) wanted.insert(want.part);
  for (const peer::Have& have : of.told) {
    if (have.state == peer::HaveState::kUnderWay && !wanted.contains(have.part)) {
      fetches_.Cancel(have.part);
    }
  }
}

// The owner; or who stands in for one that is gone.
bool Copies::MayRelease(Rank from, const Part& part) const {
  const Rank owner = part.source->owner;
  return owner == from || members_.Gone(owner);
}

void Copies::On(const MemberId& from, const peer::ReleaseList& list) {
  Of& of = owners_[from.rank];
  for (const peer::Release& release : list.releases) {
    Part* part = parts_.Find(release.part);
    const bool is_meant = part != nullptr && part->source->role != PartRole::kOwn &&
                          part->content->digest == release.digest;
    if (!is_meant || !MayRelease(from.rank, *part)) {
      if (LetGo(from.rank, release.part)) due_.insert(from.rank);
      // It came for one that stood in for its owner, which is back by now.
      if (is_meant && part->source->role == PartRole::kReplica) {
        const Rank owner = part->source->owner;
        if (Hold(owner, release.part)) due_.insert(owner);
      }
      continue;
    }
    // A home may count it as one of the copies, and a backup that holds it may just have died: it makes way.
    if (release.fate == peer::Fate::kSurplus) {
      const auto said = of.said.find(list.haves_version);
      if (said != of.said.end()) surplus_[release.part] = said->second;
      continue;
    }
    // While somebody reads it, it stays; the owner says so again with the next list, a second later.
    if (!fetches_.Release(part)) continue;
    out_.Count("replicas_released");
    LetGo(from.rank, release.part);
    due_.insert(from.rank);
  }
}

void Copies::Restore(const Restored& restored) {
  for (const auto& [key, committed] : restored.committed) {
    if (committed.fact.role != PartRole::kReplica || parts_.Find(key) == nullptr) continue;
    Hold(committed.fact.owner, key);
  }
}

// What others had copied here in its place, while it was lost, is its own to judge again.
void Copies::MemberCame(Rank rank) {
  due_.insert(rank);
  std::vector<std::pair<Rank, PartKey>> its;
  for (const Rank other : held_for_) {
    if (other == rank) continue;
    for (const PartKey& key : owners_.at(other).held) {
      const Part* part = parts_.Find(key);
      if (part != nullptr && part->source->owner == rank) its.emplace_back(other, key);
    }
  }
  for (const auto& [other, key] : its) {
    LetGo(other, key);
    Hold(rank, key);
  }
}

// What it wanted last is set aside for nobody; what is held for it stays.
void Copies::MemberLost(Rank rank) {
  Of& of = owners_[rank];
  of.wants.clear();
  of.refused.clear();
  of.failed.clear();
  of.lacks.clear();
  for (const auto& [owner, other] : owners_) due_.insert(owner);
}

void Copies::Ended(const Fetches::Order& order, const Status& status) {
  if (order.role != PartRole::kReplica) return;
  Of& of = owners_[order.asker];
  due_.insert(order.asker);
  if (status.ok()) {
    out_.Count("replicas_held");
    // Also one that is not wanted any more: its owner hears of it, and releases it.
    Hold(order.asker, order.part);
  } else if (!absl::IsCancelled(status)) {
    // A source that is away or has let the part go, or bytes that a bad link spoils, are tried again, and nobody
    // gives up for them.
    const bool passes =
        absl::IsUnavailable(status) || absl::IsDataLoss(status) || absl::IsNotFound(status);
    (passes ? of.failed : of.refused)[order.part].text = std::string(status.message());
  }
}

// --- what is done about it

Fetches::Order Copies::OrderOf(Rank owner, const peer::Want& want) {
  Fetches::Order order;
  order.part = want.part;
  order.digest = want.digest;
  order.world_size = want.world_size;
  order.bytes = want.bytes;
  order.manifest_bytes = want.manifest_bytes;
  order.uid = want.owner_uid;
  order.gid = want.owner_gid;
  order.role = PartRole::kReplica;
  order.owner = want.owner == kNoRank ? owner : want.owner;
  order.asker = owner;
  order.sources = {owner};
  order.what_for = action::FetchFor::kReplica;
  return order;
}

// Of each of the owner's jobs twice what its largest wanted step takes, 0 where nothing of it is wanted any more.
std::map<std::string, uint64_t> Copies::NeedsOf(Rank owner, const Of& of) const {
  std::map<CheckpointKey, uint64_t> steps;
  for (const peer::Want& want : of.wants) {
    steps[want.part.checkpoint] += SlabBytesFor(std::max(want.bytes, kPageBytes));
  }
  std::map<std::string, uint64_t> needs;
  for (const auto& [step, bytes] : steps) needs[step.job] = std::max(needs[step.job], 2 * bytes);
  for (auto at = reserved_.lower_bound({owner, ""}); at != reserved_.end(); ++at) {
    if (at->first.first != owner) break;
    needs.try_emplace(at->first.second, 0);
  }
  return needs;
}

Status Copies::Reserve(Rank owner, const std::string& job, uint64_t needs) {
  const auto mine = reserved_.find({owner, job});
  if (mine != reserved_.end()) {
    reserved_bytes_ -= mine->second;
    reserved_.erase(mine);
  }
  if (reserved_bytes_ + needs > quota()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "memory.replicas: two steps of job ", job, " of rank ", owner, " need ", needs, " bytes, ",
        quota() - std::min(quota(), reserved_bytes_), " of ", quota(), " are left"));
  }
  if (needs > 0) {
    reserved_[{owner, job}] = needs;
    reserved_bytes_ += needs;
  }
  return absl::OkStatus();
}

// What is set aside is for two steps of each; what was not released yet stands beside them for a while. What was
// merely loaded here, and what is this node's own, has nothing to do with it.
Status Copies::CheckQuota(const Fetches::Order& order) const {
  if (fetches_.CountsAsReplica(order.part)) return absl::OkStatus();
  const uint64_t bytes = SlabBytesFor(std::max(order.bytes, kPageBytes));
  if (fetches_.replica_bytes() + bytes <= quota()) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("memory.replicas: ", bytes, " bytes do not fit beside the ",
                   fetches_.replica_bytes(), " of ", quota(), " in use"));
}

void Copies::Plan(Rank owner, Of* of) {
  std::map<std::string, Why> refused;
  for (const auto& [job, needs] : NeedsOf(owner, *of)) {
    const Status reserved = Reserve(owner, job, needs);
    if (reserved.ok()) continue;
    const uint64_t lacking = needs > quota() ? 0 : reserved_bytes_ + needs - quota();
    refused[job] = {std::string(reserved.message()), lacking};
  }
  for (const peer::Want& want : of->wants) {
    if (const auto job = refused.find(want.part.checkpoint.job); job != refused.end()) {
      of->refused[want.part] = job->second;
      continue;
    }
    if (of->refused.contains(want.part) || of->failed.contains(want.part)) continue;  // not yet
    Part* part = parts_.Find(want.part);
    const bool here = part != nullptr && Fetches::Holds(*part);
    if (here && part->source->role <= PartRole::kReplica) continue;
    if (!here && !members_.Up(owner)) continue;
    const Fetches::Order order = OrderOf(owner, want);
    if (const Status room = CheckQuota(order); !room.ok()) {
      of->lacks[want.part].text = std::string(room.message());
      continue;
    }
    if (here) {
      fetches_.Become(part, PartRole::kReplica, order.owner);
      continue;
    }
    Status started = fetches_.CheckAdmits(order);
    // Memory that is in the way may go: that is no refusal.
    const bool cannot = !started.ok();
    if (!cannot) started = fetches_.Start(order);
    if (started.ok()) continue;
    auto& whys = !cannot && absl::IsResourceExhausted(started) ? of->lacks : of->refused;
    whys[want.part].text = std::string(started.message());
  }
}

void Copies::Tell(Rank owner, Of* of) {
  peer::HaveList list;
  std::set<PartKey> named;
  for (const peer::Want& want : of->wants) {
    peer::Have have{want.part, want.digest, peer::HaveState::kUnderWay, "", 0};
    const Part* part = parts_.Find(want.part);
    if (part != nullptr && Fetches::Holds(*part) && part->content->digest == want.digest) {
      have.state = peer::HaveState::kHeld;
      Hold(owner, want.part);
    } else if (const auto why = of->refused.find(want.part); why != of->refused.end()) {
      have.state = why->second.lacking > 0 ? peer::HaveState::kNoRoom : peer::HaveState::kRefused;
      have.why = why->second.text;
      have.done_bytes = why->second.lacking;
    } else {
      have.done_bytes = fetches_.DoneBytes(want.part);
      for (const auto* reasons : {&of->lacks, &of->failed}) {
        const auto reason = reasons->find(want.part);
        if (reason != reasons->end()) have.why = reason->second.text;
      }
    }
    named.insert(want.part);
    list.haves.push_back(std::move(have));
  }
  for (auto at = of->held.begin(); at != of->held.end();) {
    const PartKey key = *at++;
    const Part* part = parts_.Find(key);
    if (part == nullptr || !Fetches::Holds(*part)) {
      LetGo(owner, key);
      continue;
    }
    // Of one that is surplus its owner says each time that it still is.
    if (!named.contains(key) && (!MakesWay(key) || surplus_.contains(key))) {
      list.haves.push_back({key, part->content->digest, peer::HaveState::kHeld, "", 0});
    }
  }
  of->told = list.haves;
  list.wants_version = of->wants_version;
  list.version = ++of->haves_version;
  std::erase_if(of->said,
                [this](const auto& at) { return out_.now() - at.second > peer::kListFresh; });
  of->said[list.version] = out_.now();
  out_.Do(action::Tell{owner, std::move(list)});
}

// --- making way

bool Copies::MakesWay(const PartKey& part) const {
  const auto leaving = leaving_.find(part);
  return leaving != leaving_.end() && leaving->second.reported;
}

bool Copies::NeverProtected(const Checkpoint& checkpoint) const {
  const JobVerdictHeard& verdict = *checkpoint.job->verdict;
  const bool all_heard = verdict.final && out_.now() - verdict.at <= kVerdictFresh;
  const CheckpointId id = checkpoint.Id();
  // What is older than the highest that ever was protected may be what is left of it; unless something else is protected
  // now, and what is complete goes beyond it.
  const std::pair at(id.attempt, id.step);
  const bool surpassed = at != verdict.safe && verdict.protect.has_value() &&
                         verdict.latest.has_value() && Supersedes(*verdict.latest, id);
  return all_heard && verdict.target.has_value() && *verdict.target != id &&
         (at > verdict.safe || surpassed) && !*checkpoint.pinned &&
         !IsProtected(checkpoint, verdict.asked);
}

std::set<PartKey> Copies::InTheWay() const {
  // Of all owners: what is kept for one may be in the way of a target that another one, where the job goes on, owns.
  std::set<PartKey> in_the_way, wanted;
  std::set<std::string> jobs;  // whose target lacks room
  for (const auto& [owner, of] : owners_) {
    for (const peer::Want& want : of.wants) {
      wanted.insert(want.part);
      if (want.target && of.lacks.contains(want.part)) jobs.insert(want.part.checkpoint.job);
    }
  }
  for (const auto& [owner, of] : owners_) {
    for (const PartKey& key : of.held) {
      const Part* part = parts_.Find(key);
      const bool replica = part != nullptr && part->source->role == PartRole::kReplica;
      if (!replica || wanted.contains(key) || !jobs.contains(key.checkpoint.job)) continue;
      if (NeverProtected(*part->checkpoint)) in_the_way.insert(key);
    }
  }
  for (const auto& [key, said] : surplus_) {
    const Part* part = parts_.Find(key);
    const bool replica = part != nullptr && part->source->role == PartRole::kReplica;
    const bool counts = out_.now() - said <= peer::kListFresh;
    if (replica && counts && !wanted.contains(key) && members_.Up(part->source->owner)) {
      in_the_way.insert(key);
    }
  }
  return in_the_way;
}

void Copies::MakeWay() {
  const std::set<PartKey> in_the_way = InTheWay();
  std::erase_if(surplus_, [&](const auto& surplus) { return !in_the_way.contains(surplus.first); });
  const auto report = [this](const PartKey& key) {
    Part* part = parts_.Find(key);
    if (part != nullptr) part->checkpoint->Touch(part);
  };
  for (auto at = leaving_.begin(); at != leaving_.end();) {
    if (in_the_way.contains(at->first)) {
      ++at;
      continue;
    }
    report(at->first);
    at = leaving_.erase(at);
  }
  for (const PartKey& key : in_the_way) {
    Leaving& leaving = leaving_.try_emplace(key, Leaving{out_.now()}).first->second;
    if (out_.now() - leaving.since < kInDoubt) continue;
    if (!leaving.reported) {
      leaving = {out_.now(), /*reported=*/true};
      report(key);
    } else if (fetches_.Release(parts_.Find(key))) {
      out_.Count("replicas_made_way");
      leaving_.erase(key);
      for (const auto& [owner, of] : owners_) {
        if (LetGo(owner, key)) due_.insert(owner);
      }
    }
  }
}

void Copies::Run(bool again) {
  // Members are many, and this is asked with each event: only those that are due are looked at.
  std::set<Rank> due = std::exchange(due_, {});
  if (again || fetches_.memory_version() != memory_seen_) {
    for (const auto& [owner, of] : owners_) {
      if (again || !of.lacks.empty()) due.insert(owner);
    }
  }
  for (const Rank owner : due) {
    Of& of = owners_[owner];
    if (again) {
      of.refused.clear();
      of.failed.clear();
    }
    // What is long is not gone through, and said, with each event.
    const bool is_long = std::max(of.wants.size(), of.told.size()) > peer::kLongList;
    if (is_long && !again && out_.now() - of.planned < peer::kLongListEvery) {
      due_.insert(owner);
      continue;
    }
    of.planned = out_.now();
    of.lacks.clear();
    Plan(owner, &of);
    if (members_.Up(owner)) Tell(owner, &of);
  }
  memory_seen_ = fetches_.memory_version();
  if (again) MakeWay();
}

}  // namespace cairn::engine
