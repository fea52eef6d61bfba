// What lies between the members. Each node has a link to each other member with an outbox that holds state:
// of each topic the newest message, the deltas of a job's report merged into one. A link makes an exchange
// each second, and at once when there is something to say: it carries what the outbox holds, and the answer
// says who was met. When the exchange fails, what it carried and what has come into the outbox since are
// dropped, whether they have arrived or not.
//
// Where the members stand in the catalog a link goes to where the node's view has that rank, and a greeting begins each
// connection: it tells the views, and which life of the other's rank was met.
//
// The identity of both ends is checked as the wire does it: a node hears only who stands at the sender's
// address, and no life that is older than the greatest it has met there.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/engine/peer_messages.h"
#include "server/engine/ring.h"
#include "tests/sim/clock.h"

namespace cairn::engine::ringsim {

struct World;
class SimNode;

// What one member has not been told yet.
class Outbox {
 public:
  void Put(peer::Message message);
  std::vector<peer::Message> Take();
  bool empty() const { return messages_.empty(); }

 private:
  std::vector<std::pair<std::string, peer::Message>> messages_;  // topic → its state, as they came
};
std::string TopicOf(const peer::Message& message);

class Net {
 public:
  explicit Net(World* world) : world_(*world) {}

  // The daemon has started: its links begin to make exchanges. Those of its last daemon are over.
  void Open(SimNode* node);
  void Tell(SimNode* from, Rank to, peer::Message message);

  // --- what strikes
  void Cut(int from, int to) { cut_[{from, to}] = true; }  // nodes, by id
  void Mend(int from, int to) { cut_.erase({from, to}); }
  void MendAll() { cut_.clear(); }
  bool Carries(const SimNode& from, const SimNode& to) const;
  // Whether that node takes the other for the member that it says it is.
  bool Knows(const SimNode& node, const SimNode& other);
  // Of a thousand exchanges so many …
  struct Weather {
    uint64_t lost = 0;   // … fail without having arrived
    uint64_t late = 0;   // … arrive up to some seconds late, failed long since
    uint64_t twice = 0;  // … are heard again
    uint64_t slow = 0;   // … take long
  };
  Weather weather;
  // That is how long a link waits for an answer, and for a connection.
  static constexpr MonotonicNanos kDeadline = 3 * sim::kSecond, kConnect = sim::kSecond;

  int64_t exchanges() const { return exchanges_; }

 private:
  struct Link {
    Rank to = kNoRank;
    uint64_t daemon = 0;  // whose links these are
    Outbox outbox;
    bool busy = false;           // an exchange is under way
    bool connected = false;      // the last one went well
    MonotonicNanos next = 0;     // when the next one is due
    uint64_t beats = 0;          // which timer counts
    MonotonicNanos arrives = 0;  // what goes now arrives no earlier
    uint64_t told_view = 0;      // of the node's views, in the last greeting
  };

  void Beat(SimNode* node, Link* link, MonotonicNanos delay);
  void Exchange(SimNode* node, Link* link);
  bool MayHear(const SimNode& from, SimNode* to);
  bool Meets(const SimNode& node, const SimNode& who);
  bool Believes(const SimNode& node, const SimNode& claims);
  void Greet(SimNode* node, Link* link, SimNode* to, MonotonicNanos takes, MonotonicNanos answer);
  void Learn(const SimNode& from, SimNode* to, MonotonicNanos delay);
  void Deliver(const SimNode& from, SimNode* to, std::vector<peer::Message> messages,
               MonotonicNanos delay);
  void End(SimNode* node, Link* link, const SimNode* met, MonotonicNanos delay);

  // What a node has for each member, by rank. What stands here stays where it is.
  template <class T>
  class ForEach {
   public:
    T& operator[](Rank rank) {
      const size_t at = PlaceOf(rank);
      if (at >= all_.size()) all_.resize(at + 1);
      return all_[at];
    }
    T* Find(Rank rank) {
      const size_t at = PlaceOf(rank);
      return at < all_.size() ? &all_[at] : nullptr;
    }
    void Clear() { all_.clear(); }

   private:
    static size_t PlaceOf(Rank rank) { return static_cast<size_t>(rank - kNoRank); }
    std::deque<T> all_;
  };
  struct Of {  // one node
    ForEach<Link> links;
    ForEach<MemberId> met;  // the rank's greatest life; kNoRank: none was met
  };
  Of& Find(const SimNode& node);

  World& world_;
  std::deque<Of> nodes_;  // by id
  std::map<std::pair<int, int>, bool> cut_;
  int64_t exchanges_ = 0;
};

}  // namespace cairn::engine::ringsim
