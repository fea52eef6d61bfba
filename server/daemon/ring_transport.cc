#include "server/daemon/ring_transport.h"

#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "glog/logging.h"
#include "server/tls/peer_tls.h"
#include "server/transport/choosing_transport.h"
#include "server/transport/ibverbs.h"
#include "server/transport/locked_memory.h"
#include "server/transport/nic_choice.h"
#include "server/transport/rdma_transport.h"
#include "server/transport/rdma_wire.h"
#include "server/transport/tcp_transport.h"

namespace cairn::daemon {
namespace {

using transport::Transport;

StatusOr<std::unique_ptr<Transport>> StartTcp(const Options& options,
                                              node::BackgroundGate* background) {
  transport::TcpServerOptions server;
  CAIRN_ASSIGN_OR_RETURN(server.listen, DataAddress(options));
  server.before_answer = [background] { background->Pass(); };
  transport::TcpReaderOptions reader = options.tcp;
  const engine::RingOptions& ring = options.node.engine.ring;
  reader.self.rank = ring.rank;
  if (options.encrypt == Encrypt::kAll) {
    CAIRN_ASSIGN_OR_RETURN(server.security.tls,
                           tls::TlsContext::Load(options.peers.tls, {ring.cluster, ring.rank}));
    server.security.cluster = ring.cluster;
    reader.security = server.security;
  }
  StatusOr<std::unique_ptr<transport::TcpTransport>> started =
      transport::TcpTransport::Start(server, reader);
  if (!started.ok()) return Annotate(started.status(), "peers.data_port");
  return std::unique_ptr<Transport>(*std::move(started));
}

using Devices = std::map<std::string, std::unique_ptr<transport::VerbsDevice>>;

// The ports of this machine that may be used, of those devices that can be opened.
StatusOr<std::vector<transport::NicPort>> OpenDevices(Devices* devices,
                                                      std::vector<std::string>* problems) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> names, transport::ListRdmaDevices());
  std::vector<transport::NicPort> ports;
  for (const std::string& name : names) {
    StatusOr<std::unique_ptr<transport::VerbsDevice>> device = transport::OpenRdmaDevice(name);
    if (!device.ok()) {
      problems->emplace_back(device.status().message());
      continue;
    }
    for (const transport::VerbsPort& port : (*device)->info().ports) {
      ports.push_back({name, port.number});
    }
    (*devices)[name] = *std::move(device);
  }
  const char* const wanted = std::getenv("NCCL_IB_HCA");
  return transport::ChooseNics(wanted == nullptr ? "" : wanted, ports);
}

// Over the first port that may be used and is up; else why there is none.
StatusOr<std::unique_ptr<Transport>> StartRdma(const Options& options, MembersWire* wire) {
  Devices devices;
  std::vector<std::string> problems;
  CAIRN_ASSIGN_OR_RETURN(const std::vector<transport::NicPort> ports,
                         OpenDevices(&devices, &problems));
  CAIRN_RETURN_IF_ERROR(transport::MayLock(transport::ThisProcessesLockedMemory(),
                                           options.node.engine.budget_bytes, /*devices=*/1));
  transport::RdmaOptions rdma;
  rdma.reader.max_peers = options.tcp.max_peers;
  for (const transport::NicPort& port : ports) {
    const transport::VerbsDeviceInfo& info = devices.at(port.device)->info();
    const transport::VerbsPort& its = info.ports.at(static_cast<size_t>(port.port) - 1);
    const Status usable = transport::ChooseGid(info, its).status();
    if (!usable.ok()) {
      problems.emplace_back(usable.message());
      continue;
    }
    CAIRN_ASSIGN_OR_RETURN(
        auto started,
        transport::RdmaTransport::Start(std::move(devices.at(port.device)), port.port,
                                        transport::RdmaAddress(options.node.engine.ring.rank), rdma,
                                        std::make_unique<transport::RdmaControlOverWire>(wire)));
    LOG(INFO) << "RDMA over " << port.device << ":" << port.port;
    return std::unique_ptr<Transport>(std::move(started));
  }
  return absl::UnavailableError(absl::StrJoin(problems, "; "));
}

}  // namespace

StatusOr<std::unique_ptr<Transport>> StartRingTransport(const Options& options,
                                                        node::BackgroundGate* background,
                                                        MembersWire* wire) {
  std::unique_ptr<Transport> tcp, rdma;
  if (options.transport != TransportKind::kTcp && options.encrypt != Encrypt::kAll) {
    StatusOr<std::unique_ptr<Transport>> started = StartRdma(options, wire);
    if (started.ok()) {
      rdma = *std::move(started);
    } else if (options.transport == TransportKind::kRdma) {
      return Annotate(started.status(), "transport");
    } else if (absl::IsInvalidArgument(started.status())) {
      return started.status();
    } else if (!absl::IsNotFound(started.status())) {  // there is a device, and it is not used
      LOG(WARNING) << "no RDMA, members are read over TCP: " << started.status();
    }
  }
  if (options.transport != TransportKind::kRdma) {
    CAIRN_ASSIGN_OR_RETURN(tcp, StartTcp(options, background));
  }
  return std::make_unique<transport::ChoosingTransport>(std::move(tcp), std::move(rdma));
}

}  // namespace cairn::daemon
