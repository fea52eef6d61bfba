// R38: which parts, found by their records behind a damaged journal, join the facts.
#include "server/node/found_parts.h"

#include <algorithm>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cairn::node {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kSecret = 77;
constexpr SlabId kRecords = 50;
constexpr uint64_t kSlabBytes = 1 << 20;

PartKey Key(Step step) { return {{"job", step, 7, 0}, 0}; }

// The memory of a node: slab kRecords is held for manifests, slabs 1 to 9 for objects.
class FoundParts : public ::testing::Test {
 protected:
  FoundParts() {
    memory_.slabs[kRecords] = {16 * kPageBytes, fact::SlabUse::kManifests};
    bytes_[kRecords].resize(16 * kPageBytes);
    for (SlabId slab = 1; slab < 10; ++slab) memory_.slabs[slab].bytes = kSlabBytes;
    memory_.read = [this](const ExtentRef& extent, uint64_t) -> StatusOr<std::string> {
      return bytes_[extent.slab].substr(extent.offset, extent.length);
    };
    memory_.crcs = [this](const ExtentRef& extent, uint64_t length,
                          uint32_t) -> StatusOr<std::vector<uint32_t>> {
      const auto at = crcs_.find(extent.slab);
      if (at == crcs_.end()) return absl::DataLossError("pages are gone");
      return std::vector<uint32_t>(length == 0 ? 0 : 1, at->second);
    };
  }

  static Manifest Head(Step step, int64_t unix_ms) {
    Manifest head;
    head.job = "job";
    head.owner_uid = 1000;
    head.step = step;
    head.attempt = 7;
    head.created_unix_ms = unix_ms;
    return head;
  }
  // The record of a part with one object in `slab`, whose bytes have the checksum `crc`.
  std::string Record(Manifest head, SlabId slab, uint32_t crc, uint64_t at,
                     uint64_t secret = kSecret) const {
    ObjectEntry entry;
    entry.name = "model";
    entry.length = 5000;
    entry.block_crcs = {crc};
    head.objects = {entry};
    std::string record = EncodeManifest(head);
    const size_t manifest_bytes = record.size();
    record = EncodePartRecord(std::move(record), {{slab, 0, 2 * kPageBytes}});
    SealPartRecord({secret, kRecords, at}, manifest_bytes, 1001, &record);
    return record;
  }
  void Put(uint64_t at, const std::string& record, SlabId into = kRecords) {
    bytes_[into].replace(at, record.size(), record);
  }
  // The part was committed and its bytes are there.
  void Commit(Manifest head, SlabId slab, uint32_t crc, uint64_t at) {
    Put(at, Record(std::move(head), slab, crc, at));
    crcs_[slab] = crc;
  }
  std::vector<PartKey> Join() {
    std::vector<std::string> of_known;
    Status unknown;
    const auto tables = TablesOf(facts_, memory_.read, &of_known, &unknown);
    return JoinFoundParts(FindParts(memory_, kSecret, &problems_), behind_, memory_, tables,
                          &facts_, &problems_);
  }
  template <typename F>
  std::vector<F> Said() const {
    std::vector<F> said;
    for (const Fact& fact : facts_) {
      if (const auto* one = std::get_if<F>(&fact)) said.push_back(*one);
    }
    return said;
  }

  HeldMemory memory_;
  std::map<SlabId, std::string> bytes_;
  std::map<SlabId, uint32_t> crcs_;
  std::vector<Fact> facts_, behind_;
  std::vector<std::string> problems_;
};

