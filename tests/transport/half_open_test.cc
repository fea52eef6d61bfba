// R16. A peer that vanishes without a word: its network is gone, so there is neither an end nor a reset.
// Owner and reader are in one process, in a network namespace of its own whose loopback device is taken
// away in the middle of a read.
#include <gtest/gtest.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>

#include "common/tcp_address.h"
#include "server/transport/region.h"
#include "server/transport/tcp_socket.h"
#include "server/transport/tcp_wire.h"
#include "tests/support/await.h"
#include "tests/transport/two_nodes.h"

namespace cairn::transport {
namespace {

// What the options say by default, and what is promised.
constexpr MonotonicNanos kStall = 3 * kNanosPerSecond;

enum Outcome { kNoticed = 0, kNoNamespace = 10, kNotSetUp, kReaderDidNot, kOwnerDidNot };

bool SetLoopback(bool up) {
  const UniqueFd any(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq device = {};
  std::strcpy(device.ifr_name, "lo");
  if (ioctl(any.get(), SIOCGIFFLAGS, &device) != 0) return false;
  device.ifr_flags =
      static_cast<short>(up ? device.ifr_flags | IFF_UP : device.ifr_flags & ~IFF_UP);
  return ioctl(any.get(), SIOCSIFFLAGS, &device) == 0;
}

// A reader that takes the first bytes of what it asked for, and is played by the test.
StatusOr<std::unique_ptr<TcpSocket>> AskForMuch(const std::string& address,
                                                const GrantToken& token) {
  const std::atomic<bool> go_on = false;
  CAIRN_ASSIGN_OR_RETURN(UniqueFd fd, TcpSocket::Connect(address, After(10), kLongStall, go_on));
  auto socket = std::make_unique<TcpSocket>(std::move(fd), kLongStall);
  std::string frames = Encode(Opening{kTcpVersion, kReader});
  for (int i = 0; i < 16; ++i) {
    frames += Encode(Question{static_cast<uint64_t>(i), token, kOwned, 0, kMaxReadBytes});
  }
  CAIRN_RETURN_IF_ERROR(socket->Send(frames, false, After(10)));
  std::string first(kOpenedBytes + kAnswerBytes + 1000, '\0');
  CAIRN_RETURN_IF_ERROR(socket->Receive(absl::MakeSpan(first), After(10)));
  return socket;
}

Outcome LoseTheNetwork() {
  const bool apart = unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0 || unshare(CLONE_NEWNET) == 0;
  if (!apart || !SetLoopback(true)) return kNoNamespace;
  const Memory owned(kBlockBytes), fetched(kBlockBytes);
  const GrantToken token = NewGrantToken();
  const auto owner = StartTcp({.rank = 1}, {}, {});
  const auto reader = StartTcp(kReader, {}, {});
  if (!owner->Attach(kOwned, owned.fd(), owned.size()).ok() ||
      !owner->Grant(token, kReader, {{kOwned, 0, owned.size()}}).ok() ||
      !reader->Attach(kFetched, fetched.fd(), fetched.size()).ok()) {
    return kNotSetUp;
  }
  const auto slow = AskForMuch(owner->Address(), token);
  // An owner that has taken the question, and says nothing yet.
  const auto listener = ListenTcp(*TcpAddress::Parse("127.0.0.1:0"));
  if (!slow.ok() || !listener.ok()) return kNotSetUp;
  ReadRequest request =
      ReadOf(*owner, token, EncodeRegion({kOwned, 0, owned.size()}), 0, 1000, fetched);
  request.address = TcpAddress::OfSocket(listener->get())->ToString();
  auto read = Begin(reader.get(), request);
  if (!*WaitReadable(listener->get(), 10'000)) return kNotSetUp;
  TcpSocket silent(UniqueFd(::accept4(listener->get(), nullptr, nullptr, SOCK_CLOEXEC)),
                   kLongStall);
  std::string asked(kOpeningBytes, '\0');
  if (!silent.Receive(absl::MakeSpan(asked), After(10)).ok() ||
      !silent.Send(Encode(Opened{}), false, After(10)).ok()) {
    return kNotSetUp;
  }
  asked.resize(kQuestionBytes);
  if (!silent.Receive(absl::MakeSpan(asked), After(10)).ok()) return kNotSetUp;

  if (!SetLoopback(false)) return kNotSetUp;
  // Thrice: ticks, and a machine that has other things to do.
  const auto bound = std::chrono::nanoseconds(3 * kStall);
  if (read.wait_for(testing::Patient(bound)) != std::future_status::ready ||
      !absl::IsUnavailable(read.get().status())) {
    return kReaderDidNot;
  }
  return testing::Await([&] { return owner->streams() == 0; }, bound) ? kNoticed : kOwnerDidNot;
}

TEST(HalfOpen, BothEndsNoticeWithinThreeSecondsThatTheOtherHasVanished) {
  EXPECT_EQ(TcpServerOptions().stall, kStall);
  EXPECT_EQ(TcpReaderOptions().stall, kStall);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const Outcome outcome = LoseTheNetwork();
    std::fflush(nullptr);
    _exit(outcome);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  if (WEXITSTATUS(status) == kNoNamespace) GTEST_SKIP() << "no network namespace may be made here";
  EXPECT_NE(WEXITSTATUS(status), kNotSetUp);
  EXPECT_NE(WEXITSTATUS(status), kReaderDidNot) << "a read waits for an owner that is gone";
  EXPECT_NE(WEXITSTATUS(status), kOwnerDidNot) << "a stream stays whose reader is gone";
  EXPECT_EQ(WEXITSTATUS(status), kNoticed);
}

}  // namespace
}  // namespace cairn::transport
