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
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <tuple>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/checksum.h"
#include "common/codec.h"
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
constexpr uint64_t kNonce = 0x0123456789ABCDEF;

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
  JournalTest() {
    options_.bytes = kFileBytes;
    options_.nonce = kNonce;
  }

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

// One fact of each kind, from their own golden files, in a snapshot and the frames behind it.
TEST_F(JournalTest, SnapshotAndTailOfEachKindAreWhatTheirGoldenFilesSay) {
  std::vector<Fact> facts;
  const auto add = [&](const FactKind& kind) {
    const auto fact = DecodeFact(OldGolden(absl::StrCat("facts/", kind.name, ".v", kind.version)));
    ASSERT_TRUE(fact.ok() && fact->has_value()) << kind.name;
    facts.push_back(**fact);
  };
  std::apply([&](const auto&... kind) { (add(kind), ...); }, kFactKinds);
  ASSERT_EQ(facts.size(), std::variant_size_v<Fact::variant>);
  const absl::Span<const Fact> all(facts);
  ASSERT_EQ(journal_->Switch(all.subspan(0, 8)), absl::OkStatus());
  ASSERT_EQ(journal_->Append(all.subspan(8, all.size() - 9)), absl::OkStatus());
  ASSERT_EQ(journal_->Append(all.last(1)), absl::OkStatus());

  const std::string written = Image();
  const uint64_t half = kHeaderPage + kHalf;  // of generation 1
  const uint64_t used = journal_->used_bytes() + kEndBytes;
  std::string image(kFileBytes, '\0');
  const auto put = [&](uint64_t at, const std::string& golden) {
    image.replace(at, golden.size(), golden);
  };
  put(0, Golden("journal/header.v2", written.substr(0, kHeaderPage)));
  put(half, Golden("journal/half.v2", written.substr(half, used)));
  ExpectGoldenFilesAre("journal", {"header.v2", "half.v2"});
  ASSERT_EQ(TryReopen(FileOf(image)), absl::OkStatus());
  EXPECT_EQ(contents_.damage, absl::OkStatus());
  EXPECT_TRUE(contents_.facts == facts);
  EXPECT_FALSE(contents_.torn_tail);
}

