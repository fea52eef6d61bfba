#include "tests/ring/faults.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/ring/world.h"

namespace cairn::engine::ringsim {

const Faults::Kind Faults::kFaults[] = {
    {"a daemon dies", 6, &Faults::DaemonDies},
    {"a node dies", 8, &Faults::NodeDies},
    {"two nodes die", 2, &Faults::TwoNodesDie},
    {"a node pauses", 5, &Faults::NodePauses},
    {"a node is in safe mode", 2, &Faults::NodeInSafeMode},
    {"a link breaks", 4, &Faults::LinkBreaks},
    {"a link breaks one way", 3, &Faults::LinkBreaksOneWay},
    {"a node is cut off", 4, &Faults::NodeIsCutOff},
    {"the ring splits", 3, &Faults::RingSplits},
    {"bad weather", 5, &Faults::BadWeather},
    {"a data port is blocked", 3, &Faults::DataPortBlocked},
    {"storage is slow", 3, &Faults::StorageSlow},
    {"storage is away", 3, &Faults::StorageAway},
    {"a clock jumps", 2, &Faults::ClockJumps},
    {"a rank is claimed twice", 2, &Faults::RankClaimedTwice},
    {"replaced while it lives", 2, &Faults::ReplacedWhileItLives},
};

void Faults::Begin(MonotonicNanos until) {
  until_ = until;
  mean_ = world_.Millis(1000, 12'000);
  Next(world_.Millis(1000, 8000));
}

void Faults::Next(MonotonicNanos delay) {
  if (world_.clock.now + delay >= until_) return;
  world_.In(delay, [this] {
    StrikeOne();
    Next(mean_ * static_cast<MonotonicNanos>(world_.rng.Between(20, 2000)) / 1000);
  });
}

void Faults::StrikeOne() {
  if (world_.ending) return;
  const Kind& kind = *Draw();
  world_.report.Note([&] { return absl::StrCat("--- ", kind.name); });
  if ((this->*kind.strike)()) world_.report.Count(kind.name);
  last_end_ = std::max(last_end_, world_.clock.now);
  world_.truth.CheckAll();
}

const Faults::Kind* Faults::Draw() {
  std::vector<const Kind*> kinds;
  for (const Kind& kind : kFaults) kinds.push_back(&kind);
  if (world_.catalog != nullptr) {
    for (const Kind& kind : kCatalogFaults) kinds.push_back(&kind);
  }
  int sum = 0;
  for (const Kind* kind : kinds) sum += kind->weight;
  int drawn = static_cast<int>(world_.rng.Below(static_cast<uint64_t>(sum)));
  for (const Kind* kind : kinds) {
    drawn -= kind->weight;
    if (drawn < 0) return kind;
  }
  return kinds.back();
}

bool Faults::Calm() const {
  return world_.clock.now > last_end_ + 5 * kSecond + world_.shape.lost_after_seconds * kSecond;
}

MonotonicNanos Faults::ItLasts() {
  const MonotonicNanos lasts =
      world_.rng.Permille(500) ? world_.Millis(200, 5000) : world_.Millis(5000, 40'000);
  last_end_ = std::max(last_end_, world_.clock.now + lasts);
  return lasts;
}

SimNode* Faults::SomeMember() {
  const std::vector<SimNode*> members = world_.Members();
  return members.empty() ? nullptr : world_.rng.Pick(members);
}

void Faults::EndAll() {
  world_.ending = true;
  world_.net.MendAll();
  world_.net.weather = {};
  world_.storage.slow = false;
  const bool was_away = std::exchange(world_.storage.away, false);
  for (const auto& node : world_.nodes) {
    if (node->dead()) continue;
    node->data_blocked = false;
    LeaveSafeMode(node.get());
    if (world_.catalog == nullptr && world_.At(node->rank()) != node.get()) {
      node->Die();
      for (const auto& job : world_.jobs) job->NodeDied(node.get());
    } else if (node->paused()) {
      node->Resume();
    }
  }
  if (world_.catalog != nullptr) {
    EndAllOfCatalog();
  } else {
    for (const auto& [rank, address] : world_.nodes.front()->options().ring.members) {
      if (world_.At(rank) == nullptr || world_.At(rank)->dead()) world_.Replace(rank);
    }
  }
  if (!was_away) return;
  for (SimNode* node : world_.Living()) node->SeeStorage();
}

// --- nodes

bool Faults::DaemonDies() {
  SimNode* node = SomeMember();
  if (node == nullptr) return false;
  node->KillDaemon(world_.rng.Permille(800) ? world_.Millis(50, 1500)
                                            : world_.Millis(1500, 15'000));
  return true;
}

void Faults::Kill(SimNode* node) {
  world_.truth.CheckAll();
  world_.truth.NodeDied(*node);
  node->Die();
  for (const auto& job : world_.jobs) job->NodeDied(node);
  const MonotonicNanos gone =
      world_.rng.Permille(600) ? world_.Millis(500, 8000) : world_.Millis(8000, 40'000);
  last_end_ = std::max(last_end_, world_.clock.now + gone);
  world_.In(gone, [this, node] {
    if (world_.catalog != nullptr) {
      // Another machine, or this one again, whose keeper knows nothing.
      const bool same = world_.rng.Permille(400);
      world_.catalog->AddMachine(same ? node->address() : "")->StartDaemon();
      return;
    }
    if (world_.At(node->rank()) == node) world_.Replace(node->rank());
  });
}

bool Faults::NodeDies() {
  SimNode* node = SomeMember();
  if (node != nullptr) Kill(node);
  return node != nullptr;
}

bool Faults::TwoNodesDie() {
  std::vector<SimNode*> members = world_.Members();
  if (members.size() < 3) return false;
  const size_t first = world_.rng.Below(members.size());
  Kill(members[first]);
  Kill(members[(first + 1) % members.size()]);
  return true;
}

bool Faults::NodePauses() {
  SimNode* node = SomeMember();
  if (node == nullptr || !node->well()) return false;
  node->Pause();
  world_.In(ItLasts(), [node] {
    if (!node->dead() && node->paused()) node->Resume();
  });
  return true;
}

// Its journal cannot be written: it takes in nothing, of its own ranks or of others.
bool Faults::NodeInSafeMode() {
  SimNode* node = SomeMember();
  if (node == nullptr || !node->well()) return false;
  node->in_safe_mode = true;
  node->KillDaemon(world_.Millis(50, 1500));
  world_.In(ItLasts(), [this, node] { LeaveSafeMode(node); });
  return true;
}

void Faults::LeaveSafeMode(SimNode* node) {
  if (std::exchange(node->in_safe_mode, false)) node->KillDaemon(world_.Millis(50, 1500));
}

bool Faults::ClockJumps() {
  SimNode* node = SomeMember();
  if (node == nullptr) return false;
  const int64_t by = static_cast<int64_t>(world_.rng.Between(1, 48)) * 3'600'000;
  node->JumpClock(world_.rng.Permille(500) ? by : -by);
  return true;
}

// --- who is who

bool Faults::RankClaimedTwice() {
  SimNode* node = SomeMember();
  if (node == nullptr || world_.catalog != nullptr) return false;
  SimNode* other = world_.AddClaimant(node->rank());
  world_.In(ItLasts(), [other] {
    if (!other->dead()) other->Die();
  });
  return true;
}

// Its address now shows an empty one; it goes on for a while.
bool Faults::ReplacedWhileItLives() {
  SimNode* node = SomeMember();
  if (node == nullptr || world_.catalog != nullptr) return false;
  world_.truth.CheckAll();
  world_.truth.NodeDied(*node);  // for the others
  world_.Replace(node->rank());
  world_.In(ItLasts(), [this, node] {
    if (node->dead()) return;
    node->Die();
    for (const auto& job : world_.jobs) job->NodeDied(node);
  });
  return true;
}

// --- what lies between

void Faults::Sever(const std::vector<SimNode*>& some, const std::vector<SimNode*>& others) {
  const MonotonicNanos lasts = ItLasts();
  for (SimNode* a : some) {
    for (SimNode* b : others) {
      if (a == b) continue;
      world_.net.Cut(a->id(), b->id());
      world_.net.Cut(b->id(), a->id());
      world_.In(lasts, [this, a = a->id(), b = b->id()] {
        world_.net.Mend(a, b);
        world_.net.Mend(b, a);
      });
    }
  }
}

bool Faults::LinkBreaks() {
  SimNode* a = SomeMember();
  SimNode* b = SomeMember();
  if (a == b) return false;
  Sever({a}, {b});
  return true;
}

bool Faults::LinkBreaksOneWay() {
  SimNode* a = SomeMember();
  SimNode* b = SomeMember();
  if (a == b) return false;
  world_.net.Cut(a->id(), b->id());
  world_.In(ItLasts(), [this, a, b] { world_.net.Mend(a->id(), b->id()); });
  return true;
}

bool Faults::NodeIsCutOff() {
  SimNode* node = SomeMember();
  if (node == nullptr) return false;
  Sever({node}, world_.Members());
  return true;
}

bool Faults::RingSplits() {
  std::vector<SimNode*> sides[2];
  for (SimNode* node : world_.Members()) sides[world_.rng.Below(2)].push_back(node);
  if (sides[0].empty() || sides[1].empty()) return false;
  Sever(sides[0], sides[1]);
  return true;
}

bool Faults::BadWeather() {
  sim::Rng& rng = world_.rng;
  world_.net.weather = {rng.Below(200), rng.Below(100), rng.Below(300), rng.Below(500)};
  world_.In(ItLasts(), [this] { world_.net.weather = {}; });
  return true;
}

bool Faults::DataPortBlocked() {
  SimNode* node = SomeMember();
  if (node == nullptr) return false;
  node->data_blocked = true;
  world_.In(ItLasts(), [node] { node->data_blocked = false; });
  return true;
}

// --- storage

bool Faults::StorageSlow() {
  if (!world_.shape.storage) return false;
  world_.storage.slow = true;
  world_.In(ItLasts(), [this] { world_.storage.slow = false; });
  return true;
}

bool Faults::StorageAway() {
  if (!world_.shape.storage || world_.storage.away) return false;
  world_.storage.away = true;
  for (SimNode* node : world_.Living()) node->SeeStorage();
  world_.In(ItLasts(), [this] {
    if (!std::exchange(world_.storage.away, false)) return;
    for (SimNode* node : world_.Living()) node->SeeStorage();
  });
  return true;
}

}  // namespace cairn::engine::ringsim
