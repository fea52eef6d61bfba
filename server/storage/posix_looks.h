// Whether the files of published checkpoints are there, looked at once: a checkpoint whose directories have not
// changed since then is as it was.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "common/stored.h"

namespace cairn::storage {

// Thread-safe.
class PosixLooks {
 public:
  // Takes the parts that have lost files from complete published checkpoints; `stored->problems` says which file of
  // each. Where files cannot be looked at, `stored->unread` says so. `root` is open, and the checkpoints of the job were
  // just read below it.
  void DropDamaged(int root, const std::string& path, const std::string& job, StoredJob* stored);

 private:
  // A directory in the checkpoint's: its inode, and when it was changed last, at the time of the look.
  struct Seen {
    std::string directory;
    ino_t inode = 0;
    std::pair<int64_t, int64_t> changed;
    bool operator==(const Seen&) const = default;
  };
  using Whole = std::vector<Seen>;

  // nullopt: one of them is gone.
  static bool Look(int directory, const std::string& name, Seen* seen);
  static bool IsAsItWas(int directory, const Whole& whole);

  Mutex mu_;  // a leaf; never held during a call of the file system
  // By job, and by location: those that were whole when they were read last.
  std::map<std::string, std::map<std::string, Whole>> whole_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::storage
