// Reports as they come, one change at a time: what Gathered says is what View says of all of them.
#include "server/engine/gathered.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "absl/strings/str_cat.h"
#include "tests/engine/reports.h"

namespace cairn::engine {
namespace {

constexpr CheckpointId kOne{1, 1, 0};

PartReport PartOf(const CheckpointId& id, Writer writer, int32_t world_size) {
  PartReport part;
  part.world_size = world_size;
  part.digest = DigestOf(id, writer);
  part.bytes = 10;
  return part;
}

ReportDelta PartSaid(uint64_t after, const CheckpointId& id, Writer writer, int32_t world_size) {
  ReportDelta delta;
  delta.job = "job";
  delta.after = after;
  delta.number = after + 1;
  delta.attempts[id.attempt] = {0, {}, 1};
  delta.parts[{id, writer}] = PartOf(id, writer, world_size);
  return delta;
}

TEST(Gathered, TakesAWholeReportAndThenWhatChanges) {
  Gathered gathered("job", {2, 1});
  EXPECT_TRUE(gathered.Apply(Life(0), PartSaid(0, kOne, 0, 2)));
  EXPECT_EQ(gathered.NumberOf(0), 1U);
  EXPECT_FALSE(gathered.Verdict().checkpoints.at(kOne).complete);
  EXPECT_TRUE(gathered.Apply(Life(0), PartSaid(1, kOne, 1, 2)));
  EXPECT_TRUE(gathered.Verdict().checkpoints.at(kOne).complete);
  EXPECT_EQ(gathered.Verdict().latest, kOne);
}

TEST(Gathered, AsksForAWholeReportWhenAChangeBuildsOnOneThatIsNotHere) {
  Gathered gathered("job", {2, 1});
  EXPECT_FALSE(gathered.Apply(Life(0), PartSaid(4, kOne, 0, 1)));
  EXPECT_TRUE(gathered.Apply(Life(0), PartSaid(0, kOne, 0, 2)));
  EXPECT_FALSE(gathered.Apply(Life(0), PartSaid(2, kOne, 1, 2)));  // number 2 was lost
  EXPECT_FALSE(gathered.Verdict().checkpoints.at(kOne).complete);
}

TEST(Gathered, ARepeatedChangeChangesNothing) {
  Gathered gathered("job", {2, 1});
  EXPECT_TRUE(gathered.Apply(Life(0), PartSaid(0, kOne, 0, 2)));
  EXPECT_TRUE(gathered.Apply(Life(0), PartSaid(1, kOne, 1, 2)));
  const JobVerdict before = gathered.Verdict();
  EXPECT_TRUE(gathered.Apply(Life(0), PartSaid(1, {9, 1, 0}, 1, 2)));
  EXPECT_TRUE(gathered.Apply(Life(0), PartSaid(0, {9, 1, 0}, 1, 2)));
  EXPECT_EQ(gathered.Verdict(), before);
}

TEST(Gathered, ANewerLifeOfARankReplacesAllThatItsRankHadReported) {  // R19
  Gathered gathered("job", {2, 1});
  EXPECT_TRUE(gathered.Apply(Life(0, 5), PartSaid(0, kOne, 0, 1)));
  EXPECT_EQ(gathered.Verdict().latest, kOne);
  EXPECT_TRUE(gathered.Apply(Life(0, 6), PartSaid(0, {2, 1, 0}, 0, 2)));
  EXPECT_FALSE(gathered.Verdict().checkpoints.contains(kOne));
  EXPECT_EQ(gathered.Verdict().latest, std::nullopt);
}

TEST(Gathered, WhatADeadLifeOfARankReportsDoesNotCount) {  // R19
  Gathered gathered("job", {2, 1});
  EXPECT_TRUE(gathered.Apply(Life(0, 6), PartSaid(0, {2, 1, 0}, 0, 2)));
  const JobVerdict before = gathered.Verdict();
  EXPECT_TRUE(gathered.Apply(Life(0, 5), PartSaid(0, kOne, 0, 1)));
  MemberId other = Life(0, 6);
  other.instance = "another process!";
  EXPECT_TRUE(gathered.Apply(other, PartSaid(0, kOne, 0, 1)));
  EXPECT_EQ(gathered.Verdict(), before);
}

TEST(Gathered, ALifeThatIsSeenEndsWhatTheOneBeforeItReported) {  // promise 1
  Gathered gathered("job", {2, 1});
  EXPECT_TRUE(gathered.Apply(Life(0, 5), PartSaid(0, kOne, 0, 1)));
  gathered.Seen(Life(0, 5));
  EXPECT_EQ(gathered.Verdict().latest, kOne);
  gathered.Seen(Life(0, 6));
  EXPECT_EQ(gathered.Verdict().latest, std::nullopt);
  EXPECT_EQ(gathered.NumberOf(0), 0U);
  EXPECT_TRUE(gathered.Apply(Life(0, 5), PartSaid(1, kOne, 0, 1)));  // late
  EXPECT_EQ(gathered.Verdict().latest, std::nullopt);
}

TEST(Gathered, ASilentMembersReportCountsAgainWhenItIsHeard) {
  Gathered gathered("job", {2, 1});
  EXPECT_TRUE(gathered.Apply(Life(0), PartSaid(0, kOne, 0, 1)));
  gathered.Silent(0, true);
  EXPECT_EQ(gathered.Verdict().latest, std::nullopt);
  EXPECT_TRUE(gathered.Verdict().reports.empty());
  gathered.Silent(0, false);
  EXPECT_EQ(gathered.Verdict().latest, kOne);
}

TEST(Gathered, SaysWhichCheckpointsChanged) {
  Gathered gathered("job", {2, 1});
  EXPECT_TRUE(gathered.Apply(Life(0), PartSaid(0, kOne, 0, 2)));
  EXPECT_TRUE(gathered.Apply(Life(0), PartSaid(1, {2, 1, 0}, 0, 2)));
  EXPECT_THAT(gathered.TakeChanged(), testing::ElementsAre(kOne, CheckpointId{2, 1, 0}));
  EXPECT_THAT(gathered.TakeChanged(), testing::IsEmpty());
  EXPECT_TRUE(gathered.Apply(Life(0), PartSaid(2, kOne, 1, 2)));
  EXPECT_THAT(gathered.TakeChanged(), testing::ElementsAre(kOne));
  gathered.Silent(0, true);
  EXPECT_THAT(gathered.TakeChanged(), testing::ElementsAre(kOne, CheckpointId{2, 1, 0}));
}

// --- any history

class RandomGathering {
 public:
  explicit RandomGathering(uint32_t seed)
      : random_(seed), ring_{2 + Up(4), Up(3)}, gathered_("job", ring_) {}

