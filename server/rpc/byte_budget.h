// How many bytes clients may have the daemon hold for them at once, in all and for each user.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "common/mutex.h"

namespace cairn::rpc {

// Thread-safe.
class ByteBudget {
 public:
  // Of `total` a quarter is uid 0's alone.
  ByteBudget(uint64_t total, uint64_t per_user) : total_(total), per_user_(per_user) {}

  // False, and nothing is taken, while that is more than is left.
  bool Take(uint32_t uid, uint64_t bytes) {
    MutexLock lock(&mu_);
    uint64_t& of_user = by_user_[uid];
    const uint64_t total = uid == 0 ? total_ : total_ / 4 * 3;
    if (of_user + bytes > per_user_ || taken_ + bytes > total) {
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

 private:
  const uint64_t total_, per_user_;
  Mutex mu_;
  uint64_t taken_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<uint32_t, uint64_t> by_user_ ABSL_GUARDED_BY(mu_);
};

// What one message, or the reply to it, has taken: given back when nobody holds its bytes any more. Used
// by one thread at a time.
class Reservation {
 public:
  Reservation(ByteBudget* budget, uint32_t uid) : budget_(budget), uid_(uid) {}
  ~Reservation() { budget_->Give(uid_, bytes_); }
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;

  uint64_t bytes() const { return bytes_; }
  bool GrowTo(uint64_t bytes) {
    if (bytes <= bytes_) return true;
    if (!budget_->Take(uid_, bytes - bytes_)) return false;
    bytes_ = bytes;
    return true;
  }

 private:
  ByteBudget* const budget_;
  const uint32_t uid_;
  uint64_t bytes_ = 0;
};

}  // namespace cairn::rpc
