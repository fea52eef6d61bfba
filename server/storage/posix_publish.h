// How a complete checkpoint comes to its step's place. Its partial directory is claimed by one
// rename (posix_claim.h); then it is moved into place, or exchanged with what stands there. An
// older revision that comes out goes to the trash, another attempt's checkpoint is kept aside.
#pragma once

#include "common/status.h"
#include "server/storage/posix_root.h"
#include "server/storage/storage.h"

namespace cairn::storage {

// Both: the calling thread acts as the owner and holds the job's publish lock.

// As Storage::Publish.
StatusOr<Published> PublishBelow(PosixRoot* root, const JobDirectories& at,
                                 const CheckpointKey& checkpoint);

// As Storage::Reinstate.
Status ReinstateBelow(PosixRoot* root, const JobDirectories& at, const CheckpointKey& checkpoint);

}  // namespace cairn::storage