  void Change() {
    switch (Up(24)) {
      case 0:
        return ToggleSilent();
      case 1:
        model_.final = Up(4) != 0;
        return gathered_.SetFinal(model_.final);
      case 2:
      case 3:
        return ChangeRecord();
      case 4:
        return Restart();
      case 5:
        return HearAnotherLife();
      case 6:
        return SeeNewLife();
      default:
        return Report();
    }
  }

  void Compare() {
    const JobVerdict expected = View("job", model_, record_, ring_);
    const JobVerdict& is = gathered_.Verdict();
    EXPECT_EQ(is.reports, expected.reports);
    EXPECT_EQ(is.silent, expected.silent);
    EXPECT_EQ(is.final, expected.final);
    EXPECT_EQ(is.head, expected.head);
    EXPECT_EQ(is.latest, expected.latest);
    EXPECT_EQ(is.asked, expected.asked);
    EXPECT_EQ(is.protect, expected.protect);
    EXPECT_EQ(is.target, expected.target);
    EXPECT_EQ(is.why, expected.why);
    EXPECT_EQ(is.saving, expected.saving);
    EXPECT_EQ(is.safe, expected.safe);
    for (const auto& [id, checkpoint] : expected.checkpoints) {
      SCOPED_TRACE(absl::StrCat("step ", id.step, " attempt ", id.attempt, ".", id.revision));
      const auto at = is.checkpoints.find(id);
      ASSERT_NE(at, is.checkpoints.end());
      EXPECT_EQ(at->second.conflict, checkpoint.conflict);
      EXPECT_EQ(at->second.hopeless, checkpoint.hopeless);
      EXPECT_EQ(at->second.replicas, checkpoint.replicas);
      EXPECT_EQ(at->second, checkpoint);
    }
    EXPECT_EQ(is, expected);
    const std::set<CheckpointId> changed = gathered_.TakeChanged();
    for (const CheckpointId& id : changed) {
      const auto at = is.checkpoints.find(id);
      if (at == is.checkpoints.end()) {
        said_.erase(id);
      } else {
        said_[id] = at->second;
      }
    }
    EXPECT_EQ(said_, is.checkpoints);
    complete_ += is.latest.has_value();
    hopeless_ += std::any_of(is.checkpoints.begin(), is.checkpoints.end(),
                             [](const auto& it) { return it.second.hopeless; });
    conflicts_ += std::any_of(is.checkpoints.begin(), is.checkpoints.end(),
                              [](const auto& it) { return !it.second.conflict.empty(); });
  }

