// What a peer's reads need first and what takes its time: a connection, the owner's keys, memory that is registered.
#include <pthread.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "server/transport/rdma_peer.h"

namespace cairn::transport {
namespace {

// Of a connection, the least recently used go.
constexpr size_t kMostOpened = 1024;

}  // namespace

void RdmaPeer::RunNeeds() {
  pthread_setname_np(pthread_self(), "rdma-ask");
  while (true) {
    Need need;
    {
      MutexLock lock(&mu_);
      while (!need_.has_value() && !closing_) needs_.Wait(&mu_);
      if (closing_) return;
      need = *need_;
    }
    try {
      Meet(need);
    } catch (const std::exception& e) {  // no memory: what lacks it asks again, or is late
      LOG_EVERY_N(ERROR, 100) << "peer " << address_ << ": " << e.what();
    }
    {
      MutexLock lock(&mu_);
      need_.reset();
    }
    Wake();
  }
}

void RdmaPeer::Meet(const Need& need) {
  if (need.slab != nullptr) {
    const Status registered = need.slab->Register();
    if (registered.ok()) return;
    return FailWaiting(registered, [&](const Waiting& read) { return read.into == need.slab; });
  }
  if (need.token.has_value()) return AskToOpen(*need.token, need.anew, need.came);
  const Status connected = AskToConnect();
  if (!connected.ok()) FailWaiting(Unavailable(connected), [](const Waiting&) { return true; });
}

void RdmaPeer::AskToOpen(const GrantToken& token, bool anew,
                         const std::optional<RdmaOpen::Came>& came) {
  RdmaOpen request = {.connection = 0, .token = token, .anew = anew, .came = came};
  bool good = false;  // there are keys, whatever the answer
  {
    MutexLock lock(&mu_);
    if (connection_ == nullptr) return;
    request.connection = connection_->id;
    const auto at = connection_->opened.find(token);
    const MonotonicNanos now = RealClock()->Now();
    if (at != connection_->opened.end()) {
      at->second.asked_at = now;
      good = !anew && now - at->second.answered_at <= kGoodFor;
    }
  }
  StatusOr<RdmaOpened> answer =
      control_->Open(address_, request, RealClock()->Now() + options_.ask);
  const Status refused = answer.status();
  const auto its = [&](const Waiting& read) { return read.request.token == token; };
  if (absl::IsFailedPrecondition(refused)) {
    // The owner has dropped the connection, to make room. Once more on a new one.
    FailWaiting(Unavailable(refused),
                [&](const Waiting& read) { return its(read) && read.tries > 0; });
  } else if (absl::IsPermissionDenied(refused)) {
    FailWaiting(refused, its);
  } else if (absl::IsAborted(refused) && !good) {
    FailWaiting(absl::AbortedError(absl::StrCat("peer ", address_, ": ", refused.message())), its);
  } else if (!refused.ok() && !good) {
    FailWaiting(Unavailable(refused), its);
  }
  std::vector<Ended> ended;
  {
    MutexLock lock(&mu_);
    if (connection_ == nullptr || connection_->id != request.connection) return;
    if (absl::IsFailedPrecondition(refused)) {
      Break(refused, /*counts=*/true, &ended);
      for (Waiting& read : waiting_) read.tries += its(read) ? 1 : 0;
    } else {
      NoteOpened(token, anew, std::move(answer));
    }
  }
  for (Ended& one : ended) End(std::move(one));
}

void RdmaPeer::NoteOpened(const GrantToken& token, bool anew, StatusOr<RdmaOpened> answer) {
  std::map<GrantToken, Opened>& opened = connection_->opened;
  if (absl::IsPermissionDenied(answer.status())) opened.erase(token);
  if (!answer.ok()) return;
  // Nobody waits for it any more: its keys are forgotten, for they may be another grant's soon.
  bool wanted = std::any_of(active_.begin(), active_.end(),
                            [&](const Active& one) { return one.read.request.token == token; });
  for (Waiting& read : waiting_) {
    if (read.request.token != token) continue;
    wanted = true;
    read.asked_anew = read.asked_anew || anew;
  }
  if (anew) opened.clear();  // other grants' keys of the same slabs are void
  if (!wanted) return;
  if (opened.size() >= kMostOpened && !opened.contains(token)) {
    opened.erase(std::min_element(opened.begin(), opened.end(), [](const auto& a, const auto& b) {
      return a.second.used_at < b.second.used_at;
    }));
  }
  const MonotonicNanos now = RealClock()->Now();
  opened[token] = {*std::move(answer), now, now, now};
}

StatusOr<std::unique_ptr<RdmaPeer::Connection>> RdmaPeer::MakeConnection() const {
  CAIRN_ASSIGN_OR_RETURN(const VerbsPort port, device_->Port(port_));
  CAIRN_ASSIGN_OR_RETURN(const VerbsGid gid, ChooseGid(device_->info(), port));
  auto connection = std::make_unique<Connection>();
  CAIRN_ASSIGN_OR_RETURN(connection->completions,
                         device_->MakeCompletions(slots_ * options_.queue_pairs));
  for (int i = 0; i < options_.queue_pairs; ++i) {
    CAIRN_ASSIGN_OR_RETURN(
        auto pair, device_->MakeQueuePair(port, gid, slots_, connection->completions.get()));
    connection->pairs.push_back(std::move(pair));
  }
  connection->posted.assign(connection->pairs.size(), 0);
  return connection;
}

Status RdmaPeer::AskToConnect() {
  CAIRN_ASSIGN_OR_RETURN(auto connection, MakeConnection());
  RdmaConnect request;
  {
    MutexLock lock(&mu_);
    request.replaces = last_connection_;
  }
  for (const auto& pair : connection->pairs) request.endpoints.push_back(pair->endpoint());
  CAIRN_ASSIGN_OR_RETURN(const RdmaConnected connected,
                         control_->Connect(address_, request, RealClock()->Now() + options_.ask));
  {
    MutexLock lock(&mu_);
    last_connection_ = connected.connection;  // whatever becomes of it
  }
  if (connected.endpoints.size() != connection->pairs.size()) {
    return absl::UnavailableError(absl::StrCat("it answered with ", connected.endpoints.size(),
                                               " queue pairs, not ", connection->pairs.size()));
  }
  for (size_t i = 0; i < connection->pairs.size(); ++i) {
    CAIRN_RETURN_IF_ERROR(connection->pairs[i]->Connect(connected.endpoints[i]));
  }
  connection->id = connected.connection;
  MutexLock lock(&mu_);
  connection_ = std::move(connection);
  return absl::OkStatus();
}

void RdmaPeer::FailWaiting(const Status& status, const std::function<bool(const Waiting&)>& which) {
  std::vector<Waiting> failed;
  {
    MutexLock lock(&mu_);
    std::deque<Waiting> kept;
    for (Waiting& read : waiting_) {
      if (which(read)) {
        failed.push_back(std::move(read));
      } else {
        kept.push_back(std::move(read));
      }
    }
    waiting_.swap(kept);
  }
  const MonotonicNanos now = RealClock()->Now();
  for (const Waiting& read : failed) read.done(read.request.deadline <= now ? Late() : status);
}

}  // namespace cairn::transport
