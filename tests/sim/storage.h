// The storage that all nodes share: what is published there, and what was removed. How a node sees
// it (late, failing, away) is its executor's business.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/keys.h"
#include "common/layout.h"
#include "common/root_marker.h"
#include "common/status.h"
#include "server/engine/actions.h"
#include "tests/sim/clock.h"
#include "tests/sim/simulator.h"

namespace cairn::engine::sim {

class Storage {
 public:
  // The clock is its own: nothing moves it but time.
  Storage(Lie lie, const Clock& clock) : lie_(lie), clock_(clock) {}

  RootIdentity root() const { return {"the storage", absl::StrCat("mount ", mounts_)}; }
  // The same files stand in another directory from now on.
  void Remount() { ++mounts_; }

  // FAILED_PRECONDITION when the step was removed, or a newer revision of the attempt stands there.
  // Other attempts' checkpoints of the step stay beside it.
  Status Publish(StoredCheckpoint checkpoint);
  // What stands under the record's number and kind.
  LineRecord WriteLineRecord(const LineRecord& record);
  // A node has begun to delete it: from now on it may be there or not.
  void BeginDelete(const CheckpointKey& key) { deleting_.insert(key); }
  void Delete(const action::DeleteFiles& deletion);
  StatusOr<StoredJob> Scan(const std::string& job) const;
  int64_t UnixMs() const { return clock_.UnixMs(); }
  // When the attempt's origin was recorded, by storage's clock; nullopt: it was not.
  std::optional<int64_t> OriginRecordedMs(const std::string& job, Attempt attempt) const;

  LineNumbers NumbersOf(const std::string& job) const;
  // FAILED_PRECONDITION as the real one's Delete.
  Status CheckNotNeeded(const action::DeleteFiles& deletion) const;

  const StoredCheckpoint* Find(const CheckpointKey& key) const;
  bool Has(const CheckpointKey& key) const { return Find(key) != nullptr; }
  // It is there, or it may rightly be missing: a newer generation took its place, or a node was
  // asked to delete it.
  bool AccountsFor(const CheckpointKey& key) const {
    return Has(key) || deleting_.contains(key) || replaced_.contains(key);
  }

 private:
  const Lie lie_;
  const Clock& clock_;
  int mounts_ = 1;
  std::map<std::string, std::map<std::pair<Step, Attempt>, StoredCheckpoint>> steps_;  // by job
  std::map<std::string, RemovedSteps> tombstones_;
  std::map<std::string, std::map<std::pair<Attempt, LineRecordKind>, LineRecord>> records_;
  std::map<std::string, std::map<Attempt, int64_t>> origins_written_ms_;
  std::set<CheckpointKey> deleting_;
  std::set<CheckpointKey> replaced_;
};

}  // namespace cairn::engine::sim
