// A node whose rank stands in the catalog: with which rank its next daemon begins (as node/ring.cc and
// daemon/ring_seat.cc do), and what its seat asks of it.
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "tests/ring/node.h"
#include "tests/ring/world.h"

namespace cairn::engine::ringsim {

void SimNode::RecoverSeat() {
  fact::RingSeat seat;
  for (const Fact& fact : journal_) {
    if (const auto* told = std::get_if<fact::RingSeat>(&fact)) seat = *told;
  }
  if (seat.instance.empty()) seat.instance = world_.catalog->NewInstance();
  // What it holds nobody can read any more: to the others that is as lost as by a death.
  if (rank() != kNoRank && seat.rank != rank()) {
    world_.report.Note(
        [&] { return absl::StrCat("node ", id_, " has rank ", rank(), " no more"); });
    world_.truth.CheckAll();
    world_.truth.NodeDied(*this);
    Deserted();
  }
  options_.ring = SeatedRing(options_.ring, seat, address_);
  const Status valid = options_.Validate();
  if (!valid.ok()) world_.Fail(valid.ToString());
  member_ = {seat.rank, seat.incarnation, seat.instance};
  leaves_ = false;
  for (const Fact& fact : journal_) {
    if (const auto* leaving = std::get_if<fact::Leaving>(&fact)) leaves_ = leaving->on;
    const auto* life = std::get_if<fact::MemberLife>(&fact);
    if (life == nullptr || life->instance != seat.instance) continue;
    member_.incarnation = std::max(member_.incarnation, life->incarnation);
  }
  seat_ = std::make_unique<Seat>(&world_, this, seat);
  world_.catalog->Changed();
}

// Saves fail here, or nobody hears of them: the launcher goes elsewhere.
void SimNode::Deserted() {
  for (const auto& job : world_.jobs) job->NodeDied(this);
}

void SimNode::Do(action::BecomeLife& a) {
  member_ = std::move(a.self);
  if (seat_ == nullptr) return;
  world_.report.Count("took a greater incarnation");
  seat_->Became(member_.incarnation);
  world_.catalog->Changed();
}

void SimNode::HandOver() {
  if (dead_ || engine_ == nullptr) return;
  world_.report.Note([&] { return absl::StrCat("node ", id_, ": the next daemon takes over"); });
  EndDaemon(world_.Millis(20, 400));
}

void SimNode::Leave(bool on) {
  Call(0, event::Leave{{}, on}, [this, on](const StatusOr<reply::Body>& body) {
    if (!body.ok()) return;
    leaves_ = on;
    if (!on) seat_->ComeBack();
  });
}

std::optional<reply::Status> SimNode::Told() {
  const auto told = std::make_shared<std::optional<reply::Status>>();
  Call(0, event::Status{}, [told](const StatusOr<reply::Body>& body) {
    if (body.ok()) *told = std::get<reply::Status>(*body);
  });
  return *told;
}

bool SimNode::NothingIsOnlyHere() {
  const std::optional<reply::Status> status = Told();
  return status.has_value() && status->only_here_count == 0 && status->writing_bytes == 0;
}

bool SimNode::MayStartAnew() {
  if (options_.storage) return NothingIsOnlyHere();
  const std::optional<reply::Status> status = Told();
  return status.has_value() && status->writing_bytes == 0;
}

}  // namespace cairn::engine::ringsim
