#include "tests/sim/executor.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/checks.h"
#include "tests/sim/node.h"
#include "tests/sim/world.h"

namespace cairn::engine::sim {
namespace {

using world::Task;
using Kind = world::Task::Kind;

constexpr const char* kGone = "storage: another one stands at the root";

}  // namespace

Executor::Executor(Node* node) : world::Executor(&node->world.storage), node_(*node) {}

MonotonicNanos Executor::Due() const {
  return under_way_.empty() ? kNoTime : under_way_.begin()->first;
}

bool Executor::Hangs() const {
  return !under_way_.empty() && under_way_.rbegin()->first == kNoTime;
}

bool Executor::Uses(SlabId slab) const {
  return std::any_of(under_way_.begin(), under_way_.end(), [&](const auto& one) {
    const std::vector<SlabId>& slabs = one.second.task.slabs;
    return std::find(slabs.begin(), slabs.end(), slab) != slabs.end();
  });
}

void Executor::Release() {
  storage_free_at_ = std::max(storage_free_at_, node_.world.clock.now);
  while (Hangs()) {
    auto first = under_way_.extract(under_way_.lower_bound(kNoTime));
    storage_free_at_ += kMilli;
    first.key() = storage_free_at_;
    under_way_.insert(std::move(first));
  }
}

int64_t Executor::unix_ms() const { return node_.UnixMs(); }
int64_t Executor::storage_unix_ms() const { return node_.world.storage.UnixMs(); }

// --- what begins

bool Executor::Away() const { return storage.away && !node_.world.ending; }

Status Executor::TroubleWithWriting() const {
  if (node_.world.ending) return absl::OkStatus();
  if (storage.full) return absl::ResourceExhaustedError("storage: no space left");
  const bool fails = storage.fails || node_.world.rng.Permille(30);
  return fails ? absl::UnavailableError("storage: away") : absl::OkStatus();
}

Status Executor::Trouble(const Task& task) const {
  World& world = node_.world;
  if (world.ending) return absl::OkStatus();
  switch (task.kind) {
    case Kind::kMake:
      if (world.rng.Permille(40)) return absl::ResourceExhaustedError("no memory for it");
      return absl::OkStatus();
    case Kind::kRecord:
      if (world.rng.Permille(10)) return absl::DataLossError("the manifest's memory is gone");
      return absl::OkStatus();
    case Kind::kPersist: {
      const bool in_the_way = world.rng.Permille(20);
      const Status trouble = TroubleWithWriting();
      return in_the_way ? absl::AlreadyExistsError("stands there and is not Cairn's") : trouble;
    }
    case Kind::kLineRecord:
      return TroubleWithWriting();
    case Kind::kDelete:
      if (storage.fails || world.rng.Permille(30)) return absl::UnavailableError("storage: away");
      return absl::OkStatus();
    case Kind::kScan:
    case Kind::kTables:
    case Kind::kNumbers:
      if (storage.fails) return absl::UnavailableError("storage: away");
      return absl::OkStatus();
    case Kind::kDestroy:
    case Kind::kProbe:
    case Kind::kVerify:
    case Kind::kSessionEnd:
      return absl::OkStatus();
  }
  return absl::OkStatus();
}

MonotonicNanos Executor::EndOf(const Task& task) {
  World& world = node_.world;
  if (task.kind == Kind::kProbe) return world.Within(3000);
  if (task.kind == Kind::kRecord) return world.Within(20'000);
  if (!task.OfStorage()) return world.Soon();
  const bool slow = storage.slow && !world.ending;
  if (task.kind == Kind::kPersist) {
    const MonotonicNanos due = slow ? world.WithinSeconds(60) : world.Soon();
    return Away() ? kNoTime : due;
  }
  const bool reads = task.kind != Kind::kLineRecord && task.kind != Kind::kDelete;
  if (reads && Away()) {
    world.report.Count("scan never answers");
    return kNoTime;
  }
  storage_free_at_ = std::max(storage_free_at_, world.Soon());
  if (reads && slow) {
    storage_free_at_ += static_cast<MonotonicNanos>(world.rng.Between(1, 20)) * kSecond;
  }
  return Away() ? kNoTime : storage_free_at_;
}

void Executor::Begin(Task task) {
  Status trouble = Trouble(task);
  const MonotonicNanos due = EndOf(task);
  under_way_.emplace(due, UnderWay{std::move(task), std::move(trouble), node_.storage_changes});
}

void Executor::Do(action::ProbeSlab& a) {
  if (!node_.world.rng.Permille(400)) return world::Executor::Do(a);
  // It probes at once, and its result comes later.
  Begin({Kind::kProbe, [seen = Probe(a)](const Status&) -> Event { return seen; }});
}

void Executor::Do(action::ScanJob& a) {
  // It may have looked before what is persisted meanwhile, but not before an earlier deletion.
  const bool early = node_.world.rng.Permille(400);
  const bool deletes = std::any_of(under_way_.begin(), under_way_.end(), [](const auto& other) {
    return other.second.task.kind == Kind::kDelete;
  });
  if (!early || deletes) return world::Executor::Do(a);
  Begin({Kind::kScan,
         [job = a.job, owner = OwnerOf(a.job), seen = Scan(a.job)](const Status& trouble) -> Event {
           return event::JobScanned{job, trouble.ok() ? seen : trouble, owner, owner};
         }});
}

void Executor::NoticeEndOf(SessionId session) {
  Begin({Kind::kSessionEnd, [this, session](const Status&) -> Event {
           node_.keeper_sessions.erase(session);
           return event::SessionEnded{session};
         }});
}

void Executor::Do(action::Reply& a) {
  World& world = node_.world;
  if (world.options.lie == Lie::kAnswerLostInside && world.rng.Permille(100)) return;
  world.clients.OnReply(&node_, std::move(a));
}

void Executor::Do(action::MakeSlab& a) {
  node_.memory.slabs[a.slab].bytes = a.bytes;
  node_.memory.making.insert(a.slab);
  if (const uint64_t total = node_.memory.TotalBytes(); total > node_.allowed_bytes) {
    node_.world.report.Fail(absl::StrCat("promise 8: slabs take ", total, " bytes, the budget is ",
                                         node_.allowed_bytes));
  }
  world::Executor::Do(a);
}

void Executor::Do(action::DestroySlab& a) {
  Report& report = node_.world.report;
  CheckNothingUses(node_, a.slab, "destroyed");
  const auto slab = node_.memory.slabs.find(a.slab);
  if (slab == node_.memory.slabs.end()) {
    report.Fail(absl::StrCat("slab ", a.slab, " is destroyed twice"));
  } else if (slab->second.Seen()) {
    report.Fail(absl::StrCat("promise 8: slab ", a.slab,
                             " is destroyed while it is mapped or open: its memory stays, "
                             "but not in the count"));
  }
  world::Executor::Do(a);
}

void Executor::Do(action::DeleteFiles& a) {
  if (!a.tombstone) {
    CheckDeletionByPolicy(node_, a.checkpoint);
    node_.deleting.insert(a.checkpoint);
  }
  node_.world.storage.BeginDelete(a.checkpoint);
  world::Executor::Do(a);
}

void Executor::Do(action::WakeAt& a) { node_.wake_at = a.at; }

void Executor::Do(action::EndSession& a) {
  const auto at = node_.keeper_sessions.find(a.session);
  if (at == node_.keeper_sessions.end()) return;
  Clients& clients = node_.world.clients;
  Process& process = clients.processes[at->second];
  node_.keeper_sessions.erase(at);
  if (process.session == a.session) clients.SessionOver(&process);
}

void Executor::Do(action::Drained&) { node_.drained = true; }

// --- what ends

void Executor::EndNext() {
  UnderWay ended = std::move(under_way_.extract(under_way_.begin()).mapped());
  const Task& task = ended.task;
  // A persist may have been written before storage went.
  const bool before = task.kind == Kind::kPersist && storage.gone && node_.world.rng.Permille(250);
  if (task.OfStorage() && storage.gone && !before) ended.trouble = absl::UnavailableError(kGone);
  Event event = task.end(ended.trouble);
  Note(ended, event);
  const auto* scanned = std::get_if<event::JobScanned>(&event);
  // The answer to a question from before storage changed is not believed.
  if (scanned != nullptr && ended.storage_changes == node_.storage_changes) NoteScanned(*scanned);
  node_.Apply(std::move(event));
}

void Executor::Note(const UnderWay& ended, const Event& any) {
  const auto note = [&](const char* done, const Status& status, const char* failed) {
    const char* what = status.ok() ? done : failed;
    if (what != nullptr) node_.world.report.Count(what);
  };
  if (const auto* made = std::get_if<event::SlabMade>(&any)) {
    note(nullptr, made->status, "slab not made");
  } else if (const auto* record = std::get_if<event::ManifestWritten>(&any)) {
    note(nullptr, record->status, "manifest not written");
  } else if (const auto* verified = std::get_if<event::Verified>(&any)) {
    note("verified", verified->status, "verification failed");
  } else if (const auto* persisted = std::get_if<event::Persisted>(&any)) {
    const bool for_good = absl::IsAlreadyExists(persisted->status);
    const char* failed = ended.trouble.ok() ? nullptr : "persist failed";
    note("persisted", persisted->status, for_good ? "persist refused for good" : failed);
  } else if (const auto* line = std::get_if<event::LineRecordWritten>(&any)) {
    note("line record written", line->stands.status(), nullptr);
  } else if (const auto* scanned = std::get_if<event::JobScanned>(&any)) {
    const bool nothing = absl::IsNotFound(scanned->stored.status());
    note(nullptr, scanned->stored.status(), nothing ? nullptr : "scan failed");
  } else if (const auto* tables = std::get_if<event::TablesRead>(&any)) {
    note("tables read", tables->stored.status(), nullptr);
  } else if (const auto* numbers = std::get_if<event::LineNumbersRead>(&any)) {
    note("line records listed", numbers->numbers.status(), nullptr);
  } else if (const auto* deleted = std::get_if<event::FilesDeleted>(&any)) {
    const bool refused = absl::IsFailedPrecondition(deleted->status);
    note("files deleted", deleted->status, refused ? "deletion refused by storage" : nullptr);
    if (!ended.task.tombstone) node_.deleting.erase(deleted->checkpoint);
  }
}

void Executor::NoteScanned(const event::JobScanned& scanned) {
  if (!scanned.stored.ok()) return;
  node_.world.report.Count("scanned");
  const auto most =
      static_cast<int64_t>(scanned.stored->checkpoints.size() + node_.mirror.manifests.size());
  node_.merges_until = std::max(node_.merges_until, node_.applies) + 4 * most + 8;
  for (const StoredCheckpoint& stored : scanned.stored->checkpoints) {
    if (!stored.damage.empty()) {
      node_.known_stored.erase(stored.key);
      node_.unconfirmed.erase(stored.key);
      continue;
    }
    // The engine reports those that memory has whole by a fact of their own, if they are the same.
    const bool whole =
        static_cast<int32_t>(node_.mirror.CommittedWriters(stored.key)) == stored.world_size;
    if (whole || node_.mirror.Removed(stored.key)) continue;
    node_.known_stored.insert(stored.key);
    node_.unconfirmed.erase(stored.key);
  }
}

void Executor::Made(SlabId slab, uint64_t, const Status& status) {
  node_.memory.making.erase(slab);
  if (!status.ok()) node_.memory.slabs.erase(slab);
}

void Executor::Destroyed(SlabId slab) { node_.memory.slabs.erase(slab); }

event::SlabProbed Executor::Probe(const action::ProbeSlab& probe) {
  const Lie lie = node_.world.options.lie;
  event::SlabProbed probed;
  probed.slab = probe.slab;
  probed.free = node_.memory.Unseen(probe.slab);
  for (LeaseId lease : probe.leases) {
    if (!node_.memory.Locked(probe.slab, lease)) probed.ended.push_back(lease);
  }
  if (lie == Lie::kSlabReportedFree || lie == Lie::kLockReportedGone) probed.ended = probe.leases;
  if (lie == Lie::kSlabReportedFree) probed.free = true;
  if (lie == Lie::kLockReportedGone) {
    const auto slab = node_.memory.slabs.find(probe.slab);
    probed.free = slab != node_.memory.slabs.end() && slab->second.maps.empty() &&
                  slab->second.by_path.empty();
  }
  return probed;
}

Status Executor::WriteRecord(const action::WriteManifest& write, std::string manifest) {
  Report& report = node_.world.report;
  const std::string record = EncodePartRecord(std::move(manifest), write.table->extents);
  if (record.size() > write.extent.length) {
    report.Fail(absl::StrCat(write.part.DebugString(), "'s record does not fit"));
  }
  const auto slab = node_.memory.slabs.find(write.extent.slab);
  if (slab != node_.memory.slabs.end()) {
    slab->second.Write(write.extent.offset, {{write.extent.length, 0}, kNoTime, record});
  } else {
    report.Fail(absl::StrCat("pin: the manifest of ", write.part.DebugString(),
                             " is written into slab ", write.extent.slab, ", which is gone"));
  }
  return absl::OkStatus();
}

Status Executor::Verify(const action::Verify& verify) {
  Report& report = node_.world.report;
  const auto what = [&] { return absl::StrCat(verify.part.DebugString(), " ", verify.entry.name); };
  if (node_.world.promises.Find(verify.part) == nullptr) {
    report.Fail(absl::StrCat("verifies ", verify.part.DebugString(), ", which nobody saved"));
  }
  if (verify.entry.length == 0) return absl::OkStatus();
  const Region* region = node_.memory.At(verify.extent);
  if (region == nullptr) {
    report.Fail(absl::StrCat("pin: the bytes of ", what(), " are gone while they are verified"));
    return absl::OkStatus();
  }
  const bool flipped = region->flipped != kNoTime;
  if (!flipped && CrcsOf({verify.entry.length, region->bytes.content}) == verify.entry.block_crcs) {
    return absl::OkStatus();
  }
  if (!flipped) {
    report.Fail(absl::StrCat("promise 6: other bytes were written over ", what()));
  }
  return absl::DataLossError("block 0 is not what was sealed");
}

// --- storage

StatusOr<bool> Executor::Write(const action::Persist& persist) {
  World& world = node_.world;
  std::set<Writer> writers;
  int32_t world_size = 0;
  for (const auto& part : persist.parts) {
    CAIRN_RETURN_IF_ERROR(ReadPart(*part));
    writers.insert(part->head.writer);
    world_size = part->head.world_size;
  }
  if (static_cast<int32_t>(writers.size()) != world_size) {
    world.report.Fail(absl::StrCat("promise 3: ", persist.checkpoint.DebugString(),
                                   " is persisted without all its writers"));
  }
  if (persist.origin.has_value()) {
    const StatusOr<LineRecord> stands = storage_.Write(*persist.origin, storage_unix_ms());
    if (stands.ok() && !(*stands == *persist.origin)) {
      world.report.Fail(absl::StrCat("promise 3: attempt ", stands->number,
                                     " was said to come from ", OriginText(stands->lineage),
                                     " and from ", OriginText(persist.origin->lineage)));
    }
  }
  StatusOr<bool> published = world::Executor::Write(persist);
  if (published.ok()) world.storage.NotePublished(persist.checkpoint);
  return published;
}

// Reads one part from memory, as a persist does, and compares it with what was promised.
Status Executor::ReadPart(const PartTable& part) {
  Report& report = node_.world.report;
  const PartKey key = part.head.Part();
  const PartPromise* promise = node_.world.promises.Find(key);
  const std::string digest = ManifestDigest(EncodeManifest(part));
  if (promise == nullptr || digest != promise->digest) {
    report.Fail(
        absl::StrCat("promise 3: ", key.DebugString(), " is persisted as nobody committed it"));
    return absl::InternalError("nobody committed it");
  }
  std::set<std::string> names;
  for (size_t i = 0; i < part.entries.size(); ++i) {
    const std::string& name = part.entries[i]->name;
    const ObjectBytes& wanted = promise->objects.at(name);
    if (const std::string wrong = node_.memory.WrongBytes(part.extents[i], wanted);
        !wrong.empty()) {
      report.Fail(
          absl::StrCat("pin: ", key.DebugString(), " ", name, " while it is persisted: ", wrong));
    }
    const Region* region = node_.memory.At(part.extents[i]);
    if (region != nullptr && region->flipped != kNoTime) {
      report.Count("persist found a flipped bit");
      return absl::DataLossError("a block is not what was sealed");
    }
    names.insert(name);
  }
  if (names.size() != promise->objects.size()) {
    report.Fail(
        absl::StrCat("promise 1: ", key.DebugString(), " is persisted without all its objects"));
  }
  return absl::OkStatus();
}

Status Executor::Delete(const action::DeleteFiles& deletion) {
  Status deleted = world::Executor::Delete(deletion);
  if (!deleted.ok()) return deleted;
  CheckOtherNodesOrigin(node_, deletion);
  CheckSomethingStays(node_, deletion);
  node_.check_persisted = true;
  return deleted;
}

uint32_t Executor::OwnerOf(const std::string& name) const {
  for (const Job& job : node_.world.clients.jobs) {
    if (job.name == name) return job.uid;
  }
  return 0;
}

// --- the daemon's death

void Executor::Crash() {
  std::multimap<MonotonicNanos, UnderWay> was;
  was.swap(under_way_);
  for (auto& [due, cut] : was) {
    const bool happened = node_.world.rng.Permille(500) && due != kNoTime;
    const Task& task = cut.task;
    switch (task.kind) {
      case Kind::kSessionEnd:
        task.end(absl::OkStatus());
        break;
      case Kind::kMake:
        task.end(happened ? absl::OkStatus() : absl::CancelledError("the daemon died"));
        break;
      case Kind::kPersist:
        if (happened && !absl::IsAlreadyExists(cut.trouble)) task.end(absl::OkStatus());
        break;
      case Kind::kDestroy:
      case Kind::kLineRecord:
      case Kind::kDelete:
        if (happened) task.end(absl::OkStatus());
        break;
      case Kind::kProbe:
      case Kind::kRecord:
      case Kind::kVerify:
      case Kind::kScan:
      case Kind::kTables:
      case Kind::kNumbers:
        break;  // without its event it changes nothing
    }
  }
  storage_free_at_ = 0;
  // In a pair of faults it lasts as long as it was drawn to.
  if (!node_.world.options.pair) storage.away = false;
}

}  // namespace cairn::engine::sim
