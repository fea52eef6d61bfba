#include "tests/sim/pairs.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/faults.h"
#include "tests/sim/world.h"

namespace cairn::engine::sim {
namespace {

constexpr int kRounds = 3;               // how often the pair strikes in one life
constexpr int kFirst = 30, kApart = 65;  // events
constexpr int kJob = 0;                  // the job that the faults are about

Node& TheNode(World* world) { return *world->nodes[0]; }
Executor::StorageFaults& FaultsOf(World* world) { return TheNode(world).executor.storage; }
void Nothing(World*) {}

// --- storage

void StorageHangs(World* world) { FaultsOf(world).away = true; }
void StorageHangsNoLonger(World* world) {
  FaultsOf(world).away = false;
  TheNode(world).executor.Release();
}

void StorageSlows(World* world) { FaultsOf(world).slow = true; }
void StorageIsFast(World* world) { FaultsOf(world).slow = false; }

void StorageFails(World* world) { FaultsOf(world).fails = true; }
void StorageWorks(World* world) { FaultsOf(world).fails = false; }

void StorageFills(World* world) { FaultsOf(world).full = true; }
void StorageHasSpace(World* world) { FaultsOf(world).full = false; }

// Another storage stands at the root, or none that can be read.
void StorageIsReplaced(World* world) {
  FaultsOf(world).gone = true;
  if (world->rng.Permille(500)) {
    return TheNode(world).SeeStorage(RootIdentity{"another storage", "its directory"});
  }
  TheNode(world).SeeStorage(absl::UnavailableError("storage: its root cannot be opened"));
}
// The directory that went, or the same files in another one.
void StorageReturns(World* world) {
  FaultsOf(world).gone = false;
  if (world->rng.Permille(500)) world->storage.Remount();
  TheNode(world).SeeStorage(world->storage.root);
}

// --- the daemon

void DaemonIsKilled(World* world) { TheNode(world).dies_next = true; }

void ClockIsStepped(World* world) {
  TheNode(world).clock_ahead_ms += world->rng.Permille(500) ? kDayMs : -kDayMs;
}

void JournalFills(World* world) {
  TheNode(world).journal_full = true;
  TheNode(world).Apply(event::JournalFull{true});
}
void JournalHasSpace(World* world) {
  if (!std::exchange(TheNode(world).journal_full, false)) return;
  TheNode(world).Apply(event::JournalFull{false});
}

// Steps are suddenly as great as what there is, or the next daemon is given less.
void MemoryIsShort(World* world) {
  Job& job = world->clients.jobs[kJob];
  const uint64_t budget = TheNode(world).true_budget;
  if (world->rng.Permille(600)) {
    job.step_bytes = std::max(job.step_bytes, budget * world->rng.Between(40, 110) / 100);
    return;
  }
  TheNode(world).shrinks_next = TheNode(world).dies_next = true;
}
void StepsAreSmall(World* world) {
  Job& job = world->clients.jobs[kJob];
  job.step_bytes = std::min(job.step_bytes, TheNode(world).true_budget / 6);
}

// --- lives and decisions

// The job's writers go on until `done` says so, or for too long.
template <class Done>
void LetItSave(World* world, const Done& done) {
  const Attempt attempt = world->clients.jobs[kJob].attempt;
  for (int i = 0; i < 80 && world->ok() && !done(); ++i) {
    world->PassMoment();
    if (world->ok()) world->clients.DoWriterOf(kJob);
    if (world->ok()) world->DeliverNext(world->clock.now + kSecond);
    if (world->clients.jobs[kJob].attempt != attempt) return;  // it was superseded, or killed
  }
}

void LifeThatCompletes(World* world) {
  world->clients.NewGroup(kJob);
  const Job& job = world->clients.jobs[kJob];
  LetItSave(world, [&, attempt = job.attempt] {
    const auto& complete = world->promises.complete;
    return std::any_of(complete.begin(), complete.end(), [&](const auto& at) {
      return at.first.job == job.name && at.first.attempt == attempt;
    });
  });
}

void LifeThatCompletesNothing(World* world) {
  world->clients.NewGroup(kJob);
  const Job& job = world->clients.jobs[kJob];
  LetItSave(world, [&, attempt = job.attempt] {
    const auto begun = TheNode(world).mirror.attempts.find(job.name);
    return begun != TheNode(world).mirror.attempts.end() && begun->second.contains(attempt);
  });
  for (int id : job.group) world->clients.Kill(&world->clients.processes[id], false);
}

void LifeThatResumes(World* world) { world->clients.NewGroup(kJob, /*goes_back=*/true); }

// A reader of the job that has said hello; nullptr: it got no answer.
Process* NewReader(World* world) {
  Process& reader = world->clients.NewProcess(TheNode(world), kJob, 0, -1, 0);
  world->clients.SayHello(&reader);
  return world->ok() && reader.session != 0 ? &reader : nullptr;
}

std::vector<CheckpointKey> CompleteOnes(const World& world) {
  std::vector<CheckpointKey> keys;
  for (const auto& [key, world_size] : world.promises.complete) {
    if (key.job == world.clients.jobs[kJob].name) keys.push_back(key);
  }
  return keys;
}

void StepIsUsed(World* world) {
  const std::vector<CheckpointKey> keys = CompleteOnes(*world);
  Process* reader = NewReader(world);
  if (reader == nullptr || keys.empty()) return;
  const CheckpointKey& key = world->rng.Pick(keys);
  const MonotonicNanos deadline = world->clock.now + 3 * kSecond;
  event::Use use{{}, {key.job, key.step, key.attempt}, world->rng.Permille(600), deadline};
  TheNode(world).Ask(*reader, std::move(use), deadline);
}

// --- another node

// Publishes some steps of an attempt as another node would, going by what it finds in storage.
class OtherNode {
 public:
  OtherNode(World* world, Attempt attempt)
      : world_(*world), job_(world->clients.jobs[kJob]), attempt_(attempt) {}

