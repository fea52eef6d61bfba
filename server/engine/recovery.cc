// Facts in, facts out. What a dead daemon left is laid out as values first, then reconciled with
// what is really there: which slabs the keeper holds, whose processes live, which manifests
// verified.
#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "common/checksum.h"
#include "server/engine/impl.h"

namespace cairn::engine {

// The last word of every fact.
struct Engine::Impl::Restored {
  struct Object {
    std::optional<fact::ObjectCreated> created;
    std::optional<fact::ObjectSealed> sealed;
    const ExtentRef& Extent() const { return sealed ? sealed->extent : created->extent; }
  };
  uint64_t next_id = 1;
  std::map<std::string, fact::Job> jobs;
  std::map<std::pair<std::string, Attempt>, fact::AttemptBegun> attempts;
  std::map<std::tuple<std::string, Attempt, Writer>, ProcessToken> processes;
  std::map<std::tuple<std::string, Attempt, Step>, int32_t> worlds;
  std::map<std::pair<std::string, Attempt>, Step> resumes;
  std::map<SlabId, fact::Slab> slabs;
  std::map<SessionId, fact::SessionBegun> sessions;
  std::map<LeaseId, fact::Lent> leases;
  std::map<PartKey, std::map<std::string, Object>> objects;
  // Parts that objects were dropped of → one of them. Not those that began anew with none left.
  std::map<PartKey, std::string> dropped;
  std::map<PartKey, fact::ManifestCommitted> manifests;
  std::map<CheckpointKey, std::string> persisted;
  std::map<std::pair<std::string, Step>, Attempt> removed;
  std::set<CheckpointKey> pinned, asked;

