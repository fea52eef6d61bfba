// create: what is checked, when it is a repeat, and what a granted one gets.
#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "server/engine/impl.h"

namespace cairn::engine {
namespace {

// Objects from here on have a slab to themselves; smaller ones of one call share one.
constexpr uint64_t kLargeObject = uint64_t{1} << 20;

uint64_t Pages(uint64_t bytes) {
  return std::max((bytes + kPageBytes - 1) / kPageBytes, uint64_t{1}) * kPageBytes;
}

// The name in `names` (ordered by bytes) that is `name`, a directory of it, or below it.
template <class Names>
typename Names::const_iterator FindCollision(const Names& names, const std::string& name) {
  if (const auto same = names.find(name); same != names.end()) return same;
  for (size_t slash = name.find('/'); slash != std::string::npos;
       slash = name.find('/', slash + 1)) {
    if (const auto above = names.find(name.substr(0, slash)); above != names.end()) return above;
  }
  const std::string directory = name + "/";
  const auto below = names.lower_bound(directory);
  if (below != names.end() && absl::StartsWith(below->first, directory)) return below;
  return names.end();
}

}  // namespace

void Engine::Impl::On(const event::Create& event) {
  Session* session = SessionOf(event.caller);
  if (session == nullptr) return;
  Unmapped(session, event.unmapped);
  HandleCreate(event, session);
}

void Engine::Impl::HandleCreate(const event::Create& event, Session* session) {
  const RequestId request = event.caller.request;
  const CheckpointKey& key = event.part.checkpoint;
  if (key.job != session->job) {
    return Answer(request, absl::InvalidArgumentError(absl::StrCat(
                               "job: ", key.job, ", but the session is in job ", session->job)));
  }
  Job* job = GetJob(key.job);
  // Storage knows where an attempt that begins comes from; one that has begun need not ask.
  if (!job->attempts.contains(key.attempt) &&
      ScanFirst(event.caller, job, event.deadline, event, /*can_do_without=*/true)) {
    return;
  }
  Part* part = FindPart(event.part);
  if (part != nullptr && part->lost.empty() && RepeatedCreate(event, part, session)) return;

  Attempt superseded_by = 0;
  const Status status = CheckCreate(event, *job, *session, &superseded_by);
  if (!status.ok()) return Answer(request, status, superseded_by);

  TakeOwnership(job, event.caller);
  EnterAttempt(job, event.part, event.world_size, session);
  DropOlderRevisions(job, event.part);
  Checkpoint* checkpoint = GetCheckpoint(job, key, event.world_size);
  checkpoint->local_writers =
      std::max(checkpoint->local_writers,
               std::min(session->world_size == event.world_size ? session->local_writers : 1,
                        event.world_size));
  Parked* parked = Park(ParkedKind::kCreate, event.caller, key.job, event.deadline, event);
  if (parked == nullptr) return MaybeEraseCheckpoint(checkpoint);
  parked->checkpoint = checkpoint->Id();
  parked->needs = PlanNeeds(event);
  const uint64_t order = next_sequence_++;
  waiting_creates_[order] = request;
  create_order_[request] = order;
  checkpoint->waiting_creates.insert(request);
  Touch(checkpoint);
  Admit(parked, checkpoint);
}

// The writer has entered the step again: what it began of it before and did not commit is over.
void Engine::Impl::DropOlderRevisions(Job* job, const PartKey& part) {
  const CheckpointKey& key = part.checkpoint;
  std::vector<Part*> over;
  for (auto at = job->checkpoints.lower_bound({key.step, key.attempt, 0});
       at != job->checkpoints.end() &&
       at->first < CheckpointId{key.step, key.attempt, key.revision};
       ++at) {
    const auto own = at->second->parts.find(part.writer);
    if (own == at->second->parts.end()) continue;
    if (!own->second->committed && !own->second->committing) over.push_back(own->second.get());
  }
  for (Part* old : over) {
    Checkpoint* checkpoint = old->checkpoint;
    ErasePart(old);
    if (checkpoint->parts.empty()) ReleaseReservation(checkpoint);
    MaybeEraseCheckpoint(checkpoint);
  }
}

Status Engine::Impl::CheckCreate(const event::Create& event, const Job& job, const Session& session,
                                 Attempt* superseded_by) const {
  const CheckpointKey& key = event.part.checkpoint;
  CAIRN_RETURN_IF_ERROR(CheckAccess(job, event.caller));
  CAIRN_RETURN_IF_ERROR(ValidateStep(key.step));
  CAIRN_RETURN_IF_ERROR(ValidateAttempt(key.attempt));
  if (key.revision < 0) {
    return absl::InvalidArgumentError(absl::StrCat("revision: ", key.revision, " is below 0"));
  }
  if (!safe_mode_.empty()) {
    return absl::UnavailableError(absl::StrCat("safe mode: nothing is admitted: ", safe_mode_));
  }
  if (draining_) return absl::UnavailableError("draining: the daemon is stopping");
  if (journal_full_) {
    return absl::ResourceExhaustedError("journal: full; nothing is admitted until it has room");
  }
  CAIRN_RETURN_IF_ERROR(CheckFence(job, key.attempt, superseded_by));
  CAIRN_RETURN_IF_ERROR(CheckWorld(job, event.part, event.world_size));
  if (event.world_size == 1) CAIRN_RETURN_IF_ERROR(CheckLone(job, key.attempt, session));
  CAIRN_RETURN_IF_ERROR(CheckProcess(job, event.part, session));
  CAIRN_RETURN_IF_ERROR(CheckRevision(job, event.part));
  if (const Part* part = FindPart(event.part); part != nullptr && !part->lost.empty()) {
    return absl::DataLossError(
        absl::StrCat("create: memory of ", part->key.DebugString(),
                     " did not survive the daemon's death; save it again under a new revision"));
  }
  for (const event::ObjectSpec& spec : event.objects) {
    if (spec.length > kMaxObjectBytes) {
      return absl::InvalidArgumentError(absl::StrCat("length: ", spec.length, " of \"",
                                                     absl::CHexEscape(spec.name), "\" exceeds ",
                                                     kMaxObjectBytes));
    }
  }
  const auto at = job.checkpoints.find({key.step, key.attempt, key.revision});
  static const Checkpoint kNone;
  return CheckNames(event, at == job.checkpoints.end() ? kNone : *at->second);
}

Status Engine::Impl::CheckRefused(const Job& job, const CheckpointKey& key) const {
  const auto attempt = job.attempts.find(key.attempt);
  if (attempt == job.attempts.end()) return absl::OkStatus();
  const auto refused = attempt->second.refused.find({key.step, key.revision});
  return refused == attempt->second.refused.end() ? absl::OkStatus() : refused->second;
}

Status Engine::Impl::CheckRevision(const Job& job, const PartKey& part) const {
  const CheckpointKey& key = part.checkpoint;
  const auto removed = job.removed.find(key.step);
  if (removed != job.removed.end() && key.attempt <= removed->second) {
    return absl::FailedPreconditionError(absl::StrCat("step: ", key.step, " of job ", job.name,
                                                      " was removed; attempts up to ",
                                                      removed->second, " do not bring it back"));
  }
  CAIRN_RETURN_IF_ERROR(CheckRefused(job, key));
  // Revisions only grow: a complete or committed one is never written over.
  for (auto at = job.checkpoints.lower_bound({key.step, key.attempt, key.revision});
       at != job.checkpoints.end() && std::get<0>(at->first) == key.step &&
       std::get<1>(at->first) == key.attempt;
       ++at) {
    const Checkpoint& other = *at->second;
    const auto own = other.parts.find(part.writer);
    if (other.complete || (own != other.parts.end() && own->second->committed)) {
      return absl::AlreadyExistsError(absl::StrCat(
          "revision: ", key.revision, " of ", key.DebugString(), " writer ", part.writer,
          " comes after revision ", other.key.revision, " was committed"));
    }
    if (own != other.parts.end() && own->second->committing) {
      return absl::FailedPreconditionError(
          absl::StrCat("commit: of ", own->second->key.DebugString(), " is under way"));
    }
  }
  return absl::OkStatus();
}

Status Engine::Impl::CheckDropped(const Job& job, const PartKey& part) const {
  const CheckpointKey& key = part.checkpoint;
  const auto attempt = job.attempts.find(key.attempt);
  if (attempt == job.attempts.end()) return absl::OkStatus();
  const auto dropped = attempt->second.dropped.find({key.step, key.revision, part.writer});
  if (dropped == attempt->second.dropped.end()) return absl::OkStatus();
  CAIRN_RETURN_IF_ERROR(CheckRevision(job, part));  // says more, where it knows
  return absl::FailedPreconditionError(absl::StrCat(
      "part: ", part.DebugString(), " was dropped with its objects, \"",
      absl::CHexEscape(dropped->second),
      "\" among them: its session ended, or the step was aborted, entered anew, refused or "
      "evicted; create them again, or save the step under a new revision"));
}

void Engine::Impl::RememberDropped(const PartKey& part, const std::string& object) {
  const CheckpointKey& key = part.checkpoint;
  Job* job = FindJob(key.job);
  if (job == nullptr || job->attempts.empty()) return;
  AttemptState& newest = job->attempts.rbegin()->second;
  if (key.attempt != newest.attempt) return;
  newest.dropped[{key.step, key.revision, part.writer}] = object;
  if (newest.dropped.size() > kKeptDropped) newest.dropped.erase(newest.dropped.begin());
}

Status Engine::Impl::CheckNames(const event::Create& event, const Checkpoint& checkpoint) const {
  const auto own = checkpoint.parts.find(event.part.writer);
  const size_t had = own == checkpoint.parts.end() ? 0 : own->second->objects.size();
  if (static_cast<int64_t>(had + event.objects.size()) > options_.max_objects_per_step) {
    return absl::ResourceExhaustedError(absl::StrCat("objects: ", had + event.objects.size(),
                                                     " of one writer and step exceed the limit of ",
                                                     options_.max_objects_per_step));
  }
  const auto collides = [&](const std::string& name, const std::string& other, Writer writer) {
    return absl::AlreadyExistsError(absl::StrCat(
        "name: \"", absl::CHexEscape(name), "\" ",
        name == other ? std::string("exists already in ")
                      : absl::StrCat("collides with \"", absl::CHexEscape(other), "\" of "),
        checkpoint.key.job.empty() ? event.part.checkpoint.DebugString()
                                   : checkpoint.key.DebugString(),
        ", of writer ", writer));
  };
  std::map<std::string, char> asked;
  for (const event::ObjectSpec& spec : event.objects) {
    const auto other = FindCollision(checkpoint.names, spec.name);
    if (other != checkpoint.names.end()) {
      return collides(spec.name, other->first, other->second->part->key.writer);
    }
    const auto twin = FindCollision(asked, spec.name);
    if (twin != asked.end()) return collides(spec.name, twin->first, event.part.writer);
    asked[spec.name] = 0;
  }
  return absl::OkStatus();
}

bool Engine::Impl::RepeatedCreate(const event::Create& event, Part* part, Session* session) {
  const auto call = part->creates.find({session->id, event.call});
  if (call == part->creates.end()) return false;
  bool same = call->second == event.objects.size();
  for (size_t i = 0; same && i < event.objects.size(); ++i) {
    const event::ObjectSpec& spec = event.objects[i];
    const auto object = part->objects.find(spec.name);
    same = object != part->objects.end() && object->second->call == event.call &&
           object->second->resident &&
           (object->second->sealed || object->second->entry.length == spec.length);
  }
  if (!same) {
    Answer(event.caller.request,
           absl::AlreadyExistsError(absl::StrCat("call: ", event.call, " of session ", session->id,
                                                 " was a create of other objects")));
  } else {
    Answer(event.caller.request, Body(GrantReply(event, part, session, /*repeat=*/true)));
  }
  return true;
}

std::vector<Need> Engine::Impl::PlanNeeds(const event::Create& event) {
  std::vector<Need> needs;
  Need small;
  for (size_t i = 0; i < event.objects.size(); ++i) {
    const uint64_t length = event.objects[i].length;
    if (length >= kLargeObject) {
      Need need;
      need.bytes = length;
      need.objects = {i};
      needs.push_back(std::move(need));
    } else {
      small.bytes += Pages(length);
      small.objects.push_back(i);
    }
  }
  if (!small.objects.empty()) needs.push_back(std::move(small));
  return needs;
}

// Every need has its slab, ready. Facts come before the reply that depends on them.
void Engine::Impl::Grant(Parked* waiting) {
  const RequestId request = waiting->request;
  const auto event = std::get<event::Create>(waiting->event);
  Session* session = FindSession(waiting->session);
  Checkpoint* checkpoint = FindJob(waiting->job)->checkpoints.at(waiting->checkpoint).get();
  Part* part = GetPart(checkpoint, event.part.writer);
  if (!event.objects.empty()) {  // begun anew, if it was dropped; the facts below say so too
    const CheckpointKey& key = event.part.checkpoint;
    checkpoint->job->attempts.at(key.attempt)
        .dropped.erase({key.step, key.revision, event.part.writer});
  }
  const SlabOwner owner{checkpoint->job->owner_uid, checkpoint->job->name};
  std::vector<Need> needs = std::move(waiting->needs);
  waiting->needs.clear();
  Unpark(request);

  std::vector<Lend> lend;
  for (const Need& need : needs) {
    SlabRecord* slab = ledger_.Find(need.slab);
    ledger_.SetOwner(slab, owner);
    if (session->takes_fds) WriterLease(session, slab, &lend);
    uint64_t offset = 0;
    for (size_t i : need.objects) {
      const event::ObjectSpec& spec = event.objects[i];
      ObjectEntry entry;
      entry.name = spec.name;
      entry.kind = spec.kind;
      entry.length = spec.length;
      Object* object = NewObject(part, std::move(entry));
      object->session = session->id;
      object->call = event.call;
      // Alone in its slab an object that its writer can pad may have all of it.
      const uint64_t room =
          need.objects.size() == 1 && spec.can_pad ? slab->bytes : Pages(spec.length);
      PlaceObject(object, slab, offset, room);
      object->granted = spec.can_pad ? room : spec.length;
      offset += room;
      out_.facts.push_back(fact::ObjectCreated{part->key, checkpoint->world_size, spec.name,
                                               spec.kind, spec.length, object->extent, session->id,
                                               event.call});
    }
    checkpoint->granted += slab->bytes;
    *checkpoint->node_total += slab->bytes;
  }
  part->creates[{session->id, event.call}] = event.objects.size();
  part->sessions.insert(session->id);
  session->writing.insert(part->key);
  reply::Create reply = GrantReply(event, part, session, /*repeat=*/false);
  reply.lend = std::move(lend);
  Touch(checkpoint);
  Answer(request, Body(std::move(reply)));
}

Lease* Engine::Impl::WriterLease(Session* session, SlabRecord* slab, std::vector<Lend>* lend) {
  if (slab->mapper == session->id) {
    Lease* lent = leases_.at(slab->writer_lease).get();
    if (slab->lend_again && lend != nullptr) {
      slab->lend_again = false;
      lend->push_back({lent->id, slab->id, slab->bytes, LeaseMode::kWrite});
    }
    return lent;
  }
  slab->lend_again = false;
  Lease* lease = NewLease(session, slab, LeaseMode::kWrite, {}, "", {}, 0);
  ledger_.LendToWriter(slab, session->id, lease->id);
  session->mapped.insert(slab->id);
  if (lend != nullptr) lend->push_back({lease->id, slab->id, slab->bytes, LeaseMode::kWrite});
  Account(slab);
  return lease;
}

// A repeat lends every slab again: the answer that was lost may have been lost with its
// descriptors.
reply::Create Engine::Impl::GrantReply(const event::Create& event, Part* part, Session* session,
                                       bool repeat) {
  reply::Create reply;
  std::set<SlabId> lent;
  for (const event::ObjectSpec& spec : event.objects) {
    Object* object = part->objects.at(spec.name).get();
    SlabRecord* slab = ledger_.Find(object->extent.slab);
    reply::GrantedExtent extent;
    if (session->takes_fds) {
      const Lease* lease = WriterLease(session, slab, &reply.lend);
      extent.lease = lease->id;
      const bool lent_now = !reply.lend.empty() && reply.lend.back().lease == lease->id;
      if (repeat && lent.insert(slab->id).second && !lent_now) {
        reply.lend.push_back({lease->id, slab->id, slab->bytes, LeaseMode::kWrite});
      }
    } else {
      if (object->write_lease == 0) {
        object->write_lease = NewLease(session, slab, LeaseMode::kWrite, part->key, spec.name,
                                       object->extent, object->granted)
                                  ->id;
      }
      extent.lease = object->write_lease;
    }
    extent.slab = slab->id;
    extent.slab_bytes = slab->bytes;
    extent.offset = object->extent.offset;
    extent.length = object->granted;
    reply.extents.push_back(extent);
  }
  reply.retire = ledger_.TellRetired(session->id);
  return reply;
}

}  // namespace cairn::engine
