// What only TCP streams do: strangers, peers that stop in the middle, half-open connections, other
// versions, bounds. Faults R16, R18 and R19 (docs/testing.md), within one process.
#include "server/transport/tcp_transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <tuple>
#include <vector>

#include "common/tcp_address.h"
#include "server/transport/tcp_socket.h"
#include "server/transport/tcp_wire.h"
#include "tests/support/await.h"
#include "tests/transport/two_nodes.h"

namespace cairn::transport {
namespace {

using ::testing::HasSubstr;

constexpr MonotonicNanos kShortStall = 2 * kNanosPerSecond;

// A peer that a test plays itself, by hand.
class Stream {
 public:
  static Stream To(const std::string& address) {
    const std::atomic<bool> go_on = false;
    auto connected = TcpSocket::Connect(address, After(60), kLongStall, go_on);
    EXPECT_TRUE(connected.ok()) << connected.status();
    return Stream(*std::move(connected));
  }
  explicit Stream(UniqueFd fd) {
    // The kernel takes little of what the test does not.
    const int bytes = 64 << 10;
    EXPECT_EQ(setsockopt(fd.get(), SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes)), 0);
    socket_ = std::make_unique<TcpSocket>(std::move(fd), kLongStall);
  }

  void Say(const std::string& bytes) { (void)socket_->Send(bytes, false, After(60)); }
  // What comes within the time, or "" when the stream is closed first.
  std::string Hear(size_t bytes, int seconds = 60) {
    std::string heard(bytes, '\0');
    const Status status = socket_->Receive(absl::MakeSpan(heard), After(seconds));
    return status.ok() ? heard : "";
  }
  // It is closed within a minute, and no byte comes before.
  bool Closed() {
    char byte = 0;
    return absl::IsUnavailable(socket_->Receive(absl::MakeSpan(&byte, 1), After(60)));
  }
  void Reset() { socket_->Reset(); }

 private:
  std::unique_ptr<TcpSocket> socket_;
};

class TcpTransportTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(owner_->Attach(kOwned, owned_.fd(), owned_.size()).ok());
    ASSERT_TRUE(owner_->Grant(token_, kReader, {{kOwned, 0, owned_.size()}}).ok());
    region_ = *owner_->Describe({kOwned, 0, owned_.size()});
  }
  Stream Opened() {
    Stream stream = Stream::To(owner_->Address());
    stream.Say(Encode(Opening{kTcpVersion, kReader}));
    EXPECT_EQ(DecodeOpened(stream.Hear(kOpenedBytes))->code, absl::StatusCode::kOk);
    return stream;
  }
  Question Ask(uint64_t offset, uint32_t length) const {
    return {1, token_, kOwned, offset, length};
  }
  std::unique_ptr<TcpTransport> Reader(MonotonicNanos stall = kLongStall) {
    auto reader = StartTcp(kReader, {}, {.stall = stall, .idle = kLongStall});
    EXPECT_TRUE(reader->Attach(kFetched, fetched_.fd(), fetched_.size()).ok());
    return reader;
  }

  const std::string bytes_ = Noise(2 * kBlockBytes, 5);
  const Memory owned_{bytes_};
  Memory fetched_{bytes_.size()};
  const GrantToken token_ = NewGrantToken();
  std::string region_;
  const std::unique_ptr<TcpTransport> owner_ =
      StartTcp({.rank = 1, .incarnation = 5},
               {.max_streams = 8, .max_strangers = 3, .stall = kLongStall, .idle = kLongStall});
};

TEST_F(TcpTransportTest, AStreamIsWhatItsPageSays) {
  Stream stream = Opened();
  stream.Say(Encode(Ask(1000, 2000)));
  const auto answer = DecodeAnswer(stream.Hear(kAnswerBytes));
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(*answer, (Answer{1, absl::StatusCode::kOk, 2000}));
  EXPECT_EQ(stream.Hear(2000), bytes_.substr(1000, 2000));
}

TEST_F(TcpTransportTest, AnotherVersionIsTold) {
  Stream stream = Stream::To(owner_->Address());
  stream.Say(Encode(Opening{kTcpVersion + 1, kReader}));
  const auto opened = DecodeOpened(stream.Hear(kOpenedBytes));
  ASSERT_TRUE(opened.ok());
  EXPECT_EQ(opened->code, absl::StatusCode::kUnimplemented);
  EXPECT_EQ(opened->version, kTcpVersion);
  EXPECT_TRUE(stream.Closed());
}

