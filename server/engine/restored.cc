#include "server/engine/restored.h"

#include <algorithm>
#include <variant>

namespace cairn::engine {

Restored::Restored(const std::vector<Fact>& facts) {
  for (const Fact& fact : facts) std::visit([this](const auto& f) { Take(f); }, fact);
}

void Restored::Take(const fact::DaemonLife& f) { next_id = std::max(next_id, f.next_id); }
void Restored::Take(const fact::Job& f) { jobs[f.job] = f; }

void Restored::Take(const fact::JobForgotten& f) {
  const auto of_job = [&](const auto& at) { return std::get<0>(at.first) == f.job; };
  jobs.erase(f.job);
  removed.erase(f.job);
  safe.erase(f.job);
  std::erase_if(attempts, of_job);
  std::erase_if(processes, of_job);
  std::erase_if(worlds, of_job);
  std::erase_if(decisions, of_job);
  std::erase_if(dropped, [&](const auto& at) { return at.first.checkpoint.job == f.job; });
  std::erase_if(persisted, [&](const auto& at) { return at.first.job == f.job; });
  std::erase_if(asked, [&](const CheckpointKey& key) { return key.job == f.job; });
  std::erase_if(pinned, [&](const auto& at) { return at.first.job == f.job; });
}

// --- attempts

void Restored::Take(const fact::AttemptBegun& f) { attempts[{f.job, f.attempt}] = f; }
void Restored::Take(const fact::WriterProcess& f) {
  processes[{f.job, f.attempt, {f.world_size, f.writer}}] = {f.process, 0, f.rank};
}
void Restored::Take(const fact::StepWorld& f) { worlds[{f.job, f.attempt, f.step}] = f; }
void Restored::Take(const fact::LineDecided& f) { decisions[{f.record.job, f.record.number}] = f; }

// --- slabs, sessions, leases

void Restored::Take(const fact::Slab& f) { slabs[f.slab] = f; }
void Restored::Take(const fact::SlabGone& f) {
  slabs.erase(f.slab);
  fetches.erase(f.slab);
}
void Restored::Take(const fact::FetchBegun& f) { fetches[f.slab] = f; }
void Restored::Take(const fact::SessionBegun& f) { sessions[f.session] = f; }
void Restored::Take(const fact::SessionEnded& f) { sessions.erase(f.session); }
void Restored::Take(const fact::Lent& f) { leases[f.lease] = f; }
void Restored::Take(const fact::Unlent& f) { leases.erase(f.lease); }

// --- parts

void Restored::Take(const fact::ObjectCreated& f) {
  auto& part = objects[f.part];
  if (part.empty()) dropped.erase(f.part);
  part[f.name] = {f, std::nullopt};
}

void Restored::Take(const fact::ObjectSealed& f) { objects[f.part][f.entry.name].sealed = f; }

void Restored::Take(const fact::ObjectDropped& f) {
  if (const auto part = committed.find(f.part); part != committed.end()) {
    part->second.broken.insert(f.name);
    return;
  }
  dropped[f.part] = f.name;
  const auto part = objects.find(f.part);
  if (part == objects.end()) return;
  part->second.erase(f.name);
  if (part->second.empty()) objects.erase(part);
}

void Restored::Take(const fact::PartCommitted& f) {
  committed[f.part] = {f, {}};
  for (const SlabId slab : f.slabs) fetches.erase(slab);
  objects.erase(f.part);
}

void Restored::Take(const fact::PartLeftSlab& f) {
  const auto part = committed.find(f.part);
  if (part == committed.end()) return;
  std::erase(part->second.fact.slabs, f.slab);
}

void Restored::Take(const fact::PartDropped& f) {
  committed.erase(f.part);
  objects.erase(f.part);
  if (!f.name.empty()) dropped[f.part] = f.name;
}

// --- files, and what people decided

void Restored::Take(const fact::Persisted& f) {
  persisted[f.checkpoint] = f.digest;
  files_deleted.erase(f.checkpoint);
}

void Restored::Take(const fact::PersistAsked& f) {
  asked.insert(f.checkpoint);
  files_deleted.erase(f.checkpoint);
}
void Restored::Take(const fact::StorageRoot& f) { storage_root = f; }
void Restored::Take(const fact::FilesDeleted& f) {
  persisted.erase(f.checkpoint);
  files_deleted.insert(f.checkpoint);
}

void Restored::Take(const fact::StepRemoved& f) {
  removed[f.job].steps[f.step].Add(f.first_attempt, f.up_to_attempt);
}

void Restored::Take(const fact::Pinned& f) {
  if (f.pinned || f.version > 0) {
    pinned[f.checkpoint] = f;
  } else {
    pinned.erase(f.checkpoint);
  }
}

void Restored::Take(const fact::MemberLife& f) { member_life = f; }
void Restored::Take(const fact::RingSeat& f) { ring_seat = f; }
void Restored::Take(const fact::Leaving& f) { leaving = f.on; }
void Restored::Take(const fact::StepSafe& f) { safe[f.job] = {f.attempt, f.step}; }

}  // namespace cairn::engine
