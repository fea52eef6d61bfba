// A node as the wire between members knows it: it notes what it is told, and answers what it is set to.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <new>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "server/node/peer_links.h"
#include "tests/support/patience.h"

namespace cairn::testing {

// Thread-safe.
class FakePeerHost : public node::PeerHost {
 public:
  explicit FakePeerHost(engine::MemberId self) : self_(std::move(self)) {}

  // --- as the wire calls it
  engine::MemberId Self() const override {
    MutexLock lock(&mu_);
    return self_;
  }
  void Exchanged(engine::Rank rank, std::optional<engine::MemberId> member,
                 MonotonicNanos took) override {
    (void)took;
    std::function<void()> then;
    {
      MutexLock lock(&mu_);
      ++(member.has_value() ? answered_ : failed_)[rank];
      if (member.has_value() && members_[rank] != member) then = when_met_;
      members_[rank] = member;
      changed_.NotifyAll();
    }
    if (then) then();
  }
  void PeerSaid(engine::MemberId from, engine::peer::Message message) override {
    MutexLock lock(&mu_);
    if (said_without_memory_ > 0) {
      --said_without_memory_;
      throw std::bad_alloc();
    }
    said_.emplace_back(std::move(from), std::move(message));
    changed_.NotifyAll();
  }
  StatusOr<engine::peer::GrantAnswer> Grant(engine::MemberId from,
                                            engine::peer::GrantQuestion question,
                                            MonotonicNanos) override {
    MutexLock lock(&mu_);
    asked_.emplace_back(std::move(from), std::move(question));
    changed_.NotifyAll();
    while (holds_grants_) changed_.Wait(&mu_);
    return grant_;
  }
  StatusOr<std::string> TransportAsked(engine::MemberId from, absl::string_view question) override {
    if (question.empty()) return absl::InvalidArgumentError("no question");
    return absl::StrCat("rank ", from.rank, " asks ", question);
  }
  void EndGrant(engine::MemberId, node::EndedGrant ended) override {
    MutexLock lock(&mu_);
    ended_.insert(ended.grant);
    changed_.NotifyAll();
  }
  void Met(engine::Rank, engine::MemberId life) override {
    MutexLock lock(&mu_);
    seen_of_ours_ = std::max(seen_of_ours_, life.incarnation);
    changed_.NotifyAll();
  }

  void HeardView(const engine::RingView& view) override {
    MutexLock lock(&mu_);
    view_.Merge(view);
    changed_.NotifyAll();
  }

  // --- what tests set
  void BecomeLife(int64_t incarnation) {
    MutexLock lock(&mu_);
    self_.incarnation = incarnation;
  }
  // For so many messages that it is told there is no memory.
  void LackMemory(int messages) {
    MutexLock lock(&mu_);
    said_without_memory_ = messages;
  }
  void set_grant(StatusOr<engine::peer::GrantAnswer> grant) {
    MutexLock lock(&mu_);
    grant_ = std::move(grant);
  }
  void HoldGrants(bool hold) {
    MutexLock lock(&mu_);
    holds_grants_ = hold;
    changed_.NotifyAll();
  }
  // Called when a member answers that did not before, or is another one now.
  void WhenMet(std::function<void()> then) {
    MutexLock lock(&mu_);
    when_met_ = std::move(then);
  }

  // --- what tests wait for. False: it did not come to that in a long time.
  bool AwaitMember(engine::Rank rank, const engine::MemberId& member) {
    return Await([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return members_[rank] == member; });
  }
  bool AwaitNobody(engine::Rank rank) {
    return Await([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return failed_[rank] > 0 && !members_[rank].has_value();
    });
  }
  // This many further exchanges that ended so.
  bool AwaitExchanges(engine::Rank rank, bool answered, int count) {
    std::map<engine::Rank, int>& ended = answered ? answered_ : failed_;
    int most = 0;
    {
      MutexLock lock(&mu_);
      most = ended[rank] + count;
    }
    return Await([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return ended[rank] >= most; });
  }
  bool AwaitSaid(size_t count) {
    return Await([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return said_.size() >= count; });
  }
  bool AwaitAsked(size_t count) {
    return Await([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return asked_.size() >= count; });
  }
  bool AwaitEnded(uint64_t grant) {
    return Await([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return ended_.count(grant) > 0; });
  }
  bool AwaitView(const engine::RingView& view) {
    return Await([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return view_ == view; });
  }
  bool AwaitSeenOfOurs(int64_t incarnation) {
    return Await([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return seen_of_ours_ == incarnation; });
  }

  // --- what tests ask
  std::vector<std::pair<engine::MemberId, engine::peer::Message>> said() const {
    MutexLock lock(&mu_);
    return said_;
  }
  int answered(engine::Rank rank) const {
    MutexLock lock(&mu_);
    const auto at = answered_.find(rank);
    return at == answered_.end() ? 0 : at->second;
  }
  int64_t seen_of_ours() const {
    MutexLock lock(&mu_);
    return seen_of_ours_;
  }

 private:
  template <typename F>
  bool Await(F come) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    const auto deadline = std::chrono::steady_clock::now() + Patient(std::chrono::seconds(60));
    MutexLock lock(&mu_);
    while (!come()) {
      if (!changed_.WaitUntil(&mu_, deadline)) return come();
    }
    return true;
  }

  mutable Mutex mu_;
  CondVar changed_;
  engine::MemberId self_ ABSL_GUARDED_BY(mu_);
  std::map<engine::Rank, std::optional<engine::MemberId>> members_ ABSL_GUARDED_BY(mu_);
  std::map<engine::Rank, int> answered_ ABSL_GUARDED_BY(mu_);
  std::map<engine::Rank, int> failed_ ABSL_GUARDED_BY(mu_);
  std::vector<std::pair<engine::MemberId, engine::peer::Message>> said_ ABSL_GUARDED_BY(mu_);
  std::vector<std::pair<engine::MemberId, engine::peer::GrantQuestion>> asked_ ABSL_GUARDED_BY(mu_);
  std::set<uint64_t> ended_ ABSL_GUARDED_BY(mu_);
  StatusOr<engine::peer::GrantAnswer> grant_ ABSL_GUARDED_BY(mu_) = absl::NotFoundError("no grant");
  int said_without_memory_ ABSL_GUARDED_BY(mu_) = 0;
  bool holds_grants_ ABSL_GUARDED_BY(mu_) = false;
  engine::RingView view_ ABSL_GUARDED_BY(mu_);  // what members have told
  int64_t seen_of_ours_ ABSL_GUARDED_BY(mu_) = -1;
  std::function<void()> when_met_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::testing