TEST_F(TcpTransportTest, WhoSaysNonsenseIsCutOff) {
  for (const std::string& nonsense : {std::string("GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n"),
                                      std::string(kOpeningBytes, '\0')}) {
    Stream stream = Stream::To(owner_->Address());
    stream.Say(nonsense);
    EXPECT_TRUE(stream.Closed());
  }
  Stream stream = Opened();
  stream.Say(std::string(kQuestionBytes, 'x'));
  EXPECT_TRUE(stream.Closed());
}

TEST_F(TcpTransportTest, WhoSaysNothingIsCutOff) {
  const auto owner = StartTcp({.rank = 1}, {.stall = kShortStall});
  Stream silent = Stream::To(owner->Address());
  Stream half = Stream::To(owner->Address());
  half.Say(Encode(Opening{kTcpVersion, kReader}).substr(0, 20));
  Stream no_question = Stream::To(owner->Address());
  no_question.Say(Encode(Opening{kTcpVersion, kReader}));
  no_question.Hear(kOpenedBytes);
  EXPECT_TRUE(silent.Closed());
  EXPECT_TRUE(half.Closed());
  EXPECT_TRUE(no_question.Closed());
}

// R19. One wrong token is the end of a stream that has shown no good one.
TEST_F(TcpTransportTest, AForgedTokenIsRefusedAndItsStreamClosed) {
  Stream stream = Opened();
  Question question = Ask(0, 100);
  question.token[15] ^= 1;
  stream.Say(Encode(question) + Encode(Ask(0, 100)));
  EXPECT_EQ(DecodeAnswer(stream.Hear(kAnswerBytes))->code, absl::StatusCode::kPermissionDenied);
  EXPECT_TRUE(stream.Closed());
}

// R19. A token that was good yesterday: neither a stream that has used it nor a new one reads with it.
TEST_F(TcpTransportTest, ARevokedTokenIsRefusedOnEveryStream) {
  const GrantToken other = NewGrantToken();
  ASSERT_TRUE(owner_->Grant(other, kReader, {{kOwned, 0, 4096}}).ok());
  Stream used = Opened();
  used.Say(Encode(Ask(0, 10)));
  ASSERT_EQ(used.Hear(kAnswerBytes + 10).substr(kAnswerBytes), bytes_.substr(0, 10));
  Question with_other = Ask(0, 10);
  with_other.token = other;
  used.Say(Encode(with_other));  // so that nothing of the first is in a queue, and the stream stays
  ASSERT_FALSE(used.Hear(kAnswerBytes + 10).empty());
  EXPECT_TRUE(owner_->Revoke(token_, ItsReads::kMayBeUnderWay));
  used.Say(Encode(Ask(0, 10)));
  // The owner's kernel may not know yet that its last bytes were taken: then the stream is cut.
  const std::string heard = used.Hear(kAnswerBytes);
  if (!heard.empty()) {
    EXPECT_EQ(DecodeAnswer(heard)->code, absl::StatusCode::kPermissionDenied);
  }
  Stream fresh = Opened();
  fresh.Say(Encode(Ask(0, 10)));
  EXPECT_EQ(DecodeAnswer(fresh.Hear(kAnswerBytes))->code, absl::StatusCode::kPermissionDenied);
  EXPECT_TRUE(fresh.Closed());
}

// R19. Whoever has overheard a member's token still has to be that member, in that life.
TEST_F(TcpTransportTest, ATokenThatAnotherPeerReplaysIsRefused) {
  Stream member = Opened();
  member.Say(Encode(Ask(0, 10)));
  ASSERT_FALSE(member.Hear(kAnswerBytes + 10).empty());
  for (const PeerId other : {PeerId{kReader.rank + 1, kReader.incarnation},
                             PeerId{kReader.rank, kReader.incarnation - 1},
                             PeerId{kReader.rank, kReader.incarnation + 1}, PeerId{}}) {
    Stream stream = Stream::To(owner_->Address());
    stream.Say(Encode(Opening{kTcpVersion, other}) + Encode(Ask(0, 10)));
    ASSERT_FALSE(stream.Hear(kOpenedBytes).empty());
    EXPECT_EQ(DecodeAnswer(stream.Hear(kAnswerBytes))->code, absl::StatusCode::kPermissionDenied);
    EXPECT_TRUE(stream.Closed());
  }
  member.Say(Encode(Ask(10, 10)));
  EXPECT_FALSE(member.Hear(kAnswerBytes + 10).empty()) << "it has nothing to do with that";
}

