#include "tests/catalog/faulty_catalog.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <thread>

#include "tests/catalog/memory_catalog.h"

namespace cairn::catalog {
namespace {

using cairn::testing::FaultKind;

class FaultyCatalog : public ::testing::Test {
 protected:
  static std::vector<Row> OneRow() { return {JobRow{.job = "run", .sequence = 1}}; }
  size_t JobsHeld() { return OpenMemoryCatalog(rows_)->Jobs()->size(); }

  const std::shared_ptr<MemoryRows> rows_ = std::make_shared<MemoryRows>();
  const std::shared_ptr<CatalogFaults> faults_ = std::make_shared<CatalogFaults>();
  const std::unique_ptr<Catalog> catalog_ = MakeFaultyCatalog(OpenMemoryCatalog(rows_), faults_);
};

// Every call of the interface can be made to fail, and the others are left alone.
TEST_F(FaultyCatalog, EachCallFailsOnItsOwn) {
  const std::map<CatalogCall, std::function<Status()>> calls = {
      {CatalogCall::kApply, [&] { return catalog_->Apply(OneRow()); }},
      {CatalogCall::kJob, [&] { return catalog_->Job("run").status(); }},
      {CatalogCall::kJobs, [&] { return catalog_->Jobs().status(); }},
      {CatalogCall::kAttempts, [&] { return catalog_->Attempts("run").status(); }},
      {CatalogCall::kSteps, [&] { return catalog_->Steps("run", 9, 9).status(); }},
      {CatalogCall::kParts,
       [&] {
         return catalog_->Parts({"run", 1, 1, 0}).status();
       }},
      {CatalogCall::kLineRecords, [&] { return catalog_->LineRecords("run").status(); }},
      {CatalogCall::kLatest, [&] { return catalog_->Latest("run").status(); }},
      {CatalogCall::kHolderCounts,
       [&] {
         return catalog_->HolderCounts({"run", 1, 1, 0}).status();
       }},
      {CatalogCall::kAuthors, [&] { return catalog_->Authors().status(); }},
      {CatalogCall::kMarked, [&] { return catalog_->Marked().status(); }},
  };
  for (const auto& [failing, ignored] : calls) {
    faults_->Add({.call = failing});
    for (const auto& [call, make] : calls) {
      EXPECT_EQ(make().code(),
                call == failing ? absl::StatusCode::kUnavailable : absl::StatusCode::kOk)
          << static_cast<int>(failing) << " " << static_cast<int>(call);
    }
    faults_->Clear();
  }
}

TEST_F(FaultyCatalog, AnApplyThatFailsWritesNothing) {
  faults_->Add({.call = CatalogCall::kApply, .times = 1});
  EXPECT_TRUE(absl::IsUnavailable(catalog_->Apply(OneRow())));
  EXPECT_EQ(JobsHeld(), 0u);
  EXPECT_TRUE(catalog_->Apply(OneRow()).ok());
  EXPECT_EQ(JobsHeld(), 1u);
}

TEST_F(FaultyCatalog, AnApplyMayHaveHappenedAndAskingAgainIsHarmless) {
  faults_->Add({.kind = FaultKind::kMaybeHappened, .call = CatalogCall::kApply, .times = 1});
  EXPECT_TRUE(absl::IsUnavailable(catalog_->Apply(OneRow())));
  EXPECT_EQ(JobsHeld(), 1u);
  EXPECT_TRUE(catalog_->Apply(OneRow()).ok());
  EXPECT_EQ(JobsHeld(), 1u);
}

TEST_F(FaultyCatalog, AnApplyHangsUntilItIsReleased) {
  faults_->Add({.kind = FaultKind::kHang, .call = CatalogCall::kApply});
  std::thread writer([&] { EXPECT_TRUE(catalog_->Apply(OneRow()).ok()); });
  faults_->WaitUntilHung(1);
  EXPECT_EQ(JobsHeld(), 0u);
  faults_->Clear();
  writer.join();
  EXPECT_EQ(JobsHeld(), 1u);
}

}  // namespace
}  // namespace cairn::catalog
