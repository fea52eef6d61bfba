// The journal's promise: facts that Append acknowledged are there in the daemon's next life, others
// are absent, and damage is distinguished from a torn tail.
//
// One file: every case damages the same small journal, which is built once below.
#include "server/journal/journal.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/checksum.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/journal/frame.h"
#include "tests/golden/golden.h"

namespace cairn::journal {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kHeaderPage = 4096;
constexpr uint64_t kHalf = 64 << 10;
constexpr uint64_t kFileBytes = kHeaderPage + 2 * kHalf;

// A fact that is recognized by its number; `bulk` makes it longer.
Fact Numbered(uint64_t number, size_t bulk = 0) {
  fact::SessionBegun fact;
  fact.session = number;
  fact.secret = std::string(bulk, 's');
  fact.job = "job";
  return fact;
}

std::vector<uint64_t> Numbers(const std::vector<Fact>& facts) {
  std::vector<uint64_t> numbers;
  for (const Fact& fact : facts) numbers.push_back(std::get<fact::SessionBegun>(fact).session);
  return numbers;
}

std::vector<uint64_t> UpTo(uint64_t count) {
  std::vector<uint64_t> numbers;
  for (uint64_t i = 1; i <= count; ++i) numbers.push_back(i);
  return numbers;
}

class JournalTest : public ::testing::Test {
 protected:
  JournalTest() { options_.bytes = kFileBytes; }

  void SetUp() override {
    StatusOr<UniqueFd> file = Journal::MakeFile(options_);
    ASSERT_TRUE(file.ok()) << file.status();
    file_ = *std::move(file);
    Reopen();
  }

  // Opens the journal as a new daemon does. The keeper's descriptor stays.
  Status TryReopen(const UniqueFd& file) {
    journal_.reset();
    contents_ = Contents();
    StatusOr<UniqueFd> dup = file.Dup();
    if (!dup.ok()) return dup.status();
    StatusOr<std::unique_ptr<Journal>> opened =
        Journal::Open(*std::move(dup), options_, &contents_);
    if (!opened.ok()) return opened.status();
    journal_ = *std::move(opened);
    return absl::OkStatus();
  }
  void Reopen() { ASSERT_EQ(TryReopen(file_), absl::OkStatus()); }

  void MustAppend(uint64_t number, size_t bulk = 0) {
    ASSERT_EQ(journal_->Append({Numbered(number, bulk)}), absl::OkStatus());
  }

  std::string Image() const {
    std::string image(kFileBytes, '\0');
    EXPECT_EQ(PreadAll(file_.get(), image.data(), image.size(), 0), absl::OkStatus());
    return image;
  }
  // A journal file with these bytes, as a daemon that died at some moment left it.
  static UniqueFd FileOf(const std::string& image) {
    UniqueFd file(::memfd_create("image", MFD_CLOEXEC));
    EXPECT_EQ(PwriteAll(file.get(), image.data(), image.size(), 0), absl::OkStatus());
    return file;
  }

