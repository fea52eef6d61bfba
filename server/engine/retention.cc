#include "server/engine/retention.h"

#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "server/engine/keep_plan.h"
#include "server/engine/restored.h"
#include "server/engine/scanning.h"

namespace cairn::engine {

Retention::Retention(const Options& options, Outbox* out, Callers* callers, Jobs* jobs,
                     Sessions* sessions, Parts* parts, Persistence* persistence, Eviction* eviction,
                     Standing* standing, Describing* describing, JournalRoom* journal)
    : options_(options),
      out_(*out),
      callers_(*callers),
      jobs_(*jobs),
      sessions_(*sessions),
      parts_(*parts),
      persistence_(*persistence),
      eviction_(*eviction),
      standing_(*standing),
      describing_(*describing),
      journal_(*journal) {}

Retention::~Retention() = default;

// --- by policy

void Retention::ApplyKeepPolicy(Job* job) {
  if (job->owner->policy.keep_last <= 0 || !options_.storage || Waits(*job)) return;
  if (!options_.ring.Alone() && !(is_home_ && is_home_(*job))) return;
  const Deletions deletions = PlanDeletions(*job, options_, standing_, out_.now());
  if (deletions.look) scanning_->Look(job);
  if (deletions.unread) scanning_->Insist(job);
  for (Checkpoint* checkpoint : deletions.now) {
    persistence_.DeleteBegins(checkpoint);
    SendDelete(*job, checkpoint->key, /*tombstone=*/false);
  }
}

void Retention::SendDelete(const Job& job, const CheckpointKey& key, bool tombstone) {
  action::DeleteFiles remove{key, job.owner->uid, job.owner->gid, tombstone};
  // All attempts up to it are gone for good, or it alone.
  const auto removed = job.tombstones->removed.steps.find(key.step);
  remove.this_attempt = tombstone && (removed == job.tombstones->removed.steps.end() ||
                                      !removed->second.Covers({1, key.attempt}));
  remove.newest_known = job.attempts->newest_recorded();
  const Checkpoint* stays = tombstone ? nullptr : standing_.NewestPersisted(job);
  if (stays != nullptr) remove.stays = stays->key;
  ++deleting_[key.job][{key.step, key.attempt, key.revision}];
  out_.Do(std::move(remove));
}

void Retention::On(const event::FilesDeleted& event) {
  if (const auto of_job = deleting_.find(event.checkpoint.job); of_job != deleting_.end()) {
    jobs_.MayForget(of_job->first);
    const auto& [job, step, attempt, revision] = event.checkpoint.Tie();
    const auto at = of_job->second.find({step, attempt, revision});
    if (at != of_job->second.end() && --at->second == 0) of_job->second.erase(at);
    if (of_job->second.empty()) deleting_.erase(of_job);
  }
  Checkpoint* checkpoint = parts_.Find(event.checkpoint);
  if (event.status.ok()) {
    out_.Say(fact::FilesDeleted{event.checkpoint});
    persistence_.FilesAreGone(event.checkpoint);
    out_.Count("files_deleted");
    // Of several that were asked for together another may have failed, and waits.
    if (const Job* job = jobs_.Find(event.checkpoint.job); job != nullptr && !Waits(*job)) {
      Forget(job->name);
    }
  } else {
    HoldBack(event.checkpoint.job);
    out_.Log(Severity::kWarning,
             absl::StrCat("deleting the files of ", event.checkpoint.DebugString(),
                          " failed: ", event.status.message()));
  }
  // A scan that looked before may have brought it back meanwhile: files that are gone are gone.
  if (checkpoint != nullptr &&
      (checkpoint->files->deleting || (event.status.ok() && checkpoint->files->persisted))) {
    if (event.status.ok()) {
      persistence_.Deleted(checkpoint);
      const bool whole = checkpoint->Resident() && !checkpoint->content->parts.empty();
      if (!whole && !checkpoint->content->condemned) parts_.LeaveStorage(checkpoint);
    } else {
      persistence_.DeleteFailed(checkpoint);
    }
  }
  AnswerRemovals(event.checkpoint, event.status);
}

bool Retention::IsDeleting(const CheckpointKey& key) const {
  const auto of_job = deleting_.find(key.job);
  return of_job != deleting_.end() &&
         of_job->second.contains({key.step, key.attempt, key.revision});
}

// --- deletions that fail

bool Retention::Waits(const Job& job) const {
  const auto at = refused_.find(job.name);
  return at != refused_.end() && at->second.waits;
}

void Retention::HoldBack(const std::string& job) {
  Refused& refused = refused_[job];
  if (refused.waits) return;
  due_.erase({refused.at, job});
  refused.wait =
      std::clamp(refused.wait * 2, options_.persist_retry_min, options_.persist_retry_max);
  refused.at = out_.now() + refused.wait;
  refused.waits = true;
  due_.emplace(refused.at, job);
}

void Retention::Forget(const std::string& job) {
  const auto at = refused_.find(job);
  if (at == refused_.end()) return;
  due_.erase({at->second.at, job});
  refused_.erase(at);
}

void Retention::TryAgainDue() {
  while (!due_.empty() && due_.begin()->first <= out_.now()) {
    const std::string name = due_.begin()->second;
    Job* job = jobs_.Find(name);
    Refused& refused = refused_.at(name);
    if (job == nullptr || !refused.waits) {
      Forget(name);
      continue;
    }
    due_.erase(due_.begin());
    refused.waits = false;
    refused.at = out_.now() + 2 * options_.persist_retry_max;
    due_.emplace(refused.at, name);
    scanning_->Look(job);
  }
}

// --- rm

Status Retention::CheckRemoved(const Job& job, Step step, Attempt attempt) {
  const RemovedSteps& removed = job.tombstones->removed;
  if (!removed.Forbids(step, attempt)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("step: ", step, " of job ", job.name, " was removed; attempts up to ",
                   removed.steps.at(step).ranges().back().last, " do not bring it back"));
}

Status Retention::CheckRemove(const event::Remove& event, const Job& job,
                              const Checkpoint* checkpoint) const {
  if (checkpoint == nullptr && options_.storage && job.scan->state == ScanState::kScanning) {
    return absl::UnavailableError(absl::StrCat("step: ", event.ref.step, " of job ", job.name,
                                               " is not known yet: its storage has not answered"));
  }
  if (checkpoint == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("step: ", event.ref.step, " of job ", job.name, " is unknown"));
  }
  const std::string shown = checkpoint->key.DebugString();
  if (*checkpoint->pinned) {
    return absl::FailedPreconditionError(absl::StrCat("remove: ", shown, " is pinned"));
  }
  // From memory it alone goes. Else all of its attempt go with it, and of the step where no attempt is
  // named: what is shown of a step may be incomplete, and an older one whole.
  std::vector<const Checkpoint*> all = {checkpoint};
  if (!event.memory_only) {
    for (const Checkpoint* other : CheckpointsAt(job, checkpoint->key.step)) {
      const bool goes = event.ref.attempt == 0 || other->key.attempt == event.ref.attempt;
      if (!goes || other == checkpoint) continue;
      if (*other->pinned) {
        return absl::FailedPreconditionError(absl::StrCat(
            "remove: ", other->key.DebugString(), " is pinned, and goes with its ",
            event.ref.attempt == 0 ? "step; name the attempt that is to go" : "attempt"));
      }
      all.push_back(other);
    }
  }
  if (event.force) return absl::OkStatus();
  std::erase_if(all, [&](const Checkpoint* of) {
    return !of->Complete() || (event.memory_only && of->files->persisted);
  });
  if (all.empty()) return absl::OkStatus();
  const Checkpoint& lost = *all.front();
  const char* const where = !lost.files->persisted ? "in memory"
                            : lost.Resident()      ? "in memory and in storage"
                                                   : "in storage";
  const size_t more = all.size() - 1;
  const std::string others =
      more == 0 ? ""
                : absl::StrCat(", nor of ", more, more == 1 ? " other checkpoint" : " others",
                               " of the step");
  return absl::FailedPreconditionError(absl::StrCat("remove: nothing would be left of ",
                                                    lost.key.DebugString(), ", which is ", where,
                                                    others, "; force removes it all the same"));
}

