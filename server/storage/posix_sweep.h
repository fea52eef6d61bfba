// Clears up after publishers: claims that a dead one left, unpublished checkpoints that nobody
// needs any more, the trash.
#pragma once

#include <string>

#include "common/status.h"
#include "server/storage/posix_root.h"

namespace cairn::storage {

// As Storage::Sweep. The calling thread acts as the owner and holds the job's publish lock.
Status SweepBelow(PosixRoot* root, const JobDirectories& at, const std::string& job,
                  const SweepRules& rules);

}  // namespace cairn::storage
