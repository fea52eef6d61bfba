// How many bytes clients may have the daemon hold for them at once, in all and for each user.
#pragma once

#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "common/mutex.h"

namespace cairn::rpc {

// Thread-safe.
class ByteBudget {
 public:
  ByteBudget(uint64_t total, uint64_t per_user) : total_(total), per_user_(per_user) {}

  // False, and nothing is taken, while that is more than is left.
  bool Take(uint32_t uid, uint64_t bytes) {
    MutexLock lock(&mu_);
    uint64_t& of_user = by_user_[uid];
    if (of_user + bytes > per_user_ || taken_ + bytes > total_) {
      if (of_user == 0) by_user_.erase(uid);
      return false;
    }
    of_user += bytes;
    taken_ += bytes;
    return true;
  }
  void Give(uint32_t uid, uint64_t bytes) {
    if (bytes == 0) return;
    MutexLock lock(&mu_);
    taken_ -= bytes;
    const auto of_user = by_user_.find(uid);
    of_user->second -= bytes;
    if (of_user->second == 0) by_user_.erase(of_user);
  }
  uint64_t taken() const {
    MutexLock lock(&mu_);
    return taken_;
  }

 private:
  const uint64_t total_, per_user_;
  mutable Mutex mu_;
  uint64_t taken_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<uint32_t, uint64_t> by_user_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::rpc
