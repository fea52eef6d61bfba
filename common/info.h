// What `stat`, `ls` and `latest` say of checkpoints and objects, as the engine answers it and as a
// client receives it. proto/convert.h carries these values over the wire.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/keys.h"
#include "common/level.h"
#include "common/manifest.h"

namespace cairn {

// At most this many missing writers are named.
inline constexpr size_t kMostMissingWritersNamed = 64;

struct CheckpointInfo {
  CheckpointKey key;
  int32_t world_size = 0;
  std::vector<Writer> missing_writers;  // the first kMostMissingWritersNamed
  uint64_t bytes = 0;                   // of the objects known here
  uint64_t objects = 0;
  Facts facts;
  Level level = Level::kWriting;
  int64_t created_unix_ms = 0;
  std::string why;  // in words, when it is incomplete, in conflict, broken or cannot be persisted
  bool on_line = false;
  std::string digest;  // empty until it is complete
};

struct ObjectInfo {
  std::string name;
  Writer writer = 0;
  ObjectKind kind = ObjectKind::kRaw;
  uint64_t length = 0;
  Level level = Level::kWriting;
  std::vector<uint32_t> block_crcs;  // `stat` and `open` fill it, a listing leaves it empty
  int64_t verified_unix_ms = 0;      // when its bytes were last checked; 0: not since the seal
  Facts facts;
};

// How an object is opened. Numbers are those of the wire.
enum class OpenMode : uint8_t {
  kMap = 1,   // a private mapping
  kFile = 2,  // a path that loaders open; in memory it needs an object that fills its slab
  kRead = 3,  // a copy of the bytes
};

}  // namespace cairn
