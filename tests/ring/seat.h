// Where a node stands in a ring whose members are those of the catalog: the shipped membership machine, and what carries
// out its steps for one daemon (as node/membership_loop.h and daemon/ring_seat.h do). It ends with the daemon; the next
// one begins another from the journal.
#pragma once

#include <cstdint>
#include <functional>

#include "server/engine/membership.h"

namespace cairn::engine::ringsim {

struct World;
class SimNode;

class Seat {
 public:
  // `seat`: what the journal knows, or a new name.
  Seat(World* world, SimNode* node, const fact::RingSeat& seat);

  void Begin();

  // --- what others tell
  void Heard(const RingView& view);
  void Met(const MemberId& life);
  void Became(int64_t incarnation);
  void ComeBack();

  const Membership& membership() const { return membership_; }
  // What the links go by: where a rank is dialled, and what is told in greetings.
  const RingView& view() const { return view_; }
  uint64_t view_version() const { return view_version_; }

 private:
  void Next();
  void Do(const RingStep& step);
  void Dial(const ring_step::Probe& probe);
  void Ask(const RingStep& step);
  void Ended();
  void Wake();
  void LookAtHost();
  void Tell();
  void TellFenced(const MemberId& by);
  void TellReplaced(const fact::RingSeat& seat);

  World& world_;
  SimNode& node_;
  Membership membership_;
  fact::RingSeat told_seat_;
  RingView view_;  // as it was told
  uint64_t view_version_ = 0;
  int64_t engines_incarnation_;  // which life the engine of this daemon is
  bool told_fenced_ = false, replaced_ = false;
  bool busy_ = false;   // a step is under way
  uint64_t waits_ = 0;  // which wait counts
  MonotonicNanos look_at_ = 0;
};

}  // namespace cairn::engine::ringsim
