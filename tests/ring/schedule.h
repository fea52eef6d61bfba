// What is to come, in order of time; of one moment, in the order in which it was said.
#pragma once

#include <cstdint>
#include <functional>
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
    items_.push({at, ++last_, unused_.back()});
    unused_.pop_back();
  }
  MonotonicNanos next() const { return items_.empty() ? sim::kNoTime : items_.top().at; }
  std::function<void()> Take() {
    const size_t place = items_.top().place;
    items_.pop();
    unused_.push_back(place);
    return std::exchange(whats_[place], nullptr);
  }

 private:
  // What is to be done stays where it is while the items are brought into order.
  struct Item {
    MonotonicNanos at = 0;
    uint64_t number = 0;
    size_t place = 0;  // in whats_
    bool operator<(const Item& o) const { return at != o.at ? at > o.at : number > o.number; }
  };
  std::priority_queue<Item> items_;
  std::vector<std::function<void()>> whats_;
  std::vector<size_t> unused_;  // places of whats_
  uint64_t last_ = 0;
};

}  // namespace cairn::engine::ringsim
