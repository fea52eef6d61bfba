#include "server/daemon/ring_transport.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "glog/logging.h"
#include "server/transport/choosing_transport.h"
#include "server/transport/ibverbs.h"
#include "server/transport/locked_memory.h"
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
  reader.self.rank = options.node.engine.ring.rank;
  StatusOr<std::unique_ptr<transport::TcpTransport>> started =
      transport::TcpTransport::Start(server, reader);
  if (!started.ok()) return Annotate(started.status(), "peers.data_port");
  return std::unique_ptr<Transport>(*std::move(started));
}

// The first device with a port that can be used; else why there is none.
StatusOr<std::unique_ptr<Transport>> StartRdma(const Options& options, MembersWire* wire) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> names, transport::ListRdmaDevices());
  CAIRN_RETURN_IF_ERROR(transport::MayLock(transport::ThisProcessesLockedMemory(),
                                           options.node.engine.budget_bytes, /*devices=*/1));
  std::vector<std::string> problems;
  for (const std::string& name : names) {
    StatusOr<std::unique_ptr<transport::VerbsDevice>> device = transport::OpenRdmaDevice(name);
    Status problem = device.status();
    if (device.ok()) {
      transport::RdmaReaderOptions reader;
      reader.max_peers = options.tcp.max_peers;
      StatusOr<std::unique_ptr<transport::RdmaTransport>> started = transport::RdmaTransport::Start(
          *std::move(device), transport::RdmaAddress(options.node.engine.ring.rank), {}, reader,
          std::make_unique<transport::RdmaControlOverWire>(wire));
      if (started.ok()) {
        LOG(INFO) << "RDMA over " << name;
        return std::unique_ptr<Transport>(*std::move(started));
      }
      problem = started.status();
    }
    problems.emplace_back(problem.message());
  }
  return absl::UnavailableError(absl::StrJoin(problems, "; "));
}

}  // namespace

StatusOr<std::unique_ptr<Transport>> StartRingTransport(const Options& options,
                                                        node::BackgroundGate* background,
                                                        MembersWire* wire) {
  std::unique_ptr<Transport> tcp, rdma;
  if (options.transport != TransportKind::kTcp) {
    StatusOr<std::unique_ptr<Transport>> started = StartRdma(options, wire);
    if (started.ok()) {
      rdma = *std::move(started);
    } else if (options.transport == TransportKind::kRdma) {
      return Annotate(started.status(), "transport");
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
