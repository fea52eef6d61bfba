#include "server/transport/rdma_owner.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace cairn::transport {
namespace {

// An owner posts nothing.
constexpr int kOwnersDepth = 1;
constexpr int kTries = 3;

Status NoSuchConnection(RdmaConnectionId connection) {
  return absl::FailedPreconditionError(
      absl::StrCat("connection: ", connection, " is not known (any more)"));
}

// Whether the slab is not the one that bytes came from, or has them as they came: then the device is to be believed,
// and it is the owner's own copy that is bad, or the way.
bool Same(const std::vector<ExtentRef>& granted, SlabId id, const RdmaSlab& slab,
          const std::optional<RdmaOpen::Came>& came) {
  if (!came.has_value()) return false;
  if (came->bytes.slab != id) return true;
  if (!Covers(granted, came->bytes)) return false;
  const StatusOr<uint32_t> own = slab.Crc(came->bytes.offset, came->bytes.length);
  return own.ok() && *own == came->crc;
}

}  // namespace

RdmaOwner::RdmaOwner(const RdmaOwnerOptions& options, VerbsDevice* device, int port,
                     VerbsCompletions* completions, RdmaSlabs* slabs)
    : options_(options), device_(device), port_(port), completions_(completions), slabs_(slabs) {}

StatusOr<RdmaOwner::Connection> RdmaOwner::Make(PeerId reader, const RdmaConnect& request,
                                                RdmaConnected* connected) {
  const auto count = static_cast<int>(request.endpoints.size());
  if (count < 1 || count > options_.max_queue_pairs) {
    return absl::InvalidArgumentError(
        absl::StrCat("endpoints: ", count, " queue pairs are not 1 to ", options_.max_queue_pairs));
  }
  CAIRN_ASSIGN_OR_RETURN(const VerbsPort port, device_->Port(port_));
  CAIRN_ASSIGN_OR_RETURN(const VerbsGid gid, ChooseGid(device_->info(), port));
  Connection made;
  made.reader = reader;
  for (const VerbsEndpoint& endpoint : request.endpoints) {
    CAIRN_ASSIGN_OR_RETURN(auto pair,
                           device_->MakeQueuePair(port, gid, kOwnersDepth, completions_));
    CAIRN_RETURN_IF_ERROR(pair->Connect(endpoint));
    connected->endpoints.push_back(pair->endpoint());
    made.pairs.push_back(std::move(pair));
  }
  return made;
}

StatusOr<RdmaConnected> RdmaOwner::Connect(PeerId reader, const RdmaConnect& request) {
  RdmaConnected connected;
  CAIRN_ASSIGN_OR_RETURN(Connection made, Make(reader, request, &connected));
  MutexLock lock(&mu_);
  const auto replaced = connections_.find(request.replaces);
  if (replaced != connections_.end() && replaced->second.reader == reader) {
    connections_.erase(replaced);
  }
  MakeRoom(reader);
  made.used = ++uses_;
  connected.connection = next_++;
  connections_.emplace(connected.connection, std::move(made));
  return connected;
}

void RdmaOwner::DropOldest(const std::function<bool(const Connection&)>& which) {
  auto oldest = connections_.end();
  for (auto at = connections_.begin(); at != connections_.end(); ++at) {
    if (!which(at->second)) continue;
    if (oldest == connections_.end() || at->second.used < oldest->second.used) oldest = at;
  }
  if (oldest != connections_.end()) connections_.erase(oldest);
}

void RdmaOwner::MakeRoom(PeerId reader) {
  // Connections of which the reader does not know: it never got the answer, or is another life of its rank.
  const auto its = [&](const Connection& one) { return one.reader.rank == reader.rank; };
  int of_reader = 0;
  for (const auto& [id, connection] : connections_) of_reader += its(connection) ? 1 : 0;
  if (of_reader >= options_.connections_of_reader) DropOldest(its);
  if (connections_.size() >= static_cast<size_t>(options_.max_connections)) {
    DropOldest([](const Connection&) { return true; });
  }
}

StatusOr<GrantTable::Entry*> RdmaOwner::Granted(PeerId reader, const GrantToken& token) {
  GrantTable::Entry* const grant = grants_.Find(token);
  if (grant == nullptr || grant->reader != reader) return NotPermitted();
  return grant;
}

