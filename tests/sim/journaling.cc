// The facts of one Apply: checked against what was promised, then kept.
#include <variant>

#include "absl/strings/str_cat.h"
#include "tests/sim/checks.h"
#include "tests/sim/node.h"
#include "tests/sim/trace.h"
#include "tests/sim/world.h"

namespace cairn::engine::sim {
namespace {

// A fact before the mirror has it. One overload per kind: a new fact does not compile until it is
// decided what must hold when it is journaled.
class NewFact {
 public:
  NewFact(Node* node, const Event* event) : node_(*node), event_(event) {}

  void On(const fact::DaemonLife&) {}
  void On(const fact::Job&) {}
  void On(const fact::JobForgotten&) {}
  void On(const fact::AttemptBegun& f) {
    CheckAttempt(node_, f, event_);
    if (f.lineage.Unknown()) node_.world.report.Count("origin unknown at first");
  }
  void On(const fact::WriterProcess&) {}
  void On(const fact::StepWorld&) {}
  void On(const fact::LineDecided&) {}
  void On(const fact::Slab&) {}
  void On(const fact::SlabGone&) {}
  void On(const fact::SessionBegun&) {}
  void On(const fact::SessionEnded&) {}
  void On(const fact::Lent&) {}
  void On(const fact::Unlent&) {}
  void On(const fact::ObjectCreated&) {}
  void On(const fact::ObjectSealed&) {}
  void On(const fact::ObjectDropped&) {}  // CheckDrops sees all drops of one Apply together
  void On(const fact::PartDropped&) {}    // likewise
  void On(const fact::PartLeftSlab&) {}   // likewise
  void On(const fact::PartCommitted& f);
  void On(const fact::Persisted& f) {
    (node_.storage_here ? node_.known_stored : node_.unconfirmed).insert(f.checkpoint);
    if (node_.storage_here) node_.unconfirmed.erase(f.checkpoint);
    node_.check_persisted = true;
  }
  void On(const fact::FilesDeleted& f) {
    node_.known_stored.erase(f.checkpoint);
    node_.unconfirmed.erase(f.checkpoint);
  }
  void On(const fact::StepRemoved& f) {
    const auto is_removed = [&](const CheckpointKey& key) {
      return key.job == f.job && key.step == f.step && key.attempt >= f.first_attempt &&
             key.attempt <= f.up_to_attempt;
    };
    std::erase_if(node_.known_stored, is_removed);
    std::erase_if(node_.unconfirmed, is_removed);
  }
  void On(const fact::Pinned&) {}
  void On(const fact::PersistAsked&) {}
  void On(const fact::StorageRoot&) {}
  void On(const fact::MemberLife&) {}
  void On(const fact::RingSeat&) {}
  void On(const fact::Leaving&) {}
  void On(const fact::StepSafe&) {}
  void On(const fact::FetchBegun&) {}

