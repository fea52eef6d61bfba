// One file: what the components share of a job; they read each other's parts of it.
// The nouns of the engine: jobs, checkpoints, parts, objects. Each is made of small values, one per
// component that keeps something about it; everybody reads them, only that component changes them
// (owned.h). The component's header says what must hold for its values.
//
//   Job         what a name stands for       Checkpoint  one generation of a step
//   Part        one writer's share of it     Object      one named run of bytes in a part
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

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "common/clock.h"
#include "common/keys.h"
#include "common/manifest.h"
#include "common/policy.h"
#include "common/removed.h"
#include "common/status.h"
#include "common/stored.h"
#include "server/engine/changes.h"
#include "server/engine/events.h"
#include "server/engine/job_record.h"
#include "server/engine/keep_index.h"
#include "server/engine/line.h"
#include "server/engine/owned.h"
#include "server/engine/report.h"
#include "server/engine/world_writer.h"
#include "server/facts/facts.h"
#include "server/facts/part_record.h"

namespace cairn::engine {

class Admission;
class Fetches;
class Attempts;
class Finding;
class Footprints;
class Jobs;
class Leases;
class Manifests;
class Offers;
class Opening;
class Parts;
class Persistence;
class Pool;
class Refusals;
class Retention;
class Scanning;
class Sessions;
class Standing;
class Verdicts;

struct Checkpoint;
struct Job;
struct Part;

// --- objects

// One that is being written; once its part is committed, the part's table has it.
struct ObjectContent {
  // Name, kind and the length asked for; once sealed nobody changes it, and the part's table takes it.
  std::shared_ptr<ObjectEntry> entry;
  ExtentRef extent;
  bool sealed = false;
  bool seal_said = false;  // in a fact
  uint64_t asked = 0;      // its length, at the create
  uint64_t granted = 0;    // the most it may be sealed with
  SessionId session = 0;   // who writes it
  int64_t call = 0;        // the create that made it
};

struct Object {
  explicit Object(Part* of) : part(of) {}

  const ObjectEntry& entry() const { return *content->entry; }
  const std::string& name() const { return content->entry->name; }

  Part* const part;
  Owned<ObjectContent, Parts> content;
  Owned<LeaseId, Leases> write_lease;  // of a client without descriptors; 0: none
};

// --- parts

struct PartContent {
  // Until it is committed, by name; the names lie in the objects.
  std::map<absl::string_view, std::unique_ptr<Object>> objects;
  std::map<std::pair<SessionId, int64_t>, size_t> creates;  // call → how many objects it asked for
  std::set<SessionId> sessions;                             // that write it
  uint64_t unsealed = 0;                                    // objects
  uint64_t writing_bytes = 0;                               // their extents
  uint64_t encoded_bytes = 0;                               // of the entries, in a manifest
  uint64_t journal_bytes = 0;    // that it may yet cost the journal, in the name of …
  uint64_t journal_to_come = 0;  // of these, for creates that were told of and have not come
  uint64_t journal_kept = 0;     // that it costs the journal now that it is committed
  uint32_t journal_uid = 0;
  std::string lost;  // an object whose slab did not survive: the part can't be committed any more

  // Once it is committed.
  bool committed = false;
  std::shared_ptr<const PartTable> table;  // nullptr: only storage knows it (tables.h)
  std::string digest;
  uint64_t absent = 0;      // objects that are not in memory …
  std::set<size_t> broken;  // … of them, those whose bytes there did not verify