StatusOr<RdmaOpened> RdmaOwner::Open(PeerId reader, const RdmaOpen& request) {
  RdmaOpened opened;
  {
    MutexLock lock(&mu_);
    CAIRN_ASSIGN_OR_RETURN(const GrantTable::Entry* grant, Granted(reader, request.token));
    opened.extents = grant->extents;
  }
  std::vector<std::shared_ptr<RdmaSlab>> slabs;
  for (const ExtentRef& extent : opened.extents) {
    if (!opened.slabs.empty() && opened.slabs.back().slab == extent.slab) continue;
    const StatusOr<std::shared_ptr<RdmaSlab>> slab = slabs_->Find(extent);
    if (!slab.ok()) return NotPermitted();  // detached meanwhile, and its grants with it
    if (request.anew && !Same(opened.extents, extent.slab, **slab, request.came)) {
      (*slab)->Distrust();
    }
    opened.slabs.push_back({extent.slab, {}});
    slabs.push_back(*slab);
  }
  for (int tries = 0; tries < kTries; ++tries) {
    // Registering takes its time, and nobody else waits for it.
    for (const std::shared_ptr<RdmaSlab>& slab : slabs) {
      const Status registered = slab->Register();
      if (absl::IsCancelled(registered)) return NotPermitted();
      CAIRN_RETURN_IF_ERROR(registered);
    }
    CAIRN_ASSIGN_OR_RETURN(const bool told, Tell(reader, request, slabs, &opened));
    if (told) return opened;
  }
  return absl::UnavailableError("its slabs are registered anew again and again");
}

StatusOr<bool> RdmaOwner::Tell(PeerId reader, const RdmaOpen& request,
                               const std::vector<std::shared_ptr<RdmaSlab>>& slabs,
                               RdmaOpened* opened) {
  MutexLock lock(&mu_);
  CAIRN_ASSIGN_OR_RETURN(GrantTable::Entry* const grant, Granted(reader, request.token));
  const auto at = connections_.find(request.connection);
  if (at == connections_.end() || at->second.reader != reader) {
    return NoSuchConnection(request.connection);
  }
  for (size_t i = 0; i < slabs.size(); ++i) {
    opened->slabs[i].pieces = slabs[i]->remote_pieces();
    if (opened->slabs[i].pieces.empty()) return false;
  }
  at->second.used = ++uses_;
  at->second.opened.insert(request.token);
  grant->last_used = RealClock()->Now();
  return true;
}

Status RdmaOwner::Grant(const GrantToken& token, PeerId reader, std::vector<ExtentRef> extents) {
  MutexLock lock(&mu_);
  return grants_.Add(token, reader, std::move(extents),
                     [this](const ExtentRef& extent) { return slabs_->Find(extent).status(); });
}

bool RdmaOwner::RevokeLocked(const GrantToken& token, ItsReads reads) {
  if (!grants_.Erase(token)) return false;
  if (reads == ItsReads::kHaveEnded) {
    for (auto& [id, connection] : connections_) connection.opened.erase(token);
    return true;
  }
  std::erase_if(connections_,
                [&](const auto& connection) { return connection.second.opened.contains(token); });
  return true;
}

bool RdmaOwner::Revoke(const GrantToken& token, ItsReads reads) {
  MutexLock lock(&mu_);
  return RevokeLocked(token, reads);
}

void RdmaOwner::RevokePeer(PeerId reader) {
  MutexLock lock(&mu_);
  for (const GrantToken& token : grants_.OfPeer(reader)) {
    RevokeLocked(token, ItsReads::kMayBeUnderWay);
  }
}

void RdmaOwner::RevokeSlab(SlabId slab) {
  MutexLock lock(&mu_);
  for (const GrantToken& token : grants_.OfSlab(slab)) {
    RevokeLocked(token, ItsReads::kMayBeUnderWay);
  }
}

StatusOr<MonotonicNanos> RdmaOwner::LastUsed(const GrantToken& token) const {
  MutexLock lock(&mu_);
  const GrantTable::Entry* const grant = grants_.Find(token);
  if (grant == nullptr) return absl::NotFoundError("token: there is no grant with it");
  return grant->last_used;
}

int RdmaOwner::connections() const {
  MutexLock lock(&mu_);
  return static_cast<int>(connections_.size());
}

}  // namespace cairn::transport
