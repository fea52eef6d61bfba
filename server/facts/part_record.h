// The part record: what a node keeps in memory about a part that was committed there. It lies in a slab
// that is never lent for writing, so the journal needs to name it and nothing more: a committed part
// costs the journal the same, however many objects it has.
//
// Layout, little-endian:
//   0   M  the manifest, encoded; its digest is that of the part on every node and on disk
//   M   8  magic "CAIRNPR\x01"
//       4  format version (1)
//       4  number of extents: that of the manifest's objects
//      24  each: slab, offset, length
//       4  CRC32C of the bytes from M on, begun with the manifest's own CRC: the two belong together
//   and the seal, for whoever finds the record without the fact that names it:
//       4  gid of the job's owner
//      32  digest of {the node's secret, slab and offset of the record, M, number of extents, gid, CRC32C}
//
// A manifest holds bytes that a client chose, and what is left of it may begin at any page once a part
// of it was written over: without the seal such bytes could be a record that names another user's memory.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/manifest.h"
#include "server/facts/facts.h"

namespace cairn {

// What a part holds, once that is fixed. Immutable: it is shared with whoever reads, encodes or writes
// it, and copied by nobody who holds a lock.
struct PartTable {
  static constexpr size_t kNone = static_cast<size_t>(-1);

  Manifest head;                                            // without its objects
  std::vector<std::shared_ptr<const ObjectEntry>> entries;  // in order of their names
  std::vector<ExtentRef> extents;  // where each lies in memory; empty: only storage has the part

  // The index of the object of that name; kNone: there is none.
  size_t Find(absl::string_view name) const;
  Manifest Whole() const;  // a copy, with all objects
};

// `extents` are parallel to the manifest's objects, or empty.
std::shared_ptr<const PartTable> TableOf(Manifest manifest, std::vector<ExtentRef> extents);

std::string EncodeManifest(const PartTable& table);
// The manifest as encoded above, and what follows it.
std::string EncodePartRecord(std::string manifest, const std::vector<ExtentRef>& extents);
// What a record has beyond its manifest.
size_t PartRecordTailSize(size_t objects);
// How long the manifest is that the record begins with, as it says itself; 0: it begins with none.
size_t ManifestBytesIn(absl::string_view record);
// `manifest_bytes`: of those, the manifest's. DATA_LOSS for what is no record or does not verify,
// UNIMPLEMENTED for a newer format.
StatusOr<std::shared_ptr<const PartTable>> DecodePartRecord(absl::string_view record,
                                                            size_t manifest_bytes);

// --- the seal
inline constexpr size_t kRecordSealBytes = 36;
// Whoever knows `secret` wrote the record, into this place. No client knows it.
struct RecordPlace {
  uint64_t secret = 0;
  SlabId slab = 0;
  uint64_t offset = 0;
};
void SealPartRecord(const RecordPlace& place, size_t manifest_bytes, uint32_t owner_gid,
                    std::string* record);

struct SealedRecord {
  std::shared_ptr<const PartTable> table;
  size_t manifest_bytes = 0;
  size_t bytes = 0;  // of all of it
  std::string digest;
  uint32_t owner_gid = 0;
};
// The record that `bytes` begin with, if it was sealed for this place and verifies. What is not sealed
// costs little time, however long it says that it is.
std::optional<SealedRecord> FindSealedRecord(absl::string_view bytes, const RecordPlace& place);

}  // namespace cairn
