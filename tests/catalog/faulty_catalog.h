// Any catalog, with faults injected into its calls (tests/support/fault_plan.h explains them). With
// no fault added it passes the contract of the catalog it stands before.
#pragma once

#include <memory>

#include "server/catalog/catalog.h"
#include "tests/support/fault_plan.h"

namespace cairn::catalog {

enum class CatalogCall {
  kApply,
  kJob,
  kJobs,
  kJobsAfter,
  kAttempts,
  kSteps,
  kNewest,
  kPresent,
  kParts,
  kHolders,
  kLineRecords,
  kLatest,
  kHolderCounts,
  kAuthors,
  kMarked
};
using CatalogFault = testing::Fault<CatalogCall>;
using CatalogFaults = testing::FaultPlan<CatalogCall>;

std::unique_ptr<Catalog> MakeFaultyCatalog(std::unique_ptr<Catalog> inner,
                                           std::shared_ptr<CatalogFaults> faults);

}  // namespace cairn::catalog
