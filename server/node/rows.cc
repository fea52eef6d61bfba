#include "server/node/rows.h"

#include <string>
#include <utility>

namespace cairn::node {
namespace {

// What leaves first: rows of what is still here come after it.
void AddParts(const engine::Engine::Description& description, const catalog::Author& author,
              int64_t* sequence, std::vector<catalog::Row>* rows) {
  for (const auto& [key, whole] : description.left) {
    rows->push_back(catalog::LeftRow{
        .checkpoint = key, .holder = author.name, .whole = whole, .sequence = ++*sequence});
  }
  for (const engine::Engine::Description::Part& part : description.parts) {
    rows->push_back(catalog::HolderRow{.part = part.key,
                                       .holder = author.name,
                                       .resident = part.resident,
                                       .sequence = ++*sequence});
    if (!part.own) continue;
    rows->push_back(catalog::PartRow{.part = part.key,
                                     .world_size = part.world_size,
                                     .digest = part.digest,
                                     .bytes = part.bytes,
                                     .objects = part.objects,
                                     .persisted = part.persisted,
                                     .broken = part.broken,
                                     .owner = author.name,
                                     .sequence = ++*sequence});
  }
}

void AddJob(const engine::Engine::Description& description, const catalog::Author& author,
            int64_t* sequence, std::vector<catalog::Row>* rows) {
  if (description.job.has_value()) {
    const fact::Job& job = *description.job;
    catalog::JobRow row{.job = job.job,
                        .owner_uid = job.owner_uid,
                        .owner_gid = job.owner_gid,
                        .policy = job.policy,
                        .sequence = ++*sequence};
    // Alone the order tells; a job that was forgotten counts its policies from the beginning again.
    if (!author.alone) {
      row.policy_version = job.policy_version;
      row.policy_rank = job.policy_rank;
    }
    rows->push_back(std::move(row));
  }
  for (const fact::AttemptBegun& attempt : description.attempts) {
    rows->push_back(catalog::AttemptRow{.job = attempt.job,
                                        .attempt = attempt.attempt,
                                        .comes_from = attempt.lineage.step(),
                                        .began_unix_ms = attempt.unix_ms,
                                        .sequence = ++*sequence});
  }
  for (const engine::Engine::Description::LineRecordSaid& said : description.line) {
    rows->push_back(
        catalog::LineRow{.record = said.record,
                         .said_unix_ms = said.unix_ms,
                         // Alone the order tells; a daemon that was restarted counts anew.
                         .version = author.alone ? 0 : said.version,
                         .sequence = ++*sequence});
  }
}

void AddCheckpoints(const engine::Engine::Description& description, const catalog::Author& author,
                    int64_t* sequence, std::vector<catalog::Row>* rows) {
  for (const engine::CheckpointInfo& info : description.complete) {
    rows->push_back(catalog::StepRow{.checkpoint = info.key,
                                     .world_size = info.world_size,
                                     .digest = info.digest,
                                     .completed_unix_ms = info.created_unix_ms,
                                     .persisted = info.facts.persisted,
                                     .of_home = !author.alone,
                                     .sequence = ++*sequence});
  }
  for (const CheckpointKey& vanished : description.vanished) {
    rows->push_back(catalog::VanishedRow{.checkpoint = vanished, .sequence = ++*sequence});
  }
  for (const CheckpointKey& gone : description.gone) {
    rows->push_back(catalog::StepRow{
        .checkpoint = gone, .removed = true, .of_home = !author.alone, .sequence = ++*sequence});
  }
}

}  // namespace

catalog::Author AuthorOf(const Options& node) {
  const engine::RingOptions& ring = node.engine.ring;
  if (ring.Alone()) return {.name = node.name, .alone = true};
  return {.name = std::to_string(ring.rank), .alone = false};
}

std::vector<catalog::Row> RowsOf(const engine::Engine::Description& description,
                                 const catalog::Author& author, int64_t* sequence) {
  std::vector<catalog::Row> rows;
  if (description.writes_checkpoints) AddJob(description, author, sequence, &rows);
  AddParts(description, author, sequence, &rows);
  if (description.writes_checkpoints) AddCheckpoints(description, author, sequence, &rows);
  if (!description.forgotten.empty()) {
    rows.push_back(catalog::ForgottenRow{
        .job = description.forgotten, .of_home = !author.alone, .sequence = ++*sequence});
  }
  return rows;
}

}  // namespace cairn::node
