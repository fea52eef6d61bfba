// Errors below the edges are absl::Status / absl::StatusOr, with gRPC's code numbers on the wire.
//
// A message names the field, the value and the limit: "step: -1 is below 0". Context is added on
// the way up with Annotate; a Status is returned or logged, never both.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace cairn {

using absl::Status;
using absl::StatusOr;

// `status` with "context: " put before its message; OK stays OK.
Status Annotate(const Status& status, absl::string_view context);

// The Status of a failed system call: ENOSPC and ENOMEM and EMFILE are RESOURCE_EXHAUSTED, ENOENT
// is NOT_FOUND, EACCES and EPERM are PERMISSION_DENIED, EEXIST is ALREADY_EXISTS, EINVAL is
// INVALID_ARGUMENT, EIO is DATA_LOSS, ECONNREFUSED/EPIPE/ECONNRESET are UNAVAILABLE, ETIMEDOUT is
// DEADLINE_EXCEEDED; everything else INTERNAL. The message is "what: strerror (errno NAME)".
Status ErrnoStatus(int error, absl::string_view what);

#define CAIRN_CONCAT_INNER_(a, b) a##b
#define CAIRN_CONCAT_(a, b) CAIRN_CONCAT_INNER_(a, b)

#define CAIRN_RETURN_IF_ERROR(expression)          \
  do {                                             \
    ::cairn::Status cairn_status_ = (expression);  \
    if (!cairn_status_.ok()) return cairn_status_; \
  } while (false)

// CAIRN_ASSIGN_OR_RETURN(auto fd, OpenFile(path));
#define CAIRN_ASSIGN_OR_RETURN(lhs, expression) \
  CAIRN_ASSIGN_OR_RETURN_IMPL_(CAIRN_CONCAT_(cairn_statusor_, __LINE__), lhs, expression)
#define CAIRN_ASSIGN_OR_RETURN_IMPL_(tmp, lhs, expression) \
  auto tmp = (expression);                                 \
  if (!tmp.ok()) return std::move(tmp).status();           \
  lhs = *std::move(tmp)

}  // namespace cairn
