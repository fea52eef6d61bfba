#include "server/catalog/tables.h"

#include <array>

namespace cairn::catalog {

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

}  // namespace cairn::catalog