// R19. Places that a grant does not reach, those among them whose end is beyond 2^64.
TEST_F(TcpTransportTest, AGoodTokenForPlacesOutOfBoundsIsRefused) {
  Stream stream = Opened();
  stream.Say(Encode(Ask(0, 1)));
  ASSERT_FALSE(stream.Hear(kAnswerBytes + 1).empty());
  const uint64_t end = bytes_.size();
  for (const auto& [slab, offset, length] : std::vector<std::tuple<SlabId, uint64_t, uint32_t>>{
           {kOwned, end, 1},
           {kOwned, end - 1, 2},
           {kOwned, end + (uint64_t{1} << 40), 1},
           {kOwned, ~uint64_t{0}, 2},
           {kOwned, ~uint64_t{0} - kMaxReadBytes + 2, kMaxReadBytes},
           {kOwned + 1, 0, 1},
           {kOwned - 1, 0, 1},
           {~SlabId{0}, 0, 1}}) {
    stream.Say(Encode(Question{2, token_, slab, offset, length}));
    const auto answer = DecodeAnswer(stream.Hear(kAnswerBytes));
    ASSERT_TRUE(answer.ok()) << offset;
    EXPECT_EQ(*answer, (Answer{2, absl::StatusCode::kPermissionDenied, 0})) << offset;
  }
}

