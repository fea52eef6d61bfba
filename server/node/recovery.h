// From a dead daemon's journal to what a new engine and a new session registry start with. Pure, but
// for `read`, which reads records out of slabs.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "server/facts/facts.h"
#include "server/facts/part_record.h"
#include "server/node/sessions.h"

namespace cairn::node {

// Sessions that have begun and not ended, by id. `connected_unix_ms` and `client` stay empty: the
// journal does not have them.
absl::flat_hash_map<SessionId, SessionInfo> SessionsOf(const std::vector<Fact>& facts);

// The identity of the storage that the facts are about; empty when none was met.
std::string StorageOf(const std::vector<Fact>& facts);

// What lies in the extent, of which the first `bytes` are a manifest.
using ReadExtent = std::function<StatusOr<std::string>(const ExtentRef& extent, uint64_t bytes)>;
// The record of a committed part; an error when it is not the one that was committed.
StatusOr<std::shared_ptr<const PartTable>> TableOf(const fact::PartCommitted& committed,
                                                   const ReadExtent& read);
// Those of all committed parts. Those that cannot be read, or do not verify, are named in `problems`;
// `unknown`: one was written by a build that this one does not know, UNIMPLEMENTED.
std::map<PartKey, std::shared_ptr<const PartTable>> TablesOf(const std::vector<Fact>& facts,
                                                             const ReadExtent& read,
                                                             std::vector<std::string>* problems,
                                                             Status* unknown);

// For facts that were read up to a damaged place: makes them safe to go on from. They are an earlier
// state of the node, and what was said since is not known. So:
//  - No id is given out twice: the next one is far above `held`, the greatest that the keeper has,
//    above `behind` (the facts that verify behind the damage) and above the facts themselves.
//  - A slab that nobody owned may have an owner by now: it is forgotten, unless a part that was found
//    again (found_parts.h) says whose it is, and the engine destroys a slab without a fact once nobody
//    maps it.
// What lies in the other slabs may have been dropped and written over since. The digests of manifests
// and the checksums of objects tell, and no slab is lent again before the probe finds it free: for
// that, no session may go on. The facts say of each that it has ended: once they are written as a
// snapshot, no later daemon adopts one, whatever the keeper still holds.
void GoOnFromEarlierState(const std::vector<Fact>& behind, uint64_t held, int64_t unix_ms,
                          std::vector<Fact>* facts);

}  // namespace cairn::node
