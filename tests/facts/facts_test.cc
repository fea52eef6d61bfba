#include "server/facts/facts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/facts/part_record.h"
#include "tests/golden/golden.h"

namespace cairn {
namespace {

using ::testing::HasSubstr;

CheckpointKey Checkpoint() { return {"job-a", 17, 1'700'000'000'001, 3}; }
PartKey Part() { return {Checkpoint(), 5}; }
ExtentRef Extent() { return {7, 4096, 8192}; }

ObjectEntry Entry() {
  ObjectEntry entry;
  entry.name = "model/größe";
  entry.kind = ObjectKind::kNumpy;
  entry.length = kBlockBytes + 1;
  entry.block_crcs = {0xDEADBEEF, 1};
  entry.unknown = "later";
  return entry;
}

// One of every kind, no field at its default.
std::vector<Fact> OneOfEach() {
  const std::string bytes("\0\x01 token bytes\xFF", 15);
  JobPolicy policy{PersistMode::kEvery, 5, 3, 100, Readers::kGroup, 2};
  return {
      fact::DaemonLife{123, 456},
      fact::Job{"job-a", 1000, 100, policy, 6, 2},
      fact::AttemptBegun{"job-a", 9, 10, {{{8, 9}, {3, 4}}, /*open=*/true}, 7},
      fact::WriterProcess{"job-a", 9, 4, 2, bytes, 5},
      fact::StepWorld{"job-a", 9, 17, 8, bytes, 3},
      fact::LineDecided{{"job-a", 9, LineRecordKind::kUse, {{{8, 16}}, false}}, 7},
      fact::Slab{3, 1 << 30, fact::SlabUse::kManifests, 1000, "job-a", /*by_path=*/true,
                 /*condemned=*/true},
      fact::SlabGone{3},
      fact::SessionBegun{{"job-a", 9, 2, 8, 4, /*takes_fds=*/false, bytes, "run-7",
                          /*restart=*/2, /*uid=*/1000, /*gid=*/100, /*pid=*/4242},
                         4,
                         bytes,
                         /*saves=*/true},
      fact::SessionEnded{4},
      fact::Lent{11, 4, 3, LeaseMode::kFile, Part(), "model"},
      fact::Unlent{11},
      fact::ObjectCreated{Part(), 8, "model", ObjectKind::kTorch, 8000, Extent(), 4, 77},
      fact::ObjectSealed{Part(), Entry(), Extent()},
      fact::ObjectDropped{Part(), "model"},
      fact::PartCommitted{
          Part(), 8, Extent(), 512, "digest", {3, 4}, PartRole::kReplica, /*owner=*/2},
      fact::PartDropped{Part(), "model"},
      fact::Persisted{Checkpoint(), "digest"},
      fact::FilesDeleted{Checkpoint()},
      fact::StepRemoved{"job-a", 17, 9},
      fact::Pinned{Checkpoint(), false, 6, 2},
      fact::PersistAsked{Checkpoint()},
      fact::StorageRoot{"0f0e0d0c-0b0a-4908-8706-050403020100", "1:2:3:4.5"},
      fact::PartLeftSlab{Part(), 3},
      fact::JobForgotten{"job-a"},
      fact::MemberLife{1'700'000'000'002, "0123456789abcdef", 1'700'000'000'003,
                       /*believed=*/true},
      fact::StepSafe{"job-a", 9, 17},
      fact::FetchBegun{3, Part(), "digest"},
      fact::RingSeat{"0123456789abcdef", 2, 7, true, 3, {1, 0, 7}, "0=10.0.0.1:7400"},
      fact::Leaving{true},
  };
}

// What the golden file of each earlier version that this build reads says.
std::vector<std::pair<std::string, Fact>> OfEarlierVersions() {
  const std::string token("\0\x01 token bytes\xFF", 15);
  return {
      {"job.v1",
       fact::Job{"job-a", 1000, 100, JobPolicy{PersistMode::kEvery, 5, 3, 100, Readers::kGroup}}},
      // It came from step 8, of whichever attempt: that has to be found out again.
      {"job.v2", fact::Job{"job-a", 1000, 100,
                           JobPolicy{PersistMode::kEvery, 5, 3, 100, Readers::kGroup, 2}}},
      {"attempt_begun.v2", fact::AttemptBegun{"job-a", 9, 10, Lineage::OfUnknown(), 7}},
      {"writer_process.v1", fact::WriterProcess{"job-a", 9, 0, 2, token, 2}},
      {"step_world.v1", fact::StepWorld{"job-a", 9, 17, 8}},
      // Whether somebody opened it by path was not told.
      {"slab.v1", fact::Slab{3, 1 << 30, fact::SlabUse::kManifests, 1000, "job-a", true}},
      {"slab.v2", fact::Slab{3, 1 << 30, fact::SlabUse::kManifests, 1000, "job-a", true}},
      {"session_begun.v1",
       fact::SessionBegun{{"job-a", 9, 2, 8, 4, /*takes_fds=*/false, token, "", -1, /*uid=*/1000,
                           /*gid=*/100, /*pid=*/4242},
                          4,
                          token}},
      {"lent.v1", fact::Lent{11, 4, 3, LeaseMode::kFile, Part(), "model"}},
      {"part_committed.v2", fact::PartCommitted{Part(), 8, Extent(), 512, "digest", {3, 4}}},
      {"step_removed.v1", fact::StepRemoved{"job-a", 17, 1, 9}},
      {"pinned.v1", fact::Pinned{Checkpoint(), false}},
      {"member_life.v1", fact::MemberLife{1'700'000'000'002, "0123456789abcdef", 0, true}},
      // Some member may have met it.
      {"member_life.v2",
       fact::MemberLife{1'700'000'000'002, "0123456789abcdef", 1'700'000'000'003, true}},
  };
}

// A fact that this build knows.
StatusOr<Fact> Decode(absl::string_view bytes) {
  CAIRN_ASSIGN_OR_RETURN(std::optional<Fact> fact, DecodeFact(bytes));
  if (!fact.has_value()) return absl::InternalError("skipped");
  return *std::move(fact);
}

TEST(Facts, OfEveryKindSurviveTheJournal) {
  std::set<size_t> kinds;
  for (const Fact& fact : OneOfEach()) {
    kinds.insert(fact.index());
    const auto decoded = Decode(EncodeFact(fact));
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_TRUE(*decoded == fact) << "kind " << fact.index();
  }
  EXPECT_EQ(kinds.size(), std::variant_size_v<Fact::variant>) << "a kind of fact has no case here";
}

TEST(Facts, KeepTheNumbersTheyWereGiven) {
  // A running node's journal is read by the build that replaces this one.
  int number = 1;
  for (const Fact& fact : OneOfEach()) {
    const FactKind kind = KindOf(fact);
    EXPECT_EQ(kind.number, number++) << kind.name;
    EXPECT_GE(kind.version, 1) << kind.name;
    const std::string bytes = EncodeFact(fact);
    EXPECT_EQ(static_cast<uint8_t>(bytes[0]), kind.number) << kind.name;
    EXPECT_EQ(static_cast<uint8_t>(bytes[1]), kind.version | (kind.skippable ? 0x80 : 0))
        << kind.name;
  }
}

TEST(Facts, ThatAreCutShortOrTooLongAreRefused) {
  for (const Fact& fact : OneOfEach()) {
    const std::string bytes = EncodeFact(fact);
    for (size_t n = 0; n < bytes.size(); ++n) {
      EXPECT_FALSE(DecodeFact(absl::string_view(bytes).substr(0, n)).ok());
    }
    EXPECT_EQ(DecodeFact(bytes + "x").status().code(), absl::StatusCode::kDataLoss);
  }
}

TEST(Facts, OfEveryKindAreWhatTheirGoldenFilesSay) {
  std::vector<std::string> files;
  for (const Fact& fact : OneOfEach()) {
    const FactKind kind = KindOf(fact);
    files.push_back(absl::StrCat(kind.name, ".v", kind.version));
    const auto decoded = Decode(Golden("facts/" + files.back(), EncodeFact(fact)));
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_TRUE(*decoded == fact) << kind.name;
  }
  for (const auto& [file, fact] : OfEarlierVersions()) files.push_back(file);
  ExpectGoldenFilesAre("facts", files);
}

TEST(Facts, OfEarlierVersionsAreReadAsThisBuildsFacts) {
  std::vector<std::string> wanted, found;
  std::apply(
      [&](const auto&... kind) {
        const auto add = [&](const FactKind& of) {
          for (int version = of.oldest; version < of.version; ++version) {
            wanted.push_back(absl::StrCat(of.name, ".v", version));
          }
        };
        (add(kind), ...);
      },
      kFactKinds);
  for (const auto& [file, fact] : OfEarlierVersions()) {
    found.push_back(file);
    const std::string bytes = OldGolden("facts/" + file);
    const auto decoded = Decode(bytes);
    ASSERT_TRUE(decoded.ok()) << file << ": " << decoded.status();
    EXPECT_TRUE(*decoded == fact) << file;
    EXPECT_EQ(absl::StrCat(KindOf(*decoded).name, ".v", int{bytes.at(1)}), file);
    for (size_t n = 0; n < bytes.size(); ++n) EXPECT_FALSE(Decode(bytes.substr(0, n)).ok());
    EXPECT_TRUE(absl::IsDataLoss(Decode(bytes + "x").status())) << file;
  }
  EXPECT_EQ(found, wanted);
}

TEST(Facts, OfAnAttemptThatBeganFromNothingSaySoInEveryVersion) {
  std::string bytes = OldGolden("facts/attempt_begun.v2");
  bytes.replace(27, 8, 8, '\xFF');  // comes_from: kNoStep
  const auto decoded = Decode(bytes);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_FALSE(std::get<fact::AttemptBegun>(*decoded).lineage.Unknown());
}

// The fact with another number or version in front.
Status Refusal(const Fact& fact, size_t at, uint8_t byte) {
  std::string bytes = EncodeFact(fact);
  bytes[at] = static_cast<char>(byte);
  return DecodeFact(bytes).status();
}

TEST(Facts, OfAnUnknownKindAreRefusedByNumberAndVersion) {
  for (uint8_t number : {0, 99, 255}) {
    const Status status = Refusal(fact::SlabGone{3}, 0, number);
    EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat("kind ", number, " version 1 is unknown")));
  }
}

