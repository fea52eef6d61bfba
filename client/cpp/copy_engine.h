// One pass from the caller's memory into a slab: copy with streaming stores, CRC32C of the source
// bytes and, for zip records, their CRC-32, all while the bytes are in the cache.
//
// The unit of work is one 4 MiB block of an object, so a block's checksum is usually taken in one go.
// It is combined from parts only around *literals*: bytes (zip headers, the central directory) that
// contain checksums of what is being copied and are therefore written once those are known, and around
// what lies on a device, which brings it, with its checksums, beside the other threads' copies.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/cpp/copy_threads.h"
#include "client/cpp/session.h"
#include "common/fd_channel.h"
#include "common/status.h"
#include "common/zip.h"

namespace cairn::client {

// Maps the pages that exist already: one call per block instead of one fault per page. It asks for
// reading, because that maps sixteen pages at a time, and in a shared writable mapping of a memfd they
// become writable all the same. Asking for writing handles each page by itself and costs four times
// as much. Best effort.
void Populate(char* from, char* to);

// A run of an object: `length` bytes at `data`, or of a file, or a literal.
struct Segment {
  const void* data = nullptr;
  uint64_t length = 0;
  // Of a source: the zip record it is part of, of all the object's; -1 for none. Of a literal: the only
  // record whose CRC-32 it carries, -1 when it carries all of its archive's.
  int32_t record = -1;
  int32_t literal = -1;  // number of the literal in its archive, -1: a source
  uint32_t archive = 0;  // of a literal
  int fd = -1;           // of a source that is a file, read from `offset` on
  uint64_t offset = 0;
  DeviceReader* device = nullptr;  // of a source that lies there, at `data`
};

// An object as its segments, in order and without gaps.
class ObjectLayout {
 public:
  static ObjectLayout Raw(absl::Span<const Source> sources);
  // `plan` must outlive the layout; records as StepWriter::WriteZip. `length` ≥
  // plan.MinimumLength(). INVALID_ARGUMENT when a record's length is not the plan's, it is a file, or the
  // gap would be too long.
  static StatusOr<ObjectLayout> Zip(const ZipPlan* plan, absl::Span<const Source> records,
                                    uint64_t length);

  // As StepWriter::WritePieces, whose plans must outlive the layout too. `places` are parallel to `pieces`.
  static StatusOr<ObjectLayout> Pieces(absl::Span<const Piece> pieces,
                                       std::vector<PiecePlace>* places);

  uint64_t length() const { return starts_.back(); }
  const std::vector<Segment>& segments() const { return segments_; }
  // Where segment i starts; one more entry than segments.
  const std::vector<uint64_t>& starts() const { return starts_; }
  size_t records() const { return records_; }
  // Those on which some of it lies, each once.
  const std::vector<DeviceReader*>& devices() const { return devices_; }
  // Thread-safe. `crcs` has one CRC-32 per record; only those that the literal contains must be known.
  StatusOr<std::string> Literal(const Segment& segment, const std::vector<uint32_t>& crcs) const;

 private:
  struct Archive {
    const ZipPlan* plan = nullptr;
    size_t first_record = 0;  // of all the object's
    uint64_t length = 0;
  };

  void Add(const Segment& segment);
  void Add(const Source& source, int32_t record);
  Status AddArchive(const ZipPlan* plan, absl::Span<const Source> records, uint64_t length);

  std::vector<Segment> segments_;
  std::vector<uint64_t> starts_ = {0};
  size_t records_ = 0;
  std::vector<DeviceReader*> devices_;
  std::vector<Archive> archives_;
};

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

// Copies all tasks; `results` are parallel to them. `progress` may be null.
Status CopyObjects(CopyThreads* threads, absl::Span<const CopyTask> tasks, ProgressPage* progress,
                   std::vector<Written>* results);

// For clients without descriptors: the object's bytes in order, in pieces of at most kBlockBytes,
// each handed to `send(offset, bytes)`.
Status SendObject(const ObjectLayout& layout, ProgressPage* progress,
                  absl::FunctionRef<Status(uint64_t offset, absl::string_view bytes)> send,
                  Written* result);

}  // namespace cairn::client
