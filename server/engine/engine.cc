// One file: what the engine is made of, who is told of an event, in which order, and what all components
// do together. docs/architecture.md has the picture of who tells whom what.
#include "server/engine/engine.h"

#include <algorithm>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/engine/cluster.h"
#include "server/engine/connecting.h"
#include "server/engine/deciding.h"
#include "server/engine/finding.h"
#include "server/engine/job_calls.h"
#include "server/engine/journal_room.h"
#include "server/engine/journal_use.h"
#include "server/engine/keep_plan.h"
#include "server/engine/opening.h"
#include "server/engine/restored.h"
#include "server/engine/saving.h"
#include "server/engine/slab_check.h"
#include "server/engine/snapshot.h"
#include "server/engine/standing_maps.h"
#include "server/engine/status.h"
#include "server/engine/storage_root.h"
#include "server/engine/storing.h"

namespace cairn::engine {
namespace {

// Serving waiting creates may free memory for others; it ends because each round grants, refuses or
// frees something. The bound only guards against a mistake.
constexpr int kServeRounds = 64;
// Checkpoints evicted for a full journal at once; the node says so again while it is full.
constexpr int kEvictBatch = 64;
// Rows for the recorder that one event makes; the rest follows at once.
constexpr size_t kRecordBatch = 256;
// The journal hardly ever holds more of a committed part.
constexpr uint64_t kMostOfAPart = 512;
// What a create may cost the journal at most for older steps to be given up for it.
constexpr uint64_t kMostToLetGoFor = 1 << 20;

}  // namespace

// Members stand in the order in which they know each other: each is given those above it. Their destructors are in
// their own sources, because this one would compile the code of all of them.
class Engine::Impl {
 public:
  explicit Impl(const Options& options) : options_(options) {
    ledger_.set_watcher(&footprints_);
    eviction_.set_manifests(&manifests_);
    retention_.set_scanning(&scanning_);
    persistence_.set_look(look_);
    admission_.set_granter(&saving_);
    admission_.set_under_io([this] { return persistence_.under_way() + opening_.under_way(); });
    admission_.set_room_for_replicas([this] { return cluster_.RoomForReplicas(); });
    admission_.set_short_of_memory([this] {
      persistence_.OweFinished();
      cluster_.FreeSpares();
    });
    parts_.Watch(&manifests_);
    parts_.Watch(&admission_);
    parts_.Watch(&persistence_);
    saving_.set_cluster(&cluster_);
    saving_.set_being_stored([this](const PartKey& part) { return storing_.IsUnderWay(part); });
    opening_.set_cluster(&cluster_);
    finding_.set_cluster(&cluster_);
    job_calls_.set_cluster(&cluster_);
    if (cluster_.Alone()) return;
    const auto is_home = [this](const std::string& job) {
      return cluster_.members().Counts() &&
             cluster_.members().HomeOf(job) == cluster_.members().self();
    };
    describing_.set_is_home(is_home);
    retention_.set_is_home([is_home](const Job& job) { return is_home(job.name); });
  }

  Outcome Start(MonotonicNanos now, int64_t unix_ms, Recovered recovered);
  Outcome Apply(MonotonicNanos now, const Event& event);
  void SetJournalRoom(uint64_t used, uint64_t capacity) { journal_.Set(used, capacity); }
  uint64_t WritingBytes() const { return parts_.writing_bytes(); }
  template <class E>
  JournalHelp JournalHelpFor(const E& event) const {
    if constexpr (std::is_same_v<E, event::Create>) {
      // Nothing is given up for who will be refused all the same.
      const Session* session = sessions_.Find(event.caller.session);
      const CheckpointKey& key = event.part.checkpoint;
      if (session == nullptr || session->job != key.job) return JournalHelp::kNone;
      if (const Job* job = jobs_.Find(key.job)) {
        Attempt superseded_by = 0;
        if (!Jobs::CheckAccess(*job, event.caller).ok() ||
            !Attempts::CheckFence(*job, key.attempt, &superseded_by).ok() ||
            !Retention::CheckRemoved(*job, key.step, key.attempt).ok()) {
          return JournalHelp::kNone;
        }
      }
      const uint64_t bytes = saving_.MoreJournalFor(event);
      if (!journal_.ASnapshotMayHelp(event.caller.uid, bytes)) return JournalHelp::kNone;
      // Others' steps are given up for a usual step, not for an enormous one.
      const bool let_go = bytes <= kMostToLetGoFor && LettingGoMayHelp(bytes);
      return let_go ? JournalHelp::kLetGo : JournalHelp::kSnapshot;
    }
    if constexpr (std::is_same_v<E, event::JobScanned>) {
      // With half of it free no usual reading lacks room, and to find out costs what it names.
      if (!journal_.MoreThanHalf()) return JournalHelp::kNone;
      return scanning_.CheckJournal(event).ok() ? JournalHelp::kNone : JournalHelp::kSnapshot;
    }
    if constexpr (JournalUseOf<E>().adds_a_little) {
      return journal_.CheckSmall("").ok() ? JournalHelp::kNone : JournalHelp::kSnapshot;
    }
    return JournalHelp::kNone;
  }
  std::optional<ObjectInfo> Peek(const event::StatObject& event) const {
    return finding_.Peek(event);
  }
  std::vector<Fact> SnapshotPiece(SnapshotCursor* cursor, size_t most) const;
  Description Describe(const action::Record& record) const { return describing_.Describe(record); }
  Description Describe(const std::string& job,
                       const std::vector<CheckpointKey>& checkpoints) const {
    return describing_.Describe(job, checkpoints);
  }
  std::vector<std::string> JobNames() const { return describing_.JobNames(); }
  std::vector<CheckpointKey> CheckpointsOf(const CheckpointKey& after, int limit) const {
    return describing_.CheckpointsOf(after, limit);
  }
  std::string CheckInvariants() const;
  const Gathered* GatheredOf(const std::string& job) const { return cluster_.GatheredOf(job); }
  bool MakesWay(const PartKey& part) const { return cluster_.MakesWay(part); }

