// Between the generated Thrift types and the library's own. Code numbers and enumerators are equal
// on both sides (proto/cairn.thrift); what arrives out of range is INTERNAL, never a cast into
// nowhere.
#pragma once

#include <string>
#include <vector>

#include "cairn_types.h"
#include "client/cpp/session.h"
#include "common/status.h"

namespace cairn::client {

Status FromWire(const wire::Error& error);

wire::JobPolicy ToWire(const JobPolicy& policy);
// job empty: `default_job`.
wire::CheckpointRef ToWire(const CheckpointRef& ref, const std::string& default_job);
wire::ObjectKind::type ToWire(ObjectKind kind);
wire::Level::type ToWire(Level level);
wire::OpenMode::type ToWire(OpenMode mode);

StatusOr<CheckpointInfo> FromWire(const std::string& job, const wire::CheckpointInfo& info);
StatusOr<ObjectInfo> FromWire(const wire::ObjectInfo& info);
LatestCheckpoint FromWire(const std::string& job, const wire::Latest& latest);

// NodeStatus with the field names of the contract.
std::string ToJson(const wire::NodeStatus& status);

}  // namespace cairn::client
