// The transport of a ring's member: RDMA where both ends have it, else TCP.
//
// With both, a read whose peer cannot be reached over RDMA goes over TCP, and so do all of that peer's for a while;
// then RDMA is tried again. A grant whose pages RDMA cannot follow (ABORTED) goes over TCP alone. With one of them there is nothing to choose.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/mutex.h"
#include "server/transport/transport.h"

namespace cairn::transport {

// Thread-safe.
class ChoosingTransport final : public Transport {
 public:
  static constexpr MonotonicNanos kLeftOut = 30 * kNanosPerSecond;

  // At least one of them. `left_out`: for so long a peer that RDMA did not reach is read over TCP, or a grant.
  ChoosingTransport(std::unique_ptr<Transport> tcp, std::unique_ptr<Transport> rdma,
                    MonotonicNanos left_out = kLeftOut);

  // The addresses of both: "ADDRESS:PORT", "ADDRESS:PORT;rank 3" or ";rank 3".
  std::string Address() const override;
  std::string Problem() const override;
  Status Attach(SlabId slab, SharedFd description, uint64_t bytes) override;
  void Detach(SlabId slab) override;
  bool PreparesMemory() const override { return rdma_ != nullptr && rdma_->PreparesMemory(); }
  void Prepare(SlabId slab) override {
    if (rdma_ != nullptr) rdma_->Prepare(slab);
  }
  StatusOr<std::string> Describe(const ExtentRef& extent) const override;
  Status Grant(const GrantToken& token, PeerId reader, std::vector<ExtentRef> extents) override;
  bool Revoke(const GrantToken& token, ItsReads reads) override;
  void RevokePeer(PeerId reader) override;
  StatusOr<MonotonicNanos> LastUsed(const GrantToken& token) const override;
  StatusOr<std::string> Answer(PeerId reader, absl::string_view question) override;
  void Read(ReadRequest request, ReadDone done) override;

  ItsReads Finish(const std::string& address, const GrantToken& token) override;
  Traffic traffic() const override;

 private:
  bool UsesRdma(const std::string& address, const GrantToken& token) ABSL_LOCKS_EXCLUDED(mu_);
  void LeaveOut(const std::string& address, const Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  void LeaveOutGrant(const GrantToken& token, const Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  void ReadOverTcp(ReadRequest request, ReadDone done);
  ReadDone Counted(uint64_t Traffic::*bytes, uint64_t length, ReadDone done);

  const MonotonicNanos left_out_for_;
  mutable Mutex mu_;
  std::map<std::string, MonotonicNanos> left_out_until_ ABSL_GUARDED_BY(mu_);  // by RDMA's address
  std::map<GrantToken, MonotonicNanos> grants_left_out_until_ ABSL_GUARDED_BY(mu_);
  Traffic traffic_ ABSL_GUARDED_BY(mu_);
  // Last, so that no read of theirs ends after what stands above is gone.
  const std::unique_ptr<Transport> tcp_, rdma_;
};

}  // namespace cairn::transport
