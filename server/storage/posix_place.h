// What stands at a place where a checkpoint may stand: nothing, something of the user's, or one of
// ours.
#pragma once

#include <string>
#include <tuple>
#include <vector>

#include "common/fd.h"
#include "common/status.h"
#include "common/stored.h"
#include "server/storage/posix_root.h"

namespace cairn::storage {

struct Place {
  enum class Kind { kNothing, kForeign, kOurs } kind = Kind::kNothing;
  UniqueFd directory;       // unless kNothing, or kForeign and not a directory
  StoredCheckpoint stored;  // kOurs

  bool Ours() const { return kind == Kind::kOurs; }
  bool Holds(const CheckpointKey& key) const { return Ours() && stored.key == key; }
};

// Looks at `name` below `parent`; `path` names the job in messages. Of the parts it has summaries.
StatusOr<Place> LookAt(int parent, const std::string& name, const std::string& path);

// False when something else stands under the name by now, or nothing: what was found wrong with the
// place since then says nothing about it.
bool StillStands(int parent, const std::string& name, const Place& place);

// How checkpoints of one step rank: newer replaces older, and whole replaces damaged.
inline std::tuple<Attempt, Revision, bool> RankOf(const StoredCheckpoint& stored) {
  return {stored.key.attempt, stored.key.revision, stored.Complete()};
}

// Whether the place holds the checkpoint with all its files. UNAVAILABLE: they cannot be looked at.
StatusOr<bool> HoldsWhole(const Place& place, const CheckpointKey& key);

// True when `place` holds this part, whole. ALREADY_EXISTS when it holds another manifest of the
// part's writer.
StatusOr<bool> PartStands(const Place& place, const PartToWrite& part);

// ALREADY_EXISTS: what stands in the step's place is not ours, and is never touched.
Status NotOurs(const JobDirectories& at, Step step);

}  // namespace cairn::storage
