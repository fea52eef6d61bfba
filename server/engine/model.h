// What the engine knows: jobs, their attempts and checkpoints, sessions and leases, parked callers.
// Plain data; the rules are in impl.h's sources.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "common/clock.h"
#include "server/facts/facts.h"
#include "common/layout.h"
#include "common/manifest.h"
#include "server/engine/engine.h"
#include "server/engine/ledger.h"

namespace cairn::engine {

struct Job;
struct Checkpoint;
struct Part;

struct Object {
  ObjectEntry entry;  // while it is being written: name, kind and the length asked for
  Part* part = nullptr;
  ExtentRef extent;  // meaningful while `resident`
  bool sealed = false;
  bool resident = false;
  bool broken = false;      // its bytes in memory did not verify and were dropped
  bool unverified = false;  // came from a dead daemon: verified before it is first handed out
  int64_t verified_unix_ms = 0;
  uint64_t verification = 0;  // under way
  uint64_t granted = 0;       // the most it may be sealed with
  LeaseId write_lease = 0;    // of a client without fds
  SessionId session = 0;      // who writes it; 0 once its part is committed
  int64_t call = 0;
};

// One writer's part of a checkpoint.
struct Part {
  PartKey key;
  Checkpoint* checkpoint = nullptr;
  std::map<std::string, std::unique_ptr<Object>> objects;
  std::map<std::pair<SessionId, int64_t>, size_t> creates;  // call → how many objects it asked for
  std::set<SessionId> sessions;  // that write it; each names it in Session::writing
  bool committed = false;
  std::string lost;  // an object whose slab did not survive: the part can't be committed any more
  // The manifest, without its objects.
  int64_t created_unix_ms = 0;
  Step comes_from = kNoStep;
  std::map<std::string, std::string> notes;
  std::string unknown;
  uint32_t owner_uid = 0;
  std::string digest;
  ExtentRef manifest_extent;
  uint64_t manifest_bytes = 0;
  bool manifest_resident = false;
  // Being written: who waits for it. `encoded` until the slab for it is there.
  bool committing = false;
  bool writing_manifest = false;
  std::string encoded;
  std::vector<RequestId> committers;
};

// The node's verdict about one step (DESIGN 5.2): all its local writers share it.
enum class Admission : uint8_t { kNone, kWaiting, kAdmitted, kRefused };

// In which order memory is given up (retention.cc); a lower one goes first.
enum class EvictClass : uint8_t {
  kGarbage,         // never to be complete, or abandoned
  kOwesNothing,     // superseded, and no file is due
  kOwes,            // superseded, but a file is due: only under pressure, counted
  kLastOfFinished,  // the newest of a job without writers, once it is persisted
  kKept,            // not now
};

using CheckpointId = std::tuple<Step, Attempt, Revision>;

// What the recorder and those who wait were told of a checkpoint.
struct Shown {
  int32_t committed = 0;
  bool complete = false, resident = false, obtainable = false, persisted = false, pinned = false;
  bool operator==(const Shown&) const = default;
};

struct Checkpoint {
  CheckpointKey key;
  Job* job = nullptr;
  uint64_t sequence = 0;  // order of coming into being
  int32_t world_size = 0;
  std::map<Writer, std::unique_ptr<Part>> parts;
  std::map<std::string, Object*> names;  // of all parts: no name is a directory of another
  int32_t committed = 0;                 // parts
  int32_t open_parts = 0;                // parts not committed
  bool complete = false;
  std::string digest;
  int64_t created_unix_ms = 0;
  uint64_t bytes = 0;           // of its objects
  uint64_t absent = 0;          // objects and manifests of committed parts that are not resident
  uint64_t broken_objects = 0;  // of them, those that failed to verify
  bool pinned = false;
  bool lack_logged = false;
  std::string why;  // in words, when not complete, broken or refused

  // Files.
  bool persisted = false;
  bool stored_whole = false;  // incomplete only because the rest of it was evicted
  std::string directory;      // of a stored one
  bool owes = false;          // a file is due, by policy …
  bool asked = false;         // … or because somebody asked
  bool persisting = false;
  bool deleting = false;
  bool tombstone = false;  // `rm` came while it was being persisted
  bool skipped = false;    // superseded before its turn

  // Admission.
  Admission admission = Admission::kNone;
  Status refusal;
  MonotonicNanos admission_deadline = 0;
  uint64_t estimate = 0;  // slab bytes the node's writers are expected to need
  uint64_t granted = 0;   // slab bytes they got
  uint64_t reserved = 0;  // still set aside
  int32_t local_writers = 1;
  std::shared_ptr<uint64_t>
      node_total;  // grows with `granted`; outlives the checkpoint in LastSave
  std::set<RequestId> waiting_creates;

  bool counted = false;  // obtainable, and the line knows
  bool touched = false;
  Shown shown;
  bool shown_due = false;

  // Memory: sums over its slabs, kept by Account().
  std::map<SlabId, uint32_t> slabs;  // → extents of ours in it
  uint64_t slab_bytes = 0, locked_bytes = 0, mapped_bytes = 0;
  EvictClass evict_class = EvictClass::kKept;
  uint64_t counted_evictable = 0, counted_evictable_mapped = 0;

