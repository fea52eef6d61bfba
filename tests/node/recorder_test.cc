#include "server/node/recorder.h"

#include <atomic>

#include "gtest/gtest.h"
#include "tests/catalog/faulty_catalog.h"
#include "tests/catalog/memory_catalog.h"

namespace cairn::node {
namespace {

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

OpenCatalog Opening(Database* database) {
  return [database]() -> StatusOr<std::unique_ptr<catalog::Catalog>> { return database->Open(); };
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
  database.faults->Add({.error = absl::UnavailableError("the database is away")});
  Recorder recorder(Fast(), Opening(&database));
  recorder.Put({JobOf("job", 1, 1)});
  database.faults->WaitForCalls(CatalogCall::kApply, 2);
  for (int i = 2; i <= 1000; ++i) recorder.Put({JobOf("job", i, static_cast<uint32_t>(i))});
  EXPECT_NE(recorder.State().find("behind by"), std::string::npos) << recorder.State();
  database.faults->Clear();
  // What was under way may be written first.
  database.rows->WaitUntil([](const Rows& held) {
    return held.size() == 1 && std::get<catalog::JobRow>(held.begin()->second).sequence == 1000;
  });
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
    return database.Open();
  });
  recorder.Put({JobOf("job", 1)});
  database.WaitRows(1);
  EXPECT_EQ(opens.load(), 3);
}

}  // namespace
}  // namespace cairn::node
