// Who has which rank of a ring whose members stand in the catalog: the rules one by one, and many nodes with a database
// that is slow, away, restored, or gives no answer.
#include "server/engine/membership.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"

namespace cairn::engine {
namespace {

constexpr MonotonicNanos kSecond = kNanosPerSecond;

std::string Instance(int number) {
  std::string text = absl::StrCat("instance ", number);
  text.resize(kInstanceBytes, '.');
  return text;
}
std::string Address(int number) { return absl::StrCat("10.0.0.", number + 1, ":7400"); }

// The two tables, and what the statements of catalog/mysql_ring.cc do to them.
struct Database {
  int64_t epoch = 0, version = 0;
  std::map<Rank, RankRow> rows;
  int size = 0;

  RingTable Read() const {
    RingTable table{epoch, version, {}};
    for (Rank rank = 0; rank < size; ++rank) {
      const auto row = rows.find(rank);
      table.ranks.push_back(row == rows.end() ? RankRow{} : row->second);
    }
    return table;
  }
  bool Has(const std::string& instance) const {
    for (const auto& [rank, row] : rows) {
      if (row.instance == instance) return true;
    }
    return false;
  }
  bool Do(const RingStep& step, const std::string& instance, const std::string& address) {
    if (const auto* make = std::get_if<ring_step::MakeRing>(&step)) {
      if (make->epoch <= epoch) return true;
      epoch = make->epoch;
      size = make->size;
      ++version;
      return true;
    }
    if (const auto* claim = std::get_if<ring_step::Claim>(&step)) {
      RankRow& row = rows[claim->rank];
      if (claim->rank >= size || row.incarnation != claim->of || row.beat != claim->beat) {
        return false;
      }
      if (row.instance != instance && Has(instance)) return false;  // the unique key
      row = {claim->incarnation, instance, address, row.beat + 1};
      ++version;
      return true;
    }
    const auto mine = [&](Rank rank, int64_t incarnation) -> RankRow* {
      const auto row = rows.find(rank);
      const bool is = row != rows.end() && row->second.incarnation == incarnation &&
                      row->second.instance == instance;
      return is ? &row->second : nullptr;
    };
    if (const auto* beat = std::get_if<ring_step::Beat>(&step)) {
      RankRow* const row = mine(beat->rank, beat->incarnation);
      if (row != nullptr) ++row->beat;
      return row != nullptr;
    }
    if (const auto* raise = std::get_if<ring_step::Raise>(&step)) {
      RankRow* const row = mine(raise->rank, raise->of);
      if (row == nullptr) return false;
      row->incarnation = raise->incarnation;
      ++row->beat, ++version;
      return true;
    }
    if (const auto* release = std::get_if<ring_step::Release>(&step)) {
      RankRow* const row = mine(release->rank, release->incarnation);
      if (row == nullptr) return false;
      *row = {row->incarnation + 1, "", "", row->beat + 1};
      ++version;
      return true;
    }
    return false;
  }
};

MembershipOptions OptionsOf(int number, int size = 0, Rank wanted = kNoRank) {
  MembershipOptions options;
  options.address = Address(number);
  options.size = size;
  options.wanted = wanted;
  options.uncertain = 17 * kSecond;
  return options;
}
fact::RingSeat NewSeat(int number) {
  fact::RingSeat seat;
  seat.instance = Instance(number);
  return seat;
}

// One node, whose steps are done at once. `answers`: what a probe finds.
class MembershipTest : public testing::Test {
 protected:
  struct Node {
    Node(int of, const MembershipOptions& options)
        : number(of), membership(options, NewSeat(of)), address(options.address) {
      membership.SetMayClaim(true);
    }
    const int number;
    Membership membership;
    const std::string address;
    bool reaches = true;  // the database
  };
  Node& Add(int size = 0, Rank wanted = kNoRank) {
    const int number = static_cast<int>(nodes_.size());
    nodes_.push_back(std::make_unique<Node>(number, OptionsOf(number, size, wanted)));
    return *nodes_.back();
  }
  // What `node` does in so many seconds.
  void Run(double seconds, std::set<const Node*> silent = {}) {
    const MonotonicNanos end = now_ + static_cast<MonotonicNanos>(seconds * kSecond);
    while (now_ < end) {
      for (const auto& node : nodes_) {
        if (silent.contains(node.get())) continue;
        for (int i = 0; i < 4; ++i) {
          if (!DoOne(node.get(), silent)) break;
        }
      }
      now_ += kSecond / 4;
    }
  }
  bool DoOne(Node* node, const std::set<const Node*>& silent) {
    Membership& membership = node->membership;
    const RingStep step = membership.Next(now_);
    if (std::holds_alternative<ring_step::Wait>(step)) return false;
    const Status away = absl::UnavailableError("the database is away");
    if (const auto* probe = std::get_if<ring_step::Probe>(&step)) {
      ++probes_;
      bool answers = false;
      for (const auto& other : nodes_) {
        answers = answers || (other->address == probe->address && !silent.contains(other.get()) &&
                              other->membership.seat().rank == probe->rank);
      }
      membership.HasProbed(now_, probe->rank, answers);
      return true;
    }
    if (std::holds_alternative<ring_step::Read>(step)) {
      membership.HasRead(now_, node->reaches ? StatusOr<RingTable>(database_.Read()) : away);
      return true;
    }
    Written how = Written::kRefused;
    if (node->reaches) {
      how = database_.Do(step, membership.seat().instance, node->address) ? Written::kDone
                                                                          : Written::kNot;
    }
    if (std::holds_alternative<ring_step::Beat>(step)) {
      membership.HasBeaten(now_, how, database_.version, away);
    } else {
      membership.HasWritten(now_, how, away);
    }
    return true;
  }

