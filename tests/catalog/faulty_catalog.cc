#include "tests/catalog/faulty_catalog.h"

#include <utility>

namespace cairn::catalog {
namespace {

class FaultyCatalog final : public Catalog {
 public:
  FaultyCatalog(std::unique_ptr<Catalog> inner, std::shared_ptr<CatalogFaults> faults)
      : inner_(std::move(inner)), faults_(std::move(faults)) {}

  Status Apply(const std::vector<Row>& rows) override {
    return faults_->Run<Status>(CatalogCall::kApply, [&] { return inner_->Apply(rows); });
  }
  StatusOr<std::optional<JobRow>> Job(const std::string& job) override {
    return faults_->Run<StatusOr<std::optional<JobRow>>>(CatalogCall::kJob,
                                                         [&] { return inner_->Job(job); });
  }
  StatusOr<std::vector<std::string>> Jobs() override {
    return faults_->Run<StatusOr<std::vector<std::string>>>(CatalogCall::kJobs,
                                                            [&] { return inner_->Jobs(); });
  }
  StatusOr<std::vector<JobRow>> JobsAfter(const std::string& after, int limit) override {
    return faults_->Run<StatusOr<std::vector<JobRow>>>(
        CatalogCall::kJobsAfter, [&] { return inner_->JobsAfter(after, limit); });
  }
  StatusOr<std::vector<AttemptRow>> Attempts(const std::string& job) override {
    return faults_->Run<StatusOr<std::vector<AttemptRow>>>(CatalogCall::kAttempts,
                                                           [&] { return inner_->Attempts(job); });
  }
  StatusOr<std::vector<StepRow>> Steps(const std::string& job, Step below, int limit) override {
    return faults_->Run<StatusOr<std::vector<StepRow>>>(
        CatalogCall::kSteps, [&] { return inner_->Steps(job, below, limit); });
  }
  StatusOr<int64_t> NewestSequence() override {
    return faults_->Run<StatusOr<int64_t>>(CatalogCall::kNewest,
                                           [&] { return inner_->NewestSequence(); });
  }
  StatusOr<std::vector<CheckpointKey>> Present(const std::string& job, const CheckpointKey& after,
                                               int limit) override {
    return faults_->Run<StatusOr<std::vector<CheckpointKey>>>(
        CatalogCall::kPresent, [&] { return inner_->Present(job, after, limit); });
  }
  StatusOr<std::vector<PartRow>> Parts(const CheckpointKey& checkpoint) override {
    return faults_->Run<StatusOr<std::vector<PartRow>>>(CatalogCall::kParts,
                                                        [&] { return inner_->Parts(checkpoint); });
  }
  StatusOr<std::vector<HolderRow>> Holders(const CheckpointKey& checkpoint) override {
    return faults_->Run<StatusOr<std::vector<HolderRow>>>(
        CatalogCall::kHolders, [&] { return inner_->Holders(checkpoint); });
  }
  StatusOr<std::vector<LineRow>> LineRecords(const std::string& job) override {
    return faults_->Run<StatusOr<std::vector<LineRow>>>(CatalogCall::kLineRecords,
                                                        [&] { return inner_->LineRecords(job); });
  }
  StatusOr<std::optional<StepRow>> Latest(const std::string& job) override {
    return faults_->Run<StatusOr<std::optional<StepRow>>>(CatalogCall::kLatest,
                                                          [&] { return inner_->Latest(job); });
  }
  StatusOr<std::vector<HolderCount>> HolderCounts(const CheckpointKey& checkpoint) override {
    return faults_->Run<StatusOr<std::vector<HolderCount>>>(
        CatalogCall::kHolderCounts, [&] { return inner_->HolderCounts(checkpoint); });
  }
  StatusOr<std::vector<AuthorRow>> Authors() override {
    return faults_->Run<StatusOr<std::vector<AuthorRow>>>(CatalogCall::kAuthors,
                                                          [&] { return inner_->Authors(); });
  }
  StatusOr<int64_t> Marked() override {
    return faults_->Run<StatusOr<int64_t>>(CatalogCall::kMarked, [&] { return inner_->Marked(); });
  }

 private:
  const std::unique_ptr<Catalog> inner_;
  const std::shared_ptr<CatalogFaults> faults_;
};

}  // namespace

std::unique_ptr<Catalog> MakeFaultyCatalog(std::unique_ptr<Catalog> inner,
                                           std::shared_ptr<CatalogFaults> faults) {
  return std::make_unique<FaultyCatalog>(std::move(inner), std::move(faults));
}

}  // namespace cairn::catalog
