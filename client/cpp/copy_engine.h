// One pass from the caller's memory into a slab: copy with streaming stores, CRC32C of the source
// bytes and, for zip records, their CRC-32, all while the bytes are in the cache.
//
// The unit of work is one 4 MiB block of an object, so a block's checksum is usually taken in one go.
// It is combined from parts only around *literals*: bytes (zip headers, the central directory) that
// contain checksums of what is being copied and are therefore written once those are known, and around
// what lies on a device, which brings it, with its checksums, beside the other threads' copies.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/cpp/copy_threads.h"
#include "client/cpp/object_layout.h"
#include "common/fd_channel.h"
#include "common/status.h"
#include "common/zip.h"

namespace cairn::client {

// Maps the pages that exist already: one call per block instead of one fault per page. It asks for
// reading, because that maps sixteen pages at a time, and in a shared writable mapping of a memfd they
// become writable all the same. Asking for writing handles each page by itself and costs four times
// as much. Best effort.
void Populate(char* from, char* to);

struct CopyTask {
  const ObjectLayout* layout = nullptr;
  char* into = nullptr;  // space for layout->length() bytes
  bool populate =
      false;  // `into` is page-aligned in a new mapping: fill its page tables during the copy
};

// What the daemon is told of a written object when it is sealed.
struct Written {
  std::vector<uint32_t> block_crcs;  // CRC32C per kBlockBytes
  // Half-open ranges that the copy really wrote, ascending and merged.
  std::vector<std::pair<uint64_t, uint64_t>> covered;
};

// Copies all tasks; `results` are parallel to them. `progress` and `beside` (CopyThreads::Run) may be null.
Status CopyObjects(CopyThreads* threads, absl::Span<const CopyTask> tasks, ProgressPage* progress,
                   std::vector<Written>* results, const std::atomic<bool>* beside = nullptr);

// An object whose bytes are in their place already.
struct ChecksumTask {
  const char* bytes = nullptr;
  uint64_t length = 0;
};

// What CopyObjects finds of such ones, with as many threads.
void ChecksumObjects(CopyThreads* threads, absl::Span<const ChecksumTask> tasks,
                     ProgressPage* progress, std::vector<Written>* results,
                     const std::atomic<bool>* beside = nullptr);

// For clients without descriptors: the object's bytes in order, in pieces of at most kBlockBytes,
// each handed to `send(offset, bytes)`.
Status SendObject(const ObjectLayout& layout, ProgressPage* progress,
                  absl::FunctionRef<Status(uint64_t offset, absl::string_view bytes)> send,
                  Written* result);

}  // namespace cairn::client
