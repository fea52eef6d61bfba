// The storage below a node, in memory: what is published, what the line's records say, what was removed.
// It is away while `away` says so, and slow while `persist_takes` does.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/line_record.h"
#include "common/removed.h"
#include "common/root_marker.h"
#include "common/stored.h"
#include "server/engine/actions.h"

namespace cairn::year {

class Storage {
 public:
  Status Publish(const engine::action::Persist& persist, int64_t unix_ms);
  StatusOr<LineRecord> Write(const LineRecord& record, int64_t unix_ms);
  Status Delete(const engine::action::DeleteFiles& deletion);
  StatusOr<StoredJob> Scan(const std::string& job, int64_t unix_ms) const;
  StatusOr<StoredCheckpoint> Read(const CheckpointKey& key) const;
  StatusOr<LineNumbers> Numbers(const std::string& job) const;
  // The job's directory is deleted by its user.
  void Drop(const std::string& job) { jobs_.erase(job); }

  // Of all jobs that have a directory: what is kept of checkpoints, and the small files that stay for
  // good.
  struct Files {
    int64_t checkpoints = 0, records = 0, tombstones = 0;
  };
  Files files() const;

  bool away = false;
  RootIdentity root{"storage", "mount 1"};
  MonotonicNanos persist_takes = kNanosPerSecond;

 private:
  struct Stored {
    StoredCheckpoint summary;  // what a scan tells
    std::vector<std::shared_ptr<const PartTable>> parts;
  };
  struct Job {
    std::map<std::pair<Step, Attempt>, Stored> checkpoints;
    std::map<std::pair<Attempt, LineRecordKind>, LineRecord> records;
    std::map<Attempt, int64_t> recorded_at;
    RemovedSteps removed;
  };

  Status Here() const;
  static LineRecord Keep(Job* job, const LineRecord& record, int64_t unix_ms);

  std::map<std::string, Job> jobs_;
};

}  // namespace cairn::year
