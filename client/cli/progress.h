// A transfer's progress on a terminal: one line, rewritten at most ten times a second. Silent when the
// output is not a terminal. Thread-compatible; the thread that watches a put is the only one to call it.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>

#include "common/clock.h"

namespace cairn::cli {

class Progress {
 public:
  // `terminal` false: prints nothing. `clock` and `err` outlive this.
  Progress(std::ostream* err, bool terminal, const Clock* clock, std::string label, uint64_t total);
  ~Progress();  // ends the line if one was begun
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void Update(uint64_t done);  // prints when a tenth of a second has passed or all is done

 private:
  std::ostream* const err_;
  const bool terminal_;
  const Clock* const clock_;
  const std::string label_;
  const uint64_t total_;
  const MonotonicNanos started_;
  MonotonicNanos printed_ = 0;
  bool line_open_ = false;
};

}  // namespace cairn::cli
