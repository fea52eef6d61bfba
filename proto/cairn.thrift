// The contract between a client and its node's daemon. See README.md beside this file for both sockets,
// the order of calls and how errors map. Field numbers are never reused; a daemon ignores fields it does
// not know and a client may rely on every `required`-by-comment field of a version it asked for.
//
// Lengths, offsets and ids are unsigned on the node and travel as i64; a negative one is refused.

namespace cpp cairn.wire
// Not `cairn`, which is the package of the Python client.
namespace py cairn_wire
namespace java io.cairn.wire
namespace go cairn_wire
namespace rs cairn_wire

const i32 PROTOCOL_VERSION = 1
const i64 NO_STEP = -1
const i32 MAX_OBJECTS_PER_CALL = 1000

// gRPC's code numbers; `message` names the field, the value and the limit.
exception Error {
  1: i32 code,
  2: string message,
  // FAILED_PRECONDITION "superseded by N": N, else 0
  3: i64 superseded_by = 0,
}

enum ObjectKind { RAW = 0, TORCH = 1, SAFETENSORS = 2, NUMPY = 3 }
enum OpenMode { MAP = 1, FILE = 2, READ = 3 }
enum PersistMode { ON_DEMAND = 0, EVERY = 1, NEWEST = 2 }
enum Readers { OWNER = 0, GROUP = 1, ALL = 2 }
enum Level { WRITING = 0, CACHED = 1, REPLICATED = 2, PERSISTED = 3, EVICTED = 4, BROKEN = 5 }
enum Source { NONE = 0, MEMORY = 1, PEER = 2, STORAGE = 3 }

struct JobPolicy {
  1: PersistMode mode = PersistMode.NEWEST,
  2: i64 every = 1,
  3: i64 keep_last = 0,
  4: i64 keep_every = 0,
  5: Readers readers = Readers.OWNER,
  6: i32 replicas = -1,  // copies on other members of the ring; -1: as many as the ring's default
}

// --- sessions ------------------------------------------------------------------------------------

struct HelloRequest {
  1: i32 protocol,
  2: string job,
  // Who saves: the attempt and this rank's place in it. attempt 0: a session that only reads, or one
  // that chooses its attempt later (chooseAttempt, then hello again is not needed: create carries it).
  3: i64 attempt = 0,
  4: i32 writer = -1,
  5: i32 world_size = 0,
  6: i32 local_writers = 1,      // writers of this job on this node
  7: binary process,             // 16 random bytes, one process's for life
  8: bool takes_fds = true,      // false: saves and loads in chunks; the session is the connection
  9: optional JobPolicy policy,  // absent: the job's own, else the daemon's default
  10: string client,             // for people: "python 0.1.0, pid 12 on host"
  // Of the launcher that started this process, where it tells (torchrun's TORCHELASTIC_RUN_ID and
  // TORCHELASTIC_RESTART_COUNT): a later start of the same run is no copy started by mistake.
  11: string run,
  12: i32 restart = -1,
}
struct HelloReply {
  1: i32 protocol,
  2: i64 session,
  3: binary secret,              // 16 bytes; names the session again after a reconnect
  4: string fd_socket,           // path of the fd channel's socket
  5: string storage_root,        // empty: this daemon has no storage
  6: i64 node_started_unix_ms,   // changes with every daemon process
  7: string node,                // host name, for people
}

// --- saving --------------------------------------------------------------------------------------

