#include "client/cpp/link.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "cairn_constants.h"
#include "client/cpp/process.h"
#include "client/cpp/standing_maps.h"
#include "proto/convert.h"

namespace cairn::client {
namespace {

constexpr size_t kMaxConnections = 16;
// The daemon's answer has so much of a long time-out: on a busy machine it leaves late.
constexpr int64_t kMostForTheAnswerMs = 1000;
// Releases and goodbyes: the caller should hardly notice them.
constexpr absl::Duration kShortCall = absl::Seconds(1);
// Between two tries of one call.
constexpr absl::Duration kFirstPause = absl::Milliseconds(1);
constexpr absl::Duration kLongestPause = absl::Milliseconds(100);

std::chrono::steady_clock::time_point TimePoint(MonotonicNanos deadline) {
  return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(deadline));
}

}  // namespace

struct Link::State {
  explicit State(int threads) : copy_threads(threads) {}

  CopyThreads copy_threads;
  std::shared_ptr<StandingMaps> standing;

  Mutex fd_mu;
  int fd_calls ABSL_GUARDED_BY(fd_mu) = 0;  // under way that may bring descriptors

  Mutex mu;  // after fd_mu
  CondVar changed;
  bool closing ABSL_GUARDED_BY(mu) = false;  // it says goodbye next
  bool closed ABSL_GUARDED_BY(mu) = false;
  // A thread says hello; the others wait for the session that it gets.
  bool greeting ABSL_GUARDED_BY(mu) = false;
  size_t open ABSL_GUARDED_BY(mu) = 0;  // connections, idle ones included
  std::vector<std::unique_ptr<Connection>> idle ABSL_GUARDED_BY(mu);
  std::shared_ptr<Attachment> attachment ABSL_GUARDED_BY(mu);
};

Link::Link(const ConnectOptions& options)
    : options_(options),
      pid_(ThisPid()),
      attempt_(options.attempt),
      state_(std::make_unique<State>(options.copy_threads)) {
  state_->standing = std::make_shared<StandingMaps>(this);
}

Link::~Link() {
  if (!InThisProcess()) {
    (void)state_.release();
    return;
  }
  Close();
}

StatusOr<std::shared_ptr<Link>> Link::Connect(const ConnectOptions& options) {
  std::shared_ptr<Link> link(new Link(options));
  const MonotonicNanos deadline = link->Deadline(absl::ZeroDuration());
  // An empty call: to make it, a connection joins a session, which makes the session.
  CAIRN_RETURN_IF_ERROR(
      link->Call("hello", deadline, [](wire::CairnClient&, const std::shared_ptr<Attachment>&) {}));
  return link;
}

Status Link::CheckProcess() const {
  if (InThisProcess()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("this process is a forked child (pid ",
                                                    getpid(), ") of the one that connected (pid ",
                                                    pid_, "): it must connect anew"));
}

bool Link::InThisProcess() const { return pid_ == ThisPid(); }

StandingMaps& Link::standing() { return *state_->standing; }
CopyThreads* Link::copy_threads() { return &state_->copy_threads; }

std::shared_ptr<Attachment> Link::attachment() const {
  MutexLock lock(&state_->mu);
  return state_->attachment;
}

MonotonicNanos Link::Deadline(absl::Duration timeout) const {
  return DeadlineAfter(timeout > absl::ZeroDuration() ? timeout : options_.timeout);
}

int64_t Link::TimeoutMillis(MonotonicNanos deadline) {
  const int64_t left = absl::ToInt64Milliseconds(TimeLeft(deadline));
  return std::max<int64_t>(1, left - std::min<int64_t>(kMostForTheAnswerMs, left / 10));
}

