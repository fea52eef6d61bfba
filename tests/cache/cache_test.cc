// Making, destroying, adopting and touching slabs.
#include "server/cache/cache.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <future>
#include <numeric>

#include "common/checksum.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cache/scratch.h"

namespace cairn::cache {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using CacheTest = ScratchCache;

TEST(SelfTest, PassesOnAKernelThatAnswersRight) { EXPECT_EQ(SelfTest(), absl::OkStatus()); }

TEST_F(CacheTest, MadeSlabHasAllItsPagesAndReadsAsZeros) {
  ASSERT_EQ(Make(1, 3 * kMiB + kPageBytes), absl::OkStatus());
  EXPECT_EQ(ResidentPages(holder_.Inherit(1).get()), 3 * 256u + 1);
  std::string bytes(kPageBytes, 'x');
  ASSERT_EQ(cache_->Read(1, 3 * kMiB, absl::MakeSpan(bytes)), absl::OkStatus());
  EXPECT_EQ(bytes, std::string(kPageBytes, '\0'));
  EXPECT_EQ(cache_->counters().slabs_made, 1u);
  EXPECT_EQ(cache_->counters().bytes_faulted, 3 * kMiB + kPageBytes);
}

// A slab is at the keeper before it is faulted: a daemon that dies while faulting leaks nothing.
TEST_F(CacheTest, SlabIsHeldBeforeItsFirstPageExists) {
  ASSERT_EQ(Make(1, kMiB), absl::OkStatus());
  EXPECT_THAT(holder_.held(), ElementsAre(1));
  EXPECT_EQ(holder_.resident_pages_at_hold(1), 0u);
}

TEST_F(CacheTest, SlabIsSealedAndOthersMayOnlyRead) {
  ASSERT_EQ(Make(1, kMiB), absl::OkStatus());
  const UniqueFd fd = holder_.Inherit(1);
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  EXPECT_EQ(seals & (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL),
            F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  struct stat stat = {};
  ASSERT_EQ(::fstat(fd.get(), &stat), 0);
  EXPECT_EQ(stat.st_mode & 0777, 0644u);
}

// R10: a hostile ftruncate is refused, so it cannot become a SIGBUS. Seals cannot be added either.
TEST_F(CacheTest, WriterCanNeitherTruncateNorSealTheSlab) {
  ASSERT_EQ(Make(1, kMiB), absl::OkStatus());
  const UniqueFd lent = MustLend(1, 5, LeaseMode::kWrite);
  EXPECT_EQ(::ftruncate(lent.get(), 0), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(::ftruncate(lent.get(), 2 * kMiB), -1);
  EXPECT_EQ(::fcntl(lent.get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE), -1);
  EXPECT_EQ(errno, EPERM);
}

TEST_F(CacheTest, FailedHoldLeavesNothingBehind) {
  holder_.RefuseNextHold(absl::UnavailableError("the keeper is gone"));
  const Status status = Make(1, kMiB);
  EXPECT_TRUE(absl::IsInternal(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("the keeper is gone"));
  EXPECT_THAT(holder_.held(), IsEmpty());
  EXPECT_TRUE(absl::IsNotFound(cache_->Probe(1).status()));
  EXPECT_EQ(Make(1, kMiB), absl::OkStatus());  // and the number is free again
}

TEST_F(CacheTest, ImpossibleSizesAreRefused) {
  EXPECT_TRUE(absl::IsInvalidArgument(Make(1, 0)));
  EXPECT_TRUE(absl::IsInvalidArgument(Make(2, 5)));
  EXPECT_THAT(holder_.held(), IsEmpty());
}

// R27: descriptors run out.
TEST_F(CacheTest, RunningOutOfDescriptorsIsAClearError) {
  ASSERT_EQ(Make(1, kMiB), absl::OkStatus());
  struct rlimit old = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &old), 0);
  const UniqueFd lowest(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  struct rlimit tight = old;
  tight.rlim_cur = static_cast<rlim_t>(lowest.get()) + 1;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &tight), 0);
  const Status made = Make(2, kMiB);
  const Status lent = cache_->Lend(1, 9, LeaseMode::kMap).status();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &old), 0);
  EXPECT_TRUE(absl::IsResourceExhausted(made)) << made;
  EXPECT_TRUE(absl::IsResourceExhausted(lent)) << lent;
  EXPECT_THAT(holder_.held(), ElementsAre(1));
  EXPECT_FALSE(Leased(1, 9));
}

