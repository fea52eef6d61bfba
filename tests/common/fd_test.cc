#include "common/fd.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>

#include "common/clock.h"
#include "tests/support/patience.h"

namespace cairn {
namespace {

class Scratch : public ::testing::Test {
 protected:
  Scratch() {
    char path[] = "/tmp/cairn-fd-XXXXXX";
    path_ = ::mkdtemp(path);
    directory_ = UniqueFd(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  }
  ~Scratch() override { std::filesystem::remove_all(path_); }

  void Write(const std::string& name, absl::string_view bytes) {
    UniqueFd fd(::open((path_ + "/" + name).c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    ASSERT_TRUE(PwriteAll(fd.get(), bytes.data(), bytes.size(), 0).ok());
  }

  std::string path_;
  UniqueFd directory_;
};

std::pair<UniqueFd, UniqueFd> SocketPair() {
  int fds[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

bool IsOpen(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

TEST(WaitingForBytes, EndsWithBytesWithThePeerOrWithTheTime) {
  auto [ours, theirs] = SocketPair();
  const auto now = [&](int timeout_ms) { return *WaitReadable(ours.get(), timeout_ms); };
  EXPECT_FALSE(now(0));
  EXPECT_FALSE(now(1));
  ASSERT_EQ(::send(theirs.get(), "x", 1, 0), 1);
  EXPECT_TRUE(now(-1));
  char byte = 0;
  ASSERT_EQ(::recv(ours.get(), &byte, 1, 0), 1);
  EXPECT_FALSE(now(0));
  theirs.Reset();
  EXPECT_TRUE(now(-1));  // a read would say that the peer is gone
}

TEST(OwnedDescriptors, AreClosedOnceByTheirLastOwner) {
  int raw;
  {
    UniqueFd first(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    raw = first.get();
    UniqueFd second = std::move(first);
    EXPECT_FALSE(first.valid());  // NOLINT: moved-from is what is tested
    EXPECT_TRUE(IsOpen(raw));
    auto dup = second.Dup();
    ASSERT_TRUE(dup.ok());
    EXPECT_EQ(::fcntl(dup->get(), F_GETFD), FD_CLOEXEC);
  }
  EXPECT_FALSE(IsOpen(raw));
}

TEST(Mappings, UnmapWhenTheyGo) {
  auto mapping = Mapping::Anonymous(8192);
  ASSERT_TRUE(mapping.ok());
  char* at = mapping->data();
  at[8191] = 'x';
  Mapping moved = *std::move(mapping);
  EXPECT_EQ(moved.data(), at);
  moved.Reset();
  unsigned char resident;
  EXPECT_EQ(::mincore(at, 4096, &resident), -1);
  EXPECT_EQ(errno, ENOMEM);
}

Mapping MapShared(const UniqueFd& fd, uint64_t bytes) {
  auto mapping = Mapping::Map(fd.get(), 0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED);
  EXPECT_TRUE(mapping.ok()) << mapping.status();
  return *std::move(mapping);
}

TEST(Mappings, AgainShowTheSamePages) {
  const auto fd = MakeMemfd("x", 4 * 4096, 0600);
  ASSERT_TRUE(fd.ok()) << fd.status();
  const Mapping whole = MapShared(*fd, 4 * 4096);
  auto part = whole.Again(4096, 2 * 4096);
  ASSERT_TRUE(part.ok()) << part.status();
  part->data()[1] = 'x';
  EXPECT_EQ(whole.data()[4097], 'x');
  EXPECT_FALSE(whole.Again(1, 4096).ok());  // not whole pages
}

// Sizes below, at and above what page tables hold.
TEST(Mappings, MovedAwayLeavePrivateZeros) {
  for (const uint64_t bytes : {uint64_t{4096}, uint64_t{2 << 20}, uint64_t{(5 << 20) + 4096}}) {
    const auto fd = MakeMemfd("x", bytes, 0600);
    ASSERT_TRUE(fd.ok()) << fd.status();
    Mapping here = MapShared(*fd, bytes);
    for (uint64_t at = 0; at < bytes; at += 4096) here.data()[at] = 'x';
    char* const left = here.data();
    const auto moved = here.MoveAway();
    ASSERT_TRUE(moved.ok()) << moved.status();
    EXPECT_EQ(here.data(), left);
    EXPECT_EQ(std::string(left, bytes), std::string(bytes, '\0'));
    left[bytes - 1] = 'y';
    for (uint64_t at = 0; at < bytes; at += 4096) ASSERT_EQ(moved->data()[at], 'x') << at;
    EXPECT_EQ(moved->data()[bytes - 1], '\0');
    EXPECT_EQ(moved->length(), bytes);
  }
}

TEST(Mappings, AreMovedWhileOthersWriteThere) {
  constexpr uint64_t kBytes = 4 << 20;
  const auto fd = MakeMemfd("x", kBytes, 0600);
  ASSERT_TRUE(fd.ok()) << fd.status();
  for (int i = 0; i < 20; ++i) {
    Mapping here = MapShared(*fd, kBytes);
    std::atomic<int> written{0};
    std::atomic<bool> done{false};
    std::thread writer([&, data = here.data()] {
      for (; !done; ++written) std::memset(data, 'z', kBytes);
    });
    while (written == 0) std::this_thread::yield();
    const auto moved = here.MoveAway();
    ASSERT_TRUE(moved.ok()) << moved.status();
    std::memset(moved->data(), 'a', kBytes);
    const int then = written;
    while (written < then + 2) std::this_thread::yield();
    EXPECT_EQ(std::string(moved->data(), kBytes), std::string(kBytes, 'a'));
    done = true;
    writer.join();
  }
}

TEST(Messages, CarryBytesAndDescriptors) {
  auto [a, b] = SocketPair();
  UniqueFd file(::memfd_create("x", MFD_CLOEXEC));
  ASSERT_TRUE(PwriteAll(file.get(), "hello", 5, 0).ok());
  const int fds[] = {file.get(), file.get()};
  ASSERT_TRUE(SendMessage(a.get(), "message", fds).ok());
  auto received = ReceiveMessage(b.get(), 100);
  ASSERT_TRUE(received.ok()) << received.status();
  EXPECT_EQ(received->bytes, "message");
  ASSERT_EQ(received->fds.size(), 2u);
  EXPECT_EQ(::fcntl(received->fds[0].get(), F_GETFD), FD_CLOEXEC);
  char text[5];
  ASSERT_TRUE(PreadAll(received->fds[1].get(), text, 5, 0).ok());
  EXPECT_EQ(std::string(text, 5), "hello");
}

TEST(Messages, UpToTheKernelsLimitOfDescriptors) {
  auto [a, b] = SocketPair();
  std::vector<int> fds(kMaxFdsPerMessage, a.get());
  ASSERT_TRUE(SendMessage(a.get(), "x", fds).ok());
  auto received = ReceiveMessage(b.get(), 1);
  ASSERT_TRUE(received.ok());
  EXPECT_EQ(received->fds.size(), kMaxFdsPerMessage);
  fds.push_back(a.get());
  EXPECT_EQ(SendMessage(a.get(), "x", fds).code(), absl::StatusCode::kInvalidArgument);
}

TEST(Messages, LongerThanExpectedAreRefusedAndLeakNothing) {
  auto [a, b] = SocketPair();
  const int lowest_free = UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC)).get();
  const int fds[] = {a.get()};
  ASSERT_TRUE(SendMessage(a.get(), "too long", fds).ok());
  EXPECT_EQ(ReceiveMessage(b.get(), 3).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC)).get(), lowest_free);
}

TEST(Messages, TellAGonePeerAFullSocketAndAnEmptyOneApart) {
  auto [a, b] = SocketPair();
  EXPECT_EQ(ReceiveMessage(b.get(), 10, MSG_DONTWAIT).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  Status status;
  int sent = 0;
  while ((status = SendMessage(a.get(), std::string(1000, 'x'), {}, MSG_DONTWAIT)).ok()) ++sent;
  EXPECT_GT(sent, 0);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  while (sent-- > 0) ASSERT_TRUE(ReceiveMessage(b.get(), 1000).ok());
  a.Reset();
  const auto eof = ReceiveMessage(b.get(), 10);
  ASSERT_TRUE(eof.ok());
  EXPECT_TRUE(eof->bytes.empty());
  EXPECT_EQ(SendMessage(b.get(), "x", {}).code(), absl::StatusCode::kUnavailable);  // no SIGPIPE
}

TEST_F(Scratch, ReadingPastTheEndIsDataLoss) {
  Write("f", "abc");
  auto fd = OpenBeneath(directory_.get(), "f", O_RDONLY);
  ASSERT_TRUE(fd.ok());
  char buffer[4];
  EXPECT_EQ(PreadAll(fd->get(), buffer, 4, 0).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(*ReadFile(path_ + "/f"), "abc");
  EXPECT_EQ(ReadFile(path_ + "/g").status().code(), absl::StatusCode::kNotFound);
  EXPECT_GT(ReadFile("/proc/self/status")->size(), 100u);
}

TEST_F(Scratch, NothingIsOpenedThroughASymbolicLinkOrAbove) {
  Write("f", "abc");
  std::filesystem::create_directory(path_ + "/d");
  std::filesystem::create_symlink("f", path_ + "/link");
  std::filesystem::create_directory_symlink("d", path_ + "/dlink");
  Write("d/g", "x");
  EXPECT_TRUE(OpenBeneath(directory_.get(), "d/g", O_RDONLY).ok());
  for (const char* path : {"link", "dlink/g", "..", "d/../..", "/etc/passwd"}) {
    EXPECT_EQ(OpenBeneath(directory_.get(), path, O_RDONLY).status().code(),
              absl::StatusCode::kPermissionDenied)
        << path;
  }
  EXPECT_EQ(OpenBeneath(directory_.get(), "none", O_RDONLY).status().code(),
            absl::StatusCode::kNotFound);
}

TEST_F(Scratch, AFifoNeitherBlocksNorPassesForAFile) {
  ASSERT_EQ(::mkfifo((path_ + "/fifo").c_str(), 0600), 0);
  auto fd = OpenBeneath(directory_.get(), "fifo", O_RDONLY);
  ASSERT_TRUE(fd.ok());
  EXPECT_EQ(ReadRegularFile(fd->get(), 10).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(Scratch, OpenBeneathDoesNotWaitForTheHolderOfALease) {
  ::signal(SIGIO, SIG_IGN);
  Write("f", "x");
  const UniqueFd held(::open((path_ + "/f").c_str(), O_RDWR | O_CLOEXEC));
  if (::fcntl(held.get(), F_SETLEASE, F_WRLCK) != 0) GTEST_SKIP() << "no leases here";
  const MonotonicNanos begun = RealClock()->Now();
  EXPECT_EQ(OpenBeneath(directory_.get(), "f", O_RDONLY).status().code(),
            absl::StatusCode::kUnavailable);
  // The kernel would wait for 45 s (fs.lease-break-time).
  EXPECT_LT(RealClock()->Now() - begun, testing::Patient(5 * kNanosPerSecond));
}

TEST_F(Scratch, AFileLongerThanExpectedIsNotRead) {
  Write("f", "abc");
  auto fd = OpenBeneath(directory_.get(), "f", O_RDONLY);
  EXPECT_EQ(*ReadRegularFile(fd->get(), 3), "abc");
  EXPECT_EQ(ReadRegularFile(fd->get(), 2).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(Scratch, ListsInByteOrder) {
  for (const char* name : {"b", "a", "B", ".x"}) Write(name, "");
  EXPECT_EQ(*ListDirectory(directory_.get()), (std::vector<std::string>{".x", "B", "a", "b"}));
  EXPECT_EQ(ListDirectory(directory_.get())->size(), 4u);  // again, from the start
}

TEST(Pidfds, TellWhenAProcessHasExited) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    char byte;
    ::close(ends[1]);
    (void)!::read(ends[0], &byte, 1);
    ::_exit(0);
  }
  auto pidfd = OpenPidfd(child);
  ASSERT_TRUE(pidfd.ok());
  EXPECT_TRUE(PidfdAlive(pidfd->get()));
  ::close(ends[0]);
  ::close(ends[1]);
  siginfo_t info = {};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  EXPECT_FALSE(PidfdAlive(pidfd->get())) << "a zombie is not alive";
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_FALSE(PidfdAlive(pidfd->get()));
  EXPECT_EQ(OpenPidfd(child).status().code(), absl::StatusCode::kNotFound);
}

TEST(Statuses, OfSystemCallsNameTheErrno) {
  const Status full = ErrnoStatus(ENOSPC, "write");
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(full.message(), "write: No space left on device (errno ENOSPC)");
  EXPECT_EQ(ErrnoStatus(ENOTDIR, "x").code(), absl::StatusCode::kInternal);
  EXPECT_EQ(Annotate(full, "job a").message(),
            "job a: write: No space left on device (errno ENOSPC)");
  EXPECT_EQ(Annotate(full, "job a").code(), full.code());
  EXPECT_TRUE(Annotate(absl::OkStatus(), "x").ok());
}

TEST(Clocks, GoForward) {
  const MonotonicNanos before = RealClock()->Now();
  EXPECT_LE(before, RealClock()->Now());
  EXPECT_GT(RealClock()->UnixMillis(), 1'600'000'000'000);
}

}  // namespace
}  // namespace cairn
