#include "server/node/cluster_index.h"

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/catalog/faulty_catalog.h"
#include "tests/catalog/memory_catalog.h"
#include "tests/support/patience.h"

namespace cairn::node {
namespace {

using cairn::catalog::CatalogCall;
using ::testing::HasSubstr;

constexpr uint32_t kOwner = 1000, kStranger = 2000;

class ClusterIndexTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto step = [](const std::string& job, Step number, Attempt attempt) {
      return catalog::StepRow{
          .checkpoint = {job, number, attempt, 0}, .world_size = 2, .sequence = number};
    };
    const auto held = [](Step number, Writer writer, const std::string& holder) {
      return catalog::HolderRow{.part = {{"run", number, 1, 0}, writer},
                                .holder = holder,
                                .resident = true,
                                .sequence = 1};
    };
    Write({catalog::JobRow{.job = "run", .owner_uid = kOwner, .owner_gid = 7, .sequence = 1},
           catalog::JobRow{.job = "others", .owner_uid = kStranger, .sequence = 1},
           step("run", 40, 1), step("run", 50, 1), step("others", 9, 1), held(50, 0, "0"),
           held(50, 1, "0"), held(50, 1, "2"), held(40, 0, "0"),
           catalog::AuthorRow{.name = "2", .seen_unix_ms = 77, .used_bytes = 5, .sequence = 1}});
  }
  void Write(const std::vector<catalog::Row>& rows) {
    ASSERT_TRUE(catalog::OpenMemoryCatalog(rows_)->Apply(rows).ok());
  }
  OpenCatalog Opening() {
    return [this]() -> StatusOr<std::unique_ptr<catalog::Catalog>> {
      ++opened_;
      if (!open_status_.ok()) return open_status_;
      return catalog::MakeFaultyCatalog(catalog::OpenMemoryCatalog(rows_), faults_);
    };
  }
  static IndexQuestion About(const std::string& job, uint32_t uid = kOwner) {
    return {.job = job, .uid = uid};
  }
  static MonotonicNanos In(int64_t ms) { return RealClock()->Now() + ms * kNanosPerMilli; }
  StatusOr<IndexAnswer> Ask(const IndexQuestion& question) {
    return index_.Ask(question, In(10'000));
  }

  const std::shared_ptr<catalog::MemoryRows> rows_ = std::make_shared<catalog::MemoryRows>();
  const std::shared_ptr<catalog::CatalogFaults> faults_ =
      std::make_shared<catalog::CatalogFaults>();
  Status open_status_;
  int opened_ = 0;
  ClusterIndex index_{Opening(), RealClock()};
};

TEST_F(ClusterIndexTest, OfAJobItTellsTheCheckpointsAndWhoHadThem) {
  const auto answer = Ask(About("run"));
  ASSERT_TRUE(answer.ok()) << answer.status();
  ASSERT_EQ(answer->jobs.size(), 1u);
  EXPECT_EQ(answer->jobs[0].latest->step.checkpoint.step, 50);
  ASSERT_EQ(answer->checkpoints.size(), 2u);
  EXPECT_EQ(answer->checkpoints[0].step.checkpoint.step, 50);
  ASSERT_EQ(answer->checkpoints[0].holders.size(), 2u);
  EXPECT_EQ(answer->checkpoints[0].holders[0].parts, 2);
  EXPECT_EQ(answer->checkpoints[0].holders[1].holder, "2");
  ASSERT_EQ(answer->nodes.size(), 1u);
  EXPECT_EQ(answer->nodes[0].seen_unix_ms, 77);
  EXPECT_FALSE(answer->more);
}

TEST_F(ClusterIndexTest, AJobIsSeenByItsOwnerByRootAndByWhomItsPolicyNames) {
  EXPECT_TRUE(Ask(About("run", 0)).ok());
  const Status refused = Ask(About("run", kStranger)).status();
  EXPECT_TRUE(absl::IsPermissionDenied(refused)) << refused;
  EXPECT_THAT(refused.message(), HasSubstr("owned by uid 1000, the caller is uid 2000"));
  const auto jobs = Ask(About("", kStranger));
  ASSERT_TRUE(jobs.ok()) << jobs.status();
  ASSERT_EQ(jobs->jobs.size(), 1u);
  EXPECT_EQ(jobs->jobs[0].job.job, "others");
  IndexQuestion sees_all = About("", kStranger);
  sees_all.sees_all = true;
  EXPECT_EQ(Ask(sees_all)->jobs.size(), 2u);

  IndexQuestion of_group = About("run", kStranger);
  of_group.gid = 7;
  EXPECT_FALSE(Ask(of_group).ok());
  catalog::JobRow readable{.job = "run", .owner_uid = kOwner, .owner_gid = 7, .sequence = 2};
  readable.policy.readers = Readers::kGroup;
  Write({readable});
  EXPECT_TRUE(Ask(of_group).ok());
  EXPECT_FALSE(Ask(About("run", kStranger)).ok());
  readable.policy.readers = Readers::kAll;
  readable.sequence = 3;
  Write({readable});
  EXPECT_TRUE(Ask(About("run", kStranger)).ok());
}

TEST_F(ClusterIndexTest, AJobThatItDoesNotHaveIsNotFound) {
  const Status unknown = Ask(About("nobodys")).status();
  EXPECT_TRUE(absl::IsNotFound(unknown)) << unknown;
  EXPECT_THAT(unknown.message(), HasSubstr("nobodys"));
}

TEST_F(ClusterIndexTest, ManyComeInPages) {
  IndexQuestion question = About("", 0);
  question.limit = 1;
  const auto first = Ask(question);
  ASSERT_TRUE(first.ok() && first->more);
  EXPECT_EQ(first->jobs[0].job.job, "others");
  question.cursor = first->last;
  const auto second = Ask(question);
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(second->jobs[0].job.job, "run");
  EXPECT_FALSE(second->more);
  IndexQuestion newest = About("run");
  newest.limit = 1;
  const auto checkpoints = Ask(newest);
  ASSERT_TRUE(checkpoints.ok());
  EXPECT_EQ(checkpoints->checkpoints.size(), 1u);
  EXPECT_TRUE(checkpoints->more);
}

TEST_F(ClusterIndexTest, WithoutASharedCatalogItSaysSo) {
  ClusterIndex none(nullptr, RealClock());
  const Status status = none.Ask(About("run"), In(10'000)).status();
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_THAT(status.message(), HasSubstr("catalog.mysql"));
}

// R21: each caller waits to its own deadline, and one that came too late costs the database nothing.
TEST_F(ClusterIndexTest, ADatabaseThatHangsHoldsNobodyUpForLong) {
  faults_->Add({.kind = testing::FaultKind::kHang, .call = CatalogCall::kJob});
  const auto begun = std::chrono::steady_clock::now();
  for (int i = 0; i < 2; ++i) {
    const Status status = index_.Ask(About("run"), In(50)).status();
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr("has not answered"));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begun, testing::Patient(std::chrono::seconds(30)));
  faults_->Clear();
  EXPECT_TRUE(Ask(About("run")).ok()) << "once it goes on";
}

TEST_F(ClusterIndexTest, QuestionsThatWaitHaveABound) {
  faults_->Add({.kind = testing::FaultKind::kHang, .call = CatalogCall::kJob});
  // One that hangs, so that those after it stay.
  std::thread first([&] { (void)index_.Ask(About("run"), In(60'000)); });
  faults_->WaitUntilHung(1);
  Status status;
  int asked = 1;
  do {
    status = index_.Ask(About("run"), In(1)).status();
  } while (absl::IsUnavailable(status) && ++asked < 1000);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(asked, 32);
  faults_->Clear();
  first.join();
}

TEST_F(ClusterIndexTest, StoppingAnswersWhoWaits) {
  faults_->Add({.kind = testing::FaultKind::kHang, .call = CatalogCall::kJob});
  Status status;
  std::thread asker([&] { status = index_.Ask(About("run"), In(60'000)).status(); });
  faults_->WaitUntilHung(1);
  std::thread stopper([&] { index_.Stop(); });
  asker.join();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  faults_->Clear();
  stopper.join();
}

TEST_F(ClusterIndexTest, ItIsOpenedAgainAfterAFailure) {
  open_status_ = absl::UnavailableError("mysql: connecting: refused");
  const Status status = Ask(About("run")).status();
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_THAT(status.message(), HasSubstr("refused"));
  open_status_ = absl::OkStatus();
  EXPECT_TRUE(Ask(About("run")).ok());
  faults_->Add({.call = CatalogCall::kJob,
                .times = 1,
                .error = absl::FailedPreconditionError("no such table")});
  EXPECT_FALSE(Ask(About("run")).ok());
  EXPECT_TRUE(Ask(About("run")).ok());
  EXPECT_EQ(opened_, 3) << "what was wrong with it is found out at opening";
}

}  // namespace
}  // namespace cairn::node
