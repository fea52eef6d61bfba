#include "common/manifest.h"

#include <openssl/evp.h>

#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "common/checksum.h"
#include "common/codec.h"

namespace cairn {
namespace {

constexpr absl::string_view kMagic("CAIRNMF\x01", 8);
constexpr uint32_t kFormatVersion = 1;
constexpr size_t kHeaderBytes = 16;
constexpr size_t kTrailerBytes = 4;
constexpr uint32_t kMaxBlockBytes = 1u << 30;

// Tags are never reused. A build knows the tags up to its kLast…; fields with greater tags were
// written by a later build and are kept as they are.
enum ManifestTag : uint16_t {
  kJob = 1,
  kOwnerUid = 2,
  kStep = 3,
  kAttempt = 4,
  kRevision = 5,
  kWriter = 6,
  kWorldSize = 7,
  kCreated = 8,
  kRetired = 9,  // a step without its attempt; no release wrote it
  kNote = 10,    // repeated: u32 length of the key, key, value
  kObject = 11,  // repeated: nested fields
  kFirst = 12,
  kLineage = 13,
  kLastManifestTag = kLineage,
};
enum ObjectTag : uint16_t {
  kName = 1,
  kKind = 2,
  kLength = 3,
  kBlockBytesTag = 4,
  kBlockCrcs = 5,  // u32 each
  kLastObjectTag = kBlockCrcs,
};

bool Repeats(uint16_t tag) { return tag == kNote || tag == kObject; }

// The encoding is written once, for either of two sinks: one counts the bytes, the other keeps
// them. So the size is exact, and known without an allocation or a look at any checksum.
class CountingSink {
 public:
  template <typename T>
  void Integer(T) {
    size_ += sizeof(T);
  }
  void Bytes(absl::string_view bytes) { size_ += bytes.size(); }
  void Integers(const std::vector<uint32_t>& values) { size_ += sizeof(uint32_t) * values.size(); }

  void Of(const Lineage& lineage) { size_ += EncodedLineageSize(lineage); }

  size_t size() const { return size_; }

 private:
  size_t size_ = 0;
};

class BufferSink {
 public:
  explicit BufferSink(std::string* out) : out_(out) {}

  template <typename T>
  void Integer(T value) {
    AppendInteger<T>(out_, value);
  }
  void Bytes(absl::string_view bytes) { out_->append(bytes.data(), bytes.size()); }
  void Integers(const std::vector<uint32_t>& values) {
    for (uint32_t value : values) AppendInteger<uint32_t>(out_, value);
  }
  void Of(const Lineage& lineage) { *out_ += EncodeLineage(lineage); }

