// One file: every test drives a forked keeper and its child through the one fixture below.
// A keeper, a daemon of a few lines (keeper_child.cc), and deaths (R15, promise 7).
#include "server/keeper/keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/keeper/death.h"
#include "server/keeper/process.h"
#include "tests/support/await.h"
#include "tests/support/stopped.h"

namespace {

// How often the kernel has no memory for what a process of this program, the keeper too, wants to receive.
std::atomic<int>* const no_memory = static_cast<std::atomic<int>*>(
    ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));

}  // namespace

extern "C" ssize_t recvmsg(int socket, msghdr* message, int flags) {
  if (no_memory->load() > 0) {
    no_memory->fetch_sub(1);
    errno = ENOMEM;
    return -1;
  }
  return ::syscall(SYS_recvmsg, socket, message, flags);
}

namespace cairn::keeper {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Seconds = std::chrono::seconds;

UniqueFd TryConnect(const std::string& path, int type) {
  UniqueFd socket(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    socket.Reset();
  }
  return socket;
}

bool ExitsWithin(const UniqueFd& pidfd, Seconds limit) {
  pollfd polled = {pidfd.get(), POLLIN, 0};
  return ::poll(&polled, 1, static_cast<int>(testing::Patient(limit).count() * 1000)) == 1;
}

class KeeperTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char directory[] = "/tmp/keeper_test.XXXXXX";
    ASSERT_NE(::mkdtemp(directory), nullptr);
    directory_ = directory;
    options_.socket_path = directory_ + "/cairn.sock";
    options_.journal_bytes = 1 << 20;
    options_.daemon_command = {KEEPER_CHILD, "serve"};
  }

  void TearDown() override {
    if (keeper_ > 0) {
      ::kill(keeper_, SIGKILL);
      ::waitpid(keeper_, nullptr, 0);
    }
    for (const char* name : {"/cairn.sock", "/cairn.sock.fd", "/cairn.sock.lock"}) {
      ::unlink((directory_ + name).c_str());
    }
    ::rmdir(directory_.c_str());
  }

  void StartKeeper() {
    keeper_ = ::fork();
    if (keeper_ == 0) ::_exit(keeper::Run(options_));
  }

  int WaitForKeeper() {
    int status = 0;
    EXPECT_EQ(::waitpid(std::exchange(keeper_, -1), &status, 0) > 0, true);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }

  void Call() {
    client_.Reset();
    // The keeper may not have bound it yet.
    ASSERT_TRUE(testing::Await([&] {
      client_ = TryConnect(options_.socket_path, SOCK_STREAM);
      return client_.valid();
    }));
  }

  // What the daemon answers; empty when it died. Connects when there is no connection.
  std::string Tell(const std::string& line) {
    if (!client_.valid()) Call();
    const std::string message = line + "\n";
    if (::send(client_.get(), message.data(), message.size(), MSG_NOSIGNAL) < 0) return Dead();
    std::string answer;
    for (char c; ::read(client_.get(), &c, 1) == 1;) {
      if (c == '\n') return answer;
      answer += c;
    }
    return Dead();
  }
  std::string Dead() {
    client_.Reset();
    return "";
  }

  UniqueFd DaemonPidfd() {
    auto pidfd = OpenPidfd(std::stoi(Tell("pid")));
    EXPECT_TRUE(pidfd.ok()) << pidfd.status();
    return pidfd.ok() ? *std::move(pidfd) : UniqueFd();
  }

  // Returns once the keeper has passed one on to a daemon that counts them.
  void WaitForSigterm() {
    ASSERT_TRUE(testing::Await([&] { return Tell("sigterms") != "0"; }));
  }

  void KillDaemon() {
    const UniqueFd pidfd = DaemonPidfd();
    ASSERT_EQ(::kill(std::stoi(Tell("pid")), SIGKILL), 0);
    client_.Reset();
    ASSERT_TRUE(ExitsWithin(pidfd, Seconds(10)));
  }

  // SIGHUP; returns once another daemon answers.
  void Reload() {
    const std::string old = Tell("pid");
    const UniqueFd pidfd = DaemonPidfd();
    ::kill(keeper_, SIGHUP);
    ASSERT_TRUE(ExitsWithin(pidfd, Seconds(20)));
    client_.Reset();
    EXPECT_NE(Tell("pid"), old);
  }

  void LimitDescriptors(rlim_t limit) const {
    rlimit limits = {};
    ASSERT_EQ(::prlimit(keeper_, RLIMIT_NOFILE, nullptr, &limits), 0);
    limits.rlim_cur = limit;
    ASSERT_EQ(::prlimit(keeper_, RLIMIT_NOFILE, &limits, nullptr), 0);
  }

  // Whether the keeper has yet to read a signal that it was sent.
  bool IsPending(int signal) const {
    const std::string status = *ReadFile(absl::StrCat("/proc/", keeper_, "/status"));
    constexpr std::string_view kPending = "\nShdPnd:";
    const size_t at = status.find(kPending);
    const uint64_t pending = std::stoull(status.substr(at + kPending.size()), nullptr, 16);
    return (pending & (uint64_t{1} << (signal - 1))) != 0;
  }

  std::string directory_;
  Options options_;
  pid_t keeper_ = -1;
  UniqueFd client_;
};

