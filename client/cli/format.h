// What people read: sizes, ages, rates, tables. Pure functions. JSON output does not use them: it has
// exact numbers.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/human_bytes.h"

namespace cairn::cli {

std::string HumanRate(double bytes_per_second);  // "1.20 GiB/s"
// The two largest units: "340 ms", "12 s", "3 min 20 s", "2 h 5 min", "4 d 3 h". Negative counts as
// 0.
std::string HumanDuration(absl::Duration duration);
// How long ago that was, in the largest unit alone: "12 s", "3 min", "2 h", "5 d". "-" for 0; what lies
// in the future counts as now.
std::string HumanAge(int64_t unix_ms, int64_t now_unix_ms);
std::string Grouped(int64_t number);  // "10,000"
std::string Plural(int64_t count, const std::string& one, const std::string& many = "");
// "2026-11-20 12:00:03" in UTC; "-" for 0.
std::string HumanTime(int64_t unix_ms);

// "[#####.....]", `width` cells between the brackets. A bar that has begun never looks empty, and an
// unfinished one never looks full.
std::string Bar(uint64_t done, uint64_t total, int width);
// Whole percent, rounded down, so that 100 means finished. 0 of 0 is 100.
int Percent(uint64_t done, uint64_t total);

// One line of a running transfer: "model.bin  1.20 GiB of 4.00 GiB  30 %  1.10 GiB/s  3 s left".
std::string ProgressLine(const std::string& label, uint64_t done, uint64_t total,
                         absl::Duration elapsed);

// `text` with its control characters made visible, so that a string from elsewhere cannot steer the
// terminal.
std::string Printable(const std::string& text);

// One line per name and value, in two columns. Values are made Printable.
std::string Sheet(const std::vector<std::pair<std::string, std::string>>& lines);

// Columns padded to their widest cell; two spaces between; no trailing blanks. `right` names the
// columns that hold numbers.
class Table {
 public:
  explicit Table(std::vector<std::string> header, std::vector<size_t> right = {});
  void Row(std::vector<std::string> cells);
  bool empty() const { return rows_.empty(); }
  std::string Render(int indent = 0) const;

 private:
  std::vector<std::string> header_;
  std::vector<bool> right_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace cairn::cli
