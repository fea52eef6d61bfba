// How checkpoints leave: by one rename into trash/, so that they are there whole or not at all. The
// trash is emptied by sweeps. What nobody can want back (replaced, superseded, removed for good)
// goes with the first one. What was deleted as files waits for an hour, so that whoever deleted it
// may find out that it was needed; it goes at once when the disk is full, or has less than an
// eighth of its room left.
#pragma once

#include <string>
#include <vector>

#include "common/line_record.h"
#include "common/status.h"
#include "server/storage/posix_root.h"

namespace cairn::storage {

// How long deleted checkpoints, and unpublished ones that nobody finishes, are kept.
inline constexpr int64_t kKeepSeconds = 3600;

// Moves `name`, a checkpoint in the directory `from`, into the trash. OK when another took it away.
// With `deleted` it waits there. A checkpoint that others may move as well must be claimed first
// (posix_claim.h), or another one may stand under the name by now.
Status Discard(PosixRoot* root, const JobDirectories& at, int from, const std::string& name,
               const CheckpointKey& named, bool deleted = false);
// The suffix of what is being removed, whoever sees it.
inline constexpr char kGoingSuffix[] = ".going";
// Removes what need not wait; with `all`, everything but what a decision has chosen since it was deleted.
// *removed: whether there was anything.
Status EmptyTrash(const JobDirectories& at, bool all, bool* removed = nullptr);

// Whether a decision that is ahead of all that is published chose this very checkpoint.
bool IsDecided(const std::vector<LineRecord>& ahead, const CheckpointKey& checkpoint);

// True when the step was removed for the checkpoint's attempt. A tombstone that cannot be read says
// nothing, and nothing is thrown away for it.
bool IsRemoved(const JobDirectories& at, const CheckpointKey& checkpoint);

}  // namespace cairn::storage
