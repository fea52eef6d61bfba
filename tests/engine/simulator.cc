#include "tests/engine/simulator.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/checksum.h"
#include "server/engine/engine.h"
#include "tests/support/line.h"

namespace cairn::engine {
namespace {

constexpr MonotonicNanos kNoTime = std::numeric_limits<MonotonicNanos>::max();
constexpr MonotonicNanos kMilli = kNanosPerMilli, kSecond = kNanosPerSecond;
// How long the engine may take over calls that carry no deadline: its patience with storage, or
// with memory for a manifest, and the world's longest completion.
constexpr MonotonicNanos kPatience = 11 * kSecond;

// splitmix64: small, and the same everywhere, which std::…_distribution is not.
class Rng {
 public:
  explicit Rng(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  uint64_t Below(uint64_t n) { return n == 0 ? 0 : Next() % n; }
  uint64_t Between(uint64_t low, uint64_t high) { return low + Below(high - low + 1); }
  bool Permille(uint64_t n) { return Below(1000) < n; }
  template <class T>
  const T& Pick(const std::vector<T>& from) {
    return from[Below(from.size())];
  }

 private:
  uint64_t state_;
};

uint64_t Mix(uint64_t a, uint64_t b) { return Rng(a * 0x9e3779b97f4a7c15ull + b).Next(); }

// Bytes are not simulated, only what they are: a content is a number, and its checksums follow from
// it.
std::vector<uint32_t> CrcsOf(uint64_t content, uint64_t length) {
  std::vector<uint32_t> crcs;
  for (uint64_t i = 0; i < BlockCount(length, kBlockBytes); ++i) {
    crcs.push_back(static_cast<uint32_t>(Mix(content, i)));
  }
  return crcs;
}

// --- what the journal says

// The last word of every fact, kept apart from the engine's own reading of them.
struct Mirror {
  struct Object {
    bool sealed = false;
    ObjectEntry entry;
    ExtentRef extent;
    bool operator==(const Object& o) const {
      return sealed == o.sealed && extent == o.extent && (!sealed || entry == o.entry);
    }
  };
  std::map<std::string, fact::Job> jobs;
  std::map<std::string, std::map<Attempt, Step>> attempts;  // → comes from
  std::map<std::pair<std::string, Attempt>, Step> resumes;
  std::map<SlabId, fact::Slab> slabs;
  std::map<SessionId, fact::SessionBegun> sessions;
  std::map<LeaseId, fact::Lent> leases;
  std::map<PartKey, std::map<std::string, Object>> objects;
  std::map<CheckpointKey, std::map<Writer, fact::ManifestCommitted>> manifests;
  std::map<CheckpointKey, std::string> persisted;
  std::set<CheckpointKey> pinned;
  std::map<std::pair<std::string, Step>, Attempt> removed;  // attempts up to this one stay away

  bool Removed(const CheckpointKey& key) const {
    const auto at = removed.find({key.job, key.step});
    return at != removed.end() && key.attempt <= at->second;
  }

  template <class Other>
  void Take(const Other&) {}  // the model has no use for it
  void Take(const fact::StepRemoved& f) {
    Attempt& attempt = removed[{f.job, f.step}];
    attempt = std::max(attempt, f.up_to_attempt);
  }
  void Take(const fact::Job& f) { jobs[f.job] = f; }
  void Take(const fact::AttemptBegun& f) { attempts[f.job][f.attempt] = f.comes_from; }
  void Take(const fact::Resume& f) { resumes[{f.job, f.attempt}] = f.comes_from; }
  void Take(const fact::Slab& f) { slabs[f.slab] = f; }
  void Take(const fact::SlabGone& f) { slabs.erase(f.slab); }
  void Take(const fact::SessionBegun& f) { sessions[f.session] = f; }
  void Take(const fact::SessionEnded& f) { sessions.erase(f.session); }
  void Take(const fact::Lent& f) { leases[f.lease] = f; }
  void Take(const fact::Unlent& f) { leases.erase(f.lease); }
  void Take(const fact::ObjectCreated& f) { objects[f.part][f.name] = {false, {}, f.extent}; }
  void Take(const fact::ObjectSealed& f) {
    objects[f.part][f.entry.name] = {true, f.entry, f.extent};
  }
  void Take(const fact::ObjectDropped& f) {
    const auto part = objects.find(f.part);
    if (part == objects.end()) return;
    part->second.erase(f.name);
    if (part->second.empty()) objects.erase(part);
  }
  void Take(const fact::ManifestCommitted& f) { manifests[f.part.checkpoint][f.part.writer] = f; }
  void Take(const fact::ManifestDropped& f) {
    const auto at = manifests.find(f.part.checkpoint);
    if (at == manifests.end()) return;
    at->second.erase(f.part.writer);
    if (at->second.empty()) manifests.erase(at);
  }
  void Take(const fact::Persisted& f) { persisted[f.checkpoint] = f.digest; }
  void Take(const fact::FilesDeleted& f) { persisted.erase(f.checkpoint); }
  void Take(const fact::Pinned& f) {
    if (f.pinned) {
      pinned.insert(f.checkpoint);
    } else {
      pinned.erase(f.checkpoint);
    }
  }
  void Take(const Fact& fact) {
    std::visit([this](const auto& f) { Take(f); }, fact);
  }
};

// --- the world

struct Region {
  uint64_t length = 0;
  uint64_t content = 0;
  MonotonicNanos flipped = kNoTime;  // when a bit of it flipped
  std::string manifest;              // the bytes, where they are a manifest's
};

struct WorldSlab {
  uint64_t bytes = 0;
  std::map<uint64_t, Region> regions;
  std::set<int> maps;            // who has it mapped for writing: a process, or what is left of one
  std::map<LeaseId, int> locks;  // readers' descriptions
  std::set<int> by_path;         // opened by path: no lock tells
  std::optional<std::pair<uint32_t, std::string>> owner;  // for life (promise 6)
  bool Seen() const { return !maps.empty() || !locks.empty() || !by_path.empty(); }

  void Write(uint64_t offset, Region region) {
    for (auto at = regions.begin(); at != regions.end();) {
      const bool apart =
          at->first + at->second.length <= offset || offset + region.length <= at->first;
      at = apart ? std::next(at) : regions.erase(at);
    }
    if (region.length > 0) regions[offset] = std::move(region);
  }
};

struct ObjectPromise {
  uint64_t length = 0;
  uint64_t content = 0;
  bool operator==(const ObjectPromise&) const = default;
};
struct PartPromise {
  std::map<std::string, ObjectPromise> objects;
  int32_t world_size = 0;
  std::string digest;
  bool committed = false;  // its fact was journaled
  bool acknowledged = false;
};

struct Hold {  // what a reader has open
  SlabId slab = 0;
  ExtentRef extent;
  uint64_t length = 0;
  uint64_t content = 0;
};

struct Process {
  int id = 0;
  int job = 0;
  ProcessToken token;
  uint32_t uid = 0;
  bool alive = true;
  bool takes_fds = true;
  bool gone_from_group = false;
  Attempt attempt = 0;
  Writer writer = -1;
  int32_t world_size = 0, local_writers = 1;
  SessionId session = 0;
  int64_t next_call = 1;
  std::set<SlabId> maps;
  std::vector<SlabId> unmapped;  // to be told
  std::map<LeaseId, Hold> leases;

  // The save under way.
  enum class Phase : uint8_t { kIdle, kCreating, kGranted, kCommitting } phase = Phase::kIdle;
  Step step = 0;
  std::map<Step, Revision> entered;
  PartKey part;
  std::vector<std::vector<event::ObjectSpec>> creates;  // calls still to make
  struct Mine {
    event::ObjectSpec spec;
    reply::GrantedExtent extent;
    uint64_t content = 0;
    uint64_t length = 0;
    bool written = false, sealed = false;
  };
  std::map<std::string, Mine> objects;
  std::map<int64_t, std::vector<std::tuple<SlabId, uint64_t, uint64_t>>> granted;  // first answers
  std::optional<Event> under_way;  // the call that changes something and has no answer yet
  RequestId request = 0;           // its request, 0: lost, to be repeated
  int repeats = 0;
};

struct WorldJob {
  std::string name;
  uint32_t uid = 0;
  int32_t world_size = 1;
  bool elsewhere = false;  // one writer is on another node, nothing completes here
  uint64_t step_bytes = 0;
  int objects = 2;  // per writer
  int large = 0;    // of them with a slab of their own, where large enough
  bool can_pad = false;
  std::vector<int> group;  // processes of the newest attempt
  Attempt attempt = 0;
};

struct Stored {
  StoredCheckpoint checkpoint;
  std::map<PartKey, std::map<std::string, ObjectPromise>> contents;
};

struct Outstanding {
  int process = -1;
  MonotonicNanos deadline = 0;
  MonotonicNanos asked = 0;
  int64_t asked_in = 0;  // which Apply
  Event event;
  bool scripted = false;  // the end game reads the answer itself
};

enum class PendingKind : uint8_t {
  kMake,
  kDestroy,
  kProbe,
  kManifest,
  kVerify,
  kPersist,
  kDelete,
  kScan,
  kSessionGone
};
struct Pending {
  PendingKind kind = PendingKind::kMake;
  SlabId slab = 0;
  bool fails = false;
  bool early = false;  // a probe or scan that looked when it was asked
  event::SlabProbed probed;
  std::vector<LeaseId> leases;
  action::WriteManifest manifest;
  action::Verify verify;
  std::shared_ptr<action::Persist> persist;
  action::DeleteFiles deletion;
  std::string job;
  std::optional<StatusOr<StoredJob>> scanned;
  SessionId session = 0;
};

template <class T>
constexpr bool kIs(const Event& event) {
  return std::holds_alternative<T>(event);
}

bool SameStepNewer(const CheckpointKey& a, const CheckpointKey& than) {
  return a.job == than.job && a.step == than.step &&
         std::tie(a.attempt, a.revision) > std::tie(than.attempt, than.revision);
}

// The name of an event, a fact or an action, for the trace.
template <class T>
std::string NameOf() {
  const std::string function = __PRETTY_FUNCTION__;  // … [with T = cairn::fact::Pinned; …]
  const size_t from = function.find("T = ") + 4;
  const std::string name = function.substr(from, function.find_first_of(";]", from) - from);
  const size_t colon = name.rfind(':');
  return colon == std::string::npos ? name : name.substr(colon + 1);
}
template <class Variant>
std::string Name(const Variant& variant) {
  return std::visit([](const auto& v) { return NameOf<std::decay_t<decltype(v)>>(); }, variant);
}

// What of an event, fact or action tells one from another, where it has it.
template <class T>
std::string Details(const T& e) {
  std::string s;
  if constexpr (requires { e.caller.session; }) absl::StrAppend(&s, " session=", e.caller.session);
  if constexpr (requires { e.caller.request; }) absl::StrAppend(&s, " request=", e.caller.request);
  if constexpr (requires { e.request; }) absl::StrAppend(&s, " request=", e.request);
  if constexpr (requires { e.session + 0; }) absl::StrAppend(&s, " session=", e.session);
  if constexpr (requires { e.job.size(); }) absl::StrAppend(&s, " job=", e.job);
  if constexpr (requires { e.slab + 0; }) absl::StrAppend(&s, " slab=", e.slab);
  if constexpr (requires { e.bytes + 0; }) absl::StrAppend(&s, " bytes=", e.bytes);
  if constexpr (requires { e.lease + 0; }) absl::StrAppend(&s, " lease=", e.lease);
  if constexpr (requires { e.call + 0; }) absl::StrAppend(&s, " call=", e.call);
  if constexpr (requires { e.part.DebugString(); }) absl::StrAppend(&s, " ", e.part.DebugString());
  if constexpr (requires { e.checkpoint.DebugString(); })
    absl::StrAppend(&s, " ", e.checkpoint.DebugString());
  if constexpr (requires { e.ref.step; }) {
    absl::StrAppend(&s, " ref=", e.ref.job, "/", e.ref.step, "@", e.ref.attempt, ".",
                    e.ref.revision);
  }
  if constexpr (requires { e.name.size(); }) absl::StrAppend(&s, " name=", e.name);
  if constexpr (requires { e.attempt + 0; }) absl::StrAppend(&s, " attempt=", e.attempt);
  if constexpr (requires { e.comes_from + 0; }) absl::StrAppend(&s, " comes_from=", e.comes_from);
  if constexpr (requires { e.verification + 0; })
    absl::StrAppend(&s, " verification=", e.verification);
  if constexpr (requires { e.status.ok(); }) absl::StrAppend(&s, " ", e.status.ToString());
  if constexpr (requires { e.free; }) absl::StrAppend(&s, " free=", e.free);
  if constexpr (requires { e.extent.offset; }) {
    absl::StrAppend(&s, " at=", e.extent.slab, "+", e.extent.offset, ":", e.extent.length);
  }
  if constexpr (requires { e.body.ok(); }) {
    absl::StrAppend(
        &s, " ", e.body.ok() ? absl::StrCat("OK#", e.body->index()) : e.body.status().ToString());
  }
  if constexpr (requires { e.at + 0; }) absl::StrAppend(&s, " at=", e.at / 1000, "us");
  if constexpr (requires { e.message.size(); }) absl::StrAppend(&s, " ", e.message);
  if constexpr (requires { e.deadline + 0; })
    absl::StrAppend(&s, " deadline=", e.deadline / 1000, "us");
  return s;
}

class World {
 public:
  explicit World(const SimulatorOptions& options)
      : options_(options), rng_(Mix(options.seed, 1)), lie_(options.lie) {}

  SimulatorResult Run();

 private:
  // --- telling ---
  bool ok() const { return result_.failure.empty(); }
  void Fail(std::string what) {
    if (ok()) result_.failure = std::move(what);
    Note([&] { return absl::StrCat("FAILED: ", result_.failure); });
  }
  template <class F>
  void Note(F&& words) {
    if (options_.trace) result_.trace.push_back(absl::StrCat(now_ / 1000, "us ", words()));
  }
  void Count(const char* what) { ++result_.counts[what]; }

  // --- the daemon ---
  void Prepare();
  void StartDaemon(bool first);
  Recovered Leftovers(const std::vector<Fact>& facts);
  void Crash();
  void Apply(Event event);
  void Journal(const std::vector<Fact>& facts, const Event* event, const Outcome& outcome);
  void CarryOut(std::vector<Action>* actions, size_t many);
  void AfterApply();
  void Compact();
  void CompareSnapshot();