struct ObjectSpec {
  1: string name,
  2: i64 length,
  3: ObjectKind kind = ObjectKind.RAW,
  4: bool can_pad = false,       // this writer can lengthen the object to what it is granted
}
// What this writer's later creates of the step will ask for. Each create tells what is left, so that the
// first is refused when all of them may not fit, and room is set aside for the others.
struct ToCome {
  1: i64 objects,
  2: i64 bytes,                  // each object's length, rounded up to pages of 4 KiB
  3: i64 name_bytes,             // of all names together
}
struct CreateRequest {
  1: i64 step,
  2: i64 attempt,
  3: i32 revision,
  4: i32 writer,
  5: i32 world_size,
  6: list<ObjectSpec> objects,   // at most MAX_OBJECTS_PER_CALL
  7: i64 timeout_ms,
  8: list<i64> unmapped,         // slabs this session has unmapped since its last call
  9: optional ToCome to_come,
  // A newer attempt's first one waits, to its deadline and at most 45 s, for the end of the processes that
  // save in the newest attempt; FAILED_PRECONDITION names those that go on. With `fence` it does not
  // wait, and they may save nothing more.
  10: bool fence = false,
}
// Where an object's bytes go. `lease` names the writer's hold on `slab`; its fd comes over the fd channel
// the first time a session is granted that slab.
struct Extent {
  1: i64 lease,
  2: i64 slab,
  3: i64 slab_bytes,
  4: i64 offset,
  5: i64 length,                 // room; >= the spec's length, more only where can_pad
}
struct CreateReply {
  1: list<Extent> extents,       // one per object, in order
  2: list<i64> retire,           // slabs to unmap now; say so in the next call's `unmapped`
}

struct SealedObject {
  1: string name,
  2: i64 length,                 // exact; at most the extent's
  3: list<i32> block_crcs,       // CRC32C per 4 MiB block of the object (bit pattern of a u32)
  // half-open ranges of the object that were written; must cover [0, length)
  4: list<i64> covered,          // begin, end, begin, end …
}
struct CommitRequest {
  1: i64 step,
  2: i64 attempt,
  3: i32 revision,
  4: i32 writer,
  5: i32 world_size,
  6: list<SealedObject> seals,   // those not yet sealed
  7: map<string, string> notes,
  8: list<i64> unmapped,
  9: i64 timeout_ms,             // of one without a create, which may begin an attempt; 0: the longest
  10: bool fence = false,        // as in CreateRequest
}
struct CommitReply {
  1: string digest,              // of this writer's manifest
  2: bool complete,              // all writers of the step have committed
}
struct SealRequest {
  1: i64 step,
  2: i64 attempt,
  3: i32 revision,
  4: i32 writer,
  5: list<SealedObject> seals,
}
struct AbortRequest {            // drops what this writer created for that step and did not commit
  1: i64 step,
  2: i64 attempt,
  3: i32 revision,
  4: i32 writer,
  5: i32 world_size = 0,         // of the step; 0: the session's
}

// A writer's part of a step that goes straight into storage. The node asks for the bytes over the stream, whose
// descriptor came on the fd channel with that lease: README.md has the frames.
struct StoreObject {
  1: string name,
  2: ObjectKind kind = ObjectKind.RAW,
  3: i64 length,
  4: list<i32> block_crcs,       // as of SealedObject
}
struct StoreRequest {
  1: i64 step,
  2: i64 attempt,
  3: i32 revision,
  4: i32 writer,
  5: i32 world_size,
  6: list<StoreObject> objects,  // by name, ascending; at most MAX_OBJECTS_PER_CALL
  7: map<string, string> notes,
  8: i64 created_unix_ms,        // the manifest's; the same in a repeat
  9: i64 stream,
  10: i64 timeout_ms,            // DEADLINE_EXCEEDED while it goes on: a repeat waits on
  11: bool fence = false,        // as in CreateRequest
}

// --- finding -------------------------------------------------------------------------------------

