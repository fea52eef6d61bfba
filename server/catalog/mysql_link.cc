#include "server/catalog/mysql_link.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"

namespace cairn::catalog {

Status MysqlLink::With(const std::function<Status(MysqlSession*)>& use) {
  MutexLock lock(&mu_);
  const bool used_before = session_ != nullptr && !session_->broken();
  CAIRN_RETURN_IF_ERROR(Connect());
  const uint64_t succeeded = session_->succeeded();
  Status status = use(session_.get());
  if (!session_->broken() || !used_before || session_->succeeded() > succeeded) return status;
  CAIRN_RETURN_IF_ERROR(Connect());
  return use(session_.get());
}

Status MysqlLink::Connect() {
  if (session_ != nullptr && !session_->broken()) return absl::OkStatus();
  session_.reset();
  if (absl::Now() < again_at_) return problem_;
  StatusOr<std::unique_ptr<MysqlSession>> session = MysqlSession::Connect(options_);
  if (!session.ok()) {
    problem_ = session.status();
    again_at_ = absl::Now() + pause_;
    pause_ = std::min(pause_ * 2, kLongestPause);
    return problem_;
  }
  pause_ = kFirstPause;
  session_ = *std::move(session);
  return absl::OkStatus();
}

}  // namespace cairn::catalog
