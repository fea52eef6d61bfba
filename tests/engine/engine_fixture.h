// A small node for tests of the engine. It keeps the journal; stands in for the cache, the keeper,
// storage and the clients' mappings; and hands results back as events. Every action ends at once,
// unless the test holds it (hold_makes and the like).
//
// One file: the one vocabulary in which every engine test is told.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/checksum.h"
#include "server/engine/engine.h"

namespace cairn::engine {

inline constexpr uint64_t kMiB = uint64_t{1} << 20;

struct Spec {
  std::string name;
  uint64_t length = 4 * kMiB;
};

struct Who {
  std::string job = "job";
  Writer writer = 0;
  int32_t world_size = 1;
  Attempt attempt = 1;
  int32_t local_writers = 1;
  uint32_t uid = 1000;
  bool takes_fds = true;
  std::string process = "";  // empty: a new one per session
  int32_t pid = 0;
  std::optional<JobPolicy> policy = {};
  std::string run = "";
  int32_t restart = -1;
};

// What the journal holds when a daemon dies: all that was said; a snapshot; or one that was begun when that
// daemon started, with what was said since between its pieces, the smallest possible.
enum class StartFrom : uint8_t { kJournal, kSnapshot, kPieces };
inline constexpr StartFrom kFrom[] = {StartFrom::kJournal, StartFrom::kSnapshot,
                                      StartFrom::kPieces};
inline std::string NameOf(StartFrom from) {
  return from == StartFrom::kJournal    ? "Journal"
         : from == StartFrom::kSnapshot ? "Snapshot"
                                        : "Pieces";
}

class EngineTest : public testing::Test {
 protected:
  void SetUp() override { Restart(); }
  void TearDown() override { EXPECT_EQ(engine->CheckInvariants(), ""); }

