// What the engine wants done, as far as it is done at once. What ends later is the executor's.
#include <variant>

#include "absl/strings/str_cat.h"
#include "tests/sim/checks.h"
#include "tests/sim/node.h"
#include "tests/sim/trace.h"
#include "tests/sim/world.h"

namespace cairn::engine::sim {

void Node::CarryOut(std::vector<Action>* actions, size_t many) {
  for (size_t i = 0; i < many && world.ok(); ++i) {
    Action& action = (*actions)[i];
    world.report.Note([&] { return absl::StrCat("    ", Describe(action)); });
    std::visit([this](auto& a) { Do(a); }, action);
  }
}

void Node::Do(action::Reply& a) {
  if (world.options.lie == Lie::kAnswerLostInside && world.rng.Permille(100)) return;
  world.clients.OnReply(this, std::move(a));
}

void Node::Do(action::MakeSlab& a) {
  memory.slabs[a.slab].bytes = a.bytes;
  memory.making.insert(a.slab);
  if (const uint64_t total = memory.TotalBytes(); total > allowed_bytes) {
    world.report.Fail(
        absl::StrCat("promise 8: slabs take ", total, " bytes, the budget is ", allowed_bytes));
  }
  executor.Begin(a);
}

void Node::Do(action::DestroySlab& a) {
  CheckNothingUses(*this, a.slab, "destroyed");
  const auto slab = memory.slabs.find(a.slab);
  if (slab == memory.slabs.end()) {
    world.report.Fail(absl::StrCat("slab ", a.slab, " is destroyed twice"));
  } else if (slab->second.Seen()) {
    world.report.Fail(absl::StrCat("promise 8: slab ", a.slab,
                                   " is destroyed while somebody sees it: its memory stays "
                                   "and is no longer counted"));
  }
  executor.Begin(a);
}

void Node::Do(action::DeleteFiles& a) {
  if (!a.tombstone) {
    CheckDeletionByPolicy(*this, a.checkpoint);
    deleting.insert(a.checkpoint);
  }
  world.storage.BeginDelete(a.checkpoint);
  executor.Begin(a);
}

void Node::Do(action::EndSession& a) {
  const auto at = keeper_sessions.find(a.session);
  if (at == keeper_sessions.end()) return;
  Process& process = world.clients.processes[at->second];
  keeper_sessions.erase(at);
  if (process.session == a.session) world.clients.SessionOver(&process);
}

}  // namespace cairn::engine::sim
