#include "common/zip.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "common/checksum.h"
#include "common/codec.h"

namespace cairn {
namespace {

constexpr uint32_t kLocalSignature = 0x04034B50;
constexpr uint32_t kCentralSignature = 0x02014B50;
constexpr uint32_t kEndSignature = 0x06054B50;
constexpr uint32_t kZip64EndSignature = 0x06064B50;
constexpr uint32_t kZip64LocatorSignature = 0x07064B50;

constexpr size_t kLocalBytes = 30;
constexpr size_t kCentralBytes = 46;
constexpr size_t kEndBytes = 22;
constexpr size_t kZip64EndBytes = 56;
constexpr size_t kZip64LocatorBytes = 20;
constexpr size_t kMaxCommentBytes = 0xFFFF;

constexpr uint16_t kZip64Extra = 0x0001;
constexpr uint16_t kPaddingExtra = 0x4246;  // "FB": what torch's own writer aligns with
constexpr size_t kExtraHeaderBytes = 4;

constexpr uint16_t kVersionPlain = 20;
constexpr uint16_t kVersionZip64 = 45;
constexpr uint16_t kUtf8Names = 0x0800;
constexpr uint16_t kEncrypted = 0x0001;
constexpr uint16_t kStored = 0;
constexpr uint16_t kDosDate = 0x0021;  // 1980-01-01: equal content is equal bytes
constexpr uint32_t kMax32 = 0xFFFFFFFF;
constexpr uint16_t kMax16 = 0xFFFF;

bool NeedsZip64(uint64_t value) { return value >= kMax32; }

uint32_t Clamped(uint64_t value) {
  return NeedsZip64(value) ? kMax32 : static_cast<uint32_t>(value);
}

size_t LocalZip64Bytes(const ZipRecord& record) {
  return NeedsZip64(record.length) ? kExtraHeaderBytes + 16 : 0;
}

size_t CentralZip64Bytes(const ZipRecord& record, const ZipPlacement& placement) {
  size_t values = 0;
  if (NeedsZip64(record.length)) values += 2;
  if (NeedsZip64(placement.header_offset)) values += 1;
  return values == 0 ? 0 : kExtraHeaderBytes + 8 * values;
}

Status BadZip(absl::string_view what) { return absl::DataLossError(absl::StrCat("zip: ", what)); }

void AppendCentralEntry(const ZipRecord& record, const ZipPlacement& placement, uint32_t crc,
                        std::string* out) {
  const size_t extra_bytes = CentralZip64Bytes(record, placement);
  const uint16_t version = extra_bytes > 0 ? kVersionZip64 : kVersionPlain;
  AppendInteger<uint32_t>(out, kCentralSignature);
  AppendInteger<uint16_t>(out, version);  // made by
  AppendInteger<uint16_t>(out, version);  // needed
  AppendInteger<uint16_t>(out, kUtf8Names);
  AppendInteger<uint16_t>(out, kStored);
  AppendInteger<uint16_t>(out, 0);  // time
  AppendInteger<uint16_t>(out, kDosDate);
  AppendInteger<uint32_t>(out, crc);
  AppendInteger<uint32_t>(out, Clamped(record.length));  // compressed
  AppendInteger<uint32_t>(out, Clamped(record.length));
  AppendInteger<uint16_t>(out, static_cast<uint16_t>(record.name.size()));
  AppendInteger<uint16_t>(out, static_cast<uint16_t>(extra_bytes));
  AppendInteger<uint16_t>(out, 0);  // comment
  AppendInteger<uint16_t>(out, 0);  // disk
  AppendInteger<uint16_t>(out, 0);  // internal attributes
  AppendInteger<uint32_t>(out, 0);  // external attributes
  AppendInteger<uint32_t>(out, Clamped(placement.header_offset));
  *out += record.name;
  if (extra_bytes > 0) {
    AppendInteger<uint16_t>(out, kZip64Extra);
    AppendInteger<uint16_t>(out, static_cast<uint16_t>(extra_bytes - kExtraHeaderBytes));
    if (NeedsZip64(record.length)) {
      AppendInteger<uint64_t>(out, record.length);
      AppendInteger<uint64_t>(out, record.length);
    }
    if (NeedsZip64(placement.header_offset)) {
      AppendInteger<uint64_t>(out, placement.header_offset);
    }
  }
}

// The zip64 end record, its locator and the end record of `count` entries.
void AppendEndRecords(uint64_t count, uint64_t directory_offset, uint64_t directory_bytes,
                      std::string* out) {
  const uint64_t zip64_end_offset = directory_offset + directory_bytes;
  AppendInteger<uint32_t>(out, kZip64EndSignature);
  AppendInteger<uint64_t>(out, kZip64EndBytes - 12);
  AppendInteger<uint16_t>(out, kVersionZip64);
  AppendInteger<uint16_t>(out, kVersionZip64);
  AppendInteger<uint32_t>(out, 0);  // this disk
  AppendInteger<uint32_t>(out, 0);  // the directory's disk
  AppendInteger<uint64_t>(out, count);
  AppendInteger<uint64_t>(out, count);
  AppendInteger<uint64_t>(out, directory_bytes);
  AppendInteger<uint64_t>(out, directory_offset);
  AppendInteger<uint32_t>(out, kZip64LocatorSignature);
  AppendInteger<uint32_t>(out, 0);
  AppendInteger<uint64_t>(out, zip64_end_offset);
  AppendInteger<uint32_t>(out, 1);  // disks
  const auto count16 = static_cast<uint16_t>(std::min<uint64_t>(count, kMax16));
  AppendInteger<uint32_t>(out, kEndSignature);
  AppendInteger<uint16_t>(out, 0);
  AppendInteger<uint16_t>(out, 0);
  AppendInteger<uint16_t>(out, count16);
  AppendInteger<uint16_t>(out, count16);
  AppendInteger<uint32_t>(out, Clamped(directory_bytes));
  AppendInteger<uint32_t>(out, Clamped(directory_offset));
  AppendInteger<uint16_t>(out, 0);  // comment
}

}  // namespace

StatusOr<ZipPlan> ZipPlan::Make(std::vector<ZipRecord> records) {
  ZipPlan plan;
  plan.records_ = std::move(records);
  plan.placements_.reserve(plan.records_.size());
  uint64_t offset = 0;
  for (const ZipRecord& record : plan.records_) {
    if (record.name.empty() || record.name.size() > kMax16) {
      return absl::InvalidArgumentError(absl::StrCat(
          "zip: a record's name has ", record.name.size(), " bytes, not 1 … ", kMax16));
    }
    if (record.length > uint64_t{1} << 62 || offset > uint64_t{1} << 62) {
      return absl::InvalidArgumentError("zip: the archive is longer than 2^62 bytes");
    }
    ZipPlacement placement;
    placement.header_offset = offset;
    const uint64_t least = offset + kLocalBytes + record.name.size() + LocalZip64Bytes(record);
    uint64_t padding = (kZipAlignment - least % kZipAlignment) % kZipAlignment;
    // The padding is an extra field of its own and can't be shorter than that field's header.
    if (padding > 0 && padding < kExtraHeaderBytes) padding += kZipAlignment;
    placement.data_offset = least + padding;
    plan.placements_.push_back(placement);
    offset = placement.data_offset + record.length;
    plan.directory_bytes_ +=
        kCentralBytes + record.name.size() + CentralZip64Bytes(record, placement);
  }
  plan.tail_offset_ = offset;
  return plan;
}

namespace {

std::string WithCrc(const std::string& literal, size_t at, uint32_t crc) {
  std::string out = literal;
  for (size_t i = 0; i < sizeof(crc); ++i) out[at + i] = static_cast<char>(crc >> (8 * i));
  return out;
}

// Of a literal that was made with a CRC-32 of 0 and with one of only ones: where it stands in it.
StatusOr<size_t> CrcPlace(absl::string_view zeros, absl::string_view ones) {
  const size_t at = static_cast<size_t>(
      std::mismatch(zeros.begin(), zeros.end(), ones.begin(), ones.end()).first - zeros.begin());
  if (zeros.size() != ones.size() || zeros.size() - at < sizeof(uint32_t) ||
      WithCrc(std::string(zeros), at, kMax32) != ones) {
    return absl::InternalError("zip: a literal without its CRC-32");
  }
  return at;
}

}  // namespace

StatusOr<ZipFrame> ZipFrame::Make(const ZipPlan& plan, absl::Span<const absl::string_view> contents,
                                  size_t open) {
  const std::vector<ZipRecord>& records = plan.records();
  if (contents.size() != records.size() || open >= records.size()) {
    return absl::InvalidArgumentError(absl::StrCat("zip: ", contents.size(), " contents, open is ",
                                                   open, ", of ", records.size(), " records"));
  }
  std::vector<uint32_t> crcs(records.size(), 0);
  for (size_t i = 0; i < records.size(); ++i) {
    if (i == open) continue;
    if (contents[i].size() != records[i].length) {
      return absl::InvalidArgumentError(absl::StrCat("zip: ", records[i].name, " has ",
                                                     contents[i].size(), " bytes, the plan ",
                                                     records[i].length));
    }
    crcs[i] = ZipCrc32(0, contents[i].data(), contents[i].size());
  }
  const uint64_t length =
      (plan.MinimumLength() + kZipAlignment - 1) / kZipAlignment * kZipAlignment;
  const auto make = [&](uint32_t crc, std::string* before, std::string* after) -> Status {
    crcs[open] = crc;
    for (size_t i = 0; i < records.size(); ++i) {
      std::string* const out = i <= open ? before : after;
      *out += plan.LocalHeader(i, crcs[i]);
      if (i != open) absl::StrAppend(out, contents[i]);
    }
    CAIRN_ASSIGN_OR_RETURN(const std::string tail, plan.Tail(crcs, length));
    *after += tail;
    return absl::OkStatus();
  };
  ZipFrame frame;
  frame.open_length_ = records[open].length;
  std::string before, after;
  CAIRN_RETURN_IF_ERROR(make(0, &frame.before_, &frame.after_));
  CAIRN_RETURN_IF_ERROR(make(kMax32, &before, &after));
  CAIRN_ASSIGN_OR_RETURN(frame.crc_in_before_, CrcPlace(frame.before_, before));
  CAIRN_ASSIGN_OR_RETURN(frame.crc_in_after_, CrcPlace(frame.after_, after));
  return frame;
}

std::string ZipFrame::Before(uint32_t crc) const { return WithCrc(before_, crc_in_before_, crc); }

std::string ZipFrame::After(uint32_t crc) const { return WithCrc(after_, crc_in_after_, crc); }

uint64_t ZipPlan::TailOffset() const { return tail_offset_; }

uint64_t ZipPlan::MinimumLength() const {
  // The zip64 end records are always there, as torch writes them. Leaving them out where they are not
  // needed would make the length depend on the gap.
  return tail_offset_ + directory_bytes_ + kZip64EndBytes + kZip64LocatorBytes + kEndBytes;
}

std::string ZipPlan::LocalHeader(size_t i, uint32_t crc) const {
  const ZipRecord& record = records_[i];
  const ZipPlacement& placement = placements_[i];
  const bool zip64 = NeedsZip64(record.length);
  const uint64_t extra_bytes =
      placement.data_offset - placement.header_offset - kLocalBytes - record.name.size();
  const uint64_t padding = extra_bytes - LocalZip64Bytes(record);
  std::string out;
  out.reserve(placement.data_offset - placement.header_offset);
  AppendInteger<uint32_t>(&out, kLocalSignature);
  AppendInteger<uint16_t>(&out, zip64 ? kVersionZip64 : kVersionPlain);
  AppendInteger<uint16_t>(&out, kUtf8Names);
  AppendInteger<uint16_t>(&out, kStored);
  AppendInteger<uint16_t>(&out, 0);  // time
  AppendInteger<uint16_t>(&out, kDosDate);
  AppendInteger<uint32_t>(&out, crc);
  AppendInteger<uint32_t>(&out, Clamped(record.length));  // compressed
  AppendInteger<uint32_t>(&out, Clamped(record.length));
  AppendInteger<uint16_t>(&out, static_cast<uint16_t>(record.name.size()));
  AppendInteger<uint16_t>(&out, static_cast<uint16_t>(extra_bytes));
  out += record.name;
  if (zip64) {
    AppendInteger<uint16_t>(&out, kZip64Extra);
    AppendInteger<uint16_t>(&out, 16);
    AppendInteger<uint64_t>(&out, record.length);
    AppendInteger<uint64_t>(&out, record.length);
  }
  if (padding > 0) {
    AppendInteger<uint16_t>(&out, kPaddingExtra);
    AppendInteger<uint16_t>(&out, static_cast<uint16_t>(padding - kExtraHeaderBytes));
    out.append(padding - kExtraHeaderBytes, 'Z');
  }
  return out;
}

StatusOr<std::string> ZipPlan::Tail(absl::Span<const uint32_t> crcs, uint64_t length) const {
  if (crcs.size() != records_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("zip: ", crcs.size(), " checksums for ", records_.size(), " records"));
  }
  if (length < MinimumLength()) {
    return absl::InvalidArgumentError(
        absl::StrCat("zip: length ", length, " is below the least, ", MinimumLength()));
  }
  const uint64_t gap = length - MinimumLength();
  if (gap > kZipMaxGap) {
    return absl::InvalidArgumentError(
        absl::StrCat("zip: a gap of ", gap, " bytes is above the limit ", kZipMaxGap));
  }
  std::string out(gap, '\0');
  out.reserve(length - tail_offset_);
  for (size_t i = 0; i < records_.size(); ++i) {
    AppendCentralEntry(records_[i], placements_[i], crcs[i], &out);
  }
  AppendEndRecords(records_.size(), tail_offset_ + gap, directory_bytes_, &out);
  return out;
}

