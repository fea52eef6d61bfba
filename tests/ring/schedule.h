// What is to come, in order of time; of one moment, in the order in which it was said.
#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/sim/clock.h"

namespace cairn::engine::ringsim {

class Schedule {
 public:
  void At(MonotonicNanos at, std::function<void()> what) {
    items_.push({at, ++last_, std::move(what)});
  }
  MonotonicNanos next() const { return items_.empty() ? sim::kNoTime : items_.top().at; }
  std::function<void()> Take() {
    std::function<void()> what = std::move(const_cast<Item&>(items_.top()).what);
    items_.pop();
    return what;
  }

 private:
  struct Item {
    MonotonicNanos at = 0;
    uint64_t number = 0;
    std::function<void()> what;
    bool operator<(const Item& o) const { return std::tie(at, number) > std::tie(o.at, o.number); }
  };
  std::priority_queue<Item> items_;
  uint64_t last_ = 0;
};

}  // namespace cairn::engine::ringsim
