// One file: nothing else decides when a checkpoint's files are due, tried again, taken back or gone.
#include "server/engine/persistence.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/engine/evict_class.h"
#include "server/engine/own_parts.h"
#include "server/engine/restored.h"

namespace cairn::engine {
namespace {

// Pauses between two looks whether the others have written their parts, too. What is heard of them is faster.
constexpr MonotonicNanos kLookMin = 5 * kNanosPerSecond;
constexpr MonotonicNanos kLookMax = 60 * kNanosPerSecond;
// Between two looks that find a step in storage half gone.
constexpr MonotonicNanos kHalfGoneAge = 60 * kNanosPerSecond;

// Whether a new try, with nothing changed, fails the same way.
bool IsPermanent(const Status& status) {
  return absl::IsAlreadyExists(status) || absl::IsPermissionDenied(status) ||
         absl::IsFailedPrecondition(status) || absl::IsInvalidArgument(status);
}

// Whether any other checkpoint of the job would fail the same way. What did not verify is this
// one's alone, and what left memory before its turn.
bool IsOfStorage(const Status& status) {
  return !IsPermanent(status) && !absl::IsDataLoss(status) && !absl::IsAborted(status);
}

}  // namespace

Persistence::Persistence(const Options& options, const Mode& mode, Outbox* out, Jobs* jobs,
                         Ledger* ledger, Parts* parts, Standing* standing)
    : options_(options),
      mode_(mode),
      out_(*out),
      jobs_(*jobs),
      ledger_(*ledger),
      parts_(*parts),
      standing_(*standing) {}

Persistence::~Persistence() = default;

// --- what there is to write

bool Persistence::Writes(const Part& part) const {
  if (IsOwn(part, options_.ring)) return true;
  return part.source->role == PartRole::kReplica && acts_for_ && acts_for_(part);
}

bool Persistence::HasToWrite(const Checkpoint& checkpoint) const {
  if (options_.ring.Alone()) return true;
  const auto& parts = checkpoint.content->parts;
  return std::any_of(parts.begin(), parts.end(),
                     [this](const auto& part) { return Writes(*part.second); });
}

bool Persistence::CanWrite(const Checkpoint& checkpoint) const {
  if (!checkpoint.Complete()) return false;
  if (options_.ring.Alone()) return checkpoint.Resident();
  const auto& parts = checkpoint.content->parts;
  return HasToWrite(checkpoint) &&
         std::all_of(parts.begin(), parts.end(), [this](const auto& part) {
           return !Writes(*part.second) || WholeInMemory(*part.second);
         });
}

Checkpoint* Persistence::TargetOf(const Job& job) const {
  if (!job.verdict->target.has_value()) return nullptr;
  Checkpoint* target = CheckpointOf(job, *job.verdict->target);
  const bool due = target != nullptr && !target->files->persisted && CanWrite(*target);
  return due ? target : nullptr;
}

std::optional<CheckpointId> Persistence::WorksOn(const Job& job) const {
  for (const auto& [key, under_way] : under_way_) {
    if (key.job == job.name) return CheckpointId{key.step, key.attempt, key.revision};
  }
  for (const CheckpointId& id : job.files->owed) {
    if (CheckpointOf(job, id)->files->written) return id;
  }
  return std::nullopt;
}

// --- what is due

void Persistence::ScheduleNext(Job* job) {
  Checkpoint* target = TargetOf(*job);
  if (target != nullptr) ScheduleByPolicy(target);
  Checkpoint* newest = standing_.Newest(*job);
  if (newest != nullptr && newest != target) ScheduleByPolicy(newest);
}

void Persistence::CompletedElsewhere(Checkpoint* checkpoint) {
  const Files& files = *checkpoint->files;
  if (!options_.storage || files.persisted || files.unconfirmed || files.persisting) return;
  // The home may not know yet that they were deleted.
  if (checkpoint->elsewhere->stored && !files.deleted && CanWrite(*checkpoint)) {
    return LookNow(checkpoint);
  }
  if (files.requested) return Owe(checkpoint);  // before it was known to be complete
  ScheduleByPolicy(checkpoint);
}

void Persistence::VerdictHeard(Job* job) {
  if (mode_.storage_here) LookAtLast(job);
  if (!options_.storage || job->files->target == job->verdict->target) return;
  job->files.Edit().target = job->verdict->target;
  ScheduleNext(job);
}

void Persistence::LookNow(Checkpoint* checkpoint) {
  if (checkpoint->files->persisting) return;  // which ends with a look
  TakeFromOwed(checkpoint);
  checkpoint->files.Edit().again = checkpoint->files.Edit().wait = 0;
  Owe(checkpoint);
}

void Persistence::ScheduleByPolicy(Checkpoint* checkpoint) {
  Job* job = checkpoint->job;
  if (!options_.storage || checkpoint->files->persisted || checkpoint->files->unconfirmed) return;
  const bool leaves =
      mode_.leaving && (*checkpoint->pinned || checkpoint == standing_.Newest(*job));
  if (leaves && Secure(checkpoint)) return;
  if (checkpoint->files->deleted) return Unowe(checkpoint);
  // A member was asked for it before this node knew of it, or had to write it.
  if (!checkpoint->files->requested && job->asked->contains(checkpoint->Id())) {
    return Ask(checkpoint);
  }
  switch (job->owner->policy.mode) {
    case PersistMode::kOnDemand:
      if (!checkpoint->files->requested) Unowe(checkpoint);
      return;
    case PersistMode::kEvery:
      if (checkpoint->key.step % job->owner->policy.every == 0) {
        Owe(checkpoint);
      } else if (!checkpoint->files->requested) {
        Unowe(checkpoint);
      }
      return;
    case PersistMode::kNewest: {
      const Checkpoint* newest = standing_.Newest(*job);
      const Checkpoint* target = TargetOf(*job);
      if (checkpoint != newest && checkpoint != target) return;
      // Those before it that have not had their turn never will.
      const std::set<CheckpointId> owed = job->files->owed;
      for (const CheckpointId& id : owed) {
        Checkpoint* older = CheckpointOf(*job, id);
        if (older == newest || older == target || older->files->requested) continue;
        Unowe(older);
        older->files.Edit().skipped = true;
        out_.Count("persists_skipped");
      }
      Owe(checkpoint);
      return;
    }
  }
}

void Persistence::Owe(Checkpoint* checkpoint) { Owe(checkpoint, /*asked=*/false); }

void Persistence::Owe(Checkpoint* checkpoint, bool asked) {
  if (!HasToWrite(*checkpoint)) return;  // its owners do
  TakeFromOwed(checkpoint);
  Files& files = checkpoint->files.Edit();
  files.requested |= asked;
  if (asked) {  // somebody is there: try now
    files.parked = files.deleted = false;
    files.given_up.reset();
    files.again = files.wait = 0;
    checkpoint->job->files.Edit().at = 0;
  }
  if (files.persisted) return;
  files.owes = true;
  files.skipped = false;
  if (!mode_.storage_problem.empty()) {
    checkpoint->job->files.Edit().problem = mode_.storage_problem;
  }
  if (!files.persisting) AddToOwed(checkpoint);
}

void Persistence::Ask(Checkpoint* checkpoint) {
  if (!HasToWrite(*checkpoint)) return;
  const bool asked_before = checkpoint->files->requested;
  Owe(checkpoint, /*asked=*/true);
  if (!asked_before) out_.Say(fact::PersistAsked{checkpoint->key});
}

void Persistence::AskEverybody(Checkpoint* checkpoint) {
  if (!options_.ring.Alone()) NoteAsked(checkpoint->job, checkpoint->Id());
  Ask(checkpoint);
}

bool Persistence::RememberAsked(Job* job, const CheckpointId& id) {
  const std::set<CheckpointId>& known = *job->asked;
  if (known.contains(id)) return false;
  if (known.size() >= kMostRecordAsked && id < *known.begin()) return false;
  std::set<CheckpointId>& asked = job->asked.Edit();
  asked.insert(id);
  if (asked.size() > kMostRecordAsked) asked.erase(asked.begin());
  return true;
}

bool Persistence::NoteAsked(Job* job, const CheckpointId& id) {
  if (!RememberAsked(job, id)) return false;
  out_.Say(fact::PersistAsked{{job->name, id.step, id.attempt, id.revision}});
  return true;
}

void Persistence::Learn(Job* job, const std::set<CheckpointId>& asked) {
  for (const CheckpointId& id : asked) {
    if (job->tombstones->removed.Forbids(id.step, id.attempt) || !NoteAsked(job, id)) continue;
    Checkpoint* checkpoint = CheckpointOf(*job, id);
    if (!options_.storage || checkpoint == nullptr) continue;
    // Of what may be there storage is asked first.
    if (checkpoint->files->persisted || checkpoint->files->unconfirmed) continue;
    if (checkpoint->Complete()) {
      Ask(checkpoint);
    } else {
      RequestLater(checkpoint);
    }
  }
}

// It is due once it is known to be complete. It may be owed already: what was complete with the others may not be for
// as long as they are away, and its place among the owed follows from `requested`.
void Persistence::RequestLater(Checkpoint* checkpoint) {
  const bool owed = checkpoint->job->files->owed.contains(checkpoint->Id());
  TakeFromOwed(checkpoint);
  checkpoint->files.Edit().requested = true;
  if (owed) AddToOwed(checkpoint);
}

void Persistence::Unowe(Checkpoint* checkpoint) {
  checkpoint->files.Edit().owes = false;
  TakeFromOwed(checkpoint);
}

void Persistence::AddToOwed(Checkpoint* checkpoint) {
  checkpoint->job->files.Edit().owed.insert(checkpoint->Id());
  if (checkpoint->files->again > out_.now()) {
    later_.insert({checkpoint->files->again, checkpoint->key});
  } else {
    AddToReady(checkpoint);
  }
}

void Persistence::AddToReady(Checkpoint* checkpoint) {
  JobFiles& files = checkpoint->job->files.Edit();
  files.ready.insert({!checkpoint->files->requested, checkpoint->Id()});
  ready_jobs_.insert(checkpoint->job->name);
}

void Persistence::TakeFromOwed(Checkpoint* checkpoint) {
  const CheckpointId id = checkpoint->Id();
  JobFiles& files = checkpoint->job->files.Edit();
  if (files.owed.erase(id) == 0) return;
  later_.erase({checkpoint->files->again, checkpoint->key});
  files.ready.erase({false, id});
  files.ready.erase({true, id});
  if (files.ready.empty()) ready_jobs_.erase(checkpoint->job->name);
}

void Persistence::TakeDue() {
  while (!later_.empty() && later_.begin()->first <= out_.now()) {
    Checkpoint* checkpoint = parts_.Find(later_.begin()->second);
    later_.erase(later_.begin());
    AddToReady(checkpoint);
  }
}

void Persistence::OweFinished() {
  for (const auto& [name, job] : jobs_.all()) {
    if (!IsOver(*job)) continue;
    Checkpoint* newest = standing_.Newest(*job);
    if (newest == nullptr || !CanWrite(*newest)) continue;
    if (newest->files->persisted) {
      LookAtLast(job.get());
      continue;
    }
    const bool nowhere = !options_.storage || newest->files->parked || newest->files->deleted;
    if (nowhere && KeptToTheEnd(*job)) {
      GiveUp(newest, OverSince(*job));
    } else if (!nowhere && !newest->files->persisting && !newest->files->owes &&
               newest->files->half_gone == 0 && newest->content->broken_objects == 0) {
      Owe(newest);
    }
  }
}

void Persistence::LookAtLast(Job* job) {
  const Checkpoint* newest = standing_.Newest(*job);
  const bool relied_on = newest != nullptr && newest->files->persisted && newest->InMemory();
  if (IsOver(*job) && relied_on && job->scan->read < OverSince(*job)) look_(job);
}

// In a ring others may save in it: an old word does not count.
bool Persistence::KeptToTheEnd(const Job& job) const {
  const MonotonicNanos finished = OverSince(job);
  const bool heard = !job.standing->ring.has_value() || job.standing->ring->fresh;
  return heard && finished != 0 &&
         out_.now() - finished >= options_.finished_keep_seconds * kNanosPerSecond;
}

void Persistence::GiveUp(Checkpoint* newest, MonotonicNanos finished) {
  if (newest->files->given_up == finished) return;
  newest->files.Edit().given_up = finished;
  out_.Count("finished_given_up");
  out_.Log(Severity::kWarning,
           absl::StrCat(newest->key.DebugString(),
                        ", the newest of a job that has finished, may leave "
                        "memory, and is in no storage: ",
                        options_.storage ? newest->files->problem.message() : "there is none"));
}

void Persistence::OweNewest() {
  if (!options_.storage) return;
  for (const auto& [name, job] : jobs_.all()) {
    Checkpoint* newest = standing_.Newest(*job);
    if (newest == nullptr || newest->files->persisted || !CanWrite(*newest)) continue;
    if (!newest->files->deleted) Owe(newest, /*asked=*/true);
  }
}

// Other members have to write their parts of it, or it would never be whole in storage. Once: what was asked for has its
// turn, and its pauses after a failure.
bool Persistence::Secure(Checkpoint* checkpoint) {
  const Files& files = *checkpoint->files;
  if (files.requested || files.persisted || files.unconfirmed || !CanWrite(*checkpoint)) {
    return false;
  }
  AskEverybody(checkpoint);
  return true;
}

void Persistence::SecureWhatLeaves() {
  if (!options_.storage) return;
  for (const auto& [name, job] : jobs_.all()) SecureWhatLeaves(job.get());
}

void Persistence::SecureWhatLeaves(Job* job) {
  if (!options_.storage) return;
  if (Checkpoint* newest = standing_.Newest(*job)) Secure(newest);
  for (const CheckpointId& id : *job->pins) {
    Checkpoint* pinned = CheckpointOf(*job, id);
    if (pinned != nullptr && pinned->Complete()) Secure(pinned);
  }
}

bool Persistence::Drained() {
  if (!options_.storage) return true;
  bool done = true;
  for (const auto& [name, job] : jobs_.all()) {
    Checkpoint* newest = standing_.Newest(*job);
    if (newest == nullptr || newest->files->persisted || newest->files->deleted) continue;
    if (!newest->files->owes && CanWrite(*newest) && newest->content->broken_objects == 0) {
      Owe(newest, /*asked=*/true);
    }
    // What the others have not written yet they publish.
    done &= !newest->files->owes || newest->files->parked || newest->files->written;
  }
  return done;
}

// --- starting

// Two generations of one step would meet at the same place.
bool Persistence::StepBusy(const Checkpoint& checkpoint) const {
  const Job& job = *checkpoint.job;
  if (job.files->under_way == 0) return false;
  for (const Checkpoint* other : CheckpointsAt(job, checkpoint.key.step)) {
    if (other->files->persisting || other->files->deleting) return true;
  }
  return under_way_.contains(checkpoint.key);
}

// While it was not refused, and the others may still write theirs.
bool Persistence::TargetComesFirst(const Job& job, const Checkpoint& target) const {
  const Files& files = *target.files;
  if (job.owner->policy.mode != PersistMode::kNewest || !files.owes) return false;
  return files.problem.ok() && files.wait < kLookMax;
}

// The job's checkpoint whose turn it is: one that a user asked for, else the target, else another; the newest of each.
// When the daemon drains, only the newest. nullptr: none can start now.
Checkpoint* Persistence::Next(const Job& job) const {
  if (mode_.draining) {
    Checkpoint* newest = standing_.Newest(job);
    const bool due =
        newest != nullptr && job.files->ready.contains({!newest->files->requested, newest->Id()});
    return due && !StepBusy(*newest) ? newest : nullptr;
  }
  // Only those of a step that is being written are passed over.
  Checkpoint* target = TargetOf(job);
  const bool target_is_ready =
      target != nullptr && job.files->ready.contains({true, target->Id()}) && !StepBusy(*target);
  const auto& ready = job.files->ready;
  const auto unasked = ready.lower_bound({true, CheckpointId()});
  const auto newest_of = [&](auto first, auto end) -> Checkpoint* {
    while (end != first) {
      Checkpoint* checkpoint = CheckpointOf(job, (--end)->second);
      if (!StepBusy(*checkpoint)) return checkpoint;
    }
    return nullptr;
  };
  if (Checkpoint* asked = newest_of(ready.begin(), unasked)) return asked;
  if (target_is_ready) return target;
  if (target != nullptr && TargetComesFirst(job, *target)) return nullptr;
  return newest_of(unasked, ready.end());
}

void Persistence::Run() {
  if (!mode_.storage_here) return;
  TakeDue();
  for (const std::string& name : standing_.TakeFinished()) {
    if (Job* job = jobs_.Find(name)) LookAtLast(job);
  }
  if (ready_jobs_.empty() || static_cast<int>(under_way_.size()) >= options_.max_persists) return;
  const std::set<std::string> ready = ready_jobs_;
  // One each: a job with many, or with files that hang, does not starve the others.
  for (const std::string& name : ready) {
    if (static_cast<int>(under_way_.size()) >= options_.max_persists) return;
    const Job* job = jobs_.Find(name);
    if (job == nullptr || job->files->ready.empty() || job->files->at > out_.now()) continue;
    if (job->files->under_way > 0) continue;
    if (Checkpoint* next = Next(*job)) Start(next);
  }
}

void Persistence::Start(Checkpoint* checkpoint) {
  Job* job = checkpoint->job;
  if (!CanWrite(*checkpoint)) {  // part of it is not here
    Unowe(checkpoint);
    // Of one that was lost from storage the others have their parts, and may not have said so yet.
    checkpoint->files.Edit().requested &= !options_.ring.Alone() && !checkpoint->Complete();
    return;
  }
  action::Persist persist;
  persist.checkpoint = checkpoint->key;
  persist.uid = job->owner->uid;
  persist.gid = job->owner->gid;
  persist.origin = OriginToWrite(*job, checkpoint->key.attempt);
  UnderWay& under_way = under_way_[checkpoint->key];
  under_way.with_origin = persist.origin.has_value();
  under_way.persist = std::move(persist);
  preparing_.insert(checkpoint->key);
  TakeFromOwed(checkpoint);
  Files& files = checkpoint->files.Edit();
  files.persisting = files.preparing = true;
  files.parked = false;
  ++job->files.Edit().under_way;
}

std::optional<LineRecord> Persistence::OriginToWrite(const Job& job, Attempt attempt) {
  const auto begun = job.attempts->begun.find(attempt);
  if (begun == job.attempts->begun.end() || begun->second.lineage.open ||
      job.files->origin_stands == attempt) {
    return std::nullopt;
  }
  return LineRecord{job.name, attempt, LineRecordKind::kOrigin, begun->second.lineage};
}

std::vector<event::Persisted> Persistence::Prepare() {
  std::vector<event::Persisted> ended;
  int budget = options_.prepared_at_once;
  while (!preparing_.empty() && budget > 0) {
    const CheckpointKey key = *preparing_.begin();
    UnderWay& under_way = under_way_.at(key);
    Checkpoint* checkpoint = parts_.Find(key);
    const bool there =
        checkpoint != nullptr && checkpoint->files->persisting && CanWrite(*checkpoint);
    if (there && !TakeHold(&under_way, *checkpoint, &budget)) break;
    preparing_.erase(preparing_.begin());
    if (checkpoint != nullptr) checkpoint->files.Edit().preparing = false;
    if (there) {
      out_.Do(std::move(under_way.persist));
    } else {
      ended.push_back({key, absl::AbortedError("it left memory before it was written"), {}});
    }
  }
  return ended;
}

bool Persistence::TakeHold(UnderWay* under_way, const Checkpoint& checkpoint, int* budget) {
  const auto& parts = checkpoint.content->parts;
  for (auto at = parts.lower_bound(under_way->next); at != parts.end(); ++at, --*budget) {
    under_way->next = at->first;
    if (*budget == 0) return false;
    if (!Writes(*at->second)) continue;
    const PartContent& part = *at->second->content;
    for (const auto& [slab, objects] : part.slabs) {
      under_way->pinned.push_back(slab);
      ledger_.Pin(ledger_.Find(slab));
    }
    under_way->persist.parts.push_back(part.table);
  }
  return true;
}

MonotonicNanos Persistence::next() const {
  if (!mode_.storage_here) return kNever;
  MonotonicNanos next = later_.empty() ? kNever : later_.begin()->first;
  for (const std::string& name : ready_jobs_) {
    const MonotonicNanos at = jobs_.Find(name)->files->at;
    if (at > out_.now()) next = std::min(next, at);
  }
  return next;
}

// --- ending

Persistence::Ended Persistence::End(const event::Persisted& event) {
  const auto under_way = under_way_.find(event.checkpoint);
  if (under_way == under_way_.end()) return {};
  const UnderWay was = std::move(under_way->second);
  under_way_.erase(under_way);
  for (SlabId slab : was.pinned) ledger_.Unpin(ledger_.Find(slab));
  Job* job = jobs_.Find(event.checkpoint.job);
  if (job == nullptr) return {};
  --job->files.Edit().under_way;

  Ended ended;
  ended.known = true;
  ended.persisted = event.status.ok() && !event.awaits_others;
  ended.checkpoint = parts_.Find(event.checkpoint);
  // What was persisted was removed meanwhile, and a writer began it anew: that is something else.
  if (ended.checkpoint != nullptr && !ended.checkpoint->files->persisting) {
    ended.checkpoint = nullptr;
  }
  const bool removed =
      job->tombstones->removed.Forbids(event.checkpoint.step, event.checkpoint.attempt);
  if (!event.status.ok()) {
    Failed(ended.checkpoint, job, event);
    // Nothing was written, but files that another node wrote may stand there.
    ended.removed = removed && absl::IsAborted(event.status);
    return ended;
  }
  JobFiles& files = job->files.Edit();
  files.wait = 0;
  files.at = 0;
  files.problem.clear();
  if (was.with_origin) files.origin_stands = event.checkpoint.attempt;
  ended.removed = removed;
  if (event.awaits_others) {
    if (!removed && ended.checkpoint != nullptr) Written(ended.checkpoint);
    return ended;
  }
  files.persisted_at = out_.now();
  out_.Count("persists");
  // One that was evicted meanwhile is found by a scan.
  if (!ended.removed && ended.checkpoint != nullptr) Succeeded(ended.checkpoint, event.location);
  LookAtLast(job);
  return ended;
}

// Each look is as good as a first try: what stands is kept, and what a sweep has taken is written again.
void Persistence::Written(Checkpoint* checkpoint) {
  Files& files = checkpoint->files.Edit();
  if (!std::exchange(files.written, true)) out_.Count("parts_written");
  files.persisting = false;
  files.problem = absl::OkStatus();
  files.wait = std::clamp(files.wait * 2, kLookMin, kLookMax);
  files.again = out_.now() + files.wait;
  if (files.owes && !files.skipped) AddToOwed(checkpoint);
  ScheduleNext(checkpoint->job);
}

// The whole job waits: what storage refused of this checkpoint it would refuse of any other.
void Persistence::HoldBack(Job* job, const Status& why) {
  JobFiles& files = job->files.Edit();
  files.wait = std::clamp(files.wait * 2, options_.persist_retry_min, options_.persist_retry_max);
  files.at = out_.now() + files.wait;
  files.problem = std::string(why.message());
}

void Persistence::Failed(Checkpoint* checkpoint, Job* job, const event::Persisted& event) {
  out_.Count("persists_failed");
  job->files.Edit().origin_stands = 0;
  ++job->files.Edit().failed;
  job->files.Edit().failed_unix_ms = out_.UnixMillis();
  const Status& why = event.status;
  const bool said = job->files->problem == why.message() ||
                    (checkpoint != nullptr && checkpoint->files->problem == why);
  if (!said) {
    out_.Log(Severity::kWarning,
             absl::StrCat("persisting ", event.checkpoint.DebugString(), " failed, ",
                          IsPermanent(why) ? "not trying again until asked to, or much later: "
                                           : "trying again: ",
                          why.message()));
  }
  if (IsOfStorage(why)) HoldBack(job, why);
  if (checkpoint == nullptr) return;
  Files& files = checkpoint->files.Edit();
  files.persisting = false;
  if (!absl::IsAborted(why)) files.problem = why;
  files.parked = IsPermanent(why);
  files.wait = std::clamp(files.wait * 2, options_.persist_retry_min, options_.persist_retry_max);
  files.again = out_.now() + (files.parked ? options_.persist_retry_parked : files.wait);
  if (!files.owes || files.skipped) return;
  AddToOwed(checkpoint);
  // A newer one may have come meanwhile, whose turn it is now.
  if (job->owner->policy.mode == PersistMode::kNewest && !files.requested) ScheduleNext(job);
}

void Persistence::Succeeded(Checkpoint* checkpoint, const Location& location) {
  Files& files = checkpoint->files.Edit();
  files.persisting = false;
  files.owes = files.requested = false;
  files.problem = absl::OkStatus();
  files.again = files.wait = 0;
  // Of one that is complete with the others the parts that are not here are read next.
  if (!checkpoint->content->complete) {
    parts_.SetStoredDigest(checkpoint, checkpoint->elsewhere->digest);
  }
  BecomePersisted(checkpoint, location);
  SayPersisted(*checkpoint);
  OlderRevisionsWent(*checkpoint);
}

void Persistence::OlderRevisionsWent(const Checkpoint& checkpoint) {
  for (Checkpoint* older : CheckpointsAt(*checkpoint.job, checkpoint.key.step)) {
    if (older->key.attempt != checkpoint.key.attempt || !older->files->persisted) continue;
    if (older->key.revision >= checkpoint.key.revision) continue;
    out_.Say(fact::FilesDeleted{older->key});
    FilesAreGone(older->key);
    NoLongerPersisted(older);
    if (!older->Resident()) parts_.Erase(older);
  }
}

void Persistence::Published(Checkpoint* checkpoint) {
  checkpoint->job->files.Edit().persisted_at = out_.now();
  OlderRevisionsWent(*checkpoint);
}

void Persistence::BecomePersisted(Checkpoint* checkpoint, const Location& location) {
  // It was written, and storage went away before that was heard.
  if (!mode_.storage_here) return BecomeUnconfirmed(checkpoint);
  Files& files = checkpoint->files.Edit();
  JobFiles& of_job = checkpoint->job->files.Edit();
  files.persisted = true;
  files.unconfirmed = files.written = files.deleted = files.in_former_root = false;
  files.half_gone = 0;
  files.location = location;
  checkpoint->look.Edit() = of_job.looks;
  of_job.persisted.insert(checkpoint->Id());
  of_job.unconfirmed.erase(checkpoint->Id());
  of_job.gone.erase(checkpoint->Id());
}

void Persistence::BecomeUnconfirmed(Checkpoint* checkpoint) {
  Files& files = checkpoint->files.Edit();
  JobFiles& of_job = checkpoint->job->files.Edit();
  files.persisted = false;
  files.unconfirmed = true;
  of_job.persisted.erase(checkpoint->Id());
  of_job.unconfirmed.insert(checkpoint->Id());
}

void Persistence::NoLongerPersisted(Checkpoint* checkpoint) {
  Files& files = checkpoint->files.Edit();
  files.persisted = files.unconfirmed = files.written = files.in_former_root = false;
  files.half_gone = 0;
  files.location = {};
  checkpoint->job->files.Edit().persisted.erase(checkpoint->Id());
  checkpoint->job->files.Edit().unconfirmed.erase(checkpoint->Id());
}

void Persistence::FilesAreGone(const CheckpointKey& key) {
  Job* job = jobs_.Find(key.job);
  if (job == nullptr || job->scan->state != ScanState::kScanning) return;
  job->files.Edit().gone.insert({key.step, key.attempt, key.revision});
}

// --- told by others

void Persistence::SayPersisted(const Checkpoint& checkpoint) {
  out_.Say(fact::Persisted{checkpoint.key, checkpoint.content->digest});
}

void Persistence::FoundStored(Checkpoint* checkpoint, const Location& location) {
  const Files& known = *checkpoint->files;
  const bool owed = known.owes || known.requested || known.parked || !known.problem.ok();
  // Of thousands that a reading finds as they were, nothing changes.
  if (mode_.storage_here && known.persisted && !known.unconfirmed && !known.stored_whole && !owed &&
      !known.given_up.has_value() && known.location == location) {
    checkpoint->look.Edit() = checkpoint->job->files->looks;
    return;
  }
  if (checkpoint->content->complete && !checkpoint->files->persisted) SayPersisted(*checkpoint);
  BecomePersisted(checkpoint, location);
  Files& files = checkpoint->files.Edit();
  Unowe(checkpoint);  // first: its place among the owed follows from `requested`
  files.stored_whole = files.parked = files.requested = false;
  files.given_up.reset();
}

void Persistence::LookBegins(Job* job) {
  ++job->files.Edit().looks;
  job->files.Edit().look_again = 0;
  job->files.Edit().gone.clear();
  job->files.Edit().damaged.clear();
}

bool Persistence::Looked(Job* job, CheckpointId* after, int* budget) {
  const auto& all = job->steps->all;
  std::vector<Checkpoint*> missing;
  auto at = all.upper_bound(*after);
  for (; at != all.end() && *budget > 0; ++at, --*budget) {
    *after = at->first;
    const Files& files = *at->second->files;
    if (!files.persisted && !files.unconfirmed) continue;
    // What is being deleted may be gone rightly; that it is will be told.
    if (*at->second->look < job->files->looks && !files.deleting) {
      missing.push_back(at->second.get());
      *budget -= static_cast<int>(at->second->content->parts.size());
    }
  }
  const bool done = at == all.end();
  for (Checkpoint* checkpoint : missing) Gone(checkpoint);
  return done;
}

bool Persistence::NotInStorage(Checkpoint* checkpoint, absl::string_view why) {
  out_.Count("files_missing");
  out_.Log(Severity::kWarning,
           absl::StrCat(checkpoint->key.DebugString(), " was persisted and ", why));
  out_.Say(fact::FilesDeleted{checkpoint->key});
  NoLongerPersisted(checkpoint);
  if (checkpoint->content->broken_objects > 0) return false;  // shown as what it is
  return checkpoint->Resident() || parts_.LeaveStorage(checkpoint);
}

void Persistence::Gone(Checkpoint* checkpoint) {
  if (checkpoint->files->in_former_root) {
    return Lost(checkpoint, "is not in the directory that took the place of its storage");
  }
  if (!NotInStorage(checkpoint,
                    "is not in storage any more; it is not written there again unless a "
                    "user asks for it")) {
    return;
  }
  Unowe(checkpoint);
  checkpoint->files.Edit().deleted = true;
}

void Persistence::Lost(Checkpoint* checkpoint, absl::string_view why) {
  if (!NotInStorage(checkpoint, why)) return;
  for (const Checkpoint* other : CheckpointsAt(*checkpoint->job, checkpoint->key.step)) {
    if (other->Id() > checkpoint->Id() && other->files->persisted) return;  // it took its place
  }
  Ask(checkpoint);  // it was acknowledged, so the policy is not asked again
}

void Persistence::FoundHalfGone(Job* job, const CheckpointId& id, const std::string& damage) {
  if (!damage.empty()) job->files.Edit().damaged[id] = damage;
  Checkpoint* checkpoint = CheckpointOf(*job, id);
  if (checkpoint == nullptr) return;
  const Files& known = *checkpoint->files;
  if (!known.persisted && !known.unconfirmed) return;
  checkpoint->look.Edit() = checkpoint->job->files->looks;
  if (known.deleting) return;
  if (known.half_gone == 0) {
    // It counts for nothing until the next look.
    if (known.persisted) BecomeUnconfirmed(checkpoint);
    checkpoint->files.Edit().half_gone = out_.now();
  }
  const MonotonicNanos again = known.half_gone + kHalfGoneAge;
  if (out_.now() < again) {
    MonotonicNanos& look_again = checkpoint->job->files.Edit().look_again;
    look_again = look_again == 0 ? again : std::min(look_again, again);
    return;
  }
  Lost(checkpoint, "has lost files in storage");
}

void Persistence::OriginsAreGone(Job* job) {
  job->files.Edit().origin_stands = 0;
  // Those under way may have written theirs before.
  for (auto& [checkpoint, under_way] : under_way_) {
    if (checkpoint.job == job->name) under_way.with_origin = false;
  }
}

void Persistence::StorageLeft(Job* job) {
  OriginsAreGone(job);
  const std::set<CheckpointId> persisted = job->files->persisted;
  for (const CheckpointId& id : persisted) BecomeUnconfirmed(CheckpointOf(*job, id));
  for (const auto& [id, checkpoint] : job->steps->all) {
    if (checkpoint->files->written) checkpoint->files.Edit().written = false;
  }
  if (!job->files->owed.empty() || !job->files->unconfirmed.empty()) {
    job->files.Edit().problem = mode_.storage_problem;
  }
}

void Persistence::StorageCame(Job* job, bool same) {
  JobFiles& files = job->files.Edit();
  files.problem.clear();
  files.at = files.wait = 0;
  const std::set<CheckpointId> unconfirmed = files.unconfirmed;
  for (const CheckpointId& id : unconfirmed) {
    Checkpoint* checkpoint = CheckpointOf(*job, id);
    if (!same) {
      checkpoint->files.Edit().in_former_root = true;
      continue;
    }
    // The last scan found less of it, or there was none of the directory that stands there: one has to find it.
    if (checkpoint->files->half_gone != 0 || checkpoint->files->in_former_root) continue;
    const Location location = checkpoint->files->location;
    BecomePersisted(checkpoint, location);
    if (!checkpoint->files->requested) Unowe(checkpoint);
  }
}

void Persistence::DeleteBegins(Checkpoint* checkpoint) { checkpoint->files.Edit().deleting = true; }

void Persistence::DeleteFailed(Checkpoint* checkpoint) {
  checkpoint->files.Edit().deleting = false;
}

void Persistence::Deleted(Checkpoint* checkpoint) {
  checkpoint->files.Edit().deleting = false;
  NoLongerPersisted(checkpoint);
  checkpoint->files.Edit().deleted = true;
}

// Only what the job keeps of it: its own values go with it.
void Persistence::CheckpointGoes(Checkpoint* checkpoint) {
  TakeFromOwed(checkpoint);
  const Files& files = *checkpoint->files;
  if (files.persisted || files.unconfirmed) NoLongerPersisted(checkpoint);
}

// --- facts

void Persistence::Restore(const Restored& restored) {
  for (const CheckpointKey& key : restored.asked) {
    Job* job = options_.ring.Alone() ? nullptr : jobs_.Find(key.job);
    if (job != nullptr) RememberAsked(job, {key.step, key.attempt, key.revision});
  }
  for (const auto& [name, job] : jobs_.all()) {
    for (const auto& [id, checkpoint] : job->steps->all) {
      const auto persisted = restored.persisted.find(checkpoint->key);
      if (persisted == restored.persisted.end()) continue;
      if (!checkpoint->content->complete) {
        // Part of what storage has whole was evicted: the scan makes it complete again.
        checkpoint->files.Edit().stored_whole = true;
        parts_.SetStoredDigest(checkpoint.get(), persisted->second);  // a snapshot says it again
      } else if (persisted->second == checkpoint->content->digest) {
        BecomeUnconfirmed(checkpoint.get());  // until storage has been seen
      }
    }
    for (const auto& [id, checkpoint] : job->steps->all) {
      if (restored.files_deleted.contains(checkpoint->key)) checkpoint->files.Edit().deleted = true;
    }
    for (const auto& [id, checkpoint] : job->steps->all) {
      const CheckpointKey& key = checkpoint->key;
      const bool asked = options_.storage && restored.asked.contains(key) &&
                         !restored.persisted.contains(key) && !restored.files_deleted.contains(key);
      if (!checkpoint->content->complete) {
        // It may be complete with the others, and is due once that is known.
        if (asked && !options_.ring.Alone()) checkpoint->files.Edit().requested = true;
        continue;
      }
      ScheduleByPolicy(checkpoint.get());
      if (asked) Owe(checkpoint.get(), /*asked=*/true);
    }
  }
}

void Persistence::Snapshot(const Job& job, std::vector<Fact>* facts) {
  for (const CheckpointId& id : *job.asked) {
    facts->push_back(fact::PersistAsked{{job.name, id.step, id.attempt, id.revision}});
  }
}

void Persistence::Snapshot(const Checkpoint& checkpoint, std::vector<Fact>* facts) const {
  const Files& files = *checkpoint.files;
  const auto& parts = checkpoint.content->parts;
  const bool stored = files.persisted || files.unconfirmed || files.stored_whole;
  // What only storage has is found there.
  if (stored && (!checkpoint.memory->slabs.empty() ||
                 std::any_of(parts.begin(), parts.end(),
                             [](const auto& part) { return part.second->manifest->resident; }))) {
    facts->push_back(fact::Persisted{checkpoint.key, checkpoint.content->digest});
  }
  if (files.deleted) facts->push_back(fact::FilesDeleted{checkpoint.key});
  if (files.requested) facts->push_back(fact::PersistAsked{checkpoint.key});
}

std::string Persistence::CheckOwed(const Job& job) const {
  size_t ready = 0;
  for (const CheckpointId& id : job.files->owed) {
    const Checkpoint& checkpoint = *CheckpointOf(job, id);
    const bool is_ready = job.files->ready.contains({!checkpoint.files->requested, id});
    if (is_ready == later_.contains({checkpoint.files->again, checkpoint.key})) {
      return checkpoint.key.DebugString() + " is owed, and is not either ready or tried later";
    }
    ready += is_ready ? 1 : 0;
  }
  if (ready != job.files->ready.size() || (ready > 0) != ready_jobs_.contains(job.name)) {
    return absl::StrCat("job ", job.name, ": what is ready to be persisted is miscounted");
  }
  return "";
}

std::string Persistence::CheckInvariants(std::map<SlabId, uint32_t>* pins) const {
  if (static_cast<int>(under_way_.size()) > options_.max_persists) return "too many persists";
  for (const auto& [checkpoint, of_it] : under_way_) {
    for (SlabId slab : of_it.pinned) ++(*pins)[slab];
  }
  for (const auto& [name, job] : jobs_.all()) {
    size_t persisted = 0, unconfirmed = 0;
    if (!mode_.storage_here && !job->files->persisted.empty()) {
      return absl::StrCat("job ", name, " has persisted what is in no storage that is here");
    }
    for (const auto& [id, checkpoint] : job->steps->all) {
      persisted += checkpoint->files->persisted ? 1 : 0;
      unconfirmed += checkpoint->files->unconfirmed ? 1 : 0;
      if (checkpoint->files->persisted != job->files->persisted.contains(id) ||
          checkpoint->files->unconfirmed != job->files->unconfirmed.contains(id) ||
          (checkpoint->files->persisted && checkpoint->files->unconfirmed)) {
        return checkpoint->key.DebugString() + ": persisted?";
      }
    }
    if (persisted != job->files->persisted.size() ||
        unconfirmed != job->files->unconfirmed.size()) {
      return absl::StrCat("job ", name, ": checkpoints that are gone are kept as persisted");
    }
    if (std::string problem = CheckOwed(*job); !problem.empty()) return problem;
  }
  return "";
}

}  // namespace cairn::engine
