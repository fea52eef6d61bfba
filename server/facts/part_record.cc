#include "server/facts/part_record.h"

#include <algorithm>
#include <utility>

#include "common/checksum.h"
#include "common/codec.h"

namespace cairn {
namespace {

constexpr absl::string_view kMagic("CAIRNPR\x01", 8);
constexpr uint32_t kFormatVersion = 1;
constexpr size_t kHeaderBytes = 16;
constexpr size_t kExtentBytes = 24;
constexpr size_t kCrcBytes = 4;

Status Bad(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("part record: ", what));
}

// The encoded manifest's last four bytes.
uint32_t CrcOf(absl::string_view manifest) {
  return ReadInteger<uint32_t>(manifest.data() + manifest.size() - kCrcBytes);
}

std::string SealOf(const RecordPlace& place, uint64_t manifest_bytes, uint32_t extents,
                   uint32_t owner_gid, uint32_t crc) {
  std::string sealed;
  for (const uint64_t value : {place.secret, place.slab, place.offset, manifest_bytes}) {
    AppendInteger<uint64_t>(&sealed, value);
  }
  for (const uint32_t value : {extents, owner_gid, crc}) AppendInteger<uint32_t>(&sealed, value);
  return ManifestDigest(sealed);
}

}  // namespace

size_t PartTable::Find(absl::string_view name) const {
  const auto at = std::lower_bound(
      entries.begin(), entries.end(), name,
      [](const auto& entry, absl::string_view wanted) { return entry->name < wanted; });
  return at != entries.end() && (*at)->name == name ? static_cast<size_t>(at - entries.begin())
                                                    : kNone;
}

Manifest PartTable::Whole() const {
  Manifest whole = head;
  whole.objects.reserve(entries.size());
  for (const auto& entry : entries) whole.objects.push_back(*entry);
  return whole;
}

std::shared_ptr<const PartTable> TableOf(Manifest manifest, std::vector<ExtentRef> extents) {
  auto table = std::make_shared<PartTable>();
  table->entries.reserve(manifest.objects.size());
  for (ObjectEntry& entry : manifest.objects) {
    table->entries.push_back(std::make_shared<const ObjectEntry>(std::move(entry)));
  }
  manifest.objects.clear();
  table->head = std::move(manifest);
  table->extents = std::move(extents);
  return table;
}

std::string EncodeManifest(const PartTable& table) {
  std::vector<const ObjectEntry*> objects;
  objects.reserve(table.entries.size());
  for (const auto& entry : table.entries) objects.push_back(entry.get());
  return EncodeManifest(table.head, std::move(objects));
}

size_t PartRecordTailSize(size_t objects) {
  return kHeaderBytes + kExtentBytes * objects + kCrcBytes;
}

std::string EncodePartRecord(std::string manifest, const std::vector<ExtentRef>& extents) {
  const size_t begin = manifest.size();
  const uint32_t manifest_crc = CrcOf(manifest);
  std::string record = std::move(manifest);
  record.reserve(begin + PartRecordTailSize(extents.size()));
  record.append(kMagic.data(), kMagic.size());
  AppendInteger<uint32_t>(&record, kFormatVersion);
  AppendInteger<uint32_t>(&record, static_cast<uint32_t>(extents.size()));
  for (const ExtentRef& extent : extents) {
    AppendInteger<uint64_t>(&record, extent.slab);
    AppendInteger<uint64_t>(&record, extent.offset);
    AppendInteger<uint64_t>(&record, extent.length);
  }
  AppendInteger<uint32_t>(&record,
                          Crc32c(manifest_crc, record.data() + begin, record.size() - begin));
  return record;
}

size_t ManifestBytesIn(absl::string_view record) {
  constexpr absl::string_view kManifestMagic("CAIRNMF\x01", 8);
  constexpr size_t kLengthOffset = 12, kAroundTheBody = 20;
  if (record.size() < kAroundTheBody || record.substr(0, 8) != kManifestMagic) return 0;
  const size_t bytes = ReadInteger<uint32_t>(record.data() + kLengthOffset) + kAroundTheBody;
  return bytes <= record.size() ? bytes : 0;
}

