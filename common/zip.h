// The zip archives that torch.save writes: stored records, each starting at a multiple of 64 bytes.
//
// A plan is pure layout: which literal bytes go where, and which ranges the tensors fill. The
// client's copy engine fills the ranges, learns each record's CRC-32, and asks for the literals,
// which contain the CRCs. Padding up to a given length is a gap before the central directory: torch
// and zipfile both accept one of up to 2 MiB (an end comment holds only 64 KiB, and trailing zeros
// are refused).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/status.h"

namespace cairn {

struct ZipRecord {
  std::string name;  // whole path in the archive, "archive/data/0"
  uint64_t length = 0;
};

struct ZipPlacement {
  uint64_t header_offset = 0;  // of the local header
  uint64_t data_offset = 0;    // multiple of kZipAlignment
};

inline constexpr uint64_t kZipAlignment = 64;
inline constexpr uint64_t kZipMaxGap = 2u << 20;

class ZipPlan {
 public:
  // Lays `records` out in order. Zip64 fields are used where a size or offset needs them.
  static StatusOr<ZipPlan> Make(std::vector<ZipRecord> records);

  const std::vector<ZipRecord>& records() const { return records_; }
  const std::vector<ZipPlacement>& placements() const { return placements_; }
  uint64_t MinimumLength() const;  // with no gap

  // The local header of record i, alignment padding included: exactly
  // [header_offset, data_offset) of placement i.
  std::string LocalHeader(size_t i, uint32_t crc) const;

  // Everything after the last record for an archive of `length` >= MinimumLength() bytes: gap,
  // central directory, end records. INVALID_ARGUMENT when the gap would exceed kZipMaxGap.
  StatusOr<std::string> Tail(absl::Span<const uint32_t> crcs, uint64_t length) const;
  uint64_t TailOffset() const;  // where the tail starts

 private:
  std::vector<ZipRecord> records_;
  std::vector<ZipPlacement> placements_;
  uint64_t tail_offset_ = 0;
  uint64_t directory_bytes_ = 0;
};

// An archive in which the bytes of one record, the open one, come anew each time and all the others stay. What lies before
// those bytes and behind them is made once.
class ZipFrame {
 public:
  // `contents` are those of plan's records; of the open one nothing is read. INVALID_ARGUMENT: a record has other than
  // the plan's length.
  static StatusOr<ZipFrame> Make(const ZipPlan& plan, absl::Span<const absl::string_view> contents,
                                 size_t open);

  uint64_t open_length() const { return open_length_; }
  // Of the archive: a multiple of kZipAlignment, with a gap before the directory.
  uint64_t length() const { return before_.size() + open_length_ + after_.size(); }
  uint64_t before_length() const { return before_.size(); }
  uint64_t after_length() const { return after_.size(); }
  // With the CRC-32 of the open record.
  std::string Before(uint32_t crc) const;
  std::string After(uint32_t crc) const;

 private:
  uint64_t open_length_ = 0;
  std::string before_, after_;
  size_t crc_in_before_ = 0, crc_in_after_ = 0;  // where it stands
};

// One record found in an archive.
struct ZipEntry {
  std::string name;
  uint64_t offset = 0;  // of its data
  uint64_t length = 0;
  uint32_t crc = 0;
};
// Reads the central directory of a stored (uncompressed) archive. DATA_LOSS when it is not one;
// bounds are checked, so `archive` may be any bytes.
StatusOr<std::vector<ZipEntry>> ReadZipDirectory(absl::string_view archive);

// An archive of which only the beginning and the end are at hand.
struct ZipEnds {
  absl::string_view head;
  absl::string_view tail;
  uint64_t length = 0;  // of the archive
};
// The same of its ends. OUT_OF_RANGE when they are too short to tell.
StatusOr<std::vector<ZipEntry>> ReadZipDirectory(const ZipEnds& archive);

}  // namespace cairn
