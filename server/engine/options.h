// What the engine is told once. The daemon's options take their defaults from here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/policy.h"
#include "common/status.h"
#include "server/engine/ring.h"

namespace cairn::engine {

struct Options {
  // Bytes of slabs: faulted, being faulted, quarantined. Required.
  uint64_t budget_bytes = 0;
  // Sizes of the slabs to hold before any job's are known.
  std::vector<uint64_t> pool_slabs;
  // Whether there is storage at all.
  bool storage = false;
  // Whether the members of the ring write into one catalog. A home then hears of its jobs also where it has nothing of
  // them.
  bool shared_catalog = false;
  // Of jobs that set none.
  JobPolicy default_policy;
  // How long files that the line has left are kept at least, from the beginning of the life that left
  // them.
  int64_t keep_abandoned_seconds = 24 * 3600;
  // How long the newest checkpoint of a job without writers stays in memory at least, where nothing will
  // take it into storage.
  int64_t finished_keep_seconds = 24 * 3600;
  int64_t max_sessions = 4096;
  // Callers parked at once.
  int64_t max_waiting = 16384;
  // Leases of readers.
  int64_t max_leases = 524'288;
  // Of these limits one user may have so much; uid 0 and who runs the daemon may have all.
  int user_percent = 75;
  uint32_t own_uid = 0;  // that the daemon runs as
  bool Unlimited(uint32_t uid) const { return uid == 0 || uid == own_uid; }
  int64_t OfUser(int64_t limit, uint32_t uid) const {
    return Unlimited(uid) ? limit : (limit * user_percent + 99) / 100;
  }
  // And of the budget.
  int user_memory_percent = 93;
  uint64_t MemoryOf(uint32_t uid) const {
    return Unlimited(uid) ? budget_bytes : budget_bytes / 100 * user_memory_percent;
  }
  // Jobs with an owner, except those whose steps are all in storage and not in memory.
  int64_t max_jobs = 16'384;
  // Slabs: each takes a descriptor.
  int64_t max_slabs = 1 << 20;
  // Objects that one writer may have in one step.
  int64_t max_objects_per_step = 1'000'000;
  // Checkpoints being written to storage at once, each of another job.
  int max_persists = 4;
  // How long a lease of a client without descriptors lasts unless it is renewed.
  MonotonicNanos lease_without_fds = 30 * kNanosPerSecond;
  // Of a session that has ended one event lets go of so many leases and slabs; some microseconds each.
  int ended_at_once = 256;
  // Of what a scan has found one event merges so many checkpoints; a microsecond or two each.
  int merged_at_once = 256;
  // Of a checkpoint that goes to storage one event takes hold of so many parts.
  int prepared_at_once = 512;
  // One of more parts than these, in memory only, is given up part by part, as their memory is wanted.
  int given_up_whole = 64;
  // How often a quarantined slab is probed.
  MonotonicNanos probe_interval = kNanosPerSecond / 4;
  // Pause after a persist that failed: doubles from the first to the second.
  MonotonicNanos persist_retry_min = kNanosPerSecond;
  MonotonicNanos persist_retry_max = 60 * kNanosPerSecond;
  // Pause after one whose error a new try cannot mend; whoever asks to persist does not wait for it.
  MonotonicNanos persist_retry_parked = 3600 * kNanosPerSecond;

  // The members of the ring; alone without any.
  RingOptions ring;

  cairn::Status Validate() const;
};

}  // namespace cairn::engine
