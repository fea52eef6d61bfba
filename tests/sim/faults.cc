#include "tests/sim/faults.h"

#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/sim/world.h"

namespace cairn::engine::sim {

void FilesAreTaken(World* world) {
  const std::vector<CheckpointKey> all = world->storage.AllPublished();
  if (all.empty()) return;
  const CheckpointKey& key = world->rng.Permille(500) ? all.back() : world->rng.Pick(all);
  const bool whole = world->rng.Permille(500);
  world->storage.TakeByHand(key, whole);
  world->report.Count(whole ? "files deleted by hand" : "files damaged by hand");
  world->report.Note([&] {
    return absl::StrCat(whole ? "all" : "some", " files of ", key.DebugString(), " are deleted");
  });
}

namespace {

bool Always(const World&) { return true; }
bool CrashesAreLeft(const World& world) { return world.crashes_left > 0; }
bool SomebodyLives(const World& world) { return !world.clients.Alive().empty(); }

Process& SomeoneAlive(World* world) {
  return world->clients.processes[world->rng.Pick(world->clients.Alive())];
}

// It dies at its next Apply, whatever that is.
void DaemonDies(World* world) {
  --world->crashes_left;
  world->SomeNode().dies_next = true;
}

void ProcessDies(World* world) {
  // Drawn first: the order is part of every seed.
  const bool lingers = world->rng.Permille(300);
  world->clients.Kill(&SomeoneAlive(world), lingers);
}

void JobRestarts(World* world) {
  world->clients.NewGroup(static_cast<int>(world->rng.Below(world->clients.jobs.size())));
}

// What was kept by a child or a duplicate of a descriptor goes at last.
void GhostsGo(World* world) {
  for (auto& [id, slab] : world->SomeNode().memory.slabs) {
    if (!world->rng.Permille(400)) slab.DropGhosts();
  }
}

void BitFlips(World* world) {
  Node& node = world->SomeNode();
  std::vector<ExtentRef> sealed;
  for (const auto& [part, objects] : node.mirror.objects) {
    const PartPromise* promise = world->promises.Find(part);
    if (promise == nullptr || !promise->committed) continue;
    for (const auto& [name, object] : objects) {
      if (node.memory.At(object.extent) != nullptr) sealed.push_back(object.extent);
    }
  }
  if (sealed.empty()) return;
  const ExtentRef extent = world->rng.Pick(sealed);
  Region& region = *node.memory.At(extent);
  if (world->options.lie == Lie::kScribble) {
    region.bytes.content = world->next_content++;
  } else if (region.flipped == kNoTime) {
    region.flipped = world->clock.now;
    ++node.memory.flips;
    world->report.Count("bit flip");
    world->report.Note(
        [&] { return absl::StrCat("a bit flips in slab ", extent.slab, "+", extent.offset); });
  }
}

void BitFlipsInAManifest(World* world) {
  Node& node = world->SomeNode();
  std::vector<ExtentRef> written;
  for (const auto& [key, writers] : node.mirror.manifests) {
    for (const auto& [writer, committed] : writers) written.push_back(committed.extent);
  }
  if (written.empty()) return;
  Region* region = node.memory.At(world->rng.Pick(written));
  if (region == nullptr) return;
  region->flipped = world->clock.now;
  ++node.memory.manifest_flips;
  world->report.Count("bit flip in a manifest");
}

void StorageChanges(World* world) {
  Executor::StorageFaults& storage = world->SomeNode().executor.storage;
  storage.fails = world->rng.Permille(300);
  storage.away = world->rng.Permille(120);
  storage.slow = world->rng.Permille(250);
  world->report.Note([&] {
    return absl::StrCat("storage fails=", storage.fails, " away=", storage.away,
                        " slow=", storage.slow);
  });
  if (storage.fails) world->report.Count("storage fails");
  if (storage.away) world->report.Count("storage away");
  if (storage.slow) world->report.Count("storage slow");
}

void JournalFillsOrEmpties(World* world) {
  Node& node = world->SomeNode();
  node.journal_full = !node.journal_full && world->rng.Permille(700);
  if (node.journal_full) world->report.Count("journal full");
  node.Apply(event::JournalFull{node.journal_full});
}

void TimePasses(World* world) { world->AdvanceTo(world->WithinSeconds(40)); }

void JournalIsCompacted(World* world) {
  Node& node = world->SomeNode();
  if (world->rng.Permille(500)) {
    node.Compact();
  } else {
    node.CompactInPieces();
  }
}

void SnapshotIsCompared(World* world) { world->SomeNode().CompareSnapshot(); }

void SomeoneSaysGoodbye(World* world) {
  const Process& process = SomeoneAlive(world);
  if (process.session == 0) return;
  world->report.Count("goodbye");
  world->nodes[process.node]->Apply(event::SessionEnded{process.session});
}

struct Fault {
  uint64_t
      below;  // of 100: the first row whose number is above the drawn one, and that is possible
  bool (*possible)(const World& world);
  void (*strike)(World* world);
};

constexpr Fault kFaults[] = {
    {14, CrashesAreLeft, DaemonDies},
    {26, SomebodyLives, ProcessDies},
    {34, Always, JobRestarts},
    {50, Always, GhostsGo},
    {56, Always, BitFlips},
    {57, Always, BitFlipsInAManifest},
    {59, Always, FilesAreTaken},
    {70, Always, StorageChanges},
    {74, Always, JournalFillsOrEmpties},
    {82, Always, TimePasses},
    {90, Always, JournalIsCompacted},
    {94, Always, SnapshotIsCompared},
    {100, SomebodyLives, SomeoneSaysGoodbye},
};

constexpr Fault kSmallFaults[] = {
    {45, Always, TimePasses},         {60, Always, GhostsGo},
    {75, Always, JournalIsCompacted}, {85, Always, SnapshotIsCompared},
    {90, SomebodyLives, ProcessDies}, {95, SomebodyLives, SomeoneSaysGoodbye},
    {100, Always, JobRestarts},
};

template <size_t kMany>
void DoOneOf(const Fault (&faults)[kMany], World* world) {
  const uint64_t drawn = world->rng.Below(100);
  for (const Fault& fault : faults) {
    if (drawn >= fault.below || !fault.possible(*world)) continue;
    return fault.strike(world);
  }
}

}  // namespace

void DoSomeFault(World* world) { DoOneOf(kFaults, world); }

void DoSomeSmallFault(World* world) { DoOneOf(kSmallFaults, world); }

}  // namespace cairn::engine::sim
