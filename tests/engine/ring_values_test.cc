// Options of a ring, who keeps whose parts, whose home a job has, and deltas of reports.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "absl/strings/str_cat.h"
#include "server/engine/options.h"
#include "server/engine/ring.h"
#include "tests/engine/reports.h"

namespace cairn::engine {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

RingOptions Three() {
  RingOptions options;
  options.cluster = "training-1";
  options.rank = 1;
  options.members = {{0, "10.0.0.1:7000"}, {1, "node-1.example:7000"}, {2, "[fd00::3]:7000"}};
  return options;
}

std::string Refusal(const RingOptions& options) {
  return std::string(options.Validate().message());
}

TEST(RingOptions, ARingAsItShouldBeIsAccepted) {
  EXPECT_EQ(Three().Validate(), absl::OkStatus());
  RingOptions one = Three();
  one.members = {{1, "127.0.0.1:1"}};
  EXPECT_EQ(one.Validate(), absl::OkStatus());
}

TEST(RingOptions, WithoutMembersTheEngineDoesNotAskForARing) {
  Options options;
  options.budget_bytes = 1 << 20;
  EXPECT_EQ(options.Validate(), absl::OkStatus());
  options.ring = Three();
  options.ring.rank = 7;
  EXPECT_THAT(std::string(options.Validate().message()), HasSubstr("ring.rank: 7 is not among"));
}

TEST(RingOptions, ARefusalNamesTheOptionAndTheValue) {
  RingOptions options = Three();
  options.cluster = "";
  EXPECT_THAT(Refusal(options), HasSubstr("ring.cluster: \"\""));
  options.cluster = "two words";
  EXPECT_THAT(Refusal(options), HasSubstr("ring.cluster: \"two words\""));
  options.cluster = std::string(65, 'a');
  EXPECT_THAT(Refusal(options), HasSubstr("ring.cluster"));
  options.cluster = std::string(64, 'a');
  EXPECT_EQ(options.Validate(), absl::OkStatus());
  options.rank = 3;
  EXPECT_THAT(Refusal(options), AllOf(HasSubstr("ring.rank: 3"), HasSubstr("0, 1, 2")));
  options = Three();
  options.replicas = 3;
  EXPECT_THAT(Refusal(options), HasSubstr("ring.replicas: 3 is not 0 to 2"));
  options.replicas = -1;
  EXPECT_THAT(Refusal(options), HasSubstr("ring.replicas: -1"));
  options = Three();
  options.lost_after_seconds = 0;
  EXPECT_THAT(Refusal(options), HasSubstr("ring.lost_after_seconds: 0 is not 1 to 86400"));
  options.lost_after_seconds = 86'401;
  EXPECT_THAT(Refusal(options), HasSubstr("ring.lost_after_seconds: 86401"));
}

TEST(RingOptions, MembersAreAtMost64AndEachAtAnAddressOfItsOwn) {
  RingOptions options = Three();
  options.members[-1] = "10.0.0.9:7000";
  EXPECT_THAT(Refusal(options), HasSubstr("ring.nodes: rank -1"));
  for (const char* bad : {"", "10.0.0.1", "10.0.0.1:", ":7000", "10.0.0.1:0", "10.0.0.1:65536",
                          "10.0.0.1:+7", "fd00::3:7000", "[]:7000", "a b:7000", "host:70 00"}) {
    options = Three();
    options.members[2] = bad;
    EXPECT_THAT(Refusal(options), HasSubstr("is not ADDRESS:PORT")) << bad;
  }
  options = Three();
  options.members[2] = options.members[0];
  EXPECT_THAT(Refusal(options), HasSubstr("ring.nodes: ranks 0 and 2 are both at 10.0.0.1:7000"));
  options = Three();
  for (Rank rank = 0; rank < 65; ++rank) options.members[rank] = absl::StrCat("host:", rank + 1);
  EXPECT_THAT(Refusal(options), HasSubstr("ring.nodes: has 65 members, the limit is 64"));
  options.members = {};
  EXPECT_THAT(Refusal(options), HasSubstr("ring.nodes: is empty"));
}

TEST(Placement, BackupsAreTheNextRanksAroundTheList) {
  const std::set<Rank> members{0, 2, 5, 9};
  EXPECT_THAT(BackupsOf(2, members, {}, 1), ElementsAre(5));
  EXPECT_THAT(BackupsOf(5, members, {}, 2), ElementsAre(9, 0));
  EXPECT_THAT(BackupsOf(9, members, {0}, 1), ElementsAre(2));
  EXPECT_THAT(BackupsOf(9, members, {}, 63), ElementsAre(0, 2, 5));
  EXPECT_THAT(BackupsOf(9, members, {}, 0), IsEmpty());
  EXPECT_THAT(OwnersFor(0, members, {}, 2), ElementsAre(5, 9));
  EXPECT_THAT(OwnersFor(0, members, {9}, 1),
              ElementsAre(5, 9));  // 9 is silent: 0 keeps what it has
  EXPECT_THAT(OwnersFor(0, members, {0}, 2), IsEmpty());
}

struct RandomRing {
  explicit RandomRing(uint32_t seed) : random(seed) {
    const int size = 1 + Up(12);
    while (static_cast<int>(members.size()) < size) members.insert(Up(40));
    for (const Rank rank : members) {
      if (Up(4) == 0) silent.insert(rank);
    }
    replicas = Up(4);
  }
  int Up(int below) { return std::uniform_int_distribution<int>(0, below - 1)(random); }
  Rank AnyOf(const std::set<Rank>& ranks) {
    return *std::next(ranks.begin(), Up(static_cast<int>(ranks.size())));
  }
  std::mt19937 random;
  std::set<Rank> members, silent;
  int replicas = 0;
};

constexpr uint32_t kRings = 2000;

TEST(Placement, OfAnyRingEachOwnerHasAsManyLiveBackupsAsThereCanBe) {
  for (uint32_t seed = 0; seed < kRings; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    const RandomRing ring(seed);
    std::map<Rank, std::set<Rank>> owners_of;
    for (const Rank owner : ring.members) {
      const auto backups = BackupsOf(owner, ring.members, ring.silent, ring.replicas);
      const std::set<Rank> distinct(backups.begin(), backups.end());
      int live = 0;
      for (const Rank rank : ring.members) live += rank != owner && !ring.silent.contains(rank);
      EXPECT_EQ(distinct.size(), backups.size());
      EXPECT_EQ(static_cast<int>(backups.size()), std::min(ring.replicas, live));
      EXPECT_FALSE(distinct.contains(owner));
      for (const Rank backup : backups) {
        EXPECT_FALSE(ring.silent.contains(backup));
        owners_of[backup].insert(owner);
      }
    }
    for (const Rank backup : ring.members) {
      EXPECT_THAT(OwnersFor(backup, ring.members, ring.silent, ring.replicas),
                  testing::ElementsAreArray(owners_of[backup]));
    }
  }
}

// Of the members before the one that comes or goes, back to as many live ones as there are replicas, the
// lists change; with nobody silent these are `replicas` members. Nobody else's does.
TEST(Placement, AMemberThatComesOrGoesChangesOnlyTheListsOfThoseBeforeIt) {
  for (uint32_t seed = 0; seed < kRings; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    RandomRing ring(seed);
    const Rank gone = ring.AnyOf(ring.members);
    std::set<Rank> silent = ring.silent;
    silent.erase(gone);
    std::set<Rank> with_it = silent;
    with_it.insert(gone);
    std::vector<Rank> changed;
    for (const Rank owner : ring.members) {
      if (BackupsOf(owner, ring.members, silent, ring.replicas) !=
          BackupsOf(owner, ring.members, with_it, ring.replicas)) {
        changed.push_back(owner);
      }
    }
    EXPECT_EQ(changed, OwnersFor(gone, ring.members, silent, ring.replicas));
    int live = 0;
    for (const Rank owner : changed) live += !silent.contains(owner);
    EXPECT_LE(live, ring.replicas);
  }
}

// What an owner loses with a silent backup is the one after the last takes over; the others stay.
TEST(Placement, ASilentBackupIsReplacedByOneAndTheOthersStay) {
  for (uint32_t seed = 0; seed < kRings; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    RandomRing ring(seed);
    const Rank owner = ring.AnyOf(ring.members);
    const auto before = BackupsOf(owner, ring.members, ring.silent, ring.replicas);
    if (before.empty()) continue;
    std::set<Rank> silent = ring.silent;
    const Rank lost = before[static_cast<size_t>(ring.Up(static_cast<int>(before.size())))];
    silent.insert(lost);
    const auto after = BackupsOf(owner, ring.members, silent, ring.replicas);
    std::set<Rank> fresh(after.begin(), after.end());
    for (const Rank rank : before) {
      EXPECT_EQ(fresh.erase(rank), rank == lost ? 0U : 1U);
    }
    EXPECT_LE(fresh.size(), 1U);
  }
}

// Members of different builds must agree: what is said here must never change.
TEST(Home, TheOrderIsTheSameOnEveryMachineAndInEveryBuild) {
  EXPECT_THAT(HomeOrder("llama", {0, 1, 2, 3}), ElementsAre(3, 1, 0, 2));
  EXPECT_THAT(HomeOrder("llama-2", {0, 1, 2, 3}), ElementsAre(0, 3, 2, 1));
  EXPECT_THAT(HomeOrder("x", {5}), ElementsAre(5));
  EXPECT_THAT(HomeOrder("x", {}), IsEmpty());
}

TEST(Home, AMemberThatGoesMovesOnlyTheJobsThatItWasHomeOf) {
  const std::set<Rank> members{0, 1, 2, 3, 4, 5, 6};
  std::set<Rank> fewer = members;
  fewer.erase(3);
  for (int i = 0; i < 1000; ++i) {
    const std::string job = absl::StrCat("job-", i);
    std::vector<Rank> order = HomeOrder(job, members);
    order.erase(std::find(order.begin(), order.end(), 3));
    EXPECT_EQ(order, HomeOrder(job, fewer)) << job;
  }
}

TEST(Home, JobsAreSpreadOverTheMembers) {
  const std::set<Rank> members{0, 1, 2, 3, 4, 5, 6, 7};
  std::map<Rank, int> homes;
  for (int i = 0; i < 8000; ++i) ++homes[HomeOrder(absl::StrCat("job-", i), members).front()];
  for (const Rank rank : members) {
    EXPECT_GT(homes[rank], 850) << rank;
    EXPECT_LT(homes[rank], 1150) << rank;
  }
}

// --- deltas

JobReport RandomReport(RandomRing* random) {
  JobReport report;
  const auto id = [&] { return CheckpointId{random->Up(3), 1 + random->Up(2), random->Up(2)}; };
  report.owned = random->Up(2) == 0;
  report.owner_uid = static_cast<uint32_t>(random->Up(3));
  report.policy.replicas = random->Up(3);
  for (int i = random->Up(5); i > 0; --i) {
    PartReport& part = report.parts[{id(), random->Up(3)}];
    part.world_size = 3;
    part.in_memory = random->Up(2) == 0;
    if (random->Up(2) == 0) part.names = Names({static_cast<uint64_t>(random->Up(3))});
  }
  for (int i = random->Up(3); i > 0; --i) report.attempts[1 + random->Up(3)].first = random->Up(3);
  for (int i = random->Up(4); i > 0; --i) {
    WriterReport& writer = report.writers[{1 + random->Up(2), {2 + random->Up(2), random->Up(3)}}];
    writer.reached = {random->Up(3), 0};
    if (random->Up(3) == 0) writer.given_up.insert({random->Up(3), 0});
  }
  for (int i = random->Up(3); i > 0; --i) report.published.insert(id());
  if (random->Up(2) == 0) report.target = id();
  return report;
}

TEST(Delta, MakesOneReportOfAnother) {
  for (uint32_t seed = 0; seed < kRings; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    RandomRing random(seed);
    const JobReport from = RandomReport(&random), to = RandomReport(&random);
    JobReport report = from;
    ApplyDelta(DeltaOf("job", from, to, 4, 5), &report);
    EXPECT_EQ(report, to);
    report = RandomReport(&random);
    ApplyDelta(DeltaOf("job", from, to, 0, 5), &report);  // whole: whatever was there
    EXPECT_EQ(report, to);
  }
}

TEST(Delta, TwoInARowSayAsOneWhatBothSay) {
  for (uint32_t seed = 0; seed < kRings; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    RandomRing random(seed);
    const JobReport a = RandomReport(&random), b = RandomReport(&random), c = RandomReport(&random);
    const uint64_t after = random.Up(3) == 0 ? 0 : 4;
    const ReportDelta older = DeltaOf("job", a, b, after, 5);
    const ReportDelta merged =
        MergeDelta(older, DeltaOf("job", b, c, random.Up(5) == 0 ? 0 : 5, 6));
    EXPECT_EQ(merged.number, 6U);
    JobReport report = a;
    ApplyDelta(merged, &report);
    EXPECT_EQ(report, c);
    // Whoever has the older one already may be told both: nothing that came between stays.
    report = b;
    ApplyDelta(merged, &report);
    EXPECT_EQ(report, c);
  }
}

TEST(Delta, ThatIsWholeReplacesWhatWasSaidBefore) {
  RandomRing random(1);
  const JobReport a = RandomReport(&random), b = RandomReport(&random);
  const ReportDelta merged = MergeDelta(DeltaOf("job", {}, a, 7, 8), DeltaOf("job", {}, b, 0, 9));
  EXPECT_EQ(merged.after, 0U);
  EXPECT_EQ(merged.number, 9U);
}

}  // namespace
}  // namespace cairn::engine
