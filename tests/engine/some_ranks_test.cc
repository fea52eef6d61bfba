// Steps that only some of the ranks save, numbered anew among themselves: a writer is one process of the attempt's
// steps of so many writers.
#include <utility>

#include "tests/engine/engine_fixture.h"

namespace cairn::engine {
namespace {

// Ranks 0 … 3, each a process; some save steps as writers 0 and 1 of 2.
class SomeRanks : public EngineTest {
 protected:
  void SetUp() override {
    EngineTest::SetUp();
    for (Writer rank = 0; rank < 4; ++rank) ranks[rank] = Rank(rank, absl::StrCat("rank ", rank));
  }
  SessionId Rank(Writer rank, const std::string& process) {
    return Hello({.writer = rank, .world_size = 4, .local_writers = 1, .process = process});
  }
  // The part of writer `writer` of 2, saved by this rank's session.
  PartKey Among(SessionId session, Step step, Writer writer) {
    PartKey part = PartOf(session, step);
    part.writer = writer;
    return part;
  }
  Status Begin(SessionId session, Step step, Writer writer) {
    event::Create create = CreateOf(session, Among(session, step, writer), {{Name(writer), kPart}});
    create.world_size = 2;
    Apply(create);
    return AnswerTo(create.caller.request).status();
  }
  Status SaveAmong(SessionId session, Step step, Writer writer) {
    CAIRN_RETURN_IF_ERROR(Begin(session, step, writer));
    event::Commit commit = CommitOf(session, Among(session, step, writer), {{Name(writer), kPart}});
    commit.world_size = 2;
    Apply(commit);
    return AnswerTo(commit.caller.request).status();
  }
  void Withdraw(SessionId session, Step step, Writer writer) {
    Apply(event::Abort{From(session), Among(session, step, writer), /*world_size=*/2});
  }
  Status SaveOfAll(SessionId session, Step step) {
    return TrySave(session, step, {{absl::StrCat("of ", PartOf(session, step).writer), kPart}});
  }
  void AllSave(Step step) {
    for (const SessionId session : ranks) ASSERT_TRUE(SaveOfAll(session, step).ok());
  }
  static std::string Name(Writer writer) { return absl::StrCat("among ", writer); }
  // Whether what is left of the step may be given up: another job wants more than is free. No other step of the job may go.
  bool MayGo(Step step) {
    const SessionId other = Hello({.job = "other"});
    const uint64_t free = options.budget_bytes - Status_().used_bytes;
    Apply(CreateOf(other, PartOf(other, 1), {{"model", free + kMiB}}));
    Apply(event::Abort{From(other), PartOf(other, 1)});
    Die(other);
    return !Stat(ranks[0], step).ok();
  }

