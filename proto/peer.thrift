// What the members of a ring say to each other: control only, the bytes of checkpoints travel over the
// transport. README.md beside this file has the frames, the order of calls and who is believed. Field numbers
// are never reused; a member ignores fields that it does not know.
//
// All that `say` carries is state, not events: a message that is lost is made good by the next one of its
// kind, and one that comes twice changes nothing.
//
// Lengths, numbers and versions are unsigned at the members and travel as i64; a negative one is refused. User
// and group ids travel as the i32 with the same bits.

include "cairn.thrift"

namespace cpp cairn.peerwire
namespace py cairn_peer_wire
namespace java io.cairn.peerwire
namespace go cairn_peer_wire
namespace rs cairn_peer_wire

const i32 PEER_PROTOCOL_VERSION = 1

// --- who speaks ----------------------------------------------------------------------------------

// One life of one rank. `instance` are 16 random bytes; of two lives the one with the greater incarnation is
// the newer one.
struct Member {
  1: i32 rank,
  2: i64 incarnation,
  3: binary instance,
}
// Stands in every call.
struct Sender {
  1: string cluster,
  2: Member member,
}
// A ring whose members stand in the catalog, as the speaker knows it. Of two views the one of the greater epoch has the
// size, and of each rank the greater incarnation counts.
struct RingSeat {
  1: i64 incarnation,       // 0: nobody ever had the rank
  2: string address,        // empty: nobody has it
}
struct RingView {
  1: i64 epoch,
  2: list<RingSeat> seats,  // by rank; at most 1,024
}
struct Greeting {
  1: Sender sender,
  2: i32 protocol,
  3: string address,        // ADDRESS:PORT that the speaker listens at
  4: string data_address,   // where its transport is read
  5: i64 unix_ms,           // its clock
  6: optional Member seen,  // of all lives of the listener's rank that the speaker met, the newest
  7: optional string nodes, // its ring.nodes: RANK=ADDRESS:PORT,… in the order of ranks
  8: optional RingView view, // instead, where the members stand in the catalog
}
struct Greeted {
  1: Greeting greeting,     // of the member that was called
  // What it answers to all other calls for now; absent: it has met the caller at the caller's address.
  2: optional cairn.Error refused,
}

// --- what is spoken of ---------------------------------------------------------------------------

struct Checkpoint {
  1: i64 step,
  2: i64 attempt,
  3: i32 revision,
}
struct Part {
  1: i64 step,
  2: i64 attempt,
  3: i32 revision,
  4: i32 writer,
}
// 32 hexadecimal digits wherever a digest stands: of the part's manifest, or of a complete checkpoint.

// --- between an owner and its backup -------------------------------------------------------------

struct Want {
  1: string job,
  2: Part part,
  3: string digest,
  4: i64 manifest_bytes,
  5: i64 bytes,             // of its objects, each rounded up to pages of 4 KiB
  6: i32 world_size,
  7: i32 owner_uid,
  8: i32 owner_gid,
  9: bool target,           // before the others
  10: i32 owner = -1,       // whose part it is, where the speaker stands in for a lost member
}
// All that the speaker wants the listener to keep, in the order in which it is wanted.
struct WantList {
  1: i64 version,           // grows
  2: list<Want> wants,
  3: i64 epoch = 0,         // of the ring's size; a list of another epoch than the listener's is passed over
}

// NO_ROOM: refused, and what the owner lets go of its other parts would be room.
enum HaveState { UNDER_WAY = 0, HELD = 1, REFUSED = 2, NO_ROOM = 3 }
struct Have {
  1: string job,
  2: Part part,
  3: string digest,
  4: HaveState state,
  5: string why,            // REFUSED, NO_ROOM: the arithmetic
  6: i64 done_bytes,        // UNDER_WAY; NO_ROOM: so many more would have to be free
}
// All that the speaker holds, is fetching or has refused of the listener's parts.
struct HaveList {
  1: i64 wants_version,     // of the newest want-list that it has seen
  2: i64 version,
  3: list<Have> haves,
}

