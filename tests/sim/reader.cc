// What a reader asks: a table of questions, so that a new one is a row.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/clients.h"
#include "tests/sim/world.h"

namespace cairn::engine::sim {
namespace {

// A checkpoint that there was, or might have been.
CheckpointRef SomeRef(World* world, const Job& job) {
  Rng& rng = world->rng;
  CheckpointRef ref;
  ref.job = job.name;
  if (rng.Permille(400)) return ref;
  std::vector<CheckpointKey> keys;
  for (const auto& [key, world_size] : world->promises.complete) {
    if (key.job == job.name) keys.push_back(key);
  }
  if (keys.empty()) {
    ref.step = static_cast<Step>(rng.Below(3));
    return ref;
  }
  const CheckpointKey& key = keys[rng.Permille(600) ? keys.size() - 1 : rng.Below(keys.size())];
  ref.step = key.step;
  if (rng.Permille(300)) ref.attempt = key.attempt;
  if (ref.attempt != 0 && rng.Permille(300)) ref.revision = key.revision;
  return ref;
}

std::string SomeName(World* world, const CheckpointRef& ref) {
  std::vector<std::string> names;
  for (const auto& [part, promise] : world->promises.parts) {
    if (part.checkpoint.job != ref.job) continue;
    if (ref.step != kNoStep && part.checkpoint.step != ref.step) continue;
    for (const auto& [name, object] : promise.objects) names.push_back(name);
  }
  return names.empty() || world->rng.Permille(20) ? "nothing" : world->rng.Pick(names);
}

// Who asks, about what, and by when.
struct Asking {
  World* world;
  Node* node;
  Process* process;
  const Job* job;
  CheckpointRef ref;
  MonotonicNanos deadline;

