// How the node speaks to the other members of its ring: rpc implements it (rpc/peers.h), and the node's
// tests have one of their own. What comes in goes to Node::Exchanged, Node::PeerSaid and Node::Grant.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "common/clock.h"
#include "common/status.h"
#include "server/engine/peer_messages.h"
#include "server/engine/ring.h"

namespace cairn::node {

// Thread-safe.
class PeerLinks {
 public:
  virtual ~PeerLinks() = default;

  // Puts the message into the member's outbox and returns at once; called under the node's lock. The
  // outbox holds state: a message takes the place of one of its topic that has not left (peer_messages.h),
  // and deltas of one job's report are merged. What a member that cannot be reached was told is dropped;
  // the engine says everything anew when it is back (event::Exchanged).
  virtual void Tell(engine::Rank rank, engine::peer::Message message) = 0;

  // A grant to read a part of the member's memory, and where its bytes are read (the address of its
  // transport). Waits for the member, at most to the deadline. NOT_FOUND: it does not have the part.
  struct Granted {
    engine::peer::GrantAnswer answer;
    std::string address;
  };
  virtual StatusOr<Granted> AskGrant(engine::Rank rank, const engine::peer::GrantQuestion& question,
                                     MonotonicNanos deadline) = 0;
  // The reader needs it no longer. As Tell, it only tries.
  virtual void EndGrant(engine::Rank rank, uint64_t grant) = 0;
};

}  // namespace cairn::node