  uint64_t count = 0;                // of its objects
  uint64_t bytes = 0;                // their lengths
  std::map<SlabId, uint32_t> slabs;  // in which they lie in memory → how many; no other part's do
};

// Where the part's record lies (part_record.h).
struct ManifestPlace {
  ExtentRef extent;
  uint64_t bytes = 0;         // of the encoded manifest
  uint64_t record_bytes = 0;  // of all
  bool resident = false;      // it has an extent, perhaps still being written
  bool committing = false;
  bool writing = false;                    // action::WriteManifest is under way
  std::shared_ptr<const PartTable> table;  // while `committing`
  std::vector<RequestId> committers;       // who waits for it
};

struct ObjectCheck {
  bool unverified = false;  // came from a dead daemon: verified before it is first handed out
  int64_t verified_unix_ms = 0;
  uint64_t verification = 0;  // under way; 0: none
};

// Of the objects of a committed part.
struct PartChecks {
  bool unverified = false;  // all that `known` does not have
  absl::flat_hash_map<size_t, ObjectCheck> known;
};

// What the recorder was last told.
struct PartShown {
  bool committed = false, resident = false, broken = false;
  bool operator==(const PartShown&) const = default;
};

// Why this node has the part, and whose writer committed it.
struct PartSource {
  PartRole role = PartRole::kOwn;
  Rank owner = kNoRank;  // in no ring; or nothing but storage told of the part
};

struct Part {
  Part(Checkpoint* of, Writer writer);
  void Touch();

  const PartKey key;
  Checkpoint* const checkpoint;
  Watched<PartContent, Parts, Part> content;
  Watched<ManifestPlace, Manifests, Part> manifest;
  Owned<PartShown, Standing> shown;
  Owned<std::optional<PartRole>, Standing> held;  // as it counts in CheckpointStanding::held
  Owned<PartChecks, Opening> checks;
  Watched<PartSource, Fetches, Part> source;
};

// An object, being written or committed. Good until its part changes.
struct ObjectRef {
  Part* part = nullptr;      // nullptr: there is none
  Object* object = nullptr;  // being written; else …
  size_t index = 0;          // … in the part's table