 private:
  std::string* const out_;
};

template <typename Sink>
void WriteFieldHeader(uint16_t tag, size_t length, Sink* sink) {
  sink->template Integer<uint16_t>(tag);
  sink->template Integer<uint16_t>(0);
  sink->template Integer<uint32_t>(static_cast<uint32_t>(length));
}

template <typename Sink>
void WriteField(uint16_t tag, absl::string_view value, Sink* sink) {
  WriteFieldHeader(tag, value.size(), sink);
  sink->Bytes(value);
}

template <typename T, typename Sink>
void WriteIntegerField(uint16_t tag, T value, Sink* sink) {
  WriteFieldHeader(tag, sizeof(T), sink);
  sink->template Integer<T>(value);
}

template <typename Sink>
void WriteNote(const std::string& key, const std::string& value, Sink* sink) {
  WriteFieldHeader(kNote, sizeof(uint32_t) + key.size() + value.size(), sink);
  sink->template Integer<uint32_t>(static_cast<uint32_t>(key.size()));
  sink->Bytes(key);
  sink->Bytes(value);
}

template <typename Sink>
void WriteObjectFields(const ObjectEntry& object, Sink* sink) {
  WriteField(kName, object.name, sink);
  WriteIntegerField<uint8_t>(kKind, static_cast<uint8_t>(object.kind), sink);
  WriteIntegerField<uint64_t>(kLength, object.length, sink);
  WriteIntegerField<uint32_t>(kBlockBytesTag, object.block_bytes, sink);
  WriteFieldHeader(kBlockCrcs, sizeof(uint32_t) * object.block_crcs.size(), sink);
  sink->Integers(object.block_crcs);
  sink->Bytes(object.unknown);
}

template <typename Sink>
void WriteObject(const ObjectEntry& object, Sink* sink) {
  CountingSink nested;
  WriteObjectFields(object, &nested);
  WriteFieldHeader(kObject, nested.size(), sink);
  WriteObjectFields(object, sink);
}

// The body's fields that stand before the objects.
template <typename Sink>
void WriteHead(const Manifest& manifest, Sink* sink) {
  WriteField(kJob, manifest.job, sink);
  WriteIntegerField<uint32_t>(kOwnerUid, manifest.owner_uid, sink);
  WriteIntegerField<int64_t>(kStep, manifest.step, sink);
  WriteIntegerField<int64_t>(kAttempt, manifest.attempt, sink);
  WriteIntegerField<int32_t>(kRevision, manifest.revision, sink);
  WriteIntegerField<int32_t>(kWriter, manifest.writer, sink);
  WriteIntegerField<int32_t>(kWorldSize, manifest.world_size, sink);
  WriteIntegerField<int64_t>(kCreated, manifest.created_unix_ms, sink);
  for (const auto& [key, value] : manifest.notes) WriteNote(key, value, sink);
}

// Those that stand after them.
template <typename Sink>
void WriteTail(const Manifest& manifest, Sink* sink) {
  WriteIntegerField<int64_t>(kFirst, manifest.first, sink);
  WriteFieldHeader(kLineage, EncodedLineageSize(manifest.lineage), sink);
  sink->Of(manifest.lineage);
  sink->Bytes(manifest.unknown);
}

Status Bad(absl::string_view what) { return absl::DataLossError(absl::StrCat("manifest: ", what)); }

struct Field {
  uint16_t tag = 0;
  absl::string_view value;
  absl::string_view whole;  // with its header
};

// Takes the next field. Tags ascend; only those for which `repeats` is true may follow themselves.
Status TakeField(Cursor* cursor, bool (*repeats)(uint16_t), uint16_t* last_tag, Field* field) {
  const absl::string_view before = cursor->rest();
  uint16_t reserved = 0;
  uint32_t length = 0;
  if (!cursor->Take(&field->tag) || !cursor->Take(&reserved) || !cursor->Take(&length) ||
      !cursor->TakeBytes(length, &field->value)) {
    return Bad("a field is cut short");
  }
  field->whole = before.substr(0, before.size() - cursor->left());
  if (reserved != 0) return Bad("a reserved number is not 0");
  if (field->tag == 0 || field->tag < *last_tag ||
      (field->tag == *last_tag && !repeats(field->tag))) {
    return Bad(absl::StrCat("field ", field->tag, " is out of order"));
  }
  *last_tag = field->tag;
  return absl::OkStatus();
}

template <typename T>
Status TakeIntegerField(const Field& field, T* value) {
  if (field.value.size() != sizeof(T)) {
    return Bad(
        absl::StrCat("field ", field.tag, " has ", field.value.size(), " bytes, not ", sizeof(T)));
  }
  *value = ReadInteger<T>(field.value.data());
  return absl::OkStatus();
}

// `seen` and `wanted` are sums of Bit(tag).
Status CheckAllSeen(uint32_t seen, uint32_t wanted) {
  if ((seen & wanted) == wanted) return absl::OkStatus();
  return Bad("a required field is missing");
}

constexpr uint32_t Bit(uint16_t tag) { return uint32_t{1} << tag; }

Status DecodeObject(absl::string_view bytes, ObjectEntry* object) {
  Cursor cursor(bytes);
  uint16_t last_tag = 0;
  uint32_t seen = 0;
  Field field;
  while (cursor.left() > 0) {
    CAIRN_RETURN_IF_ERROR(TakeField(
        &cursor, [](uint16_t tag) { return tag > kLastObjectTag; }, &last_tag, &field));
    if (field.tag <= kLastObjectTag) seen |= Bit(field.tag);
    switch (field.tag) {
      case kName:
        object->name = std::string(field.value);
        break;
      case kKind: {
        uint8_t kind = 0;
        CAIRN_RETURN_IF_ERROR(TakeIntegerField(field, &kind));
        if (kind > static_cast<uint8_t>(ObjectKind::kNumpy)) {
          return Bad(absl::StrCat("kind ", kind, " is unknown"));
        }
        object->kind = static_cast<ObjectKind>(kind);
        break;
      }
      case kLength:
        CAIRN_RETURN_IF_ERROR(TakeIntegerField(field, &object->length));
        break;
      case kBlockBytesTag:
        CAIRN_RETURN_IF_ERROR(TakeIntegerField(field, &object->block_bytes));
        break;
      case kBlockCrcs:
        if (field.value.size() % 4 != 0) return Bad("the checksums are cut short");
        object->block_crcs.reserve(field.value.size() / 4);
        for (size_t i = 0; i < field.value.size(); i += 4) {
          object->block_crcs.push_back(ReadInteger<uint32_t>(field.value.data() + i));
        }
        break;
      default:
        object->unknown.append(field.whole.data(), field.whole.size());
    }
  }
  CAIRN_RETURN_IF_ERROR(CheckAllSeen(
      seen, Bit(kName) | Bit(kKind) | Bit(kLength) | Bit(kBlockBytesTag) | Bit(kBlockCrcs)));
  if (object->length > kMaxObjectBytes) return Bad("a length is above the limit");
  if (object->block_bytes < kPageBytes || object->block_bytes > kMaxBlockBytes ||
      object->block_bytes % kPageBytes != 0) {
    return Bad(absl::StrCat("block size ", object->block_bytes, " is not allowed"));
  }
  if (object->block_crcs.size() != BlockCount(object->length, object->block_bytes)) {
    return Bad("the number of checksums does not fit the length");
  }
  return absl::OkStatus();
}

Status DecodeNote(absl::string_view bytes, std::map<std::string, std::string>* notes) {
  Cursor cursor(bytes);
  uint32_t key_length = 0;
  absl::string_view key;
  if (!cursor.Take(&key_length) || !cursor.TakeBytes(key_length, &key)) {
    return Bad("a note is cut short");
  }
  if (!notes->empty() && notes->rbegin()->first >= key) return Bad("notes are out of order");
  notes->emplace(std::string(key), std::string(cursor.rest()));
  return absl::OkStatus();
}

// The rules of keys.h. No build writes a manifest that breaks one, so such a manifest is damaged.
Status CheckKeys(const Manifest& manifest) {
  const auto as_data_loss = [](const Status& status) {
    return status.ok() ? status : Bad(status.message());
  };
  CAIRN_RETURN_IF_ERROR(as_data_loss(ValidateJob(manifest.job)));
  CAIRN_RETURN_IF_ERROR(as_data_loss(ValidateStep(manifest.step)));
  CAIRN_RETURN_IF_ERROR(as_data_loss(ValidateAttempt(manifest.attempt)));
  CAIRN_RETURN_IF_ERROR(as_data_loss(ValidateWorld(manifest.writer, manifest.world_size)));
  if (manifest.revision < 0) return Bad("revision is below 0");
  if (manifest.first < kNoStep) return Bad("first is below -1");
  if (manifest.lineage.attempt() >= manifest.attempt) {
    return Bad(
        absl::StrCat("attempt ", manifest.attempt, " comes from ", OriginText(manifest.lineage)));
  }
  absl::flat_hash_set<absl::string_view> names;
  names.reserve(manifest.objects.size());
  for (size_t i = 0; i < manifest.objects.size(); ++i) {
    const std::string& name = manifest.objects[i].name;
    CAIRN_RETURN_IF_ERROR(as_data_loss(ValidateObjectName(name)));
    if (i > 0 && manifest.objects[i - 1].name >= name) return Bad("objects are out of order");
    names.insert(name);
  }
  for (const ObjectEntry& object : manifest.objects) {
    if (const auto directory = FindDirectoryOf(object.name, names); directory != names.end()) {
      return Bad(
          absl::StrCat("name: \"", absl::CHexEscape(*directory), "\" is a directory of another"));
    }
  }
  return absl::OkStatus();
}

std::string ShortSha256(absl::string_view bytes) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int length = 0;
  if (EVP_Digest(bytes.data(), bytes.size(), digest, &length, EVP_sha256(), nullptr) != 1) {
    return std::string();  // only when OpenSSL has no memory left; equal to no digest
  }
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(digest), std::min(length, 16u)));
}

}  // namespace