  // It publishes at once, or writes where it comes from and publishes later.
  void Save(bool later) {
    const StatusOr<StoredJob> stored = world_.storage.Scan(job_.name, world_.storage.UnixMs());
    const History history = stored.ok() ? HistoryOf(*stored) : History();
    const std::vector<LineStep> line = ComputeLine(history, attempt_);
    Step first = line.empty() ? 0 : line.back().step + 1;
    if (world_.rng.Permille(300)) first = static_cast<Step>(world_.rng.Below(first + 1));
    const Lineage lineage = LineageBelow(history, attempt_, first);
    const LineRecord origin{job_.name, attempt_, LineRecordKind::kOrigin, lineage};
    world_.storage.Write(origin, world_.storage.UnixMs()).IgnoreError();
    const Step last = first + static_cast<Step>(world_.rng.Between(0, 2));
    const OtherLife life{job_.name, attempt_, first, last, lineage};
    if (later) {
      world_.other_life = life;
      world_.report.Count("begun by another node");
    } else {
      Publish(life);
    }
  }
  void Publish(const OtherLife& life) {
    for (Step step = life.first; step <= life.last; ++step) {
      Publish(step, life.first, life.lineage);
    }
    world_.report.Count("written by another node");
  }

 private:
  void Publish(Step step, Step first, const Lineage& lineage) {
    const CheckpointKey key = {job_.name, step, attempt_, 0};
    const auto world_size = static_cast<int32_t>(world_.rng.Between(1, 2));
    std::vector<PartPromise> parts;
    std::vector<StoredPart> stored;
    for (Writer writer = 0; writer < world_size; ++writer) {
      PartPromise part;
      part.world_size = world_size;
      part.committed = part.acknowledged = true;
      const ObjectBytes bytes{kPageBytes, world_.next_content++};
      const std::string name = absl::StrCat("w", writer, "/o0");
      part.objects[name] = bytes;
      Manifest manifest;
      manifest.job = job_.name;
      manifest.owner_uid = job_.uid;
      manifest.step = step;
      manifest.attempt = attempt_;
      manifest.writer = writer;
      manifest.world_size = world_size;
      manifest.created_unix_ms = world_.storage.UnixMs();
      manifest.first = first;
      manifest.lineage = lineage;
      ObjectEntry entry;
      entry.name = name;
      entry.kind = ObjectKind::kTorch;
      entry.length = bytes.length;
      entry.block_crcs = CrcsOf(bytes);
      manifest.objects.push_back(std::move(entry));
      part.digest = ManifestDigest(EncodeManifest(manifest));
      stored.push_back({std::move(manifest), part.digest});
      parts.push_back(std::move(part));
    }
    if (!world_.storage.Write(key, world_size, std::move(stored)).ok()) return;  // it was removed
    world_.storage.NotePublished(key);
    world_.report.Note([&] { return absl::StrCat("another node publishes ", key.DebugString()); });
    for (size_t writer = 0; writer < parts.size(); ++writer) {
      world_.promises.parts[{key, static_cast<Writer>(writer)}] = std::move(parts[writer]);
    }
    world_.promises.complete[key] = static_cast<int32_t>(parts.size());
  }