namespace {

struct Directory {
  uint64_t offset = 0, bytes = 0, entries = 0;
};

Status NotAtHand() { return absl::OutOfRangeError("zip: not in the ends that were read"); }

// The `n` bytes at `at`, which lie within the archive; null: they are not at hand.
const char* At(const ZipEnds& archive, uint64_t at, uint64_t n) {
  if (at <= archive.head.size() && n <= archive.head.size() - at) return archive.head.data() + at;
  const uint64_t tail = archive.length - archive.tail.size();
  return at < tail ? nullptr : archive.tail.data() + (at - tail);
}

StatusOr<Directory> FindDirectory(const ZipEnds& archive) {
  if (archive.length < kEndBytes) return BadZip("is shorter than an end record");
  const uint64_t last = archive.length - kEndBytes;
  const uint64_t first = last > kMaxCommentBytes ? last - kMaxCommentBytes : 0;
  for (uint64_t end = last + 1; end-- > first;) {
    const char* const record = At(archive, end, kEndBytes);
    if (record == nullptr) return NotAtHand();
    if (ReadInteger<uint32_t>(record) != kEndSignature) continue;
    if (end + kEndBytes + ReadInteger<uint16_t>(record + 20) != archive.length) continue;
    Directory directory;
    directory.entries = ReadInteger<uint16_t>(record + 10);
    directory.bytes = ReadInteger<uint32_t>(record + 12);
    directory.offset = ReadInteger<uint32_t>(record + 16);
    uint64_t ends_before = end;
    if (end >= kZip64LocatorBytes) {
      const uint64_t locator = end - kZip64LocatorBytes;
      const char* const found = At(archive, locator, kZip64LocatorBytes);
      if (found == nullptr) return NotAtHand();
      if (ReadInteger<uint32_t>(found) == kZip64LocatorSignature) {
        const uint64_t at = ReadInteger<uint64_t>(found + 8);
        const bool fits = at <= locator && locator - at >= kZip64EndBytes;
        const char* const zip64 = fits ? At(archive, at, kZip64EndBytes) : nullptr;
        if (fits && zip64 == nullptr) return NotAtHand();
        if (!fits || ReadInteger<uint32_t>(zip64) != kZip64EndSignature) {
          return BadZip("the zip64 end record is not where it should be");
        }
        directory.entries = ReadInteger<uint64_t>(zip64 + 32);
        directory.bytes = ReadInteger<uint64_t>(zip64 + 40);
        directory.offset = ReadInteger<uint64_t>(zip64 + 48);
        ends_before = at;
      }
    }
    if (directory.offset > ends_before || directory.bytes > ends_before - directory.offset) {
      return BadZip("the directory is out of bounds");
    }
    if (directory.entries > directory.bytes / kCentralBytes) {
      return BadZip("the directory has fewer entries than it says");
    }
    return directory;
  }
  return BadZip("has no end record");
}

// Replaces values that are 0xFFFFFFFF by those of the zip64 extra field, in the format's order.
Status TakeZip64(absl::string_view extra, uint64_t* uncompressed, uint64_t* compressed,
                 uint64_t* offset) {
  if (*uncompressed != kMax32 && *compressed != kMax32 && *offset != kMax32) {
    return absl::OkStatus();
  }
  Cursor fields(extra);
  while (fields.left() > 0) {
    uint16_t id = 0, length = 0;
    absl::string_view value;
    if (!fields.Take(&id) || !fields.Take(&length) || !fields.TakeBytes(length, &value)) {
      return BadZip("an extra field is cut short");
    }
    if (id != kZip64Extra) continue;
    Cursor values(value);
    for (uint64_t* wanted : {uncompressed, compressed, offset}) {
      if (*wanted == kMax32 && !values.Take(wanted)) return BadZip("a zip64 field is cut short");
    }
    return absl::OkStatus();
  }
  return absl::OkStatus();  // without the field the value is 0xFFFFFFFF itself
}

}  // namespace

