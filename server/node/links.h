// The node's way to the wire between members: PeerLinks while there is one, and nothing before and after.
#pragma once

#include <string>
#include <utility>

#include "common/mutex.h"
#include "server/node/peer_links.h"

namespace cairn::node {

// Thread-safe.
class Links {
 public:
  // With nullptr it returns once no call is under way any more. Never called from inside one.
  void Set(PeerLinks* links);

  // As PeerLinks; without one, messages are dropped and questions are answered UNAVAILABLE.
  void Tell(engine::Rank rank, engine::peer::Message message);
  StatusOr<PeerLinks::Granted> AskGrant(engine::Rank rank,
                                        const engine::peer::GrantQuestion& question,
                                        MonotonicNanos deadline);
  StatusOr<std::string> AskTransport(engine::Rank rank, const std::string& question,
                                     MonotonicNanos deadline);
  void EndGrant(engine::Rank rank, EndedGrant ended);
  void SetView(const engine::RingView& view);
  std::string Problem();  // "" without one

 private:
  // One call: Set waits for its end, also when it throws.
  class Inside {
   public:
    explicit Inside(Links* of) : of_(of), links_(of->Enter()) {}
    ~Inside() {
      if (links_ != nullptr) of_->Leave();
    }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;
    PeerLinks* get() const { return links_; }

   private:
    Links* const of_;
    PeerLinks* const links_;
  };

  PeerLinks* Enter();  // each that is not nullptr: Leave follows
  void Leave();

  Mutex mu_;  // a leaf; not held during a call
  CondVar left_;
  PeerLinks* links_ ABSL_GUARDED_BY(mu_) = nullptr;
  int inside_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace cairn::node
