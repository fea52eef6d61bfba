#include "server/node/user_loops.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"

namespace cairn::node {

EventLoop::EventLoop(const std::string& name)
    : epoll_(epoll_create1(EPOLL_CLOEXEC)), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  epoll_event event = {};
  event.events = EPOLLIN;  // data 0: no watch
  if (!epoll_.valid() || !wake_.valid() ||
      epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event) != 0) {
    throw std::system_error(errno, std::generic_category(), "epoll or eventfd");
  }
  thread_ = std::thread([this, name] { Serve(name); });
}

void EventLoop::Post(std::function<void()> task) {
  MutexLock lock(&mu_);
  if (stopping_) return;
  tasks_.push_back(std::move(task));
  if (tasks_.size() > 1) return;  // it has been woken for the first
  const uint64_t one = 1;
  if (write(wake_.get(), &one, sizeof(one)) < 0) PLOG(ERROR) << "eventfd";
}

void EventLoop::Run(std::function<void()> task) {
  if (OnThread()) {
    task();
  } else {
    Post(std::move(task));
  }
}

void EventLoop::Stop() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    const uint64_t one = 1;
    if (write(wake_.get(), &one, sizeof(one)) < 0) PLOG(ERROR) << "eventfd";
  }
  if (thread_.joinable()) thread_.join();
  watched_.clear();
  std::vector<std::function<void()>> forgotten;
  MutexLock lock(&mu_);
  forgotten.swap(tasks_);
}

StatusOr<EventLoop::Watch> EventLoop::Add(int fd, uint32_t events, Watcher watcher) {
  const Watch watch = next_++;
  epoll_event event = {};
  event.events = events;
  event.data.u64 = watch;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return ErrnoStatus(errno, "epoll_ctl");
  }
  watched_[watch] = {fd, kNever, std::make_shared<Watcher>(std::move(watcher))};
  return watch;
}

void EventLoop::Change(Watch watch, uint32_t events) {
  const auto at = watched_.find(watch);
  if (at == watched_.end()) return;
  epoll_event event = {};
  event.events = events;
  event.data.u64 = watch;
  PCHECK(epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, at->second.fd, &event) == 0) << "epoll_ctl";
}

void EventLoop::Remove(Watch watch) {
  const auto at = watched_.find(watch);
  if (at == watched_.end()) return;
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, at->second.fd, nullptr);
  times_.erase({at->second.time, watch});
  watched_.erase(at);
}

void EventLoop::SetTime(Watch watch, MonotonicNanos at) {
  const auto found = watched_.find(watch);
  if (found == watched_.end() || found->second.time == at) return;
  times_.erase({found->second.time, watch});
  found->second.time = at;
  if (at != kNever) times_.emplace(at, watch);
}

void EventLoop::Serve(const std::string& name) {
  pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
  constexpr int kEvents = 64;
  epoll_event events[kEvents];
  bool busy = false;
  while (true) {
    int wait_ms = -1;
    if (!times_.empty()) {
      const MonotonicNanos left = times_.begin()->first - RealClock()->Now();
      wait_ms = static_cast<int>(
          std::clamp<MonotonicNanos>((left + kNanosPerMilli - 1) / kNanosPerMilli, 0, 60'000));
    }
    // Whoever has just been answered asks again soon: to let them run and look once more costs less than
    // to sleep and be woken.
    int count = 0;
    if (busy) {
      sched_yield();
      count = epoll_wait(epoll_.get(), events, kEvents, 0);
    }
    if (count == 0) count = epoll_wait(epoll_.get(), events, kEvents, wait_ms);
    busy = count > 0;
    if (count < 0 && errno != EINTR) PLOG(FATAL) << "epoll_wait";
    for (int i = 0; i < count; ++i) {
      if (events[i].data.u64 == 0) {
        uint64_t ignored = 0;
        if (read(wake_.get(), &ignored, sizeof(ignored)) < 0 && errno != EAGAIN) {
          PLOG(ERROR) << "eventfd";
        }
      } else {
        Tell(events[i].data.u64, events[i].events);
      }
    }
    TellTimes();
    RunTasks();
    MutexLock lock(&mu_);
    if (stopping_) return;
  }
}

void EventLoop::Tell(Watch watch, uint32_t events) {
  const auto at = watched_.find(watch);
  if (at == watched_.end()) return;  // removed by one that was told before
  const std::shared_ptr<Watcher> watcher = at->second.watcher;
  (*watcher)(events);
}

void EventLoop::TellTimes() {
  if (times_.empty()) return;
  const MonotonicNanos now = RealClock()->Now();
  while (!times_.empty() && times_.begin()->first <= now) {
    const Watch watch = times_.begin()->second;
    SetTime(watch, kNever);
    Tell(watch, 0);
  }
}

void EventLoop::RunTasks() {
  std::vector<std::function<void()>> tasks;
  {
    MutexLock lock(&mu_);
    tasks.swap(tasks_);
  }
  for (std::function<void()>& task : tasks) {
    task();
    task = nullptr;  // what it holds goes now, on this thread
  }
}

void EventLoop::PostAndWait(std::function<void()> task) {
  struct Waiter {
    Mutex mu;
    CondVar wake;
    bool over ABSL_GUARDED_BY(mu) = false;
  };
  // Goes with the task, when it has run or is forgotten.
  struct Token {
    explicit Token(std::shared_ptr<Waiter> of) : waiter(std::move(of)) {}
    ~Token() {
      MutexLock lock(&waiter->mu);
      waiter->over = true;
      waiter->wake.NotifyAll();
    }
    const std::shared_ptr<Waiter> waiter;
  };
  const auto waiter = std::make_shared<Waiter>();
  Post([task = std::move(task), token = std::make_shared<Token>(waiter)] { task(); });
  MutexLock lock(&waiter->mu);
  while (!waiter->over) waiter->wake.Wait(&waiter->mu);
}

Acceptor::Acceptor(EventLoop* loop, std::string name, UniqueFd listener,
                   std::function<void(UniqueFd, const Peer&)> accepted)
    : loop_(loop),
      name_(std::move(name)),
      listener_(std::move(listener)),
      accepted_(std::move(accepted)) {
  // Another process may take a connection first, so accept must not block.
  const int flags = fcntl(listener_.get(), F_GETFL);
  PCHECK(flags >= 0 && fcntl(listener_.get(), F_SETFL, flags | O_NONBLOCK) == 0) << name_;
}

void Acceptor::Start() {
  loop_->PostAndWait([this] {
    const auto watch = loop_->Add(listener_.get(), EPOLLIN, [this](uint32_t events) {
      if (events == 0) loop_->Change(watch_, EPOLLIN);  // after a pause
      AcceptAll();
    });
    CHECK(watch.ok()) << name_ << ": " << watch.status();
    watch_ = *watch;
  });
}

void Acceptor::Stop() {
  loop_->PostAndWait([this] { loop_->Remove(watch_); });
}

void Acceptor::AcceptAll() {
  constexpr int kAtOnce = 64;
  for (int i = 0; i < kAtOnce; ++i) {
    UniqueFd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.valid()) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
        // The client stays in the backlog, and would wake us at once.
        LOG_EVERY_N(ERROR, 100) << name_ << ": no descriptor left to accept a client";
        loop_->Change(watch_, 0);
        loop_->SetTime(watch_, RealClock()->Now() + 50 * kNanosPerMilli);
      }
      return;
    }
    ucred credentials = {};
    socklen_t length = sizeof(credentials);
    if (getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) continue;
    accepted_(std::move(socket), Peer{credentials.uid, credentials.gid, credentials.pid});
  }
}

