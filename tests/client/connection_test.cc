// A daemon that is not there, does not answer, or answers nonsense: every call ends by its deadline
// (promise 4).
#include "client/cpp/connection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "Cairn.h"
#include "client/cpp/process.h"
#include "client/cpp/session.h"
#include "common/fd.h"
#include "proto/frame.h"
#include "tests/support/patience.h"
#include "tests/support/peak_memory.h"

namespace cairn::client {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class Absent : public ::testing::Test {
 protected:
  Absent() {
    char name[] = "/tmp/cairn-connection-XXXXXX";
    folder_ = mkdtemp(name);
    options_.socket = folder_ + "/cairn.sock";
    options_.job = "run";
    options_.timeout = testing::Patient(absl::Milliseconds(300));
  }
  ~Absent() override { std::filesystem::remove_all(folder_); }

  // Connects, and checks that it took no longer than it may.
  Status Connect() {
    const absl::Time start = absl::Now();
    const Status status = Session::Connect(options_).status();
    EXPECT_LT(absl::Now() - start, testing::Patient(absl::Seconds(10)));
    return status;
  }

  UniqueFd Listen() {
    UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    options_.socket.copy(address.sun_path, sizeof address.sun_path - 1);
    EXPECT_EQ(bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(listen(fd.get(), 16), 0);
    return fd;
  }

  std::string folder_;
  ConnectOptions options_;
};

TEST_F(Absent, NoSocketIsUnavailableAndNamed) {
  const Status status = Connect();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr(options_.socket));
}

TEST_F(Absent, ASocketWhoseDaemonIsDeadIsUnavailableAndNamed) {
  Listen().Reset();
  const Status status = Connect();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr(options_.socket));
}

TEST_F(Absent, ADaemonThatNeverAnswersIsUnavailableAtTheDeadline) {
  const UniqueFd listener = Listen();
  const Status status = Connect();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(options_.socket), HasSubstr("hello")));
}

TEST_F(Absent, ADaemonThatHangsUpIsAskedAgainUntilTheDeadline) {
  const UniqueFd listener = Listen();
  std::thread server([&] {
    for (;;) {
      UniqueFd connection(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!connection.valid()) return;
    }
  });
  const Status status = Connect();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  shutdown(listener.get(), SHUT_RDWR);
  server.join();
}

TEST_F(Absent, ADaemonThatAnswersNonsenseIsUnavailable) {
  const UniqueFd listener = Listen();
  std::thread server([&] {
    const std::string nonsense(512, '\xee');
    for (;;) {
      UniqueFd connection(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!connection.valid()) return;
      (void)send(connection.get(), nonsense.data(), nonsense.size(), MSG_NOSIGNAL);
    }
  });
  EXPECT_EQ(Connect().code(), absl::StatusCode::kUnavailable);
  shutdown(listener.get(), SHUT_RDWR);
  server.join();
}

// Nothing of it is sent: the connection, which may be the session, goes on.
TEST_F(Absent, ACallThatIsTooLongIsRefusedAndTheConnectionGoesOn) {
  const UniqueFd listener = Listen();
  auto connection = Connection::Open(options_.socket, DeadlineAfter(absl::Seconds(60)));
  ASSERT_TRUE(connection.ok()) << connection.status();
  const Status refused =
      (*connection)->Call("chunk", DeadlineAfter(absl::Seconds(60)), [](auto& client) {
        client.writeChunk(1, 2, 0, std::string(kMaxFrameBytes, 'x'));
      });
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("the limit is 67108864"));
  EXPECT_FALSE((*connection)->broken());
  const UniqueFd accepted(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  ASSERT_TRUE(accepted.valid());
  char byte = 0;
  EXPECT_EQ(recv(accepted.get(), &byte, 1, MSG_DONTWAIT), -1) << "some of it was sent";
}

