// The database in which the members of a ring stand, what becomes of a statement to it, and which nodes have a rank. The
// two tables and what a statement does to them are those of tests/engine/membership_database.h.
//
// What must hold, beside what checks.h has: a database that was away costs nobody a rank; who takes a rank from a
// living node takes it from one that was stopped, or could not be reached; a life that knows that it has lost its rank
// admits no save; and in the end each rank has one living holder. To what checks.h knows a rank that is given back, or
// taken from a living node, is the loss of a node, once that node's daemon runs without it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/engine/membership.h"
#include "tests/engine/membership_database.h"
#include "tests/ring/node.h"

namespace cairn::engine::ringsim {

struct World;

class Catalog {
 public:
  // No statement is under way for longer.
  static constexpr MonotonicNanos kUncertain = 17 * sim::kSecond;
  // How a statement ended; of a reading the table.
  struct Answered {
    Written how = Written::kRefused;
    int64_t version = 0;
    StatusOr<RingTable> table = absl::UnavailableError("away");
    Status why = absl::UnavailableError("away");
  };

  // Makes the machines: as many as the ring has ranks, and the spares.
  explicit Catalog(World* world);

  // --- machines
  // An empty one; at an address of its own, or where another one was.
  SimNode* AddMachine(const std::string& address = "");
  SimNode* AtAddress(const std::string& address) const;
  std::string NewInstance();
  // A node lives, dies, or runs as another rank.
  void Changed();
  SimNode* At(Rank rank) const;
  SimNode* Dial(const SimNode& node, Rank rank) const;
  const std::vector<SimNode*>& members() const { return members_; }  // by rank; nullptr: nobody
  const std::vector<SimNode*>& serving() const { return serving_; }
  int size() const { return database_.size; }

  // --- statements
  // What it does is done at some time while it is under way, or, without an answer, later or never.
  void Ask(SimNode* node, const std::string& instance, const RingStep& step,
           std::function<void(const Answered&)> then);
  void ProbeWasCut(Rank rank) { cut_probes_[rank] = Now(); }

  // --- what strikes
  bool away = false, slow = false;
  uint64_t unanswered = 0;  // of a thousand statements
  void RestoreSomeCopy();
  bool Resize(int to);
  void ShrinkOnceReleased(bool on) { shrinks_ = on; }
  void MendAll();
  // So that there is one for each rank.
  void BringWhatIsMissing();
  // "", or what is not as it should be once nothing strikes.
  std::string Missing() const;

 private:
  using Then = std::function<void(const Answered&)>;
  MonotonicNanos Now() const;
  Answered Do(SimNode* node, const std::string& instance, const RingStep& step);
  void CheckClaim(const SimNode& claimant, const ring_step::Claim& claim, const RankRow& before);

  World& world_;
  Database database_;
  std::vector<Database> copies_;  // of each version that there was
  MonotonicNanos restored_at_ = 0;
  std::map<Rank, MonotonicNanos> cut_probes_;  // when one last failed because of a link
  bool shrinks_ = false;                       // the highest rank goes when it is given back
  int instances_ = 0, addresses_ = 0;
  std::map<std::string, SimNode*> at_address_;
  std::vector<SimNode*> members_, serving_;
};

}  // namespace cairn::engine::ringsim
