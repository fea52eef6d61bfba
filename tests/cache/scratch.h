// A cache with a holder that keeps dups in this process, and helpers to use both.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/mutex.h"
#include "gtest/gtest.h"
#include "server/cache/cache.h"

namespace cairn::cache {

inline constexpr uint64_t kMiB = 1 << 20;

// Does the keeper's work within this process.
class FakeHolder : public SlabHolder {
 public:
  Status Hold(SlabId slab, uint64_t bytes, fact::SlabUse use, int fd) override;
  void Drop(SlabId slab) override;

  std::vector<SlabId> held() const;
  uint64_t resident_pages_at_hold(SlabId slab) const;
  UniqueFd Inherit(SlabId slab) const;  // what the next daemon would be sent
  void RefuseNextHold(Status status);

 private:
  struct Held {
    UniqueFd fd;
    uint64_t resident_pages = 0;
  };
  mutable Mutex mu_;
  std::map<SlabId, Held> held_ ABSL_GUARDED_BY(mu_);
  Status refusal_ ABSL_GUARDED_BY(mu_);
};

class ScratchCache : public ::testing::Test {
 protected:
  void SetUp() override { Restart(); }

  // A new cache, as in a new daemon: it knows no slab until it adopts one.
  void Restart(const Options& options = {});
  Status Make(SlabId slab, uint64_t bytes);
  void Destroy(SlabId slab);
  Status AdoptFromHolder(SlabId slab, uint64_t bytes);
  UniqueFd MustLend(SlabId slab, LeaseId lease, LeaseMode mode);
  bool Free(SlabId slab);
  bool Leased(SlabId slab, LeaseId lease);

  FakeHolder holder_;
  std::unique_ptr<Cache> cache_;
};

// The number of pages of `fd` that exist.
uint64_t ResidentPages(int fd);

// A forked process that runs `body`. The destructor tells it to go on and reaps it, if the test has
// not.
class Child {
 public:
  // `body` gets one end of a socket pair, the test the other.
  explicit Child(const std::function<int(int socket)>& body);
  ~Child();
  int pid() const { return pid_; }
  int socket() const { return socket_.get(); }
  void Tell();  // one byte to the child
  bool Hear();  // waits for one byte from the child; false when it died
  int Wait();   // its exit code, or 128 + signal
  void Kill();  // SIGKILL and reap

 private:
  int pid_ = -1;
  UniqueFd socket_;
};

// The child's counterparts of Tell and Hear.
bool TellParent(int socket);
bool HearParent(int socket);

}  // namespace cairn::cache
