#include "server/engine/opening.h"

#include <utility>
#include <variant>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "server/engine/cluster.h"

namespace cairn::engine {

Opening::Opening(Outbox* out, Callers* callers, Sessions* sessions, Leases* leases, Ledger* ledger,
                 Parts* parts, Persistence* persistence, Standing* standing, Describing* describing,
                 Scanning* scanning, Tables* tables)
    : out_(*out),
      callers_(*callers),
      sessions_(*sessions),
      leases_(*leases),
      ledger_(*ledger),
      parts_(*parts),
      persistence_(*persistence),
      standing_(*standing),
      describing_(*describing),
      scanning_(*scanning),
      tables_(*tables) {}

Opening::~Opening() = default;

// --- open

void Opening::On(const event::Open& event) {
  const RequestId request = event.caller.request;
  Job* job = scanning_.Readable(&sessions_, event.caller, event.ref.job, event.deadline, event,
                                /*scan=*/false);
  if (job == nullptr) return;
  if ((event.ref.step == kNoStep || !describing_.Resolve(*job, event.ref).ok()) &&
      cluster_->verdicts().Await(event.caller, *job, event.deadline, event)) {
    return;
  }
  const StatusOr<Checkpoint*> found = describing_.Resolve(*job, event.ref);
  // "latest" may be in storage only; but what memory has is not kept waiting for long.
  if (!found.ok() || event.ref.step == kNoStep) {
    const bool nothing =
        !found.ok() && (event.ref.step == kNoStep || CheckpointsAt(*job, event.ref.step).empty());
    if (nothing ? scanning_.AwaitWhole(event.caller, job, event.deadline, event)
                : scanning_.Await(event.caller, job, event.deadline, event, found.ok())) {
      return;
    }
  }
  if (!found.ok()) return out_.Answer(request, found.status());
  const Checkpoint& checkpoint = **found;
  const StatusOr<ObjectRef> named = ObjectNamed(checkpoint, event.name);
  if (!named.ok() && tables_.Await(event.caller, *found, event.deadline, event)) return;
  if ((!named.ok() || !named->resident()) &&
      cluster_->loads().Await(event.caller, checkpoint, event.name, event.deadline, event)) {
    return;
  }
  if (!named.ok() || !named->resident()) {
    if (named.ok() && checkpoint.files->persisted) return AnswerStored(event.caller, *named);
    const Status otherwise =
        named.ok() ? absl::DataLossError(absl::StrCat("\"", absl::CHexEscape(event.name), "\" of ",
                                                      checkpoint.key.DebugString(),
                                                      " has no good copy any more"))
                   : named.status();
    StatusOr<Body> answer = cluster_->loads().NotHere(describing_.Elsewhere(checkpoint), otherwise);
    if (answer.ok()) out_.Count("opens_elsewhere");
    return out_.Answer(request, std::move(answer));
  }
  const ObjectRef& object = *named;
  if (!event.verify && !object.check().unverified) {
    return AnswerOpen(event.caller, object, event.mode);
  }
  if (!callers_.Park(this, event.caller, job->name, event.deadline, event)) return;
  // Concurrent opens of one object share one look at it.
  const uint64_t under_way = object.check().verification;
  const uint64_t verification = under_way != 0 ? under_way : StartVerify(object);
  opens_[request] = verification;
  verifications_.at(verification).opens.push_back(request);
}

void Opening::AnswerOpen(const Caller& caller, const ObjectRef& object, OpenMode mode) {
  const Session& session = *sessions_.Find(caller.session);
  if (Status full = leases_.CheckRoom(session, object.part->key, object.name()); !full.ok()) {
    return out_.Answer(caller.request, std::move(full));
  }
  const ExtentRef& extent = object.extent();
  const SlabRecord& slab = *ledger_.Find(extent.slab);
  reply::Open open;
  open.exact = extent.offset == 0 && object.entry().length == slab.bytes;
  // Only a slab that is the object itself is opened by path; of any other the client makes a copy.
  LeaseMode lease_mode = LeaseMode::kMap;
  if (mode == OpenMode::kRead) lease_mode = LeaseMode::kRead;
  if (mode == OpenMode::kFile && open.exact) lease_mode = LeaseMode::kFile;
  const Lease* lease = leases_.LendToReader(session, object, lease_mode);
  open.lend = {lease->id, slab.id, slab.bytes, lease_mode};
  open.extent = extent;
  open.checkpoint = object.part->checkpoint->key;
  open.object = describing_.InfoOf(object, /*with_crcs=*/true);
  out_.Count("opens_from_memory");
  out_.Answer(caller.request, Body(std::move(open)));
}

void Opening::AnswerStored(const Caller& caller, const ObjectRef& object) {
  const Part& part = *object.part;
  const Checkpoint& checkpoint = *part.checkpoint;
  reply::OpenStored open;
  open.checkpoint.key = checkpoint.key;
  open.checkpoint.location = checkpoint.files->location;
  open.checkpoint.world_size = checkpoint.content->world_size;
  open.checkpoint.published = true;
  Manifest manifest = part.content->table->head;
  manifest.objects.push_back(object.entry());
  open.checkpoint.parts.push_back({std::move(manifest), part.content->digest});
  open.object = describing_.InfoOf(object, /*with_crcs=*/true);
  out_.Count("opens_from_storage");
  out_.Answer(caller.request, Body(std::move(open)));
}

// --- verifying

ObjectCheck& Opening::CheckOf(const ObjectRef& object) {
  PartChecks& checks = object.part->checks.Edit();
  return checks.known.try_emplace(object.index, object.check()).first->second;
}

uint64_t Opening::StartVerify(const ObjectRef& object) {
  const uint64_t id = out_.NextId();
  Verification verification;
  verification.part = object.part->key;
  verification.name = object.name();
  verification.slab = object.extent().slab;
  CheckOf(object).verification = id;
  ledger_.Pin(ledger_.Find(verification.slab));
  out_.Do(action::Verify{id, verification.part, object.entry(), object.extent()});
  verifications_[id] = std::move(verification);
  return id;
}

void Opening::VerifyAll(Checkpoint* checkpoint) {
  for (const auto& [writer, part] : checkpoint->content->parts) {
    for (size_t i = 0; part->content->table != nullptr && i < part->content->count; ++i) {
      const ObjectRef object{part.get(), nullptr, i};
      if (object.resident() && object.check().verification == 0) StartVerify(object);
    }
  }
}

void Opening::On(const event::Verified& event) {
  const auto at = verifications_.find(event.verification);
  if (at == verifications_.end()) return;
  const Verification verification = std::move(at->second);
  verifications_.erase(at);
  ledger_.Unpin(ledger_.Find(verification.slab));
  ObjectRef object = parts_.Find(verification.part, verification.name);
  if (object && object.check().verification != event.verification) object = {};
  if (object) {
    ObjectCheck& check = CheckOf(object);
    check.verification = 0;
    if (event.status.ok()) {
      check.unverified = false;
      check.verified_unix_ms = event.unix_ms;
      out_.Count("verified");
    } else if (absl::IsDataLoss(event.status) && object.resident()) {
      Broke(object, event.status);
    }
  }
  for (RequestId request : verification.opens) {
    const std::unique_ptr<Parked> parked = callers_.Unpark(request);
    if (parked == nullptr) continue;
    AnswerVerified(std::get<event::Open>(parked->event), verification, event.status);
  }
}

void Opening::AnswerVerified(const event::Open& open, const Verification& verification,
                             const Status& status) {
  const ObjectRef object = parts_.Find(verification.part, verification.name);
  if (!object || !object.resident()) {
    if (object && object.part->checkpoint->files->persisted) {
      return AnswerStored(open.caller, object);
    }
    return On(open);  // another copy, or why there is none
  }
  if (status.ok()) return AnswerOpen(open.caller, object, open.mode);
  out_.Answer(open.caller.request,
              Annotate(status, absl::StrCat(verification.part.DebugString(), " \"",
                                            absl::CHexEscape(verification.name), "\"")));
}

// Its bytes in memory are not what was sealed. Other members or storage may still have them; else the
// checkpoint can't be had.
void Opening::Broke(const ObjectRef& object, const Status& why) {
  Checkpoint* checkpoint = object.part->checkpoint;
  out_.Count("objects_broken");
  out_.Log(Severity::kError,
           absl::StrCat(object.part->key.DebugString(), " \"", absl::CHexEscape(object.name()),
                        "\" does not verify: ", why.message()));
  parts_.Break(object, why);
  persistence_.Unowe(checkpoint);
  cluster_->loads().Broke(*checkpoint);
  // Another is the newest now, and may be due.
  persistence_.ScheduleNext(checkpoint->job);
}

// --- chunks

Status Opening::CheckChunk(const event::LocateChunk& event, const Session& session,
                           const Lease* lease) const {
  if (lease == nullptr || lease->session != session.id || lease->released) {
    return absl::NotFoundError(absl::StrCat("lease: ", event.lease, " has ended"));
  }
  const bool writes = lease->mode == LeaseMode::kWrite;
  if (event.write != writes) {
    return absl::PermissionDeniedError(
        absl::StrCat("lease: ", event.lease, " is for ", writes ? "writing" : "reading"));
  }
  if (session.takes_fds && writes) {
    return absl::FailedPreconditionError(
        "write_chunk: this session maps its slabs and writes them itself");
  }
  if (writes) {
    const Object* object = parts_.Find(lease->part, lease->name).object;
    if (object == nullptr || object->content->sealed || object->content->session != session.id) {
      return absl::FailedPreconditionError(
          absl::StrCat("lease: ", event.lease, ": its object is no longer being written"));
    }
  }
  if (event.offset > lease->length || event.length > lease->length - event.offset) {
    return absl::OutOfRangeError(absl::StrCat("chunk: [", event.offset, ", ", event.offset, " + ",
                                              event.length, ") is not within the object's ",
                                              lease->length, " bytes"));
  }
  return absl::OkStatus();
}

void Opening::On(const event::LocateChunk& event) {
  const Session* session = sessions_.Of(event.caller);
  if (session == nullptr) return;
  const RequestId request = event.caller.request;
  const Lease* lease = leases_.Find(event.lease);
  const Status status = CheckChunk(event, *session, lease);
  if (!status.ok()) return out_.Answer(request, status);
  leases_.Renew(lease->id);
  reply::Chunk chunk;
  if (event.write) {
    // The session may end, or the part be dropped, while the bytes are on their way: the slab is
    // nobody else's until the node says that they are there.
    chunk.write = next_chunk_write_++;
    chunk_writes_[chunk.write] = lease->slab;
    ledger_.Pin(ledger_.Find(lease->slab));
  }
  chunk.extent = lease->extent;
  chunk.offset = lease->extent.offset + event.offset;
  out_.Answer(request, Body(chunk));
}

void Opening::On(const event::ChunkWritten& event) {
  const auto write = chunk_writes_.find(event.write);
  if (write == chunk_writes_.end()) return;
  ledger_.Unpin(ledger_.Find(write->second));
  chunk_writes_.erase(write);
}

// --- callers that wait for a verification

void Opening::Left(const Parked& parked) {
  const auto open = opens_.find(parked.request);
  if (open == opens_.end()) return;
  const auto verification = verifications_.find(open->second);
  if (verification != verifications_.end()) std::erase(verification->second.opens, parked.request);
  opens_.erase(open);
}

void Opening::TimeUp(const Parked& parked) {
  const Verification& verification = verifications_.at(opens_.at(parked.request));
  callers_.Answer(parked.request, absl::DeadlineExceededError(absl::StrCat(
                                      "open: ", verification.part.DebugString(), " ",
                                      verification.name, " was still being verified")));
}

// --- restoring, invariants

void Opening::Restore(const Jobs& jobs) {
  for (const auto& [job_name, job] : jobs.all()) {
    for (const auto& [id, checkpoint] : job->steps->all) {
      for (const auto& [writer, part] : checkpoint->content->parts) {
        part->checks.Edit().unverified = part->content->committed;
      }
    }
  }
}

std::string Opening::CheckInvariants(std::map<SlabId, uint32_t>* pins) const {
  for (const auto& [id, verification] : verifications_) ++(*pins)[verification.slab];
  for (const auto& [id, slab] : chunk_writes_) ++(*pins)[slab];
  for (const auto& [request, verification] : opens_) {
    if (!callers_.Contains(request) || !verifications_.contains(verification)) {
      return "an open waits for a verification that is over";
    }
  }
  return "";
}

}  // namespace cairn::engine
