// What belongs to the process rather than to one of its sessions.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/keys.h"
#include "common/keys.h"
#include "common/status.h"

namespace cairn::client {

// getpid() without the system call, which every call of every session would make: a page that a
// fork wipes remembers it.
pid_t ThisPid();

// 16 random bytes drawn at first use, and anew in a forked child: (attempt, writer) is one process.
StatusOr<ProcessToken> ThisProcess();

// How often this process has entered `step` of (job, attempt, writer) before; counts this entry.
// Ranks run the same program, so all of a step's writers arrive at the same number without a word
// between them.
Revision EnterStep(const std::string& job, Attempt attempt, Writer writer, Step step);

// `timeout` from now on the monotonic clock; saturates, so that InfiniteDuration is far away, not
// past.
MonotonicNanos DeadlineAfter(absl::Duration timeout);
// Never negative.
absl::Duration TimeLeft(MonotonicNanos deadline);

// Runs `body` and turns any exception into a Status: nothing thrown leaves the library.
Status Contain(absl::FunctionRef<Status()> body);

}  // namespace cairn::client
