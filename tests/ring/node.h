// One node of the ring: a daemon (the shipped engine with an executor that carries out its actions) and what
// outlives it with the keeper: slabs, the journal's facts, the sessions of processes that live. When only
// the daemon dies the next one goes on from these; when the node dies all is gone, and another SimNode,
// empty, may take its place.
//
// What its engine says it holds is mirrored from its facts, so that Truth (checks.h) can compare it with
// what lies in memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "server/engine/engine.h"
#include "tests/ring/memory.h"
#include "tests/ring/seat.h"
#include "tests/sim/clock.h"
#include "tests/support/slab_users.h"
#include "tests/world/executor.h"

namespace cairn::engine::ringsim {

struct World;

using world::kUid;

// The answer to a call; UNAVAILABLE when the daemon died before it came.
using Answer = std::function<void(const StatusOr<reply::Body>&)>;

// A part that the node's engine says it has.
struct Held {
  std::string digest;
  std::shared_ptr<const PartTable> table;
  PartRole role = PartRole::kOwn;
  Rank owner = kNoRank;
  std::set<SlabId> left;         // what lay there is given up
  std::set<std::string> broken;  // these did not verify
};

class SimNode : private world::Executor {
 public:
  SimNode(World* world, int id, const Options& options, int64_t incarnation);
  // One whose rank stands in the catalog; it has none yet.
  SimNode(World* world, int id, const Options& options, std::string address);

  int id() const { return id_; }
  Rank rank() const { return options_.ring.rank; }  // that its daemon runs as
  const std::string& address() const { return address_; }
  const Options& options() const { return options_; }
  const MemberId& member() const { return member_; }
  uint64_t daemon() const { return daemon_; }  // which of its daemons runs, or ran last
  bool dead() const { return dead_; }
  bool paused() const { return paused_; }
  bool daemon_up() const { return engine_ != nullptr; }
  bool well() const { return !dead_ && !paused_ && daemon_up(); }
  Engine& engine() { return *engine_; }
  MonotonicNanos now() const;
  int64_t unix_ms() const override;

  // --- its lives
  void StartDaemon();
  void KillDaemon(MonotonicNanos until_next);
  void Die();
  void Pause();
  void Resume();
  void JumpClock(int64_t by_ms) { unix_offset_ms_ += by_ms; }
  void SeeStorage();
  bool data_blocked = false;  // its data port answers nobody
  bool in_safe_mode = false;  // of its next daemons
  // Until when its link is taken, each way, where links are shared (Shape::links).
  MonotonicNanos sends_until = 0, hears_until = 0;

  // --- its rank, where that stands in the catalog
  bool has_seat() const { return seat_ != nullptr; }
  Seat& seat() const { return *seat_; }
  // The next daemon takes over, as another rank or in a ring of another size.
  void HandOver();
  // An operator takes it out of service, or back.
  void Leave(bool on);
  bool leaves() const { return leaves_; }
  // It knows that its rank is another life's.
  bool superseded() const { return fenced_ == member_.instance; }
  bool NothingIsOnlyHere();
  bool MayStartAnew();
  MonotonicNanos hindered_at() const {
    return hindered_at_;
  }  // when it was last stopped, or without its daemon
  MonotonicNanos without_database_until = 0;
  bool overslept = false;  // it was stopped for longer than its rank waits

  // --- entering it
  void Apply(Event event);
  // After a while, unless this daemon has died by then. What a paused node has to do waits. It is called once at
  // most, so that it may give away what it holds.
  void After(MonotonicNanos delay, std::function<void()> what);
  // A call of a process: `event.caller` is filled in.
  template <class E>
  void Call(SessionId session, E event, Answer answer) {
    event.caller = Caller{++last_request_, session, kUid, kUid};
    if constexpr (requires { event.deadline; }) {
      if (event.deadline == 0) event.deadline = now() + 20 * sim::kSecond;
    }
    calls_[event.caller.request] = std::move(answer);
    Enter(std::move(event));
  }

  // --- the processes on it
  void Hello(event::Hello hello, Answer answer);
  void EndProcess(SessionId session);  // the kernel takes back what it had
  testing::SlabUsers& users() { return users_; }
  Memory& memory() { return memory_; }

  // --- what it really has
  const std::map<PartKey, Held>& held() const { return held_; }
  // All objects of the part, with the bytes that its table names: "", else what is wrong.
  std::string Wrong(const Held& held) const;
  // It has the part, whole and in its memory.
  bool Whole(const PartKey& part, const std::string& digest) const;
  // It is here, and no home counts it any more.
  bool MakesWay(const PartKey& part) const { return engine_ != nullptr && engine_->MakesWay(part); }
  uint64_t replica_bytes() const;