TEST_F(KeeperTest, FirstDaemonInheritsNothing) {
  StartKeeper();
  EXPECT_EQ(Tell("restarts"), "0");
  EXPECT_EQ(Tell("safe_mode"), "");
  EXPECT_EQ(Tell("slabs"), "");
  EXPECT_EQ(Tell("sessions"), "");
  EXPECT_EQ(Tell("facts"), "");
}

TEST_F(KeeperTest, SlabsAndTheirBytesOutliveTheDaemon) {
  StartKeeper();
  ASSERT_EQ(Tell("make 1 1048576 first"), "ok");
  ASSERT_EQ(Tell("make 2 4096 second"), "ok");
  ASSERT_EQ(Tell("make 3 8192 third"), "ok");
  ASSERT_EQ(Tell("destroy 2"), "ok");
  KillDaemon();
  EXPECT_EQ(Tell("restarts"), "1");
  EXPECT_EQ(Tell("slabs"), "1:1048576 3:8192");
  EXPECT_EQ(Tell("read 1 5"), "first");
  EXPECT_EQ(Tell("read 3 5"), "third");
  ASSERT_EQ(Tell("make 4 4096 fourth"), "ok");
  KillDaemon();
  EXPECT_EQ(Tell("slabs"), "1:1048576 3:8192 4:4096");
  EXPECT_EQ(Tell("read 1 5"), "first");
}

TEST_F(KeeperTest, JournalOutlivesTheDaemon) {
  StartKeeper();
  for (int life = 1; life <= 2; ++life) {
    ASSERT_EQ(Tell("append 5"), "ok");
    ASSERT_EQ(Tell("append 7"), "ok");
    KillDaemon();
    EXPECT_EQ(Tell("facts"), life == 1 ? "5 7" : "5 7 5 7");
  }
}

TEST_F(KeeperTest, BlackBoxOutlivesDaemonsAndIsForgottenWithTheirDeaths) {
  StartKeeper();
  EXPECT_EQ(Tell("box_read"), "nothing");
  ASSERT_EQ(Tell("box_write read"), "ok");
  for (int life = 0; life < 2; ++life) {
    KillDaemon();
    EXPECT_EQ(Tell("box_read"), "read");
  }
  Reload();
  EXPECT_EQ(Tell("box_read"), "nothing");
  ASSERT_EQ(Tell("box_write anew"), "ok");
  KillDaemon();
  EXPECT_EQ(Tell("box_read"), "anew");
}

TEST_F(KeeperTest, WhatASlabIsForOutlivesTheDaemons) {
  StartKeeper();
  ASSERT_EQ(Tell("make 1 4096 object"), "ok");
  ASSERT_EQ(Tell("make 2 8192 manifest"), "ok");
  ASSERT_EQ(Tell("make 3 4096 object"), "ok");
  for (int life = 0; life < 2; ++life) {
    KillDaemon();
    EXPECT_EQ(Tell("slabs"), "1:4096 2:8192 3:4096");
    EXPECT_EQ(Tell("inherited_for_manifests"), "2:8192");
  }
}

TEST_F(KeeperTest, ThousandSlabsArriveInBatches) {
  StartKeeper();
  EXPECT_EQ(Tell("hold_and_die 1000"), "");
  const std::string slabs = Tell("slabs");
  EXPECT_THAT(slabs, HasSubstr("1:4096 2:4096 3:4096"));
  EXPECT_THAT(slabs, HasSubstr(" 999:4096 1000:4096"));
  EXPECT_EQ(std::count(slabs.begin(), slabs.end(), ':'), 1000);
}

