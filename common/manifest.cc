// One file: the format from its first byte to its last, as it is written and as it is read.
#include "common/manifest.h"

#include <openssl/evp.h>

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "common/checksum.h"
#include "common/codec.h"

namespace cairn {
namespace {

constexpr absl::string_view kMagic("CAIRNMF\x01", 8);
constexpr uint32_t kFormatVersion = 1;
constexpr size_t kHeaderBytes = 16;
constexpr size_t kTrailerBytes = 4;
constexpr size_t kFieldHeaderBytes = 8;
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

bool Repeats(uint16_t tag) { return tag == kNote || tag == kObject || tag > kLastManifestTag; }

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

Status BadManifest(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("manifest: ", what));
}

struct Field {
  uint16_t tag = 0;
  absl::string_view value;
  absl::string_view whole;  // with its header
};

// A field's header, after one of `last_tag`. Tags ascend; only those for which `repeats` is true may
// follow themselves.
Status ReadFieldHeader(absl::string_view header, bool (*repeats)(uint16_t), uint16_t last_tag,
                       uint16_t* tag, uint32_t* length) {
  *tag = ReadInteger<uint16_t>(header.data());
  *length = ReadInteger<uint32_t>(header.data() + 4);
  if (ReadInteger<uint16_t>(header.data() + 2) != 0)
    return BadManifest("a reserved number is not 0");
  if (*tag == 0 || *tag < last_tag || (*tag == last_tag && !repeats(*tag))) {
    return BadManifest(absl::StrCat("field ", *tag, " is out of order"));
  }
  return absl::OkStatus();
}

Status TakeField(Cursor* cursor, bool (*repeats)(uint16_t), uint16_t* last_tag, Field* field) {
  const absl::string_view before = cursor->rest();
  absl::string_view header;
  uint32_t length = 0;
  if (!cursor->TakeBytes(kFieldHeaderBytes, &header)) return BadManifest("a field is cut short");
  CAIRN_RETURN_IF_ERROR(ReadFieldHeader(header, repeats, *last_tag, &field->tag, &length));
  if (!cursor->TakeBytes(length, &field->value)) return BadManifest("a field is cut short");
  field->whole = before.substr(0, before.size() - cursor->left());
  *last_tag = field->tag;
  return absl::OkStatus();
}

template <typename T>
Status TakeIntegerField(const Field& field, T* value) {
  if (field.value.size() != sizeof(T)) {
    return BadManifest(
        absl::StrCat("field ", field.tag, " has ", field.value.size(), " bytes, not ", sizeof(T)));
  }
  *value = ReadInteger<T>(field.value.data());
  return absl::OkStatus();
}

// `seen` and `wanted` are sums of Bit(tag).
Status CheckAllSeen(uint32_t seen, uint32_t wanted) {
  if ((seen & wanted) == wanted) return absl::OkStatus();
  return BadManifest("a required field is missing");
}

constexpr uint32_t Bit(uint16_t tag) { return uint32_t{1} << tag; }

// kSummary: neither its checksums nor what this build does not know are kept.
Status DecodeObject(absl::string_view bytes, ManifestDetail detail, ObjectEntry* object) {
  Cursor cursor(bytes);
  uint16_t last_tag = 0;
  uint32_t seen = 0;
  uint64_t checksums = 0;
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
          return BadManifest(absl::StrCat("kind ", kind, " is unknown"));
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
        if (field.value.size() % 4 != 0) return BadManifest("the checksums are cut short");
        checksums = field.value.size() / 4;
        if (detail == ManifestDetail::kSummary) break;
        object->block_crcs.reserve(checksums);
        for (size_t i = 0; i < field.value.size(); i += 4) {
          object->block_crcs.push_back(ReadInteger<uint32_t>(field.value.data() + i));
        }
        break;
      default:
        if (detail == ManifestDetail::kSummary) break;
        object->unknown.append(field.whole.data(), field.whole.size());
    }
  }
  CAIRN_RETURN_IF_ERROR(CheckAllSeen(
      seen, Bit(kName) | Bit(kKind) | Bit(kLength) | Bit(kBlockBytesTag) | Bit(kBlockCrcs)));
  if (object->length > kMaxObjectBytes) return BadManifest("a length is above the limit");
  if (object->block_bytes < kPageBytes || object->block_bytes > kMaxBlockBytes ||
      object->block_bytes % kPageBytes != 0) {
    return BadManifest(absl::StrCat("block size ", object->block_bytes, " is not allowed"));
  }
  if (checksums != BlockCount(object->length, object->block_bytes)) {
    return BadManifest("the number of checksums does not fit the length");
  }
  return absl::OkStatus();
}