  int complete_ = 0, hopeless_ = 0, conflicts_ = 0;  // how often there was one

 private:
  int Up(int below) { return std::uniform_int_distribution<int>(0, below - 1)(random_); }
  bool OneIn(int n) { return Up(n) == 0; }
  Rank SomeRank() { return Up(ring_.members); }
  Attempt SomeAttempt() { return 1 + Up(4); }
  CheckpointId SomeId() { return {Up(5), SomeAttempt(), OneIn(4) ? 1 : 0}; }
  int32_t WorldOf(const CheckpointId& id) {
    return OneIn(60) ? 1 + Up(4) : 1 + static_cast<int>(id.attempt % 3);
  }

  Lineage SomeLineage(Attempt number) {
    if (OneIn(4)) return Lineage::OfUnknown();
    if (number == 1 || OneIn(5)) return {};
    const Attempt from = 1 + Up(static_cast<int>(number) - 1);
    Lineage lineage{{{from, Up(5)}}, OneIn(3)};
    if (!lineage.open && from > 1 && OneIn(2)) {
      lineage.entries.push_back({from - 1, Up(static_cast<int>(lineage.step()) + 1)});
    }
    return lineage;
  }

  // What the member knows after something has happened to it.
  void Happen(JobReport* report) {
    const CheckpointId id = SomeId();
    const Writer writer = Up(1 + static_cast<int>(id.attempt % 3));
    switch (Up(12)) {
      case 0:
        report->attempts[id.attempt] = {OneIn(4) ? kNoStep : Up(5), SomeLineage(id.attempt), 1};
        break;
      case 1:
        if (!report->parts.empty()) {
          report->parts.erase(
              std::next(report->parts.begin(), Up(static_cast<int>(report->parts.size()))));
        }
        break;
      case 2:
        if (!report->parts.empty()) {
          auto& part =
              std::next(report->parts.begin(), Up(static_cast<int>(report->parts.size())))->second;
          part.in_memory = !part.in_memory;
        }
        break;
      case 3: {
        WriterReport& said = report->writers[{id.attempt, {WorldOf(id), writer}}];
        said.reached = {id.step, id.revision};
        said.alive = !OneIn(3);
        if (OneIn(3)) said.given_up.insert({Up(5), 0});
        break;
      }
      case 4:
        if (OneIn(3)) report->writers.erase({id.attempt, {WorldOf(id), writer}});
        if (OneIn(3)) report->attempts.erase(id.attempt);
        break;
      case 5:
        if (!report->published.erase(id) && OneIn(2)) report->published.insert(id);
        break;
      case 6:
        report->target = OneIn(3) ? std::nullopt : std::optional(id);
        report->saving.clear();
        if (OneIn(2))
          report->saving.push_back({id.attempt, "", -1, {static_cast<int32_t>(writer)}});
        break;
      case 7:
        report->owned = OneIn(2);
        report->policy.replicas = Up(4) - 1;
        break;
      default: {
        PartReport part = PartOf(id, writer, WorldOf(id));
        part.in_memory = !OneIn(5);
        part.role = OneIn(2) ? PartRole::kOwn : PartRole::kReplica;
        if (OneIn(40)) part.digest = DigestNamed("another");
        if (OneIn(40)) part.bytes = 99;
        if (!OneIn(4)) {
          const uint64_t own = static_cast<uint64_t>(writer) * 10;
          part.names = Names({own, OneIn(6) ? 77 : own + 1});
        }
        report->parts[{id, OneIn(80) ? 7 : writer}] = part;
      }
    }
  }

  struct Member {
    int64_t incarnation = 1;
    JobReport report;
    uint64_t number = 0, sent = 0;
    JobReport as_sent;  // at number `sent`
    std::optional<ReportDelta> pending;
    std::optional<ReportDelta> old;
  };

  void Report() {
    const Rank rank = SomeRank();
    Member& member = members_[rank];
    const JobReport before = member.report;
    for (int i = 1 + Up(3); i > 0; --i) Happen(&member.report);
    const ReportDelta delta =
        DeltaOf("job", before, member.report, member.number, member.number + 1);
    ++member.number;
    member.pending = member.pending.has_value() ? MergeDelta(*member.pending, delta) : delta;
    if (OneIn(8)) return;  // said with the next one
    if (OneIn(12)) {       // lost
      member.pending.reset();
      return;
    }
    if (OneIn(10) && member.old.has_value()) Deliver(rank, *member.old);  // said once more
    member.old = *member.pending;
    if (!Deliver(rank, *member.pending)) {
      const ReportDelta whole = DeltaOf("job", {}, member.report, 0, member.number);
      EXPECT_TRUE(Deliver(rank, whole));
    }
    member.pending.reset();
  }

