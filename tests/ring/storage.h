// The storage that all nodes of a ring share: parts that were written, checkpoints that are published, line
// records, tombstones. Its bytes are content numbers (memory.h), checked by whoever reads them.
#pragma once

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

namespace cairn::engine::ringsim {

class Storage {
 public:
  // Writes these parts. What has all its parts then is published: true.
  StatusOr<bool> Write(const action::Persist& persist, int64_t unix_ms);
  StatusOr<LineRecord> Write(const LineRecord& record, int64_t unix_ms);
  Status Delete(const action::DeleteFiles& deletion);
  StatusOr<StoredJob> Scan(const std::string& job, int64_t unix_ms) const;
  StatusOr<StoredCheckpoint> Read(const CheckpointKey& key) const;
  StatusOr<LineNumbers> Numbers(const std::string& job) const;

  // What really lies there, whether it is away or not.
  bool HasPart(const PartKey& part, const std::string& digest) const;
  bool Published(const CheckpointKey& key) const;

  bool away = false, slow = false;
  bool forgets = false;  // Lie::kStorageForgets
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

}  // namespace cairn::engine::ringsim