// Splits a note; its key must be greater than the one before it.
Status DecodeNote(absl::string_view bytes, const std::optional<std::string>& last,
                  absl::string_view* key, absl::string_view* value) {
  Cursor cursor(bytes);
  uint32_t key_length = 0;
  if (!cursor.Take(&key_length) || !cursor.TakeBytes(key_length, key)) {
    return BadManifest("a note is cut short");
  }
  if (last.has_value() && *last >= *key) return BadManifest("notes are out of order");
  *value = cursor.rest();
  return absl::OkStatus();
}

Status AsDataLoss(const Status& status) {
  return status.ok() ? status : BadManifest(status.message());
}

// The rules of keys.h, but for those of names. No build writes a manifest that breaks one, so such a
// manifest is damaged.
Status CheckHead(const Manifest& manifest) {
  CAIRN_RETURN_IF_ERROR(AsDataLoss(ValidateJob(manifest.job)));
  CAIRN_RETURN_IF_ERROR(AsDataLoss(ValidateStep(manifest.step)));
  CAIRN_RETURN_IF_ERROR(AsDataLoss(ValidateAttempt(manifest.attempt)));
  CAIRN_RETURN_IF_ERROR(AsDataLoss(ValidateWorld(manifest.writer, manifest.world_size)));
  if (manifest.revision < 0) return BadManifest("revision is below 0");
  if (manifest.first < kNoStep) return BadManifest("first is below -1");
  if (manifest.lineage.attempt() >= manifest.attempt) {
    return BadManifest(
        absl::StrCat("attempt ", manifest.attempt, " comes from ", OriginText(manifest.lineage)));
  }
  return absl::OkStatus();
}

