// The manifest: what one writer committed for one step. It is the source of truth about a
// checkpoint; journals and catalogs are indexes of manifests.
//
// Layout (all integers little-endian):
//   0   8  magic "CAIRNMF\x01"
//   8   4  format version (1); a reader refuses a greater one, naming both
//   12  4  body length B
//   16  B  body: fields {u16 tag, u16 reserved 0, u32 length, bytes}, tags ascending
//   16+B 4 CRC32C of bytes [0, 16+B)
// Each object is a field whose bytes are nested fields. Fields with unknown tags survive decoding
// and encoding. Encoding is canonical: objects stand in byte order of their names, so equal
// manifests have equal bytes.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/keys.h"
#include "common/lineage.h"
#include "common/status.h"

namespace cairn {

enum class ObjectKind : uint8_t { kRaw = 0, kTorch = 1, kSafetensors = 2, kNumpy = 3 };
absl::string_view ObjectKindName(ObjectKind kind);  // "raw", "torch", "safetensors", "numpy"
StatusOr<ObjectKind> ParseObjectKind(absl::string_view name);

struct ObjectEntry {
  std::string name;
  ObjectKind kind = ObjectKind::kRaw;
  uint64_t length = 0;
  uint32_t block_bytes = kBlockBytes;
  // CRC32C per block, ceil(length / block_bytes) of them; the last block may be short.
  std::vector<uint32_t> block_crcs;
  std::string unknown = {};  // encoded fields this build does not know

  bool operator==(const ObjectEntry&) const = default;
};

struct Manifest {
  std::string job;
  uint32_t owner_uid = 0;
  Step step = 0;
  Attempt attempt = 0;
  Revision revision = 0;
  Writer writer = 0;
  int32_t world_size = 1;
  int64_t created_unix_ms = 0;
  // Of the attempt: its first step, kNoStep when that is not known, and where it comes from, as far as
  // that was known at the time. What writer 0's manifests say counts.
  Step first = kNoStep;
  Lineage lineage;
  std::map<std::string, std::string> notes;  // given by the user
  std::vector<ObjectEntry> objects;          // sorted by name
  std::string unknown;                       // encoded fields this build does not know

  CheckpointKey Checkpoint() const { return {job, step, attempt, revision}; }
  PartKey Part() const { return {Checkpoint(), writer}; }
  uint64_t TotalBytes() const;
  const ObjectEntry* Find(absl::string_view name) const;  // nullptr when absent
  bool operator==(const Manifest&) const = default;
};

inline constexpr uint32_t kMaxManifestBytes = 1u << 30;

std::string EncodeManifest(const Manifest& manifest);
// The same, of a manifest whose objects are elsewhere.
std::string EncodeManifest(const Manifest& head, std::vector<const ObjectEntry*> objects);
// The exact size of EncodeManifest(manifest), whatever the order of its objects. It allocates
// nothing and takes a time that grows with the number of objects and notes, never with their bytes
// or checksums.
size_t EncodedManifestSize(const Manifest& manifest);
// What one more object adds to it.
size_t EncodedObjectSize(const ObjectEntry& object);
// DATA_LOSS for a bad magic, CRC or structure; UNIMPLEMENTED for a newer format. A decoded manifest
// has passed every check of keys.h. Its names are unique, none is a directory of another, and each
// list of CRCs is as long as the object's length asks for.
StatusOr<Manifest> DecodeManifest(absl::string_view bytes);

// First 16 bytes of SHA-256 over the encoded manifest, in hex.
inline constexpr size_t kDigestLength = 32;
std::string ManifestDigest(absl::string_view encoded);
// The digest of a complete checkpoint: SHA-256 over its writers' digests in writer order, as above.
std::string CheckpointDigest(const std::vector<absl::string_view>& manifest_digests);

}  // namespace cairn
