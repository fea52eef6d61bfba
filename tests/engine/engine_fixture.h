// A small node for tests of the engine. It keeps the journal; stands in for the cache, the keeper,
// storage and the clients' mappings; and hands results back as events. Every action ends at once,
// unless the test holds it (hold_makes and the like).
//
// The bodies are in engine_fixture.cc (the node) and engine_calls.cc (its clients), compiled once for all tests.
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

// The journal when a daemon dies: all facts; a snapshot; or a snapshot that was begun when that daemon started, in
// the smallest pieces, with the facts since then between them.
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
  EngineTest();
  ~EngineTest() override;
  void SetUp() override;
  void TearDown() override;

  // --- the node ---
  // The daemon dies, and a new one starts.
  void Restart(StartFrom from = StartFrom::kJournal);
  void SeeRoot(StatusOr<RootIdentity> seen);

  void Apply(Event event);
  void CarryPending();

  // All of it, the keeper's too: what storage has is found there.
  void LoseMemory();
  void AddPiece() {
    for (Fact& f : engine->SnapshotPiece(&snapshot_cursor, 1)) pieces.push_back(std::move(f));
  }

  void Carry(Outcome outcome);

  void Do(action::Reply& reply);
  void Do(action::MakeSlab& a);
  void Do(action::HurrySlab& a) { hurried.push_back(a.slab); }
  void Do(action::DestroySlab& a);
  void Do(action::ProbeSlab& a);
  event::SlabProbed Probe(const action::ProbeSlab& a);
  static Manifest ManifestIn(const std::string& record) {
    return *DecodeManifest(record.substr(0, ManifestBytesIn(record)));
  }
  void Do(action::WriteManifest& a);
  void FinishManifest();
  void Do(action::Verify& a);
  Status VerifyResult(const action::Verify& a) const;
  void Do(action::Persist& a);
  void FinishPersist();
  void Do(action::Store& a);
  void FinishStore();
  void NoteOrigin(const LineRecord& origin);
  // Into storage, this node's or another's; with the last part of it the checkpoint is published.
  void WritePart(const Manifest& manifest);
  void Do(action::WriteLineRecord& a);
  void Do(action::Reinstate& a) { reinstated.push_back(a.checkpoint); }
  void Do(action::DeleteFiles& a);
  void Do(action::ScanJob& a);
  void Do(action::ReadTables& a);
  void Do(action::Tell& a) { tells.push_back(std::move(a)); }
  void Do(action::BecomeLife& a) { lives.push_back(std::move(a.self)); }
  void Do(action::Fetch& a) { fetches.push_back(std::move(a)); }
  void Do(action::FetchFrom& a) { fetches_from.push_back(a); }
  void Do(action::CancelFetch& a) { cancelled_fetches.push_back(a.fetch); }
  void Do(action::RevokeGrant& a) { revoked.push_back(a.grant); }
  void Do(action::ReadLineNumbers& a);
  LineNumbers NumbersInStorage(const std::string& job) const;
  void FinishLineLook(const std::string& job);
  Reading ReadingOf(const std::string& job);
  void FinishScan(const std::string& job) {
    pending.push_back(event::JobScanned{job, ReadingOf(job), stored_uid, stored_uid});
  }
  void Do(action::Record& a);
  void Do(action::WakeAt& a) { wake_at = a.at; }
  void Do(action::EndSession&) {}
  void Do(action::Drained&) { drained = true; }
  void Do(action::Discard&) {}
  void Do(action::Log& a) { logs.push_back(a.message); }

  void Advance(MonotonicNanos by);

  // --- clients ---
  Caller From(SessionId session);
  bool Answered(RequestId request) const { return replies.contains(request); }
  StatusOr<reply::Body> AnswerTo(RequestId request);
  template <class T>
  StatusOr<T> Take(RequestId request) {
    StatusOr<reply::Body> body = AnswerTo(request);
    if (!body.ok()) return body.status();
    return std::get<T>(*body);
  }
  MonotonicNanos Soon() const { return now + 10 * kNanosPerSecond; }

  StatusOr<SessionId> TryHello(Who who);
  SessionId Hello(Who who = {});
  // The process dies: the kernel takes back its mappings, descriptors and locks.
  void Die(SessionId session);
  PartKey PartOf(SessionId session, Step step, Revision revision = 0);
  event::Create CreateOf(SessionId session, const PartKey& part, const std::vector<Spec>& specs);
  std::vector<SlabId> TakeUnmapped(SessionId session);
  // Creates as libcairn does: it unmaps the slabs that the reply names, and asks again.
  StatusOr<reply::Create> Create(SessionId session, const PartKey& part,
                                 const std::vector<Spec>& specs);
  static event::Seal SealOf(const Spec& spec);
  Status Seal(SessionId session, const PartKey& part, const std::vector<Spec>& specs);
  event::Commit CommitOf(SessionId session, const PartKey& part, const std::vector<Spec>& specs);
  StatusOr<reply::Commit> Commit(SessionId session, const PartKey& part,
                                 const std::vector<Spec>& specs);
  Status TrySave(SessionId session, Step step, const std::vector<Spec>& specs = {{"model"}},
                 Revision revision = 0);
  void Save(SessionId session, Step step, const std::vector<Spec>& specs = {{"model"}},
            Revision revision = 0);
  event::Open OpenOf(SessionId session, Step step, const std::string& name = "model",
                     OpenMode mode = OpenMode::kMap);
  StatusOr<reply::Open> Open(SessionId session, Step step, const std::string& name = "model",
                             OpenMode mode = OpenMode::kMap);
  StatusOr<reply::OpenStored> OpenStored(SessionId session, Step step,
                                         const std::string& name = "model");
  // `closes`: the client has closed and unmapped the object before the call, as libcairn does.
  void Release(SessionId session, LeaseId lease, bool closes = true);
  StatusOr<reply::Latest> Latest(SessionId session, const std::string& job = "job");
  Step LatestStep(SessionId session);
  StatusOr<CheckpointInfo> Stat(SessionId session, Step step, Attempt attempt = 0);
  reply::Status Status_();
  RequestId Wait(SessionId session, Step step, Level level, Step after = -1);
  RequestId Ask(Event event, const Caller& caller);

  static constexpr int64_t kUnix = 1'700'000'000'000;

  Options options = [] {
    Options o;
    o.budget_bytes = 64 * kMiB;
    o.own_uid = 1000;  // the default uid of clients
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
  // The identity at the storage's root; a daemon sees it at its start if `root_seen`.
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
  std::vector<std::string> forgotten;  // jobs that the catalog may forget
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
