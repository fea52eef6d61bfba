// Storage on a file system with directories, rename and exchange, below one root that several
// daemons may share. common/layout.h says where things stand.
//
// Order is the point: objects to new temporary names, data, fsync, rename, directory fsync;
// manifests last; the directory of a complete checkpoint is claimed by one publisher, under a name
// that only it uses, and then put in place by rename or exchange. After any fsync or close error
// the file is written anew to a new inode.
//
// Everything is done as the job's owner (setfsuid and setfsgid on the calling thread), beneath the
// root, through no symbolic link.
#pragma once

#include <memory>
#include <string>

#include "common/status.h"
#include "server/storage/storage.h"

namespace cairn::storage {

struct PosixOptions {
  std::string root;    // absolute; empty: no storage
  int threads = 4;     // writers of a checkpoint's blocks; each holds one block in memory
  bool direct = true;  // O_DIRECT where the file system takes it
  Status Validate() const;
};

// Fails (naming the root) when the root is missing, is not a directory, or cannot be written.
StatusOr<std::unique_ptr<Storage>> MakePosixStorage(const PosixOptions& options);

}  // namespace cairn::storage
