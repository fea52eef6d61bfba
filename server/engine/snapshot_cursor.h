// How far a snapshot in pieces has got (Engine::SnapshotPiece).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/keys.h"
#include "server/engine/line.h"

namespace cairn::engine {

// A new one stands at the beginning. It stays good whatever comes and goes between two pieces. Only
// SnapshotSources moves it on.
struct SnapshotCursor {
  static constexpr size_t kPiece = 256;  // facts that hold no event up for long

  enum class Stage : uint8_t {
    kNode,
    kSlabs,
    kSessions,
    kLeases,
    kNextJob,
    kAttempts,
    kWriters,  // of the attempt
    kDecisions,
    kCheckpoints,
    kDone
  };

  bool done() const { return stage == Stage::kDone; }

  Stage stage = Stage::kNode;
  // Of the slabs, sessions, leases or the attempt's writers that there were; the last is next.
  std::vector<uint64_t> ids;
  std::string job;          // that is being told, or was told last
  Attempt attempt = 0;      // its last one told
  CheckpointId checkpoint;  // of the job: that is being told …
  bool within = false;      // … if one is: up to, not including …
  Writer writer = 0;        // … this one's part, of which, while it is being written, …
  std::string object;       // … these are told, in the order of their names, up to this one
};

}  // namespace cairn::engine
