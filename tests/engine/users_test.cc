// One file: what each user may have of memory, slabs, jobs and the journal, and what that leaves to others.
#include "tests/engine/engine_fixture.h"

namespace cairn::engine {
namespace {

constexpr uint32_t kGreedy = 2000, kOther = 3000;

class Users : public EngineTest {
 protected:
  void SetUp() override {
    options.budget_bytes = 100 * kMiB;
    EngineTest::SetUp();
  }
  // Steps of one job that no process maps any more.
  void SaveAndLeave(uint32_t uid, const std::string& job, Step last) {
    for (Step step = 1; step <= last; ++step) {
      const SessionId session = Hello({.job = job, .attempt = step, .uid = uid});
      Save(session, step, {{"model", 4 * kMiB}});
      Die(session);
      Advance(kNanosPerSecond);
    }
  }
  SessionId HelloOf(uint32_t uid, const std::string& job) {
    return Hello({.job = job, .uid = uid});
  }
  // Jobs of one step each, which is the newest of its job: none of them can be given up. What the last
  // one was answered.
  Status FillWithNewest(uint32_t uid, uint64_t bytes, int most) {
    for (int i = 0; i < most; ++i) {
      const SessionId session = HelloOf(uid, absl::StrCat("greedy-", i));
      event::Create create = CreateOf(session, PartOf(session, 1), {{"model", bytes}});
      Apply(create);
      if (!Answered(create.caller.request)) Advance(11 * kNanosPerSecond);  // to its deadline
      const Status status = AnswerTo(create.caller.request).status();
      if (!status.ok()) return status;
      EXPECT_TRUE(Commit(session, PartOf(session, 1), {{"model", bytes}}).ok());
    }
    return absl::OkStatus();
  }
  Status Remove(SessionId session, const std::string& job, Step step) {
    const event::Remove remove{From(session), {job, step}, false, /*force=*/true, Soon()};
    Apply(remove);
    return AnswerTo(remove.caller.request).status();
  }
  Status Abort(SessionId session, const PartKey& part) {
    const event::Abort abort{From(session), part};
    Apply(abort);
    return AnswerTo(abort.caller.request).status();
  }
  Status PinIt(SessionId session, Step step) {
    event::Pin pin;
    pin.caller = From(session);
    pin.ref.job = sessions.at(session).job;
    pin.ref.step = step;
    Apply(pin);
    return AnswerTo(pin.caller.request).status();
  }
};

TEST_F(Users, WhatCannotBeTakenFromOneLeavesRoomForOthers) {
  const Status refused = FillWithNewest(kGreedy, 4 * kMiB, 30);
  EXPECT_THAT(refused, Fails(absl::StatusCode::kResourceExhausted, "uid 2000 may have"));
  const SessionId other = HelloOf(kOther, "other");
  Save(other, 1, {{"model", 4 * kMiB}});
}

TEST_F(Users, AUsersShareOutlivesHisProcessesAndTheDaemon) {
  EXPECT_FALSE(FillWithNewest(kGreedy, 4 * kMiB, 30).ok());
  const std::map<SessionId, Who> all = sessions;
  for (const auto& [session, who] : all) Die(session);
  Advance(2 * kNanosPerSecond);
  Restart();
  EXPECT_FALSE(FillWithNewest(kGreedy, 8 * kMiB, 4).ok());
  Save(HelloOf(kOther, "other"), 1, {{"model", 4 * kMiB}});
}

TEST_F(Users, WhatIsBeingMadeCounts) {
  hold_makes = true;
  for (int i = 0; i < 30; ++i) {
    const SessionId session = HelloOf(kGreedy, absl::StrCat("greedy-", i));
    Apply(CreateOf(session, PartOf(session, 1), {{"model", 4 * kMiB}}));
  }
  uint64_t made = 0;
  for (const action::MakeSlab& make : makes) {
    if (make.use == fact::SlabUse::kObjects) made += make.bytes;
  }
  EXPECT_LE(made, 93 * kMiB);
  EXPECT_GT(made, 80 * kMiB);
}

TEST_F(Users, WhoRunsTheDaemonMayHaveAll) {
  options.own_uid = kGreedy;
  Restart();
  EXPECT_TRUE(FillWithNewest(kGreedy, 4 * kMiB, 24).ok());
}

TEST_F(Users, AStepThatIsMoreThanOneMayHaveIsRefusedAtOnce) {
  const SessionId session = HelloOf(kGreedy, "greedy");
  EXPECT_THAT(StatusOf(Create(session, PartOf(session, 1), {{"model", 95 * kMiB}})),
              Fails(absl::StatusCode::kResourceExhausted, "what one user may have"));
}

TEST_F(Users, OldStepsAreGivenUpForTheUsersNextOnes) {
  SaveAndLeave(kGreedy, "greedy", 60);
  const SessionId reader = Hello({.job = "greedy", .writer = -1, .attempt = 0, .uid = kGreedy});
  EXPECT_TRUE(Stat(reader, 60).ok());
  EXPECT_TRUE(Stat(reader, 40).ok());
  EXPECT_FALSE(Stat(reader, 37).ok());
  Save(HelloOf(kOther, "other"), 1, {{"model", 4 * kMiB}});
}

TEST_F(Users, WhatAProcessMapsCannotBeTakenFromIt) {
  const SessionId session = HelloOf(kGreedy, "greedy");
  for (Step step = 1; step <= 40; ++step) Save(session, step, {{"model", 4 * kMiB}});
  for (Step step = 41; step <= 80; ++step) Save(session, step, {{"model", 3 * kMiB}});
  Save(HelloOf(kOther, "other"), 1, {{"model", 4 * kMiB}});
}

// Whatever becomes of it later: pinned, leased, the newest of its job by the removal of another.
TEST_F(Users, WhatMayBeKeptLaterCountsFromTheBeginning) {
  SaveAndLeave(kGreedy, "greedy", 24);
  const SessionId session = Hello({.job = "greedy", .writer = -1, .attempt = 0, .uid = kGreedy});
  int kept = 0;
  for (Step step = 1; step <= 24; ++step) {
    if (PinIt(session, step).ok() && Open(session, step).ok()) ++kept;
  }
  EXPECT_GT(kept, 15);
  Save(HelloOf(kOther, "other"), 1, {{"model", 4 * kMiB}});
}

// What is being unmapped and probed comes back: nothing more is given up for it meanwhile.
TEST_F(Users, NoMoreIsGivenUpThanIsNeeded) {
  const SessionId session = HelloOf(kGreedy, "greedy");
  for (Step step = 1; step <= 9; ++step) Save(session, step, {{"model", 10 * kMiB}});
  hold_probes = true;
  const PartKey part = PartOf(session, 10);
  event::Create create = CreateOf(session, part, {{"model", 14 * kMiB}});
  create.deadline = now + 60 * kNanosPerSecond;
  for (int round = 0; round < 4; ++round) {
    Apply(create);
    const auto reply = Take<reply::Create>(create.caller.request);
    if (!reply.ok() || reply->retire.empty()) break;
    for (SlabId slab : reply->retire) unmapped[session].push_back(slab);
    create = CreateOf(session, part, {{"model", 14 * kMiB}});
    create.deadline = now + 60 * kNanosPerSecond;
  }
  Advance(kNanosPerSecond);
  for (Step step = 4; step <= 9; ++step) EXPECT_TRUE(Stat(session, step).ok()) << step;
  hold_probes = false;
  for (const action::ProbeSlab& probe : std::exchange(probes, {})) Apply(Probe(probe));
  Advance(kNanosPerSecond);
  EXPECT_TRUE(AnswerTo(create.caller.request).ok());
}

TEST_F(Users, AWriterWithoutObjectsCommitsWhenOldStepsFillTheJournal) {
  check_every = 16;
  engine->SetJournalRoom(0, 100'000);
  const SessionId session = HelloOf(kGreedy, "greedy");
  for (Step step = 1; step <= 1000; ++step) Save(session, step, {{"model", 4096}});
  const SessionId second = HelloOf(kGreedy, "second");
  EXPECT_TRUE(Commit(second, PartOf(second, 1), {}).ok());
}

// One writer maps what another one needs: both ask, and do what they are told.
TEST_F(Users, WritersOfAJobMakeRoomForEachOther) {
  const SessionId a =
      Hello({.job = "j", .writer = 0, .world_size = 2, .local_writers = 2, .uid = kGreedy});
  const SessionId b =
      Hello({.job = "j", .writer = 1, .world_size = 2, .local_writers = 2, .uid = kGreedy});
  const std::vector<std::pair<uint64_t, uint64_t>> sizes = {{18, 18}, {18, 18}, {20, 16}, {16, 20},
                                                            {18, 18}, {5, 28},  {28, 5},  {18, 18}};
  for (size_t i = 0; i < sizes.size(); ++i) {
    const Step step = static_cast<Step>(i) + 1;
    std::map<SessionId, std::vector<Spec>> to_save = {{a, {{"a", sizes[i].first * kMiB}}},
                                                      {b, {{"b", sizes[i].second * kMiB}}}};
    std::map<SessionId, RequestId> requests;
    for (int round = 0; round < 8 && !to_save.empty(); ++round) {
      for (const auto& [session, specs] : std::map(to_save)) {
        if (!requests.contains(session)) {
          const event::Create create = CreateOf(session, PartOf(session, step), specs);
          Apply(create);
          requests[session] = create.caller.request;
        }
        if (!Answered(requests.at(session)))
          continue;  // until the other one has unmapped something
        const auto reply = Take<reply::Create>(requests.at(session));
        ASSERT_TRUE(reply.ok()) << step << ": " << reply.status();
        requests.erase(session);
        for (SlabId slab : reply->retire) unmapped[session].push_back(slab);
        if (reply->extents.empty()) continue;
        ASSERT_TRUE(Commit(session, PartOf(session, step), specs).ok());
        to_save.erase(session);
      }
    }
    ASSERT_TRUE(to_save.empty()) << step;
  }
}

// Names of objects that hold nothing fill the slabs of manifests.
TEST_F(Users, NamesOfEmptyObjectsCountAgainstTheShare) {
  options.budget_bytes = 16 * kMiB;
  Restart();
  std::vector<Spec> specs;
  for (int i = 0; i < 500; ++i) {
    specs.push_back({absl::StrCat(std::string(100, 'x'), "/", std::string(100, 'y'), i), 0});
  }
  Status status;
  for (int i = 0; i < 300 && status.ok(); ++i) {
    const SessionId session = HelloOf(kGreedy, absl::StrCat("greedy-", i));
    const event::Create create = CreateOf(session, PartOf(session, 1), specs);
    Apply(create);
    if (!Answered(create.caller.request)) Advance(11 * kNanosPerSecond);
    status = AnswerTo(create.caller.request).status();
    if (status.ok()) status = Commit(session, PartOf(session, 1), specs).status();
  }
  EXPECT_THAT(status, Fails(absl::StatusCode::kResourceExhausted, "uid 2000 may have"));
  Save(HelloOf(kOther, "other"), 1, {{"model", 512 << 10}});
}

TEST_F(Users, ACreateThatIsRefusedGivesUpNobodysSteps) {
  options.max_slabs = 256;
  Restart();
  const SessionId other = HelloOf(kOther, "other");
  for (Step step = 1; step <= 50; ++step) Save(other, step, {{"model", 4096}});
  const SessionId greedy = HelloOf(kGreedy, "greedy");
  std::vector<Spec> specs;
  for (int i = 0; i < 200; ++i) specs.push_back({absl::StrCat("o", i), 2 * kMiB});
  EXPECT_FALSE(Create(greedy, PartOf(greedy, 1), specs).ok());
  for (Step step = 1; step <= 50; ++step) EXPECT_TRUE(Stat(other, step).ok()) << step;
}

TEST_F(Users, AtTheLimitOfSlabsSessionsUseTheirOwnAgain) {
  options.max_slabs = 64;
  options.own_uid = kGreedy;
  Restart();
  const SessionId greedy = HelloOf(kGreedy, "greedy"), other = HelloOf(kOther, "other");
  for (Step step = 1; step <= 100; ++step) {
    Save(greedy, step, {{"model", 4096}});
    if (step <= 10) Save(other, step, {{"model", 4096}});
  }
}

// A new job of a user whose old steps fill his part of the journal.
TEST_F(Users, OldStepsMakeRoomInTheJournalForANewJob) {
  check_every = 16;
  engine->SetJournalRoom(0, 100'000);
  const SessionId session = HelloOf(kGreedy, "greedy");
  for (Step step = 1; step <= 1000; ++step) Save(session, step, {{"model", 4096}});
  Save(HelloOf(kGreedy, "new"), 1, {{"model", 4096}});
  // Nothing is given up for what cannot fit at all.
  std::vector<Spec> specs;
  for (int i = 0; i < 2000; ++i) specs.push_back({absl::StrCat("o", i), 1});
  const auto before = Status_().jobs.size();
  EXPECT_FALSE(Create(session, PartOf(session, 1001), specs).ok());
  EXPECT_TRUE(Stat(session, 990).ok());
  EXPECT_EQ(Status_().jobs.size(), before);
}

TEST_F(Users, PartsWithoutObjectsCostTheJournalToo) {
  check_every = 16;
  engine->SetJournalRoom(0, 100'000);
  Status status;
  for (int i = 0; i < 2000 && status.ok(); ++i) {
    const SessionId session = HelloOf(kGreedy, absl::StrCat("greedy-", i));
    status = Commit(session, PartOf(session, 1), {}).status();
  }
  EXPECT_THAT(status, Fails(absl::StatusCode::kResourceExhausted, "that one user may have"));
}

TEST_F(Users, WhoHoldsMoreThanHisShareGivesUpFirst) {
  const SessionId other = HelloOf(kOther, "other");
  for (Step step = 1; step <= 3; ++step) Save(other, step, {{"model", 4 * kMiB}});
  const SessionId greedy = HelloOf(kGreedy, "greedy");
  for (Step step = 1; step <= 60; ++step) Save(greedy, step, {{"model", 4 * kMiB}});
  for (Step step = 1; step <= 3; ++step) EXPECT_TRUE(Stat(other, step).ok()) << step;
}

// Also when the steps of others are older, and it is a third one who needs the room.
TEST_F(Users, AThirdOnesRoomComesFromWhoHoldsTheMost) {
  SaveAndLeave(kOther, "other", 3);
  SaveAndLeave(kGreedy, "greedy", 21);
  const SessionId third = HelloOf(4000, "third");
  Save(third, 1, {{"model", 12 * kMiB}});
  const SessionId reader = Hello({.job = "other", .writer = -1, .attempt = 0, .uid = kOther});
  for (Step step = 1; step <= 3; ++step) EXPECT_TRUE(Stat(reader, step).ok()) << step;
}

// What sessions of one user keep mapped does not come back by itself.
TEST_F(Users, MappedMemoryOfOtherJobsOfTheUserIsAskedFor) {
  const SessionId first = HelloOf(kGreedy, "first");
  for (Step step = 1; step <= 22; ++step) Save(first, step, {{"model", 4 * kMiB}});
  const SessionId second = HelloOf(kGreedy, "second");
  event::Create create = CreateOf(second, PartOf(second, 1), {{"model", 16 * kMiB}});
  create.deadline = now + 60 * kNanosPerSecond;
  Apply(create);
  for (Step step = 23; step <= 30 && !Answered(create.caller.request); ++step) {
    Save(first, step, {{"model", 4 * kMiB}});
    Advance(kNanosPerSecond);
  }
  EXPECT_TRUE(AnswerTo(create.caller.request).ok()) << AnswerTo(create.caller.request).status();
}

TEST_F(Users, SlabsAreLimited) {
  options.max_slabs = 80;
  Restart();
  const Status refused = FillWithNewest(kGreedy, 4096, 80);
  EXPECT_THAT(refused, Fails(absl::StatusCode::kResourceExhausted, "and holds 60 slabs"));
  Save(HelloOf(kOther, "other"), 1, {{"model", 4096}});
}

TEST_F(Users, StepsAreGivenUpForSlabs) {
  options.max_slabs = 64;
  Restart();
  const SessionId session = HelloOf(kGreedy, "greedy");
  for (Step step = 1; step <= 300; ++step) {
    Save(session, step, {{"model", 4096}});
    Advance(kNanosPerSecond);
    ASSERT_LE(keeper.size(), 64u);
  }
}

TEST_F(Users, JobsAreLimited) {
  options.max_jobs = 20;
  Restart();
  const Status refused = FillWithNewest(kGreedy, 4096, 20);
  EXPECT_THAT(refused, Fails(absl::StatusCode::kResourceExhausted, "jobs: uid 2000 has 15"));
  Save(HelloOf(kOther, "other"), 1, {{"model", 4096}});
  Restart();
  EXPECT_FALSE(FillWithNewest(kGreedy, 4096, 20).ok());
}

TEST_F(Users, WhatStepsInMemoryCostTheJournalIsLimited) {
  engine->SetJournalRoom(0, 100'000);
  const Status refused = FillWithNewest(kGreedy, 4096, 1000);
  EXPECT_THAT(refused, Fails(absl::StatusCode::kResourceExhausted, "for what is in memory"));
  Save(HelloOf(kOther, "other"), 1, {{"model", 4096}});
}

TEST_F(Users, OldStepsMakeRoomInTheJournal) {
  check_every = 16;
  engine->SetJournalRoom(0, 100'000);
  const SessionId session = HelloOf(kGreedy, "greedy");
  for (Step step = 1; step <= 1000; ++step) Save(session, step, {{"model", 4096}});
  EXPECT_TRUE(Stat(session, 1000).ok());
}

// While storage is slow nobody knows whose a job is that this node has not seen.
TEST_F(Users, SlowStorageMakesNobodyTheOwnerOfAnothersJob) {
  options.storage = true;
  stored_uid = kOther;
  Restart();
  const SessionId owner = HelloOf(kOther, "theirs");
  Save(owner, 1);
  event::PersistNow persist;
  persist.caller = From(owner);
  persist.ref.job = "theirs";
  persist.ref.step = 1;
  Apply(persist);
  LoseMemory();
  hold_scans = true;
  const SessionId greedy = HelloOf(kGreedy, "theirs");
  event::Create create = CreateOf(greedy, PartOf(greedy, 2), {{"model", 4 * kMiB}});
  create.deadline = now + 60 * kNanosPerSecond;
  Apply(create);
  Advance(20 * kNanosPerSecond);
  EXPECT_FALSE(Answered(create.caller.request));
  hold_scans = false;
  FinishScan("theirs");
  CarryPending();
  EXPECT_THAT(AnswerTo(create.caller.request).status(),
              Fails(absl::StatusCode::kPermissionDenied, "owned by uid 3000"));
}

// It goes on all the same when storage hangs.
TEST_F(Users, HangingStorageStopsNoNewJobForLong) {
  options.storage = true;
  hold_scans = true;
  Restart();
  const SessionId greedy = HelloOf(kGreedy, "new");
  event::Create create = CreateOf(greedy, PartOf(greedy, 1), {{"model", 4 * kMiB}});
  create.deadline = now + 60 * kNanosPerSecond;
  Apply(create);
  Advance(31 * kNanosPerSecond);
  EXPECT_TRUE(AnswerTo(create.caller.request).ok()) << AnswerTo(create.caller.request).status();
}

// It takes nothing but what the journal and the manifest say of it.
TEST_F(Users, AnEmptyObjectTakesNoMemory) {
  const SessionId session = HelloOf(kGreedy, "greedy");
  std::vector<Spec> specs = {{"model", 4096}};
  for (int i = 0; i < 1000; ++i) specs.push_back({absl::StrCat("empty", i), 0});
  const auto created = Create(session, PartOf(session, 1), specs);
  ASSERT_TRUE(created.ok()) << created.status();
  EXPECT_EQ(created->extents.front().slab_bytes, 4096u);
  ASSERT_TRUE(Commit(session, PartOf(session, 1), specs).ok());
  for (const StartFrom from : kFrom) {
    Restart(from);
    EXPECT_TRUE(Open(session, 1, "empty7").ok());
    EXPECT_TRUE(Open(session, 1, "model").ok());
  }
  Save(session, 2, {{"empty", 0}});
  EXPECT_TRUE(Open(session, 2, "empty").ok());
}

// A manifest takes memory, too, and a commit need not have created anything.
TEST_F(Users, CommitsHaveNoMoreThanTheirShare) {
  Status status;
  for (int i = 0; i < 40 && status.ok(); ++i) {
    const SessionId session = HelloOf(kGreedy, absl::StrCat("greedy-", i));
    event::Commit commit = CommitOf(session, PartOf(session, 1), {});
    commit.notes["n"] = std::string(4 * kMiB, 'x');
    Apply(commit);
    if (!Answered(commit.caller.request)) Advance(11 * kNanosPerSecond);
    status = AnswerTo(commit.caller.request).status();
  }
  EXPECT_THAT(status, Fails(absl::StatusCode::kResourceExhausted, "share"));
  Save(HelloOf(kOther, "other"), 1, {{"model", 4 * kMiB}});
}

// What it lacked is claimed for nobody once it has been answered.
TEST_F(Users, ACommitThatGotNoMemoryHoldsUpNobody) {
  options.own_uid = kGreedy;
  Restart();
  ASSERT_TRUE(FillWithNewest(kGreedy, 4 * kMiB, 15).ok());
  const SessionId session = HelloOf(kGreedy, "greedy");
  event::Commit commit = CommitOf(session, PartOf(session, 1), {});
  for (const char* note : {"a", "b", "c", "d"}) commit.notes[note] = std::string(15 * kMiB, 'x');
  Apply(commit);
  Advance(11 * kNanosPerSecond);
  EXPECT_THAT(AnswerTo(commit.caller.request).status(),
              Fails(absl::StatusCode::kResourceExhausted, "no memory for the manifest"));
  Save(HelloOf(kOther, "other"), 1, {{"model", 6 * kMiB}});
  Die(session);
  Save(HelloOf(kOther, "another"), 1, {{"model", 7 * kMiB}});
}

// Of nine records eight go: what is left of them lies in slabs that nobody else can use.
TEST_F(Users, SlabsOfManifestsCountWhole) {
  check_every = 16;
  options.budget_bytes = 32 * kMiB;
  Restart();
  const auto commit_one = [&](const std::string& job, size_t bytes) {
    const SessionId session = HelloOf(kGreedy, job);
    event::Commit commit = CommitOf(session, PartOf(session, 1), {});
    commit.notes["n"] = std::string(bytes, 'x');
    Apply(commit);
    if (!Answered(commit.caller.request)) Advance(11 * kNanosPerSecond);
    const Status status = AnswerTo(commit.caller.request).status();
    Die(session);
    return status;
  };
  const SessionId remover = HelloOf(kGreedy, "remover");
  int jobs = 0;
  while (jobs < 2000 && commit_one(absl::StrCat("small-", jobs), 25'000).ok()) ++jobs;
  ASSERT_GT(jobs, 50);
  for (int i = 0; i < jobs; ++i) {
    if (i % 9 != 0) (void)Remove(remover, absl::StrCat("small-", i), 1);
  }
  int large = 0;
  while (large < 200 && commit_one(absl::StrCat("large-", large), 240'000).ok()) ++large;
  EXPECT_LT(large, 200);
  Save(HelloOf(kOther, "other"), 1, {{"model", 512 << 10}});
}

TEST_F(Users, LeasesAndRemovedStepsCostTheirUsersShareOfTheJournal) {
  engine->SetJournalRoom(0, 200'000);
  const SessionId session = HelloOf(kGreedy, "greedy");
  Status status;
  Step step = 1;
  for (; step <= 4000 && status.ok(); step += 2) {
    status = Create(session, PartOf(session, step), {{"model", 4096}}).status();
    if (status.ok()) status = Remove(session, "greedy", step);
  }
  EXPECT_THAT(status, Fails(absl::StatusCode::kResourceExhausted, "uid 2000"));
  EXPECT_GT(step, 500);
  const SessionId other = HelloOf(kOther, "other");
  Save(other, 1, {{"model", 4096}});
  Status opened;
  int leases = 0;
  for (; leases < 4000 && opened.ok(); ++leases) opened = Open(other, 1).status();
  EXPECT_THAT(opened, Fails(absl::StatusCode::kResourceExhausted, "uid 3000"));
  EXPECT_GT(leases, 500);
  Restart();
}

// Another process of the same user's that does not unmap keeps them.
TEST_F(Users, QuarantinedSlabsOfOneDoNotKeepOthersFromHavingSome) {
  options.max_slabs = 64;
  Restart();
  const SessionId honest = HelloOf(1500, "honest");
  for (Step step = 1; step <= 16; ++step) Save(honest, step, {{"model", 4096}});
  Die(honest);
  Advance(kNanosPerSecond);
  const SessionId greedy = HelloOf(kGreedy, "greedy");
  const SessionId reader = Hello({.job = "greedy", .writer = -1, .attempt = 0, .uid = kGreedy});
  Status saved;
  for (Step step = 1; step <= 60 && saved.ok(); ++step) {
    const std::vector<Spec> specs = {{"model", 4096}};
    const auto created = Create(greedy, PartOf(greedy, step), specs);
    saved = created.status();
    if (!saved.ok()) break;
    ASSERT_TRUE(Commit(greedy, PartOf(greedy, step), specs).ok());
    (void)Open(reader, step);
    (void)Remove(greedy, "greedy", step);
  }
  EXPECT_GT(Status_().quarantined_bytes, 20 * 4096u) << saved << Status_().counters["slabs"];
  Save(HelloOf(kOther, "other"), 1, {{"model", 4096}});
}

// For slabs, too, the session unmaps what it has left over before any more of its steps go.
TEST_F(Users, AtTheLimitOfSlabsNoMoreStepsGoThanNeeded) {
  options.max_slabs = 64;
  options.own_uid = kGreedy;
  Restart();
  const SessionId session = HelloOf(kGreedy, "greedy");
  const auto specs = [](int objects, uint64_t bytes) {
    std::vector<Spec> all;
    for (int i = 0; i < objects; ++i) all.push_back({absl::StrCat("o", i), bytes});
    return all;
  };
  for (Step step = 1; step <= 3; ++step) Save(session, step, specs(15, kMiB));
  const auto created = Create(session, PartOf(session, 4), specs(30, kMiB + kMiB / 2));
  ASSERT_TRUE(created.ok()) << created.status();
  EXPECT_TRUE(Stat(session, 3).ok());
  EXPECT_TRUE(Stat(session, 2).ok());
}

// The session's own idle memory comes before steps that owe a file.
TEST_F(Users, OwnIdleMemoryGoesBeforeStepsThatOweAFile) {
  options.storage = true;
  Restart();
  hold_persists = true;
  JobPolicy policy;
  policy.mode = PersistMode::kEvery;
  for (Step step = 1; step <= 10; ++step) {
    const SessionId dead =
        Hello({.job = "dead", .attempt = step, .uid = kGreedy, .policy = policy});
    Save(dead, step, {{"model", 4 * kMiB}});
    Die(dead);
    Advance(kNanosPerSecond);
  }
  const SessionId session = HelloOf(kGreedy, "greedy");
  ASSERT_TRUE(Create(session, PartOf(session, 1), {{"model", 40 * kMiB}}).ok());
  ASSERT_TRUE(Abort(session, PartOf(session, 1)).ok());
  ASSERT_TRUE(Create(session, PartOf(session, 2), {{"model", 44 * kMiB}}).ok());
  const SessionId reader = Hello({.job = "dead", .writer = -1, .attempt = 0, .uid = kGreedy});
  for (Step step = 1; step <= 10; ++step) EXPECT_TRUE(Stat(reader, step).ok()) << step;
}

// Of a job that only storage has, and that nobody uses, there may be any number.
TEST_F(Users, JobsThatOnlyStorageHasDoNotCount) {
  options.storage = true;
  options.max_jobs = 20;
  stored_uid = kGreedy;
  Restart();
  JobPolicy policy;
  policy.mode = PersistMode::kEvery;
  for (int i = 0; i < 15; ++i) {
    const SessionId session =
        Hello({.job = absl::StrCat("done-", i), .uid = kGreedy, .policy = policy});
    Save(session, 1);
  }
  EXPECT_FALSE(Create(HelloOf(kGreedy, "more"), {{"more", 1, 1, 0}, 0}, {{"model"}}).ok());
  LoseMemory();
  for (int i = 0; i < 15; ++i) {
    const SessionId reader =
        Hello({.job = absl::StrCat("done-", i), .writer = -1, .attempt = 0, .uid = kGreedy});
    EXPECT_TRUE(Stat(reader, 1).ok()) << i;
    Die(reader);
  }
  Save(HelloOf(kGreedy, "more"), 1);
}

// Nor does it fill the limit for others when its owner uses such jobs again.
TEST_F(Users, JobsThatWereInStorageCountOnceTheyAreSavedIn) {
  options.storage = true;
  options.max_jobs = 20;
  stored_uid = kGreedy;
  Restart();
  JobPolicy policy;
  policy.mode = PersistMode::kEvery;
  for (int i = 0; i < 40; ++i) {
    const SessionId session =
        Hello({.job = absl::StrCat("done-", i), .uid = kGreedy, .policy = policy});
    Save(session, 1);
    Apply(event::Remove{
        From(session), {absl::StrCat("done-", i), 1}, /*memory_only=*/true, false, Soon()});
    Die(session);
  }
  Status status;
  int saved = 0;
  for (; saved < 40 && status.ok(); ++saved) {
    const SessionId session =
        Hello({.job = absl::StrCat("done-", saved), .attempt = 2, .uid = kGreedy});
    status = Create(session, PartOf(session, 2), {{"model"}}).status();
    if (status.ok()) status = Commit(session, PartOf(session, 2), {{"model"}}).status();
    Die(session);
  }
  EXPECT_THAT(status, Fails(absl::StatusCode::kResourceExhausted, "limits.jobs"));
  Save(HelloOf(kOther, "other"), 1);
}

// Many creates of one step that cannot be had are one try: a smaller step of the user's gets its turn.
TEST_F(Users, AStepThatWaitsHoldsUpNoOtherOfItsUser) {
  const SessionId pinned = HelloOf(kGreedy, "pinned");
  Save(pinned, 1, {{"model", 60 * kMiB}});
  ASSERT_TRUE(PinIt(pinned, 1).ok());
  std::vector<RequestId> waiting;
  for (Writer writer = 0; writer < 70; ++writer) {
    const SessionId session = Hello(
        {.job = "wide", .writer = writer, .world_size = 70, .local_writers = 70, .uid = kGreedy});
    const event::Create create = CreateOf(session, PartOf(session, 1), {{"model", kMiB}});
    Apply(create);
    waiting.push_back(create.caller.request);
  }
  EXPECT_FALSE(Answered(waiting.back()));
  const SessionId small = HelloOf(kGreedy, "small");
  EXPECT_TRUE(Create(small, PartOf(small, 1), {{"model", kMiB}}).ok());
}

TEST_F(Users, WhoRunsOutOfTimeDoesNotBecomeTheOwnerOfAnothersJob) {
  options.storage = true;
  hold_scans = true;
  Restart();
  const SessionId greedy = HelloOf(kGreedy, "theirs");
  event::Create create = CreateOf(greedy, PartOf(greedy, 2), {{"model", 4 * kMiB}});
  create.deadline = now + kNanosPerSecond;
  Apply(create);
  const event::Commit commit = CommitOf(greedy, PartOf(greedy, 3), {});
  Apply(commit);
  Advance(20 * kNanosPerSecond);
  for (const RequestId request : {create.caller.request, commit.caller.request}) {
    EXPECT_THAT(AnswerTo(request).status(),
                Fails(absl::StatusCode::kUnavailable, "has not said yet whose theirs is"));
  }
}

}  // namespace
}  // namespace cairn::engine
