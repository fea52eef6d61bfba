// Which transports the contract suite is about: those that need no device, or the one that does, in a program of
// its own (CAIRN_CONTRACT_OF_RDMA).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#ifdef CAIRN_CONTRACT_OF_RDMA
#include "server/transport/ibverbs.h"
#else
#include "server/transport/choosing_transport.h"
#include "tests/transport/cluster_files.h"
#include "tests/transport/fake_verbs.h"
#include "tests/transport/faulty_transport.h"
#endif
#include "tests/transport/rails_nodes.h"
#include "tests/transport/rdma_nodes.h"
#include "tests/transport/two_nodes.h"

namespace cairn::transport {

struct ContractKind {
  std::string name;
  std::function<std::unique_ptr<Transport>(PeerId self)> start;
};

#ifdef CAIRN_CONTRACT_OF_RDMA
inline std::vector<ContractKind> ContractKinds() {
  return {{"Rdma", [](PeerId self) -> std::unique_ptr<Transport> {
             auto device = OpenRdmaDevice("rxe0");
             EXPECT_TRUE(device.ok()) << device.status();
             return StartRdma(self, *std::move(device));
           }}};
}
#else
inline std::vector<ContractKind> ContractKinds() {
  return {
      {"Tcp", [](PeerId self) -> std::unique_ptr<Transport> { return StartTcp(self); }},
      {"TcpWithTls",
       [](PeerId self) -> std::unique_ptr<Transport> {
         static ClusterFiles files("ours");  // whose folder goes with the program
         const StreamSecurity security = files.Of(self.rank);
         return StartTcp(self, {.stall = kLongStall, .idle = kLongStall, .security = security},
                         {.stall = kLongStall, .idle = kLongStall, .security = security});
       }},
      {"FaultyWithoutFaults",
       [](PeerId self) {
         return MakeFaultyTransport(StartTcp(self), std::make_shared<TransportFaults>());
       }},
      {"RdmaOfFakeDevices",
       [](PeerId self) -> std::unique_ptr<Transport> {
         static const auto* const fabric = new std::shared_ptr<FakeFabric>(MakeFakeFabric());
         return StartRdma(self, MakeFakeDevice(*fabric));
       }},
      {"Rails",
       [](PeerId self) -> std::unique_ptr<Transport> {
         static const auto* const rails =
             new std::vector<std::shared_ptr<FakeFabric> >{MakeFakeFabric(), MakeFakeFabric()};
         std::vector<std::unique_ptr<VerbsDevice> > devices;
         for (const auto& fabric : *rails) devices.push_back(MakeFakeDevice(fabric));
         return StartRails(self, std::move(devices));
       }},
      {"Choosing",
       [](PeerId self) -> std::unique_ptr<Transport> {
         static const auto* const fabric = new std::shared_ptr<FakeFabric>(MakeFakeFabric());
         return std::make_unique<ChoosingTransport>(StartTcp(self),
                                                    StartRdma(self, MakeFakeDevice(*fabric)));
       }},
  };
}
#endif

}  // namespace cairn::transport