absl::string_view ObjectKindName(ObjectKind kind) {
  switch (kind) {
    case ObjectKind::kRaw:
      return "raw";
    case ObjectKind::kTorch:
      return "torch";
    case ObjectKind::kSafetensors:
      return "safetensors";
    case ObjectKind::kNumpy:
      return "numpy";
  }
  return "unknown";
}

StatusOr<ObjectKind> ParseObjectKind(absl::string_view name) {
  for (ObjectKind kind :
       {ObjectKind::kRaw, ObjectKind::kTorch, ObjectKind::kSafetensors, ObjectKind::kNumpy}) {
    if (name == ObjectKindName(kind)) return kind;
  }
  return absl::InvalidArgumentError(absl::StrCat("kind: \"", absl::CHexEscape(name),
                                                 "\" is not raw, torch, safetensors or numpy"));
}

uint64_t Manifest::TotalBytes() const {
  uint64_t total = 0;
  for (const ObjectEntry& object : objects) total += object.length;
  return total;
}

const ObjectEntry* Manifest::Find(absl::string_view name) const {
  const auto at = std::lower_bound(
      objects.begin(), objects.end(), name,
      [](const ObjectEntry& object, absl::string_view wanted) { return object.name < wanted; });
  return at != objects.end() && at->name == name ? &*at : nullptr;
}

