// Bytes that outlive memory. One interface, in words that a file system and an object store can
// both answer: parts that are written, locations that are handed on, readers that are read from.
// posix_storage.h is the back end for file systems.
//
// Every back end keeps this order: a part's objects are durable before its manifest says so, and a
// checkpoint is published, as a whole, only when all its parts are there. tests/storage holds the
// contract as one suite that every back end and every decorator passes.
//
// A storage has an identity that is its own wherever it is mounted, and every call is about one
// identity: the one that was expected, else the first that was met. While another storage, or none,
// stands where it should be, every call fails with UNAVAILABLE, changes nothing and says why.
//
// Thread-safe. Calls block, for as long as the storage behind them does; they belong on threads
// that may wait. A call acts with the rights of the job's owner, never with the daemon's.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/manifest.h"
#include "common/root_marker.h"
#include "common/status.h"
#include "common/stored.h"

namespace cairn::storage {

// Where the bytes of one object come from. Outlives the call it is handed to.
class ObjectSource {
 public:
  virtual ~ObjectSource() = default;
  // Copies the bytes at `offset`, all of them within the object: DATA_LOSS when the memory is gone.
  // The back end checks the copy against the manifest, so that what it stores is the very copy that
  // verified. Thread-safe.
  virtual Status Read(uint64_t offset, absl::Span<char> into) const = 0;
};

struct PartToWrite {
  const Manifest* manifest = nullptr;
  std::string encoded;                                 // of the manifest
  std::vector<const ObjectSource*> sources;            // parallel to manifest->objects
  int most_threads = std::numeric_limits<int>::max();  // that write it
};

struct Owner {
  uint32_t uid = 0;
  uint32_t gid = 0;
};

// One stored object, open for reading. Thread-safe. The storage that opened it outlives it. It may
// outlive its checkpoint in storage: a read then returns the object's bytes or an error, never bytes
// of what took its place.
class Reader {
 public:
  virtual ~Reader() = default;
  // The object's length, as its manifest says.
  virtual uint64_t length() const = 0;
  // Fills `into` with the bytes at `offset`. OUT_OF_RANGE when they are not all within the object;
  // DATA_LOSS when storage no longer has them. The bytes are not verified: the reader of a block
  // checks it against the checksums in the manifest.
  virtual Status ReadAt(uint64_t offset, absl::Span<char> into) const = 0;
  // A capability that only some back ends have: a descriptor of a regular file that is exactly the
  // object, from offset 0, open for reading only, which a process on this machine may be sent. It
  // is the reader's and is closed with it. nullopt: there is none, and the bytes go through ReadAt.
  virtual std::optional<int> Descriptor() const = 0;
};

struct Counters {
  uint64_t objects_written = 0;
  uint64_t bytes_written = 0;  // of objects
  uint64_t sync_failures = 0;  // the storage could not say that bytes are durable
  uint64_t rewrites = 0;       // objects and manifests written anew after such a failure
  uint64_t published = 0;      // checkpoints that this instance brought to their step
  // What its file system cannot do, so that less is promised: "place: what, and what that means".
  std::vector<std::string> weaknesses = {};
};

// What became of a checkpoint that was to be published.
struct Published {
  // Where it stands, durably and in the expected storage. nullopt: it is not published, …
  std::optional<Location> where;
  // … because parts of it are not stored, or none is: once the others are, it can be. Else it never will
  // be: a newer revision of its attempt is published, or the step was removed, be it meanwhile.
  bool lacks_parts = false;
};

// What Delete removes.
enum class DeleteKind {
  // The files of exactly this checkpoint; it may come back.
  kFiles,
  // Every checkpoint of the step, published or not, of attempts up to the checkpoint's. For good:
  // it is recorded durably, before anything goes, that they must not bring the step back.
  kUpToAttempt,
  // Likewise, but those of the checkpoint's attempt alone.
  kThisAttempt,
};

// Why the caller may delete files (DeleteKind::kFiles).
struct Chosen {
  // The newest attempt whose origin the caller knew.
  Attempt newest_known = std::numeric_limits<Attempt>::max();
  // The published checkpoint of the job because of which the deleted one is not needed. nullopt: a user asked.
  std::optional<CheckpointKey> stays = {};
};

// What Sweep may take besides what nobody can need.
struct SweepRules {
  // Unpublished checkpoints that another one has replaced: they go once nothing of them has changed
  // for a minute. Null: none.
  std::function<bool(const CheckpointKey&)> superseded;
  // Unpublished checkpoints that the caller is still going to finish. What is neither this nor
  // superseded goes once nothing of it has changed for an hour, whatever became of its step. Null:
  // all of them are wanted.
  std::function<bool(const CheckpointKey&)> wanted;
  // Storage is full: what waits for an hour otherwise goes after a minute, and what was deleted
  // goes at once.
  bool full = false;
};

class Storage {
 public:
  virtual ~Storage() = default;

  // Which storage stands there now, be it the expected one or another. The first to ask gives a
  // storage without an identity one, unless one is expected or the options forbid it. UNAVAILABLE,
  // saying why: none can be read.
  virtual StatusOr<RootIdentity> Identity() = 0;
  // From now on calls are about the storage with this identity alone. Before any other call.
  virtual void Expect(const std::string& id) = 0;

