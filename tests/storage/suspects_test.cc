// Who is blamed when a daemon dies in a call of storage: the page that outlives it, and the rule (R34).
#include "server/storage/suspects.h"

#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <future>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/storage/wary_storage.h"
#include "tests/storage/faulty_storage.h"
#include "tests/storage/memory_storage.h"
#include "tests/storage/parts.h"
#include "tests/support/patience.h"

namespace cairn::storage {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;
using Millis = std::chrono::milliseconds;

constexpr MonotonicNanos kHour = 3600 * kNanosPerSecond;

class SetClock final : public Clock {
 public:
  MonotonicNanos Now() const override { return now.load(); }
  int64_t UnixMillis() const override { return 1'800'000'000'000 + now.load() / kNanosPerMilli; }
  std::atomic<MonotonicNanos> now{1000 * kHour};
};

// Lives of daemons over one page, as the keeper hands it on.
class SuspectsTest : public ::testing::Test {
 protected:
  SuspectsTest() : page_(*MakeMemfd("black-box", BlackBox::kBytes, 0600)) { Live(); }

  std::unique_ptr<BlackBox> Box() {
    auto box = BlackBox::Open(*page_.Dup());
    EXPECT_TRUE(box.ok()) << box.status();
    return *std::move(box);
  }
  // The next daemon. The calls of the one before never end, so neither does it.
  void Live() {
    suspects_ = std::make_unique<Suspects>(Box(), &clock_, Suspects::Options{alone_for_});
    lives_.push_back(suspects_);
  }
  // The daemon dies while these are read, beside each other.
  void DieIn(const std::vector<std::pair<std::string, Use>>& calls) {
    for (const auto& [job, use] : calls) Enter(job, use);
    Live();
  }
  void Enter(const std::string& job, Use use = Use::kScan) {
    auto call = suspects_->Begin(job, use);
    ASSERT_TRUE(call.ok()) << call.status();
    never_ended_.push_back(*std::move(call));
  }
  Status Read(const std::string& job, Use use = Use::kScan, bool well = true) {
    auto call = suspects_->Begin(job, use);
    if (call.ok()) call->End(well);
    return call.status();
  }
  std::vector<std::string> SetAside() const {
    std::vector<std::string> jobs;
    for (const auto& [job, why] : suspects_->SetAside()) jobs.push_back(job);
    return jobs;
  }
  std::vector<std::string> Suspected() {
    std::vector<std::string> jobs;
    for (const Suspect& suspect : Box()->Suspects(clock_.Now())) jobs.push_back(suspect.job);
    return jobs;
  }

