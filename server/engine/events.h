// What happens to the engine. Plain values; every identifier has passed common/keys.h's validation
// at the edge, except where a comment says that the engine checks.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/clock.h"
#include "common/info.h"
#include "common/keys.h"
#include "common/level.h"
#include "common/manifest.h"
#include "common/status.h"
#include "common/stored.h"
#include "server/facts/facts.h"
// clang-format off
namespace cairn::engine {  // values in tables, one line each

// Names a caller whose answer is outstanding; the node's, unique for the life of the process. The engine
// answers every request exactly once, at the latest when its deadline passes or its session ends.
using RequestId = uint64_t;

using cairn::CheckpointRef;
using cairn::Level;
using cairn::LevelName;
using cairn::OpenMode;

// Who asks. session 0: a connection without one (status pages), which may only read status.
struct Caller {
  RequestId request = 0;
  SessionId session = 0;
  uint32_t uid = 0;
  uint32_t gid = 0;
};

namespace event {

// --- sessions
struct Hello {  // the job comes into being with the first hello or create of a uid; see Reply::Hello
  Caller caller;  // caller.session is 0; the engine gives the id
  std::string secret;
  int32_t pid = 0;
  ProcessToken process;
  std::string job;  // who only reads may be in none: ""
  Attempt attempt = 0;
  Writer writer = -1;
  int32_t world_size = 0;
  int32_t local_writers = 1;
  bool takes_fds = true;
  std::optional<JobPolicy> policy;
  std::string client;
};
struct SessionEnded { SessionId session = 0; };  // goodbye, channel closed, or its process is dead
struct ChooseAttempt { Caller caller; std::string job; MonotonicNanos deadline = 0; int64_t unix_ms = 0; };
struct ResumeFrom { Caller caller; std::string job; Attempt attempt = 0; Step step = kNoStep; MonotonicNanos deadline = 0; };

// --- saving
struct ObjectSpec { std::string name; uint64_t length = 0; ObjectKind kind = ObjectKind::kRaw; bool can_pad = false; };
struct Create {
  Caller caller;
  int64_t call = 0;
  PartKey part;
  int32_t world_size = 0;
  std::vector<ObjectSpec> objects;
  MonotonicNanos deadline = 0;
  std::vector<SlabId> unmapped;
};
struct Seal { std::string name; uint64_t length = 0; std::vector<uint32_t> block_crcs;
              std::vector<std::pair<uint64_t, uint64_t>> covered; };
struct SealObjects { Caller caller; int64_t call = 0; PartKey part; std::vector<Seal> seals; };
struct Commit {
  Caller caller;
  int64_t call = 0;
  PartKey part;
  int32_t world_size = 0;
  std::vector<Seal> seals;
  std::map<std::string, std::string> notes;
  std::vector<SlabId> unmapped;
  int64_t unix_ms = 0;
};
struct Abort { Caller caller; PartKey part; };
// A chunk is about to be written for a client without fds: is [offset, offset+length) of this lease's
// unsealed object its to write? Answered by Reply::Chunk.
struct LocateChunk { Caller caller; LeaseId lease = 0; uint64_t offset = 0; uint64_t length = 0; bool write = false; };

// --- finding and loading
struct Open { Caller caller; CheckpointRef ref; std::string name; OpenMode mode = OpenMode::kMap;
              bool verify = false; MonotonicNanos deadline = 0; };
struct Release { Caller caller; std::vector<LeaseId> leases; };
struct Renew { Caller caller; std::vector<LeaseId> leases; };
struct LendFailed { LeaseId lease = 0; };  // the fd never left the daemon
struct Latest { Caller caller; std::string job; MonotonicNanos deadline = 0; };
struct StatCheckpoint { Caller caller; CheckpointRef ref; MonotonicNanos deadline = 0; };
struct StatObject { Caller caller; CheckpointRef ref; std::string name; MonotonicNanos deadline = 0; };
// path "": jobs; "JOB": checkpoints; "JOB/STEP" or "JOB/latest": objects.
struct List { Caller caller; std::string path; std::string cursor; int32_t limit = 1000; MonotonicNanos deadline = 0; };
struct Wait { Caller caller; CheckpointRef ref; Level level = Level::kCached; Step after = -1; MonotonicNanos deadline = 0; };
struct PersistNow { Caller caller; CheckpointRef ref; };
struct Remove { Caller caller; CheckpointRef ref; bool memory_only = false; bool force = false; MonotonicNanos deadline = 0; };
struct Pin { Caller caller; CheckpointRef ref; bool pinned = true; };
struct SetPolicy { Caller caller; std::string job; JobPolicy policy; };
struct Status { Caller caller; };

// --- results of actions
struct SlabMade { SlabId slab = 0; cairn::Status status; };
struct SlabDestroyed { SlabId slab = 0; };
struct SlabProbed {  // answers action::ProbeSlab
  SlabId slab = 0;
  bool free = false;                     // nobody else has it open or mapped
  std::vector<LeaseId> ended;            // of the leases asked about, those whose lock is gone
};
struct ManifestWritten { PartKey part; cairn::Status status; std::string digest; };  // of its encoding, when OK
struct Verified { uint64_t verification = 0; cairn::Status status; int64_t unix_ms = 0; };
struct Persisted { CheckpointKey checkpoint; cairn::Status status; Location location = {}; };  // where it stands, if OK
struct FilesDeleted { CheckpointKey checkpoint; cairn::Status status; };
struct JobScanned { std::string job; StatusOr<StoredJob> stored; uint32_t owner_uid = 0, owner_gid = 0; };

// --- others
struct Tick {};                              // the time asked for by action::WakeAt has come
struct Drain { MonotonicNanos deadline = 0; };  // SIGTERM: admit nothing, finish commits, persist the newest
struct JournalFull { bool full = false; };

}  // namespace event

using Event = std::variant<
    event::Hello, event::SessionEnded, event::ChooseAttempt, event::ResumeFrom, event::Create,
    event::SealObjects, event::Commit, event::Abort, event::LocateChunk, event::Open, event::Release,
    event::Renew, event::LendFailed, event::Latest, event::StatCheckpoint, event::StatObject, event::List,
    event::Wait, event::PersistNow, event::Remove, event::Pin, event::SetPolicy, event::Status,
    event::SlabMade, event::SlabDestroyed, event::SlabProbed, event::ManifestWritten, event::Verified,
    event::Persisted, event::FilesDeleted, event::JobScanned, event::Tick, event::Drain,
    event::JournalFull>;

}  // namespace cairn::engine