void Retention::On(const event::Remove& event) {
  Job* job = scanning_->Readable(&sessions_, event.caller, event.ref.job, event.deadline, event,
                                 /*scan=*/true);
  if (job == nullptr) return;
  const RequestId request = event.caller.request;
  Checkpoint* checkpoint = describing_.ForShow(*job, event.ref);
  const Status status = CheckRemove(event, *job, checkpoint);
  if (!status.ok()) return out_.Answer(request, status);
  if (!event.memory_only) {
    // An attempt that is named goes alone; else the whole step goes, up to its newest attempt.
    const Step step = checkpoint->key.step;
    const Attempt last =
        event.ref.attempt != 0 ? event.ref.attempt : CheckpointsAt(*job, step).back()->key.attempt;
    return RemoveStep(event, job, step, {event.ref.attempt != 0 ? last : 1, last});
  }
  if (checkpoint->files->persisted) {
    eviction_.DropMemory(checkpoint);
  } else {
    parts_.EraseHere(checkpoint);
  }
  out_.Answer(request, Body(reply::Ok{}));
}

void Retention::RemoveStep(const event::Remove& event, Job* job, Step step,
                           const AttemptRanges::Range& attempts) {
  const auto known = job->tombstones->removed.steps.find(step);
  AttemptRanges all =
      known == job->tombstones->removed.steps.end() ? AttemptRanges() : known->second;
  const size_t ranges_before = all.ranges().size();
  all.Add(attempts.first, attempts.last);
  if (all.ranges().size() > kMaxRemovedRanges) {
    return out_.Answer(event.caller.request,
                       absl::ResourceExhaustedError(absl::StrCat(
                           "remove: step ", step, " of job ", job->name, " has ", kMaxRemovedRanges,
                           " removed ranges of attempts; remove the whole step")));
  }
  const size_t more = all.ranges().size() - std::min(all.ranges().size(), ranges_before);
  if (!options_.ring.Alone() && job->tombstones->ranges + more > kMostRecordRanges) {
    return out_.Answer(
        event.caller.request,
        absl::ResourceExhaustedError(
            absl::StrCat("remove: of job ", job->name, " ", job->tombstones->ranges,
                         " steps are removed one by one, the most that the members of a ring "
                         "tell each other is ",
                         kMostRecordRanges, "; what a policy (keep_last) deletes is not counted")));
  }
  // Its files are waited for.
  Status full = callers_.CheckRoom(event.caller);
  const std::vector<Checkpoint*> there = CheckpointsAt(*job, step);
  const bool frees =
      std::any_of(there.begin(), there.end(), [](const Checkpoint* of) { return of->InMemory(); });
  if (full.ok() && !frees && all.ranges().size() > ranges_before) {
    full = journal_.CheckShare(job->owner->uid, JournalRoom::CostOfRemoved(job->name));
  }
  if (!full.ok()) return out_.Answer(event.caller.request, std::move(full));
  // The fact first: it outlives a persist that ends later, and a restart before the files are gone.
  Remember(job, step, attempts);
  out_.Count("removed_steps");
  std::vector<CheckpointKey> files;
  for (Checkpoint* checkpoint : CheckpointsAt(*job, step)) {
    if (checkpoint->key.attempt < attempts.first || checkpoint->key.attempt > attempts.last) {
      continue;
    }
    const CheckpointKey key = checkpoint->key;
    const bool persisted = checkpoint->files->persisted;
    const bool busy = checkpoint->files->persisting || checkpoint->files->deleting;
    if (persisted && !busy) SendDelete(*job, key, /*tombstone=*/true);
    // What is being persisted is deleted when the persist has ended.
    if (persisted || busy) files.push_back(key);
    parts_.Erase(checkpoint);
  }
  if (files.empty()) return out_.Answer(event.caller.request, Body(reply::Ok{}));
  if (!callers_.Park(this, event.caller, job->name, event.deadline, event)) return;
  for (const CheckpointKey& key : files) removals_[key].insert(event.caller.request);
}

