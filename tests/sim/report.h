// What a simulated life has to tell: the first failure, how often each thing happened, and, where
// it was asked for, the trace.
#pragma once

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/clock.h"
#include "tests/sim/simulator.h"

namespace cairn::engine::sim {

class Report {
 public:
  Report(bool trace, const Clock& clock) : trace_(trace), clock_(clock) {}

  bool ok() const { return result_.failure.empty(); }
  bool traces() const { return trace_; }

  // The first failure counts. The life goes on to the caller's next look at ok().
  void Fail(std::string what) {
    if (ok()) result_.failure = std::move(what);
    Note([&] { return absl::StrCat("FAILED: ", result_.failure); });
  }

  // `words` is called only when there is a trace.
  template <class F>
  void Note(F&& words) {
    if (trace_) result_.trace.push_back(absl::StrCat(clock_.now / 1000, "us ", words()));
  }

  void Count(const char* what) { ++result_.counts[what]; }

  SimulatorResult& result() { return result_; }

 private:
  const bool trace_;
  const Clock& clock_;
  SimulatorResult result_;
};

}  // namespace cairn::engine::sim
