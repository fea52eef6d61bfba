#include "server/daemon/ring_transport.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "glog/logging.h"
#include "server/tls/peer_tls.h"
#include "server/transport/choosing_transport.h"
#include "server/transport/ibverbs.h"
#include "server/transport/locked_memory.h"
#include "server/transport/nic_choice.h"
#include "server/transport/nic_topology.h"
#include "server/transport/rails_transport.h"
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
    CAIRN_ASSIGN_OR_RETURN(
        server.security.tls,
        tls::TlsContext::Load(options.peers.tls, {ring.cluster, ring.rank}, ring.from_catalog));
    server.security.cluster = ring.cluster;
    server.security.any_rank = ring.from_catalog;
    reader.security = server.security;
  }
  StatusOr<std::unique_ptr<transport::TcpTransport>> started =
      transport::TcpTransport::Start(server, reader);
  if (!started.ok()) return Annotate(started.status(), "peers.data_port");
  return std::unique_ptr<Transport>(*std::move(started));
}

// More are not used: each has threads of its own for each member, and a registration of everything.

std::string WantedNics() {
  const char* const wanted = std::getenv("NCCL_IB_HCA");
  return wanted == nullptr ? "" : wanted;
}

transport::NicPlace PlaceInSysfs(const std::string& device) {
  const std::string link = absl::StrCat("/sys/class/infiniband/", device, "/device");
  std::error_code error;
  const std::string path = std::filesystem::canonical(link, error).string();
  std::string node;
  std::ifstream(absl::StrCat(link, "/numa_node")) >> node;
  return transport::PlaceOf(device, error ? "" : path, node);
}

// Where this process may have memory. Empty: not known, or devices were chosen by name, which is for their user to
// judge.
std::vector<int> NodesOfMemory() {
  if (!WantedNics().empty()) return {};
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    absl::string_view text = line;
    if (!absl::ConsumePrefix(&text, "Mems_allowed_list:")) continue;
    return transport::ParseNodeList(text).value_or(std::vector<int>());
  }
  return {};
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
  return transport::ChooseNics(WantedNics(), ports);
}

// Of each device the first port that may be used and is up: further ones would register everything once more.
std::vector<transport::NicPort> UsablePorts(const Devices& devices,
                                            const std::vector<transport::NicPort>& ports,
                                            std::vector<std::string>* problems) {
  std::vector<transport::NicPort> usable;
  for (const transport::NicPort& port : ports) {
    const bool has_one = std::any_of(usable.begin(), usable.end(), [&](const auto& other) {
      return other.device == port.device;
    });
    if (has_one) continue;
    const transport::VerbsDeviceInfo& info = devices.at(port.device)->info();
    const transport::VerbsPort& its = info.ports.at(static_cast<size_t>(port.port) - 1);
    const Status gid = transport::ChooseGid(info, its).status();
    if (gid.ok()) {
      usable.push_back(port);
    } else {
      problems->emplace_back(gid.message());
    }
  }
  return usable;
}

// All of the budget is locked for each device: as many as the limit of locked memory allows. An error when that is none.
Status KeepLockable(uint64_t bytes, std::vector<transport::NicPort>* ports) {
  const transport::LockedMemory memory = transport::ThisProcessesLockedMemory();
  CAIRN_RETURN_IF_ERROR(transport::MayLock(memory, bytes, /*devices=*/1));
  while (true) {
    const Status may = transport::MayLock(memory, bytes, static_cast<int>(ports->size()));
    if (may.ok()) return may;
    LOG(WARNING) << "without " << ports->back().device << ": " << may.message();
    ports->pop_back();
  }
}

// Over all devices that may be used; else why there is none.
StatusOr<std::unique_ptr<Transport>> StartRdma(const Options& options, MembersWire* wire) {
  Devices devices;
  std::vector<std::string> problems;
  CAIRN_ASSIGN_OR_RETURN(const std::vector<transport::NicPort> ports,
                         OpenDevices(&devices, &problems));
  std::vector<transport::NicPort> usable = UsablePorts(devices, ports, &problems);
  if (usable.empty()) return absl::UnavailableError(absl::StrJoin(problems, "; "));
  for (const std::string& problem : problems) LOG(WARNING) << "RDMA without it: " << problem;
  usable = transport::ChooseRails(usable, PlaceInSysfs, NodesOfMemory(), transport::kMostRails);
  CAIRN_RETURN_IF_ERROR(KeepLockable(options.node.engine.budget_bytes, &usable));
  transport::RdmaOptions rdma;
  rdma.reader.max_peers = options.tcp.max_peers;
  rdma.owner.connections_of_reader = 2 * transport::kMostRails;
  std::vector<std::unique_ptr<Transport>> rails;
  for (const transport::NicPort& port : usable) {
    const auto rail = static_cast<uint8_t>(rails.size());
    CAIRN_ASSIGN_OR_RETURN(auto started,
                           transport::RdmaTransport::Start(
                               std::move(devices.at(port.device)), port.port,
                               transport::RdmaAddress(options.node.engine.ring.rank), rdma,
                               std::make_unique<transport::RdmaControlOverWire>(wire, rail)));
    LOG(INFO) << "RDMA over " << port.device << ":" << port.port;
    rails.push_back(std::move(started));
  }
  return std::make_unique<transport::RailsTransport>(std::move(rails));
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
