// What storage holds of a job, in words that any back end can fill: a file system, memory, an
// object store. The engine, the server's storage and libcairn's reading without a daemon all speak
// them.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/keys.h"
#include "common/line.h"
#include "common/line_record.h"
#include "common/manifest.h"
#include "common/removed.h"

namespace cairn {

// Where a back end has put a checkpoint. Only the back end that made it interprets the text; to
// everybody else it is something to hold, hand back and print in messages. Empty: not known.
class Location {
 public:
  Location() = default;
  explicit Location(std::string text) : text_(std::move(text)) {}

  bool empty() const { return text_.empty(); }
  const std::string& text() const { return text_; }
  bool operator==(const Location&) const = default;

 private:
  std::string text_;
};

// One writer's part of a checkpoint: its manifest, and the digest of the bytes the manifest was
// read from.
struct StoredPart {
  Manifest manifest;
  std::string digest;
  // Of a summary, whose manifest names no object: how many there are, and the sum of their lengths.
  uint64_t summed_objects = 0, summed_bytes = 0;
  uint64_t manifest_bytes = 0;  // of the file that it was read from
  // Where in the checkpoint's directory its files stand: "", or a directory of its own (common/layout.h) until
  // its publisher has laid them out.
  std::string directory = {};

  uint64_t Objects() const {
    return manifest.objects.empty() ? summed_objects : manifest.objects.size();
  }
  uint64_t Bytes() const { return manifest.objects.empty() ? summed_bytes : manifest.TotalBytes(); }
};
void Summarize(StoredPart* part);

// One checkpoint, as far as its parts are in storage.
struct StoredCheckpoint {
  CheckpointKey key;
  // A hint: a checkpoint moves while it is published and replaced. A back end finds it by its key
  // when it is no longer there.
  Location location;
  int32_t world_size = 0;
  std::vector<StoredPart> parts;  // by writer; complete when there are world_size of them
  // It stands at its step, waits to be put there, or was left there by a newer attempt and is kept
  // aside. One that is not published may still lack parts.
  bool published = false;
  // Why its parts cannot belong together, for example one name from two writers. Such a checkpoint
  // is never complete.
  std::string conflict = {};
  // Why parts that stood there do not count: the first file of theirs that is gone, or is not as it was.
  std::string damage = {};

  bool Complete() const {
    return conflict.empty() && static_cast<int32_t>(parts.size()) == world_size;
  }
  std::vector<absl::string_view> Digests() const;  // of the parts, in their order
};

// Something that may be there and could not be read, or is of a version that is not known.
struct Unread {
  Step step = kNoStep;  // of a checkpoint or its tombstones; kNoStep: of the line
  std::string why;      // "place: why"
  auto operator<=>(const Unread&) const = default;
};

// Everything a read-only look at one job's storage finds.
struct StoredJob {
  std::vector<StoredCheckpoint> checkpoints;  // published ones and partial ones
  // Manifests that do not decode, conflicts: "place: why".
  std::vector<std::string> problems;
  // While there is any, what was not found may be there all the same.
  std::vector<Unread> unread = {};
  RemovedSteps removed = {};  // what tombstones forbid
  // Decisions about the line, and what was settled about it; in no order.
  std::vector<LineRecord> records = {};
  LineNumbers line = {};  // of them, and of those that do not decode
  // When the `origin` of each attempt was recorded, and when all this was read, by the clock of storage
  // itself; 0: it was not asked.
  std::map<Attempt, int64_t> written_unix_ms = {};
  int64_t now_unix_ms = 0;
};

// UNAVAILABLE, naming one and how many, when something could not be read: of this step or a higher one,
// or of the line.
Status CheckAllRead(const StoredJob& stored, Step from = kNoStep);

// What storage alone knows of the job's line. An attempt that left no manifest is not in it.
History HistoryOf(const StoredJob& stored);
std::map<Attempt, AttemptLine> AttemptsOf(const StoredJob& stored);  // without the decisions

// Why these manifests cannot be parts of one checkpoint; empty when they can.
std::string ManifestConflict(const std::vector<const Manifest*>& manifests);
std::string PartConflict(const std::vector<StoredPart>& parts);

}  // namespace cairn
