// Reuse of a slab rests on two answers: which processes still have it (R29), and what another uid
// can do with it (R12).
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/cache/cache.h"
#include "tests/cache/scratch.h"
#include "tests/support/stopped.h"

namespace cairn::cache {
namespace {

constexpr LeaseId kLease = 1000;

class SlabUsers : public ScratchCache {
 protected:
  void SetUp() override {
    ScratchCache::SetUp();
    ASSERT_EQ(Make(1, kMiB), absl::OkStatus());
    ASSERT_TRUE(Free(1));
  }
  void RestartDaemon() {
    Restart();
    ASSERT_EQ(AdoptFromHolder(1, kMiB), absl::OkStatus());
  }
  static Mapping MapLent(const UniqueFd& fd, bool writable) {
    auto mapping = Mapping::Map(fd.get(), 0, kMiB, PROT_READ | (writable ? PROT_WRITE : 0),
                                writable ? MAP_SHARED : MAP_PRIVATE);
    EXPECT_TRUE(mapping.ok()) << mapping.status();
    return mapping.ok() ? *std::move(mapping) : Mapping();
  }
};

// The keeper's dup does not count as a user.
TEST_F(SlabUsers, SlabThatOnlyTheDaemonAndTheKeeperHaveIsFree) {
  ASSERT_EQ(cache_->Write(1, 0, "mapped and touched"), absl::OkStatus());
  const UniqueFd keeper = holder_.Inherit(1);
  EXPECT_TRUE(Free(1));
  EXPECT_FALSE(Leased(1, kLease));
  RestartDaemon();
  EXPECT_TRUE(Free(1));
}

TEST_F(SlabUsers, SlabWhoseWriterStillMapsItIsTaken) {
  UniqueFd lent = MustLend(1, kLease, LeaseMode::kWrite);
  EXPECT_FALSE(Free(1));
  Mapping mapping = MapLent(lent, true);
  lent.Reset();
  EXPECT_FALSE(Free(1));
  EXPECT_TRUE(Leased(1, kLease));
  RestartDaemon();
  EXPECT_FALSE(Free(1));
  EXPECT_TRUE(Leased(1, kLease));
  mapping.Reset();
  EXPECT_TRUE(Free(1));
  EXPECT_FALSE(Leased(1, kLease));
}

TEST_F(SlabUsers, SlabThatAReaderStillMapsIsTakenAndItsLeaseIsTold) {
  UniqueFd lent = MustLend(1, kLease, LeaseMode::kMap);
  UniqueFd other = MustLend(1, kLease + 1, LeaseMode::kMap);
  Mapping mapping = MapLent(lent, false);
  lent.Reset();
  EXPECT_TRUE(Leased(1, kLease));
  EXPECT_TRUE(Leased(1, kLease + 1));
  other.Reset();
  EXPECT_FALSE(Leased(1, kLease + 1));
  RestartDaemon();
  EXPECT_TRUE(Leased(1, kLease));
  EXPECT_FALSE(Free(1));
  mapping.Reset();
  EXPECT_FALSE(Leased(1, kLease));
  EXPECT_TRUE(Free(1));
}

TEST_F(SlabUsers, ForkedChildThatKeepsTheMappingKeepsTheSlab) {
  UniqueFd lent = MustLend(1, kLease, LeaseMode::kMap);
  Mapping mapping = MapLent(lent, false);
  Child worker([&](int socket) {
    lent.Reset();
    TellParent(socket);
    HearParent(socket);
    return 0;
  });
  ASSERT_TRUE(worker.Hear());
  mapping.Reset();
  lent.Reset();
  EXPECT_FALSE(Free(1));
  EXPECT_TRUE(Leased(1, kLease));
  // R14: a stopped process still has all that it had.
  ASSERT_TRUE(testing::Stop(worker.pid()));
  EXPECT_FALSE(Free(1));
  RestartDaemon();
  EXPECT_FALSE(Free(1));
  EXPECT_TRUE(Leased(1, kLease));
  worker.Kill();
  EXPECT_TRUE(Free(1));
  EXPECT_FALSE(Leased(1, kLease));
}

TEST_F(SlabUsers, DescriptorInFlightKeepsTheSlab) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  UniqueFd sender(ends[0]), receiver(ends[1]);
  UniqueFd lent = MustLend(1, kLease, LeaseMode::kWrite);
  ASSERT_EQ(SendMessage(sender.get(), "slab", {lent.get()}), absl::OkStatus());
  lent.Reset();
  EXPECT_FALSE(Free(1));
  EXPECT_TRUE(Leased(1, kLease));
  RestartDaemon();
  EXPECT_FALSE(Free(1));
  sender.Reset();
  receiver.Reset();  // the message is discarded unread
  EXPECT_TRUE(Free(1));
}

// Readers in `file` mode open the slab by path. Their description has no lock; only the probe sees
// it.
TEST_F(SlabUsers, SlabThatWasOpenedByPathIsTakenThoughItsLeaseHasEnded) {
  UniqueFd lent = MustLend(1, kLease, LeaseMode::kFile);
  UniqueFd by_path(
      ::open(absl::StrCat("/proc/self/fd/", lent.get()).c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(by_path.valid());
  lent.Reset();
  EXPECT_FALSE(Leased(1, kLease));
  EXPECT_FALSE(Free(1));
  by_path.Reset();
  EXPECT_TRUE(Free(1));
}

TEST_F(SlabUsers, DupOfALentDescriptorKeepsItsLease) {
  UniqueFd lent = MustLend(1, kLease, LeaseMode::kMap);
  StatusOr<UniqueFd> dup = lent.Dup();
  ASSERT_TRUE(dup.ok());
  lent.Reset();
  EXPECT_TRUE(Leased(1, kLease));
  dup->Reset();
  EXPECT_FALSE(Leased(1, kLease));
}

TEST_F(SlabUsers, ReadersDescriptionCannotBeMappedForWriting) {
  const UniqueFd lent = MustLend(1, kLease, LeaseMode::kMap);
  EXPECT_TRUE(absl::IsPermissionDenied(
      Mapping::Map(lent.get(), 0, kMiB, PROT_READ | PROT_WRITE, MAP_SHARED).status()));
}

TEST_F(SlabUsers, LeaseBeyondTheLastByteIsRefused) {
  EXPECT_TRUE(absl::IsInvalidArgument(cache_->Lend(1, ~LeaseId{0}, LeaseMode::kMap).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(cache_->LeaseOpen(1, ~LeaseId{0}).status()));
  EXPECT_TRUE(Free(1));
}

// Lending and probing one slab from many threads: no open fails or hangs for meeting a probe, and
// no probe says free while a descriptor is out.
TEST_F(SlabUsers, ProbesAndOpensOfOneSlabExcludeEachOther) {
  std::atomic<bool> stop{false};
  std::thread prober([&] {
    while (!stop) EXPECT_TRUE(cache_->Probe(1).ok());
  });
  for (LeaseId lease = 1; lease <= 2000; ++lease) {
    const UniqueFd lent = MustLend(1, lease, lease % 2 == 0 ? LeaseMode::kMap : LeaseMode::kWrite);
    ASSERT_TRUE(lent.valid());
    EXPECT_FALSE(Free(1));
  }
  stop = true;
  prober.join();
  EXPECT_TRUE(Free(1));
}

// A process opens the slab by path over and over while it is probed. The daemon gets SIGIO and
// lives, the process never waits long, and the probe never says free while the slab is open.
TEST_F(SlabUsers, OpeningByPathDuringProbesHarmsNeitherSide) {
  const UniqueFd lent = MustLend(1, kLease, LeaseMode::kFile);
  const std::string path = absl::StrCat("/proc/self/fd/", lent.get());
  std::atomic<bool> stop{false};
  std::thread opener([&] {
    while (!stop) {
      const UniqueFd opened(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
      EXPECT_TRUE(opened.valid());
    }
  });
  for (int i = 0; i < 5000; ++i) EXPECT_FALSE(Free(1));
  stop = true;
  opener.join();
}

// --- R12: another uid

class AnotherUid : public SlabUsers {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root: becomes another uid";
    SlabUsers::SetUp();
  }
  // Runs `body` as uid 65534 in a process of its own.
  static int AsNobody(const std::function<int()>& body) {
    Child child([&](int) {
      if (::setgid(65534) != 0 || ::setuid(65534) != 0) return 99;
      return body();
    });
    return child.Wait();
  }
};

TEST_F(AnotherUid, ReaderCannotReopenForWritingOrChangeAnything) {
  const UniqueFd lent = MustLend(1, kLease, LeaseMode::kMap);
  EXPECT_EQ(AsNobody([&] {
              const std::string path = absl::StrCat("/proc/self/fd/", lent.get());
              if (::open(path.c_str(), O_RDWR | O_CLOEXEC) >= 0 || errno != EACCES) return 1;
              if (::open(path.c_str(), O_WRONLY | O_CLOEXEC) >= 0) return 2;
              if (::fchmod(lent.get(), 0666) == 0 || errno != EPERM) return 3;
              if (::ftruncate(lent.get(), 0) == 0) return 4;
              if (::fallocate(lent.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, kMiB) == 0)
                return 5;
              if (::mmap(nullptr, kMiB, PROT_READ | PROT_WRITE, MAP_SHARED, lent.get(), 0) !=
                  MAP_FAILED) {
                return 6;
              }
              void* const shared = ::mmap(nullptr, kMiB, PROT_READ, MAP_SHARED, lent.get(), 0);
              if (shared == MAP_FAILED) return 7;
              if (::mprotect(shared, kMiB, PROT_READ | PROT_WRITE) == 0 || errno != EACCES)
                return 8;
              if (::fcntl(lent.get(), F_ADD_SEALS, F_SEAL_WRITE) == 0) return 9;
              return 0;
            }),
            0);
}

TEST_F(AnotherUid, ReaderCanReadAndOpenForReading) {
  ASSERT_EQ(cache_->Write(1, 0, "shared"), absl::OkStatus());
  const UniqueFd lent = MustLend(1, kLease, LeaseMode::kFile);
  EXPECT_EQ(AsNobody([&] {
              const int opened =
                  ::open(absl::StrCat("/proc/self/fd/", lent.get()).c_str(), O_RDONLY | O_CLOEXEC);
              char bytes[6] = {};
              if (opened < 0 || ::pread(opened, bytes, 6, 0) != 6) return 1;
              return std::string(bytes, 6) == "shared" ? 0 : 2;
            }),
            0);
}

// A process cannot take a file lease on a file of another owner, so it cannot make the daemon's
// opens wait.
TEST_F(AnotherUid, ReaderCannotTakeAFileLease) {
  const UniqueFd lent = MustLend(1, kLease, LeaseMode::kMap);
  EXPECT_EQ(AsNobody([&] {
              if (::fcntl(lent.get(), F_SETLEASE, F_RDLCK) == 0 || errno != EACCES) return 1;
              return 0;
            }),
            0);
  EXPECT_FALSE(Free(1));
}

// A reader can drop its own lock, which frees the lease early; the probe still sees its descriptor.
TEST_F(AnotherUid, ReaderThatDropsItsOwnLockIsStillSeenByTheProbe) {
  UniqueFd lent = MustLend(1, kLease, LeaseMode::kMap);
  struct flock unlock = {};
  unlock.l_type = F_UNLCK;
  unlock.l_whence = SEEK_SET;
  ASSERT_EQ(::fcntl(lent.get(), F_OFD_SETLK, &unlock), 0);
  EXPECT_FALSE(Leased(1, kLease));
  EXPECT_FALSE(Free(1));
}

}  // namespace
}  // namespace cairn::cache