TEST_F(FoundParts, SayAllThatWasLostOfThem) {
  Manifest head = Head(3, 10);
  head.world_size = 2;
  head.first = 2;
  Commit(head, 4, 11, kPageBytes);
  EXPECT_THAT(Join(), ElementsAre(Key(3)));
  const fact::Slab records{kRecords, 16 * kPageBytes, fact::SlabUse::kManifests};
  const fact::Slab objects{4, kSlabBytes, fact::SlabUse::kObjects, 1000, "job"};
  EXPECT_TRUE(Said<fact::Job>() == std::vector({fact::Job{"job", 1000, 1001, {}}}));
  EXPECT_TRUE(Said<fact::AttemptBegun>() ==
              std::vector({fact::AttemptBegun{"job", 7, 2, head.lineage, 10}}));
  EXPECT_TRUE(Said<fact::StepWorld>() == std::vector({fact::StepWorld{"job", 7, 3, 2}}));
  EXPECT_TRUE(Said<fact::Slab>() == std::vector({records, objects}));
  const auto committed = Said<fact::PartCommitted>();
  ASSERT_EQ(committed.size(), 1u);
  EXPECT_EQ(committed[0].extent, (ExtentRef{kRecords, kPageBytes, kPageBytes}));
  EXPECT_THAT(committed[0].slabs, ElementsAre(4));
  EXPECT_TRUE(TableOf(committed[0], memory_.read).ok());
}

TEST_F(FoundParts, WhatIsKnownIsNotSaidAgain) {
  Commit(Head(3, 10), 4, 11, 0);
  ASSERT_THAT(Join(), ElementsAre(Key(3)));
  const std::vector<Fact> facts = facts_;
  EXPECT_THAT(Join(), ElementsAre());
  EXPECT_TRUE(facts_ == facts);
  EXPECT_THAT(problems_, ElementsAre());
}

TEST_F(FoundParts, AreThoseThatTheNodeSealedForThatPlace) {
  Manifest head = Head(3, 10);
  crcs_[4] = 11;
  Put(0, Record(head, 4, 11, kPageBytes));              // a copy, from elsewhere
  Put(kPageBytes, Record(head, 4, 11, kPageBytes, 1));  // by one who does not know the secret
  Put(2 * kPageBytes + 64, Record(head, 4, 11, 2 * kPageBytes + 64));  // where none begins
  std::string other = Record(head, 4, 11, 3 * kPageBytes);
  other[20] ^= 1;  // it does not verify
  Put(3 * kPageBytes, other);
  EXPECT_THAT(Join(), ElementsAre());
  EXPECT_THAT(problems_, ElementsAre());
}

// A client chooses the bytes of its notes, and so what stands at a page's beginning.
TEST_F(FoundParts, ARecordInTheNotesOfAnotherIsNone) {
  Manifest outer = Head(3, 10);
  outer.notes["key"] = std::string(2 * kPageBytes, 'n');
  const size_t notes = Record(outer, 4, 11, 0).find("nnnn");
  const auto with = [&](const std::string& inner) {
    outer.notes["key"].replace(kPageBytes - notes, inner.size(), inner);
    return Record(outer, 4, 11, 0);
  };
  crcs_[5] = 12;
  Put(0, with(Record(Head(9, 99), 5, 12, kPageBytes)));
  EXPECT_THAT(Join(), ElementsAre()) << "the outer one's bytes are not there";
  EXPECT_EQ(problems_.size(), 1u);
  Put(0, with(Record(Head(9, 99), 5, 12, kPageBytes, /*secret=*/0)));
  Put(0, std::string(100, 'x'));  // what is left of the outer one, once its beginning was reused
  EXPECT_THAT(Join(), ElementsAre());
  Put(0, with(Record(Head(9, 99), 5, 12, kPageBytes)));
  Put(0, std::string(100, 'x'));
  EXPECT_THAT(Join(), ElementsAre(Key(9))) << "what stands there could not be taken for one";
}

TEST_F(FoundParts, LieInSlabsThatWereNeverLent) {
  memory_.slabs[kRecords].use = fact::SlabUse::kObjects;
  Commit(Head(3, 10), 4, 11, 0);
  EXPECT_THAT(Join(), ElementsAre());
}