  Rng& rng() const { return world->rng; }
};

Event Open(const Asking& a) {
  event::Open open;
  open.ref = a.ref;
  open.name = SomeName(a.world, a.ref);
  open.mode = a.rng().Pick<OpenMode>({OpenMode::kMap, OpenMode::kFile, OpenMode::kRead});
  open.verify = a.rng().Permille(300);
  open.deadline = a.deadline;
  return open;
}

// It is done with some objects. A mapping may last a little longer than the call that gives it up.
Event Release(const Asking& a) {
  event::Release release;
  for (const auto& [lease, hold] : a.process->leases) {
    if (!a.rng().Permille(400)) release.leases.push_back(lease);
  }
  for (LeaseId lease : release.leases) {
    const SlabId id = a.process->leases.at(lease).slab;
    if (a.node->memory.Locked(id, lease)) {
      SimSlab& slab = a.node->memory.slabs.at(id);
      if (a.rng().Permille(250)) {
        slab.locks[lease] = a.world->clients.NewGhost();
        a.world->report.Count("stale reader");
      } else {
        slab.locks.erase(lease);
      }
    }
    a.process->leases.erase(lease);
  }
  return release;
}

Event Renew(const Asking& a) { return event::Renew{{}, {a.process->leases.begin()->first}}; }

Event ReadChunk(const Asking& a) {
  const auto& [lease, hold] = *a.process->leases.begin();
  return event::LocateChunk{{}, lease, 0, hold.bytes.length, false};
}

Event Latest(const Asking& a) { return event::Latest{{}, a.job->name, a.deadline}; }

Event Wait(const Asking& a) {
  event::Wait wait;
  wait.ref = a.ref;
  wait.level = a.rng().Permille(600) ? Level::kPersisted : Level::kCached;
  if (a.ref.step == kNoStep && a.rng().Permille(300)) {
    wait.after = static_cast<Step>(a.rng().Below(8));
    wait.after_head = HeadOf(a.node->HistoryOf(a.job->name)).number;
  }
  wait.deadline = a.deadline;
  return wait;
}

Event StatCheckpoint(const Asking& a) { return event::StatCheckpoint{{}, a.ref, a.deadline}; }

Event StatObject(const Asking& a) {
  return event::StatObject{{}, a.ref, SomeName(a.world, a.ref), a.deadline};
}

Event List(const Asking& a) {
  event::List list;
  list.path = a.rng().Permille(700) ? a.job->name : absl::StrCat(a.job->name, "/latest");
  list.limit = static_cast<int32_t>(a.rng().Between(1, 20));
  list.deadline = a.deadline;
  return list;
}

Event PersistNow(const Asking& a) { return event::PersistNow{{}, a.ref}; }

Event Remove(const Asking& a) {
  event::Remove remove;
  remove.ref = a.ref;
  remove.memory_only = a.rng().Permille(300);
  remove.force = a.rng().Permille(600);
  remove.deadline = a.deadline;
  return remove;
}

Event Pin(const Asking& a) { return event::Pin{{}, a.ref, a.rng().Permille(400)}; }

Event SetPolicy(const Asking& a) {
  JobPolicy policy;
  policy.mode = a.rng().Pick<PersistMode>(
      {PersistMode::kOnDemand, PersistMode::kEvery, PersistMode::kNewest});
  policy.every = static_cast<int64_t>(a.rng().Between(1, 2));
  if (a.rng().Permille(300) || a.world->options.pair) policy.keep_last = 2;
  return event::SetPolicy{{}, a.job->name, policy};
}

Event PreviewPolicy(const Asking& a) {
  return event::PreviewPolicy{{}, a.job->name, std::nullopt, a.deadline};
}

Event ChooseAttempt(const Asking& a) {
  return event::ChooseAttempt{{}, a.job->name, a.deadline, a.node->UnixMs()};
}

Event Use(const Asking& a) { return event::Use{{}, a.ref, a.rng().Permille(300), a.deadline}; }

Event AskStatus(const Asking&) { return event::Status{}; }

bool Always(const Process&) { return true; }
bool HoldsSomething(const Process& process) { return !process.leases.empty(); }
bool HoldsChunks(const Process& process) { return !process.takes_fds && !process.leases.empty(); }

// How long an answer may take: to the question's own deadline, at once, or as long as the engine's
// patience lasts.
enum class Limit : uint8_t { kDeadline, kAtOnce, kPatience };

struct Question {
  uint64_t
      below;  // of 100: the first row whose number is above the drawn one, and that is possible
  bool (*possible)(const Process& process);
  Event (*ask)(const Asking& asking);
  Limit limit;
};

constexpr Question kQuestions[] = {
    {30, Always, Open, Limit::kDeadline},
    {48, HoldsSomething, Release, Limit::kAtOnce},
    {52, HoldsSomething, Renew, Limit::kAtOnce},
    {56, HoldsChunks, ReadChunk, Limit::kAtOnce},
    {68, Always, Latest, Limit::kDeadline},
    {76, Always, Wait, Limit::kDeadline},
    {80, Always, StatCheckpoint, Limit::kDeadline},
    {82, Always, StatObject, Limit::kDeadline},
    {84, Always, List, Limit::kDeadline},
    {85, Always, PreviewPolicy, Limit::kDeadline},
    {89, Always, PersistNow, Limit::kPatience},
    {92, Always, Remove, Limit::kDeadline},
    {95, Always, Pin, Limit::kPatience},
    {97, Always, SetPolicy, Limit::kPatience},
    {98, Always, ChooseAttempt, Limit::kDeadline},
    {99, Always, Use, Limit::kDeadline},
    {100, Always, AskStatus, Limit::kAtOnce},
};

}  // namespace

void Clients::DoSomeReader() {
  Rng& rng = world_.rng;
  std::vector<int> readers;
  for (const Process& process : processes) {
    if (process.alive && !process.stopped && process.writer < 0) readers.push_back(process.id);
  }
  if (readers.size() < 2) {
    Process& reader =
        NewProcess(world_.SomeNode(), static_cast<int>(rng.Below(jobs.size())), 0, -1, 0);
    if (rng.Permille(100)) reader.uid = kStranger;
    readers.push_back(reader.id);
  }
  DoReader(&processes[rng.Pick(readers)]);
}

void Clients::DoReader(Process* process) {
  if (!process->alive) return;
  if (process->session == 0) return SayHello(process);
  Rng& rng = world_.rng;
  Node& node = NodeOf(*process);
  const Job& job =
      jobs[rng.Permille(900) ? static_cast<uint64_t>(process->job) : rng.Below(jobs.size())];
  Asking asking{&world_, &node, process, &job, SomeRef(&world_, job), 0};
  asking.deadline =
      world_.clock.now +
      static_cast<MonotonicNanos>(rng.Pick<uint64_t>({1, 20, 500, 3000, 20'000})) * kMilli;
  const uint64_t drawn = rng.Below(100);
  const auto* question =
      std::find_if(std::begin(kQuestions), std::end(kQuestions),
                   [&](const Question& q) { return drawn < q.below && q.possible(*process); });
  MonotonicNanos limit = asking.deadline;
  if (question->limit == Limit::kAtOnce) limit = world_.clock.now + kSecond;
  if (question->limit == Limit::kPatience) limit = world_.clock.now + kPatience;
  node.Ask(*process, question->ask(asking), limit);
}

}  // namespace cairn::engine::sim
