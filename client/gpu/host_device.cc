#include "client/gpu/host_device.h"

#include <unistd.h>

#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "client/cpp/huge_memory.h"
#include "client/gpu/host_memory.h"
#include "client/gpu/host_stream.h"
#include "common/checksum.h"
#include "common/copy.h"

namespace cairn::gpu {
namespace {

using Held = AllocationTable::Held;

void* Host(DevicePtr at) { return reinterpret_cast<void*>(at); }

// Nobody reads a large copy soon, so its lines are not read into the cache first.
void CopyToDevice(void* to, const void* from, uint64_t bytes) {
  constexpr uint64_t kLarge = 32 << 10;
  if (bytes >= kLarge) {
    StreamCopy(to, from, bytes);
  } else {
    std::memcpy(to, from, bytes);
  }
}

class HostDevice : public Device {
 public:
  explicit HostDevice(const HostDeviceOptions& options)
      : options_(options),
        registrations_(options.read_only_registration),
        allocations_(options.memory_bytes) {
    streams_[static_cast<uintptr_t>(kDefaultStream)] = std::make_shared<HostStream>();
  }

  ~HostDevice() override {
    if (getpid() == process_) return;
    // The streams' threads are the parent's; ending them would wait for ever.
    const MutexLock lock(&mutex_);
    new std::map<uintptr_t, std::shared_ptr<HostStream>>(std::move(streams_));
  }

  std::string Name() const override { return "host memory"; }
  int NumaNode() const override { return -1; }

  bool IsHost() const override { return true; }
  DeviceUse Use() const override {
    const MutexLock lock(&mutex_);
    return {allocations_.count(), pinned_.size(), registrations_.count(), streams_.size() - 1,
            events_.size()};
  }

  StatusOr<DeviceMemory> Memory() override {
    CAIRN_RETURN_IF_ERROR(InItsProcess());
    return allocations_.memory();
  }

  StatusOr<DevicePtr> Allocate(uint64_t bytes) override {
    CAIRN_RETURN_IF_ERROR(InItsProcess());
    return allocations_.Allocate(bytes, /*shared=*/false);
  }

  StatusOr<DevicePtr> AllocateShared(uint64_t bytes) override {
    CAIRN_RETURN_IF_ERROR(InItsProcess());
    return allocations_.Allocate(bytes, /*shared=*/true);
  }

  StatusOr<UniqueFd> Export(DevicePtr shared) override {
    CAIRN_RETURN_IF_ERROR(InItsProcess());
    return allocations_.Export(shared);
  }

  StatusOr<DevicePtr> Import(UniqueFd exported, uint64_t bytes) override {
    CAIRN_RETURN_IF_ERROR(InItsProcess());
    return allocations_.Import(std::move(exported), bytes);
  }

  Status Free(DevicePtr memory) override {
    CAIRN_RETURN_IF_ERROR(InItsProcess());
    for (const auto& stream : AllStreams()) stream->Synchronize();
    return allocations_.Free(memory);
  }

  StatusOr<void*> AllocatePinned(uint64_t bytes) override {
    CAIRN_RETURN_IF_ERROR(InItsProcess());
    CAIRN_ASSIGN_OR_RETURN(client::HugeMemory memory, client::HugeMemory::Make(bytes));
    void* const at = memory.data();
    CAIRN_RETURN_IF_ERROR(registrations_.Add(at, bytes, Access::kReadWrite));
    const MutexLock lock(&mutex_);
    pinned_[at] = std::move(memory);
    return at;
  }

  Status FreePinned(void* memory) override {
    CAIRN_RETURN_IF_ERROR(InItsProcess());
    for (const auto& stream : AllStreams()) stream->Synchronize();
    const MutexLock lock(&mutex_);
    const auto found = pinned_.find(memory);
    if (found == pinned_.end()) {
      return absl::NotFoundError("no pinned memory begins there");
    }
    CAIRN_RETURN_IF_ERROR(registrations_.Remove(memory));
    pinned_.erase(found);
    return absl::OkStatus();
  }

  Status Register(void* at, uint64_t bytes, Access access) override {
    CAIRN_RETURN_IF_ERROR(InItsProcess());
    return registrations_.Add(at, bytes, access);
  }

  Status Unregister(void* at) override {
    CAIRN_RETURN_IF_ERROR(InItsProcess());
    return registrations_.Remove(at);
  }

