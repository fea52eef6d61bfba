#include "common/failpoint.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace cairn {
namespace {

class Failpoints : public ::testing::Test {
 protected:
  ~Failpoints() override { EXPECT_TRUE(ArmFailpoints("").ok()); }
};

TEST_F(Failpoints, UnarmedDoNothing) {
  for (Failpoint point : AllFailpoints()) EXPECT_EQ(ReachFailpoint(point), 0);
}

TEST_F(Failpoints, FailOnceAtTheirCount) {
  ASSERT_TRUE(ArmFailpoints("storage.fsync:3=EIO,storage.write=ENOSPC").ok());
  EXPECT_EQ(ReachFailpoint(Failpoint::kStorageWrite), ENOSPC);
  EXPECT_EQ(ReachFailpoint(Failpoint::kStorageWrite), 0);
  EXPECT_EQ(ReachFailpoint(Failpoint::kStorageSync), 0);
  EXPECT_EQ(ReachFailpoint(Failpoint::kStorageSync), 0);
  EXPECT_EQ(ReachFailpoint(Failpoint::kStorageSync), EIO);
  EXPECT_EQ(ReachFailpoint(Failpoint::kStorageSync), 0);
}

TEST_F(Failpoints, AnyCountsAllTogether) {
  ASSERT_TRUE(ArmFailpoints("any:2=EIO").ok());
  EXPECT_EQ(ReachFailpoint(Failpoint::kStorageWrite), 0);
  EXPECT_EQ(ReachFailpoint(Failpoint::kStorageSync), EIO);
}

TEST_F(Failpoints, OfOneThingCountOnlyWhatIsAboutIt) {
  ASSERT_TRUE(ArmFailpoints("storage.use(mine):2=EIO").ok());
  for (const char* about : {"mine", "", "other", "mine2"}) {
    EXPECT_EQ(ReachFailpoint(Failpoint::kStorageUse, about), 0) << about;
  }
  EXPECT_EQ(ReachFailpoint(Failpoint::kStorageUse, "mine"), EIO);
  ASSERT_TRUE(ArmFailpoints("storage.use=EIO").ok());
  EXPECT_EQ(ReachFailpoint(Failpoint::kStorageUse, "other"), EIO);
}

TEST_F(Failpoints, WithoutAnErrnoEndTheProcess) {
  EXPECT_EXIT(
      {
        (void)ArmFailpoints("storage.rename:2");
        ReachFailpoint(Failpoint::kStorageRename);
        ReachFailpoint(Failpoint::kStorageRename);
      },
      ::testing::ExitedWithCode(kFailpointExitCode), "");
}

TEST_F(Failpoints, ThatMakeNoSenseArmNothing) {
  for (const char* spec : {"storage", "storage.fsync:0", "storage.fsync:x", "storage.fsync=EWHAT",
                           "storage.fsync,,", "storage.fsync:-1", "storage.use(a", "(a)"}) {
    EXPECT_EQ(ArmFailpoints(spec).code(), absl::StatusCode::kInvalidArgument) << spec;
    for (Failpoint point : AllFailpoints()) EXPECT_EQ(ReachFailpoint(point), 0);
  }
}

TEST_F(Failpoints, HaveNamesOfTheirOwn) {
  for (Failpoint point : AllFailpoints()) {
    const std::string name(FailpointName(point));
    ASSERT_TRUE(ArmFailpoints(name + "=EIO").ok()) << name;
    EXPECT_EQ(ReachFailpoint(point), EIO) << name;
  }
}

}  // namespace
}  // namespace cairn