TEST_F(JournalTest, CountsWhatItWrites) {
  MustAppend(1);
  ASSERT_EQ(journal_->Append({Numbered(2), Numbered(3)}), absl::OkStatus());
  const Counters counters = journal_->counters();
  EXPECT_EQ(counters.frames_appended, 2u);
  std::string empty_snapshot;
  ASSERT_EQ(EncodeFrame({}, {kNonce, 0}, &empty_snapshot), absl::OkStatus());
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

// The last frame's bytes stop arriving at each byte in turn; its magic is the last to arrive.
TEST_F(JournalTest, FrameCutAtAnyByteIsAbsentAndTheRestIsThere) {
  MustAppend(1, 50);
  MustAppend(2, 3);
  const uint64_t begin = kHeaderPage + journal_->used_bytes();
  ASSERT_EQ(journal_->Append({Numbered(3, 40), Numbered(4)}), absl::OkStatus());
  const uint64_t end = kHeaderPage + journal_->used_bytes();
  const std::string after = Image();
  for (uint64_t cut = begin + 4; cut <= end; ++cut) {
    std::string image = after;
    image.replace(begin, 4, 4, '\0');
    std::fill(image.begin() + static_cast<int64_t>(cut), image.end(), '\0');
    const UniqueFd file = FileOf(image);
    ASSERT_EQ(TryReopen(file), absl::OkStatus()) << cut - begin;
    ASSERT_EQ(contents_.damage, absl::OkStatus()) << cut - begin;
    ASSERT_EQ(Numbers(contents_.facts), UpTo(2)) << cut - begin;
    ASSERT_EQ(contents_.torn_tail, cut > begin + 4) << cut - begin;
    // The next daemon appends, and its successor reads that.
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

// --- snapshots in pieces

class SnapshotInPieces : public JournalTest {
 protected:
  // The file as each of the process's stores leaves it, from `before` on. `regions` are the offsets
  // that the stores went to, in order; in each the magics come last. The state is one store.
  struct Region {
    uint64_t begin, end;
  };
  static constexpr Region kHeader{0, kHeaderPage}, kEven{kHeaderPage, kHeaderPage + kHalf},
      kOdd{kHeaderPage + kHalf, kFileBytes};
  static std::vector<std::string> EachStore(const std::string& before, const std::string& after,
                                            const std::vector<Region>& regions) {
    std::vector<std::string> images = {before};
    for (const Region& region : regions) {
      std::vector<std::pair<uint64_t, uint64_t>> stores, magics;  // offset, length
      for (uint64_t at = region.begin; at < region.end; at += 8) {
        if (after.compare(at, 8, before, at, 8) == 0) continue;
        uint32_t word;
        std::memcpy(&word, &after[at], sizeof(word));
        if (at < kHeaderPage) {
          stores.emplace_back(at, 8);
        } else if (word == kFrameMagic) {
          for (uint64_t byte = at + 4; byte < at + 8; ++byte) stores.emplace_back(byte, 1);
          magics.emplace_back(at, 4);
        } else {
          for (uint64_t byte = at; byte < at + 8; ++byte) stores.emplace_back(byte, 1);
        }
      }
      stores.insert(stores.end(), magics.begin(), magics.end());
      for (const auto& [at, length] : stores) {
        if (after.compare(at, length, images.back(), at, length) == 0) continue;
        images.push_back(images.back());
        images.back().replace(at, length, after, at, length);
      }
    }
    EXPECT_TRUE(images.back() == after) << "a store went elsewhere";
    return images;
  }

  // A daemon finds `image`: the facts `numbers`, and a journal that takes further facts and
  // snapshots whatever the dead one left in the other half.
  void ExpectServes(const std::string& image, const std::vector<uint64_t>& numbers) {
    const UniqueFd file = FileOf(image);
    ASSERT_EQ(TryReopen(file), absl::OkStatus());
    ASSERT_EQ(Numbers(contents_.facts), numbers);
    MustAppend(100);
    ASSERT_EQ(journal_->BeginSnapshot(), absl::OkStatus());
    ASSERT_EQ(journal_->AddToSnapshot({Numbered(101)}), absl::OkStatus());
    ASSERT_EQ(journal_->FinishSnapshot(), absl::OkStatus());
    ASSERT_EQ(TryReopen(file), absl::OkStatus());
    ASSERT_EQ(Numbers(contents_.facts), (std::vector<uint64_t>{101}));
    ASSERT_FALSE(contents_.torn_tail);
  }
};

TEST_F(SnapshotInPieces, HoldsThePiecesAndWhatWasAppendedBetweenThemInOrder) {
  MustAppend(50);
  ASSERT_EQ(journal_->BeginSnapshot(), absl::OkStatus());
  EXPECT_TRUE(journal_->WritingSnapshot());
  ASSERT_EQ(journal_->AddToSnapshot({Numbered(1), Numbered(2)}), absl::OkStatus());
  MustAppend(3);
  ASSERT_EQ(journal_->AddToSnapshot({}), absl::OkStatus());
  ASSERT_EQ(journal_->AddToSnapshot({Numbered(4, 500)}), absl::OkStatus());
  MustAppend(5);
  ASSERT_EQ(journal_->FinishSnapshot(), absl::OkStatus());
  EXPECT_FALSE(journal_->WritingSnapshot());
  EXPECT_EQ(journal_->counters().snapshots_written, 1u);
  EXPECT_EQ(journal_->counters().frames_appended, 3u);
  MustAppend(6);
  Reopen();
  EXPECT_EQ(Numbers(contents_.facts), UpTo(6));
}

TEST_F(SnapshotInPieces, UntilItIsFinishedADeathFindsTheOldHalfAndAllThatWasAppended) {
  MustAppend(1);
  ASSERT_EQ(journal_->BeginSnapshot(), absl::OkStatus());
  ASSERT_EQ(journal_->AddToSnapshot({Numbered(70)}), absl::OkStatus());
  MustAppend(2);
  ASSERT_EQ(journal_->AddToSnapshot({Numbered(71)}), absl::OkStatus());
  Reopen();
  EXPECT_EQ(Numbers(contents_.facts), UpTo(2));
  EXPECT_FALSE(journal_->WritingSnapshot());
  EXPECT_TRUE(absl::IsFailedPrecondition(journal_->AddToSnapshot({Numbered(72)})));
  EXPECT_TRUE(absl::IsFailedPrecondition(journal_->FinishSnapshot()));
}

// R1: killed at every store of every call.
TEST_F(SnapshotInPieces, KilledAtEachStoreLeavesOneOfTheTwoStates) {
  // Both halves hold frames of earlier generations.
  for (uint64_t i = 1; i <= 30; ++i) MustAppend(i, 20);
  ASSERT_EQ(journal_->Switch({Numbered(1)}), absl::OkStatus());
  for (uint64_t i = 1; i <= 30; ++i) MustAppend(i, 25);
  ASSERT_EQ(journal_->Switch({Numbered(1)}), absl::OkStatus());
  MustAppend(2);
  std::string before = Image();
  // `old` and `now`: what a daemon finds before the last store of the call that counts, and after.
  const auto each = [&](const std::vector<Region>& regions, const std::vector<uint64_t>& old,
                        const std::vector<uint64_t>& now) {
    std::unique_ptr<Journal> alive = std::move(journal_);
    const std::string after = Image();
    bool changed = old == now;
    for (const std::string& image : EachStore(before, after, regions)) {
      const Status opened = TryReopen(FileOf(image));
      ASSERT_EQ(opened, absl::OkStatus());
      const bool is_now = Numbers(contents_.facts) == now;
      ASSERT_TRUE(is_now || !changed) << "went back";
      changed |= is_now;
      ExpectServes(image, changed ? now : old);
      if (HasFatalFailure()) return;
    }
    ASSERT_TRUE(changed);
    before = after;
    journal_ = std::move(alive);
  };
  ASSERT_EQ(journal_->BeginSnapshot(), absl::OkStatus());
  each({kOdd}, UpTo(2), UpTo(2));
  ASSERT_EQ(journal_->AddToSnapshot({Numbered(7), Numbered(8)}), absl::OkStatus());
  each({kOdd}, UpTo(2), UpTo(2));
  MustAppend(3);
  each({kEven, kOdd}, UpTo(2), UpTo(3));
  ASSERT_EQ(journal_->AddToSnapshot({Numbered(9)}), absl::OkStatus());
  each({kOdd}, UpTo(3), UpTo(3));
  ASSERT_EQ(journal_->FinishSnapshot(), absl::OkStatus());
  each({kOdd, kHeader}, UpTo(3), {7, 8, 3, 9});
  MustAppend(4);
  each({kOdd}, {7, 8, 3, 9}, {7, 8, 3, 9, 4});
}

TEST_F(SnapshotInPieces, ThatDoesNotFitIsGivenUpAndTheOldHalfStays) {
  MustAppend(1);
  ASSERT_EQ(journal_->BeginSnapshot(), absl::OkStatus());
  ASSERT_EQ(journal_->AddToSnapshot({Numbered(80, kHalf / 2)}), absl::OkStatus());
  EXPECT_TRUE(absl::IsResourceExhausted(journal_->AddToSnapshot({Numbered(81, kHalf / 2)})));
  EXPECT_FALSE(journal_->WritingSnapshot());
  EXPECT_TRUE(absl::IsFailedPrecondition(journal_->FinishSnapshot()));
  MustAppend(2);
  Reopen();
  EXPECT_EQ(Numbers(contents_.facts), UpTo(2));
}

TEST_F(SnapshotInPieces, IsGivenUpWhenItsHalfDoesNotTakeWhatTheOldOneTook) {
  MustAppend(1);
  ASSERT_EQ(journal_->BeginSnapshot(), absl::OkStatus());
  ASSERT_EQ(journal_->AddToSnapshot({Numbered(80, kHalf / 4 * 3)}), absl::OkStatus());
  MustAppend(2, kHalf / 2);
  EXPECT_FALSE(journal_->WritingSnapshot());
  Reopen();
  EXPECT_EQ(Numbers(contents_.facts), UpTo(2));
}

TEST_F(SnapshotInPieces, IsGivenUpWhenFactsAreInNeitherHalf) {
  MustAppend(1, kHalf / 4 * 3);
  ASSERT_EQ(journal_->BeginSnapshot(), absl::OkStatus());
  EXPECT_TRUE(absl::IsResourceExhausted(journal_->Append({Numbered(2, kHalf / 2)})));
  EXPECT_TRUE(absl::IsFailedPrecondition(journal_->FinishSnapshot()));
  Reopen();
  EXPECT_EQ(Numbers(contents_.facts), UpTo(1));
}

// What a given-up snapshot wrote stands in the half that the next one is written into.
TEST_F(SnapshotInPieces, ThatFollowsOneThatWasGivenUpHoldsNothingOfIt) {
  std::mt19937 random(5);
  std::vector<uint64_t> expected;
  uint64_t number = 1;
  for (int round = 0; round < 100; ++round) {
    for (int given_up = static_cast<int>(random() % 3); given_up > 0; --given_up) {
      ASSERT_EQ(journal_->BeginSnapshot(), absl::OkStatus());
      for (int i = static_cast<int>(random() % 9); i > 0; --i) {
        ASSERT_EQ(journal_->AddToSnapshot({Numbered(9999, random() % 200)}), absl::OkStatus());
      }
      if (random() % 2 == 0) Reopen();
    }
    const bool whole = random() % 2 == 0;
    std::vector<Fact> snapshot;
    expected.clear();
    for (int i = static_cast<int>(random() % 9); i > 0; --i) {
      expected.push_back(number);
      snapshot.push_back(Numbered(number++, random() % 200));
    }
    if (whole) {
      ASSERT_EQ(journal_->Switch(snapshot), absl::OkStatus());
    } else {
      ASSERT_EQ(journal_->BeginSnapshot(), absl::OkStatus());
      for (const Fact& fact : snapshot) {
        ASSERT_EQ(journal_->AddToSnapshot({fact}), absl::OkStatus());
      }
      ASSERT_EQ(journal_->FinishSnapshot(), absl::OkStatus());
    }
    expected.push_back(number);
    MustAppend(number++);
    Reopen();
    ASSERT_EQ(Numbers(contents_.facts), expected) << round;
    ASSERT_FALSE(contents_.torn_tail);
  }
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
        if (journal_->WritingSnapshot()) {
          if (number % 16 == 0 && !journal_->FinishSnapshot().ok()) ::_exit(2);
        } else if (journal_->WantsSnapshot() && round % 2 == 0) {
          if (!journal_->Switch({Numbered(number - 1)}).ok()) ::_exit(2);
        } else if (journal_->WantsSnapshot()) {
          if (!journal_->BeginSnapshot().ok()) ::_exit(2);
          if (!journal_->AddToSnapshot({Numbered(number - 1)}).ok()) ::_exit(2);
        }
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

// --- R23, R38: damage

class DamagedJournal : public JournalTest {
 protected:
  static std::string Flipped(std::string image, uint64_t at, int bit) {
    image[at] = static_cast<char>(image[at] ^ (1 << bit));
    return image;
  }

  // A frame that holds these bytes as its facts.
  static std::string FrameOf(const std::vector<std::string>& encoded, uint32_t generation) {
    std::string frame;
    EXPECT_EQ(EncodeFrame({}, {kNonce, generation}, &frame), absl::OkStatus());
    frame.resize(kFrameHeaderBytes);
    for (const std::string& fact : encoded) {
      AppendInteger<uint32_t>(&frame, static_cast<uint32_t>(fact.size()));
      frame += fact;
    }
    const auto payload = static_cast<uint32_t>(frame.size() - kFrameHeaderBytes);
    std::memcpy(&frame[4], &payload, 4);
    uint32_t crc = Crc32c(0, &kNonce, sizeof(kNonce));
    crc = Crc32c(crc, &frame[4], 12);
    crc = Crc32c(crc, &frame[kFrameHeaderBytes], payload);
    std::memcpy(&frame[16], &crc, 4);
    frame.resize((frame.size() + 7) / 8 * 8, '\0');
    return frame;
  }
  static std::string Unknown(bool skippable) {
    return {char{99}, static_cast<char>(skippable ? 0x81 : 0x01), 'x', 'y'};
  }

  // What a daemon does about a damaged journal: it reads what is there, may not append, writes that
  // as a fresh snapshot, and goes on. Until the switch each life finds the same.
  void ExpectMended(const UniqueFd& file, const std::vector<uint64_t>& numbers) {
    ASSERT_TRUE(absl::IsDataLoss(contents_.damage)) << contents_.damage;
    ASSERT_EQ(Numbers(contents_.facts), numbers);
    ASSERT_TRUE(absl::IsFailedPrecondition(journal_->Append({Numbered(50)})));
    ASSERT_EQ(journal_->BeginSnapshot(), absl::OkStatus());
    ASSERT_TRUE(absl::IsFailedPrecondition(journal_->Append({Numbered(51)})));
    ASSERT_EQ(TryReopen(file), absl::OkStatus());  // killed meanwhile
    ASSERT_TRUE(absl::IsDataLoss(contents_.damage)) << contents_.damage;
    ASSERT_EQ(Numbers(contents_.facts), numbers);
    ASSERT_EQ(journal_->Switch(contents_.facts), absl::OkStatus());
    MustAppend(60);
    ASSERT_EQ(TryReopen(file), absl::OkStatus());
    ASSERT_EQ(contents_.damage, absl::OkStatus());
    ASSERT_FALSE(contents_.torn_tail);
    std::vector<uint64_t> after = numbers;
    after.push_back(60);
    ASSERT_EQ(Numbers(contents_.facts), after);
    ASSERT_EQ(journal_->Switch({}), absl::OkStatus());
    ASSERT_EQ(TryReopen(file), absl::OkStatus());
    ASSERT_EQ(contents_.damage, absl::OkStatus());
  }
};

TEST_F(DamagedJournal, WithOneFlippedBitServesWhatStandsBeforeItAndGoesOn) {
  std::vector<uint64_t> ends = {kHeaderPage + journal_->used_bytes()};  // of each frame
  for (uint64_t i = 1; i <= 4; ++i) {
    MustAppend(i, i * 3);
    ends.push_back(kHeaderPage + journal_->used_bytes());
  }
  const std::string good = Image();
  for (uint64_t at = kHeaderPage; at < ends.back(); ++at) {
    uint64_t before = 0;  // frames that end at or before the flipped byte
    while (before < ends.size() && ends[before] <= at) ++before;
    for (int bit = 0; bit < 8; ++bit) {
      const UniqueFd file = FileOf(Flipped(good, at, bit));
      ASSERT_EQ(TryReopen(file), absl::OkStatus()) << at << " " << bit;
      // The first frame is the snapshot, which is empty.
      ASSERT_EQ(contents_.behind.size(), std::min<uint64_t>(4, 5 - before - 1)) << at;
      ExpectMended(file, UpTo(before == 0 ? 0 : before - 1));
      if (HasFatalFailure()) FAIL() << at << " " << bit;
    }
  }
}

TEST_F(DamagedJournal, WithABitOfItsHeaderFlippedServesItsNewestHalf) {
  for (uint64_t i = 7; i <= 9; ++i) MustAppend(i);
  for (const bool switched : {false, true}) {
    if (switched) {
      ASSERT_EQ(journal_->Switch({Numbered(1), Numbered(2)}), absl::OkStatus());
    }
    const std::string good = Image();
    const std::vector<uint64_t> numbers = switched ? UpTo(2) : std::vector<uint64_t>{7, 8, 9};
    for (uint64_t at = 0; at < 32; ++at) {
      for (int bit = 0; bit < 8; ++bit) {
        const UniqueFd file = FileOf(Flipped(good, at, bit));
        ASSERT_EQ(TryReopen(file), absl::OkStatus()) << at << " " << bit;
        ExpectMended(file, numbers);
        if (HasFatalFailure()) FAIL() << at << " " << bit;
      }
    }
    Reopen();
  }
}

TEST_F(DamagedJournal, WithABitOfANonceFlippedLosesNothingAndMendsIt) {
  MustAppend(1);
  const std::string good = Image();
  for (uint64_t at = 32; at < kHeaderPage; ++at) {
    if (good[at] == 0) continue;
    const UniqueFd file = FileOf(Flipped(good, at, 5));
    ASSERT_EQ(TryReopen(file), absl::OkStatus());
    ASSERT_EQ(contents_.damage, absl::OkStatus()) << at;
    ASSERT_EQ(Numbers(contents_.facts), UpTo(1)) << at;
    std::string now(kFileBytes, '\0');
    ASSERT_EQ(PreadAll(file.get(), now.data(), now.size(), 0), absl::OkStatus());
    ASSERT_TRUE(now == good) << at;
  }
}

TEST_F(DamagedJournal, WithAWipedHeaderGetsANewNonce) {
  MustAppend(1);
  const UniqueFd file = FileOf(Image().replace(0, kHeaderPage, kHeaderPage, '\0'));
  ASSERT_EQ(TryReopen(file), absl::OkStatus());
  ExpectMended(file, {});
  uint64_t nonce = 0;
  ASSERT_EQ(PreadAll(file.get(), &nonce, sizeof(nonce), 32), absl::OkStatus());
  EXPECT_NE(nonce, 0u);
  EXPECT_NE(nonce, kNonce);
}

// What stands in facts was chosen by clients, and a later snapshot leaves it behind its own end.
TEST_F(JournalTest, BytesOfAClientThatAreAFrameOfALaterGenerationAreNoDamage) {
  options_.nonce = 0;
  file_ = *Journal::MakeFile(options_);
  Reopen();
  for (const uint64_t guess : {uint64_t{0}, kNonce}) {
    for (uint32_t generation : {0, 1, 2, 3, 4, 5}) {
      std::string planted;
      fact::SessionBegun poison;
      poison.session = ~uint64_t{0};
      ASSERT_EQ(EncodeFrame({poison}, {guess, generation}, &planted), absl::OkStatus());
      for (size_t shift = 0; shift < kFrameAlignment; ++shift) {
        fact::SessionBegun fact;
        fact.session = 1;
        fact.secret = std::string(64 + shift, 's') + planted;
        ASSERT_EQ(journal_->Append({fact}), absl::OkStatus());
      }
    }
  }
  for (int generation = 1; generation <= 4; ++generation) {
    ASSERT_EQ(journal_->Switch({Numbered(1)}), absl::OkStatus());
    const UniqueFd file = FileOf(Image());
    std::unique_ptr<Journal> alive = std::move(journal_);
    ASSERT_EQ(TryReopen(file), absl::OkStatus());
    EXPECT_EQ(contents_.damage, absl::OkStatus()) << generation;
    EXPECT_THAT(contents_.behind, IsEmpty());
    EXPECT_EQ(Numbers(contents_.facts), UpTo(1));
    journal_ = std::move(alive);
  }
}

TEST_F(JournalTest, EachNewOneHasANonceOfItsOwn) {
  options_.nonce = 0;
  uint64_t nonces[2] = {};
  for (uint64_t& nonce : nonces) {
    const auto file = Journal::MakeFile(options_);
    ASSERT_TRUE(file.ok());
    ASSERT_EQ(PreadAll(file->get(), &nonce, sizeof(nonce), 32), absl::OkStatus());
    EXPECT_NE(nonce, 0u);
  }
  EXPECT_NE(nonces[0], nonces[1]);
}

// The half that was being written is newer, and not whole.
TEST_F(DamagedJournal, NeverServesASnapshotThatWasNotFinished) {
  MustAppend(1);
  MustAppend(2);
  ASSERT_EQ(journal_->BeginSnapshot(), absl::OkStatus());
  ASSERT_EQ(journal_->AddToSnapshot({Numbered(70)}), absl::OkStatus());
  const UniqueFd file = FileOf(Flipped(Image(), 24, 3));
  ASSERT_EQ(TryReopen(file), absl::OkStatus());
  ExpectMended(file, UpTo(2));
}

// Nothing of the newest half can be read: the one before it is an earlier state, and a whole one.
TEST_F(DamagedJournal, ServesTheHalfBeforeWhenNothingOfTheNewestVerifies) {
  MustAppend(1);
  MustAppend(2);
  ASSERT_EQ(journal_->Switch({Numbered(8)}), absl::OkStatus());
  MustAppend(9);
  const std::string good = Image();
  const uint64_t half = kHeaderPage + kHalf;
  for (const uint64_t at : {half + 3, half + 30}) {  // the first frame, the snapshot
    const UniqueFd file = FileOf(Flipped(good, at, 1));
    ASSERT_EQ(TryReopen(file), absl::OkStatus());
    EXPECT_THAT(std::string(contents_.damage.message()), HasSubstr("generation 1"));
    EXPECT_THAT(std::string(contents_.damage.message()),
                HasSubstr("generation 0 was read instead"));
    std::string now(kFileBytes, '\0');
    ASSERT_EQ(PreadAll(file.get(), now.data(), now.size(), 0), absl::OkStatus());
    EXPECT_TRUE(now == Flipped(good, at, 1)) << "what was damaged is lost before there is better";
    ExpectMended(file, UpTo(2));
  }
}

TEST_F(DamagedJournal, WithSeveralHolesServesWhatStandsBeforeTheFirst) {
  std::vector<uint64_t> at;
  for (uint64_t i = 1; i <= 9; ++i) {
    at.push_back(kHeaderPage + journal_->used_bytes() + 30);
    MustAppend(i);
  }
  const UniqueFd file = FileOf(Flipped(Flipped(Image(), at[3], 1), at[6], 1));
  ASSERT_EQ(TryReopen(file), absl::OkStatus());
  EXPECT_EQ(Numbers(contents_.behind), (std::vector<uint64_t>{5, 6, 8, 9}));
  ExpectMended(file, UpTo(3));
}

TEST_F(DamagedJournal, SaysWhere) {
  MustAppend(1);
  const uint64_t at = journal_->used_bytes();
  MustAppend(2);
  ASSERT_EQ(TryReopen(FileOf(Flipped(Image(), kHeaderPage + at + 9, 0))), absl::OkStatus());
  EXPECT_THAT(std::string(contents_.damage.message()),
              HasSubstr(absl::StrCat("the frame at byte ", at, " of generation 0")));
}

// A build that was rolled back must not take what its successor wrote for nothing.
TEST_F(DamagedJournal, ThatAnotherBuildWroteIsReadUpToThereAndNeverWritten) {
  MustAppend(1);
  std::string image = Image();
  const uint64_t at = kHeaderPage + journal_->used_bytes();
  std::string frames =
      FrameOf({EncodeFact(Numbered(2)), Unknown(false), EncodeFact(Numbered(3))}, 0);
  frames += FrameOf({EncodeFact(Numbered(4))}, 0);
  image.replace(at, frames.size(), frames);
  const UniqueFd file = FileOf(image);
  ASSERT_EQ(TryReopen(file), absl::OkStatus());
  EXPECT_TRUE(absl::IsUnimplemented(contents_.damage)) << contents_.damage;
  EXPECT_THAT(std::string(contents_.damage.message()), HasSubstr("kind 99 version 1 is unknown"));
  EXPECT_EQ(Numbers(contents_.facts), UpTo(2));
  EXPECT_EQ(Numbers(contents_.behind), (std::vector<uint64_t>{3, 4}));
  EXPECT_TRUE(absl::IsFailedPrecondition(journal_->Append({Numbered(5)})));
  EXPECT_TRUE(absl::IsFailedPrecondition(journal_->Switch({Numbered(5)})));
  EXPECT_TRUE(absl::IsFailedPrecondition(journal_->BeginSnapshot()));
  std::string now(kFileBytes, '\0');
  ASSERT_EQ(PreadAll(file.get(), now.data(), now.size(), 0), absl::OkStatus());
  EXPECT_TRUE(now == image);
}

TEST_F(DamagedJournal, UnknownFactsThatMayBeSkippedAreNoDamage) {
  MustAppend(1);
  std::string image = Image();
  const uint64_t at = kHeaderPage + journal_->used_bytes();
  const std::string frame =
      FrameOf({EncodeFact(Numbered(2)), Unknown(true), EncodeFact(Numbered(3)), Unknown(true)}, 0);
  image.replace(at, frame.size(), frame);
  const UniqueFd file = FileOf(image);
  ASSERT_EQ(TryReopen(file), absl::OkStatus());
  EXPECT_EQ(contents_.damage, absl::OkStatus());
  EXPECT_EQ(contents_.skipped, (std::map<int, uint64_t>{{99, 2}}));
  EXPECT_EQ(Numbers(contents_.facts), UpTo(3));
  MustAppend(4);
  ASSERT_EQ(TryReopen(file), absl::OkStatus());
  EXPECT_EQ(Numbers(contents_.facts), UpTo(4));
}

TEST_F(DamagedJournal, OfAnotherVersionIsNotReadAndNeverWrittenNamingBoth) {
  MustAppend(1);
  std::string image = Image();
  image[8] = 1;
  uint32_t crc = Crc32c(0, image.data(), 12);  // of magic, version and size
  crc = Crc32c(crc, image.data() + 16, 8);
  std::memcpy(&image[12], &crc, sizeof(crc));
  ASSERT_EQ(TryReopen(FileOf(image)), absl::OkStatus());
  EXPECT_TRUE(absl::IsUnimplemented(contents_.damage)) << contents_.damage;
  EXPECT_THAT(std::string(contents_.damage.message()), HasSubstr("version 1; this build knows 2"));
  EXPECT_THAT(contents_.facts, IsEmpty());
  EXPECT_TRUE(absl::IsFailedPrecondition(journal_->Append({Numbered(2)})));
  EXPECT_TRUE(absl::IsFailedPrecondition(journal_->Switch({})));
}

TEST_F(DamagedJournal, OfRandomBytesIsEmptyAndNeverCrashes) {
  std::mt19937 random(3);
  const std::string good = Image();
  for (int round = 0; round < 100; ++round) {
    std::string image(kFileBytes, '\0');
    for (size_t at = 0; at + 4 <= image.size(); at += 4) {
      const uint32_t word = random() % 8 == 0 ? kFrameMagic : random();
      std::memcpy(&image[at], &word, sizeof(word));
    }
    for (const bool with_header : {false, true}) {
      if (with_header) image.replace(0, kHeaderPage, good, 0, kHeaderPage);
      const UniqueFd file = FileOf(image);
      ASSERT_EQ(TryReopen(file), absl::OkStatus());
      ExpectMended(file, {});
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(DamagedJournal, FramesOfAnotherGenerationDoNotCount) {
  std::string frame;
  ASSERT_EQ(EncodeFrame({Numbered(1)}, {kNonce, 0}, &frame), absl::OkStatus());
  const std::string half = frame + std::string(kEndBytes, '\0');
  EXPECT_EQ(ReplayHalf(half, {kNonce, 0}).damage, absl::OkStatus());
  EXPECT_TRUE(absl::IsDataLoss(ReplayHalf(half, {kNonce, 1}).damage));
  EXPECT_TRUE(absl::IsDataLoss(ReplayHalf(half, {kNonce ^ 1, 0}).damage));
  EXPECT_TRUE(absl::IsDataLoss(ReplayHalf(half, {kNonce ^ uint64_t{1} << 63, 0}).damage));
  EXPECT_TRUE(absl::IsDataLoss(ReplayHalf("", {kNonce, 0}).damage));
  EXPECT_TRUE(absl::IsDataLoss(ReplayHalf(frame.substr(0, 19), {kNonce, 0}).damage));
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
