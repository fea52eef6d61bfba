#include "server/engine/report.h"

#include <algorithm>

namespace cairn::engine {
namespace {

// What `to` has that `from` has not, or has otherwise; and what it has no longer.
template <typename Map, typename Keys>
void DiffMaps(const Map& from, const Map& to, Map* changed, Keys* gone) {
  auto before = from.begin();
  for (const auto& [key, value] : to) {
    for (; before != from.end() && before->first < key; ++before) gone->insert(before->first);
    const bool known = before != from.end() && before->first == key;
    if (!known || before->second != value) changed->emplace_hint(changed->end(), key, value);
    if (known) ++before;
  }
  for (; before != from.end(); ++before) gone->insert(before->first);
}

template <typename Map, typename Keys>
void ApplyToMap(const Map& changed, const Keys& gone, Map* map) {
  for (const auto& key : gone) map->erase(key);
  for (const auto& [key, value] : changed) map->insert_or_assign(key, value);
}

// What is gone stays said: whoever applies both as one may have it from before the older one.
template <typename Map, typename Keys>
void MergeMaps(const Map& changed, const Keys& gone, Map* older_changed, Keys* older_gone) {
  for (const auto& key : gone) older_changed->erase(key);
  older_gone->insert(gone.begin(), gone.end());
  for (const auto& [key, value] : changed) {
    older_changed->insert_or_assign(key, value);
    older_gone->erase(key);
  }
}

}  // namespace

bool RunsWriter0(const JobReport& report, Attempt attempt) {
  for (auto at = report.writers.lower_bound({attempt, {}});
       at != report.writers.end() && at->first.first == attempt; ++at) {
    if (at->first.second.writer == 0) return true;
  }
  return false;
}

ReportDelta DeltaOf(const std::string& job, const JobReport& from, const JobReport& to,
                    uint64_t after, uint64_t number) {
  static const JobReport kNothing;
  const JobReport& before = after == 0 ? kNothing : from;
  ReportDelta delta;
  delta.job = job;
  delta.after = after;
  delta.number = number;
  delta.owned = to.owned;
  delta.owner_uid = to.owner_uid;
  delta.owner_gid = to.owner_gid;
  delta.policy = to.policy;
  DiffMaps(before.attempts, to.attempts, &delta.attempts, &delta.attempts_gone);
  DiffMaps(before.parts, to.parts, &delta.parts, &delta.parts_gone);
  DiffMaps(before.writers, to.writers, &delta.writers, &delta.writers_gone);
  for (const CheckpointId& id : to.published) {
    if (!before.published.contains(id)) delta.published.insert(id);
  }
  for (const CheckpointId& id : before.published) {
    if (!to.published.contains(id)) delta.published_gone.insert(id);
  }
  delta.target = to.target;
  delta.saving = to.saving;
  return delta;
}

void ApplyDelta(const ReportDelta& delta, JobReport* report) {
  if (delta.after == 0) *report = {};
  report->owned = delta.owned;
  report->owner_uid = delta.owner_uid;
  report->owner_gid = delta.owner_gid;
  report->policy = delta.policy;
  ApplyToMap(delta.attempts, delta.attempts_gone, &report->attempts);
  ApplyToMap(delta.parts, delta.parts_gone, &report->parts);
  ApplyToMap(delta.writers, delta.writers_gone, &report->writers);
  for (const CheckpointId& id : delta.published_gone) report->published.erase(id);
  report->published.insert(delta.published.begin(), delta.published.end());
  report->target = delta.target;
  report->saving = delta.saving;
}

ReportDelta MergeDelta(ReportDelta older, const ReportDelta& newer) {
  const uint64_t answers = std::max(older.answers, newer.answers);
  if (newer.after == 0) older = newer;
  older.answers = answers;
  if (newer.after == 0) return older;
  older.number = newer.number;
  older.owned = newer.owned;
  older.owner_uid = newer.owner_uid;
  older.owner_gid = newer.owner_gid;
  older.policy = newer.policy;
  MergeMaps(newer.attempts, newer.attempts_gone, &older.attempts, &older.attempts_gone);
  MergeMaps(newer.parts, newer.parts_gone, &older.parts, &older.parts_gone);
  MergeMaps(newer.writers, newer.writers_gone, &older.writers, &older.writers_gone);
  for (const CheckpointId& id : newer.published_gone) older.published.erase(id);
  older.published_gone.insert(newer.published_gone.begin(), newer.published_gone.end());
  for (const CheckpointId& id : newer.published) {
    older.published.insert(id);
    older.published_gone.erase(id);
  }
  older.target = newer.target;
  older.saving = newer.saving;
  // A whole one says all there is: nothing in it can be gone.
  if (older.after == 0) {
    older.attempts_gone.clear();
    older.parts_gone.clear();
    older.writers_gone.clear();
    older.published_gone.clear();
  }
  return older;
}

}  // namespace cairn::engine
