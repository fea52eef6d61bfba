#include "tests/engine/engine_fixture.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace cairn::engine {

EngineTest::EngineTest() = default;
EngineTest::~EngineTest() = default;

void EngineTest::SetUp() { Restart(); }

void EngineTest::TearDown() { EXPECT_EQ(engine->CheckInvariants(), ""); }

void EngineTest::Restart(StartFrom from) {
  Recovered recovered;
  if (engine != nullptr) {
    EXPECT_EQ(engine->CheckInvariants(), "");
  }
  if (from == StartFrom::kSnapshot) journal = engine->Snapshot();
  if (from == StartFrom::kPieces) {
    while (!snapshot_cursor.done()) AddPiece();
    journal = pieces;
  }
  snapshot_cursor = {};
  pieces.clear();
  recovered.facts = journal;
  for (const auto& [slab, bytes] : keeper) recovered.held_slabs.push_back({slab, bytes});
  for (const auto& [session, who] : sessions) recovered.live_sessions.push_back(session);
  std::map<PartKey, fact::PartCommitted> committed;
  for (const Fact& f : journal) {
    if (const auto* m = std::get_if<fact::PartCommitted>(&f)) committed[m->part] = *m;
    if (const auto* m = std::get_if<fact::PartDropped>(&f)) committed.erase(m->part);
  }
  for (const auto& [part, m] : committed) {
    const auto bytes = manifests.find({m.extent.slab, m.extent.offset});
    if (bytes == manifests.end()) continue;
    const auto table = DecodePartRecord(bytes->second, m.bytes);
    if (table.ok()) recovered.tables[part] = *table;
  }
  recovered.safe_mode = safe_mode;
  recovered.member = self;
  EXPECT_TRUE(options.Validate().ok()) << options.Validate();
  engine = std::make_unique<Engine>(options);
  pending.clear();
  replies.clear();
  Carry(engine->Start(now, kUnix, std::move(recovered)));
  CarryPending();
  if (root_seen) Apply(event::StorageSeen{root});
}

void EngineTest::SeeRoot(StatusOr<RootIdentity> seen) {
  root = std::move(seen);
  Apply(event::StorageSeen{root});
}

void EngineTest::Apply(Event event) {
  Carry(engine->Apply(now, std::move(event)));
  CarryPending();
}

void EngineTest::CarryPending() {
  while (!pending.empty()) {
    Event next = std::move(pending.front());
    pending.pop_front();
    Carry(engine->Apply(now, std::move(next)));
  }
}

void EngineTest::LoseMemory() {
  journal.clear();
  keeper.clear();
  sessions.clear();
  mapped.clear();
  manifests.clear();
  Restart();
}

void EngineTest::Carry(Outcome outcome) {
  for (Fact& f : outcome.facts) {
    pieces.push_back(f);
    journal.push_back(std::move(f));
  }
  AddPiece();
  if (++carried % check_every == 0) {
    ASSERT_EQ(engine->CheckInvariants(), "");
  }
  for (Action& action : outcome.actions) {
    std::visit([this](auto& a) { Do(a); }, action);
  }
}

void EngineTest::Do(action::Reply& reply) {
  ASSERT_TRUE(asked.contains(reply.request)) << "answered without being asked";
  ASSERT_FALSE(replies.contains(reply.request)) << "answered twice";
  if (reply.body.ok()) {
    if (auto* create = std::get_if<reply::Create>(&*reply.body)) {
      for (const Lend& lend : create->lend) mapped[lend.slab].insert(asked[reply.request]);
    }
    if (auto* open = std::get_if<reply::Open>(&*reply.body)) {
      if (sessions.at(asked[reply.request]).takes_fds) {
        locks[open->lend.lease] = {open->lend.slab, asked[reply.request]};
      }
    }
  }
  replies[reply.request] = std::move(reply);
}

void EngineTest::Do(action::MakeSlab& a) {
  makes.push_back(a);
  if (hold_makes) return;
  keeper[a.slab] = a.bytes;
  pending.push_back(event::SlabMade{a.slab, make_status});
  if (!make_status.ok()) keeper.erase(a.slab);
}

void EngineTest::Do(action::DestroySlab& a) {
  EXPECT_TRUE(mapped[a.slab].empty()) << "destroyed while mapped";
  destroyed.push_back(a.slab);
  keeper.erase(a.slab);
  if (!hold_destroys) pending.push_back(event::SlabDestroyed{a.slab});
}

