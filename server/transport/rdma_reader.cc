#include "server/transport/rdma_reader.h"

#include <memory>
#include <utility>

#include "server/transport/region.h"

namespace cairn::transport {

void RdmaReader::Read(ReadRequest request, ReadDone done) {
  const auto prepare = [&]() -> StatusOr<RdmaPeer::Waiting> {
    CAIRN_ASSIGN_OR_RETURN(const ExtentRef from, BytesOf(request));
    CAIRN_ASSIGN_OR_RETURN(auto slab, slabs_->Find(request.into));
    if (request.again) slab->Distrust();
    return RdmaPeer::Waiting{std::move(request), std::move(done), std::move(slab), from};
  };
  StatusOr<RdmaPeer::Waiting> read = prepare();
  if (!read.ok()) return done(read.status());
  const std::string& address = read->request.address;
  const StatusOr<RdmaPeer*> peer = peers_.At(address, [&] {
    return std::make_unique<RdmaPeer>(address, options_, device_, port_, control_);
  });
  if (!peer.ok()) return read->done(peer.status());
  (*peer)->Read(*std::move(read));
}

void RdmaReader::Drop(const RdmaSlab* slab) {
  for (RdmaPeer* const peer : peers_.All()) peer->Drop(slab);
}

ItsReads RdmaReader::Finish(const std::string& address, const GrantToken& token) {
  RdmaPeer* const peer = peers_.Find(address);
  return peer == nullptr ? ItsReads::kHaveEnded : peer->Finish(token);
}

}  // namespace cairn::transport