  explicit operator bool() const { return part != nullptr; }
  const ObjectEntry& entry() const;
  const std::string& name() const { return entry().name; }
  const ExtentRef& extent() const;  // meaningful while it is resident
  bool sealed() const { return object == nullptr || object->content->sealed; }
  bool resident() const;
  ObjectCheck check() const;
};
ObjectRef ObjectIn(Part* part, absl::string_view name);
ObjectRef ObjectIn(const Checkpoint& checkpoint, absl::string_view name);
// That of the next name.
ObjectRef ObjectAfter(const Checkpoint& checkpoint, absl::string_view name);

// --- checkpoints

struct StepContent {
  int32_t world_size = 0;
  std::map<Writer, std::unique_ptr<Part>> parts;
  Writer first_without = 0;  // the first writer that has no part
  // Of all parts, each in its part's keeping: no name is a directory of another. None of one that is
  // complete and has few parts: to look into each is fast enough.
  absl::btree_map<absl::string_view, Part*> names;
  bool indexed = true;
  int32_t committed = 0, open_parts = 0;  // parts, and those that are not committed
  bool complete = false;
  std::string digests;     // of the manifests, by writer, until it is complete
  std::string digest;      // of all of them, once it is
  bool condemned = false;  // it leaves memory part by part, and will not be complete any more
  int64_t created_unix_ms = 0;
  uint64_t objects = 0;
  uint64_t journal_kept = 0;    // that its committed parts cost the journal
  size_t without_table = 0;     // committed parts of which only storage knows what they hold
  uint64_t bytes = 0;           // of its objects
  uint64_t absent = 0;          // objects of committed parts that are not resident
  uint64_t broken_objects = 0;  // of them, those that failed to verify
  bool lack_logged = false;
  std::string why;  // in words, when something of it is broken or lost
};

struct ManifestSums {
  uint64_t absent = 0;        // manifests of committed parts that are not resident
  uint64_t record_bytes = 0;  // of its user's share, that the resident ones take
};

// What storage has of it, and what it is owed.
struct Files {
  bool persisted = false;
  // It was persisted, and storage was away since, or another daemon said so: a scan has to find it.
  bool unconfirmed = false;
  bool stored_whole = false;  // incomplete only because the rest of it was evicted
  Location location;          // of a stored one; may be unknown
  bool owes = false;          // a file is due, by policy …
  bool requested = false;     // … or because somebody asked
  bool persisting = false, preparing = false, deleting = false;  // preparing: not all is held yet
  // This node's own parts are there, synced, and those of other members are not: it looks again whether
  // all of it can be published. A new daemon writes what stands there once more, which costs a look.
  bool written = false;
  bool skipped = false;  // superseded before its turn
  // Its files stood there and were deleted whole, by policy or by hand: none is due until a user asks.
  bool deleted = false;
  // Unconfirmed since another directory took the place of the root: files of it that are not there were lost, not deleted.
  bool in_former_root = false;
  // When a scan found it published and not whole, 0: it did not. `rm -rf` may be under way: the files are lost when
  // a scan kHalfGoneAge later finds it so, too.
  MonotonicNanos half_gone = 0;
  // Why the last try failed; OK: none did since it was persisted or somebody asked for it anew.
  Status problem;
  // A new try soon would fail the same way: there is one when somebody asks, or much later.
  bool parked = false;
  MonotonicNanos again = 0;  // no new try before then
  MonotonicNanos wait = 0;   // the last pause between two tries
  // JobSessions::finished, long enough ago; nothing will take it into storage, so its memory may go.
  std::optional<MonotonicNanos> given_up;
};

// What the job's home says of it, of all members together (report.h); nothing in no ring.
struct Elsewhere {
  bool complete = false;
  std::string digest;
  bool in_memory = false;  // of some members, all of it
  bool stored = false;
  int replicas = 0;
  bool hopeless = false;
  std::string conflict;
  bool operator==(const Elsewhere&) const = default;
};

// The node's verdict about one step: all its local writers share it.
enum class Admitted : uint8_t { kNone, kWaiting, kAdmitted, kRefused };

struct Verdict {
  Admitted state = Admitted::kNone;
  MonotonicNanos deadline = 0;
  uint64_t estimate = 0;  // slab bytes the node's writers are expected to need
  uint64_t granted = 0;   // slab bytes they got
  uint64_t reserved = 0;  // still set aside
  int32_t local_writers = 1;
  int32_t committed = 0;  // parts of this node's own writers
  // Grows with `granted`; outlives the checkpoint in LastSave.
  std::shared_ptr<uint64_t> node_total = std::make_shared<uint64_t>(0);
  std::set<RequestId> waiting;  // creates
  std::string why;              // refused
};

// Sums over the slabs its objects lie in.
struct Footprint {
  std::map<SlabId, uint32_t> slabs;  // → extents of its objects there
  uint64_t slab_bytes = 0;
  uint64_t locked_bytes = 0;  // leased, granted or pinned
  uint64_t mapped_bytes = 0;  // of the rest: mapped by a writer
  // In slabs that are on no user's account (SlabRecord::for_peers): those not locked, and how many in all.
  uint64_t uncharged_bytes = 0;
  int64_t uncharged_slabs = 0;
};

// In which order memory is given up; a lower one goes first (evict_class.cc).
enum class EvictClass : uint8_t {
  kGarbage,         // never to be complete, or abandoned
  kOwesNothing,     // superseded, and no file is due
  kOwes,            // superseded, but a file is due: only under pressure, counted
  kLastOfFinished,  // the newest of a job without writers, once it is persisted, or given up for good
  kKept,            // not now
};

// What the recorder and those who wait were last told.
struct Shown {
  int32_t committed = 0;
  uint64_t absent = 0;
  uint64_t broken_objects = 0;
  bool complete = false, resident = false, obtainable = false, persisted = false, pinned = false;
  bool written = false;
  Elsewhere elsewhere;
  bool operator==(const Shown&) const = default;
};

// Where it stands towards the job's line (line.h).
enum class LinePlace : uint8_t {
  kBeside,     // cannot be had, or is an older revision of what is on the line
  kOnLine,     //
  kAbandoned,  // can be had, and the line has left it
};

// What giving it up would gain.
struct Gain {
  uint64_t bytes = 0;
  uint64_t mapped_bytes = 0;  // of them, only once a writer has unmapped it
  int64_t slabs = 0;          // at most
  // Of these, what counts as no user's.
  uint64_t uncharged_bytes = 0;
  int64_t uncharged_slabs = 0;
  uint64_t record_bytes = 0, journal_bytes = 0;

