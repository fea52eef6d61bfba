// Between the wire and the node's words. Here the form of what a client sends is checked: ranges,
// lengths, names (common/keys.h). What depends on state (who owns a job, which attempt is the
// newest, how much a session may hold) the engine checks. Errors name the field, the value and the
// limit.
#pragma once

#include <string>
#include <vector>

#include "Cairn.h"
#include "cairn_constants.h"
#include "common/status.h"
#include "server/engine/actions.h"
#include "server/engine/events.h"
#include "server/node/node.h"

namespace cairn::rpc {

wire::Error ToError(const Status& status, Attempt superseded_by = 0);

// `now` + `timeout_ms`, which counts as a day at most. INVALID_ARGUMENT when it is negative.
StatusOr<MonotonicNanos> ToDeadline(MonotonicNanos now, int64_t timeout_ms);
StatusOr<uint64_t> ToUnsigned(absl::string_view field, int64_t value);
StatusOr<std::vector<uint64_t>> ToIds(absl::string_view field, const std::vector<int64_t>& values);

StatusOr<JobPolicy> ToPolicy(const wire::JobPolicy& policy);
// `job`: the session's, for a reference that names none.
StatusOr<engine::CheckpointRef> ToRef(const wire::CheckpointRef& ref, const std::string& job);
StatusOr<PartKey> ToPart(const std::string& job, int64_t step, int64_t attempt, int32_t revision,
                         int32_t writer);
StatusOr<std::vector<engine::event::ObjectSpec>> ToSpecs(
    const std::vector<wire::ObjectSpec>& specs);
StatusOr<std::vector<engine::event::Seal>> ToSeals(const std::vector<wire::SealedObject>& seals);
StatusOr<engine::event::Hello> ToHello(const wire::HelloRequest& request);
StatusOr<engine::Level> ToLevel(wire::Level::type level);
StatusOr<engine::OpenMode> ToMode(wire::OpenMode::type mode);
// What ls may be asked for: "", "JOB", "JOB/STEP", "JOB/latest".
Status ValidateListPath(const std::string& path);

wire::JobPolicy FromPolicy(const JobPolicy& policy);
wire::Facts FromFacts(const engine::Facts& facts);
wire::CheckpointInfo FromCheckpoint(const engine::CheckpointInfo& info);
wire::ObjectInfo FromObject(const engine::ObjectInfo& info);
wire::Latest FromLatest(const engine::reply::Latest& latest, int64_t as_of_unix_ms);
wire::NodeStatus FromState(const node::NodeState& state, const node::Options& options);

}  // namespace cairn::rpc
