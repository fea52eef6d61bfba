// The control wire between the members of a ring (proto/peer.thrift): this member's listener, and a link to
// each other member.
//
// peer_link.h     speaks to one member, and keeps what waits to be said
// peer_server.h   answers the others
// peer_book.h     who they are
// peer_stream.h   frames, deadlines, TLS
#pragma once

#include <map>
#include <memory>
#include <string>

#include "common/status.h"
#include "server/node/peer_links.h"
#include "server/rpc/peer_link.h"
#include "server/rpc/peer_options.h"
#include "server/rpc/peer_server.h"

namespace cairn::rpc {

// Thread-safe, except Start and Stop.
class Peers final : public node::PeerLinks {
 public:
  // Listens at this member's address of the ring, or will once no other socket has it (Problem). `host` outlives
  // it. INVALID_ARGUMENT names the option; what bind says, else.
  static StatusOr<std::unique_ptr<Peers>> Open(const PeersOptions& options, node::PeerHost* host);
  ~Peers() override { Stop(); }

  // Answers the others and dials them. What the host wants to say because of what it hears then it can.
  void Start();
  // Listens no more, ends what is under way, and joins all threads. On return the host is not called any
  // more; what is told is dropped.
  void Stop();

  void Tell(engine::Rank rank, engine::peer::Message message) override;
  StatusOr<Granted> AskGrant(engine::Rank rank, const engine::peer::GrantQuestion& question,
                             MonotonicNanos deadline) override;
  StatusOr<std::string> AskTransport(engine::Rank rank, const std::string& question,
                                     MonotonicNanos deadline) override;
  void EndGrant(engine::Rank rank, node::EndedGrant ended) override;
  void SetView(const engine::RingView& view) override { book_->SetView(view); }
  std::string Problem() const override;

  int connections() const { return server_->connections(); }  // that have come in

 private:
  Peers(const PeersOptions& options, node::PeerHost* host);

  PeerContext context_;
  std::unique_ptr<TlsContext> tls_;
  std::unique_ptr<PeerBook> book_;
  // Constant once they are made. Both use what stands above.
  std::map<engine::Rank, std::unique_ptr<PeerLink>> links_;
  std::unique_ptr<PeerServer> server_;
};

}  // namespace cairn::rpc
