// A network of RDMA devices in this process: for unit tests of what stands on verbs.h where there is no device, and
// with a device's failures. It shows nothing about real devices; tests/guest has those.
#pragma once

#include <atomic>
#include <memory>

#include "server/transport/verbs.h"

namespace cairn::transport {

struct FakeVerbsOptions {
  VerbsLimits limits = {.region_bytes = uint64_t{1} << 40,
                        .queue_pairs = 1024,
                        .queued = 1024,
                        .completions = 4096,
                        .reads_out = 16,
                        .reads_in = 16};
};

// What goes wrong, from now on.
struct FakeVerbsFaults {
  std::atomic<int> lost_events = 0;        // so many completions make no event
  std::atomic<int> failing_reads = 0;      // so many reads break their queue pair
  std::atomic<int> failing_registers = 0;  // so many registrations say that memory cannot be locked
  std::atomic<bool> deaf =
      false;  // nothing that is posted ever completes, until its pair is broken
  std::atomic<bool> port_down = false;
  std::atomic<int> regions = 0;     // not a fault: how many there are
  std::atomic<int> registered = 0;  // likewise: how many there have ever been
  std::atomic<int> pairs = 0;       // likewise
  std::atomic<int> reads = 0;       // likewise: that were well
};

class FakeFabric;  // all devices of one reach each other
std::shared_ptr<FakeFabric> MakeFakeFabric();

std::unique_ptr<VerbsDevice> MakeFakeDevice(std::shared_ptr<FakeFabric> fabric,
                                            std::shared_ptr<FakeVerbsFaults> faults = nullptr,
                                            const FakeVerbsOptions& options = {});

}  // namespace cairn::transport
