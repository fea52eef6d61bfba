#include "server/node/links.h"

#include "common/failpoint.h"

namespace cairn::node {

void Links::Set(PeerLinks* links) {
  MutexLock lock(&mu_);
  links_ = links;
  while (links_ == nullptr && inside_ > 0) left_.Wait(&mu_);
}

PeerLinks* Links::Enter() {
  MutexLock lock(&mu_);
  if (links_ != nullptr) ++inside_;
  return links_;
}

void Links::Leave() {
  MutexLock lock(&mu_);
  if (--inside_ == 0) left_.NotifyAll();
}

void Links::Tell(engine::Rank rank, engine::peer::Message message) {
  const Inside links(this);
  if (links.get() == nullptr) return;
  ReachFailpoint(Failpoint::kRingTell);
  links.get()->Tell(rank, std::move(message));
}

StatusOr<PeerLinks::Granted> Links::AskGrant(engine::Rank rank,
                                             const engine::peer::GrantQuestion& question,
                                             MonotonicNanos deadline) {
  const Inside links(this);
  if (links.get() == nullptr) return absl::UnavailableError("the wire between members is not open");
  return links.get()->AskGrant(rank, question, deadline);
}

StatusOr<std::string> Links::AskTransport(engine::Rank rank, const std::string& question,
                                          MonotonicNanos deadline) {
  const Inside links(this);
  if (links.get() == nullptr) return absl::UnavailableError("the wire between members is not open");
  return links.get()->AskTransport(rank, question, deadline);
}

void Links::EndGrant(engine::Rank rank, EndedGrant ended) {
  const Inside links(this);
  if (links.get() != nullptr) links.get()->EndGrant(rank, ended);
}

void Links::SetView(const engine::RingView& view) {
  const Inside links(this);
  if (links.get() != nullptr) links.get()->SetView(view);
}

std::string Links::Problem() {
  const Inside links(this);
  return links.get() == nullptr ? "" : links.get()->Problem();
}

}  // namespace cairn::node
