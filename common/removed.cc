#include "common/removed.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace cairn {
void AttemptRanges::Add(Attempt first, Attempt last) {
  Range merged{first, last};
  std::vector<Range> kept;
  for (const Range& range : ranges_) {
    // "- 1" rather than "+ 1": the last attempt may be the greatest number.
    const bool apart = range.last < merged.first - 1 || merged.last < range.first - 1;
    if (apart) {
      kept.push_back(range);
    } else {
      merged = {std::min(range.first, merged.first), std::max(range.last, merged.last)};
    }
  }
  const auto after =
      std::find_if(kept.begin(), kept.end(), [&](const Range& r) { return r.first > merged.last; });
  kept.insert(after, merged);
  ranges_ = std::move(kept);
}

void AttemptRanges::Add(const AttemptRanges& others) {
  for (const Range& range : others.ranges_) Add(range.first, range.last);
}

bool AttemptRanges::Covers(const Range& range) const {
  return std::any_of(ranges_.begin(), ranges_.end(), [&](const Range& r) {
    return r.first <= range.first && range.last <= r.last;
  });
}

std::string RangeName(const AttemptRanges::Range& range) {
  return absl::StrCat(range.first, "-", range.last);
}

bool ParseRangeName(absl::string_view name, AttemptRanges::Range* range) {
  const size_t dash = name.find('-');
  return dash != absl::string_view::npos && absl::SimpleAtoi(name.substr(0, dash), &range->first) &&
         absl::SimpleAtoi(name.substr(dash + 1), &range->last) && range->first > 0 &&
         range->first <= range->last && RangeName(*range) == name;
}

}  // namespace cairn
