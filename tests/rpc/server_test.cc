// One file: each test is about both sockets of one server.
// The Thrift edge over a real node: sessions, both sockets, bad input (R24 for this parser),
// bounds.
#include "server/rpc/server.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <thrift/transport/TTransportException.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <future>

#include "common/checksum.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/frame.h"
#include "tests/node/node_fixture.h"
#include "tests/rpc/raw_client.h"
#include "tests/support/await.h"

namespace cairn::testing {
namespace {

using apache::thrift::transport::TTransportException;

class RpcServer : public NodeFixture {
 protected:
  void SetUp() override {
    NodeFixture::SetUp();
    listener_ = ListenUnix(Path("cairn.sock"), SOCK_STREAM);
    rpc_.connection.max_message_bytes = 16 << 20;
    Serve();
  }
  // For what a stalled client gets. Others may be slow where the machine is.
  void ServeImpatiently() {
    Unserve();
    rpc_.connection.stall_timeout_ms = 200;
    Serve();
  }
  void TearDown() override {
    Unserve();
    NodeFixture::TearDown();
  }
  void Serve() {
    StartNode();
    server_ = std::make_unique<rpc::Server>(rpc_, &node(), *listener_.Dup());
    server_->Start();
  }
  // As a daemon's death, but that its threads are joined: sessions stay with the keeper.
  void Unserve() {
    if (server_ == nullptr) return;
    node().Stop();
    server_.reset();
    StopNode();
  }
  void RestartServer() {
    Unserve();
    ++restarts_;
    Serve();
  }

  std::string Socket() const { return Path("cairn.sock"); }

