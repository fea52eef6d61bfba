// What begins with a session's hello, and ends with its end.
#pragma once

#include "server/engine/pool.h"
#include "server/engine/refusals.h"
#include "server/engine/scanning.h"
#include "server/engine/succession.h"

namespace cairn::engine {

class Connecting {
 public:
  Connecting(const Options& options, const Mode& mode, Outbox* out, Callers* callers, Jobs* jobs,
             Sessions* sessions, Leases* leases, Attempts* attempts, Parts* parts,
             Admission* admission, Pool* pool, Scanning* scanning, Succession* succession,
             Refusals* refusals);

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
  Succession& succession_;
  Refusals& refusals_;
};

}  // namespace cairn::engine
