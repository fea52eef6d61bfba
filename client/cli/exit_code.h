// How a Status leaves the process. Scripts rely on the numbers; docs/operations.md lists them.
#pragma once

#include "common/status.h"

namespace cairn::cli {

inline constexpr int kExitOther = 1;

inline int ExitCode(const Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return 0;
    case absl::StatusCode::kInvalidArgument:
      return 2;
    case absl::StatusCode::kNotFound:
      return 3;
    case absl::StatusCode::kDataLoss:
      return 4;
    case absl::StatusCode::kResourceExhausted:
      return 5;
    case absl::StatusCode::kUnavailable:
      return 6;
    case absl::StatusCode::kDeadlineExceeded:
      return 7;
    case absl::StatusCode::kPermissionDenied:
      return 8;
    default:
      return kExitOther;
  }
}

}  // namespace cairn::cli
