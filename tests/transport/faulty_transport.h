// Any transport, with faults injected into its calls (tests/support/fault_plan.h explains them). With
// no fault added it passes the contract of the transport it stands before.
#pragma once

#include <memory>

#include "server/transport/transport.h"
#include "tests/support/fault_plan.h"

namespace cairn::transport {

enum class TransportCall {
  kAttach,
  kDescribe,
  kGrant,
  kRead,  // kMaybeHappened: the bytes have come, and the read ends with the error all the same: a cut
  kFlip,  // after a read that succeeded. A failure changes one bit of the bytes that came
};
using TransportFault = testing::Fault<TransportCall>;
using TransportFaults = testing::FaultPlan<TransportCall>;

// Reads go on from a thread of the decorator, in their order: one that hangs holds up those behind it.
std::unique_ptr<Transport> MakeFaultyTransport(std::unique_ptr<Transport> inner,
                                               std::shared_ptr<TransportFaults> faults);

}  // namespace cairn::transport
