// RDMA between members that are slow, that lose what was said, and whose memory comes and goes: a read's end says what
// happened to it and to nobody else, and all of them end.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/falloc.h>

#include <atomic>
#include <map>
#include <random>
#include <thread>

#include "server/transport/choosing_transport.h"
#include "server/transport/rdma_transport.h"
#include "tests/support/await.h"
#include "tests/transport/fake_verbs.h"
#include "tests/transport/held_device.h"
#include "tests/transport/rdma_nodes.h"
#include "tests/transport/two_nodes.h"

namespace cairn::transport {
namespace {

// Behaves as a wire that takes its time, and honours deadlines.
struct Slow {
  std::atomic<MonotonicNanos> connect = 0, open = 0;
  std::atomic<bool> lose_connect_answer = false;
  std::atomic<int> lose_opens = 0;
  std::atomic<int> opens = 0, connects = 0;
  std::atomic<bool> hold_opens = false;  // nothing is answered
  std::atomic<int> held = 0;
};
class SlowControl final : public RdmaControl {
 public:
  SlowControl(PeerId self, std::string address, std::shared_ptr<Slow> slow)
      : direct_(self, std::move(address)), slow_(std::move(slow)) {}
  static Status Wait(MonotonicNanos time, MonotonicNanos deadline) {
    const MonotonicNanos now = RealClock()->Now();
    const MonotonicNanos until = std::min(now + time, deadline);
    if (until > now) std::this_thread::sleep_for(std::chrono::nanoseconds(until - now));
    if (now + time > deadline) return absl::DeadlineExceededError("no answer in time");
    return absl::OkStatus();
  }
  StatusOr<RdmaConnected> Connect(const std::string& address, const RdmaConnect& request,
                                  MonotonicNanos deadline) override {
    ++slow_->connects;
    CAIRN_RETURN_IF_ERROR(Wait(slow_->connect, deadline));
    auto answer = direct_.Connect(address, request, deadline);
    if (slow_->lose_connect_answer) return absl::UnavailableError("lost");
    return answer;
  }
  StatusOr<RdmaOpened> Open(const std::string& address, const RdmaOpen& request,
                            MonotonicNanos deadline) override {
    ++slow_->opens;
    ++slow_->held;
    EXPECT_TRUE(testing::Await([&] { return !slow_->hold_opens; }));
    --slow_->held;
    CAIRN_RETURN_IF_ERROR(Wait(slow_->open, deadline));
    if (slow_->lose_opens > 0) {
      --slow_->lose_opens;
      return absl::UnavailableError("the wire broke");
    }
    return direct_.Open(address, request, deadline);
  }