  Database database_;
  MonotonicNanos now_ = 1000 * kSecond;
  int probes_ = 0;
  std::vector<std::unique_ptr<Node>> nodes_;
};

TEST_F(MembershipTest, TheFirstMakesTheRingAndEachGetsAnEmptyRank) {
  for (int i = 0; i < 4; ++i) Add(/*size=*/3);
  Run(10);
  std::set<Rank> taken;
  for (const auto& node : nodes_) {
    if (node->membership.ranked()) taken.insert(node->membership.seat().rank);
  }
  EXPECT_EQ(taken, (std::set<Rank>{0, 1, 2}));
  EXPECT_NE(nodes_[3]->membership.Problem().find("it is a spare"), std::string::npos);
  EXPECT_EQ(nodes_[0]->membership.seat().incarnation, 1);
}

TEST_F(MembershipTest, ASpareTakesALostRankAfterItsBeatHasStoodStill) {
  Node& owner = Add(/*size=*/1);
  Run(5);
  Node& spare = Add();
  Run(30);
  ASSERT_FALSE(spare.membership.ranked());
  EXPECT_EQ(probes_, 0);
  Run(14, {&owner});
  EXPECT_FALSE(spare.membership.ranked());
  Run(6, {&owner});
  EXPECT_EQ(spare.membership.seat().rank, 0);
  EXPECT_EQ(spare.membership.seat().incarnation, 2);
  EXPECT_GT(probes_, 0);
  // It wakes up, and finds another one in its place.
  Run(10);
  ASSERT_TRUE(owner.membership.fenced_by().has_value());
  EXPECT_EQ(owner.membership.fenced_by()->instance, Instance(1));
  EXPECT_FALSE(spare.membership.fenced_by().has_value());
}

TEST_F(MembershipTest, WhoAnswersAtItsAddressKeepsItsRank) {
  Node& owner = Add(/*size=*/1);
  Run(5);
  Node& spare = Add();
  owner.reaches = false;  // the database, but others reach it
  Run(120);
  EXPECT_FALSE(spare.membership.ranked());
  EXPECT_GT(probes_, 1);
}

TEST_F(MembershipTest, ADatabaseThatWasAwayFencesNobody) {
  Node& owner = Add(/*size=*/1);
  Run(5);
  Node& spare = Add();
  Run(5);
  owner.reaches = spare.reaches = false;
  Run(120);
  // It is back for the spare first, and the owner is silent in that very moment.
  spare.reaches = true;
  Run(10, {&owner});
  owner.reaches = true;
  Run(60);
  EXPECT_FALSE(owner.membership.fenced_by().has_value());
  EXPECT_FALSE(spare.membership.ranked());
}

TEST_F(MembershipTest, OneThatStoodStillItselfHasWatchedNobody) {
  Node& owner = Add(/*size=*/1);
  Run(5);
  Node& spare = Add();
  Run(5, {&owner});
  Run(60, {&owner, &spare});
  Run(10, {&owner});
  EXPECT_FALSE(spare.membership.ranked());
  Run(10, {&owner});
  EXPECT_TRUE(spare.membership.ranked());
}

TEST_F(MembershipTest, AReadingThatLagsBehindGetsNothing) {
  Node& owner = Add(/*size=*/1);
  Run(5);
  Membership spare(OptionsOf(7), NewSeat(7));
  spare.SetMayClaim(true);
  const RingTable old = database_.Read();
  MonotonicNanos read_at = 0;
  for (int i = 0; i < 8; ++i) {
    (void)spare.Next(now_);
    read_at = now_;
    spare.HasRead(now_, old);
    now_ += 3 * kSecond;
  }
  Run(4);  // the owner beats meanwhile
  RingStep step = spare.Next(read_at + 1);
  ASSERT_TRUE(std::holds_alternative<ring_step::Probe>(step));
  spare.HasProbed(read_at + 1, 0, /*answers=*/false);
  step = spare.Next(read_at + 1);
  ASSERT_TRUE(std::holds_alternative<ring_step::Claim>(step));
  EXPECT_FALSE(database_.Do(step, Instance(7), Address(7)));
  Run(10);
  EXPECT_FALSE(owner.membership.fenced_by().has_value());
}

TEST_F(MembershipTest, AClaimWithoutAnAnswerIsHisWhoFindsHimselfThere) {
  Add(/*size=*/2);
  Run(5);
  Membership late(OptionsOf(1), NewSeat(1));
  late.SetMayClaim(true);
  (void)late.Next(now_);
  late.HasRead(now_, database_.Read());
  const RingStep claim = late.Next(now_);
  ASSERT_TRUE(std::holds_alternative<ring_step::Claim>(claim));
  late.HasWritten(now_, Written::kUnknown, absl::UnavailableError("no answer"));
  // The row has not moved: nothing else is wanted.
  for (int i = 0; i < 5; ++i) {
    now_ += 3 * kSecond;
    EXPECT_TRUE(std::holds_alternative<ring_step::Read>(late.Next(now_)));
    late.HasRead(now_, database_.Read());
    EXPECT_TRUE(std::holds_alternative<ring_step::Wait>(late.Next(now_)));
  }
  ASSERT_TRUE(database_.Do(claim, Instance(1), Address(1)));
  now_ += 3 * kSecond;
  (void)late.Next(now_);
  late.HasRead(now_, database_.Read());
  EXPECT_EQ(late.seat().rank, 1);
  EXPECT_EQ(late.seat().incarnation, 1);
}

TEST_F(MembershipTest, AClaimThatNobodyCanCarryOutAnyMoreIsForgotten) {
  Add(/*size=*/2);
  Run(5);
  Membership late(OptionsOf(1), NewSeat(1));
  late.SetMayClaim(true);
  (void)late.Next(now_);
  late.HasRead(now_, database_.Read());
  (void)late.Next(now_);
  late.HasWritten(now_, Written::kUnknown, absl::UnavailableError("no answer"));
  for (int i = 0; i < 7; ++i) {
    now_ += 3 * kSecond;
    (void)late.Next(now_);
    late.HasRead(now_, database_.Read());
  }
  EXPECT_TRUE(std::holds_alternative<ring_step::Claim>(late.Next(now_)));
}

TEST_F(MembershipTest, OfADatabaseThatWasRestoredTheLivingKeepTheirRanks) {
  Node& owner = Add(/*size=*/1);
  Run(5);
  const Database old = database_;
  Node& second = Add();
  Run(30, {&owner});
  ASSERT_EQ(second.membership.seat().incarnation, 2);
  Run(10);
  ASSERT_TRUE(owner.membership.fenced_by().has_value());
  database_ = old;  // it says that the first one has the rank
  Run(10);
  EXPECT_FALSE(second.membership.fenced_by().has_value());
  EXPECT_EQ(database_.rows[0].instance, Instance(1));
  EXPECT_EQ(database_.rows[0].incarnation, 2);
}

TEST_F(MembershipTest, AnOlderEpochIsRaisedNeverFollowed) {
  Node& owner = Add(/*size=*/1);
  Run(5);
  const Database old = database_;
  database_.epoch = 5;
  database_.size = 3;
  ++database_.version;
  Run(5);
  EXPECT_EQ(owner.membership.view().epoch, 5);
  EXPECT_EQ(owner.membership.view().seats.size(), 3u);
  database_ = old;
  Run(70);
  EXPECT_EQ(owner.membership.view().epoch, 5);
  EXPECT_EQ(database_.epoch, 5);
  EXPECT_EQ(database_.size, 3);
}

TEST_F(MembershipTest, WhatAMemberTellsIsMerged) {
  Node& owner = Add(/*size=*/2);
  Run(5);
  owner.membership.Heard({owner.membership.view().epoch, {{0, ""}, {9, "10.0.0.9:7400"}}});
  EXPECT_EQ(owner.membership.view().seats[1].address, "10.0.0.9:7400");
  EXPECT_EQ(owner.membership.view().seats[0].address, owner.address);
  // An older word about a rank changes nothing.
  owner.membership.Heard({owner.membership.view().epoch, {{0, ""}, {8, "10.0.0.8:7400"}}});
  EXPECT_EQ(owner.membership.view().seats[1].incarnation, 9);
  // Who wants that rank takes a number above all that was ever heard of.
  Membership spare(OptionsOf(5), NewSeat(5));
  spare.SetMayClaim(true);
  spare.Heard(owner.membership.view());
  (void)spare.Next(now_);
  spare.HasRead(now_, database_.Read());
  const RingStep step = spare.Next(now_);
  ASSERT_TRUE(std::holds_alternative<ring_step::Claim>(step));
  EXPECT_EQ(std::get<ring_step::Claim>(step).incarnation, 10);
}

TEST_F(MembershipTest, AGreaterIncarnationIsWrittenToTheDatabase) {
  Node& owner = Add(/*size=*/1);
  Run(5);
  owner.membership.Became(41);
  Run(5);
  EXPECT_EQ(database_.rows[0].incarnation, 41);
  EXPECT_FALSE(owner.membership.fenced_by().has_value());
}

TEST_F(MembershipTest, ARankThatIsGivenBackIsTakenAtOnce) {
  Node& owner = Add(/*size=*/1);
  Run(5);
  Node& spare = Add();
  owner.membership.Leave();
  Run(5);
  EXPECT_FALSE(owner.membership.ranked());
  EXPECT_TRUE(owner.membership.seat().drained);
  EXPECT_EQ(spare.membership.seat().rank, 0);
  EXPECT_EQ(spare.membership.seat().incarnation, 3);
  // It wants none until it is told to.
  database_.size = 2, ++database_.version;
  Run(10);
  EXPECT_FALSE(owner.membership.ranked());
  owner.membership.ComeBack(Instance(77));
  Run(10);
  EXPECT_EQ(owner.membership.seat().rank, 1);
}

TEST_F(MembershipTest, WhoWantsOneRankTakesNoOther) {
  Add(/*size=*/3);
  Run(5);
  Node& wants = Add(0, /*wanted=*/2);
  Run(5);
  EXPECT_EQ(wants.membership.seat().rank, 2);
  Node& beyond = Add(0, /*wanted=*/3);
  Run(10);
  EXPECT_FALSE(beyond.membership.ranked());
  EXPECT_NE(beyond.membership.Problem().find("ring.rank: 3"), std::string::npos);
}

// A daemon in safe mode that only reads its journal would forget what it has got.
TEST_F(MembershipTest, WhoCannotJournalItWantsNoRank) {
  Node& node = Add(/*size=*/1);
  node.membership.SetMayClaim(false);
  Run(10);
  EXPECT_FALSE(node.membership.ranked());
  EXPECT_NE(node.membership.Problem().find("journal"), std::string::npos);
  node.membership.SetMayClaim(true);
  Run(5);
  EXPECT_TRUE(node.membership.ranked());
}

TEST_F(MembershipTest, ASeatOutlivesTheDaemonWithoutTheDatabase) {
  Node& owner = Add(/*size=*/2);
  Node& other = Add();
  Run(10);
  Membership next(OptionsOf(0), owner.membership.seat());
  EXPECT_EQ(next.seat().rank, owner.membership.seat().rank);
  EXPECT_EQ(next.view(), owner.membership.view());
  EXPECT_EQ(next.view().seats[1].address, other.address);
}

// --- many nodes

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
  // rank none has the other's number. A database that was restored from an older copy may give a number twice: the
  // members, who have met it, tell that (Became).
  void Check(Node& node) {
    const Membership& membership = *node.membership;
    if (membership.fenced_by().has_value()) {
      EXPECT_TRUE(node.was_paused || restored_)
          << "node " << node.number << " was fenced while it lived";
      // As a daemon does, once nothing is only there.
      node.membership->StartAnew(Instance(1000 + next_number_++));
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
