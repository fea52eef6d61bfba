// What waits to be said to a member is the newest of its kind, and nothing of a report's changes is lost.
#include "server/rpc/peer_outbox.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/rpc/peer_messages.h"

namespace cairn::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
namespace peer = engine::peer;

peer::Report Change(const std::string& job, uint64_t after, uint64_t number) {
  peer::Report report;
  report.delta.job = job;
  report.delta.after = after;
  report.delta.number = number;
  return report;
}

engine::PartId Id(Step step) { return {{step, 7, 0}, 0}; }

TEST(PeerOutbox, ANewerListTakesThePlaceOfAnOlderOne) {
  rpc::PeerOutbox outbox;
  ASSERT_TRUE(outbox.Put(SomeWants()));
  ASSERT_TRUE(outbox.Put(SomeHaves()));
  peer::WantList newer = SomeWants();
  newer.version = 10;
  newer.wants.clear();
  ASSERT_TRUE(outbox.Put(newer));
  const auto taken = outbox.Take();
  ASSERT_EQ(taken.size(), 2u);
  EXPECT_EQ(std::get<peer::WantList>(taken[0]).version, 10u);
  EXPECT_THAT(std::get<peer::WantList>(taken[0]).wants, IsEmpty());
  EXPECT_TRUE(outbox.empty());
  EXPECT_THAT(outbox.Take(), IsEmpty());
}

TEST(PeerOutbox, JobsAreToldApart) {
  rpc::PeerOutbox outbox;
  for (const char* job : {"x", "y", "x"}) {
    ASSERT_TRUE(outbox.Put(peer::ReportWanted{job}));
    ASSERT_TRUE(outbox.Put(peer::VerdictWanted{job}));
    ASSERT_TRUE(outbox.Put(peer::Record{job, "r"}));
    engine::JobVerdict verdict = *SomeVerdict().verdict;
    verdict.job = job;
    ASSERT_TRUE(outbox.Put(peer::VerdictSaid{verdict}));
  }
  EXPECT_EQ(outbox.Take().size(), 8u);
}

TEST(PeerOutbox, TheChangesOfAReportAreMerged) {
  rpc::PeerOutbox outbox;
  peer::Report first = Change("job", 3, 4), second = Change("job", 4, 5);
  first.delta.parts[Id(1)].bytes = 1;
  first.delta.parts[Id(2)].bytes = 2;
  first.delta.parts_gone = {Id(3), Id(4)};
  first.delta.published = {{1, 7, 0}};
  first.delta.target = engine::CheckpointId{1, 7, 0};
  second.delta.parts[Id(2)].bytes = 22;
  second.delta.parts[Id(3)].bytes = 33;
  second.delta.parts_gone = {Id(1)};
  second.delta.published_gone = {{1, 7, 0}};
  second.delta.attempts[7].first = 1;
  ASSERT_TRUE(outbox.Put(first));
  ASSERT_TRUE(outbox.Put(second));
  const auto taken = outbox.Take();
  ASSERT_EQ(taken.size(), 1u);
  const engine::ReportDelta& both = std::get<peer::Report>(taken[0]).delta;
  EXPECT_EQ(both.after, 3u);
  EXPECT_EQ(both.number, 5u);
  ASSERT_EQ(both.parts.size(), 2u);
  EXPECT_EQ(both.parts.at(Id(2)).bytes, 22u);
  EXPECT_EQ(both.parts.at(Id(3)).bytes, 33u);
  EXPECT_THAT(both.parts_gone, ElementsAre(Id(1), Id(4)));
  EXPECT_THAT(both.published, IsEmpty());
  EXPECT_THAT(both.published_gone, ElementsAre(engine::CheckpointId{1, 7, 0}));
  EXPECT_EQ(both.attempts.size(), 1u);
  EXPECT_EQ(both.target, std::nullopt);
}

TEST(PeerOutbox, AWholeReportTakesThePlaceOfAnyChange) {
  rpc::PeerOutbox outbox;
  peer::Report change = Change("job", 3, 4), whole = Change("job", 0, 5);
  change.delta.parts[Id(1)].bytes = 1;
  whole.delta.parts[Id(2)].bytes = 2;
  ASSERT_TRUE(outbox.Put(change));
  ASSERT_TRUE(outbox.Put(whole));
  ASSERT_TRUE(outbox.Put(Change("job", 5, 6)));
  const auto taken = outbox.Take();
  const engine::ReportDelta& delta = std::get<peer::Report>(taken.at(0)).delta;
  EXPECT_EQ(delta.after, 0u);
  EXPECT_EQ(delta.number, 6u);
  EXPECT_EQ(delta.parts.count(Id(1)), 0u);
  EXPECT_EQ(delta.parts.count(Id(2)), 1u);
}

TEST(PeerOutbox, AChangeThatBuildsOnAnotherIsNotPassedOffAsOneThatFollows) {
  rpc::PeerOutbox outbox;
  peer::Report first = Change("job", 3, 4), later = Change("job", 5, 6);
  ASSERT_TRUE(outbox.Put(first));
  ASSERT_TRUE(outbox.Put(later));
  EXPECT_EQ(std::get<peer::Report>(outbox.Take().at(0)).delta.after, 5u);
}

TEST(PeerOutbox, EachReleaseIsSaidAndTheNewestAnswerCounts) {
  rpc::PeerOutbox outbox;
  peer::ReleaseList first, second;
  first.haves_version = 1;
  first.releases = {{SomePart(1), SomeDigest(1), peer::Fate::kRemoved, {}},
                    {SomePart(2), SomeDigest(2), peer::Fate::kRemoved, {}}};
  second.haves_version = 2;
  second.releases = {{SomePart(2), SomeDigest(2), peer::Fate::kKeep, {}},
                     {SomePart(3), SomeDigest(3), peer::Fate::kAbandoned, {}}};
  ASSERT_TRUE(outbox.Put(first));
  ASSERT_TRUE(outbox.Put(second));
  const auto taken = outbox.Take();
  ASSERT_EQ(taken.size(), 1u);
  const auto& list = std::get<peer::ReleaseList>(taken[0]);
  EXPECT_EQ(list.haves_version, 2u);
  ASSERT_EQ(list.releases.size(), 3u);
  EXPECT_EQ(list.releases[0].fate, peer::Fate::kRemoved);
  EXPECT_EQ(list.releases[1].fate, peer::Fate::kKeep);
  EXPECT_EQ(list.releases[2].fate, peer::Fate::kAbandoned);
}

TEST(PeerOutbox, ThereIsABoundOnWhatWaits) {
  rpc::PeerOutbox outbox(/*most_topics=*/2);
  EXPECT_TRUE(outbox.Put(peer::ReportWanted{"x"}));
  EXPECT_TRUE(outbox.Put(peer::ReportWanted{"y"}));
  EXPECT_FALSE(outbox.Put(peer::ReportWanted{"z"}));
  EXPECT_TRUE(outbox.Put(peer::ReportWanted{"x"}));
  EXPECT_EQ(outbox.Take().size(), 2u);
}

}  // namespace
}  // namespace cairn::testing
