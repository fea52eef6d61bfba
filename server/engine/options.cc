#include "server/engine/options.h"

#include "absl/strings/str_cat.h"
#include "common/keys.h"

namespace cairn::engine {

Status Options::Validate() const {
  const auto bad = [](absl::string_view what) { return absl::InvalidArgumentError(what); };
  if (budget_bytes < 16 * kPageBytes) {
    return bad(absl::StrCat("budget_bytes: ", budget_bytes, " is below ", 16 * kPageBytes));
  }
  uint64_t pool = 0;
  for (uint64_t bytes : pool_slabs) {
    if (bytes == 0 || bytes % kPageBytes != 0) {
      return bad(absl::StrCat("pool_slabs: ", bytes, " is not a multiple of ", kPageBytes));
    }
    pool += bytes;
  }
  if (pool > budget_bytes) {
    return bad(absl::StrCat("pool_slabs: ", pool, " bytes exceed the budget of ", budget_bytes));
  }
  if (keep_abandoned_seconds < 0) {
    return bad(absl::StrCat("keep_abandoned_seconds: ", keep_abandoned_seconds, " is below 0"));
  }
  if (finished_keep_seconds < 0) {
    return bad(absl::StrCat("finished_keep_seconds: ", finished_keep_seconds, " is below 0"));
  }
  if (max_sessions < 1) return bad(absl::StrCat("max_sessions: ", max_sessions, " is below 1"));
  if (max_waiting < 1) return bad(absl::StrCat("max_waiting: ", max_waiting, " is below 1"));
  if (max_leases < 1) return bad(absl::StrCat("max_leases: ", max_leases, " is below 1"));
  if (user_percent < 1 || user_percent > 100) {
    return bad(absl::StrCat("user_percent: ", user_percent, " is not 1 to 100"));
  }
  if (user_memory_percent < 1 || user_memory_percent > 100) {
    return bad(absl::StrCat("user_memory_percent: ", user_memory_percent, " is not 1 to 100"));
  }
  if (max_jobs < 1) return bad(absl::StrCat("max_jobs: ", max_jobs, " is below 1"));
  if (max_slabs < 1) return bad(absl::StrCat("max_slabs: ", max_slabs, " is below 1"));
  if (max_objects_per_step < 1) {
    return bad(absl::StrCat("max_objects_per_step: ", max_objects_per_step, " is below 1"));
  }
  if (ended_at_once < 1) return bad(absl::StrCat("ended_at_once: ", ended_at_once, " is below 1"));
  if (merged_at_once < 1) {
    return bad(absl::StrCat("merged_at_once: ", merged_at_once, " is below 1"));
  }
  if (prepared_at_once < 1) {
    return bad(absl::StrCat("prepared_at_once: ", prepared_at_once, " is below 1"));
  }
  if (given_up_whole < 0)
    return bad(absl::StrCat("given_up_whole: ", given_up_whole, " is below 0"));
  if (max_persists < 1) return bad(absl::StrCat("max_persists: ", max_persists, " is below 1"));
  if (lease_without_fds <= 0 || probe_interval <= 0 || persist_retry_min <= 0) {
    return bad("intervals must be above 0");
  }
  if (persist_retry_max < persist_retry_min) {
    return bad("persist_retry_max is below persist_retry_min");
  }
  if (persist_retry_parked < persist_retry_max) {
    return bad("persist_retry_parked is below persist_retry_max");
  }
  return ring.members.empty() ? absl::OkStatus() : ring.Validate();
}

}  // namespace cairn::engine
