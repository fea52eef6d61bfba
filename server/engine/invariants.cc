// What must hold between any two Applies. Tests and the simulator ask after every event.
#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "server/engine/impl.h"

namespace cairn::engine {

std::string Engine::Impl::CheckInvariants() const {
  if (std::string ledger = ledger_.CheckInvariants(); !ledger.empty()) return ledger;

  // 1. Extents lie within their slabs, and no two live ones overlap.
  std::map<SlabId, std::map<uint64_t, uint64_t>> extents;
  std::map<SlabId, uint32_t> counts, pins;
  std::string problem;
  const auto place = [&](const ExtentRef& extent, const std::string& what) {
    const SlabRecord* slab = ledger_.Find(extent.slab);
    if (slab == nullptr) {
      problem = absl::StrCat(what, " lies in slab ", extent.slab, ", which is not there");
      return;
    }
    if (extent.offset + extent.length > slab->bytes) {
      problem = absl::StrCat(what, " reaches beyond its slab");
    }
    const auto [at, fresh] = extents[extent.slab].emplace(extent.offset, extent.length);
    if (!fresh) problem = absl::StrCat(what, " overlaps another");
    if (at != extents[extent.slab].begin() &&
        std::prev(at)->first + std::prev(at)->second > extent.offset) {
      problem = absl::StrCat(what, " overlaps the one before it");
    }
    const auto next = std::next(at);
    if (next != extents[extent.slab].end() && extent.offset + extent.length > next->first) {
      problem = absl::StrCat(what, " overlaps the one after it");
    }
    ++counts[extent.slab];
  };

  uint64_t writing = 0, evictable = 0, evictable_mapped = 0, reserved = 0;
  size_t classified = 0;
  for (const auto& [name, job] : jobs_) {
    uint64_t job_mapped = 0;
    for (const auto& [id, checkpoint] : job->checkpoints) {
      const std::string shown = checkpoint->key.DebugString();
      uint64_t slab_bytes = 0, locked = 0, mapped = 0, absent = 0;
      int32_t committed = 0, open = 0;
      size_t names = 0;
      std::map<SlabId, uint32_t> slabs;
      for (const auto& [writer, part] : checkpoint->parts) {
        committed += part->committed ? 1 : 0;
        absent += part->committed && !part->manifest_resident ? 1 : 0;
        open += part->committed ? 0 : 1;
        names += part->objects.size();
        if (part->manifest_resident) place(part->manifest_extent, shown + "'s manifest");
        if (part->writing_manifest) ++pins[part->manifest_extent.slab];
        if (part->committing && part->committers.empty() && !part->writing_manifest &&
            !manifests_waiting_.contains(part->key)) {
          return absl::StrCat(shown, " commits, but nothing is under way for it");
        }
        for (const auto& [object_name, object] : part->objects) {
          if (!object->resident) {
            absent += part->committed ? 1 : 0;
            continue;
          }
          place(object->extent, absl::StrCat(shown, " ", object_name));
          if (!problem.empty()) return problem;
          ++slabs[object->extent.slab];
          if (!object->sealed) writing += object->extent.length;
          const SlabRecord& slab = *ledger_.Find(object->extent.slab);
          if (slab.owner.job != name || slab.owner.uid != job->owner_uid) {
            return absl::StrCat(shown, " ", object_name, " lies in a slab of job ", slab.owner.job,
                                " uid ", slab.owner.uid);
          }
          if (part->committed && !object->sealed) return shown + " is committed, not all sealed";
        }
      }
      if (!problem.empty()) return problem;
      if (slabs != checkpoint->slabs) return shown + ": its slabs are miscounted";
      for (const auto& [slab_id, count] : slabs) {
        const SlabRecord& slab = *ledger_.Find(slab_id);
        if (slab.user != checkpoint.get()) return shown + ": its slab has another user";
        slab_bytes += slab.bytes;
        if (slab.Locked()) locked += slab.bytes;
        if (!slab.Locked() && slab.mapper != 0) mapped += slab.bytes;
      }
      if (slab_bytes != checkpoint->slab_bytes || locked != checkpoint->locked_bytes ||
          mapped != checkpoint->mapped_bytes) {
        return shown + ": its memory is miscounted";
      }
      if (committed != checkpoint->committed || open != checkpoint->open_parts) {
        return shown + ": its parts are miscounted";
      }
      if (absent != checkpoint->absent) return shown + ": its absent objects are miscounted";
      if (names != checkpoint->names.size()) return shown + ": its names are miscounted";
      if (checkpoint->complete != (committed == checkpoint->world_size)) {
        return shown + ": complete is not what its parts say";
      }
      if (checkpoint->counted != checkpoint->Obtainable()) {
        return shown + ": the line does not know whether it can be had";
      }
      if (checkpoint->persisted != job->persisted.contains(id)) return shown + ": persisted?";
      if (checkpoint->complete == job->incomplete.contains(id)) return shown + ": incomplete?";
      if (ClassOf(*checkpoint) != checkpoint->evict_class &&
          (checkpoint->evict_class != EvictClass::kKept || slab_bytes > locked)) {
        return absl::StrCat(shown, ": evict class ", static_cast<int>(checkpoint->evict_class),
                            " should be ", static_cast<int>(ClassOf(*checkpoint)));
      }
      if (checkpoint->evict_class != EvictClass::kKept) {
        ++classified;
        evictable += slab_bytes - locked;
        evictable_mapped += mapped;
        job_mapped += mapped;
      }
      reserved += checkpoint->reserved;
      for (RequestId request : checkpoint->waiting_creates) {
        if (!parked_.contains(request)) return shown + ": waits for a caller that is gone";
      }
    }
    if (job_mapped != job->evictable_mapped)
      return absl::StrCat("job ", name, ": evictable_mapped");

    // 2. The line is what common/line.h makes of the checkpoints.
    std::vector<LineStep> line;
    for (const auto& [step, checkpoint] : job->settled) {
      if (step > LineBound(*job)) break;
      line.push_back({step, checkpoint->key.attempt, checkpoint->key.revision});
    }
    if (line != ComputeLine(AttemptLines(*job))) {
      return absl::StrCat("job ", name, ": its line is not that of its checkpoints");
    }

    // 3. What is remembered as dropped is bounded, and not there again.
    for (const auto& [number, attempt] : job->attempts) {
      const bool newest = number == job->attempts.rbegin()->first;
      if (attempt.dropped.size() > (newest ? kKeptDropped : 0)) {
        return absl::StrCat("job ", name, " attempt ", number, ": too much is kept as dropped");
      }
      for (const auto& [id, object] : attempt.dropped) {
        const auto& [step, revision, writer] = id;
        const Part* part = FindPart({{name, step, number, revision}, writer});
        if (part != nullptr && !part->committed && !part->objects.empty()) {
          return absl::StrCat(part->key.DebugString(), " is being written, but kept as dropped");
        }
      }
    }
    for (RequestId request : job->waits) {
      if (!parked_.contains(request)) return absl::StrCat("job ", name, ": waits without a caller");
    }
  }
  if (writing != writing_bytes_) return "writing_bytes is miscounted";
  if (reserved != reserved_total_) return "reservations are miscounted";
  if (classified != evictable_.size() || evictable != evictable_total_ ||
      evictable_mapped != evictable_mapped_total_) {
    return "what could be evicted is miscounted";
  }

  // 4. Every extent and pin a slab counts is somebody's.
  for (const auto& [part, extent] : orphan_manifests_) {
    place(extent, "a manifest being written");
    ++pins[extent.slab];
  }
  if (!problem.empty()) return problem;
  for (const auto& [checkpoint, slabs] : persists_) {
    for (SlabId slab : slabs) ++pins[slab];
  }
  for (const auto& [id, verification] : verifications_) ++pins[verification.slab];
  for (const auto& [id, slab] : ledger_.slabs()) {
    if (slab.extents != counts[id]) return absl::StrCat("slab ", id, ": extents are miscounted");
    if (slab.pins != pins[id]) {
      return absl::StrCat("slab ", id, ": ", slab.pins, " pins, ", pins[id],
                          " actions under way that use it");
    }
    if (slab.mapper != 0 && !sessions_.contains(slab.mapper)) {
      return absl::StrCat("slab ", id, ": mapped by a session that has ended");
    }
    for (const auto& [lease, said] : slab.readers) {
      if (!leases_.contains(lease)) return absl::StrCat("slab ", id, ": a reader without a lease");
    }
  }

  // 5. Every lease is of a session that lives, or released; every caller has a deadline and a
  // session.
  for (const auto& [id, lease] : leases_) {
    if (!lease->released && !sessions_.contains(lease->session)) {
      return absl::StrCat("lease ", id, " outlives its session");
    }
    if (ledger_.Find(lease->slab) == nullptr) return absl::StrCat("lease ", id, " of no slab");
  }
  for (const auto& [request, parked] : parked_) {
    if (!deadlines_.contains({parked->deadline, request})) return "a caller without a deadline";
    if (!sessions_.contains(parked->session)) return "a caller without a session";
  }
  if (deadlines_.size() != parked_.size()) return "deadlines without callers";
  if (static_cast<int>(persists_.size()) > options_.max_persists) return "too many persists";
  return "";
}

}  // namespace cairn::engine
