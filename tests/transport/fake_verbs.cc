#include "tests/transport/fake_verbs.h"

#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/fd.h"
#include "common/mutex.h"

namespace cairn::transport {
namespace {

class FakeCompletions;
class FakeQueuePair;

}  // namespace

// One thread moves all bytes, one read after the other. It and every call hold one mutex, so that what is
// destroyed is used by nobody.
// Of a queue or a key. No two fabrics have the same: a device that speaks to another network's must not find one of its own.
uint32_t NextNumber() {
  static std::atomic<uint32_t> next = 100;
  return next++;
}

class FakeFabric {
 public:
  struct Region {
    char* at = nullptr;  // of byte `offset`
    uint64_t offset = 0, length = 0;
  };

  FakeFabric() : thread_([this] { Run(); }) {}
  ~FakeFabric() {
    {
      MutexLock lock(&mu);
      stopping_ = true;
      wake.NotifyAll();
    }
    thread_.join();
  }

  Mutex mu;
  CondVar wake;
  std::map<uint32_t, Region> regions ABSL_GUARDED_BY(mu);
  std::map<uint32_t, FakeQueuePair*> pairs ABSL_GUARDED_BY(mu);

  // Null: the key does not permit it.
  char* At(uint32_t key, uint64_t offset, uint64_t length) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    const auto region = regions.find(key);
    if (region == regions.end() || offset < region->second.offset) return nullptr;
    const uint64_t skipped = offset - region->second.offset;
    if (skipped > region->second.length || length > region->second.length - skipped) return nullptr;
    return region->second.at + skipped;
  }

 private:
  void Run();
  bool stopping_ ABSL_GUARDED_BY(mu) = false;
  std::thread thread_;
};

namespace {

class FakeRegion final : public VerbsRegion {
 public:
  FakeRegion(std::shared_ptr<FakeFabric> fabric, std::shared_ptr<FakeVerbsFaults> faults,
             uint32_t key)
      : fabric_(std::move(fabric)), faults_(std::move(faults)), key_(key) {
    ++faults_->regions;
    ++faults_->registered;
  }
  ~FakeRegion() override {
    MutexLock lock(&fabric_->mu);
    const auto at = fabric_->regions.find(key_);
    munmap(at->second.at, at->second.length);
    fabric_->regions.erase(at);
    --faults_->regions;
  }
  uint32_t local_key() const override { return key_; }
  uint32_t remote_key() const override { return key_; }

 private:
  const std::shared_ptr<FakeFabric> fabric_;
  const std::shared_ptr<FakeVerbsFaults> faults_;
  const uint32_t key_;
};

class FakeCompletions final : public VerbsCompletions {
 public:
  FakeCompletions(std::shared_ptr<FakeFabric> fabric, std::shared_ptr<FakeVerbsFaults> faults,
                  size_t depth)
      : fabric_(std::move(fabric)),
        faults_(std::move(faults)),
        depth_(depth),
        event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

  StatusOr<int> Poll(absl::Span<VerbsCompletion> into) override {
    MutexLock lock(&fabric_->mu);
    if (overran_) return absl::InternalError("the completion queue overran");
    size_t count = 0;
    while (count < into.size() && !arrived_.empty()) {
      into[count++] = std::move(arrived_.front());
      arrived_.pop_front();
    }
    return static_cast<int>(count);
  }
  int fd() const override { return event_.get(); }
  Status Arm() override {
    MutexLock lock(&fabric_->mu);
    armed_ = true;
    return absl::OkStatus();
  }
  void Clear() override {
    uint64_t ignored = 0;
    (void)!read(event_.get(), &ignored, sizeof(ignored));
  }
  // Holds the fabric's mutex.
  void Add(VerbsCompletion completion) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    overran_ = overran_ || arrived_.size() >= depth_;
    arrived_.push_back(std::move(completion));
    if (!armed_) return;
    armed_ = false;
    if (faults_->lost_events > 0) {
      --faults_->lost_events;
      return;
    }
    const uint64_t one = 1;
    (void)!write(event_.get(), &one, sizeof(one));
  }

