// Reading an object's bytes into the caller's memory, every block checked against its checksum
// while it is in the cache. The bytes come from a descriptor (a slab, a file in storage) or in
// chunks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "client/cpp/copy_threads.h"
#include "client/cpp/object_memory.h"
#include "client/cpp/session.h"
#include "client/cpp/strided_pieces.h"
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

// Copies [offset, offset+length) of the object to `into`. Blocks are verified whole, so a block of
// which only a part is wanted is first read whole into memory of its own. DATA_LOSS names the first
// bad block; the content of `into` is then undefined.
Status ReadBlocks(CopyThreads* threads, const BlockSource& source, uint64_t offset, uint64_t length,
                  char* into, ReadPiece read);

// Reads the blocks in which the pieces want something, and copies it while it is in the cache. As ReadBlocks else. Of
// `memory`, where the object's bytes are there, `read` brings only what cannot be had there.
Status ReadPiecesOf(CopyThreads* threads, const BlockSource& source,
                    absl::Span<const StridedPiece> wanted, ReadPiece read,
                    const ObjectMemory& memory = {});

// The blocks from `first` on lie in [bytes, bytes+length), as they came from somebody who has read them. Checks each of
// which the pieces want something, and copies it; the others are not looked at. By the calling thread alone. DATA_LOSS as
// ReadBlocks; INVALID_ARGUMENT when `length` is not that of whole blocks.
Status PutBlocks(const BlockSource& source, const StridedPieces& pieces, uint64_t first,
                 const char* bytes, uint64_t length);

// Reads every block, compares it with its checksum, and keeps none of the bytes.
Status CheckBlocks(CopyThreads* threads, const BlockSource& source, ReadPiece read);

}  // namespace cairn::client
