// Which catalog a daemon keeps: a SQLite file, a database server for the whole cluster, or none.
#pragma once

#include <string>

#include "common/status.h"
#include "server/daemon/options.h"
#include "server/facts/facts.h"
#include "server/node/recorder.h"

namespace cairn::daemon {

// The first line of a file with a password. INVALID_ARGUMENT names option and file: it is missing, empty or too long, no
// regular file, belongs to another user than root or this process's, or others may read it.
StatusOr<std::string> ReadPasswordFile(const std::string& path);

// As ReadPasswordFile, where the options name such a file. For who starts a node: a daemon that takes over what is in
// memory starts without its catalog rather than not at all.
Status CheckPasswordFile(const Options& options);

// Null where there is none. The password is read each time the catalog is opened, so it may be changed while the daemon
// lives, and opening fails as ReadPasswordFile does.
// `seat`: the rank that this node has by the catalog, if any: nothing is written once another has it.
node::OpenCatalog CatalogOpener(const Options& options, const fact::RingSeat& seat = {});

}  // namespace cairn::daemon
