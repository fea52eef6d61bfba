#include "tests/catalog/memory_catalog.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

namespace cairn::catalog {
namespace {

int64_t SequenceOf(const Row& row) {
  return std::visit([](const auto& r) { return r.sequence; }, row);
}

}  // namespace

void MemoryRows::WaitUntil(const std::function<bool(const ByIdentity&)>& holds) {
  MutexLock lock(&mu_);
  while (!holds(rows_)) changed_.Wait(&mu_);
}

class MemoryCatalog final : public Catalog {
 public:
  explicit MemoryCatalog(std::shared_ptr<MemoryRows> rows) : rows_(std::move(rows)) {}

  Status Apply(const std::vector<Row>& rows) override {
    MutexLock lock(&rows_->mu_);
    for (const Row& row : rows) {
      const auto [at, is_new] = rows_->rows_.try_emplace(RowIdentity(row), row);
      if (!is_new && SequenceOf(row) > SequenceOf(at->second)) at->second = row;
    }
    rows_->changed_.NotifyAll();
    return absl::OkStatus();
  }

  StatusOr<std::optional<JobRow>> Job(const std::string& job) override {
    const auto found = Select<JobRow>([&](const JobRow& row) { return row.job == job; });
    return found.empty() ? std::nullopt : std::make_optional(found.front());
  }

  StatusOr<std::vector<std::string>> Jobs() override {
    std::vector<std::string> jobs;
    for (const JobRow& row : Select<JobRow>([](const JobRow&) { return true; })) {
      jobs.push_back(row.job);
    }
    std::sort(jobs.begin(), jobs.end());
    return jobs;
  }

  StatusOr<std::vector<AttemptRow>> Attempts(const std::string& job) override {
    auto found = Select<AttemptRow>([&](const AttemptRow& row) { return row.job == job; });
    std::sort(found.begin(), found.end(),
              [](const AttemptRow& a, const AttemptRow& b) { return a.attempt < b.attempt; });
    return found;
  }

  StatusOr<std::vector<StepRow>> Steps(const std::string& job, Step below, int limit) override {
    auto found = Select<StepRow>([&](const StepRow& row) {
      return row.checkpoint.job == job && row.checkpoint.step < below && !row.removed;
    });
    std::sort(found.begin(), found.end(),
              [](const StepRow& a, const StepRow& b) { return b.checkpoint < a.checkpoint; });
    if (found.size() > static_cast<size_t>(limit)) found.resize(static_cast<size_t>(limit));
    return found;
  }

  StatusOr<int64_t> NewestSequence() override {
    int64_t newest = 0;
    MutexLock lock(&rows_->mu_);
    for (const auto& [identity, row] : rows_->rows_) newest = std::max(newest, SequenceOf(row));
    return newest;
  }

  StatusOr<std::vector<CheckpointKey>> Present(const std::string& job, const CheckpointKey& after,
                                               int limit) override {
    std::set<CheckpointKey> present;
    MutexLock lock(&rows_->mu_);
    for (const auto& [identity, row] : rows_->rows_) {
      CheckpointKey key;
      if (const auto* step = std::get_if<StepRow>(&row)) {
        if (step->removed) continue;
        key = step->checkpoint;
      } else if (const auto* part = std::get_if<PartRow>(&row)) {
        key = part->part.checkpoint;
        const auto of = rows_->rows_.find(RowIdentity(StepRow{.checkpoint = key}));
        const bool gone = of != rows_->rows_.end() && std::get<StepRow>(of->second).removed &&
                          SequenceOf(of->second) > part->sequence;
        if (part->removed || gone) continue;
      } else {
        continue;
      }
      if (key.job == job && after < key) present.insert(key);
    }
    std::vector<CheckpointKey> found(present.begin(), present.end());
    if (found.size() > static_cast<size_t>(limit)) found.resize(static_cast<size_t>(limit));
    return found;
  }

  StatusOr<std::vector<PartRow>> Parts(const CheckpointKey& checkpoint) override {
    auto found =
        Select<PartRow>([&](const PartRow& row) { return row.part.checkpoint == checkpoint; });
    std::sort(found.begin(), found.end(),
              [](const PartRow& a, const PartRow& b) { return a.part < b.part; });
    const auto steps =
        Select<StepRow>([&](const StepRow& row) { return row.checkpoint == checkpoint; });
    for (PartRow& part : found) {
      if (steps.empty() || !steps[0].removed || steps[0].sequence < part.sequence) continue;
      part.resident = part.persisted = false;
      part.removed = true;
      part.holders.clear();
    }
    return found;
  }

 private:
  // The rows of one kind that `wanted` holds for.
  template <typename T, typename Wanted>
  std::vector<T> Select(const Wanted& wanted) {
    std::vector<T> found;
    MutexLock lock(&rows_->mu_);
    for (const auto& [identity, row] : rows_->rows_) {
      const T* typed = std::get_if<T>(&row);
      if (typed != nullptr && wanted(*typed)) found.push_back(*typed);
    }
    return found;
  }

  const std::shared_ptr<MemoryRows> rows_;
};

std::unique_ptr<Catalog> OpenMemoryCatalog(std::shared_ptr<MemoryRows> rows) {
  return std::make_unique<MemoryCatalog>(std::move(rows));
}

}  // namespace cairn::catalog