size_t EncodedObjectSize(const ObjectEntry& object) {
  CountingSink size;
  WriteObject(object, &size);
  return size.size();
}

size_t EncodedManifestSize(const Manifest& manifest) {
  CountingSink body;
  WriteHead(manifest, &body);
  WriteTail(manifest, &body);
  size_t size = kHeaderBytes + body.size() + kTrailerBytes;
  for (const ObjectEntry& object : manifest.objects) size += EncodedObjectSize(object);
  return size;
}

std::string EncodeManifest(const Manifest& manifest) {
  std::vector<const ObjectEntry*> objects;
  objects.reserve(manifest.objects.size());
  for (const ObjectEntry& object : manifest.objects) objects.push_back(&object);
  return EncodeManifest(manifest, std::move(objects));
}

std::string EncodeManifest(const Manifest& head, std::vector<const ObjectEntry*> objects) {
  // Callers may hold objects in the order they were created in; the bytes never show it.
  std::sort(objects.begin(), objects.end(),
            [](const ObjectEntry* a, const ObjectEntry* b) { return a->name < b->name; });
  CountingSink body;
  WriteHead(head, &body);
  WriteTail(head, &body);
  size_t body_bytes = body.size();
  for (const ObjectEntry* object : objects) body_bytes += EncodedObjectSize(*object);

  std::string out;
  out.reserve(kHeaderBytes + body_bytes + kTrailerBytes);
  BufferSink sink(&out);
  sink.Bytes(kMagic);
  sink.Integer<uint32_t>(kFormatVersion);
  sink.Integer<uint32_t>(static_cast<uint32_t>(body_bytes));
  WriteHead(head, &sink);
  for (const ObjectEntry* object : objects) WriteObject(*object, &sink);
  WriteTail(head, &sink);
  sink.Integer<uint32_t>(Crc32c(0, out.data(), out.size()));
  return out;
}

