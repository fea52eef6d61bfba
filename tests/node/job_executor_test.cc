#include "server/node/job_executor.h"

#include <atomic>
#include <thread>

#include "common/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cairn::node {
namespace {

using ::testing::ElementsAre;

// A call of storage that hangs until it is let go.
class Hang {
 public:
  ~Hang() { LetGo(); }
  std::function<void()> Call() {
    return [this] {
      MutexLock lock(&mu_);
      ++inside_;
      changed_.NotifyAll();
      while (!over_) changed_.Wait(&mu_);
    };
  }
  void AwaitCalls(int calls) {
    MutexLock lock(&mu_);
    while (inside_ < calls) changed_.Wait(&mu_);
  }
  int calls() const {
    MutexLock lock(&mu_);
    return inside_;
  }
  void LetGo() {
    MutexLock lock(&mu_);
    over_ = true;
    changed_.NotifyAll();
  }

 private:
  mutable Mutex mu_;
  CondVar changed_;
  int inside_ ABSL_GUARDED_BY(mu_) = 0;
  bool over_ ABSL_GUARDED_BY(mu_) = false;
};

constexpr MonotonicNanos kLong = 60 * kNanosPerSecond;

TEST(JobExecutor, AJobThatHangsHoldsOneThreadHoweverMuchItAsksFor) {
  JobExecutor executor("test", /*threads=*/2, /*per_job=*/1);
  Hang hang;
  for (int i = 0; i < 5; ++i) executor.Add("hangs", hang.Call());
  hang.AwaitCalls(1);
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(executor.Run("other", kLong, [] {}));
  EXPECT_EQ(hang.calls(), 1);
  hang.LetGo();
  hang.AwaitCalls(5);
}

TEST(JobExecutor, TasksOfAJobRunInTheirOrder) {
  JobExecutor executor("test", /*threads=*/4, /*per_job=*/1);
  std::vector<int> ran;  // one at a time
  for (int i = 0; i < 3; ++i) executor.Add("job", [&ran, i] { ran.push_back(i); });
  EXPECT_TRUE(executor.Run("job", kLong, [&ran] { ran.push_back(3); }));
  EXPECT_THAT(ran, ElementsAre(0, 1, 2, 3));
}

TEST(JobExecutor, WhoWaitedLongEnoughGoesOnAndItsTaskIsForgottenOrEndsAlone) {
  Hang hang;
  std::atomic<int> begun = 0;
  JobExecutor executor("test", /*threads=*/1, /*per_job=*/1);
  // On a busy machine the thread may need longer than that to begin.
  while (hang.calls() == 0) EXPECT_FALSE(executor.Run("job", kNanosPerMilli, hang.Call()));
  EXPECT_FALSE(executor.Run("job", kNanosPerMilli, [&] { ++begun; }));
  EXPECT_FALSE(executor.Run("other", kNanosPerMilli, [&] { ++begun; }));
  hang.LetGo();
  EXPECT_TRUE(executor.Run("job", kLong, [] {}));
  EXPECT_EQ(begun, 0);
}

TEST(JobExecutor, StoppingEndsEveryWait) {
  Hang hang;
  JobExecutor executor("test", /*threads=*/1, /*per_job=*/1);
  std::thread running([&] { EXPECT_FALSE(executor.Run("job", kLong, hang.Call())); });
  hang.AwaitCalls(1);
  std::thread waiting([&] { EXPECT_FALSE(executor.Run("job", kLong, [] { FAIL(); })); });
  std::thread stopping([&] { executor.Stop(); });
  running.join();
  waiting.join();
  hang.LetGo();
  stopping.join();
  EXPECT_FALSE(executor.Run("job", kLong, [] { FAIL(); }));
}

}  // namespace
}  // namespace cairn::node
