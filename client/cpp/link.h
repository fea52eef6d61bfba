// A session's tie to its daemon: connections, the session's name and secret, and what belongs to it
// there.
//
// Calls run on pooled connections, each used by one thread at a time, so that one long wait does not
// block other calls. A connection that breaks is replaced by one that joins the same session by its
// secret; the call is repeated under its old number until it is answered or its deadline passes. When
// the daemon no longer knows the session (its keeper died too, or the node's memory was cleared) a new
// session is made: an *attachment* is one such session, and what an earlier one had created is gone.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "client/cpp/connection.h"
#include "client/cpp/copy_threads.h"
#include "client/cpp/fd_receiver.h"
#include "client/cpp/session.h"
#include "client/cpp/slab_map.h"
#include "common/fd_channel.h"
#include "common/mutex.h"

namespace cairn::client {

class StandingMaps;

struct Attachment {
  uint64_t generation = 0;  // 1, 2, …
  SessionId session = 0;
  std::string secret;
  std::string storage_root;
  std::unique_ptr<FdReceiver> fds;  // null: bytes go in chunks over Thrift
  SlabMap slabs;
  Mapping progress_page;

  // Null without descriptors.
  ProgressPage* progress() { return reinterpret_cast<ProgressPage*>(progress_page.data()); }

  Mutex mu;
  std::vector<int64_t> ended_leases ABSL_GUARDED_BY(mu);  // for the next call to release
};

class Link : public std::enable_shared_from_this<Link> {
 public:
  static StatusOr<std::shared_ptr<Link>> Connect(const ConnectOptions& options);
  ~Link();

  const ConnectOptions& options() const { return options_; }
  Attempt attempt() const { return attempt_.load(std::memory_order_relaxed); }
  void set_attempt(Attempt attempt) { attempt_.store(attempt, std::memory_order_relaxed); }

  // FAILED_PRECONDITION in a forked child: the session, its connections and its threads are the
  // parent's.
  Status CheckProcess() const;
  bool InThisProcess() const;
  CopyThreads* copy_threads();
  std::shared_ptr<Attachment> attachment() const;

  // `timeout`, or the session's where it is zero, from now.
  MonotonicNanos Deadline(absl::Duration timeout) const;

  // Numbers a changing call; take it once, outside the body, which may run several times.
  int64_t NextCall() { return next_call_.fetch_add(1, std::memory_order_relaxed); }

  using Body = absl::FunctionRef<void(wire::CairnClient&, const std::shared_ptr<Attachment>&)>;
  // Runs `body`, one Thrift call, until it is answered or the deadline passes. With `only`:
  // UNAVAILABLE when the session has become another than that one.
  Status Call(absl::string_view what, MonotonicNanos deadline, Body body,
              const Attachment* only = nullptr);

  // The timeout that the daemon is given: a little less than the time left, so that its answer still
  // arrives by the deadline.
  static int64_t TimeoutMillis(MonotonicNanos deadline);

  // Brackets a call whose answer may bring descriptors.
  class FdCall {
   public:
    explicit FdCall(Link* link);
    ~FdCall();

   private:
    Link* const link_;
  };

  // Ends a lease whose descriptors and mappings are gone. The daemon is told at once if a connection
  // is idle, else before the next call. Never fails: a lease also ends with its session.
  void Release(const std::shared_ptr<Attachment>& attachment, LeaseId lease);

  StandingMaps& standing();

  // Gives up standing mappings, says goodbye.
  void Close();

 private:
  struct State;
  explicit Link(const ConnectOptions& options);

  StatusOr<std::unique_ptr<Connection>> Acquire(MonotonicNanos deadline);
  std::unique_ptr<Connection> AcquireIdle();
  // A new one of that session, whatever their number; null: it has ended, or the daemon does not answer.
  std::unique_ptr<Connection> AcquireToClose(const Attachment& current);
  void PauseUnlessClosed(absl::Duration pause);  // between two attempts of one call
  void GiveBack(std::unique_ptr<Connection> connection);
  void Discard(std::unique_ptr<Connection> connection);
  bool SessionEnded(Connection* connection, const Attachment& attachment, MonotonicNanos deadline);
  Status Join(Connection* connection, MonotonicNanos deadline);
  Status Hello(Connection* connection, MonotonicNanos deadline);
  void FlushReleases(Connection* connection, Attachment* attachment);
  void SweepStrays(Attachment* attachment);

  const ConnectOptions options_;
  const pid_t pid_;
  std::atomic<Attempt> attempt_;
  std::atomic<int64_t> next_call_{1};
  // Leaked in a forked child, where its locks and threads must not be touched.
  std::unique_ptr<State> state_;
};

}  // namespace cairn::client