Status Link::Call(absl::string_view what, MonotonicNanos deadline, Body body,
                  const Attachment* only) {
  CAIRN_RETURN_IF_ERROR(CheckProcess());
  bool asked_anew = false;
  absl::Duration pause = absl::ZeroDuration();  // the first loss is most likely an old connection's
  for (;;) {
    Status failure;
    StatusOr<std::unique_ptr<Connection>> connection = Acquire(deadline);
    if (connection.ok()) {
      const std::shared_ptr<Attachment> current = attachment();
      if ((*connection)->generation != current->generation) {  // another thread has just lost it
        Discard(*std::move(connection));
        continue;
      }
      if (only != nullptr && only != current.get()) {
        GiveBack(*std::move(connection));
        return absl::UnavailableError(absl::StrCat(
            "the daemon at ", options_.socket,
            " has forgotten this session and what it had created; begin the step again"));
      }
      FlushReleases(connection->get(), current.get());
      failure = absl::UnavailableError(absl::StrCat("lost the daemon at ", options_.socket));
      if (!(*connection)->broken()) {
        failure = (*connection)->Call(what, deadline, [&](wire::CairnClient& client) {
          body(client, current);
        });
        if (!(*connection)->broken()) {
          if (absl::IsUnavailable(failure) && !asked_anew &&
              SessionEnded(connection->get(), *current, deadline)) {
            asked_anew = true;
            Discard(*std::move(connection));
            continue;
          }
          GiveBack(*std::move(connection));
          return failure;
        }
      }
      const bool timed_out = (*connection)->timed_out();
      GiveBack(*std::move(connection));
      if (timed_out && TimeLeft(deadline) == absl::ZeroDuration()) return failure;
    } else {
      failure = connection.status();
      // Full: others leave.
      if (!absl::IsUnavailable(failure) && !absl::IsResourceExhausted(failure)) return failure;
    }
    if (TimeLeft(deadline) <= pause) return failure;
    PauseUnlessClosed(pause);
    pause = std::clamp(pause * 2, kFirstPause, kLongestPause);
  }
}

// Changes of the connections do not end the pause: threads that have all lost the daemon would wake
// each other without end.
void Link::PauseUnlessClosed(absl::Duration pause) {
  const MonotonicNanos end = DeadlineAfter(pause);
  MutexLock lock(&state_->mu);
  while (!state_->closed && state_->changed.WaitUntil(&state_->mu, TimePoint(end))) {
  }
}

// --- connections

std::unique_ptr<Connection> Link::AcquireIdle() {
  MutexLock lock(&state_->mu);
  while (!state_->idle.empty()) {
    std::unique_ptr<Connection> connection = std::move(state_->idle.back());
    state_->idle.pop_back();
    if (state_->attachment != nullptr && connection->generation == state_->attachment->generation) {
      return connection;
    }
    --state_->open;
  }
  return nullptr;
}

StatusOr<std::unique_ptr<Connection>> Link::Acquire(MonotonicNanos deadline) {
  for (;;) {
    if (std::unique_ptr<Connection> idle = AcquireIdle()) return idle;
    MutexLock lock(&state_->mu);
    if (state_->closed) return absl::FailedPreconditionError("this session is closed");
    if (!state_->idle.empty()) continue;
    if (state_->open < kMaxConnections) {
      ++state_->open;
      break;
    }
    if (!state_->changed.WaitUntil(&state_->mu, TimePoint(deadline)) &&
        TimeLeft(deadline) == absl::ZeroDuration()) {
      return absl::UnavailableError(absl::StrCat("all ", kMaxConnections, " connections to ",
                                                 options_.socket, " are in use"));
    }
  }
  StatusOr<std::unique_ptr<Connection>> connection = Connection::Open(options_.socket, deadline);
  const Status status = connection.ok() ? Join(connection->get(), deadline) : connection.status();
  if (status.ok()) return connection;
  connection = status;
  MutexLock lock(&state_->mu);
  --state_->open;
  state_->changed.NotifyAll();
  return connection;
}

void Link::GiveBack(std::unique_ptr<Connection> connection) {
  std::vector<std::unique_ptr<Connection>> dead;  // closed after the lock is gone
  MutexLock lock(&state_->mu);
  if (!connection->broken() && !state_->closed) {
    state_->idle.push_back(std::move(connection));
  } else {
    --state_->open;
    // When the daemon has died, the idle connections are lost too. A late answer does not mean that.
    if (connection->broken() && !connection->timed_out()) {
      state_->open -= state_->idle.size();
      dead.swap(state_->idle);
    }
    dead.push_back(std::move(connection));
  }
  state_->changed.NotifyAll();
}

void Link::Discard(std::unique_ptr<Connection> connection) {
  connection.reset();
  MutexLock lock(&state_->mu);
  --state_->open;
  state_->changed.NotifyAll();
}