TEST(Facts, OfAnotherVersionAreRefusedByNameAndBothVersions) {
  for (const Fact& fact : OneOfEach()) {
    const FactKind kind = KindOf(fact);
    for (const int version : {0, kind.version + 1, 127}) {
      const Status status = Refusal(fact, 1, static_cast<uint8_t>(version));
      EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
      EXPECT_THAT(
          std::string(status.message()),
          HasSubstr(absl::StrCat(
              "(", kind.name, ") has version ", version, "; this build knows ",
              kind.oldest < kind.version ? absl::StrCat(kind.oldest, " to ") : "", kind.version)));
    }
  }
}

// A later build marks a fact as one that others may skip.
TEST(Facts, ThatAreUnknownAreSkippedOnlyWithTheMark) {
  for (const int number : {8, 99}) {
    for (const int version : {2, 127}) {
      std::string bytes = EncodeFact(fact::SlabGone{3});
      bytes[0] = static_cast<char>(number);
      bytes[1] = static_cast<char>(version);
      EXPECT_TRUE(absl::IsUnimplemented(DecodeFact(bytes).status())) << number << " " << version;
      bytes[1] = static_cast<char>(0x80 | version);
      const auto decoded = DecodeFact(bytes);
      ASSERT_TRUE(decoded.ok()) << decoded.status();
      EXPECT_FALSE(decoded->has_value()) << number << " " << version;
    }
  }
}