  void Take(const fact::Incarnation& f) { next_id = std::max(next_id, f.next_id); }
  void Take(const fact::Job& f) { jobs[f.job] = f; }
  void Take(const fact::AttemptBegun& f) { attempts[{f.job, f.attempt}] = f; }
  void Take(const fact::WriterProcess& f) { processes[{f.job, f.attempt, f.writer}] = f.process; }
  void Take(const fact::StepWorld& f) { worlds[{f.job, f.attempt, f.step}] = f.world_size; }
  void Take(const fact::Resume& f) { resumes[{f.job, f.attempt}] = f.comes_from; }
  void Take(const fact::Slab& f) { slabs[f.slab] = f; }
  void Take(const fact::SlabGone& f) { slabs.erase(f.slab); }
  void Take(const fact::SessionBegun& f) { sessions[f.session] = f; }
  void Take(const fact::SessionEnded& f) { sessions.erase(f.session); }
  void Take(const fact::Lent& f) { leases[f.lease] = f; }
  void Take(const fact::Unlent& f) { leases.erase(f.lease); }
  void Take(const fact::ObjectCreated& f) {
    auto& part = objects[f.part];
    if (part.empty()) dropped.erase(f.part);
    part[f.name] = {f, std::nullopt};
  }
  void Take(const fact::ObjectSealed& f) { objects[f.part][f.entry.name].sealed = f; }
  void Take(const fact::ObjectDropped& f) {
    dropped[f.part] = f.name;
    const auto part = objects.find(f.part);
    if (part == objects.end()) return;
    part->second.erase(f.name);
    if (part->second.empty()) objects.erase(part);
  }
  void Take(const fact::ManifestCommitted& f) { manifests[f.part] = f; }
  void Take(const fact::ManifestDropped& f) { manifests.erase(f.part); }
  void Take(const fact::Persisted& f) {
    persisted[f.checkpoint] = f.digest;
    asked.erase(f.checkpoint);
  }
  void Take(const fact::PersistAsked& f) { asked.insert(f.checkpoint); }
  void Take(const fact::FilesDeleted& f) { persisted.erase(f.checkpoint); }
  void Take(const fact::StepRemoved& f) {
    Attempt& attempt = removed[{f.job, f.step}];
    attempt = std::max(attempt, f.up_to_attempt);
  }
  void Take(const fact::Pinned& f) {
    if (f.pinned) {
      pinned.insert(f.checkpoint);
    } else {
      pinned.erase(f.checkpoint);
    }
  }
};

Outcome Engine::Impl::Start(MonotonicNanos now, int64_t unix_ms, Recovered recovered) {
  now_ = start_now_ = now;
  start_unix_ms_ = unix_ms;
  ledger_.set_now(now);
  safe_mode_ = recovered.safe_mode;
  Restored restored;
  for (const Fact& fact : recovered.facts) {
    std::visit([&](const auto& f) { restored.Take(f); }, fact);
  }
  next_id_ = ids_reserved_ = restored.next_id;
  for (const auto& [id, bytes] : recovered.held_slabs) {
    next_id_ = ids_reserved_ = std::max(next_id_, id + 1);
  }
  RestoreJobs(restored);
  RestoreSessions(restored, recovered);
  RestoreSlabs(restored, recovered);
  RestoreParts(restored, recovered);
  RestoreLeases(restored);
  ResumeAll(restored);

  KeepManifestRoom();
  for (const auto& [name, job] : jobs_) {
    if (const Checkpoint* newest = NewestOnLine(*job)) RememberSaves(*newest);
    for (SessionId id : job->sessions) {
      const Session& session = *sessions_.at(id);
      if (session.writer >= 0) Provision(job.get(), id, session.writer, 1);
    }
  }
  std::multiset<uint64_t> there;
  for (const auto& [id, slab] : ledger_.slabs()) there.insert(slab.bytes);
  if (safe_mode_.empty()) {
    for (uint64_t bytes : options_.pool_slabs) {
      const auto same = there.find(bytes);
      if (same != there.end()) {
        there.erase(same);
      } else if (ledger_.Room() >= bytes) {
        MakeSlab(bytes, /*urgent=*/false, /*reserved=*/false);
      }
    }
  }
  return Finish();
}

void Engine::Impl::RestoreJobs(const Restored& restored) {
  for (const auto& [name, fact] : restored.jobs) {
    Job* job = GetJob(name);
    job->owned = true;
    job->owner_uid = fact.owner_uid;
    job->owner_gid = fact.owner_gid;
    job->policy = fact.policy;
  }
  for (const auto& [id, fact] : restored.attempts) {
    Job* job = GetJob(id.first);
    AttemptState& attempt = job->attempts[id.second];
    attempt.attempt = id.second;
    attempt.comes_from = fact.comes_from;
    attempt.unix_ms = fact.unix_ms;
    job->greatest_attempt = std::max(job->greatest_attempt, id.second);
  }
  for (const auto& [id, process] : restored.processes) {
    const auto& [name, number, writer] = id;
    Job* job = GetJob(name);
    const auto attempt = job->attempts.find(number);
    if (attempt != job->attempts.end()) attempt->second.processes[writer] = {process, 0};
  }
  for (const auto& [id, world_size] : restored.worlds) {
    const auto& [name, number, step] = id;
    Job* job = GetJob(name);
    const auto attempt = job->attempts.find(number);
    if (attempt != job->attempts.end()) attempt->second.worlds[step] = world_size;
  }
  for (const auto& [id, step] : restored.resumes) {
    Job* job = GetJob(id.first);
    if (!job->attempts.contains(id.second)) job->resumes[id.second] = step;
  }
  for (const auto& [id, attempt] : restored.removed) GetJob(id.first)->removed[id.second] = attempt;
}

void Engine::Impl::RestoreSessions(const Restored& restored, const Recovered& recovered) {
  const std::set<SessionId> live(recovered.live_sessions.begin(), recovered.live_sessions.end());
  for (const auto& [id, fact] : restored.sessions) {
    if (!live.contains(id)) {
      out_.facts.push_back(fact::SessionEnded{id});
      out_.actions.push_back(action::EndSession{id});
      continue;
    }
    auto session = std::make_unique<Session>();
    session->id = id;
    session->secret = fact.secret;
    session->uid = fact.uid;
    session->gid = fact.gid;
    session->pid = fact.pid;
    session->process = fact.process;
    session->job = fact.job;
    session->attempt = fact.attempt;
    session->writer = fact.writer;
    session->world_size = fact.world_size;
    session->local_writers = fact.local_writers;
    session->takes_fds = fact.takes_fds;
    Session* at = session.get();
    sessions_[id] = std::move(session);
    if (fact.job.empty()) continue;
    Job* job = GetJob(fact.job);
    job->sessions.insert(id);
    if (fact.writer >= 0) ++job->writers;
    job->greatest_attempt = std::max(job->greatest_attempt, fact.attempt);
    // Which attempts it is a writer of: those that know its process.
    for (auto& [number, attempt] : job->attempts) {
      for (auto& [writer, process] : attempt.processes) {
        if (process.first != fact.process) continue;
        process.second = fact.pid;
        attempt.sessions.insert(id);
        at->began.insert({fact.job, number});
      }
    }
  }
  // The keeper may hold sessions whose beginning was never journaled: nobody knows their secret.
  for (SessionId id : live) {
    if (!restored.sessions.contains(id)) out_.actions.push_back(action::EndSession{id});
  }
}

void Engine::Impl::RestoreSlabs(const Restored& restored, const Recovered& recovered) {
  const std::map<SlabId, uint64_t> held(recovered.held_slabs.begin(), recovered.held_slabs.end());
  for (const auto& [id, fact] : restored.slabs) {
    const auto at = held.find(id);
    if (at != held.end() && at->second == fact.bytes) continue;
    out_.facts.push_back(fact::SlabGone{id});
    Log(2, absl::StrCat("slab ", id, " of ", fact.bytes, " bytes did not survive"));
  }
  for (const auto& [id, bytes] : held) {
    const auto at = restored.slabs.find(id);
    SlabRecord slab;
    slab.id = id;
    slab.bytes = bytes;
    if (at == restored.slabs.end() || at->second.bytes != bytes) {
      // It was being made, or was about to be destroyed: nobody was told of it.
      slab.doomed = true;
      slab.clean = false;
    } else {
      slab.use = at->second.use;
      slab.owner = {at->second.owner_uid, at->second.owner_job};
      slab.clean = slab.owner.None();
      if (slab.use == fact::SlabUse::kManifests) manifest_slabs_[id];
    }
    ledger_.Restore(slab);
  }
}

void Engine::Impl::RestoreParts(const Restored& restored, const Recovered& recovered) {
  std::map<PartKey, const std::string*> manifests;
  for (const auto& [key, bytes] : recovered.manifests) manifests[key] = &bytes;
  const auto survived = [&](const ExtentRef& extent) {
    const SlabRecord* slab = ledger_.Find(extent.slab);
    return slab != nullptr && !slab->doomed && extent.offset + extent.length <= slab->bytes;
  };
  std::set<PartKey> keys;
  for (const auto& [key, objects] : restored.objects) keys.insert(key);
  for (const auto& [key, manifest] : restored.manifests) keys.insert(key);
  static const std::map<std::string, Restored::Object> kNoObjects;
  std::map<PartKey, std::string> dropped = restored.dropped;
  for (const PartKey& key : keys) {
    const auto found = restored.objects.find(key);
    const auto& objects = found == restored.objects.end() ? kNoObjects : found->second;
    const auto drop = [&](const std::string& name) {
      out_.facts.push_back(fact::ObjectDropped{key, name});
      dropped[key] = name;
    };
    Job* job = GetJob(key.checkpoint.job);
    const auto committed = restored.manifests.find(key);
    if (committed != restored.manifests.end()) {
      const auto bytes = manifests.find(key);
      StatusOr<Manifest> manifest =
          bytes == manifests.end()
              ? StatusOr<Manifest>(absl::DataLossError("its manifest did not verify"))
              : DecodeManifest(*bytes->second);
      if (!manifest.ok() || !survived(committed->second.extent)) {
        Log(2, absl::StrCat(key.DebugString(), " is lost from memory: ",
                            manifest.ok() ? "its manifest's slab did not survive"
                                          : manifest.status().message()));
        for (const auto& [name, object] : objects) drop(name);
        out_.facts.push_back(fact::ManifestDropped{key});
        continue;
      }
      Checkpoint* checkpoint = GetCheckpoint(job, key.checkpoint, committed->second.world_size);
      Part* part = GetPart(checkpoint, key.writer);
      RestoreManifest(part, *manifest, committed->second.digest);
      --checkpoint->open_parts;
      ++checkpoint->committed;
      checkpoint->created_unix_ms = manifest->created_unix_ms;
      part->manifest_resident = true;
      part->manifest_extent = committed->second.extent;
      part->manifest_bytes = committed->second.bytes;
      ManifestSlab& lies_in = manifest_slabs_[part->manifest_extent.slab];
      lies_in.extents[part->manifest_extent.offset] = part->manifest_extent.length;
      lies_in.used += part->manifest_extent.length;
      ++ledger_.Find(part->manifest_extent.slab)->extents;
      for (const auto& [name, object] : part->objects) {
        const auto known = objects.find(name);
        if (known == objects.end() || !survived(known->second.Extent())) {
          if (known != objects.end()) drop(name);
          ++checkpoint->absent;
          continue;
        }
        object->extent = known->second.Extent();
        object->resident = true;
        object->unverified = true;
        ++ledger_.Find(object->extent.slab)->extents;
      }
      for (const auto& [name, object] : objects) {
        if (!part->objects.contains(name)) drop(name);
      }
      continue;
    }
    // Not committed: it goes on if every session that writes it does, as when one ends.
    const bool goes_on = std::all_of(objects.begin(), objects.end(), [&](const auto& entry) {
      const auto& created = entry.second.created;
      return created && FindSession(created->session) != nullptr;
    });
    if (!goes_on) {
      for (const auto& [name, object] : objects) drop(name);
      continue;
    }
    for (const auto& [name, object] : objects) {
      Session* session = FindSession(object.created->session);
      Checkpoint* checkpoint = GetCheckpoint(job, key.checkpoint, object.created->world_size);
      checkpoint->admission = Admission::kAdmitted;
      checkpoint->local_writers = std::max(checkpoint->local_writers, session->local_writers);
      Part* part = GetPart(checkpoint, key.writer);
      part->sessions.insert(session->id);
      session->writing.insert(key);
      ++part->creates[{session->id, object.created->call}];
      // Only some of it was dropped: an earlier daemon missed the slab.
      if (const auto lost = restored.dropped.find(key); lost != restored.dropped.end()) {
        part->lost = lost->second;
      }
      if (!survived(object.Extent())) {
        drop(name);
        part->lost = name;
        continue;
      }
      ObjectEntry entry;
      if (object.sealed) {
        entry = object.sealed->entry;
      } else {
        entry.name = name;
        entry.kind = object.created->kind;
        entry.length = object.created->length;
      }
      Object* restored_object = NewObject(part, std::move(entry));
      restored_object->extent = object.Extent();
      restored_object->resident = true;
      restored_object->sealed = object.sealed.has_value();
      restored_object->unverified = restored_object->sealed;
      restored_object->granted = restored_object->extent.length;
      restored_object->session = session->id;
      restored_object->call = object.created->call;
      if (!restored_object->sealed) writing_bytes_ += restored_object->extent.length;
      ++ledger_.Find(restored_object->extent.slab)->extents;
    }
  }
  for (const auto& [key, name] : dropped) {
    if (FindPart(key) == nullptr) RememberDropped(key, name);
  }
}

void Engine::Impl::RestoreLeases(const Restored& restored) {
  for (const auto& [id, fact] : restored.leases) {
    SlabRecord* slab = ledger_.Find(fact.slab);
    Session* session = FindSession(fact.session);
    const auto begun = restored.sessions.find(fact.session);
    const bool had_lock = begun == restored.sessions.end() || begun->second.takes_fds;
    const bool writes = fact.mode == LeaseMode::kWrite;
    if (slab == nullptr || (session == nullptr && (writes || !had_lock))) {
      if (slab != nullptr && had_lock) slab->clean = false;
      out_.facts.push_back(fact::Unlent{id});
      continue;
    }
    auto lease = std::make_unique<Lease>();
    lease->id = id;
    lease->session = fact.session;
    lease->slab = fact.slab;
    lease->mode = fact.mode;
    lease->part = fact.part;
    lease->name = fact.name;
    const Part* part = FindPart(fact.part);
    Object* object = nullptr;
    if (part != nullptr && part->objects.contains(fact.name)) {
      object = part->objects.at(fact.name).get();
      lease->extent = object->extent;
      lease->length = writes ? object->granted : object->entry.length;
    }
    if (writes) {
      if (session->takes_fds) {
        slab->mapper = session->id;
        slab->writer_lease = id;
        slab->lend_again = true;
        slab->clean = false;
        session->mapped.insert(slab->id);
      } else if (object == nullptr || object->sealed) {
        out_.facts.push_back(fact::Unlent{id});
        continue;
      } else {
        object->write_lease = id;
      }
    } else if (session == nullptr) {
      lease->session = 0;
      lease->released = true;
      slab->readers[id] = true;
      slab->clean = false;
      slab->by_path |= fact.mode == LeaseMode::kFile;
      out_.facts.push_back(fact::Lent{id, 0, fact.slab, fact.mode, fact.part, fact.name});
    } else {
      slab->readers[id] = false;
      ++slab->open_readers;
      slab->clean = false;
      slab->by_path |= fact.mode == LeaseMode::kFile;
      session->leased_bytes += lease->length;
      if (!session->takes_fds) {
        lease->expires = now_ + options_.lease_seconds_without_fds;
        lease_expiry_.insert({lease->expires, id});
      }
    }
    if (session != nullptr) session->leases.insert(id);
    leases_[id] = std::move(lease);
  }
}

void Engine::Impl::ResumeAll(const Restored& restored) {
  std::vector<SlabId> ids;
  for (const auto& [id, slab] : ledger_.slabs()) ids.push_back(id);
  std::sort(ids.begin(), ids.end());
  for (SlabId id : ids) ledger_.Resume(ledger_.Find(id));

  for (const auto& [name, job] : jobs_) {
    for (const auto& [id, checkpoint] : job->checkpoints) {
      for (const auto& [writer, part] : checkpoint->parts) {
        for (const auto& [object_name, object] : part->objects) {
          if (!object->resident) continue;
          SlabRecord* slab = ledger_.Find(object->extent.slab);
          if (!checkpoint->slabs.contains(slab->id)) checkpoint->granted += slab->bytes;
          UseSlab(checkpoint.get(), slab);
        }
      }
      *checkpoint->node_total = checkpoint->granted;
      const auto persisted = restored.persisted.find(checkpoint->key);
      if (checkpoint->committed == checkpoint->world_size) {
        std::vector<std::string> digests;
        for (const auto& [writer, part] : checkpoint->parts) digests.push_back(part->digest);
        checkpoint->complete = true;
        checkpoint->digest = CheckpointDigest(digests);
        job->incomplete.erase(id);
        if (persisted != restored.persisted.end() && persisted->second == checkpoint->digest) {
          checkpoint->persisted = true;
          job->persisted.insert(id);
          if (!options_.storage_root.empty()) {
            checkpoint->directory = absl::StrCat(options_.storage_root, "/", name, "/",
                                                 StepDirectory(checkpoint->key.step));
          }
        }
        if (checkpoint->absent > 0) checkpoint->why = "some of its memory did not survive";
      }
      checkpoint->pinned = restored.pinned.contains(checkpoint->key);
    }
    for (const auto& [id, checkpoint] : job->checkpoints) {
      checkpoint->counted = checkpoint->Obtainable();
      if (checkpoint->counted) ++job->attempts.at(checkpoint->key.attempt).complete;
    }
    RebuildLine(job.get());
    for (const auto& [id, checkpoint] : job->checkpoints) {
      if (checkpoint->complete) {
        ScheduleByPolicy(checkpoint.get());
        if (options_.storage && restored.asked.contains(checkpoint->key)) {
          Owe(checkpoint.get(), /*asked=*/true);
        }
      }
    }
    // Of what storage has whole a part may have been evicted: the scan makes it complete again.
    for (const CheckpointId& id : job->incomplete) {
      Checkpoint* checkpoint = job->checkpoints.at(id).get();
      if (!restored.persisted.contains(checkpoint->key)) continue;
      checkpoint->stored_whole = true;
      checkpoint->digest = restored.persisted.at(checkpoint->key);  // a snapshot says it again
      Touch(checkpoint);
      if (options_.storage) StartScan(job.get());
    }
  }
}

std::vector<Fact> Engine::Impl::Snapshot() const {
  std::vector<Fact> facts;
  facts.push_back(fact::Incarnation{start_unix_ms_, ids_reserved_});
  std::vector<SlabId> ids;
  for (const auto& [id, slab] : ledger_.slabs()) {
    if (slab.state != SlabState::kMaking && slab.state != SlabState::kDying && !slab.doomed) {
      ids.push_back(id);
    }
  }
  std::sort(ids.begin(), ids.end());
  for (SlabId id : ids) {
    const SlabRecord& slab = *ledger_.Find(id);
    facts.push_back(fact::Slab{id, slab.bytes, slab.use, slab.owner.uid, slab.owner.job});
  }
  for (const auto& [id, session] : sessions_) {
    facts.push_back(fact::SessionBegun{id, session->secret, session->uid, session->gid,
                                       session->pid, session->process, session->job,
                                       session->attempt, session->writer, session->world_size,
                                       session->local_writers, session->takes_fds});
  }
  std::vector<LeaseId> leases;
  for (const auto& [id, lease] : leases_) leases.push_back(id);
  std::sort(leases.begin(), leases.end());
  for (LeaseId id : leases) {
    const Lease& lease = *leases_.at(id);
    facts.push_back(fact::Lent{id, lease.released ? 0 : lease.session, lease.slab, lease.mode,
                               lease.part, lease.name});
  }
  for (const auto& [name, job] : jobs_) {
    if (job->owned) {
      facts.push_back(fact::Job{name, job->owner_uid, job->owner_gid, job->policy});
    }
    for (const auto& [number, attempt] : job->attempts) {
      facts.push_back(fact::AttemptBegun{name, number, attempt.comes_from, attempt.unix_ms});
      std::map<Writer, ProcessToken> processes;
      for (const auto& [writer, process] : attempt.processes) processes[writer] = process.first;
      for (const auto& [writer, process] : processes) {
        facts.push_back(fact::WriterProcess{name, number, writer, process});
      }
      for (const auto& [step, world_size] : attempt.worlds) {
        facts.push_back(fact::StepWorld{name, number, step, world_size});
      }
      for (const auto& [id, object] : attempt.dropped) {
        const auto& [step, revision, writer] = id;
        facts.push_back(fact::ObjectDropped{{{name, step, number, revision}, writer}, object});
      }
    }
    for (const auto& [number, step] : job->resumes) {
      facts.push_back(fact::Resume{name, number, step});
    }
    for (const auto& [step, attempt] : job->removed) {
      facts.push_back(fact::StepRemoved{name, step, attempt});
    }
    for (const auto& [id, checkpoint] : job->checkpoints) {
      bool resident = false;
      for (const auto& [writer, part] : checkpoint->parts) {
        resident |= part->manifest_resident;
        for (const auto& [object_name, object] : part->objects) {
          if (!object->resident) continue;
          resident = true;
          if (!part->committed) {
            facts.push_back(fact::ObjectCreated{part->key, checkpoint->world_size, object_name,
                                                object->entry.kind, object->entry.length,
                                                object->extent, object->session, object->call});
          }
          if (object->sealed) {
            facts.push_back(fact::ObjectSealed{part->key, object->entry, object->extent});
          }
        }
        if (!part->lost.empty()) facts.push_back(fact::ObjectDropped{part->key, part->lost});
        if (part->committed && part->manifest_resident) {
          facts.push_back(fact::ManifestCommitted{part->key, checkpoint->world_size,
                                                  part->manifest_extent, part->manifest_bytes,
                                                  part->digest});
        }
      }
      if ((checkpoint->persisted || checkpoint->stored_whole) && resident) {
        facts.push_back(fact::Persisted{checkpoint->key, checkpoint->digest});
      }
      if (checkpoint->pinned) facts.push_back(fact::Pinned{checkpoint->key, true});
      if (checkpoint->asked) facts.push_back(fact::PersistAsked{checkpoint->key});
    }
  }
  return facts;
}

}  // namespace cairn::engine
