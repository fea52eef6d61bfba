// How many bytes clients may have the daemon hold for them at once, in all and for each user.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
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

  // False, and nothing is taken, while that is more than is left. Those of a user are served in the order
  // in which they asked first, so that small messages do not hold up a large one for ever. After false,
  // `who` asks again or leaves.
  bool TakeInTurn(uint32_t uid, uint64_t bytes, const void* who) {
    MutexLock lock(&mu_);
    std::deque<const void*>& waiting = users_[uid].waiting;
    if (std::find(waiting.begin(), waiting.end(), who) == waiting.end()) waiting.push_back(who);
    if (waiting.front() != who || !TakeNow(uid, bytes)) return false;
    LeaveTurn(uid, who);
    return true;
  }
  // For what is there already and cannot wait: a user may have twice as much with it, and then waits with
  // all else. False: that is used up, too.
  bool Overdraw(uint32_t uid, uint64_t bytes) {
    MutexLock lock(&mu_);
    OfUser& user = users_[uid];
    const bool taken = user.taken + bytes <= 2 * per_user_ && taken_ + bytes <= total_ / 4 * 5;
    if (taken) {
      user.taken += bytes;
      taken_ += bytes;
    }
    Settle(uid);
    return taken;
  }
  void Leave(uint32_t uid, const void* who) {
    MutexLock lock(&mu_);
    LeaveTurn(uid, who);
  }
  void Give(uint32_t uid, uint64_t bytes) {
    if (bytes == 0) return;
    MutexLock lock(&mu_);
    taken_ -= bytes;
    users_.at(uid).taken -= bytes;
    Settle(uid);
  }
  uint64_t taken() const {
    MutexLock lock(&mu_);
    return taken_;
  }

 private:
  struct OfUser {
    uint64_t taken = 0;
    std::deque<const void*> waiting;  // each holds one connection, so there are few
  };

  // Nobody may have more than what was free before: as the room gets scarce each user gets less of it, so
  // that it takes more of them to fill it.
  bool TakeNow(uint32_t uid, uint64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    OfUser& user = users_[uid];
    const uint64_t room = uid == 0 ? total_ : total_ / 4 * 3;
    const uint64_t free = room - std::min(room, taken_);
    const uint64_t wanted = user.taken + bytes;
    if (wanted > per_user_ || wanted > free) {
      Settle(uid);
      return false;
    }
    user.taken = wanted;
    taken_ += bytes;
    return true;
  }
  void LeaveTurn(uint32_t uid, const void* who) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto user = users_.find(uid);
    if (user == users_.end()) return;
    std::erase(user->second.waiting, who);
    Settle(uid);
  }
  void Settle(uint32_t uid) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto user = users_.find(uid);
    if (user->second.taken == 0 && user->second.waiting.empty()) users_.erase(user);
  }

  const uint64_t total_, per_user_;
  mutable Mutex mu_;
  uint64_t taken_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<uint32_t, OfUser> users_ ABSL_GUARDED_BY(mu_);
};

// What one message, or the reply to it, has taken: given back when nobody holds its bytes any more.
// Thread-safe.
class Reservation {
 public:
  Reservation(ByteBudget* budget, uint32_t uid) : budget_(budget), uid_(uid) {}
  ~Reservation() {
    if (waits_) budget_->Leave(uid_, this);
    budget_->Give(uid_, bytes_);
  }
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;

  bool empty() const { return bytes_ == 0 && !waits_; }
  // All of a message, before any of it is held: those that held a piece each could wait for each other.
  bool TakeInTurn(uint64_t bytes) {
    const uint64_t had = bytes_;
    if (bytes <= had) return true;
    waits_ = !budget_->TakeInTurn(uid_, bytes - had, this);
    if (!waits_) bytes_ += bytes - had;
    return !waits_;
  }
  // What is there already: ByteBudget::Overdraw.
  bool Cover(uint64_t bytes) {
    const uint64_t had = bytes_;
    if (bytes <= had) return true;
    if (!budget_->Overdraw(uid_, bytes - had)) return false;
    bytes_ += bytes - had;
    return true;
  }
  uint64_t bytes() const { return bytes_; }

 private:
  ByteBudget* const budget_;
  const uint32_t uid_;
  std::atomic<uint64_t> bytes_{0};
  std::atomic<bool> waits_{false};
};

}  // namespace cairn::rpc
