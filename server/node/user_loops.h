// Threads that serve clients: two event loops for each user with connections.
//
// Whatever a client hands the daemon is met on a thread of its own user, because the kernel lets it
// cost time there: closing a descriptor that a client has sent may block for as long as the client
// likes (SO_LINGER, a FUSE file), and descriptors come with any message on a Unix socket, wanted or
// not. The kernel's scheduler then shares the processors among users, too.
//
// Threads are bounded. When there are no more, or the system gives none, users share loops.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/clock.h"
#include "common/fd.h"
#include "common/mutex.h"
#include "common/status.h"

namespace cairn::node {

// A thread that waits for events of descriptors, for times, and for tasks.
class EventLoop {
 public:
  // Hears of what epoll reports about its descriptor, as EPOLL… bits; of none when its time is up. It
  // may do anything with the loop, also Unwatch itself.
  using Watcher = std::function<void(uint32_t events)>;
  // Names a watched descriptor; never 0, never used again.
  using Watch = uint64_t;

  // `name` is shown by ps and gdb (15 characters). Throws std::system_error when there is no thread.
  explicit EventLoop(const std::string& name);
  ~EventLoop() { Stop(); }

  // Thread-safe. The task runs on the loop's thread, after those that were posted before it; once
  // the loop has stopped, never.
  void Post(std::function<void()> task);
  // The same, and returns once it has run, or never will. Not on the loop's thread.
  void PostAndWait(std::function<void()> task);
  bool OnThread() const { return std::this_thread::get_id() == thread_.get_id(); }
  // At once when called on the loop's thread.
  void Run(std::function<void()> task);
  // Ends the thread and joins it. What is watched or posted is forgotten, on the calling thread.
  void Stop();

  // On the loop's thread alone.
  StatusOr<Watch> Add(int fd, uint32_t events, Watcher watcher);
  void Change(Watch watch, uint32_t events);
  void Remove(Watch watch);
  // The watcher hears of no events at this time; kNever: not any more.
  void SetTime(Watch watch, MonotonicNanos at);

  static constexpr MonotonicNanos kNever = std::numeric_limits<MonotonicNanos>::max();

 private:
  struct Watched {
    int fd = -1;
    MonotonicNanos time = kNever;
    std::shared_ptr<Watcher> watcher;  // kept while it runs
  };

  void Serve(const std::string& name);
  void RunTasks();
  void TellTimes();
  void Tell(Watch watch, uint32_t events);

  const UniqueFd epoll_, wake_;
  // Used by the loop's thread alone.
  absl::flat_hash_map<Watch, Watched> watched_;
  std::set<std::pair<MonotonicNanos, Watch>> times_;
  Watch next_ = 1;

  Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::function<void()>> tasks_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;  // last: it uses the members above
};

// Whom the kernel says a socket's other end belongs to.
struct Peer {
  uint32_t uid = 0, gid = 0;
  int32_t pid = 0;
};

// Accepts on a listener that other processes may share: the keeper, and its next daemon.
class Acceptor {
 public:
  // `accepted` runs on the loop's thread. The socket does not block.
  Acceptor(EventLoop* loop, std::string name, UniqueFd listener,
           std::function<void(UniqueFd socket, const Peer& peer)> accepted);
  ~Acceptor() { Stop(); }
  void Start();
  void Stop();  // when it returns, `accepted` neither runs nor will

 private:
  void AcceptAll();

  EventLoop* const loop_;
  const std::string name_;
  const UniqueFd listener_;
  const std::function<void(UniqueFd, const Peer&)> accepted_;
  EventLoop::Watch watch_ = 0;  // the loop's thread's
};

// Thread-safe.
class UserLoops {
 public:
  // Throws std::system_error when there is no thread for the two that it starts with.
  explicit UserLoops(int max_loops);
  ~UserLoops() { Stop(); }

  // A loop of the user's, for as long as the pointer or a copy of it is held. Throws std::system_error when
  // there is no thread, or all have ended.
  std::shared_ptr<EventLoop> Of(uint32_t uid);
  // Of nobody: for listeners. Nothing that a client has sent may be received or closed on it.
  EventLoop* accepting() { return accepting_.get(); }
  // Closes what came from a client of this user and is not served.
  void Dispose(uint32_t uid, UniqueFd fd);
  // For what is nobody's any more.
  EventLoop* disposing() { return disposing_.get(); }

  // Ends all threads, however long what a client has sent holds one up. Loops that are still held do
  // nothing from then on.
  void Stop();

 private:
  static constexpr int kLoopsOfUser = 2;

  struct Loop {
    std::unique_ptr<EventLoop> loop;
    uint32_t uid = 0;  // whose it is; others may share it when no other was to be had
    int64_t lent = 0;
  };
  // Outlives this while a loop is held.
  struct Loops {
    Mutex mu;
    bool stopped ABSL_GUARDED_BY(mu) = false;
    std::vector<std::shared_ptr<Loop>> all ABSL_GUARDED_BY(mu);
  };

  std::shared_ptr<Loop> Find(uint32_t uid) ABSL_EXCLUSIVE_LOCKS_REQUIRED(loops_->mu);

  const size_t max_loops_;
  const std::unique_ptr<EventLoop> accepting_, disposing_;
  const std::shared_ptr<Loops> loops_ = std::make_shared<Loops>();
};

}  // namespace cairn::node
