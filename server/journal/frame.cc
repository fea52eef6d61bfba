#include "server/journal/frame.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "common/checksum.h"

namespace cairn::journal {
namespace {

constexpr uint64_t kLengthOffset = 4;
constexpr uint64_t kGenerationOffset = 8;
constexpr uint64_t kCrcOffset = 16;

template <typename T>
void Put(std::string* bytes, uint64_t offset, T value) {
  std::memcpy(bytes->data() + offset, &value, sizeof(value));
}

template <typename T>
T Get(absl::string_view bytes, uint64_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(value));
  return value;
}

uint64_t RoundUp(uint64_t bytes) {
  return (bytes + kFrameAlignment - 1) / kFrameAlignment * kFrameAlignment;
}

uint32_t FrameCrc(absl::string_view frame, uint64_t payload_bytes) {
  const uint32_t crc = Crc32c(0, frame.data() + kLengthOffset, kCrcOffset - kLengthOffset);
  return Crc32c(crc, frame.data() + kFrameHeaderBytes, payload_bytes);
}

// The length, padding included, of the frame at the start of `bytes`; 0 when no frame of
// `generation` verifies there.
uint64_t VerifiedFrameBytes(absl::string_view bytes, uint64_t generation) {
  if (bytes.size() < kFrameHeaderBytes || Get<uint32_t>(bytes, 0) != kFrameMagic) return 0;
  if (Get<uint64_t>(bytes, kGenerationOffset) != generation) return 0;
  const uint64_t payload = Get<uint32_t>(bytes, kLengthOffset);
  const uint64_t padded = RoundUp(kFrameHeaderBytes + payload);
  if (padded > bytes.size()) return 0;
  if (Get<uint32_t>(bytes, kCrcOffset) != FrameCrc(bytes, payload)) return 0;
  const absl::string_view padding =
      bytes.substr(kFrameHeaderBytes + payload, padded - kFrameHeaderBytes - payload);
  return padding.find_first_not_of('\0') == absl::string_view::npos ? padded : 0;
}

// A kill tears only the last frame. A frame that verifies behind a bad one therefore means that the
// memory was damaged.
bool AnyFrameBehind(absl::string_view half, uint64_t from, uint64_t generation) {
  for (uint64_t at = from; at + kFrameHeaderBytes <= half.size(); at += kFrameAlignment) {
    if (VerifiedFrameBytes(half.substr(at), generation) > 0) return true;
  }
  return false;
}

Status DecodePayload(absl::string_view payload, std::vector<Fact>* facts) {
  while (!payload.empty()) {
    if (payload.size() < sizeof(uint32_t)) return absl::DataLossError("a fact's length is cut off");
    const uint64_t length = Get<uint32_t>(payload, 0);
    payload.remove_prefix(sizeof(uint32_t));
    if (length > payload.size()) return absl::DataLossError("a fact is cut off");
    CAIRN_ASSIGN_OR_RETURN(Fact fact, DecodeFact(payload.substr(0, length)));
    facts->push_back(std::move(fact));
    payload.remove_prefix(length);
  }
  return absl::OkStatus();
}

}  // namespace

Status EncodeFrame(absl::Span<const Fact> facts, uint64_t generation, std::string* frame) {
  frame->assign(kFrameHeaderBytes, '\0');
  for (const Fact& fact : facts) {
    const std::string encoded = EncodeFact(fact);
    const uint64_t at = frame->size();
    frame->resize(at + sizeof(uint32_t));
    Put(frame, at, static_cast<uint32_t>(encoded.size()));
    frame->append(encoded);
    if (frame->size() > std::numeric_limits<uint32_t>::max()) {
      return absl::ResourceExhaustedError("journal: the facts of one frame exceed 4 GiB");
    }
  }
  const uint64_t payload = frame->size() - kFrameHeaderBytes;
  Put(frame, 0, kFrameMagic);
  Put(frame, kLengthOffset, static_cast<uint32_t>(payload));
  Put(frame, kGenerationOffset, generation);
  Put(frame, kCrcOffset, FrameCrc(*frame, payload));
  frame->resize(RoundUp(frame->size()), '\0');
  return absl::OkStatus();
}

StatusOr<Replay> ReplayHalf(absl::string_view half, uint64_t generation) {
  Replay replay;
  while (true) {
    const absl::string_view rest = half.substr(replay.end);
    const uint64_t bytes = VerifiedFrameBytes(rest, generation);
    if (bytes == 0) break;
    const uint64_t payload = Get<uint32_t>(rest, kLengthOffset);
    const Status status = DecodePayload(rest.substr(kFrameHeaderBytes, payload), &replay.facts);
    if (!status.ok()) {
      return Annotate(status, absl::StrCat("journal: frame at byte ", replay.end, " of generation ",
                                           generation));
    }
    replay.end += bytes;
  }
  if (replay.end == 0) {
    return absl::DataLossError(
        absl::StrCat("journal: the snapshot of generation ", generation, " does not verify"));
  }
  if (AnyFrameBehind(half, replay.end + kFrameAlignment, generation)) {
    return absl::DataLossError(absl::StrCat("journal: the frame at byte ", replay.end,
                                            " of generation ", generation,
                                            " does not verify, but one behind it does"));
  }
  // A clean end is one zero word. An Append that was interrupted has not stored the frame's magic
  // yet, so the first half of the word is zero, but it may have stored bytes behind it.
  const absl::string_view after = half.substr(replay.end, kEndBytes);
  replay.torn_tail = after.find_first_not_of('\0') != absl::string_view::npos;
  return replay;
}

}  // namespace cairn::journal
