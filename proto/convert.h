// Between the values of common/ and the generated Thrift types, both ways and side by side, for the
// daemon and for libcairn.
//
// A request is checked where it arrives: FromWire of what a client sends is INVALID_ARGUMENT and
// names the field, the value and the limit. An answer that this build cannot read (an enumerator it
// does not know, a negative length) is INTERNAL: the daemon is of another version, or broken. No
// value out of range is ever cast into an enumeration.
#pragma once

#include <string>
#include <vector>

#include "cairn_types.h"
#include "common/info.h"
#include "common/keys.h"
#include "common/level.h"
#include "common/manifest.h"
#include "common/policy.h"
#include "common/session_identity.h"
#include "common/status.h"

namespace cairn {

// --- requests

wire::JobPolicy ToWire(const JobPolicy& policy);
// UNIMPLEMENTED for readers other than the owner.
StatusOr<JobPolicy> FromWire(const wire::JobPolicy& policy);

// `session_job` stands for a job that the reference leaves empty. FromWire validates the whole.
wire::CheckpointRef ToWire(const CheckpointRef& ref, const std::string& session_job);
StatusOr<CheckpointRef> FromWire(const wire::CheckpointRef& ref, const std::string& session_job);

// The part of hello that says who the session is; uid, gid and pid do not travel. FromWire
// validates it, and gives a session that only reads the world size 0.
void ToWire(const SessionIdentity& identity, wire::HelloRequest* request);
StatusOr<SessionIdentity> FromWire(const wire::HelloRequest& request);

wire::OpenMode::type ToWire(OpenMode mode);
StatusOr<OpenMode> FromWire(const wire::OpenMode::type& mode);
wire::ObjectKind::type ToWire(ObjectKind kind);
StatusOr<ObjectKind> FromWire(const wire::ObjectKind::type& kind);
wire::Level::type ToWire(Level level);
StatusOr<Level> FromWire(const wire::Level::type& level);

// --- answers

// Code numbers are gRPC's on both sides. FromWire of a number that is no error's is INTERNAL.
wire::Error ToWire(const Status& status, Attempt superseded_by = 0);
Status FromWire(const wire::Error& error);

wire::CheckpointInfo ToWire(const CheckpointInfo& info);
StatusOr<CheckpointInfo> FromWire(const std::string& job, const wire::CheckpointInfo& info);
wire::ObjectInfo ToWire(const ObjectInfo& info);
StatusOr<ObjectInfo> FromWire(const wire::ObjectInfo& info);
wire::PolicyPreview ToWire(const PolicyPreview& preview);
StatusOr<PolicyPreview> FromWire(const std::string& job, const wire::PolicyPreview& preview);
wire::Latest ToWire(const LatestCheckpoint& latest);
LatestCheckpoint FromWire(const std::string& job, const wire::Latest& latest);

// The name of an enumerator in a status page; "unknown" for one that this build does not know.
absl::string_view NameOf(const wire::PersistMode::type& mode);
absl::string_view NameOf(const wire::Readers::type& readers);

}  // namespace cairn