TEST_F(FoundParts, MustBeThereToTheLastByte) {
  Commit(Head(3, 10), 4, 11, 0);
  Commit(Head(4, 10), 5, 11, kPageBytes);
  Commit(Head(5, 10), 6, 11, 2 * kPageBytes);
  crcs_[4] = 12;
  crcs_.erase(5);
  EXPECT_THAT(Join(), ElementsAre(Key(5)));
  EXPECT_THAT(problems_, ElementsAre(HasSubstr("pages are gone"), HasSubstr("written over")));
}

TEST_F(FoundParts, LieInSlabsThatTheKeeperHoldsForObjects) {
  for (Step step : {1, 2, 3}) {
    Commit(Head(step, 10), static_cast<SlabId>(step), 11, static_cast<uint64_t>(step) * kPageBytes);
  }
  memory_.slabs.erase(1);
  memory_.slabs[2].use = fact::SlabUse::kManifests;
  bytes_[2].resize(kSlabBytes);
  memory_.slabs[3].bytes = kPageBytes;
  EXPECT_THAT(Join(), ElementsAre());
  EXPECT_EQ(problems_.size(), 3u);
}

TEST_F(FoundParts, WhatIsKnownToBeGoneIsNotBroughtBack) {
  Commit(Head(3, 10), 4, 11, 0);
  const std::vector<Fact> losses = {fact::PartDropped{Key(3), "model"},
                                    fact::PartLeftSlab{Key(3), 4}, fact::SlabGone{4},
                                    fact::StepRemoved{"job", 3, 1, 7}, fact::JobForgotten{"job"}};
  for (const Fact& loss : losses) {
    behind_ = {loss};
    facts_.clear();
    EXPECT_THAT(Join(), ElementsAre()) << KindOf(loss).name;
    behind_.clear();
    facts_ = {loss};
    EXPECT_THAT(Join(), ElementsAre()) << KindOf(loss).name;
  }
  behind_ = {fact::StepRemoved{"job", 3, 1, 6}, fact::StepRemoved{"job", 4, 1, 9}};
  facts_ = {fact::PartDropped{Key(4), "model"}};
  EXPECT_THAT(Join(), ElementsAre(Key(3)));
}

// Saved anew after it was dropped, and both can be read behind the damage.
TEST_F(FoundParts, WhatWasCommittedAgainIsBroughtBack) {
  Commit(Head(3, 10), 4, 11, 0);
  Commit(Head(3, 20), 5, 12, 4 * kPageBytes);
  behind_.push_back(fact::PartDropped{Key(3), "model"});
  behind_.push_back(
      fact::PartCommitted{Key(3), 1, {kRecords, 4 * kPageBytes, kPageBytes}, 1, "digest", {5}});
  EXPECT_THAT(Join(), ElementsAre(Key(3)));
  const auto committed = Said<fact::PartCommitted>();
  ASSERT_EQ(committed.size(), 1u);
  EXPECT_EQ(committed[0].extent.offset, 4 * kPageBytes);
}

TEST_F(FoundParts, LossesBehindTheDamageAreSaidAfterTheFacts) {
  facts_ = {fact::PartCommitted{Key(1), 1}, fact::PartCommitted{Key(2), 1},
            fact::PartCommitted{Key(3), 1}};
  behind_ = {fact::StepRemoved{"job", 3, 1, 7},  fact::StepRemoved{"job", 1, 8, 9},
             fact::StepRemoved{"job", 1, 0, 9},  fact::StepRemoved{"job", 1, 9, 7},
             fact::PartDropped{Key(2), "model"}, fact::SessionEnded{7}};
  const std::vector<Fact> expected = {facts_[0],
                                      facts_[1],
                                      facts_[2],
                                      behind_[0],
                                      behind_[1],
                                      behind_[4],
                                      fact::PartDropped{Key(3), ""}};
  JoinLosses(behind_, &facts_);
  EXPECT_TRUE(facts_ == expected);
}

