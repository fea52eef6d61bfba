// Brings parts from other members' memory into slabs of this node (action::Fetch): asks a source for a
// grant, reads block by block as the schedule says, and counts a block once its checksum is the
// manifest's. What it says is what promise 2 rests on: event::Fetched is OK only if every block of every
// object was compared, and whatever it says, nothing writes into the slab any more.
//
// Threads: one, the pump, begins reads and takes their results; a few ask for grants, for each question
// waits for a member. Reads end on the transport's threads, which only leave the result in the inbox; it
// outlives the mover, for a read may end after it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/mutex.h"
#include "common/status.h"
#include "server/cache/cache.h"
#include "server/engine/actions.h"
#include "server/engine/events.h"
#include "server/node/attached.h"
#include "server/node/fetch_plan.h"
#include "server/node/links.h"
#include "server/node/options.h"
#include "server/node/transfer_schedule.h"
#include "server/transport/transport.h"

namespace cairn::node {

// Thread-safe.
class Mover {
 public:
  // All outlive it. `post` brings an event into the engine; it is called with no lock held.
  Mover(const MoverOptions& options, Links* links, transport::Transport* transport,
        cache::Cache* cache, Attached* attached, Clock* clock,
        std::function<void(engine::Event)> post);
  ~Mover() { Stop(); }

  // These only queue, so they may be called under the node's lock. event::Fetched follows, unless Stop
  // comes first. Of a part there is one fetch at a time; a second one ends with ALREADY_EXISTS.
  void Start(engine::action::Fetch fetch);
  // The list takes the place of the one before. A source that has failed is tried anew only after it was
  // off the list.
  void From(const engine::action::FetchFrom& from);
  void Cancel(uint64_t fetch);
  // Nothing is written into a slab on return, and no event comes any more.
  void Stop();

  struct Counters {             // values only grow
    uint64_t bytes = 0;         // that verified as they came
    uint64_t kept_bytes = 0;    // that an earlier daemon had read, and verified here
    uint64_t bad_blocks = 0;    // that came otherwise than their checksums say
    uint64_t failed_reads = 0;  // that brought nothing
    uint64_t fetched = 0;       // parts
  };
  Counters counters() const;

 private:
  // A grant of another member.
  struct Held {
    engine::Rank source = engine::kNoRank;
    uint64_t grant = 0;
    std::string address;
    transport::GrantToken token = {};
  };
  struct Source {
    enum class Is : uint8_t { kToAsk, kAsking, kReady, kResting, kGone };
    Is is = Is::kToAsk;
    int failures = 0;             // in a row
    MonotonicNanos again_at = 0;  // resting
    MonotonicNanos used_at = 0;   // the grant: asked for, or a read under it begun
    MonotonicNanos valid = 0;     // unused
    std::optional<uint64_t> grant;
    transport::GrantToken token = {};
    std::string address;
    std::vector<engine::peer::Region> regions;
    Status why;  // of the last failure
    Held HeldOf(engine::Rank rank) const { return {rank, *grant, address, token}; }
  };
  struct Flight {
    engine::action::Fetch asked;
    std::map<engine::Rank, Source> sources;
    std::shared_ptr<const FetchPlan> plan;
    std::optional<Status> end;  // the pump ends it with this
    uint64_t said = 0;          // bytes, by FetchAdvanced
    MonotonicNanos said_at = 0;
  };
  struct EndedRead {
    TransferSchedule::Read read;
    uint64_t grant = 0;
    bool after_idling = false;  // the grant may have ended, unused, before the read began
    StatusOr<uint32_t> crc;
  };
  class Inbox;
  // What the pump does once it has let go of the lock.
  struct ToDo {
    std::vector<std::pair<transport::ReadRequest, EndedRead>> reads;
    std::vector<engine::Event> advances;
    std::vector<Held> grants;  // to end
    struct Ended {
      engine::event::Fetched event;
      SlabId slab = 0;
      bool detach = false;
    };
    std::vector<Ended> ended;
  };
  // A question for a grant.
  struct Asking {
    uint64_t fetch = 0;
    engine::Rank source = engine::kNoRank;
    engine::action::Fetch asked;
    std::shared_ptr<const FetchPlan> plan;
    std::optional<Held> old_grant;
    MonotonicNanos at = 0;
  };

  // --- the pump
  void Pump();
  void Take(EndedRead ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  TransferSchedule::How Judge(Flight* flight, const EndedRead& ended)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Tend(ToDo* todo) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Settle(uint64_t fetch, Flight* flight, ToDo* todo) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void End(uint64_t fetch, Flight* flight, ToDo* todo) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Begin(const TransferSchedule::Read& read, ToDo* todo) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  MonotonicNanos NextLook() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Do(ToDo todo) ABSL_LOCKS_EXCLUDED(mu_);
  void EndGrant(const Held& held) ABSL_LOCKS_EXCLUDED(mu_);

  // --- sources
  void Failed(Flight* flight, engine::Rank rank, Status why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Gone(Flight* flight, engine::Rank rank, Status why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // --- the threads that ask
  void Ask();
  bool NextQuestion(Asking* asking) ABSL_LOCKS_EXCLUDED(mu_);  // false: stopping
  bool FindQuestion(Asking* asking) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Which of the plan's blocks the slab has already; empty: none.
  std::vector<bool> FindThere(const FetchPlan& plan) const;
  void Answered(const Asking& asking, StatusOr<PeerLinks::Granted> granted,
                StatusOr<std::shared_ptr<const FetchPlan>> plan, const std::vector<bool>& there)
      ABSL_LOCKS_EXCLUDED(mu_);
  // The flight reads by the plan from now on, if it had none.
  Status Adopt(Flight* flight, std::shared_ptr<const FetchPlan> plan,
               const std::vector<bool>& there) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const MoverOptions options_;
  Links* const links_;
  transport::Transport* const transport_;
  cache::Cache* const cache_;
  Attached* const attached_;
  Clock* const clock_;
  const std::function<void(engine::Event)> post_;
  const std::shared_ptr<Inbox> inbox_;

  // Before the locks of the inbox and of what is attached; not held while anything else is called.
  mutable Mutex mu_;
  CondVar questions_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::map<uint64_t, Flight> flights_ ABSL_GUARDED_BY(mu_);
  std::map<engine::Rank, int> asked_ ABSL_GUARDED_BY(mu_);  // questions under way
  TransferSchedule schedule_ ABSL_GUARDED_BY(mu_);
  std::vector<Held> unused_grants_ ABSL_GUARDED_BY(mu_);
  std::vector<engine::event::Fetched> refused_ ABSL_GUARDED_BY(mu_);
  Counters counters_ ABSL_GUARDED_BY(mu_);
  std::vector<std::thread> threads_;  // last: they use the members above
};

}  // namespace cairn::node