TEST_F(TcpTransportTest, AStreamGoesOnAfterARefusalOnceItHasShownAToken) {
  Stream stream = Opened();
  Question beyond = Ask(bytes_.size() - 10, 11);
  stream.Say(Encode(Ask(0, 1)) + Encode(beyond) + Encode(Ask(1, 1)));
  EXPECT_EQ(DecodeAnswer(stream.Hear(kAnswerBytes))->code, absl::StatusCode::kOk);
  EXPECT_EQ(stream.Hear(1), bytes_.substr(0, 1));
  EXPECT_EQ(DecodeAnswer(stream.Hear(kAnswerBytes))->code, absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(DecodeAnswer(stream.Hear(kAnswerBytes))->code, absl::StatusCode::kOk);
  EXPECT_EQ(stream.Hear(1), bytes_.substr(1, 1));
}

TEST_F(TcpTransportTest, StrangersDoNotKeepMembersOut) {
  Stream member = Opened();
  member.Say(Encode(Ask(0, 1)));
  ASSERT_FALSE(member.Hear(kAnswerBytes + 1).empty());
  std::vector<Stream> strangers;
  for (int i = 0; i < 30; ++i) strangers.push_back(Stream::To(owner_->Address()));
  Stream another = Opened();
  another.Say(Encode(Ask(5, 1)));
  EXPECT_FALSE(another.Hear(kAnswerBytes + 1).empty());
  member.Say(Encode(Ask(0, 1)));
  EXPECT_FALSE(member.Hear(kAnswerBytes + 1).empty());
  EXPECT_LE(owner_->streams(), 8);
}

// The accepting thread waited for strangers that the gate for copying held up, up to half a second for each.
TEST_F(TcpTransportTest, OnlyAnswersThatHaveBytesWaitForTheGate) {
  std::atomic<int> passed = 0;
  const auto owner = StartTcp({.rank = 1}, {.before_answer = [&] { ++passed; }});
  ASSERT_TRUE(owner->Attach(kOwned, owned_.fd(), owned_.size()).ok());
  ASSERT_TRUE(owner->Grant(token_, kReader, {{kOwned, 0, 1000}}).ok());
  Stream stranger = Stream::To(owner->Address());
  stranger.Say(Encode(Opening{kTcpVersion, kReader}) + Encode(Question{1, {}, kOwned, 0, 100}));
  EXPECT_FALSE(stranger.Hear(kOpenedBytes + kAnswerBytes).empty());
  EXPECT_TRUE(stranger.Closed());
  EXPECT_EQ(passed, 0);
  Stream member = Stream::To(owner->Address());
  member.Say(Encode(Opening{kTcpVersion, kReader}) + Encode(Ask(0, 100)));
  EXPECT_FALSE(member.Hear(kOpenedBytes + kAnswerBytes + 100).empty());
  EXPECT_EQ(passed, 1);
}

// What is sent and not taken yet refers to the slab's pages: it is thrown away with its stream.
TEST_F(TcpTransportTest, RevokeCutsAStreamWhosePeerTakesNothing) {
  Stream stream = Opened();
  std::string questions;
  for (int i = 0; i < 16; ++i) questions += Encode(Ask(0, kMaxReadBytes));
  stream.Say(questions);
  ASSERT_FALSE(stream.Hear(kAnswerBytes).empty());
  const MonotonicNanos before = RealClock()->Now();
  EXPECT_TRUE(owner_->Revoke(token_, ItsReads::kMayBeUnderWay));
  EXPECT_LT(RealClock()->Now() - before, testing::Patient(30 * kNanosPerSecond))
      << "it waits for no peer";
  size_t heard = 0;
  while (!stream.Hear(1 << 14).empty()) heard += 1 << 14;
  EXPECT_LT(heard, kMaxReadBytes / 4);
}

TEST_F(TcpTransportTest, APeerThatTakesNothingIsCutOff) {
  const auto owner = StartTcp({.rank = 1}, {.stall = kShortStall});
  ASSERT_TRUE(owner->Attach(kOwned, owned_.fd(), owned_.size()).ok());
  ASSERT_TRUE(owner->Grant(token_, kReader, {{kOwned, 0, owned_.size()}}).ok());
  Stream stream = Stream::To(owner->Address());
  std::string questions = Encode(Opening{kTcpVersion, kReader});
  for (int i = 0; i < 16; ++i) questions += Encode(Ask(0, kMaxReadBytes));
  stream.Say(questions);
  ASSERT_FALSE(stream.Hear(kOpenedBytes + kAnswerBytes).empty());
  EXPECT_TRUE(testing::Await([&] { return owner->streams() == 0; }));
}

TEST_F(TcpTransportTest, WrongOptionsAreNamed) {
  const auto error = [](TcpServerOptions server, TcpReaderOptions reader) {
    return std::string(TcpTransport::Start(server, reader).status().message());
  };
  EXPECT_THAT(error({.max_streams = 1}, {}), HasSubstr("max_streams: 1"));
  EXPECT_THAT(error({.max_strangers = 256}, {}), HasSubstr("max_strangers: 256"));
  EXPECT_THAT(error({.stall = 5}, {}), HasSubstr("stall"));
  EXPECT_THAT(error({.listen = "nowhere"}, {}), HasSubstr("listen: \"nowhere\""));
  EXPECT_THAT(error({.listen = "localhost:80"}, {}), HasSubstr("listen: \"localhost:80\""));
  EXPECT_THAT(error({.listen = "192.0.2.1:1"}, {}), HasSubstr("listen: 192.0.2.1:1"));
  EXPECT_THAT(error({}, {.streams = 0}), HasSubstr("streams: 0"));
  EXPECT_THAT(error({}, {.streams = -1}), HasSubstr("streams: -1"));
  EXPECT_THAT(error({}, {.ahead = 65}), HasSubstr("ahead: 65"));
  EXPECT_THAT(error({}, {.max_waiting = 0}), HasSubstr("max_waiting: 0"));
}

// The daemon ended, also when another user had taken the port while it restarted.
TEST_F(TcpTransportTest, AnOwnerWhosePortIsTakenGrantsOnceItIsFree) {
  auto squatter = ListenTcp(*TcpAddress::Parse("127.0.0.1:0"));
  ASSERT_TRUE(squatter.ok()) << squatter.status();
  const std::string address = TcpAddress::OfSocket(squatter->get())->ToString();
  const auto owner = StartTcp({.rank = 1}, {.listen = address});
  EXPECT_EQ(owner->Address(), address);
  EXPECT_THAT(owner->Problem(), HasSubstr(address + ": Address already in use"));
  ASSERT_TRUE(owner->Attach(kOwned, owned_.fd(), owned_.size()).ok());
  // No token goes to who listens there now.
  EXPECT_TRUE(absl::IsUnavailable(owner->Grant(token_, kReader, {{kOwned, 0, 100}})));
  squatter->Reset();
  EXPECT_TRUE(testing::Await([&] { return owner->Problem().empty(); }));
  ASSERT_TRUE(owner->Grant(token_, kReader, {{kOwned, 0, 100}}).ok());
  const auto reader = Reader();
  const auto region = owner->Describe({kOwned, 0, 100});
  EXPECT_TRUE(ReadNow(reader.get(), ReadOf(*owner, token_, *region, 0, 100, fetched_)).ok());
}

TEST_F(TcpTransportTest, Ipv6) {
  if (const auto listener = ListenTcp(*TcpAddress::Parse("[::1]:0"));
      !listener.ok()) {  // there is none here
    EXPECT_THAT(listener.status().message(), HasSubstr("[::1]:0: "));
    return;
  }
  const auto owner = StartTcp({.rank = 1}, {.listen = "[::1]:0"});
  ASSERT_TRUE(owner->Attach(kOwned, owned_.fd(), owned_.size()).ok());
  ASSERT_TRUE(owner->Grant(token_, kReader, {{kOwned, 0, 100}}).ok());
  const auto reader = Reader();
  const auto region = owner->Describe({kOwned, 0, 100});
  EXPECT_TRUE(ReadNow(reader.get(), ReadOf(*owner, token_, *region, 0, 100, fetched_)).ok());
}

// Somebody else's long writes keep the file's lock, so that one stream waits in its write, and the
// other one with pieces that it has received.
TEST_F(TcpTransportTest, PiecesThatWaitForTheirTurnAreWritten) {
  Memory into(3 * bytes_.size());
  const auto reader = StartTcp(kReader);
  ASSERT_TRUE(reader->Attach(kFetched, into.fd(), into.size()).ok());
  std::atomic<bool> over = false;
  std::thread other([&] {
    while (!over) into.Write(2 * bytes_.size(), bytes_);
  });
  bool equal = true;  // about every second round has pieces that wait
  for (int round = 0; round < 20 && equal; ++round) {
    into.Write(0, std::string(bytes_.size(), '\0'));
    EXPECT_TRUE(ReadAllOf(reader.get(), *owner_, token_, region_, bytes_, into).ok());
    equal = into.Read(0, bytes_.size()) == bytes_;  // not EXPECT_EQ, which would print them
  }
  EXPECT_TRUE(equal);
  over = true;
  other.join();
}

// An opening that the kernel holds back, to send it with what follows, costs each new stream 200 ms.
TEST_F(TcpTransportTest, ANewStreamIsOpenAtOnce) {
  // One of many is: the machine has other things to do at times.
  EXPECT_TRUE(testing::Await([&] {
    const auto reader = Reader();
    const MonotonicNanos before = RealClock()->Now();
    EXPECT_TRUE(ReadNow(reader.get(), ReadOf(*owner_, token_, region_, 0, 100, fetched_)).ok());
    return RealClock()->Now() - before < 150 * kNanosPerMilli;
  }));
}

// --- an owner that a test plays

class FalseOwner : public TcpTransportTest {
 protected:
  FalseOwner() : listener_(*ListenTcp(*TcpAddress::Parse("127.0.0.1:0"))) {}
  // The stream that a reader opened, its opening answered.
  Stream Accept() {
    EXPECT_TRUE(*WaitReadable(listener_.get(), 10'000));
    Stream stream(UniqueFd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)));
    EXPECT_TRUE(DecodeOpening(stream.Hear(kOpeningBytes)).ok());
    stream.Say(Encode(transport::Opened{}));
    return stream;
  }
  std::future<StatusOr<uint32_t>> BeginRead(Transport* reader, uint64_t length = 1000) {
    ReadRequest request = ReadOf(*owner_, token_, region_, 0, length, fetched_);
    request.address = TcpAddress::OfSocket(listener_.get())->ToString();
    return Begin(reader, request);
  }

  const UniqueFd listener_;
};

// R16.
TEST_F(FalseOwner, AnOwnerThatStopsInTheMiddleIsNoticed) {
  const auto reader = Reader(kShortStall);
  auto read = BeginRead(reader.get());
  Stream stream = Accept();
  ASSERT_FALSE(stream.Hear(kQuestionBytes).empty());
  stream.Say(Encode(Answer{1, absl::StatusCode::kOk, 1000}) + std::string(500, 'x'));
  const auto crc = read.get();
  EXPECT_TRUE(absl::IsUnavailable(crc.status())) << crc.status();
  EXPECT_THAT(crc.status().message(), HasSubstr("no byte has moved for 2000 ms"));
}

TEST_F(FalseOwner, WhatACutLeftIsAskedOnceMore) {
  const auto reader = Reader();
  auto read = BeginRead(reader.get());
  Accept().Reset();
  Stream stream = Accept();
  ASSERT_FALSE(stream.Hear(kQuestionBytes).empty());
  stream.Say(Encode(Answer{1, absl::StatusCode::kOk, 1000}) + std::string(1000, 'x'));
  EXPECT_TRUE(read.get().ok());
  EXPECT_EQ(fetched_.Read(0, 1000), std::string(1000, 'x'));
}

TEST_F(FalseOwner, WhatIsCutTwiceIsUnavailable) {
  const auto reader = Reader();
  auto read = BeginRead(reader.get());
  Accept().Reset();
  Accept().Reset();
  EXPECT_TRUE(absl::IsUnavailable(read.get().status()));
}

TEST_F(FalseOwner, AnAnswerToAnotherQuestionIsNotTaken) {
  for (const Answer& wrong :
       {Answer{2, absl::StatusCode::kOk, 1000}, Answer{1, absl::StatusCode::kOk, 999}}) {
    const auto reader = Reader();
    auto read = BeginRead(reader.get());
    for (int i = 0; i < 2; ++i) {
      Stream stream = Accept();
      stream.Hear(kQuestionBytes);
      stream.Say(Encode(wrong) + std::string(1000, 'x'));
      stream.Hear(1);
    }
    EXPECT_TRUE(absl::IsUnavailable(read.get().status()));
    EXPECT_EQ(fetched_.Read(0, 1000), std::string(1000, '\0'));
  }
}

// NOT_FOUND and CANCELLED, which speak of the reader's own memory, ended the whole fetch.
TEST_F(FalseOwner, ACodeThatNoOwnerSaysIsTheOwnersFault) {
  using Code = absl::StatusCode;
  for (const auto& [said, heard] : {std::pair(Code::kNotFound, Code::kUnavailable),
                                    {Code::kCancelled, Code::kUnavailable},
                                    {Code::kInvalidArgument, Code::kUnavailable},
                                    {Code::kDataLoss, Code::kDataLoss},
                                    {Code::kPermissionDenied, Code::kPermissionDenied}}) {
    const auto reader = Reader();
    auto read = BeginRead(reader.get());
    Stream stream = Accept();
    stream.Hear(kQuestionBytes);
    stream.Say(Encode(Answer{1, said, 0}));
    EXPECT_EQ(read.get().status().code(), heard) << absl::StatusCodeToString(said);
  }
}

TEST_F(FalseOwner, AnOwnerOfAnotherVersionIsNamed) {
  const auto reader = Reader();
  auto read = BeginRead(reader.get());
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(*WaitReadable(listener_.get(), 10'000));
    Stream stream(UniqueFd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)));
    stream.Hear(kOpeningBytes);
    stream.Say(Encode(transport::Opened{kTcpVersion + 1, absl::StatusCode::kUnimplemented}));
    stream.Hear(1);
  }
  EXPECT_THAT(read.get().status().message(), HasSubstr("speaks version 2"));
}

