// Whether the files that a ring's member shows itself with would do: asked before a daemon that runs is replaced
// by one that must load them.
#pragma once

#include "common/status.h"
#include "server/daemon/options.h"

namespace cairn::daemon {

// Loads peers.ca, peers.cert and peers.key as a daemon with these options does at its start; OK where none are
// needed. INVALID_ARGUMENT names option and file: it is missing or cannot be read, the key is not the
// certificate's, the authority has not signed it, it is not good yet or has expired (with the date), or it
// names another cluster or rank.
Status CheckPeerFiles(const Options& options);

}  // namespace cairn::daemon