StatusOr<std::shared_ptr<const PartTable>> DecodePartRecord(absl::string_view record,
                                                            size_t manifest_bytes) {
  if (manifest_bytes > record.size() || record.size() - manifest_bytes < PartRecordTailSize(0)) {
    return Bad("is cut short");
  }
  CAIRN_ASSIGN_OR_RETURN(Manifest manifest, DecodeManifest(record.substr(0, manifest_bytes)));
  const absl::string_view tail = record.substr(manifest_bytes);
  if (tail.substr(0, kMagic.size()) != kMagic) return Bad("the magic is wrong");
  Cursor cursor(tail.substr(kMagic.size()));
  uint32_t version = 0, count = 0;
  if (!cursor.Take(&version) || !cursor.Take(&count)) return Bad("is cut short");
  if (version > kFormatVersion) {
    return absl::UnimplementedError(
        absl::StrCat("part record: version ", version, "; this build knows ", kFormatVersion));
  }
  if (count != manifest.objects.size()) return Bad("the number of extents is not that of objects");
  if (tail.size() < PartRecordTailSize(count)) return Bad("is cut short");
  const size_t checked = PartRecordTailSize(count) - kCrcBytes;
  const uint32_t manifest_crc = CrcOf(record.substr(0, manifest_bytes));
  if (ReadInteger<uint32_t>(tail.data() + checked) != Crc32c(manifest_crc, tail.data(), checked)) {
    return Bad("its checksum is wrong");
  }
  std::vector<ExtentRef> extents(count);
  for (ExtentRef& extent : extents) {
    if (!cursor.Take(&extent.slab) || !cursor.Take(&extent.offset) ||
        !cursor.Take(&extent.length)) {
      return Bad("is cut short");
    }
  }
  return TableOf(std::move(manifest), std::move(extents));
}

void SealPartRecord(const RecordPlace& place, size_t manifest_bytes, uint32_t owner_gid,
                    std::string* record) {
  const char* tail = record->data() + manifest_bytes;
  const auto extents = ReadInteger<uint32_t>(tail + kHeaderBytes - sizeof(uint32_t));
  const uint32_t crc = CrcOf(*record);
  AppendInteger<uint32_t>(record, owner_gid);
  *record += SealOf(place, manifest_bytes, extents, owner_gid, crc);
}

std::optional<SealedRecord> FindSealedRecord(absl::string_view bytes, const RecordPlace& place) {
  SealedRecord found;
  found.manifest_bytes = ManifestBytesIn(bytes);
  if (found.manifest_bytes == 0) return std::nullopt;
  const absl::string_view tail = bytes.substr(found.manifest_bytes);
  if (tail.size() < kHeaderBytes || tail.substr(0, kMagic.size()) != kMagic) return std::nullopt;
  const auto extents = ReadInteger<uint32_t>(tail.data() + kHeaderBytes - sizeof(uint32_t));
  const size_t tail_bytes = PartRecordTailSize(extents);
  if (tail.size() < tail_bytes + kRecordSealBytes) return std::nullopt;
  found.bytes = found.manifest_bytes + tail_bytes + kRecordSealBytes;
  const char* seal = tail.data() + tail_bytes;
  found.owner_gid = ReadInteger<uint32_t>(seal);
  const auto crc = ReadInteger<uint32_t>(seal - kCrcBytes);
  if (absl::string_view(seal, kRecordSealBytes).substr(sizeof(uint32_t)) !=
      SealOf(place, found.manifest_bytes, extents, found.owner_gid, crc)) {
    return std::nullopt;
  }
  auto table = DecodePartRecord(bytes.substr(0, found.bytes), found.manifest_bytes);
  if (!table.ok()) return std::nullopt;
  found.table = *std::move(table);
  found.digest = ManifestDigest(bytes.substr(0, found.manifest_bytes));
  return found;
}

}  // namespace cairn
