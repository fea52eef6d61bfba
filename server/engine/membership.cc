#include "server/engine/membership.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/ring_nodes.h"

namespace cairn::engine {
namespace {

// A node that has a rank reads the whole table when the version has moved, and from time to time in any case.
constexpr MonotonicNanos kReadAnyway = 60 * kNanosPerSecond;
// Somebody answers where a row stands still: the catalog is away for it, not for this node.
constexpr MonotonicNanos kProbeAgain = 15 * kNanosPerSecond;

}  // namespace

RingOptions SeatedRing(RingOptions ring, const fact::RingSeat& seat, const std::string& address) {
  ring.from_catalog = true;
  ring.rank = seat.rank;
  ring.epoch = seat.epoch;
  ring.members.clear();
  const std::map<int32_t, std::string> nodes = KnownRingNodes(seat.nodes);
  for (size_t rank = 0; rank < seat.incarnations.size(); ++rank) {
    const auto node = nodes.find(static_cast<int32_t>(rank));
    ring.members[static_cast<Rank>(rank)] = node == nodes.end() ? "" : node->second;
  }
  // Without a rank the node knows that there are others, and that none of them answers.
  if (ring.members.empty()) ring.members[0] = "";
  ring.members[seat.rank] = address;
  return ring;
}

Membership::Membership(MembershipOptions options, const fact::RingSeat& seat)
    : options_(std::move(options)), seat_(seat) {
  view_.epoch = seat_.epoch;
  view_.seats.resize(seat_.incarnations.size());
  const std::map<int32_t, std::string> nodes = KnownRingNodes(seat_.nodes);
  for (size_t rank = 0; rank < view_.seats.size(); ++rank) {
    view_.seats[rank].incarnation = seat_.incarnations[rank];
    const auto node = nodes.find(static_cast<int32_t>(rank));
    if (node != nodes.end()) view_.seats[rank].address = node->second;
  }
  leaving_ = seat_.drained;
  NoteOtherLife(view_);
}

void Membership::TellSeat() {
  seat_.epoch = view_.epoch;
  seat_.incarnations.clear();
  std::map<int32_t, std::string> nodes;
  for (size_t rank = 0; rank < view_.seats.size(); ++rank) {
    const RingView::Seat& seat = view_.seats[rank];
    seat_.incarnations.push_back(seat.incarnation);
    if (!seat.address.empty()) nodes.emplace(static_cast<int32_t>(rank), seat.address);
  }
  seat_.nodes = RingNodesText(nodes);
}

// --- what is next

RingStep Membership::Next(MonotonicNanos now) {
  asked_at_ = now;
  if (next_.has_value()) {
    asked_ = *std::exchange(next_, std::nullopt);
    return asked_;
  }
  std::optional<RingStep> step;
  if (read_due_ || now >= read_at_) {
    step = ring_step::Read{};
  } else if (fenced_by_.has_value()) {
    // It reads on, for its view, and writes nothing.
  } else if (ranked()) {
    if (leaving_) {
      step = ring_step::Release{seat_.rank, seat_.incarnation};
    } else if (now >= beat_at_) {
      step = ring_step::Beat{seat_.rank, seat_.incarnation};
    }
  } else {
    step = NextOfUnranked(now);
  }
  if (!step.has_value()) {
    const bool beats = ranked() && !fenced_by_.has_value();
    step = ring_step::Wait{beats ? std::min(beat_at_, read_at_) : read_at_};
  }
  asked_ = *step;
  return asked_;
}

std::optional<RingStep> Membership::NextOfUnranked(MonotonicNanos now) {
  waits_.clear();
  if (leaving_) {
    waits_ = "it has given its rank back";
    return std::nullopt;
  }
  if (!may_claim_) {
    waits_ = "the journal cannot be written";
    return std::nullopt;
  }
  if (!has_read_ || answered_at_ + options_.gap < now) return std::nullopt;
  if (uncertain_.has_value()) {
    waits_ = absl::StrCat("whether it has got rank ", uncertain_->rank, " is not known yet");
    return std::nullopt;
  }
  if (watches_.empty()) {
    // Who knows the ring makes it as it was: its database is another one now.
    if (view_.epoch > 0) {
      return ring_step::MakeRing{view_.epoch, static_cast<int>(view_.seats.size())};
    }
    if (options_.size > 0) return ring_step::MakeRing{1, options_.size};
    waits_ = "the cluster has no ring yet (`cairn ring resize N` makes it, or ring.size)";
    return std::nullopt;
  }
  if (options_.wanted != kNoRank) {
    if (options_.wanted >= static_cast<Rank>(watches_.size())) {
      waits_ = absl::StrCat("ring.rank: ", options_.wanted, " is not in the ring, whose size is ",
                            watches_.size());
      return std::nullopt;
    }
    return WantRank(now, options_.wanted);
  }
  // An empty one first: nothing has to be waited for.
  for (const bool empty : {true, false}) {
    for (Rank rank = 0; rank < static_cast<Rank>(watches_.size()); ++rank) {
      if (watches_[rank].row.instance.empty() != empty) continue;
      if (std::optional<RingStep> step = WantRank(now, rank)) return step;
    }
  }
  waits_ = absl::StrCat("all ", watches_.size(), " ranks are taken: it is a spare");
  return std::nullopt;
}

// A place that is empty in the catalog and somebody's in what this node has heard is that one's: the database was
// restored, or replaced, and he has not written himself into it yet.
std::optional<RingStep> Membership::WantRank(MonotonicNanos now, Rank rank) {
  Watch& watch = watches_[rank];
  const RankRow& row = watch.row;
  const bool in_view = rank < static_cast<Rank>(view_.seats.size());
  const RingView::Seat known = in_view ? view_.seats[rank] : RingView::Seat{};
  const bool heard_of = known.incarnation > row.incarnation && !known.address.empty();
  const std::string& owner = heard_of ? known.address : row.address;
  if (!row.instance.empty() || heard_of) {
    waits_ = absl::StrCat("rank ", rank, " is another node's, at ", owner);
    if (now < watch.since + options_.still) return std::nullopt;
    if (watch.probed == 0) {
      if (now < watch.again) return std::nullopt;
      return ring_step::Probe{rank, owner};
    }
  }
  return ring_step::Claim{rank, row.incarnation, row.beat,
                          std::max(row.incarnation, known.incarnation) + 1};
}

// --- how it ended

void Membership::HasRead(MonotonicNanos now, const StatusOr<RingTable>& table) {
  read_due_ = false;
  const bool watches = !ranked() || fenced_by_.has_value();
  read_at_ = now + (watches || !table.ok() ? options_.beat : kReadAnyway);
  if (!table.ok()) {
    problem_ = std::string(table.status().message());
    return;
  }
  problem_.clear();
  See(now, *table);
  SeeOwnRow(now, *table);
}

void Membership::See(MonotonicNanos now, const RingTable& table) {
  const bool went_on = has_read_ && now <= answered_at_ + options_.gap;
  has_read_ = true;
  answered_at_ = now;
  version_ = table.version;
  const size_t watched = watches_.size();
  watches_.resize(table.ranks.size());
  RingView seen{table.epoch, {}};
  for (size_t rank = 0; rank < table.ranks.size(); ++rank) {
    const RankRow& row = table.ranks[rank];
    Watch& watch = watches_[rank];
    if (!went_on || rank >= watched || watch.row != row) watch = {row, now, 0, 0};
    seen.seats.push_back({row.incarnation, row.address});
  }
  view_.Merge(seen);
  TellSeat();
  if (!ranked()) return;
  if (table.epoch < view_.epoch) {
    next_ = ring_step::MakeRing{view_.epoch, static_cast<int>(view_.seats.size())};
  } else if (table.ranks.size() != view_.seats.size()) {
    // The larger one, for somebody may have the ranks that the smaller one lacks.
    const size_t size = std::max(table.ranks.size(), view_.seats.size());
    next_ = ring_step::MakeRing{view_.epoch + 1, static_cast<int>(size)};
  }
}

// Who goes by that view looks for this node's rank somewhere else.
void Membership::NoteOtherLife(const RingView& view) {
  if (!ranked() || seat_.rank >= static_cast<Rank>(view.seats.size())) return;
  const RingView::Seat& known = view.seats[seat_.rank];
  const bool mine = known.incarnation == seat_.incarnation &&
                    (known.address.empty() || known.address == options_.address);
  if (mine || known.incarnation < seat_.incarnation || known.incarnation <= met_) return;
  met_ = known.incarnation;
  met_since_ = 0;
  read_due_ = true;
}

// The database has it so: before that the other life may be the one that has the rank.
void Membership::Rise(int64_t incarnation) {
  seat_.incarnation = incarnation;
  if (seat_.rank < static_cast<Rank>(view_.seats.size())) {
    view_.seats[seat_.rank] = {incarnation, options_.address};
  }
  TellSeat();
}

void Membership::SeeOwnRow(MonotonicNanos now, const RingTable& table) {
  if (fenced_by_.has_value()) return;
  if (!ranked()) {
    for (size_t rank = 0; rank < table.ranks.size(); ++rank) {
      const RankRow& row = table.ranks[rank];
      if (row.instance != seat_.instance) continue;
      return may_claim_ ? Take(static_cast<Rank>(rank), row.incarnation) : void();
    }
    if (!uncertain_.has_value()) return;
    const bool moved = uncertain_->rank >= static_cast<Rank>(table.ranks.size()) ||
                       table.ranks[uncertain_->rank].incarnation != uncertain_->of;
    if (moved || answered_at_ >= uncertain_->until) uncertain_.reset();
    return;
  }
  // A restored database whose ring is smaller is made larger first.
  if (table.epoch < view_.epoch || table.ranks.size() < view_.seats.size()) return;
  if (seat_.rank >= static_cast<Rank>(table.ranks.size())) return TakeNoRank();
  const RankRow& row = table.ranks[seat_.rank];
  if (row.instance == seat_.instance) return SeeThatItHasTheRow(now, row);
  // The answer that it was given back was lost, and somebody may have it by now; or nobody, and the node was taken back
  // into service meanwhile.
  if (row.incarnation > seat_.incarnation && (leaving_ || row.instance.empty()))
    return TakeNoRank();
  if (row.incarnation >= seat_.incarnation) {
    fenced_by_ = MemberId{seat_.rank, row.incarnation, row.instance};
    return;
  }
  if (!next_.has_value()) {
    next_ = ring_step::Claim{seat_.rank, row.incarnation, row.beat, seat_.incarnation};
  }
}

void Membership::SeeThatItHasTheRow(MonotonicNanos now, const RankRow& row) {
  if (row.incarnation > seat_.incarnation) Rise(row.incarnation);
  if (met_ >= seat_.incarnation && met_ < kMostIncarnation) {
    if (met_since_ == 0) met_since_ = now;
    if (now >= met_since_ + options_.still) {
      next_ = ring_step::Raise{seat_.rank, row.incarnation, met_ + 1};
    } else {
      read_at_ = std::min(read_at_, met_since_ + options_.still);
    }
  } else if (row.incarnation < seat_.incarnation && !next_.has_value()) {
    next_ = ring_step::Raise{seat_.rank, row.incarnation, seat_.incarnation};
  }
}

void Membership::HasBeaten(MonotonicNanos now, Written how, int64_t version, const Status& why) {
  beat_at_ = now + options_.beat;
  problem_ = how == Written::kDone || how == Written::kNot ? "" : std::string(why.message());
  if (how == Written::kNot || (how == Written::kDone && version != version_)) read_due_ = true;
}

void Membership::HasProbed(MonotonicNanos now, Rank rank, bool answers) {
  if (rank >= static_cast<Rank>(watches_.size())) return;
  // The catalog was not asked meanwhile; a claim says which row it is about.
  answered_at_ += now - asked_at_;
  watches_[rank].probed = answers ? 0 : now;
  watches_[rank].again = now + kProbeAgain;
}

void Membership::HasWritten(MonotonicNanos now, Written how, const Status& why) {
  const bool failed = how == Written::kUnknown || how == Written::kRefused;
  problem_ = failed ? std::string(why.message()) : "";
  // What the row is now only reading tells; after a failure not at once.
  read_due_ = !failed;
  if (failed) read_at_ = now + options_.beat;
  if (const auto* claim = std::get_if<ring_step::Claim>(&asked_)) {
    if (how == Written::kDone) Take(claim->rank, claim->incarnation);
    if (how == Written::kUnknown && !ranked()) {
      uncertain_ = Uncertain{claim->rank, claim->of, now + options_.uncertain};
    }
  } else if (const auto* raise = std::get_if<ring_step::Raise>(&asked_)) {
    if (how == Written::kDone && raise->incarnation > seat_.incarnation) Rise(raise->incarnation);
  } else if (std::holds_alternative<ring_step::Release>(asked_) && how == Written::kDone) {
    TakeNoRank();
  }
}

void Membership::Take(Rank rank, int64_t incarnation) {
  uncertain_.reset();
  waits_.clear();
  met_ = 0;
  seat_.rank = rank;
  seat_.incarnation = incarnation;
  seat_.drained = false;
  if (rank >= static_cast<Rank>(view_.seats.size())) view_.seats.resize(rank + 1);
  view_.seats[rank] = {incarnation, options_.address};
  TellSeat();
}

void Membership::TakeNoRank() {
  seat_.drained = leaving_;
  if (seat_.rank < static_cast<Rank>(view_.seats.size())) {
    view_.seats[seat_.rank] = {seat_.incarnation + 1, ""};
  }
  // Whatever is still said of the life that had it is not said of the next one.
  seat_.instance = options_.new_instance();
  seat_.rank = kNoRank;
  seat_.incarnation = 0;
  TellSeat();
}

void Membership::ComeBack() {
  if (!leaving_) return;
  leaving_ = false;
  if (!ranked()) StartAnew();
}

void Membership::StartAnew() {
  if (!may_claim_) return;
  leaving_ = false;
  fenced_by_.reset();
  uncertain_.reset();
  seat_.instance = options_.new_instance();
  seat_.rank = kNoRank;
  seat_.incarnation = 0;
  seat_.drained = false;
  read_due_ = true;
}

// --- what others tell

void Membership::Heard(const RingView& view) {
  const int64_t epoch = view_.epoch;
  NoteOtherLife(view);
  if (!view_.Merge(view)) return;
  TellSeat();
  // The database is told of a ring's size that it does not know.
  if (view_.epoch > epoch) read_due_ = true;
}

void Membership::Met(const MemberId& life) {
  if (!ranked() || life.rank != seat_.rank || life.instance == seat_.instance) return;
  if (life.incarnation < seat_.incarnation || life.incarnation <= met_) return;
  met_ = life.incarnation;
  met_since_ = 0;
  read_due_ = true;
}

void Membership::Became(int64_t incarnation) {
  if (!ranked() || incarnation <= seat_.incarnation) return;
  next_ = ring_step::Raise{seat_.rank, seat_.incarnation, incarnation};
  seat_.incarnation = incarnation;
  if (seat_.rank < static_cast<Rank>(view_.seats.size())) {
    view_.seats[seat_.rank].incarnation = incarnation;
  }
  TellSeat();
}

std::string Membership::Problem() const {
  std::string problem;
  if (!problem_.empty()) absl::StrAppend(&problem, "the members' catalog: ", problem_);
  if (!ranked()) {
    absl::StrAppend(&problem, problem.empty() ? "" : "; ", "this node has no rank",
                    waits_.empty() ? "" : ": ", waits_);
  }
  return problem;
}

}  // namespace cairn::engine
