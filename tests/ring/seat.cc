#include "tests/ring/seat.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "tests/ring/world.h"

namespace cairn::engine::ringsim {
namespace {

constexpr MonotonicNanos kLookAtHost = kSecond;

MembershipOptions OptionsOf(World* world, const SimNode& node) {
  MembershipOptions options;
  options.address = node.address();
  options.size = world->shape.nodes;
  options.still = world->shape.takeover_after;
  options.beat = std::min(options.beat, options.still / 5);
  options.gap = std::min(options.gap, options.still / 2);
  options.uncertain = Catalog::kUncertain;
  options.new_instance = [world] { return world->catalog->NewInstance(); };
  return options;
}

}  // namespace

Seat::Seat(World* world, SimNode* node, const fact::RingSeat& seat)
    : world_(*world),
      node_(*node),
      membership_(OptionsOf(world, *node), seat),
      engines_incarnation_(seat.incarnation) {}

void Seat::Begin() {
  // The links of this daemon begin with the addresses of its options, which are those of the seat.
  view_ = membership_.view();
  ++view_version_;
  Tell();
  Next();
}

// --- the loop

void Seat::Next() {
  const RingStep step = membership_.Next(node_.now());
  if (const auto* wait = std::get_if<ring_step::Wait>(&step)) {
    const MonotonicNanos until = std::min(wait->until, look_at_);
    node_.After(std::max(until - node_.now(), kMilli), [this, waits = ++waits_] {
      if (waits == waits_ && !busy_) Ended();
    });
    return;
  }
  busy_ = true;
  Do(step);
}

void Seat::Wake() {
  if (busy_) return;
  node_.After(kMilli, [this, waits = ++waits_] {
    if (waits == waits_ && !busy_) Ended();
  });
}

void Seat::Ended() {
  busy_ = false;
  Tell();
  if (node_.now() >= look_at_) {
    LookAtHost();
    Tell();
  }
  Next();
}

void Seat::Do(const RingStep& step) {
  if (const auto* probe = std::get_if<ring_step::Probe>(&step)) return Dial(*probe);
  Ask(step);
}

// Somebody who has another rank there, or none, is an answer, too: that nobody is there who may have this one.
void Seat::Dial(const ring_step::Probe& probe) {
  SimNode* const there = world_.catalog->AtAddress(probe.address);
  bool answers = false;
  MonotonicNanos takes = kMilli;
  if (there == nullptr || there->paused() || !world_.net.Carries(node_, *there) ||
      !world_.net.Carries(*there, node_)) {
    takes = Net::kDeadline;
    if (there != nullptr && !there->paused()) world_.catalog->ProbeWasCut(probe.rank);
  } else if (there->daemon_up()) {
    answers = there->rank() == probe.rank && world_.options.lie != Lie::kProbesAreDeaf;
  }
  node_.After(takes, [this, rank = probe.rank, answers] {
    membership_.HasProbed(node_.now(), rank, answers);
    Ended();
  });
}

void Seat::Ask(const RingStep& step) {
  const std::string instance = membership_.seat().instance;
  world_.catalog->Ask(&node_, instance, step, [this, step](const Catalog::Answered& answered) {
    if (std::holds_alternative<ring_step::Read>(step)) {
      membership_.HasRead(node_.now(), answered.table);
    } else if (std::holds_alternative<ring_step::Beat>(step)) {
      membership_.HasBeaten(node_.now(), answered.how, answered.version, answered.why);
    } else {
      membership_.HasWritten(node_.now(), answered.how, answered.why);
    }
    Ended();
  });
}

// --- between it and the node

void Seat::LookAtHost() {
  look_at_ = node_.now() + kLookAtHost;
  membership_.SetMayClaim(true);
  const bool fenced = membership_.fenced_by().has_value();
  if (membership_.ranked() && !fenced && node_.leaves() && node_.NothingIsOnlyHere()) {
    membership_.Leave();
  }
  if (fenced && !node_.leaves() && node_.MayStartAnew()) membership_.StartAnew();
}

void Seat::Tell() {
  const fact::RingSeat seat = membership_.seat();
  if (seat != told_seat_) {
    node_.Apply(event::SeatChanged{seat});
    told_seat_ = seat;
  }
  if (membership_.view() != view_) {
    view_ = membership_.view();
    ++view_version_;
  }
  const std::optional<MemberId>& by = membership_.fenced_by();
  if (by.has_value() && !std::exchange(told_fenced_, true)) TellFenced(*by);
  if (!replaced_ && !by.has_value()) TellReplaced(seat);
}

void Seat::TellFenced(const MemberId& by) {
  world_.report.Note([&] {
    return absl::StrCat("node ", node_.id(), ": rank ", by.rank, " is that of incarnation ",
                        by.incarnation);
  });
  world_.report.Count("fenced");
  if (std::exchange(node_.overslept, false)) world_.report.Count("woke up fenced");
  node_.Apply(event::Fenced{by});
}

void Seat::TellReplaced(const fact::RingSeat& seat) {
  const RingOptions& runs_as = node_.options().ring;
  const bool ranked = seat.rank != kNoRank;
  const auto others = static_cast<size_t>(
      std::count_if(runs_as.members.begin(), runs_as.members.end(),
                    [](const auto& member) { return member.first != kNoRank; }));
  const size_t now = std::max<size_t>(seat.incarnations.size(), seat.rank + 1);
  const bool raised = ranked && seat.incarnation > engines_incarnation_;
  const bool resized = now != others || seat.epoch != runs_as.epoch;
  if (seat.rank == runs_as.rank && (!ranked || (!resized && !raised))) return;
  replaced_ = true;
  world_.report.Note([&] {
    return absl::StrCat("node ", node_.id(), ": rank ", runs_as.rank, " of ", others, " → ",
                        seat.rank, " of ", now);
  });
  if (seat.rank == runs_as.rank) {
    world_.report.Count(resized ? "goes on in a ring of another size"
                                : "goes on as a greater incarnation");
  }
  // Commits may finish first, and the loop goes on meanwhile.
  node_.After(world_.Millis(1, 600), [this] { node_.HandOver(); });
}

void Seat::Heard(const RingView& view) {
  membership_.Heard(view);
  Wake();
}

void Seat::Met(const MemberId& life) {
  membership_.Met(life);
  Wake();
}

void Seat::Became(int64_t incarnation) {
  engines_incarnation_ = std::max(engines_incarnation_, incarnation);
  membership_.Became(incarnation);
  Wake();
}

void Seat::ComeBack() {
  membership_.ComeBack();
  Wake();
}

}  // namespace cairn::engine::ringsim
