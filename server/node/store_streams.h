// The bytes of a part that its writer sends while storage takes them (action::Store): stream sockets, of which the writer
// has one end each. The node asks and the writer sends; proto/README.md has the frames.
//
// What comes is of no trusted length, pace or content: each answer has a deadline, a writer who is slow for
// long is given up, and storage checks each block against the manifest.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/fd.h"
#include "common/keys.h"
#include "common/mutex.h"
#include "common/status.h"
#include "server/storage/storage.h"

namespace cairn::node {

// A writer's memory, as storage reads it. Thread-safe: one answer is awaited at a time.
class StoreStream {
 public:
  // `socket` invalid: there is none, and each read says so. The clock outlives it.
  StoreStream(UniqueFd socket, Clock* clock) : socket_(std::move(socket)), clock_(clock) {}

  // [offset, offset + into.size()) of the request's object `index`. UNAVAILABLE when the writer has gone,
  // DEADLINE_EXCEEDED when it does not send; after an error each read fails.
  Status Read(uint64_t index, uint64_t offset, absl::Span<char> into);
  // Reads fail from now on, also one that waits.
  void HangUp();

 private:
  Status Ask(uint64_t index, uint64_t offset, absl::Span<char> into)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Status Receive(absl::Span<char> into) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const UniqueFd socket_;
  Clock* const clock_;
  Mutex mu_;
  Status failure_ ABSL_GUARDED_BY(mu_);
  uint64_t received_ ABSL_GUARDED_BY(mu_) = 0;
  MonotonicNanos waited_ ABSL_GUARDED_BY(mu_) = 0;  // for the writer, in all
};

// One object of it.
class StreamSource : public storage::ObjectSource {
 public:
  StreamSource(StoreStream* stream, uint64_t index) : stream_(stream), index_(index) {}
  Status Read(uint64_t offset, absl::Span<char> into) const override {
    return stream_->Read(index_, offset, into);
  }

 private:
  StoreStream* const stream_;
  const uint64_t index_;
};

// The node's ends of those that no store uses yet. Thread-safe.
class StoreStreams {
 public:
  // Makes a pair, keeps one end under `lease`, and returns the other, the writer's. Of a session that has kMostOfSession
  // the oldest is closed.
  StatusOr<UniqueFd> Open(SessionId session, LeaseId lease);
  // Invalid when there is none; then, too, it is not there any more.
  UniqueFd Take(SessionId session, LeaseId lease);
  // Of a session that has ended.
  void ForgetAll(SessionId session);

 private:
  static constexpr size_t kMostOfSession = 2;

  void ForgetClosed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Mutex mu_;
  std::map<std::pair<SessionId, LeaseId>, UniqueFd> open_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::node