// One function: the format from its first byte to its last, each field checked where it is read.
StatusOr<Manifest> DecodeManifest(absl::string_view bytes) {
  if (bytes.size() < kHeaderBytes + kTrailerBytes) return Bad("is cut short");
  if (bytes.size() > kMaxManifestBytes) return Bad("is longer than any manifest");
  if (bytes.substr(0, kMagic.size()) != kMagic) return Bad("the magic is wrong");
  const size_t end = bytes.size() - kTrailerBytes;
  if (ReadInteger<uint32_t>(bytes.data() + end) != Crc32c(0, bytes.data(), end)) {
    return Bad("the checksum does not fit");
  }
  const uint32_t version = ReadInteger<uint32_t>(bytes.data() + 8);
  if (version > kFormatVersion) {
    return absl::UnimplementedError(
        absl::StrCat("manifest: format ", version, " is newer than this build's ", kFormatVersion));
  }
  if (version == 0) return Bad("the format is 0");
  if (ReadInteger<uint32_t>(bytes.data() + 12) != end - kHeaderBytes) {
    return Bad("the length does not fit");
  }

  Manifest manifest;
  Cursor cursor(bytes.substr(kHeaderBytes, end - kHeaderBytes));
  uint16_t last_tag = 0;
  uint32_t seen = 0;
  Field field;
  while (cursor.left() > 0) {
    CAIRN_RETURN_IF_ERROR(TakeField(
        &cursor, [](uint16_t tag) { return Repeats(tag) || tag > kLastManifestTag; }, &last_tag,
        &field));
    if (field.tag <= kLastManifestTag) seen |= Bit(field.tag);
    switch (field.tag) {
      case kJob:
        manifest.job = std::string(field.value);
        break;
      case kOwnerUid:
        CAIRN_RETURN_IF_ERROR(TakeIntegerField(field, &manifest.owner_uid));
        break;
      case kStep:
        CAIRN_RETURN_IF_ERROR(TakeIntegerField(field, &manifest.step));
        break;
      case kAttempt:
        CAIRN_RETURN_IF_ERROR(TakeIntegerField(field, &manifest.attempt));
        break;
      case kRevision:
        CAIRN_RETURN_IF_ERROR(TakeIntegerField(field, &manifest.revision));
        break;
      case kWriter:
        CAIRN_RETURN_IF_ERROR(TakeIntegerField(field, &manifest.writer));
        break;
      case kWorldSize:
        CAIRN_RETURN_IF_ERROR(TakeIntegerField(field, &manifest.world_size));
        break;
      case kCreated:
        CAIRN_RETURN_IF_ERROR(TakeIntegerField(field, &manifest.created_unix_ms));
        break;
      case kRetired:
        return Bad("field 9 names a step without its attempt");
      case kNote:
        CAIRN_RETURN_IF_ERROR(DecodeNote(field.value, &manifest.notes));
        break;
      case kObject:
        CAIRN_RETURN_IF_ERROR(DecodeObject(field.value, &manifest.objects.emplace_back()));
        break;
      case kFirst:
        CAIRN_RETURN_IF_ERROR(TakeIntegerField(field, &manifest.first));
        break;
      case kLineage: {
        StatusOr<Lineage> lineage = DecodeLineage(field.value);
        if (!lineage.ok()) return Bad(lineage.status().message());
        manifest.lineage = *std::move(lineage);
        break;
      }
      default:
        manifest.unknown.append(field.whole.data(), field.whole.size());
    }
  }
  CAIRN_RETURN_IF_ERROR(CheckAllSeen(seen, Bit(kJob) | Bit(kOwnerUid) | Bit(kStep) | Bit(kAttempt) |
                                               Bit(kRevision) | Bit(kWriter) | Bit(kWorldSize) |
                                               Bit(kCreated) | Bit(kFirst) | Bit(kLineage)));
  CAIRN_RETURN_IF_ERROR(CheckKeys(manifest));
  return manifest;
}

std::string ManifestDigest(absl::string_view encoded) { return ShortSha256(encoded); }

std::string CheckpointDigest(const std::vector<absl::string_view>& manifest_digests) {
  std::string all;
  for (const absl::string_view digest : manifest_digests) absl::StrAppend(&all, digest);
  return ShortSha256(all);
}

}  // namespace cairn
