// Many nodes that want the ranks of a ring, with a database that is slow, away, restored, or gives no answer.
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/engine/membership.h"
#include "tests/engine/membership_database.h"

namespace cairn::engine {
namespace {

// Time passes in steps of 100 ms. A statement takes some of them, and what it does is done at its beginning, at its end,
// or, without an answer, later or never.
class World {
 public:
  explicit World(uint64_t seed) : random_(seed) {
    for (int i = 0; i < kNodes; ++i) AddNode();
    database_.epoch = 1, database_.size = kSize;
  }

  void Run() {
    for (; now_ < 1000 * kSecond + kFaulty; now_ += kTick) {
      Fault();
      Tick();
    }
    Calm();
    for (const MonotonicNanos end = now_ + kCalm; now_ < end; now_ += kTick) Tick();
    CheckAllTaken();
  }

 private:
  static constexpr int kNodes = 5, kSize = 3;
  static constexpr MonotonicNanos kTick = kSecond / 10, kFaulty = 400 * kSecond,
                                  kCalm = 120 * kSecond;
  struct Node {
    int number = 0;
    std::unique_ptr<Membership> membership;
    bool alive = true;
    MonotonicNanos paused_until = 0, away_until = 0;  // away: it does not reach the database
    bool was_paused = false;                          // long enough to be taken for dead
    std::optional<RingStep> doing;
    MonotonicNanos done_at = 0;
    std::function<void(Node*)> end;
  };

  int Draw(int below) { return static_cast<int>(random_() % static_cast<uint64_t>(below)); }
  bool Chance(int of) { return Draw(of) == 0; }
  bool Reaches(const Node& node) const { return now_ >= node.away_until && now_ >= away_until_; }

  void AddNode() {
    auto node = std::make_unique<Node>();
    node->number = next_number_++;
    node->membership = std::make_unique<Membership>(OptionsOf(node->number), NewSeat(node->number));
    node->membership->SetMayClaim(true);
    nodes_.push_back(std::move(node));
  }

  void Fault() {
    Node& node = *nodes_[Draw(static_cast<int>(nodes_.size()))];
    if (Chance(200)) node.away_until = now_ + Draw(40) * kSecond;
    if (Chance(400)) away_until_ = now_ + Draw(60) * kSecond;
    if (Chance(300)) {
      node.paused_until = now_ + Draw(60) * kSecond;
      node.was_paused = true;
    }
    if (Chance(400) && node.alive) {
      node.alive = false;
      node.doing.reset();
      AddNode();
    }
    if (Chance(500)) saved_ = database_;
    if (Chance(1500) && saved_.has_value()) {
      database_ = *saved_;
      restored_ = true;
    }
  }

  void Calm() {
    away_until_ = 0;
    for (const auto& node : nodes_) node->away_until = node->paused_until = 0;
  }

  void Tick() {
    for (auto at = late_.begin(); at != late_.end();) {
      if (at->first > now_) {
        ++at;
        continue;
      }
      at->second();
      at = late_.erase(at);
    }
    for (size_t i = 0; i < nodes_.size(); ++i) {
      Node& node = *nodes_[i];
      if (!node.alive || now_ < node.paused_until) continue;
      if (node.doing.has_value()) {
        if (now_ < node.done_at) continue;
        node.doing.reset();
        node.end(&node);
        Check(node);
        continue;
      }
      const RingStep step = node.membership->Next(now_);
      if (std::holds_alternative<ring_step::Wait>(step)) continue;
      Begin(&node, step);
    }
  }

  void Begin(Node* node, const RingStep& step) {
    node->doing = step;
    node->done_at = now_ + kTick * (1 + Draw(3));
    if (const auto* probe = std::get_if<ring_step::Probe>(&step)) {
      // Silence takes as long as a call may.
      bool answers = false;
      for (const auto& other : nodes_) {
        const bool there = other->alive && Address(other->number) == probe->address &&
                           other->membership->seat().rank == probe->rank;
        answers = answers || (there && now_ >= other->paused_until);
      }
      if (!answers) node->done_at = now_ + 3 * kSecond;
      node->end = [this, rank = probe->rank, answers](Node* of) {
        of->membership->HasProbed(now_, rank, answers);
      };
      return;
    }
    const Status away = absl::UnavailableError("away");
    if (!Reaches(*node)) {
      const bool hangs = Chance(2);
      if (hangs) node->done_at = now_ + 5 * kSecond;
      node->end = [this, step, away](Node* of) {
        if (std::holds_alternative<ring_step::Read>(step))
          return of->membership->HasRead(now_, away);
        Tell(of, step, Written::kRefused, away);
      };
      return;
    }
    if (std::holds_alternative<ring_step::Read>(step)) {
      node->end = [this, table = database_.Read()](Node* of) {
        of->membership->HasRead(now_, table);
      };
      return;
    }
    if (Chance(20)) return WithoutAnswer(node, step);
    const Written how = Do(*node, step) ? Written::kDone : Written::kNot;
    node->end = [this, step, how, away](Node* of) { Tell(of, step, how, away); };
  }

