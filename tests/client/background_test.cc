#include "client/cpp/background.h"

#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <set>
#include <stdexcept>
#include <thread>

#include "client/cpp/copy_threads.h"
#include "common/mutex.h"
#include "gtest/gtest.h"
#include "tests/support/await.h"

namespace cairn::client {
namespace {

// Lets work go on when the test says so.
class Gate {
 public:
  void Open() {
    MutexLock lock(&mu_);
    open_ = true;
    changed_.NotifyAll();
  }
  void Pass() {
    MutexLock lock(&mu_);
    while (!open_) changed_.Wait(&mu_);
  }

 private:
  Mutex mu_;
  CondVar changed_;
  bool open_ ABSL_GUARDED_BY(mu_) = false;
};

TEST(Background, WaitTellsWhetherItHasEndedAndStatusHow) {
  Gate gate;
  Background work([&](const std::atomic<bool>&) {
    gate.Pass();
    return absl::DataLossError("as it went");
  });
  EXPECT_FALSE(work.Wait(absl::ZeroDuration()));
  EXPECT_FALSE(work.Wait(absl::Milliseconds(10)));
  gate.Open();
  EXPECT_TRUE(work.Wait(absl::InfiniteDuration()));
  EXPECT_TRUE(work.Wait(absl::ZeroDuration()));
  EXPECT_EQ(work.status(), absl::DataLossError("as it went"));
}

TEST(Background, AnExceptionIsAStatus) {
  Background work([](const std::atomic<bool>&) -> Status { throw std::runtime_error("oh"); });
  EXPECT_TRUE(work.Wait(absl::InfiniteDuration()));
  EXPECT_FALSE(work.status().ok());
}

TEST(Background, DestroyingItHurriesAndWaits) {
  std::atomic<bool> ended{false};
  {
    Background work([&](const std::atomic<bool>& beside) {
      while (beside) std::this_thread::yield();
      ended = true;
      return absl::OkStatus();
    });
    EXPECT_FALSE(work.Wait(absl::Milliseconds(5)));
  }
  EXPECT_TRUE(ended);
}

TEST(Background, ItsThreadTakesNoSignalOfTheProcess) {
  sigset_t mask;
  Background work([&](const std::atomic<bool>&) {
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    return absl::OkStatus();
  });
  EXPECT_TRUE(work.Wait(absl::InfiniteDuration()));
  EXPECT_EQ(sigismember(&mask, SIGINT), 1);
  EXPECT_EQ(sigismember(&mask, SIGTERM), 1);
  sigset_t own;
  pthread_sigmask(SIG_SETMASK, nullptr, &own);
  EXPECT_EQ(sigismember(&own, SIGINT), 0);
}

TEST(CopyThreads, HelpersStayOutWhileItIsBesideAndJoinWhenItIsNotAnyMore) {
  CopyThreads threads(4);
  std::atomic<bool> beside{true};
  Mutex mu;
  std::set<std::thread::id> before, after;
  std::atomic<int> done{0};
  threads.Run(
      200,
      [&](size_t i) {
        if (i == 100) beside = false;
        {
          MutexLock lock(&mu);
          (i < 100 ? before : after).insert(std::this_thread::get_id());
        }
        // A helper may join late.
        EXPECT_TRUE(i != 101 || testing::Await([&] {
                      MutexLock lock(&mu);
                      return after.size() > 1;
                    }));
        ++done;
      },
      &beside);
  EXPECT_EQ(done, 200);
  EXPECT_EQ(before.size(), 1u);
  EXPECT_EQ(before.count(std::this_thread::get_id()), 1u);
  EXPECT_GT(after.size(), 1u);
}

TEST(CopyThreads, WorkThatIsBesideToTheEndIsDoneByTheCallerAlone) {
  CopyThreads threads(4);
  const std::atomic<bool> beside{true};
  int done = 0;  // not guarded: ThreadSanitizer would see another thread
  threads.Run(
      50, [&](size_t) { ++done; }, &beside);
  EXPECT_EQ(done, 50);
}

}  // namespace
}  // namespace cairn::client