// Whether others have it open by path, for one.
TEST_F(FoundParts, WhatIsKnownOfTheirSlabStands) {
  const fact::Slab slab{4, kSlabBytes, fact::SlabUse::kObjects, 1000, "job", /*by_path=*/true};
  facts_ = {slab, fact::Slab{kRecords, 16 * kPageBytes, fact::SlabUse::kManifests}};
  Commit(Head(3, 10), 4, 11, 0);
  EXPECT_THAT(Join(), ElementsAre(Key(3)));
  EXPECT_EQ(Said<fact::Slab>().size(), 2u);
}

TEST_F(FoundParts, WhoseMemoryIsAnothersAreNotBroughtBack) {
  Commit(Head(3, 10), 4, 11, 0);
  const std::vector<Fact> others = {
      fact::Slab{4, kSlabBytes, fact::SlabUse::kObjects, 1001, "job"},
      fact::Slab{4, kSlabBytes, fact::SlabUse::kObjects, 1000, "other"},
      fact::Slab{kRecords, 16 * kPageBytes, fact::SlabUse::kObjects, 1000, "job"},
      fact::Job{"job", 1001, 1001, {}}};
  for (const Fact& other : others) {
    facts_ = {other};
    EXPECT_THAT(Join(), ElementsAre());
  }
  facts_ = {fact::Slab{4, kSlabBytes}, fact::Job{"job", 1000, 5, {}}};
  EXPECT_THAT(Join(), ElementsAre(Key(3)));
  EXPECT_EQ(Said<fact::Job>().size(), 1u);
}

TEST_F(FoundParts, WhoOwnsTheirJobIsNeverGuessed) {
  Commit(Head(3, 10), 4, 11, 0);
  behind_ = {fact::Job{"job", 1001, 1001, {}}};
  EXPECT_THAT(Join(), ElementsAre());
  behind_.clear();
  Manifest other = Head(4, 11);
  other.owner_uid = 1001;
  Commit(other, 5, 11, kPageBytes);
  EXPECT_THAT(Join(), ElementsAre());
  facts_ = {fact::Job{"job", 1001, 1001, {}}};
  EXPECT_THAT(Join(), ElementsAre(Key(4)));
}

TEST_F(FoundParts, TheLaterOfTwoHasTheSlab) {
  Commit(Head(3, 10), 4, 11, 0);
  Commit(Head(5, 12), 4, 11, kPageBytes);
  Commit(Head(4, 11), 4, 11, 2 * kPageBytes);
  EXPECT_THAT(Join(), ElementsAre(Key(5)));
}

TEST_F(FoundParts, APartOfTheFactsGivesWayToALaterOneOnly) {
  Commit(Head(4, 11), 4, 11, 0);
  ASSERT_THAT(Join(), ElementsAre(Key(4)));
  Commit(Head(3, 10), 4, 11, kPageBytes);
  EXPECT_THAT(Join(), ElementsAre());
  EXPECT_TRUE(Said<fact::PartDropped>().empty());
  Commit(Head(5, 12), 4, 13, 2 * kPageBytes);
  crcs_[4] = 11;  // what the later one wrote is not there
  EXPECT_THAT(Join(), ElementsAre());
  EXPECT_TRUE(Said<fact::PartDropped>().empty());
  crcs_[4] = 13;
  EXPECT_THAT(Join(), ElementsAre(Key(5)));
  EXPECT_TRUE(Said<fact::PartDropped>() == std::vector({fact::PartDropped{Key(4), "model"}}));
}

TEST_F(FoundParts, OfOneStepAreOfAsManyWriters) {
  facts_ = {fact::StepWorld{"job", 7, 3, 2}};
  Commit(Head(3, 10), 4, 11, 0);
  EXPECT_THAT(Join(), ElementsAre());
  facts_.clear();
  Manifest second = Head(3, 11);
  second.world_size = 2;
  second.writer = 1;
  Commit(second, 5, 11, kPageBytes);
  EXPECT_THAT(Join(), ElementsAre(PartKey{Key(3).checkpoint, 1}));
}

}  // namespace
}  // namespace cairn::node