TEST_F(FalseOwner, ADeadlineEndsAReadThatTrickles) {
  const auto reader = Reader();
  ReadRequest request = ReadOf(*owner_, token_, region_, 0, 1000, fetched_);
  request.address = TcpAddress::OfSocket(listener_.get())->ToString();
  request.deadline = After(2);
  auto read = Begin(reader.get(), request);
  Stream stream = Accept();
  stream.Hear(kQuestionBytes);
  stream.Say(Encode(Answer{1, absl::StatusCode::kOk, 1000}));
  while (read.wait_for(std::chrono::milliseconds(100)) == std::future_status::timeout)
    stream.Say("x");
  EXPECT_TRUE(absl::IsDeadlineExceeded(read.get().status()));
}

TEST_F(FalseOwner, TooManyReadsAreRefused) {
  const auto reader = StartTcp(
      kReader, {},
      {.streams = 1, .ahead = 1, .max_waiting = 4, .stall = kLongStall, .idle = kLongStall});
  ASSERT_TRUE(reader->Attach(kFetched, fetched_.fd(), fetched_.size()).ok());
  auto first = BeginRead(reader.get());
  Stream stream = Accept();
  stream.Hear(kQuestionBytes);  // it is under way now
  std::vector<std::future<StatusOr<uint32_t>>> waiting;
  for (int i = 0; i < 4; ++i) waiting.push_back(BeginRead(reader.get()));
  EXPECT_TRUE(absl::IsResourceExhausted(BeginRead(reader.get()).get().status()));
}

}  // namespace
}  // namespace cairn::transport
