#include "tests/sim/liveness.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/checks.h"
#include "tests/sim/world.h"

namespace cairn::engine::sim {
namespace {

constexpr uint32_t kUidOfLastJob = 3000;

void DrainDaemon(Node* node) {
  World& world = node->world;
  world.report.Count("drained");
  node->Apply(event::Drain{world.clock.now + 20 * kSecond});
  if (world.ok()) world.AdvanceTo(world.clock.now + 21 * kSecond);
  if (world.ok() && !node->drained) {
    return world.report.Fail(
        "promise 4: the daemon was asked to stop, and has not by the deadline");
  }
  if (world.ok()) node->Crash();
}

// Bytes of slabs that may stay for good: each job's newest that is nowhere else, what is pinned,
// steps that other writers may still complete, and manifests.
uint64_t CannotBeEvicted(const Node& node) {
  const World& world = node.world;
  std::set<CheckpointKey> stays;
  for (const auto& [part, objects] : node.mirror.objects) {
    const CheckpointKey& key = part.checkpoint;
    // One that lost a manifest to a flipped bit is no longer complete.
    const bool incomplete = !world.promises.EverComplete(key) ||
                            (node.memory.manifest_flips > 0 && !node.MemoryHas(key));
    if (node.mirror.pinned.contains(key) || incomplete) stays.insert(key);
    const std::optional<CheckpointKey> latest = node.LatestNow(key.job);
    if (latest && *latest == key) stays.insert(key);
  }
  std::set<SlabId> slabs;
  for (const auto& [id, slab] : node.mirror.slabs) {
    if (slab.use == fact::SlabUse::kManifests) slabs.insert(id);
  }
  for (const auto& [part, objects] : node.mirror.objects) {
    if (!stays.contains(part.checkpoint)) continue;
    for (const auto& [name, object] : objects) slabs.insert(object.extent.slab);
  }
  uint64_t bytes = 0;
  for (SlabId id : slabs) {
    if (const auto slab = node.memory.slabs.find(id); slab != node.memory.slabs.end()) {
      bytes += slab->second.bytes;
    }
  }
  return bytes;
}

// No more faults, nobody lives, nobody sees a slab.
void StopEverything(World* world) {
  world->ending = true;
  for (const auto& node : world->nodes) {
    node->dies_next = false;
    node->executor.storage = {};
    if (!node->storage_here) node->SeeStorage(world->storage.root);
  }
  for (Process& process : world->clients.processes) world->clients.Kill(&process, false);
  for (const auto& node : world->nodes) {
    for (auto& [id, slab] : node->memory.slabs) {
      slab.maps.clear();
      slab.locks.clear();
      slab.by_path.clear();
    }
    if (node->journal_full) node->Apply(event::JournalFull{false});
    node->journal_full = false;
    if (world->ok() && node->executor.Hangs()) node->Crash();
    if (world->ok() && world->rng.Permille(200)) DrainDaemon(node.get());
  }
}

void NoteSlabs(Node* node) {
  for (const auto& [id, slab] : node->memory.slabs) {
    node->world.report.Note([&, id = id, bytes = slab.bytes] {
      std::string users;
      for (const auto& [part, objects] : node->mirror.objects) {
        for (const auto& [name, object] : objects) {
          if (object.extent.slab != id) continue;
          absl::StrAppend(&users, " ", part.DebugString(), " ", name);
        }
      }
      return absl::StrCat("at the end slab ", id, " of ", bytes, ":", users);
    });
  }
}

// The only writer of a job that comes when all others are dead.
class LastWriter {
 public:
  explicit LastWriter(Node* node)
      : node_(*node), world_(node->world), clients_(node->world.clients) {}

  void Run();

 private:
  bool ok() const { return world_.ok(); }
  void Fail(std::string what) { world_.report.Fail("promise 4: " + std::move(what)); }
  bool SayHello();
  void CheckNothingIsHeld();
  // The size of an object that fits twice; 0: none is worth trying.
  uint64_t SizeThatFitsTwice() const;
  void Save(Step step, uint64_t size);
  // Creates the object, unmapping what it is told to; false when the life has failed.
  bool Create(const PartKey& part, uint64_t size, reply::GrantedExtent* granted);

