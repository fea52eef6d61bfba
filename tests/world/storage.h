// The storage below one node or a ring, in memory: parts that were written, checkpoints that are published, line
// records, tombstones. It keeps no bytes of objects.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/line_record.h"
#include "common/removed.h"
#include "common/root_marker.h"
#include "common/stored.h"
#include "server/engine/actions.h"

namespace cairn::world {

namespace action = engine::action;

class Storage {
 public:
  // Writes these parts; true: with them the checkpoint has all its parts, and is published.
  StatusOr<bool> Write(const action::Persist& persist, int64_t unix_ms);
  StatusOr<LineRecord> Write(const LineRecord& record, int64_t unix_ms);
  Status Delete(const action::DeleteFiles& deletion);
  StatusOr<StoredJob> Scan(const std::string& job, int64_t unix_ms) const;
  StatusOr<StoredCheckpoint> Read(const CheckpointKey& key) const;
  StatusOr<LineNumbers> Numbers(const std::string& job) const;
  // The job's directory is deleted by its user.
  void Drop(const std::string& job) { jobs_.erase(job); }

  // What really lies there, whether it is away or not.
  bool HasPart(const PartKey& part, const std::string& digest) const;
  bool Published(const CheckpointKey& key) const;
  // In the directories of all jobs.
  struct Files {
    int64_t checkpoints = 0, records = 0, tombstones = 0;
  };
  Files files() const;

  bool away = false, slow = false;
  bool forgets = false;  // a lie: it says that a part was written and keeps nothing
  RootIdentity root{"storage", "mount 1"};

 private:
  struct Stored {
    std::map<Writer, StoredPart> parts;
    int32_t world_size = 0;
    bool published = false;
  };
  struct Job {
    std::map<CheckpointKey, Stored> checkpoints;
    std::map<std::pair<Attempt, LineRecordKind>, LineRecord> records;
    std::map<Attempt, int64_t> recorded_at;
    RemovedSteps removed;
  };

  Status Here() const;
  static LineRecord Keep(Job* job, const LineRecord& record, int64_t unix_ms);
  static StoredCheckpoint Show(const CheckpointKey& key, const Stored& stored, bool whole);
  void Publish(Job* job, const CheckpointKey& key, Stored* stored);

  std::map<std::string, Job> jobs_;
};

}  // namespace cairn::world
