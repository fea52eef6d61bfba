// Standing mappings of a session, against the real daemon: how a session that closes gives them up, and what it leaves
// where it cannot.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "client/cpp/session.h"
#include "client/cpp/standing.h"
#include "common/mutex.h"
#include "tests/support/await.h"
#include "tests/support/daemon_fixture.h"
#include "tests/support/measure.h"

namespace cairn::client {
namespace {

using testing::Must;
using Json = nlohmann::json;

constexpr uint64_t kBytes = 8 << 20;  // a slab each

// Who keeps mappings until they are wanted back.
class Keeper {
 public:
  // Returns why not.
  Status Keep(const StandingPlace& place) {
    MutexLock lock(&mutex_);
    const size_t number = kept_.size();
    kept_.emplace_back();
    CAIRN_ASSIGN_OR_RETURN(kept_[number], place.map([this, number] { Drop(number); }));
    return absl::OkStatus();
  }
  // As where the device does not give the pages back.
  void Leak() {
    MutexLock lock(&mutex_);
    for (auto& mapping : kept_) leaked_.push_back(mapping.release());
  }
  // Once nothing of it counts any more.
  void Free() {
    for (StandingMapping* mapping : leaked_) delete mapping;
    leaked_.clear();
  }

 private:
  void Drop(size_t number) {
    std::unique_ptr<StandingMapping> mapping;
    MutexLock lock(&mutex_);
    mapping = std::move(kept_[number]);
  }

  Mutex mutex_;
  std::vector<std::unique_ptr<StandingMapping>> kept_ ABSL_GUARDED_BY(mutex_);
  std::vector<StandingMapping*> leaked_;
};

class StandingMapsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    daemon_ = Must(testing::Daemon::Start());
    writer_ = Must(Session::Connect(daemon_->Client(job_)));
  }
  std::shared_ptr<Session> Reader() {
    ConnectOptions options = daemon_->Client(job_);
    options.writer = -1;
    options.attempt = 0;
    options.world_size = 0;
    return Must(Session::Connect(options));
  }
  std::unique_ptr<OpenObject> SaveAndOpen(Session* reader, Step step) {
    const std::string bytes(kBytes, static_cast<char>('a' + step % 26));
    auto part = Must(writer_->BeginStep(step));
    const Source source{bytes.data(), bytes.size()};
    Must(part->Write("model", ObjectKind::kRaw, {&source, 1}));
    Must(part->Commit({}));
    CheckpointRef ref;
    ref.step = step;
    return Must(reader->Open(ref, "model", OpenMode::kRead));
  }
  Json NodeStatus() { return Json::parse(Must(daemon_->StatusJson())); }
  int64_t Counter(const std::string& name) {
    return NodeStatus()["counters"].value(name, int64_t{0});
  }
  // Sessions of the job beside the writer's.
  size_t Readers() {
    size_t count = 0;
    const Json status = NodeStatus();
    for (const Json& session : status["sessions"]) count += session["job"] == job_ ? 1 : 0;
    return count - 1;
  }

  const std::string job_ = ::testing::UnitTest::GetInstance()->current_test_info()->name();
  std::unique_ptr<testing::Daemon> daemon_;
  std::shared_ptr<Session> writer_;
};

TEST_F(StandingMapsTest, ASessionThatClosesGivesThemUp) {
  Keeper keeper;
  const auto reader = Reader();
  const auto first = SaveAndOpen(reader.get(), 1), second = SaveAndOpen(reader.get(), 2);
  Must(keeper.Keep(first->standing()));
  Must(keeper.Keep(second->standing()));
  reader->Close();
  ASSERT_TRUE(testing::Await([&] { return Readers() == 0; }));
  EXPECT_EQ(Counter("slabs_condemned"), 0);
}

// Bug: each was told of by itself, two seconds each.
TEST_F(StandingMapsTest, ASessionThatClosesWithoutADaemonDoesNotWaitForEach) {
  Keeper keeper;
  const auto reader = Reader();
  for (Step step = 1; step <= 24; ++step) {
    const auto object = SaveAndOpen(reader.get(), step);
    Must(keeper.Keep(object->standing()));
  }
  Must(daemon_->KillEverything());
  EXPECT_LT(testing::Seconds([&] { reader->Close(); }), 6 * testing::PatienceFactor());
}

// Bug: a goodbye said that no device has what this process could not give up.
TEST_F(StandingMapsTest, WhatASessionThatClosesCannotGiveUpIsNotUsedAnew) {
  // In some of them the call of the thread that waits at the daemon begins when the session has just ended: it
  // began another one, and that one stayed.
  for (int round = 1; round <= 20; ++round) {
    Keeper keeper;
    const auto reader = Reader();
    auto object = SaveAndOpen(reader.get(), round);
    Must(keeper.Keep(object->standing()));
    keeper.Leak();
    object.reset();
    reader->Close();
    ASSERT_TRUE(testing::Await([&] { return Counter("slabs_condemned") == round; }));
    ASSERT_TRUE(testing::Await([&] { return Readers() == 0; }));  // though its process lives
    keeper.Free();
  }
}

// Bug: the call that waited at the daemon was answered when the session ended, and began another.
TEST_F(StandingMapsTest, ASessionThatClosesLeavesNone) {
  std::vector<std::unique_ptr<OpenObject>> open;  // which keep what their sessions are made of
  for (Step step = 1; step <= 30; ++step) {
    Keeper keeper;
    const auto reader = Reader();
    open.push_back(SaveAndOpen(reader.get(), step));
    Must(keeper.Keep(open.back()->standing()));
    // In every second one the call waits at the daemon by then.
    if (step % 2 == 0) {
      ASSERT_TRUE(testing::Await([&] { return Counter("waiting_calls") > 0; }));
    }
    reader->Close();
    if (open.size() > 4) open.erase(open.begin());
  }
  ASSERT_TRUE(testing::Await([&] { return Readers() == 0; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_EQ(Readers(), 0u);
}

// Bug: a call that came when its session had just ended began another.
TEST_F(StandingMapsTest, ASessionThatClosesDuringCallsLeavesNone) {
  constexpr int kThreads = 8, kRounds = 100;
  std::vector<std::shared_ptr<Session>> closed;  // which keep what another session would be made of
  for (int round = 0; round < kRounds; ++round) {
    Session* reader = closed.emplace_back(Reader()).get();
    std::atomic<int> calling = 0;
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&] {
        if (reader->ProposeAttempt().ok()) ++calling;
        while (reader->ProposeAttempt().ok()) {
        }
      });
    }
    EXPECT_TRUE(testing::Await([&] { return calling == kThreads; }));
    reader->Close();
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_TRUE(testing::Await([&] { return Readers() == 0; }));
}

// What waits to be registered keeps no version in memory.
TEST_F(StandingMapsTest, OfAnObjectThatIsClosedThereIsNone) {
  Keeper keeper;
  const auto reader = Reader();
  auto object = SaveAndOpen(reader.get(), 1);
  const StandingPlace place = object->standing();
  object.reset();
  EXPECT_EQ(keeper.Keep(place).code(), absl::StatusCode::kCancelled);
  reader->Close();
}

}  // namespace
}  // namespace cairn::client
