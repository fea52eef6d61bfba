#include "common/line_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "common/checksum.h"
#include "common/codec.h"

namespace cairn {
namespace {

using ::testing::HasSubstr;

LineRecord Sample() {
  return {"train-7b", 1'700'000'000'123, LineRecordKind::kUse, {{{40, 9}, {12, 9}, {3, 2}}, true}};
}

// As a hostile or buggy encoder could write it, with a checksum that fits.
std::string Forged(std::string bytes, size_t at, char value) {
  bytes.resize(bytes.size() - 4);
  bytes[at] = value;
  AppendInteger<uint32_t>(&bytes, Crc32c(0, bytes.data(), bytes.size()));
  return bytes;
}

TEST(LineRecordCodec, TakesBackWhatItWrote) {
  for (const LineRecordKind kind :
       {LineRecordKind::kResume, LineRecordKind::kUse, LineRecordKind::kOrigin}) {
    for (const Lineage& lineage : {Sample().lineage, Lineage(), Lineage::OfUnknown()}) {
      LineRecord record = Sample();
      record.kind = kind;
      record.lineage = lineage;
      const auto back = DecodeLineRecord(EncodeLineRecord(record));
      ASSERT_TRUE(back.ok()) << back.status();
      EXPECT_EQ(*back, record);
    }
  }
}

TEST(LineRecordCodec, FlippedOrCutBytesAreDamage) {
  const std::string bytes = EncodeLineRecord(Sample());
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::string flipped = bytes;
    flipped[i] = static_cast<char>(flipped[i] ^ 1);
    EXPECT_TRUE(absl::IsDataLoss(DecodeLineRecord(flipped).status())) << i;
    EXPECT_TRUE(absl::IsDataLoss(DecodeLineRecord(bytes.substr(0, i)).status())) << i;
  }
}

TEST(LineRecordCodec, RefusesWhatNoBuildWrites) {
  const std::string bytes = EncodeLineRecord(Sample());
  EXPECT_TRUE(absl::IsUnimplemented(DecodeLineRecord(Forged(bytes, 8, 2)).status()));
  EXPECT_THAT(DecodeLineRecord(Forged(bytes, 12, 3)).status().message(), HasSubstr("kind"));
  LineRecord record = Sample();
  record.lineage.entries[1].attempt = 40;
  EXPECT_THAT(DecodeLineRecord(EncodeLineRecord(record)).status().message(),
              HasSubstr("do not descend"));
  record = Sample();
  record.lineage.entries[2].up_to = 10;
  EXPECT_THAT(DecodeLineRecord(EncodeLineRecord(record)).status().message(), HasSubstr("ascend"));
  record = Sample();
  record.number = 40;
  EXPECT_THAT(DecodeLineRecord(EncodeLineRecord(record)).status().message(),
              HasSubstr("not older than itself"));
  record = Sample();
  record.lineage.entries.assign(kMaxLineage + 1, {1, 1});
  EXPECT_TRUE(absl::IsDataLoss(DecodeLineRecord(EncodeLineRecord(record)).status()));
  record = Sample();
  record.job = "../etc";
  EXPECT_TRUE(absl::IsDataLoss(DecodeLineRecord(EncodeLineRecord(record)).status()));
}

TEST(LineRecordName, IsReadBackOnlyAsWeWriteIt) {
  Attempt number = 0;
  LineRecordKind kind = LineRecordKind::kUse;
  EXPECT_TRUE(ParseLineRecordName("17.origin", &number, &kind));
  EXPECT_EQ(number, 17);
  EXPECT_EQ(kind, LineRecordKind::kOrigin);
  for (const char* name : {"", "17", "17.", "017.use", "+17.use", "0.use", "-1.use", "17.used",
                           "17.use.tmp", ".use", "99999999999999999999.use"}) {
    EXPECT_FALSE(ParseLineRecordName(name, &number, &kind)) << name;
  }
}

TEST(Lineage, LeavesOutWhatIsOlderThanItsBound) {
  Lineage lineage;
  for (Attempt attempt = 1; attempt <= 3000; ++attempt) {
    lineage = LineageFrom(attempt * 10, attempt, lineage);
  }
  EXPECT_EQ(lineage.entries.size(), kMaxLineage);
  EXPECT_TRUE(lineage.Full());
  EXPECT_EQ(lineage.entries.front(), (LineageEntry{3000, 30'000}));
  EXPECT_FALSE(lineage.open);
  EXPECT_TRUE(DecodeLineage(EncodeLineage(lineage)).ok());
}

TEST(Lineage, OfACheckpointEndsAtIt) {
  const Lineage first = LineageFrom(30, 1, {});
  const Lineage second =
      LineageFrom(20, 2, first);  // attempt 2 was gone back from, below its origin
  EXPECT_EQ(second.entries, (std::vector<LineageEntry>{{2, 20}, {1, 20}}));
  EXPECT_EQ(OriginText(second), "step 20 of attempt 2");
  EXPECT_EQ(OriginText({}), "START");
  EXPECT_EQ(OriginText(Lineage::OfUnknown()), "unknown");
}

}  // namespace
}  // namespace cairn
