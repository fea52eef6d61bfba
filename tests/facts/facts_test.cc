#include "server/facts/facts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "absl/strings/str_cat.h"
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
  JobPolicy policy{PersistMode::kEvery, 5, 3, 100, Readers::kGroup};
  return {
      fact::Incarnation{123, 456},
      fact::Job{"job-a", 1000, 100, policy},
      fact::AttemptBegun{"job-a", 9, 10, {{{8, 9}, {3, 4}}, /*open=*/true}, 7},
      fact::WriterProcess{"job-a", 9, 2, bytes},
      fact::StepWorld{"job-a", 9, 17, 8},
      fact::LineDecided{{"job-a", 9, LineRecordKind::kUse, {{{8, 16}}, false}}, 7},
      fact::Slab{3, 1 << 30, fact::SlabUse::kManifests, 1000, "job-a", /*by_path=*/true},
      fact::SlabGone{3},
      fact::SessionBegun{{"job-a", 9, 2, 8, 4, /*takes_fds=*/false, bytes, /*uid=*/1000,
                          /*gid=*/100, /*pid=*/4242},
                         4,
                         bytes},
      fact::SessionEnded{4},
      fact::Lent{11, 4, 3, LeaseMode::kFile, Part(), "model"},
      fact::Unlent{11},
      fact::ObjectCreated{Part(), 8, "model", ObjectKind::kTorch, 8000, Extent(), 4, 77},
      fact::ObjectSealed{Part(), Entry(), Extent()},
      fact::ObjectDropped{Part(), "model"},
      fact::ManifestCommitted{Part(), 8, Extent(), 512, "digest"},
      fact::ManifestDropped{Part()},
      fact::Persisted{Checkpoint(), "digest"},
      fact::FilesDeleted{Checkpoint()},
      fact::StepRemoved{"job-a", 17, 9},
      fact::Pinned{Checkpoint(), false},
      fact::PersistAsked{Checkpoint()},
      fact::StorageRoot{"0f0e0d0c-0b0a-4908-8706-050403020100", "1:2:3:4.5"},
  };
}

TEST(Facts, OfEveryKindSurviveTheJournal) {
  std::set<size_t> kinds;
  for (const Fact& fact : OneOfEach()) {
    kinds.insert(fact.index());
    const auto decoded = DecodeFact(EncodeFact(fact));
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_TRUE(*decoded == fact) << "kind " << fact.index();
  }
  EXPECT_EQ(kinds.size(), std::variant_size_v<Fact>) << "a kind of fact has no case here";
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
    EXPECT_EQ(static_cast<uint8_t>(bytes[1]), kind.version) << kind.name;
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
    const auto decoded = DecodeFact(Golden("facts/" + files.back(), EncodeFact(fact)));
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_TRUE(*decoded == fact) << kind.name;
  }
  ExpectGoldenFilesAre("facts", files);
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
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr(absl::StrCat("(", kind.name, ") has version ", version,
                                         "; this build knows ", kind.version)));
    }
  }
}

// The bit that a later build may use to mark a fact as one that others may skip.
TEST(Facts, WithTheReservedBitAreRefusedUntilItMeansSomething) {
  const Status status = Refusal(fact::SlabGone{3}, 1, 0x80 | 1);
  EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("kind 8 version 1 has a mark"));
}

TEST(Facts, WithAValueOutsideItsFieldAreRefused) {
  std::string bytes = EncodeFact(fact::Pinned{Checkpoint(), true});
  bytes.back() = 2;
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
      if (decoded.ok()) {
        EXPECT_EQ(EncodeFact(*decoded), bytes) << "one fact, two encodings";
      }
    }
  }
}

}  // namespace
}  // namespace cairn
