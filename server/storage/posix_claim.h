// A checkpoint is moved by whoever has claimed it: renamed it to a name in publish/ that no other
// publisher ever uses. What stands under a claim is therefore what its holder saw there, or gone:
// another publisher has taken the claim over, by renaming it to one of its own, and carries on. A
// decision that a publisher took from a stale look then finds nothing to move.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/status.h"
#include "server/storage/posix_place.h"
#include "server/storage/posix_root.h"

namespace cairn::storage {

// Claims `name` in the directory `from`, a checkpoint or somebody else's claim, which is said to be
// `named`. Returns the claim's name; nullopt when another took it away.
StatusOr<std::optional<std::string>> TakeClaim(PosixRoot* root, const JobDirectories& at, int from,
                                               const std::string& name, const CheckpointKey& named);

// What holds a checkpoint of the step in a directory of many (publish/ or abandoned/), by its name
// there. The name's step is trusted, for an exchange never crosses steps; nothing else of it is.
struct Held {
  std::string name;
  CheckpointKey named;
  Place place;
};
StatusOr<std::vector<Held>> ListHeld(const JobDirectories& at, int directory,
                                     const CheckpointKey& step_of);

// Brings what stands claimed to where it belongs: its step's place, abandoned/, or the trash; and
// likewise what comes out of the place. True when this call brought it to the place or aside. OK
// also when another took the claim over. ALREADY_EXISTS: what stands in the place is not ours.
// `at` is locked against this daemon's other publishers.
StatusOr<bool> Settle(PosixRoot* root, const JobDirectories& at, const std::string& claim);

// What stands where a checkpoint of the step stands once it is published, or is on its way there.
StatusOr<std::vector<Place>> WherePublished(const JobDirectories& at, const CheckpointKey& step_of);
// Whole, and of the checkpoint's attempt: that one is of no use any more.
bool IsNewerRevision(const Place& place, const CheckpointKey& checkpoint);

// Where the checkpoint is published, relative to the job: in its step's place or aside, with all its files.
StatusOr<std::optional<std::string>> FindPublished(const JobDirectories& at,
                                                   const CheckpointKey& checkpoint);

// Moves into the trash what `meant` says of published and claimed checkpoints of the step.
Status TakeAway(PosixRoot* root, const JobDirectories& at, const CheckpointKey& step_of,
                const std::function<bool(const CheckpointKey&)>& meant, bool deleted);

// Brings back what was deleted as files and waits in the trash, of what `meant` says.
Status BringBack(PosixRoot* root, const JobDirectories& at, const std::string& job,
                 const std::function<bool(const CheckpointKey&)>& meant);

}  // namespace cairn::storage
