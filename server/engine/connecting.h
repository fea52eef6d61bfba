// What begins with a session's hello, and ends with its end.
#pragma once

#include "server/engine/pool.h"
#include "server/engine/scanning.h"

namespace cairn::engine {

class Connecting {
 public:
  Connecting(const Options& options, const Mode& mode, Outbox* out, Callers* callers, Jobs* jobs,
             Sessions* sessions, Leases* leases, Attempts* attempts, Parts* parts,
             Admission* admission, Pool* pool, Scanning* scanning);

  void On(const event::Hello& event);
  void On(const event::SessionEnded& event);

 private:
  Status CheckHello(const event::Hello& event) const;
  void EraseWhatItWrote(SessionId session);

  const Options& options_;
  const Mode& mode_;
  Outbox& out_;
  Callers& callers_;
  Jobs& jobs_;
  Sessions& sessions_;
  Leases& leases_;
  Attempts& attempts_;
  Parts& parts_;
  Admission& admission_;
  Pool& pool_;
  Scanning& scanning_;
};

}  // namespace cairn::engine