// Names one checkpoint of a job. step NO_STEP: the latest. attempt 0 and revision -1: the line's.
struct CheckpointRef {
  1: string job,
  2: i64 step = NO_STEP,
  3: i64 attempt = 0,
  4: i32 revision = -1,
}
struct Latest {
  1: i64 step,
  2: i64 attempt,
  3: i32 revision,
  4: i32 world_size,
  5: string digest,              // of the checkpoint's manifests
  6: Source source,
  7: i64 as_of_unix_ms,
  8: i64 head,                   // the attempt that the line is of, or the number of a decision
  9: bool recorded,              // of resume and use: the decision stands in storage, too
  10: string passed_over,        // a higher step that lost files in storage, and which; "": there is none
}
struct Facts {
  1: bool complete,
  2: bool resident,
  3: i32 replicas,
  4: i32 replicas_asked,
  5: bool persisted,
  6: bool broken,
  7: bool in_conflict,
  8: bool abandoned,
  9: bool pinned,
  10: i64 replicas_age_ms = -1,  // so long ago the ring said so; -1: it has not, or there is none
}
struct CheckpointInfo {
  1: i64 step,
  2: i64 attempt,
  3: i32 revision,
  4: i32 world_size,
  5: list<i32> missing_writers,  // at most 64 named
  6: i64 bytes,                  // of the objects known here
  7: i64 objects,
  8: Facts facts,
  9: Level level,
  10: i64 created_unix_ms,
  11: string why,                // in words, when not complete, in conflict, broken or not persistable
  12: bool on_line,
  13: string digest,
}
struct ObjectInfo {
  1: string name,
  2: i32 writer,
  3: ObjectKind kind,
  4: i64 length,
  5: Level level,
  6: list<i32> block_crcs,       // only from stat
  7: i64 verified_unix_ms,       // when its bytes were last checked; 0: not since they were sealed
  8: Facts facts,
}
struct ListReply {
  1: list<string> jobs,
  2: list<CheckpointInfo> checkpoints,
  3: list<ObjectInfo> objects,
  4: string next_cursor,         // empty: that was all
}

// --- loading -------------------------------------------------------------------------------------

struct OpenRequest {
  1: CheckpointRef checkpoint,
  2: string name,
  3: OpenMode mode,
  4: i64 timeout_ms,
  5: bool verify = false,        // MAP and FILE: check every block before answering
}
struct OpenReply {
  1: i64 lease,                  // 0: nothing to release (mode READ from storage)
  2: i64 slab,                   // 0: not in this node's memory: in storage, where an fd that came is the file,
                                 // offset 0, or from_member
  3: i64 slab_bytes,
  4: i64 offset,
  5: ObjectInfo object,
  6: i64 step,
  7: i64 attempt,
  8: i32 revision,
  9: bool exact,                 // FILE: the fd's length is the object's and it starts at 0
  10: bool fd_sent,              // else it is read in chunks
  11: bool from_member = false,  // in another node's memory: this one has no room for it
}

struct StandingReply {           // a standing mapping: the slab's descriptor, read-write, is on the fd channel
  1: i64 lease,                  // names the descriptor there; it ends by `unmapped` of awaitUnmap
  2: i64 slab,
  3: i64 slab_bytes,
}

// --- status --------------------------------------------------------------------------------------