// Those of names: `line` has the name before this one, and those of its predecessors that it begins
// with. In byte order a directory's name stays there until the last name below it has come.
Status TakeName(const std::string& name, std::vector<std::string>* line) {
  CAIRN_RETURN_IF_ERROR(AsDataLoss(ValidateObjectName(name)));
  if (!line->empty() && line->back() >= name) return BadManifest("objects are out of order");
  while (!line->empty() && !absl::StartsWith(name, line->back())) line->pop_back();
  for (const std::string& prefix : *line) {
    if (name[prefix.size()] == '/') {
      return BadManifest(
          absl::StrCat("name: \"", absl::CHexEscape(prefix), "\" is a directory of another"));
    }
  }
  line->push_back(name);
  return absl::OkStatus();
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

Status ValidateNotes(const std::map<std::string, std::string>& notes) {
  constexpr uint64_t kLengthBytes = 4;  // of the key, before it
  for (const auto& [key, text] : notes) {
    const uint64_t bytes = kLengthBytes + key.size() + text.size();
    if (bytes > kMaxManifestFieldBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("notes: \"", absl::CHexEscape(key.substr(0, 64)), "\" has ", bytes,
                       " bytes with its key, the limit is ", kMaxManifestFieldBytes));
    }
  }
  return absl::OkStatus();
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

StatusOr<Manifest> DecodeManifest(absl::string_view bytes) {
  ManifestDecoder decoder(ManifestDetail::kWhole);
  CAIRN_RETURN_IF_ERROR(decoder.Add(bytes));
  return std::move(decoder).Finish();
}

Status ManifestDecoder::Add(absl::string_view piece) {
  while (!piece.empty()) {
    if (next_ == Next::kNothing) return BadManifest("the length does not fit");
    const size_t n = std::min<uint64_t>(wanted_ - carried_.size(), piece.size());
    const absl::string_view taken = piece.substr(0, n);
    piece.remove_prefix(n);
    if (next_ != Next::kTrailer) crc_ = Crc32c(crc_, taken.data(), n);
    if (next_ == Next::kBodyToSkip) {
      wanted_ -= n;
      if (wanted_ == 0) Expect(Next::kTrailer, kTrailerBytes);
    } else if (carried_.empty() && n == wanted_) {
      CAIRN_RETURN_IF_ERROR(Take(taken));
    } else {
      carried_.append(taken.data(), n);
      if (carried_.size() < wanted_) continue;
      CAIRN_RETURN_IF_ERROR(Take(std::exchange(carried_, {})));
    }
  }
  return absl::OkStatus();
}

StatusOr<Manifest> ManifestDecoder::Finish() && {
  if (next_ != Next::kNothing) return BadManifest("is cut short");
  if (newer_ != 0) {
    return absl::UnimplementedError(
        absl::StrCat("manifest: format ", newer_, " is newer than this build's ", kFormatVersion));
  }
  CAIRN_RETURN_IF_ERROR(CheckAllSeen(
      seen_, Bit(kJob) | Bit(kOwnerUid) | Bit(kStep) | Bit(kAttempt) | Bit(kRevision) |
                 Bit(kWriter) | Bit(kWorldSize) | Bit(kCreated) | Bit(kFirst) | Bit(kLineage)));
  CAIRN_RETURN_IF_ERROR(CheckHead(manifest_));
  return std::move(manifest_);
}

void ManifestDecoder::Expect(Next next, uint64_t bytes) {
  next_ = next;
  wanted_ = bytes;
}

Status ManifestDecoder::Take(absl::string_view item) {
  switch (next_) {
    case Next::kHeader:
      return TakeHeader(item);
    case Next::kFieldHeader:
      return TakeFieldHeader(item);
    case Next::kFieldBody:
      CAIRN_RETURN_IF_ERROR(TakeField(item));
      return ExpectField();
    case Next::kTrailer:
      if (ReadInteger<uint32_t>(item.data()) != crc_)
        return BadManifest("the checksum does not fit");
      Expect(Next::kNothing, 0);
      return absl::OkStatus();
    case Next::kBodyToSkip:
    case Next::kNothing:
      break;
  }
  return absl::InternalError("manifest: the decoder is at no item");
}

Status ManifestDecoder::TakeHeader(absl::string_view header) {
  if (header.substr(0, kMagic.size()) != kMagic) return BadManifest("the magic is wrong");
  const uint32_t version = ReadInteger<uint32_t>(header.data() + 8);
  if (version == 0) return BadManifest("the format is 0");
  body_left_ = ReadInteger<uint32_t>(header.data() + 12);
  total_bytes_ = kHeaderBytes + body_left_ + kTrailerBytes;
  if (total_bytes_ > kMaxManifestBytes) return BadManifest("is longer than any manifest");
  if (version <= kFormatVersion) return ExpectField();
  newer_ = version;
  if (body_left_ == 0) return ExpectField();
  Expect(Next::kBodyToSkip, body_left_);
  return absl::OkStatus();
}

Status ManifestDecoder::ExpectField() {
  if (body_left_ == 0) {
    Expect(Next::kTrailer, kTrailerBytes);
  } else if (body_left_ < kFieldHeaderBytes) {
    return BadManifest("a field is cut short");
  } else {
    Expect(Next::kFieldHeader, kFieldHeaderBytes);
  }
  return absl::OkStatus();
}

Status ManifestDecoder::TakeFieldHeader(absl::string_view header) {
  uint32_t length = 0;
  CAIRN_RETURN_IF_ERROR(ReadFieldHeader(header, Repeats, tag_, &tag_, &length));
  body_left_ -= kFieldHeaderBytes;
  if (length > body_left_) return BadManifest("a field is cut short");
  if (length > kMaxManifestFieldBytes) {
    return absl::UnimplementedError(absl::StrCat("manifest: field ", tag_, " has ", length,
                                                 " bytes, this build reads at most ",
                                                 kMaxManifestFieldBytes));
  }
  body_left_ -= length;
  if (tag_ <= kLastManifestTag) {
    seen_ |= Bit(tag_);
  } else if (detail_ == ManifestDetail::kWhole) {
    manifest_.unknown.append(header.data(), header.size());
  }
  if (length > 0) {
    Expect(Next::kFieldBody, length);
    return absl::OkStatus();
  }
  CAIRN_RETURN_IF_ERROR(TakeField(absl::string_view()));
  return ExpectField();
}

Status ManifestDecoder::TakeField(absl::string_view value) {
  const Field field{tag_, value, value};
  switch (tag_) {
    case kJob:
      manifest_.job = std::string(value);
      return absl::OkStatus();
    case kOwnerUid:
      return TakeIntegerField(field, &manifest_.owner_uid);
    case kStep:
      return TakeIntegerField(field, &manifest_.step);
    case kAttempt:
      return TakeIntegerField(field, &manifest_.attempt);
    case kRevision:
      return TakeIntegerField(field, &manifest_.revision);
    case kWriter:
      return TakeIntegerField(field, &manifest_.writer);
    case kWorldSize:
      return TakeIntegerField(field, &manifest_.world_size);
    case kCreated:
      return TakeIntegerField(field, &manifest_.created_unix_ms);
    case kRetired:
      return BadManifest("field 9 names a step without its attempt");
    case kNote: {
      absl::string_view key, text;
      CAIRN_RETURN_IF_ERROR(DecodeNote(value, last_note_, &key, &text));
      last_note_ = std::string(key);
      if (detail_ == ManifestDetail::kWhole) manifest_.notes.emplace(key, text);
      return absl::OkStatus();
    }
    case kObject:
      return TakeObject(value);
    case kFirst:
      return TakeIntegerField(field, &manifest_.first);
    case kLineage: {
      StatusOr<Lineage> lineage = DecodeLineage(value);
      if (!lineage.ok()) return BadManifest(lineage.status().message());
      manifest_.lineage = *std::move(lineage);
      return absl::OkStatus();
    }
    default:
      if (detail_ == ManifestDetail::kWhole) manifest_.unknown.append(value.data(), value.size());
      return absl::OkStatus();
  }
}

Status ManifestDecoder::TakeObject(absl::string_view value) {
  ObjectEntry object;
  CAIRN_RETURN_IF_ERROR(DecodeObject(value, detail_, &object));
  CAIRN_RETURN_IF_ERROR(TakeName(object.name, &names_));
  if (each_object_) each_object_(object);
  ++objects_;
  object_bytes_ += object.length;
  if (detail_ == ManifestDetail::kWhole) manifest_.objects.push_back(std::move(object));
  return absl::OkStatus();
}

namespace {

// EVP_sha256() is looked up among the providers for each digest, which takes longer than that of a few manifests'
// digests. What is fetched once stays until the process ends.
const EVP_MD* Sha256() {
  static const EVP_MD* const fetched = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  return fetched != nullptr ? fetched : EVP_sha256();
}

}  // namespace

ManifestDigester::ManifestDigester() : context_(EVP_MD_CTX_new()) {
  if (EVP_DigestInit_ex(context_, Sha256(), nullptr) == 1) return;
  EVP_MD_CTX_free(context_);
  context_ = nullptr;
}

ManifestDigester::~ManifestDigester() { EVP_MD_CTX_free(context_); }

void ManifestDigester::Add(absl::string_view piece) {
  if (context_ != nullptr) EVP_DigestUpdate(context_, piece.data(), piece.size());
}

std::string ManifestDigester::Finish() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int length = 0;
  if (context_ == nullptr || EVP_DigestFinal_ex(context_, digest, &length) != 1) {
    return std::string();  // equal to no digest
  }
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(digest), std::min(length, 16u)));
}

std::string ManifestDigest(absl::string_view encoded) {
  ManifestDigester digester;
  digester.Add(encoded);
  return digester.Finish();
}

std::string CheckpointDigest(const std::vector<absl::string_view>& manifest_digests) {
  std::string all;
  for (const absl::string_view digest : manifest_digests) absl::StrAppend(&all, digest);
  return ManifestDigest(all);
}

}  // namespace cairn
