#include "common/status.h"

#include <cerrno>
#include <cstring>

#include "absl/strings/cord.h"

namespace cairn {
namespace {

absl::StatusCode CodeOfErrno(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case ENOMEM:
    case EMFILE:
    case ENFILE:
      return absl::StatusCode::kResourceExhausted;
    case ENOENT:
      return absl::StatusCode::kNotFound;
    case EACCES:
    case EPERM:
      return absl::StatusCode::kPermissionDenied;
    case EEXIST:
      return absl::StatusCode::kAlreadyExists;
    case EINVAL:
      return absl::StatusCode::kInvalidArgument;
    case EIO:
      return absl::StatusCode::kDataLoss;
    case ECONNREFUSED:
    case EPIPE:
    case ECONNRESET:
      return absl::StatusCode::kUnavailable;
    case ETIMEDOUT:
      return absl::StatusCode::kDeadlineExceeded;
    default:
      return absl::StatusCode::kInternal;
  }
}

}  // namespace

Status Annotate(const Status& status, absl::string_view context) {
  if (status.ok()) return status;
  Status annotated(status.code(), absl::StrCat(context, ": ", status.message()));
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) {
    annotated.SetPayload(url, payload);
  });
  return annotated;
}

Status ErrnoStatus(int error, absl::string_view what) {
  const char* description = strerrordesc_np(error);
  const char* name = strerrorname_np(error);
  return Status(CodeOfErrno(error),
                absl::StrCat(what, ": ", description != nullptr ? description : "unknown error",
                             " (errno ", name != nullptr ? name : absl::StrCat(error), ")"));
}

}  // namespace cairn