void Retention::Remember(Job* job, Step step, const AttemptRanges::Range& attempts) {
  AttemptRanges& removed = job->tombstones.Edit().removed.steps[step];
  const size_t before = removed.ranges().size();
  removed.Add(attempts.first, attempts.last);
  Charge(job, job->tombstones->ranges + removed.ranges().size() - before);
  out_.Say(fact::StepRemoved{job->name, step, attempts.first, attempts.last});
  // Another member's removal wins over a pin of this one.
  if (options_.ring.Alone()) return;
  const auto goes = [&](const CheckpointId& id) {
    return id.step == step && id.attempt >= attempts.first && id.attempt <= attempts.last;
  };
  const auto& pins = *job->pins;
  const auto& said = *job->said_pins;
  if (std::any_of(pins.begin(), pins.end(), goes)) std::erase_if(job->pins.Edit(), goes);
  if (std::any_of(said.begin(), said.end(), [&](const auto& pin) { return goes(pin.first); })) {
    std::erase_if(job->said_pins.Edit(), [&](const auto& pin) { return goes(pin.first); });
  }
}

void Retention::Charge(Job* job, size_t ranges) {
  JobTombstones& tombstones = job->tombstones.Edit();
  const uint64_t each = JournalRoom::CostOfRemoved(job->name);
  journal_.RefundLasting(tombstones.uid, tombstones.ranges * each);
  tombstones.uid = job->owner->uid;
  tombstones.ranges = ranges;
  ++tombstones.changes;
  journal_.ChargeLasting(tombstones.uid, ranges * each);
}