TEST_F(KeeperTest, SessionsOutliveTheDaemonAndTheClientSeesNoEnd) {
  StartKeeper();
  ASSERT_EQ(Tell("restarts"), "0");
  const UniqueFd channel = TryConnect(options_.socket_path + ".fd", SOCK_SEQPACKET);
  ASSERT_TRUE(channel.valid());
  ASSERT_EQ(Tell("begin_session 9"), "ok");
  ASSERT_EQ(Tell("begin_bare_session 10"), "ok");
  KillDaemon();
  EXPECT_EQ(Tell("sessions"), "9:7 10:0");
  EXPECT_EQ(Tell("alive 9"), "yes");
  EXPECT_EQ(Tell("say 9 still-here"), "ok");
  auto message = ReceiveMessage(channel.get(), 100);
  ASSERT_TRUE(message.ok());
  EXPECT_EQ(message->bytes, "still-here");
}

TEST_F(KeeperTest, EndedSessionIsShutDownThoughTheDaemonKeepsADescriptor) {
  StartKeeper();
  ASSERT_EQ(Tell("restarts"), "0");
  const UniqueFd channel = TryConnect(options_.socket_path + ".fd", SOCK_SEQPACKET);
  ASSERT_EQ(Tell("begin_session 9"), "ok");
  ASSERT_EQ(Tell("end_session 9"), "ok");
  auto message = ReceiveMessage(channel.get(), 100);  // waits for the end
  ASSERT_TRUE(message.ok()) << message.status();
  EXPECT_THAT(message->bytes, IsEmpty());
  KillDaemon();
  EXPECT_EQ(Tell("sessions"), "");
}

// A client's process dies while no daemon runs: the next one learns it from the pidfd.
TEST_F(KeeperTest, DeathOfAClientBetweenTwoDaemonsIsSeen) {
  StartKeeper();
  ASSERT_EQ(Tell("restarts"), "0");
  const pid_t client = ::fork();
  if (client == 0) {
    const UniqueFd channel = TryConnect(options_.socket_path + ".fd", SOCK_SEQPACKET);
    while (true) ::pause();
  }
  ASSERT_EQ(Tell("begin_session 9"), "ok");
  const UniqueFd daemon = DaemonPidfd();
  const pid_t daemon_pid = std::stoi(Tell("pid"));
  ::kill(client, SIGKILL);
  ::kill(daemon_pid, SIGKILL);
  ::waitpid(client, nullptr, 0);
  ASSERT_TRUE(ExitsWithin(daemon, Seconds(10)));
  client_.Reset();
  EXPECT_EQ(Tell("alive 9"), "no");
}

TEST_F(KeeperTest, ClientThatConnectsWhileNoDaemonRunsJustWaits) {
  StartKeeper();
  const pid_t daemon = std::stoi(Tell("pid"));
  ASSERT_TRUE(testing::Stop(daemon));
  const UniqueFd early = TryConnect(options_.socket_path, SOCK_STREAM);
  ASSERT_TRUE(early.valid());
  ASSERT_EQ(::send(early.get(), "restarts\n", 9, MSG_NOSIGNAL), 9);
  ::kill(daemon, SIGKILL);
  char answer = 0;
  ASSERT_EQ(::read(early.get(), &answer, 1), 1);
  EXPECT_EQ(answer, '1');
}

// --- what it has no room for

TEST_F(KeeperTest, AKernelWithoutMemoryForAMomentCostsNothing) {
  StartKeeper();
  ASSERT_EQ(Tell("make 1 4096 kept"), "ok");
  const std::string daemon = Tell("pid");
  no_memory->store(3);
  EXPECT_EQ(Tell("make 2 4096 more"), "ok");
  EXPECT_EQ(no_memory->load(), 0);
  EXPECT_EQ(Tell("pid"), daemon);
  no_memory->store(3);
  EXPECT_EQ(Tell("hold_and_die 100"), "");
  EXPECT_EQ(Tell("restarts"), "1");
  const std::string slabs = Tell("slabs");
  EXPECT_EQ(std::count(slabs.begin(), slabs.end(), ':'), 100) << slabs;
}

