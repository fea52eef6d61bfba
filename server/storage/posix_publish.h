// How a complete checkpoint comes to its step's place. Its partial directory is claimed by one
// rename into publish/; then it is moved into place, or exchanged with the older one that stands
// there. Publishers of several daemons may meet: one wins the claim, and after every exchange the
// publisher looks at what really came out.
#pragma once

#include <string>

#include "common/status.h"
#include "server/storage/posix_root.h"

namespace cairn::storage {

// True when the checkpoint stands in place; otherwise as Storage::Publish. The calling thread acts
// as the owner and holds the job's publish lock.
StatusOr<bool> PublishBelow(PosixRoot* root, const JobDirectories& at,
                            const CheckpointKey& checkpoint);

// Brings what stands claimed as `claim` in publish/ to its step's place. True when it stands there.
StatusOr<bool> PutInPlace(PosixRoot* root, const JobDirectories& at, const std::string& claim);

}  // namespace cairn::storage
