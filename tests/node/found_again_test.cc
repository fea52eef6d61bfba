// R38: what was committed behind a damaged place of the journal, found again by a node that holds it.
#include <unistd.h>

#include "gmock/gmock.h"
#include "server/facts/part_record.h"
#include "tests/node/damaged_node.h"

namespace cairn::testing {
namespace {

using ::testing::HasSubstr;

TEST_F(DamagedNode, WhatWasCommittedBehindTheDamageIsFoundAgain) {
  StartNode();
  const SessionId first = Begin();
  const std::string one(3 << 20, '1'), two(2 << 20, '2'), three(1 << 20, '3');
  ASSERT_TRUE(Save(first, 1, "model", one).ok());
  const uint64_t end = Frames().back();
  ASSERT_TRUE(Save(first, 2, "model", two).ok());
  StopNode();
  Flip(end + 30);
  for (int life = 0; life < 2; ++life) {
    Restart();
    EXPECT_EQ(node().CheckInvariants(), "");
    if (life == 0) {
      EXPECT_THAT(State(), HasSubstr("; 1 committed parts were found again"));
    }
    const SessionId session = Begin("job", 8 + life);
    EXPECT_EQ(Latest(session), 2);
    EXPECT_EQ(*Load(session, 1, "model"), one);
    EXPECT_EQ(*Load(session, 2, "model"), two);
  }
  const SessionId later = Begin("job", 10);
  ASSERT_TRUE(Save(later, 3, "model", three, "job", 10).ok());
  EXPECT_EQ(Latest(later), 3);
  EXPECT_EQ(*Load(later, 3, "model"), three);
  EXPECT_EQ(node().CheckInvariants(), "");
}

// What the facts tell of is an earlier state: its memory has been that of later steps since.
TEST_F(DamagedNode, MemoryThatWasReusedBehindTheDamageIsThatOfTheLaterPart) {
  options_.engine.budget_bytes = 10 << 20;
  StartNode();
  const SessionId first = Begin();
  const auto bytes = [](Step step) { return std::string(2 << 20, static_cast<char>('a' + step)); };
  for (Step step : {1, 2}) ASSERT_TRUE(Save(first, step, "model", bytes(step)).ok());
  const uint64_t end = Frames().back();
  for (Step step = 3; step < 12; ++step) {
    ASSERT_TRUE(Save(first, step, "model", bytes(step)).ok());
  }
  StopNode();
  Flip(end + 30);
  StartNode();
  EXPECT_EQ(node().CheckInvariants(), "");
  const SessionId session = Begin("job", 8);
  EXPECT_EQ(Latest(session), 11);
  EXPECT_EQ(*Load(session, 11, "model"), bytes(11));
  for (Step step = 1; step < 11; ++step) {
    const StatusOr<std::string> loaded = Load(session, step, "model");
    if (loaded.ok()) {
      EXPECT_EQ(*loaded, bytes(step));
    }
  }
  ASSERT_TRUE(Save(session, 12, "model", bytes(12), "job", 8).ok());
  EXPECT_EQ(node().CheckInvariants(), "");
}

TEST_F(DamagedNode, WhatWasWrittenOverSinceIsNotFoundAgain) {
  StartNode();
  const SessionId first = Begin();
  ASSERT_TRUE(Save(first, 1, "model", std::string(1 << 20, '1')).ok());
  const uint64_t end = Frames().back();
  ASSERT_TRUE(Save(first, 2, "model", std::string(2 << 20, '2')).ok());
  const SlabId slab = Committed("job", 2).slabs.at(0);
  StopNode();
  Scribble(slab, "3");
  Flip(end + 30);
  StartNode();
  EXPECT_THAT(State(), HasSubstr("; 0 committed parts were found again"));
  const SessionId session = Begin("job", 8);
  EXPECT_EQ(Latest(session), 1);
  EXPECT_TRUE(absl::IsNotFound(Load(session, 2, "model").status()));
  EXPECT_EQ(node().CheckInvariants(), "");
}

// The same, where the earlier part's record is still there: it does not keep the later one out.
TEST_F(DamagedNode, APartOfTheFactsWhoseMemoryIsALaterOnesIsDropped) {
  StartNode();
  const SessionId first = Begin();
  const std::string small(1 << 20, 's'), large(4 << 20, 'l'), later(4 << 20, 'x');
  ASSERT_TRUE(Save(first, 1, "model", small).ok());
  ASSERT_TRUE(Save(first, 2, "model", large).ok());
  const uint64_t end = Frames().back();
  const fact::PartCommitted stale = Committed("job", 2);
  ASSERT_TRUE(Save(first, 3, "model", small).ok());
  for (Step step : {1, 2}) ASSERT_EQ(Remove(first, step, /*memory_only=*/true), absl::OkStatus());
  ASSERT_TRUE(Save(first, 4, "model", later).ok());
  ASSERT_EQ(Committed("job", 4).slabs, stale.slabs);
  ASSERT_FALSE(Committed("job", 4).extent == stale.extent);
  StopNode();
  for (const uint64_t frame : Frames()) {
    if (frame >= end) Flip(frame + 30);  // nothing is left of what says that they were dropped
  }
  for (int life = 0; life < 2; ++life) {
    Restart();
    EXPECT_EQ(node().CheckInvariants(), "");
    const SessionId session = Begin("job", 8 + life);
    EXPECT_EQ(Latest(session), 4);
    EXPECT_EQ(*Load(session, 4, "model"), later);
    EXPECT_EQ(*Load(session, 3, "model"), small);
    EXPECT_TRUE(absl::IsNotFound(Load(session, 2, "model").status()));
  }
}

TEST_F(DamagedNode, WhatWasRemovedBehindTheDamageStaysRemoved) {
  StartNode();
  const SessionId first = Begin();
  for (Step step : {1, 2}) ASSERT_TRUE(Save(first, step, "model", "bytes").ok());
  const uint64_t end = Frames().back();
  ASSERT_TRUE(Save(first, 3, "model", "three").ok());
  for (Step step : {2, 3}) ASSERT_EQ(Remove(first, step), absl::OkStatus());
  StopNode();
  Flip(end + 30);
  for (int life = 0; life < 2; ++life) {
    Restart();
    EXPECT_EQ(node().CheckInvariants(), "");
    const SessionId session = Begin("job", 8 + life);
    EXPECT_EQ(Latest(session), 1);
    for (Step step : {2, 3}) {
      EXPECT_TRUE(absl::IsNotFound(Load(session, step, "model").status())) << step;
    }
  }
}

TEST_F(DamagedNode, WhatWasRemovedStaysSoWhenItIsFound) {
  StartNode();
  const SessionId first = Begin();
  ASSERT_TRUE(Save(first, 1, "model", "one").ok());
  const uint64_t end = Frames().back();
  ASSERT_TRUE(Save(first, 2, "model", "two").ok());
  ASSERT_EQ(Remove(first, 2), absl::OkStatus());
  StopNode();
  Flip(end + 30);
  StartNode();
  EXPECT_THAT(State(), HasSubstr("; 0 committed parts were found again"));
  EXPECT_EQ(Latest(Begin("job", 8)), 1);
}

// Promise 6: a record that a client wrote into its own slab, perfect down to the seal, names another's
// memory as its own.
TEST_F(DamagedNode, ARecordInASlabThatWasLentIsNotBelieved) {
  StartNode();
  const std::string secret(2 << 20, 's');
  ASSERT_TRUE(Save(Begin("theirs"), 1, "model", secret, "theirs").ok());
  ASSERT_TRUE(Save(Begin("ours"), 1, "model", std::string(1 << 20, 'o'), "ours").ok());
  const SlabId theirs = Committed("theirs", 1).slabs.at(0);
  const SlabId ours = Committed("ours", 1).slabs.at(0);
  StopNode();
  Manifest head;
  head.job = "ours";
  head.owner_uid = getuid();
  head.step = 5;
  head.attempt = 7;
  head.created_unix_ms = RealClock()->UnixMillis() + 1000;
  ObjectEntry entry;
  entry.name = "model";
  entry.length = secret.size();
  entry.block_crcs = BlockCrcs(secret.data(), secret.size(), kBlockBytes);
  head.objects = {entry};
  std::string record = EncodeManifest(head);
  const size_t manifest_bytes = record.size();
  record = EncodePartRecord(std::move(record), {{theirs, 0, secret.size()}});
  SealPartRecord({kNonce, ours, 0}, manifest_bytes, getgid(), &record);
  ASSERT_TRUE(FindSealedRecord(record, {kNonce, ours, 0}).has_value());
  Scribble(ours, record);
  Flip(kHeaderPage + 30);  // all that was said
  StartNode();
  EXPECT_TRUE(absl::IsNotFound(Load(Begin("ours", 8), 5, "model", "ours").status()));
  const StatusOr<std::string> loaded = Load(Begin("theirs", 8), 1, "model", "theirs");
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(*loaded, secret);
  EXPECT_EQ(node().CheckInvariants(), "");
}

}  // namespace
}  // namespace cairn::testing