enum Fate { KEEP = 0, REMOVED = 1, ABANDONED = 2, SUPERSEDED = 3, SURPLUS = 4, GIVEN_UP = 5 }
// The owner's answer to an entry of a have-list. Nothing else permits the holder to let a part go: that it
// stands in no want-list says nothing.
struct Release {
  1: string job,
  2: Part part,
  3: string digest,
  4: Fate fate,
  5: optional Checkpoint by, // SUPERSEDED: by this one of the same job, which is protected
                             // SURPLUS: the listener is no backup, and all backups hold it
                             // GIVEN_UP: the newest of a finished job, whose owner has let its own part go for room
}
struct ReleaseList {
  1: i64 haves_version,     // of the list that is answered; SURPLUS counts for 2 s after that one was said
  2: list<Release> releases,
}

// --- between a member and a job's home -----------------------------------------------------------

enum PartRole { OWN = 0, REPLICA = 1, FETCHED = 2 }

struct ReportedAttempt {
  1: i64 attempt,
  2: i64 first,             // step of its first create; -1: none yet
  3: binary lineage,        // u8 open, u32 count, then for each entry i64 attempt, i64 step; little-endian
  4: i64 unix_ms,
}
struct ReportedPart {
  1: Part part,
  2: i32 world_size,
  3: string digest,
  4: PartRole role,
  5: i32 owner,             // rank whose writer committed it; -1: in no ring
  6: i64 bytes,
  7: bool in_memory,
  8: bool stored,
  9: optional binary names, // hashes of its objects' names, ascending, 8 bytes each, little-endian
}
struct WriterId {
  1: i64 attempt,
  2: i32 writer,
  3: i32 world_size,        // of the steps of which it is that writer
}
struct ReportedWriter {
  1: i64 attempt,
  2: i32 writer,
  3: i64 reached_step,      // the highest that it has entered; -1: none
  4: i32 reached_revision,
  5: bool alive,
  6: list<i64> given_up,    // step, revision, step, revision …: at most 128 pairs
  7: i32 world_size,        // as in WriterId
}
// Processes of one launcher's start, or of none, that save in the newest attempt: a newer one waits for their end.
struct SavingProcesses {
  1: i64 attempt,
  2: string run,            // as at hello; empty: no launcher told
  3: i32 restart,
  4: list<i32> pids,        // the lowest 16
}
// How the speaker's report of a job has changed since the one with the number `after`; 0: all of it.
struct Report {
  1: string job,
  2: i64 after,
  3: i64 number,            // of the report that results
  4: bool owned,
  5: i32 owner_uid,
  6: i32 owner_gid,
  7: cairn.JobPolicy policy,
  8: list<ReportedAttempt> attempts,  // new or changed, as all lists that are not called gone
  9: list<i64> attempts_gone,
  10: list<ReportedPart> parts,
  11: list<Part> parts_gone,
  12: list<ReportedWriter> writers,
  13: list<WriterId> writers_gone,
  14: list<Checkpoint> published,
  15: list<Checkpoint> published_gone,
  16: optional Checkpoint target,     // always said when there is one
  17: list<SavingProcesses> saving,   // always said: at most 64
  18: i64 answers,                    // a question of the listener, asked before this was made; 0: none
}
// The listener lacks what a change builds on, or asks for the first time: a whole report.
struct ReportWanted {
  1: string job,
  2: i64 question,          // the report says that it answers it; 0: no matter
}

