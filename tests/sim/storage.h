// The storage that all nodes share: what is published there, and what was removed. How a node sees
// it (late, failing, away) is its executor's business.
#pragma once

#include <map>
#include <set>
#include <string>

#include "common/keys.h"
#include "common/layout.h"
#include "common/root_marker.h"
#include "common/status.h"
#include "server/engine/actions.h"

namespace cairn::engine::sim {

class Storage {
 public:
  // `forgets`: it acknowledges what it is given and keeps nothing (Lie::kStorageForgets).
  explicit Storage(bool forgets) : forgets_(forgets) {}

  RootIdentity root() const { return {"the storage", "its directory"}; }

  // FAILED_PRECONDITION when the step was removed, or a newer revision of the attempt stands there.
  // Other attempts' checkpoints of the step stay beside it.
  Status Publish(StoredCheckpoint checkpoint);
  // What stands under the record's number and kind.
  LineRecord WriteLineRecord(const LineRecord& record);
  // A node has begun to delete it: from now on it may be there or not.
  void BeginDelete(const CheckpointKey& key) { deleting_.insert(key); }
  void Delete(const action::DeleteFiles& deletion);
  StatusOr<StoredJob> Scan(const std::string& job) const;

  const StoredCheckpoint* Find(const CheckpointKey& key) const;
  bool Has(const CheckpointKey& key) const { return Find(key) != nullptr; }
  // It is there, or it may rightly be missing: a newer generation took its place, or a node was
  // asked to delete it.
  bool AccountsFor(const CheckpointKey& key) const {
    return Has(key) || deleting_.contains(key) || replaced_.contains(key);
  }

 private:
  const bool forgets_;
  std::map<std::string, std::map<std::pair<Step, Attempt>, StoredCheckpoint>> steps_;  // by job
  std::map<std::string, RemovedSteps> tombstones_;
  std::map<std::string, std::map<std::pair<Attempt, LineRecordKind>, LineRecord>> records_;
  std::set<CheckpointKey> deleting_;
  std::set<CheckpointKey> replaced_;
};

}  // namespace cairn::engine::sim
