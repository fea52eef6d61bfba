#include "server/transport/tcp_transport.h"

#include <utility>

#include "server/transport/region.h"

namespace cairn::transport {

StatusOr<std::unique_ptr<TcpTransport>> TcpTransport::Start(const TcpServerOptions& server,
                                                            const TcpReaderOptions& reader) {
  CAIRN_RETURN_IF_ERROR(reader.Validate());
  auto transport = std::unique_ptr<TcpTransport>(new TcpTransport(reader));
  CAIRN_ASSIGN_OR_RETURN(transport->server_,
                         TcpServer::Start(server, &transport->slabs_, &transport->grants_));
  return transport;
}

Status TcpTransport::Attach(SlabId slab, SharedFd description, uint64_t bytes) {
  return slabs_.Attach(slab, std::move(description), bytes);
}

void TcpTransport::Detach(SlabId slab) {
  // In this order: no grant can name the slab any more once it is not found.
  const std::shared_ptr<AttachedSlab> removed = slabs_.Remove(slab);
  if (removed == nullptr) return;
  grants_.RevokeSlab(slab);
  removed->Detach();
}

StatusOr<std::string> TcpTransport::Describe(const ExtentRef& extent) const {
  CAIRN_RETURN_IF_ERROR(slabs_.Find(extent).status());
  return EncodeRegion(extent);
}

Status TcpTransport::Grant(const GrantToken& token, PeerId reader, std::vector<ExtentRef> extents) {
  // The reader would show its token to whoever has the port.
  if (const std::string problem = Problem(); !problem.empty()) {
    return absl::UnavailableError(problem);
  }
  return grants_.Grant(token, reader, std::move(extents),
                       [this](const ExtentRef& extent) { return slabs_.Find(extent).status(); });
}

void TcpTransport::Read(ReadRequest request, ReadDone done) {
  reader_.Read(std::move(request), std::move(done));
}

}  // namespace cairn::transport
