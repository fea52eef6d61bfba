#include "server/node/recorder.h"

#include <atomic>
#include <map>

#include "gtest/gtest.h"

namespace cairn::node {
namespace {

// A catalog that can be away, and remembers what it was given.
struct Database {
  Mutex mu;
  CondVar changed;
  bool away ABSL_GUARDED_BY(mu) = false;
  int attempts ABSL_GUARDED_BY(mu) = 0;
  std::map<std::string, catalog::Row> rows ABSL_GUARDED_BY(mu);

  void SetAway(bool value) {
    MutexLock lock(&mu);
    away = value;
  }
  void WaitAttempts(int count) {
    MutexLock lock(&mu);
    while (attempts < count) changed.Wait(&mu);
  }
  void WaitRows(size_t count) {
    MutexLock lock(&mu);
    while (rows.size() < count) changed.Wait(&mu);
  }
};

class FakeCatalog : public catalog::Catalog {
 public:
  explicit FakeCatalog(Database* database) : database_(database) {}
  Status Apply(const std::vector<catalog::Row>& rows) override {
    MutexLock lock(&database_->mu);
    ++database_->attempts;
    database_->changed.NotifyAll();
    if (database_->away) return absl::UnavailableError("the database is away");
    for (const catalog::Row& row : rows) database_->rows[catalog::RowIdentity(row)] = row;
    return absl::OkStatus();
  }
  StatusOr<std::optional<catalog::JobRow>> Job(const std::string&) override {
    return std::optional<catalog::JobRow>();
  }
  StatusOr<std::vector<std::string>> Jobs() override { return std::vector<std::string>(); }
  StatusOr<std::vector<catalog::AttemptRow>> Attempts(const std::string&) override {
    return std::vector<catalog::AttemptRow>();
  }
  StatusOr<std::vector<catalog::StepRow>> Steps(const std::string&, Step, int) override {
    return std::vector<catalog::StepRow>();
  }
  StatusOr<std::vector<catalog::PartRow>> Parts(const CheckpointKey&) override {
    return std::vector<catalog::PartRow>();
  }

 private:
  Database* const database_;
};

OpenCatalog Opening(Database* database) {
  return [database]() -> StatusOr<std::unique_ptr<catalog::Catalog>> {
    return std::make_unique<FakeCatalog>(database);
  };
}

RecorderOptions Fast() { return {.batch_rows = 10, .retry_min_ms = 1, .retry_max_ms = 2}; }

catalog::JobRow JobOf(const std::string& job, int64_t sequence, uint32_t uid = 0) {
  catalog::JobRow row;
  row.job = job;
  row.owner_uid = uid;
  row.sequence = sequence;
  return row;
}

TEST(Recorder, WritesWhatItIsGivenInBatches) {
  Database database;
  Recorder recorder(Fast(), Opening(&database));
  std::vector<catalog::Row> rows;
  for (int i = 0; i < 35; ++i) rows.push_back(JobOf("job" + std::to_string(i), i + 1));
  recorder.Put(rows);
  database.WaitRows(35);
  recorder.Flush(10'000);
  EXPECT_EQ(recorder.State(), "sqlite: up to date");
}

TEST(Recorder, AnOutageCostsOneRowPerThingAndNewerOnesWin) {
  Database database;
  database.SetAway(true);
  Recorder recorder(Fast(), Opening(&database));
  recorder.Put({JobOf("job", 1, 1)});
  database.WaitAttempts(2);
  for (int i = 2; i <= 1000; ++i) recorder.Put({JobOf("job", i, static_cast<uint32_t>(i))});
  EXPECT_NE(recorder.State().find("behind by"), std::string::npos) << recorder.State();
  database.SetAway(false);
  database.WaitRows(1);
  // Wait for the newest value: what was under way may have been written first.
  for (;;) {
    recorder.Flush(10'000);
    MutexLock lock(&database.mu);
    if (std::get<catalog::JobRow>(database.rows.begin()->second).sequence == 1000) break;
    database.changed.Wait(&database.mu);
  }
}

TEST(Recorder, WithoutACatalogNothingIsKept) {
  Recorder recorder(Fast(), nullptr);
  recorder.Put({JobOf("job", 1)});
  recorder.Flush(10'000);
  EXPECT_EQ(recorder.State(), "off");
}

TEST(Recorder, ACatalogThatDoesNotOpenIsTriedAgain) {
  Database database;
  std::atomic<int> opens{0};
  Recorder recorder(Fast(), [&]() -> StatusOr<std::unique_ptr<catalog::Catalog>> {
    if (++opens < 3) return absl::UnavailableError("not yet");
    return std::make_unique<FakeCatalog>(&database);
  });
  recorder.Put({JobOf("job", 1)});
  database.WaitRows(1);
  EXPECT_EQ(opens.load(), 3);
}

}  // namespace
}  // namespace cairn::node