 private:
  DirectControl direct_;
  std::shared_ptr<Slow> slow_;
};

std::unique_ptr<RdmaTransport> StartSlow(PeerId self, std::unique_ptr<VerbsDevice> device,
                                         std::shared_ptr<Slow> slow,
                                         const RdmaReaderOptions& reader = {}) {
  static std::atomic<int> next = 0;
  const std::string address = absl::StrCat("slow-", next++);
  auto started = RdmaTransport::Start(std::move(device), /*port=*/1, address, {{}, reader, {}},
                                      std::make_unique<SlowControl>(self, address, slow));
  EXPECT_TRUE(started.ok());
  return *std::move(started);
}

class RdmaSlow : public ::testing::Test {
 protected:
  static constexpr PeerId kOwner = {.rank = 1, .incarnation = 5};
  void SetUp() override {
    owner_ = StartRdma(kOwner, MakeFakeDevice(fabric_, owners_));
    reader_ = StartSlow(kReader, MakeFakeDevice(fabric_, readers_), slow_);
    ASSERT_TRUE(owner_->Attach(kOwned, owned_.fd(), owned_.size()).ok());
    ASSERT_TRUE(reader_->Attach(kFetched, fetched_.fd(), fetched_.size()).ok());
    ASSERT_TRUE(owner_->Grant(token_, kReader, {All()}).ok());
    region_ = *owner_->Describe(All());
  }
  ExtentRef All() const { return {kOwned, 0, owned_.size()}; }
  ReadRequest Request(uint64_t offset, uint64_t length, MonotonicNanos within) {
    auto r = ReadOf(*owner_, token_, region_, offset, length, fetched_);
    r.deadline = RealClock()->Now() + within;
    return r;
  }
  const std::shared_ptr<FakeFabric> fabric_ = MakeFakeFabric();
  const std::shared_ptr<FakeVerbsFaults> owners_ = std::make_shared<FakeVerbsFaults>();
  const std::shared_ptr<FakeVerbsFaults> readers_ = std::make_shared<FakeVerbsFaults>();
  const std::shared_ptr<Slow> slow_ = std::make_shared<Slow>();
  const std::string bytes_ = Noise(20'000'001, 1);
  const Memory owned_{bytes_};
  Memory fetched_{bytes_.size() + kPageBytes};
  GrantToken token_ = NewGrantToken();
  std::string region_;
  std::unique_ptr<RdmaTransport> owner_, reader_;
};
constexpr MonotonicNanos kMs = kNanosPerMilli;

// Contract: "DEADLINE_EXCEEDED  the deadline passed first".
TEST_F(RdmaSlow, ADeadlineThatPassesDuringConnect) {
  slow_->connect = 300 * kMs;
  auto late = Begin(reader_.get(), Request(0, 1000, 100 * kMs));
  EXPECT_TRUE(absl::IsDeadlineExceeded(late.get().status()));
}
TEST_F(RdmaSlow, ADeadlineThatPassesDuringOpen) {
  slow_->open = 300 * kMs;
  EXPECT_TRUE(
      absl::IsDeadlineExceeded(ReadNow(reader_.get(), Request(0, 1000, 100 * kMs)).status()));
}
// A read in a hurry must not fail one that is patient.
TEST_F(RdmaSlow, AShortDeadlineFailsNoOtherReadDuringConnect) {
  slow_->connect = 300 * kMs;
  auto late = Begin(reader_.get(), Request(0, 1000, 100 * kMs));
  auto patient = Begin(reader_.get(), Request(8192, 1000, kLongStall));
  EXPECT_TRUE(patient.get().ok());
  late.wait();
}
TEST_F(RdmaSlow, AShortDeadlineFailsNoOtherReadDuringOpen) {
  slow_->open = 300 * kMs;
  auto late = Begin(reader_.get(), Request(0, 1000, 100 * kMs));
  auto patient = Begin(reader_.get(), Request(8192, 1000, kLongStall));
  const auto crc = patient.get();
  EXPECT_TRUE(crc.ok()) << crc.status();
  late.wait();
}
// An owner that answers after 1.2 s (within `ask`, 2 s) is read.
TEST_F(RdmaSlow, ASlowOwnerIsReadAllTheSame) {
  slow_->open = 1200 * kMs;
  const auto crc = ReadNow(reader_.get(), Request(0, 1000, kLongStall));
  EXPECT_TRUE(crc.ok()) << crc.status() << " after asking " << slow_->opens;
}
// Others' asking holds up a deadline.
TEST_F(RdmaSlow, ADeadlineIsNotHeldUpByWhatIsAskedForOthers) {
  ASSERT_TRUE(ReadNow(reader_.get(), Request(0, 1000, kLongStall)).ok());
  readers_->deaf = true;
  slow_->hold_opens = true;
  auto read = Begin(reader_.get(), Request(0, 1000, 200 * kMs));
  const GrantToken mine = token_;
  token_ = NewGrantToken();
  ASSERT_TRUE(owner_->Grant(token_, kReader, {All()}).ok());
  auto other = Begin(reader_.get(), Request(8192, 1000, kLongStall));
  ASSERT_TRUE(testing::Await([&] { return slow_->held > 0; }));
  EXPECT_TRUE(absl::IsDeadlineExceeded(read.get().status()));
  EXPECT_EQ(slow_->held, 1);  // still being asked
  readers_->deaf = false;
  slow_->hold_opens = false;
  EXPECT_TRUE(other.get().ok());
  token_ = mine;
}
// The answer of connect is lost: what the owner made stays.
TEST_F(RdmaSlow, AConnectWhoseAnswerIsLostLeavesNothing) {
  slow_->lose_connect_answer = true;
  for (int i = 0; i < 20; ++i) (void)ReadNow(reader_.get(), Request(0, 100, kLongStall));
  slow_->lose_connect_answer = false;
  ASSERT_TRUE(ReadNow(reader_.get(), Request(0, 100, kLongStall)).ok());
  EXPECT_LE(owner_->owner()->connections(), 2);
}

// Everything at once: each read ends once, and what ends well has the right bytes.
// One function: what its threads share is its own.
TEST_F(RdmaSlow, Stress) {
  owner_.reset();
  reader_.reset();
  owner_ = StartRdma(kOwner, MakeFakeDevice(fabric_, owners_), {}, {.max_connections = 3});
  reader_ = StartSlow(kReader, MakeFakeDevice(fabric_, readers_), slow_,
                      {.max_waiting = 200, .ask = 50 * kMs, .stall = 50 * kMs, .idle = 60 * kMs});
  ASSERT_TRUE(owner_->Attach(kOwned, owned_.fd(), owned_.size()).ok());
  const Memory other(bytes_.size());
  constexpr SlabId kOther = 23;
  std::atomic<bool> stop = false;
  std::atomic<int> begun = 0, ended = 0, good = 0, bad = 0;
  Mutex mu;
  std::vector<GrantToken> tokens(4);
  for (auto& t : tokens) {
    t = NewGrantToken();
    ASSERT_TRUE(owner_->Grant(t, kReader, {All()}).ok());
  }
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t)
    threads.emplace_back([&, t] {
      std::mt19937 r(t);
      while (!stop) {
        GrantToken token;
        {
          MutexLock lock(&mu);
          token = tokens[r() % tokens.size()];
        }
        const uint64_t length = 1 + r() % (r() % 4 == 0 ? kBlockBytes : 5000);
        const uint64_t at = r() % (bytes_.size() - length);
        const bool to_other = r() % 2;
        // Each has its place, else reads overwrite each other: only the checksum of the whole is looked at loosely.
        ReadRequest q = ReadOf(*owner_, token, region_, at, length, to_other ? other : fetched_);
        if (to_other) q.into.slab = kOther;
        q.deadline = RealClock()->Now() + (r() % 3 == 0 ? r() % 20 : 1000) * kMs;
        ++begun;
        auto once = std::make_shared<std::atomic<int>>(0);
        reader_->Read(std::move(q), [&, at, length, once](StatusOr<uint32_t> crc) {
          if (++*once != 1) abort();
          if (crc.ok()) {
            if (*crc == Crc32c(0, bytes_.data() + at, length))
              ++good;
            else
              ++bad;
          }
          ++ended;
        });
        while (begun - ended > 100 && !stop) std::this_thread::yield();
        if (r() % 50 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(r() % 70));
      }
    });
  threads.emplace_back([&] {  // slabs come and go
    std::mt19937 r(7);
    while (!stop) {
      for (const auto& [id, memory] :
           {std::pair{kOther, &other},
            std::pair{kFetched, static_cast<const Memory*>(&fetched_)}}) {
        (void)reader_->Attach(id, memory->fd(), memory->size());
        std::this_thread::sleep_for(std::chrono::milliseconds(r() % 15));
        if (r() % 3 == 0) reader_->Detach(id);
      }
      if (r() % 8 == 0) {
        owner_->Detach(kOwned);
        (void)owner_->Attach(kOwned, owned_.fd(), owned_.size());
        MutexLock lock(&mu);
        for (auto& t : tokens) {
          t = NewGrantToken();
          (void)owner_->Grant(t, kReader, {All()});
        }
      }
    }
  });
  threads.emplace_back([&] {  // grants and faults
    std::mt19937 r(9);
    while (!stop) {
      const size_t i = r() % tokens.size();
      GrantToken old, fresh = NewGrantToken();
      (void)owner_->Grant(fresh, kReader, {All()});
      {
        MutexLock lock(&mu);
        old = tokens[i];
        tokens[i] = fresh;
      }
      owner_->Revoke(
          old, r() % 2 == 0 ? reader_->Finish(owner_->Address(), old) : ItsReads::kMayBeUnderWay);
      switch (r() % 8) {
        case 0:
          readers_->failing_reads = r() % 3;
          break;
        case 1:
          readers_->deaf = true;
          break;
        case 2:
          readers_->lost_events = 3;
          break;
        case 3:
          readers_->failing_registers = 1;
          break;
        case 4:
          owners_->failing_registers = 1;
          break;
        case 5:
          slow_->open = (r() % 80) * kMs;
          slow_->connect = (r() % 80) * kMs;
          break;
        case 6: {
          RdmaConnect c;
          c.endpoints.resize(1);
          (void)owner_->owner()->Connect({.rank = 7, .incarnation = 1}, c);
          break;
        }
        default:
          slow_->open = slow_->connect = 0;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(r() % 20));
      readers_->deaf = false;
    }
  });
  std::this_thread::sleep_for(std::chrono::seconds(3));
  stop = true;
  for (auto& t : threads) t.join();
  EXPECT_TRUE(testing::Await([&] { return ended == begun; }));
  reader_.reset();
  EXPECT_EQ(ended, begun);
  EXPECT_EQ(readers_->regions, 0);
  EXPECT_EQ(readers_->pairs, 0);
  EXPECT_GT(good, 0);
  EXPECT_EQ(bad, 0);
  owner_.reset();
  EXPECT_EQ(owners_->regions, 0);
  EXPECT_EQ(owners_->pairs, 0);
}

// "Waits for what is at work on the slab at this moment": not for another one's registration.
TEST_F(RdmaSlow, DetachWaitsForNoOtherSlab) {
  const auto hold = std::make_shared<HeldDevice::Hold>();
  owner_ = StartRdma(kOwner, std::make_unique<HeldDevice>(MakeFakeDevice(fabric_, owners_), hold));
  Memory a(std::string(1 << 20, 'a'));
  const Memory b(1 << 20), c(1 << 20);
  for (const auto& [id, memory] : {std::pair<SlabId, const Memory*>{1, &a}, {2, &b}, {3, &c}}) {
    ASSERT_TRUE(owner_->Attach(id, memory->fd(), memory->size()).ok());
  }
  ASSERT_TRUE(owner_->Register(1).ok());
  ASSERT_TRUE(owner_->Grant(token_, kReader, {{1, 0, 4096}, {2, 0, 4096}}).ok());
  region_ = *owner_->Describe({1, 0, 4096});
  hold->on = true;
  auto read = Begin(reader_.get(), Request(0, 4096, kLongStall));  // its Open registers slab 2
  ASSERT_TRUE(testing::Await([&] { return hold->held == 1; }));
  ASSERT_EQ(fallocate(a.fd()->get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 1 << 20), 0);
  std::thread anew([&] { EXPECT_TRUE(owner_->Register(1).ok()); });
  EXPECT_TRUE(testing::Await([&] { return hold->held == 2; }));
  auto detached = std::async(std::launch::async, [&] { owner_->Detach(3); });
  EXPECT_EQ(detached.wait_for(testing::Patient(std::chrono::seconds(30))),
            std::future_status::ready);
  hold->on = false;
  anew.join();
  EXPECT_TRUE(read.get().ok());
}

class RdmaSlowChoosing : public RdmaSlow {
 protected:
  void Make(MonotonicNanos left_out, const RdmaReaderOptions& reader) {
    both_owner_ = std::make_unique<ChoosingTransport>(
        StartTcp(kOwner), StartRdma(kOwner, MakeFakeDevice(fabric_, owners_)));
    both_ = std::make_unique<ChoosingTransport>(
        StartTcp(kReader), StartSlow(kReader, MakeFakeDevice(fabric_, readers_), slow_, reader),
        left_out);
    ASSERT_TRUE(both_owner_->Attach(kOwned, owned_.fd(), owned_.size()).ok());
    ASSERT_TRUE(both_->Attach(kFetched, fetched_.fd(), fetched_.size()).ok());
    ASSERT_TRUE(both_owner_->Grant(token_, kReader, {All()}).ok());
  }
  ReadRequest Of(uint64_t offset, uint64_t length, MonotonicNanos within) {
    auto r = ReadOf(*both_owner_, token_, region_, offset, length, fetched_);
    r.deadline = RealClock()->Now() + within;
    return r;
  }
  std::unique_ptr<ChoosingTransport> both_owner_, both_;
};
// One read whose own deadline is short does not turn a peer to TCP for half a minute.
TEST_F(RdmaSlowChoosing, AShortDeadlineIsNoReasonToLeaveRdmaOut) {
  Make(ChoosingTransport::kLeftOut, {});
  slow_->connect = 20 * kMs;  // a slow network, no more
  const auto late = ReadNow(both_.get(), Of(0, 1000, 5 * kMs));
  EXPECT_TRUE(absl::IsDeadlineExceeded(late.status())) << late.status();
  ASSERT_TRUE(ReadNow(both_.get(), Of(0, 1000, kLongStall)).ok());
  EXPECT_EQ(both_->traffic().rdma_left_out, 0U);
  EXPECT_EQ(both_->traffic().rdma_bytes, 1000U);
}
// A queue that is full says nothing of RDMA.
TEST_F(RdmaSlowChoosing, AFullQueueIsNoReasonToLeaveRdmaOut) {
  Make(ChoosingTransport::kLeftOut, {.max_waiting = 1});
  slow_->connect = 100 * kMs;
  std::vector<std::future<StatusOr<uint32_t>>> reads;
  for (int i = 0; i < 3; ++i) reads.push_back(Begin(both_.get(), Of(0, 1000, kLongStall)));
  for (auto& read : reads) (void)read.get();
  EXPECT_EQ(both_->traffic().rdma_left_out, 0U);
}
// The control wire hiccups once while the device works: what is known to be granted may be read on.
TEST_F(RdmaSlowChoosing, AHiccupOfTheControlWireIsNoReasonToLeaveRdmaOut) {
  Make(ChoosingTransport::kLeftOut, {});
  ASSERT_TRUE(ReadNow(both_.get(), Of(0, 1000, kLongStall)).ok());
  slow_->lose_opens = 1;
  EXPECT_TRUE(testing::Await([&] {
    EXPECT_TRUE(ReadNow(both_.get(), Of(0, 1000, kLongStall)).ok());
    return slow_->lose_opens == 0;
  }));
  EXPECT_EQ(both_->traffic().rdma_left_out, 0U);
}
}  // namespace
}  // namespace cairn::transport
