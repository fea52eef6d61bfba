#include "tests/gpu/faulty_device.h"

#include <cstdlib>
#include <utility>

namespace cairn::gpu {
namespace {

class FaultyDevice final : public Device {
 public:
  FaultyDevice(std::unique_ptr<Device> inner, std::shared_ptr<DeviceFaults> faults)
      : inner_(std::move(inner)), faults_(std::move(faults)) {}

  std::string Name() const override { return inner_->Name(); }
  int NumaNode() const override { return inner_->NumaNode(); }
  bool IsHost() const override { return inner_->IsHost(); }
  DeviceUse Use() const override { return inner_->Use(); }
  StatusOr<DeviceMemory> Memory() override {
    return faults_->Run<StatusOr<DeviceMemory>>(DeviceCall::kMemory,
                                                [&] { return inner_->Memory(); });
  }
  StatusOr<DevicePtr> Allocate(uint64_t bytes) override {
    return faults_->Run<StatusOr<DevicePtr>>(DeviceCall::kAllocate,
                                             [&] { return inner_->Allocate(bytes); });
  }
  StatusOr<DevicePtr> AllocateShared(uint64_t bytes) override {
    return faults_->Run<StatusOr<DevicePtr>>(DeviceCall::kAllocate,
                                             [&] { return inner_->AllocateShared(bytes); });
  }
  StatusOr<UniqueFd> Export(DevicePtr shared) override {
    return faults_->Run<StatusOr<UniqueFd>>(DeviceCall::kExport,
                                            [&] { return inner_->Export(shared); });
  }
  StatusOr<DevicePtr> Import(UniqueFd exported, uint64_t bytes) override {
    return faults_->Run<StatusOr<DevicePtr>>(
        DeviceCall::kAllocate, [&] { return inner_->Import(std::move(exported), bytes); });
  }
  Status Free(DevicePtr memory) override {
    return faults_->Run<Status>(DeviceCall::kFree, [&] { return inner_->Free(memory); });
  }
  StatusOr<void*> AllocatePinned(uint64_t bytes) override {
    return faults_->Run<StatusOr<void*>>(DeviceCall::kAllocatePinned,
                                         [&] { return inner_->AllocatePinned(bytes); });
  }
  Status FreePinned(void* memory) override {
    return faults_->Run<Status>(DeviceCall::kFreePinned,
                                [&] { return inner_->FreePinned(memory); });
  }
  Status Register(void* at, uint64_t bytes, Access access) override {
    return faults_->Run<Status>(DeviceCall::kRegister,
                                [&] { return inner_->Register(at, bytes, access); });
  }
  Status Unregister(void* at) override {
    return faults_->Run<Status>(DeviceCall::kUnregister, [&] { return inner_->Unregister(at); });
  }
  StatusOr<StreamId> NewStream() override {
    return faults_->Run<StatusOr<StreamId>>(DeviceCall::kNewStream,
                                            [&] { return inner_->NewStream(); });
  }
  Status EndStream(StreamId stream) override { return inner_->EndStream(stream); }
  StatusOr<EventId> NewEvent() override {
    return faults_->Run<StatusOr<EventId>>(DeviceCall::kNewEvent,
                                           [&] { return inner_->NewEvent(); });
  }
  Status EndEvent(EventId event) override { return inner_->EndEvent(event); }
  Status Record(EventId event, StreamId stream) override {
    return faults_->Run<Status>(DeviceCall::kRecord, [&] { return inner_->Record(event, stream); });
  }
  Status Wait(StreamId stream, EventId event) override {
    return faults_->Run<Status>(DeviceCall::kWait, [&] { return inner_->Wait(stream, event); });
  }
  StatusOr<bool> Happened(EventId event) override {
    return faults_->Run<StatusOr<bool>>(DeviceCall::kSynchronize,
                                        [&] { return inner_->Happened(event); });
  }
  Status Synchronize(EventId event) override {
    return faults_->Run<Status>(DeviceCall::kSynchronize,
                                [&] { return inner_->Synchronize(event); });
  }
  Status Synchronize(StreamId stream) override {
    return faults_->Run<Status>(DeviceCall::kSynchronize,
                                [&] { return inner_->Synchronize(stream); });
  }
  Status Copy(absl::Span<const CopyIn> pieces, StreamId stream) override {
    Status copied =
        faults_->Run<Status>(DeviceCall::kCopyIn, [&] { return inner_->Copy(pieces, stream); });
    if (copied.ok() && !pieces.empty()) MayFlip(pieces.front().to, stream);
    return copied;
  }
  Status Copy(absl::Span<const CopyOut> pieces, StreamId stream) override {
    return faults_->Run<Status>(DeviceCall::kCopyOut, [&] { return inner_->Copy(pieces, stream); });
  }
  Status CopyRows(const void* from, DevicePtr to, const Rows& rows, StreamId stream) override {
    Status copied = faults_->Run<Status>(DeviceCall::kCopyRows,
                                         [&] { return inner_->CopyRows(from, to, rows, stream); });
    if (copied.ok() && rows.count > 0) MayFlip(to, stream);
    return copied;
  }
  Status Checksum(Sum kind, absl::Span<const Range> ranges, DevicePtr sums,
                  StreamId stream) override {
    return faults_->Run<Status>(DeviceCall::kChecksum,
                                [&] { return inner_->Checksum(kind, ranges, sums, stream); });
  }

 private:
  // A copy back and forth of one byte, in the order of the stream.
  void MayFlip(DevicePtr at, StreamId stream) {
    const Status fault = faults_->Run<Status>(DeviceCall::kFlip, [] { return absl::OkStatus(); });
    if (fault.ok()) return;
    unsigned char byte = 0;
    const CopyOut out{at, &byte, 1};
    if (!inner_->Copy({&out, 1}, stream).ok() || !inner_->Synchronize(stream).ok()) return;
    byte ^= 1;
    const CopyIn in{&byte, at, 1};
    if (inner_->Copy({&in, 1}, stream).ok()) (void)inner_->Synchronize(stream);
  }

  const std::unique_ptr<Device> inner_;
  const std::shared_ptr<DeviceFaults> faults_;
};

}  // namespace

int Stride() { return std::getenv("CAIRN_SANITIZED") == nullptr ? 1 : 7; }

std::unique_ptr<Device> MakeFaultyDevice(std::unique_ptr<Device> inner,
                                         std::shared_ptr<DeviceFaults> faults) {
  return std::make_unique<FaultyDevice>(std::move(inner), std::move(faults));
}

}  // namespace cairn::gpu
