// What the engine wants done. The node carries actions out in order, after the facts of the same
// Apply are in the journal; results come back as events. An action that uses bytes holds a pin
// inside the engine until its completion event, so nothing is freed under it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "common/clock.h"
#include "common/info.h"
#include "common/level.h"
#include "server/engine/events.h"
// clang-format off
namespace cairn::engine {  // values in tables, one line each

// A description to hand to a session before its answer leaves (Cache::Lend, then the fd channel). When that
// fails the node applies event::LendFailed and answers with the failure.
struct Lend { LeaseId lease = 0; SlabId slab = 0; uint64_t slab_bytes = 0; LeaseMode mode = LeaseMode::kMap; };

using cairn::CheckpointInfo;
using cairn::Facts;
using cairn::ObjectInfo;

namespace reply {
struct Ok {};
struct Hello { SessionId session = 0; };
struct Attempt { cairn::Attempt attempt = 0; };
struct GrantedExtent { LeaseId lease = 0; SlabId slab = 0; uint64_t slab_bytes = 0; uint64_t offset = 0; uint64_t length = 0; };
struct Create { std::vector<GrantedExtent> extents; std::vector<SlabId> retire; std::vector<Lend> lend; };
struct Commit { std::string digest; bool complete = false; };
struct Chunk { ExtentRef extent; uint64_t offset = 0; };  // slab offset of the chunk
struct Open {  // from memory
  Lend lend;
  ExtentRef extent;
  CheckpointKey checkpoint;
  ObjectInfo object;
  bool exact = false;           // the object fills its slab from offset 0
};
struct OpenStored {             // from storage: the node opens the file as the caller
  StoredCheckpoint checkpoint;  // of its parts only the object's
  ObjectInfo object;
};
struct Latest { CheckpointKey key; int32_t world_size = 0; std::string digest; bool in_memory = false; bool in_storage = false; };
struct List { std::vector<std::string> jobs; std::vector<CheckpointInfo> checkpoints;
              std::vector<ObjectInfo> objects; std::string next_cursor; };
struct SessionStatus { SessionId session = 0; int32_t pid = 0; uint32_t uid = 0; std::string job; Writer writer = -1;
                       cairn::Attempt attempt = 0; uint64_t leased_bytes = 0; uint64_t leases = 0; std::string client; };
struct Quarantined { SlabId slab = 0; uint64_t bytes = 0; MonotonicNanos since = 0; std::vector<int32_t> pids; std::string job; };
struct JobStatus { std::string job; uint32_t owner_uid = 0; uint64_t resident_bytes = 0; Step latest = kNoStep;
                   Step latest_persisted = kNoStep; uint64_t unprotected_checkpoints = 0, unprotected_bytes = 0;
                   JobPolicy policy; cairn::Attempt attempt = 0; std::string persist_problem; };
struct Status { uint64_t budget_bytes = 0, slab_bytes = 0, used_bytes = 0, free_bytes = 0, quarantined_bytes = 0,
                writing_bytes = 0; bool prefault_done = false; std::vector<SessionStatus> sessions;
                std::vector<Quarantined> quarantined; std::vector<JobStatus> jobs;
                std::map<std::string, int64_t> counters; };
using Body = std::variant<Ok, Hello, Attempt, Create, Commit, Chunk, Open, OpenStored, Latest, CheckpointInfo,
                          ObjectInfo, List, Status>;
}  // namespace reply

enum class Severity : uint8_t { kInfo, kWarning, kError };

namespace action {
struct Reply { RequestId request = 0; StatusOr<reply::Body> body = reply::Body(reply::Ok{}); Attempt superseded_by = 0; };
struct MakeSlab { SlabId slab = 0; uint64_t bytes = 0; bool urgent = false; };   // → SlabMade
struct HurrySlab { SlabId slab = 0; };
struct DestroySlab { SlabId slab = 0; };                                          // → SlabDestroyed
struct ProbeSlab { SlabId slab = 0; std::vector<LeaseId> leases; };               // → SlabProbed
// Puts an encoded manifest into its slab (one that is never lent for writing).       → ManifestWritten
struct WriteManifest { PartKey part; ExtentRef extent; std::shared_ptr<const Manifest> manifest; };
struct Verify { uint64_t verification = 0; PartKey part; ObjectEntry entry; ExtentRef extent; };  // → Verified
struct PersistObject { ObjectEntry entry; ExtentRef extent; };
struct PersistPart { std::shared_ptr<const Manifest> manifest; std::vector<PersistObject> objects; };
// Writes the parts and publishes the checkpoint.                                    → Persisted
struct Persist { CheckpointKey checkpoint; uint32_t uid = 0, gid = 0; std::vector<PersistPart> parts; };
struct DeleteFiles { CheckpointKey checkpoint; uint32_t uid = 0, gid = 0; bool tombstone = false; };  // → FilesDeleted
struct ScanJob { std::string job; };                                              // → JobScanned
struct Record { std::string job; std::vector<CheckpointKey> checkpoints; };  // what changed; see Engine::Describe
struct WakeAt { MonotonicNanos at = 0; };      // replaces the previous one
struct EndSession { SessionId session = 0; };  // close its channel; the engine has forgotten it
struct Drained {};                             // answers event::Drain: the process may stop
struct Log { Severity severity = Severity::kInfo; std::string message; };
}  // namespace action

using Action = std::variant<action::Reply, action::MakeSlab, action::HurrySlab, action::DestroySlab,
                            action::ProbeSlab, action::WriteManifest, action::Verify, action::Persist,
                            action::DeleteFiles, action::ScanJob, action::Record, action::WakeAt,
                            action::EndSession, action::Drained, action::Log>;

// What one Apply decided.
struct Outcome {
  std::vector<Fact> facts;      // to the journal, as one frame, before any action
  std::vector<Action> actions;  // in order
};

}  // namespace cairn::engine
