#include "server/engine/loads.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/manifest.h"

namespace cairn::engine {
namespace {

// How long a load waits for memory that is on its way back.
constexpr MonotonicNanos kMemoryPatience = 5 * kNanosPerSecond;

// Some part of it lies in nobody's memory: it is read from storage, by who opens it.
bool OnlyStored(const Checkpoint* checkpoint) {
  return checkpoint != nullptr && checkpoint->elsewhere->stored &&
         !checkpoint->elsewhere->in_memory;
}

bool ElsewhereInMemory(const Checkpoint* checkpoint) {
  return checkpoint != nullptr && checkpoint->elsewhere->complete &&
         checkpoint->elsewhere->in_memory;
}

}  // namespace

Loads::Loads(Outbox* out, Callers* callers, const Members* members, Jobs* jobs, Parts* parts,
             Fetches* fetches, std::function<void(const Event&)> again)
    : out_(*out),
      callers_(*callers),
      members_(*members),
      jobs_(*jobs),
      parts_(*parts),
      fetches_(*fetches),
      again_(std::move(again)) {
  fetches_.OnEnded(
      [this](const Fetches::Order& order, const Status& status) { Ended(order, status); });
}

Loads::~Loads() = default;

Fetches::Order Loads::OrderOf(const CheckpointKey& key, const peer::Place& place,
                              PartRole role) const {
  const Job* job = jobs_.Find(key.job);
  if (place.owner == members_.self()) role = PartRole::kOwn;
  Fetches::Order order;
  order.part = {key, place.writer};
  order.digest = place.digest;
  order.world_size = place.world_size;
  order.bytes = place.bytes;
  order.manifest_bytes = kMaxManifestBytes;
  order.uid = job->owner->uid;
  order.gid = job->owner->gid;
  order.role = role;
  order.owner = role == PartRole::kOwn ? kNoRank : place.owner;
  for (const Rank rank : place.holders) {
    if (rank != members_.self() && members_.Up(rank)) order.sources.push_back(rank);
  }
  order.what_for = role == PartRole::kOwn ? action::FetchFor::kRestore : action::FetchFor::kLoad;
  return order;
}

// --- for who opens

bool Loads::Await(const Caller& caller, const Checkpoint& checkpoint, const std::string& name,
                  MonotonicNanos deadline, const Event& event) {
  if (members_.Alone() || !ElsewhereInMemory(&checkpoint)) return false;
  const Wanted wanted{checkpoint.key, name};
  if (tried_ != nullptr && *tried_ == wanted) return false;
  if (!callers_.Park(this, caller, checkpoint.key.job, deadline, event)) return true;
  const auto [at, fresh] = waiting_.try_emplace(wanted);
  at->second.requests.insert(caller.request);
  of_request_[caller.request] = wanted;
  if (fresh) Ask(wanted);
  return true;
}

void Loads::On(const peer::PlacesSaid& said) {
  if (said.name.empty()) Restore(said);
  const Wanted wanted{said.checkpoint, said.name.empty() ? kAll : said.name};
  const auto at = waiting_.find(wanted);
  if (at == waiting_.end() || at->second.answered) return;
  at->second.answered = true;
  Begin(said, &at->second);
  if (at->second.Settled()) Resume(wanted);
}

void Loads::Begin(const peer::PlacesSaid& said, Waiting* waiting) {
  const Job* job = jobs_.Find(said.checkpoint.job);
  bool short_of_memory = false;
  for (const peer::Place& place : said.places) {
    const PartKey key{said.checkpoint, place.writer};
    const Part* part = parts_.Find(key);
    if (job == nullptr || (part != nullptr && Fetches::Holds(*part))) continue;
    const Fetches::Order order = OrderOf(said.checkpoint, place, PartRole::kFetched);
    if (order.sources.empty()) {
      if (IsTheOnlyCopy(said.checkpoint, place)) continue;
      waiting->problem = absl::UnavailableError(
          absl::StrCat(key.DebugString(), ": no member that has it answers now"));
      continue;
    }
    const Status started = fetches_.Start(order);
    if (started.ok()) {
      waiting->coming.insert(key);
    } else {
      DidNotCome(order, started, waiting);
      short_of_memory |= absl::IsResourceExhausted(started);
    }
  }
  // What was loaded before gives way, but not before its readers are seen to be gone.
  if (waiting->memory_until == kNever) waiting->memory_until = out_.now() + kMemoryPatience;
  if (short_of_memory && fetches_.MemoryReturns() && out_.now() < waiting->memory_until) {
    waiting->waits_for_memory = said;
  }
}

// The one that has just broken here, as far as the home ever said. A home that is new may not know all holders.
bool Loads::IsTheOnlyCopy(const CheckpointKey& key, const peer::Place& place) const {
  const Checkpoint* checkpoint = parts_.Find(key);
  const auto& others = members_.others();
  return checkpoint != nullptr && checkpoint->elsewhere->replicas == 0 &&
         place.holders == std::set<Rank>{members_.self()} &&
         std::all_of(others.begin(), others.end(), [](const auto& one) { return one.second.up; });
}

// Without room for it here it is read where it lies.
void Loads::DidNotCome(const Fetches::Order& order, const Status& why, Waiting* waiting) const {
  if (!absl::IsResourceExhausted(why) && !fetches_.RestIsRead(order.part)) {
    waiting->problem = why;
    return;
  }
  waiting->without_room.push_back({order.part, order.digest, order.uid, order.sources});
}

StatusOr<Body> Loads::NotHere(ObjectInfo like, const Status& otherwise) const {
  if (!without_room_.empty()) {
    return Body(reply::Elsewhere{without_room_, std::move(like), {}});
  }
  return problem_.ok() ? otherwise : problem_;
}

void Loads::TryMemoryAgain(bool again) {
  if (std::exchange(memory_version_, fetches_.memory_version()) == fetches_.memory_version() &&
      !again)
    return;
  std::vector<Wanted> settled;
  for (auto& [wanted, waiting] : waiting_) {
    if (!waiting.waits_for_memory.has_value()) continue;
    waiting.problem = absl::OkStatus();
    waiting.without_room.clear();
    Begin(*std::exchange(waiting.waits_for_memory, std::nullopt), &waiting);
    if (waiting.Settled()) settled.push_back(wanted);
  }
  for (const Wanted& wanted : settled) Resume(wanted);
}

void Loads::Resume(const Wanted& wanted) {
  const auto at = waiting_.find(wanted);
  if (at == waiting_.end()) return;
  const std::set<RequestId> requests = std::move(at->second.requests);
  problem_ = at->second.problem;
  without_room_ = std::move(at->second.without_room);
  waiting_.erase(at);
  tried_ = &wanted;
  for (const RequestId request : requests) {
    of_request_.erase(request);
    if (const std::unique_ptr<Parked> parked = callers_.Unpark(request)) again_(parked->event);
  }
  tried_ = nullptr;
  problem_ = absl::OkStatus();
  without_room_.clear();
}

void Loads::Ended(const Fetches::Order& order, const Status& status) {
  if (order.role == PartRole::kOwn) {
    restoring_.erase(order.part);
    if (status.ok()) {
      out_.Count("parts_restored");
    } else {
      std::set<PartKey>& bad = restore_[order.part.checkpoint];
      if (absl::IsDataLoss(status)) bad.insert(order.part);
    }
  }
  std::vector<Wanted> done;
  for (auto& [wanted, waiting] : waiting_) {
    if (waiting.coming.erase(order.part) == 0) continue;
    // The caller can do nothing about a source that has it no more, a fetch that was called off for somebody else, or an
    // owner that released it as it came. Whoever asks again hears of other sources.
    const bool moved =
        absl::IsNotFound(status) || absl::IsCancelled(status) || absl::IsAborted(status);
    const Status why = moved ? absl::UnavailableError(status.message()) : status;
    if (!why.ok()) DidNotCome(order, why, &waiting);
    if (waiting.Settled()) done.push_back(wanted);
  }
  for (const Wanted& wanted : done) Resume(wanted);
}

// --- for the node itself

std::set<CheckpointKey> Loads::ThatCount(const Job& job) {
  const JobVerdictHeard& verdict = *job.verdict;
  std::set<CheckpointKey> count;
  for (const auto& id : {verdict.target, verdict.protect, verdict.latest}) {
    if (id.has_value()) count.insert({job.name, id->step, id->attempt, id->revision});
  }
  return count;
}

void Loads::VerdictChanged(const Job& job) {
  if (!job.verdict->final) return;
  verdict_changed_ = true;
  const std::set<CheckpointKey> wanted = ThatCount(job);
  // The first verdict that knows of something: who has it may have been away until now.
  if (!wanted.empty() && restored_.insert(job.name).second) {
    for (const CheckpointKey& key : wanted) {
      restore_.try_emplace(key);
      AskToRestore(key);
    }
    return;
  }
  // What others have gone beyond need not come back any more.
  std::erase_if(restore_, [&](const auto& of) {
    return of.first.job == job.name && !wanted.contains(of.first);
  });
}

void Loads::Broke(const Checkpoint& checkpoint) {
  if (members_.Alone() || !ThatCount(*checkpoint.job).contains(checkpoint.key)) return;
  restore_.try_emplace(checkpoint.key);
  AskToRestore(checkpoint.key);
}

// Who has the rest of it may be cut off and come back.
void Loads::AskToRestore(const CheckpointKey& key) {
  if (!OnlyStored(parts_.Find(key))) ask_(key, "");
}

bool Loads::Restoring(const CheckpointKey& key) const {
  return restore_.contains(key) && !OnlyStored(parts_.Find(key));
}

// What cannot come now, for want of a source or of memory, is asked for again.
void Loads::Restore(const peer::PlacesSaid& said) {
  const auto of = restore_.find(said.checkpoint);
  if (of == restore_.end() || jobs_.Find(said.checkpoint.job) == nullptr) return;
  // Until each writer's part is known to lie somewhere.
  bool all = !said.places.empty() &&
             static_cast<int32_t>(said.places.size()) == said.places.front().world_size;
  for (const peer::Place& place : said.places) {
    const PartKey key{said.checkpoint, place.writer};
    if (place.owner != members_.self() || of->second.contains(key)) continue;
    const Part* part = parts_.Find(key);
    if (part != nullptr && Fetches::Holds(*part)) continue;
    const Fetches::Order order = OrderOf(said.checkpoint, place, PartRole::kOwn);
    if (!order.sources.empty() && fetches_.Start(order).ok()) {
      restoring_.insert(key);
    } else {
      all = false;
    }
  }
  if (all) restore_.erase(of);
}

// The home does not say where a name is that no part it knows has; so nobody would ever say so of a checkpoint that has
// gone since it was asked for. That it has, only a home that has heard everybody knows.
void Loads::ResumeGone() {
  std::vector<Wanted> gone;
  for (const auto& [wanted, waiting] : waiting_) {
    const Job* job = jobs_.Find(wanted.first.job);
    if (waiting.answered || (job != nullptr && !job->verdict->final)) continue;
    if (!ElsewhereInMemory(parts_.Find(wanted.first))) gone.push_back(wanted);
  }
  for (const Wanted& wanted : gone) Resume(wanted);
}

void Loads::Run(bool again) {
  if (std::exchange(verdict_changed_, false)) ResumeGone();
  TryMemoryAgain(again);
  if (!again) return;
  std::erase_if(restored_, [this](const std::string& job) { return jobs_.Find(job) == nullptr; });
  std::erase_if(restore_, [this](const auto& of) { return jobs_.Find(of.first.job) == nullptr; });
  for (const auto& [key, bad] : restore_) AskToRestore(key);
  for (const auto& [wanted, waiting] : waiting_) {
    if (!waiting.answered) Ask(wanted);
  }
}

// --- who waits

void Loads::Left(const Parked& parked) {
  const auto of = of_request_.find(parked.request);
  if (of == of_request_.end()) return;
  if (const auto at = waiting_.find(of->second); at != waiting_.end()) {
    at->second.requests.erase(parked.request);
    // Nothing is evicted, and nothing brought here, for nobody.
    if (at->second.requests.empty() && at->second.coming.empty()) waiting_.erase(at);
  }
  of_request_.erase(of);
}

void Loads::TimeUp(const Parked& parked) {
  const Wanted wanted = of_request_.at(parked.request);
  callers_.Answer(parked.request, absl::DeadlineExceededError(absl::StrCat(
                                      "\"", wanted.second, "\" of ", wanted.first.DebugString(),
                                      " did not arrive from the other members in time")));
}

}  // namespace cairn::engine
