// What one Apply says: facts for the journal, actions for the node; and what every component asks
// for: the time, new ids, counters. It decides nothing.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/status.h"
#include "server/engine/actions.h"
#include "server/facts/facts.h"

namespace cairn::engine {

using Body = reply::Body;

inline constexpr MonotonicNanos kNever = std::numeric_limits<MonotonicNanos>::max();

class Outbox {
 public:
  void Say(Fact fact) { outcome_.facts.push_back(std::move(fact)); }
  void Do(Action action) { outcome_.actions.push_back(std::move(action)); }
  void Answer(RequestId request, StatusOr<Body> body, Attempt superseded_by = 0);
  void Log(Severity severity, std::string message);
  // What is large is freed once nobody waits for the engine.
  template <class T>
  void DestroyLater(T&& value) {
    Do(action::Discard{std::make_shared<const std::decay_t<T>>(std::forward<T>(value))});
  }
  void Count(const char* counter, int64_t by = 1) { counters_[counter] += by; }
  // Answers that this Apply has queued: those that `chosen` picks become `instead`.
  void ReplaceAnswers(const std::function<bool(const Body&)>& chosen, const Status& instead);

  // An id no slab, lease or session of this keeper's life has had.
  uint64_t NextId();
  void Begin(MonotonicNanos now, int64_t unix_ms);
  void RestoreIds(uint64_t next_id) { next_id_ = ids_reserved_ = next_id; }
  uint64_t next_id() const { return next_id_; }
  void Snapshot(std::vector<Fact>* facts) const;

  void set_now(MonotonicNanos now) { now_ = std::max(now_, now); }
  MonotonicNanos now() const { return now_; }
  int64_t UnixMillis() const { return start_unix_ms_ + (now_ - start_now_) / kNanosPerMilli; }
  const std::map<std::string, int64_t>& counters() const { return counters_; }
  Outcome Take() { return std::exchange(outcome_, {}); }

 private:
  Outcome outcome_;
  MonotonicNanos now_ = 0, start_now_ = 0;
  int64_t start_unix_ms_ = 0;
  uint64_t next_id_ = 1, ids_reserved_ = 1;
  std::map<std::string, int64_t> counters_;
};

}  // namespace cairn::engine
