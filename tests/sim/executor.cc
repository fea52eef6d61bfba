#include "tests/sim/executor.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/checks.h"
#include "tests/sim/node.h"
#include "tests/sim/world.h"

namespace cairn::engine::sim {
namespace {

constexpr const char* kGone = "storage: another one stands at the root";

// Whether it reads or writes bytes of the slab, which is pinned until it ends.
bool UsesBytes(const completion::Make&, SlabId) { return false; }
bool UsesBytes(const completion::Destroy&, SlabId) { return false; }
bool UsesBytes(const completion::Probe&, SlabId) { return false; }
bool UsesBytes(const completion::Manifest& c, SlabId slab) { return c.write.extent.slab == slab; }
bool UsesBytes(const completion::Verify& c, SlabId slab) { return c.verify.extent.slab == slab; }
bool UsesBytes(const completion::Persist& c, SlabId slab) {
  for (const auto& part : c.persist->parts) {
    for (const ExtentRef& extent : part->extents) {
      if (extent.slab == slab) return true;
    }
  }
  return false;
}
bool UsesBytes(const completion::Delete&, SlabId) { return false; }
bool UsesBytes(const completion::Record&, SlabId) { return false; }
bool UsesBytes(const completion::Scan&, SlabId) { return false; }
bool UsesBytes(const completion::TableRead&, SlabId) { return false; }
bool UsesBytes(const completion::LineLook&, SlabId) { return false; }
bool UsesBytes(const completion::SessionGone&, SlabId) { return false; }

}  // namespace

void Executor::Post(MonotonicNanos due, Completion completion) {
  under_way_.emplace(due, std::move(completion));
}

MonotonicNanos Executor::Due() const {
  return under_way_.empty() ? kNoTime : under_way_.begin()->first;
}

bool Executor::Hangs() const {
  return !under_way_.empty() && under_way_.rbegin()->first == kNoTime;
}

bool Executor::Uses(SlabId slab) const {
  return std::any_of(under_way_.begin(), under_way_.end(), [&](const auto& one) {
    return std::visit([&](const auto& c) { return UsesBytes(c, slab); }, one.second);
  });
}

void Executor::Release() {
  storage_free_at_ = std::max(storage_free_at_, node_.world.clock.now);
  while (Hangs()) {
    const auto first = under_way_.lower_bound(kNoTime);
    Completion completion = std::move(first->second);
    under_way_.erase(first);
    storage_free_at_ += kMilli;
    Post(storage_free_at_, std::move(completion));
  }
}

bool Executor::Away() const { return storage.away && !node_.world.ending; }

Status Executor::TroubleWithWriting() const {
  if (node_.world.ending) return absl::OkStatus();
  if (storage.full) return absl::ResourceExhaustedError("storage: no space left");
  const bool fails = storage.fails || node_.world.rng.Permille(30);
  return fails ? absl::UnavailableError("storage: away") : absl::OkStatus();
}

// --- what begins

void Executor::Begin(action::MakeSlab& a) {
  const bool fails = !node_.world.ending && node_.world.rng.Permille(40);
  Post(node_.world.Soon(), completion::Make{a.slab, fails});
}

void Executor::Begin(action::DestroySlab& a) {
  Post(node_.world.Soon(), completion::Destroy{a.slab});
}

void Executor::Begin(action::ProbeSlab& a) {
  completion::Probe probe{a.slab, std::move(a.leases), std::nullopt};
  if (node_.world.rng.Permille(400)) probe.early = Probe(probe.slab, probe.leases);
  Post(node_.world.Within(3000), std::move(probe));
}

void Executor::Begin(action::WriteManifest& a) {
  const bool fails = !node_.world.ending && node_.world.rng.Permille(10);
  Post(node_.world.Within(20'000), completion::Manifest{std::move(a), fails});
}

void Executor::Begin(action::Verify& a) {
  Post(node_.world.Soon(), completion::Verify{std::move(a)});
}

void Executor::Begin(action::Persist& a) {
  World& world = node_.world;
  completion::Persist persist{std::make_shared<action::Persist>(std::move(a)), false, {}};
  persist.in_the_way = !world.ending && world.rng.Permille(20);
  persist.trouble = TroubleWithWriting();
  MonotonicNanos due = storage.slow && !world.ending ? world.WithinSeconds(60) : world.Soon();
  if (Away()) due = kNoTime;
  Post(due, std::move(persist));
}

void Executor::Begin(action::DeleteFiles& a) {
  World& world = node_.world;
  const bool fails = !world.ending && (storage.fails || world.rng.Permille(30));
  storage_free_at_ = std::max(storage_free_at_, world.Soon());
  Post(Away() ? kNoTime : storage_free_at_, completion::Delete{std::move(a), fails});
}

void Executor::Begin(action::WriteLineRecord& a) {
  World& world = node_.world;
  Status trouble = TroubleWithWriting();
  storage_free_at_ = std::max(storage_free_at_, world.Soon());
  Post(Away() ? kNoTime : storage_free_at_, completion::Record{std::move(a), std::move(trouble)});
}

void Executor::Begin(action::ScanJob& a) {
  World& world = node_.world;
  completion::Scan scan;
  scan.job = a.job;
  scan.storage_changes = node_.storage_changes;
  scan.fails = !world.ending && storage.fails;
  // It may have looked before what is persisted meanwhile, but not before an earlier deletion.
  const bool early = world.rng.Permille(400);
  const bool deletes = std::any_of(under_way_.begin(), under_way_.end(), [](const auto& other) {
    return std::holds_alternative<completion::Delete>(other.second);
  });
  if (early && !deletes) scan.early = world.storage.Scan(scan.job);
  PostRead(std::move(scan));
}

void Executor::Begin(action::ReadTables& a) {
  PostRead(completion::TableRead{a.checkpoint, !node_.world.ending && storage.fails});
}

void Executor::Begin(action::ReadLineNumbers& a) {
  PostRead(completion::LineLook{a.job, !node_.world.ending && storage.fails});
}

void Executor::PostRead(Completion read) {
  World& world = node_.world;
  if (Away()) {
    world.report.Count("scan never answers");
    return Post(kNoTime, std::move(read));
  }
  storage_free_at_ = std::max(storage_free_at_, world.Soon());
  if (storage.slow && !world.ending) {
    storage_free_at_ += static_cast<MonotonicNanos>(world.rng.Between(1, 20)) * kSecond;
  }
  Post(storage_free_at_, std::move(read));
}

void Executor::NoticeEndOf(SessionId session) {
  Post(node_.world.Soon(), completion::SessionGone{session});
}

// --- what ends

void Executor::EndNext() {
  Completion completion = std::move(under_way_.begin()->second);
  under_way_.erase(under_way_.begin());
  std::visit([this](auto& c) { End(c); }, completion);
}

void Executor::End(completion::Make& c) {
  node_.memory.making.erase(c.slab);
  if (c.fails) {
    node_.world.report.Count("slab not made");
    node_.memory.slabs.erase(c.slab);
  }
  node_.Apply(event::SlabMade{
      c.slab, c.fails ? absl::ResourceExhaustedError("no memory for it") : absl::OkStatus()});
}

void Executor::End(completion::Destroy& c) {
  node_.memory.slabs.erase(c.slab);
  node_.Apply(event::SlabDestroyed{c.slab});
}

event::SlabProbed Executor::Probe(SlabId slab, const std::vector<LeaseId>& leases) const {
  event::SlabProbed probed;
  probed.slab = slab;
  probed.free = node_.memory.Unseen(slab);
  for (LeaseId lease : leases) {
    if (!node_.memory.Locked(slab, lease)) probed.ended.push_back(lease);
  }
  return probed;
}

void Executor::End(completion::Probe& c) {
  event::SlabProbed probed = c.early ? std::move(*c.early) : Probe(c.slab, c.leases);
  if (node_.world.options.lie == Lie::kSlabReportedFree) {
    probed.free = true;
    probed.ended = c.leases;
  }
  if (node_.world.options.lie == Lie::kLockReportedGone) {
    const auto slab = node_.memory.slabs.find(c.slab);
    probed.ended = c.leases;
    probed.free = slab != node_.memory.slabs.end() && slab->second.maps.empty() &&
                  slab->second.by_path.empty();
  }
  node_.Apply(std::move(probed));
}

void Executor::End(completion::Manifest& c) {
  const action::WriteManifest& write = c.write;
  const std::string encoded = EncodeManifest(*write.table);
  const std::string record = EncodePartRecord(encoded, write.table->extents);
  if (record.size() > write.extent.length) {
    node_.world.report.Fail(absl::StrCat(write.part.DebugString(), "'s record does not fit"));
  }
  Status status;
  if (c.fails) {
    status = absl::DataLossError("the manifest's memory is gone");
    node_.world.report.Count("manifest not written");
  } else if (const auto slab = node_.memory.slabs.find(write.extent.slab);
             slab != node_.memory.slabs.end()) {
    slab->second.Write(write.extent.offset, {{write.extent.length, 0}, kNoTime, record});
  } else {
    node_.world.report.Fail(absl::StrCat("pin: the manifest of ", write.part.DebugString(),
                                         " is written into slab ", write.extent.slab,
                                         ", which is gone"));
  }
  node_.Apply(event::ManifestWritten{write.part, write.extent, status, ManifestDigest(encoded)});
}

void Executor::End(completion::Verify& c) {
  const action::Verify& verify = c.verify;
  Report& report = node_.world.report;
  const auto what = [&] { return absl::StrCat(verify.part.DebugString(), " ", verify.entry.name); };
  Status status;
  if (verify.entry.length > 0) {
    const Region* region = node_.memory.At(verify.extent);
    if (region == nullptr) {
      report.Fail(absl::StrCat("pin: the bytes of ", what(), " are gone while they are verified"));
    } else if (region->flipped != kNoTime ||
               CrcsOf({verify.entry.length, region->bytes.content}) != verify.entry.block_crcs) {
      if (region->flipped == kNoTime) {
        report.Fail(absl::StrCat("promise 6: other bytes were written over ", what()));
      }
      status = absl::DataLossError("block 0 is not what was sealed");
      report.Count("verification failed");
    }
  }
  if (node_.world.promises.Find(verify.part) == nullptr) {
    report.Fail(absl::StrCat("verifies ", verify.part.DebugString(), ", which nobody saved"));
  }
  report.Count("verified");
  node_.Apply(event::Verified{verify.verification, status, node_.UnixMs()});
}

void Executor::End(completion::Persist& c) {
  // It may have been written before storage went.
  if (storage.gone && !node_.world.rng.Permille(250)) c.trouble = absl::UnavailableError(kGone);
  Status status = c.trouble;
  if (!status.ok()) {
    node_.world.report.Count("persist failed");
  } else if (c.in_the_way) {
    status = absl::AlreadyExistsError("stands there and is not Cairn's");
    node_.world.report.Count("persist refused for good");
  } else {
    status = Publish(*c.persist);
    if (status.ok()) node_.world.report.Count("persisted");
  }
  node_.Apply(event::Persisted{c.persist->checkpoint, status});
}

void Executor::End(completion::Delete& c) {
  Status status;
  if (c.fails || storage.gone) {
    status = absl::UnavailableError(storage.gone ? kGone : "storage: away");
  } else if (status = node_.world.storage.CheckNotNeeded(c.deletion); !status.ok()) {
    node_.world.report.Count("deletion refused by storage");
  } else {
    CheckOtherNodesOrigin(node_, c.deletion);
    node_.world.storage.Delete(c.deletion);
    node_.check_persisted = true;
    node_.world.report.Count("files deleted");
  }
  if (!c.deletion.tombstone) node_.deleting.erase(c.deletion.checkpoint);
  node_.Apply(event::FilesDeleted{c.deletion.checkpoint, status});
}

void Executor::End(completion::Record& c) {
  if (storage.gone) c.trouble = absl::UnavailableError(kGone);
  StatusOr<LineRecord> stands = absl::UnknownError("not written");
  if (!c.trouble.ok()) {
    stands = c.trouble;
  } else {
    stands = node_.world.storage.WriteLineRecord(c.write.record);
    node_.world.report.Count("line record written");
  }
  node_.Apply(event::LineRecordWritten{c.write.record, std::move(stands)});
}

void Executor::End(completion::TableRead& c) {
  event::TablesRead read{c.checkpoint, absl::NotFoundError("it is not in storage")};
  const StoredCheckpoint* stored = node_.world.storage.Find(c.checkpoint);
  if (c.fails || storage.gone) {
    read.stored = absl::UnavailableError(kGone);
  } else if (stored != nullptr) {
    read.stored = *stored;
  }
  node_.world.report.Count("tables read");
  node_.Apply(std::move(read));
}

void Executor::End(completion::LineLook& c) {
  event::LineNumbersRead read{c.job, absl::UnavailableError("storage: away")};
  if (!c.fails && !storage.gone) {
    const StatusOr<StoredJob> stored = node_.world.storage.Scan(c.job);
    if (stored.ok()) read.numbers = NumbersOf(stored->records);
    if (!stored.ok()) read.numbers = stored.status();
    node_.world.report.Count("line records listed");
  }
  node_.Apply(std::move(read));
}

void Executor::End(completion::Scan& c) {
  event::JobScanned scanned{c.job, c.early ? *c.early : node_.world.storage.Scan(c.job), 0, 0};
  if (c.fails || storage.gone) {
    scanned.stored = absl::UnavailableError(storage.gone ? kGone : "storage: away");
    node_.world.report.Count("scan failed");
  }
  for (const Job& job : node_.world.clients.jobs) {
    if (job.name == c.job) scanned.owner_uid = scanned.owner_gid = job.uid;
  }
  // The answer to a question from before storage changed is not believed.
  if (scanned.stored.ok() && c.storage_changes == node_.storage_changes) {
    node_.world.report.Count("scanned");
    const auto most =
        static_cast<int64_t>(scanned.stored->checkpoints.size() + node_.mirror.manifests.size());
    node_.merges_until = std::max(node_.merges_until, node_.applies) + 4 * most + 8;
    for (const StoredCheckpoint& stored : scanned.stored->checkpoints) {
      // A fact tells of those that memory has whole, if they are the same.
      const bool whole =
          static_cast<int32_t>(node_.mirror.CommittedWriters(stored.key)) == stored.world_size;
      if (whole || node_.mirror.Removed(stored.key)) continue;
      node_.known_stored.insert(stored.key);
      node_.unconfirmed.erase(stored.key);
    }
  }
  node_.Apply(std::move(scanned));
}

void Executor::End(completion::SessionGone& c) {
  node_.keeper_sessions.erase(c.session);
  node_.Apply(event::SessionEnded{c.session});
}

// --- writing to storage

// Reads one part from memory, as a persist does, and compares it with what was promised.
Status Executor::ReadPart(const PartTable& part, StoredCheckpoint* checkpoint) {
  Report& report = node_.world.report;
  const PartKey key = part.head.Part();
  checkpoint->world_size = part.head.world_size;
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
  checkpoint->parts.push_back({part.Whole(), digest});
  return absl::OkStatus();
}

Status Executor::Publish(const action::Persist& persist) {
  StoredCheckpoint checkpoint;
  checkpoint.key = persist.checkpoint;
  checkpoint.location =
      Location(absl::StrCat("/s/", persist.checkpoint.job, "/", persist.checkpoint.step));
  checkpoint.published = true;
  for (const auto& part : persist.parts) {
    if (Status status = ReadPart(*part, &checkpoint); !status.ok()) return status;
  }
  if (!checkpoint.Complete()) {
    node_.world.report.Fail(absl::StrCat("promise 3: ", persist.checkpoint.DebugString(),
                                         " is persisted without all its writers"));
  }
  if (persist.origin.has_value()) {
    const LineRecord stands = node_.world.storage.WriteLineRecord(*persist.origin);
    if (!(stands == *persist.origin)) {
      node_.world.report.Fail(absl::StrCat("promise 3: attempt ", stands.number,
                                           " was said to come from ", OriginText(stands.lineage),
                                           " and from ", OriginText(persist.origin->lineage)));
    }
  }
  return node_.world.storage.Publish(std::move(checkpoint));
}

// --- the daemon's death

void Executor::Crash() {
  std::multimap<MonotonicNanos, Completion> was;
  was.swap(under_way_);
  for (auto& [due, completion] : was) {
    const bool happened = node_.world.rng.Permille(500) && due != kNoTime;
    std::visit([&](auto& c) { Cut(c, happened); }, completion);
  }
  storage_free_at_ = 0;
  // In a pair of faults it lasts as long as it was drawn to.
  if (!node_.world.options.pair) storage.away = false;
}

void Executor::Cut(completion::Make& c, bool happened) {
  node_.memory.making.erase(c.slab);
  if (!happened) node_.memory.slabs.erase(c.slab);
}
void Executor::Cut(completion::Destroy& c, bool happened) {
  if (happened) node_.memory.slabs.erase(c.slab);
}
void Executor::Cut(completion::Persist& c, bool happened) {
  if (happened && !c.in_the_way) Publish(*c.persist).IgnoreError();
}
void Executor::Cut(completion::Delete& c, bool happened) {
  if (!happened) return;
  node_.world.storage.Delete(c.deletion);
  node_.check_persisted = true;
}
void Executor::Cut(completion::Record& c, bool happened) {
  if (happened) node_.world.storage.WriteLineRecord(c.write.record);
}
void Executor::Cut(completion::SessionGone& c, bool) { node_.keeper_sessions.erase(c.session); }

}  // namespace cairn::engine::sim
