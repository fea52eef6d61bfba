// Owners of what a Device makes; each gives its thing back once, and never outlives the device.
#pragma once

#include <utility>

#include "client/gpu/device.h"

namespace cairn::gpu {

// `Release` gives an `Id` back: a member of Device.
template <typename Id, Status (Device::*Release)(Id)>
class Owned {
 public:
  Owned() = default;
  Owned(Device* device, Id id) : device_(device), id_(id) {}
  Owned(Owned&& other) noexcept : device_(std::exchange(other.device_, nullptr)), id_(other.id_) {}
  Owned& operator=(Owned&& other) noexcept {
    if (this != &other) {
      (void)Reset();
      device_ = std::exchange(other.device_, nullptr);
      id_ = other.id_;
    }
    return *this;
  }
  ~Owned() { (void)Reset(); }

  const Id& get() const { return id_; }
  bool valid() const { return device_ != nullptr; }
  // What giving back said; OK when there is nothing.
  Status Reset() {
    Device* const device = std::exchange(device_, nullptr);
    return device == nullptr ? absl::OkStatus() : (device->*Release)(id_);
  }

 private:
  Device* device_ = nullptr;
  Id id_{};
};

using DeviceBlock = Owned<DevicePtr, &Device::Free>;
using PinnedBlock = Owned<void*, &Device::FreePinned>;
using Registration = Owned<void*, &Device::Unregister>;
using Stream = Owned<StreamId, &Device::EndStream>;
using Event = Owned<EventId, &Device::EndEvent>;

template <typename Owner, typename Id>
StatusOr<Owner> Own(Device* device, StatusOr<Id> made) {
  if (!made.ok()) return made.status();
  return Owner(device, *made);
}

inline StatusOr<DeviceBlock> NewDeviceBlock(Device* device, uint64_t bytes) {
  return Own<DeviceBlock>(device, device->Allocate(bytes));
}
inline StatusOr<PinnedBlock> NewPinnedBlock(Device* device, uint64_t bytes) {
  return Own<PinnedBlock>(device, device->AllocatePinned(bytes));
}
inline StatusOr<Registration> NewRegistration(Device* device, void* at, uint64_t bytes,
                                              Access access) {
  CAIRN_RETURN_IF_ERROR(device->Register(at, bytes, access));
  return Registration(device, at);
}
inline StatusOr<Stream> NewStream(Device* device) {
  return Own<Stream>(device, device->NewStream());
}
inline StatusOr<Event> NewEvent(Device* device) { return Own<Event>(device, device->NewEvent()); }

}  // namespace cairn::gpu