struct RestsOn {
  1: i64 number,            // of the member's report
  2: Member member,
}
struct SavingMember {
  1: i32 rank,
  2: list<SavingProcesses> saving,
}
struct CheckpointVerdict {
  1: Checkpoint checkpoint,
  2: i32 world_size,
  3: bool complete,
  4: string digest,         // empty unless complete
  5: i64 bytes,
  6: bool in_memory,
  7: bool stored,
  8: i32 replicas,
  9: bool hopeless,
  10: string conflict,
}
struct Verdict {
  1: string job,
  2: list<RestsOn> reports,
  3: list<i32> silent,      // ranks that were not heard
  4: bool conclusive,       // every member has answered, or was silent for ring.lost_after_seconds
  5: i64 head,
  6: bool head_decided,
  7: list<CheckpointVerdict> checkpoints,
  8: optional Checkpoint latest,
  9: optional Checkpoint protect,
  10: optional Checkpoint target,
  11: i32 asked,            // replicas
  12: string why,
  13: bool owned,
  14: i32 owner_uid,
  15: i32 owner_gid,
  16: cairn.JobPolicy policy,
  17: list<ReportedAttempt> attempts,
  18: list<SavingMember> saving,   // of the members that were heard
  19: i64 safe_attempt,     // of the highest step that was ever protected; 0: none was
  20: i64 safe_step = -1,
  21: i64 answers,          // a question of the listener, asked before this was made; 0: none
}
// The listener says its record of the job first, if it has one: a verdict does not tell how often a policy was said.
struct VerdictWanted {
  1: string job,
  2: i64 question,          // the verdict says that it answers it; 0: no matter
}

// Where the parts of a checkpoint are, asked of the home: of those that have a name, or of all (empty).
struct PlacesWanted {
  1: string job,
  2: Checkpoint checkpoint,
  3: string name,
}
struct Place {
  1: i32 writer,
  2: string digest,
  3: i32 world_size,
  4: i64 bytes,             // of its objects, each rounded up to pages of 4 KiB
  5: i32 owner,             // rank
  6: list<i32> holders,     // ranks in whose memory it is
}
struct PlacesSaid {
  1: string job,
  2: Checkpoint checkpoint,
  3: string name,
  4: list<Place> places,
}

// The decisions of a job, as journals have them.
struct Record {
  1: string job,
  2: binary encoded,
  3: i64 number = 0,        // of the speaker, which grows with what its record says; 0: no answer is wanted
}
// All that the listener's record of the job said up to this number is in the speaker's journal.
struct RecordHeld {
  1: string job,
  2: i64 number,
}

// One of these.
struct Message {
  1: optional WantList& want_list,
  2: optional HaveList& have_list,
  3: optional ReleaseList& release_list,
  4: optional Report& report,
  5: optional ReportWanted& report_wanted,
  6: optional Verdict& verdict,
  7: optional VerdictWanted& verdict_wanted,
  8: optional Record& record,
  9: optional PlacesWanted& places_wanted,
  10: optional PlacesSaid& places,
  11: optional RecordHeld& record_held,
}

struct Said {
  1: Member member,         // who has answered
  // Why messages were refused, if any were: the others count all the same.
  2: list<string> refused,
}

// --- reading a part ------------------------------------------------------------------------------

struct GrantQuestion {
  1: string job,
  2: Part part,
  3: string digest,         // empty: whatever is held
  4: i64 timeout_ms,        // how long the caller waits
}
struct Granted {
  1: i64 grant,
  2: binary token,          // 16 bytes that the reader shows to the transport
  3: binary manifest,
  4: list<binary> regions,  // one for each object, in the manifest's order: where the transport finds it
  5: i64 valid_ms,          // without progress
}

// --- the service ---------------------------------------------------------------------------------

service Peer {
  // First on every connection.
  Greeted greet(1: Greeting greeting) throws (1: cairn.Error error),
  // About once a second, with nothing to say as well: that is how members know of each other's life. It
  // is answered once all messages were taken.
  Said say(1: Sender sender, 2: list<Message> messages) throws (1: cairn.Error error),
  // NOT_FOUND: the part is not held here.
  Granted grant(1: Sender sender, 2: GrantQuestion question) throws (1: cairn.Error error),
  // What the caller's transport asks of the listener's, in their own words (server/transport/rdma_wire.h).
  binary askTransport(1: Sender sender, 2: binary question) throws (1: cairn.Error error),
  // Not needed any more; numbers that are unknown are passed over. `idle`: those of which no read is under way, nor
  // will one be; to end them cuts nothing.
  void endGrants(1: Sender sender, 2: list<i64> grants, 3: list<i64> idle) throws (1: cairn.Error error),
}