// R37, promise 7: what was acknowledged is there, and what is not there was refused.
TEST_F(KeeperTest, WhatItHasNoDescriptorForIsRefusedAndTheRestOutlivesTheDaemon) {
  StartKeeper();
  ASSERT_EQ(Tell("make 1 4096 x"), "ok");
  LimitDescriptors(256);
  std::string refusal, held = "1:4096";
  for (int slab = 2; refusal.empty() && slab < 300; ++slab) {
    const std::string answer = Tell(absl::StrCat("make ", slab, " 4096 x"));
    if (answer == "ok") {
      absl::StrAppend(&held, " ", slab, ":4096");
    } else {
      refusal = answer;
    }
  }
  EXPECT_THAT(refusal, HasSubstr("RESOURCE_EXHAUSTED"));
  EXPECT_THAT(refusal, HasSubstr("the keeper has no descriptor left"));
  EXPECT_THAT(refusal, HasSubstr("(RLIMIT_NOFILE) is 256"));
  const UniqueFd channel = TryConnect(options_.socket_path + ".fd", SOCK_SEQPACKET);
  EXPECT_THAT(Tell("begin_session 9"), HasSubstr("the keeper has no descriptor left"));
  KillDaemon();
  EXPECT_EQ(Tell("slabs"), held);
  EXPECT_EQ(Tell("sessions"), "");
  ASSERT_EQ(Tell("destroy 1"), "ok");
  EXPECT_EQ(Tell("make 999 4096 x"), "ok");
}

