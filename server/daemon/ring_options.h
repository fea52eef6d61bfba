// A ring whose members are those of the catalog, as options.
#pragma once

#include "common/status.h"
#include "server/daemon/options.h"
#include "server/engine/ring.h"
#include "server/facts/facts.h"

namespace cairn::daemon {

// The ring that a daemon with this seat runs as.
engine::RingOptions RingOf(const Options& options, const fact::RingSeat& seat);

// The options of a daemon once it has a rank: the one that it wants, or the first. For checks before it has one.
Options AsAMember(const Options& options);

// INVALID_ARGUMENT names the option: of ring.members = catalog, what is missing or does not fit.
Status ValidateCatalogRing(const Options& options);

}  // namespace cairn::daemon
