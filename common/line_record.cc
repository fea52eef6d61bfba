#include "common/line_record.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/checksum.h"
#include "common/codec.h"

namespace cairn {
namespace {

constexpr absl::string_view kRecordMagic("CAIRNLR\x01", 8);
constexpr uint32_t kRecordVersion = 1;
constexpr LineRecordKind kKinds[] = {LineRecordKind::kResume, LineRecordKind::kUse,
                                     LineRecordKind::kOrigin};

Status BadRecord(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("line record: ", what));
}

void AppendBytes(std::string* out, absl::string_view bytes) {
  AppendInteger<uint32_t>(out, static_cast<uint32_t>(bytes.size()));
  out->append(bytes.data(), bytes.size());
}

bool TakeLengthAndBytes(Cursor* cursor, absl::string_view* bytes) {
  uint32_t length = 0;
  return cursor->Take(&length) && cursor->TakeBytes(length, bytes);
}

}  // namespace

absl::string_view LineRecordKindName(LineRecordKind kind) {
  switch (kind) {
    case LineRecordKind::kResume:
      return "resume";
    case LineRecordKind::kUse:
      return "use";
    case LineRecordKind::kOrigin:
      return "origin";
  }
  return "unknown";
}

std::string EncodeLineRecord(const LineRecord& record) {
  std::string out(kRecordMagic);
  AppendInteger<uint32_t>(&out, kRecordVersion);
  AppendInteger<uint8_t>(&out, static_cast<uint8_t>(record.kind));
  AppendInteger<Attempt>(&out, record.number);
  AppendBytes(&out, record.job);
  AppendBytes(&out, EncodeLineage(record.lineage));
  AppendInteger<uint32_t>(&out, Crc32c(0, out.data(), out.size()));
  return out;
}

StatusOr<LineRecord> DecodeLineRecord(absl::string_view bytes) {
  if (bytes.size() > kMaxLineRecordBytes) return BadRecord("is longer than any");
  if (bytes.size() < kRecordMagic.size() + sizeof(uint32_t)) return BadRecord("is cut short");
  if (bytes.substr(0, kRecordMagic.size()) != kRecordMagic) return BadRecord("the magic is wrong");
  const size_t end = bytes.size() - sizeof(uint32_t);
  if (ReadInteger<uint32_t>(bytes.data() + end) != Crc32c(0, bytes.data(), end)) {
    return BadRecord("the checksum does not fit");
  }
  Cursor cursor(bytes.substr(kRecordMagic.size(), end - kRecordMagic.size()));
  uint32_t version = 0;
  uint8_t kind = 0;
  LineRecord record;
  absl::string_view job, lineage;
  if (!cursor.Take(&version)) return BadRecord("is cut short");
  if (version > kRecordVersion) {
    return absl::UnimplementedError(absl::StrCat("line record: format ", version,
                                                 " is newer than this build's ", kRecordVersion));
  }
  if (!cursor.Take(&kind) || !cursor.Take(&record.number) || !TakeLengthAndBytes(&cursor, &job) ||
      !TakeLengthAndBytes(&cursor, &lineage) || cursor.left() != 0) {
    return BadRecord("is cut short");
  }
  const auto* const known =
      std::find(std::begin(kKinds), std::end(kKinds), static_cast<LineRecordKind>(kind));
  if (known == std::end(kKinds)) return BadRecord(absl::StrCat("kind ", kind, " is unknown"));
  record.kind = *known;
  record.job = std::string(job);
  if (!ValidateJob(record.job).ok() || !ValidateAttempt(record.number).ok()) {
    return BadRecord("names no attempt of a job");
  }
  CAIRN_ASSIGN_OR_RETURN(record.lineage, DecodeLineage(lineage));
  // What follows from a checkpoint is younger than it.
  if (record.lineage.attempt() >= record.number)
    return BadRecord("its point is not older than itself");
  return record;
}

std::string LineRecordName(Attempt number, LineRecordKind kind) {
  return absl::StrCat(number, ".", LineRecordKindName(kind));
}

void LineNumbers::Take(Attempt number, LineRecordKind kind) {
  Attempt& greatest = kind == LineRecordKind::kOrigin ? published : decided;
  greatest = std::max(greatest, number);
}

LineNumbers NumbersOf(const std::vector<LineRecord>& records) {
  LineNumbers numbers;
  for (const LineRecord& record : records) numbers.Take(record.number, record.kind);
  return numbers;
}

bool ParseLineRecordName(absl::string_view name, Attempt* number, LineRecordKind* kind) {
  const size_t dot = name.find('.');
  if (dot == name.npos || !absl::SimpleAtoi(name.substr(0, dot), number) || *number <= 0) {
    return false;
  }
  for (const LineRecordKind known : kKinds) {
    *kind = known;
    if (name == LineRecordName(*number, known)) return true;  // exactly as we write it
  }
  return false;
}

}  // namespace cairn
