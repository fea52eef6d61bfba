// An object that is to be written, as runs of bytes: the caller's, a file's, a device's, and the literals of zip archives,
// which contain checksums of the others.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "client/cpp/session.h"
#include "common/status.h"
#include "common/zip.h"

namespace cairn::client {

// A run of an object: `length` bytes at `data`, or of a file, or a literal.
struct Segment {
  const void* data = nullptr;
  uint64_t length = 0;
  // Of a source: the zip record it is part of, of all the object's; -1 for none. Of a literal: the only
  // record whose CRC-32 it carries, -1 when it carries all of its archive's.
  int32_t record = -1;
  int32_t literal = -1;  // number of the literal in its archive, -1: a source
  bool behind = false;   // of a literal with one record: it follows that record's bytes
  uint32_t archive = 0;  // of a literal
  int fd = -1;           // of a source that is a file, read from `offset` on
  uint64_t offset = 0;
  DeviceReader* device = nullptr;  // of a source that lies there, at `data`
};

// INVALID_ARGUMENT when together they are longer than an object may be, or one lies nowhere.
Status ValidateSources(absl::Span<const Source> sources);

// An object as its segments, in order and without gaps.
class ObjectLayout {
 public:
  static ObjectLayout Raw(absl::Span<const Source> sources);
  // As StepWriter::Item: with a plan the shortest archive of those records. INVALID_ARGUMENT also of sources that are none.
  static StatusOr<ObjectLayout> Of(absl::Span<const Source> sources, const ZipPlan* plan);
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
    const ZipPlan* plan = nullptr;  // or
    const ZipFrame* frame = nullptr;
    size_t first_record = 0;  // of all the object's
    uint64_t length = 0;
  };

  void Add(const Segment& segment);
  void Add(const Source& source, int32_t record);
  Status AddArchive(const ZipPlan* plan, absl::Span<const Source> records, uint64_t length);
  Status AddFrame(const ZipFrame* frame, absl::Span<const Source> open);
  Status AddPiece(const Piece& piece);

  std::vector<Segment> segments_;
  std::vector<uint64_t> starts_ = {0};
  size_t records_ = 0;
  std::vector<DeviceReader*> devices_;
  std::vector<Archive> archives_;
};

}  // namespace cairn::client
