// Writes the objects of one part: blocks by several threads, straight from memory to disk.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "common/fd.h"
#include "common/manifest.h"
#include "common/status.h"
#include "server/storage/storage.h"

namespace cairn::storage {

// Counters, as threads add to them.
struct AtomicCounters {
  std::atomic<uint64_t> objects_written{0}, bytes_written{0}, sync_failures{0}, rewrites{0},
      published{0};
  Counters Read() const;
};

struct WriteOptions {
  Owner owner;
  int threads = 1;
  bool direct = true;
  // Unique names for temporaries; thread-safe.
  std::function<std::string()> temporary_name;
};

// Writes every object of `part` to its name below `directory`, through temporaries in `meta`, which
// is on the same file system; it syncs the files, but not the directories. The calling thread
// already acts as the owner. After an error nothing that this call wrote is left, as far as the
// file system lets it be removed.
Status WriteObjects(int directory, int meta, const PartToWrite& part, const WriteOptions& options,
                    AtomicCounters* counters);

// Writes one small file `name` of `bytes` in the same way.
Status WriteMetaFile(int meta, const std::string& name, absl::string_view bytes,
                     const std::function<std::string()>& temporary_name, AtomicCounters* counters);

}  // namespace cairn::storage
