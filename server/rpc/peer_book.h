// Who the other members are. A rank is who answers at its address, which the list of members has, or the catalog: the links, which
// dial those addresses, write here whom they met; the server asks here whether a caller is the one. So a
// daemon that was started elsewhere under a wrong rank is refused and harms nobody.
//
// Incarnations only order the lives of one address: one that is older than a life that was met there is not
// met any more.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>

#include "common/clock.h"
#include "common/mutex.h"
#include "common/status.h"
#include "server/engine/ring.h"

namespace cairn::rpc {

// Thread-safe.
class PeerBook {
 public:
  // Of the ring's other members. `look` is called, with no lock held, when somebody says that it is a newer
  // life of a rank than was met: the rank's link should dial its address now.
  PeerBook(const engine::RingOptions& ring, std::function<void(engine::Rank)> look);

  // `who` answered at its rank's address, to a call that began at `asked`. FAILED_PRECONDITION names both
  // lives when it is an older one than was met there, or one of the same incarnation: then it is not believed.
  Status Met(const engine::MemberId& who, MonotonicNanos asked);

  // Its ring.nodes. Members whose lists differ disagree about who is lost, which costs copies; nobody but a person can
  // tell which list is right.
  void Lists(engine::Rank rank, const std::string& nodes);
  // Whose lists were another one when they greeted last; empty: nobody's.
  std::string OtherLists() const;

  // Whether a caller that says that it is `claim` is the one at its rank's address.
  //   UNAVAILABLE          it was not met yet: it shall try again
  //   FAILED_PRECONDITION  it is not; both lives are named
  Status Judge(const engine::MemberId& claim, MonotonicNanos now);

  // Of all lives of the rank that were met, the newest.
  std::optional<engine::MemberId> Newest(engine::Rank rank) const;

  // Where the rank is to be dialled: its place in the list, or in the newest view. Empty: nobody has it.
  std::string AddressOf(engine::Rank rank) const;
  // Of a ring whose members stand in the catalog: what is known now. Its `version` grows with each that differs.
  void SetView(const engine::RingView& view);
  engine::RingView View() const;
  uint64_t view_version() const;

 private:
  struct Page {
    std::optional<engine::MemberId> newest;
    MonotonicNanos asked = 0;  // when the call began that `newest` last answered
    // The newest life that somebody claimed and the address did not show, and since when.
    std::optional<engine::MemberId> claimed;
    MonotonicNanos claimed_at = 0;
    std::string other_nodes;  // its list, where that is not this member's
    std::string address;
  };

  const std::function<void(engine::Rank)> look_;
  const std::string nodes_;  // this member's list
  mutable Mutex mu_;
  std::map<engine::Rank, Page> pages_ ABSL_GUARDED_BY(mu_);  // the ranks stay
  engine::RingView view_ ABSL_GUARDED_BY(mu_);
  uint64_t view_version_ ABSL_GUARDED_BY(mu_) = 0;
};

// "rank 2, incarnation 17, instance 0a1b…"
std::string MemberText(const engine::MemberId& member);

}  // namespace cairn::rpc
