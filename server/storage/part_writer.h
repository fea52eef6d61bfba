// Writes the objects of one part: blocks by several threads, straight from memory to disk.
#pragma once

#include <atomic>
#include <cstdint>
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
};

// Writes every object of `part` to its name below `directory`, which is the caller's alone, and where none of
// them stands yet; it syncs the files, but not the directories. The calling thread already acts as the owner.
// After an error some of them are there.
Status WriteObjects(int directory, const PartToWrite& part, const WriteOptions& options,
                    AtomicCounters* counters);

// Writes one small file in the same way; after an error it is not there.
Status WriteSmallFile(int directory, const std::string& name, absl::string_view bytes,
                      AtomicCounters* counters);

}  // namespace cairn::storage
