// Grants at the owner: in whatever way one ends, first nothing can be read under it, then its bytes may go.
#include "server/node/granter.h"

#include "gtest/gtest.h"
#include "tests/node/members.h"

namespace cairn::node {
namespace {

using testing::Owner;
using testing::Part;

constexpr size_t kMiB = 1 << 20;

class SetClock : public Clock {
 public:
  MonotonicNanos Now() const override { return now_; }
  int64_t UnixMillis() const override { return now_ / kNanosPerMilli; }
  void Advance(MonotonicNanos by) { now_ += by; }

 private:
  std::atomic<MonotonicNanos> now_ = kNanosPerSecond;
};

// Notes in which order things are done to it, and has no bytes.
class NotedTransport : public transport::Transport {
 public:
  explicit NotedTransport(Clock* clock) : clock_(clock) {}
  std::string Address() const override { return "noted"; }
  std::string Problem() const override { return ""; }
  Status Attach(SlabId slab, SharedFd, uint64_t) override {
    Note(absl::StrCat("attach ", slab));
    return absl::OkStatus();
  }
  void Detach(SlabId slab) override { Note(absl::StrCat("detach ", slab)); }
  StatusOr<std::string> Describe(const ExtentRef& extent) const override {
    return absl::StrCat(extent.slab, ":", extent.offset, "+", extent.length);
  }
  Status Grant(const transport::GrantToken&, transport::PeerId,
               std::vector<ExtentRef> extents) override {
    Note("grant");
    MutexLock lock(&mu_);
    extents_ = std::move(extents);
    used_ = clock_->Now();
    return fails_;
  }
  bool Revoke(const transport::GrantToken&, transport::ItsReads reads) override {
    Note(reads == transport::ItsReads::kHaveEnded ? "revoke, idle" : "revoke");
    return true;
  }
  void RevokePeer(transport::PeerId) override {}
  StatusOr<MonotonicNanos> LastUsed(const transport::GrantToken&) const override {
    MutexLock lock(&mu_);
    ++looks_;
    come_.NotifyAll();
    return used_;
  }
  void Read(transport::ReadRequest, transport::ReadDone done) override {
    done(absl::UnavailableError("no bytes"));
  }

  void Note(const std::string& what) {
    MutexLock lock(&mu_);
    notes_.push_back(what);
    come_.NotifyAll();
  }
  void Use() {
    MutexLock lock(&mu_);
    used_ = clock_->Now();
  }
  void WaitForLook() {
    MutexLock lock(&mu_);
    while (looks_ == 0) come_.Wait(&mu_);
  }
  void Fail(Status status) {
    MutexLock lock(&mu_);
    fails_ = std::move(status);
  }
  std::vector<ExtentRef> extents() const {
    MutexLock lock(&mu_);
    return extents_;
  }
  // All notes, once `what` is among them.
  std::vector<std::string> WaitFor(const std::string& what) {
    MutexLock lock(&mu_);
    while (std::find(notes_.begin(), notes_.end(), what) == notes_.end()) come_.Wait(&mu_);
    return notes_;
  }

 private:
  Clock* const clock_;
  mutable Mutex mu_;
  mutable CondVar come_;
  mutable int looks_ ABSL_GUARDED_BY(mu_) = 0;
  Status fails_ ABSL_GUARDED_BY(mu_);
  MonotonicNanos used_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<ExtentRef> extents_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> notes_ ABSL_GUARDED_BY(mu_);
};

class GranterTest : public ::testing::Test {
 protected:
  static constexpr SlabId kSlab = 5;
  GranterTest()
      : cache_(*cache::Cache::Start({}, &holder_)),
        transport_(&clock_),
        attached_(cache_.get(), &transport_) {
    testing::Events made;
    cache_->Make(kSlab, kMiB, fact::SlabUse::kObjects, cache::Pages::kUrgently,
                 [post = made.Post()](Status status) {
                   post(engine::event::SlabMade{kSlab, std::move(status)});
                 });
    made.Next<engine::event::SlabMade>();
    const Part part({10, 0, kPageBytes + 1});
    table_ = TableOf(
        part.manifest,
        {{kSlab, 0, kPageBytes}, {kSlab, kPageBytes, 0}, {kSlab, kPageBytes, 2 * kPageBytes}});
  }
  void StartWith(GranterOptions options) {
    granter_ = std::make_unique<Granter>(
        options, &transport_, &attached_, &clock_, [this](engine::Event event) {
          const auto* ended = std::get_if<engine::event::GrantEnded>(&event);
          ASSERT_NE(ended, nullptr);
          transport_.Note(absl::StrCat("unpin ", ended->grant));
        });
  }
  StatusOr<engine::peer::GrantAnswer> Give(uint64_t grant) {
    EXPECT_TRUE(granter_->Admit().ok());
    granter_->Expect(grant);
    return granter_->Give(testing::kReader, grant, *table_);
  }

