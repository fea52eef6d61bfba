// What a writer does: create, write, seal, commit; or give up.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/engine/needs.h"
#include "tests/sim/clients.h"
#include "tests/sim/world.h"

namespace cairn::engine::sim {
namespace {

event::Seal SealOf(const std::string& name, const ObjectBytes& bytes) {
  return {name, bytes.length, CrcsOf(bytes), {{0, bytes.length}}};
}

// Of every other attempt: a process that does not waits for those of the last one.
bool Insists(const PartKey& part) { return part.checkpoint.attempt % 2 == 0; }

void AddTo(event::ToCome* to_come, const std::vector<event::ObjectSpec>& specs) {
  for (const event::ObjectSpec& spec : specs) {
    ++to_come->objects;
    to_come->bytes += RoundUpToPages(spec.length);
    to_come->name_bytes += spec.name.size();
  }
}

}  // namespace

void Clients::DoSomeWriter() { DoWriterOf(static_cast<int>(world_.rng.Below(jobs.size()))); }

void Clients::DoWriterOf(int index) {
  Rng& rng = world_.rng;
  const Job& job = jobs[index];
  std::vector<int> alive;
  for (int id : job.group) {
    if (processes[id].alive && !processes[id].gone_from_group) alive.push_back(id);
  }
  if (alive.empty()) return NewGroup(index);
  int chosen = rng.Pick(alive);
  if (rng.Permille(800)) {
    // Usually no writer is far ahead.
    for (int id : alive) {
      if (processes[id].step < processes[chosen].step) chosen = id;
    }
  }
  if (rng.Permille(40)) {
    for (const Process& zombie : processes) {
      if (zombie.alive && zombie.writer >= 0 && zombie.attempt < job.attempt &&
          zombie.job == index) {
        chosen = zombie.id;
      }
    }
  }
  DoWriter(&processes[chosen]);
}

void Clients::DoWriter(Process* process) {
  if (!process->alive || process->gone_from_group) return;
  if (process->session == 0) return SayHello(process);
  if (process->under_way) {
    if (process->request == 0) Repeat(process);
    return;
  }
  switch (process->phase) {
    case Process::Phase::kIdle:
      return BeginStep(process);
    case Process::Phase::kCreating:
    case Process::Phase::kGranted:
      return GoOnSaving(process);
    case Process::Phase::kCommitting:
      process->phase = Process::Phase::kIdle;
      return;
  }
}

void Clients::Send(Process* process, Event event, MonotonicNanos deadline) {
  process->under_way = event;
  Node& node = NodeOf(*process);
  const RequestId request = node.Prepare(*process, std::move(event), deadline);
  process->request = request;
  node.Send(request);
}

void Clients::Repeat(Process* process) {
  if (++process->repeats > 6) {
    process->under_way.reset();
    return AbandonStep(process);
  }
  world_.report.Count("repeated");
  Event event = *process->under_way;
  MonotonicNanos deadline = world_.clock.now + kPatience;
  if (auto* create = std::get_if<event::Create>(&event)) {
    deadline = create->deadline =
        world_.clock.now + static_cast<MonotonicNanos>(world_.rng.Between(1, 20'000)) * kMilli;
  }
  Send(process, std::move(event), deadline);
}

void Clients::BeginStep(Process* process) {
  Rng& rng = world_.rng;
  const Job& job = jobs[process->job];
  const Revision revision = process->entered[process->step]++;
  process->part = {{job.name, process->step, process->attempt, revision}, process->writer};
  process->ForgetSave();
  process->repeats = 0;
  if (rng.Permille(30)) return SendCommit(process);  // nothing to save
  const uint64_t share = job.step_bytes / static_cast<uint64_t>(job.world_size);
  std::vector<event::ObjectSpec> specs;
  for (int i = 0; i < job.objects; ++i) {
    event::ObjectSpec spec;
    spec.name = absl::StrCat("w", process->writer, "/o", i);
    spec.kind = ObjectKind::kTorch;
    spec.can_pad = job.can_pad;
    const uint64_t usual = i < job.large ? share * 3 / 4 / static_cast<uint64_t>(job.large)
                                         : share / 4 / static_cast<uint64_t>(job.objects);
    spec.length = rng.Permille(40) ? 0 : usual * rng.Between(92, 104) / 100;
    specs.push_back(std::move(spec));
  }
  if (specs.size() > 1 && rng.Permille(200)) {
    process->creates.push_back({specs.front()});
    specs.erase(specs.begin());
  }
  process->creates.push_back(std::move(specs));
  GoOnSaving(process);
}

void Clients::GoOnSaving(Process* process) {
  if (!process->creates.empty()) return SendCreate(process);
  process->phase = Process::Phase::kGranted;
  if (!WriteObjects(process)) return;
  if (world_.rng.Permille(60)) {
    world_.report.Count("aborted");
    return AbandonStep(process);
  }
  if (world_.rng.Permille(150) && SendSeals(process)) return;
  SendCommit(process);
}

void Clients::SendCreate(Process* process) {
  event::Create create;
  create.call = process->next_call++;
  create.part = process->part;
  create.world_size = process->world_size;
  create.objects = process->creates.front();
  create.deadline =
      world_.clock.now +
      static_cast<MonotonicNanos>(world_.rng.Pick<uint64_t>({1, 50, 1000, 5000, 30'000})) * kMilli;
  create.unmapped = std::exchange(process->unmapped, {});
  create.fence = Insists(process->part);
  process->creates.erase(process->creates.begin());
  if (!process->creates.empty() && world_.rng.Permille(500)) {
    for (const std::vector<event::ObjectSpec>& later : process->creates)
      AddTo(&create.to_come, later);
  }
  process->phase = Process::Phase::kCreating;
  const MonotonicNanos deadline = create.deadline;
  Send(process, std::move(create), deadline);
}

bool Clients::WriteObjects(Process* process) {
  Node& node = NodeOf(*process);
  bool written = true;
  std::vector<Event> chunks;
  for (auto& [name, object] : process->objects) {
    if (object.written) continue;
    object.bytes.length = object.spec.length;
    if (object.spec.can_pad && world_.rng.Permille(500)) {
      object.bytes.length = object.extent.length;
    }
    object.bytes.content = world_.next_content++;
    if (!process->takes_fds) {
      written = false;
      chunks.push_back(event::LocateChunk{{}, object.extent.lease, 0, object.bytes.length, true});
      continue;
    }
    if (!process->maps.contains(object.extent.slab)) {
      // It was told to unmap what its step had lost when the step was refused for all its writers.
      const auto* known = node.mirror.ObjectsOf(process->part);
      if (known == nullptr || !known->contains(name)) {
        AbandonStep(process);
      } else {
        world_.report.Fail(absl::StrCat("process ", process->id, " was granted slab ",
                                        object.extent.slab, ", but never got its description"));
      }
      return false;
    }
    node.memory.slabs.at(object.extent.slab).Write(object.extent.offset, {object.bytes});
    object.written = true;
  }
  for (Event& chunk : chunks) {
    node.Ask(*process, std::move(chunk), world_.clock.now + kSecond);
    if (!world_.ok() || process->session == 0) return false;
  }
  return written;
}

bool Clients::SendSeals(Process* process) {
  event::SealObjects seal;
  seal.call = process->next_call++;
  seal.part = process->part;
  const bool all = world_.rng.Permille(500);
  seal.provisional = world_.rng.Permille(300);
  for (const auto& [name, object] : process->objects) {
    if (object.sealed || (!all && world_.rng.Permille(500))) continue;
    seal.seals.push_back(SealOf(name, object.bytes));
  }
  if (seal.seals.empty()) return false;
  process->phase = Process::Phase::kCreating;
  Send(process, std::move(seal), world_.clock.now + kPatience);
  return true;
}

void Clients::SendCommit(Process* process) {
  event::Commit commit;
  commit.call = process->next_call++;
  commit.part = process->part;
  commit.world_size = process->world_size;
  commit.unmapped = std::exchange(process->unmapped, {});
  commit.unix_ms = NodeOf(*process).UnixMs();
  commit.deadline = world_.clock.now + kPatience;
  commit.fence = Insists(process->part);
  PartPromise promise;
  promise.world_size = process->world_size;
  // What was sealed before may be sealed once more, or left out: then neither the commit nor any
  // repeat of it names those objects.
  const bool once_more = world_.rng.Permille(500);
  for (const auto& [name, object] : process->objects) {
    promise.objects[name] = object.bytes;
    if (!object.sealed || once_more) commit.seals.push_back(SealOf(name, object.bytes));
  }
  if (commit.seals.empty() && !promise.objects.empty()) {
    world_.report.Count("commit without seals");
  }
  PartPromise& known = world_.promises.parts[process->part];
  if (!known.committed) known = std::move(promise);
  process->phase = Process::Phase::kCommitting;
  Send(process, std::move(commit), world_.clock.now + kPatience);
}

void Clients::AbandonStep(Process* process) {
  process->phase = Process::Phase::kIdle;
  process->under_way.reset();
  process->request = 0;
  process->ForgetSave();
  ++process->step;
  if (process->session == 0) return;
  NodeOf(*process).Ask(*process, event::Abort{{}, process->part}, world_.clock.now + kSecond);
}

}  // namespace cairn::engine::sim
