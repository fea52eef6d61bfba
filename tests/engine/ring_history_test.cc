// One file: each test needs members that go and come back, and all make them the same way.
// What a node of a ring makes of what was so before: of members that are lost or come back, of
// refusals, of a life that goes back, of jobs that are forgotten, of what was removed.
#include "server/engine/gathered.h"
#include "server/engine/job_record.h"
#include "tests/engine/among_three.h"

namespace cairn::engine {
namespace {

// --- members that are lost

class AmongFour : public AmongThree {
 protected:
  AmongFour() : AmongThree(4) {}
};

// The quota is 40 MiB, and two steps of 16 MiB are set aside for each job of an owner.
TEST_F(AmongThree, WhatALostMemberWantedIsSetAsideForNobody) {
  Keep(1, ManifestOf({{"job", 1, 1, 0}, 1}, 2, 16 * kMiB));
  // The job goes on without it, on rank 0, whose first backup this node is then.
  const peer::Want want = WantOf(ManifestOf({{"job", 2, 2, 0}, 0}, 1, 16 * kMiB));
  fetches.clear();
  Wants(0, {want});
  ASSERT_THAT(fetches, testing::IsEmpty()) << "the quota is used up";
  Lose(1);
  Wants(0, {want});
  EXPECT_EQ(fetches.size(), 1u);
}

// Rank 0 is the owner. Rank 1, its first backup, came back empty; this node got the part while
// rank 1 was away.
TEST_F(AmongFour, WhoHasALostOwnersPartSeesToItThatThereAreCopies) {
  Keep(0, ManifestOf({{"job", 1, 1, 0}, 0}, 1, 16 * kMiB));
  Lose(0);
  tells.clear();
  for (int i = 0; i < 3; ++i) {
    OthersAreHeard(/*except=*/0);
    Hear(CompleteUpTo(1), {1, 3});
    Advance(kNanosPerSecond);
  }
  const auto* offered = LastSaid<peer::WantList>(3);
  ASSERT_NE(offered, nullptr);
  ASSERT_EQ(offered->wants.size(), 1u);
  EXPECT_EQ(offered->wants[0].owner, 0) << "it stays that member's";
}

// Rank 3 was the owner, and the ring has three members now.
TEST_F(AmongFour, WhoHasThePartOfOneThatLeftTheRingSeesToItThatThereAreCopies) {
  const Manifest manifest = ManifestOf({{"job", 1, 1, 0}, 0}, 1, 16 * kMiB);
  Keep(3, manifest);
  options.ring.members.erase(3);
  Restart();
  tells.clear();
  for (int i = 0; i < 3; ++i) {
    for (const Rank rank : {0, 1}) Up(rank);
    Hear(CompleteUpTo(1), {0, 1});
    Advance(kNanosPerSecond);
  }
  const auto* offered = LastSaid<peer::WantList>(0);
  ASSERT_NE(offered, nullptr);
  ASSERT_EQ(offered->wants.size(), 1u);
  EXPECT_EQ(offered->wants[0].owner, 3);
  // Rank 0, which stands in for it, may release it here.
  const peer::Release release{
      manifest.Part(), DigestOf(manifest), peer::Fate::kSuperseded, {"job", 2, 1, 0}};
  Apply(event::PeerSaid{Of(0), peer::ReleaseList{1, {release}}});
  EXPECT_THAT(engine->Describe("job", {manifest.Checkpoint()}).parts, testing::IsEmpty());
}

// As before, but it comes when the owner is back already.
TEST_F(AmongFour, WhatComesForALostOwnerThatIsBackIsItsOwnToRelease) {
  Lose(0);
  const Manifest manifest = ManifestOf({{"job", 1, 1, 0}, 0}, 1, 16 * kMiB);
  peer::Want want = WantOf(manifest);
  want.owner = 0;
  fetches.clear();
  Wants(1, {want});
  ASSERT_EQ(fetches.size(), 1u);
  Up(0);
  Bring(fetches[0], manifest);
  const peer::Release release{
      manifest.Part(), DigestOf(manifest), peer::Fate::kSuperseded, {"job", 2, 1, 0}};
  Apply(event::PeerSaid{Of(1), peer::ReleaseList{1, {release}}});
  tells.clear();
  OthersAreHeard();
  Advance(kNanosPerSecond);
  const auto* said = LastSaid<peer::HaveList>(0);
  ASSERT_NE(said, nullptr);
  ASSERT_EQ(said->haves.size(), 1u);
  EXPECT_EQ(said->haves[0].part, manifest.Part());
}

// Somebody here loads the part, and then its owner wants it kept here.
TEST_F(AmongFour, AWantTakesNoSourceFromALoad) {
  const Manifest manifest = ManifestOf({{"job", 1, 1, 0}, 0}, 1, kMiB);
  const SessionId reader = Hello({.writer = -1, .world_size = 0});
  const JobVerdict verdict = CompleteUpTo(1);
  Hear(verdict, {0, 1, 3});
  fetches.clear();
  Apply(OpenOf(reader, 1, "model-0"));
  peer::PlacesSaid places{manifest.Checkpoint(), "model-0", {}};
  places.places.push_back({0, DigestOf(manifest), 1, manifest.TotalBytes(), 0, {0, 1}});
  Apply(event::PeerSaid{Of(0), places});
  ASSERT_EQ(fetches.size(), 1u);
  ASSERT_THAT(fetches[0].sources, testing::ElementsAre(0, 1));
  Wants(0, {WantOf(manifest)});
  Wants(3, {WantOf(manifest)});
  ASSERT_FALSE(fetches_from.empty());
  EXPECT_THAT(fetches_from.back().sources, testing::ElementsAre(0, 1, 3));
}

// Where that first backup cannot read, the part would be written by nobody.
class AmongFourWithStorage : public AmongFour {
 protected:
  AmongFourWithStorage() { storage = true; }
};

TEST_F(AmongFourWithStorage, AndThatItIsWritten) {
  const Manifest manifest = ManifestOf({{"job", 1, 1, 0}, 0}, 1, 16 * kMiB);
  Keep(0, manifest);
  hold_persists = true;
  Lose(0);
  JobVerdict verdict = CompleteUpTo(1);
  for (int i = 0; i < 3; ++i) {
    OthersAreHeard(/*except=*/0);
    Hear(verdict, {1, 3});
    Advance(kNanosPerSecond);
  }
  ASSERT_EQ(persists.size(), 1u);
  EXPECT_EQ(persists[0].checkpoint, manifest.Checkpoint());
}

// Rank 1 stood in for the lost owner, rank 0, and had its part copied here. The owner comes back,
// and the step has been superseded.
TEST_F(AmongFour, WhatWasCopiedForALostOwnerIsItsOwnToReleaseOnceItIsBack) {
  Lose(0);
  const Manifest manifest = ManifestOf({{"job", 1, 1, 0}, 0}, 1, 16 * kMiB);
  Keep(1, manifest, /*owner=*/0);
  const auto holds = [&] {
    return !engine->Describe("job", {manifest.Checkpoint()}).parts.empty();
  };
  ASSERT_TRUE(holds());
  tells.clear();
  Up(0);
  Wants(1, {});
  Wants(0, {});
  OthersAreHeard();
  Advance(kNanosPerSecond);
  const auto* said = LastSaid<peer::HaveList>(0);
  ASSERT_NE(said, nullptr);
  ASSERT_EQ(said->haves.size(), 1u) << "it is told what is here of its own";
  EXPECT_EQ(said->haves[0].part, manifest.Part());
  const peer::Release release{
      manifest.Part(), DigestOf(manifest), peer::Fate::kSuperseded, {"job", 2, 1, 0}};
  Apply(event::PeerSaid{Of(1), peer::ReleaseList{1, {release}}});
  EXPECT_TRUE(holds()) << "rank 1 stands in for nobody any more";
  Apply(event::PeerSaid{Of(0), peer::ReleaseList{1, {release}}});
  EXPECT_FALSE(holds());
}

// The part was loaded here before rank 1 asked for it: nothing had to come.
TEST_F(AmongFour, SoIsWhatWasLoadedHereBefore) {
  Lose(0);
  const Manifest manifest = ManifestOf({{"job", 1, 1, 0}, 0}, 1, kMiB);
  const SessionId reader = Hello({.writer = -1, .world_size = 0});
  Hear(CompleteUpTo(1), {1, 3});
  fetches.clear();
  Apply(OpenOf(reader, 1, "model-0"));
  peer::PlacesSaid places{manifest.Checkpoint(), "model-0", {}};
  places.places.push_back({0, DigestOf(manifest), 1, manifest.TotalBytes(), 0, {1}});
  Apply(event::PeerSaid{Of(1), places});
  ASSERT_EQ(fetches.size(), 1u);
  Bring(fetches[0], manifest);
  peer::Want want = WantOf(manifest);
  want.owner = 0;
  Wants(1, {want});
  const auto* of_rank_1 = LastSaid<peer::HaveList>(1);
  ASSERT_NE(of_rank_1, nullptr);
  ASSERT_EQ(of_rank_1->haves.size(), 1u);
  ASSERT_EQ(of_rank_1->haves[0].state, peer::HaveState::kHeld);
  Up(0);
  Wants(1, {});
  tells.clear();
  OthersAreHeard();
  Advance(kNanosPerSecond);
  const auto* said = LastSaid<peer::HaveList>(0);
  ASSERT_NE(said, nullptr);
  ASSERT_EQ(said->haves.size(), 1u) << "it is told what is here of its own";
  EXPECT_EQ(said->haves[0].part, manifest.Part());
}

// --- what a backup refuses

class InMemoryAlone : public PartsElsewhere {
 protected:
  InMemoryAlone() { storage = false; }
};

// Step 1 is protected, and the backup has room for no further one. Of steps of 20 MiB the budget
// holds three.
TEST_F(InMemoryAlone, SavingGoesOnWhereTheBackupRefuses) {
  const SessionId writer = OneOfTwo(1);
  Save(writer, 1, {{"model", 20 * kMiB}});
  Complete(1, /*replicas=*/1);
  verdict.protect = verdict.latest = CheckpointId{1, 1, 0};
  Hear();
  for (Step step = 2; step <= 6; ++step) {
    const Status created = Asks(writer, step, 20 * kMiB);
    ASSERT_TRUE(created.ok()) << "step " << step << ": " << created;
    ASSERT_TRUE(Commit(writer, PartOf(writer, step), {{"model", 20 * kMiB}}).ok());
    Complete(step);
    verdict.latest = CheckpointId{step, 1, 0};
    peer::HaveList haves;
    haves.version = static_cast<uint64_t>(step);
    const auto* wanted = LastSaid<peer::WantList>(other.rank);
    ASSERT_NE(wanted, nullptr);
    for (const peer::Want& want : wanted->wants) {
      const bool held = want.part.checkpoint.step == 1;
      haves.haves.push_back({want.part, want.digest,
                             held ? peer::HaveState::kHeld : peer::HaveState::kRefused, "no room"});
    }
    Apply(event::PeerSaid{other, haves});
    // All secure what this node, the only writer that is heard of, works on; else the newest.
    for (const action::Tell& tell : tells) {
      const auto* report = std::get_if<peer::Report>(&tell.message);
      if (report != nullptr && report->delta.job == "job") verdict.target = report->delta.target;
    }
    if (!verdict.target.has_value()) verdict.target = verdict.latest;
    Hear();
    Advance(kNanosPerSecond);
    Hear();
  }
}

// --- a life that goes back

// Steps of 15 MiB, of which the budget holds four: all are complete, and the first is protected.
TEST_F(InMemoryAlone, ALifeThatGoesBackToAnOlderStepCanSave) {
  const SessionId first = OneOfTwo(1);
  for (const Step step : {1, 2, 3, 4}) {
    Save(first, step, {{"model", 15 * kMiB}});
    Complete(step);
  }
  Complete(1, /*replicas=*/1);
  verdict.protect = CheckpointId{1, 1, 0};
  verdict.latest = verdict.target = CheckpointId{4, 1, 0};
  verdict.safe = {1, 1};
  Hear();
  Die(first);
  const SessionId second = Hello({.writer = 0, .world_size = 2, .attempt = 2, .local_writers = 1});
  Apply(event::ResumeFrom{From(second), "job", 2, 1, Soon(), /*fence=*/true});
  verdict.head = {2, true};
  verdict.latest = CheckpointId{1, 1, 0};
  verdict.target.reset();
  Hear();
  Advance(kNanosPerSecond);
  Hear();
  const Status saved = Asks(second, 2, 15 * kMiB);
  EXPECT_TRUE(saved.ok()) << saved;
  EXPECT_TRUE(Holds(1)) << "the new life goes on from it";
}

// --- what comes back

// The node came back empty while its backup was away, too: the first final verdict knows of
// nothing.
TEST_F(InMemoryAlone, WhatItLostComesBackAlsoWhereItsBackupReturnsLater) {
  OneOfTwo(2);
  Advance(kNanosPerSecond);
  ASSERT_EQ(LastSaid<peer::PlacesWanted>(other.rank), nullptr);
  Complete(1);
  verdict.latest = verdict.target = CheckpointId{1, 1, 0};
  verdict.safe = {1, 1};
  Hear();
  const auto* question = LastSaid<peer::PlacesWanted>(other.rank);
  ASSERT_NE(question, nullptr);
  EXPECT_EQ(question->checkpoint.step, 1);
  EXPECT_EQ(question->name, "") << "where all of it is";
}

// What the other members have is asked for by name, and is not here.
class Elsewhere : public InMemoryAlone {
 protected:
  void SetUp() override {
    InMemoryAlone::SetUp();
    reader = Hello({.writer = -1, .world_size = 0});
    OneWriterCompletes(1);
    Hear();
  }
  const Manifest manifest = ManifestOf({{"job", 1, 1, 0}, 0}, 1, kMiB);
  SessionId reader = 0;
};

TEST_F(Elsewhere, WhatOnlySilentMembersHaveIsUnavailable) {
  const event::Open open = OpenOf(reader, 1, "model-0");
  Apply(open);
  peer::PlacesSaid places = PlacesOf(manifest);
  places.places[0].holders.clear();
  Apply(event::PeerSaid{other, places});
  EXPECT_THAT(AnswerTo(open.caller.request).status(),
              Fails(absl::StatusCode::kUnavailable, "no member that has it answers now"));
}

TEST_F(Elsewhere, ALoadThatJoinsACopyWhichItsOwnerCalledOffIsUnavailable) {
  Want(manifest, manifest.Part(), kMiB);
  ASSERT_EQ(fetches.size(), 1u);
  const action::Fetch fetch = fetches[0];
  Advance(1100 * kNanosPerMilli);  // the owner is told that it is under way
  Wants({});
  ASSERT_EQ(cancelled_fetches.size(), 1u);
  const RequestId open = OpensWhatTheOtherHas(reader, manifest);
  Apply(event::Fetched{fetch.fetch, absl::CancelledError("cancelled"), nullptr, ""});
  EXPECT_THAT(AnswerTo(open).status(), Fails(absl::StatusCode::kUnavailable, "cancelled"));
}

// --- jobs that are forgotten

// This node is the home of the job.
class AtHome : public RingTest {
 protected:
  void SetUp() override {
    const std::vector<Rank> order = HomeOrder("job", {0, 1});
    options.ring.cluster = "test";
    options.ring.rank = order.front();
    options.ring.members = {{0, "10.0.0.1:1"}, {1, "10.0.0.2:1"}};
    options.storage = false;
    RingTest::SetUp();
    other = {order.back(), 1, std::string(kInstanceBytes, 'o')};
  }
  void OtherIsHeard() { Apply(event::Exchanged{other.rank, other}); }
  void LoseTheOther() {
    for (int i = 0; i < 15; ++i) {
      Apply(event::Exchanged{other.rank, std::nullopt});
      Advance(4 * kNanosPerSecond);
    }
  }
  // The other member has the part of this writer in memory.
  void SaysThatItHas(Writer writer, uint64_t number) {
    ReportDelta delta;
    delta.job = "job";
    delta.number = number;
    delta.after = number - 1;
    PartReport& part = delta.parts[{{1, 1, 0}, writer}];
    part.world_size = 2;
    part.digest = "digest";
    part.owner = other.rank;
    part.names =
        std::make_shared<const std::vector<uint64_t>>(1, NameHash(absl::StrCat("model-", writer)));
    Apply(event::PeerSaid{other, peer::Report{delta}});
  }
  MemberId other;
};

TEST_F(AtHome, AJobThatNobodyHasIsForgotten) {
  OtherIsHeard();
  Apply(event::PeerSaid{other, peer::VerdictWanted{"job", 0}});
  ReportDelta nothing;
  nothing.job = "job";
  nothing.number = 1;
  Apply(event::PeerSaid{other, peer::Report{nothing}});
  ASSERT_NE(engine->GatheredOf("job"), nullptr);
  for (int i = 0; i < 60; ++i) {
    OtherIsHeard();
    Advance(kNanosPerSecond);
  }
  EXPECT_EQ(engine->GatheredOf("job"), nullptr);
  tells.clear();
  OtherIsHeard();
  Advance(2 * kNanosPerSecond);
  EXPECT_EQ(LastSaid<peer::ReportWanted>(other.rank), nullptr) << "nor is anybody asked of it";
}

// A member takes no message of one that it has not met yet, and says nothing of those it did not take.
TEST_F(AtHome, AMemberThatAsksIsAskedForItsReportOnceMore) {
  OtherIsHeard();
  Apply(event::PeerSaid{other, peer::VerdictWanted{"job", 0}});
  ASSERT_NE(LastSaid<peer::ReportWanted>(other.rank), nullptr);
  tells.clear();
  Apply(event::PeerSaid{other, peer::VerdictWanted{"job", 0}});
  EXPECT_NE(LastSaid<peer::ReportWanted>(other.rank), nullptr);
  ReportDelta nothing;
  nothing.job = "job";
  nothing.number = 1;
  Apply(event::PeerSaid{other, peer::Report{nothing}});
  tells.clear();
  Apply(event::PeerSaid{other, peer::VerdictWanted{"job", 0}});
  EXPECT_EQ(LastSaid<peer::ReportWanted>(other.rank), nullptr) << "it has said what it has";
}

// Under the same name and number.
TEST_F(AtHome, AJobThatBeginsAnewIsNotJudgedByWhatWasForgotten) {
  LoseTheOther();
  const auto save = [&] {
    const SessionId session = Hello({});
    const event::Create create = CreateOf(session, PartOf(session, 1), {{"model", kMiB}});
    Apply(create);
    for (int i = 0; i < 5 && !Answered(create.caller.request); ++i) Advance(kNanosPerSecond);
    EXPECT_TRUE(AnswerTo(create.caller.request).ok()) << AnswerTo(create.caller.request).status();
    EXPECT_TRUE(Commit(session, PartOf(session, 1), {{"model", kMiB}}).ok());
    Advance(2 * kNanosPerSecond);
    return session;
  };
  const SessionId session = save();
  ASSERT_TRUE(engine->GatheredOf("job")->Verdict().latest.has_value());
  event::Remove remove;
  remove.caller = From(session);
  remove.ref = {"job", 1};
  remove.force = true;
  remove.deadline = Soon();
  Apply(remove);
  ASSERT_TRUE(AnswerTo(remove.caller.request).ok());
  Die(session);
  for (int i = 0; i < 30; ++i) Advance(60 * kNanosPerSecond);
  ASSERT_TRUE(engine->JobNames().empty());
  EXPECT_THAT(forgotten, testing::ElementsAre("job")) << "as the home tells the catalog";
  save();
  const Gathered* gathered = engine->GatheredOf("job");
  ASSERT_NE(gathered, nullptr);
  EXPECT_FALSE(gathered->record().Forbids(1, 1));
  EXPECT_TRUE(gathered->Verdict().latest.has_value());
}

// --- a home that has not heard of all

TEST_F(AtHome, WhereANameIsItSaysOnceItHasHeardOfAPartThatMayHaveIt) {
  OtherIsHeard();
  const auto answer = [&](const std::string& name) {
    tells.clear();
    Apply(event::PeerSaid{other, peer::PlacesWanted{{"job", 1, 1, 0}, name}});
    return LastSaid<peer::PlacesSaid>(other.rank);
  };
  EXPECT_EQ(answer("model-1"), nullptr) << "it has heard nothing of the job";
  SaysThatItHas(0, 1);
  EXPECT_EQ(answer("model-1"), nullptr) << "the other writer's part may have it";
  const auto* known = answer("model-0");
  ASSERT_NE(known, nullptr);
  ASSERT_EQ(known->places.size(), 1u);
  EXPECT_EQ(known->places[0].writer, 0);
  SaysThatItHas(1, 2);
  const auto* said = answer("model-1");
  ASSERT_NE(said, nullptr);
  ASSERT_EQ(said->places.size(), 1u);
  EXPECT_EQ(said->places[0].writer, 1);
  const auto* none = answer("model-2");
  ASSERT_NE(none, nullptr) << "all names are known now";
  EXPECT_THAT(none->places, testing::IsEmpty());
}

// --- what was removed

class ManyRemoved : public InMemoryAlone {
 protected:
  void SetUp() override {
    options.ring.replicas = 0;
    InMemoryAlone::SetUp();
    session = Hello();
    Hear();
  }
  // The other member has removed these steps one by one.
  void OtherRemoved(Step first, Step last) {
    JobRecord record;
    record.job = "job";
    record.owner = JobRecord::Owner{1000, 1000};
    for (Step step = first; step <= last; ++step) record.removed.steps[step].Add(1, 1);
    Apply(event::PeerSaid{other, peer::Record{"job", EncodeJobRecord(record), 1}});
  }
  Status Remove(Step step) {
    event::Remove remove;
    remove.caller = From(session);
    remove.ref = {"job", step};
    remove.force = true;
    remove.deadline = Soon();
    Apply(remove);
    if (const auto* said = LastSaid<peer::Record>(other.rank)) {
      Apply(event::PeerSaid{other, peer::RecordHeld{"job", said->number}});
    }
    return AnswerTo(remove.caller.request).status();
  }
  StatusOr<JobRecord> Told() const {
    const auto* said = LastSaid<peer::Record>(other.rank);
    if (said == nullptr) return absl::NotFoundError("no record was told");
    return DecodeJobRecord(said->encoded);
  }
  SessionId session = 0;
};

TEST_F(ManyRemoved, OneMoreThanMembersCanTellEachOtherIsRefused) {
  constexpr Step kMost = kMostRecordRanges;
  OtherRemoved(1, kMost - 1);
  for (const Step step : {9001, 9002}) Save(session, step, {{"model", 4096}});
  EXPECT_TRUE(Remove(9001).ok());
  EXPECT_THAT(Remove(9002), Fails(absl::StatusCode::kResourceExhausted,
                                  "the most that the members of a ring tell each other is 4096"));
  EXPECT_TRUE(Holds(9002));
}

// As many again as this node removed, the other member may have removed meanwhile.
TEST_F(ManyRemoved, DecisionsStillTravel) {
  constexpr Step kMost = kMostRecordRanges;
  Save(session, 9001, {{"model", 4096}});
  OtherRemoved(1, kMost);
  OtherRemoved(kMost + 1, 2 * kMost);
  EXPECT_THAT(Remove(9001), Fails(absl::StatusCode::kResourceExhausted, "4096"));
  tells.clear();
  event::Pin pin{From(session), {"job", 9001}, true};
  Apply(pin);
  const StatusOr<JobRecord> told = Told();
  ASSERT_TRUE(told.ok()) << told.status();
  EXPECT_TRUE(told->Pinned({9001, 1, 0}));
}

}  // namespace
}  // namespace cairn::engine