  Gain& operator+=(const Gain& other);
  Gain& operator-=(const Gain& other);
  bool operator==(const Gain&) const = default;
};

// How many parts lie in memory here or are being written, by why this node has them.
struct HeldParts {
  int32_t own = 0, replicas = 0, fetched = 0;

  int32_t& Of(PartRole role) {
    return role == PartRole::kOwn ? own : role == PartRole::kReplica ? replicas : fetched;
  }
  bool operator==(const HeldParts&) const = default;
};

// Derived from all of the above.
struct CheckpointStanding {
  HeldParts held;
  bool known_to_line = false;  // as one that can be had
  LinePlace place = LinePlace::kBeside;
  EvictClass evict_class = EvictClass::kKept;
  Gain gain;             // nothing when it is kept
  uint32_t gain_of = 0;  // uid in whose sums that is
  Shown shown;
  bool shown_due = false;  // a file is due and not parked, or being written
  bool recorded = false;   // the recorder was told of a part of it
  // What it adds to the job's sums.
  uint64_t resident_bytes = 0;
  bool unprotected = false;
  bool in_memory = false;
};

// Whether other members have copied this node's parts of a checkpoint, which one of them may know as protected.
enum class Copied : uint8_t {
  kNo,
  kMaybe,  // it is the newest that the backups are known to have, or newer and was given to members
  kJustGiven  // so lately that who has it may not have been heard to say so
};

struct Checkpoint {
  Checkpoint(Job* of, const CheckpointKey& of_key, uint64_t number, Changes* changes);
  void Touch() { changes_->Touch(this); }
  void Touch(Part* part) { changes_->Touch(part); }

  CheckpointId Id() const { return {key.step, key.attempt, key.revision}; }
  // Everything of it is in memory, as far as is known.
  bool Resident() const { return content->absent == 0 && manifests->absent == 0; }
  bool InMemory() const;  // something of it lies there, or is being written
  // All its writers have committed, whether their parts are here or with other members.
  bool Complete() const { return content->complete || elsewhere->complete; }
  // By the home's word memory of some members, this one perhaps among them, or storage has all of it.
  bool RingHasIt() const {
    return elsewhere->complete && (elsewhere->in_memory || elsewhere->stored);
  }
  bool Obtainable() const {
    return (content->complete && Resident()) || (Complete() && files->persisted) || RingHasIt();
  }

  const CheckpointKey key;
  Job* const job;
  const uint64_t sequence;  // order of coming into being
  Watched<StepContent, Parts, Checkpoint> content;
  Watched<ManifestSums, Manifests, Checkpoint> manifests;
  Watched<Files, Persistence, Checkpoint> files;
  Owned<uint64_t, Persistence> look;  // the last of JobFiles::looks that may have missed its files
  Watched<Verdict, Admission, Checkpoint> verdict;
  Watched<Footprint, Footprints, Checkpoint> memory;
  Watched<bool, Retention, Checkpoint> pinned;
  Watched<Elsewhere, Verdicts, Checkpoint> elsewhere;
  Watched<Copied, Offers, Checkpoint> copied;
  Owned<CheckpointStanding, Standing> standing;

