// What a create may cost the journal, and what the journal is told of a part.
#include "server/engine/journal_room.h"

#include "absl/strings/str_cat.h"
#include "tests/engine/engine_fixture.h"

namespace cairn::engine {
namespace {

class JournalRoomTest : public EngineTest {
 protected:
  uint64_t BytesOf(const std::vector<Fact>& facts) const {
    uint64_t bytes = 0;
    for (const Fact& fact : facts) bytes += 4 + EncodeFact(fact).size();
    return bytes;
  }
  std::vector<Spec> Many(int count) const {
    std::vector<Spec> specs;
    for (int i = 0; i < count; ++i) specs.push_back({absl::StrCat("layer/", i), 64});
    return specs;
  }
};

// R38, promise 8: a million names are refused before anything is made of them.
TEST_F(JournalRoomTest, ACreateThatMayNotFitIsRefusedWithTheArithmetic) {
  const SessionId session = Hello();
  engine->SetJournalRoom(100'000, 1'000'000);
  EXPECT_THAT(StatusOf(Create(session, PartOf(session, 1), Many(3000))),
              Fails(absl::StatusCode::kResourceExhausted, "that one user may have"));
  // What can never fit memory is refused for that.
  EXPECT_THAT(StatusOf(Create(session, PartOf(session, 2), {{"a", uint64_t{1} << 48}})),
              Fails(absl::StatusCode::kResourceExhausted, "never fit the budget"));
  EXPECT_TRUE(Create(session, PartOf(session, 1), Many(100)).ok());
}

// What is admitted can be committed, whatever others have made of the journal since.
TEST_F(JournalRoomTest, WhatWasAdmittedCommitsInAFullJournal) {
  const SessionId session = Hello();
  engine->SetJournalRoom(0, 1'000'000);
  const std::vector<Spec> specs = Many(100);
  ASSERT_TRUE(Create(session, PartOf(session, 1), specs).ok());
  engine->SetJournalRoom(990'000, 1'000'000);
  EXPECT_THAT(StatusOf(Create(session, PartOf(session, 2), {{"a"}})),
              Fails(absl::StatusCode::kResourceExhausted, "set aside for what is being written"));
  EXPECT_THAT(StatusOf(Open(session, 1)),
              Fails(absl::StatusCode::kResourceExhausted, "journal: this call"));
  EXPECT_TRUE(Commit(session, PartOf(session, 1), specs).ok());
}

TEST_F(JournalRoomTest, WhatIsSetAsideIsNoLessThanWhatIsSaid) {
  for (const bool takes_fds : {true, false}) {
    Who who;
    who.takes_fds = takes_fds;
    who.job = std::string(takes_fds ? 100 : 90, 'j');
    const SessionId session = Hello(who);
    for (const int count : {0, 1, 50}) {
      std::vector<Spec> specs = Many(count);
      if (count > 1)
        specs.push_back(
            {absl::StrCat(std::string(180, 'n'), "/", std::string(190, 'm')), 9 * kMiB});
      const PartKey part = PartOf(session, count);
      const uint64_t set_aside = JournalRoom::CostOf(CreateOf(session, part, specs), true);
      const size_t before = journal.size();
      if (count > 0) {
        ASSERT_TRUE(Create(session, part, specs).ok());
        std::vector<event::Seal> seals;
        for (const Spec& spec : specs) seals.push_back(SealOf(spec));
        Apply(event::SealObjects{From(session), ++last_call, part, seals});
      }
      ASSERT_TRUE(Commit(session, part, specs).ok());
      EXPECT_LE(BytesOf({journal.begin() + static_cast<ptrdiff_t>(before), journal.end()}),
                set_aside)
          << count;
    }
  }
}

// What is set aside comes back, whatever becomes of the step.
TEST_F(JournalRoomTest, NothingStaysSetAside) {
  engine->SetJournalRoom(0, 60'000);
  for (int i = 0; i < 200; ++i) {
    const SessionId session = Hello({.attempt = i + 1});
    ASSERT_TRUE(Create(session, PartOf(session, 1), Many(10)).ok()) << i;
    if (i % 3 == 0) {
      ASSERT_TRUE(Commit(session, PartOf(session, 1), Many(10)).ok());
    } else if (i % 3 == 1) {
      Apply(event::Abort{From(session), PartOf(session, 1)});
    }
    Die(session);
  }
}

// Creates in batches: the first says what is to come, and all of it is refused or set aside with it.
TEST_F(JournalRoomTest, WhatIsToComeIsAdmittedWithTheFirstCreate) {
  const SessionId session = Hello();
  engine->SetJournalRoom(0, 1'000'000);
  const std::vector<Spec> specs = Many(300);
  const PartKey part = PartOf(session, 1);
  event::Create first = CreateOf(session, part, {specs.begin(), specs.begin() + 100});
  first.to_come = {.objects = 200, .bytes = 200 * kPageBytes, .name_bytes = 200 * 9};
  Apply(first);
  ASSERT_TRUE(Take<reply::Create>(first.caller.request).ok());
  engine->SetJournalRoom(890'000, 1'000'000);
  EXPECT_THAT(StatusOf(Create(session, PartOf(session, 2), {{"a"}})),
              Fails(absl::StatusCode::kResourceExhausted, "set aside for what is being written"));
  EXPECT_TRUE(Create(session, part, {specs.begin() + 100, specs.begin() + 200}).ok());
  EXPECT_TRUE(Create(session, part, {specs.begin() + 200, specs.end()}).ok());
  EXPECT_THAT(StatusOf(Create(session, part, {{"one too many"}})),
              Fails(absl::StatusCode::kResourceExhausted, "journal: this create"));
  EXPECT_TRUE(Commit(session, part, specs).ok());
}

// What was set aside for a create that ended without being granted is there for the next.
TEST_F(JournalRoomTest, ACreateThatWasNotGrantedLeavesWhatWasSetAside) {
  const SessionId session = Hello();
  engine->SetJournalRoom(0, 1'000'000);
  const std::vector<Spec> specs = Many(300);
  const std::vector<Spec> begun(specs.begin(), specs.begin() + 100);
  const std::vector<Spec> rest(specs.begin() + 100, specs.end());
  const PartKey part = PartOf(session, 1);
  event::Create first = CreateOf(session, part, begun);
  first.to_come = {.objects = 200, .bytes = 200 * kPageBytes, .name_bytes = 200 * 9};
  Apply(first);
  ASSERT_TRUE(Take<reply::Create>(first.caller.request).ok());
  engine->SetJournalRoom(890'000, 1'000'000);
  hold_makes = true;
  const event::Create waits = CreateOf(session, part, {{"large", 4 * kMiB}});
  Apply(waits);
  EXPECT_FALSE(Answered(waits.caller.request));
  manifest_status = absl::DataLossError("a page is gone");
  EXPECT_FALSE(Commit(session, part, begun).ok());
  manifest_status = absl::OkStatus();
  EXPECT_FALSE(AnswerTo(waits.caller.request).ok());
  hold_makes = false;
  EXPECT_TRUE(Create(session, part, rest).ok());
}

TEST_F(JournalRoomTest, WhatIsToComeIsRefusedAtOnceWhenItMayNotFit) {
  const SessionId session = Hello();
  engine->SetJournalRoom(0, 1'000'000);
  Step step = 0;
  const auto ask = [&](const event::ToCome& to_come) {
    event::Create create = CreateOf(session, PartOf(session, ++step), {{"a"}});
    create.to_come = to_come;
    Apply(create);
    return Take<reply::Create>(create.caller.request).status();
  };
  EXPECT_THAT(ask({.objects = 100'000, .name_bytes = 6'000'000}),
              Fails(absl::StatusCode::kResourceExhausted, "that one user may have"));
  EXPECT_THAT(ask({.objects = 1, .bytes = uint64_t{1} << 47}),
              Fails(absl::StatusCode::kResourceExhausted, "never fit the budget"));
  engine->SetJournalRoom(0, 0);
  EXPECT_THAT(ask({.objects = uint64_t{1} << 47}),
              Fails(absl::StatusCode::kResourceExhausted, "exceed the limit"));
  EXPECT_TRUE(ask({.objects = 10, .bytes = 10 * kPageBytes}).ok());
}

// It comes back with the part, also when the rest never comes.
TEST_F(JournalRoomTest, WhatNeverComesDoesNotStaySetAside) {
  engine->SetJournalRoom(0, 200'000);
  for (int i = 0; i < 50; ++i) {
    const SessionId session = Hello({.attempt = i + 1});
    const PartKey part = PartOf(session, 1);
    event::Create create = CreateOf(session, part, Many(10));
    create.to_come = {.objects = 200, .bytes = 200 * kPageBytes, .name_bytes = 2000};
    Apply(create);
    ASSERT_TRUE(Take<reply::Create>(create.caller.request).ok()) << i;
    if (i % 3 == 0) {
      ASSERT_TRUE(Commit(session, part, Many(10)).ok());
    } else if (i % 3 == 1) {
      Apply(event::Abort{From(session), part});
    }
    Die(session);
  }
}

// A provisional seal is a part of the commit that follows: no fact says it, and a daemon's death forgets
// it.
TEST_F(JournalRoomTest, AProvisionalSealCostsNothingAndMayBeBroughtAgain) {
  const SessionId session = Hello();
  const PartKey part = PartOf(session, 1);
  ASSERT_TRUE(Create(session, part, {{"a"}, {"b"}}).ok());
  const auto seal = [&] {
    event::SealObjects seals{From(session), ++last_call, part, {SealOf({"a"})}, true};
    Apply(seals);
    return AnswerTo(seals.caller.request).status();
  };
  const size_t before = journal.size();
  EXPECT_TRUE(seal().ok());
  EXPECT_EQ(journal.size(), before);
  Restart();
  EXPECT_THAT(StatusOf(Commit(session, part, {{"b"}})),
              Fails(absl::StatusCode::kInvalidArgument, "\"a\" of"));
  EXPECT_TRUE(seal().ok());
  EXPECT_TRUE(Commit(session, part, {{"b"}}).ok());
}

// A commit costs the same, whatever the part holds.
TEST_F(JournalRoomTest, ACommittedPartCostsOneFact) {
  const SessionId session = Hello();
  ASSERT_TRUE(Create(session, PartOf(session, 1), Many(1000)).ok());
  const size_t before = journal.size();
  ASSERT_TRUE(Commit(session, PartOf(session, 1), Many(1000)).ok());
  EXPECT_LE(journal.size(), before + 3) << "and slabs that are made meanwhile";
  EXPECT_LT(BytesOf(engine->Snapshot()), 2000u);
}

TEST_F(JournalRoomTest, ASealRepeatedAfterTheCommitIsAnswered) {
  const SessionId session = Hello();
  const PartKey part = PartOf(session, 1);
  ASSERT_TRUE(Create(session, part, {{"model"}}).ok());
  ASSERT_TRUE(Commit(session, part, {{"model"}}).ok());
  event::SealObjects seal{From(session), ++last_call, part, {SealOf({"model"})}};
  Apply(seal);
  EXPECT_TRUE(AnswerTo(seal.caller.request).ok());
}

// A commit that brings its seals says no fact of them; a seal that is acknowledged does.
TEST_F(JournalRoomTest, AnAcknowledgedSealOutlivesTheDaemonAfterAFailedCommit) {
  const SessionId session = Hello();
  const PartKey part = PartOf(session, 1);
  ASSERT_TRUE(Create(session, part, {{"model"}}).ok());
  manifest_status = absl::DataLossError("a page is gone");
  ASSERT_FALSE(Commit(session, part, {{"model"}}).ok());
  manifest_status = absl::OkStatus();
  event::SealObjects seal{From(session), ++last_call, part, {SealOf({"model"})}};
  Apply(seal);
  ASSERT_TRUE(AnswerTo(seal.caller.request).ok());
  Restart();
  EXPECT_TRUE(Commit(session, part, {}).ok());
}

// However many parts an event changes, the recorder is told of so many of them, and of the others in
// events to come.
TEST_F(JournalRoomTest, AnEventTellsTheRecorderOfAFewParts) {
  check_every = 16;
  constexpr int32_t kWriters = 400;
  options.storage = true;
  Restart();
  SessionId session = 0;
  for (Writer writer = 0; writer < kWriters; ++writer) {
    session = Hello({.writer = writer, .world_size = kWriters, .attempt = 1});
    ASSERT_TRUE(TrySave(session, 1, {{absl::StrCat("rank", writer), 64}}).ok());
  }
  Apply(event::PersistNow{From(session), {"job", 1}});
  Outcome outcome = engine->Apply(
      now, event::Remove{From(session), {"job", 1}, /*memory_only=*/true, false, Soon()});
  size_t parts = 0;
  for (const Action& action : outcome.actions) {
    if (const auto* record = std::get_if<action::Record>(&action)) parts += record->parts.size();
  }
  EXPECT_LE(parts, 256u);
  EXPECT_GT(parts, 0u);
  Carry(std::move(outcome));
}

// Its record is lost with the daemon's death; the repeated commit, without its seals, is not one of a
// writer with nothing to save.
TEST_F(JournalRoomTest, ACommitRepeatedAfterItsRecordWasLostIsRefused) {
  for (const bool flipped : {false, true}) {
    const SessionId session = Hello({.job = flipped ? "flipped" : "gone"});
    const PartKey part = PartOf(session, 1);
    ASSERT_TRUE(Create(session, part, {{"model"}}).ok());
    ASSERT_TRUE(Commit(session, part, {{"model"}}).ok());
    auto& [at, record] = *manifests.rbegin();
    if (flipped) record[40] ^= 1;
    if (!flipped) keeper.erase(at.first);
    Restart();
    EXPECT_THAT(StatusOf(Commit(session, part, {})),
                Fails(absl::StatusCode::kFailedPrecondition, "was dropped with its objects"));
    manifests.clear();
  }
}

// A checkpoint of empty parts holds no bytes, and goes for a full journal all the same.
TEST_F(JournalRoomTest, EmptyCheckpointsAreGivenUpForAFullJournal) {
  const SessionId session = Hello();
  for (Step step = 1; step <= 20; ++step) {
    ASSERT_TRUE(Commit(session, PartOf(session, step), {}).ok());
  }
  const size_t before = engine->Snapshot().size();
  Apply(event::JournalFull{true});
  Apply(event::JournalFull{false});
  EXPECT_LT(engine->Snapshot().size(), before - 10);
  EXPECT_EQ(LatestStep(session), 20);
}

// The journal does not fill with jobs that are over.
TEST_F(JournalRoomTest, AJobThatIsOverIsForgotten) {
  for (const bool storage : {false, true}) {
    options.storage = storage;
    Restart();
    const size_t before = engine->Snapshot().size();
    for (int i = 0; i < 5; ++i) {
      Who who;
      who.job = absl::StrCat("job-", storage, "-", i);
      const SessionId session = Hello(who);
      ASSERT_TRUE(Commit(session, PartOf(session, 1), {}).ok());
      event::Remove remove{From(session), {who.job, 1}, false, /*force=*/true, Soon()};
      Apply(remove);
      ASSERT_TRUE(AnswerTo(remove.caller.request).ok()) << AnswerTo(remove.caller.request).status();
      Die(session);
    }
    EXPECT_GT(engine->Snapshot().size(), before + 5);
    for (int i = 0; i < 50; ++i) {  // looked at now and then, and kept once
      Die(Hello({.job = absl::StrCat("job-", storage, "-0"), .writer = -1, .attempt = 0}));
      Advance(kNanosPerSecond);
    }
    Advance(450 * kNanosPerSecond);
    EXPECT_GT(engine->Snapshot().size(), before + 5) << "a launcher may start it again";
    Advance(1500 * kNanosPerSecond);
    EXPECT_LE(engine->Snapshot().size(), before + 1);
    for (const StartFrom from : kFrom) {
      Restart(from);
      EXPECT_LE(engine->Snapshot().size(), before + 1);
    }
    stored_uid = 2000;
    const SessionId again =
        Hello({.job = absl::StrCat("job-", storage, "-1"), .attempt = 9, .uid = 2000});
    EXPECT_TRUE(Commit(again, PartOf(again, 1), {}).ok()) << "the name is free again";
    Die(again);
  }
}

// Its tombstone is still to be written: until then only the journal knows that the step was removed.
TEST_F(JournalRoomTest, AJobWhoseDeletionIsUnderWayIsKept) {
  options.storage = true;
  Restart();
  const SessionId session = Hello({.policy = JobPolicy{.mode = PersistMode::kEvery}});
  ASSERT_TRUE(Create(session, PartOf(session, 1), {{"model"}}).ok());
  ASSERT_TRUE(Commit(session, PartOf(session, 1), {{"model"}}).ok());
  hold_deletes = true;
  Apply(event::Remove{From(session), {"job", 1}, false, /*force=*/true, Soon()});
  ASSERT_EQ(deletes.size(), 1u);
  Die(session);
  Advance(3000 * kNanosPerSecond);
  const auto jobs = [&] {
    const std::vector<Fact> facts = engine->Snapshot();
    return std::count_if(facts.begin(), facts.end(),
                         [](const Fact& fact) { return std::holds_alternative<fact::Job>(fact); });
  };
  EXPECT_EQ(jobs(), 1);
  Apply(event::FilesDeleted{deletes[0].checkpoint, absl::OkStatus()});
  Advance(3000 * kNanosPerSecond);
  EXPECT_EQ(jobs(), 0);
}

// R35: what only storage has costs nothing for what it holds.
TEST_F(JournalRoomTest, TablesOfWhatOnlyStorageHasAreReadWhenSomebodyAsks) {
  options.storage = true;
  Restart();
  const SessionId session = Hello({.policy = JobPolicy{.mode = PersistMode::kEvery}});
  const auto save = [&](Step step) {
    const PartKey part = PartOf(session, step);
    ASSERT_TRUE(Create(session, part, {{"model", 20 * kMiB}}).ok());
    ASSERT_TRUE(Commit(session, part, {{"model", 20 * kMiB}}).ok());
  };
  for (Step step = 1; step <= 8; ++step) save(step);
  EXPECT_TRUE(table_reads.empty());
  const StatusOr<CheckpointInfo> info = Stat(session, 1);
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->objects, 1u);
  EXPECT_EQ(info->bytes, 20 * kMiB);
  EXPECT_TRUE(table_reads.empty()) << "a summary does for that";
  for (Step step = 1; step <= 5; ++step) {
    ASSERT_TRUE(OpenStored(session, step).ok()) << step;
    EXPECT_EQ(table_reads.size(), static_cast<size_t>(step));
  }
  EXPECT_TRUE(OpenStored(session, 5).ok());
  EXPECT_EQ(table_reads.size(), 5u) << "those of the last few are kept";
  EXPECT_TRUE(OpenStored(session, 1).ok());
  EXPECT_EQ(table_reads.size(), 6u) << "others are not";
  scan_status = absl::UnavailableError("stale file handle");
  EXPECT_THAT(StatusOf(OpenStored(session, 2)),
              Fails(absl::StatusCode::kUnavailable, "stale file handle"));
}

// What fills the journal may be lives, leases or what was removed.
TEST_F(JournalRoomTest, NoStepIsGivenUpWhereThatMakesNoRoom) {  // promise 3
  const SessionId session = Hello();
  for (Step step = 1; step <= 100; ++step) Save(session, step, {{"model", 4096}});
  const SessionId other = Hello({.job = "other", .uid = 1001});
  const event::Create create = CreateOf(other, PartOf(other, 1), {{"model", 4096}});
  engine->SetJournalRoom(990'000, 1'000'000);
  EXPECT_EQ(engine->JournalHelpFor(create), Engine::JournalHelp::kSnapshot);
  Apply(event::JournalFull{true});
  EXPECT_TRUE(Stat(session, 1).ok());
  engine->SetJournalRoom(905'000, 1'000'000);
  EXPECT_EQ(engine->JournalHelpFor(create), Engine::JournalHelp::kLetGo);
  Apply(event::JournalFull{true});
  EXPECT_FALSE(Stat(session, 1).ok());
}

// --- steps without objects

// Their records would fill memory, and no create asks for that.
TEST_F(JournalRoomTest, StepsWithoutObjectsLeaveMemoryToOthers) {
  for (const bool storage : {false, true}) {
    options.budget_bytes = kMiB;
    options.storage = storage;
    Restart();
    const SessionId session = Hello({.job = storage ? "stored" : "job"});
    for (Step step = 1; step < 350; ++step) {
      const Status committed = Commit(session, PartOf(session, step), {}).status();
      ASSERT_TRUE(committed.ok()) << step << ": " << committed;
    }
    const SessionId other = Hello({.job = storage ? "another" : "other"});
    const Status saved = TrySave(other, 1, {{"model", kMiB / 2}});
    EXPECT_TRUE(saved.ok()) << saved;
    const auto latest = Latest(session);
    ASSERT_TRUE(latest.ok()) << latest.status();
    EXPECT_EQ(latest->key.step, 349);
    Die(session);
    Die(other);
  }
}

}  // namespace
}  // namespace cairn::engine
