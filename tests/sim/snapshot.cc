// The engine's snapshot against the journal it replaces.
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tests/sim/node.h"
#include "tests/sim/trace.h"
#include "tests/sim/world.h"

namespace cairn::engine::sim {
namespace {

// "" when both say the same; else what differs. A snapshot may leave out slabs that are gone.
std::string Difference(const Mirror& snapshot, const Mirror& journal) {
  if (snapshot.sessions != journal.sessions) return "sessions";
  if (snapshot.leases != journal.leases) return "leases";
  if (snapshot.manifests != journal.manifests) {
    for (const auto& [key, parts] : journal.manifests) {
      const auto there = snapshot.manifests.find(key);
      if (there == snapshot.manifests.end() || there->second != parts) {
        return "parts of " + key.DebugString();
      }
    }
    return "parts";
  }
  if (snapshot.jobs != journal.jobs) return "jobs";
  if (snapshot.pinned != journal.pinned) return "pinned";
  if (snapshot.removed != journal.removed) return "removed";
  if (snapshot.storage_root != journal.storage_root) return "storage root";
  if (snapshot.objects != journal.objects) {
    for (const auto& [part, objects] : journal.objects) {
      const auto* there = snapshot.ObjectsOf(part);
      if (there == nullptr || *there != objects) return "objects of " + part.DebugString();
    }
    return "objects";
  }
  for (const auto& [id, slab] : snapshot.slabs) {
    const auto at = journal.slabs.find(id);
    if (at == journal.slabs.end() || !(at->second == slab)) return "slabs";
  }
  return "";
}

}  // namespace

void Node::Compact() {
  world.report.Count("snapshot");
  in_pieces.reset();  // as the journal does
  const std::vector<Fact> snapshot = engine->Snapshot();
  CompareSnapshot(snapshot);
  if (world.ok()) Replace(snapshot);
}

void Node::CompactInPieces() {
  if (!in_pieces.has_value()) in_pieces.emplace();
}

// With each event, of any size.
void Node::AddPiece() {
  if (!in_pieces.has_value()) return;
  const size_t most = world.rng.Permille(300) ? 1 : world.rng.Between(2, 40);
  const std::vector<Fact> piece = engine->SnapshotPiece(&in_pieces->cursor, most);
  in_pieces->facts.insert(in_pieces->facts.end(), piece.begin(), piece.end());
  ++in_pieces->pieces;
  if (!in_pieces->cursor.done()) return;
  world.report.Count(in_pieces->pieces > 1 ? "snapshot in pieces" : "snapshot in one piece");
  const std::vector<Fact> snapshot = std::move(in_pieces->facts);
  in_pieces.reset();
  if (const std::string what = WrongInPieces(snapshot); !what.empty()) {
    return world.report.Fail("snapshot in pieces: " + what);
  }
  CompareSnapshot(snapshot);
  if (world.ok()) Replace(snapshot);
}

// What a daemon started from these facts would tell of itself.
std::set<std::string> Node::ToldAfter(const std::vector<Fact>& facts) const {
  Engine other(options);
  other.Start(world.clock.now, UnixMs(), Leftovers(facts));
  std::set<std::string> told;
  for (const Fact& fact : other.Snapshot()) {
    if (std::holds_alternative<fact::DaemonLife>(fact)) continue;  // ids that were set aside
    told.insert(Describe(fact) + EncodeFact(fact));
  }
  return told;
}

// The journal has more than a snapshot in one go, of what need not be remembered, and may have less, of
// what storage told. Pieces lack nothing that both have, and have nothing that neither has.
std::string Node::WrongInPieces(const std::vector<Fact>& snapshot) const {
  const std::set<std::string> pieces = ToldAfter(snapshot), all = ToldAfter(engine->Snapshot()),
                              journaled = ToldAfter(journal);
  for (const std::string& fact : pieces) {
    if (!journaled.contains(fact) && !all.contains(fact)) return "nobody said " + fact;
  }
  for (const std::string& fact : journaled) {
    if (all.contains(fact) && !pieces.contains(fact)) return "they lack " + fact;
  }
  return "";
}

void Node::Replace(std::vector<Fact> snapshot) {
  journal = std::move(snapshot);
  const Mirror before = std::exchange(mirror, NewMirror());
  for (const Fact& fact : journal) mirror.Take(fact);
  // The engine need not remember attempts that left nothing behind, but the model's line has them.
  for (const auto& [job, attempts] : before.attempts) {
    for (const auto& [attempt, fact] : attempts) mirror.attempts[job].try_emplace(attempt, fact);
  }
}

void Node::CompareSnapshot(const std::vector<Fact>& snapshot) {
  Mirror said = NewMirror();
  for (const Fact& fact : snapshot) said.Take(fact);
  if (const std::string what = Difference(said, mirror); !what.empty()) {
    return world.report.Fail(absl::StrCat("snapshot: ", what, " are not what the journal says"));
  }
  if (const std::string what = ForgottenByAStart(snapshot); !what.empty()) {
    return world.report.Fail(absl::StrCat("snapshot: a start from it forgets ", what));
  }
  const std::string from_journal = AnswersAfter(journal), from_snapshot = AnswersAfter(snapshot);
  if (from_journal != from_snapshot) {
    world.report.Fail(absl::StrCat("snapshot: a daemon started from the journal answers\n",
                                   from_journal, "one started from the snapshot\n", from_snapshot));
  } else if (absl::string_view(from_journal).substr(0, 9) == "invariant") {
    world.report.Fail(from_journal);
  }
}

// What a daemon started from the snapshot does not remember as the snapshot, and the facts said at
// the start, have it; "" when nothing.
std::string Node::ForgottenByAStart(const std::vector<Fact>& snapshot) const {
  Engine other(options);
  const Outcome start = other.Start(world.clock.now, UnixMs(), Leftovers(snapshot));
  Mirror said = NewMirror(), remembered = NewMirror();
  for (const Fact& fact : snapshot) said.Take(fact);
  for (const Fact& fact : start.facts) said.Take(fact);
  for (const Fact& fact : other.Snapshot()) remembered.Take(fact);
  return Difference(remembered, said);
}

// What a daemon started from these facts says of every job, or which invariant it breaks.
std::string Node::AnswersAfter(const std::vector<Fact>& facts) const {
  Engine other(options);
  other.Start(world.clock.now, UnixMs(), Leftovers(facts));
  other.Apply(world.clock.now, event::StorageSeen{root});
  const std::string broken = other.CheckInvariants();
  if (!broken.empty()) return absl::StrCat("invariant after a restart: ", broken);
  std::string all;
  for (const Job& job : world.clients.jobs) {
    action::Record about{job.name, /*attempts=*/true, {}, {}};
    for (const auto& [key, writers] : mirror.manifests) {
      if (key.job != job.name) continue;
      about.checkpoints.push_back(key);
      for (const auto& [writer, committed] : writers) about.parts.push_back(committed.part);
    }
    const Engine::Description described = other.Describe(about);
    if (described.job) absl::StrAppend(&all, job.name, " of ", described.job->owner_uid, "\n");
    for (const CheckpointInfo& info : described.complete) {
      absl::StrAppend(&all, info.key.DebugString(), " ", info.digest, " ", info.bytes,
                      " line=", info.on_line, " pinned=", info.facts.pinned,
                      " persisted=", info.facts.persisted, " resident=", info.facts.resident,
                      " broken=", info.facts.broken, "\n");
    }
    for (const auto& part : described.parts) {
      absl::StrAppend(&all, part.key.DebugString(), " ", part.digest, " ", part.bytes, "\n");
    }
  }
  return all;
}

}  // namespace cairn::engine::sim
