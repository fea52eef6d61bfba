// Any storage, with each call about one job told to Suspects: a job whose files have ended daemons is
// refused here, without a look at the disk.
#pragma once

#include <memory>

#include "server/storage/storage.h"
#include "server/storage/suspects.h"

namespace cairn::storage {

// Passes the contract of the storage that it stands before. What that throws (out of memory, say) is
// returned as INTERNAL: the job's error, not the daemon's end. `suspects` outlives it.
std::unique_ptr<Storage> MakeWaryStorage(std::unique_ptr<Storage> inner, Suspects* suspects);

}  // namespace cairn::storage
