// What other members may read of this node's memory: makes the engine's grants the transport's, and ends
// them in the order that promise 6 asks for: first nothing can be read under a grant any more, then the
// engine hears that its bytes may go.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <utility>

#include "common/clock.h"
#include "common/mutex.h"
#include "common/status.h"
#include "server/engine/events.h"
#include "server/engine/peer_messages.h"
#include "server/engine/ring.h"
#include "server/facts/part_record.h"
#include "server/node/attached.h"
#include "server/node/options.h"
#include "server/node/peer_links.h"
#include "server/transport/transport.h"

namespace cairn::node {

// A member as transports know it: by rank alone, for a life takes a greater incarnation while its transport has
// streams open. The token, which only this reader was told, is what permits.
inline transport::PeerId PeerOf(const engine::MemberId& member) { return {member.rank, 0}; }

// A grant's way: Admit, then the engine is asked, then Expect with its number (or Refused), then Give.
// Whatever happens after Expect, event::GrantEnded follows in the end, once, unless Stop comes first.
// Thread-safe.
class Granter {
 public:
  // All outlive it. `post` brings an event into the engine; it is called with no lock held.
  Granter(const GranterOptions& options, transport::Transport* transport, Attached* attached,
          Clock* clock, std::function<void(engine::Event)> post);
  ~Granter() { Stop(); }

  // Takes one of the places for grants; RESOURCE_EXHAUSTED when all are taken.
  Status Admit();
  void Refused();  // gives it back
  // The engine has pinned a part's bytes under this number. Under the node's lock: an End that the engine
  // asks for next must find it.
  void Expect(uint64_t grant);
  // Makes the part readable for `reader`. The table has extents. Makes some microseconds of work per
  // object, and waits for nobody. An error ends the grant.
  StatusOr<engine::peer::GrantAnswer> Give(const engine::MemberId& reader, uint64_t grant,
                                           const PartTable& table);
  // Revokes it soon.
  void End(uint64_t grant);
  // The same, of a grant that is the reader's, who needs it no longer.
  void EndFor(const engine::MemberId& reader, EndedGrant ended);
  size_t count() const;
  // Revokes all, and joins the thread.
  void Stop();

 private:
  struct State {
    engine::MemberId reader;
    transport::GrantToken token = {};
    bool given = false;   // the token is the transport's
    bool ending = false;  // the thread, or Give, ends it
    transport::ItsReads reads = transport::ItsReads::kMayBeUnderWay;
    MonotonicNanos look_at = 0;
  };

  StatusOr<engine::peer::GrantAnswer> Describe(uint64_t grant, const PartTable& table,
                                               std::vector<ExtentRef>* extents);
  // The transport has it now. False: it was to end meanwhile.
  bool Given(const engine::MemberId& reader, uint64_t grant, const transport::GrantToken& token);
  void Run();
  // The next grant to look at, if its time has come; with `ending` set when it is to end. False: stopping.
  bool Next(std::pair<uint64_t, State>* next);
  void LookAt(uint64_t grant, const State& state);
  void EndLocked(uint64_t grant, State* state, transport::ItsReads reads)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Revokes the token, if the transport has it, then tells the engine.
  void Finish(uint64_t grant, const transport::GrantToken* token, transport::ItsReads reads);

  const GranterOptions options_;
  transport::Transport* const transport_;
  Attached* const attached_;
  Clock* const clock_;
  const std::function<void(engine::Event)> post_;

  mutable Mutex mu_;  // never held while the transport or `post_` is called
  CondVar wake_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  size_t places_ ABSL_GUARDED_BY(mu_) =
      0;  // taken: by grants, and by those that are being asked for
  std::map<uint64_t, State> grants_ ABSL_GUARDED_BY(mu_);
  // Those that the transport has, by when to look at them; at 0 those that are to end.
  std::set<std::pair<MonotonicNanos, uint64_t>> looks_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;  // last: it uses the members above
};

}  // namespace cairn::node
