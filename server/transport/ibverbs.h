// The seam of verbs.h over libibverbs. A library of its own, which only who may use RDMA links.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/status.h"
#include "server/transport/verbs.h"

namespace cairn::transport {

// Names of the devices of this machine, in the library's order. NOT_FOUND, saying why, when there are none.
StatusOr<std::vector<std::string>> ListRdmaDevices();

// The process must not fork from now on, unless it execs at once: a child that lives keeps what is registered
// locked after this process's death.
StatusOr<std::unique_ptr<VerbsDevice>> OpenRdmaDevice(const std::string& name);

}  // namespace cairn::transport
