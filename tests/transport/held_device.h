// A device whose registrations take as long as a test wants.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <utility>

#include "server/transport/verbs.h"
#include "tests/support/await.h"

namespace cairn::transport {

// Whose registrations wait while they are held.
class HeldDevice final : public VerbsDevice {
 public:
  struct Hold {
    std::atomic<bool> on = false;
    std::atomic<int> first = 0;  // so many wait though it is not on
    std::atomic<int> held = 0;
    std::atomic<int> begun = 0;
  };
  HeldDevice(std::unique_ptr<VerbsDevice> device, std::shared_ptr<Hold> hold)
      : device_(std::move(device)), hold_(std::move(hold)) {}
  const VerbsDeviceInfo& info() const override { return device_->info(); }
  StatusOr<VerbsPort> Port(int number) const override { return device_->Port(number); }
  StatusOr<std::unique_ptr<VerbsRegion>> Register(int fd, uint64_t offset,
                                                  uint64_t length) override {
    const int number = ++hold_->begun;
    ++hold_->held;
    EXPECT_TRUE(testing::Await([&] { return !hold_->on && number > hold_->first; }));
    --hold_->held;
    return device_->Register(fd, offset, length);
  }
  StatusOr<std::unique_ptr<VerbsCompletions>> MakeCompletions(int depth) override {
    return device_->MakeCompletions(depth);
  }
  StatusOr<std::unique_ptr<VerbsQueuePair>> MakeQueuePair(const VerbsPort& port,
                                                          const VerbsGid& gid, int depth,
                                                          VerbsCompletions* completions) override {
    return device_->MakeQueuePair(port, gid, depth, completions);
  }

 private:
  const std::unique_ptr<VerbsDevice> device_;
  const std::shared_ptr<Hold> hold_;
};

}  // namespace cairn::transport
