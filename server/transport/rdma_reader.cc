#include "server/transport/rdma_reader.h"

#include <exception>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/transport/region.h"

namespace cairn::transport {

RdmaReader::~RdmaReader() {
  {
    MutexLock lock(&mu_);
    closing_ = true;
  }
  // Outside the lock: reads that end now may call Read, which refuses.
  for (const auto& [address, peer] : peers_) peer->Close();
}

void RdmaReader::Read(ReadRequest request, ReadDone done) {
  const auto prepare = [&]() -> StatusOr<RdmaPeer::Waiting> {
    CAIRN_ASSIGN_OR_RETURN(const ExtentRef from, BytesOf(request));
    CAIRN_ASSIGN_OR_RETURN(auto slab, slabs_->Find(request.into));
    if (request.again) slab->Distrust();
    return RdmaPeer::Waiting{std::move(request), std::move(done), std::move(slab), from};
  };
  StatusOr<RdmaPeer::Waiting> read = prepare();
  if (!read.ok()) return done(read.status());
  const StatusOr<RdmaPeer*> peer = PeerAt(read->request.address);
  if (!peer.ok()) return read->done(peer.status());
  (*peer)->Read(*std::move(read));
}

void RdmaReader::Drop(const RdmaSlab* slab) {
  std::vector<RdmaPeer*> peers;
  {
    MutexLock lock(&mu_);
    for (const auto& [address, peer] : peers_) peers.push_back(peer.get());
  }
  for (RdmaPeer* const peer : peers) peer->Drop(slab);
}

ItsReads RdmaReader::Finish(const std::string& address, const GrantToken& token) {
  RdmaPeer* peer = nullptr;
  {
    MutexLock lock(&mu_);
    const auto at = peers_.find(address);
    if (at == peers_.end()) return ItsReads::kHaveEnded;  // none was ever begun
    peer = at->second.get();
  }
  return peer->Finish(token);
}

StatusOr<RdmaPeer*> RdmaReader::PeerAt(const std::string& address) {
  MutexLock lock(&mu_);
  if (closing_) return absl::CancelledError("the transport is closing");
  const auto at = peers_.find(address);
  if (at != peers_.end()) return at->second.get();
  if (peers_.size() >= static_cast<size_t>(options_.max_peers)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("address: ", address, " would be one peer more than ", options_.max_peers));
  }
  try {
    auto peer = std::make_unique<RdmaPeer>(address, options_, device_, port_, control_);
    return peers_.emplace(address, std::move(peer)).first->second.get();
  } catch (const std::exception& e) {
    return absl::ResourceExhaustedError(absl::StrCat("a thread to read with: ", e.what()));
  }
}

}  // namespace cairn::transport
