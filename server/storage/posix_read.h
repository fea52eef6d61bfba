// Opens an object of a stored checkpoint wherever the checkpoint stands by now.
#pragma once

#include <memory>

#include "common/status.h"
#include "server/storage/posix_root.h"

namespace cairn::storage {

// As Storage::Open; `reader` is who the calling thread becomes for it.
StatusOr<std::unique_ptr<Reader>> OpenBelow(const PosixRoot& root,
                                            const StoredCheckpoint& checkpoint,
                                            absl::string_view name, Owner reader);

// The published checkpoint of this key, wherever below the root it stands. NOT_FOUND: it does not.
StatusOr<StoredCheckpoint> ReadCheckpointBelow(int root, const CheckpointKey& checkpoint,
                                               const StoredLimits& limits);

}  // namespace cairn::storage