TEST_F(KeeperTest, DescriptorsThatDoNotArriveAtAllAreRefusedToo) {
  StartKeeper();
  ASSERT_EQ(Tell("make 1 4096 x"), "ok");
  LimitDescriptors(5);
  EXPECT_THAT(Tell("make 2 4096 x"), HasSubstr("(RLIMIT_NOFILE) is 5"));
  LimitDescriptors(1024);
  EXPECT_EQ(Tell("make 3 4096 x"), "ok");
  KillDaemon();
  EXPECT_EQ(Tell("slabs"), "1:4096 3:4096");
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they map memory themselves
TEST_F(KeeperTest, LackOfMemoryIsRefusedToo) {
  StartKeeper();
  ASSERT_EQ(Tell("make 1 4096 x"), "ok");
  const rlimit none = {1, RLIM_INFINITY}, all = {RLIM_INFINITY, RLIM_INFINITY};
  ASSERT_EQ(::prlimit(keeper_, RLIMIT_AS, &none, nullptr), 0);
  std::string refusal, held = "1:4096";
  for (int slab = 2; refusal.empty() && slab < 10'000; ++slab) {
    const std::string answer = Tell(absl::StrCat("make ", slab, " 4096 x"));
    if (answer == "ok") {
      absl::StrAppend(&held, " ", slab, ":4096");
    } else {
      refusal = answer;
    }
  }
  EXPECT_THAT(refusal, HasSubstr("keeper"));
  ASSERT_EQ(::prlimit(keeper_, RLIMIT_AS, &all, nullptr), 0);
  EXPECT_EQ(Tell("make 20000 4096 x"), "ok");
  KillDaemon();
  EXPECT_EQ(Tell("slabs"), held + " 20000:4096");
}
#endif

TEST_F(KeeperTest, KeeperThatDoesNotAnswerDelaysASlabOnlyForAWhile) {
  StartKeeper();
  ASSERT_EQ(Tell("make 1 4096 x"), "ok");
  ASSERT_TRUE(testing::Stop(keeper_));
  EXPECT_THAT(Tell("make 2 4096 x"), HasSubstr("has not answered within 5 s"));
  ::kill(keeper_, SIGCONT);
  EXPECT_EQ(Tell("make 3 4096 x"), "ok");
  KillDaemon();
  EXPECT_EQ(Tell("slabs"), "1:4096 3:4096");  // the late one was dropped again
}

// --- how it ends

TEST_F(KeeperTest, DaemonThatExitsWithZeroByItselfIsRestarted) {
  StartKeeper();
  EXPECT_EQ(Tell("exit 0"), "");
  EXPECT_EQ(Tell("restarts"), "1");
}

TEST_F(KeeperTest, SocketsAreRemovedAtTheEnd) {
  StartKeeper();
  ASSERT_EQ(Tell("restarts"), "0");
  ::kill(keeper_, SIGTERM);
  WaitForKeeper();
  EXPECT_NE(::access(options_.socket_path.c_str(), F_OK), 0);
  EXPECT_NE(::access((options_.socket_path + ".fd").c_str(), F_OK), 0);
}

TEST_F(KeeperTest, DaemonThatRefusesToStartEndsTheKeeperWithItsCode) {
  options_.daemon_command[1] = "refuse";
  StartKeeper();
  EXPECT_EQ(WaitForKeeper(), 3);
}

TEST_F(KeeperTest, DaemonThatHasServedIsRestartedThoughNothingIsHeld) {
  StartKeeper();
  EXPECT_EQ(Tell("exit 4"), "");
  EXPECT_EQ(Tell("restarts"), "1");
}

TEST_F(KeeperTest, DaemonThatAFailpointEndedBeforeItServedIsRestartedThoughNothingIsHeld) {
  options_.daemon_command[1] = "failpoint";
  StartKeeper();
  EXPECT_EQ(Tell("restarts"), "1");
}

TEST_F(KeeperTest, CommandThatCannotBeExecutedEndsTheKeeper) {
  options_.daemon_command = {directory_ + "/nothing"};
  StartKeeper();
  EXPECT_EQ(WaitForKeeper(), 127);
}

TEST_F(KeeperTest, DaemonThatFailsWithMemoryAtStakeIsRestarted) {
  StartKeeper();
  ASSERT_EQ(Tell("make 1 4096 precious"), "ok");
  EXPECT_EQ(Tell("exit 4"), "");
  EXPECT_EQ(Tell("restarts"), "1");
  EXPECT_EQ(Tell("read 1 8"), "precious");
}

TEST_F(KeeperTest, SigtermIsForwardedAndTheDaemonsEndIsTheKeepers) {
  StartKeeper();
  ASSERT_EQ(Tell("make 1 4096 x"), "ok");
  ::kill(keeper_, SIGTERM);
  EXPECT_EQ(WaitForKeeper(), 128 + SIGTERM);  // this daemon leaves it to the default
}

// R26: the second SIGTERM kills.
TEST_F(KeeperTest, SecondSigtermKillsADaemonThatDoesNotStop) {
  StartKeeper();
  ASSERT_EQ(Tell("count_sigterms"), "ok");
  const UniqueFd daemon = DaemonPidfd();
  ::kill(keeper_, SIGTERM);
  WaitForSigterm();
  EXPECT_EQ(Tell("restarts"), "0");
  while (keeper_ > 0 && !ExitsWithin(daemon, Seconds(0))) ::kill(keeper_, SIGTERM);
  EXPECT_EQ(WaitForKeeper(), 128 + SIGKILL);
}

// What it had not persisted yet is there still.
TEST_F(KeeperTest, DaemonThatDiesWhileItPersistsLeavesTheRestToAnother) {
  StartKeeper();
  ASSERT_EQ(Tell("make 1 4096 x"), "ok");
  ASSERT_EQ(Tell("count_sigterms"), "ok");
  const UniqueFd daemon = DaemonPidfd();
  ::kill(keeper_, SIGTERM);
  WaitForSigterm();
  ASSERT_EQ(::syscall(SYS_pidfd_send_signal, daemon.get(), SIGKILL, nullptr, 0), 0);
  EXPECT_EQ(WaitForKeeper(), 128 + SIGTERM);  // the other heeds it
}

// It was handing over for its ring's sake when the keeper was asked to stop.
TEST_F(KeeperTest, DaemonThatHandsOverWhileItIsToStopLeavesTheRestToTheNext) {
  options_.daemon_command[1] = "replaced";
  StartKeeper();
  ASSERT_EQ(Tell("make 1 4096 x"), "ok");
  ::kill(keeper_, SIGTERM);
  EXPECT_EQ(WaitForKeeper(), 128 + SIGTERM);  // the other heeds it
}

TEST_F(KeeperTest, DaemonNeverOutlivesItsKeeper) {
  StartKeeper();
  const UniqueFd daemon = DaemonPidfd();
  ::kill(keeper_, SIGKILL);
  WaitForKeeper();
  EXPECT_TRUE(ExitsWithin(daemon, Seconds(10)));
}

TEST_F(KeeperTest, ThreeDeathsInAMinuteStartItInSafeMode) {
  options_.daemon_command[1] = "crash";
  StartKeeper();
  EXPECT_EQ(Tell("restarts"), "3");
  EXPECT_THAT(Tell("safe_mode"), HasSubstr("died 3 times within a minute"));
  EXPECT_THAT(Tell("safe_mode"), HasSubstr("signal 9"));
}

TEST_F(KeeperTest, SafeModeEndsByItself) {
  options_.restart.first_safe_mode = 200 * kNanosPerMilli;
  StartKeeper();
  ASSERT_EQ(Tell("make 1 4096 kept"), "ok");
  for (int i = 0; i < 3; ++i) KillDaemon();
  ASSERT_TRUE(testing::Await([&] { return Tell("safe_mode") == "" && Tell("restarts") == "3"; }));
  EXPECT_EQ(Tell("read 1 4"), "kept");
}

// R37
TEST_F(KeeperTest, NoStraySignalEndsIt) {
  StartKeeper();
  ASSERT_EQ(Tell("make 1 4096 kept"), "ok");
  const std::string daemon = Tell("pid");
  for (int number = 1; number < NSIG; ++number) {
    if (number == SIGKILL || number == SIGSTOP || number == SIGTSTP || number == SIGTERM ||
        number == SIGINT || number == SIGHUP) {
      continue;
    }
    ASSERT_EQ(::kill(keeper_, number), 0) << number;
  }
  ASSERT_EQ(Tell("make 2 4096 more"), "ok");  // the keeper answers
  EXPECT_EQ(Tell("pid"), daemon);
}

TEST_F(KeeperTest, IgnoredSigchldOfItsParentHidesNoDeath) {
  ::signal(SIGCHLD, SIG_IGN);
  StartKeeper();
  ::signal(SIGCHLD, SIG_DFL);
  ASSERT_EQ(Tell("make 1 4096 kept"), "ok");
  KillDaemon();
  EXPECT_EQ(Tell("read 1 4"), "kept");
}

// --- SIGHUP

// As of a daemon that its keeper asks to hand over before it has begun.
TEST(IgnoreStraySignals, LosesNoSighupThatCameWhileItIsBlocked) {
  const pid_t child = ::fork();
  if (child == 0) {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGHUP);
    ::sigprocmask(SIG_BLOCK, &signals, nullptr);
    ::raise(SIGHUP);
    IgnoreStraySignals();
    sigemptyset(&signals);
    ::sigpending(&signals);
    ::_exit(sigismember(&signals, SIGHUP) == 1 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(KeeperTest, SighupReplacesTheDaemonWithoutADeath) {
  options_.check_command = {"/bin/sh", "-c", R"(printf 'serve\0--colour=red\0--socket=other\0')"};
  options_.daemon_command = {KEEPER_CHILD, "serve", "--socket=first"};
  options_.fixed_arguments = {"--socket="};
  StartKeeper();
  ASSERT_EQ(Tell("make 1 4096 kept"), "ok");
  EXPECT_EQ(Tell("arguments"), "serve --socket=first");
  Reload();
  EXPECT_EQ(Tell("arguments"), "serve --colour=red --socket=first");
  EXPECT_EQ(Tell("restarts"), "0");
  EXPECT_EQ(Tell("read 1 4"), "kept");
}

// As often as it likes: a node whose rank in its ring changes.
TEST_F(KeeperTest, DaemonThatWantsTheNextOneIsReplacedWithoutADeath) {
  StartKeeper();
  ASSERT_EQ(Tell("make 1 4096 precious"), "ok");
  for (int i = 0; i < 4; ++i) EXPECT_EQ(Tell(absl::StrCat("exit ", kHandsOverExitCode)), "");
  EXPECT_EQ(Tell("restarts"), "0");
  EXPECT_EQ(Tell("safe_mode"), "");
  EXPECT_EQ(Tell("read 1 8"), "precious");
}

TEST_F(KeeperTest, SighupThatTheCheckRefusesChangesNothing) {
  options_.check_command = {
      "/bin/sh", "-c", absl::StrCat("echo wrong >&2; echo x >>", directory_, "/checked; exit 2")};
  StartKeeper();
  ASSERT_EQ(Tell("make 1 4096 kept"), "ok");
  const std::string daemon = Tell("pid");
  ::kill(keeper_, SIGHUP);
  ASSERT_TRUE(
      testing::Await([&] { return ::access((directory_ + "/checked").c_str(), F_OK) == 0; }));
  EXPECT_EQ(Tell("make 2 4096 more"), "ok");
  EXPECT_EQ(Tell("pid"), daemon);
  ::unlink((directory_ + "/checked").c_str());
}

TEST_F(KeeperTest, SighupEndsSafeMode) {
  StartKeeper();
  ASSERT_EQ(Tell("make 1 4096 kept"), "ok");
  for (int i = 0; i < 3; ++i) KillDaemon();
  ASSERT_THAT(Tell("safe_mode"), HasSubstr("died 3 times"));
  Reload();
  EXPECT_EQ(Tell("safe_mode"), "");
  EXPECT_EQ(Tell("restarts"), "3");
  KillDaemon();
  EXPECT_EQ(Tell("safe_mode"), "") << "the deaths before are forgotten";
  EXPECT_EQ(Tell("read 1 4"), "kept");
}

// --- no daemon can be started

TEST_F(KeeperTest, StopWhileNoDaemonRunsReachesTheNextOneWhichCanPersist) {
  options_.daemon_command[1] = "drain";
  StartKeeper();
  ASSERT_EQ(Tell("make 1 4096 precious"), "ok");
  LimitDescriptors(3);
  const pid_t daemon = std::stoi(Tell("pid"));
  KillDaemon();
  // The keeper has seen its end once nothing is left of it; before that SIGTERM would go to the dead one.
  ASSERT_TRUE(testing::Await([&] { return ::kill(daemon, 0) != 0; }));
  ::kill(keeper_, SIGTERM);
  // Were there room for a daemon before the keeper has read the signal, it would start one first.
  ASSERT_TRUE(testing::Await([&] { return !IsPending(SIGTERM); }));
  LimitDescriptors(1024);
  EXPECT_EQ(WaitForKeeper(), 7);  // the daemon's own
}

TEST_F(KeeperTest, DaemonThatSpeaksGarbageIsReplaced) {
  StartKeeper();
  ASSERT_EQ(Tell("make 1 4096 kept"), "ok");
  const UniqueFd daemon = DaemonPidfd();
  Tell("garble");
  ASSERT_TRUE(ExitsWithin(daemon, Seconds(10)));
  client_.Reset();
  EXPECT_EQ(Tell("read 1 4"), "kept");
}

// --- the socket paths

TEST_F(KeeperTest, SocketsHaveTheirModeAndTypes) {
  options_.socket_mode = 0660;
  StartKeeper();
  ASSERT_EQ(Tell("restarts"), "0");
  for (const std::string& path : {options_.socket_path, options_.socket_path + ".fd"}) {
    struct stat stat = {};
    ASSERT_EQ(::stat(path.c_str(), &stat), 0);
    EXPECT_TRUE(S_ISSOCK(stat.st_mode));
    EXPECT_EQ(stat.st_mode & 0777, 0660u);
  }
}

TEST_F(KeeperTest, SocketPathInUseIsRefused) {
  StartKeeper();
  ASSERT_EQ(Tell("restarts"), "0");
  const pid_t first = std::exchange(keeper_, -1);
  ::testing::internal::CaptureStderr();
  StartKeeper();
  EXPECT_EQ(WaitForKeeper(), 1);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("socket: " + options_.socket_path + " is in use"));
  keeper_ = first;
  EXPECT_EQ(Tell("restarts"), "0");  // the one that lives there was not disturbed
}

TEST_F(KeeperTest, FilesOfADeadDaemonAreReplaced) {
  StartKeeper();
  ASSERT_EQ(Tell("restarts"), "0");
  const UniqueFd daemon = DaemonPidfd();
  ::kill(keeper_, SIGKILL);
  WaitForKeeper();
  ASSERT_TRUE(ExitsWithin(daemon, Seconds(10)));
  client_.Reset();
  ASSERT_EQ(::access(options_.socket_path.c_str(), F_OK), 0);
  StartKeeper();
  EXPECT_EQ(Tell("restarts"), "0");
}

// Keeper and daemon are killed at once, and the kernel takes its time with what the daemon mapped.
TEST_F(KeeperTest, ADaemonThatIsStillDyingIsAwaited) {
  int dying[2];
  ASSERT_EQ(::pipe2(dying, O_CLOEXEC), 0);
  const UniqueFd end_of_daemon(dying[0]);
  const pid_t killed = ::fork();
  if (killed == 0) {
    std::vector<pollfd> calls;
    for (const auto& [path, type] : {std::pair(options_.socket_path, SOCK_STREAM),
                                     std::pair(options_.socket_path + ".fd", SOCK_SEQPACKET)}) {
      sockaddr_un address = {};
      address.sun_family = AF_UNIX;
      std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
      const int socket = ::socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
      if (::bind(socket, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
          ::listen(socket, 8) != 0) {
        ::_exit(1);
      }
      calls.push_back({socket, POLLIN, 0});
    }
    // Its daemon, which has the sockets, too. It is gone soon after the keeper has found it.
    if (::fork() == 0 &&
        ::poll(calls.data(), 1, static_cast<int>(testing::Patient(int64_t{20'000}))) == 1) {
      (void)!::write(dying[1], "x", 1);
    }
    ::_exit(0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(killed, &status, 0), killed);
  ASSERT_EQ(status, 0);
  UniqueFd(dying[1]).Reset();
  StartKeeper();
  ASSERT_TRUE(ExitsWithin(end_of_daemon, Seconds(30)));
  char found = 0;
  EXPECT_EQ(::read(end_of_daemon.get(), &found, 1), 1) << "the keeper did not look";
  // The dying one may still take a call, which it does not answer.
  EXPECT_TRUE(testing::Await([&] { return Tell("restarts") == "0"; }));
}

TEST_F(KeeperTest, FileThatIsNoSocketIsLeftAlone) {
  std::ofstream(options_.socket_path) << "somebody's notes";
  ::testing::internal::CaptureStderr();
  StartKeeper();
  EXPECT_EQ(WaitForKeeper(), 1);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr(options_.socket_path + " exists and is not a socket"));
  EXPECT_EQ(*ReadFile(options_.socket_path), "somebody's notes");
}

TEST_F(KeeperTest, SocketOfAnotherProgramIsLeftAlone) {
  UniqueFd other(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, options_.socket_path.c_str(), sizeof(address.sun_path) - 1);
  ASSERT_EQ(::bind(other.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  StartKeeper();
  EXPECT_EQ(WaitForKeeper(), 1);
  EXPECT_EQ(::access(options_.socket_path.c_str(), F_OK), 0);
}

TEST_F(KeeperTest, TheSocketsDirectoryIsMadeButNoneAboveIt) {
  options_.socket_path = directory_ + "/made/none/cairn.sock";
  options_.socket_origin = "flag";
  ::testing::internal::CaptureStderr();
  StartKeeper();
  EXPECT_EQ(WaitForKeeper(), 1);
  EXPECT_THAT(
      ::testing::internal::GetCapturedStderr(),
      HasSubstr("socket " + options_.socket_path + " (flag): neither " + directory_ +
                "/made/none nor " + directory_ + "/made exists; only the last directory is made"));
  EXPECT_NE(::access((directory_ + "/made").c_str(), F_OK), 0);

  // Private where it stands in a directory that is, as XDG_RUNTIME_DIR; whatever the umask is.
  const mode_t umask_before = ::umask(077);
  for (const auto& [around, mode] : {std::pair<mode_t, mode_t>{0700, 0700}, {0755, 0755}}) {
    ASSERT_EQ(::chmod(directory_.c_str(), around), 0);
    options_.socket_path = directory_ + "/made/cairn.sock";
    StartKeeper();
    ASSERT_EQ(Tell("restarts"), "0");
    struct stat stat = {};
    ASSERT_EQ(::stat((directory_ + "/made").c_str(), &stat), 0);
    EXPECT_EQ(stat.st_mode & 07777, mode);
    const UniqueFd daemon = DaemonPidfd();
    ::kill(keeper_, SIGKILL);
    WaitForKeeper();
    ASSERT_TRUE(ExitsWithin(daemon, Seconds(30)));
    client_.Reset();
    std::filesystem::remove_all(directory_ + "/made");
  }
  ::umask(umask_before);
}

TEST_F(KeeperTest, AFileInTheSocketsDirectorysPlaceIsNamed) {
  std::ofstream(directory_ + "/file") << "somebody's notes";
  options_.socket_path = directory_ + "/file/cairn.sock";
  options_.socket_origin = "default";
  ::testing::internal::CaptureStderr();
  StartKeeper();
  EXPECT_EQ(WaitForKeeper(), 1);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("socket " + options_.socket_path + " (default): " + directory_ +
                        "/file is not a directory"));
  ::unlink((directory_ + "/file").c_str());
}

TEST_F(KeeperTest, OverlongPathsAreRefused) {
  ::testing::internal::CaptureStderr();
  options_.socket_path = directory_ + "/" + std::string(100, 'x');
  StartKeeper();
  EXPECT_EQ(WaitForKeeper(), 1);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("the limit is 107"));
  ::unlink((options_.socket_path + ".lock").c_str());
}

}  // namespace
}  // namespace cairn::keeper
