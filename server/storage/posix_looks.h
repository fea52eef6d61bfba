// Whether the files of published checkpoints are there, looked at once: a checkpoint whose directories have not
// changed since then is as it was.
#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "common/status.h"
#include "common/stored.h"
#include "common/stored_job.h"

namespace cairn::storage {

// Thread-safe.
class PosixLooks {
 public:
  // Takes the parts that have lost files from complete published checkpoints; `stored->problems` says which file of
  // each. Where files cannot be looked at, `stored->unread` says so. `root` is open, and the checkpoints of the job were
  // just read below it.
  void DropDamaged(int root, const std::string& path, const std::string& job, StoredJob* stored);

  // OK: the checkpoint is published, and its files are all there. DATA_LOSS or NOT_FOUND: they are not. Another error:
  // they cannot be looked at. `root` is open.
  Status Check(int root, const std::string& path, const CheckpointKey& checkpoint,
               const StoredLimits& limits);
  // It was deleted.
  void Forget(const CheckpointKey& checkpoint);

 private:
  // A directory in the checkpoint's: its inode, and when it was changed last, at the time of the look.
  struct Seen {
    std::string directory;
    ino_t inode = 0;
    std::pair<int64_t, int64_t> changed;
    bool operator==(const Seen&) const = default;
  };
  // A checkpoint whose files were all there.
  struct Whole {
    std::string place;  // below the root
    std::vector<Seen> directories;
  };
  using OfJob = std::map<CheckpointKey, Whole>;

  // False: it is gone.
  static bool Look(int directory, const std::string& name, Seen* seen);
  static bool IsAsItWas(int directory, const Whole& whole);
  // Takes the parts that have lost files from the checkpoint, whose directory is open and stands at `place` (`shown` in
  // messages). nullopt: there was one, or a file cannot be looked at.
  static std::optional<Whole> LookAt(int directory, const std::string& place,
                                     const std::string& shown, StoredCheckpoint* checkpoint,
                                     std::vector<std::string>* problems,
                                     std::vector<Unread>* unread);

  Mutex mu_;  // a leaf; never held during a call of the file system
  std::map<std::string, OfJob> whole_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::storage
