#include "client/gpu/writer_slabs.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "client/cpp/copy_engine.h"
#include "client/gpu/lanes.h"

namespace cairn::gpu {

// What is registered, by address. A slab that is unmapped is taken out before that.
class WriterSlabs::Table {
 public:
  explicit Table(Device* device) : device_(device) {}

  // False: it is known already.
  bool Enter(const char* slab) {
    MutexLock lock(&mutex_);
    return device_ != nullptr && slabs_.insert(slab).second;
  }

  // The caller holds the slab.
  Status Register(char* at, uint64_t bytes) {
    MutexLock lock(&mutex_);
    if (device_ == nullptr) return absl::CancelledError("no saves from this device any more");
    CAIRN_RETURN_IF_ERROR(device_->Register(at, bytes, Access::kReadWrite));
    chunks_[at] = bytes;
    return absl::OkStatus();
  }

  bool Covers(const char* at, uint64_t bytes) const {
    MutexLock lock(&mutex_);
    const auto after = chunks_.upper_bound(at);
    if (after == chunks_.begin()) return false;
    const auto& [begin, length] = *std::prev(after);
    return at + bytes <= begin + length;
  }

  // The slab is unmapped next. What the device does not give back ends with the process.
  void Leave(const char* slab, uint64_t bytes) {
    MutexLock lock(&mutex_);
    slabs_.erase(slab);
    const auto begin = chunks_.lower_bound(slab), end = chunks_.lower_bound(slab + bytes);
    for (auto chunk = begin; chunk != end; ++chunk) {
      if (device_ != nullptr) (void)device_->Unregister(const_cast<char*>(chunk->first));
    }
    chunks_.erase(begin, end);
  }

  void End() {
    MutexLock lock(&mutex_);
    for (const auto& [at, bytes] : chunks_) (void)device_->Unregister(const_cast<char*>(at));
    chunks_.clear();
    device_ = nullptr;
  }

 private:
  mutable Mutex mutex_;
  Device* device_ ABSL_GUARDED_BY(mutex_);  // null: it may be gone
  std::set<const char*> slabs_ ABSL_GUARDED_BY(mutex_);
  std::map<const char*, uint64_t> chunks_ ABSL_GUARDED_BY(mutex_);
};

WriterSlabs::WriterSlabs(Device* device, uint64_t chunk_bytes)
    : table_(std::make_shared<Table>(device)), chunk_bytes_(chunk_bytes), device_(device) {}

WriterSlabs::~WriterSlabs() {
  std::thread ending;
  {
    MutexLock lock(&mutex_);
    ending_ = true;
    changed_.NotifyAll();
    ending = std::move(thread_);
  }
  if (ending.joinable()) ending.join();
  table_->End();
}

void WriterSlabs::Want(const std::shared_ptr<client::MappedSlab>& slab) {
  if (!table_->Enter(slab->data())) return;
  slab->AtEnd(
      [table = table_, data = slab->data(), bytes = slab->bytes()] { table->Leave(data, bytes); });
  MutexLock lock(&mutex_);
  queue_.push_back(slab);
  if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
  changed_.NotifyAll();
}

bool WriterSlabs::Registered(const void* at, uint64_t bytes) const {
  return table_->Covers(static_cast<const char*>(at), bytes);
}

std::string WriterSlabs::why() const {
  MutexLock lock(&mutex_);
  return why_;
}

void WriterSlabs::Settle() {
  MutexLock lock(&mutex_);
  while (busy_ || !queue_.empty()) changed_.Wait(&mutex_);
}

void WriterSlabs::Run() {
  RunOnNode(device_->NumaNode());
  std::weak_ptr<client::MappedSlab> next;
  uint64_t at = 0;
  for (;;) {
    {
      MutexLock lock(&mutex_);
      busy_ = false;
      changed_.NotifyAll();
      while (queue_.empty() && !ending_) changed_.Wait(&mutex_);
      if (ending_) return;
      next = std::move(queue_.front());
      queue_.pop_front();
      busy_ = true;
    }
    Status status;
    // Held for one chunk at a time: a slab that is retired meanwhile is unmapped soon.
    for (at = 0; status.ok(); at += chunk_bytes_) {
      const std::shared_ptr<client::MappedSlab> slab = next.lock();
      if (slab == nullptr || at >= slab->bytes()) break;
      char* const from = slab->data() + at;
      const uint64_t bytes = std::min(chunk_bytes_, slab->bytes() - at);
      client::Populate(from, from + bytes);
      status = table_->Register(from, bytes);
    }
    if (!status.ok()) {
      MutexLock lock(&mutex_);
      why_ = std::string(status.message());
    }
  }
}

}  // namespace cairn::gpu
