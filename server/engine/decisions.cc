#include "server/engine/decisions.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace cairn::engine {

Decisions::Decisions(Outbox* out, const Members* members, Jobs* jobs, Attempts* attempts,
                     Retention* retention)
    : out_(*out), members_(*members), jobs_(*jobs), attempts_(*attempts), retention_(*retention) {}

bool Decisions::RecordOf(const Job& job, JobRecord* record) const {
  record->job = job.name;
  if (job.owner->owned) record->owner = JobRecord::Owner{job.owner->uid, job.owner->gid};
  for (const auto& [number, decision] : job.attempts->decisions) {
    record->decisions[{number, decision.kind}] = {decision.lineage, decision.unix_ms, {1, 0}};
  }
  record->removed = job.tombstones->removed;
  if (const auto highest = highest_.find(job.name); highest != highest_.end()) {
    record->highest_protected = highest->second;
  }
  return !record->decisions.empty() || !record->removed.steps.empty() ||
         record->highest_protected.second != kNoStep;
}

void Decisions::On(const peer::Record& said) {
  const StatusOr<JobRecord> record = DecodeJobRecord(said.encoded);
  if (!record.ok()) {
    out_.Log(Severity::kWarning, absl::StrCat("job=", said.job, " decisions of another member: ",
                                              record.status().message()));
    return;
  }
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
  }
  for (const auto& [id, decision] : record->decisions) {
    if (job->attempts->decisions.contains(id.first)) continue;
    attempts_.Learn(job, LineRecord{said.job, id.first, id.second, decision.lineage},
                    decision.unix_ms);
  }
  retention_.Learn(job, record->removed);
  std::pair<Attempt, Step>& highest =
      highest_.try_emplace(said.job, Attempt{0}, kNoStep).first->second;
  highest = std::max(highest, record->highest_protected);
  due_.insert(said.job);
}

void Decisions::TellAll(const std::set<Rank>& to, const std::string& job,
                        const std::string& encoded) {
  for (const Rank rank : to) {
    if (members_.Up(rank)) out_.Do(action::Tell{rank, peer::Record{job, encoded}});
  }
}

void Decisions::Run(bool whole) {
  std::set<Rank> others;
  for (const auto& [rank, member] : members_.others()) others.insert(rank);
  for (const std::string& name : std::exchange(due_, {})) {
    const Job* job = jobs_.Find(name);
    JobRecord record;
    if (job == nullptr) continue;
    if (const auto& protect = job->verdict->protect; protect.has_value()) {
      std::pair<Attempt, Step>& highest =
          highest_.try_emplace(name, Attempt{0}, kNoStep).first->second;
      highest = std::max(highest, {protect->attempt, protect->step});
    }
    if (!RecordOf(*job, &record)) continue;
    std::string encoded = EncodeJobRecord(record);
    std::string& told = told_[name];
    if (told == encoded) continue;
    // How far protection came is told now and then; what was decided, at once.
    JobRecord decided = record;
    decided.highest_protected = {0, kNoStep};
    std::string& decisions = decided_[name];
    if (std::string now = EncodeJobRecord(decided); now != decisions) {
      TellAll(others, name, encoded);
      decisions = std::move(now);
    }
    told = std::move(encoded);
    changed_(name, record);
  }
  const std::set<Rank> came = std::exchange(came_, {});
  const std::set<Rank>& to = whole ? others : came;
  if (to.empty()) return;
  for (const auto& [name, encoded] : told_) TellAll(to, name, encoded);
}

}  // namespace cairn::engine
