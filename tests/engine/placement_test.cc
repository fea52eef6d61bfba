// Groups: who keeps whose parts, and which losses leave a copy of everything.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/engine/ring.h"

namespace cairn::engine {
namespace {

using testing::ElementsAre;

std::set<Rank> Ranks(int members) {
  std::set<Rank> ranks;
  for (Rank rank = 0; rank < members; ++rank) ranks.insert(rank);
  return ranks;
}

TEST(Groups, AreMadeOfPlacesThatAreAJumpApart) {
  EXPECT_THAT(GroupsOf(8, {2, 1}), ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3),
                                               ElementsAre(4, 5), ElementsAre(6, 7)));
  EXPECT_THAT(GroupsOf(8, {2, 2}), ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3),
                                               ElementsAre(4, 6), ElementsAre(5, 7)));
  EXPECT_THAT(GroupsOf(8, {2, 4}), ElementsAre(ElementsAre(0, 4), ElementsAre(1, 5),
                                               ElementsAre(2, 6), ElementsAre(3, 7)));
  EXPECT_THAT(GroupsOf(6, {3, 2}), ElementsAre(ElementsAre(0, 2, 4), ElementsAre(1, 3, 5)));
}

TEST(Groups, OfWhatRemainsAsManyAreMadeAsFit) {
  EXPECT_THAT(GroupsOf(7, {2, 2}),
              ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3), ElementsAre(4, 5, 6)));
  EXPECT_THAT(GroupsOf(5, {2, 2}), ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3, 4)));
  EXPECT_THAT(GroupsOf(3, {2, 4}), ElementsAre(ElementsAre(0, 1, 2)));
  EXPECT_THAT(GroupsOf(1, {2, 1}), ElementsAre(ElementsAre(0)));
  EXPECT_THAT(GroupsOf(2, {4, 1}), ElementsAre(ElementsAre(0, 1)));
}

TEST(Groups, EachPlaceIsInExactlyOneAndNoneHasTooFew) {
  for (int members = 1; members <= 70; ++members) {
    for (int factor = 2; factor <= 5; ++factor) {
      for (int jump = 1; jump <= 6; ++jump) {
        SCOPED_TRACE(absl::StrCat(members, " members, factor ", factor, ", jump ", jump));
        std::multiset<int> places;
        for (const std::vector<int>& group : GroupsOf(members, {factor, jump})) {
          EXPECT_GE(static_cast<int>(group.size()), std::min(members, factor));
          EXPECT_TRUE(std::is_sorted(group.begin(), group.end()));
          places.insert(group.begin(), group.end());
        }
        ASSERT_EQ(static_cast<int>(places.size()), members);
        for (int place = 0; place < members; ++place) EXPECT_EQ(places.count(place), 1u);
      }
    }
  }
}

TEST(Groups, BackupsAreTheGroupsOthersThenTheNextAlongTheRing) {
  const std::set<Rank> members{10, 11, 12, 13, 14, 15, 16, 17};
  const Placement placement{2, 4};
  EXPECT_THAT(BackupsOf(10, members, {}, 1, placement), ElementsAre(14));
  EXPECT_THAT(BackupsOf(14, members, {}, 1, placement), ElementsAre(10));
  EXPECT_THAT(BackupsOf(10, members, {14}, 1, placement), ElementsAre(11));
  EXPECT_THAT(BackupsOf(10, members, {}, 3, placement), ElementsAre(14, 11, 12));
  EXPECT_THAT(OwnersFor(14, members, {}, 1, placement), ElementsAre(10));
  EXPECT_THAT(OwnersFor(11, members, {14}, 1, placement), ElementsAre(10, 15));
}

