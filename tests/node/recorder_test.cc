#include "server/node/recorder.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <set>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/node/recorder_fixture.h"
#include "tests/support/await.h"

namespace cairn::node {
namespace {

TEST(Recorder, WritesWhatItIsGivenInBatches) {
  Database database;
  Recorder recorder(Fast(), Opening(&database), RealClock(), nullptr);
  std::vector<catalog::Row> rows;
  for (int i = 0; i < 35; ++i) rows.push_back(JobOf("job" + std::to_string(i), i + 1));
  recorder.Put(rows);
  database.WaitRows(35);
  recorder.Flush(10'000);
  EXPECT_EQ(recorder.State(), "sqlite: up to date");
}

TEST(Recorder, AnOutageCostsOneRowPerThingAndNewerOnesWin) {
  Database database;
  database.faults->Add(
      {.call = CatalogCall::kApply, .error = absl::UnavailableError("the database is away")});
  Recorder recorder(Fast(), Opening(&database), RealClock(), nullptr);
  recorder.Put({JobOf("job", 1, 1)});
  database.faults->WaitForCalls(CatalogCall::kApply, 2);
  for (int i = 2; i <= 1000; ++i) recorder.Put({JobOf("job", i, static_cast<uint32_t>(i))});
  EXPECT_NE(recorder.State().find("behind by"), std::string::npos) << recorder.State();
  database.faults->Clear();
  // What was under way may be written first.
  database.rows->WaitUntil([](const Rows& held) {
    return held.size() == 1 && std::get<catalog::JobRow>(held.begin()->second).owner_uid == 1000;
  });
}

class ClockAt : public Clock {
 public:
  explicit ClockAt(int64_t unix_ms) : unix_ms_(unix_ms) {}
  MonotonicNanos Now() const override { return RealClock()->Now(); }
  int64_t UnixMillis() const override { return unix_ms_; }

 private:
  const int64_t unix_ms_;
};

TEST(Recorder, ALaterLifesRowsWinWhateverTheClockSays) {
  constexpr int64_t kIn2030 = 1'900'000'000'000;
  constexpr int64_t kYear = 365LL * 24 * 3600 * 1000;
  Database database;
  // As earlier versions counted: seconds, then a count.
  ASSERT_TRUE(database.Open()->Apply({JobOf("job", (kIn2030 / 1000) << 32, 1)}).ok());
  uint32_t life = 1;
  for (const int64_t unix_ms : {kIn2030, kIn2030 - kYear, kIn2030 + 200 * kYear, int64_t{0}}) {
    ClockAt clock(unix_ms);
    Recorder recorder(Fast(), Opening(&database), &clock, nullptr);
    recorder.Put({JobOf("job", 1, ++life)});
    database.rows->WaitUntil([life](const Rows& held) {
      const auto& row = std::get<catalog::JobRow>(held.begin()->second);
      return row.owner_uid == life && row.sequence > 0;
    });
  }
}

// In a ring two catalogs may have taken rows of one writer: its incarnation orders them, not a clock.
TEST(Recorder, InARingALaterIncarnationsRowsWin) {
  constexpr int64_t kIncarnation = 1'800'000'000'000;
  ClockAt clock(1'900'000'000'000);
  Database database;
  const auto sequence = [&database](uint32_t uid) {
    int64_t found = 0;
    database.rows->WaitUntil([&](const Rows& held) {
      if (held.empty()) return false;
      const auto& row = std::get<catalog::JobRow>(held.begin()->second);
      found = row.sequence;
      return row.owner_uid == uid;
    });
    return found;
  };
  Recorder recorder(Fast(), Opening(&database), &clock, nullptr);
  recorder.SetIncarnation(kIncarnation);
  recorder.Put({JobOf("job", 1, 1)});
  EXPECT_EQ(sequence(1), (kIncarnation << 20) + 1);
  recorder.SetIncarnation(kIncarnation + 5);  // it was told of a greater one, and took the next
  recorder.Put({JobOf("job", 2, 2)});
  EXPECT_EQ(sequence(2), ((kIncarnation + 5) << 20) + 2);
}

class MovingClock : public Clock {
 public:
  MonotonicNanos Now() const override { return RealClock()->Now(); }
  int64_t UnixMillis() const override { return unix_ms_ += 3'600'000; }

 private:
  mutable std::atomic<int64_t> unix_ms_ = 1'900'000'000'000;
};

// A part's row that waited must not win over its step's removal that was written before.
TEST(Recorder, RowsThatWaitKeepTheirPlaceWhenTheCatalogIsOpenedAgain) {
  Database database;
  MovingClock clock;
  std::atomic<int> opens{0};
  const OpenCatalog open = [&]() -> StatusOr<std::unique_ptr<catalog::Catalog>> {
    ++opens;
    return database.Open();
  };
  Recorder recorder(Fast(), open, &clock, nullptr);
  recorder.Put({JobOf("first", 1)});
  database.WaitRows(1);
  recorder.Flush(10'000);
  database.faults->Add({.call = CatalogCall::kApply, .error = absl::InternalError("a bad answer")});
  recorder.Put({JobOf("second", 2)});
  database.faults->WaitForCalls(CatalogCall::kApply, 2);
  database.faults->Clear();
  database.WaitRows(2);
  EXPECT_GT(opens, 1);
  database.rows->WaitUntil([](const Rows& held) {
    std::vector<int64_t> sequences;
    for (const auto& [identity, row] : held) {
      sequences.push_back(std::get<catalog::JobRow>(row).sequence);
    }
    EXPECT_EQ(std::abs(sequences[0] - sequences[1]), 1);
    return true;
  });
}

TEST(Recorder, AnOutageOfAnyLengthCostsNoMoreThanTheBound) {  // promise 8
  RecorderOptions options = Fast();
  options.max_rows = 100;
  Database database;
  LiveJob job;
  Recorder recorder(options, Opening(&database), RealClock(), &job);
  recorder.Put({JobOf("job", 0), job.Save(0), job.Save(1)});
  database.WaitRows(3);
  database.faults->Add({.error = absl::UnavailableError("the database is away")});
  recorder.Put({job.Remove(0)});
  for (Step step = 2; step < 100'000; ++step) {
    if (recorder.Wanted())
      recorder.Put({job.Save(step)});
    else
      job.Save(step);
    if (step > 2) recorder.Put({job.Remove(step - 1)});
    ASSERT_LE(recorder.waiting(), 100U);
  }
  EXPECT_NE(recorder.State().find("written anew"), std::string::npos) << recorder.State();
  database.faults->Clear();
  database.rows->WaitUntil([](const Rows& held) { return Shows(held, {1, 99'999}); });
  recorder.Put({job.Save(100'000)});
  database.rows->WaitUntil([](const Rows& held) { return Shows(held, {1, 99'999, 100'000}); });
  recorder.Flush(10'000);
  EXPECT_EQ(recorder.State(), "sqlite: up to date");
}

// What the last life removed just before it died.
TEST(Recorder, WhatIsGoneIsMarkedOnceItsJobIsKnownThoughNothingElseIsWritten) {
  Database database;
  LiveJob job;
  {
    Recorder before(Fast(), Opening(&database), RealClock(), &job);
    before.Put({JobOf("job", 0), job.Save(1), job.Save(2)});
    database.WaitRows(3);
    before.Flush(10'000);
  }
  job.Remove(1);
  job.SetScanned(false);
  Recorder recorder(Fast(), Opening(&database), RealClock(), &job);
  recorder.Begin();
  recorder.Flush(10'000);
  database.rows->WaitUntil([](const Rows& held) {
    EXPECT_TRUE(Shows(held, {1, 2})) << "it may be in storage";
    return true;
  });
  job.SetScanned(true);
  recorder.Look("job");
  database.rows->WaitUntil([](const Rows& held) { return Shows(held, {2}); });
}

// Nobody says that more of the job is known by now, and there is always something else to write.
TEST(Recorder, WhatWasNotKnownIsLookedAtAgainHoweverMuchIsWritten) {
  Database database;
  LiveJob job;
  {
    Recorder before(Fast(), Opening(&database), RealClock(), &job);
    before.Put({JobOf("job", 0), job.Save(1), job.Save(2)});
    database.WaitRows(3);
    before.Flush(10'000);
  }
  job.Remove(1);
  job.SetScanned(false);
  RecorderOptions options = Fast();
  // Far longer than a busy machine keeps the writer below from its turn.
  options.look_again_ms = 200;
  Recorder recorder(options, Opening(&database), RealClock(), &job);
  recorder.Begin();
  std::atomic<bool> done = false;
  std::thread busy([&] {
    while (!done) {
      recorder.Put({job.Save(2)});
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  const bool again = testing::Await([&] { return job.asked() >= 3; });
  job.SetScanned(true);
  if (again) database.rows->WaitUntil([](const Rows& held) { return Shows(held, {2}); });
  const int asked = job.asked();
  done = true;
  busy.join();
  ASSERT_TRUE(again) << "it was looked at " << asked << " times";
  recorder.Flush(10'000);
  EXPECT_LE(job.asked(), asked + 1) << "all of it was known then";
}

// The file was damaged, moved aside and made anew: what was written before is in it again.
TEST(Recorder, ACatalogThatIsMadeAnewWhileTheDaemonLivesIsFilledAgain) {
  Database first, second;
  std::atomic<bool> damaged = false;
  LiveJob job;
  const OpenCatalog open = [&]() -> StatusOr<std::unique_ptr<catalog::Catalog>> {
    return damaged ? second.Open() : first.Open();
  };
  Recorder recorder(Fast(), open, RealClock(), &job);
  recorder.Put({JobOf("job", 0), job.Save(1), job.Save(2)});
  first.WaitRows(3);
  first.faults->Add({.error = absl::DataLossError("the database is malformed")});
  damaged = true;
  recorder.Put({job.Save(3)});
  second.rows->WaitUntil([](const Rows& held) { return Shows(held, {1, 2, 3}); });
}

// Somebody put another copy in its place, with rows of a later time.
TEST(Recorder, ACatalogThatIsAheadIsWrittenAnewAboveWhatItHolds) {
  Database first, second;
  std::atomic<bool> damaged = false;
  LiveJob job;
  const OpenCatalog open = [&]() -> StatusOr<std::unique_ptr<catalog::Catalog>> {
    return damaged ? second.Open() : first.Open();
  };
  Recorder recorder(Fast(), open, RealClock(), &job);
  recorder.Put({JobOf("job", 0), job.Save(1)});
  first.WaitRows(2);
  constexpr int64_t kAhead = int64_t{1} << 62;
  ASSERT_TRUE(second.Open()->Apply({JobOf("job", kAhead), JobOf("other", kAhead + 5)}).ok());
  first.faults->Add({.error = absl::DataLossError("the database is malformed")});
  damaged = true;
  recorder.Put({job.Save(2)});
  second.rows->WaitUntil([](const Rows& held) {
    int newer = 0;
    for (const auto& [identity, row] : held) {
      newer += std::visit([](const auto& r) { return r.sequence; }, row) > kAhead + 5;
    }
    return Shows(held, {1, 2}) && newer == 3;
  });
}

TEST(Recorder, WithoutACatalogNothingIsKept) {
  Recorder recorder(Fast(), nullptr, RealClock(), nullptr);
  recorder.Put({JobOf("job", 1)});
  recorder.Flush(10'000);
  EXPECT_EQ(recorder.State(), "off");
}

TEST(Recorder, ACatalogThatDoesNotOpenIsTriedAgain) {
  Database database;
  std::atomic<int> opens{0};
  const OpenCatalog open = [&]() -> StatusOr<std::unique_ptr<catalog::Catalog>> {
    if (++opens < 3) return absl::UnavailableError("not yet");
    return database.Open();
  };
  Recorder recorder(Fast(), open, RealClock(), nullptr);
  recorder.Put({JobOf("job", 1)});
  database.WaitRows(1);
  EXPECT_EQ(opens.load(), 3);
}

// R21: the answer to a COMMIT is lost, and the connection with it. What is found there is the recorder's own.
TEST(Recorder, WhatMayHaveBeenWrittenIsSaidAgainAndTakenForNobodyElses) {
  Database database;
  LiveJob job;
  database.faults->Add({.kind = testing::FaultKind::kMaybeHappened,
                        .call = CatalogCall::kApply,
                        .times = 1,
                        .error = absl::InternalError("the connection is gone")});
  Recorder recorder(Fast(), Opening(&database), RealClock(), &job);
  recorder.Put({JobOf("job", 0), job.Save(1)});
  database.faults->WaitForCalls(CatalogCall::kApply, 2);
  recorder.Put({job.Save(2)});
  database.rows->WaitUntil([](const Rows& held) { return Shows(held, {1, 2}); });
  recorder.Flush(10'000);
  EXPECT_EQ(recorder.State(), "sqlite: up to date");
  EXPECT_EQ(job.read(), 0) << "all of it was written anew";
}

}  // namespace
}  // namespace cairn::node
