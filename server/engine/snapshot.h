// The whole state as facts, in pieces, so that no event waits for all of it.
//
// Each thing that facts are about (a slab, a session, a lease, an attempt, an object that is being
// written, a committed part, a checkpoint's files) is told in one go, as it is at that moment. Facts that are said between two pieces go into the journal
// between them. Replayed in that order, pieces and facts are the state at the end: facts of a thing that
// comes later say less than its piece, which replaces them, and facts of one that was told go on from it.
// This holds because a fact changes only what it is about (restored.h); JobForgotten, which ends all of
// a job's, is said when nothing else of it will be told.
#pragma once

#include <cstddef>
#include <vector>

#include "server/engine/snapshot_cursor.h"
#include "server/facts/facts.h"

namespace cairn::engine {

struct Job;
class Attempts;
class Jobs;
class Leases;
class Ledger;
class Outbox;
class Cluster;
struct Mode;
class Parts;
class Persistence;
class Retention;
class Sessions;
class StorageRoot;

// Whom the engine asks.
class SnapshotSources {
 public:
  // Appends facts for about `most` things, and moves on.
  void Take(SnapshotCursor* cursor, size_t most, std::vector<Fact>* facts) const;

  const Outbox& out;
  const Mode& mode;
  const StorageRoot& storage_root;
  const Ledger& ledger;
  const Sessions& sessions;
  const Leases& leases;
  const Jobs& jobs;
  const Attempts& attempts;
  const Retention& retention;
  const Parts& parts;
  const Persistence& persistence;
  const Cluster& cluster;

 private:
  using Stage = SnapshotCursor::Stage;

  void TakeNext(SnapshotCursor* cursor, std::vector<Fact>* facts) const;
  void TakeJob(SnapshotCursor* cursor, std::vector<Fact>* facts) const;
  void TakeAttempt(const Job& job, SnapshotCursor* cursor, std::vector<Fact>* facts) const;
  void TakePart(const Job& job, SnapshotCursor* cursor, std::vector<Fact>* facts) const;
};

}  // namespace cairn::engine
