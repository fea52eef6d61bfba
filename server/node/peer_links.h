// How the node and the wire between the members of its ring know each other. The node speaks through
// PeerLinks, which rpc implements (rpc/peers.h); what comes in goes to PeerHost, which the node implements.
// The tests of either side have the other of their own.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "common/clock.h"
#include "common/status.h"
#include "server/engine/peer_messages.h"
#include "server/engine/ring.h"
#include "server/transport/transport.h"

namespace cairn::node {

// A grant that its reader needs no longer.
struct EndedGrant {
  uint64_t grant = 0;
  transport::ItsReads reads = transport::ItsReads::kMayBeUnderWay;
  bool operator==(const EndedGrant&) const = default;
};

// What the node is to the wire. Thread-safe; called on the wire's threads, one per link and one per
// connection that came in, so a call may wait for the node's lock. None is made before Peers::Start, and
// none once Peers::Stop has returned.
class PeerHost {
 public:
  virtual ~PeerHost() = default;

  // Who this node is now. Its incarnation grows when the node takes a greater one (Met); its rank and
  // instance stay.
  virtual engine::MemberId Self() const = 0;

  // After each exchange with a member, about one a second: who answered at its address in the list, or
  // nothing when no member did (or one that may not speak for that rank). It began `took` ago.
  virtual void Exchanged(engine::Rank rank, std::optional<engine::MemberId> member,
                         MonotonicNanos took) = 0;
  // `from` is who answered at its rank's address when this node last dialled it. In the order in which one
  // member sent them, but for a message that is said again.
  virtual void PeerSaid(engine::MemberId from, engine::peer::Message message) = 0;
  // NOT_FOUND: the part is not held here. It must have answered by the deadline.
  virtual StatusOr<engine::peer::GrantAnswer> Grant(engine::MemberId from,
                                                    engine::peer::GrantQuestion question,
                                                    MonotonicNanos deadline) = 0;
  // What `from`'s transport asks of this node's, as transport::Transport::Answer.
  virtual StatusOr<std::string> TransportAsked(engine::MemberId from,
                                               absl::string_view question) = 0;
  // A grant that is not `from`'s, or that has ended, is nobody's mistake: nothing happens.
  virtual void EndGrant(engine::MemberId from, EndedGrant ended) = 0;
  // The member at `rank`, which is believed, has met another life of this node's rank at its address, whose
  // incarnation is not the lesser one: this node's life is superseded, or it takes a greater incarnation.
  virtual void Met(engine::Rank rank, engine::MemberId life) = 0;
  // What a member that is believed knows of a ring whose members stand in the catalog.
  virtual void HeardView(const engine::RingView& view) = 0;
};

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
  // As transport::ControlWire::Ask.
  virtual StatusOr<std::string> AskTransport(engine::Rank rank, const std::string& question,
                                             MonotonicNanos deadline) = 0;
  // The reader needs it no longer. As Tell, it only tries.
  virtual void EndGrant(engine::Rank rank, EndedGrant ended) = 0;

  // Where the members of a ring are that stands in the catalog: what is known now.
  virtual void SetView(const engine::RingView& view) = 0;

  // What is wrong between this node and the other members that only a person can mend, in words; empty: nothing.
  virtual std::string Problem() const = 0;
};

}  // namespace cairn::node
