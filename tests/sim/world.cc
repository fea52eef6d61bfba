#include "tests/sim/world.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/checks.h"
#include "tests/sim/faults.h"
#include "tests/sim/liveness.h"

namespace cairn::engine::sim {
namespace {

JobPolicy DrawPolicy(Rng* rng) {
  JobPolicy policy;
  policy.mode =
      rng->Pick<PersistMode>({PersistMode::kOnDemand, PersistMode::kEvery, PersistMode::kNewest});
  policy.every = static_cast<int64_t>(rng->Between(1, 3));
  if (rng->Permille(300)) policy.keep_last = static_cast<int64_t>(rng->Between(1, 3));
  if (policy.keep_last > 0 && rng->Permille(300)) policy.keep_every = 4;
  return policy;
}

// Files are deleted, after a grace or at once.
void SetForPairs(Rng* rng, Options* options) {
  options->storage = true;
  options->keep_abandoned_seconds = rng->Pick<int64_t>({0, 0, 20, 24 * 3600});
  JobPolicy& policy = options->default_policy;
  policy.mode = rng->Pick<PersistMode>(
      {PersistMode::kEvery, PersistMode::kEvery, PersistMode::kNewest, PersistMode::kOnDemand});
  policy.every = 1;
  policy.keep_last = static_cast<int64_t>(rng->Between(1, 3));
  policy.keep_every = rng->Permille(200) ? 4 : 0;
}

}  // namespace

World::World(const SimulatorOptions& its_options)
    : options(its_options),
      rng(Mix(options.seed, 1)),
      report(options.trace, clock),
      storage(options.lie, clock),
      clients(this) {
  AddNode();
  clients.DrawJobs(nodes[0]->true_budget);
  crashes_left = static_cast<int>(rng.Permille(250) ? 0 : rng.Between(1, 5));
  if (!options.pair) return;
  clients.jobs[0].elsewhere = false;
  clients.jobs[0].attempt = 8;  // another node may have an older one
  pair_ = std::make_unique<PairOfFaults>(this, *options.pair);
}

void World::AddNode() {
  Options o;
  constexpr uint64_t kKiB = 1024;
  const uint64_t budget =
      rng.Pick<uint64_t>({512 * kKiB, 1024 * kKiB, 4096 * kKiB, 16384 * kKiB, 65536 * kKiB});
  o.budget_bytes = options.lie == Lie::kBudgetIgnored ? 4 * budget : budget;
  o.ended_at_once = static_cast<int>(1 + options.seed % 3);       // sessions have few leases
  o.merged_at_once = static_cast<int>(1 + options.seed / 3 % 3);  // nor is there much in storage
  o.prepared_at_once = static_cast<int>(1 + options.seed / 9 % 3);
  o.given_up_whole = static_cast<int>(options.seed / 27 % 3);  // steps have few parts
  o.storage = !rng.Permille(250);
  if (rng.Permille(500)) o.keep_abandoned_seconds = 0;
  o.max_sessions = static_cast<int64_t>(rng.Between(24, 64));
  o.max_waiting = static_cast<int64_t>(rng.Permille(150) ? rng.Between(2, 6) : rng.Between(16, 64));
  o.max_persists = static_cast<int>(rng.Between(1, 3));
  if (rng.Permille(300)) {
    for (uint64_t i = rng.Below(4); i > 0; --i) {
      o.pool_slabs.push_back(o.budget_bytes / 16 / kPageBytes * kPageBytes);
    }
  }
  o.default_policy = DrawPolicy(&rng);
  if (options.pair) SetForPairs(&rng, &o);
  nodes.push_back(std::make_unique<Node>(this, static_cast<int>(nodes.size()), o, budget));
}

Node& World::SomeNode() { return nodes.size() == 1 ? *nodes[0] : *nodes[rng.Below(nodes.size())]; }

MonotonicNanos World::Soon() {
  if (rng.Permille(60)) {
    return clock.now + static_cast<MonotonicNanos>(rng.Between(100, 3000)) * kMilli;
  }
  return Within(20'000);
}

bool World::DeliverNext(MonotonicNanos to) {
  Node* next = nodes[0].get();
  for (const auto& node : nodes) {
    if (node->NextDue() < next->NextDue()) next = node.get();
  }
  const MonotonicNanos due = next->NextDue();
  if (due > to || due == kNoTime) return false;
  clock.now = std::max(clock.now, due);
  next->DeliverNext();
  return true;
}

bool World::AdvanceTo(MonotonicNanos to) {
  for (int i = 0; i < 5000 && ok(); ++i) {
    if (DeliverNext(to)) continue;
    clock.now = std::max(clock.now, to);
    return true;
  }
  if (ok()) report.Fail("promise 4: the engine asks to be woken, or acts, without end");
  return false;
}

void World::DoSomething() {
  const uint64_t what = rng.Below(1000);
  if (what < 480) {
    clients.DoSomeWriter();
  } else if (what < 660) {
    clients.DoSomeReader();
  } else if (what < 940) {
    DeliverNext(clock.now + kSecond);
  } else {
    options.pair ? DoSomeSmallFault(this) : DoSomeFault(this);
  }
}

void World::PassMoment() {
  clock.now += static_cast<MonotonicNanos>(rng.Below(2000) * 1000);
  const bool late = std::any_of(nodes.begin(), nodes.end(), [&](const auto& node) {
    return node->wake_at != 0 && node->wake_at <= clock.now;
  });
  if (late) AdvanceTo(clock.now);
}

SimulatorResult World::Run() {
  for (const auto& node : nodes) node->Start(/*first=*/true);
  for (int i = 0; i < options.events && ok(); ++i) {
    PassMoment();
    if (pair_ != nullptr && ok()) pair_->Before(i);
    if (ok()) DoSomething();
    if (!ok() || i % 8 != 0) continue;
    for (const auto& node : nodes) CheckHolds(*node);
  }
  if (ok()) EndLife(this);
  SimulatorResult& result = report.result();
  for (const auto& node : nodes) {
    result.events += node->applies;
    if (options.digest) absl::StrAppend(&result.digest, node->digest.Line());
  }
  return std::move(result);
}

SimulatorResult Simulate(const SimulatorOptions& options) { return World(options).Run(); }

}  // namespace cairn::engine::sim