void Retention::Forgets(const Job& job) {
  const JobTombstones& tombstones = *job.tombstones;
  journal_.RefundLasting(tombstones.uid, tombstones.ranges * JournalRoom::CostOfRemoved(job.name));
}

void Retention::AddJournal(std::map<uint32_t, uint64_t>* held) const {
  for (const auto& [name, job] : jobs_.all()) {
    const JobTombstones& tombstones = *job->tombstones;
    if (tombstones.ranges == 0) continue;
    (*held)[tombstones.uid] += tombstones.ranges * JournalRoom::CostOfRemoved(name);
  }
}

void Retention::Learn(Job* job, const RemovedSteps& stored) {
  for (const auto& [step, attempts] : stored.steps) {
    for (const AttemptRanges::Range& range : attempts.ranges()) {
      const auto known = job->tombstones->removed.steps.find(step);
      if (known != job->tombstones->removed.steps.end() && known->second.Covers(range)) continue;
      Remember(job, step, range);
    }
    for (Checkpoint* checkpoint : CheckpointsAt(*job, step)) {
      // One that is being persisted goes when that has ended.
      if (!attempts.Contains(checkpoint->key.attempt) || checkpoint->files->persisting) continue;
      parts_.Erase(checkpoint);
    }
  }
}

void Retention::PersistEnded(const CheckpointKey& key, bool removed) {
  if (removed) return SendDelete(*jobs_.Find(key.job), key, /*tombstone=*/true);
  AnswerRemovals(key, absl::OkStatus());
}

void Retention::DeleteLeftover(const Job& job, const CheckpointKey& key) {
  if (!Waits(job)) SendDelete(job, key, /*tombstone=*/true);
}

void Retention::AnswerRemovals(const CheckpointKey& key, const Status& status) {
  const auto at = removals_.find(key);
  if (at == removals_.end()) return;
  const std::set<RequestId> requests = at->second;
  for (RequestId request : requests) {
    callers_.Answer(request, status.ok() ? StatusOr<Body>(Body(reply::Ok{}))
                                         : StatusOr<Body>(Annotate(status, "remove")));
  }
}

void Retention::Left(const Parked& parked) {
  for (auto removal = removals_.begin(); removal != removals_.end();) {
    removal->second.erase(parked.request);
    removal = removal->second.empty() ? removals_.erase(removal) : std::next(removal);
  }
}

void Retention::TimeUp(const Parked& parked) {
  callers_.Answer(parked.request,
                  absl::DeadlineExceededError(
                      "remove: decided and remembered, but its files are not deleted yet"));
}

// --- pin

