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
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/keys.h"
#include "common/lineage.h"
#include "common/status.h"

struct evp_md_ctx_st;

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
// Of one field: the checksums of the longest object (kMaxObjectBytes) in blocks of 4 MiB, and its name; or
// a note.
inline constexpr uint32_t kMaxManifestFieldBytes = 16u << 20;
// INVALID_ARGUMENT when a note is longer than any that a manifest may have.
Status ValidateNotes(const std::map<std::string, std::string>& notes);

std::string EncodeManifest(const Manifest& manifest);
// The same, of a manifest whose objects are elsewhere.
std::string EncodeManifest(const Manifest& head, std::vector<const ObjectEntry*> objects);
// The exact size of EncodeManifest(manifest), whatever the order of its objects. It allocates
// nothing and takes a time that grows with the number of objects and notes, never with their bytes
// or checksums.
size_t EncodedManifestSize(const Manifest& manifest);
// What one more object adds to it.
size_t EncodedObjectSize(const ObjectEntry& object);
// DATA_LOSS for a bad magic, CRC or structure; UNIMPLEMENTED for a newer format, and for a field that is
// longer than this build reads. A decoded manifest
// has passed every check of keys.h. Its names are unique, none is a directory of another, and each
// list of CRCs is as long as the object's length asks for.
StatusOr<Manifest> DecodeManifest(absl::string_view bytes);

// kSummary: without objects, notes and what this build does not know; the memory that it takes does
// not grow with their number.
enum class ManifestDetail { kWhole, kSummary };

// The same from pieces of any length, in order. All is checked as in DecodeManifest, each field as
// soon as it is whole: a manifest that says nonsense is refused before the rest of it is read. After
// an error it takes no more.
class ManifestDecoder {
 public:
  // `each_object` hears of each object once it has been checked; in a summary without its checksums.
  explicit ManifestDecoder(ManifestDetail detail,
                           std::function<void(const ObjectEntry&)> each_object = nullptr)
      : detail_(detail), each_object_(std::move(each_object)) {}

  Status Add(absl::string_view piece);
  // How long the whole is, from its header; 0 before that has been added.
  uint64_t total_bytes() const { return total_bytes_; }
  StatusOr<Manifest> Finish() &&;
  uint64_t objects() const { return objects_; }
  uint64_t object_bytes() const { return object_bytes_; }  // the sum of their lengths

 private:
  enum class Next { kHeader, kFieldHeader, kFieldBody, kBodyToSkip, kTrailer, kNothing };
  // One item: the header, a field's header or body, the trailer.
  Status Take(absl::string_view item);
  Status TakeHeader(absl::string_view header);
  Status TakeFieldHeader(absl::string_view header);
  Status TakeField(absl::string_view value);
  Status TakeObject(absl::string_view value);
  void Expect(Next next, uint64_t bytes);
  Status ExpectField();

  const ManifestDetail detail_;
  const std::function<void(const ObjectEntry&)> each_object_;
  Manifest manifest_;
  uint64_t objects_ = 0, object_bytes_ = 0, total_bytes_ = 0;
  uint64_t body_left_ = 0;
  Next next_ = Next::kHeader;
  uint64_t wanted_ = 16;  // bytes of the next item
  std::string carried_;   // of that item, when a piece ended within it
  uint16_t tag_ = 0;      // of the field whose header came last
  uint32_t seen_ = 0;
  uint32_t crc_ = 0;
  uint32_t newer_ = 0;  // the format, where this build does not know it
  std::optional<std::string> last_note_;
  std::vector<std::string> names_;  // manifest.cc, TakeName
};

// First 16 bytes of SHA-256 over the encoded manifest, in hex.
inline constexpr size_t kDigestLength = 32;
std::string ManifestDigest(absl::string_view encoded);
// The same from pieces, in order.
class ManifestDigester {
 public:
  ManifestDigester();
  ~ManifestDigester();
  ManifestDigester(const ManifestDigester&) = delete;
  ManifestDigester& operator=(const ManifestDigester&) = delete;
  void Add(absl::string_view piece);
  std::string Finish();

 private:
  evp_md_ctx_st* context_;  // null: OpenSSL has no memory left
};
// The digest of a complete checkpoint: SHA-256 over its writers' digests in writer order, as above.
std::string CheckpointDigest(const std::vector<absl::string_view>& manifest_digests);

}  // namespace cairn
