#include "server/engine/footprints.h"

#include "absl/strings/str_cat.h"

namespace cairn::engine {

void Footprints::Add(Part* part, SlabRecord* slab, uint32_t extents) {
  Footprint& memory = part->checkpoint->memory.Edit();
  uint32_t& there = memory.slabs[slab->id];
  const bool is_new = there == 0;
  there += extents;
  if (!is_new) return;
  users_[slab->id] = {part};
  memory.slab_bytes += slab->bytes;
  SlabChanged(slab);
}

void Footprints::Drop(Part* part, SlabRecord* slab, uint32_t extents) {
  Footprint& memory = part->checkpoint->memory.Edit();
  const auto at = memory.slabs.find(slab->id);
  at->second -= extents;
  if (at->second > 0) return;
  memory.slabs.erase(at);
  const auto user = users_.find(slab->id);
  memory.slab_bytes -= slab->bytes;
  if (user->second.locked) memory.locked_bytes -= slab->bytes;
  if (user->second.mapped) memory.mapped_bytes -= slab->bytes;
  if (user->second.for_peers) --memory.uncharged_slabs;
  if (user->second.for_peers && !user->second.locked) memory.uncharged_bytes -= slab->bytes;
  users_.erase(user);
}

Part* Footprints::PartIn(SlabId slab) const {
  const auto at = users_.find(slab);
  return at == users_.end() ? nullptr : at->second.part;
}

void Footprints::SlabChanged(SlabRecord* slab) {
  const auto at = users_.find(slab->id);
  if (at == users_.end()) return;
  User& user = at->second;
  const bool locked = slab->Locked();
  const bool mapped = slab->mapper != 0 && !locked;
  if (locked == user.locked && mapped == user.mapped && slab->for_peers == user.for_peers) return;
  Footprint& memory = user.part->checkpoint->memory.Edit();
  if (user.locked) memory.locked_bytes -= slab->bytes;
  if (user.mapped) memory.mapped_bytes -= slab->bytes;
  if (user.for_peers) --memory.uncharged_slabs;
  if (user.for_peers && !user.locked) memory.uncharged_bytes -= slab->bytes;
  user = {user.part, locked, mapped, slab->for_peers};
  if (locked) memory.locked_bytes += slab->bytes;
  if (mapped) memory.mapped_bytes += slab->bytes;
  if (user.for_peers) ++memory.uncharged_slabs;
  if (user.for_peers && !locked) memory.uncharged_bytes += slab->bytes;
}

std::string Footprints::CheckInvariants(const Checkpoint& checkpoint) const {
  const auto shown = [&checkpoint] { return checkpoint.key.DebugString(); };
  std::map<SlabId, uint32_t> slabs;
  for (const auto& [writer, part] : checkpoint.content->parts) {
    for (const auto& [slab, objects] : part->content->slabs) {
      slabs[slab] += objects;
      if (PartIn(slab) != part.get()) return shown() + ": its slab has another user";
    }
  }
  if (slabs != checkpoint.memory->slabs) return shown() + ": its slabs are miscounted";
  uint64_t slab_bytes = 0, locked = 0, mapped = 0, uncharged_bytes = 0;
  int64_t uncharged_slabs = 0;
  for (const auto& [id, extents] : slabs) {
    const SlabRecord& slab = *ledger_.Find(id);
    slab_bytes += slab.bytes;
    if (slab.Locked()) locked += slab.bytes;
    if (!slab.Locked() && slab.mapper != 0) mapped += slab.bytes;
    uncharged_slabs += slab.for_peers ? 1 : 0;
    if (slab.for_peers && !slab.Locked()) uncharged_bytes += slab.bytes;
  }
  if (slab_bytes != checkpoint.memory->slab_bytes || locked != checkpoint.memory->locked_bytes ||
      mapped != checkpoint.memory->mapped_bytes ||
      uncharged_bytes != checkpoint.memory->uncharged_bytes ||
      uncharged_slabs != checkpoint.memory->uncharged_slabs) {
    return shown() + ": its memory is miscounted";
  }
  return "";
}

}  // namespace cairn::engine
