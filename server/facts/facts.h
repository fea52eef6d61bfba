// What the journal keeps: facts. They are values, so applying one twice has the effect of applying
// it once, and a later build with another policy can read them. The engine produces facts,
// `journal/` stores them, and a new daemon hands them back to the engine, which rebuilds its state
// from facts alone.
//
// Encoding (EncodeFact), little-endian:
//   0  1  number of the kind
//   1  1  version of the kind, 1 to 127; the top bit is the mark "may be skipped" (below)
//   2  .. the fields in order; strings and lists as u32 length + elements
// A fact carries no length of its own: the journal's frame stores one in front of each, so a reader
// can step over a fact that it cannot decode.
//
// A build writes one version of each kind and reads those from FactKind::oldest on. It refuses by
// name what another build wrote that it does not know: the facts behind such a fact cannot be
// understood without it. The exception is a fact that carries the mark: whoever does not know its
// kind or version steps over it. A kind is marked when nothing else that the journal says becomes
// wrong without it, and when a build that steps over it may forget it for good, as the next
// snapshot does. To a reader that knows the fact the mark says nothing.
//
// To add a fact: its struct and a place in the variant, a line in kFactKinds, its fields in
// facts.cc, a golden file (tests/golden/). To change one: a new version in its line, a TakeOlder in
// facts.cc for the version before, a golden file beside the old one, and the old one's meaning in
// facts_test. Most are compile errors while they are missing; facts_test tells about the rest.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "common/keys.h"
#include "common/line_record.h"
#include "common/manifest.h"
#include "common/policy.h"
#include "common/session_identity.h"
#include "server/facts/extent.h"

