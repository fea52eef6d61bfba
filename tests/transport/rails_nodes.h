// Members with several RDMA devices each, which ask each other over a control wire of this process.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "server/transport/rails_transport.h"
#include "server/transport/rdma_transport.h"
#include "server/transport/rdma_wire.h"

namespace cairn::transport {

// The nodes of this process; each is known by a number of its own, as by a rank.
struct RailsDirectory {
  Mutex mu;
  std::map<int32_t, Transport*> by_number ABSL_GUARDED_BY(mu);
  std::atomic<int32_t> next = 1;

  static RailsDirectory& Get() {
    static auto* const directory = new RailsDirectory();
    return *directory;
  }
};

// One rail's way to other nodes: the words are those of a real control wire.
class RailControl final : public RdmaControl, private ControlWire {
 public:
  RailControl(PeerId self, int32_t number, uint8_t rail)
      : self_(self), number_(number), over_wire_(this, rail) {}
  ~RailControl() override {
    RailsDirectory& nodes = RailsDirectory::Get();
    MutexLock lock(&nodes.mu);
    nodes.by_number.erase(number_);
  }
  StatusOr<RdmaConnected> Connect(const std::string& address, const RdmaConnect& request,
                                  MonotonicNanos deadline) override {
    return over_wire_.Connect(address, request, deadline);
  }
  StatusOr<RdmaOpened> Open(const std::string& address, const RdmaOpen& request,
                            MonotonicNanos deadline) override {
    return over_wire_.Open(address, request, deadline);
  }

 private:
  StatusOr<std::string> Ask(int32_t number, const std::string& question, MonotonicNanos) override {
    Transport* owner = nullptr;
    {
      RailsDirectory& nodes = RailsDirectory::Get();
      MutexLock lock(&nodes.mu);
      const auto at = nodes.by_number.find(number);
      if (at == nodes.by_number.end()) return absl::UnavailableError("there is nobody");
      owner = at->second;
    }
    return owner->Answer(self_, question);
  }
  const PeerId self_;
  const int32_t number_;
  RdmaControlOverWire over_wire_;
};

// A rail over each device.
inline std::unique_ptr<RailsTransport> StartRails(
    PeerId self, std::vector<std::unique_ptr<VerbsDevice>> devices,
    MonotonicNanos left_out = RailsTransport::kLeftOut) {
  RailsDirectory& nodes = RailsDirectory::Get();
  const int32_t number = nodes.next++;
  std::vector<std::unique_ptr<Transport>> rails;
  for (auto& device : devices) {
    auto started = RdmaTransport::Start(
        std::move(device), /*port=*/1, RdmaAddress(number), {},
        std::make_unique<RailControl>(self, number, static_cast<uint8_t>(rails.size())));
    EXPECT_TRUE(started.ok()) << started.status();
    rails.push_back(*std::move(started));
  }
  auto transport = std::make_unique<RailsTransport>(std::move(rails), left_out);
  MutexLock lock(&nodes.mu);
  nodes.by_number[number] = transport.get();
  return transport;
}

}  // namespace cairn::transport