  Options options_;
  UniqueFd file_;
  std::unique_ptr<Journal> journal_;
  Contents contents_;
};

TEST_F(JournalTest, NewOneIsEmpty) {
  EXPECT_THAT(contents_.facts, IsEmpty());
  EXPECT_FALSE(contents_.torn_tail);
  EXPECT_FALSE(journal_->Full());
  EXPECT_FALSE(journal_->WantsSnapshot());
}

TEST_F(JournalTest, AppendedFactsComeBackInOrder) {
  MustAppend(1);
  ASSERT_EQ(journal_->Append({Numbered(2), Numbered(3)}), absl::OkStatus());
  ASSERT_EQ(journal_->Append({}), absl::OkStatus());
  MustAppend(4, 1000);
  Reopen();
  EXPECT_EQ(Numbers(contents_.facts), UpTo(4));
  EXPECT_EQ(std::get<fact::SessionBegun>(contents_.facts[3]).secret.size(), 1000u);
  EXPECT_FALSE(contents_.torn_tail);
}

TEST_F(JournalTest, AppendingGoesOnAfterAReopen) {
  for (uint64_t i = 1; i <= 20; ++i) {
    MustAppend(i, i * 7);
    Reopen();
    ASSERT_EQ(Numbers(contents_.facts), UpTo(i));
  }
}

TEST_F(JournalTest, SnapshotReplacesWhatWasBefore) {
  MustAppend(7);
  MustAppend(8);
  ASSERT_EQ(journal_->Switch({Numbered(1), Numbered(2)}), absl::OkStatus());
  MustAppend(3);
  Reopen();
  EXPECT_EQ(Numbers(contents_.facts), UpTo(3));
  ASSERT_EQ(journal_->Switch({}), absl::OkStatus());
  Reopen();
  EXPECT_THAT(contents_.facts, IsEmpty());
  MustAppend(1);
  Reopen();
  EXPECT_EQ(Numbers(contents_.facts), UpTo(1));
}

TEST_F(JournalTest, SnapshotAndTailAreWhatTheirGoldenFilesSay) {
  const PartKey part{{"job", 17, 5, 0}, 2};
  const std::vector<Fact> snapshot = {fact::Incarnation{1'700'000'000'000, 12},
                                      fact::Job{"job", 1000, 100, {}},
                                      fact::Slab{3, 1 << 20, fact::SlabUse::kObjects, 1000, "job"}};
  const std::vector<Fact> sealed = {fact::ObjectSealed{part, {}, {3, 0, 4096}},
                                    fact::ManifestCommitted{part, 4, {4, 0, 4096}, 321, "digest"}};
  const Fact last = fact::Persisted{part.checkpoint, "digest"};
  ASSERT_EQ(journal_->Switch(snapshot), absl::OkStatus());
  ASSERT_EQ(journal_->Append(sealed), absl::OkStatus());
  ASSERT_EQ(journal_->Append({last}), absl::OkStatus());

  const std::string written = Image();
  const uint64_t half = kHeaderPage + kHalf;  // of generation 1
  const uint64_t used = journal_->used_bytes() + kEndBytes;
  std::string image(kFileBytes, '\0');
  const auto put = [&](uint64_t at, const std::string& golden) {
    image.replace(at, golden.size(), golden);
  };
  put(0, Golden("journal/header.v1", written.substr(0, 32)));
  put(half, Golden("journal/half.v1", written.substr(half, used)));
  ExpectGoldenFilesAre("journal", {"header.v1", "half.v1"});
  ASSERT_EQ(TryReopen(FileOf(image)), absl::OkStatus());
  std::vector<Fact> expected = snapshot;
  expected.insert(expected.end(), sealed.begin(), sealed.end());
  expected.push_back(last);
  EXPECT_TRUE(contents_.facts == expected);
  EXPECT_FALSE(contents_.torn_tail);
}

TEST_F(JournalTest, CountsWhatItWrites) {
  MustAppend(1);
  ASSERT_EQ(journal_->Append({Numbered(2), Numbered(3)}), absl::OkStatus());
  const Counters counters = journal_->counters();
  EXPECT_EQ(counters.frames_appended, 2u);
  std::string empty_snapshot;
  ASSERT_EQ(EncodeFrame({}, 0, &empty_snapshot), absl::OkStatus());
  EXPECT_EQ(counters.bytes_appended, journal_->used_bytes() - empty_snapshot.size());
  EXPECT_EQ(counters.snapshots_written, 0u);
  ASSERT_EQ(journal_->Switch({Numbered(1)}), absl::OkStatus());
  EXPECT_EQ(journal_->Append({Numbered(2, kHalf)}).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(journal_->counters().snapshots_written, 1u);
  EXPECT_EQ(journal_->counters().frames_appended, 2u);
}

TEST_F(JournalTest, ManySwitchesLeaveNothingOfEarlierGenerations) {
  std::mt19937 random(1);
  uint64_t number = 1;
  std::vector<uint64_t> expected;
  for (int generation = 0; generation < 200; ++generation) {
    const int appends = static_cast<int>(random() % 30);
    for (int i = 0; i < appends; ++i) {
      expected.push_back(number);
      MustAppend(number++, random() % 300);
    }
    Reopen();
    ASSERT_EQ(Numbers(contents_.facts), expected);
    ASSERT_FALSE(contents_.torn_tail);
    expected.assign(expected.end() - static_cast<int64_t>(std::min<size_t>(expected.size(), 3)),
                    expected.end());
    std::vector<Fact> snapshot;
    for (uint64_t kept : expected) snapshot.push_back(Numbered(kept));
    ASSERT_EQ(journal_->Switch(snapshot), absl::OkStatus());
  }
}

// --- bounds (promise 8)

TEST_F(JournalTest, SaysWhenASnapshotIsDueAndWhenItIsFull) {
  uint64_t number = 0;
  while (!journal_->WantsSnapshot()) MustAppend(++number, 100);
  EXPECT_NEAR(static_cast<double>(journal_->used_bytes()) / kHalf, 0.5, 0.01);
  EXPECT_FALSE(journal_->Full());
  while (!journal_->Full()) MustAppend(++number, 100);
  EXPECT_NEAR(static_cast<double>(journal_->used_bytes()) / kHalf, 0.9, 0.01);
  MustAppend(++number);  // facts that end or free things still fit
  ASSERT_EQ(journal_->Switch({Numbered(1)}), absl::OkStatus());
  EXPECT_FALSE(journal_->WantsSnapshot());
}

TEST_F(JournalTest, FullHalfRefusesAndKeepsWhatItHas) {
  uint64_t number = 0;
  Status status;
  while ((status = journal_->Append({Numbered(number + 1, 100)})).ok()) ++number;
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  const uint64_t used = journal_->used_bytes();
  EXPECT_TRUE(absl::IsResourceExhausted(journal_->Append({Numbered(9, 1000)})));
  EXPECT_EQ(journal_->used_bytes(), used);
  Reopen();
  EXPECT_EQ(Numbers(contents_.facts), UpTo(number));
  EXPECT_FALSE(contents_.torn_tail);
}

TEST_F(JournalTest, FactsThatFillAHalfToTheLastByteComeBack) {
  // Frame: 20 bytes of header, 4 of the fact's length, the fact; behind it the 8 bytes of the end.
  const uint64_t fact_bytes = EncodeFact(Numbered(1)).size();
  const uint64_t space = kHalf - journal_->used_bytes() - kEndBytes - kFrameHeaderBytes - 4;
  const size_t bulk = space / 8 * 8 - fact_bytes;
  EXPECT_TRUE(absl::IsResourceExhausted(journal_->Append({Numbered(1, bulk + 16)})));
  MustAppend(1, bulk);
  Reopen();
  EXPECT_EQ(Numbers(contents_.facts), UpTo(1));
}

TEST_F(JournalTest, SnapshotThatDoesNotFitLeavesTheOldHalfInUse) {
  MustAppend(1);
  EXPECT_TRUE(absl::IsResourceExhausted(journal_->Switch({Numbered(5, kHalf)})));
  MustAppend(2);
  Reopen();
  EXPECT_EQ(Numbers(contents_.facts), UpTo(2));
}

// --- R1: killed at any instruction

// The last frame's bytes stop arriving at each byte in turn.
TEST_F(JournalTest, FrameCutAtAnyByteIsAbsentAndTheRestIsThere) {
  MustAppend(1, 50);
  MustAppend(2, 3);
  const uint64_t begin = kHeaderPage + journal_->used_bytes();
  ASSERT_EQ(journal_->Append({Numbered(3, 40), Numbered(4)}), absl::OkStatus());
  const uint64_t end = kHeaderPage + journal_->used_bytes();
  const std::string after = Image();
  const uint64_t last = after.find_last_not_of('\0', end - 1);  // padding follows
  for (uint64_t cut = begin; cut <= end; ++cut) {
    std::string image = after;
    std::fill(image.begin() + static_cast<int64_t>(cut), image.end(), '\0');
    const UniqueFd file = FileOf(image);
    ASSERT_EQ(TryReopen(file), absl::OkStatus()) << cut - begin;
    ASSERT_EQ(Numbers(contents_.facts), UpTo(cut > last ? 4 : 2)) << cut - begin;
    ASSERT_EQ(contents_.torn_tail, cut > begin && cut <= last) << cut - begin;
    // The next daemon appends, and its successor reads that.
    if (cut > last) continue;
    MustAppend(3);
    ASSERT_EQ(TryReopen(file), absl::OkStatus());
    ASSERT_EQ(Numbers(contents_.facts), UpTo(3));
    ASSERT_FALSE(contents_.torn_tail);
  }
}

// Appends over the frames of an earlier generation, with any subset of the stores done.
TEST_F(JournalTest, FrameOfWhichOnlySomeBytesArrivedIsAbsent) {
  for (uint64_t i = 1; i <= 40; ++i) MustAppend(i, 37);
  ASSERT_EQ(journal_->Switch({}), absl::OkStatus());
  for (uint64_t i = 1; i <= 40; ++i) MustAppend(i, 41);
  ASSERT_EQ(journal_->Switch({Numbered(1)}), absl::OkStatus());  // back in the first half
  MustAppend(2);
  const std::string before = Image();
  MustAppend(3, 200);
  const std::string after = Image();
  std::mt19937 random(2);
  for (int round = 0; round < 2000; ++round) {
    std::string image = after;
    bool changed = false;
    // Blocks of 1, 2, 4 … bytes come from the image before.
    const size_t block = size_t{1} << (random() % 7);
    for (size_t at = 0; at < image.size(); at += block) {
      const size_t length = std::min(block, image.size() - at);
      if (after.compare(at, length, before, at, length) == 0 || random() % 2 == 0) continue;
      image.replace(at, length, before, at, length);
      changed = true;
    }
    const UniqueFd file = FileOf(image);
    ASSERT_EQ(TryReopen(file), absl::OkStatus());
    // Perhaps only zero bytes behind the frame are missing; then the frame is complete.
    if (!changed) {
      ASSERT_EQ(Numbers(contents_.facts), UpTo(3));
    } else {
      ASSERT_GE(contents_.facts.size(), 2u);
      ASSERT_EQ(Numbers(contents_.facts), UpTo(contents_.facts.size()));
    }
  }
}

// The magic is stored last, so all of a frame but its magic may be there.
TEST_F(JournalTest, FrameWithoutItsMagicIsAbsent) {
  MustAppend(1);
  const uint64_t begin = kHeaderPage + journal_->used_bytes();
  MustAppend(2);
  std::string image = Image();
  image.replace(begin, 4, 4, '\0');
  ASSERT_EQ(TryReopen(FileOf(image)), absl::OkStatus());
  EXPECT_EQ(Numbers(contents_.facts), UpTo(1));
  EXPECT_TRUE(contents_.torn_tail);
}

// A switch that is killed at any of its stores leaves the old facts or the snapshot, never a
// mixture and never nothing.
TEST_F(JournalTest, SwitchCutAtAnyByteLeavesOneOfTheTwoHalves) {
  MustAppend(1);
  MustAppend(2);
  MustAppend(3);
  const std::string before = Image();
  ASSERT_EQ(journal_->Switch({Numbered(7), Numbered(8)}), absl::OkStatus());
  const std::string after = Image();
  const uint64_t begin = kHeaderPage + kHalf;
  const uint64_t end = begin + journal_->used_bytes();
  for (uint64_t cut = begin; cut <= end; ++cut) {
    std::string image = before;
    image.replace(begin, cut - begin, after, begin, cut - begin);
    ASSERT_EQ(TryReopen(FileOf(image)), absl::OkStatus());
    ASSERT_EQ(Numbers(contents_.facts), UpTo(3)) << cut - begin;
  }
  ASSERT_EQ(TryReopen(FileOf(after)), absl::OkStatus());
  EXPECT_EQ(Numbers(contents_.facts), (std::vector<uint64_t>{7, 8}));
}

// Promise 7 with a real SIGKILL: the acknowledged facts are there, in order, and at most one more.
TEST_F(JournalTest, KilledProcessLeavesWhatItAcknowledged) {
  journal_.reset();
  auto* const acknowledged = static_cast<std::atomic<uint64_t>*>(
      ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  uint64_t first = 1;  // the number of the journal's first fact
  for (int round = 0; round < 30; ++round) {
    const uint64_t until = acknowledged->load() + 200 + static_cast<uint64_t>(round) * 17;
    const pid_t child = ::fork();
    if (child == 0) {
      if (!TryReopen(file_).ok()) ::_exit(1);
      uint64_t number = contents_.facts.empty() ? 0 : Numbers(contents_.facts).back();
      while (true) {
        ++number;
        if (journal_->WantsSnapshot() && !journal_->Switch({Numbered(number - 1)}).ok()) ::_exit(2);
        if (!journal_->Append({Numbered(number, number % 100)}).ok()) ::_exit(3);
        acknowledged->store(number);
      }
    }
    while (acknowledged->load() < until) {
      int status = 0;
      ASSERT_EQ(::waitpid(child, &status, WNOHANG), 0) << "exit code " << WEXITSTATUS(status);
    }
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    Reopen();
    const std::vector<uint64_t> numbers = Numbers(contents_.facts);
    ASSERT_FALSE(numbers.empty());
    for (size_t i = 1; i < numbers.size(); ++i) ASSERT_EQ(numbers[i], numbers[i - 1] + 1);
    ASSERT_GE(numbers.back(), acknowledged->load());
    ASSERT_LE(numbers.back(), acknowledged->load() + 1);
    ASSERT_GE(numbers.front(), first);
    first = numbers.front();
    journal_.reset();
  }
  ::munmap(acknowledged, 4096);
}

// --- R23: damage

TEST_F(JournalTest, FlippedBitIsAlwaysFound) {
  for (uint64_t i = 1; i <= 5; ++i) MustAppend(i, i * 3);
  const uint64_t before_last = kHeaderPage + journal_->used_bytes();
  MustAppend(6, 20);
  const uint64_t end = kHeaderPage + journal_->used_bytes();
  const std::string good = Image();
  const auto flip = [&](uint64_t at, int bit) {
    std::string image = good;
    image[at] = static_cast<char>(image[at] ^ (1 << bit));
    return FileOf(image);
  };
  for (uint64_t at = 0; at < 32; ++at) {  // the header
    for (int bit = 0; bit < 8; ++bit) {
      ASSERT_TRUE(absl::IsDataLoss(TryReopen(flip(at, bit)))) << at << " " << bit;
    }
  }
  for (uint64_t at = kHeaderPage; at < before_last; ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      ASSERT_TRUE(absl::IsDataLoss(TryReopen(flip(at, bit)))) << at << " " << bit;
    }
  }
  // A flipped bit in the last frame looks like a torn frame, which is dropped and reported.
  for (uint64_t at = before_last; at < end; ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      ASSERT_EQ(TryReopen(flip(at, bit)), absl::OkStatus()) << at << " " << bit;
      ASSERT_EQ(Numbers(contents_.facts), UpTo(5)) << at << " " << bit;
      ASSERT_TRUE(contents_.torn_tail) << at << " " << bit;
    }
  }
}

TEST_F(JournalTest, AnotherVersionIsRefusedNamingBoth) {
  std::string image = Image();
  image[8] = 2;
  uint32_t crc = Crc32c(0, image.data(), 12);  // of magic, version and size
  crc = Crc32c(crc, image.data() + 16, 8);
  std::memcpy(&image[12], &crc, sizeof(crc));
  const Status status = TryReopen(FileOf(image));
  EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("version 2; this build knows 1"));
}

