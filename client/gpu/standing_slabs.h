// Slabs in standing mappings (client/cpp/standing.h), registered with a device: what streams of later versions copy
// from, without a pinned slot between. A thread maps and registers them, chunk by chunk, since registering takes as long
// as copying and holds the process's map lock; until a slab is ready, streams go on as without it.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/cpp/standing.h"
#include "client/gpu/device.h"
#include "client/gpu/owned.h"
#include "common/mutex.h"

namespace cairn::gpu {

// What the device does there.
enum class For : uint8_t { kReading, kWriting };

// One slab, from when it is wanted until it is given up. Thread-safe.
class StandingSlab {
 public:
  explicit StandingSlab(Device* device) : device_(device) {}
  ~StandingSlab() { LetGo(); }
  StandingSlab(const StandingSlab&) = delete;
  StandingSlab& operator=(const StandingSlab&) = delete;

  // Bytes that the device may be asked to copy while this lives; null: none.
  class Use {
   public:
    Use() = default;
    Use(StandingSlab* slab, const char* data) : slab_(slab), data_(data) {}
    Use(Use&& other) noexcept
        : slab_(std::exchange(other.slab_, nullptr)), data_(std::exchange(other.data_, nullptr)) {}
    Use& operator=(Use&&) = delete;
    ~Use() {
      if (slab_ != nullptr) slab_->EndUse();
    }
    const char* data() const { return data_; }
    // The stream was asked for the copies: the slab stays until they are done.
    Status Copied(StreamId stream) { return slab_->Copied(stream); }

   private:
    StandingSlab* slab_ = nullptr;
    const char* data_ = nullptr;
  };
  // [offset, offset + length) of the slab, if all of it lies in one registration.
  Use Begin(uint64_t offset, uint64_t length);

  // Maps and registers it. Once, in the thread of StandingSlabs.
  Status Prepare(const client::StandingPlace::Map& map, uint64_t chunk_bytes, For what,
                 const std::shared_ptr<StandingSlab>& self);
  // Waits for its copies, and gives it up; may be asked more than once.
  void LetGo();
  bool ready() const;
  // It is given up, or will be.
  bool gone() const;

 private:
  struct Held {
    std::unique_ptr<client::StandingMapping> mapping;
    std::vector<char*> registered;
    std::map<StreamId, Event> used;  // after the last copy on each stream
    bool unsure = false;             // copies may be under way that nothing tells the end of
  };

  void EndUse();
  Status Copied(StreamId stream);
  Status RegisterAll(const client::StandingMapping& mapping, uint64_t chunk_bytes, For what,
                     std::vector<char*>* registered);
  void GiveBack(Held held);

  Device* const device_;
  mutable Mutex mutex_;
  CondVar changed_;
  bool going_ ABSL_GUARDED_BY(mutex_) = false;
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;  // it is registered, or given back
  bool ready_ ABSL_GUARDED_BY(mutex_) = false;
  int users_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t chunk_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  Held held_ ABSL_GUARDED_BY(mutex_);
};

// Those of one device. Thread-safe.
class StandingSlabs {
 public:
  // `chunk_bytes`: of one registration, a multiple of kBlockBytes.
  StandingSlabs(Device* device, uint64_t chunk_bytes, For what = For::kReading)
      : device_(device), chunk_bytes_(chunk_bytes), what_(what) {}
  ~StandingSlabs();

  // The slab there, if it is ready; else null.
  std::shared_ptr<StandingSlab> Ready(const client::StandingPlace& place) const;
  // The same, and where it is not ready it is wanted from now on, unless the device has refused it.
  std::shared_ptr<StandingSlab> Want(const client::StandingPlace& place);
  // What was copied from it did not match: it is given up, and mapped and registered anew.
  void Renew(const std::shared_ptr<StandingSlab>& slab, const client::StandingPlace& place);
  // Why the last one that was refused was; empty: none was.
  std::string why() const;
  // Waits until nothing is being mapped or registered.
  void Settle();

 private:
  struct Job {
    std::shared_ptr<StandingSlab> slab;
    client::StandingPlace place;
    std::shared_ptr<StandingSlab> instead_of;  // is given up first
  };

  void Enqueue(Job job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Run();
  void Do(const Job& job);

  Device* const device_;
  const uint64_t chunk_bytes_;
  const For what_;
  mutable Mutex mutex_;
  CondVar changed_;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<Job> queue_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::shared_ptr<StandingSlab>> slabs_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Status> refused_ ABSL_GUARDED_BY(mutex_);  // by the device: not asked again
  std::string why_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cairn::gpu
