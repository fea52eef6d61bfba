// Storage on a file system with directories, rename and exchange, below one root that several
// daemons may share. common/layout.h says where things stand.
//
// Order is the point. A part is written in a directory that only its writer uses: data, fsync, directory fsync,
// the manifest last; it comes in by one rename. The directory of a complete checkpoint is claimed by one
// publisher, under a name that only it uses; it lays the parts out by links, and then puts the checkpoint in
// place by rename or exchange. After any fsync or close error the file is written again, to a new inode.
//
// The root is opened anew for each call, and its marker is read (common/root_marker.h): nothing is
// held open that would keep it from being unmounted, and what is mounted there later is found. A root
// without a marker is given one the first time, whether or not it has jobs: with jobs it is somebody's
// storage from before there were markers, and an empty one may be new. An empty mount point looks the
// same; require_marker is for roots that are mounted. A daemon that knows the root's identity gives no
// marker to anything.
//
// Everything is done as the job's owner (setfsuid and setfsgid on the calling thread), beneath the
// root, through no symbolic link.
#pragma once

#include <memory>
#include <string>

#include "common/manifest_file.h"
#include "common/status.h"
#include "server/storage/storage.h"

namespace cairn::storage {

struct PosixOptions {
  std::string root;             // absolute; empty: no storage
  int threads = 4;              // writers of a checkpoint's blocks; each holds one block in memory
  bool direct = true;           // O_DIRECT where the file system takes it
  bool require_marker = false;  // a root without a marker is not given one: it counts as away
  StoredLimits limits;
  Status Validate() const;
};

// Fails when the options are wrong. The root is not looked at: it may be away.
StatusOr<std::unique_ptr<Storage>> MakePosixStorage(const PosixOptions& options);

}  // namespace cairn::storage
