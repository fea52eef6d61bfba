// The decisions of a job: what is said here and elsewhere, in any order, comes to the same; their encoded form.
#include "server/engine/job_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "absl/strings/str_cat.h"
#include "common/checksum.h"
#include "common/codec.h"

namespace cairn::engine {
namespace {

using testing::HasSubstr;

constexpr CheckpointId kPinned{7, 3, 0};

JobRecord Empty() {
  JobRecord record;
  record.job = "llama";
  return record;
}

JobRecord Merged(JobRecord a, const JobRecord& b) {
  EXPECT_TRUE(a.Merge(b).ok());
  return a;
}

// What one member, of rank `by`, might know.
JobRecord RandomRecord(std::mt19937* random, Rank by) {
  const auto up = [random](int below) {
    return std::uniform_int_distribution<int>(0, below - 1)(*random);
  };
  JobRecord record = Empty();
  const auto lineage = [&](Attempt number) -> Lineage {
    if (up(3) == 0) return Lineage::OfUnknown();
    if (number == 1 || up(4) == 0) return {};
    const Attempt from = 1 + up(static_cast<int>(number) - 1);
    const auto known = record.attempts.find(from);
    if (known != record.attempts.end() && up(2) == 0) {
      return LineageFrom(up(5), from, known->second.lineage);
    }
    return {{{from, up(5)}}, up(3) == 0};
  };
  for (int i = up(14); i > 0; --i) {
    const Attempt attempt = 1 + up(6);
    switch (up(10)) {
      case 8:
        record.Ask({up(3), attempt, up(2)});
        break;
      case 0:
        (void)record.SetOwner({static_cast<uint32_t>(up(2)), 1});
        break;
      case 1:
        record.SetPolicy({.keep_last = up(3)}, by);
        break;
      case 2:
        record.Decide({"llama", attempt, LineRecordKind::kResume, lineage(attempt)}, up(3), by);
        break;
      case 3:
        record.Decide({"llama", attempt, LineRecordKind::kUse, lineage(attempt)}, up(3), by);
        break;
      case 4:
        (void)record.SetPinned({up(3), attempt, up(2)}, up(3) != 0, by);
        break;
      case 5:
        (void)record.Remove(up(3), attempt, attempt + up(3));
        break;
      case 6:
        if (up(4) == 0) record.RemoveAll(up(4));
        break;
      case 7:
        record.NoteProtected(attempt, up(5));
        break;
      default:
        record.NoteAttempt(attempt, {up(4) - 1, lineage(attempt), up(3)});
    }
  }
  return record;
}

TEST(JobRecord, MergesToTheSameInAnyOrderAndAnyNumberOfTimes) {
  for (uint32_t seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937 random(seed);
    std::vector<JobRecord> records;
    for (Rank by = 0; by < 4; ++by) records.push_back(RandomRecord(&random, by));
    const auto& [a, b, c] = std::tie(records[0], records[1], records[2]);
    EXPECT_EQ(Merged(a, b), Merged(b, a));
    EXPECT_EQ(Merged(Merged(a, b), c), Merged(a, Merged(b, c)));
    EXPECT_EQ(Merged(a, a), a);
    EXPECT_EQ(Merged(Merged(a, b), b), Merged(a, b));
    EXPECT_EQ(Merged(Empty(), a), a);
    JobRecord all = Empty();
    for (const JobRecord& record : records) all = Merged(all, record);
    for (int i = 0; i < 5; ++i) {
      std::vector<JobRecord> heard = records;
      heard.insert(heard.end(), records.begin(), records.end());
      std::shuffle(heard.begin(), heard.end(), random);
      JobRecord other = Empty();
      for (const JobRecord& record : heard) other = Merged(other, record);
      EXPECT_EQ(other, all);
    }
    EXPECT_TRUE(all.IsTidy());
    if (testing::Test::HasFailure()) return;
  }
}

TEST(JobRecord, MergeSaysWhetherItLearnedAnything) {
  JobRecord a = Empty(), b = Empty();
  b.SetPolicy({.keep_last = 3}, 1);
  EXPECT_TRUE(*a.Merge(b));
  EXPECT_FALSE(*a.Merge(b));
  EXPECT_FALSE(*b.Merge(a));
}

TEST(JobRecord, WhatWasRemovedElsewhereIsRemovedHere) {
  JobRecord a = Empty(), b = Empty();
  EXPECT_TRUE(*a.SetPinned(kPinned, true, 0));
  EXPECT_TRUE(*b.Remove(7, 1, 4));
  EXPECT_TRUE(*a.Merge(b));
  EXPECT_TRUE(a.Forbids(7, 3));
  EXPECT_FALSE(a.Forbids(7, 5));
  EXPECT_FALSE(a.Pinned(kPinned));
}

TEST(JobRecord, ARemovedJobStaysRemovedAndANewLifeOfItDoesNot) {
  JobRecord a = Empty(), b = Empty();
  a.NoteAttempt(3, {0, {}, 1});
  a.Decide({"llama", 4, LineRecordKind::kUse, {{{3, 1}}, false}}, 1, 0);
  a.NoteProtected(3, 9);
  EXPECT_TRUE(b.RemoveAll(4));
  b.NoteAttempt(5, {0, {}, 1});
  EXPECT_TRUE(*a.Merge(b));
  EXPECT_TRUE(a.Forbids(100, 4));
  EXPECT_FALSE(a.Forbids(100, 5));
  EXPECT_THAT(a.attempts, testing::ElementsAre(testing::Key(5)));
  EXPECT_TRUE(a.decisions.empty());
  EXPECT_EQ(a.highest_protected, (std::pair<Attempt, Step>(0, kNoStep)));
  EXPECT_FALSE(a.NoteAttempt(4, {0, {}, 1}));
  EXPECT_FALSE(a.NoteProtected(4, 1));
}

TEST(JobRecord, AnOriginThatIsKnownReplacesOneThatIsNotAndStays) {  // line rules 17 and 18
  JobRecord record = Empty();
  EXPECT_TRUE(record.NoteAttempt(5, {3, Lineage::OfUnknown(), 9}));
  EXPECT_TRUE(record.Decide({"llama", 5, LineRecordKind::kOrigin, {{{2, 1}}, false}}, 9, 0));
  EXPECT_FALSE(record.NoteAttempt(5, {3, Lineage::OfUnknown(), 9}));
  EXPECT_EQ(record.attempts.at(5).lineage, (Lineage{{{2, 1}}, false}));
}

TEST(JobRecord, AResumeThatIsSaidAnewReplacesTheOneBeforeEverywhere) {  // line rule 13
  JobRecord here = Empty();
  const LineRecord first{"llama", 5, LineRecordKind::kResume, {{{2, 1}}, false}};
  const LineRecord second{"llama", 5, LineRecordKind::kResume, {{{2, 3}}, false}};
  EXPECT_TRUE(here.Decide(first, 1, 0));
  const JobRecord there = here;
  EXPECT_FALSE(here.Decide(first, 2, 0));  // the same again
  EXPECT_TRUE(here.Decide(second, 3, 0));
  EXPECT_EQ(Merged(there, here).Decided().at(5), second.lineage);
  EXPECT_EQ(Merged(here, there).Decided().at(5), second.lineage);
}

TEST(JobRecord, TheLaterPolicyStandsAndOfTwoAtOnceTheGreaterRanks) {
  JobRecord a = Empty(), b = Empty();
  a.SetPolicy({.keep_last = 1}, 0);
  b.SetPolicy({.keep_last = 2}, 1);
  EXPECT_EQ(Merged(a, b).policy.keep_last, 2);
  EXPECT_EQ(Merged(b, a).policy.keep_last, 2);
  a = Merged(a, b);
  a.SetPolicy({.keep_last = 3}, 0);
  EXPECT_EQ(Merged(b, a).policy.keep_last, 3);
}

TEST(JobRecord, HasOneOwner) {  // promise 6
  JobRecord record = Empty();
  EXPECT_TRUE(*record.SetOwner({1000, 100}));
  EXPECT_FALSE(*record.SetOwner({1000, 100}));
  EXPECT_THAT(std::string(record.SetOwner({1001, 100}).status().message()),
              HasSubstr("its owner is uid 1000, not 1001"));
}

TEST(JobRecord, PinsAndRemovalsAreRefusedAtTheirBoundsWithTheArithmetic) {  // promise 8
  JobRecord record = Empty();
  for (Step step = 0; step < static_cast<Step>(kMostRecordPins); ++step) {
    ASSERT_TRUE(record.SetPinned({step, 1, 0}, true, 0).ok());
    ASSERT_TRUE(record.Remove(step, 9, 9).ok());
  }
  const Status pins = record.SetPinned({1 << 20, 1, 0}, true, 0).status();
  EXPECT_TRUE(absl::IsResourceExhausted(pins));
  EXPECT_THAT(std::string(pins.message()), HasSubstr("4096 pins"));
  EXPECT_TRUE(record.SetPinned({5, 1, 0}, false, 0).ok());  // taking one back is always possible
  const Status ranges = record.Remove(1 << 20, 1, 1).status();
  EXPECT_TRUE(absl::IsResourceExhausted(ranges));
  EXPECT_THAT(std::string(ranges.message()), HasSubstr("4096 ranges of removed attempts"));
  EXPECT_TRUE(record.Remove(5, 8, 8).ok());  // one range with what is there
  // And the job as a whole can always be removed: all of that goes.
  EXPECT_TRUE(record.RemoveAll(9));
  EXPECT_TRUE(record.pins.empty());
  EXPECT_TRUE(record.removed.steps.empty());
}

TEST(JobRecord, OfMoreRecordsThanTwiceTheBoundNothingIsTakenIn) {
  const auto full = [](Step from) {
    JobRecord record = Empty();
    for (Step step = from; step < from + static_cast<Step>(kMostRecordPins); ++step) {
      (void)record.SetPinned({step, 1, 0}, true, 0);
    }
    return record;
  };
  JobRecord record = full(0);
  EXPECT_TRUE(*record.Merge(full(10'000)));
  const JobRecord before = record;
  EXPECT_TRUE(absl::IsResourceExhausted(record.Merge(full(20'000)).status()));
  EXPECT_EQ(record, before);
}

TEST(JobRecord, OfAttemptsAndDecisionsTheNewestStay) {
  JobRecord record = Empty();
  for (Attempt attempt = 1; attempt <= 3000; ++attempt) {
    EXPECT_TRUE(record.NoteAttempt(attempt, {0, {}, 1}));
    EXPECT_TRUE(record.Decide({"llama", attempt, LineRecordKind::kUse, {}}, 1, 0));
  }
  EXPECT_EQ(record.attempts.size(), kMostRecordAttempts);
  EXPECT_EQ(record.decisions.size(), kMostRecordDecisions);
  EXPECT_EQ(record.attempts.rbegin()->first, 3000);
  EXPECT_FALSE(record.NoteAttempt(1, {0, {}, 1}));
  EXPECT_TRUE(record.IsTidy());
}

// --- encoded

TEST(JobRecordCodec, WhatIsEncodedIsDecoded) {
  for (uint32_t seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937 random(seed);
    const JobRecord record = Merged(RandomRecord(&random, 0), RandomRecord(&random, 1));
    const std::string bytes = EncodeJobRecord(record);
    const auto decoded = DecodeJobRecord(bytes);
    ASSERT_EQ(decoded.status(), absl::OkStatus());
    EXPECT_EQ(*decoded, record);
  }
}

TEST(JobRecordCodec, AJobOfAThousandLivesTakesLittle) {
  JobRecord record = Empty();
  Lineage lineage;
  for (Attempt attempt = 1; attempt <= 1000; ++attempt) {
    record.NoteAttempt(attempt, {attempt, lineage, 1});
    // Every other life comes to something; of the others as many go on from the same checkpoint.
    if (attempt % 2 == 0) lineage = LineageFrom(attempt, attempt, lineage);
  }
  const std::string bytes = EncodeJobRecord(record);
  EXPECT_LT(bytes.size(), 64U << 10);
  EXPECT_EQ(*DecodeJobRecord(bytes), record);
}

std::string Sealed(std::string bytes) {
  AppendInteger<uint32_t>(&bytes, Crc32c(0, bytes.data(), bytes.size()));
  return bytes;
}

TEST(JobRecordCodec, ADamagedOrShortOneIsRefused) {  // R23, R24
  std::mt19937 random(5);
  const std::string bytes = EncodeJobRecord(RandomRecord(&random, 0));
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::string bad = bytes;
    bad[i] = static_cast<char>(bad[i] ^ 0x10);
    EXPECT_TRUE(absl::IsDataLoss(DecodeJobRecord(bad).status())) << i;
    EXPECT_FALSE(DecodeJobRecord(bytes.substr(0, i)).ok()) << i;
  }
  EXPECT_TRUE(absl::IsDataLoss(DecodeJobRecord(bytes + "x").status()));
}

TEST(JobRecordCodec, ALaterFormatIsRefusedNamingBoth) {
  std::string bytes = EncodeJobRecord(Empty());
  bytes.resize(bytes.size() - sizeof(uint32_t));
  bytes[8] = 3;
  const Status status = DecodeJobRecord(Sealed(bytes)).status();
  EXPECT_TRUE(absl::IsUnimplemented(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("format 3 is newer than this build's 2"));
}

// What a build without `asked` wrote, and what it can read.
TEST(JobRecordCodec, ARecordInWhichNothingIsAskedIsOfTheFirstFormat) {
  JobRecord record = Empty();
  record.SetPolicy({.keep_last = 3}, 1);
  const std::string first = EncodeJobRecord(record);
  EXPECT_EQ(first[8], 1);
  EXPECT_EQ(*DecodeJobRecord(first), record);
  ASSERT_TRUE(record.Ask(kPinned));
  const std::string second = EncodeJobRecord(record);
  EXPECT_EQ(second[8], 2);
  EXPECT_EQ(*DecodeJobRecord(second), record);
  // The second format without anything asked is another form of the first.
  std::string other = first.substr(0, first.size() - sizeof(uint32_t));
  other[8] = 2;
  AppendInteger<uint32_t>(&other, 0);
  EXPECT_TRUE(absl::IsDataLoss(DecodeJobRecord(Sealed(other)).status()));
}

TEST(JobRecord, OfWhatIsAskedTheHighestStepsStay) {
  JobRecord record = Empty();
  for (Step step = 0; step < 1000; ++step) record.Ask({step, 1, 0});
  EXPECT_EQ(record.asked.size(), kMostRecordAsked);
  EXPECT_EQ(record.asked.rbegin()->step, 999);
  EXPECT_FALSE(record.Ask({0, 1, 0}));
  EXPECT_TRUE(record.IsTidy());
}

TEST(JobRecordCodec, OnlyOneFormOfARecordIsTaken) {
  JobRecord record = Empty();
  record.removed_up_to = 5;
  record.attempts[3] = {0, {}, 1};  // of what was removed
  EXPECT_TRUE(absl::IsDataLoss(DecodeJobRecord(EncodeJobRecord(record)).status()));
}

}  // namespace
}  // namespace cairn::engine
