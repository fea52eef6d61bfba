// Any storage, with faults injected into its calls (tests/support/fault_plan.h explains them). With
// no fault added it passes the contract of the storage it stands before.
#pragma once

#include <memory>

#include "server/storage/storage.h"
#include "tests/support/fault_plan.h"

namespace cairn::storage {

enum class StorageCall {
  kIdentity,
  kWriteParts,
  kWriteLineRecord,
  kPublish,
  kReinstate,
  kSweep,
  kDelete,
  kRead,
  kJobs,
  kJobOwner,
  kOpen,
  kReadAt,  // of every reader that was opened through the decorator
};
using StorageFault = testing::Fault<StorageCall>;
using StorageFaults = testing::FaultPlan<StorageCall>;

// What a client reads through a lent descriptor no decorator sees: a test of faults in reading
// takes a storage that lends none.
std::unique_ptr<Storage> MakeFaultyStorage(std::unique_ptr<Storage> inner,
                                           std::shared_ptr<StorageFaults> faults);

}  // namespace cairn::storage
