// A decision about a job's line, or what was settled about it (docs/line.md, rule 6): immutable, a fact
// in the journal and a file `.cairn/line/<number>.<kind>`.
//
// Layout of the file (all integers little-endian):
//   0   8  magic "CAIRNLR\x01"
//   8   4  format version (1); a reader refuses a greater one, naming both
//   12  1  kind
//   13  8  number
//   21  4  bytes of the job's name, and the name
//       4  bytes of the lineage, and the lineage
//       4  CRC32C of everything before
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "common/keys.h"
#include "common/lineage.h"
#include "common/status.h"

namespace cairn {

enum class LineRecordKind : uint8_t {
  kResume = 0,  // what its owner said that attempt `number` goes on from, before it began
  kUse = 1,     // a checkpoint that was chosen by hand, under a number of its own
  kOrigin = 2,  // where attempt `number` came from
};
absl::string_view LineRecordKindName(LineRecordKind kind);  // "resume", "use", "origin"

struct LineRecord {
  std::string job;
  Attempt number = 0;
  LineRecordKind kind = LineRecordKind::kResume;
  Lineage lineage;  // begins with the point itself
  bool operator==(const LineRecord&) const = default;
};

inline constexpr size_t kMaxLineRecordBytes = 64 << 10;

std::string EncodeLineRecord(const LineRecord& record);
// DATA_LOSS for a bad magic, CRC or structure; UNIMPLEMENTED for a newer format.
StatusOr<LineRecord> DecodeLineRecord(absl::string_view bytes);

// "<number>.<kind>", the file's name.
std::string LineRecordName(Attempt number, LineRecordKind kind);
// The greatest numbers under which records of a job stand; 0: none does.
struct LineNumbers {
  Attempt published = 0;  // of every attempt that has published something an origin is recorded
  Attempt decided = 0;
  void Take(Attempt number, LineRecordKind kind);
};

LineNumbers NumbersOf(const std::vector<LineRecord>& records);

// False for anything else.
bool ParseLineRecordName(absl::string_view name, Attempt* number, LineRecordKind* kind);

}  // namespace cairn
