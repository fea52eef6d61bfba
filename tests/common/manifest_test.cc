#include "common/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "common/checksum.h"
#include "common/codec.h"
#include "tests/golden/golden.h"

namespace cairn {
namespace {

using ::testing::HasSubstr;

ObjectEntry Object(const std::string& name, uint64_t length) {
  ObjectEntry object;
  object.name = name;
  object.kind = ObjectKind::kTorch;
  object.length = length;
  for (uint64_t i = 0; i < BlockCount(length, object.block_bytes); ++i) {
    object.block_crcs.push_back(static_cast<uint32_t>(0x9E3779B9u * (i + 1)));
  }
  return object;
}

Manifest Sample() {
  Manifest manifest;
  manifest.job = "train-7b";
  manifest.owner_uid = 1000;
  manifest.step = 42;
  manifest.attempt = 1'700'000'000'123;
  manifest.revision = 2;
  manifest.writer = 3;
  manifest.world_size = 8;
  manifest.created_unix_ms = 1'700'000'001'000;
  manifest.first = 41;
  manifest.lineage = {{{1'600'000'000'000, 40}, {7, 12}}, /*open=*/true};
  manifest.notes = {{"", "empty key"}, {"loss", "0.5"}, {"nul", std::string("a\0b", 3)}};
  manifest.objects = {Object("empty", 0), Object("model-x", 9 << 20), Object("model.pt", 1),
                      Object("optim/a", kBlockBytes), Object("optim/b", kBlockBytes + 1)};
  return manifest;
}

// `edit` on the bytes, then a checksum that fits again: what a buggy or hostile encoder could
// write.
std::string Forged(std::string bytes, const std::function<void(std::string*)>& edit) {
  bytes.resize(bytes.size() - 4);
  edit(&bytes);
  std::string length;
  AppendInteger<uint32_t>(&length, static_cast<uint32_t>(bytes.size() - 16));
  bytes.replace(12, 4, length);
  AppendInteger<uint32_t>(&bytes, Crc32c(0, bytes.data(), bytes.size()));
  return bytes;
}

std::string RawField(uint16_t tag, absl::string_view value) {
  std::string out;
  AppendInteger<uint16_t>(&out, tag);
  AppendInteger<uint16_t>(&out, 0);
  AppendInteger<uint32_t>(&out, static_cast<uint32_t>(value.size()));
  out.append(value.data(), value.size());
  return out;
}

void ExpectDamaged(const Manifest& manifest, absl::string_view why) {
  const auto decoded = DecodeManifest(EncodeManifest(manifest));
  EXPECT_EQ(decoded.status().code(), absl::StatusCode::kDataLoss) << why;
  EXPECT_THAT(std::string(decoded.status().message()), HasSubstr(std::string(why)));
}

TEST(ManifestCodec, WhatIsEncodedIsDecoded) {
  const Manifest manifest = Sample();
  const auto decoded = DecodeManifest(EncodeManifest(manifest));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(*decoded, manifest);
  EXPECT_EQ(decoded->TotalBytes(), (9u << 20) + 1 + 2 * kBlockBytes + 1);
}

TEST(ManifestCodec, AWriterWithNothingToSaveHasAnEmptyManifest) {
  Manifest manifest = Sample();
  manifest.objects.clear();
  manifest.notes.clear();
  const auto decoded = DecodeManifest(EncodeManifest(manifest));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(*decoded, manifest);
}

TEST(ManifestCodec, EqualManifestsAreEqualBytesWhateverTheOrderOfCreation) {
  Manifest shuffled = Sample();
  std::swap(shuffled.objects.front(), shuffled.objects.back());
  EXPECT_EQ(EncodeManifest(shuffled), EncodeManifest(Sample()));
}

// Whatever may stand in a manifest, valid or not: the size is about bytes, never about rules.
Manifest RandomManifest(std::mt19937* random) {
  const auto below = [random](uint32_t limit) { return (*random)() % limit; };
  const auto text = [&](uint32_t limit) {
    return std::string(below(limit), static_cast<char>(below(256)));
  };
  Manifest manifest;
  manifest.job = text(40);
  manifest.step = below(1000);
  manifest.attempt = 1 + below(1000);
  for (uint32_t notes = below(4); notes > 0; --notes) manifest.notes[text(300)] = text(70'000);
  for (uint32_t objects = below(6); objects > 0; --objects) {
    ObjectEntry object = Object(text(200), uint64_t{below(200)} << 20);
    if (below(3) == 0) object.unknown = RawField(7, text(100));
    manifest.objects.push_back(object);
  }
  if (below(3) == 0) manifest.unknown = RawField(100, text(1000));
  return manifest;
}

TEST(ManifestCodec, TheSizeIsKnownBeforeTheBytesAre) {
  EXPECT_EQ(EncodedManifestSize(Manifest()), EncodeManifest(Manifest()).size());
  EXPECT_EQ(EncodedManifestSize(Sample()), EncodeManifest(Sample()).size());
  std::mt19937 random(1);
  for (int round = 0; round < 500; ++round) {
    const Manifest manifest = RandomManifest(&random);
    ASSERT_EQ(EncodedManifestSize(manifest), EncodeManifest(manifest).size()) << "round " << round;
  }
}

TEST(ManifestCodec, TheBytesOfVersionOneDoNotChange) {
  Manifest manifest;
  manifest.job = "j";
  manifest.attempt = 1;
  manifest.objects = {Object("a", 1)};
  EXPECT_EQ(ManifestDigest(EncodeManifest(manifest)), "f07f83e32640c9a344371c96d6772997");
}

TEST(ManifestCodec, ManifestsAreWhatTheirGoldenFilesSay) {
  Manifest nothing = Sample();
  nothing.objects.clear();
  nothing.notes.clear();
  Manifest two_objects = Sample();
  two_objects.objects = {Object("model.pt", kBlockBytes + 1), Object("rng", 16)};
  two_objects.objects[1].kind = ObjectKind::kRaw;
  two_objects.objects[1].unknown = RawField(7, "codec=zstd");
  two_objects.unknown = RawField(100, "from tomorrow");
  const auto expect_golden = [](const std::string& name, const Manifest& manifest) {
    const auto decoded = DecodeManifest(Golden("manifest/" + name, EncodeManifest(manifest)));
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(*decoded, manifest) << name;
  };
  expect_golden("nothing.v1", nothing);
  expect_golden("two_objects.v1", two_objects);
  ExpectGoldenFilesAre("manifest", {"nothing.v1", "two_objects.v1"});
}

TEST(ManifestCodec, FieldsOfALaterBuildSurvive) {
  const std::string later =
      RawField(100, "from tomorrow") + RawField(100, "twice") + RawField(65535, "");
  Manifest manifest = Sample();
  manifest.unknown = later;
  manifest.objects[1].unknown = RawField(7, "codec=zstd");
  const std::string encoded = EncodeManifest(manifest);
  const auto decoded = DecodeManifest(encoded);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(*decoded, manifest);
  EXPECT_EQ(EncodeManifest(*decoded), encoded);
}

TEST(ManifestCodec, ANewerFormatIsRefusedAsUnimplemented) {
  const std::string bytes = Forged(EncodeManifest(Sample()), [](std::string* b) { (*b)[8] = 2; });
  const Status status = DecodeManifest(bytes).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("format 2 is newer than this build's 1"));
}

// R23, promise 2.
TEST(ManifestCodec, EveryFlippedBitIsFound) {
  const std::string bytes = EncodeManifest(Sample());
  for (size_t i = 0; i < bytes.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string flipped = bytes;
      flipped[i] = static_cast<char>(flipped[i] ^ (1 << bit));
      ASSERT_EQ(DecodeManifest(flipped).status().code(), absl::StatusCode::kDataLoss)
          << "byte " << i << " bit " << bit;
    }
  }
}

TEST(ManifestCodec, EveryTruncationAndEveryAppendedByteIsFound) {
  const std::string bytes = EncodeManifest(Sample());
  for (size_t n = 0; n < bytes.size(); ++n) {
    ASSERT_FALSE(DecodeManifest(absl::string_view(bytes).substr(0, n)).ok()) << n;
  }
  EXPECT_FALSE(DecodeManifest(bytes + std::string(1, '\0')).ok());
  EXPECT_FALSE(DecodeManifest(bytes + bytes).ok());
}

TEST(ManifestCodec, KeysOutsideTheirLimitsAreDamage) {
  const auto with = [](const std::function<void(Manifest*)>& edit) {
    Manifest manifest = Sample();
    edit(&manifest);
    return manifest;
  };
  ExpectDamaged(with([](Manifest* m) { m->job = "../etc"; }), "job");
  ExpectDamaged(with([](Manifest* m) { m->step = -1; }), "step");
  ExpectDamaged(with([](Manifest* m) { m->attempt = 0; }), "attempt");
  ExpectDamaged(with([](Manifest* m) { m->revision = -1; }), "revision");
  ExpectDamaged(with([](Manifest* m) { m->writer = 8; }), "writer");
  ExpectDamaged(with([](Manifest* m) { m->world_size = 0; }), "world_size");
  ExpectDamaged(with([](Manifest* m) { m->first = -2; }), "first");
  ExpectDamaged(with([](Manifest* m) { m->lineage.entries[0].attempt = m->attempt; }),
                "comes from");
  ExpectDamaged(with([](Manifest* m) { m->lineage.entries[1].up_to = 41; }), "ascend");
  ExpectDamaged(with([](Manifest* m) { m->objects[0].name = "../../root"; }), "name");
  ExpectDamaged(with([](Manifest* m) { m->objects[0].name = "model.pt"; }), "out of order");
  ExpectDamaged(with([](Manifest* m) { m->objects[0].name = "optim"; }), "directory of another");
  ExpectDamaged(with([](Manifest* m) { m->objects[1].block_crcs.pop_back(); }), "checksums");
  ExpectDamaged(with([](Manifest* m) { m->objects[1].block_crcs.push_back(0); }), "checksums");
  ExpectDamaged(with([](Manifest* m) { m->objects[0].block_bytes = 0; }), "block size");
  ExpectDamaged(with([](Manifest* m) { m->objects[0].length = kMaxObjectBytes + 1; }), "length");
  ExpectDamaged(with([](Manifest* m) { m->objects[0].kind = static_cast<ObjectKind>(9); }), "kind");
}

TEST(ManifestCodec, AMalformedBodyIsDamageEvenUnderARightChecksum) {
  const std::string bytes = EncodeManifest(Sample());
  const auto code = [&](const std::function<void(std::string*)>& edit) {
    return DecodeManifest(Forged(bytes, edit)).status().code();
  };
  const auto damaged = absl::StatusCode::kDataLoss;
  // Tags that go back, that repeat, tag 0, a reserved number, a field longer than the body.
  EXPECT_EQ(code([](std::string* b) { *b += RawField(1, "j"); }), damaged);
  EXPECT_EQ(code([](std::string* b) { b->insert(16, RawField(1, "j")); }), damaged);
  EXPECT_EQ(code([](std::string* b) { b->insert(16, RawField(0, "")); }), damaged);
  EXPECT_EQ(code([](std::string* b) { (*b)[18] = 1; }), damaged);
  EXPECT_EQ(code([](std::string* b) { (*b)[23] = 0x7F; }), damaged);
  EXPECT_EQ(code([](std::string* b) { b->resize(16); }), damaged);
  EXPECT_EQ(code([](std::string* b) { *b += "abc"; }), damaged);
}

TEST(ManifestDecoder, TakesPiecesOfAnyLength) {
  const std::string bytes = EncodeManifest(Sample());
  for (const size_t length : {size_t{1}, size_t{3}, size_t{16}, size_t{17}, bytes.size()}) {
    ManifestDecoder decoder(ManifestDetail::kWhole);
    for (size_t at = 0; at < bytes.size(); at += length) {
      ASSERT_TRUE(decoder.Add(absl::string_view(bytes).substr(at, length)).ok()) << length;
    }
    const auto decoded = std::move(decoder).Finish();
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(*decoded, Sample());
  }
}

TEST(ManifestDecoder, ASummaryChecksAllAndKeepsTheHead) {
  const std::string bytes = EncodeManifest(Sample());
  std::vector<std::string> names;
  ManifestDecoder decoder(ManifestDetail::kSummary,
                          [&](const ObjectEntry& object) { names.push_back(object.name); });
  ASSERT_TRUE(decoder.Add(bytes).ok());
  EXPECT_EQ(decoder.total_bytes(), bytes.size());
  EXPECT_EQ(decoder.objects(), Sample().objects.size());
  EXPECT_EQ(decoder.object_bytes(), Sample().TotalBytes());
  EXPECT_EQ(names.size(), Sample().objects.size());
  Manifest head = Sample();
  head.objects.clear();
  head.notes.clear();
  EXPECT_EQ(*std::move(decoder).Finish(), head);
}

TEST(ManifestDecoder, RefusesNonsenseBeforeTheRestHasCome) {
  std::string bytes = EncodeManifest(Sample());
  ManifestDecoder zeros(ManifestDetail::kSummary);
  EXPECT_EQ(zeros.Add(std::string(16, '\0')).code(), absl::StatusCode::kDataLoss);
  std::string header = bytes.substr(0, 12);
  AppendInteger<uint32_t>(&header, (1u << 30) - 20);
  ManifestDecoder long_field(ManifestDetail::kSummary);
  ASSERT_TRUE(long_field.Add(header).ok());
  std::string field;
  AppendInteger<uint16_t>(&field, 11);
  AppendInteger<uint16_t>(&field, 0);
  AppendInteger<uint32_t>(&field, kMaxManifestFieldBytes + 1);
  // It is of a newer build, if of any: it is not damaged.
  const Status refused = long_field.Add(field);
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(refused.message(),
            "manifest: field 11 has 16777217 bytes, this build reads at most 16777216");
}

TEST(Notes, AreRefusedBeforeTheyCannotBeReadAgain) {
  Manifest manifest = Sample();
  manifest.notes = {{"k", std::string(kMaxManifestFieldBytes - 5, 'x')}};
  EXPECT_TRUE(ValidateNotes(manifest.notes).ok());
  EXPECT_TRUE(DecodeManifest(EncodeManifest(manifest)).ok());
  manifest.notes["k"] += 'x';
  EXPECT_EQ(ValidateNotes(manifest.notes).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(DecodeManifest(EncodeManifest(manifest)).ok());
}

TEST(ManifestDigests, DependOnEveryPartInOrder) {
  const std::string a = ManifestDigest("a"), b = ManifestDigest("b");
  EXPECT_EQ(a, "ca978112ca1bbdcafac231b39a23dc4d");  // SHA-256("a"), cut
  EXPECT_EQ(a.size(), 32u);
  EXPECT_NE(CheckpointDigest({a, b}), CheckpointDigest({b, a}));
  EXPECT_EQ(CheckpointDigest({a, b}), ManifestDigest(a + b));
}

TEST(ManifestFind, FindsByNameOnly) {
  const Manifest manifest = Sample();
  ASSERT_NE(manifest.Find("optim/a"), nullptr);
  EXPECT_EQ(manifest.Find("optim/a")->length, kBlockBytes);
  EXPECT_EQ(manifest.Find("optim"), nullptr);
  EXPECT_EQ(manifest.Find("zzz"), nullptr);
}

TEST(ObjectKinds, HaveNamesThatParse) {
  for (ObjectKind kind :
       {ObjectKind::kRaw, ObjectKind::kTorch, ObjectKind::kSafetensors, ObjectKind::kNumpy}) {
    EXPECT_EQ(*ParseObjectKind(ObjectKindName(kind)), kind);
  }
  EXPECT_FALSE(ParseObjectKind("tarball").ok());
}

}  // namespace
}  // namespace cairn
