#include "tests/sim/clients.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/sim/world.h"

namespace cairn::engine::sim {

void Process::ForgetSave() {
  objects.clear();
  creates.clear();
  granted.clear();
}

Node& Clients::NodeOf(const Process& process) const { return *world_.nodes[process.node]; }

std::vector<int> Clients::Alive() const {
  std::vector<int> alive;
  for (const Process& process : processes) {
    if (process.alive) alive.push_back(process.id);
  }
  return alive;
}

void Clients::DrawJobs(uint64_t budget) {
  Rng& rng = world_.rng;
  const uint64_t many = rng.Between(1, 3);
  for (uint64_t i = 0; i < many; ++i) {
    Job job;
    job.name = absl::StrCat("j", i);
    job.uid = static_cast<uint32_t>(rng.Permille(400) ? 1000 : 1000 + i);
    job.world_size =
        static_cast<int32_t>(rng.Permille(600) ? rng.Between(1, 3) : rng.Between(1, 8));
    job.elsewhere = rng.Permille(40);
    const uint64_t fits = rng.Pick<uint64_t>({2, 3, 4, 6, 8, 12, 24});
    job.step_bytes = budget / fits / (rng.Permille(300) ? many : 1);
    job.objects = static_cast<int>(rng.Between(1, 4));
    job.large = static_cast<int>(rng.Below(3));
    job.can_pad = rng.Permille(300);
    jobs.push_back(std::move(job));
  }
}

Process& Clients::NewProcess(const Node& node, int job, Attempt attempt, Writer writer,
                             int32_t world_size) {
  Process process;
  process.id = static_cast<int>(processes.size());
  process.node = node.id;
  process.job = job;
  process.token = absl::StrCat("process-", process.id);
  process.uid = jobs[job].uid;
  process.takes_fds = !world_.rng.Permille(150);
  process.attempt = attempt;
  process.writer = writer;
  process.world_size = world_size;
  process.local_writers = std::max(world_size, 1);
  processes.push_back(std::move(process));
  return processes.back();
}

void Clients::NewGroup(int index, bool goes_back) {
  Rng& rng = world_.rng;
  Job& job = jobs[index];
  Node& node = world_.SomeNode();
  const bool zombies = rng.Permille(150);
  for (int id : job.group) {
    if (!zombies && processes[id].alive) Kill(&processes[id], rng.Permille(150));
  }
  if (!job.group.empty()) world_.report.Count("restarted");
  job.group.clear();
  job.attempt += static_cast<Attempt>(rng.Between(1, 3));
  job.attempt = std::max(job.attempt, node.mirror.NewestAttempt(job.name) + 1);
  if (rng.Permille(200)) job.world_size = static_cast<int32_t>(rng.Between(1, 4));
  const std::optional<CheckpointKey> latest = node.LatestNow(job.name);
  Step from = latest ? latest->step : kNoStep;
  const bool back = from > 0 && (goes_back || rng.Permille(350));
  if (back) from = static_cast<Step>(rng.Below(static_cast<uint64_t>(from) + 1)) - 1;
  for (Writer writer = 0; writer < job.world_size; ++writer) {
    Process& process =
        NewProcess(node, index, job.attempt, writer, job.world_size + (job.elsewhere ? 1 : 0));
    process.local_writers = job.world_size;
    process.step = from + 1;
    job.group.push_back(process.id);
  }
  if (!back || (!goes_back && !rng.Permille(600))) return;
  Process& first = processes[job.group[0]];
  SayHello(&first);
  if (first.session == 0) return;
  world_.report.Count("resumed");
  const MonotonicNanos deadline = world_.clock.now + kSecond;
  node.Ask(
      first,
      event::ResumeFrom{{}, job.name, job.attempt, from, deadline, /*fence=*/job.attempt % 2 == 0},
      deadline);
}

void Clients::Kill(Process* process, bool lingers) {
  if (!process->alive) return;
  Node& node = NodeOf(*process);
  world_.report.Count(process->phase == Process::Phase::kIdle ? "death" : "death while saving");
  world_.report.Note([&] { return absl::StrCat("process ", process->id, " dies"); });
  const SessionId session = process->session;
  process->alive = false;
  SessionOver(process);
  // What it had mapped goes with it, unless it takes its time to go.
  for (auto& [id, slab] : node.memory.slabs) {
    if (slab.maps.erase(process->id) > 0 && lingers) slab.maps.insert(NewGhost());
    slab.by_path.erase(process->id);
  }
  if (session != 0) node.executor.NoticeEndOf(session);
}

void Clients::SayHello(Process* process) {
  Node& node = NodeOf(*process);
  event::Hello hello;
  hello.secret = absl::StrCat("secret-", node.calls.next_request);
  hello.pid = 100 + process->id;
  hello.process = process->token;
  // A process that only reads may be in no job; some are.
  const bool in_none = process->writer < 0 && process->id % 3 == 0;
  if (!in_none) hello.job = jobs[process->job].name;
  hello.attempt = process->attempt;
  hello.writer = process->writer;
  hello.world_size = process->world_size;
  hello.local_writers = std::max(process->local_writers, 1);
  hello.takes_fds = process->takes_fds;
  node.Ask(*process, hello, world_.clock.now + kSecond);
}

void Clients::Unmap(Process* process, const std::vector<SlabId>& slabs, bool tell) {
  Memory& memory = NodeOf(*process).memory;
  for (SlabId id : slabs) {
    if (process->maps.erase(id) == 0) continue;
    const auto slab = memory.slabs.find(id);
    if (slab != memory.slabs.end()) {
      slab->second.maps.erase(process->id);
      if (!world_.ending && world_.rng.Permille(60)) {
        slab->second.maps.insert(NewGhost());  // a duplicate somewhere keeps it
        world_.report.Count("stale mapping");
      }
    }
    if (tell) process->unmapped.push_back(id);
  }
}

void Clients::SessionOver(Process* process) {
  Rng& rng = world_.rng;
  Memory& memory = NodeOf(*process).memory;
  process->session = 0;
  process->request = 0;
  // A commit without an answer may be repeated in the next session.
  if (process->alive && process->under_way && Is<event::Commit>(*process->under_way) &&
      rng.Permille(500)) {
    world_.report.Count("commit taken to a new session");
  } else {
    process->phase = Process::Phase::kIdle;
    process->under_way.reset();
  }
  process->ForgetSave();
  process->unmapped.clear();
  const std::vector<SlabId> maps(process->maps.begin(), process->maps.end());
  Unmap(process, maps, /*tell=*/false);
  for (const auto& [lease, hold] : process->leases) {
    if (!memory.Locked(hold.slab, lease)) continue;
    SimSlab& slab = memory.slabs.at(hold.slab);
    if (!world_.ending && rng.Permille(200)) {
      slab.locks[lease] = NewGhost();  // a forked child keeps the mapping
      world_.report.Count("stale reader");
    } else {
      slab.locks.erase(lease);
      if (slab.by_path.erase(process->id) > 0 && !world_.ending && rng.Permille(300)) {
        slab.by_path.insert(NewGhost());
      }
    }
  }
  std::erase_if(process->leases,
                [&](const auto& entry) { return !memory.Locked(entry.second.slab, entry.first); });
}

}  // namespace cairn::engine::sim
