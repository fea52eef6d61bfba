// Touching memory that a client can take away under us.
//
// A writable client may punch holes into its slab, and a page may turn out to be broken: the next
// touch is then a SIGBUS, which by default ends the daemon. The handler here jumps back into the
// Guard that is active on the thread, and hands every other SIGBUS to whoever handled it before.
#pragma once

#include <cstdint>
#include <functional>

#include "common/status.h"

namespace cairn::cache {

// Installs the SIGBUS handler, once per process. A handler installed later by someone else replaces
// it.
Status InstallSigbusHandler();

// Cache::Guarded. Guards nest; the innermost one on the thread answers.
Status RunGuarded(const std::function<void()>& touch);

// How often a guard has caught something, in this process.
uint64_t SigbusCount();

}  // namespace cairn::cache
