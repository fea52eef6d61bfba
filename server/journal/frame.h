// How facts lie in a half of the journal (journal.h has the layout). Pure functions over bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "server/facts/facts.h"
#include "common/status.h"

namespace cairn::journal {

inline constexpr uint32_t kFrameMagic = 0x4D52464A;  // "JFRM"
inline constexpr uint64_t kFrameHeaderBytes = 20;
inline constexpr uint64_t kFrameAlignment = 8;
// Behind the last frame stands one zero word, so that its end never looks like the begin of
// another.
inline constexpr uint64_t kEndBytes = 8;

// A whole frame, padding included, in `frame`. RESOURCE_EXHAUSTED when the payload passes 4 GiB.
Status EncodeFrame(absl::Span<const Fact> facts, uint64_t generation, std::string* frame);

struct Replay {
  std::vector<Fact> facts;
  uint64_t end = 0;        // behind the last frame that verifies
  bool torn_tail = false;  // something incomplete stands there
};
// Reads the frames of `generation` from the start of `half`. DATA_LOSS when the first frame does
// not verify, when one verifies behind one that does not, or when a fact of a verified frame can't
// be decoded.
StatusOr<Replay> ReplayHalf(absl::string_view half, uint64_t generation);

}  // namespace cairn::journal
