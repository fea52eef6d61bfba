// Faults that a decorator injects into the calls of an interface (tests/storage/faulty_storage.h,
// tests/catalog/faulty_catalog.h). Deterministic: which call fails depends only on the calls that
// came before it, never on time or chance. With no fault added a decorator changes nothing.
//
//   kFail           the call answers `error` and does nothing: storage that refuses, or is away.
//   kMaybeHappened  the call is made, then answers `error` all the same: an answer that was lost on
//                   its way. The caller must ask again, and asking again must be harmless.
//   kHang           the call waits until Release or Clear, and is then made: storage that is slow
//   or
//                   hangs. A test decides how long, so nothing sleeps.
//
// Which calls: `call` names one kind, nullopt all kinds. The first `after` matching calls are left
// alone; of the following ones every `every`-th is hit (1: all of them), at most `times` (0: no
// limit). So {.after = N} fails everything after N calls, {.every = k} every k-th, {.times = 1}
// once. When several faults match a call, the one added first counts; the others count the call
// too.
#pragma once

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "common/status.h"

namespace cairn::testing {

enum class FaultKind { kFail, kMaybeHappened, kHang };

template <typename Call>
struct Fault {
  FaultKind kind = FaultKind::kFail;
  std::optional<Call> call = {};
  int after = 0;
  int every = 1;
  int times = 0;
  Status error = absl::UnavailableError("an injected fault");
};

// Thread-safe. Shared by the decorator and the test that adds the faults.
template <typename Call>
class FaultPlan {
 public:
  void Add(Fault<Call> fault) {
    MutexLock lock(&mu_);
    faults_.push_back({std::move(fault), 0, 0});
  }
  // No faults any more; calls that hang go on.
  void Clear() {
    MutexLock lock(&mu_);
    faults_.clear();
    ++releases_;
    changed_.NotifyAll();
  }
  // The calls that hang now go on; further ones hang as before.
  void Release() {
    MutexLock lock(&mu_);
    ++releases_;
    changed_.NotifyAll();
  }
  // Until at least `calls` of them hang.
  void WaitUntilHung(int calls) {
    MutexLock lock(&mu_);
    while (hung_ < calls) changed_.Wait(&mu_);
  }
  // Until at least `count` calls of this kind were begun.
  void WaitForCalls(Call call, int count) {
    MutexLock lock(&mu_);
    while (calls_[call] < count) changed_.Wait(&mu_);
  }
  // How many calls of this kind were begun.
  int Calls(Call call) const {
    MutexLock lock(&mu_);
    const auto at = calls_.find(call);
    return at == calls_.end() ? 0 : at->second;
  }

  // Makes one call through the plan. `body` returns what `Answer` can be made of: Status, StatusOr.
  template <typename Answer, typename Body>
  Answer Run(Call call, const Body& body) {
    const std::optional<Fault<Call>> fault = Meet(call);
    if (!fault.has_value() || fault->kind == FaultKind::kHang) return body();
    if (fault->kind == FaultKind::kMaybeHappened) (void)body();
    return fault->error;
  }

 private:
  struct Armed {
    Fault<Call> fault;
    int seen = 0;
    int hit = 0;
  };

  // The fault that this call meets; a hanging call returns when it is released.
  std::optional<Fault<Call>> Meet(Call call) {
    MutexLock lock(&mu_);
    ++calls_[call];
    changed_.NotifyAll();
    std::optional<Fault<Call>> met;
    for (Armed& armed : faults_) {
      const Fault<Call>& fault = armed.fault;
      if (fault.call.has_value() && *fault.call != call) continue;
      ++armed.seen;
      const int number = armed.seen - fault.after;
      if (met.has_value() || number <= 0 || number % fault.every != 0) continue;
      if (fault.times > 0 && armed.hit == fault.times) continue;
      ++armed.hit;
      met = fault;
    }
    if (met.has_value() && met->kind == FaultKind::kHang) {
      const int until = releases_ + 1;
      ++hung_;
      changed_.NotifyAll();
      while (releases_ < until) changed_.Wait(&mu_);
      --hung_;
    }
    return met;
  }

  mutable Mutex mu_;
  CondVar changed_;
  std::vector<Armed> faults_ ABSL_GUARDED_BY(mu_);
  std::map<Call, int> calls_ ABSL_GUARDED_BY(mu_);
  int hung_ ABSL_GUARDED_BY(mu_) = 0;
  int releases_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace cairn::testing
