// Where an attempt comes from, and all that came before: what every manifest, fact and record of the
// line says about it. docs/line.md, rules 3, 4 and 6.
//
// A lineage names, newest first, the attempts whose checkpoints count, each with the highest step of
// it that counts. The first entry is the origin itself: the checkpoint that was gone on from.
//   no entry, closed   START: it goes on from nothing
//   no entry, open     unknown: not everything could be asked that knows
//   entries, open      the last entry's attempt did not know where it came from
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/keys.h"
#include "common/status.h"

namespace cairn {

struct LineageEntry {
  Attempt attempt = 0;
  Step up_to = kNoStep;
  bool operator==(const LineageEntry&) const = default;
};

// What is older than this many entries is left out.
inline constexpr size_t kMaxLineage = 1024;

struct Lineage {
  std::vector<LineageEntry> entries;  // attempts descend, steps never ascend
  bool open = false;

  static Lineage OfUnknown() { return {{}, /*open=*/true}; }
  bool Unknown() const { return open && entries.empty(); }
  // Of the origin: kNoStep and 0 for START, kUnknownStep and 0 while it is unknown.
  Step step() const {
    return entries.empty() ? (open ? kUnknownStep : kNoStep) : entries.front().up_to;
  }
  Attempt attempt() const { return entries.empty() ? 0 : entries.front().attempt; }
  // It may be that something older was left out.
  bool Full() const { return entries.size() >= kMaxLineage; }

  bool operator==(const Lineage&) const = default;
};

// Of what goes on from the checkpoint `step` of `attempt`, whose own lineage is `of_attempt`.
Lineage LineageFrom(Step step, Attempt attempt, const Lineage& of_attempt);
// Appends to an open lineage what its last attempt came from, as it is known by now.
void CloseWith(const Lineage& of_last, Lineage* lineage);

// "START", "unknown", "step 7 of attempt 3".
std::string OriginText(const Lineage& lineage);

// u8 open, u32 count, then per entry i64 attempt, i64 step.
std::string EncodeLineage(const Lineage& lineage);
size_t EncodedLineageSize(const Lineage& lineage);
// DATA_LOSS unless attempts descend, steps never ascend, and there are at most kMaxLineage.
StatusOr<Lineage> DecodeLineage(absl::string_view bytes);

}  // namespace cairn
