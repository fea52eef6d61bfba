#include "server/transport/rdma_transport.h"

#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/transport/rdma_wire.h"
#include "server/transport/region.h"

namespace cairn::transport {

RdmaTransport::RdmaTransport(std::unique_ptr<VerbsDevice> device,
                             std::unique_ptr<VerbsCompletions> completions, int port,
                             std::string address, const RdmaOptions& options,
                             std::unique_ptr<RdmaControl> control)
    : control_(std::move(control)),
      device_(std::move(device)),
      completions_(std::move(completions)),
      port_(port),
      address_(std::move(address)),
      slabs_(device_.get(), options.slabs),
      owner_(options.owner, device_.get(), port, completions_.get(), &slabs_),
      reader_(options.reader, device_.get(), port, control_.get(), &slabs_) {}

StatusOr<std::unique_ptr<RdmaTransport>> RdmaTransport::Start(
    std::unique_ptr<VerbsDevice> device, int port, std::string address, const RdmaOptions& options,
    std::unique_ptr<RdmaControl> control) {
  CAIRN_RETURN_IF_ERROR(options.Validate());
  CAIRN_ASSIGN_OR_RETURN(const VerbsPort its, device->Port(port));
  CAIRN_RETURN_IF_ERROR(ChooseGid(device->info(), its).status());
  CAIRN_ASSIGN_OR_RETURN(auto completions, device->MakeCompletions(1));
  try {
    return std::unique_ptr<RdmaTransport>(
        new RdmaTransport(std::move(device), std::move(completions), port, std::move(address),
                          options, std::move(control)));
  } catch (const std::system_error& e) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a thread to register slabs with: ", e.what()));
  }
}

std::string RdmaTransport::Problem() const {
  const StatusOr<VerbsPort> port = device_->Port(port_);
  const Status usable = port.ok() ? ChooseGid(device_->info(), *port).status() : port.status();
  return std::string(usable.message());
}

Status RdmaTransport::Attach(SlabId slab, SharedFd description, uint64_t bytes) {
  return slabs_.Attach(slab, std::move(description), bytes);
}

void RdmaTransport::Detach(SlabId slab) {
  // In this order: no grant and no read can name the slab any more once it is not found, and what they have under
  // way has ended before the device forgets its memory.
  const std::shared_ptr<RdmaSlab> removed = slabs_.Remove(slab);
  if (removed == nullptr) return;
  removed->BeginDetach();
  owner_.RevokeSlab(slab);
  reader_.Drop(removed.get());
  removed->Detach();
}

void RdmaTransport::Prepare(SlabId slab) {
  StatusOr<std::shared_ptr<RdmaSlab>> found = slabs_.Find({slab, 0, 1});
  if (found.ok()) registrar_.Add(*std::move(found));
}

StatusOr<std::string> RdmaTransport::Describe(const ExtentRef& extent) const {
  CAIRN_RETURN_IF_ERROR(slabs_.Find(extent).status());
  return EncodeRegion(extent);
}

StatusOr<std::string> RdmaTransport::Answer(PeerId reader, absl::string_view question) {
  CAIRN_ASSIGN_OR_RETURN(const RdmaQuestion asked, DecodeRdmaQuestion(question));
  if (const auto* const connect = std::get_if<RdmaConnect>(&asked)) {
    CAIRN_ASSIGN_OR_RETURN(const RdmaConnected connected, owner_.Connect(reader, *connect));
    return Encode(connected);
  }
  CAIRN_ASSIGN_OR_RETURN(const RdmaOpened opened, owner_.Open(reader, std::get<RdmaOpen>(asked)));
  return Encode(opened);
}

Status RdmaTransport::Register(SlabId slab) {
  CAIRN_ASSIGN_OR_RETURN(const std::shared_ptr<RdmaSlab> found, slabs_.Find({slab, 0, 1}));
  return found->Register();
}

}  // namespace cairn::transport