// --- the session

// A daemon may end a session while its connections stay open. Each call on them is then UNAVAILABLE,
// as it also is while a daemon drains: rejoin tells which it is.
bool Link::SessionEnded(Connection* connection, const Attachment& attachment,
                        MonotonicNanos deadline) {
  const Status status = connection->Call("rejoin", deadline, [&](wire::CairnClient& client) {
    wire::HelloReply reply;
    client.rejoin(reply, static_cast<int64_t>(attachment.session), attachment.secret);
  });
  return connection->broken() || absl::IsNotFound(status);
}

Status Link::Join(Connection* connection, MonotonicNanos deadline) {
  for (;;) {
    const std::shared_ptr<Attachment> known = attachment();
    if (known != nullptr) {
      const Status status = connection->Call("rejoin", deadline, [&](wire::CairnClient& client) {
        wire::HelloReply reply;
        client.rejoin(reply, static_cast<int64_t>(known->session), known->secret);
      });
      if (status.ok()) connection->generation = known->generation;
      if (status.ok() || connection->broken() || !absl::IsNotFound(status)) return status;
    }
    {
      MutexLock lock(&state_->mu);
      while (state_->greeting) {
        if (!state_->changed.WaitUntil(&state_->mu, TimePoint(deadline)) &&
            TimeLeft(deadline) == absl::ZeroDuration()) {
          return absl::UnavailableError(
              absl::StrCat("the daemon at ", options_.socket, " did not answer hello in time"));
        }
      }
      if (state_->attachment != known) continue;  // another thread has said hello: join what it got
      // What waits at the daemon is answered when the session ends, and what begins then finds it ended.
      if (state_->closing || state_->closed) {
        return absl::FailedPreconditionError("this session is closed");
      }
      state_->greeting = true;
    }
    const Status status = Hello(connection, deadline);
    MutexLock lock(&state_->mu);
    state_->greeting = false;
    state_->changed.NotifyAll();
    return status;
  }
}

Status Link::Hello(Connection* connection, MonotonicNanos deadline) {
  wire::HelloRequest request;
  request.__set_protocol(wire::g_cairn_constants.PROTOCOL_VERSION);
  SessionIdentity identity;
  identity.job = options_.job;
  identity.attempt = attempt();
  identity.writer = options_.writer;
  identity.world_size = options_.world_size;
  identity.local_writers = options_.local_writers;
  identity.takes_fds = options_.takes_fds;
  identity.process = options_.process;
  if (identity.process.empty()) {
    CAIRN_ASSIGN_OR_RETURN(identity.process, ThisProcess());
  }
  ToWire(identity, &request);
  if (options_.policy.has_value()) request.__set_policy(ToWire(*options_.policy));
  request.__set_client(options_.client);
  request.__set_run(options_.run);
  request.__set_restart(options_.restart);
  wire::HelloReply reply;
  CAIRN_RETURN_IF_ERROR(connection->Call(
      "hello", deadline, [&](wire::CairnClient& client) { client.hello(reply, request); }));

  auto fresh = std::make_shared<Attachment>();
  fresh->session = static_cast<SessionId>(reply.session);
  fresh->secret = reply.secret;
  fresh->storage_root = reply.storage_root;
  if (options_.takes_fds) {
    // The path that the daemon names may not exist in this mount namespace. The two sockets are side
    // by side here too.
    std::string path = reply.fd_socket;
    if (path.empty() || access(path.c_str(), F_OK) != 0) path = FdSocketPath(options_.socket);
    UniqueFd progress;
    CAIRN_ASSIGN_OR_RETURN(
        fresh->fds, FdReceiver::Attach(path, fresh->session, fresh->secret, deadline, &progress));
    if (progress.valid()) {
      CAIRN_ASSIGN_OR_RETURN(
          fresh->progress_page,
          Mapping::MapSealed(progress.get(), 0, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED));
      std::atomic_ref<uint64_t>(fresh->progress()->magic).store(kProgressMagic);
    }
  }
  MutexLock lock(&state_->mu);
  fresh->generation = state_->attachment == nullptr ? 1 : state_->attachment->generation + 1;
  connection->generation = fresh->generation;
  state_->attachment = std::move(fresh);
  return absl::OkStatus();
}

