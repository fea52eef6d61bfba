// How safe a checkpoint or an object is: the facts known of it, and the level that sums them up for
// people and for `wait`. The engine, libcairn and the reader of bare storage all use these.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"

namespace cairn {

// Numbers are those of the wire (proto/cairn.thrift).
enum class Level : uint8_t {
  kWriting = 0,     // not all of it is written
  kCached = 1,      // in this node's memory
  kReplicated = 2,  // and in that of as many peers as its job asked for
  kPersisted = 3,   // in storage, and still in memory
  kEvicted = 4,     // in storage only
  kBroken = 5,      // no longer to be had from anywhere
};

struct Facts {
  bool complete = false;  // the manifests of all writers are known
  bool resident = false;  // in this node's memory
  bool persisted = false;
  bool broken = false;       // it was written, and is no longer to be had from anywhere
  bool in_conflict = false;  // its manifests can't belong together
  bool abandoned = false;    // a later attempt went on from before it
  bool pinned = false;       // stays in memory until it is unpinned
  int32_t replicas = 0;
  int32_t replicas_asked = 0;
  int64_t replicas_age_ms = -1;  // so long ago the ring said so; -1: it has not, or there is none
  bool operator==(const Facts&) const = default;
};

// `written`: a checkpoint is complete, an object sealed.
Level LevelOf(const Facts& facts, bool written);

absl::string_view LevelName(Level level);  // "WRITING" …
// Exactly a name as LevelName writes it; nullopt for anything else.
std::optional<Level> ParseLevel(absl::string_view name);

}  // namespace cairn
