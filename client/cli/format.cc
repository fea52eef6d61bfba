#include "client/cli/format.h"

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace cairn::cli {
namespace {

// Columns a UTF-8 string takes on a terminal, near enough: one per character.
size_t DisplayWidth(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

}  // namespace

std::string HumanRate(double bytes_per_second) {
  return HumanBytes(bytes_per_second > 0 ? static_cast<uint64_t>(bytes_per_second) : 0) + "/s";
}

std::string HumanDuration(absl::Duration duration) {
  if (duration == absl::InfiniteDuration()) return "forever";
  const int64_t ms = std::max<int64_t>(0, absl::ToInt64Milliseconds(duration));
  if (ms < 1000) return absl::StrCat(ms, " ms");
  const int64_t seconds = ms / 1000;
  auto two = [](int64_t large, const char* large_unit, int64_t small, const char* small_unit) {
    std::string text = absl::StrCat(large, " ", large_unit);
    if (small > 0) absl::StrAppend(&text, " ", small, " ", small_unit);
    return text;
  };
  if (seconds < 60) return absl::StrCat(seconds, " s");
  if (seconds < 3600) return two(seconds / 60, "min", seconds % 60, "s");
  if (seconds < 86400) return two(seconds / 3600, "h", seconds / 60 % 60, "min");
  return two(seconds / 86400, "d", seconds / 3600 % 24, "h");
}

std::string HumanAge(int64_t unix_ms, int64_t now_unix_ms) {
  if (unix_ms == 0) return "-";
  const int64_t seconds = std::max<int64_t>(0, now_unix_ms - unix_ms) / 1000;
  if (seconds < 60) return absl::StrCat(seconds, " s");
  if (seconds < 3600) return absl::StrCat(seconds / 60, " min");
  if (seconds < 86400) return absl::StrCat(seconds / 3600, " h");
  return absl::StrCat(Grouped(seconds / 86400), " d");
}

std::string Grouped(int64_t number) {
  const std::string digits = absl::StrCat(number);
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    const size_t behind = digits.size() - i;
    if (i > (number < 0 ? 1u : 0u) && behind % 3 == 0) text.push_back(',');
    text.push_back(digits[i]);
  }
  return text;
}

std::string Plural(int64_t count, const std::string& one, const std::string& many) {
  const std::string noun = count == 1 ? one : many.empty() ? one + "s" : many;
  return absl::StrCat(Grouped(count), " ", noun);
}

std::string HumanTime(int64_t unix_ms) {
  if (unix_ms == 0) return "-";
  return absl::FormatTime("%Y-%m-%d %H:%M:%S", absl::FromUnixMillis(unix_ms), absl::UTCTimeZone());
}

std::string Bar(uint64_t done, uint64_t total, int width) {
  done = std::min(done, total);
  int filled =
      total == 0 ? width
                 : static_cast<int>(static_cast<double>(done) / static_cast<double>(total) * width);
  if (done > 0 && filled == 0) filled = 1;
  if (done < total && filled >= width) filled = width - 1;
  filled = std::clamp(filled, 0, width);
  return absl::StrCat("[", std::string(filled, '#'), std::string(width - filled, '.'), "]");
}

int Percent(uint64_t done, uint64_t total) {
  if (done >= total) return 100;
  return static_cast<int>(static_cast<long double>(done) * 100 / total);
}

std::string ProgressLine(const std::string& label, uint64_t done, uint64_t total,
                         absl::Duration elapsed) {
  std::string line = absl::StrCat(label, "  ", HumanBytes(done), " of ", HumanBytes(total), "  ",
                                  Percent(done, total), " %");
  const double seconds = absl::ToDoubleSeconds(elapsed);
  // The first moments say nothing about the rate.
  if (seconds < 0.05 || done == 0) return line;
  const double rate = static_cast<double>(done) / seconds;
  absl::StrAppend(&line, "  ", HumanRate(rate));
  if (done < total) {
    absl::StrAppend(&line, "  ",
                    HumanDuration(absl::Seconds(static_cast<double>(total - done) / rate)),
                    " left");
  }
  return line;
}

std::string Printable(const std::string& text) {
  std::string clean;
  for (const unsigned char c : text) {
    if (c < 0x20 || c == 0x7F) {
      absl::StrAppendFormat(&clean, "\\x%02x", c);
    } else {
      clean.push_back(static_cast<char>(c));
    }
  }
  return clean;
}

std::string Sheet(const std::vector<std::pair<std::string, std::string>>& lines) {
  size_t width = 0;
  for (const auto& [name, value] : lines) width = std::max(width, name.size());
  std::string text;
  for (const auto& [name, value] : lines) {
    absl::StrAppend(&text, name, std::string(width - name.size() + 2, ' '), Printable(value), "\n");
  }
  return text;
}

Table::Table(std::vector<std::string> header, std::vector<size_t> right)
    : header_(std::move(header)), right_(header_.size(), false) {
  for (const size_t column : right) right_[column] = true;
}

void Table::Row(std::vector<std::string> cells) {
  cells.resize(header_.size());
  for (std::string& cell : cells) cell = Printable(cell);
  rows_.push_back(std::move(cells));
}

std::string Table::Render(int indent) const {
  std::vector<size_t> widths;
  for (const std::string& title : header_) widths.push_back(DisplayWidth(title));
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], DisplayWidth(row[i]));
  }
  std::string text;
  auto render = [&](const std::vector<std::string>& cells) {
    std::string line(indent, ' ');
    for (size_t i = 0; i < cells.size(); ++i) {
      const std::string padding(widths[i] - DisplayWidth(cells[i]), ' ');
      if (i > 0) line += "  ";
      line += right_[i] ? padding + cells[i] : cells[i] + padding;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  };
  render(header_);
  for (const auto& row : rows_) render(row);
  return text;
}

}  // namespace cairn::cli
