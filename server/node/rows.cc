#include "server/node/rows.h"

#include <utility>

namespace cairn::node {
namespace {

void AddParts(const engine::Engine::Description& description, const std::string& holder,
              int64_t* sequence, std::vector<catalog::Row>* rows) {
  for (const engine::Engine::Description::Part& part : description.parts) {
    if (!part.own) continue;
    catalog::PartRow row;
    row.part = part.key;
    row.world_size = part.world_size;
    row.digest = part.digest;
    row.bytes = part.bytes;
    row.objects = part.objects;
    row.resident = part.resident;
    row.persisted = part.persisted;
    row.broken = part.broken;
    row.holders = part.resident ? holder : "";
    row.sequence = ++*sequence;
    rows->push_back(std::move(row));
  }
}

void AddCheckpoints(const engine::Engine::Description& description, int64_t* sequence,
                    std::vector<catalog::Row>* rows) {
  for (const engine::CheckpointInfo& info : description.complete) {
    catalog::StepRow step;
    step.checkpoint = info.key;
    step.world_size = info.world_size;
    step.digest = info.digest;
    step.completed_unix_ms = info.created_unix_ms;
    step.persisted = info.facts.persisted;
    step.sequence = ++*sequence;
    rows->push_back(std::move(step));
  }
  for (const CheckpointKey& gone : description.gone) {
    catalog::StepRow step;
    step.checkpoint = gone;
    step.removed = true;
    step.sequence = ++*sequence;
    rows->push_back(std::move(step));
  }
}

}  // namespace

std::vector<catalog::Row> RowsOf(const engine::Engine::Description& description,
                                 const std::string& holder, int64_t* sequence) {
  std::vector<catalog::Row> rows;
  const bool of_job = description.writes_checkpoints;
  if (of_job && description.job.has_value()) {
    const fact::Job& job = *description.job;
    rows.push_back(catalog::JobRow{job.job, job.owner_uid, job.owner_gid, job.policy, ++*sequence});
  }
  for (const fact::AttemptBegun& attempt : description.attempts) {
    if (!of_job) break;
    rows.push_back(catalog::AttemptRow{attempt.job, attempt.attempt, attempt.lineage.step(),
                                       attempt.unix_ms, ++*sequence});
  }
  AddParts(description, holder, sequence, &rows);
  if (of_job) AddCheckpoints(description, sequence, &rows);
  return rows;
}

}  // namespace cairn::node
