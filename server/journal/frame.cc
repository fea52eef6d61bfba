#include "server/journal/frame.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>

#include "common/checksum.h"

namespace cairn::journal {
namespace {

constexpr uint64_t kLengthOffset = 4;
constexpr uint64_t kGenerationOffset = 8;
constexpr uint64_t kNonceOffset = 12;
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

uint32_t NonceMark(uint64_t nonce) { return static_cast<uint32_t>(nonce >> 32); }

uint32_t FrameCrc(absl::string_view frame, uint64_t payload_bytes, uint64_t nonce) {
  uint32_t crc = Crc32c(0, &nonce, sizeof(nonce));
  crc = Crc32c(crc, frame.data() + kLengthOffset, kCrcOffset - kLengthOffset);
  return Crc32c(crc, frame.data() + kFrameHeaderBytes, payload_bytes);
}

// The length, padding included, of the frame at the start of `bytes`; 0 when no frame with
// `stamp` verifies there.
uint64_t VerifiedFrameBytes(absl::string_view bytes, const FrameStamp& stamp) {
  if (bytes.size() < kFrameHeaderBytes || Get<uint32_t>(bytes, 0) != kFrameMagic) return 0;
  if (Get<uint32_t>(bytes, kGenerationOffset) != stamp.generation) return 0;
  if (Get<uint32_t>(bytes, kNonceOffset) != NonceMark(stamp.nonce)) return 0;
  const uint64_t payload = Get<uint32_t>(bytes, kLengthOffset);
  const uint64_t padded = RoundUp(kFrameHeaderBytes + payload);
  if (padded > bytes.size()) return 0;
  if (Get<uint32_t>(bytes, kCrcOffset) != FrameCrc(bytes, payload, stamp.nonce)) return 0;
  const absl::string_view padding =
      bytes.substr(kFrameHeaderBytes + payload, padded - kFrameHeaderBytes - payload);
  return padding.find_first_not_of('\0') == absl::string_view::npos ? padded : 0;
}

// The first failure ends `facts`; what can be decoded behind it goes into `behind`.
Status DecodePayload(absl::string_view payload, Replay* replay) {
  Status status;
  while (!payload.empty()) {
    const uint64_t length = payload.size() < sizeof(uint32_t) ? std::numeric_limits<uint64_t>::max()
                                                              : Get<uint32_t>(payload, 0);
    payload.remove_prefix(std::min(payload.size(), sizeof(uint32_t)));
    if (length > payload.size()) {
      status.Update(absl::DataLossError("a fact is cut off"));
      break;
    }
    const absl::string_view bytes = payload.substr(0, length);
    StatusOr<std::optional<Fact>> fact = DecodeFact(bytes);
    if (!fact.ok()) {
      status.Update(fact.status());
    } else if (fact->has_value()) {
      (status.ok() ? replay->facts : replay->behind).push_back(**std::move(fact));
    } else {
      ++replay->skipped[static_cast<uint8_t>(bytes[0])];
    }
    payload.remove_prefix(length);
  }
  return status;
}

// Collects what the frames behind `from` say. True when there is one. Bytes of clients lie there too,
// in facts of this generation and of earlier ones; without the nonce they cannot look like a frame.
bool CollectBehind(absl::string_view half, uint64_t from, const FrameStamp& stamp, Replay* replay) {
  bool any = false;
  for (uint64_t at = from; at + kFrameHeaderBytes <= half.size();) {
    const absl::string_view rest = half.substr(at);
    const uint64_t bytes = VerifiedFrameBytes(rest, stamp);
    if (bytes > 0) {
      any = true;
      Replay frame;
      (void)DecodePayload(rest.substr(kFrameHeaderBytes, Get<uint32_t>(rest, kLengthOffset)),
                          &frame);
      for (std::vector<Fact>* facts : {&frame.facts, &frame.behind}) {
        std::move(facts->begin(), facts->end(), std::back_inserter(replay->behind));
      }
    }
    at += bytes > 0 ? bytes : kFrameAlignment;
  }
  return any;
}

}  // namespace

Status EncodeFrame(absl::Span<const Fact> facts, const FrameStamp& stamp, std::string* frame) {
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
  Put(frame, kGenerationOffset, stamp.generation);
  Put(frame, kNonceOffset, NonceMark(stamp.nonce));
  Put(frame, kCrcOffset, FrameCrc(*frame, payload, stamp.nonce));
  frame->resize(RoundUp(frame->size()), '\0');
  return absl::OkStatus();
}

Replay ReplayHalf(absl::string_view half, const FrameStamp& stamp) {
  Replay replay;
  const auto damage_at_end = [&](absl::StatusCode code, absl::string_view why) {
    replay.damage = Status(code, absl::StrCat("journal: the frame at byte ", replay.end,
                                              " of generation ", stamp.generation, ": ", why));
  };
  while (true) {
    const absl::string_view rest = half.substr(replay.end);
    const uint64_t bytes = VerifiedFrameBytes(rest, stamp);
    if (bytes == 0) break;
    const uint64_t payload = Get<uint32_t>(rest, kLengthOffset);
    const Status status = DecodePayload(rest.substr(kFrameHeaderBytes, payload), &replay);
    if (!status.ok()) {
      damage_at_end(status.code(), status.message());
      CollectBehind(half, replay.end + bytes, stamp, &replay);
      return replay;
    }
    replay.end += bytes;
  }
  // A clean end is one zero word. An Append that was interrupted has not stored the frame's magic
  // yet, so the first half of the word is zero, but it may have stored bytes behind it. Whatever else
  // does not verify was acknowledged once. So was a zero magic with a further frame behind it.
  const bool more = CollectBehind(half, replay.end + kFrameAlignment, stamp, &replay);
  const absl::string_view after = half.substr(replay.end, kEndBytes);
  const auto zero = [](absl::string_view bytes) {
    return bytes.find_first_not_of('\0') == absl::string_view::npos;
  };
  if (more || replay.end == 0 || !zero(after.substr(0, sizeof(kFrameMagic)))) {
    damage_at_end(absl::StatusCode::kDataLoss, "does not verify");
  } else {
    replay.torn_tail = !zero(after);
  }
  return replay;
}

std::optional<uint32_t> FirstGeneration(absl::string_view half, uint64_t nonce) {
  if (half.size() < kFrameHeaderBytes) return std::nullopt;
  const uint32_t generation = Get<uint32_t>(half, kGenerationOffset);
  if (VerifiedFrameBytes(half, {nonce, generation}) == 0) return std::nullopt;
  return generation;
}

}  // namespace cairn::journal
