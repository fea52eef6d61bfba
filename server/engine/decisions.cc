#include "server/engine/decisions.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace cairn::engine {

Decisions::Decisions(Outbox* out, const Members* members, Jobs* jobs, Attempts* attempts,
                     Retention* retention)
    : out_(*out), members_(*members), jobs_(*jobs), attempts_(*attempts), retention_(*retention) {}

bool Decisions::RecordOf(const Job& job, JobRecord* record) {
  if (job.owner->owned) record->owner = JobRecord::Owner{job.owner->uid, job.owner->gid};
  for (const auto& [number, decision] : job.attempts->decisions) {
    record->decisions[{number, decision.kind}] = {decision.lineage, decision.unix_ms, {1, 0}};
  }
  record->removed = job.tombstones->removed;
  return !record->decisions.empty() || !record->removed.steps.empty();
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
    if (job == nullptr || !RecordOf(*job, &record)) continue;
    std::string encoded = EncodeJobRecord(record);
    if (told_[name] == encoded) continue;
    TellAll(others, name, encoded);
    told_[name] = std::move(encoded);
    changed_(name, record);
  }
  const std::set<Rank> came = std::exchange(came_, {});
  const std::set<Rank>& to = whole ? others : came;
  if (to.empty()) return;
  for (const auto& [name, encoded] : told_) TellAll(to, name, encoded);
}

}  // namespace cairn::engine
