// What strikes a ring whose members stand in the catalog: its database, who has a rank, how many ranks there are.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/ring/faults.h"
#include "tests/ring/world.h"

namespace cairn::engine::ringsim {

const std::vector<Faults::Kind> Faults::kCatalogFaults = {
    {"the database is away", 4, &Faults::DatabaseAway},
    {"the database is slow", 3, &Faults::DatabaseSlow},
    {"the database does not answer", 3, &Faults::DatabaseDoesNotAnswer},
    {"the database is restored", 4, &Faults::DatabaseRestored},
    {"a node is without the database", 4, &Faults::NodeWithoutDatabase},
    {"a node oversleeps", 4, &Faults::NodeOversleeps},
    {"a node dies, the database away", 3, &Faults::DiesWhileDatabaseIsAway},
    {"oversleeps, the database away", 3, &Faults::OversleepsWhileDatabaseIsAway},
    {"the ring grows", 3, &Faults::RingGrows},
    {"the ring is to shrink", 4, &Faults::RingShrinks},
    {"a node is to be drained", 4, &Faults::NodeIsDrained},
};

MonotonicNanos Faults::LongerThanATakeover() {
  const MonotonicNanos lasts = world_.shape.takeover_after + world_.Millis(2000, 12'000);
  last_end_ = std::max(last_end_, world_.clock.now + lasts + world_.shape.takeover_after);
  return lasts;
}

// --- the database

bool Faults::DatabaseAway() {
  if (world_.catalog->away) return false;
  world_.catalog->away = true;
  world_.In(world_.rng.Permille(600) ? LongerThanATakeover() : ItLasts(),
            [this] { world_.catalog->away = false; });
  return true;
}

bool Faults::DatabaseSlow() {
  world_.catalog->slow = true;
  world_.In(ItLasts(), [this] { world_.catalog->slow = false; });
  return true;
}

bool Faults::DatabaseDoesNotAnswer() {
  world_.catalog->unanswered = world_.rng.Between(50, 400);
  world_.In(ItLasts(), [this] { world_.catalog->unanswered = 0; });
  return true;
}

bool Faults::DatabaseRestored() {
  world_.catalog->RestoreSomeCopy();
  return true;
}

bool Faults::NodeWithoutDatabase() {
  SimNode* node = SomeMember();
  if (node == nullptr) return false;
  const MonotonicNanos lasts = world_.rng.Permille(600) ? LongerThanATakeover() : ItLasts();
  node->without_database_until = world_.clock.now + lasts;
  // The others may not reach it, either.
  if (world_.rng.Permille(300)) Sever({node}, world_.Living());
  return true;
}

// --- who has a rank

bool Faults::NodeOversleeps() {
  SimNode* node = SomeMember();
  if (node == nullptr || !node->well()) return false;
  node->Pause();
  node->overslept = true;
  world_.In(LongerThanATakeover() + 5 * kSecond, [node] {
    if (!node->dead() && node->paused()) node->Resume();
  });
  return true;
}

bool Faults::DiesWhileDatabaseIsAway() {
  SimNode* node = SomeMember();
  if (node == nullptr || !DatabaseAway()) return false;
  Kill(node);
  return true;
}

bool Faults::OversleepsWhileDatabaseIsAway() { return DatabaseAway() && NodeOversleeps(); }

// --- how many ranks there are

bool Faults::RingGrows() {
  const int size = world_.catalog->size();
  if (size == 0 || size >= 10 || !world_.catalog->Resize(size + 1)) return false;
  if (world_.rng.Permille(500)) world_.catalog->AddMachine()->StartDaemon();
  return true;
}

// Its jobs go elsewhere first.
void Faults::TakeOut(SimNode* node) {
  node->Leave(true);
  for (const auto& job : world_.jobs) job->NodeDied(node);
}

// Whoever has the highest rank gives it back, and before a spare has it the ring has one rank less.
bool Faults::RingShrinks() {
  const int size = world_.catalog->size();
  if (size <= 3) return false;
  SimNode* const last = world_.At(size - 1);
  if (last == nullptr || last->dead()) return world_.catalog->Resize(size - 1);
  world_.catalog->ShrinkOnceReleased(true);
  TakeOut(last);
  world_.In(LongerThanATakeover() + ItLasts(), [this, last] {
    world_.catalog->ShrinkOnceReleased(false);
    if (!last->dead() && last->leaves() && last->rank() != kNoRank) last->Leave(false);
  });
  return true;
}

bool Faults::NodeIsDrained() {
  SimNode* node = SomeMember();
  if (node == nullptr || node->leaves()) return false;
  TakeOut(node);
  world_.In(LongerThanATakeover(), [this, node] {
    if (!node->dead() && world_.rng.Permille(700)) node->Leave(false);
  });
  return true;
}

// --- the end

void Faults::EndAllOfCatalog() {
  world_.catalog->MendAll();
  for (const auto& node : world_.nodes) {
    if (node->dead() || !node->leaves()) continue;
    // What nobody else has keeps a node in service for ever.
    if (node->rank() != kNoRank || world_.rng.Permille(500)) node->Leave(false);
  }
}

}  // namespace cairn::engine::ringsim
