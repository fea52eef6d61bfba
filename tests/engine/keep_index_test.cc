#include "server/engine/keep_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

namespace cairn::engine {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr KeepIndex::Seen kCounted = {.persisted = true, .on_line = true, .counted = true};

JobPolicy Keep(int64_t last, int64_t every = 0) {
  JobPolicy policy;
  policy.keep_last = last;
  policy.keep_every = every;
  return policy;
}
CheckpointId At(Step step) { return {step, 1, 0}; }

TEST(KeepIndex, WhatIsPastTheNewestIsSurplusButForKeepEvery) {
  KeepIndex index;
  index.SetPolicy(Keep(2, 4));
  for (Step step = 1; step <= 6; ++step) index.Put(At(step), kCounted);
  EXPECT_THAT(index.surplus(), ElementsAre(At(1), At(2), At(3)));
  index.SetPolicy(Keep(4));
  EXPECT_THAT(index.surplus(), ElementsAre(At(1), At(2)));
  index.SetPolicy(Keep(0));
  EXPECT_THAT(index.surplus(), IsEmpty()) << "all stay";
}

TEST(KeepIndex, OneThatGoesMakesRoomForTheNextBelow) {
  KeepIndex index;
  index.SetPolicy(Keep(2, 4));
  for (Step step = 3; step <= 6; ++step) index.Put(At(step), kCounted);
  index.Put(At(6), {});
  EXPECT_THAT(index.surplus(), ElementsAre(At(3))) << "5 and 4 are the newest two";
  index.Put(At(5), {});
  EXPECT_THAT(index.surplus(), IsEmpty());
}

// Against a walk over everything, whatever comes, goes and changes.
TEST(KeepIndex, SaysWhatAWalkFinds) {
  std::mt19937 random(7);
  const auto below = [&](int n) { return static_cast<int>(random() % n); };
  KeepIndex index;
  std::map<CheckpointId, KeepIndex::Seen> all;
  JobPolicy policy = Keep(3);
  index.SetPolicy(policy);
  for (int i = 0; i < 20'000; ++i) {
    const CheckpointId id{below(40), static_cast<Attempt>(1 + below(3)), 0};
    KeepIndex::Seen seen;
    seen.persisted = below(4) > 0;
    if (seen.persisted) {
      const int place = below(4);
      seen.on_line = place >= 2;
      seen.abandoned = place == 1;
      seen.counted = below(5) > 0;
    }
    index.Put(id, seen);
    all[id] = seen;
    if (below(50) == 0) index.SetPolicy(policy = Keep(below(6), below(3) * 3));

    std::set<CheckpointId> surplus, abandoned;
    std::map<Attempt, KeepIndex::OfAttempt> attempts;
    int64_t kept = 0;
    for (auto at = all.rbegin(); at != all.rend(); ++at) {
      const auto& [of, now] = *at;
      if (now.persisted) ++attempts[of.attempt].files;
      if (now.persisted && now.on_line) ++attempts[of.attempt].on_line;
      if (now.counted && now.abandoned) abandoned.insert(of);
      if (!now.counted || !now.on_line || policy.keep_last <= 0) continue;
      const bool of_keep_every = policy.keep_every > 0 && of.step % policy.keep_every == 0;
      if (++kept > policy.keep_last && !of_keep_every) surplus.insert(of);
    }
    ASSERT_EQ(index.surplus(), surplus);
    ASSERT_EQ(index.abandoned(), abandoned);
    ASSERT_EQ(index.attempts(), attempts);
  }
}

}  // namespace
}  // namespace cairn::engine
