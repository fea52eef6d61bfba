#include "common/lineage.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/codec.h"

namespace cairn {
namespace {

constexpr size_t kHeadBytes = sizeof(uint8_t) + sizeof(uint32_t);
constexpr size_t kEntryBytes = sizeof(Attempt) + sizeof(Step);

Status BadLineage(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("lineage: ", what));
}

}  // namespace

void CloseWith(const Lineage& of_last, Lineage* lineage) {
  lineage->open = of_last.open;
  for (LineageEntry entry : of_last.entries) {
    if (lineage->Full()) break;
    if (!lineage->entries.empty()) {
      // Files may say anything: what does not go back in time is not followed.
      if (entry.attempt >= lineage->entries.back().attempt) break;
      entry.up_to = std::min(entry.up_to, lineage->entries.back().up_to);
    }
    lineage->entries.push_back(entry);
  }
  if (lineage->Full()) lineage->open = false;
}

Lineage LineageFrom(Step step, Attempt attempt, const Lineage& of_attempt) {
  Lineage lineage{{{attempt, step}}, /*open=*/true};
  CloseWith(of_attempt, &lineage);
  return lineage;
}

std::string OriginText(const Lineage& lineage) {
  if (!lineage.entries.empty()) {
    return absl::StrCat("step ", lineage.step(), " of attempt ", lineage.attempt());
  }
  return lineage.open ? "unknown" : "START";
}

size_t EncodedLineageSize(const Lineage& lineage) {
  return kHeadBytes + kEntryBytes * lineage.entries.size();
}

std::string EncodeLineage(const Lineage& lineage) {
  std::string out;
  out.reserve(EncodedLineageSize(lineage));
  AppendInteger<uint8_t>(&out, lineage.open ? 1 : 0);
  AppendInteger<uint32_t>(&out, static_cast<uint32_t>(lineage.entries.size()));
  for (const LineageEntry& entry : lineage.entries) {
    AppendInteger<Attempt>(&out, entry.attempt);
    AppendInteger<Step>(&out, entry.up_to);
  }
  return out;
}

StatusOr<Lineage> DecodeLineage(absl::string_view bytes) {
  Cursor cursor(bytes);
  uint8_t open = 0;
  uint32_t count = 0;
  if (!cursor.Take(&open) || !cursor.Take(&count) || cursor.left() != kEntryBytes * size_t{count}) {
    return BadLineage("its length does not fit");
  }
  if (open > 1) return BadLineage("a flag is neither 0 nor 1");
  if (count > kMaxLineage) return BadLineage(absl::StrCat("has ", count, " entries"));
  Lineage lineage{{}, open == 1};
  lineage.entries.resize(count);
  LineageEntry before{std::numeric_limits<Attempt>::max(), std::numeric_limits<Step>::max()};
  for (LineageEntry& entry : lineage.entries) {
    cursor.Take(&entry.attempt);
    cursor.Take(&entry.up_to);
    if (entry.attempt <= 0 || entry.attempt >= before.attempt) {
      return BadLineage("its attempts do not descend");
    }
    if (entry.up_to < 0 || entry.up_to > before.up_to) return BadLineage("its steps ascend");
    before = entry;
  }
  return lineage;
}

}  // namespace cairn