struct SessionStatus {
  1: i64 session,
  2: i32 pid,
  3: i32 uid,
  4: string job,
  5: i32 writer,
  6: i64 attempt,
  7: i64 leased_bytes,
  8: i64 leases,
  9: i64 writing_step,           // from its progress page; NO_STEP when idle
  10: i64 writing_total,
  11: i64 writing_done,
  12: i64 connected_unix_ms,
  13: string client,
}
struct QuarantineStatus { 1: i64 slab, 2: i64 bytes, 3: i64 age_ms, 4: list<i32> pids, 5: string job }
// What the job's home says of it: steps, NO_STEP where there is none.
struct JobRing {
  1: i32 home,                   // rank
  2: i64 latest,
  3: i64 protected_step,
  4: i64 target,
  5: i32 replicas,               // of the latest
  6: i32 asked,
  7: bool complete_view,         // every member was heard, or is lost
  8: list<i32> silent,           // ranks that were not heard
  9: string why,
  10: i64 age_ms,                // so long ago its home said all this
}
struct MemberStatus {
  1: i32 rank,
  2: string address,
  3: string state,               // "self", "up", "silent", "lost"
  4: i64 incarnation,            // 0: never met
  5: i64 silent_ms,              // -1: never heard
  6: i64 held_for_us_bytes,
  7: i64 held_for_it_bytes,
}
struct FetchStatus {              // a part that is being read from other members
  1: string job,
  2: i64 attempt,
  3: i64 step,
  4: i32 writer,
  5: string what_for,            // "restore", "load", "replica"
  6: i64 bytes,                  // of its objects
  7: i64 done_bytes,             // of those, verified
  8: list<i32> sources,          // ranks
}
struct RingStatus {
  1: string cluster,
  2: i32 rank,
  3: i64 incarnation,
  4: list<MemberStatus> members, // all, by rank
  5: i32 replicas,               // of a job whose policy names none
  6: i64 replica_bytes,          // kept for others
  7: i64 replica_quota_bytes,
  8: i64 replica_reserved_bytes,
  9: i64 fetches_under_way,
  10: i64 grants,
  11: i64 restoring,             // own parts that are on their way back
  12: list<FetchStatus> fetches, // the oldest 64, of jobs that the caller may see
}
struct JobStatus {
  1: string job,
  2: i32 owner_uid,
  3: i64 resident_bytes,
  4: i64 latest_step,            // NO_STEP: none
  5: i64 latest_persisted_step,
  6: i64 unprotected_checkpoints, // complete, in memory only
  7: i64 unprotected_bytes,
  8: JobPolicy policy,
  9: i64 attempt,
  10: string persist_problem,     // why the last persist failed; empty: none
  11: i64 deletable_checkpoints, // whose files the policy deletes, now or later
  // Since this daemon process started.
  12: i64 refused_saves,         // steps of which a create or commit was refused
  13: string last_refusal,       // why; empty: none was
  14: i64 last_refusal_unix_ms,  // 0: none was
  15: i64 failed_persists,
  16: i64 last_failed_persist_unix_ms,  // 0: none did
  17: optional JobRing ring,
}
struct RingSeat {
  1: i32 rank,
  2: bool taken,                 // somebody has it
  3: i64 incarnation,            // of the newest life that had it; 0: nobody ever did
  4: string address,
  5: i64 beat_age_ms,            // since who has it last said so; -1: never
}
struct RingInfo {
  1: i64 epoch,                  // of the size; 0: the cluster has no ring yet
  2: list<RingSeat> seats,       // by rank
  3: i32 rank,                   // this node's; -1: none
  4: string problem,             // why it has none, or what is wrong with the catalog; empty: nothing
}
struct NodeStatus {
  1: string node,
  2: string version,
  3: i64 started_unix_ms,
  4: i32 restarts,               // of the daemon under this keeper
  5: string state,               // "starting", "serving", "draining", "safe mode: why", "superseded: why"
  6: i64 budget_bytes,
  7: i64 slab_bytes,             // faulted or being faulted
  8: i64 used_bytes,             // held by objects and manifests
  9: i64 free_bytes,             // idle slabs and room in the budget
  10: i64 quarantined_bytes,
  11: i64 writing_bytes,         // created, not sealed
  12: bool prefault_done,
  13: list<SessionStatus> sessions,
  14: list<QuarantineStatus> quarantined,
  15: list<JobStatus> jobs,
  16: map<string, i64> counters,
  17: string storage_root,
  18: string catalog,            // "sqlite: up to date", "sqlite: behind by 12 rows: why"
  19: string storage_id,         // identity of the storage whose files count; empty: none was met yet
  20: string storage_problem,    // why it cannot be used now; empty: it can
  21: optional RingStatus ring,  // absent: the node is alone
}

// What retention would make of the files of one checkpoint.
struct FilesFate {
  1: i64 step,
  2: i64 attempt,
  3: i32 revision,
  4: i64 bytes,
  5: bool now,                   // they go when the policy is applied next; else once `why` has come about
  6: i64 after_unix_ms,          // not before; 0: no time is known
  7: string why,
}
struct PolicyPreview {
  1: list<FilesFate> files,      // those that go, the lowest steps first; at most 1000
  2: i64 stay,
  3: i64 go_now,
  4: i64 go_later,
  5: i64 bytes_now,
  6: i64 bytes_later,
}
struct PreviewRequest {
  1: string job,
  2: optional JobPolicy policy,  // absent: the job's own
}

// --- what the catalog of a whole ring knows, whoever of its members lives

