#include "common/level.h"

#include <iterator>

namespace cairn {
namespace {

constexpr absl::string_view kLevelNames[] = {"WRITING",   "CACHED",  "REPLICATED",
                                             "PERSISTED", "EVICTED", "BROKEN"};
static_assert(std::size(kLevelNames) == static_cast<size_t>(Level::kBroken) + 1);

}  // namespace

Level LevelOf(const Facts& facts, bool written) {
  if (facts.broken) return Level::kBroken;
  if (facts.persisted) return facts.resident ? Level::kPersisted : Level::kEvicted;
  if (facts.replicas_asked >= 1 && facts.replicas >= facts.replicas_asked) {
    return Level::kReplicated;
  }
  return written ? Level::kCached : Level::kWriting;
}

absl::string_view LevelName(Level level) {
  const auto index = static_cast<size_t>(level);
  return index < std::size(kLevelNames) ? kLevelNames[index] : "UNKNOWN";
}

std::optional<Level> ParseLevel(absl::string_view name) {
  for (size_t i = 0; i < std::size(kLevelNames); ++i) {
    if (name == kLevelNames[i]) return static_cast<Level>(i);
  }
  return std::nullopt;
}

}  // namespace cairn