  void WithoutAnswer(Node* node, const RingStep& step) {
    node->done_at = now_ + 5 * kSecond;
    const auto what = [this, step, instance = node->membership->seat().instance,
                       address = Address(node->number)] { database_.Do(step, instance, address); };
    if (Chance(2)) late_.emplace(now_ + Draw(8) * kSecond, what);
    node->end = [this, step](Node* of) {
      Tell(of, step, Written::kUnknown, absl::UnavailableError("no answer"));
    };
  }

  bool Do(const Node& node, const RingStep& step) {
    return database_.Do(step, node.membership->seat().instance, Address(node.number));
  }

  void Tell(Node* node, const RingStep& step, Written how, const Status& why) {
    if (std::holds_alternative<ring_step::Beat>(step)) {
      return node->membership->HasBeaten(now_, how, database_.version, why);
    }
    node->membership->HasWritten(now_, how, why);
  }

  // Who lives, and was not stopped for long, keeps its rank, whether it reaches the database or not. Of two lives of a
  // rank none has the other's number. A database that was restored from an older copy may give a number twice; that is
  // looked at in tests/ring, where members meet.
  void Check(Node& node) {
    const Membership& membership = *node.membership;
    if (membership.fenced_by().has_value()) {
      EXPECT_TRUE(node.was_paused || restored_)
          << "node " << node.number << " was fenced while it lived";
      // As a daemon does, once nothing is only there.
      node.membership->StartAnew();
      node.was_paused = false;
      return;
    }
    if (!membership.ranked() || restored_) return;
    const auto [holder, fresh] =
        holders_.emplace(std::pair(membership.seat().rank, membership.seat().incarnation),
                         membership.seat().instance);
    EXPECT_EQ(holder->second, membership.seat().instance) << "one number, two lives";
  }

  void CheckAllTaken() {
    std::map<Rank, int> taken;
    for (const auto& node : nodes_) {
      if (!node->alive || !node->membership->ranked()) continue;
      if (node->membership->fenced_by().has_value()) continue;
      ++taken[node->membership->seat().rank];
      const RankRow& row = database_.rows[node->membership->seat().rank];
      EXPECT_EQ(row.instance, node->membership->seat().instance);
    }
    for (Rank rank = 0; rank < kSize; ++rank)
      EXPECT_EQ(taken[rank], 1) << "rank " << rank << Text();
  }

  std::string Text() const {
    std::string text = absl::StrCat("\nepoch ", database_.epoch, ", size ", database_.size);
    for (const auto& [rank, row] : database_.rows) {
      absl::StrAppend(&text, "\n", rank, ": ", row.incarnation, " of ", row.instance, ", beat ",
                      row.beat);
    }
    for (const auto& node : nodes_) {
      if (!node->alive) continue;
      const Membership& of = *node->membership;
      absl::StrAppend(&text, "\nnode ", node->number, ": ", of.seat().instance, " rank ",
                      of.seat().rank, " incarnation ", of.seat().incarnation, " ",
                      of.fenced_by().has_value() ? "fenced " : "", of.Problem());
    }
    return text;
  }

  std::mt19937_64 random_;
  Database database_;
  std::optional<Database> saved_;
  bool restored_ = false;
  MonotonicNanos now_ = 1000 * kSecond, away_until_ = 0;
  int next_number_ = 0;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::multimap<MonotonicNanos, std::function<void()>> late_;
  std::map<std::pair<Rank, int64_t>, std::string> holders_;
};

TEST(MembershipWorld, NobodyWhoLivesIsFencedAndEachRankIsTakenInTheEnd) {
  const char* const asked = std::getenv("CAIRN_SIM_SEEDS");
  const int seeds = asked != nullptr ? std::atoi(asked) : 300;
  for (int seed = 1; seed <= seeds; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    World(static_cast<uint64_t>(seed)).Run();
    if (testing::Test::HasFailure()) break;
  }
}

}  // namespace
}  // namespace cairn::engine
