// Where things stand below a storage root. Part of the contract with the user: the files are
// theirs.
//
//   <root>/<job>/                                       owned by the job's owner
//   <root>/<job>/<step>/<name>                          exactly the object's bytes
//   <root>/<job>/<step>/.cairn/<writer>.manifest        last to be written
//   <root>/<job>/.cairn/partial/<step>.<attempt>.<revision>/…   being written: the same tree
//   <root>/<job>/.cairn/publish/<step>.<attempt>.<revision>/…   complete, claimed by one publisher
//   <root>/<job>/.cairn/trash/<step>.<attempt>.<revision>.<n>/… replaced or deleted, about to go
//   <root>/<job>/.cairn/removed/<step>                  `rm` of a step: its tombstone, holds the
//   attempt
//
// A step directory without a `.cairn` of ours is the user's and is never touched.
#pragma once

#include <string>
#include <vector>

#include "common/keys.h"
#include "common/status.h"
#include "common/stored.h"

namespace cairn {

inline constexpr char kMetaDirectory[] = ".cairn";

// All relative to <root>/<job>.
std::string StepDirectory(Step step);                           // "<step>"
std::string PartialDirectory(const CheckpointKey& checkpoint);  // ".cairn/partial/<s>.<a>.<r>"
std::string PublishDirectory(const CheckpointKey& checkpoint);
std::string ManifestFile(Writer writer);                             // ".cairn/<writer>.manifest"
std::string TrashName(const CheckpointKey& checkpoint, uint64_t n);  // "<s>.<a>.<r>.<n>"
std::string TombstoneFile(Step step);                                // ".cairn/removed/<step>"

// The step a directory name stands for: only what StepDirectory would write; else kNoStep.
Step ParseStepDirectory(absl::string_view name);
// A name under partial/, publish/ or trash/ (there with its ".<n>"); false for anything else. The
// job is the caller's to fill.
bool ParseCheckpointDirectory(absl::string_view name, CheckpointKey* checkpoint);

// The manifests that stand in one checkpoint's directory; `directory` is opened by the caller,
// `path` is its name for messages. NOT_FOUND when there is no manifest of ours. Manifests that do
// not decode go to `problems`; when no two agree on the checkpoint, the lowest writer's counts.
StatusOr<StoredCheckpoint> ReadStoredCheckpoint(int directory, const std::string& path,
                                                std::vector<std::string>* problems);
// Reads a tombstone's attempt; 0 when there is none.
StatusOr<Attempt> ReadTombstone(int job_directory, Step step);

// Reads every manifest of <root>/<job>. NOT_FOUND when the job has no directory. Opens nothing
// through a symbolic link. Takes no lock: a step that is being replaced shows as its old or its new
// content. What a tombstone forbids is left out.
StatusOr<StoredJob> ReadStoredJob(const std::string& root, const std::string& job);
// Jobs below the root: directories that hold a `.cairn`.
StatusOr<std::vector<std::string>> ListStoredJobs(const std::string& root);

}  // namespace cairn
