// Where things stand below a storage root of files, for the server's storage and for reading
// without a daemon. It is part of the contract with users: the files are theirs.
//
//   <root>/.cairn-root                                  the root's identity (common/root_marker.h)
//   <root>/<job>/                                       owned by the job's owner
//   <root>/<job>/<step>/<name>                          exactly the object's bytes
//   <root>/<job>/<step>/.cairn/<writer>.manifest        last to be written
//   <root>/<job>/.cairn/writing/<step>.<attempt>.<revision>.<n>/…   a part that is being written: the same
//                                   tree; n follows from its writer's random id, and no other process changes it
//   <root>/<job>/.cairn/partial/<step>.<attempt>.<revision>/.cairn/parts/<writer>/…    a part that is whole:
//                                   the same tree, renamed
//   <root>/<job>/.cairn/publish/<step>.<attempt>.<revision>.<n>/…   claimed by one publisher (n as above), who
//                                   lays the parts out: gives their files the places that they have at <step>
//   <root>/<job>/.cairn/abandoned/<step>.<attempt>.<revision>/…     another attempt's checkpoint
//                                   stands at the step
//   <root>/<job>/.cairn/trash/<step>.<attempt>.<revision>.<n>/…     replaced, about to go
//   <root>/<job>/.cairn/trash/<step>.<attempt>.<revision>.<n>.deleted/…   deleted: goes in an hour,
//                                   as ….deleted.going while it is removed
//   <root>/<job>/.cairn/removed/<step>.attempts/<first>-<last>      tombstones of a step, empty files:
//                                   these attempts must not bring it back
//   <root>/<job>/.cairn/removed/<step>    likewise, as older versions wrote it: the last attempt
//   <root>/<job>/.cairn/line/<number>.<kind>            a decision about the line (line_record.h)
//
// In publish/ and abandoned/ the manifests say which checkpoint a directory holds, never its name:
// for a moment after an exchange it is another one.
//
// A step directory without a `.cairn` of ours is the user's and is never touched. The Location of a
// checkpoint here is the absolute path of its directory.
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
std::string AbandonedDirectory(const CheckpointKey& checkpoint);
inline constexpr char kPartsDirectory[] = "parts";  // in ".cairn"
std::string PartDirectory(Writer writer);           // ".cairn/parts/<writer>", in the checkpoint's
std::string ManifestName(Writer writer);            // "<writer>.manifest", in ".cairn"
std::string ManifestFile(Writer writer);            // ".cairn/<writer>.manifest"
// A name below writing/, publish/ or trash/: "<s>.<a>.<r>.<n>".
std::string NumberedName(const CheckpointKey& checkpoint, uint64_t n);
// What a name below trash/ ends with when the checkpoint was deleted and may still be wanted back.
inline constexpr char kDeletedSuffix[] = ".deleted";
std::string TombstoneFile(Step step);       // ".cairn/removed/<step>"
std::string TombstoneDirectory(Step step);  // ".cairn/removed/<step>.attempts"
std::string LineRecordFile(Attempt number, LineRecordKind kind);  // ".cairn/line/<n>.<kind>"

// The step that a directory name stands for, when it is what StepDirectory would write; else
// kNoStep.
Step ParseStepDirectory(absl::string_view name);
// Likewise of a name below removed/, of either version.
Step ParseTombstones(absl::string_view name);
// The writer of whom this is the ManifestName; -1: of none.
Writer ParseManifestName(absl::string_view name);
Writer ParsePartName(absl::string_view name);  // likewise, of a directory in ".cairn/parts"
// Parses a name under partial/, abandoned/, writing/, publish/ or trash/ (in these three with its ".<n>"); false
// for anything else. The caller fills in the job.
bool ParseCheckpointDirectory(absl::string_view name, CheckpointKey* checkpoint);

// Whether a status leaves open if the file is there: it could not be read, or its version is not known.
bool IsUnread(const Status& status);
// What opening `name` below `directory` has said: UNAVAILABLE when something of this type stands there
// and the machine or its rights are why it could not be opened.
Status WhyNotOpened(int directory, const std::string& name, mode_t type, const Status& why);
// Something of another user than the directory that it stands in: never ours, readable or not.
bool IsOfAnother(int directory, const std::string& name);
// The attempts that must not bring the step back: all its tombstones together. DATA_LOSS: one of
// them is damaged. UNAVAILABLE: one cannot be read.
StatusOr<AttemptRanges> ReadTombstones(int job_directory, Step step);
// NOT_FOUND when there is none; DATA_LOSS when it is not of this job, number and kind; UNAVAILABLE when
// it cannot be read.
StatusOr<LineRecord> ReadLineRecord(int job_directory, const std::string& job, Attempt number,
                                    LineRecordKind kind);

// It costs a listing.
StatusOr<LineNumbers> ReadLineNumbers(int job_directory);
// The newest attempt that has published something, 0: none, and the decisions that are newer, in no
// order. It costs a listing and the reading of those decisions alone.
struct LineAhead {
  Attempt published = 0;
  std::vector<LineRecord> decisions;
};
StatusOr<LineAhead> ReadLineAhead(int job_directory, const std::string& job);
// The number of one by which this checkpoint counts; 0: there is none.
Attempt DecisionThatNeeds(const std::vector<LineRecord>& decisions,
                          const CheckpointKey& checkpoint);

}  // namespace cairn
