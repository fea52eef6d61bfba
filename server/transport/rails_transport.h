// RDMA over several devices at once. Each device is a rail: a whole transport of its own, with its registrations and
// queue pairs. Reads are striped over the rails: the next one goes where the fewest bytes are under way. A rail that
// does not reach a peer is left out for that peer for a while, and its reads go over the others meanwhile.
//
// Rail i of a reader is connected to rail i of the owner, and where the owner has fewer begins again at its first: rails
// are separate networks in most clusters. Members so need the same order of devices (NCCL_IB_HCA).
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/mutex.h"
#include "server/transport/transport.h"

namespace cairn::transport {

// Thread-safe. No Read may begin once its end has.
class RailsTransport final : public Transport {
 public:
  static constexpr MonotonicNanos kLeftOut = 30 * kNanosPerSecond;

  // At least one rail; all have the same address. `left_out`: for so long a rail is not used for a peer that it did
  // not reach.
  explicit RailsTransport(std::vector<std::unique_ptr<Transport>> rails,
                          MonotonicNanos left_out = kLeftOut);
  ~RailsTransport() override;

  std::string Address() const override { return rails_[0]->Address(); }
  std::string Problem() const override;  // as long as one rail has none there is none
  Status Attach(SlabId slab, SharedFd description, uint64_t bytes) override;
  void Detach(SlabId slab) override;
  bool PreparesMemory() const override { return rails_[0]->PreparesMemory(); }
  void Prepare(SlabId slab) override;
  StatusOr<std::string> Describe(const ExtentRef& extent) const override {
    return rails_[0]->Describe(extent);
  }
  Status Grant(const GrantToken& token, PeerId reader, std::vector<ExtentRef> extents) override;
  bool Revoke(const GrantToken& token, ItsReads reads) override;
  void RevokePeer(PeerId reader) override;
  StatusOr<MonotonicNanos> LastUsed(const GrantToken& token) const override;
  // A question says which rail it is for (OnRail); else it is for the first.
  StatusOr<std::string> Answer(PeerId reader, absl::string_view question) override;
  // UNAVAILABLE once every rail that may be used has been tried.
  void Read(ReadRequest request, ReadDone done) override;
  ItsReads Finish(const std::string& address, const GrantToken& token) override;
  Traffic traffic() const override;

 private:
  struct Reading {
    ReadRequest request;
    ReadDone done;
    std::vector<bool> tried;  // by rail
  };

  // Over one rail that has not been tried; ends with `last` when there is none.
  void Go(std::shared_ptr<Reading> reading, StatusOr<uint32_t> last) ABSL_LOCKS_EXCLUDED(mu_);
  // The rail for the read, which counts as under way there from now on. Where all are left out a first try goes to the
  // one whose time ends first.
  std::optional<size_t> Choose(Reading* reading) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Ended(size_t rail, const Reading& reading, const Status& status) ABSL_LOCKS_EXCLUDED(mu_);

  const MonotonicNanos left_out_for_;
  mutable Mutex mu_;
  CondVar left_;
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  int going_ ABSL_GUARDED_BY(mu_) = 0;  // threads that are about to use a rail for another try
  std::vector<uint64_t> under_way_ ABSL_GUARDED_BY(mu_);  // bytes, by rail
  size_t next_ ABSL_GUARDED_BY(mu_) = 0;  // of rails that are equal, the one whose turn it is
  std::map<std::pair<size_t, std::string>, MonotonicNanos> left_out_until_ ABSL_GUARDED_BY(mu_);
  uint64_t rails_left_out_ ABSL_GUARDED_BY(mu_) = 0;
  // Over which rail bytes came lately: when they are wanted again, for they were not right, that rail and its owner know
  // how they came.
  std::map<std::string, size_t> came_over_ ABSL_GUARDED_BY(mu_);
  // Last, so that no read of theirs ends after what stands above is gone.
  const std::vector<std::unique_ptr<Transport>> rails_;
};

}  // namespace cairn::transport
