// Which processes have a memfd open or mapped, as far as /proc shows. For people who ask what holds
// memory; decisions are made by the cache's probe.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>

namespace cairn::node {

// The processes that have each of `inodes` open or mapped, without this process and its parent, the
// keeper. Sees only processes it may look at (another uid's only as root), at most `max_processes`.
std::map<uint64_t, std::set<int32_t>> FindMappers(const std::set<uint64_t>& inodes,
                                                  const std::string& proc = "/proc",
                                                  int max_processes = 4096);

}  // namespace cairn::node
