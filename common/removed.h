// Which attempts' checkpoints of which steps were removed for good. They must not come back: not by
// a persist that is late, and not from another node.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/keys.h"

namespace cairn {

// A set of attempts, kept as ranges: sorted, disjoint, and with at least one attempt between two of
// them. It only ever grows.
class AttemptRanges {
 public:
  struct Range {
    Attempt first = 1, last = 0;
    bool operator==(const Range&) const = default;
  };

  AttemptRanges() = default;
  explicit AttemptRanges(const Range& range) : ranges_({range}) {}

  // 1 <= first <= last.
  void Add(Attempt first, Attempt last);
  void Add(const AttemptRanges& others);
  bool Contains(Attempt attempt) const { return Covers({attempt, attempt}); }
  bool Covers(const Range& range) const;

  bool empty() const { return ranges_.empty(); }
  const std::vector<Range>& ranges() const { return ranges_; }
  bool operator==(const AttemptRanges&) const = default;

 private:
  std::vector<Range> ranges_;
};

struct RemovedSteps {
  std::map<Step, AttemptRanges> steps;

  bool Forbids(Step step, Attempt attempt) const {
    const auto at = steps.find(step);
    return at != steps.end() && at->second.Contains(attempt);
  }
  bool operator==(const RemovedSteps&) const = default;
};

// How many ranges one step may have. `rm` is refused beyond that.
inline constexpr size_t kMaxRemovedRanges = 64;

// A range in words: "FIRST-LAST".
std::string RangeName(const AttemptRanges::Range& range);
// Whether it is exactly what RangeName writes.
bool ParseRangeName(absl::string_view name, AttemptRanges::Range* range);

}  // namespace cairn