TEST(Facts, WithTheMarkAreReadByWhoeverKnowsThem) {
  for (const Fact& fact : OneOfEach()) {
    std::string bytes = EncodeFact(fact);
    bytes[1] = static_cast<char>(0x80 | bytes[1]);
    const auto decoded = Decode(bytes);
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_TRUE(*decoded == fact) << KindOf(fact).name;
    bytes.pop_back();  // known, and damaged
    EXPECT_TRUE(absl::IsDataLoss(DecodeFact(bytes).status())) << KindOf(fact).name;
  }
}

TEST(Facts, WithAValueOutsideItsFieldAreRefused) {
  std::string bytes = EncodeFact(fact::Pinned{Checkpoint(), true});
  const std::string other = EncodeFact(fact::Pinned{Checkpoint(), false});
  *std::mismatch(bytes.begin(), bytes.end(), other.begin()).first = 2;
  EXPECT_TRUE(absl::IsDataLoss(DecodeFact(bytes).status()));
}

TEST(Facts, FromRandomBytesNeverHarm) {
  std::mt19937 random(7);
  for (const Fact& fact : OneOfEach()) {
    for (int i = 0; i < 2000; ++i) {
      std::string bytes = EncodeFact(fact);
      for (int flips = 0; flips < 3; ++flips) {
        bytes[random() % bytes.size()] = static_cast<char>(random());
      }
      const auto decoded = DecodeFact(bytes);
      if (!decoded.ok() || !decoded->has_value()) continue;
      bytes[1] = static_cast<char>(bytes[1] & 0x7F);
      const std::string again = EncodeFact(**decoded);
      if (again[1] == bytes[1]) {
        EXPECT_EQ(again, bytes) << "one fact, two encodings";
      }
      EXPECT_TRUE(*Decode(again) == **decoded);
    }
  }
}

