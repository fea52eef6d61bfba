// One file: creates, seals, commits and aborts are the calls of one part.
#include "server/engine/saving.h"

#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "server/engine/cluster.h"
#include "server/engine/retention.h"

namespace cairn::engine {
namespace {

Status CommitUnderWay(const PartKey& part) {
  return absl::FailedPreconditionError(
      absl::StrCat("commit: of ", part.DebugString(), " is under way"));
}

// Whether two of these names cannot stand in one checkpoint. Which two, FindCollision tells; it takes three
// times as long.
bool Collide(const std::vector<event::ObjectSpec>& objects) {
  absl::flat_hash_set<absl::string_view> names, directories;
  names.reserve(objects.size());
  for (const event::ObjectSpec& spec : objects) {
    const absl::string_view name = spec.name;
    if (!names.insert(name).second) return true;
    for (size_t at = name.rfind('/'); at != name.npos && at > 0; at = name.rfind('/', at - 1)) {
      if (!directories.insert(name.substr(0, at)).second) break;  // and so those above it
    }
  }
  return std::any_of(directories.begin(), directories.end(),
                     [&](absl::string_view directory) { return names.contains(directory); });
}

bool MayFit(const event::Create& event, uint64_t budget) {
  if (event.to_come.bytes > budget) return false;
  uint64_t left = budget - event.to_come.bytes;
  for (const event::ObjectSpec& object : event.objects) {
    if (object.length > left) return false;
    left -= object.length;
  }
  return true;
}

}  // namespace

Saving::Saving(const Options& options, const Mode& mode, Outbox* out, Callers* callers, Jobs* jobs,
               Sessions* sessions, Leases* leases, Ledger* ledger, Attempts* attempts, Parts* parts,
               Manifests* manifests, Admission* admission, Pool* pool, Scanning* scanning,
               Succession* succession, JournalRoom* journal)
    : options_(options),
      mode_(mode),
      out_(*out),
      callers_(*callers),
      jobs_(*jobs),
      sessions_(*sessions),
      leases_(*leases),
      ledger_(*ledger),
      attempts_(*attempts),
      parts_(*parts),
      manifests_(*manifests),
      admission_(*admission),
      pool_(*pool),
      scanning_(*scanning),
      succession_(*succession),
      journal_(*journal) {}

// --- create

void Saving::On(const event::Create& event) {
  if (const Session* known = sessions_.Find(event.caller.session)) {
    leases_.Unmapped(*known, event.unmapped);
  }
  const std::optional<Who> who = WhoWrites(event.caller, event.part, event.deadline, event);
  if (!who.has_value()) return;
  const auto& [session, job] = *who;
  Part* part = parts_.Find(event.part);
  if (part != nullptr && part->content->lost.empty()) {
    if (auto answer = AnswerOfRepeat(event, part, *session)) {
      return out_.Answer(event.caller.request, *std::move(answer));
    }
  }
  if (!MayBegin(event, *who, event)) return;
  if (const Status room = CheckJournal(event, *job); !room.ok()) {
    return out_.Answer(event.caller.request, room);
  }
  Begin(event.caller, event.part, event.world_size, *who);
  attempts_.TakeStep(job, event.part, event.world_size, *session);
  const int32_t local_writers = std::min(
      session->world_size == event.world_size ? session->local_writers : 1, event.world_size);
  admission_.Ask(event, parts_.FindOrMake(job, event.part.checkpoint, event.world_size),
                 local_writers);
}

std::optional<Saving::Who> Saving::WhoWrites(const Caller& caller, const PartKey& part,
                                             MonotonicNanos deadline, const Event& again) {
  const Session* session = sessions_.Of(caller);
  if (session == nullptr) return std::nullopt;
  const CheckpointKey& key = part.checkpoint;
  if (key.job != session->job) {
    out_.Answer(caller.request,
                absl::InvalidArgumentError(
                    absl::StrCat("job: ", key.job, ", but the session is in job ", session->job)));
    return std::nullopt;
  }
  Job* job = jobs_.FindOrMake(key.job);
  if (Jobs::CheckAccess(*job, caller).ok()) parts_.EraseCondemned(key);
  // Storage knows where an attempt that begins comes from; one that has begun need not ask.
  if (!job->attempts->begun.contains(key.attempt) &&
      scanning_.AwaitLook(caller, job, deadline, again, /*can_do_without=*/true)) {
    return std::nullopt;
  }
  if (AwaitRing(caller, *job, key.attempt, deadline, again)) return std::nullopt;
  return Who{session, job};
}

bool Saving::MayBegin(const event::Create& create, const Who& who, const Event& again) {
  Attempt superseded_by = 0;
  const Status status = CheckCreate(create, *who.job, *who.session, &superseded_by);
  if (!status.ok()) {
    out_.Answer(create.caller.request, status, superseded_by);
    return false;
  }
  return create.fence || !succession_.Await(create.caller, *who.job, create.part.checkpoint.attempt,
                                            create.deadline, again);
}

void Saving::Begin(const Caller& caller, const PartKey& part, int32_t world_size, const Who& who) {
  const auto& [session, job] = who;
  jobs_.TakeOwnership(job, caller.uid, caller.gid, session->policy, /*said=*/true);
  sessions_.SayPolicy(session->id, job);  // where others have told whose it is since `hello`
  if (attempts_.Enter(job, part, world_size, *session)) {
    admission_.Fence(job);
    if (!Attempts::OriginsKnown(*job)) scanning_.Insist(job);
  }
  DropOlderRevisions(job, part);
}

// Where an attempt comes from that begins, the other members of the ring know too; they are not waited for longer
// than a moment. But whose a job is that nobody owns here they must have said: else who saves in it first on a node
// that has not heard of it would take it from its owner.
bool Saving::AwaitRing(const Caller& caller, const Job& job, Attempt attempt,
                       MonotonicNanos deadline, const Event& event) {
  // A number far ahead of all that is known here: another node has chosen it, by its clock, and may have begun it.
  if (!job.attempts->begun.contains(attempt) && !attempts_.CheckBound(job, attempt).ok() &&
      cluster_->verdicts().AwaitNews(caller, job, deadline, event)) {
    return true;
  }
  const bool may_own = !job.owner->owned && !options_.Unlimited(caller.uid);
  if (!may_own && job.attempts->begun.contains(attempt)) return false;
  if (cluster_->verdicts().Await(caller, job, deadline, event,
                                 may_own ? kNever : Verdicts::kBeginPatience)) {
    return true;
  }
  if (!may_own || cluster_->members().Believed()) return false;
  out_.Answer(caller.request, Cluster::MetNobody(job.name));
  return true;
}

// The writer has entered the step again: what it began of it before and did not commit is over.
void Saving::DropOlderRevisions(Job* job, const PartKey& part) {
  const CheckpointKey& key = part.checkpoint;
  std::vector<Part*> over;
  for (Checkpoint* checkpoint : CheckpointsAt(*job, key.step)) {
    if (checkpoint->key.attempt != key.attempt || checkpoint->key.revision >= key.revision) {
      continue;
    }
    Part* own = Parts::PartOf(*checkpoint, part.writer);
    if (own != nullptr && !own->content->committed && !own->manifest->committing) {
      over.push_back(own);
    }
  }
  for (Part* old : over) {
    Checkpoint* checkpoint = old->checkpoint;
    parts_.Erase(old);
    if (checkpoint->content->parts.empty()) admission_.Release(checkpoint);
    parts_.EraseIfEmpty(checkpoint);
  }
}

Status Saving::CheckCreate(const event::Create& event, const Job& job, const Session& session,
                           Attempt* superseded_by) const {
  const CheckpointKey& key = event.part.checkpoint;
  CAIRN_RETURN_IF_ERROR(Jobs::CheckAccess(job, event.caller));
  CAIRN_RETURN_IF_ERROR(mode_.CheckAdmits());
  CAIRN_RETURN_IF_ERROR(jobs_.CheckRoom(job, event.caller.uid));
  CAIRN_RETURN_IF_ERROR(attempts_.CheckBound(job, key.attempt));
  CAIRN_RETURN_IF_ERROR(Attempts::CheckFence(job, key.attempt, superseded_by));
  CAIRN_RETURN_IF_ERROR(Attempts::CheckWorld(job, event.part, event.world_size));
  CAIRN_RETURN_IF_ERROR(attempts_.CheckProcess(job, event.part, event.world_size, session));
  CAIRN_RETURN_IF_ERROR(CheckRevision(job, event.part));
  if (const Part* part = parts_.Find(event.part); part != nullptr && !part->content->lost.empty()) {
    return absl::DataLossError(
        absl::StrCat("create: memory of ", part->key.DebugString(),
                     " did not survive the daemon's death; save it again under a new revision"));
  }
  return CheckNames(event);
}

Status Saving::CheckJournal(const event::Create& event, const Job& job) {
  const uint32_t uid = job.owner->owned ? job.owner->uid : event.caller.uid;
  if (!MayFit(event, options_.MemoryOf(uid))) return absl::OkStatus();  // memory will be the reason
  const uint64_t bytes = MoreJournalFor(event);
  CAIRN_RETURN_IF_ERROR(journal_.CheckCreate(uid, bytes));
  return MakeJournalRoom(uid, bytes);
}

Status Saving::MakeJournalRoom(uint32_t uid, uint64_t bytes) {
  admission_.MakeJournalRoom(uid, bytes);
  return journal_.CheckShare(uid, bytes);
}

uint64_t Saving::MoreJournalFor(const event::Create& event) const {
  const Part* part = parts_.Find(event.part);
  const uint64_t bytes = Parts::JournalCostOf(event, part);
  return bytes - (part == nullptr ? 0 : std::min(part->content->journal_to_come, bytes));
}

Status Saving::CheckRevision(const Job& job, const PartKey& part) const {
  const CheckpointKey& key = part.checkpoint;
  if (being_stored_(part)) {
    return absl::FailedPreconditionError(
        absl::StrCat("revision: ", part.DebugString(),
                     " is on its way straight into storage; save the step under a new revision"));
  }
  CAIRN_RETURN_IF_ERROR(Retention::CheckRemoved(job, key.step, key.attempt));
  CAIRN_RETURN_IF_ERROR(Attempts::CheckRefused(job, key));
  CAIRN_RETURN_IF_ERROR(Attempts::CheckOrigin(job, key));
  // Revisions only grow: a complete or committed one is never written over.
  for (const Checkpoint* other : CheckpointsAt(job, key.step)) {
    if (other->key.attempt != key.attempt || other->key.revision < key.revision) continue;
    const Part* own = Parts::PartOf(*other, part.writer);
    if (other->content->complete || (own != nullptr && own->content->committed)) {
      return absl::AlreadyExistsError(absl::StrCat(
          "revision: ", key.revision, " of ", key.DebugString(), " writer ", part.writer,
          " comes after revision ", other->key.revision, " was committed"));
    }
    if (own != nullptr && own->manifest->committing) {
      return CommitUnderWay(own->key);
    }
  }
  return absl::OkStatus();
}

Status Saving::CheckNames(const event::Create& event) const {
  const Checkpoint* checkpoint = parts_.Find(event.part.checkpoint);
  const Part* own = checkpoint == nullptr ? nullptr : Parts::PartOf(*checkpoint, event.part.writer);
  const uint64_t had = own == nullptr ? 0 : own->content->objects.size();
  const uint64_t all = had + event.objects.size() + event.to_come.objects;
  if (all > static_cast<uint64_t>(options_.max_objects_per_step)) {
    return absl::ResourceExhaustedError(absl::StrCat("objects: ", all,
                                                     " of one writer and step exceed the limit of ",
                                                     options_.max_objects_per_step));
  }
  const auto collides = [&](absl::string_view name, absl::string_view other, Writer writer) {
    return absl::AlreadyExistsError(absl::StrCat(
        "name: \"", absl::CHexEscape(name), "\" ",
        name == other ? std::string("exists already in ")
                      : absl::StrCat("collides with \"", absl::CHexEscape(other), "\" of "),
        event.part.checkpoint.DebugString(), ", of writer ", writer));
  };
  if (checkpoint != nullptr && !checkpoint->content->names.empty()) {
    const auto& names = checkpoint->content->names;
    for (const event::ObjectSpec& spec : event.objects) {
      const auto other = FindCollision(names, spec.name);
      if (other != names.end()) {
        return collides(spec.name, other->first, other->second->key.writer);
      }
    }
  }
  if (!Collide(event.objects)) return absl::OkStatus();
  std::map<absl::string_view, char> asked;
  for (const event::ObjectSpec& spec : event.objects) {
    const auto twin = FindCollision(asked, spec.name);
    if (twin != asked.end()) return collides(spec.name, twin->first, event.part.writer);
    asked[spec.name] = 0;
  }
  return absl::OkStatus();
}

std::optional<StatusOr<Body>> Saving::AnswerOfRepeat(const event::Create& event, Part* part,
                                                     const Session& session) {
  const auto call = part->content->creates.find({session.id, event.call});
  if (call == part->content->creates.end()) return std::nullopt;
  bool same = call->second == event.objects.size();
  std::vector<Object*> objects;
  for (size_t i = 0; same && i < event.objects.size(); ++i) {
    const event::ObjectSpec& spec = event.objects[i];
    Object* object = Parts::WrittenIn(*part, spec.name);
    objects.push_back(object);
    same = object != nullptr && object->content->call == event.call &&
           (object->content->sealed || object->entry().length == spec.length);
  }
  if (same) return Body(GrantReply(objects, session, /*repeat=*/true));
  return absl::AlreadyExistsError(absl::StrCat("call: ", event.call, " of session ", session.id,
                                               " was a create of other objects"));
}

std::optional<StatusOr<Body>> Saving::InsteadOfGrant(const event::Create& event) {
  if (Part* part = parts_.Find(event.part)) {
    auto answer = AnswerOfRepeat(event, part, *sessions_.Find(event.caller.session));
    if (answer.has_value()) return answer;
  }
  if (Status status = CheckNames(event); !status.ok()) return status;
  return std::nullopt;
}

void Saving::Grant(const event::Create& event, Checkpoint* checkpoint,
                   const std::vector<Need>& needs) {
  const Session& session = *sessions_.Find(event.caller.session);
  Part* part = parts_.FindOrMake(checkpoint, event.part.writer);
  // Begun anew, if it was dropped; the facts below say so too.
  if (!event.objects.empty()) attempts_.ForgetDropped(event.part);
  const SlabOwner owner{checkpoint->job->owner->uid, checkpoint->job->name};
  std::vector<Lend> lend;
  std::vector<Object*> objects(event.objects.size());
  for (const Need& need : needs) {
    SlabRecord* slab = ledger_.Find(need.slab);
    ledger_.SetOwner(slab, owner);
    if (session.takes_fds) leases_.LendToWriter(session, slab, &lend);
    uint64_t offset = 0;
    for (size_t i : need.objects) {
      const event::ObjectSpec& spec = event.objects[i];
      // Alone in its slab an object that its writer can pad may have all of it.
      const uint64_t extent =
          need.objects.size() == 1 && spec.can_pad ? slab->bytes : RoundUpToPages(spec.length);
      objects[i] = parts_.Create(part, spec, *slab, offset, extent,
                                 spec.can_pad ? extent : spec.length, session.id, event.call);
      offset += extent;
    }
    parts_.Took(part, slab, static_cast<uint32_t>(need.objects.size()));
  }
  parts_.Created(part, session, event.call, event.objects.size());
  parts_.SetAside(part, JournalRoom::CostOf(event.part, event.to_come));
  manifests_.Prepare(*part, session.id, admission_.Unpromised(*checkpoint->job));
  reply::Create reply = GrantReply(objects, session, /*repeat=*/false);
  reply.lend = std::move(lend);
  out_.Answer(event.caller.request, Body(std::move(reply)));
}

// A repeat lends every slab again: the answer that was lost may have been lost with its
// descriptors.
reply::Create Saving::GrantReply(const std::vector<Object*>& objects, const Session& session,
                                 bool repeat) {
  reply::Create reply;
  reply.extents.reserve(objects.size());
  std::set<SlabId> lent;
  for (Object* object : objects) {
    SlabRecord* slab = ledger_.Find(object->content->extent.slab);
    reply::GrantedExtent extent;
    if (session.takes_fds) {
      const Lease* lease = leases_.LendToWriter(session, slab, &reply.lend);
      extent.lease = lease->id;
      const bool lent_now = !reply.lend.empty() && reply.lend.back().lease == lease->id;
      if (repeat && lent.insert(slab->id).second && !lent_now) {
        reply.lend.push_back({lease->id, slab->id, slab->bytes, LeaseMode::kWrite});
      }
    } else {
      extent.lease = leases_.LendForChunks(session, object)->id;
    }
    extent.slab = slab->id;
    extent.slab_bytes = slab->bytes;
    extent.offset = object->content->extent.offset;
    extent.length = object->content->granted;
    reply.extents.push_back(extent);
  }
  reply.retire = ledger_.TellRetired(session.id);
  return reply;
}

// --- seal, commit, abort

Status Saving::CheckDropped(const Job& job, const PartKey& part) const {
  const std::string* dropped = Attempts::FindDropped(job, part);
  if (dropped == nullptr) return absl::OkStatus();
  CAIRN_RETURN_IF_ERROR(CheckRevision(job, part));  // says more, where it knows
  return absl::FailedPreconditionError(absl::StrCat(
      "part: ", part.DebugString(), " was dropped with its objects, \"", absl::CHexEscape(*dropped),
      "\" among them: its session ended, or the step was aborted, entered anew, refused or "
      "evicted; create them again, or save the step under a new revision"));
}

bool Saving::MayWrite(const Caller& caller, const PartKey& part, int32_t world_size,
                      const Session** session, Job** job) {
  *session = sessions_.Of(caller);
  if (*session == nullptr) return false;
  if (part.checkpoint.job != (*session)->job) {
    out_.Answer(caller.request, absl::InvalidArgumentError(
                                    absl::StrCat("job: ", part.checkpoint.job,
                                                 ", but the session is in job ", (*session)->job)));
    return false;
  }
  *job = jobs_.FindOrMake(part.checkpoint.job);
  Attempt superseded_by = 0;
  Status status = Jobs::CheckAccess(**job, caller);
  if (status.ok()) parts_.EraseCondemned(part.checkpoint);
  if (status.ok()) status = attempts_.CheckProcess(**job, part, world_size, **session);
  // A repeat of a commit that was acknowledged is answered even when superseded since.
  const Part* known = parts_.Find(part);
  if (status.ok() && (known == nullptr || !known->content->committed)) {
    status = Attempts::CheckFence(**job, part.checkpoint.attempt, &superseded_by);
    if (status.ok()) status = Attempts::CheckRefused(**job, part.checkpoint);
    if (status.ok() && known == nullptr) status = CheckDropped(**job, part);
  }
  if (status.ok()) return true;
  out_.Answer(caller.request, status, superseded_by);
  return false;
}

void Saving::On(const event::SealObjects& event) {
  const Session* session = nullptr;
  Job* job = nullptr;
  if (!MayWrite(event.caller, event.part, 0, &session, &job)) return;
  Part* part = parts_.Find(event.part);
  const Status status = Parts::CheckSeals(part, event.part, event.seals);
  if (!status.ok()) return out_.Answer(event.caller.request, status);
  if (part != nullptr && !part->content->committed) {
    parts_.Seal(part, event.seals, /*say=*/!event.provisional);
  }
  out_.Answer(event.caller.request, Body(reply::Ok{}));
}

Status Saving::CheckCommit(const event::Commit& event, const Job& job, const Part* part,
                           Attempt* superseded_by) const {
  if (part != nullptr && !part->content->lost.empty()) {
    return absl::DataLossError(
        absl::StrCat("commit: ", event.part.DebugString(),
                     " lost memory with the daemon's death; save it again under a new revision"));
  }
  if (part == nullptr) {  // a writer with nothing to save
    const Attempt attempt = event.part.checkpoint.attempt;
    CAIRN_RETURN_IF_ERROR(mode_.CheckSafe());
    CAIRN_RETURN_IF_ERROR(journal_.CheckSmall("this commit"));
    CAIRN_RETURN_IF_ERROR(attempts_.CheckBound(job, attempt));
    CAIRN_RETURN_IF_ERROR(Attempts::CheckFence(job, attempt, superseded_by));
  }
  CAIRN_RETURN_IF_ERROR(CheckRevision(job, event.part));
  if (part == nullptr) return absl::OkStatus();
  std::set<absl::string_view> sealed_now;
  for (const event::Seal& seal : event.seals) {
    if (!Parts::WrittenIn(*part, seal.name)->content->sealed) sealed_now.insert(seal.name);
  }
  if (sealed_now.size() == part->content->unsealed) return absl::OkStatus();
  const auto& objects = part->content->objects;
  const auto open = std::find_if(objects.begin(), objects.end(), [&](const auto& object) {
    return !object.second->content->sealed && !sealed_now.contains(object.first);
  });
  if (open == objects.end()) return absl::InternalError("commit: its objects are miscounted");
  return absl::InvalidArgumentError(absl::StrCat("commit: \"", absl::CHexEscape(open->first),
                                                 "\" of ", event.part.DebugString(),
                                                 " is not sealed"));
}

void Saving::On(const event::Commit& event) {
  const RequestId request = event.caller.request;
  if (const Session* known = sessions_.Find(event.caller.session)) {
    leases_.Unmapped(*known, event.unmapped);
  }
  const Session* session = nullptr;
  Job* job = nullptr;
  if (!MayWrite(event.caller, event.part, event.world_size, &session, &job)) return;
  Part* part = parts_.Find(event.part);
  Status status = Attempts::CheckWorld(*job, event.part, event.world_size);
  if (status.ok()) status = Parts::CheckSeals(part, event.part, event.seals);
  if (!status.ok()) return out_.Answer(request, status);

  if (part != nullptr && part->content->committed) {
    return out_.Answer(
        request, Body(reply::Commit{part->content->digest, part->checkpoint->content->complete}));
  }
  if (part != nullptr && part->manifest->committing) {
    // The part stays until the last session that commits it has ended.
    if (manifests_.Await(part, event)) parts_.WriteBy(part, *session);
    return;
  }
  Attempt superseded_by = 0;
  status = CheckCommit(event, *job, part, &superseded_by);
  if (!status.ok()) return out_.Answer(request, status, superseded_by);
  if (part == nullptr) {
    if (!event.fence && succession_.Await(event.caller, *job, event.part.checkpoint.attempt,
                                          event.deadline, event)) {
      return;
    }
    // No create has asked for it, nor whose the job is.
    if (!job->owner->owned &&
        scanning_.AwaitLook(event.caller, job, out_.now() + kScanPatience, event,
                            /*can_do_without=*/true)) {
      return;
    }
    if (AwaitRing(event.caller, *job, event.part.checkpoint.attempt, event.deadline, event)) return;
    const uint32_t uid = job->owner->owned ? job->owner->uid : event.caller.uid;
    status = jobs_.CheckRoom(*job, uid);
    if (status.ok()) status = MakeJournalRoom(uid, JournalRoom::CostOfPart(event.part));
    if (!status.ok()) return out_.Answer(request, status);
    Begin(event.caller, event.part, event.world_size, {session, job});
    attempts_.TakeStep(job, event.part, event.world_size, *session);
    part = parts_.FindOrMake(parts_.FindOrMake(job, event.part.checkpoint, event.world_size),
                             event.part.writer);
    parts_.WriteBy(part, *session);
  }
  parts_.Seal(part, event.seals, /*say=*/false);
  if (!manifests_.Await(part, event)) return;
  // What the part holds is fixed from here on.
  admission_.Cancel(event.part, CommitUnderWay(event.part));
  manifests_.Begin(part, HeadOf(*job, part->key, part->checkpoint->content->world_size, event.notes,
                                event.unix_ms));
}

Manifest Saving::HeadOf(const Job& job, const PartKey& part, int32_t world_size,
                        const std::map<std::string, std::string>& notes, int64_t unix_ms) {
  const CheckpointKey& key = part.checkpoint;
  Manifest manifest;
  manifest.job = key.job;
  manifest.owner_uid = job.owner->uid;
  manifest.step = key.step;
  manifest.attempt = key.attempt;
  manifest.revision = key.revision;
  manifest.writer = part.writer;
  manifest.world_size = world_size;
  manifest.created_unix_ms = unix_ms;
  const AttemptState& attempt = job.attempts->begun.at(key.attempt);
  manifest.first = attempt.first_step;
  manifest.lineage = attempt.lineage;
  manifest.notes = notes;
  return manifest;
}

void Saving::On(const event::ManifestWritten& event) {
  const Part* written = parts_.Find(event.part);
  const std::set<SessionId> sessions =
      written == nullptr ? std::set<SessionId>() : written->content->sessions;
  const Part* part = manifests_.On(event);
  if (part == nullptr) return;
  pool_.Remember(*part);
  for (SessionId id : sessions) {
    if (sessions_.Find(id) != nullptr) {
      pool_.Provision(*part->checkpoint->job, id, part->key.writer, 1);
    }
  }
}

void Saving::On(const event::Abort& event) {
  const Session* session = sessions_.Of(event.caller);
  if (session == nullptr) return;
  Part* part = parts_.Find(event.part);
  // A repeat, or another's: there is nothing of this session to drop.
  const bool may_drop = part != nullptr && !part->content->committed &&
                        !part->manifest->committing &&
                        part->content->sessions.contains(session->id);
  // The other writers need not wait for this one's part, even if it held nothing yet.
  const Job* job = jobs_.Find(event.part.checkpoint.job);
  const bool is_the_writer =
      job != nullptr && job->name == session->job && Jobs::CheckAccess(*job, event.caller).ok() &&
      attempts_.CheckProcess(*job, event.part, event.world_size, *session).ok();
  if (is_the_writer && (part == nullptr || may_drop)) {
    attempts_.Withdraw(event.part, event.world_size, *session);
  }
  callers_.CancelCreates(session->id, event.part,
                         absl::CancelledError("create: its step was aborted"));
  if (may_drop) {
    Checkpoint* checkpoint = part->checkpoint;
    admission_.Cancel(event.part, absl::CancelledError("create: its step was aborted"));
    parts_.Erase(part);
    if (checkpoint->content->parts.empty()) admission_.Release(checkpoint);
    parts_.EraseIfEmpty(checkpoint);
  }
  admission_.ReleaseGivenUp();
  out_.Answer(event.caller.request, Body(reply::Ok{}));
}

}  // namespace cairn::engine
