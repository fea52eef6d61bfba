// The storage that all nodes share, with the lies that a test may ask of it, and what may rightly be missing there. How
// a node sees it (late, failing, away) is its executor's business.
#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/keys.h"
#include "tests/sim/clock.h"
#include "tests/sim/simulator.h"
#include "tests/world/storage.h"

namespace cairn::engine::sim {

class Storage : public world::Storage {
 public:
  // The clock is its own: nothing moves it but time.
  Storage(Lie lie, const Clock& clock) : clock_(clock) {
    forgets = lie == Lie::kStorageForgets;
    look_older_ms = lie == Lie::kRecordsLookOld ? 2 * kDayMs : 0;
    Remount();
  }

  // The same files stand in another directory from now on.
  void Remount() { root = {"the storage", absl::StrCat("mount ", ++mounts_)}; }
  int64_t UnixMs() const { return clock_.UnixMs(); }

  // A node has begun to delete it: from now on it may be there or not.
  void BeginDelete(const CheckpointKey& key) { deleting_.insert(key); }
  // A user deletes its files, or only some of them. A node may count on them until it looks.
  void TakeByHand(const CheckpointKey& key, bool all) {
    taken_.insert(key);
    if (all) {
      Drop(key);
    } else {
      Damage({key, 0});
    }
  }
  bool TakenByHand(const CheckpointKey& key) const { return taken_.contains(key); }
  // After a write that succeeded.
  void NotePublished(const CheckpointKey& key) {
    if (!Published(key)) return;  // the lie
    deleting_.erase(key);
    taken_.erase(key);
    were_there_.insert(key);
    int64_t& newest = newest_[{key.job, key.step, key.attempt}];
    newest = std::max<int64_t>(newest, key.revision);
  }
  // It is there, or it may rightly be missing: a node or a user deleted it; or it was there, and a tombstone or a
  // newer revision took it away.
  bool AccountsFor(const CheckpointKey& key) const {
    if (Published(key) || deleting_.contains(key) || TakenByHand(key)) return true;
    if (!were_there_.contains(key)) return false;
    if (Removed(key)) return true;
    const auto newest = newest_.find({key.job, key.step, key.attempt});
    return newest != newest_.end() && newest->second > static_cast<int64_t>(key.revision);
  }

 private:
  const Clock& clock_;
  int mounts_ = 0;
  std::set<CheckpointKey> deleting_, taken_, were_there_;
  // The newest revision that was ever there.
  std::map<std::tuple<std::string, Step, Attempt>, int64_t> newest_;
};

}  // namespace cairn::engine::sim
