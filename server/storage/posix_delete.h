// Deletes checkpoints, and writes down which must not come back.
#pragma once

#include "common/status.h"
#include "server/storage/posix_root.h"

namespace cairn::storage {

// As Storage::Delete, but that `chosen.stays` was looked at before. The calling thread acts as the owner and holds the
// job's publish lock.
Status DeleteBelow(PosixRoot* root, const JobDirectories& at, const CheckpointKey& checkpoint,
                   DeleteKind kind, const Chosen& chosen);

}  // namespace cairn::storage
