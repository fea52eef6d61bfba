// What the daemon as a whole is ready to do.
#pragma once

#include <string>

#include "common/status.h"

namespace cairn::engine {

struct Mode {
  std::string safe_mode;  // not empty: why nothing is admitted
  bool draining = false;  // the daemon is stopping
  bool journal_full = false;

  // Whether anything new may be created.
  Status CheckAdmits() const;
  Status CheckSafe() const;  // only the first of its reasons: safe mode
};

}  // namespace cairn::engine
