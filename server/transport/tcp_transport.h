// The transport that is available everywhere: TCP streams. Out by sendfile from the slab, in through a
// buffer that fits the cache; no slab is mapped. Who may read is decided by the grant's token, which the control wire
// carries. Data is encrypted where both ends are given certificates (StreamSecurity), and plain otherwise: one end with
// them and one without do not understand each other.
#pragma once

#include <memory>

#include "server/transport/slabs.h"
#include "server/transport/tcp_grants.h"
#include "server/transport/tcp_reader.h"
#include "server/transport/tcp_server.h"
#include "server/transport/transport.h"

namespace cairn::transport {

class TcpTransport final : public Transport {
 public:
  // INVALID_ARGUMENT names the option; what bind says, else. Where the address is in use it listens once it is free
  // (Problem).
  static StatusOr<std::unique_ptr<TcpTransport>> Start(const TcpServerOptions& server,
                                                       const TcpReaderOptions& reader);

  std::string Address() const override { return server_->address(); }
  std::string Problem() const override { return server_->problem(); }
  Status Attach(SlabId slab, SharedFd description, uint64_t bytes) override;
  void Detach(SlabId slab) override;
  StatusOr<std::string> Describe(const ExtentRef& extent) const override;
  Status Grant(const GrantToken& token, PeerId reader, std::vector<ExtentRef> extents) override;
  // It sees by itself which streams hold bytes of it.
  bool Revoke(const GrantToken& token, ItsReads) override { return grants_.Revoke(token); }
  void RevokePeer(PeerId reader) override { grants_.RevokePeer(reader); }
  StatusOr<MonotonicNanos> LastUsed(const GrantToken& token) const override {
    return grants_.LastUsed(token);
  }
  void Read(ReadRequest request, ReadDone done) override;

  int streams() const { return server_->streams(); }  // that peers have open here

 private:
  explicit TcpTransport(const TcpReaderOptions& reader) : reader_(reader, &slabs_) {}

  Slabs slabs_;
  TcpGrants grants_;
  TcpReader reader_;
  std::unique_ptr<TcpServer> server_;  // last: its threads use the members above
};

}  // namespace cairn::transport
