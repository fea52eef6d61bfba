#include "server/rpc/connection_limits.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"

namespace cairn::rpc {
namespace {

// Connections that are only there to be told that they are too many, of one user and of all.
constexpr int64_t kMaxRefusedOfUser = 16;
constexpr int64_t kMaxRefused = 256;

}  // namespace

ConnectionLimits::ConnectionLimits(int64_t most, const engine::Options& options)
    : counts_(std::make_shared<Counts>(most, options)) {}

std::shared_ptr<ConnectionLimits::Ticket> ConnectionLimits::Admit(uint32_t uid) {
  std::shared_ptr<Ticket> ticket(new Ticket());
  const engine::Options& options = counts_->options;
  MutexLock lock(&counts_->mu);
  const int64_t most = counts_->most;
  const int64_t reserved = uid == 0 ? 0 : std::min<int64_t>(64, most / 16);
  Counts::OfUser& of_user = counts_->users[uid];
  if (counts_->served >= most - reserved) {
    ticket->refused_ = absl::ResourceExhaustedError(absl::StrCat(
        "connections: ", counts_->served, " are open, the limit is limits.connections = ", most,
        reserved > 0 ? absl::StrCat(" less ", reserved, " for uid 0") : ""));
  } else if (of_user.served >= options.OfUser(most, uid)) {
    ticket->refused_ = absl::ResourceExhaustedError(absl::StrCat(
        "connections: uid ", uid, " has ", of_user.served, " open, the limit is ",
        options.user_percent, " % (limits.user_percent) of limits.connections = ", most));
  }
  if (ticket->refused_.ok()) {
    ++of_user.served;
    ++counts_->served;
  } else {
    LOG_EVERY_N(WARNING, 100) << ticket->refused_;
    if (counts_->refused >= kMaxRefused || of_user.refused >= kMaxRefusedOfUser) {
      if (of_user.served == 0 && of_user.refused == 0) counts_->users.erase(uid);
      return nullptr;
    }
    ++of_user.refused;
    ++counts_->refused;
  }
  ticket->counts_ = counts_;
  ticket->uid_ = uid;
  return ticket;
}

ConnectionLimits::Ticket::~Ticket() {
  if (counts_ == nullptr) return;
  MutexLock lock(&counts_->mu);
  const auto of_user = counts_->users.find(uid_);
  if (refused_.ok()) {
    --of_user->second.served;
    --counts_->served;
  } else {
    --of_user->second.refused;
    --counts_->refused;
  }
  if (of_user->second.served == 0 && of_user->second.refused == 0) counts_->users.erase(of_user);
}

}  // namespace cairn::rpc
