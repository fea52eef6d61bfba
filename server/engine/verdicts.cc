#include "server/engine/verdicts.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/engine/restored.h"

namespace cairn::engine {

Verdicts::Verdicts(const Options& options, Outbox* out, Callers* callers, const Members* members,
                   Jobs* jobs, Attempts* attempts, Parts* parts, Standing* standing,
                   std::function<void(const Event&)> again)
    : options_(options),
      out_(*out),
      callers_(*callers),
      members_(*members),
      jobs_(*jobs),
      attempts_(*attempts),
      parts_(*parts),
      standing_(*standing),
      again_(std::move(again)) {}

Verdicts::~Verdicts() = default;

// --- what the home says

void Verdicts::Take(Rank home, const JobVerdict& verdict, uint64_t answers) {
  Job* job = jobs_.Find(verdict.job);
  const bool something = !verdict.checkpoints.empty() || !verdict.attempts.empty();
  if (job == nullptr && !something && !waiting_.contains(verdict.job)) return;
  if (job == nullptr) job = jobs_.FindOrMake(verdict.job);
  if (verdict.owned && job->owner->owned && job->owner->uid != verdict.owner_uid) return;
  if (verdict.owned) {
    jobs_.TakeOwnership(job, verdict.owner_uid, verdict.owner_gid, verdict.policy);
  }
  const Attempt newest = job->attempts->newest();
  for (const auto& [number, attempt] : verdict.attempts) {
    attempts_.Learn(job, number, {attempt.first, attempt.lineage, {}}, attempt.unix_ms);
  }
  TakeCheckpoints(job, verdict);
  JobVerdictHeard& heard = job->verdict.Edit();
  const auto in_doubt = in_doubt_.find(verdict.job);
  const bool doubtful = in_doubt != in_doubt_.end() && answers < in_doubt->second;
  if (in_doubt != in_doubt_.end() && !doubtful) in_doubt_.erase(in_doubt);
  heard.heard = true;
  heard.home = home;
  heard.final = verdict.final && !doubtful;
  heard.at = out_.now();
  heard.latest = verdict.latest;
  const std::optional<CheckpointId> protected_before = heard.protect, target_before = heard.target;
  // One that was protected and lacks a copy just now, for a member is silent, is given up for nothing older.
  const bool still_there =
      heard.protect.has_value() && CheckpointOf(*job, *heard.protect) != nullptr;
  if (verdict.protect.has_value() || !still_there) heard.protect = verdict.protect;
  TakeSafe(verdict);
  heard.target = verdict.target;
  heard.asked = verdict.asked;
  heard.silent = verdict.silent;
  heard.why = verdict.why;
  std::map<Rank, std::vector<SavingReport>> saving = verdict.saving;
  saving.erase(members_.self());
  if (heard.saving != saving) {
    heard.saving = std::move(saving);
    ++heard.saving_changes;
  }
  if (!heard.saving.empty()) heard.saved_at = out_.now();
  const bool moved = heard.protect != protected_before || heard.target != target_before;
  if (moved || !job->waits->requests.empty()) standing_.CheckWaits(*job);
  if (job->attempts->newest() > newest) newer_attempt_(job);
  const bool storage_known = !options_.storage || job->scan->Known();
  if (heard.final && storage_known && !Attempts::OriginsKnown(*job)) {
    attempts_.SettleOrigins(job);
  }
  changed_(job);
  if (job->verdict->final) Resume(verdict.job);
}

void Verdicts::TimerWasLate() {
  const uint64_t question = out_.NextId();
  for (const auto& [name, job] : jobs_.all()) {
    if (!job->verdict->heard) continue;
    in_doubt_[name] = question;
    if (job->verdict->final) job->verdict.Edit().final = false;
  }
  for (const auto& [name, waiting] : waiting_) in_doubt_[name] = question;
  ask_all_ = true;
}

void Verdicts::TakeSafe(const JobVerdict& verdict) {
  Job* job = jobs_.Find(verdict.job);
  if (job == nullptr) return;
  std::pair<Attempt, Step> safe = verdict.safe;
  if (verdict.protect.has_value()) {
    safe = std::max(safe, {verdict.protect->attempt, verdict.protect->step});
  }
  LearnSafe(job, safe);
}

void Verdicts::LearnSafe(Job* job, const std::pair<Attempt, Step>& safe) {
  if (safe <= job->verdict->safe) return;
  job->verdict.Edit().safe = safe;
  // Who holds nothing of the job is forgotten with it.
  if (job->owner->owned) out_.Say(fact::StepSafe{job->name, safe.first, safe.second});
}

void Verdicts::Restore(const Restored& restored) {
  for (const auto& [name, safe] : restored.safe) {
    if (Job* job = jobs_.Find(name)) job->verdict.Edit().safe = safe;
  }
}

void Verdicts::Snapshot(const Job& job, std::vector<Fact>* facts) {
  const auto& [attempt, step] = job.verdict->safe;
  if (attempt > 0) facts->push_back(fact::StepSafe{job.name, attempt, step});
}

void Verdicts::TakeCheckpoints(Job* job, const JobVerdict& verdict) {
  std::set<CheckpointId> before = std::exchange(told_[job->name], {});
  for (const auto& [id, said] : verdict.checkpoints) {
    Checkpoint* checkpoint = CheckpointOf(*job, id);
    const bool can_be_had = said.complete && (said.in_memory || said.stored);
    if (checkpoint == nullptr) {
      // One in conflict is shown on every node, for it will not become complete by itself.
      const bool shown = can_be_had || !said.conflict.empty();
      if (!shown || job->tombstones->removed.Forbids(id.step, id.attempt)) continue;
      checkpoint =
          parts_.FindOrMake(job, {job->name, id.step, id.attempt, id.revision}, said.world_size);
    }
    if (checkpoint->content->world_size != said.world_size) continue;
    before.erase(id);
    told_[job->name].insert(id);
    // Of one that only storage is known to have whole the members may not know the digest any more.
    const bool untold = said.complete && said.digest.empty();
    Set(checkpoint, {said.complete, untold ? checkpoint->elsewhere->digest : said.digest,
                     said.in_memory, said.stored, said.replicas, said.hopeless, said.conflict});
  }
  for (const CheckpointId& id : before) {
    Checkpoint* checkpoint = CheckpointOf(*job, id);
    if (checkpoint == nullptr) continue;
    Set(checkpoint, {});
    parts_.EraseIfEmpty(checkpoint);
  }
  if (told_[job->name].empty()) told_.erase(job->name);
}

// A home tells who has something of a job, and who asked lately: of one that has gone everywhere since, a node that only
// heard of it is told nothing.
void Verdicts::AskOfUnheard() {
  std::erase_if(told_, [this](const auto& told) { return jobs_.Find(told.first) == nullptr; });
  // Some each second, in turn.
  constexpr int kAsked = 64;
  int asked = 0;
  for (size_t looked = 0; looked < told_.size() && asked < kAsked; ++looked) {
    auto at = told_.upper_bound(asked_last_);
    if (at == told_.end()) at = told_.begin();
    asked_last_ = at->first;
    if (out_.now() - jobs_.Find(asked_last_)->verdict->at <= kUnheard) continue;
    AskHome(asked_last_);
    ++asked;
  }
}

void Verdicts::Set(Checkpoint* checkpoint, const Elsewhere& elsewhere) {
  if (*checkpoint->elsewhere == elsewhere) return;
  const bool completed = elsewhere.complete && !checkpoint->Complete();
  const bool stored = elsewhere.stored && !checkpoint->elsewhere->stored;
  checkpoint->elsewhere.Edit() = elsewhere;
  if (completed || stored) completed_(checkpoint);
}

// --- who waits for it

bool Verdicts::Fresh(const Job& job) const {
  if (members_.Alone()) return true;
  const JobVerdictHeard& verdict = *job.verdict;
  return verdict.heard && out_.now() - verdict.at <= kFresh &&
         verdict.home ==
             members_.HomeOf(job.name);  // another one knows of no interest in its answers
}

bool Verdicts::Known(const Job& job) const { return job.verdict->final && Fresh(job); }

bool Verdicts::LivesHere(const Job& job) const {
  if (!members_.Counts()) return false;
  const Checkpoint* newest = standing_.Newest(job);
  if (newest == nullptr || !newest->content->complete || !newest->Resident()) return false;
  const Attempt attempt = job.attempts->newest();
  if (newest->key.attempt != attempt) return false;
  // One that began on another node since would be known.
  const auto begun = job.attempts->begun.find(attempt);
  const MonotonicNanos here = begun == job.attempts->begun.end() ? 0 : begun->second.begun_here;
  if (here == 0 || members_.HeardAllSince() > here) return false;
  const auto& parts = newest->content->parts;
  return std::all_of(parts.begin(), parts.end(),
                     [](const auto& part) { return part.second->source->role == PartRole::kOwn; });
}

Status Verdicts::Missing(const Job& job) const {
  if (members_.Alone() || Known(job) || LivesHere(job)) return absl::OkStatus();
  std::vector<Rank> silent;
  for (const auto& [rank, member] : members_.others()) {
    if (!member.up && !member.lost) silent.push_back(rank);
  }
  return absl::UnavailableError(absl::StrCat(
      "job ", job.name, ": ",
      silent.empty() ? "the members of the ring have not all answered yet"
                     : absl::StrCat("rank ", absl::StrJoin(silent, ", "),
                                    " of the ring does not answer, and may know of a newer step")));
}

void Verdicts::AskHome(const std::string& job) {
  const Rank home = members_.HomeOf(job);
  const auto in_doubt = in_doubt_.find(job);
  const uint64_t question = in_doubt == in_doubt_.end() ? 0 : in_doubt->second;
  if (home == members_.self()) return ask_self_(job, question);
  out_.Do(action::Tell{home, peer::VerdictWanted{job, question}});
}

bool Verdicts::Await(const Caller& caller, const Job& job, MonotonicNanos deadline,
                     const Event& event, MonotonicNanos patience) {
  if (members_.Alone() || gave_up_ || Known(job) || LivesHere(job)) return false;
  MonotonicNanos until = deadline;
  if (patience != kNever) {
    // However often it comes again: two waits that each forget the other would never end.
    const MonotonicNanos first = std::min(deadline, out_.now() + patience);
    until = without_.try_emplace(caller.request, first).first->second;
    if (out_.now() >= until) return false;
  }
  const std::string name = job.name;
  if (!callers_.Park(this, caller, name, until, event)) return true;
  if (patience != kNever) patience_[caller.request] = until;
  const bool fresh = waiting_[name].empty();
  waiting_[name].insert(caller.request);
  if (fresh) AskHome(name);
  return true;
}

bool Verdicts::AwaitNews(const Caller& caller, const Job& job, MonotonicNanos deadline,
                         const Event& event) {
  if (members_.Alone() || gave_up_) return false;
  const MonotonicNanos most = std::min(deadline, out_.now() + kBeginPatience);
  const MonotonicNanos until = news_.try_emplace(caller.request, most).first->second;
  if (out_.now() >= until) return false;
  const std::string name = job.name;
  if (!callers_.Park(this, caller, name, until, event)) return true;
  patience_[caller.request] = until;
  waiting_[name].insert(caller.request);
  AskHome(name);
  return true;
}

void Verdicts::Resume(const std::string& job) {
  const auto at = waiting_.find(job);
  if (at == waiting_.end()) return;
  const std::set<RequestId> waiting = std::move(at->second);
  waiting_.erase(at);
  for (const RequestId request : waiting) {
    patience_.erase(request);
    if (const std::unique_ptr<Parked> parked = callers_.Unpark(request)) again_(parked->event);
  }
}

// Something that was saved here answers what only the members could answer before.
void Verdicts::ResumeAnswerable() {
  std::vector<std::string> answerable;
  for (const auto& [name, waiting] : waiting_) {
    const Job* job = jobs_.Find(name);
    if (job != nullptr && LivesHere(*job)) answerable.push_back(name);
  }
  for (const std::string& job : answerable) Resume(job);
}

void Verdicts::Follow(const std::string& job) {
  if (members_.Alone()) return;
  const bool fresh = Fresh(*jobs_.Find(job));
  if (followed_.insert(job).second || !fresh) AskHome(job);
}

void Verdicts::Run(bool again) {
  if (again) {
    AskOfUnheard();
    ResumeAnswerable();
    for (auto* waited : {&news_, &without_}) {
      std::erase_if(*waited,
                    [this](const auto& at) { return at.second + kRemembered < out_.now(); });
    }
  }
  if (!std::exchange(ask_all_, false) && !again) return;
  std::erase_if(in_doubt_, [this](const auto& job) {
    return jobs_.Find(job.first) == nullptr && !waiting_.contains(job.first);
  });
  std::erase_if(followed_, [this](const std::string& name) {
    const Job* job = jobs_.Find(name);
    return job == nullptr || job->waits->requests.empty();
  });
  std::set<std::string> names = followed_;
  for (const auto& [name, waiting] : waiting_) names.insert(name);
  for (const auto& [name, question] : in_doubt_) names.insert(name);
  // Whatever else a caller waits for, the members may bring it about, or know that it never comes.
  for (const std::string& name : callers_.JobsAwaited()) {
    const Job* job = jobs_.Find(name);
    if (job == nullptr || 2 * (out_.now() - job->verdict->at) > kFresh) names.insert(name);
  }
  for (const std::string& name : names) AskHome(name);
}

void Verdicts::Left(const Parked& parked) {
  patience_.erase(parked.request);
  const auto at = waiting_.find(parked.job);
  if (at == waiting_.end()) return;
  at->second.erase(parked.request);
  if (at->second.empty()) waiting_.erase(at);
}

void Verdicts::TimeUp(const Parked& parked) {
  if (patience_.contains(parked.request)) {
    const std::unique_ptr<Parked> taken = callers_.Unpark(parked.request);
    gave_up_ = true;
    again_(taken->event);
    gave_up_ = false;
    return;
  }
  const Job* job = jobs_.Find(parked.job);
  const Status missing =
      job == nullptr ? absl::UnavailableError("the ring did not answer in time") : Missing(*job);
  if (!missing.ok()) return callers_.Answer(parked.request, missing);
  const std::unique_ptr<Parked> taken = callers_.Unpark(parked.request);
  again_(taken->event);
}

}  // namespace cairn::engine