struct IndexHolder {
  1: string node,                // its rank
  2: i64 parts,                  // that it had in memory, as it last said
  3: i64 seen_unix_ms,           // when it last said anything; 0: not known
}
struct IndexCheckpoint {
  1: i64 step,
  2: i64 attempt,
  3: i32 revision,
  4: i32 world_size,
  5: i64 completed_unix_ms,      // 0: not known
  6: bool persisted,
  7: list<IndexHolder> holders,
}
struct IndexJob {
  1: string job,
  2: i32 owner_uid,
  3: optional IndexCheckpoint latest, // that the line names; absent: none is complete
}
struct IndexNode {               // what it said of itself at that time
  1: string node,
  2: i64 seen_unix_ms,
  3: i64 incarnation,
  4: i64 budget_bytes,
  5: i64 used_bytes,
  6: i64 replica_bytes,
}
struct IndexRequest {
  1: string job,                 // "": which jobs there are
  2: string cursor,              // of jobs
  3: i32 limit,                  // of jobs or checkpoints, at most 1000; 0: the nodes alone
  4: i64 timeout_ms,             // 0: 10 s, which is the most
}
struct IndexReply {
  1: list<IndexJob> jobs,        // that the caller may see; of a job: that one
  2: list<IndexCheckpoint> checkpoints, // of a job: complete ones, the highest step first
  3: list<IndexNode> nodes,
  4: bool more,                  // there are further ones; of jobs, after next_cursor
  5: string next_cursor,
  6: i64 as_of_unix_ms,          // by the answering node's clock
}

// --- the service ---------------------------------------------------------------------------------
//
// `call` numbers a session's changing calls, from 1 upwards, so that they can be said again after a lost
// connection, across a daemon's death too: README.md says what a repeat of each does. Reading calls take
// none. A connection speaks for one session at a time:
// hello or rejoin first.