  World& world_;
  Job& job_;
  const Attempt attempt_;
};

// The numbers that somebody has, in storage or on the node.
std::set<Attempt> NumbersOf(const World& world) {
  const Job& job = world.clients.jobs[kJob];
  std::set<Attempt> numbers = {job.attempt};
  for (const Process& process : world.clients.processes) {
    if (process.job == kJob) numbers.insert(process.attempt);
  }
  for (const auto& [number, begun] : world.nodes[0]->HistoryOf(job.name).attempts) {
    numbers.insert(number);
  }
  for (const auto& [number, decided] : world.nodes[0]->HistoryOf(job.name).decisions) {
    numbers.insert(number);
  }
  if (const StatusOr<StoredJob> stored = world.storage.Scan(job.name, world.storage.UnixMs());
      stored.ok()) {
    for (const StoredCheckpoint& checkpoint : stored->checkpoints) {
      numbers.insert(checkpoint.key.attempt);
    }
    for (const LineRecord& record : stored->records) numbers.insert(record.number);
  }
  return numbers;
}

void OtherNodesNewerLife(World* world) {
  Job& job = world->clients.jobs[kJob];
  job.attempt = *NumbersOf(*world).rbegin() + 1;
  OtherNode(world, job.attempt).Save(/*later=*/world->rng.Permille(500));
}

void OtherNodesNewerLifePublishes(World* world) {
  const std::optional<OtherLife> life = std::exchange(world->other_life, std::nullopt);
  if (life.has_value()) OtherNode(world, life->attempt).Publish(*life);
}

void OtherNodesOlderLife(World* world) {
  const std::set<Attempt> numbers = NumbersOf(*world);
  Attempt older = *numbers.rbegin();
  while (older > 0 && numbers.contains(older)) --older;
  if (older > 0) OtherNode(world, older).Save(/*later=*/false);
}

// --- readers

// It opens what it can get, and is then stopped: it keeps its leases and gives nothing back.
void ReaderIsStopped(World* world) {
  Process* reader = NewReader(world);
  if (reader == nullptr) return;
  reader->stopped = true;
  const std::vector<CheckpointKey> keys = CompleteOnes(*world);
  for (int i = 0; i < 6 && !keys.empty() && world->ok() && reader->session != 0; ++i) {
    const CheckpointKey& key =
        keys[keys.size() - 1 - world->rng.Below(std::min<size_t>(4, keys.size()))];
    const PartPromise* part = world->promises.Find({key, 0});
    if (part == nullptr || part->objects.empty()) continue;
    event::Open open;
    open.ref = {key.job, key.step, key.attempt};
    open.name = part->objects.begin()->first;
    open.mode = OpenMode::kMap;
    open.deadline = world->clock.now + 3 * kSecond;
    TheNode(world).Ask(*reader, open, open.deadline);
    if (!reader->leases.empty()) world->report.Count("a stopped reader holds something");
  }
}
void StoppedReadersDie(World* world) {
  for (Process& process : world->clients.processes) {
    if (process.stopped) world->clients.Kill(&process, false);
  }
}

struct Fault {
  const char* name;
  void (*strike)(World* world);
  void (*end)(World* world);
};

constexpr Fault kFaults[] = {
    {"storage-away", StorageHangs, StorageHangsNoLonger},
    {"storage-slow", StorageSlows, StorageIsFast},
    {"storage-failing", StorageFails, StorageWorks},
    {"storage-full", StorageFills, StorageHasSpace},
    {"storage-replaced", StorageIsReplaced, StorageReturns},
    {"files-deleted-by-hand", FilesAreTaken, Nothing},
    {"daemon-killed", DaemonIsKilled, Nothing},
    {"clock-stepped", ClockIsStepped, Nothing},
    {"life-that-completes", LifeThatCompletes, Nothing},
    {"life-that-completes-nothing", LifeThatCompletesNothing, Nothing},
    {"life-that-resumes", LifeThatResumes, Nothing},
    {"step-used", StepIsUsed, Nothing},
    {"other-nodes-newer-life", OtherNodesNewerLife, OtherNodesNewerLifePublishes},
    {"other-nodes-older-life", OtherNodesOlderLife, Nothing},
    {"journal-full", JournalFills, JournalHasSpace},
    {"reader-stopped", ReaderIsStopped, StoppedReadersDie},
    {"memory-short", MemoryIsShort, StepsAreSmall},
};

}  // namespace

std::vector<std::string> FaultsInPairs() {
  std::vector<std::string> names;
  for (const Fault& fault : kFaults) names.push_back(fault.name);
  return names;
}

PairOfFaults::PairOfFaults(World* world, const FaultPair& pair) : world_(*world) {
  Rng& rng = world->rng;
  for (int round = 0; round < kRounds; ++round) {
    const int at = kFirst + kApart * round + static_cast<int>(rng.Below(15));
    for (const size_t fault : {pair.first, pair.second}) {
      const int strikes = at + static_cast<int>(rng.Below(4));
      Plan(fault, strikes, strikes + static_cast<int>(rng.Between(4, 40)));
    }
  }
  std::stable_sort(due_.begin(), due_.end(),
                   [](const Due& a, const Due& b) { return a.event > b.event; });
}

void PairOfFaults::Plan(size_t fault, int strikes, int ends) {
  due_.push_back({strikes, [this, fault] {
                    world_.report.Count(kFaults[fault].name);
                    world_.report.Note([&] { return absl::StrCat("⚡ ", kFaults[fault].name); });
                    kFaults[fault].strike(&world_);
                  }});
  due_.push_back({ends, [this, fault] {
                    world_.report.Note([&] { return absl::StrCat("over: ", kFaults[fault].name); });
                    kFaults[fault].end(&world_);
                  }});
}

void PairOfFaults::Before(int event) {
  while (world_.ok() && !due_.empty() && due_.back().event <= event) {
    const Due due = std::move(due_.back());
    due_.pop_back();
    due.happens();
  }
}

}  // namespace cairn::engine::sim
