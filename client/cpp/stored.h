// Reading checkpoints straight from a storage root: for when no daemon runs. The manifests beside
// the files say what there is, the line (common/line.h) which of it counts. Takes no lock and
// changes nothing; what is being replaced meanwhile is found as it was, as it is, or refused as
// DATA_LOSS, never mixed.
#pragma once

#include <memory>
#include <string>

#include "client/cpp/session.h"
#include "common/status.h"

namespace cairn::client {

// The newest complete checkpoint on the job's line. NOT_FOUND: the job has none in storage.
StatusOr<LatestCheckpoint> StoredLatest(const std::string& root, const std::string& job);

// As Session::List: "" lists jobs, "JOB" checkpoints, "JOB/STEP" or "JOB/latest" objects.
StatusOr<Listing> ListStored(const std::string& root, const std::string& path);

// `ref` as for Session::Open, but its job must be named. Only complete checkpoints are opened.
StatusOr<std::unique_ptr<OpenObject>> OpenStored(const std::string& root, const CheckpointRef& ref,
                                                 const std::string& name, int copy_threads = 2);

}  // namespace cairn::client
