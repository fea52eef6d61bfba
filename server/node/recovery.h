// From a dead daemon's journal to what a new engine and session registry start with. Pure, but for
// reading manifests out of slabs by way of `read`.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "server/facts/facts.h"
#include "common/manifest.h"
#include "server/node/sessions.h"

namespace cairn::node {

// Sessions that have begun and not ended, by id; `connected_unix_ms` and `client` are not in the
// journal.
absl::flat_hash_map<SessionId, SessionInfo> SessionsOf(const std::vector<Fact>& facts);

// Bytes of the committed manifests whose digest is the journaled one and which decode to that part.
// Those that do not are named in `problems`.
using ReadExtent = std::function<StatusOr<std::string>(const ExtentRef& extent, uint64_t bytes)>;
std::vector<std::pair<PartKey, std::string>> ManifestsOf(const std::vector<Fact>& facts,
                                                         const ReadExtent& read,
                                                         std::vector<std::string>* problems);

}  // namespace cairn::node
