// A node of a ring of three.
#pragma once

#include <vector>

#include "server/engine/gathered.h"
#include "tests/engine/ring_fixture.h"

namespace cairn::engine {

// This node is rank 2; the tests speak for the others.
class AmongThree : public RingTest {
 protected:
  bool storage = false;
  explicit AmongThree(int members = 3) : members_(members) {}
  void SetUp() override {
    options.ring.cluster = "test";
    options.ring.rank = 2;
    for (int i = 0; i < members_; ++i) {
      options.ring.members[i] = absl::StrCat("10.0.0.", i + 1, ":1");
    }
    options.ring.replica_bytes = 40 * kMiB;
    options.ring.lost_after_seconds = 5;
    options.storage = storage;
    RingTest::SetUp();
    OthersAreHeard();
  }
  static MemberId Of(Rank rank) {
    return {rank, 1, std::string(kInstanceBytes, static_cast<char>('a' + rank))};
  }
  void Up(Rank rank) { Apply(event::Exchanged{rank, Of(rank)}); }
  void OthersAreHeard(Rank except = kNoRank) {
    for (Rank rank = 0; rank < members_; ++rank) {
      if (rank != options.ring.rank && rank != except) Up(rank);
    }
  }
  void Lose(Rank rank) {
    for (int i = 0; i < 15; ++i) {
      Apply(event::Exchanged{rank, std::nullopt});
      OthersAreHeard(rank);
      Advance(kNanosPerSecond);
    }
  }
  void Wants(Rank from, const std::vector<peer::Want>& list) {
    Apply(event::PeerSaid{Of(from), peer::WantList{++version_, list}});
  }
  // This node keeps the part for that member.
  void Keep(Rank from, const Manifest& manifest, Rank owner = kNoRank) {
    peer::Want want = WantOf(manifest);
    want.owner = owner;
    fetches.clear();
    Wants(from, {want});
    ASSERT_EQ(fetches.size(), 1u);
    Bring(fetches[0], manifest);
  }
  // Steps 1 to `last` of one writer are complete.
  static JobVerdict CompleteUpTo(Step last) {
    JobVerdict verdict;
    verdict.job = "job";
    verdict.final = verdict.owned = true;
    verdict.asked = 1;
    verdict.owner_uid = verdict.owner_gid = 1000;
    for (Step step = 1; step <= last; ++step) {
      CheckpointVerdict& said = verdict.checkpoints[{step, 1, 0}];
      said.world_size = 1;
      said.complete = said.in_memory = true;
      said.digest = "digest";
    }
    if (last > 0) verdict.latest = verdict.target = CheckpointId{last, 1, 0};
    return verdict;
  }
  // Whichever of them is the home.
  void Hear(const JobVerdict& verdict, const std::vector<Rank>& from) {
    for (const Rank rank : from) Apply(event::PeerSaid{Of(rank), peer::VerdictSaid{verdict}});
  }

 private:
  const int members_;
  uint64_t version_ = 0;
};

}  // namespace cairn::engine