// What an answer announces costs the trainer nothing before its bytes are there.
TEST_F(Absent, AnAnswerThatAnnouncesWhatDoesNotComeCostsNoMemory) {
  const auto framed = [](const std::string& message, uint32_t announced) {
    std::string header(kFrameHeaderBytes, '\0');
    PutFrameLength(announced, header.data());
    return header + message;
  };
  const std::string reply("\x80\x01\x00\x02\x00\x00\x00\x05hello\x00\x00\x00\x00", 17);
  // The answer's string of 1 GiB, its list of 2^28 structs, a frame of 60 MiB, one of 2 GiB.
  const std::string string = reply + std::string("\x0b\x00\x63\x40\x00\x00\x00", 7);
  const std::string list = reply + std::string("\x0f\x00\x63\x0c\x10\x00\x00\x00", 8);
  for (const std::string& bytes : {framed(string, static_cast<uint32_t>(string.size())),
                                   framed(list, static_cast<uint32_t>(list.size())),
                                   framed(reply, 60 << 20), framed(reply, 0x7FFFFFFF)}) {
    const UniqueFd listener = Listen();
    std::thread server([&] {
      std::vector<UniqueFd> open;
      for (;;) {
        UniqueFd connection(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (!connection.valid()) return;
        (void)send(connection.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
        open.push_back(std::move(connection));
      }
    });
    const testing::PeakMemory peak;
    const uint64_t before = peak.Bytes();
    EXPECT_EQ(Connect().code(), absl::StatusCode::kUnavailable);
    EXPECT_LT(peak.Bytes() - before, uint64_t{16} << 20);
    shutdown(listener.get(), SHUT_RDWR);
    server.join();
    std::filesystem::remove(options_.socket);
  }
}

// The reply to one call. `result` is as the call's method has it.
template <typename Result>
std::string ReplyOf(const std::string& name, const Result& result) {
  FrameWriter writer;
  writer.protocol()->writeMessageBegin(name, apache::thrift::protocol::T_REPLY, 0);
  result.write(writer.protocol());
  return std::string(writer.Finish());
}

TEST_F(Absent, AListThatNeverEndsEndsAtTheDeadline) {
  options_.takes_fds = false;
  options_.timeout = testing::Patient(absl::Seconds(2));
  const UniqueFd listener = Listen();
  std::thread server([&] {
    UniqueFd connection(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    wire::Cairn_hello_result hello;
    hello.success.__set_secret(std::string(16, 's'));
    hello.__isset.success = true;
    std::string reply = ReplyOf("hello", hello);
    wire::Cairn_ls_result page;
    page.__isset.success = true;
    char call[4096];  // each is short, and comes whole
    for (int n = 0; recv(connection.get(), call, sizeof call, 0) > 0; ++n) {
      (void)send(connection.get(), reply.data(), reply.size(), MSG_NOSIGNAL);
      page.success.next_cursor = absl::StrCat(n);
      reply = ReplyOf("ls", page);
    }
  });
  {
    auto session = Session::Connect(options_);
    ASSERT_TRUE(session.ok()) << session.status();
    const absl::Time start = absl::Now();
    EXPECT_EQ((*session)->List("run").status().code(), absl::StatusCode::kUnavailable);
    EXPECT_LT(absl::Now() - start, testing::Patient(absl::Seconds(20)));
  }
  shutdown(listener.get(), SHUT_RDWR);
  server.join();
}

TEST_F(Absent, OptionsAreCheckedBeforeAnythingIsAsked) {
  const ConnectOptions good = options_;
  const auto code = [&] { return Session::Connect(options_).status().code(); };
  options_.job = "../run";
  EXPECT_EQ(code(), absl::StatusCode::kInvalidArgument);
  options_ = good;
  options_.attempt = -1;
  EXPECT_EQ(code(), absl::StatusCode::kInvalidArgument);
  options_ = good;
  options_.writer = 2, options_.world_size = 2;
  EXPECT_EQ(code(), absl::StatusCode::kInvalidArgument);
  options_ = good;
  options_.copy_threads = 0;
  EXPECT_EQ(code(), absl::StatusCode::kInvalidArgument);
  options_ = good;
  options_.socket = std::string(200, 'x');
  EXPECT_EQ(code(), absl::StatusCode::kInvalidArgument);
}

TEST(Process, EnteringAStepAgainIsItsNextRevision) {
  EXPECT_EQ(EnterStep("job", 1, 0, 5), 0);
  EXPECT_EQ(EnterStep("job", 1, 0, 5), 1);
  EXPECT_EQ(EnterStep("job", 1, 1, 5), 0);
  EXPECT_EQ(EnterStep("job", 2, 0, 5), 0);
  EXPECT_EQ(EnterStep("other", 1, 0, 5), 0);
  EXPECT_EQ(EnterStep("job", 1, 0, 5), 2);
}

TEST(Process, HasOneTokenForLife) {
  const auto token = ThisProcess();
  ASSERT_TRUE(token.ok());
  EXPECT_EQ(token->size(), 16u);
  EXPECT_EQ(*ThisProcess(), *token);
}

TEST(Process, ExceptionsBecomeStatuses) {
  EXPECT_EQ(Contain([]() -> Status { throw std::bad_alloc(); }).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Contain([]() -> Status { throw std::runtime_error("x"); }).code(),
            absl::StatusCode::kInternal);
  EXPECT_EQ(Contain([]() -> Status { throw 3; }).code(), absl::StatusCode::kInternal);
}

TEST(Process, AnInfiniteTimeoutIsFarAway) {
  EXPECT_GT(TimeLeft(DeadlineAfter(absl::InfiniteDuration())), absl::Hours(1000));
  EXPECT_EQ(TimeLeft(DeadlineAfter(absl::ZeroDuration())), absl::ZeroDuration());
}

}  // namespace
}  // namespace cairn::client
