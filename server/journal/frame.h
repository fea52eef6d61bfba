// The encoding of facts in a half of the journal; journal.h has the layout. Pure functions over
// bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/status.h"
#include "server/facts/facts.h"

namespace cairn::journal {

inline constexpr uint32_t kFrameMagic = 0x4D52464A;  // "JFRM"
inline constexpr uint64_t kFrameHeaderBytes = 20;
inline constexpr uint64_t kFrameAlignment = 8;
// One zero word stands behind the last frame, so that no leftover bytes look like a further frame.
inline constexpr uint64_t kEndBytes = 8;

// Puts one frame that holds `facts` into `frame`, padding included. RESOURCE_EXHAUSTED when the
// payload exceeds 4 GiB.
Status EncodeFrame(absl::Span<const Fact> facts, uint64_t generation, std::string* frame);

struct Replay {
  std::vector<Fact> facts;
  uint64_t end = 0;        // offset behind the last frame that verifies
  bool torn_tail = false;  // an incomplete frame stands at `end`
};
// Reads the frames of `generation` from the start of `half`. DATA_LOSS when the first frame does
// not verify, or when a frame verifies behind one that does not; the error of DecodeFact when a
// verified frame holds a fact that cannot be decoded.
StatusOr<Replay> ReplayHalf(absl::string_view half, uint64_t generation);

}  // namespace cairn::journal
