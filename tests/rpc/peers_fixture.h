// A few members of a ring in one process, on loopback, each over a host that is the test's; and callers that
// are none.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "Peer.h"
#include "common/fd.h"
#include "common/status.h"
#include "common/tcp_address.h"
#include "proto/frame.h"
#include "server/rpc/peer_convert.h"
#include "server/rpc/peers.h"
#include "tests/rpc/fake_peer_host.h"
#include "tests/support/held_port.h"
#include "tests/support/patience.h"

namespace cairn::testing {

inline engine::MemberId Life(engine::Rank rank, int64_t incarnation, char instance) {
  return {rank, incarnation, std::string(engine::kInstanceBytes, instance)};
}

inline peerwire::Sender SenderOf(const engine::MemberId& member,
                                 const std::string& cluster = "ours") {
  peerwire::Sender sender;
  sender.__set_cluster(cluster);
  sender.__set_member(rpc::ToPeerWire(member));
  return sender;
}

// Says to a member what it likes. Calls fail the test when the member does not answer.
class RawPeer {
 public:
  explicit RawPeer(const std::string& address, std::unique_ptr<tls::TlsSession> tls = nullptr)
      : never_(false) {
    auto socket = rpc::ConnectTcp(*TcpAddress::Parse(address), In(5), never_);
    EXPECT_TRUE(socket.ok()) << socket.status();
    stream_ = std::make_unique<rpc::PeerStream>(*std::move(socket), std::move(tls),
                                                Patient(5 * kNanosPerSecond));
  }

  rpc::PeerStream& stream() { return *stream_; }
  static MonotonicNanos In(int seconds) {
    return RealClock()->Now() + Patient(seconds * kNanosPerSecond);
  }

  Status Send(const std::string& bytes) { return stream_->Send(bytes, In(5)); }
  Status SendLength(uint32_t length) {
    std::string header(kFrameHeaderBytes, '\0');
    PutFrameLength(length, header.data());
    return Send(header);
  }
  // True when the member closes the connection; what it sends before is passed over.
  bool Closed() {
    for (;;) {
      const auto length = stream_->ReceiveLength(In(5));
      if (!length.ok()) return absl::IsUnavailable(length.status());
      if (!stream_->ReceiveMessage(*length, In(5)).ok()) return true;
    }
  }

  template <typename Result, typename Args>
  Result Call(const std::string& method, const Args& args) {
    FrameWriter writer;
    writer.protocol()->writeMessageBegin(method, apache::thrift::protocol::T_CALL, 1);
    args.write(writer.protocol());
    writer.protocol()->writeMessageEnd();
    EXPECT_TRUE(Send(std::string(writer.Finish())).ok());
    Result result;
    const auto length = stream_->ReceiveLength(In(5));
    EXPECT_TRUE(length.ok()) << method << ": " << length.status();
    if (!length.ok()) return result;
    const auto answer = stream_->ReceiveMessage(*length, In(5));
    EXPECT_TRUE(answer.ok()) << answer.status();
    if (!answer.ok()) return result;
    MessageReader reader(64 << 20);
    apache::thrift::protocol::TProtocol* const in = reader.Read(*answer);
    std::string name;
    apache::thrift::protocol::TMessageType type = apache::thrift::protocol::T_CALL;
    int32_t sequence = 0;
    in->readMessageBegin(name, type, sequence);
    if (type == apache::thrift::protocol::T_EXCEPTION) {
      was_exception_ = true;
      return result;
    }
    result.read(in);
    return result;
  }
  bool was_exception() const { return was_exception_; }  // the last answer

  peerwire::Peer_greet_result Greet(const peerwire::Sender& sender, int32_t protocol = 1) {
    peerwire::Peer_greet_args args;
    args.greeting.__set_sender(sender);
    args.greeting.__set_protocol(protocol);
    args.greeting.__set_address("127.0.0.1:1");
    args.greeting.__set_data_address("");
    args.greeting.__set_unix_ms(0);
    args.__isset.greeting = true;
    return Call<peerwire::Peer_greet_result>("greet", args);
  }
  peerwire::Peer_say_result Say(const peerwire::Sender& sender,
                                std::vector<peerwire::Message> messages) {
    peerwire::Peer_say_args args;
    args.sender = sender;
    args.messages = std::move(messages);
    return Call<peerwire::Peer_say_result>("say", args);
  }

 private:
  std::atomic<bool> never_;
  std::unique_ptr<rpc::PeerStream> stream_;
  bool was_exception_ = false;
};

class PeersFixture : public ::testing::Test {
 protected:
  struct Member {
    explicit Member(engine::MemberId self) : host(std::move(self)) {}
    FakePeerHost host;
    std::unique_ptr<rpc::Peers> peers;
  };

  void SetUp() override {
    for (engine::Rank rank = 0; rank < 3; ++rank) ring_[rank] = ports_[rank].address();
    options_.exchange_interval = 50 * kNanosPerMilli;
    options_.back_off_min = 10 * kNanosPerMilli;
    options_.back_off_max = 50 * kNanosPerMilli;
    options_.call_timeout = testing::Patient(3 * kNanosPerSecond);
  }

  // Of the ring that the test is about.
  rpc::PeersOptions Options(engine::Rank rank) const {
    rpc::PeersOptions options = options_;
    options.ring.cluster = "ours";
    options.ring.rank = rank;
    options.ring.members = ring_;
    options.data_address = "data of " + std::to_string(rank);
    return options;
  }
  std::unique_ptr<Member> Start(const engine::MemberId& self, const rpc::PeersOptions& options) {
    auto member = std::make_unique<Member>(self);
    StartAgain(member.get(), options);
    return member;
  }
  std::unique_ptr<Member> Start(const engine::MemberId& self) {
    return Start(self, Options(self.rank));
  }
  static void StartAgain(Member* member, const rpc::PeersOptions& options) {
    auto peers = rpc::Peers::Open(options, &member->host);
    ASSERT_TRUE(peers.ok()) << peers.status();
    member->peers = *std::move(peers);
    member->peers->Start();
  }

  const engine::MemberId a_ = Life(0, 100, 'a'), b_ = Life(1, 200, 'b');
  const std::array<HeldPort, 3> ports_;
  std::map<engine::Rank, std::string> ring_;
  rpc::PeersOptions options_;
};

}  // namespace cairn::testing
