#include "server/engine/job_record.h"

namespace cairn::engine {

std::map<Attempt, Lineage> JobRecord::Decided() const {
  std::map<Attempt, Lineage> decided;
  for (const auto& [id, decision] : decisions) decided[id.first] = decision.lineage;
  return decided;
}

}  // namespace cairn::engine