// --- leases

Link::FdCall::FdCall(Link* link) : link_(link) {
  const std::shared_ptr<Attachment> attachment = link_->attachment();
  MutexLock lock(&link_->state_->fd_mu);
  // With no other such call under way, what is in the channel belongs to calls that were given up.
  if (link_->state_->fd_calls++ == 0 && attachment->fds != nullptr &&
      attachment->fds->HasStrays()) {
    link_->SweepStrays(attachment.get());
  }
}

Link::FdCall::~FdCall() {
  MutexLock lock(&link_->state_->fd_mu);
  --link_->state_->fd_calls;
}

void Link::SweepStrays(Attachment* attachment) {
  for (ReceivedFd& stray : attachment->fds->TakeStrays()) {
    const int flags = fcntl(stray.fd.get(), F_GETFL);
    stray.fd.Reset();
    if ((flags & O_ACCMODE) == O_RDWR) {
      // The daemon believes that this session maps it for writing.
      attachment->slabs.ReturnUnmapped({static_cast<int64_t>(stray.slab)});
    } else if (stray.lease != 0) {
      MutexLock lock(&attachment->mu);
      attachment->ended_leases.push_back(static_cast<int64_t>(stray.lease));
    }
  }
}

void Link::Release(const std::shared_ptr<Attachment>& attachment, LeaseId lease) {
  {
    MutexLock lock(&attachment->mu);
    attachment->ended_leases.push_back(static_cast<int64_t>(lease));
  }
  std::unique_ptr<Connection> connection = AcquireIdle();
  if (connection == nullptr) return;
  if (connection->generation == attachment->generation) {
    FlushReleases(connection.get(), attachment.get());
  }
  GiveBack(std::move(connection));
}

void Link::FlushReleases(Connection* connection, Attachment* attachment) {
  std::vector<int64_t> leases;
  {
    MutexLock lock(&attachment->mu);
    if (attachment->ended_leases.empty()) return;
    leases.swap(attachment->ended_leases);
  }
  const int64_t call = NextCall();
  (void)connection->Call("release", DeadlineAfter(kShortCall),
                         [&](wire::CairnClient& client) { client.release(call, leases); });
  if (!connection->broken()) return;  // done or refused: either way it is not repeated
  MutexLock lock(&attachment->mu);
  attachment->ended_leases.insert(attachment->ended_leases.end(), leases.begin(), leases.end());
}

std::unique_ptr<Connection> Link::AcquireToClose(const Attachment& current) {
  const MonotonicNanos deadline = DeadlineAfter(kShortCall);
  StatusOr<std::unique_ptr<Connection>> connection = Connection::Open(options_.socket, deadline);
  if (!connection.ok() || SessionEnded(connection->get(), current, deadline)) return nullptr;
  MutexLock lock(&state_->mu);
  ++state_->open;
  return *std::move(connection);
}

void Link::Close() {
  if (!InThisProcess()) return;
  {
    MutexLock lock(&state_->mu);
    state_->closing = true;
  }
  const bool let_go = state_->standing->LetGo();
  const std::shared_ptr<Attachment> current = attachment();
  // Without a goodbye the node uses nothing anew that a device of this process may still hold.
  if (!let_go && current != nullptr && current->fds != nullptr) current->fds->HangUp();
  std::unique_ptr<Connection> last = AcquireIdle();
  // Another thread may have taken the only one, and wait on it for long.
  if (last == nullptr && let_go && current != nullptr) last = AcquireToClose(*current);
  if (last != nullptr) {
    if (current != nullptr) FlushReleases(last.get(), current.get());
    if (!last->broken() && let_go) {
      (void)last->Call("goodbye", DeadlineAfter(kShortCall),
                       [](wire::CairnClient& client) { client.goodbye(); });
    }
  }
  {
    std::vector<std::unique_ptr<Connection>> dead;
    MutexLock lock(&state_->mu);
    state_->closed = true;
    if (last != nullptr) {
      --state_->open;
      dead.push_back(std::move(last));
    }
    state_->open -= state_->idle.size();
    for (auto& connection : state_->idle) dead.push_back(std::move(connection));
    state_->idle.clear();
    state_->changed.NotifyAll();
  }
  state_->standing->Join();
}

}  // namespace cairn::client