 private:
  const std::shared_ptr<FakeFabric> fabric_;
  const std::shared_ptr<FakeVerbsFaults> faults_;
  const size_t depth_;
  const UniqueFd event_;
  std::deque<VerbsCompletion> arrived_;
  bool armed_ = false;
  bool overran_ = false;
};

class FakeQueuePair final : public VerbsQueuePair {
 public:
  FakeQueuePair(std::shared_ptr<FakeFabric> fabric, std::shared_ptr<FakeVerbsFaults> faults,
                const VerbsPort& port, const VerbsGid& gid, size_t depth,
                FakeCompletions* completions)
      : fabric_(std::move(fabric)),
        faults_(std::move(faults)),
        depth_(depth),
        completions_(completions) {
    MutexLock lock(&fabric_->mu);
    endpoint_.queue = NextNumber();
    endpoint_.ethernet = port.ethernet;
    endpoint_.gid = gid.gid;
    endpoint_.mtu_bytes = port.mtu_bytes;
    fabric_->pairs[endpoint_.queue] = this;
    ++faults_->pairs;
  }
  ~FakeQueuePair() override {
    MutexLock lock(&fabric_->mu);
    fabric_->pairs.erase(endpoint_.queue);
    --faults_->pairs;
  }
  VerbsEndpoint endpoint() const override { return endpoint_; }
  Status Connect(const VerbsEndpoint& peer) override {
    MutexLock lock(&fabric_->mu);
    peer_ = peer.queue;
    return absl::OkStatus();
  }
  Status PostRead(const VerbsRead& read) override {
    MutexLock lock(&fabric_->mu);
    if (posted_.size() >= depth_) return absl::ResourceExhaustedError("the queue is full");
    posted_.push_back(read);
    if (broken_) Flush();
    fabric_->wake.NotifyAll();
    return absl::OkStatus();
  }
  Status Break() override {
    MutexLock lock(&fabric_->mu);
    BreakLocked();
    return absl::OkStatus();
  }

  // The next three hold the fabric's mutex.
  bool HasWork() const { return !posted_.empty() && !broken_ && !faults_->deaf; }
  void Move() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    const VerbsRead read = posted_.front();
    posted_.pop_front();
    const auto peer = fabric_->pairs.find(peer_);
    char* const from = fabric_->At(read.remote_key, read.remote_offset, read.length);
    char* const into = fabric_->At(read.local_key, read.local_offset, read.length);
    Status status;
    if (faults_->failing_reads > 0) {
      --faults_->failing_reads;
      status = absl::UnavailableError("as the test wants it");
    } else if (peer == fabric_->pairs.end() || peer->second->broken_ ||
               peer->second->peer_ != endpoint_.queue) {
      status = absl::UnavailableError("the peer does not answer");
    } else if (from == nullptr) {
      status = absl::PermissionDeniedError("the peer refuses the key");
    } else if (into == nullptr) {
      status = absl::InternalError("local protection");
    } else {
      std::memcpy(into, from, read.length);
      ++faults_->reads;
    }
    const bool ok = status.ok();
    completions_->Add({read.id, std::move(status)});
    if (!ok) BreakLocked();
  }
  void BreakLocked() {
    broken_ = true;
    Flush();
  }

 private:
  void Flush() {
    for (const VerbsRead& read : posted_) {
      completions_->Add({read.id, absl::CancelledError("flushed")});
    }
    posted_.clear();
  }

  const std::shared_ptr<FakeFabric> fabric_;
  const std::shared_ptr<FakeVerbsFaults> faults_;
  const size_t depth_;
  FakeCompletions* const completions_;
  VerbsEndpoint endpoint_;
  uint32_t peer_ = 0;
  bool broken_ = false;
  std::deque<VerbsRead> posted_;
};