 private:
  Changes* const changes_;
};

// --- jobs

struct JobOwner {
  bool owned = false;
  uint32_t uid = 0, gid = 0;
  JobPolicy policy;
  Stamp said;  // of the policy; version 0: a default
  bool operator==(const JobOwner&) const = default;
};

// Who is connected.
struct JobSessions {
  std::set<SessionId> all;
  int64_t writers = 0;   // of them, those with a rank
  uint64_t changes = 0;  // grows when one comes, goes or enters another attempt
  // When the last writer left, or a daemon was started that met none; 0: none was here since.
  MonotonicNanos finished = 0;
};

// How many writers a step has. One of a single writer may be any rank's, and belongs to the process that
// entered it first, whichever rank it saves as otherwise.
struct StepWorld {
  int32_t writers = 0;
  ProcessToken process = {};  // of a step of one writer; empty: not known
  Writer rank = 0;            // likewise
};

struct AttemptState {
  Attempt attempt = 0;
  Lineage lineage;            // where it comes from; open: storage could not be read yet
  Step first_step = kNoStep;  // of its first create, or the lowest that storage shows
  int64_t unix_ms = 0;
  MonotonicNanos begun_here = 0;  // by a save, under this daemon; 0: it was not
  bool journaled = false;         // attempts.h, kJournaledLives
  // When its origin was recorded, by storage's own clock; 0: not, or not known.
  int64_t recorded_unix_ms = 0;
  absl::flat_hash_map<WorldWriter, WriterRun> processes;
  std::map<Step, StepWorld> worlds;        // of each step that is known
  std::map<Step, int32_t> checkpoints_at;  // how many checkpoints there are of each step
  // Steps that admission refused; the newest 128. A new daemon does not know them: a refused step
  // leaves the facts of one that was given up, or, where nobody had got anything, none of its own.
  // It may so admit a local writer of a step that was refused to another: the step then lacks one, and
  // is garbage once a later one is complete; what the refusal took away is in `dropped`.
  std::map<std::pair<Step, Revision>, Status> refused;
  // Parts that held objects and were dropped, each with the name of one: a commit of such a part
  // that brings no seals, since they were calls of their own, is not one of a writer with nothing
  // to save. Creating objects in the part anew takes it out. Kept of the newest attempt alone, for
  // older ones are fenced, and of the kKeptDropped parts with the highest steps. A new daemon
  // learns them from the ObjectDropped facts, which a snapshot repeats.
  std::map<std::tuple<Step, Revision, Writer>, std::string> dropped;
  std::set<SessionId> sessions;  // live ones that created in it
  // Who has left a step behind without committing it, which decides whether the step can still
  // become complete (evict_class.cc). How far each rank of a process has got: the last step and revision
  // that it entered, steps of its own alone and of a part of the ranks too. A new daemon knows it from the parts
  // that are there.
  absl::flat_hash_map<std::pair<ProcessToken, Writer>, std::pair<Step, Revision>> reached;
  // Parts whose writers said that they will not commit them, of the newest attempt and at most
  // kKeptDropped. A new daemon does not know them, and keeps what the others committed until those
  // writers go on, or end.
  std::set<std::tuple<Step, Revision, Writer>> withdrawn;
  // Of `processes`, those without a live session; of the newest attempt.
  std::set<WorldWriter> ended;