TEST_F(CacheTest, ManySlabsAreMadeInTheOrderAskedFor) {
  Restart({.prefault_threads = 1});
  std::vector<SlabId> order;
  std::promise<void> last;
  for (SlabId slab = 1; slab <= 8; ++slab) {
    cache_->Make(slab, kMiB, fact::SlabUse::kObjects, Pages::kInTurn, [&, slab](Status status) {
      EXPECT_EQ(status, absl::OkStatus());
      order.push_back(slab);
      if (slab == 8) last.set_value();
    });
  }
  last.get_future().get();
  EXPECT_THAT(order, ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
}

// The one thread is held up in the first slab's callback, so the order of the others is certain.
TEST_F(CacheTest, UrgentSlabsOvertakeAndHurriedOnesComeFirst) {
  Restart({.prefault_threads = 1});
  std::promise<void> let_go, last, entered;
  cache_->Make(1, kPageBytes, fact::SlabUse::kObjects, Pages::kInTurn, [&](Status) {
    entered.set_value();
    let_go.get_future().get();
  });
  entered.get_future().get();
  std::vector<SlabId> order;
  const auto note = [&](SlabId slab) {
    return [&, slab](Status) {
      order.push_back(slab);
      if (order.size() == 5) last.set_value();
    };
  };
  cache_->Make(2, kPageBytes, fact::SlabUse::kObjects, Pages::kInTurn, note(2));
  cache_->Make(3, kPageBytes, fact::SlabUse::kObjects, Pages::kUrgently, note(3));
  cache_->Make(4, kPageBytes, fact::SlabUse::kObjects, Pages::kUrgently, note(4));
  cache_->Make(5, kPageBytes, fact::SlabUse::kObjects, Pages::kInTurn, note(5));
  cache_->Make(6, kPageBytes, fact::SlabUse::kObjects, Pages::kInTurn, note(6));
  cache_->Hurry(5);
  let_go.set_value();
  last.get_future().get();
  EXPECT_THAT(order, ElementsAre(5, 3, 4, 2, 6));
}

TEST_F(CacheTest, UrgentSlabOvertakesOneThatIsBeingFaulted) {
  Restart({.prefault_threads = 2, .prefault_piece_bytes = kMiB});
  std::promise<void> small, big;
  std::atomic<bool> big_done{false};
  cache_->Make(1, 512 * kMiB, fact::SlabUse::kObjects, Pages::kInTurn, [&](Status) {
    big_done = true;
    big.set_value();
  });
  cache_->Make(2, kMiB, fact::SlabUse::kObjects, Pages::kUrgently,
               [&](Status) { small.set_value(); });
  small.get_future().get();
  EXPECT_FALSE(big_done);
  big.get_future().get();
}

TEST_F(CacheTest, PagesThatComeByWritingAreNotMadeBefore) {
  std::promise<Status> made;
  cache_->Make(1, kMiB, fact::SlabUse::kObjects, Pages::kByWriting,
               [&](Status status) { made.set_value(std::move(status)); });
  ASSERT_EQ(made.get_future().get(), absl::OkStatus());
  const UniqueFd description = holder_.Inherit(1);
  EXPECT_EQ(ResidentPages(description.get()), 0u);
  ASSERT_EQ(cache_->Write(1, kPageBytes, std::string(kPageBytes, 'x')), absl::OkStatus());
  EXPECT_EQ(ResidentPages(description.get()), 1u);
  EXPECT_EQ(cache_->counters().bytes_faulted, 0u);
}

TEST_F(CacheTest, ASlabTakesOneDescriptorOfTheDaemonHoweverManyMoveItsBytes) {
  ASSERT_EQ(Make(1, kMiB), absl::OkStatus());
  const auto one = cache_->Description(1), other = cache_->Description(1);
  ASSERT_TRUE(one.ok() && other.ok());
  EXPECT_EQ((*one)->get(), (*other)->get());
  Destroy(1);
  EXPECT_NE(fcntl((*one)->get(), F_GETFD), -1)
      << "the slab is gone, and its descriptor has a holder";
}

TEST_F(CacheTest, DestroyGivesTheMemoryBackThoughTheHolderStillHasADescriptor) {
  ASSERT_EQ(Make(1, 4 * kMiB), absl::OkStatus());
  const UniqueFd slow_holder = holder_.Inherit(1);
  Destroy(1);
  EXPECT_EQ(ResidentPages(slow_holder.get()), 0u);
  EXPECT_THAT(holder_.held(), IsEmpty());
  EXPECT_TRUE(absl::IsNotFound(cache_->Probe(1).status()));
  EXPECT_EQ(cache_->counters().slabs_destroyed, 1u);
}

TEST_F(CacheTest, DestroyingAnUnknownSlabIsAnsweredToo) { Destroy(99); }

TEST_F(CacheTest, StoppingDropsWhatIsHalfMadeAndKeepsWhatIsMade) {
  ASSERT_EQ(Make(1, kMiB), absl::OkStatus());
  for (SlabId slab = 2; slab < 10; ++slab) {
    cache_->Make(slab, 512 * kMiB, fact::SlabUse::kObjects, Pages::kInTurn, [](Status) {});
  }
  cache_.reset();
  // Slabs that were finished before the stop stay; slabs that were being made do not.
  const std::vector<SlabId> held = holder_.held();
  ASSERT_FALSE(held.empty());
  EXPECT_EQ(held.front(), 1u);
  for (SlabId slab : held) {
    const UniqueFd fd = holder_.Inherit(slab);
    struct stat stat = {};
    ASSERT_EQ(::fstat(fd.get(), &stat), 0);
    EXPECT_EQ(ResidentPages(fd.get()) * kPageBytes, static_cast<uint64_t>(stat.st_size));
  }
}

TEST_F(CacheTest, BytesWrittenAreRead) {
  ASSERT_EQ(Make(1, kMiB), absl::OkStatus());
  ASSERT_EQ(cache_->Write(1, 4095, "stone on stone"), absl::OkStatus());
  std::string bytes(14, '\0');
  ASSERT_EQ(cache_->Read(1, 4095, absl::MakeSpan(bytes)), absl::OkStatus());
  EXPECT_EQ(bytes, "stone on stone");
}

TEST_F(CacheTest, TouchingBeyondASlabIsRefused) {
  ASSERT_EQ(Make(1, kMiB), absl::OkStatus());
  std::string bytes(2, '\0');
  EXPECT_TRUE(absl::IsOutOfRange(cache_->Read(1, kMiB - 1, absl::MakeSpan(bytes))));
  EXPECT_TRUE(absl::IsOutOfRange(cache_->Read(1, ~uint64_t{0}, absl::MakeSpan(bytes))));
  EXPECT_TRUE(absl::IsOutOfRange(cache_->Write(1, kMiB, "x")));
  EXPECT_TRUE(absl::IsOutOfRange(cache_->Crcs({1, 0, kPageBytes}, 2 * kPageBytes, 4096).status()));
  EXPECT_EQ(cache_->Read(1, kMiB, absl::Span<char>()), absl::OkStatus());
}

TEST_F(CacheTest, UnknownSlabsAreNotFound) {
  std::string bytes(1, '\0');
  EXPECT_TRUE(absl::IsNotFound(cache_->Read(7, 0, absl::MakeSpan(bytes))));
  EXPECT_TRUE(absl::IsNotFound(cache_->Write(7, 0, "x")));
  EXPECT_TRUE(absl::IsNotFound(cache_->Lend(7, 1, LeaseMode::kMap).status()));
  EXPECT_TRUE(absl::IsNotFound(cache_->LeaseOpen(7, 1).status()));
}

TEST_F(CacheTest, CrcsAreThoseOfTheBlocks) {
  ASSERT_EQ(Make(1, kMiB), absl::OkStatus());
  std::string bytes(10000, '\0');
  std::iota(bytes.begin(), bytes.end(), '\0');
  ASSERT_EQ(cache_->Write(1, 8192, bytes), absl::OkStatus());
  const auto crcs = cache_->Crcs({1, 8192, 12288}, bytes.size(), 4096);
  ASSERT_TRUE(crcs.ok()) << crcs.status();
  EXPECT_EQ(*crcs, BlockCrcs(bytes.data(), bytes.size(), 4096));
  EXPECT_THAT(*cache_->Crcs({1, 0, 0}, 0, 4096), IsEmpty());
}

// --- adopting

// Promise 7: the bytes in memory outlive the daemon. A restart touches no page, so it is short.
TEST_F(CacheTest, AdoptedSlabHasItsBytes) {
  ASSERT_EQ(Make(1, 2 * kMiB), absl::OkStatus());
  ASSERT_EQ(cache_->Write(1, 5, "kept"), absl::OkStatus());
  Restart();
  ASSERT_EQ(AdoptFromHolder(1, 2 * kMiB), absl::OkStatus());
  std::string bytes(4, '\0');
  ASSERT_EQ(cache_->Read(1, 5, absl::MakeSpan(bytes)), absl::OkStatus());
  EXPECT_EQ(bytes, "kept");
  EXPECT_TRUE(Free(1));
  EXPECT_EQ(cache_->counters().bytes_faulted, 0u);
}

TEST_F(CacheTest, AdoptingASlabOfAnotherSizeIsDataLoss) {
  ASSERT_EQ(Make(1, kMiB), absl::OkStatus());
  Restart();
  EXPECT_TRUE(absl::IsDataLoss(AdoptFromHolder(1, 2 * kMiB)));
  EXPECT_EQ(AdoptFromHolder(1, kMiB), absl::OkStatus());
  EXPECT_TRUE(absl::IsAlreadyExists(AdoptFromHolder(1, kMiB)));
}

TEST_F(CacheTest, LeaseThatADeadDaemonLeftInsideAProbeIsUndone) {
  ASSERT_EQ(Make(1, kMiB), absl::OkStatus());
  const UniqueFd left_by_the_dead = holder_.Inherit(1);
  ASSERT_EQ(::fcntl(left_by_the_dead.get(), F_SETLEASE, F_WRLCK), 0);
  EXPECT_TRUE(absl::IsUnavailable(cache_->Lend(1, 3, LeaseMode::kMap).status()));
  Restart();
  ASSERT_EQ(AdoptFromHolder(1, kMiB), absl::OkStatus());
  EXPECT_TRUE(MustLend(1, 4, LeaseMode::kMap).valid());
  EXPECT_TRUE(Free(1));
}

// --- pages that go away

// R10: no slab can be truncated, but a hugetlb pool can run dry and a page can break. An unsealed
// memfd that shrinks looks the same. Nothing is mapped here, so no signal is raised.
TEST_F(CacheTest, VanishedPagesAreDataLossOfThatSlabAndTheDaemonLives) {
  UniqueFd unsealed(::memfd_create("unsealed", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(unsealed.get(), kMiB), 0);
  auto dup = unsealed.Dup();
  ASSERT_TRUE(dup.ok());
  ASSERT_EQ(cache_->Adopt(1, kMiB, *std::move(dup)), absl::OkStatus());
  ASSERT_EQ(Make(2, kMiB), absl::OkStatus());
  ASSERT_EQ(cache_->Write(1, kMiB - 4, "last"), absl::OkStatus());
  ASSERT_EQ(::ftruncate(unsealed.get(), kMiB / 2), 0);

  std::string bytes(4, '\0');
  const uint64_t before = cache_->counters().bad_reads;
  EXPECT_TRUE(absl::IsDataLoss(cache_->Read(1, kMiB - 4, absl::MakeSpan(bytes))));
  EXPECT_TRUE(absl::IsDataLoss(cache_->Crcs({1, 0, kMiB}, kMiB, 1 << 16).status()));
  EXPECT_EQ(cache_->counters().bad_reads, before + 2);

  EXPECT_EQ(cache_->Read(1, 0, absl::MakeSpan(bytes)), absl::OkStatus());  // what is left
  EXPECT_EQ(cache_->Read(2, 0, absl::MakeSpan(bytes)), absl::OkStatus());  // the others
}

// R10: sealing stops truncation, not hole punching. The bytes turn to zeros while a reader has
// them; the checksum shows it.
TEST_F(CacheTest, PunchedHoleReadsAsZerosAndItsChecksumShowsIt) {
  ASSERT_EQ(Make(1, kMiB), absl::OkStatus());
  ASSERT_EQ(cache_->Write(1, 0, std::string(kPageBytes, 's')), absl::OkStatus());
  const auto sealed = cache_->Crcs({1, 0, kPageBytes}, kPageBytes, kBlockBytes);
  const UniqueFd writer = MustLend(1, 5, LeaseMode::kWrite);
  ASSERT_EQ(::fallocate(writer.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, kMiB), 0);
  std::string bytes(kPageBytes, 'x');
  EXPECT_EQ(cache_->Read(1, 0, absl::MakeSpan(bytes)), absl::OkStatus());
  EXPECT_EQ(bytes, std::string(kPageBytes, '\0'));
  EXPECT_NE(*cache_->Crcs({1, 0, kPageBytes}, kPageBytes, kBlockBytes), *sealed);
}

// So a core dump of the daemon holds no slab, its death tears down no page tables of one, and a
// page that goes away raises no signal in it.
TEST_F(CacheTest, NoSlabIsEverMapped) {
  ASSERT_EQ(Make(1, kMiB), absl::OkStatus());
  std::string bytes(kPageBytes, 'x');
  ASSERT_EQ(cache_->Write(1, 0, bytes), absl::OkStatus());
  ASSERT_EQ(cache_->Read(1, 0, absl::MakeSpan(bytes)), absl::OkStatus());
  ASSERT_TRUE(cache_->Crcs({1, 0, kMiB}, kMiB, kBlockBytes).ok());
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    EXPECT_EQ(line.find("cairn-slab"), std::string::npos) << line;
  }
}

TEST(CacheOptions, NamesWhatIsWrong) {
  EXPECT_EQ(Options{}.Validate(), absl::OkStatus());
  EXPECT_THAT(std::string(Options{.prefault_threads = 0}.Validate().message()),
              HasSubstr("prefault_threads: 0"));
  EXPECT_THAT(std::string(Options{.prefault_piece_bytes = 5}.Validate().message()),
              HasSubstr("prefault_piece_bytes: 5"));
}

}  // namespace
}  // namespace cairn::cache