  Node& node_;
  World& world_;
  Clients& clients_;
  Process* process_ = nullptr;
};

bool LastWriter::SayHello() {
  clients_.jobs.push_back({});
  clients_.jobs.back().name = "end";
  clients_.jobs.back().uid = kUidOfLastJob;
  process_ = &clients_.NewProcess(node_, static_cast<int>(clients_.jobs.size()) - 1, 1, 0, 1);
  process_->takes_fds = true;
  clients_.SayHello(process_);
  if (ok() && process_->session != 0) return true;
  Fail("nobody can say hello at the end");
  return false;
}

void LastWriter::CheckNothingIsHeld() {
  const StatusOr<reply::Body> answer =
      clients_.AskAndWait(process_, event::Status{}, world_.clock.now + kSecond);
  if (!ok()) return;
  const auto& status = std::get<reply::Status>(*answer);
  if (status.quarantined_bytes == 0 && status.writing_bytes == 0) return;
  world_.report.Fail(absl::StrCat("promise 8: nobody lives, yet ", status.quarantined_bytes,
                                  " bytes are quarantined and ", status.writing_bytes,
                                  " are being written"));
}

uint64_t LastWriter::SizeThatFitsTwice() const {
  const uint64_t budget = node_.options.budget_bytes;
  const uint64_t manifest_slab = std::clamp(budget / 64, kPageBytes, uint64_t{256} << 10);
  const uint64_t fixed = CannotBeEvicted(node_) + 4 * manifest_slab;
  if (budget <= fixed + 64 * kPageBytes) return 0;
  // What of one step's slab is slack: a sixteenth where it is large; a small one may get a slab of
  // twice its size.
  // It has nothing else, and of records one slab, or two, which count twice.
  const uint64_t share = node_.options.MemoryOf(kUidOfLastJob) - 4 * manifest_slab;
  const uint64_t half = std::min(budget - fixed, share) / 2;
  const uint64_t size = half * 16 / 17 / kPageBytes * kPageBytes - kPageBytes;
  if (size >= (uint64_t{1} << 20)) return size;
  return (half - 16 * kPageBytes) / 2 / kPageBytes * kPageBytes;
}

bool LastWriter::Create(const PartKey& part, uint64_t size, reply::GrantedExtent* granted) {
  event::Create create;
  create.call = process_->next_call++;
  create.part = part;
  create.world_size = 1;
  create.objects = {{"all", size, ObjectKind::kRaw, false}};
  for (int tries = 0; tries <= 4; ++tries) {
    create.deadline = world_.clock.now + 30 * kSecond;
    create.unmapped = std::exchange(process_->unmapped, {});
    const StatusOr<reply::Body> answer = clients_.AskAndWait(process_, create, create.deadline);
    if (!ok()) return false;
    if (!answer.ok()) {
      Fail(absl::StrCat("a job of ", size, " bytes fits twice beside what may stay, yet its step ",
                        part.checkpoint.step, " is refused: ", answer.status().ToString()));
      return false;
    }
    const auto& created = std::get<reply::Create>(*answer);
    if (created.extents.empty()) continue;
    *granted = created.extents[0];
    return true;
  }
  Fail("a create is told to unmap again and again");
  return false;
}

void LastWriter::Save(Step step, uint64_t size) {
  const PartKey part{{"end", step, 1, 0}, 0};
  reply::GrantedExtent granted;
  if (!Create(part, size, &granted)) return;
  const ObjectBytes bytes{size, world_.next_content++};
  node_.memory.slabs.at(granted.slab).Write(granted.offset, {bytes});
  event::Commit commit;
  commit.call = process_->next_call++;
  commit.part = part;
  commit.world_size = 1;
  commit.seals = {{"all", size, CrcsOf(bytes), {{0, size}}}};
  commit.unix_ms = node_.UnixMs();
  world_.promises.parts[part].objects["all"] = bytes;
  world_.promises.parts[part].world_size = 1;
  StatusOr<reply::Body> answer =
      clients_.AskAndWait(process_, commit, world_.clock.now + kPatience);
  if (!ok()) return;
  if (!answer.ok()) {
    return Fail(absl::StrCat("the last job's commit is answered ", answer.status().ToString()));
  }
  const MonotonicNanos deadline = world_.clock.now + 5 * kSecond;
  answer = clients_.AskAndWait(process_, event::Latest{{}, "end", deadline}, deadline);
  if (ok()) CheckLatest(&node_, "end", answer);
}

void LastWriter::Run() {
  if (!SayHello()) return;
  CheckNothingIsHeld();
  if (!ok()) return;
  const uint64_t size = SizeThatFitsTwice();
  if (size == 0) return world_.report.Count("no room for the last job");
  NoteSlabs(&node_);
  world_.report.Count("liveness");
  for (Step step = 0; step < 3 && ok(); ++step) Save(step, size);
}

}  // namespace

void EndLife(World* world) {
  StopEverything(world);
  if (!world->ok() || !world->AdvanceTo(world->clock.now + 240 * kSecond)) return;
  for (const auto& node : world->nodes) {
    if (!node->calls.outstanding.empty()) {
      return world->report.Fail("promise 4: callers are left waiting when everybody is dead");
    }
    CheckOriginsKnown(*node);
  }
  if (world->ok()) LastWriter(&world->SomeNode()).Run();
}

}  // namespace cairn::engine::sim