// A part record that the node wrote into slab 7, at 4096.
std::string SealedRecordOfOneObject() {
  Manifest manifest;
  manifest.job = "job-a";
  manifest.attempt = 1;
  manifest.objects = {Entry()};
  manifest.objects[0].unknown.clear();
  std::string record = EncodeManifest(manifest);
  const size_t bytes = record.size();
  record = EncodePartRecord(std::move(record), {Extent()});
  SealPartRecord({77, 7, 4096}, bytes, 1001, &record);
  return record;
}

TEST(SealedRecord, IsFoundWholeAndInItsPlaceOnly) {
  const std::string record = SealedRecordOfOneObject();
  const auto found = FindSealedRecord(record + "what follows", {77, 7, 4096});
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->bytes, record.size());
  EXPECT_EQ(found->owner_gid, 1001u);
  EXPECT_EQ(found->digest, ManifestDigest(record.substr(0, found->manifest_bytes)));
  ASSERT_EQ(found->table->extents.size(), 1u);
  EXPECT_EQ(found->table->extents[0], Extent());
  for (const RecordPlace& place : {RecordPlace{78, 7, 4096}, {77, 8, 4096}, {77, 7, 0}}) {
    EXPECT_FALSE(FindSealedRecord(record, place).has_value());
  }
  for (size_t bytes = 0; bytes < record.size(); ++bytes) {
    EXPECT_FALSE(FindSealedRecord(record.substr(0, bytes), {77, 7, 4096}).has_value()) << bytes;
  }
}

// A build that knows no seals reads the record as it did.
TEST(SealedRecord, IsAPartRecord) {
  const std::string record = SealedRecordOfOneObject();
  EXPECT_TRUE(DecodePartRecord(record, ManifestBytesIn(record)).ok());
}

TEST(SealedRecord, IsNotFoundInWhatWasChangedAnywhere) {
  const std::string record = SealedRecordOfOneObject();
  std::mt19937 random(3);
  for (size_t at = 0; at < record.size(); ++at) {
    std::string bytes = record;
    bytes[at] = static_cast<char>(bytes[at] ^ (1 + random() % 255));
    EXPECT_FALSE(FindSealedRecord(bytes, {77, 7, 4096}).has_value()) << at;
  }
}

}  // namespace
}  // namespace cairn
