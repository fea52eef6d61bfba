#include "server/engine/mode.h"

#include "absl/strings/str_cat.h"

namespace cairn::engine {

Status Mode::CheckSafe() const {
  if (safe_mode.empty()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("safe mode: nothing is admitted: ", safe_mode));
}

Status Mode::CheckAdmits() const {
  CAIRN_RETURN_IF_ERROR(CheckSafe());
  if (draining) return absl::UnavailableError("draining: the daemon is stopping");
  if (journal_full) {
    return absl::ResourceExhaustedError("journal: full; nothing is admitted until it has room");
  }
  return absl::OkStatus();
}

}  // namespace cairn::engine
