// What the node answers with, as values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/keys.h"
#include "common/status.h"
#include "server/engine/actions.h"

namespace cairn::node {

struct Answer {
  StatusOr<engine::reply::Body> body = absl::InternalError("not answered");
  Attempt superseded_by = 0;  // not 0: the newer attempt because of which the call was refused
};

// An opened object; its descriptor, if the session takes any, is on the fd channel.
struct Opened {
  LeaseId lease = 0;    // 0: nothing to release
  SlabId slab = 0;      // 0: in storage, or with another member
  uint64_t bytes = 0;   // of the slab or file
  uint64_t offset = 0;  // of the object in it
  CheckpointKey checkpoint;
  engine::ObjectInfo object;
  bool exact = false;  // the object is all of the slab or file
  bool fd_sent = false;
  bool from_member = false;
};
struct OpenAnswer {
  StatusOr<Opened> opened = absl::InternalError("not answered");
  Attempt superseded_by = 0;
};

struct SessionState {
  engine::reply::SessionStatus status;
  Step writing_step = kNoStep;  // as its client says
  uint64_t writing_total = 0, writing_done = 0;
  int64_t connected_unix_ms = 0;
};
struct NodeState {
  engine::reply::Status engine;  // its sessions are moved into `sessions`
  std::vector<SessionState> sessions;
  // "serving", "draining", "safe mode: why", "superseded: why"; then "; facts were lost: which".
  std::string state;
  engine::RingView view;  // where the members stand in the catalog: who is where now
  int64_t started_unix_ms = 0;
  int restarts = 0;
  std::string catalog;
  MonotonicNanos now = 0;  // on the clock of engine.quarantined[].since
};

}  // namespace cairn::node