service Cairn {
  HelloReply hello(1: HelloRequest request) throws (1: Error error),
  // The session again on a new connection (after a lost one, or another thread's).
  HelloReply rejoin(1: i64 session, 2: binary secret) throws (1: Error error),
  void goodbye() throws (1: Error error),
  void ping() throws (1: Error error),

  // An attempt greater than any this node or the job's storage knows, and than the clock in ms.
  i64 chooseAttempt(1: i64 call, 2: i64 timeout_ms = 0) throws (1: Error error),
  // Where this session's attempt goes on from; NO_STEP: from nothing. Before its first create; `latest`
  // is that step at once. It waits for the processes that save in the newest attempt, as that create
  // would, `timeout_ms` at most (0: the longest), and is refused like it, unless `fence`.
  Latest resume(1: i64 call, 2: i64 attempt, 3: i64 step, 4: bool fence, 5: i64 timeout_ms)
      throws (1: Error error),

  // This complete checkpoint counts from now on, and what it came from: under a number of its own, which
  // `head` of the answer is. FAILED_PRECONDITION while writers of the newest attempt live, unless `fence`,
  // which refuses whatever else they save.
  Latest useCheckpoint(1: i64 call, 2: CheckpointRef checkpoint, 3: bool fence, 4: i64 timeout_ms = 0)
      throws (1: Error error),

  CreateReply create(1: i64 call, 2: CreateRequest request) throws (1: Error error),
  void seal(1: i64 call, 2: SealRequest request) throws (1: Error error),
  CommitReply commit(1: i64 call, 2: CommitRequest request) throws (1: Error error),
  void abort(1: i64 call, 2: AbortRequest request) throws (1: Error error),
  // For `store`; of sessions that take descriptors. It names a stream socket, whose end comes on the fd channel as a
  // file's descriptor does. Each serves one `store`.
  i64 openStream(1: i64 call) throws (1: Error error),
  // Writes this writer's part of a step into storage and none of it into the node's memory, and publishes the step if
  // all its parts are there: `complete` says that it is. FAILED_PRECONDITION: this node has no storage.
  CommitReply store(1: i64 call, 2: StoreRequest request) throws (1: Error error),

  OpenReply open(1: i64 call, 2: OpenRequest request) throws (1: Error error),
  void release(1: i64 call, 2: list<i64> leases) throws (1: Error error),
  void renew(1: list<i64> leases) throws (1: Error error),
  // A consumer that streams version after version maps the slab in which it reads under `lease` for good, read-write:
  // PERMISSION_DENIED when it is another user's or job's, FAILED_PRECONDITION when no writer maps it any more, or it is
  // wanted back. It is written anew all the same: what is read there counts when it matches its checksum afterwards.
  StandingReply mapStanding(1: i64 call, 2: i64 lease) throws (1: Error error),
  // Standing mappings that are given up, by slab; and which others the node wants back. Answers as soon as there is one
  // that is not among `known`, with nothing after `timeout_ms` (0: at once).
  list<i64> awaitUnmap(1: list<i64> unmapped, 2: list<i64> known, 3: i64 timeout_ms) throws (1: Error error),
  // For clients that take no fds: at most 8 MiB a call.
  binary readChunk(1: i64 lease, 2: i64 offset, 3: i32 length) throws (1: Error error),
  void writeChunk(1: i64 call, 2: i64 lease, 3: i64 offset, 4: binary data) throws (1: Error error),

  // The node waits for members and storage for `timeout_ms` (0: a minute); then the error names which do not answer. So
  // does every call with this default.
  Latest latest(1: string job, 2: i64 timeout_ms = 0) throws (1: Error error),
  CheckpointInfo statCheckpoint(1: CheckpointRef checkpoint, 2: i64 timeout_ms = 0) throws (1: Error error),
  ObjectInfo stat(1: CheckpointRef checkpoint, 2: string name, 3: i64 timeout_ms = 0) throws (1: Error error),
  // path "": jobs; "JOB": its checkpoints; "JOB/STEP" or "JOB/latest": the objects of the one that counts;
  // "JOB/STEP@ATTEMPT.REVISION": those of exactly that one. At most `limit` (1000) at a time.
  ListReply ls(1: string path, 2: string cursor, 3: i32 limit, 4: i64 timeout_ms = 0) throws (1: Error error),

  // Until the checkpoint has reached `level` (CACHED, REPLICATED, PERSISTED); fails at once when the
  // job's policy can never reach it. With step NO_STEP and after >= 0: the first complete step > after; or,
  // when another attempt or decision has come to the head of the line (than after_head, 0: than now), the
  // newest step, whatever it is; or, with after_revision >= 0, a newer revision of step `after`.
  CheckpointInfo wait(1: CheckpointRef checkpoint, 2: Level level, 3: i64 timeout_ms, 4: i64 after,
                      5: i64 after_head = 0, 6: i32 after_revision = -1)
      throws (1: Error error),
  // Asks for storage whatever the policy, and does not wait for the file (`wait` does). In a ring the answer waits until
  // another member has journaled it, as those of `remove`, `pin` and `setPolicy` do.
  void persist(1: i64 call, 2: CheckpointRef checkpoint) throws (1: Error error),
  // memory: drop it from memory only. Without `force` refuses the last copy (FAILED_PRECONDITION).
  void remove(1: i64 call, 2: CheckpointRef checkpoint, 3: bool memory_only, 4: bool force,
              5: i64 timeout_ms = 0) throws (1: Error error),
  void pin(1: i64 call, 2: CheckpointRef checkpoint, 3: bool pinned) throws (1: Error error),
  void setPolicy(1: i64 call, 2: string job, 3: JobPolicy policy) throws (1: Error error),

  // What retention would delete, and when. Nothing is deleted for it.
  PolicyPreview previewPolicy(1: PreviewRequest request, 2: i64 timeout_ms = 0) throws (1: Error error),

  NodeStatus status() throws (1: Error error),

  // The ring as the catalog has it, asked now. FAILED_PRECONDITION on a node whose members do not stand there.
  RingInfo ring() throws (1: Error error),
  // Another number of ranks; the epoch from which on. Root's and the daemon's own user's, as what follows.
  // FAILED_PRECONDITION while somebody has a rank that would go.
  i64 resizeRing(1: i64 call, 2: i32 size) throws (1: Error error),
  // The node admits nothing new, and secures what only it has; or serves again. Status says how far it is.
  void drain(1: i64 call, 2: bool on) throws (1: Error error),
  // From the catalog that the ring's members share. UNAVAILABLE: they share none, or it does not answer in time.
  IndexReply index(1: IndexRequest request) throws (1: Error error),
}