  // --- the node ---
  // The daemon dies, and a new one starts.
  void Restart(StartFrom from = StartFrom::kJournal) {
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
  void SeeRoot(StatusOr<RootIdentity> seen) {
    root = std::move(seen);
    Apply(event::StorageSeen{root});
  }

  void Apply(Event event) {
    Carry(engine->Apply(now, std::move(event)));
    CarryPending();
  }
  void CarryPending() {
    while (!pending.empty()) {
      Event next = std::move(pending.front());
      pending.pop_front();
      Carry(engine->Apply(now, std::move(next)));
    }
  }

  // All of it, the keeper's too: what storage has is found there.
  void LoseMemory() {
    journal.clear();
    keeper.clear();
    sessions.clear();
    mapped.clear();
    manifests.clear();
    Restart();
  }
  void AddPiece() {
    for (Fact& f : engine->SnapshotPiece(&snapshot_cursor, 1)) pieces.push_back(std::move(f));
  }

  void Carry(Outcome outcome) {
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

  void Do(action::Reply& reply) {
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
  void Do(action::MakeSlab& a) {
    makes.push_back(a);
    if (hold_makes) return;
    keeper[a.slab] = a.bytes;
    pending.push_back(event::SlabMade{a.slab, make_status});
    if (!make_status.ok()) keeper.erase(a.slab);
  }
  void Do(action::HurrySlab& a) { hurried.push_back(a.slab); }
  void Do(action::DestroySlab& a) {
    EXPECT_TRUE(mapped[a.slab].empty()) << "destroyed while mapped";
    destroyed.push_back(a.slab);
    keeper.erase(a.slab);
    if (!hold_destroys) pending.push_back(event::SlabDestroyed{a.slab});
  }
  void Do(action::ProbeSlab& a) {
    probes.push_back(a);
    if (!hold_probes) pending.push_back(Probe(a));
  }
  event::SlabProbed Probe(const action::ProbeSlab& a) {
    event::SlabProbed probed;
    probed.slab = a.slab;
    probed.free = mapped[a.slab].empty() && !foreign.contains(a.slab);
    for (const auto& [lease, lock] : locks) probed.free &= lock.first != a.slab;
    for (LeaseId lease : a.leases) {
      if (!locks.contains(lease)) probed.ended.push_back(lease);
    }
    return probed;
  }
  static Manifest ManifestIn(const std::string& record) {
    return *DecodeManifest(record.substr(0, ManifestBytesIn(record)));
  }
  void Do(action::WriteManifest& a) {
    const std::string encoded = EncodeManifest(*a.table);
    const std::string record = EncodePartRecord(encoded, a.table->extents);
    EXPECT_LE(record.size(), a.extent.length);
    if (manifest_status.ok()) manifests[{a.extent.slab, a.extent.offset}] = record;
    held_manifests.push_back({a.part, a.extent, manifest_status, ManifestDigest(encoded)});
    if (!hold_manifests) FinishManifest();
  }
  void FinishManifest() {
    held_manifests.front().status = manifest_status;
    pending.push_back(held_manifests.front());
    held_manifests.erase(held_manifests.begin());
  }
  void Do(action::Verify& a) {
    verifies.push_back(a);
    if (!hold_verifies) pending.push_back(event::Verified{a.verification, VerifyResult(a), kUnix});
  }
  Status VerifyResult(const action::Verify& a) const {
    return rotten.contains(a.entry.name) ? absl::DataLossError("block 0 does not match")
                                         : absl::OkStatus();
  }
  void Do(action::Persist& a) {
    persists.push_back(a);
    if (!hold_persists) FinishPersist();
  }
  void FinishPersist() {
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
  void Do(action::Store& a) {
    stores.push_back(a);
    if (!hold_stores) FinishStore();
  }
  void FinishStore() {
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
  void NoteOrigin(const LineRecord& origin) {
    recorded_at.try_emplace(origin.number, kUnix + now / kNanosPerMilli);
    line_records.try_emplace({origin.number, origin.kind}, origin);
  }
  // Into storage, this node's or another's; with the last part of it the checkpoint is published.
  void WritePart(const Manifest& manifest) {
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
  void Do(action::WriteLineRecord& a) {
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
  void Do(action::Reinstate& a) { reinstated.push_back(a.checkpoint); }
  void Do(action::DeleteFiles& a) {
    deletes.push_back(a);
    const auto own = delete_status_of.find(a.checkpoint.step);
    Status status = own == delete_status_of.end() ? delete_status : own->second;
    for (const auto& [id, record] : line_records) {
      if (a.tombstone || id.second != LineRecordKind::kOrigin || id.first <= a.newest_known)
        continue;
      status = absl::FailedPreconditionError("a newer life has published");
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
  void Do(action::ScanJob& a) {
    scans.push_back(a.job);
    if (!hold_scans) FinishScan(a.job);
  }
  void Do(action::ReadTables& a) {
    table_reads.push_back(a.checkpoint);
    const auto at = stored.find(a.checkpoint);
    event::TablesRead read{a.checkpoint, absl::NotFoundError("no such directory")};
    if (at != stored.end()) read.stored = at->second;
    if (!scan_status.ok()) read.stored = scan_status;
    if (!hold_scans) pending.push_back(std::move(read));
  }
  void Do(action::Tell& a) { tells.push_back(std::move(a)); }
  void Do(action::BecomeLife& a) { lives.push_back(std::move(a.self)); }
  void Do(action::Fetch& a) { fetches.push_back(std::move(a)); }
  void Do(action::FetchFrom& a) { fetches_from.push_back(a); }
  void Do(action::CancelFetch& a) { cancelled_fetches.push_back(a.fetch); }
  void Do(action::RevokeGrant& a) { revoked.push_back(a.grant); }
  void Do(action::ReadLineNumbers& a) {
    line_looks.push_back(a.job);
    if (!hold_scans) FinishLineLook(a.job);
  }
  LineNumbers NumbersInStorage(const std::string& job) const {
    LineNumbers numbers = broken_records;
    for (const auto& [id, record] : line_records) {
      if (record.job == job) numbers.Take(record.number, record.kind);
    }
    return numbers;
  }
  void FinishLineLook(const std::string& job) {
    event::LineNumbersRead read{job, LineNumbers{}};
    read.numbers = NumbersInStorage(job);
    if (!scan_status.ok()) read.numbers = scan_status;
    pending.push_back(std::move(read));
  }
  Reading ReadingOf(const std::string& job) {
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
  void FinishScan(const std::string& job) {
    pending.push_back(event::JobScanned{job, ReadingOf(job), stored_uid, stored_uid});
  }
  void Do(action::Record& a) {
    for (const CheckpointKey& key : a.checkpoints) records.push_back(key);
    if (!engine->Describe(a).forgotten.empty()) forgotten.push_back(a.job);
  }
  void Do(action::WakeAt& a) { wake_at = a.at; }
  void Do(action::EndSession&) {}
  void Do(action::Drained&) { drained = true; }
  void Do(action::Discard&) {}
  void Do(action::Log& a) { logs.push_back(a.message); }

  void Advance(MonotonicNanos by) {
    const MonotonicNanos until = now + by;
    while (wake_at != 0 && wake_at <= until) {
      now = std::max(now, wake_at);
      wake_at = 0;
      Apply(event::Tick{});
    }
    now = until;
    Apply(event::Tick{});
  }

  // --- clients ---
  Caller From(SessionId session) {
    const RequestId request = ++last_request;
    asked[request] = session;
    const auto at = sessions.find(session);
    return {request, session, at == sessions.end() ? 1000 : at->second.uid,
            at == sessions.end() ? 1000 : at->second.uid};
  }
  bool Answered(RequestId request) const { return replies.contains(request); }
  StatusOr<reply::Body> AnswerTo(RequestId request) {
    const auto at = replies.find(request);
    if (at == replies.end()) return absl::InternalError("not answered yet");
    return at->second.body;
  }
  template <class T>
  StatusOr<T> Take(RequestId request) {
    StatusOr<reply::Body> body = AnswerTo(request);
    if (!body.ok()) return body.status();
    return std::get<T>(*body);
  }
  MonotonicNanos Soon() const { return now + 10 * kNanosPerSecond; }

  StatusOr<SessionId> TryHello(Who who) {
    event::Hello hello;
    hello.caller = From(0);
    hello.caller.uid = hello.caller.gid = who.uid;
    hello.secret = "secret";
    hello.pid = who.pid != 0 ? who.pid : ++last_pid;
    hello.process = who.process.empty() ? absl::StrCat("process-", hello.pid) : who.process;
    hello.job = who.job;
    hello.attempt = who.attempt;
    hello.writer = who.writer;
    hello.world_size = who.world_size;
    hello.local_writers = who.local_writers;
    hello.takes_fds = who.takes_fds;
    hello.policy = who.policy;
    hello.run = who.run;
    hello.restart = who.restart;
    Apply(hello);
    StatusOr<reply::Hello> reply = Take<reply::Hello>(hello.caller.request);
    if (!reply.ok()) return reply.status();
    sessions[reply->session] = who;
    return reply->session;
  }
  SessionId Hello(Who who = {}) {
    StatusOr<SessionId> session = TryHello(std::move(who));
    EXPECT_TRUE(session.ok()) << session.status();
    return session.ok() ? *session : 0;
  }
  // The process dies: the kernel takes back its mappings, descriptors and locks.
  void Die(SessionId session) {
    for (auto& [slab, who] : mapped) who.erase(session);
    for (auto at = locks.begin(); at != locks.end();) {
      at = at->second.second == session ? locks.erase(at) : std::next(at);
    }
    sessions.erase(session);
    Apply(event::SessionEnded{session});
  }
  PartKey PartOf(SessionId session, Step step, Revision revision = 0) {
    const Who& who = sessions.at(session);
    return {{who.job, step, who.attempt, revision}, who.writer};
  }
  event::Create CreateOf(SessionId session, const PartKey& part, const std::vector<Spec>& specs) {
    event::Create create;
    create.caller = From(session);
    create.call = ++last_call;
    create.part = part;
    create.world_size = sessions.at(session).world_size;
    for (const Spec& spec : specs) create.objects.push_back({spec.name, spec.length});
    create.deadline = Soon();
    create.unmapped = TakeUnmapped(session);
    create.fence = fences;
    return create;
  }
  std::vector<SlabId> TakeUnmapped(SessionId session) {
    std::vector<SlabId> slabs = std::exchange(unmapped[session], {});
    for (SlabId slab : slabs) mapped[slab].erase(session);
    return slabs;
  }
  // Creates as libcairn does: when it is told to unmap slabs, it unmaps them and asks again.
  StatusOr<reply::Create> Create(SessionId session, const PartKey& part,
                                 const std::vector<Spec>& specs) {
    for (int round = 0;; ++round) {
      event::Create create = CreateOf(session, part, specs);
      Apply(create);
      StatusOr<reply::Create> reply = Take<reply::Create>(create.caller.request);
      if (!reply.ok()) return reply;
      for (SlabId slab : reply->retire) unmapped[session].push_back(slab);
      if (reply->extents.size() == specs.size()) return reply;
      if (round == 8) return absl::InternalError("told to unmap again and again");
    }
  }
  static event::Seal SealOf(const Spec& spec) {
    event::Seal seal;
    seal.name = spec.name;
    seal.length = spec.length;
    seal.block_crcs.assign(BlockCount(spec.length, kBlockBytes), 7);
    if (spec.length > 0) seal.covered = {{0, spec.length}};
    return seal;
  }
  Status Seal(SessionId session, const PartKey& part, const std::vector<Spec>& specs) {
    event::SealObjects seals{From(session), ++last_call, part, {}};
    for (const Spec& spec : specs) seals.seals.push_back(SealOf(spec));
    Apply(seals);
    return AnswerTo(seals.caller.request).status();
  }
  event::Commit CommitOf(SessionId session, const PartKey& part, const std::vector<Spec>& specs) {
    event::Commit commit;
    commit.caller = From(session);
    commit.call = ++last_call;
    commit.part = part;
    commit.world_size = sessions.at(session).world_size;
    for (const Spec& spec : specs) commit.seals.push_back(SealOf(spec));
    commit.unmapped = TakeUnmapped(session);
    commit.unix_ms = kUnix;
    commit.deadline = Soon();
    commit.fence = fences;
    return commit;
  }
  StatusOr<reply::Commit> Commit(SessionId session, const PartKey& part,
                                 const std::vector<Spec>& specs) {
    const event::Commit commit = CommitOf(session, part, specs);
    Apply(commit);
    return Take<reply::Commit>(commit.caller.request);
  }
  Status TrySave(SessionId session, Step step, const std::vector<Spec>& specs = {{"model"}},
                 Revision revision = 0) {
    const PartKey part = PartOf(session, step, revision);
    CAIRN_RETURN_IF_ERROR(Create(session, part, specs).status());
    return Commit(session, part, specs).status();
  }
  void Save(SessionId session, Step step, const std::vector<Spec>& specs = {{"model"}},
            Revision revision = 0) {
    const Status status = TrySave(session, step, specs, revision);
    EXPECT_TRUE(status.ok()) << status;
  }
  event::Open OpenOf(SessionId session, Step step, const std::string& name = "model",
                     OpenMode mode = OpenMode::kMap) {
    event::Open open;
    open.caller = From(session);
    open.ref.job = sessions.at(session).job;
    open.ref.step = step;
    open.name = name;
    open.mode = mode;
    open.deadline = Soon();
    return open;
  }
  StatusOr<reply::Open> Open(SessionId session, Step step, const std::string& name = "model",
                             OpenMode mode = OpenMode::kMap) {
    const event::Open open = OpenOf(session, step, name, mode);
    Apply(open);
    StatusOr<reply::Body> body = AnswerTo(open.caller.request);
    if (!body.ok()) return body.status();
    if (!std::holds_alternative<reply::Open>(*body)) return absl::InternalError("from storage");
    return std::get<reply::Open>(*body);
  }
  StatusOr<reply::OpenStored> OpenStored(SessionId session, Step step,
                                         const std::string& name = "model") {
    const event::Open open = OpenOf(session, step, name);
    Apply(open);
    StatusOr<reply::Body> body = AnswerTo(open.caller.request);
    if (!body.ok()) return body.status();
    if (!std::holds_alternative<reply::OpenStored>(*body))
      return absl::InternalError("from memory");
    return std::get<reply::OpenStored>(*body);
  }
  // `closes`: the client has closed and unmapped the object before the call, as libcairn does.
  void Release(SessionId session, LeaseId lease, bool closes = true) {
    if (closes) locks.erase(lease);
    Apply(event::Release{From(session), {lease}});
  }
  StatusOr<reply::Latest> Latest(SessionId session, const std::string& job = "job") {
    event::Latest latest{From(session), job, Soon()};
    Apply(latest);
    return Take<reply::Latest>(latest.caller.request);
  }
  Step LatestStep(SessionId session) {
    StatusOr<reply::Latest> latest = Latest(session);
    return latest.ok() ? latest->key.step : kNoStep;
  }
  StatusOr<CheckpointInfo> Stat(SessionId session, Step step, Attempt attempt = 0) {
    event::StatCheckpoint stat{From(session), {sessions.at(session).job, step, attempt}, Soon()};
    Apply(stat);
    return Take<CheckpointInfo>(stat.caller.request);
  }
  reply::Status Status_() {
    event::Status status{From(0), /*of_all=*/true};
    Apply(status);
    return *Take<reply::Status>(status.caller.request);
  }
  RequestId Wait(SessionId session, Step step, Level level, Step after = -1) {
    event::Wait wait{From(session), {"job", step}, level, after, Soon()};
    Apply(wait);
    return wait.caller.request;
  }
  RequestId Ask(Event event, const Caller& caller) {
    Apply(std::move(event));
    return caller.request;
  }

  static constexpr int64_t kUnix = 1'700'000'000'000;

  Options options = [] {
    Options o;
    o.budget_bytes = 64 * kMiB;
    o.own_uid = 1000;  // who asks for nothing else runs the daemon
    return o;
  }();
  std::string safe_mode;
  std::optional<MemberId> self;  // which life of its rank the node is, at first
  std::unique_ptr<Engine> engine;
  MonotonicNanos now = kNanosPerSecond, wake_at = 0;
  int carried = 0;  // outcomes
  // The invariants are checked after each such outcome, and at the end. A check goes through all that the engine
  // knows, so a test with thousands of steps sets more than 1.
  int check_every = 1;
  std::vector<Fact> journal;
  SnapshotCursor snapshot_cursor;  // of a snapshot in pieces, begun with the daemon
  std::vector<Fact> pieces;        // and what was said between them
  std::deque<Event> pending;
  std::map<SlabId, uint64_t> keeper;
  std::map<std::pair<SlabId, uint64_t>, std::string> manifests;
  std::map<SlabId, std::set<SessionId>> mapped;           // writers' mappings
  std::map<LeaseId, std::pair<SlabId, SessionId>> locks;  // of readers' open descriptions
  std::set<SlabId> foreign;                               // an unknown process has it open
  std::map<SessionId, std::vector<SlabId>> unmapped;      // named in the session's next call
  std::map<SessionId, Who> sessions;
  std::map<CheckpointKey, StoredCheckpoint> stored;  // published
  std::map<CheckpointKey, std::map<Writer, StoredPart>> written_parts;
  uint32_t stored_uid = 1000;
  std::set<std::string> rotten;  // objects that do not verify

  bool fences = true;  // creates and commits wait for no older attempt
  bool hold_makes = false, hold_destroys = false, hold_probes = false, hold_manifests = false,
       hold_verifies = false, hold_persists = false, hold_deletes = false, hold_scans = false;
  std::map<Step, Status> delete_status_of;
  LineNumbers broken_records;  // that stand in storage and cannot be made sense of
  Status make_status, manifest_status, persist_status, scan_status, delete_status;
  std::vector<Unread> unread;  // what storage cannot read, of the one job
  // What stands at the storage's root; every daemon sees it at its start, unless nobody looks.
  StatusOr<RootIdentity> root = RootIdentity{"root-1", "instance-1"};
  bool root_seen = true;
  std::map<Step, Status> persist_status_of;  // of these steps, instead of persist_status

  std::vector<action::MakeSlab> makes;
  std::vector<SlabId> hurried, destroyed;
  std::vector<action::ProbeSlab> probes;
  std::vector<action::FetchFrom> fetches_from;
  std::vector<event::ManifestWritten> held_manifests;
  std::vector<action::Verify> verifies;
  std::vector<action::Persist> persists;
  size_t persists_done = 0;
  std::vector<action::Store> stores;
  size_t stores_done = 0;
  bool hold_stores = false;
  Status store_status;
  RemovedSteps removed;  // tombstones in storage, of the one job
  std::vector<CheckpointKey> reinstated;
  std::vector<action::WriteLineRecord> record_writes;
  std::map<std::pair<Attempt, LineRecordKind>, LineRecord>
      line_records;                        // in storage, of the one job
  std::map<Attempt, int64_t> recorded_at;  // by the clock of storage
  Status record_status;
  std::map<Attempt, Status> record_status_of;  // of these numbers
  bool hold_records = false;
  std::vector<action::DeleteFiles> deletes;
  std::vector<std::string> scans, line_looks, logs;
  std::vector<action::Tell> tells;     // to members of the ring
  std::vector<MemberId> lives;         // that the node has become
  std::vector<action::Fetch> fetches;  // asked for
  std::vector<uint64_t> cancelled_fetches, revoked;
  std::vector<CheckpointKey> records, table_reads;
  std::vector<std::string> forgotten;  // jobs of which the catalog is told that nothing is left
  bool drained = false;

  std::map<RequestId, SessionId> asked;
  std::map<RequestId, action::Reply> replies;
  RequestId last_request = 0;
  int64_t last_call = 0;
  int32_t last_pid = 100;
};

MATCHER_P2(Fails, code, words, "") {
  *result_listener << arg;
  return arg.code() == code && std::string(arg.message()).find(words) != std::string::npos;
}
template <class T>
Status StatusOf(const StatusOr<T>& result) {
  return result.status();
}
inline Status StatusOf(const Status& status) { return status; }

}  // namespace cairn::engine