class FakeDevice final : public VerbsDevice {
 public:
  FakeDevice(std::shared_ptr<FakeFabric> fabric, std::shared_ptr<FakeVerbsFaults> faults,
             const FakeVerbsOptions& options)
      : fabric_(std::move(fabric)), faults_(std::move(faults)) {
    VerbsGid gid = {.index = 1, .kind = GidKind::kRoceV2, .gid = {}};
    gid.gid[10] = gid.gid[11] = 0xff;
    gid.gid[12] = 10;
    info_ = {.name = "fake0",
             .limits = options.limits,
             .ports = {{.number = 1,
                        .active = true,
                        .ethernet = true,
                        .mtu_bytes = 4096,
                        .lid = 0,
                        .gids = {gid}}}};
  }
  const VerbsDeviceInfo& info() const override { return info_; }
  StatusOr<VerbsPort> Port(int) const override {
    VerbsPort port = info_.ports[0];
    port.active = !faults_->port_down;
    return port;
  }
  StatusOr<std::unique_ptr<VerbsRegion>> Register(int fd, uint64_t offset,
                                                  uint64_t length) override {
    if (faults_->failing_registers > 0) {
      --faults_->failing_registers;
      return absl::ResourceExhaustedError("memory cannot be locked, as the test wants it");
    }
    void* const at = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd,
                          static_cast<off_t>(offset));
    if (at == MAP_FAILED) return ErrnoStatus(errno, "mmap");
    MutexLock lock(&fabric_->mu);
    const uint32_t key = NextNumber();
    fabric_->regions[key] = {static_cast<char*>(at), offset, length};
    return std::make_unique<FakeRegion>(fabric_, faults_, key);
  }
  StatusOr<std::unique_ptr<VerbsCompletions>> MakeCompletions(int depth) override {
    return std::make_unique<FakeCompletions>(fabric_, faults_, static_cast<size_t>(depth));
  }
  StatusOr<std::unique_ptr<VerbsQueuePair>> MakeQueuePair(const VerbsPort& port,
                                                          const VerbsGid& gid, int depth,
                                                          VerbsCompletions* completions) override {
    if (faults_->pairs >= info_.limits.queue_pairs) {
      return absl::ResourceExhaustedError("no more queue pairs");
    }
    return std::make_unique<FakeQueuePair>(fabric_, faults_, port, gid, static_cast<size_t>(depth),
                                           static_cast<FakeCompletions*>(completions));
  }

 private:
  const std::shared_ptr<FakeFabric> fabric_;
  const std::shared_ptr<FakeVerbsFaults> faults_;
  VerbsDeviceInfo info_;
};

}  // namespace

void FakeFabric::Run() {
  MutexLock lock(&mu);
  while (!stopping_) {
    bool moved = false;
    for (const auto& [queue, pair] : pairs) {
      if (!pair->HasWork()) continue;
      pair->Move();
      moved = true;
    }
    if (moved) {
      // Others get the mutex between two rounds.
      mu.Unlock();
      std::this_thread::yield();
      mu.Lock();
    } else {
      // `deaf` may have ended meanwhile.
      wake.WaitUntil(&mu, std::chrono::steady_clock::now() + std::chrono::milliseconds(5));
    }
  }
}

std::shared_ptr<FakeFabric> MakeFakeFabric() { return std::make_shared<FakeFabric>(); }

std::unique_ptr<VerbsDevice> MakeFakeDevice(std::shared_ptr<FakeFabric> fabric,
                                            std::shared_ptr<FakeVerbsFaults> faults,
                                            const FakeVerbsOptions& options) {
  if (faults == nullptr) faults = std::make_shared<FakeVerbsFaults>();
  return std::make_unique<FakeDevice>(std::move(fabric), std::move(faults), options);
}

}  // namespace cairn::transport
