// Whether anybody is at the address of a member, asked by one who need not be a member itself.
#pragma once

#include <string>

#include "server/rpc/peer_options.h"

namespace cairn::rpc {

// False where nobody takes a connection within options.connect_timeout, or nothing comes back within
// options.call_timeout: a process that was stopped, or whose host is gone, is silent so; and where a member answers that says
// that it has another rank. Whatever else is there answers, with an error too, and so does one of whom nobody can tell, for this node's own certificate is of no use. Waits for both at most.
bool SomebodyAnswers(const PeersOptions& options, const std::string& address, engine::Rank rank);

}  // namespace cairn::rpc