UserLoops::UserLoops(int max_loops)
    : max_loops_(static_cast<size_t>(std::max(1, max_loops))),
      accepting_(std::make_unique<EventLoop>("accept")),
      disposing_(std::make_unique<EventLoop>("dispose")) {}

void UserLoops::Dispose(uint32_t uid, UniqueFd fd) {
  const auto held = std::make_shared<UniqueFd>(std::move(fd));
  try {
    Of(uid)->Post([held] { held->Reset(); });
  } catch (const std::system_error&) {
    disposing_->Post([held] { held->Reset(); });
  }
}

std::shared_ptr<UserLoops::Loop> UserLoops::Find(uint32_t uid) {
  std::shared_ptr<Loop> own, idle, least;
  int of_user = 0;
  const auto less = [](const std::shared_ptr<Loop>& a, const std::shared_ptr<Loop>& b) {
    return b == nullptr || a->lent < b->lent;
  };
  for (const std::shared_ptr<Loop>& loop : loops_->all) {
    if (loop->uid == uid) {
      ++of_user;
      if (less(loop, own)) own = loop;
    }
    if (loop->lent == 0) idle = loop;
    if (less(loop, least)) least = loop;
  }
  if (own != nullptr && (own->lent == 0 || of_user == kLoopsOfUser)) return own;
  if (loops_->all.size() < max_loops_) {
    try {
      auto fresh = std::make_shared<Loop>();
      fresh->loop = std::make_unique<EventLoop>("client");
      fresh->uid = uid;
      loops_->all.push_back(fresh);
      return fresh;
    } catch (const std::system_error& e) {
      LOG_EVERY_N(ERROR, 100) << "no thread for the clients of uid " << uid << ": " << e.what();
    }
  }
  if (own != nullptr) return own;
  if (idle != nullptr) idle->uid = uid;
  return idle != nullptr ? idle : least;
}

std::shared_ptr<EventLoop> UserLoops::Of(uint32_t uid) {
  std::shared_ptr<Loop> found;
  {
    MutexLock lock(&loops_->mu);
    if (!loops_->stopped) found = Find(uid);
    if (found != nullptr) ++found->lent;
  }
  if (found == nullptr) {
    throw std::system_error(EAGAIN, std::generic_category(), "no thread for a client");
  }
  EventLoop* const loop = found->loop.get();
  return {loop, [loops = loops_, found = std::move(found)](EventLoop*) {
            MutexLock lock(&loops->mu);
            --found->lent;
          }};
}

void UserLoops::Stop() {
  std::vector<std::shared_ptr<Loop>> all;
  {
    MutexLock lock(&loops_->mu);
    loops_->stopped = true;
    all = loops_->all;
  }
  accepting_->Stop();
  for (const std::shared_ptr<Loop>& loop : all) loop->loop->Stop();
  disposing_->Stop();
}

}  // namespace cairn::node
