// Reads checkpoints straight from a storage root of files, for when no daemon runs. The manifests
// beside the files say what there is, and the line (common/line.h) says which of it counts. Takes
// no lock and changes nothing. A checkpoint that is being replaced meanwhile is found as it was or
// as it is, or refused as DATA_LOSS; the two are never mixed.
#pragma once

#include <memory>
#include <string>

#include "client/cpp/session.h"
#include "common/status.h"

namespace cairn::client {

// The newest complete checkpoint on the job's line whose files are there. NOT_FOUND when storage has none, DATA_LOSS when
// all have lost files. UNAVAILABLE when something there cannot be read, or was written by a later version: it may be
// the newest.
StatusOr<LatestCheckpoint> StoredLatest(const std::string& root, const std::string& job);

// As Session::List; the paths are those of ListPath in common/keys.h.
StatusOr<Listing> ListStored(const std::string& root, const std::string& path);

// `ref` as for Session::Open, but its job must be named. Only complete checkpoints are opened.
// UNAVAILABLE as for StoredLatest, when it is not among what can be read.
StatusOr<std::unique_ptr<OpenObject>> OpenStored(const std::string& root, const CheckpointRef& ref,
                                                 const std::string& name, int copy_threads = 2);

}  // namespace cairn::client
