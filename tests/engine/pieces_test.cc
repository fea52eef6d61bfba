// What one event may not do at once, because it may be thousands.
#include "tests/engine/engine_fixture.h"

namespace cairn::engine {
namespace {

using testing::IsEmpty;
using testing::Not;

class Pieces : public EngineTest {
 protected:
  template <class T>
  static size_t Count(const std::vector<Fact>& facts) {
    size_t count = 0;
    for (const Fact& f : facts) count += std::holds_alternative<T>(f) ? 1 : 0;
    return count;
  }
};

TEST_F(Pieces, WhatADeadProcessHadMappedIsLetGoOverSeveralEvents) {
  constexpr size_t kSteps = 300;
  const SessionId session = Hello();
  for (Step step = 1; step <= static_cast<Step>(kSteps); ++step) {
    Save(session, step, {{"model", kPageBytes}});
  }
  const size_t before = Count<fact::Unlent>(journal);
  hold_probes = true;  // else each answer is an event
  Die(session);
  const size_t first = Count<fact::Unlent>(journal) - before;
  EXPECT_GT(first, 0u);
  EXPECT_LT(first, kSteps);
  EXPECT_EQ(wake_at, now + 1) << "nobody sees to the rest";
  Advance(kNanosPerMilli);
  EXPECT_EQ(Count<fact::Unlent>(journal) - before, kSteps);
  EXPECT_TRUE(Status_().sessions.empty());
}

TEST_F(Pieces, ADaemonThatDiesBetweenTwoPiecesLetsTheRestGo) {
  options.budget_bytes = 8 * kMiB;
  Restart();
  const SessionId session = Hello();
  for (Step step = 1; step <= 300; ++step) Save(session, step, {{"model", kPageBytes}});
  hold_probes = true;
  Die(session);
  hold_probes = false;
  Restart();
  Advance(kNanosPerSecond);
  const SessionId next = Hello({.attempt = 2});
  Save(next, 301, {{"model", 4 * kMiB}});
  EXPECT_TRUE(Status_().quarantined.empty());
}

// Answers that could not be delivered, of a process that has died meanwhile.
TEST_F(Pieces, AReadersLendThatFailedAfterItsSessionEndedWaitsForTheProbe) {
  const SessionId writer = Hello();
  Save(writer, 1);
  const SessionId reader = Hello({.writer = -1, .attempt = 0});
  const auto open = Open(reader, 1);
  ASSERT_TRUE(open.ok());
  hold_probes = true;
  Die(reader);
  Apply(event::LendFailed{open->lend.lease});
  hold_probes = false;
  Advance(kNanosPerSecond);
  Save(writer, 2);
}

TEST_F(Pieces, ALendThatFailedBetweenTwoPiecesIsNotLetGoTwice) {
  options.ended_at_once = 1;
  Restart();
  const SessionId session = Hello();
  for (const Step step : {1, 2, 3}) Save(session, step, {{"model", kPageBytes}});
  LeaseId newest = 0;
  for (const Fact& f : journal) {
    if (const auto* lent = std::get_if<fact::Lent>(&f)) newest = lent->lease;
  }
  hold_probes = true;
  Die(session);
  Apply(event::LendFailed{newest});
  Advance(kNanosPerMilli);
  EXPECT_EQ(Count<fact::Unlent>(journal), 3u);
}

// Four writers whose steps of 10 MiB each are in storage too; memory holds two of them and a half.
class StepOfParts : public Pieces {
 protected:
  void SetUp() override {
    options.storage = true;
    options.budget_bytes = 100 * kMiB;
    Restart();
    JobPolicy policy;
    policy.mode = PersistMode::kEvery;
    for (Writer writer = 0; writer < 4; ++writer) {
      writers.push_back(
          Hello({.writer = writer, .world_size = 4, .local_writers = 4, .policy = policy}));
    }
    for (const Step step : {1, 2}) {
      for (Writer writer = 0; writer < 4; ++writer) SaveTheirs(step, writer);
    }
  }
  static std::string Name(Writer writer) { return absl::StrCat("model", writer); }
  void SaveTheirs(Step step, Writer writer) {
    Save(writers[writer], step, {{Name(writer), 10 * kMiB}});
  }
  // How many parts of step 1 are read from memory; the others are, from storage.
  int InMemory(SessionId reader) {
    int count = 0;
    for (Writer writer = 0; writer < 4; ++writer) {
      const auto open = Open(reader, 1, Name(writer));
      if (open.ok()) {
        ++count;
        Release(reader, open->lend.lease);
      } else {
        EXPECT_TRUE(OpenStored(reader, 1, Name(writer)).ok());
      }
    }
    return count;
  }
  std::vector<SessionId> writers;
};

TEST_F(StepOfParts, OnlyThePartsWhoseMemoryIsWantedAreEvicted) {
  for (Writer writer = 0; writer < 3; ++writer) SaveTheirs(3, writer);
  const int in_memory = InMemory(writers[0]);
  EXPECT_GT(in_memory, 0) << "all of step 1 went for one part of step 3";
  EXPECT_LT(in_memory, 4);
  EXPECT_EQ(Status_().counters.at("evicted_checkpoints"), 1);
  SaveTheirs(3, 3);
  for (Writer writer = 0; writer < 4; ++writer) SaveTheirs(4, writer);
  EXPECT_EQ(InMemory(writers[0]), 0);
  EXPECT_EQ(Stat(writers[0], 1)->level, Level::kEvicted);
}

TEST_F(StepOfParts, ALeaseOnOnePartHoldsBackNeitherTablesNorRecordsOfTheOthers) {
  SaveTheirs(3, 0);
  SaveTheirs(3, 1);
  Save(writers[2], 3, {{Name(2), 5 * kMiB}, {"more", 5 * kMiB}});
  const PartKey without_objects = PartOf(writers[3], 3);
  ASSERT_TRUE(Commit(writers[3], without_objects, {}).ok());
  const SessionId reader = Hello({.writer = -1, .attempt = 0});
  const auto one = Open(reader, 3, Name(2)), two = Open(reader, 3, "more");
  ASSERT_TRUE(one.ok() && two.ok());
  EXPECT_NE(one->lend.slab, two->lend.slab);
  for (const SessionId writer : writers) Die(writer);
  Save(Hello({.job = "other"}), 1, {{"model", 85 * kMiB}});
  EXPECT_TRUE(Open(reader, 3, Name(2)).ok());
  EXPECT_TRUE(OpenStored(reader, 3, Name(1)).ok());
  EXPECT_THAT(table_reads, Not(IsEmpty())) << "memory knows what only storage has";
  bool dropped = false;
  for (const Fact& f : journal) {
    const auto* gone = std::get_if<fact::PartDropped>(&f);
    dropped |= gone != nullptr && gone->part == without_objects;
  }
  EXPECT_TRUE(dropped) << "its record takes a page";
}

TEST_F(StepOfParts, SoItIsForAnotherJob) {
  for (const SessionId writer : writers) Die(writer);
  const SessionId other = Hello({.job = "other"});
  Save(other, 1, {{"model", 30 * kMiB}});
  const SessionId reader = Hello({.writer = -1, .attempt = 0});
  const int in_memory = InMemory(reader);
  EXPECT_GT(in_memory, 0) << "all of step 1 went for another job's object";
  EXPECT_LT(in_memory, 4);
  Restart();
  EXPECT_EQ(InMemory(Hello({.writer = -1, .attempt = 0})), in_memory);
}

// --- in memory only

// The same four writers without storage: the parts of a step are of no use without each other.
class StepInMemory : public StepOfParts {
 protected:
  void SetUp() override {
    options.given_up_whole = 3;
    options.budget_bytes = 100 * kMiB;
    Restart();
    for (Writer writer = 0; writer < 4; ++writer) {
      writers.push_back(Hello({.writer = writer, .world_size = 4, .local_writers = 4}));
    }
    for (const Step step : {1, 2}) {
      for (Writer writer = 0; writer < 4; ++writer) SaveTheirs(step, writer);
    }
  }
  int DroppedOf(Step step) const {
    std::set<PartKey> dropped;
    for (const Fact& f : journal) {
      const auto* gone = std::get_if<fact::PartDropped>(&f);
      if (gone != nullptr && gone->part.checkpoint.step == step) dropped.insert(gone->part);
    }
    return static_cast<int>(dropped.size());
  }
};

TEST_F(StepInMemory, IsGoneForEverybodyWhenTheFirstOfItsPartsIs) {
  records.clear();
  for (Writer writer = 0; writer < 3; ++writer) SaveTheirs(3, writer);
  EXPECT_GT(DroppedOf(1), 0);
  EXPECT_LT(DroppedOf(1), 4) << "all of step 1 went for one part of step 3";
  EXPECT_EQ(Status_().counters.at("evicted_checkpoints"), 1);
  EXPECT_EQ(LatestStep(writers[0]), 2);
  for (Writer writer = 0; writer < 4; ++writer) {
    EXPECT_FALSE(Open(writers[0], 1, Name(writer)).ok()) << writer;
  }
  const CheckpointKey key = PartOf(writers[0], 1).checkpoint;
  EXPECT_THAT(records, testing::Contains(key));
  EXPECT_THAT(engine->Describe("job", {key}).gone, testing::ElementsAre(key));
  EXPECT_EQ(engine->CheckInvariants(), "");
  for (const StartFrom from : kFrom) {
    Restart(from);
    const SessionId reader = Hello({.writer = -1, .attempt = 0});
    EXPECT_EQ(LatestStep(reader), 2) << NameOf(from);
    EXPECT_FALSE(Open(reader, 1, Name(3)).ok()) << NameOf(from);
    Die(reader);
  }
}

TEST_F(StepInMemory, TheRestOfItIsTheFirstToGo) {
  for (Writer writer = 0; writer < 4; ++writer) SaveTheirs(3, writer);
  for (Writer writer = 0; writer < 3; ++writer) SaveTheirs(4, writer);
  EXPECT_EQ(DroppedOf(1), 4);
  EXPECT_GT(DroppedOf(2), 0);
  EXPECT_LT(DroppedOf(2), 4);
  EXPECT_EQ(Status_().counters.at("evicted_checkpoints"), 2);
  SaveTheirs(4, 3);
  EXPECT_EQ(LatestStep(writers[0]), 4);
}

// Its acknowledgement was lost, and the seals were calls of their own.
TEST_F(StepInMemory, ACommitThatIsRepeatedFindsNothingOfIt) {
  SaveTheirs(3, 0);
  SaveTheirs(3, 1);
  ASSERT_LT(DroppedOf(1), 4);
  for (Writer writer = 0; writer < 4; ++writer) {
    EXPECT_THAT(StatusOf(Commit(writers[writer], PartOf(writers[writer], 1), {})),
                Fails(absl::StatusCode::kFailedPrecondition, "was dropped"))
        << writer;
  }
  EXPECT_EQ(DroppedOf(1), 4);
  EXPECT_EQ(Stat(writers[0], 1).status().code(), absl::StatusCode::kNotFound);
}

// Files are due of all, and storage is slow.
class OwedSteps : public StepInMemory {
 protected:
  void SetUp() override {
    options.given_up_whole = 3;
    options.storage = true;
    options.budget_bytes = 172 * kMiB;
    hold_persists = true;
    Restart();
    const JobPolicy policy = {.mode = PersistMode::kEvery, .every = 1};
    for (Writer writer = 0; writer < 4; ++writer) {
      writers.push_back(
          Hello({.writer = writer, .world_size = 4, .local_writers = 4, .policy = policy}));
    }
    for (const Step step : {1, 2, 3, 4}) {
      for (Writer writer = 0; writer < 4; ++writer) SaveTheirs(step, writer);
    }
  }
};

TEST_F(OwedSteps, AreGivenUpOneAfterTheOtherWhoeverComesFirst) {
  SaveTheirs(5, 2);
  SaveTheirs(5, 0);
  EXPECT_GT(DroppedOf(2), 0);
  EXPECT_LT(DroppedOf(2), 4);
  EXPECT_EQ(DroppedOf(3), 0) << "a second step was condemned for the same create";
  EXPECT_EQ(Status_().counters.at("evicted_unpersisted"), 1);
  SaveTheirs(5, 3);
  SaveTheirs(5, 1);
  EXPECT_EQ(DroppedOf(3), 0);
  EXPECT_EQ(LatestStep(writers[0]), 5);
}

TEST_F(OwedSteps, AreNotGivenUpForWhatOthersHaveToUnmap) {
  Apply(CreateOf(writers[2], PartOf(writers[2], 5), {{Name(2), 20 * kMiB}}));
  EXPECT_GT(DroppedOf(2), 0);
  EXPECT_EQ(DroppedOf(3), 0) << "a second step was condemned for the same create";
}

// --- a persist

class APersist : public StepOfParts {
 protected:
  void SetUp() override {
    options.prepared_at_once = 1;
    StepOfParts::SetUp();
    Advance(kNanosPerMilli);
  }
};

TEST_F(APersist, TakesHoldOfItsPartsOverSeveralEvents) {
  const size_t before = persists.size();
  for (Writer writer = 0; writer < 4; ++writer) SaveTheirs(3, writer);
  EXPECT_EQ(persists.size(), before);
  EXPECT_EQ(wake_at, now + 1) << "nobody sees to the rest";
  Advance(kNanosPerMilli);
  ASSERT_EQ(persists.size(), before + 1);
  EXPECT_EQ(persists.back().parts.size(), 4u);
  EXPECT_EQ(Stat(writers[0], 3)->level, Level::kPersisted);
}

TEST_F(APersist, OfAStepThatIsRemovedMeanwhileEndsThere) {
  const size_t before = persists.size();
  for (Writer writer = 0; writer < 4; ++writer) SaveTheirs(3, writer);
  const event::Remove remove{From(writers[0]), {"job", 3}, false, /*force=*/true, Soon()};
  Apply(remove);
  Advance(kNanosPerMilli);
  EXPECT_EQ(persists.size(), before);
  EXPECT_TRUE(Answered(remove.caller.request));
  EXPECT_EQ(Status_().counters.at("persists_under_way"), 0);
  for (Writer writer = 0; writer < 4; ++writer) SaveTheirs(4, writer);
  Advance(kNanosPerMilli);
  EXPECT_EQ(persists.size(), before + 1) << "the removed one holds back what follows it";
}

// --- what storage tells

class AScan : public Pieces {
 protected:
  void SetUp() override {
    options.storage = true;
    options.merged_at_once = 1;
    Restart();
    for (Step step = 1; step <= 6; ++step) {
      const SessionId session = Hello({.attempt = step, .policy = kEvery});
      Save(session, step, {{"model", kPageBytes}});
      Die(session);
    }
    LoseMemory();
    reader = Hello({.writer = -1, .attempt = 0});
  }
  // It has saved two steps by now.
  void ALifeElsewhereGoesOnFrom(Step origin) {
    for (const Step step : {origin + 1, origin + 2}) {
      StoredCheckpoint copy = stored.at({"job", step, step, 0});
      copy.key.attempt = 7;
      for (StoredPart& part : copy.parts) {
        part.manifest.attempt = 7;
        part.manifest.first = origin + 1;
        part.manifest.lineage = {};
        part.digest = ManifestDigest(EncodeManifest(part.manifest));
      }
      stored[copy.key] = copy;
    }
  }
  const JobPolicy kEvery = {.mode = PersistMode::kEvery, .every = 1};
  SessionId reader = 0;
};

TEST_F(AScan, IsMergedOverSeveralEventsAndAnsweredWhenAllOfItIs) {
  const event::Latest latest{From(reader), "job", Soon()};
  Apply(latest);
  EXPECT_FALSE(Answered(latest.caller.request));
  EXPECT_EQ(wake_at, now + 1) << "nobody sees to the rest";
  Advance(kNanosPerMilli);
  EXPECT_EQ(Take<reply::Latest>(latest.caller.request)->key.step, 6);
  for (Step step = 1; step <= 6; ++step) {
    EXPECT_EQ(Stat(reader, step)->level, Level::kEvicted) << step;
  }
  EXPECT_EQ(Count<fact::AttemptBegun>(engine->Snapshot()), 6u)
      << "a life was forgotten before what it left was merged";
}

// Who waits no longer would go on from an old step, and so abandon the newer ones.
TEST_F(AScan, LatestIsNotToldBeforeAllOfItIsMerged) {
  LoseMemory();
  hold_scans = true;
  reader = Hello({.writer = -1, .attempt = 0});
  Advance(5 * kNanosPerSecond);
  Apply(event::JobScanned{"job", ReadingOf("job"), stored_uid, stored_uid});
  const event::Latest latest{From(reader), "job", Soon()};
  Apply(latest);
  if (Answered(latest.caller.request)) {
    EXPECT_THAT(StatusOf(AnswerTo(latest.caller.request)),
                Fails(absl::StatusCode::kUnavailable, "only part of what it has in storage"));
  }
  Advance(kNanosPerMilli);
  EXPECT_EQ(LatestStep(reader), 6);
}

// The line may yet turn out to be another's.
TEST_F(AScan, OfWhichOnlyPartIsMergedDeletesNothing) {
  Apply(event::Latest{From(reader), "job", Soon()});
  Advance(2);
  hold_scans = true;
  Apply(event::StorageSeen{absl::UnavailableError("stale file handle")});
  Apply(event::StorageSeen{root});
  const JobPolicy policy = {.mode = PersistMode::kEvery, .every = 1, .keep_last = 1};
  Apply(event::SetPolicy{From(reader), "job", policy});
  Advance(20 * kNanosPerSecond);
  EXPECT_THAT(deletes, IsEmpty());
  hold_scans = false;
  Apply(event::JobScanned{"job", ReadingOf("job"), stored_uid, stored_uid});
  Advance(kNanosPerMilli);
  EXPECT_EQ(LatestStep(reader), 6) << Latest(reader).status();
  EXPECT_EQ(deletes.size(), 5u);
}

// Another node's life has gone back since: of its two steps the first that is merged is not its newest.
TEST_F(AScan, WaitsAreAnsweredWhenAllOfItIsMerged) {
  Apply(event::Latest{From(reader), "job", Soon()});
  Advance(kNanosPerMilli);
  const RequestId waits = Wait(reader, kNoStep, Level::kCached, 6);
  ASSERT_FALSE(Answered(waits));
  ALifeElsewhereGoesOnFrom(1);
  Advance(3 * kNanosPerSecond);
  Apply(event::Latest{From(reader), "job", Soon()});
  Advance(kNanosPerMilli);
  ASSERT_TRUE(Answered(waits));
  EXPECT_EQ(Take<CheckpointInfo>(waits)->key.step, 3);
}

TEST_F(AScan, FilesThatWentAfterItHadReadThemStayGone) {
  Apply(event::Latest{From(reader), "job", Soon()});
  Advance(kNanosPerMilli);
  Advance(3 * kNanosPerSecond);
  hold_scans = true;
  Apply(event::Latest{From(reader), "job", Soon()});
  const Reading before = ReadingOf("job");
  const CheckpointKey gone = before->checkpoints.back().key;
  stored.erase(gone);
  Apply(event::JobScanned{"job", before, stored_uid, stored_uid});
  Apply(event::FilesDeleted{gone, absl::OkStatus()});
  Advance(kNanosPerMilli);
  hold_scans = false;
  EXPECT_EQ(LatestStep(reader), 5);
  EXPECT_TRUE(Stat(reader, 1).ok());
}

TEST_F(AScan, WhenStorageLeavesBetweenTwoPiecesItIsReadAnew) {
  const event::Latest latest{From(reader), "job", Soon()};
  Apply(latest);
  ASSERT_FALSE(Answered(latest.caller.request));
  const size_t before = scans.size();
  Apply(event::StorageSeen{absl::UnavailableError("stale file handle")});
  Advance(kNanosPerMilli);
  EXPECT_TRUE(Answered(latest.caller.request));
  Apply(event::StorageSeen{root});
  Advance(kNanosPerSecond);
  EXPECT_GT(scans.size(), before);
  EXPECT_EQ(LatestStep(reader), 6);
}

}  // namespace
}  // namespace cairn::engine
