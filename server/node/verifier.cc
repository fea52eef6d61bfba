#include "server/node/verifier.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace cairn::node {

Verifier::Verifier(int threads, cache::Cache* cache, Clock* clock, std::shared_ptr<EventGate> gate)
    : cache_(cache), clock_(clock), gate_(std::move(gate)), executor_("verifier", threads) {}

void Verifier::Start(engine::action::Verify action) {
  executor_.Add([this, action = std::move(action)] {
    Status status = Check(action);
    gate_->Post(
        engine::event::Verified{action.verification, std::move(status), clock_->UnixMillis()});
  });
}

Status Verifier::Check(const engine::action::Verify& action) const {
  const ObjectEntry& entry = action.entry;
  CAIRN_ASSIGN_OR_RETURN(const std::vector<uint32_t> crcs,
                         cache_->Crcs(action.extent, entry.length, entry.block_bytes));
  if (crcs == entry.block_crcs) return absl::OkStatus();
  size_t block = 0;
  while (block < crcs.size() && block < entry.block_crcs.size() &&
         crcs[block] == entry.block_crcs[block]) {
    ++block;
  }
  return absl::DataLossError(
      absl::StrCat("block ", block, " of \"", entry.name, "\" is not what was sealed"));
}

}  // namespace cairn::node
