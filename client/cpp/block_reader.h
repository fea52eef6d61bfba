// Reading an object's bytes into the caller's memory, every block checked against its checksum
// while it is in the cache. The bytes come from a descriptor (a slab, a file in storage) or in
// chunks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "client/cpp/copy_threads.h"
#include "common/status.h"

namespace cairn::client {

// Reads [offset, offset+length) of the object, which lies in one block. Runs on several threads at
// once.
using ReadPiece = absl::FunctionRef<Status(uint64_t offset, uint64_t length, char* into)>;

struct BlockSource {
  std::string what;  // "job/step object NAME", for errors
  uint64_t length = 0;
  const std::vector<uint32_t>* block_crcs = nullptr;
};

// [offset, offset+length) of the object to `into`. Blocks are verified whole, so those that are
// wanted in part are read whole on the side. DATA_LOSS names the first bad block; `into` then holds
// anything.
Status ReadBlocks(CopyThreads* threads, const BlockSource& source, uint64_t offset, uint64_t length,
                  char* into, ReadPiece read);

// Reads everything and keeps nothing: are the bytes what their checksums say?
Status CheckBlocks(CopyThreads* threads, const BlockSource& source, ReadPiece read);

}  // namespace cairn::client