 private:
  void Dispatch(const Event& event) {
    std::visit(
        [this](const auto& e) {
          Note(e);
          if (!MayDecide(e) || !HasJournalRoom(e)) return;
          HoldAnswer(e);
          if (AsksHome(e)) return;
          On(e);
          StopWaiting(e);
        },
        event);
  }
  template <class E>
  void Note(const E& event) {
    if constexpr (kIsOneOf<E, event::Create, event::Commit, event::Store>) {
      refusals_.Asked(event.caller, event.part.checkpoint);
    }
  }
  template <class E>
  bool MayDecide(const E& event) {
    if constexpr (DecidingOf<E>().refused_when_superseded) {
      Status status = mode_.CheckLife();
      if (status.ok() && !cluster_.members().Counts()) {
        status = absl::UnavailableError(
            "this node has no rank in its ring, and nobody would hear of what is decided here");
      }
      if (!status.ok()) out_.Answer(event.caller.request, status);
      return status.ok();
    }
    return true;
  }
  // The answer to what is decided waits for a second journal.
  template <class E>
  void HoldAnswer(const E& event) {
    if constexpr (DecidingOf<E>().decides) {
      if (cluster_.Alone() || OfThisNodeAlone(event)) return;
      const JobPolicy* policy = nullptr;
      if constexpr (std::is_same_v<E, event::SetPolicy>) policy = &event.policy;
      cluster_.Decided(event.caller, JobOf(event), DeadlineOf(event), policy);
    }
  }
  // Whether this node knows what the call is about. What is latest only a fresh verdict tells.
  template <class E>
  bool Knows(const E& event, const Job& job) const {
    if (!job.owner->owned) return false;
    if constexpr (std::is_same_v<E, event::Remove>) {
      return event.ref.step != kNoStep && describing_.ForShow(job, event.ref) != nullptr;
    } else if constexpr (requires { event.ref; }) {
      return event.ref.step != kNoStep && describing_.Resolve(job, event.ref).ok();
    } else if constexpr (std::is_same_v<E, event::ResumeFrom>) {
      // Without `fence` it waits for who still saves, and that only a fresh verdict tells.
      return event.fence && (event.step == kNoStep || standing_.At(job, event.step) != nullptr);
    }
    return true;
  }
  // True: the call waits for the other members, or is answered.
  template <class E>
  bool AsksHome(const E& event) {
    if constexpr (DecidingOf<E>().asks_home) {
      if (cluster_.Alone() || OfThisNodeAlone(event)) return false;
      if (sessions_.Find(event.caller.session) == nullptr) return false;
      const Job* known = jobs_.Find(JobOf(event));
      if (known != nullptr && Knows(event, *known)) return false;
      if (!ValidateJob(JobOf(event)).ok()) return false;
      // As with a first create: a job may begin while somebody is silent.
      constexpr bool kMayBegin = std::is_same_v<E, event::ResumeFrom>;
      const std::optional<MonotonicNanos> carried = DeadlineOf(event);
      const MonotonicNanos deadline =
          carried.has_value() ? *carried : *cluster_.DeadlineOf(event.caller.request);
      const Job* job = jobs_.FindOrMake(JobOf(event));
      if (cluster_.verdicts().Await(event.caller, *job, deadline, event,
                                    kMayBegin ? Verdicts::kBeginPatience : kNever)) {
        return true;
      }
      if (!job->owner->owned && !cluster_.members().Believed()) {
        out_.Answer(event.caller.request, Cluster::MetNobody(job->name));
        return true;
      }
    }
    return false;
  }
  // The caller of an answer that is held back has gone.
  template <class E>
  void StopWaiting(const E& event) {
    if constexpr (std::is_same_v<E, event::SessionEnded>) cluster_.SessionEnds(event.session);
    if constexpr (std::is_same_v<E, event::CallerLeft>) cluster_.CallerLeft(event.request);
  }
  template <class E>
  bool HasJournalRoom(const E& event) {
    if constexpr (JournalUseOf<E>().adds_a_little) {
      const Status status = journal_.CheckSmall("this call");
      if (!status.ok()) out_.Answer(event.caller.request, status);
      return status.ok();
    }
    return true;
  }
  // Whether the journal would have room for `bytes` without the parts in memory. What else fills it, lives
  // and what was removed, does not go with a step.
  bool LettingGoMayHelp(uint64_t bytes) const {
    return manifests_.used_bytes() / kPageBytes * kMostOfAPart >= journal_.Lacking(bytes);
  }
  Outcome Finish();
  void TakeIn();  // of what scans have found
  void CheckDrained();
  void ForgetIdle();
  void EmitWake();

