#include "server/engine/decisions.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"

namespace cairn::engine {
namespace {

// So many live members journal a policy where nothing else of its job is: there must be a second journal.
constexpr size_t kPolicyKeepers = 3;

// Every member keeps such a record, also one that knows nothing else of the job.
bool MustRemember(const JobRecord& record) {
  return !record.decisions.empty() || !record.removed.steps.empty() || !record.pins.empty() ||
         !record.asked.empty();
}

// Of a decision that this node knows.
std::tuple<int64_t, int64_t> KeyOf(const Decision& decision) {
  return {decision.version, decision.unix_ms};
}

}  // namespace

Decisions::Decisions(const Options& options, Outbox* out, const Members* members, Jobs* jobs,
                     Attempts* attempts, Persistence* persistence, Retention* retention)
    : options_(options),
      out_(*out),
      members_(*members),
      jobs_(*jobs),
      attempts_(*attempts),
      persistence_(*persistence),
      retention_(*retention) {}

bool Decisions::RecordOf(const Job& job, JobRecord* record) const {
  record->job = job.name;
  if (job.owner->owned) record->owner = JobRecord::Owner{job.owner->uid, job.owner->gid};
  for (const auto& [number, decision] : job.attempts->decisions) {
    record->decisions[{number, decision.kind}] = {
        decision.lineage, decision.unix_ms, {decision.version, 0}};
  }
  record->removed = job.tombstones->removed;
  if (job.owner->said.version > 0) {
    record->policy = job.owner->policy;
    record->policy_stamp = job.owner->said;
  }
  for (const auto& [id, pin] : *job.said_pins) {
    if (!record->Forbids(id.step, id.attempt)) record->pins[id] = pin;
  }
  record->asked = *job.asked;
  record->highest_protected = job.verdict->safe;
  return MustRemember(*record) || record->policy_stamp.version > 0 ||
         record->highest_protected.second != kNoStep;
}

// --- what members decided

bool Decisions::Keeps(const std::string& job, const JobRecord& record) const {
  if (jobs_.Find(job) != nullptr || awaited_(job) || MustRemember(record)) return true;
  if (record.policy_stamp.version == 0) return false;
  std::set<Rank> up{members_.self()};
  for (const auto& [rank, member] : members_.others()) {
    if (member.up) up.insert(rank);
  }
  const std::vector<Rank> order = HomeOrder(job, up);
  const auto self = std::find(order.begin(), order.end(), members_.self());
  return static_cast<size_t>(self - order.begin()) < kPolicyKeepers;
}

void Decisions::On(const MemberId& from, const peer::Record& said) {
  const StatusOr<JobRecord> record = DecodeJobRecord(said.encoded);
  if (!record.ok()) {
    out_.Log(Severity::kWarning, absl::StrCat("job=", said.job, " decisions of another member: ",
                                              record.status().message()));
    return;
  }
  if (!Keeps(said.job, *record)) return;
  Job* job = jobs_.FindOrMake(said.job);
  if (record->owner.has_value()) {
    if (job->owner->owned && job->owner->uid != record->owner->uid) {
      out_.Log(
          Severity::kWarning,
          absl::StrCat("job=", said.job, " is uid ", job->owner->uid, "'s here, and uid ",
                       record->owner->uid, "'s with another member: its decisions do not count"));
      return;
    }
    jobs_.TakeOwnership(job, record->owner->uid, record->owner->gid, std::nullopt);
  } else if (job->owner->owned) {
    return;  // whoever decided, it was not known to be the owner
  }
  Learn(job, *record);
  learn_safe_(job, record->highest_protected);
  due_.insert(said.job);
  if (said.number == 0) return;
  if (Holds(*job, *record)) {
    out_.Do(action::Tell{from.rank, peer::RecordHeld{said.job, said.number}});
  } else {
    TellOf(said.job, from.rank);
  }
}

void Decisions::Learn(Job* job, const JobRecord& record) {
  const Attempt fence = job->attempts->fence();
  for (const auto& [id, decision] : record.decisions) {
    const auto& [number, kind] = id;
    const auto known = job->attempts->decisions.find(number);
    if (known == job->attempts->decisions.end()) {
      attempts_.Learn(job, LineRecord{job->name, number, kind, decision.lineage}, decision.unix_ms);
      continue;
    }
    // A `resume` may be said anew until its attempt begins (line rule 13).
    const std::tuple<int64_t, int64_t> theirs{decision.stamp.version, decision.unix_ms};
    const bool anew = kind == LineRecordKind::kResume &&
                      known->second.kind == LineRecordKind::kResume &&
                      known->second.lineage != decision.lineage && KeyOf(known->second) < theirs &&
                      !job->attempts->begun.contains(number);
    if (!anew) continue;
    attempts_.Decide(job, number,
                     {kind, decision.lineage, decision.unix_ms, {}, decision.stamp.version});
  }
  retention_.Learn(job, record.removed);
  retention_.Learn(job, record.pins);
  persistence_.Learn(job, record.asked);
  HearPolicy(job, record);
  if (job->attempts->fence() > fence) newer_attempt_(job);
}

void Decisions::HearPolicy(Job* job, const JobRecord& record) {
  if (!jobs_.HearPolicy(job, record.policy, record.policy_stamp)) return;
  // A policy that a caller here waits for was said without knowledge of this one: it is said anew, with a greater version.
  // Once, for the other member may be doing the same.
  for (auto& [request, held] : held_) {
    if (held.job != job->name || !held.policy.has_value() || !held.answer.has_value()) continue;
    if (*held.policy != job->owner->policy) jobs_.SetPolicy(job, *held.policy);
    held.policy.reset();
    held.number.reset();
  }
  // What it wants of the newest step is wanted now.
  persistence_.ScheduleNext(job);
  retention_.ApplyKeepPolicy(job);
}

bool Decisions::Holds(const Job& job, const JobRecord& record) {
  const auto& decisions = job.attempts->decisions;
  for (const auto& [id, decision] : record.decisions) {
    const auto known = decisions.find(id.first);
    if (known != decisions.end()) {
      if (known->second.kind != id.second || known->second.lineage != decision.lineage)
        return false;
    } else if (decisions.size() < kKeptDecisions || id.first > decisions.begin()->first) {
      return false;
    }
  }
  if (record.policy_stamp.version > 0 && job.owner->policy != record.policy) return false;
  const std::set<CheckpointId>& asked = *job.asked;
  for (const CheckpointId& id : record.asked) {
    const bool full = asked.size() >= kMostRecordAsked && id < *asked.begin();
    if (!asked.contains(id) && !full && !job.tombstones->removed.Forbids(id.step, id.attempt)) {
      return false;
    }
  }
  return std::all_of(record.pins.begin(), record.pins.end(), [&](const auto& pin) {
    const auto& [id, said] = pin;
    const auto known = job.said_pins->find(id);
    return job.tombstones->removed.Forbids(id.step, id.attempt) ||
           (known != job.said_pins->end() && said.stamp <= known->second.stamp &&
            said.pinned == known->second.pinned);
  });
}

// --- what is told

void Decisions::TellOf(const std::string& job, Rank to) {
  const auto told = told_.find(job);
  if (told == told_.end() || !members_.Up(to)) return;
  const auto held = told->second.held.find(to);
  if (held != told->second.held.end() && held->second >= told->second.number) return;
  // Two members that can never agree would otherwise answer each other for ever.
  constexpr uint64_t kNoAnswer = 0;
  out_.Do(action::Tell{to, peer::Record{job, told->second.encoded, kNoAnswer}});
}

void Decisions::TellAll(const std::string& job, const Told& told) {
  for (const auto& [rank, member] : members_.others()) {
    if (member.up) Tell(rank, job, told);
  }
}

void Decisions::Tell(Rank to, const std::string& job, const Told& told) {
  out_.Do(action::Tell{to, peer::Record{job, told.encoded, told.number}});
}

// All that a record is made of, but for removals: of those, which may be many, how often they changed.
Decisions::Looked Decisions::LookAt(const Job& job) {
  Looked looked;
  looked.removed = job.tombstones->changes;
  looked.owned = job.owner->owned;
  looked.policy = job.owner->policy;
  looked.said = job.owner->said;
  for (const auto& [number, decision] : job.attempts->decisions) {
    looked.decisions.emplace_back(number, decision.unix_ms, decision.version);
  }
  looked.pins = *job.said_pins;
  looked.asked = *job.asked;
  looked.safe = job.verdict->safe;
  return looked;
}

bool Decisions::TellOne(const std::string& name) {
  const Job* job = jobs_.Find(name);
  if (job == nullptr) {
    told_.erase(name);
    forgotten_(name);
    return false;
  }
  const auto before = told_.find(name);
  const Looked now_looked = LookAt(*job);
  if (before != told_.end() && before->second.looked == now_looked) return false;
  JobRecord record;
  if (!RecordOf(*job, &record)) return false;
  std::string encoded = EncodeJobRecord(record);
  Told& told = told_[name];
  told.looked = now_looked;
  if (told.encoded == encoded) return false;
  told.encoded = std::move(encoded);
  told.policy_only = !MustRemember(record);
  // How far protection came is told now and then; what was decided, at once.
  JobRecord decided = record;
  decided.highest_protected = {0, kNoStep};
  std::string now = EncodeJobRecord(decided);
  const bool other = now != told.decided;
  if (other) {
    told.decided = std::move(now);
    told.number = ++last_number_;
    TellAll(name, told);
  }
  changed_(name, record);
  return other;
}

void Decisions::Run(bool again, bool whole) {
  if (due_.empty() && held_.empty() && came_.empty() && !whole) return;
  std::set<std::string> just_told;
  for (const std::string& name : std::exchange(due_, {})) {
    if (TellOne(name)) just_told.insert(name);
  }
  for (auto& [request, held] : held_) {
    if (!held.number.has_value()) Number(&held, just_told);
  }
  // A message goes with its connection, and so does the word that it was journaled.
  if (again) {
    std::set<std::string> awaited;
    for (const auto& [request, held] : held_) {
      if (held.answer.has_value() && !MayLeave(held)) awaited.insert(held.job);
    }
    for (const std::string& name : awaited) {
      if (!just_told.contains(name)) TellAll(name, told_.at(name));
    }
  }
  const std::set<Rank> came = std::exchange(came_, {});
  if (came.empty() && !whole) return;
  std::erase_if(told_, [this](const auto& told) {
    const bool gone = jobs_.Find(told.first) == nullptr;
    if (gone) forgotten_(told.first);
    return gone;
  });
  for (const auto& [name, told] : told_) {
    const Job& job = *jobs_.Find(name);
    const bool only_keeps = told.policy_only && job.steps->all.empty() && job.sessions->all.empty();
    if (whole && !only_keeps) {
      TellAll(name, told);
      continue;
    }
    for (const Rank rank : came) {
      if (members_.Up(rank)) Tell(rank, name, told);
    }
  }
}

void Decisions::MemberCame(Rank rank) {
  came_.insert(rank);
  // It is told all again, and says what it holds: it may be another life.
  for (auto& [name, told] : told_) told.held.erase(rank);
}

// --- a second journal

void Decisions::On(const MemberId& from, const peer::RecordHeld& said) {
  const auto told = told_.find(said.job);
  if (told == told_.end() || said.number > told->second.number) return;
  uint64_t& held = told->second.held[from.rank];
  held = std::max(held, said.number);
}

void Decisions::Decided(const Caller& caller, const std::string& job,
                        std::optional<MonotonicNanos> deadline, const JobPolicy* policy) {
  const Held fresh{caller.session, job, deadline.value_or(out_.now() + kPatience),
                   deadline.has_value()};
  Held& held = held_.try_emplace(caller.request, fresh).first->second;
  held.number.reset();  // it is decided only now
  if (policy != nullptr) held.policy = *policy;
  due_.insert(job);
}

std::optional<MonotonicNanos> Decisions::DeadlineOf(RequestId request) const {
  const auto held = held_.find(request);
  return held == held_.end() ? std::nullopt : std::optional(held->second.deadline);
}

// What was said again, as by a caller whose answer was lost, may not have arrived the first time.
void Decisions::Number(Held* held, const std::set<std::string>& just_told) {
  const auto told = told_.find(held->job);
  held->number = told == told_.end() ? 0 : told->second.number;
  if (*held->number == 0 || just_told.contains(held->job)) return;
  if (!SecondHolds(held->job, *held->number)) TellAll(held->job, told->second);
}

bool Decisions::SecondHolds(const std::string& job, uint64_t number) const {
  const auto told = told_.find(job);
  if (told == told_.end()) return true;  // it is forgotten
  return std::any_of(told->second.held.begin(), told->second.held.end(), [&](const auto& held) {
    return held.second >= number && members_.Up(held.first);
  });
}

bool Decisions::MayLeave(const Held& held) const {
  if (held.left) return true;
  const auto& others = members_.others();
  const bool alone = std::none_of(others.begin(), others.end(),
                                  [](const auto& member) { return member.second.up; });
  if (alone || !held.number.has_value()) return alone;
  return *held.number == 0 || SecondHolds(held.job, *held.number);
}

void Decisions::SessionEnds(SessionId session) {
  for (auto& [request, held] : held_) held.left |= held.session == session;
}

void Decisions::CallerLeft(RequestId request) {
  const auto held = held_.find(request);
  if (held != held_.end()) held->second.left = true;
}

void Decisions::HoldBack(std::vector<Action>* actions) {
  if (held_.empty()) return;
  std::vector<Action> others;
  for (Action& action : *actions) {
    auto* reply = std::get_if<action::Reply>(&action);
    const auto held = reply == nullptr ? held_.end() : held_.find(reply->request);
    if (held != held_.end() && reply->body.ok()) {
      held->second.answer = std::move(*reply);
      if (!held->second.carried) {
        held->second.deadline = std::max(held->second.deadline, out_.now() + kAtLeast);
      }
      continue;
    }
    if (held != held_.end()) held_.erase(held);
    others.push_back(std::move(action));
  }
  *actions = std::move(others);
  size_t waiting = 0;
  for (auto at = held_.begin(); at != held_.end();) {
    Held& held = at->second;
    if (!held.answer.has_value()) {
      ++at;
      continue;
    }
    const bool may_leave = MayLeave(held);
    if (!may_leave && held.deadline <= out_.now()) {
      held.answer->body = absl::DeadlineExceededError(
          "decided and journaled on this node; no other member has said that its journal has it");
    } else if (!may_leave && waiting++ >= static_cast<size_t>(options_.max_waiting)) {
      held.answer->body = absl::ResourceExhaustedError(
          absl::StrCat("decided and journaled on this node; ", options_.max_waiting,
                       " callers wait already for another member's journal"));
    } else if (!may_leave) {
      ++at;
      continue;
    }
    actions->push_back(*std::move(held.answer));
    at = held_.erase(at);
  }
}

MonotonicNanos Decisions::next() const {
  MonotonicNanos next = kNever;
  for (const auto& [request, held] : held_) {
    if (held.answer.has_value() || held.deadline > out_.now()) {
      next = std::min(next, held.deadline);
    }
  }
  return next;
}

}  // namespace cairn::engine
