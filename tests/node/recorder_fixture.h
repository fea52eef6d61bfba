// A recorder's catalog, which can be away, and what an engine knows of one job.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/mutex.h"
#include "server/node/recorder.h"
#include "tests/catalog/faulty_catalog.h"
#include "tests/catalog/memory_catalog.h"

namespace cairn::node {

using cairn::catalog::CatalogCall;
using Rows = cairn::catalog::MemoryRows::ByIdentity;

// A catalog in memory that can be away.
struct Database {
  const std::shared_ptr<catalog::MemoryRows> rows = std::make_shared<catalog::MemoryRows>();
  const std::shared_ptr<catalog::CatalogFaults> faults = std::make_shared<catalog::CatalogFaults>();

  void WaitRows(size_t count) {
    rows->WaitUntil([count](const Rows& held) { return held.size() >= count; });
  }
  std::unique_ptr<catalog::Catalog> Open() const {
    return catalog::MakeFaultyCatalog(catalog::OpenMemoryCatalog(rows), faults);
  }
};

inline OpenCatalog Opening(Database* database) {
  return [database]() -> StatusOr<std::unique_ptr<catalog::Catalog>> { return database->Open(); };
}

inline RecorderOptions Fast() { return {.batch_rows = 10, .retry_min_ms = 1, .retry_max_ms = 2}; }

inline catalog::JobRow JobOf(const std::string& job, int64_t sequence, uint32_t uid = 0) {
  catalog::JobRow row;
  row.job = job;
  row.owner_uid = uid;
  row.sequence = sequence;
  return row;
}

// What an engine knows of one job, and the order of its rows.
class LiveJob : public RowSource {
 public:
  std::vector<std::string> Jobs() override { return {"job"}; }
  std::vector<CheckpointKey> Checkpoints(const CheckpointKey& after, int limit) override {
    MutexLock lock(&mu_);
    std::vector<CheckpointKey> keys;
    for (auto at = live_.upper_bound(after.step);
         at != live_.end() && keys.size() < static_cast<size_t>(limit); ++at) {
      keys.push_back(KeyOf(*at));
    }
    return keys;
  }
  std::vector<catalog::Row> Rows(const std::string&,
                                 const std::vector<CheckpointKey>& keys) override {
    MutexLock lock(&mu_);
    ++read_;
    std::vector<catalog::Row> rows = {JobOf("job", ++order_)};
    for (const CheckpointKey& key : keys) rows.push_back(RowOf(key.step));
    return rows;
  }
  Knowledge KnowledgeOf(const std::string&) override {
    MutexLock lock(&mu_);
    ++asked_;
    return scanned_ ? Knowledge::kAll : Knowledge::kSome;
  }
  std::vector<catalog::Row> Gone(const std::string&, const std::vector<CheckpointKey>& keys,
                                 bool /*left*/) override {
    MutexLock lock(&mu_);
    std::vector<catalog::Row> rows;
    if (!scanned_) return rows;
    for (const CheckpointKey& key : keys) {
      if (!live_.contains(key.step)) rows.push_back(RowOf(key.step));
    }
    return rows;
  }

  catalog::Row Save(Step step) {
    MutexLock lock(&mu_);
    live_.insert(step);
    return RowOf(step);
  }
  catalog::Row Remove(Step step) {
    MutexLock lock(&mu_);
    live_.erase(step);
    return RowOf(step);
  }
  void SetScanned(bool scanned) {
    MutexLock lock(&mu_);
    scanned_ = scanned;
  }
  // How often what is known of it was asked.
  int asked() {
    MutexLock lock(&mu_);
    return asked_;
  }
  // How often it was read, to be written anew.
  int read() {
    MutexLock lock(&mu_);
    return read_;
  }
  static CheckpointKey KeyOf(Step step) { return {"job", step, 7, 0}; }

 protected:
  int64_t NextPlace() {
    MutexLock lock(&mu_);
    return ++order_;
  }

 private:
  catalog::Row RowOf(Step step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    catalog::StepRow row;
    row.checkpoint = KeyOf(step);
    row.removed = !live_.contains(step);
    row.sequence = ++order_;
    return row;
  }

  Mutex mu_;
  bool scanned_ ABSL_GUARDED_BY(mu_) = true;
  std::set<Step> live_ ABSL_GUARDED_BY(mu_);
  int64_t order_ ABSL_GUARDED_BY(mu_) = 0;
  int asked_ ABSL_GUARDED_BY(mu_) = 0;
  int read_ ABSL_GUARDED_BY(mu_) = 0;
};

inline bool Shows(const Rows& held, const std::set<Step>& live) {
  std::set<Step> shown;
  for (const auto& [identity, row] : held) {
    const auto* step = std::get_if<catalog::StepRow>(&row);
    if (step != nullptr && !step->removed) shown.insert(step->checkpoint.step);
  }
  return shown == live;
}

}  // namespace cairn::node