  // --- one component's
  void On(const event::Hello& e) { connecting_.On(e); }
  void On(const event::SessionEnded& e) { connecting_.On(e); }
  void On(const event::ChooseAttempt& e) { job_calls_.On(e); }
  void On(const event::ResumeFrom& e) { job_calls_.On(e); }
  void On(const event::Use& e) { job_calls_.On(e); }
  void On(const event::PreviewPolicy& e) { job_calls_.On(e); }
  void On(const event::SetPolicy& e) { job_calls_.On(e); }
  void On(const event::PersistNow& e) { job_calls_.On(e); }
  void On(const event::Create& e) { saving_.On(e); }
  void On(const event::SealObjects& e) { saving_.On(e); }
  void On(const event::Commit& e) { saving_.On(e); }
  void On(const event::Abort& e) { saving_.On(e); }
  void On(const event::ManifestWritten& e) { saving_.On(e); }
  void On(const event::Store& e) { storing_.On(e); }
  void On(const event::Stored& e) { storing_.On(e); }
  void On(const event::LocateChunk& e) { opening_.On(e); }
  void On(const event::ChunkWritten& e) { opening_.On(e); }
  void On(const event::Open& e) { opening_.On(e); }
  void On(const event::Verified& e) { opening_.On(e); }
  void On(const event::Release& e) { leases_.On(e); }
  void On(const event::Renew& e) { leases_.On(e); }
  void On(const event::MapStanding& e) { standing_maps_.On(e); }
  void On(const event::AwaitUnmap& e) { standing_maps_.On(e); }
  void On(const event::LendFailed& e) { leases_.On(e); }
  void On(const event::SlabProbed& e) { leases_.On(e); }
  void On(const event::Latest& e) { finding_.On(e); }
  void On(const event::StatCheckpoint& e) { finding_.On(e); }
  void On(const event::StatObject& e) { finding_.On(e); }
  void On(const event::List& e) { finding_.On(e); }
  void On(const event::Wait& e) { finding_.On(e); }
  void On(const event::JobScanned& e) {
    if (scanning_.On(e)) admission_.Fence(jobs_.Find(e.job));
  }
  void On(const event::LineNumbersRead& e) { scanning_.On(e); }
  void On(const event::Remove& e) { retention_.On(e); }
  void On(const event::FilesDeleted& e) { retention_.On(e); }
  void On(const event::SlabDestroyed& e) { ledger_.OnDestroyed(e.slab); }
  void On(const event::CallerLeft& e) { callers_.HangUp(e.request); }
  void On(const event::Tick&) {}
  void On(const event::Exchanged& e) { cluster_.On(e); }
  void On(const event::PeerSaid& e) { cluster_.On(e); }
  void On(const event::GrantAsked& e) { cluster_.On(e); }
  void On(const event::GrantEnded& e) { cluster_.On(e); }
  void On(const event::FetchAdvanced& e) { cluster_.On(e); }
  void On(const event::Fetched& e) { cluster_.On(e); }