  StatusOr<StreamId> NewStream() override {
    CAIRN_RETURN_IF_ERROR(InItsProcess());
    const MutexLock lock(&mutex_);
    streams_[++last_] = std::make_shared<HostStream>();
    return StreamId{last_};
  }

  Status EndStream(StreamId stream) override {
    CAIRN_ASSIGN_OR_RETURN(const auto found, Find(stream));
    if (stream == kDefaultStream) return absl::InvalidArgumentError("ending the default stream");
    {
      const MutexLock lock(&mutex_);
      streams_.erase(static_cast<uintptr_t>(stream));
    }
    found->Synchronize();
    return absl::OkStatus();
  }

  StatusOr<EventId> NewEvent() override {
    CAIRN_RETURN_IF_ERROR(InItsProcess());
    const MutexLock lock(&mutex_);
    events_[++last_] = std::make_shared<HostEvent>();
    return EventId{last_};
  }

  Status EndEvent(EventId event) override {
    CAIRN_RETURN_IF_ERROR(Find(event).status());
    const MutexLock lock(&mutex_);
    events_.erase(static_cast<uintptr_t>(event));
    return absl::OkStatus();
  }

  Status Record(EventId event, StreamId stream) override {
    CAIRN_ASSIGN_OR_RETURN(const auto to, Find(event));
    CAIRN_ASSIGN_OR_RETURN(const auto on, Find(stream));
    on->Do([to, recording = to->Record()] { to->Happen(recording); });
    return absl::OkStatus();
  }

  Status Wait(StreamId stream, EventId event) override {
    CAIRN_ASSIGN_OR_RETURN(const auto on, Find(stream));
    CAIRN_ASSIGN_OR_RETURN(const auto until, Find(event));
    on->Do([until, recording = until->Recorded()] { until->Wait(recording); });
    return absl::OkStatus();
  }

  StatusOr<bool> Happened(EventId event) override {
    CAIRN_ASSIGN_OR_RETURN(const auto found, Find(event));
    return found->Happened();
  }

  Status Synchronize(EventId event) override {
    CAIRN_ASSIGN_OR_RETURN(const auto found, Find(event));
    found->Wait(found->Recorded());
    return absl::OkStatus();
  }

  Status Synchronize(StreamId stream) override {
    CAIRN_ASSIGN_OR_RETURN(const auto found, Find(stream));
    found->Synchronize();
    return absl::OkStatus();
  }

  Status Copy(absl::Span<const CopyIn> pieces, StreamId stream) override {
    return CopyAll(
        pieces, stream,
        [](const CopyIn& piece) { return std::pair<const void*, DevicePtr>(piece.from, piece.to); },
        [](const CopyIn& piece) { CopyToDevice(Host(piece.to), piece.from, piece.bytes); });
  }

  Status Copy(absl::Span<const CopyOut> pieces, StreamId stream) override {
    return CopyAll(
        pieces, stream,
        [](const CopyOut& piece) {
          return std::pair<const void*, DevicePtr>(piece.to, piece.from);
        },
        [](const CopyOut& piece) { std::memcpy(piece.to, Host(piece.from), piece.bytes); });
  }

  Status CopyRows(const void* from, DevicePtr to, const Rows& rows, StreamId stream) override {
    CAIRN_ASSIGN_OR_RETURN(const auto on, Find(stream));
    if (rows.width == 0 || rows.count == 0) return absl::OkStatus();
    if (rows.from_pitch < rows.width || rows.to_pitch < rows.width) {
      return absl::InvalidArgumentError(absl::StrCat("rows of ", rows.width,
                                                     " bytes, but pitches of ", rows.from_pitch,
                                                     " and ", rows.to_pitch));
    }
    const uint64_t last = rows.count - 1;
    CAIRN_ASSIGN_OR_RETURN(const bool registered,
                           registrations_.Covers(from, last * rows.from_pitch + rows.width));
    CAIRN_ASSIGN_OR_RETURN(Held held, allocations_.Hold(to, last * rows.to_pitch + rows.width));
    on->Do([from, to, rows, held = std::move(held)] {
      for (uint64_t i = 0; i < rows.count; ++i) {
        std::memcpy(Host(to + i * rows.to_pitch),
                    static_cast<const char*>(from) + i * rows.from_pitch, rows.width);
      }
    });
    if (!registered) on->Synchronize();
    return absl::OkStatus();
  }

