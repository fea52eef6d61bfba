// What a fetch is to read, once a member has said what the part consists of. Nothing of the answer is
// believed: the manifest is the one that was asked for, and fits the slab, or there is no plan. Pure.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/status.h"
#include "server/engine/actions.h"
#include "server/engine/peer_messages.h"
#include "server/facts/part_record.h"

namespace cairn::node {

// One block of one object: what is read, checked and counted at once.
struct PlannedBlock {
  uint32_t object = 0;  // its place in the table
  uint32_t length = 0;
  uint64_t offset = 0;  // in the object
  uint32_t crc = 0;     // that the manifest says
};

struct FetchPlan {
  std::string digest;                      // of the manifest
  std::shared_ptr<const PartTable> table;  // where each object will lie in the slab
  std::vector<PlannedBlock> blocks;        // in the order of the slab
};

// FAILED_PRECONDITION: the part is the one that was asked for, and the fetch has no room for it, which
// no other source changes. Any other error is the source's: NOT_FOUND for another part's manifest or
// digest, PERMISSION_DENIED for another user's, DATA_LOSS for what is no manifest or contradicts itself.
StatusOr<FetchPlan> PlanFetch(const engine::action::Fetch& fetch,
                              const engine::peer::GrantAnswer& answer);
// Whether a further source's answer is about what the plan reads; errors as above.
Status CheckSource(const FetchPlan& plan, const engine::peer::GrantAnswer& answer);

}  // namespace cairn::node
