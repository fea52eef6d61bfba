// Where copies really are, as nobody in the ring can know it, and what must hold of that:
//   2  a copy has the bytes of its original, and what is loaded has them, too;
//   3  what `latest` names is whole and of one attempt, and can be had;
//   1  what was said to be replicated (to a client, or in a verdict) can be had after the loss of any one
//      node from then on, until a newer one is said to be;
//   8  replicas stay within their quota.
// The loss of a node takes one copy of each part that it held from what was promised; so does one that had
// not been noticed when it was said (kUnnoticed). When all copies are there again, not counting those that were
// merely loaded or make way, nothing was lost.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "server/engine/report.h"
#include "tests/ring/node.h"
#include "tests/sim/clock.h"

namespace cairn::engine::ringsim {

struct World;

class Truth {
 public:
  // A home counts whom it heard 3 s ago, a node goes by what the home said 3 s ago, and messages take their time.
  static constexpr MonotonicNanos kUnnoticed = 6500 * sim::kMilli;
  static constexpr MonotonicNanos kLateWord = 10 * sim::kSecond;

  explicit Truth(World* world) : world_(*world) {}

  // --- what happens
  void Committed(const SimNode& node, const PartKey& part, const Held& held);
  void NodeDied(const SimNode& node);     // before it is gone
  void GivenUp(const PartKey& part);      // by a node that had it
  void Stored(const CheckpointKey& key);  // storage has all of it, now
  void Said(SimNode& node, Rank to, const peer::Message& message);
  // --- what clients were told
  void ToldLatest(const SimNode& node, const reply::Latest& latest);
  void ToldNothing(const SimNode& node, const std::string& job);
  void ToldSafe(const SimNode& node, const CheckpointKey& key, Level level);
  void Loaded(const SimNode& node, const PartKey& part, const std::string& name,
              const StatusOr<reply::Body>& body);

  // --- what is so
  void CheckAll();
  // Members (who stand at their address) whose memory has all of the part. Of a rank of the catalog, also lives that
  // have lost it, for as long as they lend what they hold.
  int Copies(const PartKey& part) const;
  // Of the least replicated part; 0: it is not whole, or some part cannot be had from memory.
  int Copies(const CheckpointKey& key, bool of_members = false) const;
  bool CanBeHad(const CheckpointKey& key) const;
  bool Complete(const CheckpointKey& key) const;

 private:
  struct Original {
    std::string digest;
    std::shared_ptr<const PartTable> table;
  };
  struct Promise {
    int asked = 0;
    std::map<Writer, int> lost;  // copies that losses of nodes took
    bool stored = false;         // it was published: no memory is needed for it any more
  };

  // What a verdict rests on.
  struct Rested {
    std::map<Rank, std::pair<MemberId, uint64_t>> reports;
    std::set<Rank> silent;
    bool final = false;
  };

  void ReadElsewhere(const SimNode& node, const PartKey& part, const Original& original,
                     const reply::Elsewhere& elsewhere);
  void Promised(const CheckpointKey& key, int asked);
  void CheckPromises();
  bool SomethingNewerIsSafe(const CheckpointKey& key, int asked) const;
  bool LostForGood(const CheckpointKey& key, const Promise& promise) const;
  void CheckCopies(const SimNode& node, const CheckpointKey& key, int replicas);
  void ForgetDeaths();  // that all have noticed
  void CheckRests(SimNode& node, const JobVerdict& verdict);
  void CheckVerdict(const SimNode& node, const JobVerdict& verdict);
  void TakeReport(const MemberId& from, const ReportDelta& delta);
  int CopiesOf(const PartKey& part, const std::string& digest, bool of_members = false) const;
  // Without what was merely loaded, which may go at any time and is no replica, and what makes way.
  int KeptCopiesOf(const PartKey& part, const std::string& digest) const;
  const Original* Find(const PartKey& part) const;

  World& world_;
  absl::flat_hash_map<CheckpointKey, std::map<Writer, Original>> originals_;
  std::map<CheckpointKey, MonotonicNanos> given_up_;  // when something of it last was
  MonotonicNanos last_death_ = 0;
  std::map<std::string, CheckpointKey> safe_;  // by job, the newest that was called protected
  std::map<std::string, std::map<CheckpointKey, Promise>> promises_;              // by job
  std::deque<std::pair<MonotonicNanos, std::map<PartKey, std::string>>> deaths_;  // what each had
  // Reports as their nodes said them, by number; of each node and job the newest few.
  std::map<std::pair<MemberId, std::string>, std::map<uint64_t, JobReport>> reports_;
  std::map<std::pair<int, std::string>, Rested> rested_;  // the last that was looked at
};

}  // namespace cairn::engine::ringsim
