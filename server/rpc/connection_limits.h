// How many connections there may be, in all and of each user.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "common/mutex.h"
#include "common/status.h"
#include "server/engine/options.h"

namespace cairn::rpc {

// Thread-safe.
class ConnectionLimits {
 private:
  struct Counts;

 public:
  // Beyond `most` a connection is only there to be told so. Of all, a sixteenth (at most 64) is kept for
  // uid 0.
  ConnectionLimits(int64_t most, const engine::Options& options);

  // Counts one connection until the last call that came over it has ended, whether it is still open or
  // not: who closes it and comes again has no more calls under way than who waits.
  class Ticket {
   public:
    ~Ticket();
    Ticket(const Ticket&) = delete;
    Ticket& operator=(const Ticket&) = delete;
    // Not OK: what every call over it is answered with, the first being the last.
    const Status& refused() const { return refused_; }

   private:
    friend class ConnectionLimits;
    Ticket() = default;
    std::shared_ptr<Counts> counts_;
    uint32_t uid_ = 0;
    Status refused_;
  };

  // Null: there are too many even of those that are only told so.
  std::shared_ptr<Ticket> Admit(uint32_t uid);

 private:
  struct Counts {
    Counts(int64_t limit, const engine::Options& engine) : most(limit), options(engine) {}
    struct OfUser {
      int64_t served = 0, refused = 0;
    };
    const int64_t most;
    const engine::Options options;
    Mutex mu;
    absl::flat_hash_map<uint32_t, OfUser> users ABSL_GUARDED_BY(mu);
    int64_t served ABSL_GUARDED_BY(mu) = 0, refused ABSL_GUARDED_BY(mu) = 0;
  };

  const std::shared_ptr<Counts> counts_;
};

}  // namespace cairn::rpc