StatusOr<std::vector<ZipEntry>> ReadZipDirectory(absl::string_view archive) {
  return ReadZipDirectory(ZipEnds{archive, {}, archive.size()});
}

StatusOr<std::vector<ZipEntry>> ReadZipDirectory(const ZipEnds& archive) {
  CAIRN_ASSIGN_OR_RETURN(const Directory directory, FindDirectory(archive));
  const char* const listed = At(archive, directory.offset, directory.bytes);
  if (listed == nullptr) return NotAtHand();
  std::vector<ZipEntry> entries;
  entries.reserve(directory.entries);
  Cursor cursor(absl::string_view(listed, directory.bytes));
  for (uint64_t i = 0; i < directory.entries; ++i) {
    absl::string_view fixed, name, extra, comment;
    if (!cursor.TakeBytes(kCentralBytes, &fixed) ||
        ReadInteger<uint32_t>(fixed.data()) != kCentralSignature) {
      return BadZip(absl::StrCat("directory entry ", i, " is not one"));
    }
    if (!cursor.TakeBytes(ReadInteger<uint16_t>(fixed.data() + 28), &name) ||
        !cursor.TakeBytes(ReadInteger<uint16_t>(fixed.data() + 30), &extra) ||
        !cursor.TakeBytes(ReadInteger<uint16_t>(fixed.data() + 32), &comment)) {
      return BadZip(absl::StrCat("directory entry ", i, " is cut short"));
    }
    if ((ReadInteger<uint16_t>(fixed.data() + 8) & kEncrypted) != 0 ||
        ReadInteger<uint16_t>(fixed.data() + 10) != kStored) {
      return BadZip(absl::StrCat("record ", i, " is not stored plainly"));
    }
    uint64_t compressed = ReadInteger<uint32_t>(fixed.data() + 20);
    uint64_t uncompressed = ReadInteger<uint32_t>(fixed.data() + 24);
    uint64_t header = ReadInteger<uint32_t>(fixed.data() + 42);
    CAIRN_RETURN_IF_ERROR(TakeZip64(extra, &uncompressed, &compressed, &header));
    if (compressed != uncompressed) return BadZip(absl::StrCat("record ", i, " has two lengths"));
    const bool fits = header <= directory.offset && directory.offset - header >= kLocalBytes;
    const char* const local = fits ? At(archive, header, kLocalBytes) : nullptr;
    if (fits && local == nullptr) return NotAtHand();
    if (!fits || ReadInteger<uint32_t>(local) != kLocalSignature) {
      return BadZip(absl::StrCat("record ", i, " has no local header"));
    }
    const uint64_t skipped = kLocalBytes + ReadInteger<uint16_t>(local + 26) +
                             uint64_t{ReadInteger<uint16_t>(local + 28)};
    const uint64_t room = directory.offset - header;
    if (skipped > room || uncompressed > room - skipped) {
      return BadZip(absl::StrCat("record ", i, " is out of bounds"));
    }
    ZipEntry& entry = entries.emplace_back();
    entry.name = std::string(name);
    entry.offset = header + skipped;
    entry.length = uncompressed;
    entry.crc = ReadInteger<uint32_t>(fixed.data() + 16);
  }
  if (cursor.left() > 0) return BadZip("the directory has more entries than it says");
  return entries;
}

}  // namespace cairn
