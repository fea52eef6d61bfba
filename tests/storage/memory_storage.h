// Storage in memory: the whole contract without a file system, for tests that need storage and not
// files. It lends no descriptor, as an object store would not, so a node that stands on it serves
// chunks to every client.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/mutex.h"
#include "server/storage/storage.h"

namespace cairn::storage {

// What is stored. It outlives the storages made over it, as a disk outlives the daemons that use
// it. Thread-safe.
class MemoryStore {
 public:
  explicit MemoryStore(const Clock* clock = RealClock()) : clock_(clock) {}

  // --- damage and age, as tests do it. The checkpoint and the object must be there.

  void Truncate(const CheckpointKey& checkpoint, const std::string& object, uint64_t length);
  void Remove(const CheckpointKey& checkpoint, const std::string& object);
  // Another storage stands in this one's place until PutBack; an empty `id`: none does.
  void Replace(const std::string& id);
  void PutBack();
  // An unpublished checkpoint counts as unchanged for `seconds` longer than it is.
  void Age(const CheckpointKey& checkpoint, int seconds);

  // What stands in the step's place; the key's revision is -1 when nothing does.
  CheckpointKey InPlace(const std::string& job, Step step);

 private:
  friend class MemoryStorage;

  struct Part {
    StoredPart stored;
    std::map<std::string, std::shared_ptr<const std::string>> objects;  // shared with readers
  };
  struct Checkpoint {
    CheckpointKey key;
    std::map<Writer, Part> parts;
    int64_t changed_unix_ms = 0;  // of one that is not published
  };
  struct Job {
    Owner owner;
    std::map<CheckpointKey, Checkpoint> unpublished;
    std::map<Step, Checkpoint> published;           // in their step's place
    std::map<CheckpointKey, Checkpoint> abandoned;  // published, another stands in the place
    RemovedSteps removed;
    std::map<std::pair<Attempt, LineRecordKind>, LineRecord> records;

    bool Removed(const CheckpointKey& key) const { return removed.Forbids(key.step, key.attempt); }
    Checkpoint* FindPublished(const CheckpointKey& key);
    // Whether a newer revision of the same attempt is published.
    bool Replaced(const CheckpointKey& key) const;
    void Publish(Checkpoint checkpoint);
  };

  Checkpoint* Find(const CheckpointKey& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::shared_ptr<const std::string>* FindObject(const CheckpointKey& key,
                                                 const std::string& object)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Clock* const clock_;
  Mutex mu_;
  std::map<std::string, Job> jobs_ ABSL_GUARDED_BY(mu_);
  const std::string id_ = DrawRootId();
  std::string standing_ ABSL_GUARDED_BY(mu_) = id_;  // what stands there now
};

std::unique_ptr<Storage> MakeMemoryStorage(std::shared_ptr<MemoryStore> store);

}  // namespace cairn::storage