  static constexpr uint64_t kPart = 6 * kMiB;
  SessionId ranks[4] = {};
};

TEST_F(SomeRanks, SaveAStepThatIsCompleteWithoutTheOthers) {
  for (const StartFrom from : kFrom) {
    SCOPED_TRACE(NameOf(from));
    LoseMemory();
    SetUp();
    AllSave(1);
    ASSERT_TRUE(SaveAmong(ranks[1], 2, 0).ok());
    ASSERT_TRUE(SaveAmong(ranks[3], 2, 1).ok());
    EXPECT_EQ(LatestStep(ranks[0]), 2);
    Restart(from);
    AllSave(3);  // each is still the writer that it was
    EXPECT_EQ(LatestStep(ranks[0]), 3);
    ASSERT_TRUE(SaveAmong(ranks[1], 4, 0).ok());
    ASSERT_TRUE(SaveAmong(ranks[3], 4, 1).ok());
    EXPECT_EQ(LatestStep(ranks[0]), 4);
  }
}

TEST_F(SomeRanks, WriterAmongSoManyIsOneProcess) {
  for (const StartFrom from : kFrom) {
    SCOPED_TRACE(NameOf(from));
    LoseMemory();
    SetUp();
    ASSERT_TRUE(SaveAmong(ranks[1], 1, 0).ok());
    Restart(from);
    EXPECT_THAT(Begin(ranks[2], 2, 0),
                Fails(absl::StatusCode::kAlreadyExists, "writer: 0 of attempt 1"));
    EXPECT_TRUE(SaveAmong(ranks[1], 2, 0).ok());
    EXPECT_TRUE(SaveAmong(ranks[0], 2, 1).ok()) << "rank 0 is writer 1 here";
  }
}

TEST_F(SomeRanks, AStepHasOneNumberOfWriters) {
  ASSERT_TRUE(SaveAmong(ranks[1], 1, 0).ok());
  EXPECT_THAT(SaveOfAll(ranks[0], 1), Fails(absl::StatusCode::kInvalidArgument, "world_size 2"));
}

TEST_F(SomeRanks, ARankThatHasGoneOnAmongSomeIsNotWaitedForByAll) {
  for (const StartFrom from : kFrom) {
    SCOPED_TRACE(NameOf(from));
    LoseMemory();
    SetUp();
    AllSave(1);
    for (const Writer rank : {0, 2, 3}) ASSERT_TRUE(SaveOfAll(ranks[rank], 2).ok());
    EXPECT_FALSE(MayGo(2)) << "rank 1 may still come";
    ASSERT_TRUE(Begin(ranks[1], 3, 0).ok());
    Restart(from);
    EXPECT_TRUE(MayGo(2));
  }
}

TEST_F(SomeRanks, ARankThatHasGoneOnWithAllIsNotWaitedForAmongSome) {
  for (const bool all_have : {false, true}) {
    LoseMemory();
    SetUp();
    ASSERT_TRUE(SaveAmong(ranks[1], 2, 0).ok());
    ASSERT_TRUE(SaveAmong(ranks[3], 2, 1).ok());
    ASSERT_TRUE(SaveAmong(ranks[1], 3, 0).ok());
    ASSERT_TRUE(SaveOfAll(ranks[1], 4).ok());
    if (all_have) {
      ASSERT_TRUE(Create(ranks[3], PartOf(ranks[3], 4), {{"of 3", kPart}}).ok());
    }
    EXPECT_EQ(MayGo(3), all_have) << "rank 3 may still come, or has gone on";
  }
}

TEST_F(SomeRanks, ARankThatWithdrewBeforeItHeldAnythingIsNotWaitedFor) {
  AllSave(1);
  Withdraw(ranks[3], 2, 1);
  ASSERT_TRUE(SaveAmong(ranks[1], 2, 0).ok());
  EXPECT_TRUE(MayGo(2));
}

TEST_F(SomeRanks, AnotherProcessCannotWithdrawAPart) {
  ASSERT_TRUE(SaveAmong(ranks[1], 2, 0).ok());
  ASSERT_TRUE(SaveAmong(ranks[3], 2, 1).ok());
  ASSERT_TRUE(SaveAmong(ranks[1], 3, 0).ok());
  Withdraw(ranks[2], 3, 1);
  EXPECT_FALSE(MayGo(3));
}

TEST_F(SomeRanks, ARankThatEndedIsNotWaitedFor) {
  ASSERT_TRUE(SaveAmong(ranks[1], 2, 0).ok());
  ASSERT_TRUE(SaveAmong(ranks[3], 2, 1).ok());
  ASSERT_TRUE(SaveAmong(ranks[1], 3, 0).ok());
  Die(ranks[3]);
  EXPECT_TRUE(MayGo(3));
}

// As where a test, or a thread for each device, has several ranks in one process.
TEST_F(SomeRanks, RanksOfOneProcessAreWaitedForOneByOne) {
  for (const StartFrom from : kFrom) {
    SCOPED_TRACE(NameOf(from));
    LoseMemory();
    SessionId one = Rank(1, "together"), three = Rank(3, "together");
    ranks[0] = one;
    ASSERT_TRUE(SaveAmong(one, 1, 0).ok());
    ASSERT_TRUE(SaveAmong(three, 1, 1).ok());
    ASSERT_TRUE(SaveAmong(three, 2, 1).ok());
    ASSERT_TRUE(Begin(three, 3, 1).ok());
    Restart(from);
    EXPECT_FALSE(MayGo(2)) << "rank 1 has not gone on";
    ASSERT_TRUE(Begin(one, 3, 0).ok());
    EXPECT_TRUE(MayGo(2));
  }
}

}  // namespace
}  // namespace cairn::engine