namespace cairn {

namespace fact {

// One life of the daemon. Ids below next_id have been given out.
struct DaemonLife {
  int64_t started_unix_ms = 0;
  uint64_t next_id = 0;
  bool operator==(const DaemonLife&) const = default;
};
struct Job {
  std::string job;
  uint32_t owner_uid = 0;
  uint32_t owner_gid = 0;
  JobPolicy policy;
  // How often the policy was said, and by which rank last; 0: it is a default.
  int64_t policy_version = 0;
  int32_t policy_rank = -1;
  bool operator==(const Job&) const = default;
};
// Nothing is left of it and nobody has used it for long: all that was said of it is over.
struct JobForgotten {
  std::string job;
  bool operator==(const JobForgotten&) const = default;
};
struct AttemptBegun {
  std::string job;
  Attempt attempt = 0;
  Step first_step = kNoStep;  // of its first create
  Lineage lineage;            // open: said again once more is known
  int64_t unix_ms = 0;
  bool operator==(const AttemptBegun&) const = default;
};
// The process that is this writer of the attempt's steps of so many writers.
struct WriterProcess {
  std::string job;
  Attempt attempt = 0;
  int32_t world_size = 0;  // 0: version 1 did not say
  Writer writer = 0;
  ProcessToken process;
  Writer rank = 0;  // of its session
  bool operator==(const WriterProcess&) const = default;
};
// How many writers the attempt's step has; fixed by the first of them.
struct StepWorld {
  std::string job;
  Attempt attempt = 0;
  Step step = 0;
  int32_t world_size = 0;
  // Of a step of one writer: the process whose it is, empty where that is not known; and its rank,
  // which may be any.
  ProcessToken process;
  Writer rank = 0;
  bool operator==(const StepWorld&) const = default;
};
// `resume` or `use`: the owner said which checkpoint counts. Of one number the last word stands.
struct LineDecided {
  LineRecord record;
  int64_t unix_ms = 0;
  bool operator==(const LineDecided&) const = default;
};

// A slab that the keeper holds. An empty owner_job means that it was never lent, so that any job
// may have it.
struct Slab {
  SlabId slab = 0;
  uint64_t bytes = 0;
  SlabUse use = SlabUse::kObjects;
  uint32_t owner_uid = 0;
  std::string owner_job;
  bool by_path =
      false;  // others may have opened it by path, and no lock tells whether they still do
  // A process that may have registered it with a device died: what it holds stays, nothing more is written into
  // it, and it goes once it is empty.
  bool condemned = false;
  bool operator==(const Slab&) const = default;
};
struct SlabGone {
  SlabId slab = 0;
  bool operator==(const SlabGone&) const = default;
};
// Blocks of a part that another member has are being read into the slab: those that verify count after the
// daemon's death, too. Until SlabGone, or a PartCommitted that names the slab.
struct FetchBegun {
  SlabId slab = 0;
  PartKey part;
  std::string digest;
  bool operator==(const FetchBegun&) const = default;
};

// Said again once the session creates something in `attempt`.
struct SessionBegun : SessionIdentity {
  SessionId session = 0;
  std::string secret;
  bool saves = false;  // it has created something in its attempt
  bool operator==(const SessionBegun&) const = default;
};
struct SessionEnded {
  SessionId session = 0;
  bool operator==(const SessionEnded&) const = default;
};
// `lease` lets `session` use `slab`. For kWrite and kStanding it stands for the mapping, until Unlent; for the
// others `part` and `name` are the object that the reader opened.
struct Lent {
  LeaseId lease = 0;
  SessionId session = 0;
  SlabId slab = 0;
  LeaseMode mode = LeaseMode::kMap;
  PartKey part;
  std::string name;
  bool operator==(const Lent&) const = default;
};
struct Unlent {
  LeaseId lease = 0;
  bool operator==(const Unlent&) const = default;
};

// An unsealed object: a save in flight goes on across the daemon's death. `call` is the number of
// the create in its session; it distinguishes a repeat of that call from a second create.
struct ObjectCreated {
  PartKey part;
  int32_t world_size = 0;
  std::string name;
  ObjectKind kind = ObjectKind::kRaw;
  uint64_t length = 0;
  ExtentRef extent;
  SessionId session = 0;
  int64_t call = 0;
  bool operator==(const ObjectCreated&) const = default;
};

struct ObjectSealed {
  PartKey part;
  ObjectEntry entry;
  ExtentRef extent;
  bool operator==(const ObjectSealed&) const = default;
};
// Of a part that is committed: its bytes in memory did not verify. Else: its slab did not survive.
// Journaled before the bytes are reused.
struct ObjectDropped {
  PartKey part;
  std::string name;
  bool operator==(const ObjectDropped&) const = default;
};
// What was said of the part's objects before is over: its record (part_record.h) tells of them.
struct PartCommitted {
  PartKey part;
  int32_t world_size = 0;
  ExtentRef extent;    // of the record
  uint64_t bytes = 0;  // of the manifest in it
  std::string digest;
  std::vector<SlabId> slabs;  // where its objects lie: no other part's do
  PartRole role = PartRole::kOwn;
  int32_t owner = -1;  // rank of the member whose writer committed it; -1: in no ring
  bool operator==(const PartCommitted&) const = default;
};
// The objects of a committed part that lay in the slab leave memory.
struct PartLeftSlab {
  PartKey part;
  SlabId slab = 0;
  bool operator==(const PartLeftSlab&) const = default;
};
// All that memory had of the part leaves it, committed or not; `name` was one of its objects, empty: it
// had none.
struct PartDropped {
  PartKey part;
  std::string name;
  bool operator==(const PartDropped&) const = default;
};
struct Persisted {
  CheckpointKey checkpoint;
  std::string digest;
  bool operator==(const Persisted&) const = default;
};
struct FilesDeleted {
  CheckpointKey checkpoint;
  bool operator==(const FilesDeleted&) const = default;
};
// The user's `rm`: the step is gone for every attempt up to this one.
struct StepRemoved {
  std::string job;
  Step step = 0;
  Attempt first_attempt = 1;
  Attempt up_to_attempt = 0;
  bool operator==(const StepRemoved&) const = default;
};
// A user asked for this checkpoint in storage, here or on another member, whatever the policy says. After Persisted a
// daemon that starts owes nothing for it.
struct PersistAsked {
  CheckpointKey checkpoint;
  bool operator==(const PersistAsked&) const = default;
};
// The storage that Persisted is about, as it was seen last (common/root_marker.h).
struct StorageRoot {
  std::string id;
  std::string instance;
  bool operator==(const StorageRoot&) const = default;
};
struct Pinned {
  CheckpointKey checkpoint;
  bool pinned = true;
  // In a ring: how often it was said, and by which rank last.
  int64_t version = 0;
  int32_t rank = -1;
  bool operator==(const Pinned&) const = default;
};
// In a ring: the highest step of the job that was ever protected, in this node's hearing.
struct StepSafe {
  std::string job;
  Attempt attempt = 0;
  Step step = kNoStep;
  bool operator==(const StepSafe&) const = default;
};
// Which life of its rank this node is in the ring. One keeper's daemons share it.
struct MemberLife {
  int64_t incarnation = 0;
  std::string instance;
  int64_t superseded_by = 0;  // incarnation of the life that has its place now; 0: this one has it
  bool believed = false;      // some member has met it
  bool operator==(const MemberLife&) const = default;
};
// An operator takes the node out of service, or back into it. Without one it is in service.
struct Leaving {
  bool on = false;
  bool operator==(const Leaving&) const = default;
};
// Where this node stands in a ring whose members are those of the catalog, and what it last knew of them. A daemon
// whose catalog does not answer goes on from it. Said once more with each change.
struct RingSeat {
  std::string instance;               // this node's, as long as it has or wants one rank: 16 bytes
  int32_t rank = -1;                  // -1: it has none
  int64_t incarnation = 0;            // of the life that got the rank
  bool drained = false;               // it gave its rank back, and takes none
  int64_t epoch = 0;                  // of the ring's size
  std::vector<int64_t> incarnations;  // by rank, the ring's size; 0: nobody has it
  std::string nodes;                  // RANK=ADDRESS:PORT,… of those that somebody has
  bool operator==(const RingSeat&) const = default;
};

}  // namespace fact

// A type of its own, whose copies and moves are compiled once, in facts.cc.
struct Fact
    : std::variant<fact::DaemonLife, fact::Job, fact::AttemptBegun, fact::WriterProcess,
                   fact::StepWorld, fact::LineDecided, fact::Slab, fact::SlabGone,
                   fact::SessionBegun, fact::SessionEnded, fact::Lent, fact::Unlent,
                   fact::ObjectCreated, fact::ObjectSealed, fact::ObjectDropped,
                   fact::PartCommitted, fact::PartDropped, fact::PartLeftSlab, fact::Persisted,
                   fact::FilesDeleted, fact::StepRemoved, fact::Pinned, fact::PersistAsked,
                   fact::StorageRoot, fact::JobForgotten, fact::MemberLife, fact::StepSafe,
                   fact::FetchBegun, fact::RingSeat, fact::Leaving> {
  using variant::variant;
  Fact(const Fact&);
  Fact(Fact&&) noexcept;
  Fact& operator=(const Fact&);
  Fact& operator=(Fact&&) noexcept;
  ~Fact();
};

// What stands in front of a fact's fields.
struct FactKind {
  uint8_t number = 0;   // never reused
  uint8_t version = 0;  // raised when the fields change; a build writes this one
  absl::string_view name;
  uint8_t oldest = version;  // the first version that this build still reads
  bool skippable = false;    // marked: a reader that does not know it steps over it
};

template <typename F>
struct KindOfFact : FactKind {};

// One line for each kind of fact.
inline constexpr std::tuple kFactKinds{
    KindOfFact<fact::DaemonLife>{{1, 1, "daemon_life"}},
    KindOfFact<fact::Job>{{2, 3, "job", /*oldest=*/1}},
    KindOfFact<fact::AttemptBegun>{{3, 3, "attempt_begun", /*oldest=*/2}},
    KindOfFact<fact::WriterProcess>{{4, 2, "writer_process", /*oldest=*/1}},
    KindOfFact<fact::StepWorld>{{5, 2, "step_world", /*oldest=*/1}},
    KindOfFact<fact::LineDecided>{{6, 2, "line_decided"}},
    KindOfFact<fact::Slab>{{7, 3, "slab", /*oldest=*/1}},
    KindOfFact<fact::SlabGone>{{8, 1, "slab_gone"}},
    KindOfFact<fact::SessionBegun>{{9, 2, "session_begun", /*oldest=*/1}},
    KindOfFact<fact::SessionEnded>{{10, 1, "session_ended"}},
    KindOfFact<fact::Lent>{{11, 2, "lent", /*oldest=*/1}},
    KindOfFact<fact::Unlent>{{12, 1, "unlent"}},
    KindOfFact<fact::ObjectCreated>{{13, 1, "object_created"}},
    KindOfFact<fact::ObjectSealed>{{14, 1, "object_sealed"}},
    KindOfFact<fact::ObjectDropped>{{15, 1, "object_dropped"}},
    KindOfFact<fact::PartCommitted>{{16, 3, "part_committed", /*oldest=*/2}},
    KindOfFact<fact::PartDropped>{{17, 2, "part_dropped"}},
    KindOfFact<fact::Persisted>{{18, 1, "persisted"}},
    KindOfFact<fact::FilesDeleted>{{19, 1, "files_deleted"}},
    KindOfFact<fact::StepRemoved>{{20, 2, "step_removed", /*oldest=*/1}},
    KindOfFact<fact::Pinned>{{21, 2, "pinned", /*oldest=*/1}},
    KindOfFact<fact::PersistAsked>{{22, 1, "persist_asked"}},
    KindOfFact<fact::StorageRoot>{{23, 1, "storage_root"}},
    KindOfFact<fact::PartLeftSlab>{{24, 1, "part_left_slab"}},
    KindOfFact<fact::JobForgotten>{{25, 1, "job_forgotten"}},
    KindOfFact<fact::MemberLife>{{26, 3, "member_life", /*oldest=*/1}},
    KindOfFact<fact::StepSafe>{{27, 1, "step_safe"}},
    KindOfFact<fact::FetchBegun>{{28, 1, "fetch_begun", /*oldest=*/1, /*skippable=*/true}},
    KindOfFact<fact::RingSeat>{{29, 1, "ring_seat"}},
    KindOfFact<fact::Leaving>{{30, 1, "leaving"}},
};

const FactKind& KindOf(const Fact& fact);

std::string EncodeFact(const Fact& fact);
// nullopt: a fact that this build does not know and may skip. UNIMPLEMENTED, naming kind and
// version, for one that it may not; DATA_LOSS for bytes that are no fact of any build.
StatusOr<std::optional<Fact>> DecodeFact(absl::string_view bytes);

}  // namespace cairn