  // To both; the model goes by the numbers alone.
  bool Deliver(Rank rank, const ReportDelta& delta) {
    const MemberId from = Life(rank, members_[rank].incarnation);
    const auto at = model_.reports.find(rank);
    const uint64_t number =
        at == model_.reports.end() || at->second.from != from ? 0 : at->second.number;
    const bool taken = gathered_.Apply(from, delta);
    if (delta.number > number) {
      const bool fits = delta.after == 0 || (delta.after == number && number > 0);
      EXPECT_EQ(taken, fits);
      if (number == 0) model_.reports.erase(rank);
      if (fits) {
        Heard& heard = model_.reports[rank];
        heard.from = from;
        heard.number = delta.number;
        ApplyDelta(delta, &heard.report);
      }
    } else {
      EXPECT_TRUE(taken);
    }
    return taken;
  }

  void ToggleSilent() {
    const Rank rank = SomeRank();
    const bool silent = !model_.silent.contains(rank);
    if (silent) {
      model_.silent.insert(rank);
    } else {
      model_.silent.erase(rank);
    }
    gathered_.Silent(rank, silent);
  }

  void Restart() {
    const Rank rank = SomeRank();
    Member& member = members_[rank];
    const int64_t incarnation = member.incarnation + 1;
    member = {};
    member.incarnation = incarnation;
    for (int i = Up(4); i > 0; --i) Happen(&member.report);
    member.number = 1;
    Deliver(rank, DeltaOf("job", {}, member.report, 0, 1));
  }

  void SeeNewLife() {
    const Rank rank = SomeRank();
    const int64_t incarnation = members_[rank].incarnation + 1;
    members_[rank] = {};
    members_[rank].incarnation = incarnation;
    gathered_.Seen(Life(rank, incarnation));
    model_.reports.erase(rank);
  }

  void HearAnotherLife() {
    const Rank rank = SomeRank();
    if (!model_.reports.contains(rank)) return;
    MemberId other = model_.reports[rank].from;
    if (OneIn(2)) {
      --other.incarnation;
    } else {
      other.instance = "another process!";
    }
    JobReport report;
    Happen(&report);
    EXPECT_TRUE(gathered_.Apply(other, DeltaOf("job", {}, report, 0, 1000)));
    gathered_.Seen(other);
  }

  void ChangeRecord() {
    const Attempt attempt = SomeAttempt();
    switch (Up(8)) {
      case 0:
        record_.policy.replicas = Up(4) - 1;
        ++record_.policy_stamp.version;
        break;
      case 1:
        if (OneIn(3)) record_.removed.steps[Up(5)].Add(attempt, attempt);
        break;
      case 2:
        if (OneIn(8)) record_.removed_up_to = std::max<Attempt>(record_.removed_up_to, Up(3));
        break;
      case 3:
        record_.attempts[attempt] = {Up(5), SomeLineage(attempt), 1};
        break;
      case 4:
        record_.attempts.erase(attempt);
        break;
      case 5:
        record_.decisions[{attempt, OneIn(2) ? LineRecordKind::kResume : LineRecordKind::kUse}] = {
            SomeLineage(attempt), 0, {1, 0}};
        break;
      case 6:
        record_.decisions.clear();
        break;
      default:
        record_.highest_protected = {attempt, Up(5)};
    }
    gathered_.SetRecord(record_);
  }

  std::mt19937 random_;
  const RingShape ring_;
  Gathered gathered_;
  Gathering model_;
  JobRecord record_;
  std::map<Rank, Member> members_;
  std::map<CheckpointId, CheckpointVerdict> said_;
};

TEST(Gathered, SaysWhatViewSaysAfterEachChangeOfAnyHistory) {
  constexpr uint32_t kSeeds = 150;
  constexpr int kChanges = 200;
  int complete = 0, hopeless = 0, conflicts = 0;
  for (uint32_t seed = 0; seed < kSeeds; ++seed) {
    RandomGathering gathering(seed);
    for (int change = 0; change < kChanges; ++change) {
      SCOPED_TRACE(absl::StrCat("seed ", seed, ", change ", change));
      gathering.Change();
      gathering.Compare();
      if (testing::Test::HasFailure()) return;
    }
    complete += gathering.complete_;
    hopeless += gathering.hopeless_;
    conflicts += gathering.conflicts_;
  }
  // The histories are worth it.
  EXPECT_GT(complete, 3000);
  EXPECT_GT(hopeless, 1000);
  EXPECT_GT(conflicts, 300);
}

}  // namespace
}  // namespace cairn::engine