  Millis alone_for_{100};
  SetClock clock_;
  UniqueFd page_;
  std::vector<std::shared_ptr<Suspects>> lives_;
  std::shared_ptr<Suspects> suspects_;
  std::vector<Suspects::Call> never_ended_;  // before the lives
};

// --- the page

TEST_F(SuspectsTest, ANewPageBlamesNobody) {
  EXPECT_THAT(Suspected(), IsEmpty());
  EXPECT_THAT(Box()->Calls(), IsEmpty());
  EXPECT_THAT(suspects_->learnt(), IsEmpty());
}

TEST_F(SuspectsTest, PageSaysWhatIsUnderWayAndNothingElse) {
  Enter("one", Use::kPublish);
  EXPECT_EQ(Read("two"), absl::OkStatus());
  const std::vector<UnderWay> calls = Box()->Calls();
  ASSERT_EQ(calls.size(), 1u);
  EXPECT_EQ(calls[0].job, "one");
  EXPECT_EQ(calls[0].use, Use::kPublish);
  EXPECT_FALSE(calls[0].alone);
}

TEST_F(SuspectsTest, MoreCallsThanThePageHoldsAreMade) {
  for (size_t i = 0; i < BlackBox::kCalls + 5; ++i) Enter(absl::StrCat("job", i));
  EXPECT_EQ(Box()->Calls().size(), BlackBox::kCalls);
  never_ended_.clear();
  EXPECT_THAT(Box()->Calls(), IsEmpty());
}

TEST_F(SuspectsTest, PageOfAnotherLayoutIsEmpty) {
  DieIn({{"job", Use::kScan}});
  const uint32_t version = 2;
  ASSERT_EQ(PwriteAll(page_.get(), &version, sizeof(version), 4), absl::OkStatus());
  EXPECT_THAT(Box()->Suspects(clock_.Now()), IsEmpty());
}

// R24: whatever stands in it.
TEST_F(SuspectsTest, GarbageInThePageIsIgnored) {
  std::mt19937 random(1);
  std::string good(BlackBox::kBytes, '\0');
  DieIn({{"good", Use::kScan}, {"other", Use::kDelete}});
  Enter("third");
  ASSERT_EQ(PreadAll(page_.get(), good.data(), good.size(), 0), absl::OkStatus());
  for (int round = 0; round < 2000; ++round) {
    std::string bytes = good;
    for (unsigned flips = random() % 400; flips > 0; --flips) {
      const size_t at = random() % (round % 2 == 0 ? 400 : bytes.size());
      if (at >= 8) bytes[at] = static_cast<char>(random());
    }
    ASSERT_EQ(PwriteAll(page_.get(), bytes.data(), bytes.size(), 0), absl::OkStatus());
    const auto box = Box();
    for (const UnderWay& call : box->Calls()) {
      EXPECT_TRUE(ValidateJob(call.job).ok());
      EXPECT_LT(static_cast<uint32_t>(call.use), kUses);
    }
    for (const Suspect& suspect : box->Suspects(clock_.Now())) {
      EXPECT_TRUE(ValidateJob(suspect.job).ok());
      EXPECT_LE(suspect.last_death, clock_.Now());
    }
    Suspects next(Box(), &clock_);
    clock_.now += 25 * kHour;
    EXPECT_THAT(next.SetAside(), IsEmpty()) << "for longer than a day";
    clock_.now -= 25 * kHour;
  }
}

TEST_F(SuspectsTest, APageThatCanBeCutShortIsRefused) {
  UniqueFd short_one = *MakeMemfd("short", 4096, 0600);
  EXPECT_FALSE(BlackBox::Open(std::move(short_one)).ok());
  UniqueFd unsealed(::memfd_create("unsealed", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(unsealed.get(), BlackBox::kBytes), 0);
  EXPECT_FALSE(BlackBox::Open(std::move(unsealed)).ok());
}

// --- the rule

TEST_F(SuspectsTest, OneDeathSetsNobodyAside) {
  DieIn({{"culprit", Use::kScan}, {"beside", Use::kPublish}});
  EXPECT_THAT(SetAside(), IsEmpty());
  EXPECT_THAT(Suspected(), UnorderedElementsAre("culprit", "beside"));
  EXPECT_THAT(suspects_->learnt(), ElementsAre(HasSubstr("job beside"), HasSubstr("job culprit")));
  EXPECT_EQ(Read("beside", Use::kPublish), absl::OkStatus());
  EXPECT_THAT(Suspected(), ElementsAre("culprit"));
}

TEST_F(SuspectsTest, ASecondDeathSetsAsideWhoWasReadAlone) {
  DieIn({{"culprit", Use::kScan}, {"beside", Use::kScan}});
  DieIn({{"culprit", Use::kScan}});
  EXPECT_THAT(SetAside(), ElementsAre("culprit"));
  const Status refused = Read("culprit", Use::kOpen);
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  for (const char* said : {"job culprit", "scanning", "ended the daemon 2 times", "SIGHUP"}) {
    EXPECT_THAT(std::string(refused.message()), HasSubstr(said));
  }
  EXPECT_EQ(Read("beside"), absl::OkStatus());
  EXPECT_EQ(Read("another"), absl::OkStatus());
  EXPECT_THAT(Suspected(), ElementsAre("culprit"));
}

TEST_F(SuspectsTest, AnotherCallThatEndsWellClearsNothing) {
  DieIn({{"culprit", Use::kScan}});
  EXPECT_EQ(Read("culprit", Use::kListLine), absl::OkStatus());
  DieIn({{"culprit", Use::kScan}});
  EXPECT_THAT(SetAside(), ElementsAre("culprit"));
}

TEST_F(SuspectsTest, DeathsInDifferentCallsCountTogether) {
  DieIn({{"culprit", Use::kScan}});
  DieIn({{"culprit", Use::kPublish}});
  EXPECT_THAT(SetAside(), ElementsAre("culprit"));
}

TEST_F(SuspectsTest, ACallThatReadNothingClearsNothing) {
  DieIn({{"culprit", Use::kScan}});
  EXPECT_EQ(Read("culprit", Use::kScan, /*well=*/false), absl::OkStatus());
  EXPECT_THAT(Suspected(), ElementsAre("culprit"));
}

TEST_F(SuspectsTest, WhoIsReadWellBetweenTwoDeathsIsNotSetAside) {
  for (int death = 0; death < 5; ++death) {
    DieIn({{"innocent", Use::kWriteParts}});
    EXPECT_THAT(SetAside(), IsEmpty());
    EXPECT_EQ(Read("innocent", Use::kWriteParts), absl::OkStatus());
  }
}

// It may take minutes in which nothing else begins: it counts as one that others ran beside.
TEST_F(SuspectsTest, AWriterIsSetAsideAtTheThirdDeath) {
  DieIn({{"writer", Use::kWriteParts}});
  DieIn({{"writer", Use::kWriteParts}});
  EXPECT_THAT(SetAside(), IsEmpty());
  DieIn({{"writer", Use::kWriteParts}});
  EXPECT_THAT(SetAside(), ElementsAre("writer"));
}

TEST_F(SuspectsTest, ADeathInOrderBlamesNobody) {
  Enter("job");
  suspects_->EndInOrder();
  Live();
  EXPECT_THAT(Suspected(), IsEmpty());
  // The next one's may.
  DieIn({{"job", Use::kScan}});
  EXPECT_THAT(Suspected(), ElementsAre("job"));
}

TEST_F(SuspectsTest, OneDeathCountsOnce) {
  DieIn({{"job", Use::kScan}, {"job", Use::kOpen}, {"job", Use::kOpen}});
  EXPECT_EQ(Box()->Suspects(clock_.Now()).at(0).deaths, 1u);
  Live();  // died before it read anything
  EXPECT_EQ(Box()->Suspects(clock_.Now()).at(0).deaths, 1u);
}

TEST_F(SuspectsTest, WhoIsSetAsideIsReadOnceMoreAfterAnHourThenTwoAndSoOnUpToADay) {
  DieIn({{"culprit", Use::kScan}});
  DieIn({{"culprit", Use::kScan}});
  for (const int hours : {1, 2, 4, 8, 16, 24, 24}) {
    clock_.now += hours * kHour - 1;
    EXPECT_THAT(SetAside(), ElementsAre("culprit")) << hours;
    Live();
    EXPECT_THAT(SetAside(), ElementsAre("culprit")) << hours;
    clock_.now += 1;
    EXPECT_THAT(SetAside(), IsEmpty()) << hours;
    DieIn({{"culprit", Use::kScan}});
  }
  clock_.now += 24 * kHour;
  EXPECT_EQ(Read("culprit"), absl::OkStatus());
  EXPECT_THAT(Suspected(), IsEmpty());
}

TEST_F(SuspectsTest, WhatIsLongAgoIsForgotten) {
  DieIn({{"job", Use::kDelete}});
  clock_.now += 48 * kHour;
  Live();
  EXPECT_THAT(Suspected(), IsEmpty());
}

TEST_F(SuspectsTest, WithoutAPageNobodyIsSuspected) {
  Suspects none(nullptr, &clock_);
  auto call = none.Begin("job", Use::kScan);
  ASSERT_TRUE(call.ok());
  none.EndInOrder();
  EXPECT_THAT(none.SetAside(), IsEmpty());
}

// --- alone

// Whether the call begins at once; it ends in any case.
bool BeginsAtOnce(Suspects* suspects, const std::string& job) {
  auto begun = std::async(std::launch::async, [&] { return suspects->Begin(job, Use::kScan); });
  return begun.wait_for(testing::Patient(Millis(10'000))) == std::future_status::ready;
}

TEST_F(SuspectsTest, WhileASuspectIsReadNobodyElseIs) {
  alone_for_ = Millis(60'000);
  DieIn({{"suspect", Use::kScan}});
  auto alone = suspects_->Begin("suspect", Use::kScan);
  ASSERT_TRUE(alone.ok());
  EXPECT_TRUE(Box()->Calls().at(0).alone);
  auto other = std::async(std::launch::async, [&] { return Read("other"); });
  EXPECT_EQ(other.wait_for(Millis(30)), std::future_status::timeout);
  alone->End(true);
  EXPECT_EQ(other.get(), absl::OkStatus());
  EXPECT_TRUE(BeginsAtOnce(suspects_.get(), "suspect"));
}

TEST_F(SuspectsTest, ASuspectWaitsForThoseUnderWay) {
  alone_for_ = Millis(60'000);
  DieIn({{"suspect", Use::kScan}});
  auto other = suspects_->Begin("other", Use::kScan);
  auto suspect = std::async(std::launch::async, [&] {
    auto call = suspects_->Begin("suspect", Use::kScan);
    return call.ok() && Box()->Calls().at(0).alone;
  });
  EXPECT_EQ(suspect.wait_for(Millis(30)), std::future_status::timeout);
  other->End(true);
  EXPECT_TRUE(suspect.get());
}

// What hangs delays the others for a while, once, and its death is weak evidence again.
TEST_F(SuspectsTest, ASuspectThatHangsIsNotAloneForLong) {
  DieIn({{"hangs", Use::kScan}});
  Enter("hangs");
  EXPECT_TRUE(Box()->Calls().at(0).alone);
  EXPECT_EQ(Read("other"), absl::OkStatus());  // waits for alone_for
  EXPECT_FALSE(Box()->Calls().at(0).alone);
  Enter("hangs");
  EXPECT_FALSE(Box()->Calls().at(1).alone);
  Live();
  EXPECT_THAT(SetAside(), IsEmpty());
  // It is slow to end a daemon, and ends each.
  Enter("hangs");
  EXPECT_EQ(Read("other"), absl::OkStatus());
  Live();
  EXPECT_THAT(SetAside(), ElementsAre("hangs"));
}

TEST_F(SuspectsTest, ASuspectBesideWhatHangsIsReadAllTheSame) {
  DieIn({{"suspect", Use::kScan}});
  Enter("hangs");
  EXPECT_EQ(Read("suspect"), absl::OkStatus());
  EXPECT_THAT(Suspected(), IsEmpty());
}

TEST_F(SuspectsTest, ManyAtOnceAllEnd) {
  DieIn({{"a", Use::kScan}, {"b", Use::kScan}, {"c", Use::kOpen}});
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([this, i] {
      for (int round = 0; round < 50; ++round) {
        EXPECT_EQ(Read(std::string(1, static_cast<char>('a' + (i + round) % 5))), absl::OkStatus());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(Box()->Calls(), IsEmpty());
  EXPECT_THAT(Suspected(), ElementsAre("c"));
}

// --- the storage that asks

TEST_F(SuspectsTest, EveryCallAboutAJobThatIsSetAsideIsRefusedAndReachesNothing) {
  DieIn({{"job", Use::kScan}});
  DieIn({{"job", Use::kScan}});
  auto faults = std::make_shared<StorageFaults>();
  auto storage =
      MakeWaryStorage(MakeFaultyStorage(MakeMemoryStorage(std::make_shared<MemoryStore>()), faults),
                      suspects_.get());
  const CheckpointKey key{"job", 5, 100, 0};
  const Owner me{::getuid(), ::getgid()};
  LineRecord record;
  record.job = "job";
  StoredCheckpoint stored;
  stored.key = key;
  const std::vector<std::pair<const char*, Status>> refused = {
      {"write", storage->WriteParts(key, me, {})},
      {"line", storage->WriteLineRecord(record, me).status()},
      {"publish", storage->Publish(key, me).status()},
      {"reinstate", storage->Reinstate(key, me)},
      {"sweep", storage->Sweep("job", {})},
      {"delete", storage->Delete(key, me, DeleteKind::kFiles)},
      {"read", storage->Read("job").status()},
      {"summary", storage->ReadSummary("job").status()},
      {"checkpoint", storage->ReadCheckpoint(key).status()},
      {"list", storage->ReadLineNumbers("job").status()},
      {"owner", storage->JobOwner("job").status()},
      {"open", storage->Open(stored, "a", me).status()}};
  for (const auto& [call, status] : refused) {
    EXPECT_TRUE(absl::IsUnavailable(status)) << call << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("ended the daemon")) << call;
  }
  for (const StorageCall call :
       {StorageCall::kWriteParts, StorageCall::kRead, StorageCall::kOpen}) {
    EXPECT_EQ(faults->Calls(call), 0);
  }
  EXPECT_TRUE(storage->Jobs().ok());
  EXPECT_TRUE(absl::IsNotFound(storage->Read("other").status()));
}

class Throws final : public ObjectSource {
 public:
  Status Read(uint64_t, absl::Span<char>) const override { throw std::bad_alloc(); }
};

TEST_F(SuspectsTest, WhatStorageThrowsIsThatJobsErrorAndEndsTheCall) {
  auto storage =
      MakeWaryStorage(MakeMemoryStorage(std::make_shared<MemoryStore>()), suspects_.get());
  const Part part = MakePart(Key(5, 100), 0, 1, {{"a", 4096}});
  const Throws throws;
  PartToWrite to_write = part.ToWrite();
  to_write.sources[0] = &throws;
  const Status status = storage->WriteParts(Key(5, 100), Me(), {to_write});
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("writing parts"));
  EXPECT_THAT(Box()->Calls(), IsEmpty());
}

}  // namespace
}  // namespace cairn::storage
