#include "client/gpu/standing_slabs.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "client/cpp/copy_engine.h"
#include "client/cpp/process.h"
#include "client/gpu/lanes.h"
#include "common/fd.h"

namespace cairn::gpu {
namespace {
constexpr size_t kMostRefused = 1024;

void KeepForLife(std::unique_ptr<client::StandingMapping> mapping) {
  static auto* const mutex = new Mutex;
  static auto* const kept = new std::vector<std::unique_ptr<client::StandingMapping>>;
  MutexLock lock(mutex);
  kept->push_back(std::move(mapping));
}
}  // namespace

// --- one slab

StandingSlab::Use StandingSlab::Begin(uint64_t offset, uint64_t length) {
  MutexLock lock(&mutex_);
  if (!ready_ || going_ || length == 0) return {};
  const uint64_t bytes = held_.mapping->bytes();
  if (offset > bytes || length > bytes - offset) return {};
  if (offset / chunk_bytes_ != (offset + length - 1) / chunk_bytes_) return {};
  ++users_;
  return {this, held_.mapping->data() + offset};
}

void StandingSlab::EndUse() {
  MutexLock lock(&mutex_);
  if (--users_ == 0) changed_.NotifyAll();
}

Status StandingSlab::Copied(StreamId stream) {
  const Status recorded = [&]() -> Status {
    MutexLock lock(&mutex_);
    Event& event = held_.used[stream];
    if (!event.valid()) {
      CAIRN_ASSIGN_OR_RETURN(event, NewEvent(device_));
    }
    return device_->Record(event.get(), stream);
  }();
  if (recorded.ok()) return recorded;
  // LetGo could not wait for these copies.
  Status done = device_->Synchronize(stream);
  if (done.ok()) return done;
  MutexLock lock(&mutex_);
  held_.unsure = true;
  return done;
}

Status StandingSlab::Prepare(const client::StandingPlace::Map& map, uint64_t chunk_bytes, For what,
                             const std::shared_ptr<StandingSlab>& self) {
  const std::weak_ptr<StandingSlab> weak = self;
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<client::StandingMapping> mapping, map([weak] {
                           if (const auto slab = weak.lock()) slab->LetGo();
                         }));
  {
    MutexLock lock(&mutex_);
    if (going_) return absl::CancelledError("it is wanted back");
    busy_ = true;
  }
  Held held;
  held.mapping = std::move(mapping);
  const Status status = RegisterAll(*held.mapping, chunk_bytes, what, &held.registered);
  if (!status.ok()) {
    GiveBack(std::move(held));
    MutexLock lock(&mutex_);
    busy_ = false;
    changed_.NotifyAll();
    return status;
  }
  MutexLock lock(&mutex_);
  busy_ = false;
  changed_.NotifyAll();
  chunk_bytes_ = chunk_bytes;
  held_ = std::move(held);
  ready_ = true;
  return absl::OkStatus();
}

Status StandingSlab::RegisterAll(const client::StandingMapping& mapping, uint64_t chunk_bytes,
                                 For what, std::vector<char*>* registered) {
  for (uint64_t at = 0; at < mapping.bytes(); at += chunk_bytes) {
    {
      MutexLock lock(&mutex_);
      if (going_) return absl::CancelledError("it is wanted back");
    }
    char* const from = mapping.data() + at;
    const uint64_t bytes = std::min(chunk_bytes, mapping.bytes() - at);
    client::Populate(from, from + bytes);
    CAIRN_RETURN_IF_ERROR(device_->Register(from, bytes, Access::kReadWrite));
    registered->push_back(from);
  }
  if (what == For::kWriting) return absl::OkStatus();
  // It had to be writable to be registered. From now on this process does not write into it by mistake.
  if (mprotect(mapping.data(), mapping.bytes(), PROT_READ) != 0) {
    return ErrnoStatus(errno, "mprotect of a standing mapping");
  }
  return absl::OkStatus();
}

void StandingSlab::LetGo() {
  Held held;
  {
    MutexLock lock(&mutex_);
    going_ = true;
    while (busy_ || users_ > 0) changed_.Wait(&mutex_);
    if (!ready_) return;
    ready_ = false;
    busy_ = true;
    held = std::move(held_);
    held_ = {};
  }
  GiveBack(std::move(held));
  MutexLock lock(&mutex_);
  busy_ = false;
  changed_.NotifyAll();
}

