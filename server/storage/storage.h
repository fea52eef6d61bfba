// Bytes that outlive memory. One interface; `posix` is the back end for file systems.
//
// Order is the point: objects to new temporary names, data, fsync, rename, directory fsync;
// manifests last; the directory of a complete checkpoint is claimed by one publisher and then put
// in place by rename or exchange. After any fsync or close error the file is written anew to a new
// inode. common/layout.h says where things stand.
//
// Thread-safe; calls block and belong on the persister's threads. Everything is done as the job's
// owner (setfsuid/setfsgid on the calling thread), beneath the root, through no symbolic link.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/fd.h"
#include "common/layout.h"
#include "common/manifest.h"
#include "common/status.h"

namespace cairn::storage {

// Where the bytes of one object come from. Outlives the call it is handed to.
class ObjectSource {
 public:
  virtual ~ObjectSource() = default;
  // Copies the bytes at `offset`, all of them within the object: DATA_LOSS when the memory is gone.
  // Whoever asks checks them against the manifest: what reaches the disk is the very copy that
  // verified. Thread-safe.
  virtual Status Read(uint64_t offset, absl::Span<char> into) const = 0;
};

struct PartToWrite {
  const Manifest* manifest = nullptr;
  std::string encoded;                       // of the manifest
  std::vector<const ObjectSource*> sources;  // parallel to manifest->objects
};

struct Owner {
  uint32_t uid = 0;
  uint32_t gid = 0;
};

struct Options {
  std::string root;    // absolute; empty: no storage
  int threads = 4;     // writers of a checkpoint's blocks; each holds one block in memory
  bool direct = true;  // O_DIRECT where the file system takes it
  Status Validate() const;
};

struct Counters {
  uint64_t files_written = 0, bytes_written = 0, fsync_failures = 0, rewrites = 0, published = 0;
};

class Storage {
 public:
  virtual ~Storage() = default;

  // Writes the parts of one checkpoint that this node has into its partial directory, manifests
  // last; a part that already stands there, or at its published place, with the same digest is
  // kept. OK: every file and directory entry named is on stable storage.
  virtual Status WriteParts(const CheckpointKey& checkpoint, Owner owner,
                            const std::vector<PartToWrite>& parts) = 0;
  // Publishes the checkpoint when its partial directory holds all its manifests. `*published` says
  // whether it now stands in place (also when another publisher put it there). An older checkpoint
  // of ours at that step goes to the trash; a newer one stays and `*published` is false.
  // ALREADY_EXISTS: a directory that is not ours stands there.
  virtual Status Publish(const CheckpointKey& checkpoint, Owner owner, bool* published) = 0;
  // Finishes claims that a dead publisher left, empties the trash, sweeps partial directories for
  // which `superseded` holds and nothing younger than a minute stands.
  virtual Status Sweep(const std::string& job,
                       const std::function<bool(const CheckpointKey&)>& superseded) = 0;
  // Deletes a published checkpoint: by way of the trash, so it is there whole or not at all. With
  // `tombstone` records that attempts up to the checkpoint's must not bring the step back.
  virtual Status Delete(const CheckpointKey& checkpoint, Owner owner, bool tombstone) = 0;
  virtual StatusOr<StoredJob> Read(const std::string& job) = 0;
  virtual StatusOr<std::vector<std::string>> Jobs() = 0;
  // The user who owns <root>/<job>.
  virtual StatusOr<Owner> JobOwner(const std::string& job) = 0;
  // Opens an object of a stored checkpoint for reading, as `reader`.
  virtual StatusOr<UniqueFd> Open(const StoredCheckpoint& checkpoint, absl::string_view name,
                                  Owner reader) = 0;
  virtual Counters counters() const = 0;
};

// Fails (naming the root) when the root is missing, is not a directory, or cannot be written.
StatusOr<std::unique_ptr<Storage>> MakePosixStorage(const Options& options);

}  // namespace cairn::storage