  CheckpointId Id() const { return {key.step, key.attempt, key.revision}; }
  // Everything of it is in memory, as far as is known.
  bool Resident() const { return absent == 0; }
  bool Obtainable() const { return complete && (persisted || Resident()); }
};

inline constexpr size_t kKeptDropped = 1024;  // of AttemptState::dropped

struct AttemptState {
  Attempt attempt = 0;
  Step comes_from = kNoStep;
  bool chosen = false;       // by resume(), not by the first create
  bool provisional = false;  // begun before storage could be read, nothing committed yet
  Step first_step = kNoStep;
  int64_t unix_ms = 0;
  absl::flat_hash_map<Writer, std::pair<ProcessToken, int32_t>> processes;  // and pid, 0 unknown
  std::map<Step, int32_t> worlds;          // world size of each step that is known
  std::map<Step, int32_t> checkpoints_at;  // how many checkpoints there are of each step
  int64_t complete = 0;                    // obtainable complete checkpoints
  // By admission; the newest 1024. A new daemon does not know them: a refused step leaves the facts
  // of one that was given up, or, where nobody had got anything, none of its own. It may so admit
  // a local writer of a step that was refused to another. The step then lacks a writer, and is
  // garbage once a later one is complete; what the refusal took away is in `dropped`.
  std::map<std::pair<Step, Revision>, Status> refused;
  // Parts that held objects and were dropped, each with the name of one: a commit of such a part
  // that brings no seals, since they were calls of their own, is not one of a writer with nothing
  // to save. Creating objects in the part anew takes it out. Kept of the newest attempt alone, for
  // older ones are fenced, and of the kKeptDropped parts with the highest steps. A new daemon
  // learns them from the ObjectDropped facts, which a snapshot repeats.
  std::map<std::tuple<Step, Revision, Writer>, std::string> dropped;
  std::set<SessionId> sessions;  // live ones that created in it
};

// What a writer saved last: the estimate for its next step.
struct LastSave {
  std::shared_ptr<const std::vector<std::string>> names;  // sorted
  std::vector<uint64_t> slabs;                            // sizes, ascending
  std::shared_ptr<uint64_t> node_total;
};

enum class ScanState : uint8_t { kUnknown, kScanning, kScanned, kFailed };

struct Job {
  std::string name;
  bool owned = false;
  uint32_t owner_uid = 0, owner_gid = 0;
  JobPolicy policy;
  std::map<CheckpointId, std::unique_ptr<Checkpoint>> checkpoints;
  std::map<Attempt, AttemptState> attempts;  // that have begun
  std::map<Attempt, Step> resumes;           // chosen before the attempt began
  Attempt greatest_attempt = 0;              // seen or given out
  std::map<Step, Checkpoint*> settled;       // the line as attempts with a complete step left it
  std::set<CheckpointId> incomplete;
  std::set<CheckpointId> persisted;
  std::set<CheckpointId> owed;      // that owe a file and are not being persisted
  std::map<Step, Attempt> removed;  // `rm`: attempts up to this one stay away
  std::map<Writer, LastSave> last_saves;
  std::set<std::pair<EvictClass, CheckpointId>> evictable;
  uint64_t evictable_mapped = 0;
  std::set<SessionId> sessions;
  int64_t writers = 0;  // of them, those with a rank
  std::set<RequestId> waits;
  bool touched = false;
  Checkpoint* settled_newest = nullptr;
  bool settled_writers = false;
  Attempt settled_attempt = 0;

  ScanState scan = ScanState::kUnknown;
  MonotonicNanos scan_started = 0, scan_again = 0;
  Status scan_problem;
  std::set<RequestId> scan_waiters;

  std::string persist_problem;
  MonotonicNanos persist_at = 0;  // not before
  MonotonicNanos persist_wait = 0;
  int persists = 0;  // under way
};

struct Lease {
  LeaseId id = 0;
  SessionId session = 0;
  SlabId slab = 0;
  LeaseMode mode = LeaseMode::kMap;
  PartKey part;
  std::string name;
  ExtentRef extent;  // what a client without fds may touch through it
  uint64_t length = 0;
  MonotonicNanos expires = kNever;
  bool released = false;  // its lock is not known to be gone
};

struct Session {
  SessionId id = 0;
  std::string secret;
  uint32_t uid = 0, gid = 0;
  int32_t pid = 0;
  ProcessToken process;
  std::string job;  // "": it is in none, and only reads
  Attempt attempt = 0;
  Writer writer = -1;
  int32_t world_size = 0;
  int32_t local_writers = 1;
  bool takes_fds = true;
  std::string client;
  std::optional<JobPolicy> policy;                  // the job's, should this session come to own it
  std::set<LeaseId> leases;                         // not released
  std::set<SlabId> mapped;                          // lent for writing
  std::set<PartKey> writing;                        // its parts that are not committed
  std::set<std::pair<std::string, Attempt>> began;  // (job, attempt) it created in
  std::set<RequestId> parked;
  uint64_t leased_bytes = 0;
};

// One need of a create: an object of its own slab, or the small ones together.
struct Need {
  uint64_t bytes = 0;
  std::vector<size_t> objects;  // positions in the request
  SlabId slab = 0;              // reserved for it, ready or in the making
  bool ready = false;
};

enum class ParkedKind : uint8_t { kScan, kCreate, kOpen, kWait, kRemove, kCommit };

struct Parked {
  RequestId request = 0;
  SessionId session = 0;
  ParkedKind kind = ParkedKind::kScan;
  std::string job;
  MonotonicNanos deadline = 0;
  Event event;  // to be handled again
  // kCreate
  CheckpointId checkpoint{};
  std::vector<Need> needs;
  int failed_makes = 0;
  // kOpen
  uint64_t verification = 0;
  PartKey part;
  std::string name;
};

struct Verification {
  uint64_t id = 0;
  PartKey part;
  std::string name;
  SlabId slab = 0;
  std::vector<RequestId> opens;
};

}  // namespace cairn::engine
