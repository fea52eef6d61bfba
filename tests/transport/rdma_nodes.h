// RDMA transports that reach each other's owners by a call, in the control wire's place.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/mutex.h"
#include "server/transport/rdma_transport.h"

namespace cairn::transport {

// The nodes of this process, by address.
struct RdmaDirectory {
  Mutex mu;
  std::map<std::string, RdmaOwner*> owners ABSL_GUARDED_BY(mu);

  static RdmaDirectory& Get() {
    static auto* const directory = new RdmaDirectory();
    return *directory;
  }
};

class DirectControl final : public RdmaControl {
 public:
  DirectControl(PeerId self, std::string address) : self_(self), address_(std::move(address)) {}
  ~DirectControl() override {
    RdmaDirectory& directory = RdmaDirectory::Get();
    MutexLock lock(&directory.mu);
    directory.owners.erase(address_);
  }
  StatusOr<RdmaConnected> Connect(const std::string& address, const RdmaConnect& request,
                                  MonotonicNanos /*deadline*/) override {
    CAIRN_ASSIGN_OR_RETURN(RdmaOwner* const owner, At(address));
    return owner->Connect(self_, request);
  }
  StatusOr<RdmaOpened> Open(const std::string& address, const RdmaOpen& request,
                            MonotonicNanos /*deadline*/) override {
    CAIRN_ASSIGN_OR_RETURN(RdmaOwner* const owner, At(address));
    return owner->Open(self_, request);
  }

 private:
  static StatusOr<RdmaOwner*> At(const std::string& address) {
    RdmaDirectory& directory = RdmaDirectory::Get();
    MutexLock lock(&directory.mu);
    const auto at = directory.owners.find(address);
    if (at == directory.owners.end()) return absl::UnavailableError("there is nobody");
    return at->second;
  }
  const PeerId self_;
  const std::string address_;
};

inline std::unique_ptr<RdmaTransport> StartRdma(PeerId self, std::unique_ptr<VerbsDevice> device,
                                                const RdmaReaderOptions& reader = {},
                                                const RdmaOwnerOptions& owner = {},
                                                const RdmaSlabOptions& slabs = {}) {
  static std::atomic<int> next = 0;
  const std::string address = absl::StrCat("node-", next++);
  auto started =
      RdmaTransport::Start(std::move(device), /*port=*/1, address, {owner, reader, slabs},
                           std::make_unique<DirectControl>(self, address));
  EXPECT_TRUE(started.ok()) << started.status();
  if (!started.ok()) return nullptr;
  RdmaDirectory& directory = RdmaDirectory::Get();
  MutexLock lock(&directory.mu);
  directory.owners[address] = (*started)->owner();
  return *std::move(started);
}

}  // namespace cairn::transport
