#include "tests/cache/scratch.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <future>

namespace cairn::cache {

uint64_t ResidentPages(int fd) {
  struct stat stat = {};
  EXPECT_EQ(::fstat(fd, &stat), 0);
  return static_cast<uint64_t>(stat.st_blocks) * 512 / kPageBytes;
}

Status FakeHolder::Hold(SlabId slab, uint64_t, fact::SlabUse, int fd) {
  MutexLock lock(&mu_);
  if (!refusal_.ok()) return std::exchange(refusal_, absl::OkStatus());
  held_[slab] = {UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0)), ResidentPages(fd)};
  return absl::OkStatus();
}

void FakeHolder::Drop(SlabId slab) {
  MutexLock lock(&mu_);
  held_.erase(slab);
}

std::vector<SlabId> FakeHolder::held() const {
  MutexLock lock(&mu_);
  std::vector<SlabId> ids;
  for (const auto& [id, held] : held_) ids.push_back(id);
  return ids;
}

uint64_t FakeHolder::resident_pages_at_hold(SlabId slab) const {
  MutexLock lock(&mu_);
  return held_.at(slab).resident_pages;
}

UniqueFd FakeHolder::Inherit(SlabId slab) const {
  MutexLock lock(&mu_);
  return UniqueFd(::fcntl(held_.at(slab).fd.get(), F_DUPFD_CLOEXEC, 0));
}

void FakeHolder::RefuseNextHold(Status status) {
  MutexLock lock(&mu_);
  refusal_ = std::move(status);
}

void ScratchCache::Restart(const Options& options) {
  cache_.reset();
  StatusOr<std::unique_ptr<Cache>> cache = Cache::Start(options, &holder_);
  ASSERT_TRUE(cache.ok()) << cache.status();
  cache_ = *std::move(cache);
}

Status ScratchCache::Make(SlabId slab, uint64_t bytes) {
  std::promise<Status> made;
  cache_->Make(slab, bytes, fact::SlabUse::kObjects, Pages::kInTurn,
               [&made](Status status) { made.set_value(std::move(status)); });
  return made.get_future().get();
}

void ScratchCache::Destroy(SlabId slab) {
  std::promise<void> gone;
  cache_->Destroy(slab, [&gone] { gone.set_value(); });
  gone.get_future().get();
}

Status ScratchCache::AdoptFromHolder(SlabId slab, uint64_t bytes) {
  return cache_->Adopt(slab, bytes, holder_.Inherit(slab));
}

UniqueFd ScratchCache::MustLend(SlabId slab, LeaseId lease, LeaseMode mode) {
  StatusOr<UniqueFd> lent = cache_->Lend(slab, lease, mode);
  EXPECT_TRUE(lent.ok()) << lent.status();
  return lent.ok() ? *std::move(lent) : UniqueFd();
}

bool ScratchCache::Free(SlabId slab) {
  const StatusOr<bool> free = cache_->Probe(slab);
  EXPECT_TRUE(free.ok()) << free.status();
  return free.value_or(false);
}

bool ScratchCache::Leased(SlabId slab, LeaseId lease) {
  const StatusOr<bool> open = cache_->LeaseOpen(slab, lease);
  EXPECT_TRUE(open.ok()) << open.status();
  return open.value_or(true);
}

bool TellParent(int socket) { return ::send(socket, "x", 1, MSG_NOSIGNAL) == 1; }

bool HearParent(int socket) {
  char byte = 0;
  ssize_t got = 0;
  do {
    got = ::recv(socket, &byte, 1, 0);
  } while (got < 0 && errno == EINTR);
  return got == 1;
}

Child::Child(const std::function<int(int socket)>& body) {
  int ends[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  pid_ = ::fork();
  if (pid_ == 0) {
    ::close(ends[0]);
    ::_exit(body(ends[1]));
  }
  ::close(ends[1]);
  socket_ = UniqueFd(ends[0]);
}

Child::~Child() { Kill(); }

void Child::Tell() { EXPECT_TRUE(TellParent(socket_.get())); }
bool Child::Hear() { return HearParent(socket_.get()); }

int Child::Wait() {
  int status = 0;
  EXPECT_EQ(::waitpid(pid_, &status, 0), pid_);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void Child::Kill() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  Wait();
}

}  // namespace cairn::cache
