// Which block is read next, and from whom. Pure: no threads, no clock of its own; the mover tells it what
// has happened and when, and does what it says.
//
// Order      fetches by what they are for, then by age; of a fetch its blocks in their order.
// Credit     reads under way are bounded in bytes, of each peer and in all, and in number of each peer.
// Rate       of replicas: a bucket of tokens, one a byte, which a read may leave in debt.
// Sources    a block goes to the source that will have it earliest, as far as is known: what is under way
//            from it, and the rate at which it has delivered. A source so slow that the others would be
//            done with all that is left before it had delivered the block gets none: so a slow one does
//            not hold up the end.
// Queues     what is under way from a source no other one can bring, and another one may yet come. So a
//            source has a little under way until its rate is known, and then no more than it delivers in
//            a quarter of a second.
// Once       a block is under way from one source at a time, for two would write to one place, and the
//            bytes of the one that came second are checked by nobody. It is read again only when a read
//            has ended.
// Bad blocks are read again, from a source that has had it wrong at most once while there is one. A block
//            that was wrong three times, and from each source at least once, is lost.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "server/engine/actions.h"
#include "server/engine/ring.h"
#include "server/node/options.h"

namespace cairn::node {

class TransferSchedule {
 public:
  explicit TransferSchedule(const MoverOptions& options) : options_(options) {}

  // The lengths of its blocks, and which of them are there already and need not be read (empty: none). Fetches are
  // numbered by age. It has no source yet.
  void Add(uint64_t fetch, engine::action::FetchFor what_for, std::vector<uint32_t> lengths,
           const std::vector<bool>& there = {});
  // What it has under way keeps its credit until Ended.
  void Remove(uint64_t fetch);
  void AddSource(uint64_t fetch, engine::Rank source);
  // It may be added again; what it had wrong is remembered.
  void RemoveSource(uint64_t fetch, engine::Rank source);

  struct Read {
    uint64_t fetch = 0;
    uint32_t block = 0;
    uint32_t length = 0;
    engine::Rank source = engine::kNoRank;
    bool again = false;  // it has come otherwise than its checksum says
  };
  // The next read, which is under way from now on; nullopt when none may begin.
  std::optional<Read> Next(MonotonicNanos now);
  // When the rate lets a read begin that nothing else holds up; 0: none waits for that.
  MonotonicNanos WakeAt(MonotonicNanos now) const;

  enum class How : uint8_t {
    kVerified,
    kBad,     // its bytes are not those that were asked for
    kFailed,  // it brought none
  };
  // False: the block is lost.
  bool Ended(const Read& read, How how, MonotonicNanos now);

  bool Complete(uint64_t fetch) const;
  uint64_t VerifiedBytes(uint64_t fetch) const;
  size_t UnderWay(uint64_t fetch) const;
  uint64_t in_flight_bytes() const { return in_flight_; }

 private:
  static constexpr size_t kProbes = 2;  // reads under way from a peer, however slow it is
  static constexpr double kQueueNanos = 0.25 * kNanosPerSecond;
  static constexpr int kLostAfter = 3;

  struct Fetch {
    engine::action::FetchFor what_for = engine::action::FetchFor::kReplica;
    std::vector<uint32_t> lengths;
    uint32_t fresh = 0;        // blocks from here on were never read
    std::set<uint32_t> again;  // of those before: to be read again
    uint64_t left = 0;         // bytes of both
    uint64_t verified = 0;
    size_t verified_blocks = 0;
    size_t under_way = 0;
    std::set<engine::Rank> sources;
    std::map<uint32_t, std::map<engine::Rank, int>> bad;  // block → who had it wrong, how often
  };
  struct Peer {
    uint64_t bytes = 0;  // under way
    size_t reads = 0;
    // Of its last blocks, weighted by how lately they came: bytes, and nanoseconds in which it had
    // something to deliver.
    double came = 0, in = 0;
    MonotonicNanos since = 0;  // it has something to deliver, and nothing came
    double rate() const { return in > 0 ? came / in : 0; }
  };

  static std::optional<uint32_t> NextBlock(const Fetch& fetch);
  bool HasCredit(engine::Rank source, uint32_t length) const;
  bool MayServe(const Fetch& fetch, uint32_t block, engine::Rank source) const;
  engine::Rank Choose(const Fetch& fetch, uint32_t block) const;
  bool HoldsUp(const Fetch& fetch, uint32_t block, engine::Rank source) const;
  const Peer& PeerOf(engine::Rank source) const;
  void Refill(MonotonicNanos now);
  bool Limited(const Fetch& fetch) const;
  void Came(Peer* peer, uint32_t bytes, MonotonicNanos now);

  const MoverOptions options_;
  std::map<uint64_t, Fetch> fetches_;
  // What is complete or has nothing left to begin stays in it; the mover removes what has ended.
  std::set<std::pair<engine::action::FetchFor, uint64_t>> order_;
  std::map<engine::Rank, Peer> peers_;
  uint64_t in_flight_ = 0;
  double tokens_ = 0;
  MonotonicNanos refilled_ = 0;
};

}  // namespace cairn::node
