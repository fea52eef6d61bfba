#include "tests/transport/faulty_transport.h"

#include <deque>
#include <map>
#include <thread>
#include <utility>

#include "common/checksum.h"
#include "common/mutex.h"

namespace cairn::transport {
namespace {

class FaultyTransport final : public Transport {
 public:
  FaultyTransport(std::unique_ptr<Transport> inner, std::shared_ptr<TransportFaults> faults)
      : faults_(std::move(faults)), inner_(std::move(inner)), thread_([this] { Run(); }) {}

  ~FaultyTransport() override {
    {
      MutexLock lock(&mu_);
      closing_ = true;
      wake_.NotifyAll();
    }
    faults_->Clear();
    thread_.join();
    for (const auto& [request, done] : reads_) {
      done(absl::CancelledError("the transport is closing"));
    }
  }

  std::string Address() const override { return inner_->Address(); }
  std::string Problem() const override { return inner_->Problem(); }
  Status Attach(SlabId slab, SharedFd description, uint64_t bytes) override {
    return faults_->Run<Status>(TransportCall::kAttach, [&]() -> Status {
      Status status = inner_->Attach(slab, description, bytes);
      if (status.ok()) {
        MutexLock lock(&mu_);
        slabs_[slab] = std::move(description);
      }
      return status;
    });
  }
  void Detach(SlabId slab) override {
    inner_->Detach(slab);
    MutexLock lock(&mu_);
    slabs_.erase(slab);
  }
  StatusOr<std::string> Describe(const ExtentRef& extent) const override {
    return faults_->Run<StatusOr<std::string>>(TransportCall::kDescribe,
                                               [&] { return inner_->Describe(extent); });
  }
  Status Grant(const GrantToken& token, PeerId reader, std::vector<ExtentRef> extents) override {
    return faults_->Run<Status>(TransportCall::kGrant,
                                [&] { return inner_->Grant(token, reader, std::move(extents)); });
  }
  StatusOr<std::string> Answer(PeerId reader, absl::string_view question) override {
    return inner_->Answer(reader, question);
  }
  bool Revoke(const GrantToken& token, ItsReads reads) override {
    return inner_->Revoke(token, reads);
  }
  ItsReads Finish(const std::string& address, const GrantToken& token) override {
    return inner_->Finish(address, token);
  }
  void RevokePeer(PeerId reader) override { inner_->RevokePeer(reader); }
  StatusOr<MonotonicNanos> LastUsed(const GrantToken& token) const override {
    return inner_->LastUsed(token);
  }
  void Read(ReadRequest request, ReadDone done) override {
    MutexLock lock(&mu_);
    reads_.emplace_back(std::move(request), std::move(done));
    wake_.NotifyOne();
  }

 private:
  void Run() {
    for (;;) {
      std::pair<ReadRequest, ReadDone> next;
      {
        MutexLock lock(&mu_);
        while (reads_.empty() && !closing_) wake_.Wait(&mu_);
        if (closing_) return;
        next = std::move(reads_.front());
        reads_.pop_front();
      }
      bool begun = false;
      const auto done = std::make_shared<ReadDone>(std::move(next.second));
      Status fault = faults_->Run<Status>(TransportCall::kRead, [&] {
        begun = true;
        return absl::OkStatus();
      });
      if (!fault.ok() && !begun) {
        (*done)(fault);
        continue;
      }
      const ReadRequest request = next.first;
      inner_->Read(std::move(next.first), [this, done, fault, request](StatusOr<uint32_t> crc) {
        if (!fault.ok()) return (*done)(fault);
        if (crc.ok()) crc = Flip(request, *crc);
        (*done)(std::move(crc));
      });
    }
  }

  StatusOr<uint32_t> Flip(const ReadRequest& request, uint32_t crc) {
    const Status met = faults_->Run<Status>(TransportCall::kFlip, [] { return absl::OkStatus(); });
    if (met.ok()) return crc;
    MutexLock lock(&mu_);
    const auto slab = slabs_.find(request.into.slab);
    if (slab == slabs_.end()) return crc;
    std::string bytes(request.length, '\0');
    const uint64_t at = request.into.offset + request.into_offset;
    CAIRN_RETURN_IF_ERROR(PreadAll(slab->second->get(), bytes.data(), bytes.size(), at));
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
    CAIRN_RETURN_IF_ERROR(PwriteAll(slab->second->get(), bytes.data(), bytes.size(), at));
    return Crc32c(0, bytes.data(), bytes.size());
  }

  const std::shared_ptr<TransportFaults> faults_;
  Mutex mu_;
  CondVar wake_;
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<std::pair<ReadRequest, ReadDone>> reads_;  // under mu_ until the thread has ended
  std::map<SlabId, SharedFd> slabs_ ABSL_GUARDED_BY(mu_);
  const std::unique_ptr<Transport> inner_;  // destroyed before what its callbacks use
  std::thread thread_;
};

}  // namespace

std::unique_ptr<Transport> MakeFaultyTransport(std::unique_ptr<Transport> inner,
                                               std::shared_ptr<TransportFaults> faults) {
  return std::make_unique<FaultyTransport>(std::move(inner), std::move(faults));
}

}  // namespace cairn::transport
