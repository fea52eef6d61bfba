#include "server/rpc/peers.h"

#include <algorithm>
#include <set>
#include <utility>

#include "glog/logging.h"

namespace cairn::rpc {

Status PeersOptions::Validate() const {
  if (Status cluster = ValidateCluster(ring.cluster); !cluster.ok()) {
    return Annotate(cluster, "ring.cluster");
  }
  std::set<std::string> addresses;
  for (const auto& [rank, text] : ring.members) {
    if (ring.from_catalog && rank != ring.rank) continue;  // judged when it is dialled
    const StatusOr<TcpAddress> address = TcpAddress::Parse(text);
    if (!address.ok()) return Annotate(address.status(), absl::StrCat("ring.nodes: rank ", rank));
    if (address->port() == 0 || !addresses.insert(address->ToString()).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("ring.nodes: rank ", rank, ": ", text,
                       address->port() == 0 ? " has no port" : " is another rank's, too"));
    }
    if (rank != ring.rank || address->IsLoopback() || insecure || !tls.none()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("ring.nodes: ", text,
                     " can be reached from other hosts: set peers.ca, peers.cert and "
                     "peers.key (`cairn cluster init` makes them), or peers.insecure where the "
                     "network is trusted"));
  }
  if (!tls.none() && (tls.ca.empty() || tls.cert.empty() || tls.key.empty())) {
    return absl::InvalidArgumentError("peers.ca, peers.cert, peers.key: all of them or none");
  }
  return absl::OkStatus();
}

Peers::Peers(const PeersOptions& options, node::PeerHost* host) {
  context_.options = options;
  // Each member has three connections here.
  const int members = static_cast<int>(options.ring.members.size());
  context_.options.max_connections = std::max(options.max_connections, 4 * members);
  context_.host = host;
}

StatusOr<std::unique_ptr<Peers>> Peers::Open(const PeersOptions& options, node::PeerHost* host) {
  CAIRN_RETURN_IF_ERROR(options.Validate());
  auto peers = std::unique_ptr<Peers>(new Peers(options, host));
  const engine::RingOptions& ring = options.ring;
  if (!options.tls.none()) {
    CAIRN_ASSIGN_OR_RETURN(
        peers->tls_, TlsContext::Load(options.tls, {ring.cluster, ring.rank}, ring.from_catalog));
    peers->context_.tls = peers->tls_.get();
  }
  // The book asks links for a look; they are there before anybody calls.
  Peers* const raw = peers.get();
  peers->book_ =
      std::make_unique<PeerBook>(ring, [raw](engine::Rank rank) { raw->links_.at(rank)->Look(); });
  peers->context_.book = peers->book_.get();
  CAIRN_ASSIGN_OR_RETURN(const TcpAddress address, TcpAddress::Parse(ring.members.at(ring.rank)));
  StatusOr<std::unique_ptr<TcpListener>> listener = TcpListener::Open(address);
  if (!listener.ok()) return Annotate(listener.status(), "ring.nodes");
  for (const auto& [rank, listed] : ring.members) {
    if (rank == ring.rank) continue;
    peers->links_.emplace(rank, std::make_unique<PeerLink>(&peers->context_, rank));
  }
  peers->server_ = std::make_unique<PeerServer>(&peers->context_, *std::move(listener));
  return peers;
}

void Peers::Start() {
  server_->Start();
  for (const auto& [rank, link] : links_) link->Start();
  const engine::RingOptions& ring = context_.options.ring;
  LOG(INFO) << "rank " << ring.rank << " of cluster " << ring.cluster << ", at "
            << ring.members.at(ring.rank) << (tls_ == nullptr ? ", without TLS" : "");
}

void Peers::Stop() {
  if (server_ != nullptr) server_->Stop();
  for (const auto& [rank, link] : links_) link->Stop();
}

std::string Peers::Problem() const {
  std::string problem = server_->problem();
  if (!problem.empty()) problem = absl::StrCat("other members cannot reach this node: ", problem);
  const std::string lists = book_->OtherLists();
  return absl::StrCat(problem, problem.empty() || lists.empty() ? "" : "; ", lists);
}

void Peers::Tell(engine::Rank rank, engine::peer::Message message) {
  const auto link = links_.find(rank);
  if (link != links_.end()) link->second->Tell(std::move(message));
}

StatusOr<node::PeerLinks::Granted> Peers::AskGrant(engine::Rank rank,
                                                   const engine::peer::GrantQuestion& question,
                                                   MonotonicNanos deadline) {
  const auto link = links_.find(rank);
  if (link == links_.end()) {
    return absl::NotFoundError(absl::StrCat("rank ", rank, " is not another member"));
  }
  return link->second->AskGrant(question, deadline);
}

StatusOr<std::string> Peers::AskTransport(engine::Rank rank, const std::string& question,
                                          MonotonicNanos deadline) {
  const auto link = links_.find(rank);
  if (link == links_.end()) {
    return absl::UnavailableError(absl::StrCat("rank ", rank, " is not another member"));
  }
  return link->second->AskTransport(question, deadline);
}

void Peers::EndGrant(engine::Rank rank, node::EndedGrant ended) {
  const auto link = links_.find(rank);
  if (link != links_.end()) link->second->EndGrant(ended);
}

}  // namespace cairn::rpc
