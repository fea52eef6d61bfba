// From a client's requests to the node's events, and from the node's answers to the wire. Values
// that the client shares are converted and checked by proto/convert.h. Together the two check all
// that a client sends, except what only the engine's state can tell (events.h says where). Errors
// name the field, the value and the limit.
#pragma once

#include <string>
#include <vector>

#include "Cairn.h"
#include "cairn_constants.h"
#include "common/status.h"
#include "proto/convert.h"
#include "server/engine/actions.h"
#include "server/engine/events.h"
#include "server/node/membership_loop.h"
#include "server/node/node.h"

namespace cairn::rpc {

// `now` + `timeout_ms`, at most a day. INVALID_ARGUMENT when negative.
StatusOr<MonotonicNanos> ToDeadline(MonotonicNanos now, int64_t timeout_ms);
StatusOr<uint64_t> ToUnsigned(absl::string_view field, int64_t value);
StatusOr<std::vector<uint64_t>> ToIds(absl::string_view field, const std::vector<int64_t>& values);

StatusOr<PartKey> ToPart(const std::string& job, int64_t step, int64_t attempt, int32_t revision,
                         int32_t writer);
StatusOr<std::vector<engine::event::ObjectSpec>> ToSpecs(
    const std::vector<wire::ObjectSpec>& specs);
StatusOr<engine::event::ToCome> ToComeFrom(const wire::ToCome& to_come);
// Whose names ascend, each with as many checksums as its length asks for.
StatusOr<std::vector<ObjectEntry>> ToEntries(const std::vector<wire::StoreObject>& objects);
StatusOr<std::vector<engine::event::Seal>> ToSeals(const std::vector<wire::SealedObject>& seals);
StatusOr<engine::event::Hello> ToHello(const wire::HelloRequest& request);
// Only CACHED, REPLICATED and PERSISTED can be waited for.
StatusOr<Level> ToLevelToWaitFor(const wire::Level::type& level);

wire::CreateReply FromCreated(const engine::reply::Create& created);
wire::OpenReply FromOpened(const node::Opened& opened);
wire::Latest FromLatest(engine::reply::Latest latest, int64_t as_of_unix_ms);
wire::RingInfo FromRing(const node::RingState& ring);
wire::IndexReply FromIndex(const node::IndexAnswer& answer, int64_t as_of_unix_ms);
wire::NodeStatus FromState(const node::NodeState& state, const node::Options& options);

}  // namespace cairn::rpc
