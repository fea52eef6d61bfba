#include "tests/ring/catalog.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "tests/ring/world.h"

namespace cairn::engine::ringsim {
namespace {

constexpr MonotonicNanos kHangs = 5 * kSecond;       // a statement that is not answered
constexpr MonotonicNanos kLateAtMost = 8 * kSecond;  // … and may still be done

}  // namespace

Catalog::Catalog(World* world) : world_(*world) {
  // Sometimes there is a ring already, else the first node makes it.
  if (world_.rng.Permille(500)) database_.Do(ring_step::MakeRing{1, world_.shape.nodes}, "", "");
  for (int i = 0; i < world_.shape.nodes + world_.shape.spares; ++i) AddMachine();
}

MonotonicNanos Catalog::Now() const { return world_.clock.now; }

// --- machines

std::string Catalog::NewInstance() { return Instance(++instances_); }

SimNode* Catalog::AddMachine(const std::string& address) {
  const std::string where =
      address.empty() ? absl::StrCat("10.0.0.", ++addresses_, ":7000") : address;
  world_.nodes.push_back(std::make_unique<SimNode>(&world_, static_cast<int>(world_.nodes.size()),
                                                   world_.OptionsOfMachine(), where));
  return at_address_[where] = world_.nodes.back().get();
}

SimNode* Catalog::AtAddress(const std::string& address) const {
  const auto at = at_address_.find(address);
  return at == at_address_.end() || at->second->dead() ? nullptr : at->second;
}

void Catalog::Changed() {
  members_.assign(members_.size(), nullptr);
  serving_.clear();
  for (const auto& node : world_.nodes) {
    if (node->dead() || node->rank() == kNoRank) continue;
    serving_.push_back(node.get());
    const auto rank = static_cast<size_t>(node->rank());
    if (rank >= members_.size()) members_.resize(rank + 1);
    SimNode*& at = members_[rank];
    if (at == nullptr || node->member().incarnation >= at->member().incarnation) at = node.get();
  }
}

SimNode* Catalog::At(Rank rank) const {
  const auto at = static_cast<size_t>(rank);
  return rank >= 0 && at < members_.size() ? members_[at] : nullptr;
}

SimNode* Catalog::Dial(const SimNode& node, Rank rank) const {
  const RingView& view = node.seat().view();
  const auto at = static_cast<size_t>(rank);
  if (at >= view.seats.size()) return nullptr;
  SimNode* const there = AtAddress(view.seats[at].address);
  return there != nullptr && there->rank() == rank && there != &node ? there : nullptr;
}

// --- statements

void Catalog::Ask(SimNode* node, const std::string& instance, const RingStep& step, Then then) {
  sim::Rng& rng = world_.rng;
  const auto answer = std::make_shared<Answered>();
  MonotonicNanos takes = static_cast<MonotonicNanos>(rng.Between(500, 8000)) * 1000;
  if (slow) takes += world_.Millis(100, 3500);
  if (away || node->without_database_until > Now()) {
    if (rng.Permille(500)) {
      takes = kHangs;
      answer->how = Written::kUnknown;
    }
  } else if (rng.Permille(unanswered)) {
    takes = kHangs;
    answer->how = Written::kUnknown;
    if (rng.Permille(500)) {
      world_.In(world_.Millis(0, kLateAtMost / kMilli),
                [this, node, instance, step] { Do(node, instance, step); });
    }
  } else {
    world_.In(takes / 2,
              [this, node, instance, step, answer] { *answer = Do(node, instance, step); });
  }
  node->After(takes, [answer, then = std::move(then)] { then(*answer); });
}

Catalog::Answered Catalog::Do(SimNode* node, const std::string& instance, const RingStep& step) {
  if (std::holds_alternative<ring_step::Read>(step)) {
    return {Written::kDone, database_.version, database_.Read(), absl::OkStatus()};
  }
  const auto* claim = std::get_if<ring_step::Claim>(&step);
  const RankRow before = claim != nullptr ? database_.rows[claim->rank] : RankRow{};
  const int64_t version = database_.version;
  const bool done = database_.Do(step, instance, node->address());
  if (database_.version != version) copies_.push_back(database_);
  if (claim != nullptr && done) CheckClaim(*node, *claim, before);
  const auto* release = std::get_if<ring_step::Release>(&step);
  if (release != nullptr && done) {
    world_.report.Count("drained");
    if (shrinks_ && release->rank == database_.size - 1) {
      shrinks_ = false;
      if (Resize(database_.size - 1)) world_.report.Count("the ring shrank");
    }
  }
  return {done ? Written::kDone : Written::kNot, database_.version, absl::InternalError("not read"),
          absl::OkStatus()};
}

void Catalog::CheckClaim(const SimNode& claimant, const ring_step::Claim& claim,
                         const RankRow& before) {
  world_.report.Note([&] {
    return absl::StrCat("node ", claimant.id(), " takes rank ", claim.rank, " as incarnation ",
                        claim.incarnation);
  });
  if (before.incarnation > 0) world_.report.Count("a spare takes a rank");
  if (before.instance.empty()) return;
  const MonotonicNanos within = 2 * world_.shape.takeover_after + 20 * kSecond;
  const auto lately = [&](MonotonicNanos at) { return at > 0 && at + within > Now(); };
  const auto cut = cut_probes_.find(claim.rank);
  if (lately(restored_at_) || (cut != cut_probes_.end() && lately(cut->second))) return;
  for (const auto& node : world_.nodes) {
    if (node->dead() || !node->has_seat() || node.get() == &claimant) continue;
    const Membership& of = node->seat().membership();
    if (of.seat().instance != before.instance || of.fenced_by().has_value()) continue;
    if (node->paused() || !node->daemon_up() || lately(node->hindered_at())) continue;
    world_.Fail(absl::StrCat("node ", claimant.id(), " takes rank ", claim.rank, " from node ",
                             node->id(), ", which lives and answers"));
  }
}

// --- what strikes

// An operator has one of the last, or nothing.
void Catalog::RestoreSomeCopy() {
  const size_t age = static_cast<size_t>(world_.rng.Between(1, 12));
  database_ = age < copies_.size() ? copies_[copies_.size() - 1 - age] : Database{};
  restored_at_ = Now();
  world_.report.Note([&] {
    return absl::StrCat("the database is that of version ", database_.version, ", epoch ",
                        database_.epoch);
  });
}

bool Catalog::Resize(int to) {
  if (away || !database_.Resize(to)) return false;
  copies_.push_back(database_);
  world_.report.Note([&] { return absl::StrCat("the ring has ", to, " ranks now"); });
  return true;
}

void Catalog::MendAll() {
  away = slow = shrinks_ = false;
  unanswered = 0;
  for (const auto& node : world_.nodes) node->without_database_until = 0;
}

// A fenced one that has something that is nowhere else waits, and so does one that is out of service.
void Catalog::BringWhatIsMissing() {
  int able = 0;
  for (const auto& node : world_.nodes) {
    if (node->dead() || !node->has_seat() || node->leaves()) continue;
    able += node->seat().membership().fenced_by().has_value() ? 0 : 1;
  }
  for (; able < database_.size; ++able) AddMachine()->StartDaemon();
}

std::string Catalog::Missing() const {
  std::map<Rank, int> holders;
  for (const auto& node : world_.nodes) {
    if (node->dead() || !node->has_seat()) continue;
    const Membership& of = node->seat().membership();
    if (!of.ranked() || of.fenced_by().has_value()) continue;
    const std::string who = absl::StrCat("node ", node->id(), ", rank ", of.seat().rank, ": ");
    const auto row = database_.rows.find(of.seat().rank);
    if (row == database_.rows.end() || row->second.instance != of.seat().instance ||
        row->second.incarnation != of.seat().incarnation) {
      return absl::StrCat(who, "the database says something else");
    }
    const RingOptions& ring = node->options().ring;
    if (node->rank() != of.seat().rank || node->member().incarnation != of.seat().incarnation ||
        ring.members.size() != static_cast<size_t>(database_.size)) {
      return absl::StrCat(who, "it runs as rank ", node->rank(), " of ", ring.members.size());
    }
    if (world_.At(node->rank()) != node.get()) return absl::StrCat(who, "another one is newer");
    ++holders[of.seat().rank];
  }
  for (Rank rank = 0; rank < database_.size; ++rank) {
    if (holders[rank] != 1) return absl::StrCat(holders[rank], " nodes have rank ", rank);
  }
  return "";
}

}  // namespace cairn::engine::ringsim
