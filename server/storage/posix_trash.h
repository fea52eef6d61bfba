// How checkpoints leave: by one rename into trash/, so that they are there whole or not at all; the
// trash is emptied afterwards. Tombstones say what must not come back.
#pragma once

#include <string>

#include "common/status.h"
#include "server/storage/posix_root.h"

namespace cairn::storage {

// Moves `name`, a checkpoint in the directory `from`, into the trash. OK when another took it away.
Status Discard(PosixRoot* root, const JobDirectories& at, int from, const std::string& name,
               const CheckpointKey& named);
Status EmptyTrash(const JobDirectories& at);

// True when the step was removed for the checkpoint's attempt. A tombstone that cannot be read says
// nothing, and nothing is thrown away for it.
bool IsRemoved(const JobDirectories& at, const CheckpointKey& checkpoint);

// As Storage::Delete. The calling thread acts as the owner and holds the job's publish lock.
Status DeleteBelow(PosixRoot* root, const JobDirectories& at, const CheckpointKey& checkpoint,
                   bool tombstone);

}  // namespace cairn::storage
