// Reads what stands in one checkpoint's directory below a storage root (common/layout.h).
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "common/fd.h"
#include "common/manifest_file.h"
#include "common/status.h"
#include "common/stored.h"

namespace cairn {

// Of what is wrong with a job so much is said, one by one.
inline constexpr size_t kMaxSaid = 1000;

// The parts whose manifests stand in one checkpoint's directory, which the caller has opened;
// `path` is its location. NOT_FOUND when there is no manifest of ours. Manifests that do not decode
// are told in `problems`, those that could not be read in `unread`; UNAVAILABLE when there are no
// others. When the manifests disagree on the checkpoint, it is the lowest writer's, in conflict.
// RESOURCE_EXHAUSTED: they are longer, or take more memory, than `limits` allows.
StatusOr<StoredCheckpoint> ReadStoredCheckpoint(int directory, const std::string& path,
                                                ManifestDetail detail, const StoredLimits& limits,
                                                std::vector<std::string>* problems,
                                                std::vector<std::string>* unread);
// One of these parts; `each_object` as ReadManifestFile has it. NOT_FOUND: its manifest does not stand there.
// UNAVAILABLE: it does, and cannot be read now.
StatusOr<StoredPart> ReadPart(int directory, Writer writer, ManifestDetail detail,
                              const EachObject& each_object);
// The file of the part's object `name`, also where it is being laid out.
StatusOr<UniqueFd> OpenPartFile(int directory, const StoredPart& part, const std::string& name,
                                int flags);
// OK when each object of the part, or of all parts, is a file of its length in the checkpoint's `directory`. Names are
// read again and not kept. DATA_LOSS, naming a file: it is not, or the manifest is another one by now. UNAVAILABLE:
// they cannot be looked at.
Status CheckPartFiles(int directory, const StoredPart& part);
Status CheckStoredFiles(int directory, const StoredCheckpoint& stored);
// Why the parts whose manifests stand below `directory`, and `others` that are to join them, cannot belong
// together; empty: they can. Names are read again and not kept. UNAVAILABLE: something has changed
// meanwhile.
StatusOr<std::string> ConflictBelow(int directory, const std::vector<const StoredPart*>& parts,
                                    const std::vector<const Manifest*>& others);

}  // namespace cairn
