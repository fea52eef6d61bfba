#include "server/rpc/peer_link.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <limits>
#include <utility>

#include "glog/logging.h"

namespace cairn::rpc {
namespace {

using engine::MemberId;

// Grants end by themselves soon: what does not fit is not said.
constexpr size_t kMostEndedGrants = 4096;
// The times of the options bound it.
constexpr MonotonicNanos kNever = std::numeric_limits<MonotonicNanos>::max();

std::chrono::steady_clock::time_point AsTimePoint(MonotonicNanos at) {
  return std::chrono::steady_clock::now() + std::chrono::nanoseconds(at - RealClock()->Now());
}

}  // namespace

PeerLink::PeerLink(const PeerContext* context, engine::Rank rank)
    : context_(context),
      rank_(rank),
      exchanges_(context, rank),
      grants_(context, rank),
      transport_(context, rank) {}

void PeerLink::Start() {
  thread_ = std::thread([this] { Run(); });
}

void PeerLink::Stop() {
  stopping_ = true;
  exchanges_.Shutdown();
  for (Line* const line : {&grants_, &transport_}) line->caller.Shutdown();
  {
    MutexLock lock(&mu_);
    wake_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
  for (Line* const line : {&grants_, &transport_}) {
    MutexLock lock(&line->mu);
    line->free.NotifyAll();
    while (line->asking) line->free.Wait(&line->mu);
  }
}

void PeerLink::Tell(engine::peer::Message message) {
  MutexLock lock(&mu_);
  if (!answers_) return;
  if (!outbox_.Put(std::move(message))) overflown_ = true;
  wake_.NotifyAll();
}

void PeerLink::EndGrant(node::EndedGrant ended) {
  MutexLock lock(&mu_);
  if (!answers_ || ended_grants_.size() >= kMostEndedGrants) return;
  ended_grants_.push_back(ended);
  wake_.NotifyAll();
}

void PeerLink::Look() {
  MutexLock lock(&mu_);
  look_ = true;
  wake_.NotifyAll();
}

void PeerLink::Run() {
  pthread_setname_np(pthread_self(), absl::StrCat("peer-", rank_).c_str());
  while (!stopping_) {
    const MonotonicNanos begun = RealClock()->Now();
    StatusOr<MemberId> who = absl::InternalError("not asked");
    try {
      who = Exchange();
    } catch (const std::exception& e) {  // no memory
      exchanges_.Close();
      who = absl::ResourceExhaustedError(e.what());
    }
    if (stopping_) break;
    Ended(who, RealClock()->Now() - begun);
    AwaitNext(begun, who.ok());
  }
  exchanges_.Close();
}

StatusOr<MemberId> PeerLink::Exchange() {
  // A greeting tells what is known of the ring.
  if (exchanges_.connected() && exchanges_.told_view() != context_->book->view_version()) {
    exchanges_.Close();
  }
  if (!exchanges_.connected()) CAIRN_RETURN_IF_ERROR(exchanges_.Connect(stopping_, kNever));
  std::vector<engine::peer::Message> messages;
  std::vector<node::EndedGrant> ended;
  {
    MutexLock lock(&mu_);
    look_ = false;
    if (std::exchange(overflown_, false)) {
      return absl::ResourceExhaustedError("more waits to be said than the outbox holds");
    }
    messages = outbox_.Take();
    ended.swap(ended_grants_);
  }
  StatusOr<MemberId> who = exchanges_.Say(std::move(messages));
  if (!who.ok() || ended.empty()) return who;
  CAIRN_RETURN_IF_ERROR(exchanges_.EndGrants(ended));
  return who;
}

void PeerLink::Ended(const StatusOr<MemberId>& who, MonotonicNanos took) {
  if (last_ != who.status().code()) {
    if (who.ok()) {
      LOG(INFO) << "member " << MemberText(*who) << " answers";
    } else {
      LOG(WARNING) << "rank " << rank_ << " does not answer: " << who.status();
    }
  }
  last_ = who.status().code();
  if (who.ok()) {
    {
      MutexLock lock(&mu_);
      answers_ = true;  // first: what the host says because of it is kept
    }
    back_off_ = context_->options.back_off_min;
    context_->host->Exchanged(rank_, *who, took);
    return;
  }
  // The next one begins with a greeting: it may be another life that answers then.
  exchanges_.Close();
  context_->host->Exchanged(rank_, std::nullopt, took);
  MutexLock lock(&mu_);
  answers_ = false;  // last: what was said before the host knew of it is dropped with the rest
  outbox_.Clear();
  ended_grants_.clear();
}

void PeerLink::AwaitNext(MonotonicNanos begun, bool answered) {
  const PeersOptions& options = context_->options;
  MonotonicNanos until = begun + options.exchange_interval;
  if (!answered) {
    // One that has waited for an answer in vain was a pause itself.
    until = begun + std::max(back_off_, options.back_off_min);
    back_off_ = std::min(2 * std::max(back_off_, options.back_off_min), options.back_off_max);
  }
  MutexLock lock(&mu_);
  while (!stopping_ && RealClock()->Now() < until) {
    if (answered && (!outbox_.empty() || !ended_grants_.empty() || overflown_ || look_)) return;
    // A member that calls here is likely to answer now, but not more often than at first.
    if (look_) until = std::min(until, begun + options.back_off_min);
    wake_.WaitUntil(&mu_, AsTimePoint(until));
  }
  look_ = false;
}

template <typename Answer>
StatusOr<Answer> PeerLink::AskOn(Line* line, MonotonicNanos deadline,
                                 const std::function<StatusOr<Answer>(PeerCaller*)>& ask) {
  {
    MutexLock lock(&line->mu);
    while (line->asking && !stopping_) {
      if (!line->free.WaitUntil(&line->mu, AsTimePoint(deadline)) &&
          RealClock()->Now() >= deadline) {
        return absl::DeadlineExceededError(
            absl::StrCat("rank ", rank_, " is still asked something else"));
      }
    }
    if (stopping_) return absl::UnavailableError("this member is stopping");
    line->asking = true;
  }
  StatusOr<Answer> answer = absl::InternalError("not asked");
  try {
    answer = AskConnected(&line->caller, deadline, ask);
  } catch (const std::exception& e) {  // no memory
    line->caller.Close();
    answer = absl::ResourceExhaustedError(e.what());
  }
  MutexLock lock(&line->mu);
  line->asking = false;
  line->free.NotifyAll();
  return answer;
}

template <typename Answer>
StatusOr<Answer> PeerLink::AskConnected(PeerCaller* caller, MonotonicNanos deadline,
                                        const std::function<StatusOr<Answer>(PeerCaller*)>& ask) {
  // A connection that was made for an earlier question may have been closed since: then a new one is.
  StatusOr<Answer> answer = absl::UnavailableError("not connected");
  if (caller->connected()) answer = ask(caller);
  if (!caller->connected() && RealClock()->Now() < deadline) {
    CAIRN_RETURN_IF_ERROR(caller->Connect(stopping_, deadline));
    answer = ask(caller);
  }
  return answer;
}

StatusOr<node::PeerLinks::Granted> PeerLink::AskGrant(const engine::peer::GrantQuestion& question,
                                                      MonotonicNanos deadline) {
  using node::PeerLinks;
  return AskOn<PeerLinks::Granted>(
      &grants_, deadline, [&](PeerCaller* caller) -> StatusOr<PeerLinks::Granted> {
        CAIRN_ASSIGN_OR_RETURN(auto answer, caller->Grant(question, deadline));
        return PeerLinks::Granted{std::move(answer), caller->data_address()};
      });
}

StatusOr<std::string> PeerLink::AskTransport(const std::string& question, MonotonicNanos deadline) {
  return AskOn<std::string>(&transport_, deadline, [&](PeerCaller* caller) {
    return caller->AskTransport(question, deadline);
  });
}

}  // namespace cairn::rpc