  UniqueFd RawConnection() {
    UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, Socket().c_str(), sizeof(address.sun_path) - 1);
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    return fd;
  }
  static std::string Framed(const std::string& bytes, size_t announced) {
    std::string message(kFrameHeaderBytes, '\0');
    PutFrameLength(static_cast<uint32_t>(announced), message.data());
    return message + bytes;
  }
  template <typename Args, typename F>
  static std::string MessageOf(const std::string& name, F fill) {
    FrameWriter writer;
    writer.protocol()->writeMessageBegin(name, apache::thrift::protocol::T_CALL, 1);
    Args args;
    fill(&args);
    args.write(writer.protocol());
    writer.protocol()->writeMessageEnd();
    return std::string(writer.Finish());
  }
  static void SendAll(int fd, const std::string& bytes) {
    ASSERT_EQ(send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  // A connection that speaks for the client's session.
  UniqueFd JoinedConnection(const RawClient& client) {
    UniqueFd fd = RawConnection();
    SendAll(fd.get(), MessageOf<wire::Cairn_rejoin_pargs>("rejoin", [&](auto* args) {
              args->session = &client.hello().session;
              args->secret = &client.hello().secret;
            }));
    EXPECT_THAT(ReadFrame(fd.get()), ::testing::HasSubstr("rejoin"));
    return fd;
  }
  // A whole message without its header; empty when the daemon has closed.
  static std::string ReadFrame(int fd) {
    char header[kFrameHeaderBytes];
    if (recv(fd, header, sizeof(header), MSG_WAITALL) != sizeof(header)) return "";
    std::string message(FrameLength(header), '\0');
    const ssize_t got = recv(fd, message.data(), message.size(), MSG_WAITALL);
    return got == static_cast<ssize_t>(message.size()) ? message : "";
  }
  // Reads until the daemon closes; what came.
  static size_t DrainUntilClosed(int fd) {
    char buffer[4096];
    size_t total = 0;
    for (;;) {
      const ssize_t got = recv(fd, buffer, sizeof(buffer), 0);
      if (got <= 0) return total;
      total += static_cast<size_t>(got);
    }
  }

  // The error that `call` throws; code 0 when it throws none.
  // Object "model" of step 1 of "job", mapped.
  static wire::OpenRequest OpenOfStep1() {
    wire::OpenRequest open;
    open.checkpoint.__set_job("job");
    open.checkpoint.__set_step(1);
    open.__set_name("model");
    open.__set_mode(wire::OpenMode::MAP);
    open.__set_timeout_ms(10'000);
    return open;
  }
  template <typename F>
  static wire::Error ErrorOf(F call) {
    wire::Error none;
    none.code = 0;
    try {
      call();
    } catch (const wire::Error& error) {
      return error;
    }
    return none;
  }

  rpc::Options rpc_;
  UniqueFd listener_;
  std::unique_ptr<rpc::Server> server_;
};

int Code(absl::StatusCode code) { return static_cast<int>(code); }

TEST_F(RpcServer, WhatIsSavedIsWhatIsLoaded) {  // promise 2
  RawClient client(Socket());
  client.Begin("job", 7, 0, 1);
  const std::string bytes = Pattern(5 << 20, 1);
  const wire::CommitReply committed = client.Save(3, "model", bytes);
  EXPECT_TRUE(committed.complete);
  EXPECT_EQ(client.Load("job", 3, "model"), bytes);
  wire::Latest latest;
  client.call().latest(latest, "job", 0);
  EXPECT_EQ(latest.step, 3);
  EXPECT_EQ(latest.attempt, 7);
  EXPECT_EQ(latest.source, wire::Source::MEMORY);
}

TEST_F(RpcServer, AnotherProcessOfTheJobReadsIt) {
  RawClient writer(Socket());
  writer.Begin("job", 7, 0, 1);
  const std::string bytes = Pattern(100'000, 2);
  writer.Save(3, "a/b", bytes);
  RawClient reader(Socket());
  reader.Begin("", 0, -1, 0);
  EXPECT_EQ(reader.Load("job", 3, "a/b"), bytes);
}

TEST_F(RpcServer, AClientWithoutDescriptorsSavesAndLoadsInChunks) {
  RawClient client(Socket());
  wire::HelloRequest request = RawClient::HelloOf("job", 7, 0, 1);
  request.__set_takes_fds(false);
  client.Hello(request);
  const std::string bytes = Pattern(3'000'000, 3);
  wire::ObjectSpec spec;
  spec.__set_name("model");
  spec.__set_length(static_cast<int64_t>(bytes.size()));
  wire::CreateRequest create;
  create.__set_step(1);
  create.__set_attempt(7);
  create.__set_writer(0);
  create.__set_world_size(1);
  create.__set_objects({spec});
  create.__set_timeout_ms(10'000);
  wire::CreateReply created;
  client.call().create(created, client.NextCall(), create);
  const int64_t lease = created.extents.at(0).lease;
  for (size_t at = 0; at < bytes.size(); at += 1 << 20) {
    client.call().writeChunk(client.NextCall(), lease, static_cast<int64_t>(at),
                             bytes.substr(at, 1 << 20));
  }
  wire::SealedObject seal;
  seal.__set_name("model");
  seal.__set_length(static_cast<int64_t>(bytes.size()));
  for (uint32_t crc : BlockCrcs(bytes.data(), bytes.size(), kBlockBytes)) {
    seal.block_crcs.push_back(static_cast<int32_t>(crc));
  }
  seal.covered = {0, static_cast<int64_t>(bytes.size())};
  wire::CommitRequest commit;
  commit.__set_step(1);
  commit.__set_attempt(7);
  commit.__set_writer(0);
  commit.__set_world_size(1);
  commit.__set_seals({seal});
  wire::CommitReply committed;
  client.call().commit(committed, client.NextCall(), commit);
  wire::OpenRequest open;
  open.checkpoint.__set_job("job");
  open.checkpoint.__set_step(1);
  open.__set_name("model");
  open.__set_mode(wire::OpenMode::READ);
  open.__set_timeout_ms(10'000);
  wire::OpenReply opened;
  client.call().open(opened, client.NextCall(), open);
  EXPECT_FALSE(opened.fd_sent);
  std::string loaded;
  while (loaded.size() < bytes.size()) {
    std::string chunk;
    const size_t left = bytes.size() - loaded.size();
    client.call().readChunk(chunk, opened.lease, static_cast<int64_t>(loaded.size()),
                            static_cast<int32_t>(std::min<size_t>(left, 700'000)));
    loaded += chunk;
  }
  EXPECT_EQ(loaded, bytes);
  const wire::Error over = ErrorOf([&] {
    std::string chunk;
    client.call().readChunk(chunk, opened.lease, 0, (8 << 20) + 1);
  });
  EXPECT_EQ(over.code, Code(absl::StatusCode::kInvalidArgument)) << over.message;
}

TEST_F(RpcServer, ASessionLivesThroughTheDaemonsDeath) {  // promise 7
  RawClient client(Socket());
  client.Begin("job", 7, 0, 1);
  const std::string bytes = Pattern(2 << 20, 4);
  client.Save(1, "model", bytes);
  RestartServer();
  client.Rejoin();
  EXPECT_EQ(client.Load("job", 1, "model"), bytes);
  const std::string next = Pattern(2 << 20, 5);
  client.Save(2, "model", next);
  EXPECT_EQ(client.Load("job", 2, "model"), next);
}

TEST_F(RpcServer, ASaveInFlightGoesOnAfterTheDaemonsDeath) {  // R1, R15
  RawClient client(Socket());
  client.Begin("job", 7, 0, 1);
  client.Save(1, "model", Pattern(2 << 20, 4));
  wire::ObjectSpec spec;
  spec.__set_name("model");
  spec.__set_length(1'500'000);
  wire::CreateRequest create;
  create.__set_step(2);
  create.__set_attempt(7);
  create.__set_writer(0);
  create.__set_world_size(1);
  create.__set_objects({spec});
  create.__set_timeout_ms(10'000);
  wire::CreateReply created, repeated;
  const int64_t call = client.NextCall();
  client.call().create(created, call, create);
  RestartServer();
  client.Rejoin();
  // The repeat of a call gets its first answer.
  client.call().create(repeated, call, create);
  EXPECT_EQ(repeated.extents.at(0).slab, created.extents.at(0).slab);
  EXPECT_EQ(repeated.extents.at(0).offset, created.extents.at(0).offset);
}

TEST_F(RpcServer, ADeadClientsSessionEndsAtTheClosedChannel) {  // R13
  auto client = std::make_unique<RawClient>(Socket());
  client->Begin("job", 7, 0, 1);
  EXPECT_EQ(keeper_.sessions(), 1u);
  client.reset();
  RawClient other(Socket());
  EXPECT_TRUE(Await([&] {
    wire::NodeStatus status;
    other.call().status(status);
    return status.sessions.empty();
  }));
  EXPECT_TRUE(Await([&] { return keeper_.sessions() == 0; }));
}

// Whatever has happened to a channel meanwhile is told once there is an engine to hear it.
TEST_F(RpcServer, AChannelThatClosedWhileTheDaemonWasDownEndsItsSession) {
  auto client = std::make_unique<RawClient>(Socket());
  client->Begin("job", 7, 0, 1);
  Unserve();
  client.reset();
  ++restarts_;
  Serve();
  EXPECT_TRUE(Await([&] { return keeper_.sessions() == 0; }));
  EXPECT_TRUE(Await([&] { return node().State(engine::Caller())->sessions.empty(); }));
}

// The second of two calls in one packet must not begin when its client has gone.
TEST_F(RpcServer, CallsBehindOneThatIsAbandonedDoNotBegin) {
  RawClient client(Socket());
  client.Begin("job", 7, 0, 1);
  UniqueFd fd = RawConnection();
  const std::string rejoin = MessageOf<wire::Cairn_rejoin_pargs>("rejoin", [&](auto* args) {
    args->session = &client.hello().session;
    args->secret = &client.hello().secret;
  });
  wire::CheckpointRef ref;
  ref.__set_job("job");
  ref.__set_step(-1);
  const auto level = wire::Level::CACHED;
  const int64_t a_day = 24 * 3600 * 1000, after = 5, head = 0;
  const int32_t revision = -1;
  const std::string wait = MessageOf<wire::Cairn_wait_pargs>("wait", [&](auto* args) {
    args->checkpoint = &ref;
    args->level = &level;
    args->timeout_ms = &a_day;
    args->after = &after;
    args->after_head = &head;
    args->after_revision = &revision;
  });
  client.Save(1, "model", Pattern(1000, 7));
  SendAll(fd.get(), rejoin + wait + wait);
  const auto waiting = [&] {
    wire::NodeStatus status;
    client.call().status(status);
    return status.counters["waiting_callers"];
  };
  ASSERT_TRUE(Await([&] { return waiting() == 1; }));
  ASSERT_EQ(shutdown(fd.get(), SHUT_WR), 0);
  DrainUntilClosed(fd.get());
  EXPECT_TRUE(Await([&] { return waiting() == 0; }));
}

TEST_F(RpcServer, AnUnattachedSessionEndsWithItsConnection) {
  RawClient client(Socket());
  client.Hello(RawClient::HelloOf("job", 7, 0, 1));
  client.CloseThrift();
  // Asked of the node itself: no other client connects.
  EXPECT_TRUE(Await([&] { return node().State(engine::Caller())->sessions.empty(); }));
}

TEST_F(RpcServer, CallsNeedASession) {
  RawClient client(Socket());
  client.call().ping();
  wire::NodeStatus status;
  client.call().status(status);
  EXPECT_EQ(status.state, "serving");
  const wire::Error error = ErrorOf([&] {
    wire::Latest latest;
    client.call().latest(latest, "job", 0);
  });
  EXPECT_EQ(error.code, Code(absl::StatusCode::kFailedPrecondition)) << error.message;
}

TEST_F(RpcServer, AGuessedSecretIsRefused) {  // R12
  RawClient client(Socket());
  client.Begin("job", 7, 0, 1);
  RawClient thief(Socket());
  wire::HelloReply reply;
  wire::Error error =
      ErrorOf([&] { thief.call().rejoin(reply, client.hello().session, std::string(16, 'x')); });
  EXPECT_EQ(error.code, Code(absl::StatusCode::kPermissionDenied)) << error.message;
  error = ErrorOf([&] { thief.call().rejoin(reply, 999'999, std::string(16, 'x')); });
  EXPECT_EQ(error.code, Code(absl::StatusCode::kNotFound)) << error.message;
  // A second channel for a session that has one, and one with a wrong secret.
  EXPECT_EQ(client.Attach(), Code(absl::StatusCode::kFailedPrecondition));
}

TEST_F(RpcServer, ANewerProtocolIsRefusedNamingBoth) {
  RawClient client(Socket());
  wire::HelloRequest request = RawClient::HelloOf("job", 7, 0, 1);
  request.__set_protocol(2);
  const wire::Error error = ErrorOf([&] { client.Hello(request); });
  EXPECT_EQ(error.code, Code(absl::StatusCode::kUnimplemented));
  EXPECT_NE(error.message.find("2"), std::string::npos) << error.message;
  EXPECT_NE(error.message.find("1"), std::string::npos) << error.message;
}

TEST_F(RpcServer, BadFieldsAreRefusedNamingThem) {
  RawClient client(Socket());
  client.Begin("job", 7, 0, 1);
  const auto create = [&](int64_t step, const std::string& name, int64_t length) {
    wire::ObjectSpec spec;
    spec.__set_name(name);
    spec.__set_length(length);
    wire::CreateRequest request;
    request.__set_step(step);
    request.__set_attempt(7);
    request.__set_writer(0);
    request.__set_world_size(1);
    request.__set_objects({spec});
    wire::CreateReply reply;
    return ErrorOf([&] { client.call().create(reply, client.NextCall(), request); });
  };
  const int bad = Code(absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(create(-1, "a", 1).code, bad);
  for (const std::string& name :
       {std::string(), std::string("../a"), std::string("/a"), std::string("a\0b", 3),
        std::string(513, 'a'), std::string(201, 'a'), std::string(".cairn/x")}) {
    const wire::Error error = create(1, name, 1);
    EXPECT_EQ(error.code, bad) << error.message;
    EXPECT_NE(error.message.find("name"), std::string::npos) << error.message;
  }
  EXPECT_EQ(create(1, "a", std::numeric_limits<int64_t>::min()).code, bad);
  EXPECT_EQ(create(1, "a", std::numeric_limits<int64_t>::max()).code, bad);
  wire::HelloRequest request = RawClient::HelloOf("-job", 7, 0, 1);
  RawClient other(Socket());
  EXPECT_EQ(ErrorOf([&] { other.Hello(request); }).code, bad);
}

TEST_F(RpcServer, WithoutASharedCatalogTheIndexIsUnavailable) {
  RawClient client(Socket());
  client.Begin("job", 7, 0, 1);
  const auto index = [&](const std::string& job, int32_t limit, int64_t timeout_ms) {
    wire::IndexRequest request;
    request.job = job;
    request.limit = limit;
    request.timeout_ms = timeout_ms;
    wire::IndexReply reply;
    return ErrorOf([&] { client.call().index(reply, request); });
  };
  const wire::Error none = index("job", 10, 0);
  EXPECT_EQ(none.code, Code(absl::StatusCode::kUnavailable));
  EXPECT_NE(none.message.find("catalog.mysql"), std::string::npos) << none.message;
  const int bad = Code(absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(index("../job", 10, 0).code, bad);
  EXPECT_EQ(index("job", -1, 0).code, bad);
  EXPECT_EQ(index("job", 1001, 0).code, bad);
  EXPECT_EQ(index("job", 10, -1).code, bad);
}

TEST_F(RpcServer, AWriterSavesOnlyInTheAttemptOfItsHello) {
  RawClient client(Socket());
  client.Begin("job", 7, 0, 1);
  const auto create = [&](RawClient& by, int64_t attempt) {
    wire::ObjectSpec spec;
    spec.__set_name("a");
    spec.__set_length(1);
    wire::CreateRequest request;
    request.__set_step(1);
    request.__set_attempt(attempt);
    request.__set_writer(0);
    request.__set_world_size(1);
    request.__set_objects({spec});
    request.__set_timeout_ms(10'000);
    wire::CreateReply reply;
    return ErrorOf([&] { by.call().create(reply, by.NextCall(), request); });
  };
  const wire::Error refused = create(client, 8);
  EXPECT_EQ(refused.code, Code(absl::StatusCode::kInvalidArgument)) << refused.message;
  EXPECT_NE(refused.message.find("attempt: 8"), std::string::npos) << refused.message;
  EXPECT_NE(refused.message.find("7"), std::string::npos) << refused.message;
  wire::AbortRequest abort;
  abort.__set_step(1);
  abort.__set_attempt(8);
  EXPECT_EQ(ErrorOf([&] { client.call().abort(client.NextCall(), abort); }).code,
            Code(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(create(client, 7).code, 0);
  // Attempt 0 in hello: chosen later, said in create.
  RawClient later(Socket());
  later.Begin("other", 0, 0, 1);
  EXPECT_EQ(create(later, 9).code, 0);
}

TEST_F(RpcServer, AGarbageFrameClosesThatConnectionOnly) {  // R24
  RawClient witness(Socket());
  witness.Begin("job", 7, 0, 1);  // a session may be silent
  for (const std::string& garbage :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(5000, '\xff'), std::string(64, '\0')}) {
    UniqueFd fd = RawConnection();
    ASSERT_GT(send(fd.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL), 0);
    DrainUntilClosed(fd.get());
    witness.call().ping();
  }
}

TEST_F(RpcServer, AnOversizeMessageIsCutOff) {  // R24: memory stays bounded
  const std::string begin("\x80\x01\x00\x01\x00\x00\x00\x04ping\x00\x00\x00\x01", 16);
  // A string of 1 GiB, of which no byte is there.
  const std::string message = begin + std::string("\x0b\x00\x01\x40\x00\x00\x00", 7);
  UniqueFd fd = RawConnection();
  SendAll(fd.get(), Framed(message, message.size()));
  DrainUntilClosed(fd.get());
  // Long ones are for those who have said hello.
  UniqueFd early = RawConnection();
  SendAll(early.get(), Framed("", (64 << 10) + 1));
  DrainUntilClosed(early.get());

  // No frame is longer than a signed length can say, and none is no call.
  for (const std::string& frame :
       {Framed("", size_t{1} << 31), Framed(std::string((16 << 20) + 1, '\0'), (16 << 20) + 1)}) {
    RawClient client(Socket());
    client.Begin("job", 7, 0, 1);
    UniqueFd late = JoinedConnection(client);
    send(late.get(), frame.data(), frame.size(), MSG_NOSIGNAL);  // may be cut off before its end
    DrainUntilClosed(late.get());
  }
  RawClient witness(Socket());
  witness.call().ping();
}

// Without descriptors the connection is the session: cut off, it would lose what it was saving.
TEST_F(RpcServer, AMessageThatIsTooLongIsAnsweredAndItsSessionGoesOn) {
  RawClient client(Socket());
  wire::HelloRequest request = RawClient::HelloOf("job", 7, 0, 1);
  request.__set_takes_fds(false);
  client.Hello(request);
  const std::string bytes = Pattern(100'000, 3);
  wire::ObjectSpec spec;
  spec.__set_name("model");
  spec.__set_length(static_cast<int64_t>(bytes.size()));
  wire::CreateRequest create;
  create.__set_step(1);
  create.__set_attempt(7);
  create.__set_writer(0);
  create.__set_world_size(1);
  create.__set_objects({spec});
  create.__set_timeout_ms(10'000);
  wire::CreateReply created;
  client.call().create(created, client.NextCall(), create);
  client.call().writeChunk(client.NextCall(), created.extents.at(0).lease, 0, bytes);

  wire::SealedObject seal;
  seal.__set_name("model");
  seal.__set_length(static_cast<int64_t>(bytes.size()));
  for (uint32_t crc : BlockCrcs(bytes.data(), bytes.size(), kBlockBytes)) {
    seal.block_crcs.push_back(static_cast<int32_t>(crc));
  }
  seal.covered = {0, static_cast<int64_t>(bytes.size())};
  wire::CommitRequest commit;
  commit.__set_step(1);
  commit.__set_attempt(7);
  commit.__set_writer(0);
  commit.__set_world_size(1);
  wire::SealedObject huge = seal;
  huge.block_crcs.assign(5 << 20, 7);
  commit.__set_seals({huge});
  wire::CommitReply committed;
  const wire::Error refused =
      ErrorOf([&] { client.call().commit(committed, client.NextCall(), commit); });
  EXPECT_EQ(refused.code, Code(absl::StatusCode::kInvalidArgument)) << refused.message;
  EXPECT_THAT(refused.message, ::testing::HasSubstr("bytes of commit, the limit is 16777216"));

  commit.__set_seals({seal});
  client.call().commit(committed, client.NextCall(), commit);
  EXPECT_TRUE(committed.complete);
  EXPECT_EQ(server_->held().message_bytes, 0u);
}

TEST_F(RpcServer, AMessageThatIsTooLongTakesNoRoomAndHoldsUpNothingBehindIt) {
  Unserve();
  rpc_.connection.stall_timeout_ms = 60'000;
  Serve();
  RawClient client(Socket());
  client.Begin("job", 7, 0, 1);
  UniqueFd fd = JoinedConnection(client);
  constexpr size_t kLength = 24 << 20;
  const std::string begin = MessageOf<wire::Cairn_ping_pargs>("ping", [](auto*) {});
  std::string frame = Framed(begin.substr(kFrameHeaderBytes), kLength);
  frame.resize(kFrameHeaderBytes + kLength, '\0');
  SendAll(fd.get(), frame.substr(0, frame.size() - 1));
  EXPECT_EQ(server_->held().message_bytes, 0u);
  SendAll(fd.get(), frame.substr(frame.size() - 1) + begin);
  EXPECT_THAT(ReadFrame(fd.get()), ::testing::HasSubstr("bytes of ping, the limit is 16777216"));
  EXPECT_THAT(ReadFrame(fd.get()), ::testing::Not(::testing::HasSubstr("limit")));
  EXPECT_EQ(server_->held().message_bytes, 0u);
}

TEST_F(RpcServer, AClientThatStallsInsideAMessageThatIsTooLongIsDropped) {
  ServeImpatiently();
  RawClient client(Socket());
  client.Begin("job", 7, 0, 1);
  UniqueFd fd = JoinedConnection(client);
  SendAll(fd.get(), Framed(std::string(1000, 'x'), 17 << 20));
  DrainUntilClosed(fd.get());  // ends by the stall timeout
}

// Whole, but not to be read: a short one, and one that the workers decode.
TEST_F(RpcServer, ArgumentsThatCannotBeReadAreAnsweredInASession) {
  RawClient client(Socket());
  client.Begin("job", 7, 0, 1);
  UniqueFd fd = JoinedConnection(client);
  for (const size_t padding : {size_t{0}, size_t{200'000}}) {
    // A list of 2^28 leases, of which none is there.
    std::string bad("\x80\x01\x00\x01\x00\x00\x00\x05renew\x00\x00\x00\x09", 17);
    bad += std::string("\x0f\x00\x01\x0a\x10\x00\x00\x00", 8) + std::string(padding, '\0');
    SendAll(fd.get(), Framed(bad, bad.size()));
    EXPECT_THAT(ReadFrame(fd.get()), ::testing::HasSubstr("arguments of renew"));
    SendAll(fd.get(), MessageOf<wire::Cairn_ping_pargs>("ping", [](auto*) {}));
    EXPECT_THAT(ReadFrame(fd.get()), ::testing::HasSubstr("ping"));
  }
}

TEST_F(RpcServer, LongMessagesMayFollowEachOther) {
  // Each is bounded, not their sum.
  RawClient client(Socket());
  client.Begin("job", 7, 0, 1);
  const std::string bytes = Pattern(1 << 20, 6);
  for (int step = 1; step <= 40; ++step) {
    const wire::Error error = ErrorOf([&] {
      client.call().writeChunk(client.NextCall(), 12345, 0, bytes);  // no such lease
    });
    EXPECT_NE(error.code, 0);
  }
  client.call().ping();
}

// Each could hold a piece and wait for the room of the others' rest.
TEST_F(RpcServer, LongMessagesOfOneUserDoNotWaitForEachOther) {
  Unserve();
  rpc_.max_message_bytes_of_user = 8 << 20;
  Serve();
  std::vector<std::future<int>> sending;
  for (int i = 0; i < 4; ++i) {
    sending.push_back(std::async(std::launch::async, [&, i] {
      RawClient client(Socket());
      client.Begin(absl::StrCat("job", i), 7, 0, 1);
      const std::string bytes = Pattern(6 << 20, 6);
      return ErrorOf([&] {
               client.call().writeChunk(client.NextCall(), 12345, 0, bytes);  // no such lease
             })
          .code;
    }));
  }
  for (std::future<int>& one : sending) EXPECT_EQ(one.get(), Code(absl::StatusCode::kNotFound));
}

// All are asked for before any is received: each chunk waits until the one before it was taken.
TEST_F(RpcServer, ChunksOfOneUserWaitInTurnForTheirRoom) {
  Unserve();
  rpc_.max_message_bytes_of_user = 8 << 20;
  rpc_.connection.stall_timeout_ms = 60'000;
  Serve();
  const std::string bytes = Pattern(6 << 20, 9);
  RawClient writer(Socket());
  writer.Begin("job", 7, 0, 1);
  writer.Save(1, "model", bytes);
  std::vector<std::unique_ptr<RawClient>> readers;
  for (int i = 0; i < 4; ++i) {
    readers.push_back(std::make_unique<RawClient>(Socket()));
    RawClient& reader = *readers.back();
    wire::HelloRequest hello = RawClient::HelloOf("job", 7, -1, 1);
    hello.__set_takes_fds(false);
    reader.Hello(hello);
    wire::OpenRequest open;
    open.checkpoint.__set_job("job");
    open.checkpoint.__set_step(1);
    open.__set_name("model");
    open.__set_mode(wire::OpenMode::READ);
    open.__set_timeout_ms(10'000);
    wire::OpenReply opened;
    reader.call().open(opened, reader.NextCall(), open);
    reader.call().send_readChunk(opened.lease, 0, static_cast<int32_t>(bytes.size()));
  }
  ASSERT_TRUE(Await([&] { return server_->held().message_bytes > 0; }));
  EXPECT_LE(server_->held().message_bytes, uint64_t{8} << 20);
  std::vector<std::future<std::string>> receiving;
  for (auto& reader : readers) {
    receiving.push_back(std::async(std::launch::async, [&reader] {
      std::string chunk;
      reader->call().recv_readChunk(chunk);
      return chunk;
    }));
  }
  for (std::future<std::string>& one : receiving) {
    EXPECT_LE(server_->held().message_bytes, uint64_t{8} << 20);
    EXPECT_TRUE(one.get() == bytes);
  }
}

// Until it goes, the process may have so many descriptors open, and so many under way.
class MostDescriptors {
 public:
  explicit MostDescriptors(rlim_t most) {
    getrlimit(RLIMIT_NOFILE, &before_);
    rlimit now = before_;
    now.rlim_cur = std::min(most, before_.rlim_max);
    setrlimit(RLIMIT_NOFILE, &now);
  }
  ~MostDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_ = {};
};

// Bug: each session could leave a thousand lying, and all together as many as the kernel lets the daemon have under way
// for all users.
TEST_F(RpcServer, SessionsOfOneUserTogetherLeaveOnlyAShareOfDescriptorsLying) {
  const MostDescriptors limit(4096);
  Unserve();
  Serve();
  RawClient writer(Socket());
  writer.Begin("job", 7, 0, 1);
  writer.Save(1, "model", "x");
  const wire::OpenRequest open = OpenOfStep1();
  std::vector<std::unique_ptr<RawClient>> readers;
  std::vector<std::pair<RawClient*, LeaseId>> lying;
  wire::Error refused;
  while (refused.code == 0 && lying.size() < 4096) {
    readers.push_back(std::make_unique<RawClient>(Socket()));
    RawClient& reader = *readers.back();
    reader.Begin("job", 0, -1, 0);
    refused = ErrorOf([&] {
      for (int i = 0; i < 50; ++i) {
        wire::OpenReply opened;
        reader.call().open(opened, reader.NextCall(), open);
        lying.emplace_back(&reader, static_cast<LeaseId>(opened.lease));
      }
    });
  }
  EXPECT_EQ(refused.code, Code(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(refused.message, ::testing::HasSubstr("do not take what they were sent"));
  EXPECT_GT(lying.size(), 100U);
  EXPECT_LT(lying.size(), 1024U) << "a quarter of what the system lets the daemon have under way";
  for (const auto& [reader, lease] : lying) EXPECT_TRUE(reader->TakeFd(lease).valid());
  // The node looks at all now and then.
  wire::Error still;
  (void)Await([&] {
    still = ErrorOf([&] { EXPECT_EQ(readers.back()->Load("job", 1, "model"), "x"); });
    return still.code != Code(absl::StatusCode::kResourceExhausted);
  });
  EXPECT_EQ(still.code, 0) << still.message;
}

// Each lies in its channel, and makes the next one of that slab dearer.
TEST_F(RpcServer, AReaderThatTakesNoDescriptorsIsSentNoMore) {
  const MostDescriptors limit(1 << 16);
  Unserve();
  Serve();
  RawClient writer(Socket());
  writer.Begin("job", 7, 0, 1);
  writer.Save(1, "model", "x");
  RawClient reader(Socket());
  reader.Begin("job", 0, -1, 0);
  const wire::OpenRequest open = OpenOfStep1();
  wire::OpenReply opened;
  int taken = 0;
  const wire::Error refused = ErrorOf([&] {
    for (; taken < 5000; ++taken) reader.call().open(opened, reader.NextCall(), open);
  });
  EXPECT_EQ(refused.code, Code(absl::StatusCode::kResourceExhausted));
  EXPECT_LT(taken, 2000);
  if (getuid() == 0) {  // else the channel itself may be too narrow (net.core.wmem_max)
    EXPECT_THAT(refused.message, ::testing::HasSubstr("does not take what it was sent"));
    EXPECT_GT(taken, 500);
  }
  EXPECT_TRUE(reader.TakeFd(opened.lease).valid());
  EXPECT_EQ(reader.Load("job", 1, "model"), "x");
}

TEST_F(RpcServer, WhatHalfAMessageTookIsGoneWithItsClient) {
  Unserve();
  rpc_.connection.stall_timeout_ms = 60'000;
  Serve();
  RawClient client(Socket());
  client.Begin("job", 7, 0, 1);
  UniqueFd fd = RawConnection();
  SendAll(fd.get(), MessageOf<wire::Cairn_rejoin_pargs>("rejoin", [&](auto* args) {
            args->session = &client.hello().session;
            args->secret = &client.hello().secret;
          }));
  SendAll(fd.get(), Framed(std::string(100'000, 'x'), 1 << 20));
  ASSERT_TRUE(Await([&] { return server_->held().message_bytes > 0; }));
  EXPECT_EQ(server_->held().connections, 2u);
  fd.Reset();
  EXPECT_TRUE(Await([&] { return server_->held().connections <= 1; }));
  EXPECT_EQ(server_->held().message_bytes, 0u);
}

TEST_F(RpcServer, AClientThatStallsInsideAMessageIsDropped) {
  ServeImpatiently();
  UniqueFd fd = RawConnection();
  SendAll(fd.get(), Framed("half", 8));
  DrainUntilClosed(fd.get());  // ends by the stall timeout
}

TEST_F(RpcServer, ASessionMayBeSilentBetweenMessages) {
  ServeImpatiently();
  RawClient client(Socket());
  client.Begin("job", 7, 0, 1);
  UniqueFd silent = RawConnection();
  DrainUntilClosed(silent.get());  // one without a session is dropped after the stall timeout …
  client.call().ping();            // … one with a session is not
}

TEST_F(RpcServer, AClientBeyondTheBoundIsToldSo) {
  Unserve();
  rpc_.max_connections = 2;
  Serve();
  auto first = std::make_unique<RawClient>(Socket());
  first->Begin("job", 7, 0, 1);
  RawClient second(Socket());
  second.Begin("other", 7, 0, 1);
  RawClient third(Socket());
  const wire::Error full = ErrorOf([&] { third.call().ping(); });
  EXPECT_EQ(full.code, Code(absl::StatusCode::kResourceExhausted)) << full.message;
  EXPECT_NE(full.message.find("limits.connections"), std::string::npos) << full.message;
  EXPECT_THROW(third.call().ping(), TTransportException) << "its first call is its last";
  second.call().ping();
  first.reset();
  EXPECT_TRUE(Await([&] {
    RawClient later(Socket());
    return ErrorOf([&] { later.call().ping(); }).code == 0;
  }));
}

int Threads() {
  int threads = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    threads += task.is_directory() ? 1 : 0;
  }
  return threads;
}

// A client without a connection to read the answer waits for nothing.
TEST_F(RpcServer, AParkedCallHoldsNoThreadAndEndsWithItsConnection) {
  RawClient client(Socket());
  client.Begin("job", 7, 0, 1);
  client.Save(1, "model", Pattern(1000, 7));
  const auto waiting = [&] {
    wire::NodeStatus status;
    client.call().status(status);
    return status.counters["waiting_calls"];
  };
  wire::Cairn_wait_pargs args;
  wire::CheckpointRef ref;
  ref.__set_job("job");
  ref.__set_step(-1);
  const auto level = wire::Level::CACHED;
  const int64_t a_day = 24 * 3600 * 1000, after = 5, head = 0;
  const int32_t revision = -1;
  args.checkpoint = &ref;
  args.level = &level;
  args.timeout_ms = &a_day;
  args.after = &after;
  args.after_head = &head;
  args.after_revision = &revision;
  const int threads = Threads();
  std::vector<std::unique_ptr<RawClient>> parked;
  constexpr int kParked = 40;
  for (int i = 0; i < kParked; ++i) {
    parked.push_back(std::make_unique<RawClient>(Socket()));
    wire::HelloRequest request = RawClient::HelloOf("", 0, -1, 0);
    request.__set_takes_fds(false);
    parked.back()->Hello(request);
    auto out = parked.back()->call().getOutputProtocol();
    out->writeMessageBegin("wait", apache::thrift::protocol::T_CALL, 1);
    args.write(out.get());
    out->writeMessageEnd();
    out->getTransport()->writeEnd();
    out->getTransport()->flush();
  }
  ASSERT_TRUE(Await([&] { return waiting() >= kParked; }));
  EXPECT_EQ(Threads(), threads);
  for (auto& one : parked) one->CloseThrift();
  EXPECT_TRUE(Await([&] { return waiting() == 0; }));
}

TEST_F(RpcServer, AParkedCallIsAnsweredWhenTheDaemonStops) {
  RawClient client(Socket());
  client.Begin("job", 7, 0, 1);
  client.Save(1, "model", Pattern(1000, 7));
  std::future<wire::Error> parked = std::async(std::launch::async, [&] {
    return ErrorOf([&] {
      wire::CheckpointInfo info;
      wire::CheckpointRef ref;
      ref.__set_job("job");
      client.call().wait(info, ref, wire::Level::CACHED, 60'000, /*after=*/5, /*after_head=*/0,
                         /*after_revision=*/-1);
    });
  });
  RawClient other(Socket());
  ASSERT_TRUE(Await([&] {
    wire::NodeStatus status;
    other.call().status(status);
    return status.counters["waiting_calls"] > 0;
  }));
  node().Stop();
  EXPECT_EQ(parked.get().code, Code(absl::StatusCode::kUnavailable));
}

TEST_F(RpcServer, ProgressIsShownAndProvesNothing) {
  RawClient client(Socket());
  client.Begin("job", 7, 0, 1);
  client.progress()->step = 9;
  client.progress()->bytes_total = 100;
  client.progress()->bytes_done = 40;
  wire::NodeStatus status;
  client.call().status(status);
  ASSERT_EQ(status.sessions.size(), 1u);
  EXPECT_EQ(status.sessions[0].writing_step, 9);
  EXPECT_EQ(status.sessions[0].writing_total, 100);
  EXPECT_EQ(status.sessions[0].writing_done, 40);
}

}  // namespace
}  // namespace cairn::testing
