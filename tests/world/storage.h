// The storage below one node or a ring, in memory: parts that were written, checkpoints that are published, line
// records, tombstones. It keeps no bytes of objects.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
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
  // Writes these parts; true: with them the checkpoint has all its parts, and is published. FAILED_PRECONDITION
  // when the step was removed, or a newer revision of the attempt stands there.
  StatusOr<bool> Write(const action::Persist& persist, int64_t unix_ms);
  StatusOr<bool> Write(const CheckpointKey& key, int32_t world_size, std::vector<StoredPart> parts);
  StatusOr<LineRecord> Write(const LineRecord& record, int64_t unix_ms);
  // FAILED_PRECONDITION where the real one says so: a decision or a life that the node does not know needs it, or the
  // checkpoint that stays is not whole.
  Status Delete(const action::DeleteFiles& deletion);
  StatusOr<StoredJob> Scan(const std::string& job, int64_t unix_ms) const;
  StatusOr<StoredCheckpoint> Read(const CheckpointKey& key) const;
  StatusOr<LineNumbers> Numbers(const std::string& job) const;
  // A user deletes files below the root: of a job, of a checkpoint, or some of one part's.
  void Drop(const std::string& job) { jobs_.erase(job); }
  void Drop(const CheckpointKey& key) { jobs_[key.job].checkpoints.erase(key); }
  void Damage(const PartKey& part);

  // The checkpoint's directory in the storage that is mounted now.
  Location LocationOf(const CheckpointKey& key) const;

  // The files that really lie there, whether the storage is away or not. A published checkpoint is whole.
  std::vector<CheckpointKey> AllPublished() const;
  bool HasPart(const PartKey& part, const std::string& digest) const;
  bool Published(const CheckpointKey& key) const;
  // A tombstone forbids it.
  bool Removed(const CheckpointKey& key) const;
  // When the attempt's origin was recorded; nullopt: it was not.
  std::optional<int64_t> OriginRecordedMs(const std::string& job, Attempt attempt) const;
  // In the directories of all jobs.
  struct Files {
    int64_t checkpoints = 0, records = 0, tombstones = 0;
  };
  Files files() const;

  bool away = false, slow = false;
  bool forgets = false;       // a lie: it says that a part was written and keeps nothing
  int64_t look_older_ms = 0;  // a lie: origins were recorded so much earlier
  RootIdentity root{"storage", "mount 1"};

 private:
  struct Stored {
    std::map<Writer, StoredPart> parts;
    int32_t world_size = 0;
    bool published = false;
    std::set<Writer> damaged;  // parts that have lost files

    bool Whole() const { return published && damaged.empty(); }
  };
  struct Job {
    std::map<CheckpointKey, Stored> checkpoints;
    std::map<std::pair<Attempt, LineRecordKind>, LineRecord> records;
    std::map<Attempt, int64_t> recorded_at;
    RemovedSteps removed;
  };

  Status Here() const;
  Status CheckTakes(const CheckpointKey& key) const;
  static LineNumbers NumbersIn(const Job& job);
  static Status CheckNotNeeded(const Job& job, const action::DeleteFiles& deletion);
  static Status CheckStays(const Job& job, const action::DeleteFiles& deletion);
  static LineRecord Keep(Job* job, const LineRecord& record, int64_t unix_ms);
  StoredCheckpoint Show(const CheckpointKey& key, const Stored& stored, bool whole) const;
  void Publish(Job* job, const CheckpointKey& key, Stored* stored);

  std::map<std::string, Job> jobs_;
};

}  // namespace cairn::world