  // --- several components'
  void On(const event::SlabMade& event);
  void On(const event::Pin& event);
  void On(const event::Persisted& event);
  void On(const event::LineRecordWritten& event);
  void On(const event::TablesRead& event);
  void On(const event::StorageSeen& event);
  void On(const event::LifeMet& event) { RefuseIf(cluster_.On(event)); }
  void On(const event::SeatChanged& event) { cluster_.On(event); }
  void On(const event::Fenced& event) { RefuseIf(cluster_.On(event)); }
  // This life of the rank is superseded from now on.
  void RefuseIf(bool superseded);
  void On(const event::Status& event);
  void On(const event::Leave& event);
  void On(const event::Drain& event);
  void On(const event::JournalFull& event);

  const Options options_;
  Mode mode_;
  MonotonicNanos drain_deadline_ = 0;
  bool drained_ = false;
  MonotonicNanos woken_for_ = kNever;
  bool more_soon_ = false;

  Changes changes_;
  Outbox out_;
  Callers callers_{&out_, options_};
  JournalRoom journal_{options_};
  StorageRoot storage_root_{&mode_, &out_};
  Jobs jobs_{options_, &out_, &changes_};
  Standing standing_{options_, &out_, &jobs_, &changes_};
  Sessions sessions_{&out_, &jobs_};
  Ledger ledger_{options_, &out_};
  Footprints footprints_{&ledger_};
  Leases leases_{options_, &out_, &sessions_, &ledger_, &journal_};
  StandingMaps standing_maps_{&out_, &callers_, &sessions_, &ledger_, &leases_};
  Records records_{options_, &out_, &callers_, &jobs_};
  Attempts attempts_{options_, &out_, &jobs_, &sessions_, &standing_, &records_};
  Parts parts_{options_,     &out_,     &jobs_,     &attempts_, &leases_, &ledger_,
               &footprints_, &changes_, &standing_, &sessions_, &journal_};
  Eviction eviction_{options_, &out_, &ledger_, &leases_, &footprints_, &parts_, &standing_};
  Manifests manifests_{options_, &out_, &callers_, &sessions_, &ledger_, &parts_, &eviction_};
  Admission admission_{options_, &out_,      &callers_, &jobs_,     &ledger_,   &sessions_,
                       &leases_, &attempts_, &parts_,   &standing_, &eviction_, &journal_};
  Pool pool_{options_, mode_, &out_, &sessions_, &ledger_, &admission_};
  Persistence persistence_{options_, mode_, &out_, &jobs_, &ledger_, &parts_, &standing_};
  Describing describing_{options_, &out_, &jobs_, &standing_};
  Retention retention_{options_,      &out_,      &callers_,  &jobs_,       &sessions_, &parts_,
                       &persistence_, &eviction_, &standing_, &describing_, &journal_};
  Merging merging_{&out_, &jobs_, &attempts_, &parts_, &persistence_, &retention_, &records_};
  Scanning scanning_{options_,
                     mode_,
                     &journal_,
                     &out_,
                     &callers_,
                     &jobs_,
                     &attempts_,
                     &persistence_,
                     &records_,
                     &merging_,
                     [this](const Event& event) { Dispatch(event); }};
  const std::function<void(Job*)> look_ = [this](Job* job) {
    scanning_.Start(job);  // where it was never read
    scanning_.Look(job);
  };
  Cluster cluster_{{.options = &options_,
                    .mode = &mode_,
                    .journal = &journal_,
                    .out = &out_,
                    .callers = &callers_,
                    .jobs = &jobs_,
                    .standing = &standing_,
                    .ledger = &ledger_,
                    .attempts = &attempts_,
                    .parts = &parts_,
                    .eviction = &eviction_,
                    .manifests = &manifests_,
                    .again = [this](const Event& event) { Dispatch(event); },
                    .persistence = &persistence_,
                    .retention = &retention_,
                    .newer_attempt = [this](Job* job) { admission_.Fence(job); },
                    .saving = [this](const Job& job) { return succession_.SavingHere(job); },
                    .refusals_changed =
                        [this](Job* job) {
                          job->Touch();
                          standing_.CheckWaits(*job);
                        },
                    .look = look_}};
  Tables tables_{&out_, &callers_, &parts_, [this](const Event& event) { Dispatch(event); }};
  Opening opening_{&out_,         &callers_,  &sessions_,   &leases_,   &ledger_, &parts_,
                   &persistence_, &standing_, &describing_, &scanning_, &tables_};
  Finding finding_{options_,   &out_,        &callers_,  &jobs_,  &sessions_,
                   &standing_, &describing_, &scanning_, &tables_};
  Succession succession_{&out_, &callers_, &jobs_, &sessions_,
                         [this](const Event& event) { Dispatch(event); }};
  JobCalls job_calls_{options_,      &out_,       &jobs_,      &sessions_,   &attempts_,
                      &persistence_, &retention_, &standing_,  &describing_, &scanning_,
                      &admission_,   &records_,   &succession_};
  Refusals refusals_{&out_, &jobs_, &sessions_};
  Saving saving_{options_, mode_,      &out_,        &callers_, &jobs_,      &sessions_,
                 &leases_, &ledger_,   &attempts_,   &parts_,   &manifests_, &admission_,
                 &pool_,   &scanning_, &succession_, &journal_};
  Storing storing_{options_,      mode_,       &out_,      &callers_, &jobs_,   &parts_,
                   &persistence_, &retention_, &refusals_, &saving_,  &merging_};
  Connecting connecting_{options_,   mode_,      &out_,        &callers_, &jobs_,
                         &sessions_, &leases_,   &attempts_,   &parts_,   &admission_,
                         &pool_,     &scanning_, &succession_, &refusals_};
};

Engine::Engine(const Options& options) : impl_(std::make_unique<Impl>(options)) {}
Engine::~Engine() = default;
Outcome Engine::Start(MonotonicNanos now, int64_t unix_ms, Recovered recovered) {
  return impl_->Start(now, unix_ms, std::move(recovered));
}
Outcome Engine::Apply(MonotonicNanos now, Event event) noexcept { return impl_->Apply(now, event); }
void Engine::SetJournalRoom(uint64_t used, uint64_t capacity) {
  impl_->SetJournalRoom(used, capacity);
}
uint64_t Engine::WritingBytes() const { return impl_->WritingBytes(); }

Engine::JournalHelp Engine::JournalHelpFor(const Event& event) const {
  return std::visit([this](const auto& e) { return impl_->JournalHelpFor(e); }, event);
}
std::optional<ObjectInfo> Engine::Peek(const event::StatObject& event) const {
  return impl_->Peek(event);
}
std::vector<Fact> Engine::Snapshot() const {
  SnapshotCursor cursor;
  return impl_->SnapshotPiece(&cursor, std::numeric_limits<size_t>::max());
}

std::vector<Fact> Engine::SnapshotPiece(SnapshotCursor* cursor, size_t most) const {
  return impl_->SnapshotPiece(cursor, most);
}
Engine::Description Engine::Describe(const action::Record& record) const {
  return impl_->Describe(record);
}
std::vector<std::string> Engine::JobNames() const { return impl_->JobNames(); }
std::vector<CheckpointKey> Engine::CheckpointsOf(const CheckpointKey& after, int limit) const {
  return impl_->CheckpointsOf(after, limit);
}
Engine::Description Engine::Describe(const std::string& job,
                                     const std::vector<CheckpointKey>& checkpoints) const {
  return impl_->Describe(job, checkpoints);
}
std::string Engine::CheckInvariants() const { return impl_->CheckInvariants(); }
const Gathered* Engine::GatheredOf(const std::string& job) const { return impl_->GatheredOf(job); }
bool Engine::MakesWay(const PartKey& part) const { return impl_->MakesWay(part); }

// --- entering

Outcome Engine::Impl::Apply(MonotonicNanos now, const Event& event) {
  out_.set_now(now);
  if (woken_for_ != kNever && now > woken_for_ + Members::kLate) cluster_.TimerWasLate();
  if (out_.now() >= woken_for_) woken_for_ = kNever;
  standing_.PassTime();
  Dispatch(event);
  return Finish();
}

// What time brings, what the event made possible, and what follows from both.
Outcome Engine::Impl::Finish() {
  TakeIn();
  finding_.CheckWaits();  // what the event brought counts, even at a waiter's very deadline
  leases_.Expire();
  leases_.EndSome();
  succession_.Serve();
  callers_.Expire();
  ledger_.ProbeDue();
  ledger_.ExpirePatience();
  scanning_.ReadDue();
  retention_.TryAgainDue();
  manifests_.PauseOver();
  succession_.Serve();  // who stopped waiting for storage may have begun an attempt
  eviction_.LimitOnlyRecords();
  int round = 0;
  for (; round < kServeRounds && admission_.Due(manifests_.version()); ++round) {
    admission_.Serve(manifests_.Retry());
  }
  // Each round changed something for the next one; nothing else may come to pass for those who wait.
  if (round == kServeRounds) more_soon_ = true;
  persistence_.Run();
  records_.Run();
  CheckDrained();
  if (cluster_.Run()) more_soon_ = true;
  // The others may have told of an attempt that has begun.
  if (succession_.Serve()) more_soon_ = true;
  for (const event::Persisted& ended : persistence_.Prepare()) {
    On(ended);
    more_soon_ = true;  // what it held, and its turn, are somebody else's now
  }
  finding_.CheckWaits();
  for (action::Record& record : standing_.TakeToRecord(kRecordBatch)) out_.Do(std::move(record));
  standing_maps_.Serve();
  if (cluster_.TakeHomesMoved()) out_.Do(action::Record{.everything = true});
  for (const std::string& job : callers_.TakeJobsLeft()) jobs_.MayForget(job);
  jobs_.ForgetUnused();
  ForgetIdle();
  EmitWake();
  Outcome outcome = out_.Take();
  cluster_.HoldBack(&outcome.actions);
  refusals_.See(outcome.actions);
  return outcome;
}

// What storage has of a job that is forgotten is read once it is used again, its owner, its decisions and
// what was removed for good among it. So storage must be there, and hold no deletion back.
void Engine::Impl::ForgetIdle() {
  for (Job* job : jobs_.TakeIdle()) {
    const bool read = !options_.storage || (mode_.storage_here && job->scan->Known());
    const bool busy = job->scan->state == ScanState::kScanning || job->scan->stale > 0 ||
                      job->scan->line_asked.has_value() || records_.Owes(job->name) ||
                      retention_.Deletes(job->name) ||
                      cluster_.GatheredOf(job->name) != nullptr;  // others have something of it
    if (read && !busy) {
      retention_.Forgets(*job);
      const std::string name = job->name;
      jobs_.Forget(job);
      standing_.Forgot(name);
      continue;
    }
    scanning_.Start(job);
    jobs_.LookAgain(*job);
  }
}

void Engine::Impl::EmitWake() {
  MonotonicNanos next =
      std::min({ledger_.next_probe(), ledger_.next_overdue(), callers_.next_deadline(),
                leases_.next_expiry(), persistence_.next(), scanning_.next(), records_.next(),
                retention_.next(), jobs_.next(), manifests_.next(), cluster_.next()});
  if (mode_.draining && !drained_) next = std::min(next, drain_deadline_);
  if (std::exchange(more_soon_, false) || standing_.more_to_record() || leases_.more_to_end() ||
      scanning_.more_to_take_in() || persistence_.more_to_prepare()) {
    next = out_.now();
  }
  if (next == kNever) return;
  next = std::max(next, out_.now() + 1);
  if (next == woken_for_) return;
  woken_for_ = next;
  out_.Do(action::WakeAt{next});
}

// --- events of several components

void Engine::Impl::On(const event::SlabMade& event) {
  if (!ledger_.OnMade(event.slab, event.status)) return;
  if (cluster_.SlabMade(event.slab, event.status)) return;
  manifests_.SlabMade(event.slab, event.status);
  if (event.status.ok()) return admission_.Made(event.slab);
  out_.Count("slabs_not_made");
  pool_.NotMade();
  out_.Log(Severity::kWarning,
           absl::StrCat("slab ", event.slab, " was not made: ", event.status.message()));
  admission_.NotMade(event.slab, event.status);
}

void Engine::Impl::On(const event::Persisted& event) {
  const Persistence::Ended ended = persistence_.End(event);
  if (!ended.known) return;
  if (ended.removed) return retention_.PersistEnded(event.checkpoint, /*removed=*/true);
  if (ended.checkpoint == nullptr) {
    if (!ended.persisted) retention_.PersistEnded(event.checkpoint, /*removed=*/false);
    return;
  }
  if (ended.persisted) {
    // What it has of others, who wrote it, is known from there.
    if (!ended.checkpoint->content->complete) tables_.ReadParts(*ended.checkpoint);
    return retention_.ApplyKeepPolicy(ended.checkpoint->job);
  }
  if (absl::IsDataLoss(event.status)) opening_.VerifyAll(ended.checkpoint);
}

void Engine::Impl::On(const event::LineRecordWritten& event) {
  const Records::Written written = records_.On(event);
  Job* job = jobs_.Find(event.record.job);
  if (job == nullptr) return;
  if (written.other != nullptr) attempts_.Adopt(job, *written.other);
  if (written.look) scanning_.LookFromNow(job);
  if (job->scan->state != ScanState::kScanning) records_.LookEnded(*job, describing_);
}

void Engine::Impl::TakeIn() {
  int budget = options_.merged_at_once;
  while (budget > 0) {
    const auto [job, told, newer_attempt] = scanning_.TakeIn(&budget);
    if (job == nullptr) return;
    if (newer_attempt) admission_.Fence(job);
    out_.Do(action::Record{job->name, false, {}, {}, /*read=*/true});
    if (Checkpoint* newest = told ? standing_.Newest(*job) : nullptr) {
      pool_.RememberStored(*newest);
      if (job->sessions->writers > 0) tables_.Read(newest);  // what its next save will need
    }
    records_.LookEnded(*job, describing_);
    scanning_.Resume(job);
    pool_.ProvisionAll(*job, 2);
    retention_.ApplyKeepPolicy(job);
  }
}

void Engine::Impl::On(const event::TablesRead& event) {
  const Checkpoint* in_part = parts_.Find(event.checkpoint);
  if (event.stored.ok() && in_part != nullptr && in_part->files->persisted &&
      !in_part->content->complete) {
    merging_.Merge(in_part->job, *event.stored);
  }
  const Checkpoint* checkpoint = tables_.On(event);
  if (checkpoint == nullptr || standing_.Newest(*checkpoint->job) != checkpoint) return;
  pool_.RememberStored(*checkpoint);
  pool_.ProvisionAll(*checkpoint->job, 2);
}

// Of all jobs, once for each change.
void Engine::Impl::On(const event::StorageSeen& event) {
  if (!options_.storage) return;
  const StorageRoot::Change change = storage_root_.On(event);
  std::vector<std::string> names;
  if (change.left || change.came) {
    for (const auto& [name, job] : jobs_.all()) names.push_back(name);
  }
  for (const std::string& name : names) {
    // Callers who waited go on, and may bring anything about.
    const auto job = [&] { return jobs_.Find(name); };
    if (change.left && job() != nullptr) persistence_.StorageLeft(job());
    if (change.left && job() != nullptr) scanning_.StorageLeft(job());
  }
  if (!change.came) return;
  storage_root_.Came();
  for (const std::string& name : names) {
    Job* job = jobs_.Find(name);
    if (job == nullptr) continue;
    persistence_.StorageCame(job, change.same);
    scanning_.StorageCame(job);
  }
}

void Engine::Impl::RefuseIf(bool superseded) {
  if (!superseded) return;
  mode_.superseded = cluster_.members().Superseded();
  admission_.CancelAll(mode_.CheckLife());
  succession_.CancelAll(mode_.CheckLife());
}

void Engine::Impl::On(const event::Status& event) {
  out_.Answer(event.caller.request,
              Body(StatusOf({options_, mode_, storage_root_, out_, callers_, jobs_, sessions_,
                             leases_, ledger_, parts_, persistence_, standing_, cluster_},
                            event)));
}

void Engine::Impl::On(const event::Drain& event) {
  if (!mode_.draining) {
    mode_.draining = true;
    drain_deadline_ = event.deadline;
    const Status draining = absl::UnavailableError("draining: the daemon is stopping");
    admission_.CancelAll(draining);
    succession_.CancelAll(draining);
  }
  drain_deadline_ = std::min(drain_deadline_, event.deadline);
  persistence_.OweNewest();
}

void Engine::Impl::On(const event::Pin& event) {
  retention_.On(event);
  Job* const job = jobs_.Find(event.ref.job);
  if (mode_.leaving && job != nullptr) persistence_.SecureWhatLeaves(job);
}

void Engine::Impl::On(const event::Leave& event) {
  const RequestId request = event.caller.request;
  if (!options_.Unlimited(event.caller.uid)) {
    return out_.Answer(request, absl::PermissionDeniedError(
                                    "drain: only root, or the user who runs the daemon, may"));
  }
  if (mode_.leaving != event.on) out_.Say(fact::Leaving{event.on});
  mode_.leaving = event.on;
  mode_.leaving_said = true;
  if (event.on) {
    admission_.CancelAll(mode_.CheckAdmits());
    succession_.CancelAll(mode_.CheckAdmits());
    persistence_.SecureWhatLeaves();
  }
  out_.Answer(request, Body(reply::Ok{}));
}

void Engine::Impl::CheckDrained() {
  if (!mode_.draining || drained_) return;
  // Asked of both: persistence owes what completed meanwhile even while commits are under way.
  const bool persisted = persistence_.Drained();
  const bool done = persisted && manifests_.Idle() && storing_.under_way() == 0;
  if (!done && out_.now() < drain_deadline_) return persistence_.Run();
  drained_ = true;
  out_.Do(action::Drained{});
}

// A full journal is memory that ran out, too: what superseded steps are told of there goes with
// them.
void Engine::Impl::On(const event::JournalFull& event) {
  mode_.journal_full = event.full;
  if (!event.full || !LettingGoMayHelp(0)) return;
  for (int i = 0; i < kEvictBatch && eviction_.EvictAny(journal_.Greediest()); ++i) {
  }
}

// --- recovery

Outcome Engine::Impl::Start(MonotonicNanos now, int64_t unix_ms, Recovered recovered) {
  out_.Begin(now, unix_ms);
  mode_.safe_mode = recovered.safe_mode;
  const Restored restored(recovered.facts);
  mode_.leaving_said = restored.leaving.has_value();
  mode_.leaving = restored.leaving.value_or(restored.ring_seat.drained);
  storage_root_.Restore(restored);
  uint64_t next_id = restored.next_id;
  for (const auto& [id, bytes] : recovered.held_slabs) next_id = std::max(next_id, id + 1);
  out_.RestoreIds(next_id);

  jobs_.Restore(restored);
  attempts_.Restore(restored);
  retention_.Restore(restored);
  sessions_.Restore(restored, recovered.live_sessions);
  attempts_.RestoreSessions();
  ledger_.RestoreSlabs(restored, recovered.held_slabs);
  manifests_.RestoreSlabs();
  parts_.Restore(restored, recovered, &manifests_);
  attempts_.RestoreReached();
  leases_.Restore(restored, [this](const PartKey& part, const std::string& name) {
    return parts_.Find(part, name);
  });
  ledger_.ResumeAll();
  cluster_.Start(restored, recovered.member);
  mode_.superseded = cluster_.members().Superseded();
  parts_.RestoreFootprints();
  parts_.RestoreKept();
  admission_.Restore();
  parts_.RestoreComplete();
  opening_.Restore(jobs_);
  persistence_.Restore(restored);
  if (mode_.leaving) persistence_.SecureWhatLeaves();
  for (const auto& [name, job] : jobs_.all()) {
    for (const CheckpointId& id : job->steps->incomplete) {
      if (CheckpointOf(*job, id)->files->stored_whole) scanning_.Start(job.get());
    }
    if (!Attempts::OriginsKnown(*job)) scanning_.Insist(job.get());
  }

  manifests_.KeepSpace();
  for (const auto& [name, job] : jobs_.all()) {
    if (const Checkpoint* newest = standing_.Newest(*job)) pool_.RememberStored(*newest);
    pool_.ProvisionAll(*job, 1);
  }
  pool_.Start();
  return Finish();
}

std::vector<Fact> Engine::Impl::SnapshotPiece(SnapshotCursor* cursor, size_t most) const {
  std::vector<Fact> facts;
  const SnapshotSources sources{out_,  mode_,     storage_root_, ledger_, sessions_,    leases_,
                                jobs_, attempts_, retention_,    parts_,  persistence_, cluster_};
  sources.Take(cursor, most, &facts);
  return facts;
}

// --- invariants

std::string Engine::Impl::CheckInvariants() const {
  SlabCheck slabs(ledger_);
  std::map<SlabId, uint32_t>& pins = slabs.pins;
  const Parts::Placer place = [&](const ExtentRef& extent, Parts::Words what) {
    return slabs.Place(extent, what);
  };
  const auto writes = [this](const PartKey& key) {
    const Part* part = parts_.Find(key);
    return part != nullptr && !part->content->committed && !part->content->objects.empty();
  };
  std::string problem = ledger_.CheckInvariants();
  const auto check = [&problem](const auto& next) {
    if (problem.empty()) problem = next();
  };
  for (const auto& [name, owned] : jobs_.all()) {
    const Job& job = *owned;
    for (const auto& [id, kept] : job.steps->all) {
      const Checkpoint& checkpoint = *kept;
      check([&] { return parts_.CheckInvariants(checkpoint, place); });
      check([&] { return manifests_.CheckInvariants(checkpoint, place, &pins); });
      check([&] { return footprints_.CheckInvariants(checkpoint); });
    }
    check([&] { return attempts_.CheckInvariants(job, writes); });
    check([&] { return CheckDeletions(job, options_, standing_, out_.now()); });
    check([&] { return finding_.CheckInvariants(job); });
  }
  check([&] { return standing_.CheckInvariants(); });
  check([&] { return parts_.CheckSums(admission_.journal_bytes() + cluster_.journal_bytes()); });
  check([&] { return admission_.CheckInvariants(); });
  check([&] { return succession_.CheckInvariants(); });
  check([&] { return storing_.CheckInvariants(); });
  check([&] { return manifests_.CheckSpace(); });
  check([&] { return manifests_.CheckOrphans(place, &pins); });
  check([&] { return persistence_.CheckInvariants(&pins); });
  check([&] { return opening_.CheckInvariants(&pins); });
  check([&] { return cluster_.CheckInvariants(&pins); });
  check([&] { return leases_.CheckInvariants(); });
  check([&]() -> std::string {
    std::map<uint32_t, uint64_t> held;
    leases_.AddJournal(&held);
    retention_.AddJournal(&held);
    return held == journal_.held() ? "" : "what leases and removed steps cost is miscounted";
  });
  check([&] {
    return callers_.CheckInvariants(
        [this](SessionId session) { return sessions_.Find(session) != nullptr; });
  });
  check([&] { return slabs.CheckCounts(); });
  return problem;
}

}  // namespace cairn::engine
