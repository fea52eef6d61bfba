#include "server/cache/guard.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <ucontext.h>

#include <atomic>
#include <mutex>

namespace cairn::cache {
namespace {

// initial-exec: the handler must not be the first to touch it, for the general model may then
// allocate.
thread_local sigjmp_buf* active_guard __attribute__((tls_model("initial-exec"))) = nullptr;
struct sigaction previous_action;  // set once, before the handler can run
std::atomic<uint64_t> caught{0};

void PassOn(int signal, siginfo_t* info, void* context) {
  if ((previous_action.sa_flags & SA_SIGINFO) != 0) {
    previous_action.sa_sigaction(signal, info, context);
    return;
  }
  const bool fault = info->si_code > 0;  // else somebody sent it with kill
  if (previous_action.sa_handler == SIG_IGN && !fault) return;
  if (previous_action.sa_handler == SIG_IGN || previous_action.sa_handler == SIG_DFL) {
    ::signal(signal, SIG_DFL);
    // A fault repeats itself as soon as this handler returns, and now with its default end.
    // A sent one waits, blocked, until then.
    if (!fault) ::raise(signal);
    return;
  }
  previous_action.sa_handler(signal);
}

void OnSigbus(int signal, siginfo_t* info, void* context) {
  // Early notice of a bad page that nobody touches: whoever reads it later gets the fault.
  if (info->si_code == BUS_MCEERR_AO) return;
  if (active_guard != nullptr && info->si_code > 0) {
    caught.fetch_add(1, std::memory_order_relaxed);
    // Guards save no signal mask, for that is a system call each; the fault's own context has it.
    ::pthread_sigmask(SIG_SETMASK, &static_cast<ucontext_t*>(context)->uc_sigmask, nullptr);
    siglongjmp(*active_guard, 1);
  }
  PassOn(signal, info, context);
}

}  // namespace

Status InstallSigbusHandler() {
  static std::once_flag once;
  static int error = 0;
  std::call_once(once, [] {
    struct sigaction action = {};
    action.sa_sigaction = OnSigbus;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    if (::sigaction(SIGBUS, nullptr, &previous_action) != 0 ||
        ::sigaction(SIGBUS, &action, nullptr) != 0) {
      error = errno;
    }
  });
  return error == 0 ? absl::OkStatus() : ErrnoStatus(error, "sigaction(SIGBUS)");
}

Status RunGuarded(const std::function<void()>& touch) {
  sigjmp_buf here;
  sigjmp_buf* const outer = active_guard;
  if (sigsetjmp(here, 0) != 0) {
    active_guard = outer;
    return absl::DataLossError("SIGBUS while touching slab memory: the page is gone or broken");
  }
  active_guard = &here;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  touch();
  std::atomic_signal_fence(std::memory_order_seq_cst);
  active_guard = outer;
  return absl::OkStatus();
}

uint64_t SigbusCount() { return caught.load(std::memory_order_relaxed); }

}  // namespace cairn::cache
