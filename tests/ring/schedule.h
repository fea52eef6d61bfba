// What is to come, in order of time; of one moment, in the order in which it was said.
//
// In a ring of a thousand nodes more than a million things are to come, most of them within a second: one heap of all
// would miss the processor's caches at each step down. So only the things of the next moments stand in a heap. What is
// later waits, unordered, in the list of its millisecond.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <queue>
#include <utility>
#include <vector>

#include "tests/sim/clock.h"

namespace cairn::engine::ringsim {

class Schedule {
 public:
  void At(MonotonicNanos at, std::function<void()> what) {
    if (unused_.empty()) {
      unused_.push_back(whats_.size());
      whats_.emplace_back();
    }
    whats_[unused_.back()] = std::move(what);
    const Item item{at, ++last_, unused_.back()};
    unused_.pop_back();
    if (at < soon_until_) {
      soon_.push(item);
    } else {
      later_[at / kStep].push_back(item);
      if (soon_.empty()) TakeStep();
    }
  }
  MonotonicNanos next() const { return soon_.empty() ? sim::kNoTime : soon_.top().at; }
  std::function<void()> Take() {
    const size_t place = soon_.top().place;
    soon_.pop();
    unused_.push_back(place);
    if (soon_.empty() && !later_.empty()) TakeStep();
    return std::exchange(whats_[place], nullptr);
  }

 private:
  static constexpr MonotonicNanos kStep = sim::kMilli;
  // What is to be done stays where it is while the items are brought into order.
  struct Item {
    MonotonicNanos at = 0;
    uint64_t number = 0;
    size_t place = 0;  // in whats_
    bool operator<(const Item& o) const { return at != o.at ? at > o.at : number > o.number; }
  };

  void TakeStep() {
    const auto first = later_.begin();
    soon_until_ = (first->first + 1) * kStep;
    soon_ = std::priority_queue<Item>({}, std::move(first->second));
    later_.erase(first);
  }

  // Invariant: what is before `soon_until_` is in `soon_`, all else in `later_`; `soon_` is empty only when both are.
  std::priority_queue<Item> soon_;
  MonotonicNanos soon_until_ = 0;
  std::map<MonotonicNanos, std::vector<Item>> later_;  // by which step of time
  std::vector<std::function<void()>> whats_;
  std::vector<size_t> unused_;  // places of whats_
  uint64_t last_ = 0;
};

}  // namespace cairn::engine::ringsim
