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
  PeerLinks* const links = Enter();
  if (links == nullptr) return;
  ReachFailpoint(Failpoint::kRingTell);
  links->Tell(rank, std::move(message));
  Leave();
}

StatusOr<PeerLinks::Granted> Links::AskGrant(engine::Rank rank,
                                             const engine::peer::GrantQuestion& question,
                                             MonotonicNanos deadline) {
  PeerLinks* const links = Enter();
  if (links == nullptr) return absl::UnavailableError("the wire between members is not open");
  StatusOr<PeerLinks::Granted> granted = links->AskGrant(rank, question, deadline);
  Leave();
  return granted;
}

void Links::EndGrant(engine::Rank rank, uint64_t grant) {
  PeerLinks* const links = Enter();
  if (links == nullptr) return;
  links->EndGrant(rank, grant);
  Leave();
}

}  // namespace cairn::node