// What the device holds of it goes before the mapping. Where that fails the mapping stays as long as the process: the
// node must not hear that the pages are free.
void StandingSlab::GiveBack(Held held) {
  bool free = !held.unsure;
  for (const auto& [stream, event] : held.used) {
    if (event.valid()) free &= device_->Synchronize(event.get()).ok();
  }
  for (size_t i = 0; free && i < held.registered.size(); ++i) {
    free = device_->Unregister(held.registered[i]).ok();
  }
  if (!free) KeepForLife(std::move(held.mapping));
}

bool StandingSlab::ready() const {
  MutexLock lock(&mutex_);
  return ready_ && !going_;
}

bool StandingSlab::gone() const {
  MutexLock lock(&mutex_);
  return going_;
}

// --- all of a device's

StandingSlabs::~StandingSlabs() {
  std::thread ending;
  {
    MutexLock lock(&mutex_);
    ending_ = true;
    changed_.NotifyAll();
    ending = std::move(thread_);
  }
  if (ending.joinable()) ending.join();
  std::map<std::string, std::shared_ptr<StandingSlab>> slabs;
  {
    MutexLock lock(&mutex_);
    slabs.swap(slabs_);
  }
  for (const auto& [name, slab] : slabs) slab->LetGo();
}

void StandingSlabs::Enqueue(Job job) {
  if (!thread_.joinable()) {
    try {
      thread_ = std::thread([this] { Run(); });
    } catch (const std::system_error& error) {  // as where a limit of processes is reached
      why_ = absl::StrCat("no thread that registers: ", error.what());
      slabs_.erase(job.place.slab);
      return;
    }
  }
  queue_.push_back(std::move(job));
  changed_.NotifyAll();
}

std::shared_ptr<StandingSlab> StandingSlabs::Ready(const client::StandingPlace& place) const {
  MutexLock lock(&mutex_);
  const auto known = slabs_.find(place.slab);
  return known != slabs_.end() && known->second->ready() ? known->second : nullptr;
}

std::shared_ptr<StandingSlab> StandingSlabs::Want(const client::StandingPlace& place) {
  if (place.slab.empty() || place.map == nullptr) return nullptr;
  MutexLock lock(&mutex_);
  if (ending_ || refused_.contains(place.slab)) return nullptr;
  std::erase_if(slabs_, [](const auto& entry) { return entry.second->gone(); });
  std::shared_ptr<StandingSlab>& slab = slabs_[place.slab];
  if (slab == nullptr) {
    slab = std::make_shared<StandingSlab>(device_);
    Enqueue({slab, place, nullptr});
    return nullptr;
  }
  return slab->ready() ? slab : nullptr;
}

void StandingSlabs::Renew(const std::shared_ptr<StandingSlab>& slab,
                          const client::StandingPlace& place) {
  MutexLock lock(&mutex_);
  const auto known = slabs_.find(place.slab);
  if (ending_ || known == slabs_.end() || known->second != slab) return;  // it is under way
  known->second = std::make_shared<StandingSlab>(device_);
  Enqueue({known->second, place, slab});
}

std::string StandingSlabs::why() const {
  MutexLock lock(&mutex_);
  return why_;
}

void StandingSlabs::Settle() {
  MutexLock lock(&mutex_);
  while (busy_ || !queue_.empty()) changed_.Wait(&mutex_);
}

void StandingSlabs::Run() {
  RunOnNode(device_->NumaNode());
  mutex_.Lock();
  for (;;) {
    while (queue_.empty() && !ending_) changed_.Wait(&mutex_);
    if (ending_) break;
    busy_ = true;
    Job job = std::move(queue_.front());
    queue_.pop_front();
    mutex_.Unlock();
    Do(job);
    job = {};  // and the lease under which it was asked for
    mutex_.Lock();
    busy_ = false;
    changed_.NotifyAll();
  }
  queue_.clear();
  changed_.NotifyAll();
  mutex_.Unlock();
}

void StandingSlabs::Do(const Job& job) {
  if (job.instead_of != nullptr) job.instead_of->LetGo();
  bool mapped = false;
  const client::StandingPlace::Map map = [&](std::function<void()> wanted_back) {
    auto mapping = job.place.map(std::move(wanted_back));
    mapped = mapping.ok();
    return mapping;
  };
  Status status =
      client::Contain([&] { return job.slab->Prepare(map, chunk_bytes_, what_, job.slab); });
  MutexLock lock(&mutex_);
  if (status.ok()) return;
  const auto known = slabs_.find(job.place.slab);
  if (known != slabs_.end() && known->second == job.slab) slabs_.erase(known);
  if (absl::IsCancelled(status)) return;  // it is wanted back
  why_ = std::string(status.message());
  // What the node refuses now it may lend for a later version.
  if (mapped && refused_.size() < kMostRefused) refused_[job.place.slab] = std::move(status);
}

}  // namespace cairn::gpu
