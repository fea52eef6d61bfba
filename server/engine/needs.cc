#include "server/engine/needs.h"

#include <algorithm>
#include <utility>

#include "server/engine/ledger.h"

namespace cairn::engine {

uint64_t RoundUpToPages(uint64_t bytes) {
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

std::vector<Need> PlanNeeds(const std::vector<event::ObjectSpec>& objects) {
  std::vector<Need> needs;
  Need small;
  for (size_t i = 0; i < objects.size(); ++i) {
    const uint64_t length = objects[i].length;
    if (length >= kLargeObject) {
      Need need;
      need.bytes = length;
      need.objects = {i};
      needs.push_back(std::move(need));
    } else {
      small.bytes += RoundUpToPages(length);
      small.objects.push_back(i);
    }
  }
  if (!small.objects.empty()) needs.push_back(std::move(small));
  return needs;
}

uint64_t SlabBytesFor(const std::vector<Need>& needs) {
  uint64_t bytes = 0;
  for (const Need& need : needs) bytes = std::min(bytes + SlabBytesFor(need.bytes), kUnmeetable);
  return bytes;
}

}  // namespace cairn::engine
