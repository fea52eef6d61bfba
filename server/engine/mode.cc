#include "server/engine/mode.h"

#include "absl/strings/str_cat.h"

namespace cairn::engine {

Status Mode::CheckSafe() const {
  if (safe_mode.empty()) return CheckLife();
  return absl::UnavailableError(absl::StrCat("safe mode: nothing is admitted: ", safe_mode));
}

// No reason for a training job to die: UNAVAILABLE, as safe mode.
Status Mode::CheckLife() const {
  return superseded.empty() ? absl::OkStatus() : absl::UnavailableError(superseded);
}

Status Mode::CheckAdmits() const {
  CAIRN_RETURN_IF_ERROR(CheckSafe());
  if (draining) return absl::UnavailableError("draining: the daemon is stopping");
  if (leaving) {
    return absl::UnavailableError(
        "draining: this node is being taken out of service (`cairn drain --undo` takes it back)");
  }
  if (journal_full) {
    return absl::ResourceExhaustedError("journal: full; nothing is admitted until it has room");
  }
  return absl::OkStatus();
}

}  // namespace cairn::engine
