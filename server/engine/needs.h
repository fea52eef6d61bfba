// The slabs that a create needs: pure functions over what it asks for.
#pragma once

#include <cstdint>
#include <vector>

#include "server/engine/events.h"

namespace cairn::engine {

// Objects from here on have a slab to themselves; smaller ones of one call share one.
inline constexpr uint64_t kLargeObject = uint64_t{1} << 20;

// An object of its own slab, or the small ones together.
struct Need {
  uint64_t bytes = 0;
  std::vector<size_t> objects;  // positions in the request
  SlabId slab = 0;              // reserved for it, ready or in the making
};

uint64_t RoundUpToPages(uint64_t bytes);
std::vector<Need> PlanNeeds(const std::vector<event::ObjectSpec>& objects);
// Bytes of the slabs that would be made for them; kUnmeetable when they sum to more.
inline constexpr uint64_t kUnmeetable = uint64_t{1} << 62;
uint64_t SlabBytesFor(const std::vector<Need>& needs);

}  // namespace cairn::engine
