// From a dead daemon's journal to what a new engine and a new session registry start with. Pure, but
// for `read`, which reads manifests out of slabs.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/manifest.h"
#include "server/facts/facts.h"
#include "server/node/sessions.h"

namespace cairn::node {

// Sessions that have begun and not ended, by id. `connected_unix_ms` and `client` stay empty: the
// journal does not have them.
absl::flat_hash_map<SessionId, SessionInfo> SessionsOf(const std::vector<Fact>& facts);

// The identity of the storage that the facts are about; empty when none was met.
std::string StorageOf(const std::vector<Fact>& facts);

// The committed manifests whose bytes have the journaled digest and decode to their part. The others
// are named in `problems`.
using ReadExtent = std::function<StatusOr<std::string>(const ExtentRef& extent, uint64_t bytes)>;
std::map<PartKey, std::shared_ptr<const Manifest>> ManifestsOf(const std::vector<Fact>& facts,
                                                               const ReadExtent& read,
                                                               std::vector<std::string>* problems);

}  // namespace cairn::node