  SetClock clock_;
  testing::NoHolder holder_;
  std::unique_ptr<cache::Cache> cache_;
  NotedTransport transport_;
  Attached attached_;
  std::shared_ptr<const PartTable> table_;
  std::unique_ptr<Granter> granter_;
};

using Notes = std::vector<std::string>;

TEST_F(GranterTest, AGrantTellsWhatTheReaderNeeds) {
  StartWith({});
  const auto answer = Give(3);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->grant, 3u);
  EXPECT_EQ(answer->token.size(), transport::GrantToken{}.size());
  EXPECT_EQ(answer->manifest, EncodeManifest(*table_));
  EXPECT_EQ(answer->valid_ms, 10'000);
  ASSERT_EQ(answer->regions.size(), 3u);
  EXPECT_EQ(answer->regions[0].descriptor, "5:0+10");
  EXPECT_EQ(answer->regions[1].descriptor, "");
  // The object's bytes, and none of what lies behind them in its extent.
  EXPECT_EQ(transport_.extents(),
            (std::vector<ExtentRef>{{kSlab, 0, 10}, {kSlab, kPageBytes, kPageBytes + 1}}));
}

TEST_F(GranterTest, AGrantWithoutProgressIsRevokedBeforeItsBytesAreUnpinned) {
  StartWith({.without_progress = 20 * kNanosPerMilli});
  ASSERT_TRUE(Give(3).ok());
  clock_.Advance(20 * kNanosPerMilli);
  EXPECT_EQ(transport_.WaitFor("unpin 3"), (Notes{"attach 5", "grant", "revoke", "unpin 3"}));
  EXPECT_EQ(granter_->count(), 0u);
}

TEST_F(GranterTest, AGrantThatIsReadUnderGoesOn) {
  StartWith({.without_progress = 20 * kNanosPerMilli});
  ASSERT_TRUE(Give(3).ok());
  clock_.Advance(15 * kNanosPerMilli);
  transport_.Use();
  clock_.Advance(5 * kNanosPerMilli);
  transport_.WaitForLook();
  EXPECT_EQ(granter_->count(), 1u);
  clock_.Advance(15 * kNanosPerMilli);
  EXPECT_EQ(transport_.WaitFor("unpin 3"), (Notes{"attach 5", "grant", "revoke", "unpin 3"}));
}

TEST_F(GranterTest, TheReaderEndsItsOwnGrantAndNoOther) {
  StartWith({});
  ASSERT_TRUE(Give(3).ok());
  ASSERT_TRUE(Give(4).ok());
  const engine::MemberId other = {.rank = 8, .incarnation = 3, .instance = "another"};
  granter_->EndFor(other, {3});
  granter_->EndFor(testing::kReader, {4});
  EXPECT_EQ(transport_.WaitFor("unpin 4"),
            (Notes{"attach 5", "grant", "grant", "revoke", "unpin 4"}));
  EXPECT_EQ(granter_->count(), 1u);
}

TEST_F(GranterTest, TheTransportHearsWhetherReadsMayBeUnderWay) {
  StartWith({});
  ASSERT_TRUE(Give(3).ok());
  granter_->EndFor(testing::kReader, {3, transport::ItsReads::kHaveEnded});
  EXPECT_EQ(transport_.WaitFor("unpin 3"), (Notes{"attach 5", "grant", "revoke, idle", "unpin 3"}));
}

TEST_F(GranterTest, WhatTheEngineTakesBackIsCutOff) {
  StartWith({});
  ASSERT_TRUE(Give(3).ok());
  granter_->End(3);
  granter_->EndFor(testing::kReader, {3, transport::ItsReads::kHaveEnded});  // too late to say
  EXPECT_EQ(transport_.WaitFor("unpin 3"), (Notes{"attach 5", "grant", "revoke", "unpin 3"}));
}

TEST_F(GranterTest, AGrantThatTheEngineTakesBackWhileItIsGivenIsNotGiven) {
  StartWith({});
  ASSERT_TRUE(granter_->Admit().ok());
  granter_->Expect(3);
  granter_->End(3);
  EXPECT_TRUE(absl::IsUnavailable(granter_->Give(testing::kReader, 3, *table_).status()));
  EXPECT_EQ(transport_.WaitFor("unpin 3"), (Notes{"attach 5", "grant", "revoke, idle", "unpin 3"}));
}

TEST_F(GranterTest, AGrantThatTheTransportRefusesIsUnpinned) {
  StartWith({});
  transport_.Fail(absl::ResourceExhaustedError("full"));
  EXPECT_TRUE(absl::IsResourceExhausted(Give(3).status()));
  transport_.WaitFor("unpin 3");
  EXPECT_EQ(granter_->count(), 0u);
}

TEST_F(GranterTest, BeyondTheirNumberGrantsAreRefused) {
  StartWith({.max_grants = 2});
  ASSERT_TRUE(Give(1).ok());
  ASSERT_TRUE(granter_->Admit().ok());
  EXPECT_TRUE(absl::IsResourceExhausted(granter_->Admit()));
  granter_->Refused();
  ASSERT_TRUE(Give(2).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(granter_->Admit()));
  granter_->End(1);
  transport_.WaitFor("unpin 1");
  EXPECT_TRUE(granter_->Admit().ok());
}

TEST_F(GranterTest, StoppingRevokesAll) {
  StartWith({});
  ASSERT_TRUE(Give(1).ok());
  ASSERT_TRUE(Give(2).ok());
  granter_->Stop();
  EXPECT_EQ(transport_.WaitFor("revoke"),
            (Notes{"attach 5", "grant", "grant", "revoke", "revoke"}));
}

TEST(Grants, AfterOneHasEndedItsBytesCannotBeReadOverTcp) {
  const Part part({kMiB});
  Owner owner(1, part, {.without_progress = 20 * kNanosPerMilli});
  const auto granted = owner.Grant(testing::kReader);
  ASSERT_TRUE(granted.ok()) << granted.status();
  owner.events.Next<engine::event::GrantEnded>();
  testing::Memory reader(testing::kReader.rank);
  reader.MakeSlab(7, kMiB);
  ASSERT_TRUE(reader.attached->Attach(7).ok());
  transport::ReadRequest request;
  request.address = granted->address;
  std::copy(granted->answer.token.begin(), granted->answer.token.end(), request.token.begin());
  request.region = granted->answer.regions[0].descriptor;
  request.into = {7, 0, kMiB};
  request.length = kMiB;
  request.deadline = RealClock()->Now() + 60 * kNanosPerSecond;
  testing::Events ended;
  reader.transport->Read(request, [post = ended.Post()](StatusOr<uint32_t> crc) {
    post(engine::event::Fetched{0, crc.status()});
  });
  EXPECT_TRUE(absl::IsPermissionDenied(ended.Next<engine::event::Fetched>().status));
}

TEST(Attached, AnAttachedSlabCountsAsFree) {  // a description of its own would be a borrower's
  testing::Memory memory(1);
  memory.MakeSlab(7, kMiB);
  ASSERT_TRUE(memory.attached->Attach(7).ok());
  ASSERT_TRUE(memory.attached->Attach(7).ok());
  EXPECT_EQ(memory.attached->count(), 1u);
  EXPECT_TRUE(*memory.cache->Probe(7));
  memory.attached->Detach(7);
  EXPECT_EQ(memory.attached->count(), 0u);
}

}  // namespace
}  // namespace cairn::node
