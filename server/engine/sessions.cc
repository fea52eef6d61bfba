// Sessions and leases: who holds what, and what ends with a session.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/engine/impl.h"

namespace cairn::engine {
namespace {

// How long the daemon may take over a chunk it was told the place of.
constexpr MonotonicNanos kChunkGrace = kNanosPerSecond;

fact::Lent LentFact(const Lease& lease, SessionId session) {
  return {lease.id, session, lease.slab, lease.mode, lease.part, lease.name};
}

}  // namespace

Session* Engine::Impl::FindSession(SessionId session) const {
  const auto at = sessions_.find(session);
  return at == sessions_.end() ? nullptr : at->second.get();
}

Session* Engine::Impl::SessionOf(const Caller& caller) {
  Session* session = FindSession(caller.session);
  if (session == nullptr) {
    Answer(caller.request,
           caller.session == 0
               ? Status(absl::FailedPreconditionError("session: none; say hello first"))
               : Status(absl::UnavailableError(
                     absl::StrCat("session: ", caller.session, " has ended; connect again"))));
  }
  return session;
}

void Engine::Impl::On(const event::Hello& event) {
  const RequestId request = event.caller.request;
  if (draining_) return Answer(request, absl::UnavailableError("draining: the daemon is stopping"));
  if (static_cast<int64_t>(sessions_.size()) >= options_.max_sessions) {
    return Answer(request, absl::ResourceExhaustedError(
                               absl::StrCat("sessions: ", sessions_.size(), " is the limit")));
  }
  if (event.policy.has_value()) {
    const Status policy = CheckPolicy(*event.policy);
    if (!policy.ok()) return Answer(request, policy);
  }
  if (event.local_writers < 1 || event.local_writers > kMaxWorldSize) {
    return Answer(request,
                  absl::InvalidArgumentError(absl::StrCat("local_writers: ", event.local_writers,
                                                          " is not in 1 … ", kMaxWorldSize)));
  }
  if (event.attempt < 0) {
    return Answer(request, absl::InvalidArgumentError(
                               absl::StrCat("attempt: ", event.attempt, " is below 0")));
  }
  if (event.writer >= 0 && event.world_size != 0) {
    const Status world = ValidateWorld(event.writer, event.world_size);
    if (!world.ok()) return Answer(request, world);
  }
  if (const Job* known = FindJob(event.job); known != nullptr && known->owned) {
    const Status access = CheckAccess(*known, event.caller);
    if (!access.ok()) return Answer(request, access);
  }

  auto session = std::make_unique<Session>();
  session->id = NextId();
  session->secret = event.secret;
  session->uid = event.caller.uid;
  session->gid = event.caller.gid;
  session->pid = event.pid;
  session->process = event.process;
  session->job = event.job;
  session->attempt = event.attempt;
  session->writer = event.writer;
  session->world_size = event.world_size;
  session->local_writers = event.local_writers;
  session->takes_fds = event.takes_fds;
  session->client = event.client;
  session->policy = event.policy;
  out_.facts.push_back(fact::SessionBegun{session->id, session->secret, session->uid, session->gid,
                                          session->pid, session->process, session->job,
                                          session->attempt, session->writer, session->world_size,
                                          session->local_writers, session->takes_fds});
  Session* at = session.get();
  sessions_[at->id] = std::move(session);
  Answer(request, Body(reply::Hello{at->id}));
  if (at->job.empty()) return;

  Job* job = GetJob(at->job);
  if (at->policy.has_value() && job->owned && job->policy != *at->policy) {
    job->policy = *at->policy;
    EmitJob(*job);
  }
  job->greatest_attempt = std::max(job->greatest_attempt, at->attempt);
  job->sessions.insert(at->id);
  if (at->writer >= 0 && ++job->writers == 1) TouchJob(job);
  if (options_.storage && !ScanKnown(*job)) {
    StartScan(job);
  } else if (at->writer >= 0) {
    Provision(job, at->id, at->writer, 2);
  }
}

void Engine::Impl::On(const event::SessionEnded& event) {
  if (FindSession(event.session) != nullptr) EndSession(event.session);
}

void Engine::Impl::EndSession(SessionId id) {
  Session* session = FindSession(id);
  std::set<std::pair<std::string, CheckpointId>> asked;  // steps it waited for room in
  while (!session->parked.empty()) {
    const Parked& parked = *parked_.at(*session->parked.begin());
    if (parked.kind == ParkedKind::kCreate) asked.insert({parked.job, parked.checkpoint});
    AnswerParked(*session->parked.begin(),
                 absl::UnavailableError(absl::StrCat("session: ", id, " has ended")));
  }
  // What it had not committed can never be: a writer is one process for life.
  const std::set<PartKey> writing = session->writing;
  for (const PartKey& key : writing) {
    Part* part = FindPart(key);
    if (part == nullptr || part->committed || part->committing) continue;
    Checkpoint* checkpoint = part->checkpoint;
    ErasePart(part);
    MaybeEraseCheckpoint(checkpoint);
  }
  // A step that nobody has a part of, and nobody waits to get one, never was.
  for (const auto& [job_name, checkpoint_id] : asked) {
    Job* other = FindJob(job_name);
    if (other == nullptr) continue;
    const auto at = other->checkpoints.find(checkpoint_id);
    if (at != other->checkpoints.end()) MaybeEraseCheckpoint(at->second.get());
  }
  const std::set<LeaseId> leases = session->leases;
  for (LeaseId lease : leases) {
    const auto at = leases_.find(lease);
    if (at != leases_.end() && at->second->mode != LeaseMode::kWrite)
      ReleaseLease(at->second.get());
  }
  const std::set<SlabId> mapped = session->mapped;
  for (SlabId slab : mapped) UnmapWriter(ledger_.Find(slab));
  for (LeaseId lease : leases) {  // writers' leases without a mapping
    if (leases_.contains(lease) && !leases_.at(lease)->released) ForgetLease(lease);
  }
  for (const auto& [job_name, attempt] : session->began) {
    Job* other = FindJob(job_name);
    if (other == nullptr) continue;
    const auto at = other->attempts.find(attempt);
    if (at == other->attempts.end()) continue;
    at->second.sessions.erase(id);
    if (at->second.sessions.empty()) {
      for (const CheckpointId& incomplete : other->incomplete) {
        if (std::get<1>(incomplete) == attempt) {
          ReleaseReservation(other->checkpoints.at(incomplete).get());
        }
      }
    }
  }
  if (Job* job = FindJob(session->job)) {
    job->sessions.erase(id);
    if (session->writer >= 0 && --job->writers == 0) TouchJob(job);
    maybe_forget_.insert(job->name);
  }
  out_.facts.push_back(fact::SessionEnded{id});
  out_.actions.push_back(action::EndSession{id});
  sessions_.erase(id);
}

// --- leases

Lease* Engine::Impl::NewLease(Session* session, SlabRecord* slab, LeaseMode mode,
                              const PartKey& part, const std::string& name, const ExtentRef& extent,
                              uint64_t length) {
  auto lease = std::make_unique<Lease>();
  lease->id = NextId();
  lease->session = session->id;
  lease->slab = slab->id;
  lease->mode = mode;
  lease->part = part;
  lease->name = name;
  lease->extent = extent;
  lease->length = length;
  if (!session->takes_fds && mode != LeaseMode::kWrite) {
    lease->expires = now_ + options_.lease_seconds_without_fds;
    lease_expiry_.insert({lease->expires, lease->id});
  }
  session->leases.insert(lease->id);
  session->leased_bytes += mode == LeaseMode::kWrite ? 0 : length;
  out_.facts.push_back(LentFact(*lease, session->id));
  Lease* at = lease.get();
  leases_[at->id] = std::move(lease);
  return at;
}

// A reader is done, or dead. Its lock may outlive it (a forked child, a mapping), so a lease whose
// description was lent ends only when a probe says that the lock is gone.
void Engine::Impl::ReleaseLease(Lease* lease) {
  if (lease->released) return;
  Session* session = FindSession(lease->session);
  const bool has_lock = session == nullptr || session->takes_fds;
  if (session != nullptr) {
    session->leases.erase(lease->id);
    session->leased_bytes -= lease->length;
  }
  if (lease->expires != kNever) lease_expiry_.erase({lease->expires, lease->id});
  lease->expires = kNever;
  lease->released = true;
  SlabRecord* slab = ledger_.Find(lease->slab);
  ledger_.ReaderReleased(slab, lease->id, has_lock);
  if (has_lock) {
    out_.facts.push_back(LentFact(*lease, /*session=*/0));  // nobody's, its lock perhaps there
  } else {
    ForgetLease(lease->id);
  }
  Account(slab);
}

void Engine::Impl::ForgetLease(LeaseId id) {
  const auto at = leases_.find(id);
  if (at == leases_.end()) return;
  const Lease& lease = *at->second;
  if (Session* session = FindSession(lease.session)) session->leases.erase(id);
  if (lease.expires != kNever) lease_expiry_.erase({lease.expires, id});
  out_.facts.push_back(fact::Unlent{id});
  leases_.erase(at);
}

void Engine::Impl::UnmapWriter(SlabRecord* slab) {
  if (slab == nullptr || slab->mapper == 0) return;
  if (Session* session = FindSession(slab->mapper)) session->mapped.erase(slab->id);
  const LeaseId lease = slab->writer_lease;
  ledger_.WriterGone(slab);
  ForgetLease(lease);
  Account(slab);
}

void Engine::Impl::HoldersOf(const SlabRecord& slab, bool readers_only,
                             std::set<int32_t>* pids) const {
  const auto add = [&](SessionId id) {
    const auto session = sessions_.find(id);
    if (session != sessions_.end()) pids->insert(session->second->pid);
  };
  if (slab.mapper != 0 && !readers_only) add(slab.mapper);
  for (const auto& [lease, said] : slab.readers) {
    const auto at = leases_.find(lease);
    if (at != leases_.end()) add(at->second->session);
  }
}

void Engine::Impl::Unmapped(Session* session, const std::vector<SlabId>& slabs) {
  for (SlabId id : slabs) {
    if (session->mapped.contains(id)) UnmapWriter(ledger_.Find(id));
  }
}

void Engine::Impl::On(const event::Release& event) {
  Session* session = SessionOf(event.caller);
  if (session == nullptr) return;
  for (LeaseId id : event.leases) {
    const auto at = leases_.find(id);
    // Unknown ones were released before: the call is a repeat.
    if (at == leases_.end() || at->second->session != session->id) continue;
    if (at->second->mode != LeaseMode::kWrite) ReleaseLease(at->second.get());
  }
  Answer(event.caller.request, Body(reply::Ok{}));
}

void Engine::Impl::On(const event::Renew& event) {
  Session* session = SessionOf(event.caller);
  if (session == nullptr) return;
  for (LeaseId id : event.leases) {
    const auto at = leases_.find(id);
    if (at == leases_.end() || at->second->session != session->id || at->second->released) {
      return Answer(event.caller.request,
                    absl::NotFoundError(absl::StrCat("lease: ", id, " has ended")));
    }
  }
  for (LeaseId id : event.leases) {
    Lease* lease = leases_.at(id).get();
    if (lease->expires == kNever) continue;
    lease_expiry_.erase({lease->expires, id});
    lease->expires = now_ + options_.lease_seconds_without_fds;
    lease_expiry_.insert({lease->expires, id});
  }
  Answer(event.caller.request, Body(reply::Ok{}));
}

void Engine::Impl::ExpireLeases() {
  while (!lease_expiry_.empty() && lease_expiry_.begin()->first <= now_) {
    ReleaseLease(leases_.at(lease_expiry_.begin()->second).get());
  }
}

void Engine::Impl::On(const event::LendFailed& event) {
  const auto at = leases_.find(event.lease);
  if (at == leases_.end()) return;
  Lease* lease = at->second.get();
  SlabRecord* slab = ledger_.Find(lease->slab);
  if (lease->mode == LeaseMode::kWrite) {
    // The objects stay its own: a repeat of the create lends anew.
    UnmapWriter(slab);
    return;
  }
  if (Session* session = FindSession(lease->session)) {
    if (!lease->released) session->leased_bytes -= lease->length;
  }
  ledger_.ReaderNeverLent(slab, lease->id);
  ForgetLease(event.lease);
  Account(slab);
}

void Engine::Impl::On(const event::SlabProbed& event) {
  for (LeaseId lease : ledger_.OnProbed(event)) ForgetLease(lease);
  if (SlabRecord* slab = ledger_.Find(event.slab)) Account(slab);
}

// Clients without descriptors write and read through the daemon, which asks here where.
void Engine::Impl::On(const event::LocateChunk& event) {
  Session* session = SessionOf(event.caller);
  if (session == nullptr) return;
  const RequestId request = event.caller.request;
  const auto at = leases_.find(event.lease);
  if (at == leases_.end() || at->second->session != session->id || at->second->released) {
    return Answer(request, absl::NotFoundError(absl::StrCat("lease: ", event.lease, " has ended")));
  }
  Lease* lease = at->second.get();
  const bool writes = lease->mode == LeaseMode::kWrite;
  if (event.write != writes) {
    return Answer(request,
                  absl::PermissionDeniedError(absl::StrCat("lease: ", event.lease, " is for ",
                                                           writes ? "writing" : "reading")));
  }
  if (session->takes_fds && writes) {
    return Answer(request, absl::FailedPreconditionError(
                               "write_chunk: this session maps its slabs and writes them itself"));
  }
  if (writes) {
    const Part* part = FindPart(lease->part);
    const auto object =
        part == nullptr ? decltype(part->objects.begin()){} : part->objects.find(lease->name);
    if (part == nullptr || object == part->objects.end() || object->second->sealed ||
        object->second->session != session->id) {
      return Answer(request,
                    absl::FailedPreconditionError(absl::StrCat(
                        "lease: ", event.lease, ": its object is no longer being written")));
    }
  }
  if (event.offset > lease->length || event.length > lease->length - event.offset) {
    return Answer(request, absl::OutOfRangeError(absl::StrCat(
                               "chunk: [", event.offset, ", ", event.offset, " + ", event.length,
                               ") is not within the object's ", lease->length, " bytes")));
  }
  if (lease->expires != kNever) {
    lease_expiry_.erase({lease->expires, lease->id});
    lease->expires = now_ + options_.lease_seconds_without_fds;
    lease_expiry_.insert({lease->expires, lease->id});
  }
  if (writes) ledger_.Touched(ledger_.Find(lease->slab), now_ + kChunkGrace);
  reply::Chunk chunk;
  chunk.extent = lease->extent;
  chunk.offset = lease->extent.offset + event.offset;
  Answer(request, Body(chunk));
}

}  // namespace cairn::engine