void Retention::On(const event::Pin& event) {
  Job* job = scanning_->Readable(&sessions_, event.caller, event.ref.job,
                                 out_.now() + kScanPatience, event, /*scan=*/true);
  if (job == nullptr) return;
  const StatusOr<Checkpoint*> found = describing_.Resolve(*job, event.ref);
  if (!found.ok()) return out_.Answer(event.caller.request, found.status());
  Checkpoint* checkpoint = *found;
  if (*checkpoint->pinned != event.pinned) {
    const auto& said = *job->said_pins;
    const auto before = said.find(checkpoint->Id());
    if (before == said.end() && said.size() >= kMostRecordPins) {
      return out_.Answer(
          event.caller.request,
          absl::ResourceExhaustedError(absl::StrCat(
              "pin: job ", job->name, " has ", said.size(),
              " pins, with those that were taken back; the limit is ", kMostRecordPins)));
    }
    Stamp stamp = before == said.end() ? Stamp() : before->second.stamp;
    if (!options_.ring.Alone()) stamp = {stamp.version + 1, options_.ring.rank};
    SetPin(job, checkpoint->Id(), {event.pinned, stamp});
  }
  out_.Answer(event.caller.request, Body(reply::Ok{}));
}

void Retention::SetPin(Job* job, const CheckpointId& id, const JobRecord::Pin& pin) {
  if (!options_.ring.Alone()) job->said_pins.Edit()[id] = pin;
  if (pin.pinned) {
    job->pins.Edit().insert(id);
  } else {
    job->pins.Edit().erase(id);
  }
  Checkpoint* checkpoint = CheckpointOf(*job, id);
  if (checkpoint != nullptr && *checkpoint->pinned != pin.pinned) {
    checkpoint->pinned.Edit() = pin.pinned;
  }
  out_.Say(fact::Pinned{{job->name, id.step, id.attempt, id.revision},
                        pin.pinned,
                        pin.stamp.version,
                        pin.stamp.rank});
}

void Retention::Learn(Job* job, const std::map<CheckpointId, JobRecord::Pin>& pins) {
  for (const auto& [id, pin] : pins) {
    if (!CheckRemoved(*job, id.step, id.attempt).ok()) continue;
    const auto known = job->said_pins->find(id);
    const bool fresh = known == job->said_pins->end();
    // Each member refuses more than kMostRecordPins; several at once may come to twice as many.
    if (fresh && job->said_pins->size() >= 2 * kMostRecordPins) continue;
    if (!fresh &&
        std::tie(pin.stamp, pin.pinned) <= std::tie(known->second.stamp, known->second.pinned)) {
      continue;
    }
    SetPin(job, id, pin);
  }
}

// --- facts

void Retention::Restore(const Restored& restored) {
  for (const auto& [job, removed] : restored.removed) {
    Job* of = jobs_.FindOrMake(job);
    of->tombstones.Edit().removed = removed;
    size_t ranges = 0;
    for (const auto& [step, attempts] : removed.steps) ranges += attempts.ranges().size();
    Charge(of, ranges);
  }
  for (const auto& [key, fact] : restored.pinned) {
    Job* job = jobs_.FindOrMake(key.job);
    if (!options_.ring.Alone() && !CheckRemoved(*job, key.step, key.attempt).ok()) continue;
    const CheckpointId id{key.step, key.attempt, key.revision};
    if (fact.pinned) job->pins.Edit().insert(id);
    if (options_.ring.Alone()) continue;
    // What was said before there was a ring, this node said.
    Stamp stamp{fact.version, fact.rank};
    if (stamp.version == 0) stamp = {1, options_.ring.rank};
    job->said_pins.Edit()[id] = {fact.pinned, stamp};
  }
}

void Retention::Snapshot(const Job& job, std::vector<Fact>* facts) const {
  for (const auto& [step, attempts] : job.tombstones->removed.steps) {
    for (const AttemptRanges::Range& range : attempts.ranges()) {
      facts->push_back(fact::StepRemoved{job.name, step, range.first, range.last});
    }
  }
  const auto key = [&](const CheckpointId& id) {
    return CheckpointKey{job.name, id.step, id.attempt, id.revision};
  };
  for (const auto& [id, pin] : *job.said_pins) {
    facts->push_back(fact::Pinned{key(id), pin.pinned, pin.stamp.version, pin.stamp.rank});
  }
  if (!job.said_pins->empty()) return;
  for (const CheckpointId& id : *job.pins) facts->push_back(fact::Pinned{key(id), true});
}

}  // namespace cairn::engine
