// The storage of the simulated worlds keeps and refuses as the real one.
#include "tests/world/storage.h"

#include <gtest/gtest.h>

namespace cairn::world {
namespace {

constexpr int64_t kNow = 1'700'000'000'000;
const std::string kJob = "job";

std::vector<StoredPart> PartOf(const CheckpointKey& key, Writer writer = 0) {
  StoredPart part;
  part.manifest.job = key.job;
  part.manifest.step = key.step;
  part.manifest.attempt = key.attempt;
  part.manifest.writer = writer;
  part.digest = "digest";
  return {part};
}

TEST(WorldStorage, ACheckpointIsPublishedWithItsLastPart) {
  Storage storage;
  const CheckpointKey key{kJob, 1, 1, 0};
  EXPECT_FALSE(*storage.Write(key, 2, PartOf(key, 0)));
  EXPECT_FALSE(storage.Published(key));
  EXPECT_TRUE(*storage.Write(key, 2, PartOf(key, 1)));
  EXPECT_TRUE(storage.Published(key));
  EXPECT_EQ(storage.Read(key)->parts.size(), 2U);
}

TEST(WorldStorage, AnOlderRevisionIsRefusedAndANewerTakesItsPlace) {
  Storage storage;
  const CheckpointKey older{kJob, 1, 1, 1}, newer{kJob, 1, 1, 2}, other_life{kJob, 1, 2, 0};
  ASSERT_TRUE(storage.Write(older, 1, PartOf(older)).ok());
  ASSERT_TRUE(storage.Write(newer, 1, PartOf(newer)).ok());
  EXPECT_FALSE(storage.Published(older));
  EXPECT_TRUE(absl::IsFailedPrecondition(storage.Write(older, 1, PartOf(older)).status()));
  EXPECT_TRUE(storage.Write(other_life, 1, PartOf(other_life)).ok());
  EXPECT_TRUE(storage.Published(newer));
}

TEST(WorldStorage, ATombstoneForbidsTheStepToItsAttempts) {
  Storage storage;
  const CheckpointKey removed{kJob, 1, 2, 0}, older{kJob, 1, 1, 0}, newer{kJob, 1, 3, 0};
  for (const CheckpointKey& key : {removed, newer}) {
    ASSERT_TRUE(storage.Write(key, 1, PartOf(key)).ok());
  }
  action::DeleteFiles deletion;
  deletion.checkpoint = removed;
  deletion.tombstone = true;
  ASSERT_TRUE(storage.Delete(deletion).ok());
  EXPECT_TRUE(storage.Removed(removed) && storage.Removed(older) && !storage.Removed(newer));
  EXPECT_TRUE(absl::IsFailedPrecondition(storage.Write(older, 1, PartOf(older)).status()));
  EXPECT_FALSE(storage.Published(removed));
  EXPECT_TRUE(storage.Published(newer));
}

TEST(WorldStorage, WhatALifeThatTheNodeDoesNotKnowMayNeedIsKept) {
  Storage storage;
  const CheckpointKey key{kJob, 1, 1, 0};
  ASSERT_TRUE(storage.Write(key, 1, PartOf(key)).ok());
  ASSERT_TRUE(storage.Write({kJob, 2, LineRecordKind::kOrigin, {}}, kNow).ok());
  action::DeleteFiles deletion;
  deletion.checkpoint = key;
  deletion.newest_known = 1;
  EXPECT_TRUE(absl::IsFailedPrecondition(storage.Delete(deletion)));
  deletion.newest_known = 2;
  EXPECT_TRUE(storage.Delete(deletion).ok());
  EXPECT_FALSE(storage.Published(key));
}

TEST(WorldStorage, WhatADecisionNeedsIsKept) {
  Storage storage;
  const CheckpointKey key{kJob, 1, 1, 0};
  ASSERT_TRUE(storage.Write(key, 1, PartOf(key)).ok());
  ASSERT_TRUE(storage.Write({kJob, 2, LineRecordKind::kResume, {{{1, 1}}, false}}, kNow).ok());
  action::DeleteFiles deletion;
  deletion.checkpoint = key;
  deletion.newest_known = 2;
  EXPECT_TRUE(absl::IsFailedPrecondition(storage.Delete(deletion)));
  EXPECT_TRUE(storage.Published(key));
}

TEST(WorldStorage, NothingIsDeletedInFavourOfWhatIsNotWhole) {
  Storage storage;
  const CheckpointKey key{kJob, 1, 1, 0}, newer{kJob, 2, 1, 0};
  for (const CheckpointKey& each : {key, newer}) {
    ASSERT_TRUE(storage.Write(each, 1, PartOf(each)).ok());
  }
  storage.Damage({newer, 0});
  EXPECT_FALSE(storage.Published(newer));
  EXPECT_FALSE(storage.Scan(kJob, kNow)->checkpoints.at(1).Complete());
  action::DeleteFiles deletion;
  deletion.checkpoint = key;
  deletion.newest_known = 1;
  deletion.stays = newer;
  EXPECT_TRUE(absl::IsFailedPrecondition(storage.Delete(deletion)));
  ASSERT_TRUE(*storage.Write(newer, 1, PartOf(newer)));
  EXPECT_TRUE(storage.Delete(deletion).ok());
}

TEST(WorldStorage, TheFirstOriginOfAnAttemptStands) {
  Storage storage;
  const LineRecord origin{kJob, 1, LineRecordKind::kOrigin, {}};
  ASSERT_TRUE(storage.Write(origin, kNow).ok());
  ASSERT_TRUE(storage.Write(origin, kNow + 1000).ok());
  EXPECT_EQ(storage.OriginRecordedMs(kJob, 1), kNow);
  EXPECT_EQ(storage.OriginRecordedMs(kJob, 2), std::nullopt);
}

TEST(WorldStorage, WhatIsAwayAnswersNothing) {
  Storage storage;
  const CheckpointKey key{kJob, 1, 1, 0};
  ASSERT_TRUE(storage.Write(key, 1, PartOf(key)).ok());
  storage.away = true;
  const CheckpointKey other{"other", 1, 1, 0};
  EXPECT_TRUE(absl::IsUnavailable(storage.Write(other, 1, PartOf(other)).status()));
  EXPECT_TRUE(absl::IsUnavailable(storage.Scan(kJob, kNow).status()));
  EXPECT_TRUE(absl::IsUnavailable(storage.Read(key).status()));
  EXPECT_TRUE(storage.Published(key));  // its files are still there
  storage.away = false;
  EXPECT_TRUE(storage.Scan(kJob, kNow).ok());
  EXPECT_TRUE(absl::IsNotFound(storage.Scan("other", kNow).status()));
}

}  // namespace
}  // namespace cairn::world