// F = 2, one replica: a loss keeps every checkpoint when no member is lost together with its backup. In groups of two
// those are the groups; along the ring any two neighbours.
TEST(Groups, WhichLossesKeepEveryCheckpoint) {
  for (int members = 2; members <= 12; ++members) {
    for (const int jump : {0, 1, 2, 4}) {  // 0: along the ring
      const Placement placement{jump == 0 ? 0 : 2, std::max(jump, 1)};
      const std::set<Rank> ranks = Ranks(members);
      SCOPED_TRACE(absl::StrCat(members, " members, jump ", jump));
      int kept_pairs = 0, pairs = 0;
      for (uint32_t lost = 0; lost < (1u << members); ++lost) {
        const auto is_lost = [lost](Rank rank) { return (lost >> rank & 1) != 0; };
        // The code: whoever is lost has a backup that is not.
        bool kept = true;
        for (const Rank owner : ranks) {
          if (!is_lost(owner)) continue;
          const std::vector<Rank> backups = BackupsOf(owner, ranks, {}, 1, placement);
          kept = kept && std::any_of(backups.begin(), backups.end(),
                                     [&](Rank backup) { return !is_lost(backup); });
        }
        // The rule.
        bool expected = true;
        if (jump == 0) {
          for (Rank rank = 0; rank < members; ++rank) {
            if (is_lost(rank) && is_lost((rank + 1) % members)) expected = false;
          }
        } else {
          for (const std::vector<int>& group : GroupsOf(members, placement)) {
            for (size_t i = 0; i < group.size(); ++i) {
              if (is_lost(group[i]) && is_lost(group[(i + 1) % group.size()])) expected = false;
            }
          }
        }
        ASSERT_EQ(kept, expected) << "lost: " << lost;
        if (__builtin_popcount(lost) == 2) ++pairs, kept_pairs += kept ? 1 : 0;
      }
      // Of an even number, groups of two lose fewer pairs than the ring does: members / 2 rather than members.
      if (members % 2 == 0 && members > 2) {
        EXPECT_EQ(pairs - kept_pairs, jump == 0 ? members : members / 2);
      }
    }
  }
}

// One replica, `lost` of a thousand members at once, drawn at random: how often everything is still there, against the
// formula. Along the ring no two neighbours may be lost, n/(n-k) · C(n-k, k) of C(n, k) choices; of groups of two no
// group, 2^k · C(n/2, k).
TEST(Groups, ALossOfManyOfAThousandIsAsLikelyToHurtAsTheFormulaSays) {
  constexpr int kMembers = 1000, kDraws = 4000;
  const std::set<Rank> ranks = Ranks(kMembers);
  const auto log_choose = [](double of, double so_many) {
    return std::lgamma(of + 1) - std::lgamma(so_many + 1) - std::lgamma(of - so_many + 1);
  };
  for (const Placement& placement : {Placement{}, Placement{2, 1}, Placement{2, 250}}) {
    std::vector<std::vector<Rank>> backups;
    for (const Rank owner : ranks) backups.push_back(BackupsOf(owner, ranks, {}, 1, placement));
    for (const int lost : {2, 8, 20}) {
      SCOPED_TRACE(absl::StrCat("factor ", placement.factor, ", jump ", placement.jump, ", ", lost,
                                " lost"));
      const double all = log_choose(kMembers, lost);
      const double kept =
          placement.Groups()
              ? std::exp(lost * std::log(2.0) + log_choose(kMembers / 2.0, lost) - all)
              : std::exp(std::log(static_cast<double>(kMembers) / (kMembers - lost)) +
                         log_choose(kMembers - lost, lost) - all);
      std::mt19937 random(static_cast<uint32_t>(lost));
      int survived = 0;
      for (int draw = 0; draw < kDraws; ++draw) {
        std::set<Rank> gone;
        while (static_cast<int>(gone.size()) < lost) {
          gone.insert(std::uniform_int_distribution<int>(0, kMembers - 1)(random));
        }
        survived += std::none_of(gone.begin(), gone.end(),
                                 [&](Rank owner) { return gone.contains(backups[owner].front()); });
      }
      // Four standard deviations.
      const double deviation = std::sqrt(kept * (1 - kept) / kDraws);
      EXPECT_NEAR(static_cast<double>(survived) / kDraws, kept, 4 * deviation + 1e-9);
    }
  }
}

TEST(Groups, APlacementThatTheRingCannotSatisfyIsRefused) {
  RingOptions options;
  options.cluster = "c";
  options.rank = 0;
  for (Rank rank = 0; rank < 4; ++rank)
    options.members[rank] = absl::StrCat("10.0.0.1:", 7000 + rank);
  options.placement = {2, 2};
  options.replicas = 1;
  EXPECT_TRUE(options.Validate().ok());
  options.replicas = 2;
  EXPECT_THAT(std::string(options.Validate().message()),
              testing::HasSubstr("ring.replicas: 2 is not below the 2 members of a group"));
  options.replicas = 1;
  options.placement = {1, 1};
  EXPECT_THAT(std::string(options.Validate().message()), testing::HasSubstr("ring.placement"));
}

}  // namespace
}  // namespace cairn::engine