void EngineTest::Do(action::ProbeSlab& a) {
  probes.push_back(a);
  if (!hold_probes) pending.push_back(Probe(a));
}

event::SlabProbed EngineTest::Probe(const action::ProbeSlab& a) {
  event::SlabProbed probed;
  probed.slab = a.slab;
  probed.free = mapped[a.slab].empty() && !foreign.contains(a.slab);
  for (const auto& [lease, lock] : locks) probed.free &= lock.first != a.slab;
  for (LeaseId lease : a.leases) {
    if (!locks.contains(lease)) probed.ended.push_back(lease);
  }
  return probed;
}

void EngineTest::Do(action::WriteManifest& a) {
  const std::string encoded = EncodeManifest(*a.table);
  const std::string record = EncodePartRecord(encoded, a.table->extents);
  EXPECT_LE(record.size(), a.extent.length);
  if (manifest_status.ok()) manifests[{a.extent.slab, a.extent.offset}] = record;
  held_manifests.push_back({a.part, a.extent, manifest_status, ManifestDigest(encoded)});
  if (!hold_manifests) FinishManifest();
}

void EngineTest::FinishManifest() {
  held_manifests.front().status = manifest_status;
  pending.push_back(held_manifests.front());
  held_manifests.erase(held_manifests.begin());
}

void EngineTest::Do(action::Verify& a) {
  verifies.push_back(a);
  if (!hold_verifies) pending.push_back(event::Verified{a.verification, VerifyResult(a), kUnix});
}

Status EngineTest::VerifyResult(const action::Verify& a) const {
  return rotten.contains(a.entry.name) ? absl::DataLossError("block 0 does not match")
                                       : absl::OkStatus();
}

void EngineTest::Do(action::Persist& a) {
  persists.push_back(a);
  if (!hold_persists) FinishPersist();
}

void EngineTest::FinishPersist() {
  const action::Persist a = persists.at(persists_done++);
  const auto own = persist_status_of.find(a.checkpoint.step);
  const Status status = own == persist_status_of.end() ? persist_status : own->second;
  if (status.ok()) {
    if (a.origin.has_value()) NoteOrigin(*a.origin);
    for (const auto& part : a.parts) WritePart(part->Whole());
  }
  const auto at = stored.find(a.checkpoint);
  const bool published = at != stored.end();
  pending.push_back(event::Persisted{a.checkpoint, status,
                                     published ? at->second.location : Location(),
                                     /*awaits_others=*/status.ok() && !published});
}

void EngineTest::Do(action::Store& a) {
  stores.push_back(a);
  if (!hold_stores) FinishStore();
}

void EngineTest::FinishStore() {
  const action::Store a = stores.at(stores_done++);
  event::Stored done{a.part, store_status, ManifestDigest(EncodeManifest(*a.manifest))};
  if (done.status.ok()) {
    if (a.origin.has_value()) NoteOrigin(*a.origin);
    WritePart(*a.manifest);
    const auto at = stored.find(a.part.checkpoint);
    if (at != stored.end()) done.published = at->second;
  }
  pending.push_back(std::move(done));
}

void EngineTest::NoteOrigin(const LineRecord& origin) {
  recorded_at.try_emplace(origin.number, kUnix + now / kNanosPerMilli);
  line_records.try_emplace({origin.number, origin.kind}, origin);
}

void EngineTest::WritePart(const Manifest& manifest) {
  const CheckpointKey key = manifest.Checkpoint();
  std::map<Writer, StoredPart>& parts = written_parts[key];
  parts.insert_or_assign(manifest.writer,
                         StoredPart{manifest, ManifestDigest(EncodeManifest(manifest))});
  if (static_cast<int32_t>(parts.size()) < manifest.world_size) return;
  StoredCheckpoint& at = stored[key];
  at = {};
  at.key = key;
  at.world_size = manifest.world_size;
  at.published = true;
  at.location = Location(absl::StrCat("/root/", key.job, "/", key.step));
  for (const auto& [writer, part] : parts) at.parts.push_back(part);
}