  // --- time ---
  void Post(MonotonicNanos due, Pending pending) { pending_.emplace(due, std::move(pending)); }
  bool AdvanceTo(MonotonicNanos to);
  bool DeliverNext(MonotonicNanos to);
  void Deliver(Pending pending);
  void CrashPending();
  MonotonicNanos Soon() {
    return now_ + static_cast<MonotonicNanos>(rng_.Permille(60)
                                                  ? rng_.Between(100, 3000) * 1'000'000
                                                  : rng_.Between(1, 20'000) * 1000);
  }

  // --- storage ---
  Status Publish(const action::Persist& persist);
  void Delete(const action::DeleteFiles& deletion);
  StatusOr<StoredJob> Scan(const std::string& job) const;
  const Stored* InStorage(const CheckpointKey& key) const;
  // In storage, or its place was taken by a newer generation, or it was asked to be deleted.
  bool StoredOrReplaced(const CheckpointKey& key) const;

  // --- what is true ---
  bool MemoryHas(const CheckpointKey& key) const;
  bool KnownToBeHad(const CheckpointKey& key) const {
    return known_stored_.contains(key) || MemoryHas(key);
  }
  std::vector<AttemptLine> Lines(const std::string& job) const;
  std::optional<CheckpointKey> LatestNow(const std::string& job) const;
  const Region* RegionAt(const ExtentRef& extent) const;
  // "" when the bytes there are those; what is wrong otherwise. A flipped bit is no wrong of the
  // engine's.
  std::string WrongBytes(const ExtentRef& extent, const ObjectPromise& promise) const;
  std::string WrongCheckpoint(const CheckpointKey& key) const;  // as something that can be had now
  // "" when the journal's objects of the part are those its writer asked to commit.
  std::string WrongManifest(const PartKey& part, const PartPromise& promise) const;
  const PartPromise* Promise(const PartKey& part) const {
    const auto at = promises_.find(part);
    return at == promises_.end() ? nullptr : &at->second;
  }
  std::string DigestOf(const CheckpointKey& key, int32_t world_size) const;

  // --- checks ---
  void CheckDrops(const std::vector<Fact>& facts, const Event* event, const Outcome& outcome);
  void CheckPersisted();
  void CheckHolds();
  void CheckAttempt(const fact::AttemptBegun& begun, const Event* event);
  void CheckGrant(const Process& process, const reply::Create& create);
  void CheckNothingUses(SlabId slab, const char* what);
  void CheckLatest(const std::string& job, const StatusOr<reply::Body>& body);
  void CheckInfo(const CheckpointInfo& info);

  // --- clients ---
  int NewProcess(int job, Attempt attempt, Writer writer, int32_t world_size);
  void NewGroup(int job);
  void DoSomething();
  void DoWriter(Process* process);
  void DoReader(Process* process);
  void DoFault();
  void BeginStep(Process* process);
  void GoOnSaving(Process* process);
  void SendCommit(Process* process);
  void AbandonStep(Process* process);
  void SayHello(Process* process);
  void Unmap(Process* process, const std::vector<SlabId>& slabs, bool tell);
  void Kill(Process* process, bool lingers);
  void SessionOver(Process* process);
  int Ghost() { return --ghosts_; }
  RequestId Ask(Process* process, Event event, MonotonicNanos deadline, bool scripted = false);
  void AskAgain(Process* process);
  void OnReply(action::Reply reply);
  void OnAnswer(Process* process, const Outstanding& asked, StatusOr<reply::Body>* body,
                Attempt superseded);
  void OnHello(Process* process, const StatusOr<reply::Body>& body, bool lost);
  void OnCreate(Process* process, const event::Create& event, const Outstanding& asked,
                StatusOr<reply::Body>* body, bool lost);
  void OnCommit(Process* process, const event::Commit& event, const StatusOr<reply::Body>& body,
                bool lost);
  void OnOpen(Process* process, const event::Open& event, const Outstanding& asked,
              const StatusOr<reply::Body>& body, bool lost);
  bool LendAll(Process* process, const std::vector<Lend>& lends);
  void Send(Process* process, Event event, MonotonicNanos deadline);
  CheckpointRef SomeRef(const WorldJob& job);
  std::string SomeName(const CheckpointRef& ref);
  StatusOr<reply::Body> AskAndWait(Process* process, Event event, MonotonicNanos deadline);

  // --- the end ---
  void DrainDaemon();
  void Liveness();
  uint64_t CannotBeEvicted();

  const SimulatorOptions options_;
  Rng rng_;
  const Lie lie_;
  SimulatorResult result_;

  Options engine_options_;
  uint64_t true_budget_ = 0;  // what there really is
  std::unique_ptr<Engine> engine_;
  MonotonicNanos now_ = kSecond;
  MonotonicNanos wake_at_ = 0;
  MonotonicNanos incarnation_start_ = 0;
  bool crash_now_ = false;      // the Apply about to come is the daemon's last
  uint64_t allowed_bytes_ = 0;  // the budget, or what was recovered when that is more
  bool in_start_ = false;
  bool drained_ = false, draining_ = false;
  bool applying_ = false;
  bool ending_ = false;  // the end game: no more faults
  std::vector<Event> todo_;

  std::vector<Fact> journal_;
  Mirror mirror_;
  std::map<SlabId, WorldSlab> slabs_;
  std::set<SlabId> making_;
  std::map<SessionId, int> keeper_sessions_;  // → process
  std::multimap<MonotonicNanos, Pending> pending_;
  std::map<std::string, std::map<Step, Stored>> storage_;
  std::map<std::string, std::map<Step, Attempt>> tombstones_;
  std::set<CheckpointKey> deleting_;      // asked to be deleted
  std::set<CheckpointKey> replaced_;      // in storage, by a newer generation of their step
  std::set<CheckpointKey> known_stored_;  // what this daemon knows to be in storage
  bool storage_fails_ = false, storage_away_ = false, storage_slow_ = false;
  bool check_persisted_ = false;
  MonotonicNanos storage_free_at_ = 0;  // scans and deletions are done one after the other

  std::vector<WorldJob> jobs_;
  std::deque<Process> processes_;
  std::map<PartKey, PartPromise> promises_;
  std::map<CheckpointKey, int32_t> complete_;  // ever complete → world size
  std::map<RequestId, Outstanding> outstanding_;
  RequestId next_request_ = 1;
  uint64_t next_content_ = 1;
  int ghosts_ = -1;
  int64_t flips_ = 0, manifest_flips_ = 0;
  bool journal_full_ = false;
  int crashes_left_ = 0;
  std::optional<StatusOr<reply::Body>> scripted_;
  std::map<std::string, std::optional<CheckpointKey>> latest_before_;  // the Apply
  std::set<PartKey> created_now_;
  std::set<std::string> owned_now_;
  std::set<CheckpointKey> left_now_;  // what left memory or storage in this Apply
};

// --- the daemon

void World::Prepare() {
  Options& o = engine_options_;
  const uint64_t kib = 1024;
  o.budget_bytes =
      rng_.Pick<uint64_t>({512 * kib, 1024 * kib, 4096 * kib, 16384 * kib, 65536 * kib});
  true_budget_ = o.budget_bytes;
  if (lie_ == Lie::kBudgetIgnored) o.budget_bytes = 4 * o.budget_bytes;
  o.storage = !rng_.Permille(250);
  if (rng_.Permille(500)) o.storage_root = "/s";
  o.max_sessions = static_cast<int64_t>(rng_.Between(24, 64));
  o.max_waiting =
      static_cast<int64_t>(rng_.Permille(150) ? rng_.Between(2, 6) : rng_.Between(16, 64));
  o.max_persists = static_cast<int>(rng_.Between(1, 3));
  if (rng_.Permille(300)) {
    for (uint64_t i = rng_.Below(4); i > 0; --i)
      o.pool_slabs.push_back(o.budget_bytes / 16 / kPageBytes * kPageBytes);
  }
  const auto policy = [&] {
    JobPolicy p;
    p.mode =
        rng_.Pick<PersistMode>({PersistMode::kOnDemand, PersistMode::kEvery, PersistMode::kNewest});
    p.every = static_cast<int64_t>(rng_.Between(1, 3));
    if (rng_.Permille(300)) p.keep_last = static_cast<int64_t>(rng_.Between(1, 3));
    if (p.keep_last > 0 && rng_.Permille(300)) p.keep_every = 4;
    return p;
  };
  o.default_policy = policy();
  const uint64_t many = rng_.Between(1, 3);
  for (uint64_t i = 0; i < many; ++i) {
    WorldJob job;
    job.name = absl::StrCat("j", i);
    job.uid = static_cast<uint32_t>(rng_.Permille(400) ? 1000 : 1000 + i);
    job.world_size =
        static_cast<int32_t>(rng_.Permille(600) ? rng_.Between(1, 3) : rng_.Between(1, 8));
    job.elsewhere = rng_.Permille(40);
    job.step_bytes = true_budget_ / rng_.Pick<uint64_t>({2, 3, 4, 6, 8, 12, 24}) /
                     (rng_.Permille(300) ? many : 1);
    job.objects = static_cast<int>(rng_.Between(1, 4));
    job.large = static_cast<int>(rng_.Below(3));
    job.can_pad = rng_.Permille(300);
    jobs_.push_back(std::move(job));
  }
  crashes_left_ = static_cast<int>(rng_.Permille(250) ? 0 : rng_.Between(1, 5));
}

// What a new daemon finds, as the node would read it.
Recovered World::Leftovers(const std::vector<Fact>& facts) {
  Recovered recovered;
  recovered.facts = facts;
  Mirror mirror;
  for (const Fact& fact : facts) mirror.Take(fact);
  for (const auto& [id, slab] : slabs_) recovered.held_slabs.emplace_back(id, slab.bytes);
  for (const auto& [session, process] : keeper_sessions_) {
    if (processes_[process].alive) recovered.live_sessions.push_back(session);
  }
  for (const auto& [key, writers] : mirror.manifests) {
    for (const auto& [writer, committed] : writers) {
      const Region* region = RegionAt(committed.extent);
      if (region == nullptr || region->flipped != kNoTime ||
          ManifestDigest(region->manifest) != committed.digest) {
        continue;
      }
      recovered.manifests.emplace_back(committed.part, region->manifest);
    }
  }
  return recovered;
}

void World::StartDaemon(bool first) {
  for (int deaths = 0;; ++deaths) {
    engine_ = std::make_unique<Engine>(engine_options_);
    wake_at_ = 0;
    incarnation_start_ = now_;
    drained_ = draining_ = false;
    journal_full_ = false;
    for (auto at = keeper_sessions_.begin(); at != keeper_sessions_.end();) {
      at = processes_[at->second].alive ? std::next(at) : keeper_sessions_.erase(at);
    }
    uint64_t held = 0;
    for (const auto& [id, slab] : slabs_) held += slab.bytes;
    allowed_bytes_ = std::max(true_budget_, held);
    known_stored_.clear();
    Recovered recovered = first ? Recovered{} : Leftovers(journal_);
    // What was in storage is known of what is in memory too; of the rest a scan must tell.
    for (const auto& [key, digest] : mirror_.persisted) {
      if (const auto at = mirror_.manifests.find(key); at != mirror_.manifests.end()) {
        const auto world = complete_.find(key);
        if (world == complete_.end() || static_cast<int32_t>(at->second.size()) != world->second)
          continue;
        size_t good = 0;
        for (const auto& [part, bytes] : recovered.manifests)
          good += part.checkpoint == key ? 1 : 0;
        if (good == at->second.size()) known_stored_.insert(key);
      }
    }
    in_start_ = true;
    Note([&] { return absl::StrCat("daemon starts with ", journal_.size(), " facts"); });
    Outcome outcome = engine_->Start(now_, now_ / kMilli, std::move(recovered));
    ++result_.events;
    const bool dies = !first && !ending_ && deaths < 2 && rng_.Permille(150);
    if (dies) {
      // A second crash, in recovery: all of it lost, or journaled and some of it done.
      Count("crash in recovery");
      if (rng_.Permille(500)) {
        Journal(outcome.facts, nullptr, outcome);
        CarryOut(&outcome.actions, rng_.Below(outcome.actions.size() + 1));
      }
      in_start_ = false;
      CrashPending();
      if (!ok()) return;
      continue;
    }
    Journal(outcome.facts, nullptr, outcome);
    CarryOut(&outcome.actions, outcome.actions.size());
    in_start_ = false;
    AfterApply();
    break;
  }
  const std::vector<Event> todo = std::exchange(todo_, {});
  for (const Event& event : todo) Apply(event);
}

void World::Crash() {
  Count("crash");
  Note([&] { return std::string("the daemon dies"); });
  CrashPending();
  // Whoever waited hears nothing; calls that change something are repeated.
  for (auto& [request, asked] : outstanding_) {
    if (asked.process >= 0 && processes_[asked.process].request == request)
      processes_[asked.process].request = 0;
  }
  outstanding_.clear();
  todo_.clear();
  storage_away_ = false;
  if (!ending_ && rng_.Permille(200)) {
    // A smaller budget, or the old one again.
    true_budget_ = rng_.Permille(500) ? jobs_.size() * 256 * 1024 : true_budget_ * 3 / 4;
    true_budget_ = std::max<uint64_t>(true_budget_ / kPageBytes * kPageBytes, 256 * 1024);
    engine_options_.budget_bytes = true_budget_;
    engine_options_.pool_slabs.clear();
    Count("budget shrunk");
    Note([&] { return absl::StrCat("the budget is now ", true_budget_); });
  }
  StartDaemon(/*first=*/false);
}

// What was under way when the daemon died has happened, or not.
void World::CrashPending() {
  std::multimap<MonotonicNanos, Pending> was;
  was.swap(pending_);
  for (auto& [due, pending] : was) {
    const bool happened = rng_.Permille(500);
    switch (pending.kind) {
      case PendingKind::kMake:
        making_.erase(pending.slab);
        if (!happened) slabs_.erase(pending.slab);
        break;
      case PendingKind::kDestroy:
        if (happened) slabs_.erase(pending.slab);
        break;
      case PendingKind::kPersist:
        if (happened && due != kNoTime) Publish(*pending.persist).IgnoreError();
        break;
      case PendingKind::kDelete:
        if (happened) Delete(pending.deletion);
        break;
      case PendingKind::kSessionGone:
        keeper_sessions_.erase(pending.session);
        break;
      default:
        break;
    }
  }
  storage_free_at_ = 0;
}

void World::Apply(Event event) {
  if (!ok()) return;
  if (applying_) {
    todo_.push_back(std::move(event));
    return;
  }
  applying_ = true;
  ++result_.events;
  Note([&] {
    return absl::StrCat("→ ", Name(event),
                        std::visit([](const auto& e) { return Details(e); }, event));
  });
  const bool dies = std::exchange(crash_now_, false);
  const Event kept = event;
  Outcome outcome = engine_->Apply(now_, std::move(event));
  bool crashed = false;
  if (dies) {
    crashed = true;
    if (rng_.Permille(600)) {
      // Journaled, and some of it done.
      Journal(outcome.facts, &kept, outcome);
      CarryOut(&outcome.actions, rng_.Below(outcome.actions.size() + 1));
    } else {
      Count("facts lost with their actions");
    }
  } else {
    Journal(outcome.facts, &kept, outcome);
    CarryOut(&outcome.actions, outcome.actions.size());
    AfterApply();
  }
  applying_ = false;
  if (crashed && ok()) {
    Crash();
    return;
  }
  while (!todo_.empty() && ok()) {
    const Event next = todo_.front();
    todo_.erase(todo_.begin());
    Apply(next);
  }
}

void World::Journal(const std::vector<Fact>& facts, const Event* event, const Outcome& outcome) {
  bool drops = false;
  // Several calls may be handled in one Apply (a scan's answer frees all who waited for it), some
  // before and some after a removal among them.
  latest_before_.clear();
  left_now_.clear();
  created_now_.clear();
  owned_now_.clear();
  for (const Fact& fact : facts) {
    if (const auto* object = std::get_if<fact::ObjectDropped>(&fact)) {
      left_now_.insert(object->part.checkpoint);
    }
    if (const auto* job = std::get_if<fact::Job>(&fact);
        job != nullptr && !mirror_.jobs.contains(job->job)) {
      owned_now_.insert(job->job);
    }
    if (const auto* created = std::get_if<fact::ObjectCreated>(&fact)) {
      created_now_.insert(created->part);
    }
    if (const auto* deleted = std::get_if<fact::FilesDeleted>(&fact)) {
      left_now_.insert(deleted->checkpoint);
    }
  }
  for (const Fact& fact : facts) {
    if (!std::holds_alternative<fact::StepRemoved>(fact) &&
        !std::holds_alternative<fact::AttemptBegun>(fact) &&
        !std::holds_alternative<fact::ObjectDropped>(fact)) {
      continue;
    }
    for (const WorldJob& job : jobs_) latest_before_[job.name] = LatestNow(job.name);
    break;
  }
  for (const Fact& fact : facts) {
    drops |= std::holds_alternative<fact::ObjectDropped>(fact) ||
             std::holds_alternative<fact::ManifestDropped>(fact);
    Note([&] {
      return absl::StrCat("    fact ", Name(fact),
                          std::visit([](const auto& f) { return Details(f); }, fact));
    });
    if (lie_ != Lie::kJournalLosesCommit ||
        !std::holds_alternative<fact::ManifestCommitted>(fact)) {
      journal_.push_back(fact);
    }
    if (const auto* begun = std::get_if<fact::AttemptBegun>(&fact)) CheckAttempt(*begun, event);
    if (const auto* committed = std::get_if<fact::ManifestCommitted>(&fact)) {
      PartPromise& part = promises_[committed->part];
      if (part.committed && part.digest != committed->digest) {
        Fail(absl::StrCat("promise 3: ", committed->part.DebugString(),
                          " was committed twice, with other content"));
      }
      if (const std::string wrong = WrongManifest(committed->part, part); !wrong.empty()) {
        Fail(absl::StrCat("promise 2: ", committed->part.DebugString(), " is committed ", wrong));
      }
      part.committed = true;
      part.digest = committed->digest;
      const auto at = mirror_.manifests.find(committed->part.checkpoint);
      const int32_t there =
          at == mirror_.manifests.end() ? 0 : static_cast<int32_t>(at->second.size());
      if (there + 1 == committed->world_size) {
        complete_[committed->part.checkpoint] = committed->world_size;
        Count("complete");
      }
    }
    if (const auto* persisted = std::get_if<fact::Persisted>(&fact)) {
      known_stored_.insert(persisted->checkpoint);
      check_persisted_ = true;
    }
    if (const auto* removed = std::get_if<fact::StepRemoved>(&fact)) {
      std::erase_if(known_stored_, [&](const CheckpointKey& key) {
        return key.job == removed->job && key.step == removed->step &&
               key.attempt <= removed->up_to_attempt;
      });
    }
    if (const auto* deleted = std::get_if<fact::FilesDeleted>(&fact))
      known_stored_.erase(deleted->checkpoint);
    if (!std::holds_alternative<fact::ObjectDropped>(fact) &&
        !std::holds_alternative<fact::ManifestDropped>(fact)) {
      mirror_.Take(fact);
    }
  }
  if (!drops) return;
  CheckDrops(facts, event, outcome);
  for (const Fact& fact : facts) {
    if (std::holds_alternative<fact::ObjectDropped>(fact) ||
        std::holds_alternative<fact::ManifestDropped>(fact)) {
      mirror_.Take(fact);
    }
  }
}

void World::CarryOut(std::vector<Action>* actions, size_t many) {
  for (size_t i = 0; i < many && ok(); ++i) {
    Action& any = (*actions)[i];
    Note([&] {
      return absl::StrCat("    ", Name(any),
                          std::visit([](const auto& a) { return Details(a); }, any));
    });
    if (auto* reply = std::get_if<action::Reply>(&any)) {
      if (lie_ == Lie::kAnswerLostInside && rng_.Permille(100)) continue;
      OnReply(std::move(*reply));
    } else if (auto* make = std::get_if<action::MakeSlab>(&any)) {
      slabs_[make->slab].bytes = make->bytes;
      making_.insert(make->slab);
      uint64_t total = 0;
      for (const auto& [id, slab] : slabs_) total += slab.bytes;
      if (total > allowed_bytes_) {
        Fail(absl::StrCat("promise 8: slabs take ", total, " bytes, the budget is ",
                          allowed_bytes_));
      }
      Pending pending;
      pending.kind = PendingKind::kMake;
      pending.slab = make->slab;
      pending.fails = !ending_ && rng_.Permille(40);
      Post(Soon(), std::move(pending));
    } else if (auto* destroy = std::get_if<action::DestroySlab>(&any)) {
      CheckNothingUses(destroy->slab, "destroyed");
      const auto slab = slabs_.find(destroy->slab);
      if (slab == slabs_.end()) {
        Fail(absl::StrCat("slab ", destroy->slab, " is destroyed twice"));
      } else if (slab->second.Seen()) {
        Fail(absl::StrCat("promise 8: slab ", destroy->slab,
                          " is destroyed while somebody sees it: its memory stays "
                          "and is no longer counted"));
      }
      Pending pending;
      pending.kind = PendingKind::kDestroy;
      pending.slab = destroy->slab;
      Post(Soon(), std::move(pending));
    } else if (auto* probe = std::get_if<action::ProbeSlab>(&any)) {
      Pending pending;
      pending.kind = PendingKind::kProbe;
      pending.slab = probe->slab;
      pending.leases = probe->leases;
      pending.early = rng_.Permille(400);
      if (pending.early) {
        const auto slab = slabs_.find(probe->slab);
        pending.probed.free = slab != slabs_.end() && !slab->second.Seen();
        for (LeaseId lease : probe->leases) {
          if (slab == slabs_.end() || !slab->second.locks.contains(lease))
            pending.probed.ended.push_back(lease);
        }
      }
      Post(now_ + static_cast<MonotonicNanos>(rng_.Between(1, 3000) * 1000), std::move(pending));
    } else if (auto* manifest = std::get_if<action::WriteManifest>(&any)) {
      Pending pending;
      pending.kind = PendingKind::kManifest;
      pending.manifest = std::move(*manifest);
      pending.fails = !ending_ && rng_.Permille(10);
      Post(now_ + static_cast<MonotonicNanos>(rng_.Between(1, 20'000) * 1000), std::move(pending));
    } else if (auto* verify = std::get_if<action::Verify>(&any)) {
      Pending pending;
      pending.kind = PendingKind::kVerify;
      pending.verify = std::move(*verify);
      Post(Soon(), std::move(pending));
    } else if (auto* persist = std::get_if<action::Persist>(&any)) {
      Pending pending;
      pending.kind = PendingKind::kPersist;
      pending.persist = std::make_shared<action::Persist>(std::move(*persist));
      pending.fails = !ending_ && (storage_fails_ || rng_.Permille(30));
      MonotonicNanos due = storage_slow_ && !ending_
                               ? now_ + static_cast<MonotonicNanos>(rng_.Between(1, 60)) * kSecond
                               : Soon();
      if (storage_away_ && !ending_) due = kNoTime;  // until the daemon is restarted
      Post(due, std::move(pending));
    } else if (auto* deletion = std::get_if<action::DeleteFiles>(&any)) {
      deleting_.insert(deletion->checkpoint);
      Pending pending;
      pending.kind = PendingKind::kDelete;
      pending.deletion = std::move(*deletion);
      pending.fails = !ending_ && (storage_fails_ || rng_.Permille(30));
      storage_free_at_ = std::max(storage_free_at_, Soon());
      Post(storage_free_at_, std::move(pending));
    } else if (auto* scan = std::get_if<action::ScanJob>(&any)) {
      Pending pending;
      pending.kind = PendingKind::kScan;
      pending.job = scan->job;
      pending.fails = !ending_ && storage_fails_;
      // It may have looked before what is persisted meanwhile, but not before an earlier deletion.
      pending.early = rng_.Permille(400);
      for (const auto& [due, other] : pending_) {
        if (other.kind == PendingKind::kDelete) pending.early = false;
      }
      if (pending.early) pending.scanned = Scan(scan->job);
      if (storage_away_ && !ending_) {
        Post(kNoTime, std::move(pending));
        Count("scan never answers");
      } else {
        storage_free_at_ = std::max(storage_free_at_, Soon());
        if (storage_slow_ && !ending_)
          storage_free_at_ += static_cast<MonotonicNanos>(rng_.Between(1, 20)) * kSecond;
        Post(storage_free_at_, std::move(pending));
      }
    } else if (auto* wake = std::get_if<action::WakeAt>(&any)) {
      wake_at_ = wake->at;
    } else if (auto* end = std::get_if<action::EndSession>(&any)) {
      const auto at = keeper_sessions_.find(end->session);
      if (at != keeper_sessions_.end()) {
        Process& process = processes_[at->second];
        keeper_sessions_.erase(at);
        if (process.session == end->session) SessionOver(&process);
      }
    } else if (std::holds_alternative<action::Drained>(any)) {
      drained_ = true;
    }
  }
}

void World::AfterApply() {
  if (!ok()) return;
  const std::string broken = engine_->CheckInvariants();
  if (!broken.empty()) return Fail(absl::StrCat("invariant: ", broken));
  if (static_cast<int64_t>(outstanding_.size()) > engine_options_.max_waiting) {
    return Fail(absl::StrCat("promise 8: ", outstanding_.size(), " callers wait, the limit is ",
                             engine_options_.max_waiting));
  }
  MonotonicNanos first = kNoTime;
  for (const auto& [request, asked] : outstanding_) {
    if (asked.deadline <= now_) {
      return Fail(absl::StrCat("promise 4: request ", request, " (", Name(asked.event),
                               ") has no answer though its deadline has passed"));
    }
    if (asked.process >= 0 && !kIs<event::Hello>(asked.event)) {
      const SessionId session = std::visit(
          [](const auto& e) -> SessionId {
            if constexpr (requires { e.caller.session; }) return e.caller.session;
            return 0;
          },
          asked.event);
      if (session != 0 && !mirror_.sessions.contains(session)) {
        return Fail(absl::StrCat("promise 4: request ", request, " (", Name(asked.event),
                                 ") has no answer though its session has ended"));
      }
    }
    if (!kIs<event::Commit>(asked.event)) first = std::min(first, asked.deadline);
  }
  if (first != kNoTime && (wake_at_ == 0 || wake_at_ > first)) {
    return Fail(absl::StrCat("promise 4: a caller waits until ", first,
                             ", but the engine wants to be woken at ", wake_at_));
  }
  if (std::exchange(check_persisted_, false)) CheckPersisted();
}

void World::Compact() {
  Count("snapshot");
  CompareSnapshot();
  if (!ok()) return;
  journal_ = engine_->Snapshot();
  const Mirror before = std::exchange(mirror_, Mirror{});
  for (const Fact& fact : journal_) mirror_.Take(fact);
  // Attempts that left nothing behind need not be remembered, but the model's line knows them.
  for (const auto& [job, attempts] : before.attempts) {
    for (const auto& [attempt, from] : attempts) mirror_.attempts[job].try_emplace(attempt, from);
  }
}

// Snapshot and journal say the same, and a daemon started from either gives the same answers.
void World::CompareSnapshot() {
  const std::vector<Fact> snapshot = engine_->Snapshot();
  Mirror said;
  for (const Fact& fact : snapshot) said.Take(fact);
  const auto differ = [&](const char* what) {
    Fail(absl::StrCat("snapshot: ", what, " are not what the journal says"));
  };
  if (said.sessions != mirror_.sessions) return differ("sessions");
  if (said.leases != mirror_.leases) return differ("leases");
  if (said.manifests != mirror_.manifests) return differ("manifests");
  if (said.jobs != mirror_.jobs) return differ("jobs");
  if (said.objects != mirror_.objects) {
    for (const auto& [part, objects] : mirror_.objects) {
      if (!said.objects.contains(part) || said.objects.at(part) != objects) {
        return Fail(absl::StrCat("snapshot: objects of ", part.DebugString(),
                                 " are not what the journal says"));
      }
    }
    return differ("objects");
  }
  for (const auto& [id, slab] : said.slabs) {
    const auto at = mirror_.slabs.find(id);
    if (at == mirror_.slabs.end() || !(at->second == slab)) return differ("slabs");
  }
  const auto answers = [&](const std::vector<Fact>& facts) {
    Engine other(engine_options_);
    other.Start(now_, now_ / kMilli, Leftovers(facts));
    const std::string broken = other.CheckInvariants();
    if (!broken.empty()) return absl::StrCat("invariant after a restart: ", broken);
    std::string all;
    for (const WorldJob& job : jobs_) {
      std::vector<CheckpointKey> keys;
      for (const auto& [key, writers] : mirror_.manifests) {
        if (key.job == job.name) keys.push_back(key);
      }
      const Engine::Description described = other.Describe(job.name, keys);
      if (described.job) absl::StrAppend(&all, job.name, " of ", described.job->owner_uid, "\n");
      for (const CheckpointInfo& info : described.complete) {
        absl::StrAppend(&all, info.key.DebugString(), " ", info.digest, " ", info.bytes,
                        " line=", info.on_line, " pinned=", info.facts.pinned,
                        " persisted=", info.facts.persisted, " resident=", info.facts.resident,
                        " broken=", info.facts.broken, "\n");
      }
      for (const auto& part : described.parts) {
        absl::StrAppend(&all, part.committed.part.DebugString(), " ", part.committed.digest, " ",
                        part.bytes, "\n");
      }
    }
    return all;
  };
  const std::string from_journal = answers(journal_), from_snapshot = answers(snapshot);
  if (from_journal != from_snapshot) {
    Fail(absl::StrCat("snapshot: a daemon started from the journal answers\n", from_journal,
                      "one started from the snapshot\n", from_snapshot));
  } else if (absl::string_view(from_journal).substr(0, 9) == "invariant") {
    Fail(from_journal);
  }
}

// --- time

bool World::DeliverNext(MonotonicNanos to) {
  const MonotonicNanos due = pending_.empty() ? kNoTime : pending_.begin()->first;
  const MonotonicNanos wake = wake_at_ == 0 ? kNoTime : wake_at_;
  const MonotonicNanos next = std::min(due, wake);
  if (next > to || next == kNoTime) return false;
  now_ = std::max(now_, next);
  if (wake <= due) {
    now_ += static_cast<MonotonicNanos>(rng_.Below(1000));  // a timer is never early
    wake_at_ = 0;
    Apply(event::Tick{});
  } else {
    Pending pending = std::move(pending_.begin()->second);
    pending_.erase(pending_.begin());
    Deliver(std::move(pending));
  }
  return true;
}

bool World::AdvanceTo(MonotonicNanos to) {
  for (int i = 0; i < 5000 && ok(); ++i) {
    if (DeliverNext(to)) continue;
    now_ = std::max(now_, to);
    return true;
  }
  if (ok()) Fail("promise 4: the engine asks to be woken, or acts, without end");
  return false;
}

void World::Deliver(Pending pending) {
  switch (pending.kind) {
    case PendingKind::kMake:
      making_.erase(pending.slab);
      if (pending.fails) {
        Count("slab not made");
        slabs_.erase(pending.slab);
      }
      return Apply(event::SlabMade{
          pending.slab,
          pending.fails ? absl::ResourceExhaustedError("no memory for it") : absl::OkStatus()});
    case PendingKind::kDestroy:
      slabs_.erase(pending.slab);
      return Apply(event::SlabDestroyed{pending.slab});
    case PendingKind::kProbe: {
      event::SlabProbed probed = std::move(pending.probed);
      probed.slab = pending.slab;
      const auto slab = slabs_.find(pending.slab);
      if (!pending.early) {
        probed.free = slab != slabs_.end() && !slab->second.Seen();
        for (LeaseId lease : pending.leases) {
          if (slab == slabs_.end() || !slab->second.locks.contains(lease))
            probed.ended.push_back(lease);
        }
      }
      if (lie_ == Lie::kSlabReportedFree) {
        probed.free = true;
        probed.ended = pending.leases;
      }
      if (lie_ == Lie::kLockReportedGone) {
        probed.ended = pending.leases;
        probed.free =
            slab != slabs_.end() && slab->second.maps.empty() && slab->second.by_path.empty();
      }
      return Apply(std::move(probed));
    }
    case PendingKind::kManifest: {
      const action::WriteManifest& write = pending.manifest;
      Status status;
      if (pending.fails) {
        status = absl::DataLossError("the manifest's memory is gone");
        Count("manifest not written");
      } else if (const auto slab = slabs_.find(write.extent.slab); slab != slabs_.end()) {
        Region region;
        region.length = write.extent.length;
        region.manifest = write.bytes;
        slab->second.Write(write.extent.offset, std::move(region));
      } else {
        Fail(absl::StrCat("pin: the manifest of ", write.part.DebugString(),
                          " is written into slab ", write.extent.slab, ", which is gone"));
      }
      return Apply(event::ManifestWritten{write.part, status});
    }
    case PendingKind::kVerify: {
      const action::Verify& verify = pending.verify;
      const PartPromise* part = Promise(verify.part);
      Status status;
      if (verify.entry.length > 0) {
        const Region* region = RegionAt(verify.extent);
        if (region == nullptr) {
          Fail(absl::StrCat("pin: the bytes of ", verify.part.DebugString(), " ", verify.entry.name,
                            " are gone while they are verified"));
        } else if (region->flipped != kNoTime ||
                   CrcsOf(region->content, verify.entry.length) != verify.entry.block_crcs) {
          if (region->flipped == kNoTime) {
            Fail(absl::StrCat("promise 6: other bytes were written over ",
                              verify.part.DebugString(), " ", verify.entry.name));
          }
          status = absl::DataLossError("block 0 is not what was sealed");
          Count("verification failed");
        }
      }
      if (part == nullptr)
        Fail(absl::StrCat("verifies ", verify.part.DebugString(), ", which nobody saved"));
      Count("verified");
      return Apply(event::Verified{verify.verification, status, now_ / kMilli});
    }
    case PendingKind::kPersist: {
      Status status;
      if (pending.fails) {
        status = absl::UnavailableError("storage: away");
        Count("persist failed");
      } else {
        status = Publish(*pending.persist);
        if (status.ok()) Count("persisted");
      }
      return Apply(event::Persisted{pending.persist->checkpoint, status});
    }
    case PendingKind::kDelete: {
      Status status;
      if (pending.fails) {
        status = absl::UnavailableError("storage: away");
      } else {
        Delete(pending.deletion);
        Count("files deleted");
      }
      return Apply(event::FilesDeleted{pending.deletion.checkpoint, status});
    }
    case PendingKind::kScan: {
      event::JobScanned scanned{pending.job, pending.early ? *pending.scanned : Scan(pending.job),
                                0, 0};
      if (pending.fails) {
        scanned.stored = absl::UnavailableError("storage: away");
        Count("scan failed");
      }
      for (const WorldJob& job : jobs_) {
        if (job.name == pending.job) scanned.owner_uid = scanned.owner_gid = job.uid;
      }
      if (scanned.stored.ok()) {
        Count("scanned");
        for (const StoredCheckpoint& stored : scanned.stored->checkpoints) {
          // Those that memory has whole are told by a fact, if they are the same.
          const auto here = mirror_.manifests.find(stored.key);
          const bool whole = here != mirror_.manifests.end() &&
                             static_cast<int32_t>(here->second.size()) == stored.world_size;
          if (!whole && !mirror_.Removed(stored.key)) {
            known_stored_.insert(stored.key);
          }
        }
      }
      return Apply(std::move(scanned));
    }
    case PendingKind::kSessionGone:
      keeper_sessions_.erase(pending.session);
      return Apply(event::SessionEnded{pending.session});
  }
}

// --- storage

Status World::Publish(const action::Persist& persist) {
  const CheckpointKey& key = persist.checkpoint;
  Stored stored;
  stored.checkpoint.key = key;
  stored.checkpoint.directory = absl::StrCat("/s/", key.job, "/", key.step);
  stored.checkpoint.published = true;
  for (const action::PersistPart& part : persist.parts) {
    stored.checkpoint.world_size = part.manifest.world_size;
    const PartPromise* promise = Promise(part.manifest.Part());
    if (promise == nullptr || ManifestDigest(part.encoded) != promise->digest) {
      Fail(absl::StrCat("promise 3: ", part.manifest.Part().DebugString(),
                        " is persisted as nobody committed it"));
      return absl::OkStatus();
    }
    auto& contents = stored.contents[part.manifest.Part()];
    for (const action::PersistObject& object : part.objects) {
      const ObjectPromise& wanted = promise->objects.at(object.entry.name);
      if (const std::string wrong = WrongBytes(object.extent, wanted); !wrong.empty()) {
        Fail(absl::StrCat("pin: ", part.manifest.Part().DebugString(), " ", object.entry.name,
                          " while it is persisted: ", wrong));
      }
      const Region* region = RegionAt(object.extent);
      if (region != nullptr && region->flipped != kNoTime) {
        Count("persist found a flipped bit");
        return absl::DataLossError("a block is not what was sealed");
      }
      contents[object.entry.name] = wanted;
    }
    if (contents.size() != promise->objects.size()) {
      Fail(absl::StrCat("promise 1: ", part.manifest.Part().DebugString(),
                        " is persisted without all its objects"));
    }
    stored.checkpoint.manifests.push_back(part.manifest);
    stored.checkpoint.digests.push_back(ManifestDigest(part.encoded));
  }
  if (!stored.checkpoint.Complete()) {
    Fail(absl::StrCat("promise 3: ", key.DebugString(), " is persisted without all its writers"));
  }
  const auto removed = tombstones_[key.job].find(key.step);
  if (removed != tombstones_[key.job].end() && key.attempt <= removed->second) {
    return absl::FailedPreconditionError("the step was removed");
  }
  if (lie_ == Lie::kStorageForgets) return absl::OkStatus();
  std::map<Step, Stored>& steps = storage_[key.job];
  const auto there = steps.find(key.step);
  if (there != steps.end() && SameStepNewer(there->second.checkpoint.key, key)) {
    return absl::FailedPreconditionError("a newer checkpoint of that step stands in storage");
  }
  if (there != steps.end()) replaced_.insert(there->second.checkpoint.key);
  steps[key.step] = std::move(stored);
  deleting_.erase(key);
  replaced_.erase(key);
  return absl::OkStatus();
}

void World::Delete(const action::DeleteFiles& deletion) {
  const CheckpointKey& key = deletion.checkpoint;
  if (deletion.tombstone) {
    Attempt& attempt = tombstones_[key.job][key.step];
    attempt = std::max(attempt, key.attempt);
  }
  std::map<Step, Stored>& steps = storage_[key.job];
  const auto there = steps.find(key.step);
  if (there != steps.end() && there->second.checkpoint.key == key) steps.erase(there);
  check_persisted_ = true;
}

StatusOr<StoredJob> World::Scan(const std::string& name) const {
  const auto job = storage_.find(name);
  if (job == storage_.end()) return absl::NotFoundError("job: has no directory");
  StoredJob stored;
  for (const auto& [step, checkpoint] : job->second)
    stored.checkpoints.push_back(checkpoint.checkpoint);
  if (const auto removed = tombstones_.find(name); removed != tombstones_.end())
    stored.removed = removed->second;
  return stored;
}

const Stored* World::InStorage(const CheckpointKey& key) const {
  const auto job = storage_.find(key.job);
  if (job == storage_.end()) return nullptr;
  const auto at = job->second.find(key.step);
  return at == job->second.end() || !(at->second.checkpoint.key == key) ? nullptr : &at->second;
}

bool World::StoredOrReplaced(const CheckpointKey& key) const {
  return InStorage(key) != nullptr || deleting_.contains(key) || replaced_.contains(key);
}

// --- what is true

bool World::MemoryHas(const CheckpointKey& key) const {
  const auto world = complete_.find(key);
  const auto manifests = mirror_.manifests.find(key);
  if (world == complete_.end() || manifests == mirror_.manifests.end() ||
      static_cast<int32_t>(manifests->second.size()) != world->second) {
    return false;
  }
  for (const auto& [writer, committed] : manifests->second) {
    const PartPromise* promise = Promise(committed.part);
    if (promise == nullptr) return false;
    if (promise->objects.empty()) continue;
    const auto objects = mirror_.objects.find(committed.part);
    if (objects == mirror_.objects.end() || objects->second.size() != promise->objects.size())
      return false;
  }
  return true;
}

std::vector<AttemptLine> World::Lines(const std::string& job) const {
  std::vector<AttemptLine> lines;
  const auto attempts = mirror_.attempts.find(job);
  if (attempts == mirror_.attempts.end()) return lines;
  for (const auto& [attempt, from] : attempts->second) lines.push_back({attempt, from, {}});
  const auto add = [&](const CheckpointKey& key) {
    if (key.job != job || !KnownToBeHad(key)) return;
    for (AttemptLine& line : lines) {
      if (line.attempt != key.attempt) continue;
      Revision& revision = line.complete.try_emplace(key.step, key.revision).first->second;
      revision = std::max(revision, key.revision);
    }
  };
  for (const auto& [key, writers] : mirror_.manifests) add(key);
  for (const CheckpointKey& key : known_stored_) add(key);
  return lines;
}

std::optional<CheckpointKey> World::LatestNow(const std::string& job) const {
  const std::optional<LineStep> latest = LatestOfLine(Lines(job));
  if (!latest) return std::nullopt;
  return CheckpointKey{job, latest->step, latest->attempt, latest->revision};
}

const Region* World::RegionAt(const ExtentRef& extent) const {
  const auto slab = slabs_.find(extent.slab);
  if (slab == slabs_.end()) return nullptr;
  const auto region = slab->second.regions.find(extent.offset);
  return region == slab->second.regions.end() ? nullptr : &region->second;
}

std::string World::WrongBytes(const ExtentRef& extent, const ObjectPromise& promise) const {
  if (promise.length == 0) return "";
  const Region* region = RegionAt(extent);
  if (region == nullptr)
    return absl::StrCat("its bytes are gone from slab ", extent.slab, "+", extent.offset);
  if (region->content != promise.content || region->length != promise.length) {
    return absl::StrCat("other bytes were written over slab ", extent.slab, "+", extent.offset);
  }
  return "";
}

std::string World::WrongCheckpoint(const CheckpointKey& key) const {
  if (!complete_.contains(key)) return absl::StrCat(key.DebugString(), " was never complete");
  if (InStorage(key) != nullptr) return "";
  if (!MemoryHas(key))
    return absl::StrCat(key.DebugString(), " is neither in memory nor in storage");
  for (const auto& [writer, committed] : mirror_.manifests.at(key)) {
    const PartPromise* promise = Promise(committed.part);
    for (const auto& [name, object] : promise->objects) {
      const std::string wrong =
          WrongBytes(mirror_.objects.at(committed.part).at(name).extent, object);
      if (!wrong.empty()) return absl::StrCat(key.DebugString(), " ", name, ": ", wrong);
    }
  }
  return "";
}

std::string World::WrongManifest(const PartKey& part, const PartPromise& promise) const {
  const auto objects = mirror_.objects.find(part);
  const size_t there = objects == mirror_.objects.end() ? 0 : objects->second.size();
  if (there != promise.objects.size()) {
    return absl::StrCat("with ", there, " objects of ", promise.objects.size());
  }
  for (const auto& [name, object] : promise.objects) {
    const auto at = objects->second.find(name);
    if (at == objects->second.end() || !at->second.sealed ||
        at->second.entry.block_crcs != CrcsOf(object.content, object.length)) {
      return absl::StrCat("without ", name, " as it was sealed");
    }
  }
  return "";
}

std::string World::DigestOf(const CheckpointKey& key, int32_t world_size) const {
  std::vector<std::string> digests;
  for (Writer writer = 0; writer < world_size; ++writer) {
    const PartPromise* part = Promise({key, writer});
    digests.push_back(part == nullptr ? "" : part->digest);
  }
  return CheckpointDigest(digests);
}

// --- checks

// Memory is given up only by the rules: garbage and superseded steps, what storage has, what was
// removed, what broke. Never the newest complete step that is nowhere else, a live job's newest, or
// what is pinned.
void World::CheckDrops(const std::vector<Fact>& facts, const Event* event, const Outcome& outcome) {
  std::set<CheckpointKey> dropped;
  std::set<std::string> removed_from_memory;
  std::map<std::pair<std::string, Step>, Attempt> removed;
  for (const Fact& fact : facts) {
    const PartKey* part = nullptr;
    if (const auto* object = std::get_if<fact::ObjectDropped>(&fact)) part = &object->part;
    if (const auto* manifest = std::get_if<fact::ManifestDropped>(&fact)) part = &manifest->part;
    if (const auto* step = std::get_if<fact::StepRemoved>(&fact))
      removed[{step->job, step->step}] = step->up_to_attempt;
    if (part == nullptr) continue;
    const auto committed = mirror_.manifests.find(part->checkpoint);
    if (committed != mirror_.manifests.end() && committed->second.contains(part->writer)) {
      dropped.insert(part->checkpoint);
    }
  }
  for (const Action& action : outcome.actions) {
    const auto* reply = std::get_if<action::Reply>(&action);
    if (reply == nullptr || !reply->body.ok()) continue;
    const auto asked = outstanding_.find(reply->request);
    if (asked == outstanding_.end()) continue;
    const auto* remove = std::get_if<event::Remove>(&asked->second.event);
    if (remove != nullptr && remove->memory_only) removed_from_memory.insert(remove->ref.job);
  }
  const bool broke = event != nullptr && kIs<event::Verified>(*event) &&
                     !std::get<event::Verified>(*event).status.ok();
  for (const CheckpointKey& key : dropped) {
    const auto rm = removed.find({key.job, key.step});
    if (rm != removed.end() && key.attempt <= rm->second) continue;
    if (removed_from_memory.contains(key.job) || broke) continue;
    if (in_start_ && manifest_flips_ > 0) continue;
    const std::string shown = absl::StrCat("promise 3: ", key.DebugString(), " leaves memory: ");
    if (in_start_) {
      Fail(shown + "the daemon's death is no reason (promise 7)");
      return;
    }
    const bool stored = InStorage(key) != nullptr;
    if (mirror_.pinned.contains(key) && complete_.contains(key) && KnownToBeHad(key))
      return Fail(shown + "it is pinned");
    if (complete_.contains(key)) {
      const std::optional<CheckpointKey> latest = LatestNow(key.job);
      if (!latest || !(*latest == key)) continue;
      if (!stored) return Fail(shown + "it is the newest, and nowhere else");
      for (const auto& [session, begun] : mirror_.sessions) {
        if (begun.job == key.job && begun.writer >= 0)
          return Fail(shown + "it is a live job's newest");
      }
      continue;
    }
    // Part of an incomplete one.
    const auto& attempts = mirror_.attempts[key.job];
    bool left_behind = !attempts.empty() && attempts.rbegin()->first > key.attempt;
    for (const auto& [other, world] : complete_) {
      left_behind |= other.job == key.job && other.attempt == key.attempt && key < other;
    }
    if (!left_behind) return Fail(shown + "it may still be completed by its other writers");
  }
}

void World::CheckPersisted() {
  for (const auto& [key, digest] : mirror_.persisted) {
    if (!StoredOrReplaced(key)) {
      return Fail(absl::StrCat("promise 1: ", key.DebugString(),
                               " was acknowledged PERSISTED and is not in storage"));
    }
    const Stored* stored = InStorage(key);
    if (stored != nullptr && CheckpointDigest(stored->checkpoint.digests) != digest) {
      return Fail(
          absl::StrCat("promise 1: ", key.DebugString(), " stands in storage with other content"));
    }
  }
}

// What a reader still sees stays what it opened (R14).
void World::CheckHolds() {
  for (const Process& process : processes_) {
    for (const auto& [lease, hold] : process.leases) {
      if (hold.slab == 0) continue;
      const auto slab = slabs_.find(hold.slab);
      if (slab == slabs_.end() || !slab->second.locks.contains(lease)) continue;
      if (const std::string wrong = WrongBytes(hold.extent, {hold.length, hold.content});
          !wrong.empty()) {
        return Fail(absl::StrCat("promise 6: process ", process.id, " reads through lease ", lease,
                                 ": ", wrong));
      }
    }
  }
}

void World::CheckAttempt(const fact::AttemptBegun& begun, const Event* event) {
  if (event == nullptr) return;
  const bool known = mirror_.attempts[begun.job].contains(begun.attempt);
  Step first = kNoStep;
  if (const auto* create = std::get_if<event::Create>(event)) first = create->part.checkpoint.step;
  if (const auto* commit = std::get_if<event::Commit>(event)) first = commit->part.checkpoint.step;
  if (known || first == kNoStep) return;
  const auto resumed = mirror_.resumes.find({begun.job, begun.attempt});
  const Step wanted =
      resumed != mirror_.resumes.end() ? resumed->second : ComesFrom(Lines(begun.job), first);
  if (begun.comes_from != wanted) {
    Fail(absl::StrCat("promise 3: attempt ", begun.attempt, " of ", begun.job, " comes from ",
                      begun.comes_from, ", the line says ", wanted));
  }
}

void World::CheckNothingUses(SlabId slab, const char* what) {
  for (const auto& [due, pending] : pending_) {
    bool uses = false;
    switch (pending.kind) {
      case PendingKind::kManifest:
        uses = pending.manifest.extent.slab == slab;
        break;
      case PendingKind::kVerify:
        uses = pending.verify.extent.slab == slab;
        break;
      case PendingKind::kPersist:
        for (const auto& part : pending.persist->parts) {
          for (const auto& object : part.objects) uses |= object.extent.slab == slab;
        }
        break;
      default:
        break;
    }
    if (uses)
      return Fail(absl::StrCat("pin: slab ", slab, " is ", what, " while an action uses it"));
  }
}

void World::CheckGrant(const Process& process, const reply::Create& create) {
  for (const reply::GrantedExtent& extent : create.extents) {
    const auto at = slabs_.find(extent.slab);
    if (at == slabs_.end() || making_.contains(extent.slab)) {
      return Fail(absl::StrCat("slab ", extent.slab, " is lent, but it is not there"));
    }
    WorldSlab& slab = at->second;
    if (extent.offset + extent.length > slab.bytes || slab.bytes != extent.slab_bytes) {
      return Fail(absl::StrCat("an extent of slab ", extent.slab, " is beyond its end"));
    }
    const std::pair<uint32_t, std::string> owner{process.uid, jobs_[process.job].name};
    if (slab.owner && *slab.owner != owner) {
      return Fail(absl::StrCat("promise 6: slab ", extent.slab, " of uid ", slab.owner->first,
                               " job ", slab.owner->second, " is lent to uid ", owner.first,
                               " job ", owner.second));
    }
    slab.owner = owner;
    if (!slab.locks.empty() || !slab.by_path.empty()) {
      return Fail(absl::StrCat("promise 6: slab ", extent.slab,
                               " is lent for writing while a reader still sees it"));
    }
    for (int holder : slab.maps) {
      if (holder != process.id) {
        return Fail(absl::StrCat("promise 6: slab ", extent.slab, " is lent for writing while ",
                                 holder, " still maps it"));
      }
    }
    const auto fact = mirror_.slabs.find(extent.slab);
    if (fact == mirror_.slabs.end() || fact->second.use != fact::SlabUse::kObjects) {
      return Fail(
          absl::StrCat("slab ", extent.slab, " is lent for writing, the journal does not say so"));
    }
    CheckNothingUses(extent.slab, "lent");
  }
}

void World::CheckLatest(const std::string& job, const StatusOr<reply::Body>& body) {
  const std::optional<CheckpointKey> wanted = LatestNow(job);
  if (!body.ok()) {
    if (wanted && !absl::IsPermissionDenied(body.status()) && !absl::IsUnavailable(body.status()) &&
        !absl::IsResourceExhausted(body.status())) {
      Fail(absl::StrCat("promise 3: latest of ", job, " is ", wanted->DebugString(),
                        ", the answer was ", body.status().ToString()));
    }
    return;
  }
  const auto& latest = std::get<reply::Latest>(*body);
  Count("latest");
  const auto before = latest_before_.find(job);
  if (before != latest_before_.end() && before->second && *before->second == latest.key) return;
  if (!wanted || !(*wanted == latest.key)) {
    return Fail(absl::StrCat("promise 3: latest of ", job, " is ",
                             wanted ? wanted->DebugString() : "nothing", ", the answer was ",
                             latest.key.DebugString()));
  }
  if (const std::string wrong = WrongCheckpoint(latest.key);
      !wrong.empty() && !StoredOrReplaced(latest.key)) {
    return Fail("promise 3: latest names what can't be had: " + wrong);
  }
  if (latest.digest != DigestOf(latest.key, latest.world_size) ||
      latest.world_size != complete_[latest.key]) {
    Fail(absl::StrCat("promise 2: latest names ", latest.key.DebugString(),
                      " with another digest or world"));
  }
}

void World::CheckInfo(const CheckpointInfo& info) {
  if (left_now_.contains(info.key)) return;
  if (info.facts.complete && !complete_.contains(info.key)) {
    return Fail(
        absl::StrCat("promise 3: ", info.key.DebugString(), " is shown complete, but never was"));
  }
  if (info.facts.persisted && !StoredOrReplaced(info.key)) {
    return Fail(absl::StrCat("promise 1: ", info.key.DebugString(),
                             " is shown PERSISTED, but is not in storage"));
  }
  // Of one without any objects, memory holds all there is.
  if (info.facts.complete && info.facts.resident && info.objects > 0 && !MemoryHas(info.key)) {
    return Fail(absl::StrCat("promise 3: ", info.key.DebugString(),
                             " is shown resident, but is not in memory"));
  }
  if (info.facts.broken && flips_ == 0 && manifest_flips_ == 0 && !StoredOrReplaced(info.key)) {
    return Fail(absl::StrCat("promise 2: ", info.key.DebugString(),
                             " is shown broken, but no bit ever flipped: ", info.why));
  }
}

// --- clients

int World::NewProcess(int job, Attempt attempt, Writer writer, int32_t world_size) {
  Process process;
  process.id = static_cast<int>(processes_.size());
  process.job = job;
  process.token = absl::StrCat("process-", process.id);
  process.uid = jobs_[job].uid;
  process.takes_fds = !rng_.Permille(150);
  process.attempt = attempt;
  process.writer = writer;
  process.world_size = world_size;
  process.local_writers = std::max(world_size, 1);
  processes_.push_back(std::move(process));
  return processes_.back().id;
}

// A job begins, or begins again: what was before may be dead, or live on as zombies.
void World::NewGroup(int index) {
  WorldJob& job = jobs_[index];
  const bool zombies = rng_.Permille(150);
  for (int id : job.group) {
    if (!zombies && processes_[id].alive) Kill(&processes_[id], rng_.Permille(150));
  }
  if (!job.group.empty()) Count("restarted");
  job.group.clear();
  job.attempt += static_cast<Attempt>(rng_.Between(1, 3));
  for (const auto& [attempt, from] : mirror_.attempts[job.name])
    job.attempt = std::max(job.attempt, attempt + 1);
  if (rng_.Permille(200)) job.world_size = static_cast<int32_t>(rng_.Between(1, 4));
  const std::optional<CheckpointKey> latest = LatestNow(job.name);
  Step from = latest ? latest->step : kNoStep;
  const bool back = from > 0 && rng_.Permille(350);
  if (back) from = static_cast<Step>(rng_.Below(static_cast<uint64_t>(from) + 1)) - 1;
  for (Writer writer = 0; writer < job.world_size; ++writer) {
    const int id = NewProcess(index, job.attempt, writer, job.world_size + (job.elsewhere ? 1 : 0));
    processes_[id].local_writers = job.world_size;
    processes_[id].step = from + 1;
    job.group.push_back(id);
  }
  if (back && rng_.Permille(600)) {
    Process* first = &processes_[job.group[0]];
    SayHello(first);
    if (first->session != 0) {
      event::ResumeFrom resume{{}, job.name, job.attempt, from, now_ + kSecond};
      Count("resumed");
      const MonotonicNanos deadline = resume.deadline;
      Event event = std::move(resume);
      const RequestId request = Ask(first, event, deadline);
      Apply(outstanding_.at(request).event);
    }
  }
}

RequestId World::Ask(Process* process, Event event, MonotonicNanos deadline, bool scripted) {
  const RequestId request = next_request_++;
  std::visit(
      [&](auto& e) {
        if constexpr (requires { e.caller.request; }) {
          e.caller = {request, process->session, process->uid, process->uid};
        }
        if constexpr (std::is_same_v<std::decay_t<decltype(e)>, event::Hello>) e.caller.session = 0;
      },
      event);
  outstanding_[request] = {process->id,        deadline,         now_,
                           result_.events + 1, std::move(event), scripted};
  return request;
}

// A call of the save under way: kept until its answer has come, so that it can be repeated.
void World::Send(Process* process, Event event, MonotonicNanos deadline) {
  process->under_way = event;
  process->request = Ask(process, std::move(event), deadline);
  const Event sent = outstanding_.at(process->request).event;
  Apply(sent);
}

void World::AskAgain(Process* process) {
  if (++process->repeats > 6) {
    process->under_way.reset();
    return AbandonStep(process);
  }
  Count("repeated");
  Event event = *process->under_way;
  MonotonicNanos deadline = now_ + kPatience;
  if (auto* create = std::get_if<event::Create>(&event)) {
    deadline = create->deadline =
        now_ + static_cast<MonotonicNanos>(rng_.Between(1, 20'000)) * kMilli;
  }
  Send(process, std::move(event), deadline);
}

void World::SayHello(Process* process) {
  event::Hello hello;
  hello.secret = absl::StrCat("secret-", next_request_);
  hello.pid = 100 + process->id;
  hello.process = process->token;
  // Who only reads may be in no job; some are.
  const bool in_none = process->writer < 0 && process->id % 3 == 0;
  if (!in_none) hello.job = jobs_[process->job].name;
  hello.attempt = process->attempt;
  hello.writer = process->writer;
  hello.world_size = process->world_size;
  hello.local_writers = std::max(process->local_writers, 1);
  hello.takes_fds = process->takes_fds;
  const RequestId request = Ask(process, hello, now_ + kSecond);
  const Event sent = outstanding_.at(request).event;
  Apply(sent);
}

void World::Unmap(Process* process, const std::vector<SlabId>& slabs, bool tell) {
  for (SlabId id : slabs) {
    if (process->maps.erase(id) == 0) continue;
    const auto slab = slabs_.find(id);
    if (slab != slabs_.end()) {
      slab->second.maps.erase(process->id);
      if (!ending_ && rng_.Permille(60)) {
        slab->second.maps.insert(Ghost());  // a duplicate somewhere keeps it
        Count("stale mapping");
      }
    }
    if (tell) process->unmapped.push_back(id);
  }
}

void World::SessionOver(Process* process) {
  process->session = 0;
  process->request = 0;
  // A commit without an answer may be repeated in the next session.
  if (process->alive && process->under_way && kIs<event::Commit>(*process->under_way) &&
      rng_.Permille(500)) {
    Count("commit taken to a new session");
  } else {
    process->phase = Process::Phase::kIdle;
    process->under_way.reset();
  }
  process->objects.clear();
  process->creates.clear();
  process->granted.clear();
  process->unmapped.clear();
  const std::vector<SlabId> maps(process->maps.begin(), process->maps.end());
  Unmap(process, maps, /*tell=*/false);
  for (const auto& [lease, hold] : process->leases) {
    const auto slab = slabs_.find(hold.slab);
    if (slab == slabs_.end() || !slab->second.locks.contains(lease)) continue;
    if (!ending_ && rng_.Permille(200)) {
      slab->second.locks[lease] = Ghost();  // a forked child keeps the mapping
      Count("stale reader");
    } else {
      slab->second.locks.erase(lease);
      if (slab->second.by_path.erase(process->id) > 0 && !ending_ && rng_.Permille(300)) {
        slab->second.by_path.insert(Ghost());
      }
    }
  }
  std::erase_if(process->leases, [&](const auto& entry) {
    const auto slab = slabs_.find(entry.second.slab);
    return slab == slabs_.end() || !slab->second.locks.contains(entry.first);
  });
}

void World::Kill(Process* process, bool lingers) {
  if (!process->alive) return;
  Count(process->phase == Process::Phase::kIdle ? "death" : "death while saving");
  Note([&] { return absl::StrCat("process ", process->id, " dies"); });
  const SessionId session = process->session;
  process->alive = false;
  SessionOver(process);
  // What it had mapped goes with it, unless it takes its time to go.
  for (auto& [id, slab] : slabs_) {
    if (slab.maps.erase(process->id) > 0 && lingers) slab.maps.insert(Ghost());
    slab.by_path.erase(process->id);
  }
  if (session == 0) return;
  Pending pending;
  pending.kind = PendingKind::kSessionGone;
  pending.session = session;
  Post(Soon(), std::move(pending));
}

void World::BeginStep(Process* process) {
  const WorldJob& job = jobs_[process->job];
  const Revision revision = process->entered[process->step]++;
  process->part = {{job.name, process->step, process->attempt, revision}, process->writer};
  process->objects.clear();
  process->creates.clear();
  process->granted.clear();
  process->repeats = 0;
  if (rng_.Permille(30)) return SendCommit(process);  // nothing to save
  const uint64_t share = job.step_bytes / static_cast<uint64_t>(job.world_size);
  std::vector<event::ObjectSpec> specs;
  for (int i = 0; i < job.objects; ++i) {
    event::ObjectSpec spec;
    spec.name = absl::StrCat("w", process->writer, "/o", i);
    spec.kind = ObjectKind::kTorch;
    spec.can_pad = job.can_pad;
    const uint64_t usual = i < job.large ? share * 3 / 4 / static_cast<uint64_t>(job.large)
                                         : share / 4 / static_cast<uint64_t>(job.objects);
    spec.length = rng_.Permille(40) ? 0 : usual * rng_.Between(92, 104) / 100;
    specs.push_back(std::move(spec));
  }
  if (specs.size() > 1 && rng_.Permille(200)) {
    process->creates.push_back({specs.front()});
    specs.erase(specs.begin());
  }
  process->creates.push_back(std::move(specs));
  GoOnSaving(process);
}

void World::GoOnSaving(Process* process) {
  if (!process->creates.empty()) {
    event::Create create;
    create.call = process->next_call++;
    create.part = process->part;
    create.world_size = process->world_size;
    create.objects = process->creates.front();
    create.deadline =
        now_ +
        static_cast<MonotonicNanos>(rng_.Pick<uint64_t>({1, 50, 1000, 5000, 30'000})) * kMilli;
    create.unmapped = std::exchange(process->unmapped, {});
    process->creates.erase(process->creates.begin());
    process->phase = Process::Phase::kCreating;
    const MonotonicNanos deadline = create.deadline;
    return Send(process, std::move(create), deadline);
  }
  process->phase = Process::Phase::kGranted;
  bool written = true;
  std::vector<Event> chunks;
  for (auto& [name, object] : process->objects) {
    if (object.written) continue;
    object.length = object.spec.length;
    if (object.spec.can_pad && rng_.Permille(500)) object.length = object.extent.length;
    object.content = next_content_++;
    if (process->takes_fds) {
      if (!process->maps.contains(object.extent.slab)) {
        // It was told to unmap what its step had lost when the step was refused for all its
        // writers.
        const auto known = mirror_.objects.find(process->part);
        if (known == mirror_.objects.end() || !known->second.contains(name)) {
          return AbandonStep(process);
        }
        return Fail(absl::StrCat("process ", process->id, " was granted slab ", object.extent.slab,
                                 ", but never got its description"));
      }
      slabs_.at(object.extent.slab)
          .Write(object.extent.offset, Region{object.length, object.content, kNoTime, ""});
      object.written = true;
    } else {
      written = false;
      chunks.push_back(event::LocateChunk{{}, object.extent.lease, 0, object.length, true});
    }
  }
  for (Event& chunk : chunks) {
    const RequestId request = Ask(process, std::move(chunk), now_ + kSecond);
    const Event sent = outstanding_.at(request).event;
    Apply(sent);
    if (!ok() || process->session == 0) return;
  }
  if (!written) return;  // next time
  if (rng_.Permille(60)) {
    Count("aborted");
    return AbandonStep(process);
  }
  if (rng_.Permille(150)) {
    event::SealObjects seal;
    seal.call = process->next_call++;
    seal.part = process->part;
    const bool all = rng_.Permille(500);
    for (auto& [name, object] : process->objects) {
      if (object.sealed || (!all && rng_.Permille(500))) continue;
      seal.seals.push_back(
          {name, object.length, CrcsOf(object.content, object.length), {{0, object.length}}});
    }
    if (!seal.seals.empty()) {
      process->phase = Process::Phase::kCreating;
      return Send(process, std::move(seal), now_ + kPatience);
    }
  }
  SendCommit(process);
}

void World::SendCommit(Process* process) {
  event::Commit commit;
  commit.call = process->next_call++;
  commit.part = process->part;
  commit.world_size = process->world_size;
  commit.unmapped = std::exchange(process->unmapped, {});
  commit.unix_ms = now_ / kMilli;
  PartPromise promise;
  promise.world_size = process->world_size;
  // What was sealed before may be sealed once more, or left out: then neither the commit nor any
  // repeat of it names those objects.
  const bool once_more = rng_.Permille(500);
  for (auto& [name, object] : process->objects) {
    promise.objects[name] = {object.length, object.content};
    if (object.sealed && !once_more) continue;
    commit.seals.push_back(
        {name, object.length, CrcsOf(object.content, object.length), {{0, object.length}}});
  }
  if (commit.seals.empty() && !promise.objects.empty()) Count("commit without seals");
  PartPromise& known = promises_[process->part];
  if (!known.committed) known = std::move(promise);
  process->phase = Process::Phase::kCommitting;
  Send(process, std::move(commit), now_ + kPatience);
}

void World::AbandonStep(Process* process) {
  process->phase = Process::Phase::kIdle;
  process->under_way.reset();
  process->request = 0;
  process->objects.clear();
  process->creates.clear();
  ++process->step;
  if (process->session == 0) return;
  const RequestId request = Ask(process, event::Abort{{}, process->part}, now_ + kSecond);
  const Event sent = outstanding_.at(request).event;
  Apply(sent);
}

void World::DoWriter(Process* process) {
  if (!process->alive || process->gone_from_group) return;
  if (process->session == 0) return SayHello(process);
  if (process->under_way) {
    if (process->request == 0) AskAgain(process);
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

CheckpointRef World::SomeRef(const WorldJob& job) {
  CheckpointRef ref;
  ref.job = job.name;
  if (rng_.Permille(400)) return ref;
  std::vector<CheckpointKey> keys;
  for (const auto& [key, world] : complete_) {
    if (key.job == job.name) keys.push_back(key);
  }
  if (keys.empty()) {
    ref.step = static_cast<Step>(rng_.Below(3));
    return ref;
  }
  const CheckpointKey& key = keys[rng_.Permille(600) ? keys.size() - 1 : rng_.Below(keys.size())];
  ref.step = key.step;
  if (rng_.Permille(300)) ref.attempt = key.attempt;
  if (ref.attempt != 0 && rng_.Permille(300)) ref.revision = key.revision;
  return ref;
}

std::string World::SomeName(const CheckpointRef& ref) {
  std::vector<std::string> names;
  for (const auto& [part, promise] : promises_) {
    if (part.checkpoint.job != ref.job) continue;
    if (ref.step != kNoStep && part.checkpoint.step != ref.step) continue;
    for (const auto& [name, object] : promise.objects) names.push_back(name);
  }
  return names.empty() || rng_.Permille(20) ? "nothing" : rng_.Pick(names);
}

void World::DoReader(Process* process) {
  if (!process->alive) return;
  if (process->session == 0) return SayHello(process);
  const WorldJob& job =
      jobs_[rng_.Permille(900) ? static_cast<uint64_t>(process->job) : rng_.Below(jobs_.size())];
  const CheckpointRef ref = SomeRef(job);
  const MonotonicNanos deadline =
      now_ + static_cast<MonotonicNanos>(rng_.Pick<uint64_t>({1, 20, 500, 3000, 20'000})) * kMilli;
  MonotonicNanos limit = deadline;
  Event event;
  const uint64_t what = rng_.Below(100);
  if (what < 30) {
    event = event::Open{{},
                        ref,
                        SomeName(ref),
                        rng_.Pick<OpenMode>({OpenMode::kMap, OpenMode::kFile, OpenMode::kRead}),
                        rng_.Permille(300),
                        deadline};
  } else if (what < 48 && !process->leases.empty()) {
    // Done with some; its mapping may last a little longer than its word.
    event::Release release;
    for (const auto& [lease, hold] : process->leases) {
      if (rng_.Permille(400)) continue;
      release.leases.push_back(lease);
    }
    for (LeaseId lease : release.leases) {
      const auto slab = slabs_.find(process->leases.at(lease).slab);
      if (slab != slabs_.end() && slab->second.locks.contains(lease)) {
        if (rng_.Permille(250)) {
          slab->second.locks[lease] = Ghost();
          Count("stale reader");
        } else {
          slab->second.locks.erase(lease);
        }
      }
      process->leases.erase(lease);
    }
    limit = now_ + kSecond;
    event = std::move(release);
  } else if (what < 52 && !process->leases.empty()) {
    event = event::Renew{{}, {process->leases.begin()->first}};
    limit = now_ + kSecond;
  } else if (what < 56 && !process->takes_fds && !process->leases.empty()) {
    const auto& [lease, hold] = *process->leases.begin();
    event = event::LocateChunk{{}, lease, 0, hold.length, false};
    limit = now_ + kSecond;
  } else if (what < 68) {
    event = event::Latest{{}, job.name, deadline};
  } else if (what < 76) {
    event = event::Wait{
        {},
        ref,
        rng_.Permille(600) ? Level::kPersisted : Level::kCached,
        ref.step == kNoStep && rng_.Permille(300) ? static_cast<Step>(rng_.Below(8)) : -1,
        deadline};
  } else if (what < 80) {
    event = event::StatCheckpoint{{}, ref, deadline};
  } else if (what < 82) {
    event = event::StatObject{{}, ref, SomeName(ref), deadline};
  } else if (what < 85) {
    event = event::List{{},
                        rng_.Permille(700) ? job.name : absl::StrCat(job.name, "/latest"),
                        "",
                        static_cast<int32_t>(rng_.Between(1, 20)),
                        deadline};
  } else if (what < 89) {
    event = event::PersistNow{{}, ref};
    limit = now_ + kPatience;
  } else if (what < 92) {
    event = event::Remove{{}, ref, rng_.Permille(300), rng_.Permille(600), deadline};
  } else if (what < 95) {
    event = event::Pin{{}, ref, rng_.Permille(400)};
    limit = now_ + kPatience;
  } else if (what < 97) {
    JobPolicy policy;
    policy.mode =
        rng_.Pick<PersistMode>({PersistMode::kOnDemand, PersistMode::kEvery, PersistMode::kNewest});
    policy.every = static_cast<int64_t>(rng_.Between(1, 2));
    if (rng_.Permille(300)) policy.keep_last = 2;
    event = event::SetPolicy{{}, job.name, policy};
    limit = now_ + kPatience;
  } else if (what < 98) {
    event = event::ChooseAttempt{{}, job.name, deadline, now_ / kMilli};
  } else {
    event = event::Status{};
    limit = now_ + kSecond;
  }
  const RequestId request = Ask(process, std::move(event), limit);
  const Event sent = outstanding_.at(request).event;
  Apply(sent);
}

void World::DoFault() {
  const uint64_t what = rng_.Below(100);
  std::vector<int> alive;
  for (const Process& process : processes_) {
    if (process.alive) alive.push_back(process.id);
  }
  if (what < 14 && crashes_left_ > 0) {
    --crashes_left_;
    crash_now_ = true;  // at the next Apply, whatever it is
  } else if (what < 26 && !alive.empty()) {
    Kill(&processes_[rng_.Pick(alive)], rng_.Permille(300));
  } else if (what < 34) {
    NewGroup(static_cast<int>(rng_.Below(jobs_.size())));
  } else if (what < 50) {
    // What was kept by a child or a duplicate goes at last.
    for (auto& [id, slab] : slabs_) {
      if (rng_.Permille(400)) continue;
      std::erase_if(slab.maps, [](int holder) { return holder < 0; });
      std::erase_if(slab.locks, [](const auto& lock) { return lock.second < 0; });
      std::erase_if(slab.by_path, [](int holder) { return holder < 0; });
    }
  } else if (what < 56) {
    std::vector<ExtentRef> sealed;
    for (const auto& [part, objects] : mirror_.objects) {
      const PartPromise* promise = Promise(part);
      if (promise == nullptr || !promise->committed) continue;
      for (const auto& [name, object] : objects) {
        if (RegionAt(object.extent) != nullptr) sealed.push_back(object.extent);
      }
    }
    if (sealed.empty()) return;
    const ExtentRef extent = rng_.Pick(sealed);
    Region& region = slabs_.at(extent.slab).regions.at(extent.offset);
    if (lie_ == Lie::kScribble) {
      region.content = next_content_++;
    } else if (region.flipped == kNoTime) {
      region.flipped = now_;
      ++flips_;
      Count("bit flip");
      Note([&] { return absl::StrCat("a bit flips in slab ", extent.slab, "+", extent.offset); });
    }
  } else if (what < 57) {
    std::vector<ExtentRef> written;
    for (const auto& [key, writers] : mirror_.manifests) {
      for (const auto& [writer, committed] : writers) written.push_back(committed.extent);
    }
    if (written.empty()) return;
    const ExtentRef extent = rng_.Pick(written);
    if (RegionAt(extent) == nullptr) return;
    slabs_.at(extent.slab).regions.at(extent.offset).flipped = now_;
    ++manifest_flips_;
    Count("bit flip in a manifest");
  } else if (what < 70) {
    storage_fails_ = rng_.Permille(300);
    storage_away_ = rng_.Permille(120);
    storage_slow_ = rng_.Permille(250);
    Note([&] {
      return absl::StrCat("storage fails=", storage_fails_, " away=", storage_away_,
                          " slow=", storage_slow_);
    });
    if (storage_fails_) Count("storage fails");
    if (storage_away_) Count("storage away");
    if (storage_slow_) Count("storage slow");
  } else if (what < 74) {
    journal_full_ = !journal_full_ && rng_.Permille(700);
    if (journal_full_) Count("journal full");
    Apply(event::JournalFull{journal_full_});
  } else if (what < 82) {
    AdvanceTo(now_ + static_cast<MonotonicNanos>(rng_.Between(1, 40)) * kSecond);
  } else if (what < 90) {
    Compact();
  } else if (what < 94) {
    CompareSnapshot();
  } else if (!alive.empty()) {
    Process& process = processes_[rng_.Pick(alive)];
    if (process.session == 0) return;
    const SessionId session = process.session;
    Count("goodbye");
    Apply(event::SessionEnded{session});
  }
}

void World::DoSomething() {
  const uint64_t what = rng_.Below(1000);
  if (what < 480) {
    const int index = static_cast<int>(rng_.Below(jobs_.size()));
    WorldJob& job = jobs_[index];
    std::vector<int> alive;
    for (int id : job.group) {
      if (processes_[id].alive && !processes_[id].gone_from_group) alive.push_back(id);
    }
    if (alive.empty()) return NewGroup(index);
    int chosen = rng_.Pick(alive);
    if (rng_.Permille(800)) {
      // Usually nobody is far ahead.
      for (int id : alive) {
        if (processes_[id].step < processes_[chosen].step) chosen = id;
      }
    }
    if (rng_.Permille(40)) {
      for (const Process& zombie : processes_) {
        if (zombie.alive && zombie.writer >= 0 && zombie.attempt < job.attempt &&
            zombie.job == index)
          chosen = zombie.id;
      }
    }
    return DoWriter(&processes_[chosen]);
  }
  if (what < 660) {
    std::vector<int> readers;
    for (const Process& process : processes_) {
      if (process.alive && process.writer < 0) readers.push_back(process.id);
    }
    if (readers.size() < 2) {
      const int id = NewProcess(static_cast<int>(rng_.Below(jobs_.size())), 0, -1, 0);
      if (rng_.Permille(100)) processes_[id].uid = 2000;  // not the owner
      readers.push_back(id);
    }
    return DoReader(&processes_[rng_.Pick(readers)]);
  }
  if (what < 940) {
    DeliverNext(now_ + kSecond);
    return;
  }
  DoFault();
}

// --- answers

void World::OnReply(action::Reply reply) {
  const auto at = outstanding_.find(reply.request);
  if (at == outstanding_.end()) {
    return Fail(absl::StrCat("promise 4: request ", reply.request,
                             " is answered twice, or was never asked"));
  }
  const Outstanding asked = std::move(at->second);
  outstanding_.erase(at);
  Process* process = asked.process >= 0 ? &processes_[asked.process] : nullptr;
  if (!reply.body.ok()) {
    const Status& status = reply.body.status();
    const bool manifest = kIs<event::Commit>(asked.event);
    if (absl::IsInternal(status) || absl::IsUnknown(status)) {
      return Fail(absl::StrCat(Name(asked.event), " is answered ", status.ToString()));
    }
    if (absl::IsDataLoss(status) && flips_ == 0 && manifest_flips_ == 0 && !manifest &&
        lie_ != Lie::kScribble) {
      return Fail(absl::StrCat("promise 2: ", Name(asked.event), " is answered ", status.ToString(),
                               ", but no bit ever flipped"));
    }
  }
  if (asked.scripted && !kIs<event::Create>(asked.event)) {
    scripted_ = std::move(reply.body);
    return;
  }
  OnAnswer(process, asked, &reply.body, reply.superseded_by);
}

// Hands out the descriptions that came before an answer; false when one never left.
bool World::LendAll(Process* process, const std::vector<Lend>& lends) {
  bool failed = false;
  for (const Lend& lend : lends) {
    failed |= !process->alive || (!ending_ && rng_.Permille(15));
    if (failed) {
      Count("description not lent");
      todo_.push_back(event::LendFailed{lend.lease});
      continue;
    }
    WorldSlab& slab = slabs_.at(lend.slab);
    const auto fact = mirror_.leases.find(lend.lease);
    if (fact == mirror_.leases.end() || fact->second.slab != lend.slab) {
      Fail(absl::StrCat("lease ", lend.lease, " is lent, the journal does not say so"));
      return false;
    }
    slab.maps.insert(process->id);
    process->maps.insert(lend.slab);
    std::erase(process->unmapped, lend.slab);
  }
  return !failed;
}

void World::OnAnswer(Process* process, const Outstanding& asked, StatusOr<reply::Body>* body,
                     Attempt superseded) {
  const bool was_saving = process != nullptr && !kIs<event::Hello>(asked.event) &&
                          process->under_way.has_value() && process->request != 0 &&
                          std::visit(
                              [&](const auto& e) {
                                if constexpr (requires { e.caller.request; })
                                  return e.caller.request == process->request;
                                return false;
                              },
                              asked.event);
  const bool lost = !ending_ && rng_.Permille(40);
  if (lost) Count("answer lost");
  // Those who are not the owner learn nothing (promise 6).
  if (body->ok() && process->uid == 2000 && !kIs<event::Hello>(asked.event)) {
    const std::string job = std::visit(
        [](const auto& e) -> std::string {
          if constexpr (requires { e.ref.job; }) return e.ref.job;
          if constexpr (requires { e.job.size(); }) return e.job;
          return "";
        },
        asked.event);
    if (!job.empty() && mirror_.jobs.contains(job) && !owned_now_.contains(job)) {
      return Fail(
          absl::StrCat("promise 6: uid 2000 is answered ", Name(asked.event), " of job ", job));
    }
  }
  if (kIs<event::Hello>(asked.event)) return OnHello(process, *body, lost);
  if (const auto* open = std::get_if<event::Open>(&asked.event))
    return OnOpen(process, *open, asked, *body, lost);
  if (const auto* latest = std::get_if<event::Latest>(&asked.event))
    return CheckLatest(latest->job, *body);
  if (const auto* wait = std::get_if<event::Wait>(&asked.event)) {
    if (!body->ok()) return;
    const auto& info = std::get<CheckpointInfo>(**body);
    Count(wait->level == Level::kPersisted ? "waited for PERSISTED" : "waited for CACHED");
    if (wait->level == Level::kPersisted && !StoredOrReplaced(info.key)) {
      return Fail(absl::StrCat("promise 1: ", info.key.DebugString(),
                               " was waited for until PERSISTED, but is not in "
                               "storage"));
    }
    if (wait->after >= 0 && wait->ref.step == kNoStep && info.key.step <= wait->after) {
      return Fail(absl::StrCat("wait: step ", info.key.step, " is not after ", wait->after));
    }
    return CheckInfo(info);
  }
  if (kIs<event::StatCheckpoint>(asked.event)) {
    if (body->ok()) CheckInfo(std::get<CheckpointInfo>(**body));
    return;
  }
  if (kIs<event::List>(asked.event)) {
    if (!body->ok()) return;
    for (const CheckpointInfo& info : std::get<reply::List>(**body).checkpoints) CheckInfo(info);
    return;
  }
  if (kIs<event::Status>(asked.event)) {
    if (!body->ok()) return;
    for (const reply::JobStatus& job : std::get<reply::Status>(**body).jobs) {
      if (job.job.empty()) return Fail("status shows a job without a name");
    }
    return;
  }
  if (const auto* choose = std::get_if<event::ChooseAttempt>(&asked.event)) {
    if (!body->ok()) return;
    const Attempt chosen = std::get<reply::Attempt>(**body).attempt;
    const auto& attempts = mirror_.attempts[choose->job];
    if (!attempts.empty() && chosen <= attempts.rbegin()->first) {
      return Fail(absl::StrCat("attempt ", chosen, " of ", choose->job, " is chosen, though ",
                               attempts.rbegin()->first, " has begun"));
    }
    return;
  }
  if (const auto* chunk = std::get_if<event::LocateChunk>(&asked.event)) {
    if (!body->ok()) return;
    const auto& place = std::get<reply::Chunk>(**body);
    if (chunk->write) {
      for (auto& [name, object] : process->objects) {
        if (object.extent.lease != chunk->lease || object.written) continue;
        if (place.extent.slab != object.extent.slab || place.offset != object.extent.offset) {
          return Fail(
              absl::StrCat("a chunk of lease ", chunk->lease, " is not where it was granted"));
        }
        slabs_.at(place.extent.slab)
            .Write(place.offset, Region{object.length, object.content, kNoTime, ""});
        object.written = true;
        Count("chunk written");
      }
      return;
    }
    const auto lease = process->leases.find(chunk->lease);
    if (lease == process->leases.end()) return;
    if (const std::string wrong =
            WrongBytes(place.extent, {lease->second.length, lease->second.content});
        !wrong.empty()) {
      Fail(absl::StrCat("promise 2: a chunk read through lease ", chunk->lease, ": ", wrong));
    }
    Count("chunk read");
    return;
  }
  if (const auto* resume = std::get_if<event::ResumeFrom>(&asked.event)) {
    if (body->ok()) Count("resumed with success");
    static_cast<void>(resume);
    return;
  }
  if (const auto* create = std::get_if<event::Create>(&asked.event)) {
    if (!asked.scripted && !was_saving && body->ok() && process->session != 0 &&
        process->session == create->caller.session) {
      LendAll(process, std::get<reply::Create>(**body).lend);  // nobody reads the answer any more
    }
    if (asked.scripted || was_saving) OnCreate(process, *create, asked, body, lost);
    if (!asked.scripted && was_saving && ok()) {
      if (!body->ok() && superseded != 0) {
        Count("superseded");
        process->gone_from_group = true;
      }
    }
    return;
  }
  if (const auto* commit = std::get_if<event::Commit>(&asked.event)) {
    if (body->ok()) OnCommit(process, *commit, *body, lost || !was_saving);
    if (!was_saving) return;
    if (body->ok()) return;
    const Status& status = body->status();
    if (absl::IsInvalidArgument(status) || absl::IsOutOfRange(status)) {
      return Fail(absl::StrCat("commit of ", commit->part.DebugString(),
                               ", which is as it should be, is answered ", status.ToString()));
    }
    if (absl::StrContains(status.message(), "dropped with its objects")) {
      Count("commit of what was dropped");
      if (promises_.at(commit->part).objects.empty()) {
        return Fail(absl::StrCat("commit of ", commit->part.DebugString(),
                                 ", which never had any objects, is answered ", status.ToString()));
      }
    }
    process->request = 0;
    if (absl::IsResourceExhausted(status) || absl::IsDataLoss(status) ||
        absl::IsUnavailable(status)) {
      Count("commit to be repeated");
      return;  // and so it is
    }
    process->under_way.reset();
    if (superseded != 0) process->gone_from_group = true;
    process->phase = Process::Phase::kIdle;
    ++process->step;
    return;
  }
  if (const auto* seal = std::get_if<event::SealObjects>(&asked.event)) {
    if (!was_saving) return;
    process->request = 0;
    if (lost) return;
    process->under_way.reset();
    process->phase = Process::Phase::kGranted;
    if (body->ok()) {
      for (const event::Seal& each : seal->seals) {
        const auto object = process->objects.find(each.name);
        if (object != process->objects.end()) object->second.sealed = true;
      }
      return;
    }
    if (absl::IsInvalidArgument(body->status())) {
      return Fail(absl::StrCat("seal of ", seal->part.DebugString(), " is answered ",
                               body->status().ToString()));
    }
    if (superseded != 0) process->gone_from_group = true;
    process->phase = Process::Phase::kIdle;
    ++process->step;
  }
}

void World::OnHello(Process* process, const StatusOr<reply::Body>& body, bool lost) {
  if (!body.ok()) return;
  const SessionId session = std::get<reply::Hello>(*body).session;
  keeper_sessions_[session] = process->id;
  Count("hello");
  if (!lost && process->alive && process->session == 0) {
    process->session = session;
    process->next_call = 1;
    return;
  }
  Pending gone;  // nobody knows of it: its connection closes
  gone.kind = PendingKind::kSessionGone;
  gone.session = session;
  Post(Soon(), std::move(gone));
}

void World::OnCreate(Process* process, const event::Create& event, const Outstanding& asked,
                     StatusOr<reply::Body>* body, bool lost) {
  if (!body->ok()) {
    const Status& status = body->status();
    if (asked.scripted) {
      scripted_ = std::move(*body);
      return;
    }
    process->request = 0;
    process->under_way.reset();
    process->phase = Process::Phase::kIdle;
    process->creates.clear();
    if (absl::IsInvalidArgument(status) || absl::IsDataLoss(status)) {
      return Fail(absl::StrCat("create of ", event.part.DebugString(),
                               ", which is as it should be, is answered ", status.ToString()));
    }
    if (absl::IsResourceExhausted(status)) Count("refused");
    if (!process->unmapped.empty() || !event.unmapped.empty()) {
      // What was told was heard: the engine takes it before it decides.
    }
    if (!absl::IsUnavailable(status)) ++process->step;
    return;
  }
  auto& create = std::get<reply::Create>(**body);
  if (create.extents.empty() && !event.objects.empty()) {
    // Unmap first, then again.
    Count("unmap first");
    if (create.retire.empty()) return Fail("a create is answered with nothing at all");
    Unmap(process, create.retire, /*tell=*/true);
    if (asked.scripted) {
      scripted_ = std::move(*body);
      return;
    }
    process->request = 0;
    auto& again = std::get<event::Create>(*process->under_way);
    again.unmapped = std::exchange(process->unmapped, {});
    return;
  }
  if (create.extents.size() != event.objects.size()) {
    return Fail(absl::StrCat("a create of ", event.objects.size(), " objects is granted ",
                             create.extents.size()));
  }
  if (journal_full_ && !process->granted.contains(event.call) && asked.asked_in == result_.events &&
      process->repeats == 0 && !asked.scripted) {
    return Fail("a full journal refuses create, this one was granted");
  }
  CheckGrant(*process, create);
  if (!ok()) return;
  std::vector<std::tuple<SlabId, uint64_t, uint64_t>> places;
  for (size_t i = 0; i < create.extents.size(); ++i) {
    const reply::GrantedExtent& extent = create.extents[i];
    places.emplace_back(extent.slab, extent.offset, extent.length);
    if (extent.length < event.objects[i].length)
      return Fail("an extent is shorter than what was asked for");
    if (std::find(create.retire.begin(), create.retire.end(), extent.slab) != create.retire.end()) {
      return Fail(absl::StrCat("slab ", extent.slab, " is granted and is to be unmapped"));
    }
  }
  const auto first = process->granted.find(event.call);
  // What was granted before may have been dropped, when the step was refused for all its writers.
  if (first == process->granted.end() || created_now_.contains(event.part)) {
    process->granted[event.call] = places;
  } else {
    Count("create answered again");
    for (size_t i = 0; i < places.size(); ++i) {
      if (std::get<0>(places[i]) != std::get<0>(first->second[i]) ||
          std::get<1>(places[i]) != std::get<1>(first->second[i])) {
        return Fail(absl::StrCat("promise 7: call ", event.call, " of ", event.part.DebugString(),
                                 " is answered again, with other extents"));
      }
    }
  }
  const bool lent = LendAll(process, create.lend);
  if (!ok()) return;
  if (asked.scripted) {
    scripted_ = std::move(*body);
    return;
  }
  if (!process->alive) return;
  if (!lent || lost) {
    process->request = 0;
    return;
  }
  Count("granted");
  for (size_t i = 0; i < create.extents.size(); ++i) {
    Process::Mine& mine = process->objects[event.objects[i].name];
    mine.spec = event.objects[i];
    mine.extent = create.extents[i];
  }
  process->request = 0;
  process->under_way.reset();
  process->repeats = 0;
  process->phase = Process::Phase::kGranted;
  if (!rng_.Permille(150)) Unmap(process, create.retire, /*tell=*/true);
}

void World::OnCommit(Process* process, const event::Commit& event,
                     const StatusOr<reply::Body>& body, bool lost) {
  const auto& commit = std::get<reply::Commit>(*body);
  PartPromise& promise = promises_[event.part];
  Count(promise.acknowledged ? "commit answered again" : "committed");
  if (!promise.committed || promise.digest != commit.digest) {
    return Fail(absl::StrCat("promise 3: the commit of ", event.part.DebugString(),
                             " is acknowledged, but the journal does not have it"));
  }
  promise.acknowledged = true;
  if (commit.complete && !complete_.contains(event.part.checkpoint)) {
    return Fail(absl::StrCat("promise 3: ", event.part.checkpoint.DebugString(),
                             " is called complete, but it lacks "
                             "writers"));
  }
  if (lost) {
    if (process->request != 0 && event.caller.request == process->request) process->request = 0;
    return;
  }
  process->request = 0;
  process->under_way.reset();
  process->phase = Process::Phase::kIdle;
  process->objects.clear();
  // Some steps are entered once more, by all ranks alike.
  const bool again = Mix(options_.seed, Mix(static_cast<uint64_t>(process->step),
                                            static_cast<uint64_t>(process->attempt))) %
                         12 ==
                     0;
  if (!again || event.part.checkpoint.revision > 0) ++process->step;
}

void World::OnOpen(Process* process, const event::Open& event, const Outstanding& asked,
                   const StatusOr<reply::Body>& body, bool lost) {
  if (!body.ok()) return;
  CheckpointKey key;
  ObjectInfo object;
  const auto* memory = std::get_if<reply::Open>(&*body);
  if (memory != nullptr) {
    key = memory->checkpoint;
    object = memory->object;
  } else {
    key = std::get<reply::OpenStored>(*body).checkpoint.key;
    object = std::get<reply::OpenStored>(*body).object;
  }
  const PartPromise* part = Promise({key, object.writer});
  if (part == nullptr || !part->committed || !part->objects.contains(event.name) ||
      object.name != event.name) {
    return Fail(absl::StrCat("promise 3: open of ", key.DebugString(), " ", event.name,
                             ", which nobody committed"));
  }
  if (!complete_.contains(key))
    return Fail(absl::StrCat("promise 3: open of ", key.DebugString(), ", never complete"));
  const ObjectPromise& promise = part->objects.at(event.name);
  if (object.length != promise.length ||
      object.block_crcs != CrcsOf(promise.content, promise.length)) {
    return Fail(absl::StrCat("promise 2: open of ", key.DebugString(), " ", event.name,
                             " with another length or other checksums than were sealed"));
  }
  if (event.ref.step == kNoStep && asked.asked_in == result_.events) {
    const std::optional<CheckpointKey> latest = LatestNow(event.ref.job);
    const auto before = latest_before_.find(event.ref.job);
    const bool was = before != latest_before_.end() && before->second && *before->second == key;
    if (!was && (!latest || !(*latest == key))) {
      return Fail(absl::StrCat("promise 3: open of latest gives ", key.DebugString(),
                               ", latest is ", latest ? latest->DebugString() : "nothing"));
    }
  }
  if (memory == nullptr) {
    Count("opened from storage");
    if (!StoredOrReplaced(key)) {
      Fail(absl::StrCat("promise 3: ", key.DebugString(),
                        " is to be had from storage, but is not there"));
    }
    return;
  }
  Count("opened from memory");
  if (const std::string wrong = WrongBytes(memory->extent, promise); !wrong.empty()) {
    return Fail(
        absl::StrCat("promise 2: open of ", key.DebugString(), " ", event.name, ": ", wrong));
  }
  const Region* region = RegionAt(memory->extent);
  if (promise.length > 0 && region->flipped != kNoTime) {
    if (event.verify) {
      return Fail(absl::StrCat("promise 2: open of ", key.DebugString(), " ", event.name,
                               " was to be verified and hands out a flipped bit"));
    }
    if (region->flipped < incarnation_start_) {
      return Fail(
          absl::StrCat("promise 2: ", key.DebugString(), " ", event.name,
                       " came from a dead daemon and is handed out without being verified"));
    }
  }
  WorldSlab& slab = slabs_.at(memory->lend.slab);
  if (slab.owner && slab.owner->first != process->uid) {
    return Fail(absl::StrCat("promise 6: slab ", memory->lend.slab, " of uid ", slab.owner->first,
                             " is lent to a reader of uid ", process->uid));
  }
  Hold hold{memory->lend.slab, memory->extent, promise.length, promise.content};
  if (!process->takes_fds) {
    if (process->alive && !lost) process->leases[memory->lend.lease] = hold;
    return;
  }
  if (!process->alive || (!ending_ && rng_.Permille(20))) {
    Count("description not lent");
    todo_.push_back(event::LendFailed{memory->lend.lease});
    return;
  }
  const auto fact = mirror_.leases.find(memory->lend.lease);
  if (fact == mirror_.leases.end()) {
    return Fail(
        absl::StrCat("lease ", memory->lend.lease, " is lent, the journal does not say so"));
  }
  // A lost answer leaves its description with the process until it ends or closes it.
  slab.locks[memory->lend.lease] = process->id;
  if (memory->lend.mode == LeaseMode::kFile && rng_.Permille(300)) slab.by_path.insert(Ghost());
  process->leases[memory->lend.lease] = hold;
}

// --- the end

void World::DrainDaemon() {
  Count("drained");
  draining_ = true;
  Apply(event::Drain{now_ + 20 * kSecond});
  if (ok()) AdvanceTo(now_ + 21 * kSecond);
  if (ok() && !drained_)
    return Fail("promise 4: the daemon was asked to stop, and has not by the deadline");
  if (ok()) Crash();
}

// Bytes of slabs that may stay for good: each job's newest that is nowhere else, what is pinned,
// steps that other writers may still complete, and manifests.
uint64_t World::CannotBeEvicted() {
  std::set<CheckpointKey> stays;
  for (const auto& [part, objects] : mirror_.objects) {
    const CheckpointKey& key = part.checkpoint;
    // One that lost a manifest to a flipped bit is no longer complete.
    const bool incomplete = !complete_.contains(key) || (manifest_flips_ > 0 && !MemoryHas(key));
    if (mirror_.pinned.contains(key) || incomplete) stays.insert(key);
    const std::optional<CheckpointKey> latest = LatestNow(key.job);
    if (latest && *latest == key) stays.insert(key);
  }
  std::set<SlabId> slabs;
  for (const auto& [id, slab] : mirror_.slabs) {
    if (slab.use == fact::SlabUse::kManifests) slabs.insert(id);
  }
  for (const auto& [part, objects] : mirror_.objects) {
    if (!stays.contains(part.checkpoint)) continue;
    for (const auto& [name, object] : objects) slabs.insert(object.extent.slab);
  }
  uint64_t bytes = 0;
  for (SlabId id : slabs) {
    if (slabs_.contains(id)) bytes += slabs_.at(id).bytes;
  }
  return bytes;
}

StatusOr<reply::Body> World::AskAndWait(Process* process, Event event, MonotonicNanos deadline) {
  scripted_.reset();
  const RequestId request = Ask(process, std::move(event), deadline, /*scripted=*/true);
  const Event sent = outstanding_.at(request).event;
  Apply(sent);
  for (int i = 0; i < 5000 && ok() && !scripted_; ++i) {
    if (!DeliverNext(deadline + kSecond)) break;
  }
  if (!scripted_) {
    if (ok()) Fail(absl::StrCat("promise 4: ", Name(sent), " is never answered"));
    return absl::UnknownError("no answer");
  }
  return *scripted_;
}

// When everybody is dead and nobody sees anything, all that was held comes back, and a job that
// fits twice can save.
void World::Liveness() {
  ending_ = true;
  crash_now_ = false;
  storage_fails_ = storage_away_ = storage_slow_ = false;
  for (Process& process : processes_) Kill(&process, false);
  for (auto& [id, slab] : slabs_) {
    slab.maps.clear();
    slab.locks.clear();
    slab.by_path.clear();
  }
  if (journal_full_) Apply(event::JournalFull{false});
  journal_full_ = false;
  if (ok() && !pending_.empty() && pending_.rbegin()->first == kNoTime) Crash();
  if (ok() && rng_.Permille(200)) DrainDaemon();
  if (!ok() || !AdvanceTo(now_ + 240 * kSecond)) return;
  if (!outstanding_.empty())
    return Fail("promise 4: callers are left waiting when everybody is dead");

  jobs_.push_back({});
  jobs_.back().name = "end";
  jobs_.back().uid = 3000;
  Process& last = processes_[NewProcess(static_cast<int>(jobs_.size()) - 1, 1, 0, 1)];
  last.takes_fds = true;
  SayHello(&last);
  if (!ok() || last.session == 0) return Fail("promise 4: nobody can say hello at the end");
  StatusOr<reply::Body> answer = AskAndWait(&last, event::Status{}, now_ + kSecond);
  if (!ok()) return;
  const auto& status = std::get<reply::Status>(*answer);
  if (status.quarantined_bytes != 0 || status.writing_bytes != 0) {
    return Fail(absl::StrCat("promise 8: nobody lives, yet ", status.quarantined_bytes,
                             " bytes are quarantined and ", status.writing_bytes,
                             " are being written"));
  }
  const uint64_t manifest_slab =
      std::clamp(engine_options_.budget_bytes / 64, kPageBytes, uint64_t{256} << 10);
  const uint64_t fixed = CannotBeEvicted() + 4 * manifest_slab;
  if (engine_options_.budget_bytes <= fixed + 64 * kPageBytes)
    return Count("no room for the last job");
  // What of one step's slab is slack: a sixteenth where it is large; a small one may get a slab of
  // twice its size.
  const uint64_t half = (engine_options_.budget_bytes - fixed) / 2;
  uint64_t size = half * 16 / 17 / kPageBytes * kPageBytes - kPageBytes;
  if (size < (uint64_t{1} << 20)) {
    size = (half - 16 * kPageBytes) / 2 / kPageBytes * kPageBytes;
  }
  for (const auto& [id, slab] : slabs_) {
    Note([&] {
      std::string users;
      for (const auto& [part, objects] : mirror_.objects) {
        for (const auto& [name, object] : objects) {
          if (object.extent.slab != id) continue;
          absl::StrAppend(&users, " ", part.DebugString(), " ", name);
        }
      }
      return absl::StrCat("at the end slab ", id, " of ", slab.bytes, ":", users);
    });
  }
  Count("liveness");
  for (Step step = 0; step < 3; ++step) {
    event::Create create;
    create.call = last.next_call++;
    create.part = {{"end", step, 1, 0}, 0};
    create.world_size = 1;
    create.objects = {{"all", size, ObjectKind::kRaw, false}};
    for (int tries = 0;; ++tries) {
      create.deadline = now_ + 30 * kSecond;
      create.unmapped = std::exchange(last.unmapped, {});
      answer = AskAndWait(&last, create, create.deadline);
      if (!ok()) return;
      if (!answer.ok()) {
        return Fail(absl::StrCat("promise 4: a job of ", size, " bytes fits twice beside ", fixed,
                                 ", yet its step ", step,
                                 " is refused: ", answer.status().ToString()));
      }
      if (!std::get<reply::Create>(*answer).extents.empty()) break;
      if (tries > 3) return Fail("promise 4: a create is told to unmap again and again");
    }
    const auto& granted = std::get<reply::Create>(*answer);
    const uint64_t content = next_content_++;
    slabs_.at(granted.extents[0].slab)
        .Write(granted.extents[0].offset, Region{size, content, kNoTime, ""});
    event::Commit commit;
    commit.call = last.next_call++;
    commit.part = create.part;
    commit.world_size = 1;
    commit.seals = {{"all", size, CrcsOf(content, size), {{0, size}}}};
    commit.unix_ms = now_ / kMilli;
    promises_[commit.part].objects["all"] = {size, content};
    promises_[commit.part].world_size = 1;
    answer = AskAndWait(&last, commit, now_ + kPatience);
    if (!ok()) return;
    if (!answer.ok())
      return Fail(absl::StrCat("promise 4: the last job's commit is answered ",
                               answer.status().ToString()));
    answer = AskAndWait(&last, event::Latest{{}, "end", now_ + 5 * kSecond}, now_ + 5 * kSecond);
    if (!ok()) return;
    CheckLatest("end", answer);
    if (!ok()) return;
  }
}

SimulatorResult World::Run() {
  Prepare();
  StartDaemon(/*first=*/true);
  for (int i = 0; i < options_.events && ok(); ++i) {
    now_ += static_cast<MonotonicNanos>(rng_.Below(2000) * 1000);
    if (wake_at_ != 0 && wake_at_ <= now_) AdvanceTo(now_);
    if (ok()) DoSomething();
    if (ok() && i % 8 == 0) CheckHolds();
  }
  if (ok()) Liveness();
  return std::move(result_);
}

}  // namespace

SimulatorResult Simulate(const SimulatorOptions& options) { return World(options).Run(); }

}  // namespace cairn::engine
