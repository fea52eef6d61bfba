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
#include "server/facts/part_record.h"

namespace cairn::engine {

using cairn::CheckpointInfo;
using cairn::Facts;
using cairn::ObjectInfo;

// A description to hand to a session before its answer leaves (Cache::Lend, then the fd channel).
// When that fails the node applies event::LendFailed and answers with the failure.
struct Lend {
  LeaseId lease = 0;
  SlabId slab = 0;
  uint64_t slab_bytes = 0;
  LeaseMode mode = LeaseMode::kMap;
};

namespace reply {

struct Ok {};

struct Hello {
  SessionId session = 0;
};

struct Attempt {
  cairn::Attempt attempt = 0;
};

// Where one object is to be written.
struct GrantedExtent {
  LeaseId lease = 0;
  SlabId slab = 0;
  uint64_t slab_bytes = 0;
  uint64_t offset = 0;
  uint64_t length = 0;  // the most it may be sealed with
};

struct Create {
  std::vector<GrantedExtent> extents;  // parallel to the objects asked for; empty: unmap, ask again
  std::vector<SlabId> retire;          // the session is to unmap these, and to say so
  std::vector<Lend> lend;
};

struct Commit {
  std::string digest;     // of the manifest
  bool complete = false;  // the checkpoint is, with this part
};

struct Chunk {
  ExtentRef extent;     // of the object
  uint64_t offset = 0;  // of the chunk in the slab
  // Of a chunk to write: its slab is pinned until event::ChunkWritten names it. 0: one to read.
  uint64_t write = 0;
};

// From memory.
struct Open {
  Lend lend;
  ExtentRef extent;
  CheckpointKey checkpoint;
  ObjectInfo object;
  bool exact = false;  // the object fills its slab from offset 0
};

struct Standing {
  Lend lend;
};

// Standing mappings that the session is to give up.
struct Unmap {
  std::vector<SlabId> slabs;
};

// From storage: the node opens the object as the caller.
struct OpenStored {
  StoredCheckpoint checkpoint;  // of its parts only the object's
  ObjectInfo object;
};

struct Latest {
  CheckpointKey key;
  int32_t world_size = 0;
  std::string digest;
  bool in_memory = false;
  bool in_storage = false;
  bool with_peers = false;  // some members hold all of it
  cairn::Attempt head = 0;  // as LineHead::number
  bool recorded = false;    // of resume and use: the decision's file stands in storage
  int64_t as_of_unix_ms =
      0;  // when storage was last read, if others may have written since; 0: now
  std::string passed_over =
      {};  // as JobFiles::damaged says of the newest, if that is a higher step
};

// The part's bytes are pinned until event::GrantEnded names the grant.
struct Granted {
  uint64_t grant = 0;
  std::shared_ptr<const PartTable> table;
};

// One of the three, as the path asks.
struct List {
  std::vector<std::string> jobs;
  std::vector<CheckpointInfo> checkpoints;
  std::vector<ObjectInfo> objects;
  std::string next_cursor;  // empty: that was all
};

// One that other members have, and for which this node has no room.
struct PartElsewhere {
  PartKey part;
  std::string digest;  // of its manifest
  uint32_t uid = 0;    // whose it must be, by its manifest
  std::vector<Rank> sources;
};
// The node asks those members what the parts consist of, and reads objects of theirs in chunks.
struct Elsewhere {
  std::vector<PartElsewhere> parts;  // in one of them is the object that was asked for
  ObjectInfo like;                   // facts and level are those of their objects
  List here;                         // of `ls`: the objects that are here
};

struct SessionStatus {
  SessionId session = 0;
  int32_t pid = 0;
  uint32_t uid = 0;
  std::string job;
  Writer writer = -1;
  cairn::Attempt attempt = 0;
  uint64_t leased_bytes = 0;  // by readers' leases
  uint64_t leases = 0;
  std::string client;
};

struct Quarantined {
  SlabId slab = 0;
  uint64_t bytes = 0;
  MonotonicNanos since = 0;
  std::vector<int32_t> pids;  // known to hold it
  std::string job;
};

struct MemberStatus {
  Rank rank = kNoRank;
  std::string state;        // "up", "stalled", "silent", "lost"
  int64_t incarnation = 0;  // 0: never met
  int64_t silent_ms = 0;    // -1: never heard
  uint64_t held_for_us_bytes = 0, held_for_it_bytes = 0;
};

// A part that is read from other members.
struct FetchStatus {
  PartKey part;
  std::string what_for;  // "restore", "load", "replica"
  uint32_t uid = 0;      // the job's owner
  uint64_t bytes = 0, done_bytes = 0;
  std::vector<Rank> sources;
};

// Of the node in its ring; nothing in none.
struct RingStatus {
  MemberId self;
  std::vector<MemberStatus> members;  // the others
  uint64_t replica_bytes = 0, replica_quota_bytes = 0, replica_reserved_bytes = 0;
  int64_t fetches = 0, grants = 0, restoring = 0;
  std::vector<FetchStatus> fetching;  // the oldest ones
  std::string superseded;  // not empty: why this life of the rank takes no saves any more
};

// What the job's home says; steps, kNoStep: none.
struct JobRing {
  bool heard = false;
  bool final = false;
  Rank home = kNoRank;
  Step latest = kNoStep, protect = kNoStep, target = kNoStep;
  int replicas = 0, asked = 0;  // of the latest
  std::vector<Rank> silent;
  std::string why;
  MonotonicNanos age = 0;  // so long ago the home said all this
};

struct JobStatus {
  std::string job;
  uint32_t owner_uid = 0;
  uint64_t resident_bytes = 0;
  Step latest = kNoStep;
  Step latest_persisted = kNoStep;
  // Complete and not in storage.
  uint64_t unprotected_checkpoints = 0;
  uint64_t unprotected_bytes = 0;
  JobPolicy policy;
  cairn::Attempt attempt = 0;  // the newest
  std::string persist_problem;
  uint64_t deletable_checkpoints = 0;  // whose files the policy deletes, now or later
  // Since this daemon process started.
  uint64_t refused_saves = 0;  // steps of which a create or commit was refused
  std::string last_refusal;    // why; empty: none was
  int64_t last_refusal_unix_ms = 0;
  uint64_t failed_persists = 0;
  int64_t last_failed_persist_unix_ms = 0;
  JobRing ring;
};

struct Status {
  uint64_t budget_bytes = 0;
  uint64_t slab_bytes = 0;
  uint64_t used_bytes = 0;
  uint64_t free_bytes = 0;
  uint64_t quarantined_bytes = 0;
  uint64_t writing_bytes = 0;  // created, not sealed
  bool prefault_done = false;
  std::string storage_id;       // of the storage whose files count; empty: none was met yet
  std::string storage_problem;  // why it cannot be used now; empty: it can, or nobody knows yet
  std::vector<SessionStatus> sessions;
  std::vector<Quarantined> quarantined;
  std::vector<JobStatus> jobs;
  std::map<std::string, int64_t> counters;
  RingStatus ring;
  bool leaving = false;  // an operator takes the node out of service
  // JOB/STEP, or JOB where that is not known, of the newest checkpoints that lie in this node's memory, and neither in storage nor, as far as the job's
  // home tells, with another member: some of them, and how many there are.
  std::vector<std::string> only_here;
  int64_t only_here_count = 0;
};

// As Fact is, compiled in actions.cc.
struct Body : std::variant<Ok, Hello, Attempt, Create, Commit, Chunk, Open, Standing, Unmap,
                           OpenStored, Elsewhere, Latest, CheckpointInfo, ObjectInfo, Granted, List,
                           PolicyPreview, Status> {
  using variant::variant;
  Body(const Body&);
  Body(Body&&) noexcept;
  Body& operator=(const Body&);
  Body& operator=(Body&&) noexcept;
  ~Body();
};

}  // namespace reply

enum class Severity : uint8_t { kInfo, kWarning, kError };

// The comment names the event that brings the result, where there is one.
namespace action {

// The answer to a request.
struct Reply {
  RequestId request = 0;
  StatusOr<reply::Body> body = reply::Body(reply::Ok{});
  Attempt superseded_by = 0;  // not 0: why the request failed
};

// Makes a slab, and its pages unless whoever fills it does that. → SlabMade
struct MakeSlab {
  SlabId slab = 0;
  uint64_t bytes = 0;
  bool urgent = false;  // somebody waits for it: before those that are not
  fact::SlabUse use = fact::SlabUse::kObjects;
  bool populate = true;
};

// A slab that is being made has become urgent.
struct HurrySlab {
  SlabId slab = 0;
};

// → SlabDestroyed
struct DestroySlab {
  SlabId slab = 0;
};

// Asks the kernel who still has the slab open or mapped, and which of these leases' locks are gone.
// → SlabProbed
struct ProbeSlab {
  SlabId slab = 0;
  std::vector<LeaseId> leases;
};

// Encodes a part's record, seals it, and writes it into its slab, which is never lent for writing.
// → ManifestWritten
struct WriteManifest {
  PartKey part;
  ExtentRef extent;  // has space for the encoding
  std::shared_ptr<const PartTable> table;
  uint32_t owner_gid = 0;
};

// Reads an object's bytes and compares them with its checksums. → Verified
struct Verify {
  uint64_t verification = 0;
  PartKey part;
  ObjectEntry entry;
  ExtentRef extent;
};

// Writes the parts and publishes the checkpoint, as the job's owner. → Persisted
struct Persist {
  CheckpointKey checkpoint;
  uint32_t uid = 0, gid = 0;
  std::vector<std::shared_ptr<const PartTable>> parts;
  // Where the attempt comes from, written before anything of it is; nullopt while it is not known, and
  // once it stands there.
  std::optional<LineRecord> origin = {};
};

// Writes a part whose bytes its writer sends, and publishes its checkpoint if that is whole then. → Stored
struct Store {
  PartKey part;
  uint32_t uid = 0, gid = 0;
  std::shared_ptr<const Manifest> manifest;
  SessionId session = 0;
  LeaseId stream = 0;                     // of the session
  std::optional<LineRecord> origin = {};  // as of Persist
};

// An attempt's checkpoint that stands aside takes its step's place, where people look for its files.
struct Reinstate {
  CheckpointKey checkpoint;
  uint32_t uid = 0, gid = 0;
};

// → LineRecordWritten
struct WriteLineRecord {
  LineRecord record;
  uint32_t uid = 0, gid = 0;
};

// With `tombstone` attempts up to the checkpoint's must not bring the step back. → FilesDeleted
struct DeleteFiles {
  CheckpointKey checkpoint;
  uint32_t uid = 0, gid = 0;
  bool tombstone = false;
  bool this_attempt = false;  // the tombstone is for this attempt alone
  // Without a tombstone; storage refuses the deletion when a newer attempt has published, or `stays` is not whole.
  cairn::Attempt newest_known = 0;
  std::optional<CheckpointKey> stays = {};
};

// Reads what storage holds of a job; of its parts a summary will do. → JobScanned
struct ScanJob {
  std::string job;
};

// Reads the manifests of a checkpoint in storage. → TablesRead
struct ReadTables {
  CheckpointKey checkpoint;
};

// Reads which line records a job has in storage. → LineNumbersRead
struct ReadLineNumbers {
  std::string job;
};

// Says something to a member, as soon as it can be reached (peer_messages.h).
struct Tell {
  Rank rank = kNoRank;
  peer::Message message;
};

// This node is of a greater incarnation from now on, and says so to members.
struct BecomeLife {
  MemberId self;
};

// What a fetch is for; a lower one goes first.
enum class FetchFor : uint8_t { kRestore = 0, kLoad = 1, kReplica = 2 };

// Reads a part from other members into a slab, and checks every block. Objects lie in the manifest's order,
// each at the next whole page. The slab is pinned until the fetch has ended. → FetchAdvanced, Fetched
struct Fetch {
  uint64_t fetch = 0;
  PartKey part;
  uint32_t uid = 0;    // whose it must be, by its manifest: nobody else's bytes come into the slab
  std::string digest;  // of the manifest; what has another is refused
  uint64_t manifest_bytes = 0;  // at most
  SlabId slab = 0;
  uint64_t slab_bytes = 0;
  std::vector<Rank> sources;  // that are said to have it, the best first
  FetchFor what_for = FetchFor::kReplica;
  // An earlier daemon began it: blocks in the slab that verify need not be read.
  bool begun_before = false;
};

// Another member has the part, too, or one has it no longer.
struct FetchFrom {
  uint64_t fetch = 0;
  std::vector<Rank> sources;
};

// Ends a fetch early; event::Fetched says CANCELLED unless it had ended.
struct CancelFetch {
  uint64_t fetch = 0;
};

// Makes reading under a grant impossible. → GrantEnded
struct RevokeGrant {
  uint64_t grant = 0;
};

// What the catalog is told of these has changed; see Engine::Describe.
struct Record {
  std::string job;
  bool attempts = false;                   // which there are
  std::vector<PartKey> parts;              // committed ones
  std::vector<CheckpointKey> checkpoints;  // complete now, or gone
  bool read = false;                       // all that storage has of the job has just been read
  std::vector<CheckpointKey> left = {};    // of which parts have left this node's memory
  bool everything =
      false;  // of every job, for which this node may speak now that another spoke for before
  bool forgotten = false;  // nobody has anything of the job any more, and it is not kept in mind
};

// Asks for event::Tick; replaces the previous one.
struct WakeAt {
  MonotonicNanos at = 0;
};

// Closes the session's channel; the engine has forgotten it.
struct EndSession {
  SessionId session = 0;
};

// Frees memory that nobody needs any more.
struct Discard {
  std::shared_ptr<const void> what;
};

// Answers event::Drain: the process may stop.
struct Drained {};

struct Log {
  Severity severity = Severity::kInfo;
  std::string message;
};

}  // namespace action

// As Fact is, compiled in actions.cc.
struct Action
    : std::variant<action::Reply, action::MakeSlab, action::HurrySlab, action::DestroySlab,
                   action::ProbeSlab, action::WriteManifest, action::Verify, action::Persist,
                   action::Store, action::WriteLineRecord, action::Reinstate, action::DeleteFiles,
                   action::ScanJob, action::ReadTables, action::ReadLineNumbers, action::Tell,
                   action::BecomeLife, action::Fetch, action::FetchFrom, action::CancelFetch,
                   action::RevokeGrant, action::Record, action::WakeAt, action::EndSession,
                   action::Discard, action::Drained, action::Log> {
  using variant::variant;
  Action(const Action&);
  Action(Action&&) noexcept;
  Action& operator=(const Action&);
  Action& operator=(Action&&) noexcept;
  ~Action();
};

// What one Apply decided.
struct Outcome {
  std::vector<Fact> facts;      // to the journal, as one frame, before any action
  std::vector<Action> actions;  // in order
};

}  // namespace cairn::engine