void EngineTest::Do(action::WriteLineRecord& a) {
  record_writes.push_back(a);
  if (hold_records) return;
  StatusOr<LineRecord> stands = a.record;
  const auto of_number = record_status_of.find(a.record.number);
  if (!record_status.ok()) {
    stands = record_status;
  } else if (of_number != record_status_of.end()) {
    stands = of_number->second;
  } else {
    recorded_at.try_emplace(a.record.number, kUnix + now / kNanosPerMilli);
    const auto [at, fresh] = line_records.try_emplace({a.record.number, a.record.kind}, a.record);
    if (a.record.kind == LineRecordKind::kResume) at->second = a.record;
    stands = at->second;
  }
  pending.push_back(event::LineRecordWritten{a.record, std::move(stands)});
}

void EngineTest::Do(action::DeleteFiles& a) {
  deletes.push_back(a);
  const auto own = delete_status_of.find(a.checkpoint.step);
  Status status = own == delete_status_of.end() ? delete_status : own->second;
  for (const auto& [id, record] : line_records) {
    if (a.tombstone || id.second != LineRecordKind::kOrigin || id.first <= a.newest_known) continue;
    status = absl::FailedPreconditionError("a newer life has published");
  }
  const auto stays = a.stays.has_value() ? stored.find(*a.stays) : stored.end();
  if (a.stays.has_value() && (stays == stored.end() || !stays->second.Complete())) {
    status = absl::FailedPreconditionError("the one that stays is not whole");
  }
  if (!status.ok()) {
    pending.push_back(event::FilesDeleted{a.checkpoint, status});
    return;
  }
  stored.erase(a.checkpoint);
  if (a.tombstone) {
    removed.steps[a.checkpoint.step].Add(a.this_attempt ? a.checkpoint.attempt : 1,
                                         a.checkpoint.attempt);
  }
  if (!hold_deletes) pending.push_back(event::FilesDeleted{a.checkpoint, absl::OkStatus()});
}

void EngineTest::Do(action::ScanJob& a) {
  scans.push_back(a.job);
  if (!hold_scans) FinishScan(a.job);
}

void EngineTest::Do(action::ReadTables& a) {
  table_reads.push_back(a.checkpoint);
  const auto at = stored.find(a.checkpoint);
  event::TablesRead read{a.checkpoint, absl::NotFoundError("no such directory")};
  if (at != stored.end()) read.stored = at->second;
  if (!scan_status.ok()) read.stored = scan_status;
  if (!hold_scans) pending.push_back(std::move(read));
}

void EngineTest::Do(action::ReadLineNumbers& a) {
  line_looks.push_back(a.job);
  if (!hold_scans) FinishLineLook(a.job);
}

LineNumbers EngineTest::NumbersInStorage(const std::string& job) const {
  LineNumbers numbers = broken_records;
  for (const auto& [id, record] : line_records) {
    if (record.job == job) numbers.Take(record.number, record.kind);
  }
  return numbers;
}

void EngineTest::FinishLineLook(const std::string& job) {
  event::LineNumbersRead read{job, LineNumbers{}};
  read.numbers = NumbersInStorage(job);
  if (!scan_status.ok()) read.numbers = scan_status;
  pending.push_back(std::move(read));
}

Reading EngineTest::ReadingOf(const std::string& job) {
  if (!scan_status.ok()) return scan_status;
  StoredJob all;
  for (const auto& [key, checkpoint] : stored) {
    if (key.job == job) all.checkpoints.push_back(checkpoint);
  }
  all.removed = removed;
  all.line = NumbersInStorage(job);
  all.unread = unread;
  all.now_unix_ms = kUnix + now / kNanosPerMilli;
  for (const auto& [id, record] : line_records) {
    if (record.job == job) all.written_unix_ms[id.first] = recorded_at[id.first];
    if (record.job == job) all.records.push_back(record);
  }
  if (all.checkpoints.empty() && all.records.empty() && unread.empty()) {
    return absl::NotFoundError("no directory");
  }
  return all;
}

void EngineTest::Do(action::Record& a) {
  for (const CheckpointKey& key : a.checkpoints) records.push_back(key);
  if (!engine->Describe(a).forgotten.empty()) forgotten.push_back(a.job);
}

void EngineTest::Advance(MonotonicNanos by) {
  const MonotonicNanos until = now + by;
  while (wake_at != 0 && wake_at <= until) {
    now = std::max(now, wake_at);
    wake_at = 0;
    Apply(event::Tick{});
  }
  now = until;
  Apply(event::Tick{});
}

}  // namespace cairn::engine
