// How a member of a ring says how far it has come, and finds out that the catalog has forgotten it.
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "gtest/gtest.h"
#include "tests/node/recorder_fixture.h"
#include "tests/support/await.h"

namespace cairn::node {
namespace {

// A member of a ring, which says of itself how far it has come.
class MarkedJob : public LiveJob {
 public:
  std::optional<catalog::AuthorRow> Mark() override {
    return catalog::AuthorRow{.used_bytes = 5, .sequence = NextPlace()};
  }
};

const catalog::AuthorRow* MarkIn(const Rows& held) {
  for (const auto& [identity, row] : held) {
    if (const auto* mark = std::get_if<catalog::AuthorRow>(&row)) return mark;
  }
  return nullptr;
}

// Whether the rows become so.
bool Come(Database* database, const std::function<bool(const Rows&)>& holds) {
  return testing::Await([&] { return holds(database->rows->Copy()); });
}

RecorderOptions Marking() {
  RecorderOptions options = Fast();
  options.mark_ms = 20;
  return options;
}

TEST(Recorder, AMemberSaysAgainAndAgainHowFarItHasCome) {
  Database database;
  MarkedJob job;
  Recorder recorder(Marking(), Opening(&database), RealClock(), &job);
  recorder.Begin();
  int64_t first = 0;
  database.rows->WaitUntil([&](const Rows& held) {
    if (const auto* mark = MarkIn(held)) first = mark->sequence;
    return first != 0;
  });
  database.rows->WaitUntil([&](const Rows& held) { return MarkIn(held)->sequence > first; });
  recorder.Put({JobOf("job", 0), job.Save(1)});
  database.rows->WaitUntil([](const Rows& held) { return Shows(held, {1}); });
  recorder.Flush(10'000);
  EXPECT_EQ(recorder.State(), "sqlite: up to date");
}

// While nothing changes. What was written after the copy was made is there again.
TEST(Recorder, ADatabaseThatWasRestoredFromAnOlderCopyIsFilledAnew) {
  Database database;
  MarkedJob job;
  Recorder recorder(Marking(), Opening(&database), RealClock(), &job);
  recorder.Put({JobOf("job", 0), job.Save(1)});
  database.rows->WaitUntil(
      [](const Rows& held) { return Shows(held, {1}) && MarkIn(held) != nullptr; });
  const Rows older = database.rows->Copy();
  recorder.Put({job.Save(2)});
  recorder.Put({job.Remove(1)});
  int64_t marked = 0;
  database.rows->WaitUntil([&](const Rows& held) {
    marked = MarkIn(held)->sequence;
    return Shows(held, {2}) && marked > MarkIn(older)->sequence;
  });
  database.rows->Restore(older);
  EXPECT_TRUE(Come(&database, [](const Rows& held) { return Shows(held, {2}); }));
  EXPECT_TRUE(Come(&database, [&](const Rows& held) { return MarkIn(held)->sequence > marked; }));
}

TEST(Recorder, ADatabaseThatIsAwayIsNoticedThoughNothingIsToBeWritten) {
  Database database;
  MarkedJob job;
  Recorder recorder(Marking(), Opening(&database), RealClock(), &job);
  recorder.Begin();
  database.rows->WaitUntil([](const Rows& held) { return MarkIn(held) != nullptr; });
  database.faults->Add({.error = absl::UnavailableError("the database is away")});
  EXPECT_TRUE(testing::Await([&] {
    return recorder.State().find("the database is away") != std::string::npos;
  })) << recorder.State();
}

// Alone nobody restores another one's copy, and nothing is written while nothing happens.
TEST(Recorder, WhoSaysNothingOfItselfIsAskedOnce) {
  Database database;
  LiveJob job;
  Recorder recorder(Marking(), Opening(&database), RealClock(), &job);
  recorder.Put({JobOf("job", 0), job.Save(1)});
  database.rows->WaitUntil([](const Rows& held) { return Shows(held, {1}); });
  recorder.Flush(10'000);
  const int before = database.faults->Calls(CatalogCall::kApply);
  // In the time in which a member marks four times.
  Database members;
  MarkedJob member;
  Recorder beside(Marking(), Opening(&members), RealClock(), &member);
  beside.Begin();
  members.faults->WaitForCalls(CatalogCall::kMarked, 3);
  EXPECT_EQ(database.faults->Calls(CatalogCall::kApply), before);
}

}  // namespace
}  // namespace cairn::node
