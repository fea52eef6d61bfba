#include "server/engine/snapshot.h"

#include <algorithm>
#include <functional>

#include "server/engine/attempts.h"
#include "server/engine/cluster.h"
#include "server/engine/leases.h"
#include "server/engine/ledger.h"
#include "server/engine/mode.h"
#include "server/engine/parts.h"
#include "server/engine/persistence.h"
#include "server/engine/retention.h"
#include "server/engine/sessions.h"
#include "server/engine/storage_root.h"

namespace cairn::engine {
namespace {

// A writer of an attempt as one number, and back.
uint64_t IdOfWriter(const WorldWriter& writer) {
  return static_cast<uint64_t>(writer.world_size) << 32 | static_cast<uint32_t>(writer.writer);
}
WorldWriter WriterOf(uint64_t id) {
  return {static_cast<int32_t>(id >> 32), static_cast<Writer>(id & UINT32_MAX)};
}

// In the order in which they are told: the next one stands last.
template <class Map, class Id = std::identity>
std::vector<uint64_t> IdsOf(const Map& things, Id id_of = {}) {
  std::vector<uint64_t> ids;
  ids.reserve(things.size());
  for (const auto& [id, thing] : things) ids.push_back(id_of(id));
  std::sort(ids.begin(), ids.end(), std::greater<>());
  return ids;
}

}  // namespace

void SnapshotSources::Take(SnapshotCursor* cursor, size_t most, std::vector<Fact>* facts) const {
  for (size_t left = most; left > 0 && !cursor->done();) {
    const size_t before = facts->size();
    TakeNext(cursor, facts);
    left -= std::min(left, 1 + facts->size() - before);
  }
}

void SnapshotSources::TakeNext(SnapshotCursor* cursor, std::vector<Fact>* facts) const {
  std::vector<uint64_t>& ids = cursor->ids;
  // The next of the ids, or 0 with the stage that follows them.
  const auto next_or = [&](Stage then) -> uint64_t {
    if (ids.empty()) {
      cursor->stage = then;
      return 0;
    }
    const uint64_t id = ids.back();
    ids.pop_back();
    return id;
  };
  switch (cursor->stage) {
    case Stage::kNode:
      out.Snapshot(facts);
      if (mode.leaving_said) facts->push_back(fact::Leaving{mode.leaving});
      storage_root.Snapshot(facts);
      cluster.Snapshot(facts);
      ids = IdsOf(ledger.slabs());
      cursor->stage = Stage::kSlabs;
      return;
    case Stage::kSlabs:
      if (const SlabId id = next_or(Stage::kSessions)) return ledger.Snapshot(id, facts);
      ids = IdsOf(sessions.all());
      return;
    case Stage::kSessions:
      if (const SessionId id = next_or(Stage::kLeases)) return sessions.Snapshot(id, facts);
      ids = IdsOf(leases.all());
      return;
    case Stage::kLeases:
      if (const LeaseId id = next_or(Stage::kNextJob)) leases.Snapshot(id, facts);
      return;
    case Stage::kNextJob:
    case Stage::kAttempts:
    case Stage::kWriters:
    case Stage::kDecisions:
    case Stage::kCheckpoints:
      return TakeJob(cursor, facts);
    case Stage::kDone:
      return;
  }
}

void SnapshotSources::TakeJob(SnapshotCursor* cursor, std::vector<Fact>* facts) const {
  const Job* job = nullptr;
  if (cursor->stage == Stage::kNextJob) {
    const auto at = jobs.all().upper_bound(cursor->job);
    if (at == jobs.all().end()) {
      cursor->stage = Stage::kDone;
      return;
    }
    *cursor = SnapshotCursor();
    cursor->job = at->first;
    cursor->stage = Stage::kAttempts;
    return jobs.Snapshot(*at->second, facts);
  }
  job = jobs.Find(cursor->job);
  if (job == nullptr) {  // forgotten since, and that was said
    cursor->stage = Stage::kNextJob;
    return;
  }
  switch (cursor->stage) {
    case Stage::kAttempts:
      return TakeAttempt(*job, cursor, facts);
    case Stage::kWriters:
      if (cursor->ids.empty()) {
        cursor->stage = Stage::kAttempts;
        return;
      }
      attempts.SnapshotWriter(*job, cursor->attempt, WriterOf(cursor->ids.back()), facts);
      cursor->ids.pop_back();
      return;
    case Stage::kDecisions:
      attempts.SnapshotDecisions(*job, facts);
      retention.Snapshot(*job, facts);
      Persistence::Snapshot(*job, facts);
      Verdicts::Snapshot(*job, facts);
      cursor->stage = Stage::kCheckpoints;
      return;
    default:
      return TakePart(*job, cursor, facts);
  }
}

void SnapshotSources::TakeAttempt(const Job& job, SnapshotCursor* cursor,
                                  std::vector<Fact>* facts) const {
  const auto at = job.attempts->begun.upper_bound(cursor->attempt);
  if (at == job.attempts->begun.end()) {
    cursor->stage = Stage::kDecisions;
    return;
  }
  attempts.Snapshot(job, at->first, at->second, facts);
  cursor->attempt = at->first;
  if (!Attempts::InSnapshot(job, at->second)) return;
  cursor->ids = IdsOf(at->second.processes, IdOfWriter);
  cursor->stage = Stage::kWriters;
}

// The next part of a checkpoint, or object of one that is being written; behind the last part what is
// known of all of it.
void SnapshotSources::TakePart(const Job& job, SnapshotCursor* cursor,
                               std::vector<Fact>* facts) const {
  const auto& all = job.steps->all;
  const auto at =
      cursor->within ? all.lower_bound(cursor->checkpoint) : all.upper_bound(cursor->checkpoint);
  if (at == all.end()) {
    cursor->stage = Stage::kNextJob;
    return;
  }
  const bool same = cursor->within && at->first == cursor->checkpoint;
  const Checkpoint& checkpoint = *at->second;
  const auto& of_checkpoint = checkpoint.content->parts;
  const auto part = same ? of_checkpoint.lower_bound(cursor->writer) : of_checkpoint.begin();
  cursor->checkpoint = at->first;
  cursor->within = part != of_checkpoint.end();
  if (!cursor->within) {
    // Nobody writes any more to what only storage has.
    if (!checkpoint.content->complete || checkpoint.InMemory()) {
      attempts.SnapshotWorld(job, at->first.attempt, at->first.step, facts);
    }
    return persistence.Snapshot(checkpoint, facts);
  }
  if (!same || part->first != cursor->writer) cursor->object.clear();
  cursor->writer = part->first;
  if (const Object* object = Parts::OpenAfter(*part->second, cursor->object)) {
    cursor->object = object->name();
    return Parts::Snapshot(*object, facts);
  }
  parts.Snapshot(*part->second, facts);
  cursor->object.clear();
  ++cursor->writer;
}

}  // namespace cairn::engine