  // --- the owner's side of a read
  // Of a grant that is good: the part's table; the read is progress.
  std::shared_ptr<const PartTable> ReadUnder(uint64_t grant);
  void EndGrant(uint64_t grant);

 private:
  struct Grant {
    PartKey part;
    std::shared_ptr<const PartTable> table;
    MonotonicNanos until = 0;
  };
  struct Transfer {
    action::Fetch fetch;
    size_t next_source = 0;
    uint64_t tries = 0;  // which answer counts
    uint64_t done = 0;   // bytes
    SimNode* source = nullptr;
    uint64_t source_daemon = 0, grant = 0;
    std::shared_ptr<const PartTable> table;
    Status why = absl::UnavailableError("no member has it");
  };

  // Which rank the next daemon runs as, by the journal.
  void RecoverSeat();
  std::optional<reply::Status> Told();
  void Deserted();
  void EndDaemon(MonotonicNanos until_next);
  // Of a call: it waits for the next daemon when there is none.
  void Enter(Event event);
  void Drain();
  void ApplyOne(Event&& event);
  void Carry(Outcome outcome);
  void NoteAsHome();
  void Mirror(const Fact& fact);
  void Check(const Event& event);
  void FailCalls();
  // --- what the engine asks for (actions.cc, fetching.cc)
  void Begin(world::Task task) override;
  MonotonicNanos Takes(const world::Task& task) const;
  int64_t storage_unix_ms() const override;
  void Made(SlabId slab, uint64_t bytes, const Status&) override { memory_.Make(slab, bytes); }
  event::SlabProbed Probe(const action::ProbeSlab& probe) override { return users_.Probe(probe); }
  Status WriteRecord(const action::WriteManifest& write, std::string manifest) override;
  Status Verify(const action::Verify& verify) override;
  StatusOr<bool> Write(const action::Persist& persist) override;
  using Executor::Do;
  void Do(action::Reply& a) override;
  void Do(action::DestroySlab& a) override;
  void Do(action::Tell& a) override;
  void Do(action::BecomeLife& a) override;
  void Do(action::Fetch& a) override;
  void Do(action::FetchFrom& a) override;
  void Do(action::CancelFetch& a) override;
  void Do(action::RevokeGrant& a) override;
  void Do(action::WakeAt& a) override;
  void Do(action::EndSession& a) override { live_.erase(a.session); }
  void Do(action::Log& a) override;
  MonotonicNanos StorageTime(uint64_t bytes) const;

  // --- fetching (fetching.cc)
  void NextSource(uint64_t fetch);
  void AskGrant(uint64_t fetch);
  void TakeGrant(uint64_t fetch, uint64_t tries, uint64_t grant,
                 std::shared_ptr<const PartTable> table);
  void ReadSome(uint64_t fetch, uint64_t tries);
  void EndTransfer(uint64_t fetch, Status status);
  std::shared_ptr<const PartTable> Land(const Transfer& transfer, Status* status);
  void WatchGrant(uint64_t grant);

  World& world_;
  const int id_;
  Options options_;  // of the ring's members and rank those that its daemon began with
  MemberId member_;
  std::string address_;         // of one whose rank stands in the catalog
  std::unique_ptr<Seat> seat_;  // likewise, of the daemon that runs or ran last
  bool leaves_ = false;
  MonotonicNanos hindered_at_ = 0;
  std::string fenced_;         // the instance that knows that it has lost its rank
  const MonotonicNanos boot_;  // its monotonic clock is the world's and this
  int64_t unix_offset_ms_ = 0;

  std::unique_ptr<Engine> engine_;
  uint64_t daemon_ = 0;
  bool dead_ = false, paused_ = false, applying_ = false;
  std::deque<Event> queue_;
  std::vector<std::function<void()>> while_paused_;
  std::vector<Event> for_next_daemon_;
  MonotonicNanos wake_at_ = 0;
  uint64_t applies_ = 0;
  std::map<std::string, std::string> as_home_;  // by job: NoteAsHome's last words
  RequestId last_request_ = 0;
  std::map<RequestId, Answer> calls_;
  int32_t last_pid_ = 100;

  std::map<uint64_t, Grant> grants_;
  std::map<uint64_t, Transfer> transfers_;

  // With the keeper.
  std::vector<Fact> journal_;
  Memory memory_;
  std::set<SessionId> live_;
  testing::SlabUsers users_;
  std::map<std::pair<SlabId, uint64_t>, std::pair<std::string, std::shared_ptr<const PartTable>>>
      records_;  // digest and table of the parts' records, where they lie
  std::map<PartKey, Held> held_;
};

}  // namespace cairn::engine::ringsim
