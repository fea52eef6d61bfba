// Reads what a job has below a storage root (common/layout.h), and which jobs there are.
#pragma once

#include <string>
#include <vector>

#include "common/manifest_file.h"
#include "common/status.h"
#include "common/stored.h"

namespace cairn {

// Reads every manifest of <root>/<job>, whole or of each part only how many objects it has and their
// bytes. NOT_FOUND when the job has no directory. Opens nothing
// through a symbolic link. Takes no lock: of a step that is being replaced it shows the old or the
// new checkpoint, or both. What a tombstone forbids is left out, and of one attempt what a newer
// revision has replaced. The lowest steps, where not all fit `limits`, are told as unread.
StatusOr<StoredJob> ReadStoredJob(const std::string& root, const std::string& job,
                                  ManifestDetail detail = ManifestDetail::kWhole);
// The same below a root that is open; `path` is the root's, for locations and messages.
StatusOr<StoredJob> ReadStoredJobBelow(int root, const std::string& path, const std::string& job,
                                       ManifestDetail detail, const StoredLimits& limits = {});
// Jobs below the root: directories that hold a `.cairn`.
StatusOr<std::vector<std::string>> ListStoredJobs(const std::string& root);

}  // namespace cairn