 private:
  Node& node_;
  const Event* event_;
};

void NewFact::On(const fact::PartCommitted& f) {
  World& world = node_.world;
  PartPromise& part = world.promises.parts[f.part];
  // One of nothing that was dropped, and whose commit is repeated, differs in its time alone.
  const auto known = node_.mirror.manifests.find(f.part.checkpoint);
  const bool there_now =
      known != node_.mirror.manifests.end() && known->second.contains(f.part.writer);
  if (part.committed && part.digest != f.digest && (there_now || !part.objects.empty())) {
    world.report.Fail(absl::StrCat("promise 3: ", f.part.DebugString(),
                                   " was committed twice, with other content"));
  }
  if (const std::string wrong = node_.WrongManifest(f, part); !wrong.empty()) {
    world.report.Fail(absl::StrCat("promise 2: ", f.part.DebugString(), " is committed ", wrong));
  }
  part.committed = true;
  part.digest = f.digest;
  const auto there = static_cast<int32_t>(node_.mirror.CommittedWriters(f.part.checkpoint));
  if (there + 1 == f.world_size) {
    world.promises.complete[f.part.checkpoint] = f.world_size;
    world.report.Count("complete");
  }
}

bool IsDrop(const Fact& fact) {
  return std::holds_alternative<fact::ObjectDropped>(fact) ||
         std::holds_alternative<fact::PartDropped>(fact) ||
         std::holds_alternative<fact::PartLeftSlab>(fact);
}

bool Loses(Lie lie, const Fact& fact) {
  return (lie == Lie::kJournalLosesCommit && std::holds_alternative<fact::PartCommitted>(fact)) ||
         (lie == Lie::kJournalLosesLent && std::holds_alternative<fact::Lent>(fact));
}

// Removals, attempts, decisions and drops move `latest`: answers of the same Apply may be from before.
bool MovesLatest(const Fact& fact) {
  return std::holds_alternative<fact::StepRemoved>(fact) ||
         std::holds_alternative<fact::AttemptBegun>(fact) ||
         std::holds_alternative<fact::LineDecided>(fact) || IsDrop(fact);
}

void NoteLatest(const Node& node, Node::LastApply* last) {
  for (const Job& job : node.world.clients.jobs) {
    const std::optional<CheckpointKey> latest = node.LatestNow(job.name);
    if (latest) {
      last->latest_during[job.name].insert(*latest);
    } else {
      last->nothing_during.insert(job.name);
    }
  }
}

Node::LastApply WhatChanges(const Node& node, const std::vector<Fact>& facts, const Event* event) {
  // Else a caller's time was up meanwhile, and its create went on.
  const bool of_event = event == nullptr || Is<event::JobScanned>(*event);

  Node::LastApply now;
  bool moves_latest = false;
  // A policy is followed when it is set, and when a persist has ended, whatever callers that had waited
  // do after in the same event.
  std::set<std::string> policy_followed;
  if (const auto* persisted = event == nullptr ? nullptr : std::get_if<event::Persisted>(event)) {
    policy_followed.insert(persisted->checkpoint.job);
  }
  for (const Fact& fact : facts) {
    moves_latest |= MovesLatest(fact);
    if (const auto* dropped = std::get_if<fact::ObjectDropped>(&fact)) {
      now.left.insert(dropped->part.checkpoint);
    } else if (const auto* left = std::get_if<fact::PartLeftSlab>(&fact)) {
      now.left.insert(left->part.checkpoint);
    } else if (const auto* emptied = std::get_if<fact::PartDropped>(&fact)) {
      now.left.insert(emptied->part.checkpoint);  // it may have held no object
    } else if (const auto* deleted = std::get_if<fact::FilesDeleted>(&fact)) {
      now.left.insert(deleted->checkpoint);
    } else if (const auto* created = std::get_if<fact::ObjectCreated>(&fact)) {
      now.created.insert(created->part);
    } else if (const auto* begun = std::get_if<fact::AttemptBegun>(&fact)) {
      const auto known = node.mirror.attempts.find(begun->job);
      const bool fresh =
          known == node.mirror.attempts.end() || !known->second.contains(begun->attempt);
      if (fresh && (!of_event || policy_followed.contains(begun->job)))
        now.began_after.insert({begun->job, begun->attempt});
    } else if (const auto* made = std::get_if<fact::LineDecided>(&fact)) {
      if (policy_followed.contains(made->record.job)) now.changed.insert(made->record.job);
    } else if (const auto* removed = std::get_if<fact::StepRemoved>(&fact)) {
      if (policy_followed.contains(removed->job)) now.changed.insert(removed->job);
    } else if (const auto* job = std::get_if<fact::Job>(&fact)) {
      const bool known = node.mirror.jobs.contains(job->job);  // else its owner is learned
      const bool fresh = (known ? policy_followed : now.owned).insert(job->job).second;
      if (known && !fresh) now.changed.insert(job->job);
    }
  }
  if (!moves_latest) return now;
  NoteLatest(node, &now);
  for (const Job& job : node.world.clients.jobs) {
    now.newest_before[job.name] = node.mirror.NewestAttempt(job.name);
  }
  return now;
}

}  // namespace

// Callers who waited for storage go on one after the other, each with what the one before left.
void Node::NoteLatestInTurn(const std::vector<Fact>& facts) {
  if (std::none_of(facts.begin(), facts.end(), MovesLatest)) return;
  const Mirror before = mirror;
  for (const Fact& fact : facts) {
    mirror.Take(fact);
    if (MovesLatest(fact)) NoteLatest(*this, &last);
  }
  mirror = before;
}

void Node::Journal(const std::vector<Fact>& facts, const Event* event, const Outcome& outcome) {
  NoteRefusals(this, outcome);
  last = WhatChanges(*this, facts, event);
  if (event != nullptr &&
      (MayBeMerging() || Is<event::LineNumbersRead>(*event) || Is<event::Tick>(*event))) {
    NoteLatestInTurn(facts);
  }
  const bool moves = std::any_of(facts.begin(), facts.end(), MovesLatest);
  bool drops = false;
  for (const Fact& fact : facts) {
    world.report.Note([&] { return absl::StrCat("    fact ", Describe(fact)); });
    if (!Loses(world.options.lie, fact)) {
      journal.push_back(fact);
      if (in_pieces.has_value()) in_pieces->facts.push_back(fact);
    }
    NewFact check(this, event);
    std::visit([&](const auto& f) { check.On(f); }, fact);
    if (IsDrop(fact)) {
      drops = true;
    } else {
      mirror.Take(fact);
      // Callers that had waited for a commit go on before one that removes it.
      const bool commits = std::holds_alternative<fact::PartCommitted>(fact);
      if (MovesLatest(fact) || (commits && moves)) NoteLatest(*this, &last);
    }
  }
  if (!drops) return;
  CheckDrops(*this, facts, event, outcome);
  // One that is not known to be in storage is forgotten when it leaves memory.
  std::erase_if(unconfirmed, [&](const CheckpointKey& key) {
    return !in_start && MemoryHas(key) && last.left.contains(key);
  });
  // Nor is one whose files go, unless somebody asked for its memory alone, or an object of it broke.
  const auto* remove = event == nullptr ? nullptr : std::get_if<event::Remove>(event);
  std::set<CheckpointKey> dropped;
  for (const Fact& fact : facts) {
    const auto* part = std::get_if<fact::PartDropped>(&fact);
    if (part != nullptr) dropped.insert(part->part.checkpoint);
  }
  std::erase_if(known_stored, [&](const CheckpointKey& key) {
    return remove == nullptr && deleting.contains(key) && MemoryHas(key) && dropped.contains(key) &&
           last.left.contains(key);
  });
  for (const Fact& fact : facts) {
    if (IsDrop(fact)) mirror.Take(fact);
  }
}

}  // namespace cairn::engine::sim