  Status Checksum(Sum kind, absl::Span<const Range> ranges, DevicePtr sums,
                  StreamId stream) override {
    CAIRN_ASSIGN_OR_RETURN(const auto on, Find(stream));
    if (!options_.checksums) return absl::UnimplementedError("this device has no checksums");
    if (ranges.empty()) return absl::OkStatus();
    std::vector<Held> held;
    for (const Range& range : ranges) {
      if (range.bytes == 0) continue;
      CAIRN_ASSIGN_OR_RETURN(Held memory, allocations_.Hold(range.data, range.bytes));
      held.push_back(std::move(memory));
    }
    CAIRN_ASSIGN_OR_RETURN(Held into, allocations_.Hold(sums, ranges.size() * sizeof(uint32_t)));
    held.push_back(std::move(into));
    on->Do([kind, all = std::vector<Range>(ranges.begin(), ranges.end()), held = std::move(held),
            to = static_cast<uint32_t*>(Host(sums))]() mutable {
      for (const Range& range : all) {
        const void* const from = Host(range.data);
        *to++ =
            kind == Sum::kCrc32c ? Crc32c(0, from, range.bytes) : ZipCrc32(0, from, range.bytes);
      }
    });
    return absl::OkStatus();
  }

 private:
  Status InItsProcess() const {
    if (getpid() == process_) return absl::OkStatus();
    return absl::FailedPreconditionError("this process was forked after the device was opened");
  }

  StatusOr<std::shared_ptr<HostStream>> Find(StreamId stream) const {
    CAIRN_RETURN_IF_ERROR(InItsProcess());
    const MutexLock lock(&mutex_);
    const auto found = streams_.find(static_cast<uintptr_t>(stream));
    if (found == streams_.end()) return absl::InvalidArgumentError("there is no such stream");
    return found->second;
  }

  StatusOr<std::shared_ptr<HostEvent>> Find(EventId event) const {
    CAIRN_RETURN_IF_ERROR(InItsProcess());
    const MutexLock lock(&mutex_);
    const auto found = events_.find(static_cast<uintptr_t>(event));
    if (found == events_.end()) return absl::InvalidArgumentError("there is no such event");
    return found->second;
  }

  std::vector<std::shared_ptr<HostStream>> AllStreams() const {
    const MutexLock lock(&mutex_);
    std::vector<std::shared_ptr<HostStream>> all;
    for (const auto& [id, stream] : streams_) all.push_back(stream);
    return all;
  }

  // Nothing is copied unless every piece may be.
  template <typename Piece, typename Ends, typename Move>
  Status CopyAll(absl::Span<const Piece> pieces, StreamId stream, Ends ends, Move move) {
    CAIRN_ASSIGN_OR_RETURN(const auto on, Find(stream));
    std::vector<Held> held;
    bool at_once = true;
    for (const Piece& piece : pieces) {
      if (piece.bytes == 0) continue;
      const auto [host, device] = ends(piece);
      CAIRN_ASSIGN_OR_RETURN(const bool registered, registrations_.Covers(host, piece.bytes));
      CAIRN_ASSIGN_OR_RETURN(Held memory, allocations_.Hold(device, piece.bytes));
      held.push_back(std::move(memory));
      at_once &= registered;
    }
    on->Do([all = std::vector<Piece>(pieces.begin(), pieces.end()), held = std::move(held), move] {
      for (const Piece& piece : all) {
        if (piece.bytes != 0) move(piece);
      }
    });
    if (!at_once) on->Synchronize();
    return absl::OkStatus();
  }

  const HostDeviceOptions options_;
  const pid_t process_ = getpid();
  RegistrationTable registrations_;
  AllocationTable allocations_;
  mutable Mutex mutex_;
  uintptr_t last_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<void*, client::HugeMemory> pinned_ ABSL_GUARDED_BY(mutex_);
  std::map<uintptr_t, std::shared_ptr<HostStream>> streams_ ABSL_GUARDED_BY(mutex_);
  std::map<uintptr_t, std::shared_ptr<HostEvent>> events_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<Device> MakeHostDevice(const HostDeviceOptions& options) {
  return std::make_unique<HostDevice>(options);
}

}  // namespace cairn::gpu
