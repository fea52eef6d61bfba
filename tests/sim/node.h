// One node: a daemon with the shipped engine, and what outlives the daemon (slabs, the journal, the
// keeper's sessions). Everything that belongs to one node hangs here; what nodes share (time,
// storage, clients, promises) is the world's.
//
// The parts of the model read each other's state openly. A node's state is changed by its own
// functions, by its executor and by the clients that talk to it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/line.h"
#include "server/engine/engine.h"
#include "tests/sim/calls.h"
#include "tests/sim/digest.h"
#include "tests/sim/executor.h"
#include "tests/sim/memory.h"
#include "tests/sim/mirror.h"
#include "tests/sim/promises.h"

namespace cairn::engine::sim {

struct World;
struct Process;

class Node {
 public:
  // `engine_options` is what the engine believes; `budget` is what there really is.
  Node(World* world, int id, const Options& engine_options, uint64_t budget);

  // --- the daemon's life (node.cc)
  void Start(bool first);
  void Crash();
  // One event, its facts and its actions. While one is handled, others wait in line.
  void Apply(Event event);
  // A call of a process, whose answer goes to Clients::OnReply. Prepare only numbers and remembers
  // it; Send then applies it.
  RequestId Prepare(const Process& process, Event event, MonotonicNanos deadline,
                    bool scripted = false);
  void Send(RequestId request);
  void Ask(const Process& process, Event event, MonotonicNanos deadline) {
    Send(Prepare(process, std::move(event), deadline));
  }

  // --- time: completions and the engine's own timer
  MonotonicNanos NextDue() const;  // kNoTime: nothing is to come
  int64_t UnixMs() const;          // by the node's own clock
  void DeliverNext();

  // --- storage (node.cc)
  // What stands at the root from now on, or why nothing can be read there.
  void SeeStorage(StatusOr<RootIdentity> root);

  // --- journal (journaling.cc, snapshot.cc)
  // The facts of one Apply; `event` is nullptr when they come from Start.
  void Journal(const std::vector<Fact>& facts, const Event* event, const Outcome& outcome);
  // The journal becomes a snapshot: at once, or in pieces while events go on.
  void Compact();
  void CompactInPieces();
  void AddPiece();
  // Snapshot and journal say the same, and a daemon started from either gives the same answers.
  void CompareSnapshot() { CompareSnapshot(engine->Snapshot()); }
  void CompareSnapshot(const std::vector<Fact>& snapshot);
  void Replace(std::vector<Fact> snapshot);                            // the journal
  std::string WrongInPieces(const std::vector<Fact>& snapshot) const;  // "": nothing
  std::set<std::string> ToldAfter(const std::vector<Fact>& facts) const;

  // --- what is true (truth.cc)
  bool MemoryHas(const CheckpointKey& key) const;  // whole
  bool KnownToBeHad(const CheckpointKey& key) const {
    return known_stored.contains(key) || MemoryHas(key);
  }
  History HistoryOf(const std::string& job) const;
  std::optional<CheckpointKey> LatestNow(const std::string& job) const;
  // An attempt that the daemon has to know: the newest, or one that left something behind.
  bool Matters(const std::string& job, Attempt attempt) const;
  // "" when the checkpoint can be loaded now, from memory or storage; else what is wrong.
  std::string WrongCheckpoint(const CheckpointKey& key) const;
  // "" when the journal's objects of the part are those its writer asked to commit; else what is
  // wrong.
  std::string WrongManifest(const fact::PartCommitted& committed, const PartPromise& promise) const;

  World& world;
  const int id;

  // --- of this daemon
  Options options;
  std::unique_ptr<Engine> engine;
  Calls calls;
  Executor executor;
  MonotonicNanos wake_at = 0;  // 0: not to be woken
  MonotonicNanos started_at = 0;
  std::set<CheckpointKey> known_stored;  // what this daemon knows to be in storage
  std::set<CheckpointKey> unconfirmed;   // what was, and storage went away since
  std::set<CheckpointKey> deleting;      // by policy; it forgets them when they leave memory, too
  bool storage_here = false;             // as the daemon was told
  int64_t storage_changes = 0;           // how often that was something new
  bool in_start = false;
  bool drained = false;
  bool journal_full = false;
  bool dies_next = false;     // the next Apply is the daemon's last
  bool shrinks_next = false;  // and the next daemon has less memory
  int64_t applies = 0;
  int64_t merges_until =
      0;  // of `applies`: what scans have found is merged in pieces, by then all of it
  bool MayBeMerging() const { return applies <= merges_until; }
  LifeDigest digest;
  // A snapshot in pieces: what was added to it, and what was journaled meanwhile.
  struct InPieces {
    SnapshotCursor cursor;
    std::vector<Fact> facts;
    size_t pieces = 0;
  };
  std::optional<InPieces> in_pieces;

  // --- outlives the daemon
  StatusOr<RootIdentity> root;  // what stands at storage's root
  int64_t clock_ahead_ms = 0;   // of true unix time
  uint64_t true_budget;
  uint64_t allowed_bytes = 0;  // the budget, or what was recovered when that is more
  Memory memory;
  std::vector<Fact> journal;
  Mirror NewMirror() const {
    return Mirror([this](const fact::PartCommitted& f) { return memory.RecordOf(f); });
  }
  Mirror mirror = NewMirror();
  std::map<SessionId, int> keeper_sessions;  // and the process of each

  // What the last Apply did, for the checks of its answers. Several calls may be answered in one
  // Apply (a scan's answer frees all who waited for it), some before and some after a removal.
  struct LastApply {
    std::map<std::string, std::set<CheckpointKey>> latest_during;  // by job, one after the other
    std::set<std::string> nothing_during;          // jobs without a latest, for a while
    std::map<std::string, Attempt> newest_before;  // Mirror::NewestAttempt, where it may have moved
    std::set<PartKey> created;
    std::set<std::string> owned;   // jobs that came into being
    std::set<CheckpointKey> left;  // left memory or storage
    // Attempts that began after the event itself was handled: what it decided did not know them.
    std::set<std::pair<std::string, Attempt>> began_after;
    // Jobs of which somebody decided something, removed a step or set another policy, after another one who
    // had waited, too, had set the policy, which was followed at once.
    std::set<std::string> changed;
  };
  LastApply last;
  bool check_persisted = false;  // storage changed, or a promise about it was made
  std::vector<Event> waiting;    // to be applied after the present one

 private:
  // Begins a daemon; false when it dies in recovery.
  bool TryStart(bool first, bool may_die);
  Recovered Leftovers(const std::vector<Fact>& facts) const;
  void LearnWhatIsStored(const Recovered& recovered);
  void NoteLatestInTurn(const std::vector<Fact>& facts);
  void CarryOut(std::vector<Action>* actions, size_t many);
  void CheckAfterApply();
  std::string ForgottenByAStart(const std::vector<Fact>& snapshot) const;
  std::string AnswersAfter(const std::vector<Fact>& facts) const;

  bool applying_ = false;
};

}  // namespace cairn::engine::sim
