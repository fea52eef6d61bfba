// Writes parts of a checkpoint into its partial directory: objects first, then their directories'
// entries, the manifests last.
#pragma once

#include <vector>

#include "common/status.h"
#include "server/storage/posix_root.h"

namespace cairn::storage {

// As Storage::WriteParts. The parts are of this checkpoint, and the calling thread acts as `owner`.
Status WritePartsBelow(PosixRoot* root, const JobDirectories& at, const CheckpointKey& checkpoint,
                       Owner owner, const std::vector<PartToWrite>& parts);

}  // namespace cairn::storage
