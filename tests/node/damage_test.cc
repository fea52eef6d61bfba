// R38: a journal that does not verify, or that a later build wrote, under a node that holds memory.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "gmock/gmock.h"
#include "server/node/recovery.h"
#include "tests/node/damaged_node.h"
#include "tests/support/await.h"

namespace cairn::testing {
namespace {

using ::testing::HasSubstr;

TEST_F(DamagedNode, ServesWhatStandsBeforeTheDamageAndGoesOnSaving) {
  keeper_.KnowNoUses();  // nothing is found again
  StartNode();
  const SessionId first = Begin();
  const std::string one(3 << 20, '1'), two(2 << 20, '2'), three(1 << 20, '3');
  ASSERT_TRUE(Save(first, 1, "model", one).ok());
  const uint64_t end = Frames().back();
  ASSERT_TRUE(Save(first, 2, "model", two).ok());
  StopNode();
  Flip(end + 30);
  StartNode();
  EXPECT_THAT(State(), HasSubstr("serving; facts were lost: journal: the frame at byte"));
  const SessionId session = Begin("job", 8);
  EXPECT_GT(session, uint64_t{1} << 32) << "an id that may have been given out";
  EXPECT_EQ(*Load(session, 1, "model"), one);
  EXPECT_TRUE(absl::IsNotFound(Load(session, 2, "model").status()));
  ASSERT_TRUE(Save(session, 3, "model", three).ok());
  Restart();
  EXPECT_EQ(State(), "serving");
  const SessionId later = Begin("job", 9);
  EXPECT_EQ(*Load(later, 1, "model"), one);
  EXPECT_EQ(*Load(later, 3, "model"), three);
}

TEST_F(DamagedNode, StartsAndServesWhicheverFrameIsDamaged) {
  const std::string bytes(300'000, 'b');
  for (size_t k = 0;; ++k) {
    journal_ = *journal::Journal::MakeFile(options_.journal);
    keeper_.Forget();
    StartNode();
    const SessionId session = Begin();
    for (Step step : {1, 2}) ASSERT_TRUE(Save(session, step, "model", bytes).ok());
    StopNode();
    const std::vector<uint64_t> frames = Frames();
    if (k + 1 >= frames.size()) break;
    Flip(frames[k] + 21 + k % 5);
    StartNode();
    const SessionId reader = Begin("job", 8);
    int found = 0;
    for (Step step : {1, 2}) {
      const StatusOr<std::string> loaded = Load(reader, step, "model");
      if (!loaded.ok()) continue;
      ++found;
      ASSERT_EQ(*loaded, bytes);
    }
    ASSERT_EQ(found, 2) << k << ": " << State();
    ASSERT_EQ(Latest(reader), 2);
    ASSERT_EQ(node().CheckInvariants(), "") << k;
    ASSERT_TRUE(Save(reader, 3, "model", bytes).ok()) << k;
    Restart();
    ASSERT_EQ(*Load(Begin("job", 9), 3, "model"), bytes) << k;
    StopNode();
  }
}

// Promise 6: the frame that is lost said whose the slab is.
TEST_F(DamagedNode, ASlabWhoseOwnerIsUnknownIsNeverLentAgain) {
  keeper_.KnowNoUses();
  options_.engine.pool_slabs = {4 << 20};
  StartNode();
  while (!PoolIsReady()) std::this_thread::yield();
  const SessionId theirs = Begin("theirs");
  const uint64_t before = Frames().back();
  ASSERT_TRUE(Save(theirs, 1, "model", std::string(4 << 20, 's'), "theirs").ok());
  const std::vector<uint64_t> frames = Frames();
  StopNode();
  const std::vector<SlabId> old = keeper_.SlabsOf(1);
  ASSERT_FALSE(old.empty());
  // All that was said since the node had started: the slabs it had made are nobody's before that.
  const auto lost = std::find(frames.begin(), frames.end(), before);
  ASSERT_NE(lost, frames.end());
  Flip(*lost + 25);
  // Somebody has one of them open, as a trainer that maps it does.
  std::vector<UniqueFd> opened;
  {
    const node::Inherited held = keeper_.Inherit(journal_, fd_listener_);
    for (const node::HeldSlab& slab : held.slabs) {
      opened.emplace_back(
          ::open(absl::StrCat("/proc/self/fd/", slab.fd.get()).c_str(), O_RDWR | O_CLOEXEC));
    }
  }
  StartNode();
  const SessionId session = Begin("ours", 8);
  ASSERT_TRUE(Save(session, 1, "model", std::string(4 << 20, 'o'), "ours", 8).ok());
  for (const UniqueFd& slab : opened) {
    std::string bytes(1 << 20, '\0');
    const ssize_t read = ::pread(slab.get(), bytes.data(), bytes.size(), 0);
    ASSERT_GE(read, 0);
    EXPECT_EQ(bytes.find("ooo"), std::string::npos) << "memory of another job was lent";
  }
}

// A slab could be lent to another while a session goes on that was lent it behind the damage.
TEST_F(DamagedNode, KilledBeforeTheKeeperDropsTheSessionsTheNextLifeAdoptsNone) {
  StartNode();
  const SessionId first = Begin();
  const uint64_t end = Frames().back();
  ASSERT_TRUE(Save(first, 1, "model", "bytes").ok());
  StopNode();
  Flip(end + 30);
  {
    journal::Contents contents;
    const auto journal = journal::Journal::Open(*journal_.Dup(), options_.journal, &contents);
    ASSERT_TRUE(journal.ok());
    ASSERT_TRUE(node::SessionsOf(contents.facts).contains(first));
    node::GoOnFromEarlierState(contents.behind, first, 7, &contents.facts);
    ASSERT_EQ((*journal)->Switch(contents.facts), absl::OkStatus());
  }
  // As the keeper still holds it: its process lives.
  int channel[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, channel), 0);
  const UniqueFd ours(channel[0]), theirs(channel[1]);
  const UniqueFd progress = *MakeMemfd("progress", 4096, 0600);
  const UniqueFd self = *OpenPidfd(getpid());
  keeper_.HoldSession(first, ours.get(), self.get(), progress.get(), [](Status) {});
  StartNode();
  // On a loop of its own: nobody waits for what a client has sent to be closed.
  EXPECT_TRUE(Await([&] { return keeper_.sessions() == 0; }));
  EXPECT_EQ(State(), "serving");
}

// A later build was rolled back.
TEST_F(DamagedNode, WhatALaterBuildWroteIsLeftAloneAndIsThereWhenItIsBack) {
  StartNode();
  const SessionId first = Begin();
  const std::string one(3 << 20, '1'), two(2 << 20, '2');
  ASSERT_TRUE(Save(first, 1, "model", one).ok());
  const uint64_t frame = Frames().back();
  ASSERT_TRUE(Save(first, 2, "model", two).ok());
  StopNode();
  const char kind = Image()[frame + journal::kFrameHeaderBytes + 4];
  SetKind(frame, 99);
  const std::string image = Image();
  const size_t slabs = keeper_.slabs();
  for (int life = 0; life < 2; ++life) {
    Restart();
    EXPECT_THAT(State(), HasSubstr("safe mode: journal: the frame at byte"));
    EXPECT_THAT(State(), HasSubstr("kind 99"));
    const SessionId session = Begin("job", 8);
    EXPECT_EQ(*Load(session, 1, "model"), one);
    EXPECT_TRUE(absl::IsNotFound(Load(session, 2, "model").status()));
    const Status refused = Save(session, 3, "model", one, "job", 8);
    EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("kind 99"));
    engine::event::Pin pin;
    pin.caller = CallerOf(session);
    pin.ref = {"job", 1};
    EXPECT_TRUE(absl::IsUnavailable(node().Call(std::move(pin)).body.status()));
  }
  StopNode();
  EXPECT_TRUE(Image() == image);
  EXPECT_EQ(keeper_.slabs(), slabs);
  SetKind(frame, static_cast<uint8_t>(kind));
  Restart();
  EXPECT_EQ(State(), "serving");
  const SessionId session = Begin("job", 8);
  EXPECT_EQ(*Load(session, 1, "model"), one);
  EXPECT_EQ(*Load(session, 2, "model"), two);
  EXPECT_TRUE(Save(session, 3, "model", one, "job", 8).ok());
}

// The snapshot of what was found does not fit: nothing may be appended, so nothing is admitted.
TEST_F(DamagedNode, IsOnlyReadWhenWhatWasFoundCannotBeWrittenAnew) {
  options_.journal.bytes = kHeaderPage + 2 * (64 << 10);
  journal_ = *journal::Journal::MakeFile(options_.journal);
  std::string full, last;
  ASSERT_EQ(
      journal::EncodeFrame(std::vector<Fact>(4676, fact::SessionEnded{7}), {kNonce, 0}, &full),
      absl::OkStatus());
  ASSERT_EQ(journal::EncodeFrame({fact::SessionEnded{8}}, {kNonce, 0}, &last), absl::OkStatus());
  ASSERT_EQ(full.size() + last.size() + journal::kEndBytes, 64u << 10);
  last[30] = static_cast<char>(last[30] ^ 1);
  Write(kHeaderPage, full + last);
  const std::string half = Image().substr(0, kHeaderPage + (64 << 10));
  for (int life = 0; life < 2; ++life) {
    Restart();
    EXPECT_THAT(State(), HasSubstr("safe mode: journal: the frame at byte 65488"));
    EXPECT_THAT(State(), HasSubstr("the journal stays as it is: journal: "));
    const Status refused = Save(Begin("job", 8), 1, "model", "bytes", "job", 8);
    EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  }
  StopNode();
  EXPECT_TRUE(Image().substr(0, half.size()) == half);
}

TEST(GoOnFromEarlierState, GivesNoIdOutTwiceAndForgetsSlabsOfNobody) {
  std::vector<Fact> facts = {fact::Slab{3, 4096}, fact::Slab{4, 4096},
                             fact::Slab{4, 4096, fact::SlabUse::kObjects, 1000, "job"},
                             fact::Slab{5, 4096, fact::SlabUse::kManifests}};
  const std::vector<Fact> expected = {facts[2], facts[3]};
  const std::vector<Fact> behind = {fact::Unlent{900}};
  std::vector<Fact> by_held = facts;
  node::GoOnFromEarlierState({}, 1000, 7, &by_held);
  node::GoOnFromEarlierState(behind, 8, 7, &facts);
  EXPECT_GT(std::get<fact::DaemonLife>(by_held.back()).next_id, 1000 + 1'000'000u);
  EXPECT_GT(std::get<fact::DaemonLife>(facts.back()).next_id, 900 + 1'000'000u);
  facts.pop_back();
  EXPECT_TRUE(facts == expected);
}

TEST(GoOnFromEarlierState, SaysOfEachSessionThatItHasEnded) {
  std::vector<Fact> facts = {fact::SessionBegun{{}, 5}, fact::SessionBegun{{}, 6},
                             fact::SessionEnded{6}};
  node::GoOnFromEarlierState({}, 0, 7, &facts);
  EXPECT_TRUE(node::SessionsOf(facts).empty());
}

// A damaged fact that verifies by chance must not use up the ids.
TEST(GoOnFromEarlierState, BelievesNoIdThatNobodyGaveOutAndNeverWraps) {
  constexpr uint64_t kMost = ~uint64_t{0};
  std::vector<Fact> facts;
  node::GoOnFromEarlierState({fact::Unlent{900}, fact::SessionEnded{kMost}}, 8, 7, &facts);
  EXPECT_EQ(std::get<fact::DaemonLife>(facts.back()).next_id, 900 + (uint64_t{1} << 32));
  node::GoOnFromEarlierState({}, kMost - 5, 7, &facts);
  EXPECT_EQ(std::get<fact::DaemonLife>(facts.back()).next_id, kMost);
}

}  // namespace
}  // namespace cairn::testing
