#include "client/cpp/process.h"

#include <cxxabi.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <exception>
#include <limits>
#include <map>
#include <new>
#include <tuple>

#include "common/mutex.h"

namespace cairn::client {
namespace {

// Entries kept per (job, attempt, writer). Steps of a training go upwards, so the lowest are dropped
// first; the daemon refuses a save that enters one of those again.
constexpr size_t kMaxCountedSteps = size_t{1} << 20;

struct ProcessState {
  Mutex mu;
  pid_t pid ABSL_GUARDED_BY(mu) = 0;
  ProcessToken token ABSL_GUARDED_BY(mu);
  std::map<std::tuple<std::string, Attempt, Writer>, std::map<Step, Revision>> entered
      ABSL_GUARDED_BY(mu);
};

// Never destroyed: sessions of static storage duration may outlive any destructor. fork() takes the
// lock first, so that a child never inherits it held by a thread that the child does not have.
ProcessState& State() {
  static ProcessState* const state = [] {
    auto* fresh = new ProcessState();
    return fresh;
  }();
  // One function takes the lock and another releases it, which the lock analysis cannot follow.
  static const int registered =
      pthread_atfork([]() ABSL_NO_THREAD_SAFETY_ANALYSIS { State().mu.lock(); },
                     []() ABSL_NO_THREAD_SAFETY_ANALYSIS { State().mu.unlock(); },
                     []() ABSL_NO_THREAD_SAFETY_ANALYSIS { State().mu.unlock(); });
  (void)registered;
  return *state;
}

// nullptr where the kernel cannot wipe a page on fork.
std::atomic<pid_t>* RememberedPid() {
  static auto* const remembered = []() -> std::atomic<pid_t>* {
    void* const page =
        mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return nullptr;
    if (madvise(page, kPageBytes, MADV_WIPEONFORK) == 0) return new (page) std::atomic<pid_t>(0);
    munmap(page, kPageBytes);
    return nullptr;
  }();
  return remembered;
}

}  // namespace

pid_t ThisPid() {
  std::atomic<pid_t>* const remembered = RememberedPid();
  if (remembered == nullptr) return getpid();
  pid_t pid = remembered->load(std::memory_order_relaxed);
  if (pid == 0) {
    pid = getpid();
    remembered->store(pid, std::memory_order_relaxed);
  }
  return pid;
}

StatusOr<ProcessToken> ThisProcess() {
  ProcessState& state = State();
  MutexLock lock(&state.mu);
  if (state.pid != getpid() || state.token.empty()) {
    std::string bytes(kProcessTokenBytes, '\0');
    size_t have = 0;
    while (have < bytes.size()) {
      const ssize_t n = getrandom(bytes.data() + have, bytes.size() - have, 0);
      if (n < 0) {
        if (errno == EINTR) continue;
        return ErrnoStatus(errno, "getrandom");
      }
      have += static_cast<size_t>(n);
    }
    state.token = std::move(bytes);
    state.pid = getpid();
  }
  return state.token;
}

Revision EnterStep(const std::string& job, Attempt attempt, Writer writer, Step step) {
  ProcessState& state = State();
  MutexLock lock(&state.mu);
  auto& steps = state.entered[{job, attempt, writer}];
  const Revision revision = steps[step]++;
  if (steps.size() > kMaxCountedSteps) steps.erase(steps.begin());
  return revision;
}

EnteredSteps StepsEntered(const std::string& job, Attempt attempt, Writer writer, size_t most) {
  ProcessState& state = State();
  MutexLock lock(&state.mu);
  EnteredSteps entered;
  const auto steps = state.entered.find({job, attempt, writer});
  if (steps == state.entered.end()) return entered;
  for (auto at = steps->second.rbegin(); at != steps->second.rend() && entered.size() < most;
       ++at) {
    entered.emplace_back(at->first, at->second);
  }
  return entered;
}

void NoteEntered(const std::string& job, Attempt attempt, Writer writer,
                 const EnteredSteps& entered) {
  if (entered.empty()) return;
  ProcessState& state = State();
  MutexLock lock(&state.mu);
  auto& steps = state.entered[{job, attempt, writer}];
  for (const auto& [step, times] : entered) steps[step] = std::max(steps[step], times);
  while (steps.size() > kMaxCountedSteps) steps.erase(steps.begin());
}

MonotonicNanos DeadlineAfter(absl::Duration timeout) {
  constexpr MonotonicNanos kFar = std::numeric_limits<MonotonicNanos>::max();
  const MonotonicNanos now = RealClock()->Now();
  const int64_t nanos = absl::ToInt64Nanoseconds(timeout);  // saturates
  return nanos > kFar - now ? kFar : now + nanos;
}

absl::Duration TimeLeft(MonotonicNanos deadline) {
  const MonotonicNanos now = RealClock()->Now();
  return deadline <= now ? absl::ZeroDuration() : absl::Nanoseconds(deadline - now);
}

Status Contain(absl::FunctionRef<Status()> body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("out of memory in the client process");
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("unexpected exception: ", e.what()));
  } catch (const abi::__forced_unwind&) {
    throw;  // a cancelled thread: this is not an error, and must be rethrown
  } catch (...) {
    return absl::InternalError("unexpected exception of an unknown type");
  }
}

}  // namespace cairn::client