TEST_F(JournalTest, DamagedSnapshotIsDataLossThoughNothingFollowsIt) {
  MustAppend(1);
  ASSERT_EQ(journal_->Switch({Numbered(1)}), absl::OkStatus());
  std::string image = Image();
  image[kHeaderPage + kHalf + 30] ^= 1;
  EXPECT_TRUE(absl::IsDataLoss(TryReopen(FileOf(image))));
}

TEST_F(JournalTest, RandomBytesAreRefusedAndNeverCrash) {
  std::mt19937 random(3);
  const std::string good = Image();
  for (int round = 0; round < 300; ++round) {
    std::string image(kFileBytes, '\0');
    for (size_t at = 0; at + 4 <= image.size(); at += 4) {
      const uint32_t word = random() % 8 == 0 ? kFrameMagic : random();
      std::memcpy(&image[at], &word, sizeof(word));
    }
    EXPECT_TRUE(absl::IsDataLoss(TryReopen(FileOf(image))));
    image.replace(0, kHeaderPage, good, 0, kHeaderPage);
    EXPECT_TRUE(absl::IsDataLoss(TryReopen(FileOf(image))));
  }
}

TEST_F(JournalTest, FrameWhoseFactsCannotBeDecodedIsRefused) {
  std::string frame;
  ASSERT_EQ(EncodeFrame({Numbered(1)}, 0, &frame), absl::OkStatus());
  std::string half = frame + std::string(kEndBytes, '\0');
  ASSERT_TRUE(ReplayHalf(half, 0).ok());
  EXPECT_TRUE(absl::IsDataLoss(ReplayHalf(half, 1).status()));  // of another generation
  EXPECT_TRUE(absl::IsDataLoss(ReplayHalf("", 0).status()));
  EXPECT_TRUE(absl::IsDataLoss(ReplayHalf(frame.substr(0, 19), 0).status()));
}

