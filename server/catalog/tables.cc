#include "server/catalog/tables.h"

#include <array>

namespace cairn::catalog {

// One function: the tables, one after the other.
const Table& TableAt(size_t number) {
  using enum Rule;
  static const auto* const tables = new std::array<Table, kTables>{{
      {"jobs",
       {{"job", kKey},
        {"owner_uid"},
        {"owner_gid"},
        {"persist_mode"},
        {"every_steps"},
        {"keep_last"},
        {"keep_every"},
        {"readers"},
        {"replicas"},
        {"policy_version", kOrders},
        {"policy_rank", kOrders},
        {"sequence", kOrders}}},
      {"attempts",
       {{"job", kKey},
        {"attempt", kKey},
        {"comes_from", kOrigin},
        {"began_unix_ms"},
        {"sequence", kOrders}}},
      {"steps",
       {{"job", kKey},
        {"step", kKey},
        {"attempt", kKey},
        {"revision", kKey},
        {"world_size"},
        {"digest"},
        {"completed_unix_ms"},
        {"persisted", kRises},
        {"removed", kRises},
        {"of_home"},
        {"sequence", kOrders}}},
      {"parts",
       {{"job", kKey},
        {"step", kKey},
        {"attempt", kKey},
        {"revision", kKey},
        {"writer", kKey},
        {"world_size"},
        {"digest"},
        {"bytes"},
        {"objects"},
        {"persisted"},
        {"broken"},
        {"removed"},
        {"owner"},
        {"sequence", kOrders}}},
      {"holders",
       {{"job", kKey},
        {"step", kKey},
        {"attempt", kKey},
        {"revision", kKey},
        {"writer", kKey},
        {"holder", kKey},
        {"resident"},
        {"sequence", kOrders}}},
      {"line_records",
       {{"job", kKey},
        {"kind", kKey},
        {"number", kKey},
        {"step"},
        {"attempt"},
        {"lineage"},
        {"said_unix_ms"},
        {"said_version", kOrders},
        {"sequence", kOrders}}},
      {"authors",
       {{"name", kKey},
        {"incarnation"},
        {"seen_unix_ms"},
        {"budget_bytes"},
        {"used_bytes"},
        {"replica_bytes"},
        {"sequence", kOrders}}},
  }};
  return (*tables)[number];
}

Values KeyOf(const CheckpointKey& checkpoint) {
  return {checkpoint.job, checkpoint.step, checkpoint.attempt, int64_t{checkpoint.revision}};
}

TableRow TableRowOf(const JobRow& row) {
  return {
      kJobs,
      {row.job, int64_t{row.owner_uid}, int64_t{row.owner_gid},
       static_cast<int64_t>(row.policy.mode), row.policy.every, row.policy.keep_last,
       row.policy.keep_every, static_cast<int64_t>(row.policy.readers),
       int64_t{row.policy.replicas}, row.policy_version, int64_t{row.policy_rank}, row.sequence}};
}

TableRow TableRowOf(const AttemptRow& row) {
  return {kAttempts, {row.job, row.attempt, row.comes_from, row.began_unix_ms, row.sequence}};
}

TableRow TableRowOf(const StepRow& row) {
  Values values = KeyOf(row.checkpoint);
  for (Value& value :
       Values{int64_t{row.world_size}, row.digest, row.completed_unix_ms, int64_t{row.persisted},
              int64_t{row.removed}, int64_t{row.of_home}, row.sequence}) {
    values.push_back(std::move(value));
  }
  return {kSteps, std::move(values)};
}

TableRow TableRowOf(const PartRow& row) {
  Values values = KeyOf(row.part.checkpoint);
  for (Value& value : Values{int64_t{row.part.writer}, int64_t{row.world_size}, row.digest,
                             static_cast<int64_t>(row.bytes), static_cast<int64_t>(row.objects),
                             int64_t{row.persisted}, int64_t{row.broken}, int64_t{row.removed},
                             row.owner, row.sequence}) {
    values.push_back(std::move(value));
  }
  return {kParts, std::move(values)};
}

TableRow TableRowOf(const HolderRow& row) {
  Values values = KeyOf(row.part.checkpoint);
  for (Value& value :
       Values{int64_t{row.part.writer}, row.holder, int64_t{row.resident}, row.sequence}) {
    values.push_back(std::move(value));
  }
  return {kHolders, std::move(values)};
}

TableRow TableRowOf(const LineRow& row) {
  const LineRecord& record = row.record;
  return {kLineRecords,
          {record.job, static_cast<int64_t>(record.kind), record.number, record.lineage.step(),
           record.lineage.attempt(), EncodeLineage(record.lineage), row.said_unix_ms, row.version,
           row.sequence}};
}

TableRow TableRowOf(const AuthorRow& row) {
  return {kAuthors,
          {row.name, row.incarnation, row.seen_unix_ms, static_cast<int64_t>(row.budget_bytes),
           static_cast<int64_t>(row.used_bytes), static_cast<int64_t>(row.replica_bytes),
           row.sequence}};
}

StatusOr<std::optional<StepRow>> LatestBy(const LatestReads& reads) {
  CAIRN_ASSIGN_OR_RETURN(const std::optional<NewestStep> newest, reads.newest());
  if (!newest.has_value()) return std::nullopt;
  // The attempt is the head, and no step that it came from is above its own.
  if (newest->step.checkpoint.attempt >= newest->decided) return newest->step;
  std::optional<LineRow> decision;
  for (const LineRecordKind kind : {LineRecordKind::kUse, LineRecordKind::kResume}) {
    CAIRN_ASSIGN_OR_RETURN(decision, reads.record(kind, newest->decided));
    if (decision.has_value()) break;
  }
  if (!decision.has_value()) return std::nullopt;  // it has gone meanwhile, with the job
  Lineage lineage = decision->record.lineage;
  for (size_t at = 0; at < kMaxLineage; ++at) {
    // What the last one came from may be known by now.
    if (at == lineage.entries.size() && lineage.open && at > 0) {
      CAIRN_ASSIGN_OR_RETURN(const std::optional<LineRow> origin,
                             reads.record(LineRecordKind::kOrigin, lineage.entries.back().attempt));
      if (origin.has_value()) CloseWith(origin->record.lineage, &lineage);
    }
    if (at == lineage.entries.size()) break;
    const LineageEntry entry = lineage.entries[at];
    // The steps of an entry are all above those of the next one.
    CAIRN_ASSIGN_OR_RETURN(const std::optional<StepRow> step,
                           reads.up_to(entry.attempt, entry.up_to));
    if (step.has_value()) return step;
  }
  return std::nullopt;
}

}  // namespace cairn::catalog
