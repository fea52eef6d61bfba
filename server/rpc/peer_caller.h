// A connection that this member has made to another one: greeted, and then one call at a time.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "Peer.h"
#include "common/clock.h"
#include "common/status.h"
#include "common/tcp_address.h"
#include "proto/frame.h"
#include "server/engine/peer_messages.h"
#include "server/node/peer_links.h"
#include "server/rpc/peer_book.h"
#include "server/rpc/peer_options.h"
#include "server/rpc/peer_stream.h"

namespace cairn::rpc {

// What all connections of a member share; it outlives them.
struct PeerContext {
  PeersOptions options;
  node::PeerHost* host = nullptr;
  PeerBook* book = nullptr;
  const TlsContext* tls = nullptr;  // null: none

  peerwire::Sender Sender() const;
  // For the member at `to`.
  peerwire::Greeting Greeting(engine::Rank to) const;
  // The checks that both ends make of a greeting: who speaks, if it is a member of this cluster that speaks
  // this protocol and, with TLS, whom its certificate names. UNIMPLEMENTED for a newer protocol.
  StatusOr<engine::MemberId> Check(const peerwire::Greeting& greeting,
                                   const std::optional<MemberName>& certificate) const;
  StatusOr<engine::MemberId> Check(const peerwire::Sender& sender,
                                   const std::optional<MemberName>& certificate) const;
  // The host learns what a member that is believed has seen of this one's rank.
  void Learn(engine::Rank from, const peerwire::Greeting& greeting) const;
};

// Used by one thread at a time, but for Shutdown.
class PeerCaller {
 public:
  explicit PeerCaller(const PeerContext* context, engine::Rank rank);

  // Dials the rank's address, greets, and notes in the book whom it met, by the deadline and within the
  // times of the options. An error says why nothing else can be called: nobody answers, or somebody who is not
  // that member; or the member does not believe this one, for now or at all.
  Status Connect(const std::atomic<bool>& stop, MonotonicNanos deadline);
  // To the address that the rank has now.
  bool connected() const {
    return stream_ != nullptr && address_ == context_->book->AddressOf(rank_);
  }
  // What the member was told of the ring's view when it was greeted (PeerBook::view_version).
  uint64_t told_view() const { return told_view_; }
  const std::string& data_address() const { return data_address_; }
  void Close() ABSL_LOCKS_EXCLUDED(mu_);
  // The call that is under way ends soon.
  void Shutdown() ABSL_LOCKS_EXCLUDED(mu_);

  // Says all, in as many calls as their sizes ask for, at least one. Who has answered.
  StatusOr<engine::MemberId> Say(std::vector<engine::peer::Message> messages);
  StatusOr<engine::peer::GrantAnswer> Grant(const engine::peer::GrantQuestion& question,
                                            MonotonicNanos deadline);
  StatusOr<std::string> AskTransport(const std::string& question, MonotonicNanos deadline);
  Status EndGrants(const std::vector<node::EndedGrant>& ended);

 private:
  Status Greet(MonotonicNanos deadline);
  // One `say` of messages that are encoded; who has answered.
  StatusOr<engine::MemberId> SayEncoded(const std::vector<std::string>& messages);
  // Sends what the writer holds and reads the result of `method`. Not OK when the call was answered with an
  // error as well, and then the connection can be used again; after others it is closed.
  template <typename Result>
  Status Exchange(const char* method, MonotonicNanos timeout, Result* result);
  StatusOr<std::string> SendAndReceive(absl::string_view frame, MonotonicNanos timeout);
  void BeginCall(const char* method);

  const PeerContext* const context_;
  const engine::Rank rank_;
  std::unique_ptr<FrameWriter> writer_;
  size_t last_bytes_ = 0;  // that it has written
  MessageReader reader_;
  std::string address_;
  uint64_t told_view_ = 0;
  std::string data_address_;
  uint32_t max_answer_bytes_ = 0;
  Mutex mu_;
  // Replaced under mu_, by the one thread; Shutdown reads it under mu_.
  std::shared_ptr<PeerStream> stream_;
};

}  // namespace cairn::rpc