  // Also one that an earlier version said, which did not tell how many there were. end(): it entered nothing.
  auto Find(const WorldWriter& writer) const {
    const auto at = processes.find(writer);
    return at != processes.end() ? at : processes.find({0, writer.writer});
  }
};
inline constexpr size_t kKeptDropped = 1024;  // of AttemptState::dropped
inline constexpr size_t kKeptDecisions = 64;  // of JobAttempts::decisions

// What its owner said that counts.
struct Decision {
  LineRecordKind kind = LineRecordKind::kResume;
  Lineage lineage;
  int64_t unix_ms = 0;
  ProcessToken process = {};  // that said so; not known of those before a restart
  int64_t version = 1;        // grows when a `resume` is said anew; 1 after a restart
};

struct JobAttempts {
  std::map<Attempt, AttemptState> begun;
  // `resume` and `use`, by number, also of attempts that have begun; the newest kKeptDecisions.
  std::map<Attempt, Decision> decisions;
  Attempt greatest = 0;  // seen or given out
  // Where attempts come from that have not begun here: a record in storage tells, and nothing that they
  // have published was there when it was read. The newest kKeptDecisions.
  std::map<Attempt, Lineage> elsewhere;
  uint64_t line_version = 0;  // grows when an attempt comes, goes, or comes from elsewhere
  // The newest that has begun; 0: none has.
  Attempt newest() const { return begun.empty() ? 0 : begun.rbegin()->first; }
  // The newest whose origin is known, from its record if nothing else.
  Attempt newest_recorded() const {
    return elsewhere.empty() ? newest() : std::max(newest(), elsewhere.rbegin()->first);
  }
  // Attempts below it may do nothing more: the newest that has begun, or a `use`.
  Attempt fence() const;
};

struct JobSteps {
  std::map<CheckpointId, std::unique_ptr<Checkpoint>> all;
  std::set<CheckpointId> incomplete;
};

struct JobFiles {
  std::set<CheckpointId> persisted, unconfirmed;
  uint64_t looks = 0;                           // scans that have begun
  MonotonicNanos look_again = 0;                // when one is due because of half_gone; 0: none is
  std::set<CheckpointId> gone;                  // whose files went while a scan was under way
  std::map<CheckpointId, std::string> damaged;  // what lost files, as the last scan found it: which
  std::set<CheckpointId> owed;                  // that owe a file and are not being persisted
  // Of them, those that do not wait for their next try; (false, …) sort first: somebody asked.
  std::set<std::pair<bool, CheckpointId>> ready;
  std::optional<CheckpointId> target;  // of the members, as it was last gone by
  std::string problem;                 // why storage took nothing at the last try
  MonotonicNanos at = 0;               // no persist before then
  MonotonicNanos wait = 0;             // the last pause of the whole job
  int under_way = 0;                   // persists
  MonotonicNanos persisted_at = 0;     // when the last one succeeded
  uint64_t failed = 0;                 // persists, in this daemon's life
  int64_t failed_unix_ms = 0;          // the last of them
  Attempt origin_stands = 0;  // of this attempt the last one wrote the origin's record; 0: none
};

struct JobTombstones {
  RemovedSteps removed;  // `rm`: these attempts' checkpoints of these steps stay away
  uint64_t changes = 0;  // how often `removed` has changed
  size_t ranges = 0;     // of attempts, of all its steps: what they cost the journal …
  uint32_t uid = 0;      // … counts as this user's
};

// What a writer saved last: the estimate for its next step.
struct LastSave {
  std::weak_ptr<const PartTable> table;  // gone with the part
  std::vector<uint64_t> slabs;           // sizes, ascending
  // Of all of this node's writers. Null: not known, for storage has the parts of all members' writers.
  std::shared_ptr<uint64_t> node_total;
};
struct JobSaves {
  std::map<Writer, LastSave> last;
};

enum class ScanState : uint8_t { kUnknown, kScanning, kScanned, kFailed };
struct JobScan {
  ScanState state = ScanState::kUnknown;
  MonotonicNanos started = 0;
  MonotonicNanos again = 0;      // not before, when it failed
  MonotonicNanos wait = 0;       // from the last failure to then
  MonotonicNanos read = 0;       // when it was last read with success
  int64_t read_unix_ms = 0;      // likewise
  int64_t storage_unix_ms = 0;   // what storage's own clock said then; 0: not known
  LineNumbers listed;            // of the line records that stood there then
  MonotonicNanos line_read = 0;  // when its line records were last listed, or all was read
  std::optional<MonotonicNanos> line_asked;  // when the listing under way was asked for
  MonotonicNanos line_again = 0;             // none before then
  bool asked = false;                        // kScanning: the answer is under way; …
  bool merging = false;  // … or has come, and is merged in part; else storage must be seen first
  int stale = 0;         // answers under way from before storage went away
  Status problem;
  Step unread_up_to =
      kNoStep;  // what could not be read, or is not merged, may hold steps up to this one
  std::set<RequestId> waiting;
  bool Known() const { return state == ScanState::kScanned; }
};

// In this daemon's life.
struct JobRefusals {
  uint64_t saves = 0;   // steps of which a create or commit was refused
  CheckpointId newest;  // of them; `why` and when
  std::string why;
  int64_t unix_ms = 0;
  uint32_t uid = 0;  // who heard so
};

struct JobWaits {
  std::set<RequestId> requests;  // wait()
};

// The last verdict of the job's home.
struct JobVerdictHeard {
  bool heard = false;
  int32_t home = -1;   // rank of who said it
  bool final = false;  // every member was asked, and this is what they say now
  MonotonicNanos at = 0;
  std::optional<CheckpointId> latest, protect, target;
  std::pair<Attempt, Step> safe{0, kNoStep};  // the highest that was ever protected
  int asked = 0;                              // replicas
  std::set<Rank> silent;
  std::string why;
  // On the other members; and how often that has changed.
  std::map<Rank, std::vector<SavingReport>> saving;
  uint64_t saving_changes = 0;
  MonotonicNanos saved_at = 0;  // when it last named any
};

// What the members together say of the job, as far as classes depend on it (evict_class.h).
struct RingSays {
  bool fresh = false;  // heard a moment ago
  bool final = false;  // all members were asked
  int asked = 0;       // replicas; with 0 nothing but storage protects
  std::optional<CheckpointId> protect, target;
  // The highest that was ever protected, as far as was heard: what is said now may rest on fewer reports.
  std::pair<Attempt, Step> safe{0, kNoStep};
  // The newest protected one among those that the line has left.
  std::optional<CheckpointId> left;
  bool operator==(const RingSays&) const = default;
};

// Derived from all of the above.
struct JobStanding {
  Line line;
  uint64_t line_version = 0;  // of JobAttempts, as the line knows it
  std::set<std::pair<EvictClass, CheckpointId>> evictable;
  uint64_t evictable_mapped_bytes = 0;
  uint64_t resident_bytes = 0;  // slabs that its checkpoints lie in
  size_t in_memory = 0;         // checkpoints of which there is something in memory
  // Of checkpoints that can be had, and are in memory only; and which of them storage did not take.
  std::map<CheckpointId, uint64_t> unprotected;  // bytes
  std::set<CheckpointId> troubled;
  KeepIndex keep;
  // What the last settling saw; a difference concerns checkpoints that nobody touched.
  Checkpoint* newest = nullptr;
  bool has_writers = false, looked_at = false;  // its storage, since it has had none
  Attempt attempt = 0;
  JobOwner owner;
  std::optional<RingSays> ring;  // nullopt: in no ring
  Attempt left_by = 0;           // the head for which RingSays::left was found
  MonotonicNanos stale_at = 0;   // when `ring` is not fresh any more; 0: it is not
};

struct Job {
  Job(std::string of_name, Changes* changes);
  void Touch() { changes_->Touch(this); }

