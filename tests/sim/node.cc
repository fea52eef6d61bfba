#include "tests/sim/node.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/sim/checks.h"
#include "tests/sim/trace.h"
#include "tests/sim/world.h"

namespace cairn::engine::sim {

Node::Node(World* its_world, int its_id, const Options& engine_options, uint64_t budget)
    : world(*its_world),
      id(its_id),
      options(engine_options),
      executor(this),
      root(its_world->storage.root),
      true_budget(budget) {}

// What a new daemon finds, as the node would read it.
Recovered Node::Leftovers(const std::vector<Fact>& facts) const {
  Recovered recovered;
  recovered.facts = facts;
  Mirror said = NewMirror();
  for (const Fact& fact : facts) said.Take(fact);
  for (const auto& [slab_id, slab] : memory.slabs) {
    recovered.held_slabs.emplace_back(slab_id, slab.bytes);
  }
  for (const auto& [session, process] : keeper_sessions) {
    if (world.clients.processes[process].alive) recovered.live_sessions.push_back(session);
  }
  for (const auto& [key, writers] : said.manifests) {
    for (const auto& [writer, committed] : writers) {
      const Region* region = memory.At(committed.extent);
      if (region == nullptr || region->flipped != kNoTime) continue;
      const std::shared_ptr<const PartTable> table = memory.RecordOf(committed);
      if (table != nullptr) recovered.tables[committed.part] = table;
    }
  }
  return recovered;
}

// Of what is whole in memory, the journal says whether it is in storage too, once that is seen; of the
// rest a scan must tell.
void Node::LearnWhatIsStored(const Recovered& recovered) {
  known_stored.clear();
  unconfirmed.clear();
  deleting.clear();
  for (const auto& [key, digest_of_it] : mirror.persisted) {
    const size_t writers = mirror.CommittedWriters(key);
    const auto world_size = world.promises.complete.find(key);
    if (writers == 0 || world_size == world.promises.complete.end() ||
        static_cast<int32_t>(writers) != world_size->second) {
      continue;
    }
    const auto good =
        std::count_if(recovered.tables.begin(), recovered.tables.end(),
                      [&](const auto& table) { return table.first.checkpoint == key; });
    if (static_cast<size_t>(good) == writers) unconfirmed.insert(key);
  }
}

void Node::Start(bool first) {
  for (int deaths = 0;; ++deaths) {
    if (TryStart(first, /*may_die=*/!first && !world.ending && deaths < 2)) break;
    if (!world.ok()) return;
  }
  SeeStorage(root);
  for (const Event& event : std::exchange(waiting, {})) Apply(event);
}

bool Node::TryStart(bool first, bool may_die) {
  engine = std::make_unique<Engine>(options);
  in_pieces.reset();  // the journal gives it up
  wake_at = 0;
  started_at = world.clock.now;
  drained = journal_full = storage_here = false;
  std::erase_if(keeper_sessions, [&](const auto& session) {
    return !world.clients.processes[session.second].alive;
  });
  allowed_bytes = std::max(true_budget, memory.TotalBytes());
  Recovered recovered = first ? Recovered{} : Leftovers(journal);
  LearnWhatIsStored(recovered);
  in_start = true;
  world.report.Note([&] { return absl::StrCat("daemon starts with ", journal.size(), " facts"); });
  Outcome outcome = engine->Start(world.clock.now, UnixMs(), std::move(recovered));
  ++applies;
  if (world.options.digest) digest.Take(world.clock.now, outcome);
  if (may_die && world.rng.Permille(150)) {
    // A second crash, in recovery: all of it is lost, or it is journaled and some of it is done.
    world.report.Count("crash in recovery");
    if (world.rng.Permille(500)) {
      Journal(outcome.facts, nullptr, outcome);
      CarryOut(&outcome.actions, world.rng.Below(outcome.actions.size() + 1));
    }
    in_start = false;
    executor.Crash();
    return false;
  }
  Journal(outcome.facts, nullptr, outcome);
  CarryOut(&outcome.actions, outcome.actions.size());
  in_start = false;
  CheckAfterApply();
  return true;
}

int64_t Node::UnixMs() const { return world.clock.UnixMs() + clock_ahead_ms; }

void Node::SeeStorage(StatusOr<RootIdentity> seen) {
  root = seen;
  const fact::StorageRoot& met = mirror.storage_root;
  const bool ours = seen.ok() && (met.id.empty() || met.id == seen->id);
  const bool same = ours && met.instance == seen->instance;
  if (storage_here && !same) {
    unconfirmed.merge(known_stored);
    known_stored.clear();
  }
  if (storage_here != ours || !same) ++storage_changes;
  storage_here = ours;
  if (same) known_stored.merge(std::exchange(unconfirmed, {}));
  Apply(event::StorageSeen{std::move(seen)});
}

void Node::Crash() {
  world.report.Count("crash");
  world.report.Note([&] { return std::string("the daemon dies"); });
  executor.Crash();
  // Nobody who waited is answered; calls that change something are repeated.
  for (const auto& [request, call] : calls.outstanding) {
    Process& process = world.clients.processes[call.process];
    if (process.request == request) process.request = 0;
  }
  calls.outstanding.clear();
  waiting.clear();
  if (!world.ending && (std::exchange(shrinks_next, false) || world.rng.Permille(200))) {
    // A smaller budget, or a smallest one.
    true_budget =
        world.rng.Permille(500) ? world.clients.jobs.size() * 256 * 1024 : true_budget * 3 / 4;
    true_budget = std::max<uint64_t>(true_budget / kPageBytes * kPageBytes, 256 * 1024);
    options.budget_bytes = true_budget;
    options.pool_slabs.clear();
    world.report.Count("budget shrunk");
    world.report.Note([&] { return absl::StrCat("the budget is now ", true_budget); });
  }
  Start(/*first=*/false);
}

void Node::Apply(Event event) {
  if (!world.ok()) return;
  if (applying_) {
    waiting.push_back(std::move(event));
    return;
  }
  applying_ = true;
  ++applies;
  world.report.Note([&] { return absl::StrCat("→ ", Describe(event)); });
  const bool dies = std::exchange(dies_next, false);
  const Event kept = event;
  Outcome outcome = engine->Apply(world.clock.now, std::move(event));
  if (world.options.digest) digest.Take(world.clock.now, outcome);
  if (!dies) {
    Journal(outcome.facts, &kept, outcome);
    AddPiece();
    CarryOut(&outcome.actions, outcome.actions.size());
    CheckAfterApply();
  } else if (world.rng.Permille(600)) {
    // Journaled, and some of it done.
    Journal(outcome.facts, &kept, outcome);
    CarryOut(&outcome.actions, world.rng.Below(outcome.actions.size() + 1));
  } else {
    world.report.Count("facts lost with their actions");
  }
  applying_ = false;
  if (dies && world.ok()) return Crash();
  while (!waiting.empty() && world.ok()) {
    const Event next = std::move(waiting.front());
    waiting.erase(waiting.begin());
    Apply(next);
  }
}

void Node::CarryOut(std::vector<Action>* actions, size_t many) {
  for (size_t i = 0; i < many && world.ok(); ++i) {
    world.report.Note([&] { return absl::StrCat("    ", Describe((*actions)[i])); });
    executor.CarryOut(&(*actions)[i]);
  }
}

RequestId Node::Prepare(const Process& process, Event event, MonotonicNanos deadline,
                        bool scripted) {
  const RequestId request = calls.next_request++;
  if (Caller* caller = CallerOf(&event); caller != nullptr) {
    *caller = {request, process.session, process.uid, process.uid};
    if (Is<event::Hello>(event)) caller->session = 0;
  }
  calls.outstanding[request] = {process.id, deadline, applies + 1, std::move(event), scripted};
  return request;
}

void Node::Send(RequestId request) { Apply(Event(calls.outstanding.at(request).event)); }

void Node::CheckAfterApply() {
  if (!world.ok()) return;
  const std::string broken = engine->CheckInvariants();
  if (!broken.empty()) return world.report.Fail(absl::StrCat("invariant: ", broken));
  CheckCallers(*this);
  if (world.ok() && std::exchange(check_persisted, false)) CheckPersisted(*this);
}

MonotonicNanos Node::NextDue() const {
  return std::min(executor.Due(), wake_at == 0 ? kNoTime : wake_at);
}

void Node::DeliverNext() {
  if (wake_at == 0 || executor.Due() < wake_at) return executor.EndNext();
  // A timer is never early.
  world.clock.now += static_cast<MonotonicNanos>(world.rng.Below(1000));
  wake_at = 0;
  Apply(event::Tick{});
}

}  // namespace cairn::engine::sim
