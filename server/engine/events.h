// What happens to the engine. Plain values, whose form was checked at the edge (rpc/convert.h:
// identifiers, ranges, lengths, policies); the engine checks what depends on its state, and what a
// comment here says.
//
// One file: the events are one variant, which is read from its first kind to its last.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
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
#include "common/policy.h"
#include "common/root_marker.h"
#include "common/session_identity.h"
#include "common/status.h"
#include "common/stored.h"
#include "server/engine/peer_messages.h"
#include "server/engine/reading.h"
#include "server/engine/ring.h"
#include "server/facts/facts.h"
#include "server/facts/part_record.h"

namespace cairn::engine {

// Names a caller whose answer is outstanding; the node's, unique for the life of the process. The
// engine answers every request exactly once, at the latest when its deadline passes or its session
// ends.
using RequestId = uint64_t;

using cairn::CheckpointRef;
using cairn::Level;
using cairn::LevelName;
using cairn::OpenMode;

// Who asks.
struct Caller {
  RequestId request = 0;
  // 0: a connection without one (status pages), which may only read status.
  SessionId session = 0;
  // Of the socket's peer, as the kernel gives them.
  uint32_t uid = 0;
  uint32_t gid = 0;
};

// A request's deadline is on the clock of Apply. The comment names the answer where it is not
// reply::Ok.
namespace event {

// --- sessions

// A session begins. Of the identity, uid and gid are the caller's; caller.session is 0.
// → reply::Hello
struct Hello : SessionIdentity {
  Caller caller;
  std::string secret;  // by which the session's client is known again
  std::string client;  // a name for people
  // The job's, should this session come to own it; for the job at once if the owner says it.
  std::optional<JobPolicy> policy;
};

// It said goodbye, its channel closed, or its process is dead. Not a request.
struct SessionEnded {
  SessionId session = 0;
  bool goodbye = false;  // its process lives, and has given up what it had mapped
};

// Asks for an attempt's number, above all that are known. → reply::Attempt
struct ChooseAttempt {
  Caller caller;
  std::string job;
  MonotonicNanos deadline = 0;
  int64_t unix_ms = 0;
};

// Says which step an attempt that has not begun goes on from; kNoStep: from nothing.
// → reply::Latest, the checkpoint of that step, or one whose step is kNoStep
struct ResumeFrom {
  Caller caller;
  std::string job;
  Attempt attempt = 0;
  Step step = kNoStep;
  MonotonicNanos deadline = 0;
  bool fence = false;  // as in Create
};

// The caller's word that a complete checkpoint counts from now on, under a number of its own. With
// `fence` also while writers of the newest attempt live, which may then save nothing more.
// → reply::Latest
struct Use {
  Caller caller;
  CheckpointRef ref;
  bool fence = false;
  MonotonicNanos deadline = 0;
};

// --- saving

struct ObjectSpec {
  std::string name;
  uint64_t length = 0;  // at least; what is sealed may be as long as the extent granted
  ObjectKind kind = ObjectKind::kRaw;
  bool can_pad = false;  // the writer can fill an extent that is longer than it asked for
};

// What the same writer's later creates of the step will ask for, as each of them tells: the first is
// refused when all may not fit, and room is set aside for the others as far as there is some.
struct ToCome {
  uint64_t objects = 0;
  uint64_t bytes = 0;  // of memory: whole pages for each object
  uint64_t name_bytes = 0;
};

// Asks for places to write objects of one part. `call` is its number in the session: a repeat of it
// gets the first answer. → reply::Create
struct Create {
  Caller caller;
  int64_t call = 0;
  PartKey part;
  int32_t world_size = 0;
  std::vector<ObjectSpec> objects;
  MonotonicNanos deadline = 0;
  std::vector<SlabId> unmapped;  // slabs that the session no longer maps
  ToCome to_come;
  bool fence = false;  // its attempt waits for no process of an older one (succession.h)
};

// The bytes of one object are written.
struct Seal {
  std::string name;
  uint64_t length = 0;
  std::vector<uint32_t> block_crcs;  // CRC32C of each kBlockBytes of the source
  // Ranges [begin, end) that were written; the engine checks that together they leave no hole.
  std::vector<std::pair<uint64_t, uint64_t>> covered;
};

struct SealObjects {
  Caller caller;
  int64_t call = 0;
  PartKey part;
  std::vector<Seal> seals;
  // A part of the commit that follows, which is repeated whole when the daemon dies first.
  bool provisional = false;
};

// Seals what is not sealed and commits the part. → reply::Commit
struct Commit {
  Caller caller;
  int64_t call = 0;
  PartKey part;
  int32_t world_size = 0;
  std::vector<Seal> seals;
  std::map<std::string, std::string> notes;
  std::vector<SlabId> unmapped;  // slabs that the session no longer maps
  int64_t unix_ms = 0;
  // Of one without a create, which may begin its attempt.
  MonotonicNanos deadline = 0;
  bool fence = false;
};

// Drops what the session wrote of the part and did not commit.
struct Abort {
  Caller caller;
  PartKey part;
  int32_t world_size = 0;  // 0: the session's
};

// A part that goes straight into storage, and commits it there. Asked again while it goes on, it waits for the same.
// → reply::Commit
struct Store {
  Caller caller;
  int64_t call = 0;
  PartKey part;
  int32_t world_size = 0;
  std::vector<ObjectEntry> objects;  // by name, ascending
  std::map<std::string, std::string> notes;
  int64_t unix_ms = 0;  // the manifest's
  LeaseId stream = 0;   // over which the node asks for the bytes
  MonotonicNanos deadline = 0;
  bool fence = false;  // as in Create
};

// A client without descriptors is about to write, or read, [offset, offset + length) of an object
// under this lease: where does that lie? → reply::Chunk
struct LocateChunk {
  Caller caller;
  LeaseId lease = 0;
  uint64_t offset = 0;
  uint64_t length = 0;
  bool write = false;
};

// --- finding and loading

// → reply::Open, reply::OpenStored or reply::Elsewhere
struct Open {
  Caller caller;
  CheckpointRef ref;
  std::string name;
  OpenMode mode = OpenMode::kMap;
  bool verify = false;  // check the bytes in memory first
  MonotonicNanos deadline = 0;
};

// Leases that are over; unknown ones are skipped.
struct Release {
  Caller caller;
  std::vector<LeaseId> leases;
};

// All of them or none: NOT_FOUND names one that has ended.
struct Renew {
  Caller caller;
  std::vector<LeaseId> leases;
};

// A session that reads under `lease` asks for a standing mapping of the slab in which those bytes lie. Asked again it
// is lent once more. → reply::Standing
struct MapStanding {
  Caller caller;
  LeaseId lease = 0;
};

// Says which standing mappings the session has given up, and asks which others it is to give up: answered once there is
// one that it does not know of yet, or at the deadline. → reply::Unmap
struct AwaitUnmap {
  Caller caller;
  std::vector<SlabId> unmapped;
  std::vector<SlabId> known;  // it was told of these, and is about to give them up
  MonotonicNanos deadline = 0;
};

// The descriptor of this lease never left the daemon. Not a request.
struct LendFailed {
  LeaseId lease = 0;
};

// → reply::Latest
struct Latest {
  Caller caller;
  std::string job;
  MonotonicNanos deadline = 0;
};

// → CheckpointInfo
struct StatCheckpoint {
  Caller caller;
  CheckpointRef ref;
  MonotonicNanos deadline = 0;
};

// → ObjectInfo or reply::Elsewhere
struct StatObject {
  Caller caller;
  CheckpointRef ref;
  std::string name;
  MonotonicNanos deadline = 0;
};

// path: see ListPath in common/keys.h. The engine checks path, cursor and limit. → reply::List or
// reply::Elsewhere
struct List {
  Caller caller;
  std::string path;
  std::string cursor;  // empty, or the last answer's
  int32_t limit = 1000;
  MonotonicNanos deadline = 0;
};

// Until the checkpoint has reached a level; with `after` and no step in `ref`, until there is one
// above that step. → CheckpointInfo
struct Wait {
  Caller caller;
  CheckpointRef ref;
  Level level = Level::kCached;
  // With -1 the checkpoint of `ref`. Else, of the line, what comes after the cursor (head, step,
  // revision): nullopt stands for the head at the time of asking.
  Step after = -1;
  MonotonicNanos deadline = 0;
  std::optional<Attempt> after_head = {};
  Revision after_revision = -1;  // -1: whatever it was
};

// The checkpoint is to go to storage, whatever the policy. Answered before it is there.
struct PersistNow {
  Caller caller;
  CheckpointRef ref;
};

// An operator takes the node out of service, or back into it: it admits nothing new, and puts into storage what is newest
// of each job; status tells what nobody else has yet. Root's and the daemon's own user's.
struct Leave {
  Caller caller;
  bool on = true;
};

// Drops a checkpoint from memory, and unless `memory_only` from storage for good. `force`: even when
// it is the last copy.
struct Remove {
  Caller caller;
  CheckpointRef ref;
  bool memory_only = false;
  bool force = false;
  MonotonicNanos deadline = 0;
};

struct Pin {
  Caller caller;
  CheckpointRef ref;
  bool pinned = true;
};

// What retention would delete under `policy`; nullopt: the job's own. → PolicyPreview
struct PreviewPolicy {
  Caller caller;
  std::string job;
  std::optional<JobPolicy> policy;
  MonotonicNanos deadline = 0;
};

struct SetPolicy {
  Caller caller;
  std::string job;
  JobPolicy policy;
};

// → reply::Status
struct Status {
  Caller caller;
  bool of_all =
      false;  // of every user's jobs and sessions; else the caller's own and what he may read
};

// --- results of actions

struct SlabMade {
  SlabId slab = 0;
  cairn::Status status;
};

struct SlabDestroyed {
  SlabId slab = 0;
};

struct SlabProbed {
  SlabId slab = 0;
  bool free = false;           // nobody else has it open or mapped
  std::vector<LeaseId> ended;  // of the leases asked about, those whose lock is gone
};

struct ManifestWritten {
  PartKey part;
  ExtentRef extent;  // where it was written
  cairn::Status status;
  std::string digest;  // of the encoded manifest
};

// The write that reply::Chunk::write names has ended, however it ended: no byte of it is on its way
// any more.
struct ChunkWritten {
  uint64_t write = 0;
};

// DATA_LOSS: the bytes are not those that were sealed. Another error says nothing about them.
struct Verified {
  uint64_t verification = 0;
  cairn::Status status;
  int64_t unix_ms = 0;
};

struct Persisted {
  CheckpointKey checkpoint;
  cairn::Status status;
  Location location = {};  // where it stands, if OK
  // OK: what this node has of it is written and synced, and not published, for parts of other members
  // are not there yet.
  bool awaits_others = false;
};

// A part that was stored by action::Store.
struct Stored {
  PartKey part;
  cairn::Status status;
  std::string digest;  // of its manifest
  // The whole checkpoint as it is published; nullopt: parts of other writers are not there yet.
  std::optional<StoredCheckpoint> published = {};
};

// What stands in storage now: the record, or another of its number and kind that was there before.
struct LineRecordWritten {
  LineRecord record;
  StatusOr<LineRecord> stands;
  bool with_persist = false;  // action::Persist wrote it
};

struct FilesDeleted {
  CheckpointKey checkpoint;
  cairn::Status status;
};

struct JobScanned {
  std::string job;
  Reading stored;
  uint32_t owner_uid = 0, owner_gid = 0;
};

// Of all its parts; an error says that they cannot be read.
struct TablesRead {
  CheckpointKey checkpoint;
  StatusOr<StoredCheckpoint> stored;
};

// The same errors as a scan's.
struct LineNumbersRead {
  std::string job;
  StatusOr<LineNumbers> numbers;
};

// --- the ring (ring.h, peer_messages.h)

// One exchange with a member has ended: it answered as `who`, or nothing came in time. The links make one
// each second, and whenever there is something to say.
struct Exchanged {
  Rank rank = kNoRank;
  std::optional<MemberId> who;  // nullopt: it failed
  MonotonicNanos took = 0;      // since it began
};

// A member of the ring says something. Its identity was checked by the links.
struct PeerSaid {
  MemberId from;
  peer::Message message;
};

// A member says that it has dialled the address of this node's rank and met another life there, of this or a
// greater incarnation. The links believe members alone, and members tell of lives that they met, not of claims.
struct LifeMet {
  Rank by = kNoRank;
  MemberId life;
};

// Where this node stands in a ring whose members are in the catalog has changed, or what is known of them. It is
// journaled; the rank that this daemon's engine has stays what it is, and the next daemon has the new one.
struct SeatChanged {
  fact::RingSeat seat;
};

// The catalog says that another life has this node's rank.
struct Fenced {
  MemberId by;
};

// A member wants to read a part from this node's memory. → reply::Granted
struct GrantAsked {
  Caller caller;
  MemberId from;
  peer::GrantQuestion question;
};

// Nothing of the grant can be read any more: its bytes may go.
struct GrantEnded {
  uint64_t grant = 0;
};

// How far a fetch has come; the bytes are verified.
struct FetchAdvanced {
  uint64_t fetch = 0;
  uint64_t bytes = 0;
};

// A fetch has ended, and nothing writes into its slab any more. OK: every block of every object was
// compared with the manifest's checksum, and lies where the table says.
struct Fetched {
  uint64_t fetch = 0;
  cairn::Status status;
  std::shared_ptr<const PartTable> table = {};
  std::string digest = {};  // of the manifest
};

// --- others

// Which storage stands at the root now, or why none can be read. Said at the start and whenever it
// changes.
struct StorageSeen {
  StatusOr<RootIdentity> root;
};

// Nobody will read the answer to this request any more. If it still waits it is answered CANCELLED; what
// it has set going goes on.
struct CallerLeft {
  RequestId request = 0;
};

// The time that action::WakeAt asked for has come.
struct Tick {};

// SIGTERM: admit nothing, finish commits, persist the newest. Answered by action::Drained.
struct Drain {
  MonotonicNanos deadline = 0;
};

// The journal is full, or has space again.
struct JournalFull {
  bool full = false;
};

}  // namespace event

// As Fact is, compiled in events.cc.
struct Event
    : std::variant<event::Hello, event::SessionEnded, event::ChooseAttempt, event::ResumeFrom,
                   event::Use, event::Create, event::SealObjects, event::Commit, event::Abort,
                   event::Store, event::LocateChunk, event::Open, event::Release, event::Renew,
                   event::MapStanding, event::AwaitUnmap, event::LendFailed, event::Latest,
                   event::StatCheckpoint, event::StatObject, event::List, event::Wait,
                   event::PersistNow, event::Leave, event::Remove, event::Pin, event::PreviewPolicy,
                   event::SetPolicy, event::Status, event::SlabMade, event::SlabDestroyed,
                   event::SlabProbed, event::ManifestWritten, event::ChunkWritten, event::Verified,
                   event::Persisted, event::Stored, event::LineRecordWritten, event::FilesDeleted,
                   event::JobScanned, event::TablesRead, event::LineNumbersRead, event::Exchanged,
                   event::PeerSaid, event::LifeMet, event::SeatChanged, event::Fenced,
                   event::GrantAsked, event::GrantEnded, event::FetchAdvanced, event::Fetched,
                   event::StorageSeen, event::CallerLeft, event::Tick, event::Drain,
                   event::JournalFull> {
  using variant::variant;
  Event(const Event&);
  Event(Event&&) noexcept;
  Event& operator=(const Event&);
  Event& operator=(Event&&) noexcept;
  ~Event();
};

}  // namespace cairn::engine
