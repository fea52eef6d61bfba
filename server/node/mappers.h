// Which processes have a memfd open or mapped, as far as /proc shows: for people who ask what holds
// memory, never for a decision (the cache's probe is for those).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>

namespace cairn::node {

// Processes by inode, for the inodes asked about; this process and its parent, the keeper, left
// out. Looks at what it may (another uid's processes only as root), at most at `max_processes`.
std::map<uint64_t, std::set<int32_t>> FindMappers(const std::set<uint64_t>& inodes,
                                                  const std::string& proc = "/proc",
                                                  int max_processes = 4096);

}  // namespace cairn::node
