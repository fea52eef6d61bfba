// What a fetch is to read. Nothing of a source's answer is believed.
#include "server/node/fetch_plan.h"

#include <gtest/gtest.h>

#include "server/transport/transport.h"

namespace cairn::node {
namespace {

class FetchPlanTest : public testing::Test {
 protected:
  FetchPlanTest() {
    manifest.job = "job";
    manifest.step = 7;
    manifest.attempt = 1;
    manifest.owner_uid = 1000;
    ObjectEntry object;
    object.name = "model";
    object.length = kBlockBytes + 17;
    object.block_crcs = {7, 8};
    manifest.objects.push_back(object);
  }
  StatusOr<FetchPlan> Plan() const { return PlanFetch(fetch(), answer()); }
  engine::action::Fetch fetch() const {
    engine::action::Fetch fetch;
    fetch.part = part;
    fetch.uid = uid;
    fetch.digest = digest;
    fetch.manifest_bytes = 1 << 20;
    fetch.slab = 5;
    fetch.slab_bytes = slab_bytes;
    return fetch;
  }
  engine::peer::GrantAnswer answer() const {
    engine::peer::GrantAnswer answer;
    answer.token = std::string(transport::GrantToken{}.size(), 't');
    answer.manifest = EncodeManifest(manifest);
    answer.regions.resize(regions, {"region"});
    return answer;
  }

  // What is asked for.
  PartKey part{{"job", 7, 1, 0}, 0};
  uint32_t uid = 1000;
  std::string digest;  // whatever the source has
  uint64_t slab_bytes = 2 * kBlockBytes;
  // What the source answers.
  Manifest manifest;
  size_t regions = 1;
};

TEST_F(FetchPlanTest, EachBlockIsReadWithTheManifestsChecksum) {
  const StatusOr<FetchPlan> plan = Plan();
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->blocks.size(), 2u);
  EXPECT_EQ(plan->blocks[0].length, kBlockBytes);
  EXPECT_EQ(plan->blocks[0].crc, 7u);
  EXPECT_EQ(plan->blocks[1].length, 17u);
  EXPECT_EQ(plan->blocks[1].crc, 8u);
}

TEST_F(FetchPlanTest, AnotherUsersPartIsPermissionDenied) {
  manifest.owner_uid = 1001;
  const Status status = Plan().status();
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  EXPECT_EQ(status.message(), "the part is uid 1001's, not uid 1000's");
}

// Root's jobs are his own likewise.
TEST_F(FetchPlanTest, AUsersPartIsNotRoots) {
  uid = 0;
  EXPECT_TRUE(absl::IsPermissionDenied(Plan().status())) << Plan().status();
}

TEST_F(FetchPlanTest, AnotherPartOrAnotherDigestIsNotFound) {
  part.checkpoint.step = 8;
  EXPECT_TRUE(absl::IsNotFound(Plan().status())) << Plan().status();
  part.checkpoint.step = 7;
  digest = "another";
  EXPECT_TRUE(absl::IsNotFound(Plan().status())) << Plan().status();
}

TEST_F(FetchPlanTest, OneThatTheSlabHasNoRoomForIsFailedPrecondition) {
  slab_bytes = kBlockBytes;
  EXPECT_TRUE(absl::IsFailedPrecondition(Plan().status())) << Plan().status();
}

TEST_F(FetchPlanTest, AnObjectWithoutARegionIsDataLoss) {
  regions = 0;
  EXPECT_TRUE(absl::IsDataLoss(Plan().status())) << Plan().status();
}

}  // namespace
}  // namespace cairn::node
