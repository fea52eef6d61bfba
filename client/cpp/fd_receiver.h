// The client's end of the fd channel (common/fd_channel.h): descriptors arrive here before the
// reply that mentions their lease, and wait until the call that was answered takes them.
// Thread-safe.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/fd.h"
#include "common/keys.h"
#include "common/mutex.h"
#include "common/status.h"

namespace cairn::client {

struct ReceivedFd {
  UniqueFd fd;
  LeaseId lease = 0;
  SlabId slab = 0;     // 0: a file in storage
  uint64_t bytes = 0;  // of the slab or file
};

class FdReceiver {
 public:
  // Joins `session` on the channel at `path`, sending this process's pidfd. `progress` gets the
  // descriptor of the session's progress page.
  static StatusOr<std::unique_ptr<FdReceiver>> Attach(const std::string& path, SessionId session,
                                                      const std::string& secret,
                                                      MonotonicNanos deadline, UniqueFd* progress);

  // For a call whose reply mentions `lease`: its descriptor is normally here already. UNAVAILABLE
  // when it does not come by the deadline, or the channel is gone.
  StatusOr<ReceivedFd> Take(LeaseId lease, MonotonicNanos deadline);

  // Descriptors of calls whose reply never arrived. Only while no call runs that may bring one.
  std::vector<ReceivedFd> TakeStrays();
  bool HasStrays();

  // Ends the session, without a goodbye; what waits here stays.
  void HangUp();

 private:
  explicit FdReceiver(UniqueFd socket) : socket_(std::move(socket)) {}
  // Receives all that has come.
  Status Drain() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const UniqueFd socket_;
  Mutex mu_;
  // Bounded by what the daemon lends to one session at once.
  std::map<LeaseId, ReceivedFd> waiting_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::client
