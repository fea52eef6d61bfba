// Reads over RDMA: the reader's device takes the bytes out of the owner's memory, and no processor of the owner's
// is at work. Registered slabs stay locked in memory, so the budget counts against the limit of locked memory.
//
// Any connected member that knows a key could read all of that slab: keys are told to whom a grant names only,
// members trust each other, and data is not encrypted.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/transport/rdma_control.h"
#include "server/transport/rdma_owner.h"
#include "server/transport/rdma_reader.h"
#include "server/transport/rdma_registrar.h"
#include "server/transport/rdma_slab.h"
#include "server/transport/transport.h"
#include "server/transport/verbs.h"

namespace cairn::transport {

class RdmaTransport final : public Transport {
 public:
  // Over one of the device's ports. `address` is what the control wire knows this node by. INVALID_ARGUMENT names
  // the option; UNAVAILABLE says what the port lacks.
  static StatusOr<std::unique_ptr<RdmaTransport>> Start(std::unique_ptr<VerbsDevice> device,
                                                        int port, std::string address,
                                                        const RdmaOptions& options,
                                                        std::unique_ptr<RdmaControl> control);

  std::string Address() const override { return address_; }
  std::string Problem() const override;
  Status Attach(SlabId slab, SharedFd description, uint64_t bytes) override;
  void Detach(SlabId slab) override;
  bool PreparesMemory() const override { return true; }
  void Prepare(SlabId slab) override;
  StatusOr<std::string> Describe(const ExtentRef& extent) const override;
  Status Grant(const GrantToken& token, PeerId reader, std::vector<ExtentRef> extents) override {
    return owner_.Grant(token, reader, std::move(extents));
  }
  bool Revoke(const GrantToken& token, ItsReads reads) override {
    return owner_.Revoke(token, reads);
  }
  ItsReads Finish(const std::string& address, const GrantToken& token) override {
    return reader_.Finish(address, token);
  }
  void RevokePeer(PeerId reader) override { owner_.RevokePeer(reader); }
  StatusOr<MonotonicNanos> LastUsed(const GrantToken& token) const override {
    return owner_.LastUsed(token);
  }
  StatusOr<std::string> Answer(PeerId reader, absl::string_view question) override;
  void Read(ReadRequest request, ReadDone done) override {
    reader_.Read(std::move(request), std::move(done));
  }

  // Registers the slab now. As RdmaSlab::Register; NOT_FOUND when it is not attached.
  Status Register(SlabId slab);
  // What readers ask of this node, through the control wire.
  RdmaOwner* owner() { return &owner_; }

 private:
  RdmaTransport(std::unique_ptr<VerbsDevice> device, std::unique_ptr<VerbsCompletions> completions,
                int port, std::string address, const RdmaOptions& options,
                std::unique_ptr<RdmaControl> control);

  const std::unique_ptr<RdmaControl> control_;
  const std::unique_ptr<VerbsDevice> device_;
  const std::unique_ptr<VerbsCompletions>
      completions_;  // of the owner's queue pairs, which post nothing
  const int port_;
  const std::string address_;
  RdmaSlabs slabs_;
  RdmaRegistrar registrar_;
  RdmaOwner owner_;
  RdmaReader reader_;  // last: its threads use the members above
};

}  // namespace cairn::transport