TEST_F(JournalTest, FileOfAnotherSizeIsRefused) {
  const std::string image = Image();
  EXPECT_TRUE(absl::IsDataLoss(TryReopen(FileOf(image + std::string(4096, '\0')))));
  EXPECT_TRUE(absl::IsDataLoss(TryReopen(FileOf(image.substr(0, 100)))));
  EXPECT_TRUE(absl::IsDataLoss(TryReopen(FileOf(""))));
}

// The keeper's file outlives the options that it was made with.
TEST_F(JournalTest, FileKeepsItsSizeThoughTheOptionChanges) {
  MustAppend(1);
  options_.bytes = 4 * kFileBytes;
  Reopen();
  EXPECT_EQ(Numbers(contents_.facts), UpTo(1));
  EXPECT_TRUE(absl::IsResourceExhausted(journal_->Append({Numbered(2, 2 * kHalf)})));
}

TEST_F(JournalTest, UnwrittenPartsTakeNoMemory) {
  options_.bytes = 128 << 20;
  auto file = Journal::MakeFile(options_);
  ASSERT_TRUE(file.ok());
  ASSERT_EQ(TryReopen(*file), absl::OkStatus());
  MustAppend(1);
  ASSERT_EQ(TryReopen(*file), absl::OkStatus());
  struct stat stat = {};
  ASSERT_EQ(::fstat(file->get(), &stat), 0);
  EXPECT_LE(stat.st_blocks * 512, 256 << 10);
}

TEST(JournalOptions, NamesWhatIsWrong) {
  EXPECT_EQ(Options{}.Validate(), absl::OkStatus());
  EXPECT_THAT(std::string(Options{.bytes = 4096}.Validate().message()), HasSubstr("4096"));
  EXPECT_FALSE((Options{.snapshot_share = 0.95}.Validate().ok()));
  EXPECT_FALSE((Options{.snapshot_share = 0}.Validate().ok()));
  EXPECT_FALSE(Journal::MakeFile(Options{.bytes = 5}).ok());
}

}  // namespace
}  // namespace cairn::journal
