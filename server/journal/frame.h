// The encoding of facts in a half of the journal; journal.h has the layout. Pure functions over
// bytes.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
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

// What makes a frame one of this journal, and of one of its generations.
struct FrameStamp {
  uint64_t nonce = 0;
  uint32_t generation = 0;
};

// Puts one frame that holds `facts` into `frame`, padding included. RESOURCE_EXHAUSTED when the
// payload exceeds 4 GiB.
Status EncodeFrame(absl::Span<const Fact> facts, const FrameStamp& stamp, std::string* frame);

struct Replay {
  std::vector<Fact> facts;
  // Facts that this build does not know and may skip: how many of which kind.
  std::map<int, uint64_t> skipped;
  uint64_t end = 0;        // offset behind the last frame that verifies
  bool torn_tail = false;  // an incomplete frame stands at `end`: its Append was never acknowledged
  // Not OK: more was written than `facts`, all of which stand before it. DATA_LOSS for bytes that do
  // not verify, UNIMPLEMENTED for what another build wrote. Names the offset in the half.
  Status damage;
  // What verifies behind the damage. Its order to what is missing is not known, so it is not to be
  // applied; but it tells which ids were given out.
  std::vector<Fact> behind;
};
// Reads the frames with `stamp` from the start of `half`.
Replay ReplayHalf(absl::string_view half, const FrameStamp& stamp);

// The generation of the frame at the start of `half`; nullopt when none of this nonce verifies there.
std::optional<uint32_t> FirstGeneration(absl::string_view half, uint64_t nonce);

}  // namespace cairn::journal
