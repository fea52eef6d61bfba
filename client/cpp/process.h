// What belongs to the process rather than to one of its sessions.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/keys.h"
#include "common/status.h"

namespace cairn::client {

// getpid() without a system call, which every call of every session would otherwise make. The number
// is kept in a page that the kernel wipes on fork.
pid_t ThisPid();

// Random bytes drawn at first use, and drawn anew in a forked child. By them the daemon knows that an
// (attempt, writer) is one process.
StatusOr<ProcessToken> ThisProcess();

// The number of times that this process entered `step` of (job, attempt, writer) before; counts this
// entry. Ranks run the same program, so all writers of a step arrive at the same number without
// talking to each other.
Revision EnterStep(const std::string& job, Attempt attempt, Writer writer, Step step);

// The steps that this process has entered, each with how often: the `most` highest. A child that goes on as the same
// writer notes them before it enters any.
using EnteredSteps = std::vector<std::pair<Step, Revision>>;
EnteredSteps StepsEntered(const std::string& job, Attempt attempt, Writer writer, size_t most);
// This process has entered them at least as often, too.
void NoteEntered(const std::string& job, Attempt attempt, Writer writer,
                 const EnteredSteps& entered);

// `timeout` from now on the monotonic clock. Saturates: InfiniteDuration is far in the future.
MonotonicNanos DeadlineAfter(absl::Duration timeout);
// Never negative.
absl::Duration TimeLeft(MonotonicNanos deadline);

// Runs `body` and turns any exception into a Status, so that none leaves the library.
Status Contain(absl::FunctionRef<Status()> body);

}  // namespace cairn::client
