// What the daemon as a whole is ready to do.
#pragma once

#include <string>

#include "common/status.h"

namespace cairn::engine {

struct Mode {
  std::string safe_mode;   // not empty: why nothing is admitted
  std::string superseded;  // likewise: another life of this node's rank has its place in the ring
  bool draining = false;   // the daemon is stopping
  bool leaving = false;    // an operator takes the node out of service
  bool leaving_said = false;  // the journal says whether he does
  bool journal_full = false;
  // The storage that the node's facts are about can be read and written. Until then: why not, empty
  // when nobody has looked yet.
  bool storage_here = false;
  std::string storage_problem;

  // Whether anything new may be created.
  Status CheckAdmits() const;
  Status CheckSafe() const;  // only what nothing that goes on ends: safe mode, superseded
  Status CheckLife() const;  // only whether the node is superseded
};

}  // namespace cairn::engine