  // Stores the parts of one checkpoint that this node has, unpublished, manifests last. A part that
  // is already stored whole with the same digest is kept as it is.
  // OK: every object and manifest named is on stable storage, and that storage still stands there.
  // INVALID_ARGUMENT: a part is not of this checkpoint. PERMISSION_DENIED: the job is another
  // user's. ALREADY_EXISTS: another manifest of the same writer is stored. FAILED_PRECONDITION: the
  // step was removed for this attempt, a newer revision of the same attempt is published, or the
  // parts are in conflict with each other or with stored ones. DATA_LOSS: bytes no longer match
  // their checksums. RESOURCE_EXHAUSTED: storage is full. After an error nothing of a part that was
  // not stored before is shown as stored, its room is given back, and the same call may be
  // repeated.
  virtual Status WriteParts(const CheckpointKey& checkpoint, Owner owner,
                            const std::vector<PartToWrite>& parts) = 0;

  // Records a decision about the line, or where an attempt came from, durably, and returns what
  // stands under that number and kind: `record`, or what stood there before, which is never
  // replaced. Only a `resume` may be said anew.
  virtual StatusOr<LineRecord> WriteLineRecord(const LineRecord& record, Owner owner) = 0;

  // Publishes the checkpoint when all its parts are stored, and says where it stands, also when
  // another publisher put it there: nodes that share the storage each write their own parts, and each
  // may ask. The newest attempt's newest revision stands in the step's place, unless Reinstate has
  // chosen another attempt's. Other attempts' checkpoints are kept aside, the newest revision of each:
  // both one that comes out of the place, and one that arrives late. Older revisions of the same
  // attempt go.
  // ALREADY_EXISTS: something that is not Cairn's stands in the step's place. FAILED_PRECONDITION: the
  // parts are in conflict. DATA_LOSS: an object is missing or has another length than its manifest
  // says.
  virtual StatusOr<Published> Publish(const CheckpointKey& checkpoint, Owner owner) = 0;

  // Puts a published checkpoint that is kept aside into its step's place. What stands there is kept
  // aside. OK when it stands there already.
  // NOT_FOUND: it is not published, or the step was removed. FAILED_PRECONDITION: a newer revision
  // of its attempt stands. ALREADY_EXISTS and DATA_LOSS as for Publish.
  virtual Status Reinstate(const CheckpointKey& checkpoint, Owner owner) = 0;

  // Finishes what a dead publisher began, throws away what was replaced, drops unpublished
  // checkpoints whose step was removed, once none of their parts has changed for a minute, and what
  // `rules` say. Ages are told by the storage's own clock. OK when the job is not in storage.
  virtual Status Sweep(const std::string& job, const SweepRules& rules) = 0;

  // Deletes published checkpoints, in their step's place or aside: each is there whole or not at
  // all. OK when there is none. What was removed for good is added to what was before.
  // RESOURCE_EXHAUSTED: attempts were removed of this step in more ranges than can be recorded.
  // The room of what kFiles deletes may be given back by a later Sweep. FAILED_PRECONDITION, of kFiles: a
  // decision that is newer than every attempt whose origin is recorded needs it; what was taken away is back.
  // Likewise when an attempt above `chosen.newest_known` has published something, because the caller did not know
  // its origin; and when files of `chosen.stays` are gone, or cannot be looked at.
  virtual Status Delete(const CheckpointKey& checkpoint, Owner owner, DeleteKind kind,
                        const Chosen& chosen) = 0;
  Status Delete(const CheckpointKey& checkpoint, Owner owner, DeleteKind kind) {
    return Delete(checkpoint, owner, kind, {});
  }

  // What is stored of a job; without what was removed for good and what has been replaced.
  // NOT_FOUND: nothing was ever stored of it.
  virtual StatusOr<StoredJob> Read(const std::string& job) = 0;
  // The same, each part as a summary: memory does not hold the names of all objects at once.
  virtual StatusOr<StoredJob> ReadSummary(const std::string& job);
  // One of its checkpoints, whole. NOT_FOUND: it is not in storage any more.
  virtual StatusOr<StoredCheckpoint> ReadCheckpoint(const CheckpointKey& checkpoint);
  // The greatest numbers of its line records, which tell whether anything was decided or published
  // since they were last read. It costs a listing. NOT_FOUND as for Read.
  virtual StatusOr<LineNumbers> ReadLineNumbers(const std::string& job) = 0;
  // Jobs of which something was stored, in byte order.
  virtual StatusOr<std::vector<std::string>> Jobs() = 0;
  // The user who owns the job in storage. NOT_FOUND as for Read.
  virtual StatusOr<Owner> JobOwner(const std::string& job) = 0;

  // Opens an object of a checkpoint that Read or the caller's own manifests describe, as `reader`:
  // wherever the checkpoint has moved to since. `checkpoint.parts` must hold the part the object is
  // of; others may be left out. The reader's length is the one in that part's manifest.
  // NOT_FOUND: the checkpoint has no such object, or is no longer stored (another one in its place
  // is never opened). DATA_LOSS: it is stored, and the object is missing or has another length.
  // PERMISSION_DENIED: `reader` may not read it.
  virtual StatusOr<std::unique_ptr<Reader>> Open(const StoredCheckpoint& checkpoint,
                                                 absl::string_view name, Owner reader) = 0;

  virtual Counters counters() const = 0;
};

// --- checks that every back end makes

// INVALID_ARGUMENT unless every part is of this checkpoint and has a source for each object.
Status CheckPartsAreOf(const CheckpointKey& checkpoint, const std::vector<PartToWrite>& parts);

// OUT_OF_RANGE unless [offset, offset + length) is within an object of `object_length` bytes.
Status CheckWithinObject(uint64_t offset, uint64_t length, uint64_t object_length);

// One object of a checkpoint, and the part it is of. Both point into the checkpoint.
struct StoredObject {
  const StoredPart* part = nullptr;
  const ObjectEntry* entry = nullptr;
};
StatusOr<StoredObject> FindObject(const StoredCheckpoint& checkpoint, absl::string_view name);

}  // namespace cairn::storage
