// Carries out what engine/membership.h decides: one thread reads the ring in the database, beats, dials and claims, and
// tells the host what became of it. Nothing waits for it but who asks it something.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/clock.h"
#include "common/mutex.h"
#include "common/status.h"
#include "server/catalog/ring_table.h"
#include "server/engine/membership.h"

namespace cairn::node {

using OpenRing = std::function<StatusOr<std::unique_ptr<catalog::RingTable>>()>;
// Whether anybody answers at the address who may be the rank's owner; it may take some seconds.
using AnswersAt = std::function<bool(const std::string& address, engine::Rank rank)>;

// What the loop knows of the ring, for people.
struct RingState {
  catalog::RingRows rows;  // as the database has them now
  engine::Rank rank = engine::kNoRank;
  int64_t incarnation = 0;
  std::string problem;  // empty: none
};

// Calls come from the loop's thread, none once Stop has returned.
class MembershipHost {
 public:
  virtual ~MembershipHost() = default;
  // Journaled when it returns, unless the daemon only reads (MayClaim).
  virtual void SeatChanged(const fact::RingSeat& seat) = 0;
  virtual void ViewChanged(const engine::RingView& view) = 0;
  virtual void Fenced(const engine::MemberId& by) = 0;
  // The engine of this daemon has another rank, a lesser incarnation, or another number of members than the seat: the
  // next daemon has the seat's.
  virtual void Replace(const std::string& why) = 0;
  // Whether what is journaled stays: not of a daemon that only reads.
  virtual bool MayClaim() = 0;
  // Whether an operator takes the node out of service, and whether nothing in memory is only here. Asked now and then.
  virtual bool Leaves() = 0;
  virtual bool NothingIsOnlyHere() = 0;
  // Whether a fenced node may want another rank: what is only here has a place to go to first, where there is one.
  virtual bool MayStartAnew() = 0;
};

// Thread-safe, except Start and Stop.
class MembershipLoop {
 public:
  // `runs_as`: the ring that this daemon's engine was made with; its seat is `seat`.
  MembershipLoop(engine::MembershipOptions options, const fact::RingSeat& seat,
                 const engine::RingOptions& runs_as, OpenRing open, AnswersAt answers_at,
                 Clock* clock, MembershipHost* host);
  ~MembershipLoop() { Stop(); }
  void Start();
  void Stop();

  void Heard(const engine::RingView& view);
  void Met(const engine::MemberId& life);
  void Became(int64_t incarnation);
  // A node that has given its rank back, or is about to, wants one again.
  void ComeBack();
  std::string Problem() const;
  engine::RingView View() const;
  // As the database has it, asked now. UNAVAILABLE where it does not answer.
  StatusOr<RingState> State();
  // As catalog::RingTable; a rank may go that a spare could take over: it stands still and does not answer.
  StatusOr<int64_t> Resize(int32_t size);

  static std::string NewInstance();

 private:
  void Run();
  void Do(const engine::RingStep& step);
  // Null: it cannot be opened; `why` says so.
  std::shared_ptr<catalog::RingTable> Table(Status* why);
  void Read();
  void Write(const engine::RingStep& step);
  void LookAtHost();
  void Tell();

  const engine::MembershipOptions options_;
  const engine::RingOptions runs_as_;
  const OpenRing open_;
  const AnswersAt answers_at_;
  Clock* const clock_;
  MembershipHost* const host_;

  mutable Mutex mu_;
  CondVar wake_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  engine::Membership membership_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<catalog::RingTable> table_ ABSL_GUARDED_BY(mu_);
  int64_t engines_incarnation_ ABSL_GUARDED_BY(mu_);  // which life the engine of this daemon is

  // The thread's own.
  fact::RingSeat told_seat_;
  engine::RingView told_view_;
  bool told_fenced_ = false;
  bool replaced_ = false;
  MonotonicNanos look_at_ = 0;

  std::thread thread_;
};

}  // namespace cairn::node
