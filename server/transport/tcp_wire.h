// What goes over a data stream, little-endian. The reader connects, says who it is once, and then
// asks; the owner answers in the order of the questions. Bytes follow an answer whose code is OK.
//
//   opening  32 bytes, reader → owner         answer to it, 16 bytes, owner → reader
//     0  8  magic "CAIRNDAT"                    0  8  magic "CAIRNDAT"
//     8  2  version                             8  2  version
//    10  2  flags, 0                           10  2  status code
//    12  4  rank of the reader                 12  4  CRC32C of the bytes before
//    16  8  incarnation of the reader
//    24  4  0
//    28  4  CRC32C of the bytes before
//
//   question  56 bytes, reader → owner        answer, 24 bytes, owner → reader
//     0  4  magic "READ"                        0  4  magic "DATA"
//     4  4  0                                   4  2  status code
//     8  8  sequence number                     6  2  0
//    16 16  grant token                         8  8  sequence number of the question
//    32  8  slab                               16  4  length of the bytes that follow
//    40  8  offset in the slab                 20  4  CRC32C of the bytes before
//    48  4  length
//    52  4  CRC32C of the bytes before
//
// All have fixed sizes, so that an unread stranger costs no memory. A frame that does not decode ends
// its stream. The bytes themselves carry no checksum: the reader has the block's, from a manifest.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "common/status.h"
#include "server/transport/transport.h"

namespace cairn::transport {

inline constexpr uint16_t kTcpVersion = 1;
inline constexpr size_t kOpeningBytes = 32, kOpenedBytes = 16, kQuestionBytes = 56,
                        kAnswerBytes = 24;

struct Opening {
  uint16_t version = kTcpVersion;
  PeerId reader;
  bool operator==(const Opening&) const = default;
};
struct Opened {
  uint16_t version = kTcpVersion;
  absl::StatusCode code = absl::StatusCode::kOk;
  bool operator==(const Opened&) const = default;
};
struct Question {
  uint64_t sequence = 0;
  GrantToken token = {};
  SlabId slab = 0;
  uint64_t offset = 0;
  uint32_t length = 0;
  bool operator==(const Question&) const = default;
};
struct Answer {
  uint64_t sequence = 0;
  absl::StatusCode code = absl::StatusCode::kOk;
  uint32_t length = 0;
  bool operator==(const Answer&) const = default;
};

std::string Encode(const Opening& opening);
std::string Encode(const Opened& opened);
std::string Encode(const Question& question);
std::string Encode(const Answer& answer);

// INVALID_ARGUMENT, naming what is wrong. A version other than ours decodes: the caller refuses it,
// and can say so to the peer; all of a version keep the layout of Opening and Opened.
StatusOr<Opening> DecodeOpening(absl::string_view bytes);
StatusOr<Opened> DecodeOpened(absl::string_view bytes);
StatusOr<Question> DecodeQuestion(absl::string_view bytes);
StatusOr<Answer> DecodeAnswer(absl::string_view bytes);

}  // namespace cairn::transport