  const std::string name;
  Watched<JobOwner, Jobs, Job> owner;
  Watched<JobSessions, Sessions, Job> sessions;
  Watched<JobAttempts, Attempts, Job> attempts;
  Owned<JobSteps, Parts> steps;
  Owned<JobFiles, Persistence> files;
  Watched<JobTombstones, Retention, Job> tombstones;
  // Those that are not known yet are pinned as soon as a scan finds them.
  Owned<std::set<CheckpointId>, Retention> pins;
  // In a ring: what was last said of each, by whichever member.
  Watched<std::map<CheckpointId, JobRecord::Pin>, Retention, Job> said_pins;
  // In a ring: those of which a member was asked to `persist` them; the kMostRecordAsked highest.
  Watched<std::set<CheckpointId>, Persistence, Job> asked;
  Owned<JobSaves, Pool> saves;
  Owned<JobScan, Scanning> scan;
  Owned<JobWaits, Finding> waits;
  Owned<JobRefusals, Refusals> refusals;
  Watched<JobVerdictHeard, Verdicts, Job> verdict;
  Owned<JobStanding, Standing> standing;

 private:
  Changes* const changes_;
};

// The checkpoints of one step, in ascending order of attempt and revision.
std::vector<Checkpoint*> CheckpointsAt(const Job& job, Step step);
Checkpoint* CheckpointOf(const Job& job, const CheckpointId& id);  // nullptr: there is none

}  // namespace cairn::engine
