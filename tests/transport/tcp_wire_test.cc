// The frames of data streams: what is written is read, and nothing else is.
#include "server/transport/tcp_wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/transport/region.h"

namespace cairn::transport {
namespace {

using ::testing::HasSubstr;

Question AQuestion() {
  Question question{17, {}, 3, uint64_t{1} << 40, 4096};
  for (size_t i = 0; i < question.token.size(); ++i) question.token[i] = static_cast<uint8_t>(i);
  return question;
}

TEST(TcpWire, FramesSayWhatWasSaid) {
  const Opening opening{kTcpVersion, {.rank = 5, .incarnation = 1'700'000'000'000}};
  EXPECT_EQ(*DecodeOpening(Encode(opening)), opening);
  const Opened opened{kTcpVersion, absl::StatusCode::kUnimplemented};
  EXPECT_EQ(*DecodeOpened(Encode(opened)), opened);
  EXPECT_EQ(*DecodeQuestion(Encode(AQuestion())), AQuestion());
  const Answer answer{17, absl::StatusCode::kOk, 4096};
  EXPECT_EQ(*DecodeAnswer(Encode(answer)), answer);
  EXPECT_EQ(Encode(opening).size(), kOpeningBytes);
  EXPECT_EQ(Encode(opened).size(), kOpenedBytes);
  EXPECT_EQ(Encode(AQuestion()).size(), kQuestionBytes);
  EXPECT_EQ(Encode(answer).size(), kAnswerBytes);
}

// One bit of a header, anywhere: else the stream would go on with somebody else's bytes.
template <class Decode>
void ExpectEveryFlippedBitIsRefused(const std::string& frame, Decode decode) {
  for (size_t bit = 0; bit < 8 * frame.size(); ++bit) {
    std::string flipped = frame;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_FALSE(decode(flipped).ok()) << "bit " << bit;
  }
  for (size_t length = 0; length < frame.size(); ++length) {
    EXPECT_FALSE(decode(absl::string_view(frame).substr(0, length)).ok()) << length << " bytes";
  }
  EXPECT_FALSE(decode(frame + "x").ok());
}

TEST(TcpWire, AFlippedBitIsRefused) {
  ExpectEveryFlippedBitIsRefused(Encode(Opening{kTcpVersion, {1, 2}}), DecodeOpening);
  ExpectEveryFlippedBitIsRefused(Encode(Opened{}), DecodeOpened);
  ExpectEveryFlippedBitIsRefused(Encode(AQuestion()), DecodeQuestion);
  ExpectEveryFlippedBitIsRefused(Encode(Answer{1, absl::StatusCode::kOk, 9}), DecodeAnswer);
}

TEST(TcpWire, LengthsBeyondABlockAreRefused) {
  Question question = AQuestion();
  for (const uint32_t length :
       {uint32_t{0}, static_cast<uint32_t>(kMaxReadBytes) + 1, ~uint32_t{0}}) {
    question.length = length;
    EXPECT_THAT(DecodeQuestion(Encode(question)).status().message(), HasSubstr("length"));
  }
  EXPECT_FALSE(DecodeAnswer(Encode(Answer{1, absl::StatusCode::kOk, ~uint32_t{0}})).ok());
  EXPECT_FALSE(DecodeAnswer(Encode(Answer{1, absl::StatusCode::kNotFound, 1})).ok());
}

// Who speaks a later version can be told so.
TEST(TcpWire, AnotherVersionIsReadAndLeftToTheCaller) {
  EXPECT_EQ(DecodeOpening(Encode(Opening{kTcpVersion + 1, {}}))->version, kTcpVersion + 1);
  EXPECT_EQ(DecodeOpened(Encode(Opened{kTcpVersion + 1, {}}))->version, kTcpVersion + 1);
}

TEST(Region, SaysWhatWasSaid) {
  const ExtentRef extent{7, uint64_t{1} << 50, 12345};
  EXPECT_EQ(*DecodeRegion(EncodeRegion(extent)), extent);
  EXPECT_FALSE(DecodeRegion("").ok());
  EXPECT_FALSE(DecodeRegion(EncodeRegion(extent) + "x").ok());
}

}  // namespace
}  // namespace cairn::transport
