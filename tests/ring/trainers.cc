#include "tests/ring/trainers.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/ring/world.h"

namespace cairn::engine::ringsim {
namespace {

constexpr int kUnmapRounds = 8;
constexpr int kLatestTries = 60;

bool DaemonDied(const Status& status) {
  return absl::IsUnavailable(status) && status.message() == "the daemon died";
}

}  // namespace

Job::Job(World* world, JobShape shape) : world_(*world), shape_(std::move(shape)) {}

Answer Job::InThisLife(std::function<void(const StatusOr<reply::Body>&)> then) {
  return [this, life = life_, then = std::move(then)](const StatusOr<reply::Body>& body) {
    if (life == life_) then(body);
  };
}

void Job::In(MonotonicNanos delay, std::function<void()> what) {
  world_.In(delay, [this, life = life_, what = std::move(what)] {
    if (life == life_) what();
  });
}

// --- lives

void Job::BeginSoon(MonotonicNanos delay) {
  ++life_;
  In(delay, [this] { Begin(); });
}

void Job::Begin() {
  std::vector<SimNode*> there;
  for (SimNode* node : world_.Members()) {
    if (node->daemon_up() && !node->leaves() && !node->superseded()) there.push_back(node);
  }
  if (there.empty()) return BeginSoon(2 * kSecond);
  const size_t hosts = std::min<size_t>(shape_.hosts, there.size());
  const size_t first = world_.rng.Permille(700) ? 0 : world_.rng.Below(there.size());
  ranks_.assign(shape_.writers, {});
  ranks_busy_ = shape_.writers;
  training_ = superseded_ = false;
  attempt_ = 0;
  refused_ = 0;
  revision_ = 0;
  world_.report.Count("lives");
  for (Writer writer = 0; writer < shape_.writers; ++writer) {
    RankState& rank = ranks_[writer];
    rank.node = there[(first + writer % hosts) % there.size()];
    event::Hello hello;
    hello.job = shape_.name;
    hello.writer = writer;
    hello.world_size = shape_.writers;
    hello.local_writers = static_cast<int>((shape_.writers - writer % hosts + hosts - 1) / hosts);
    hello.policy = shape_.policy;
    rank.node->Hello(std::move(hello), InThisLife([this, writer](const auto& body) {
                       if (!body.ok()) return LifeFailed(body.status().ToString());
                       ranks_[writer].session = std::get<reply::Hello>(*body).session;
                       if (--ranks_busy_ == 0) Choose();
                     }));
  }
  In(40 * kSecond, [this] {
    if (!training_) LifeFailed("it took too long to begin");
  });
}

void Job::LifeFailed(const std::string& why) {
  world_.report.Note([&] { return absl::StrCat(shape_.name, ": the life fails: ", why); });
  world_.report.Count("life failed");
  EndLife(/*goodbye=*/true);
  BeginSoon(world_.Millis(500, 3000));
}

void Job::Leave() {
  if (left_ || !finished()) return;
  world_.report.Count("left while another waited for memory");
  EndLife(/*goodbye=*/true);
  left_ = true;
}

void Job::EndLife(bool goodbye) {
  ++life_;
  training_ = false;
  for (RankState& rank : std::exchange(ranks_, {})) {
    if (rank.node == nullptr || rank.session == 0) continue;
    const MonotonicNanos delay = goodbye ? 0 : world_.Millis(0, 300);
    world_.In(delay, [node = rank.node, session = rank.session] { node->EndProcess(session); });
  }
}

void Job::NodeDied(const SimNode* node) {
  const bool had = std::any_of(ranks_.begin(), ranks_.end(),
                               [&](const RankState& rank) { return rank.node == node; });
  if (!had || shape_.steady) return;
  In(world_.Millis(200, 3000), [this] {
    // Nobody may ever hear of what it has saved last.
    if (steps_left_ >= 0) steps_left_ = std::max(steps_left_, 1);
    EndLife(/*goodbye=*/false);
    BeginSoon(world_.Millis(500, 4000));
  });
}

// All of its nodes are asked, as connect gathers it.
void Job::Choose() {
  ranks_busy_ = shape_.writers;
  for (const RankState& rank : ranks_) {
    event::ChooseAttempt choose{{}, shape_.name, 0, rank.node->unix_ms()};
    rank.node->Call(
        rank.session, std::move(choose), InThisLife([this](const auto& body) {
          if (!body.ok()) return LifeFailed(body.status().ToString());
          const Attempt chosen = std::get<reply::Attempt>(*body).attempt;
          world_.report.Note([&] { return absl::StrCat(shape_.name, " may be attempt ", chosen); });
          attempt_ = std::max(attempt_, chosen);
          if (--ranks_busy_ == 0) FindLatest(kLatestTries);
        }));
  }
}

void Job::FindLatest(int tries) {
  const RankState& rank = ranks_.front();
  rank.node->Call(rank.session, event::Latest{{}, shape_.name},
                  InThisLife([this, tries](const auto& body) {
                    if (body.ok()) return TakeLatest(std::get<reply::Latest>(*body));
                    // Nothing of it is left, which a person decides about: to begin anew.
                    const bool lost = absl::IsDataLoss(body.status());
                    if (lost || absl::IsNotFound(body.status())) {
                      if (!lost) world_.truth.ToldNothing(*ranks_.front().node, shape_.name);
                      step_ = 0;
                      training_ = true;
                      return NextStep();
                    }
                    world_.report.Count("latest unavailable");
                    if (tries == 0) return LifeFailed(body.status().ToString());
                    In(kSecond / 2, [this, tries] { FindLatest(tries - 1); });
                  }));
}

void Job::TakeLatest(const reply::Latest& latest) {
  world_.report.Count("latest");
  world_.truth.ToldLatest(*ranks_.front().node, latest);
  Load(latest);
  step_ = latest.key.step + 1;
  // Sometimes it says in words where it goes on from, and sometimes that is further back.
  const uint64_t way = world_.rng.Below(10);
  if (way == 0) return Resume(latest.key.step);
  if (way == 1 && latest.key.step > 2) return Resume(latest.key.step - 2);
  training_ = true;
  NextStep();
}

void Job::Resume(Step from) {
  const RankState& rank = ranks_.front();
  rank.node->Call(rank.session, event::ResumeFrom{{}, shape_.name, attempt_, from},
                  InThisLife([this, from](const auto& body) {
                    if (body.ok()) {
                      step_ = from + 1;
                      world_.report.Count("resumed in words");
                    }
                    training_ = true;
                    NextStep();
                  }));
}

// Each rank opens what it saved there; the answer is compared with what it saved.
void Job::Load(const reply::Latest& latest) {
  const Writer writers = std::min<Writer>(shape_.writers, latest.world_size);
  for (Writer writer = 0; writer < writers; ++writer) {
    const RankState& rank = ranks_[writer];
    event::Open open;
    open.ref = {shape_.name, latest.key.step, latest.key.attempt, latest.key.revision};
    open.name = Name(writer, 0);
    const PartKey part{latest.key, writer};
    rank.node->Call(
        rank.session, std::move(open),
        InThisLife([this, part, node = rank.node, session = rank.session](const auto& body) {
          world_.truth.Loaded(*node, part, Name(part.writer, 0), body);
          if (!body.ok()) return;
          const auto* mapped = std::get_if<reply::Open>(&*body);
          if (mapped == nullptr) return;
          node->Call(session, event::Release{{}, {mapped->lend.lease}}, [](const auto&) {});
        }));
  }
}

// --- steps

void Job::NextStep() {
  if (steps_left_ == 0) return;
  if (steps_left_ > 0) --steps_left_;
  ranks_busy_ = shape_.writers;
  committed_ = 0;
  for (Writer writer = 0; writer < shape_.writers; ++writer) {
    In(world_.Millis(0, 40), [this, writer] { Create(writer, ++last_call_, 0); });
  }
}

std::string Job::Name(Writer writer, size_t object) const {
  return absl::StrCat("rank", writer, "/object.", object);
}

void Job::Create(Writer writer, int64_t call, int rounds) {
  RankState& rank = ranks_[writer];
  event::Create create;
  create.call = call;
  create.part = Part(writer);
  create.world_size = shape_.writers;
  for (size_t i = 0; i < shape_.objects.size(); ++i) {
    create.objects.push_back({Name(writer, i), shape_.objects[i]});
  }
  create.unmapped = rank.unmapped;
  rank.node->Call(rank.session, std::move(create),
                  InThisLife([this, writer, call, rounds](const auto& body) {
                    RankState& asked = ranks_[writer];
                    if (!body.ok()) {
                      if (DaemonDied(body.status()) && ++asked.retries == 1) {
                        return Create(writer, call, rounds);
                      }
                      return RankDone(writer, body.status());
                    }
                    asked.retries = 0;
                    asked.unmapped.clear();
                    const auto& granted = std::get<reply::Create>(*body);
                    testing::SlabUsers& users = asked.node->users();
                    for (const Lend& lend : granted.lend) users.Map(lend.slab, asked.session);
                    for (SlabId slab : granted.retire) {
                      users.Unmap(slab, asked.session);
                      asked.unmapped.push_back(slab);
                    }
                    if (!granted.extents.empty()) return Write(writer, granted);
                    if (rounds == kUnmapRounds) {
                      return world_.Fail("a writer is told to unmap again and again");
                    }
                    Create(writer, ++last_call_, rounds + 1);
                  }));
}

// The bytes take their time, and one rank in some steps has a mishap.
void Job::Write(Writer writer, const reply::Create& granted) {
  In(world_.Millis(1, 30), [this, writer, extents = granted.extents] {
    RankState& rank = ranks_[writer];
    if (rank.node->dead()) return;
    std::vector<event::Seal> seals;
    for (size_t i = 0; i < extents.size(); ++i) {
      const Content content{world_.last_content += 1 << 12, shape_.objects[i]};
      if (!rank.node->memory().Write(extents[i].slab, extents[i].offset, content)) {
        return world_.Fail(absl::StrCat("a writer of ", Part(writer).DebugString(),
                                        " was granted what is not there"));
      }
      event::Seal seal{Name(writer, i), content.length, Checksums(content), {}};
      if (content.length > 0) seal.covered = {{0, content.length}};
      seals.push_back(std::move(seal));
    }
    if (!world_.ending && world_.rng.Permille(10)) {
      world_.report.Count("aborted");
      rank.node->Call(rank.session, event::Abort{{}, Part(writer)}, [](const auto&) {});
      return RankDone(writer, absl::AbortedError("withdrawn"));
    }
    Commit(writer, ++last_call_, seals);
  });
}

void Job::Commit(Writer writer, int64_t call, const std::vector<event::Seal>& seals) {
  RankState& rank = ranks_[writer];
  event::Commit commit;
  commit.call = call;
  commit.part = Part(writer);
  commit.world_size = shape_.writers;
  commit.seals = seals;
  commit.unmapped = rank.unmapped;
  commit.unix_ms = rank.node->unix_ms();
  rank.node->Call(rank.session, std::move(commit),
                  InThisLife([this, writer, call, seals](const auto& body) {
                    RankState& asked = ranks_[writer];
                    if (DaemonDied(body.status()) && ++asked.retries == 1) {
                      return Commit(writer, call, seals);
                    }
                    asked.retries = 0;
                    if (body.ok()) {
                      asked.unmapped.clear();
                      ++committed_;
                    }
                    RankDone(writer, body.status());
                  }));
}

void Job::RankDone(Writer writer, const Status& status) {
  if (!status.ok()) {
    world_.report.Note([&] {
      return absl::StrCat(Part(writer).DebugString(), " is not saved: ", status.ToString());
    });
    world_.report.Count(absl::IsResourceExhausted(status) ? "save refused" : "save failed");
    superseded_ |= absl::IsFailedPrecondition(status);
    // A node whose clock is far behind takes part once it has heard of the attempt. But if the clock stepped back, and
    // the daemon died, after the attempt was chosen (docs/bugs.md), whoever runs the job has to begin it anew.
    if (absl::IsInvalidArgument(status) && ++refused_ == 4) superseded_ = true;
  }
  if (--ranks_busy_ > 0) return;
  if (superseded_) return LifeFailed("superseded");
  if (committed_ == shape_.writers) {
    world_.report.Count("saved by all");
    if (!shape_.steady) AskProtected();
  }
  const bool again = !shape_.steady && committed_ == shape_.writers && world_.rng.Permille(30);
  revision_ = again ? revision_ + 1 : 0;
  step_ += again ? 0 : 1;
  if (!world_.ending && world_.rng.Permille(25)) {
    world_.report.Count("job dies");
    EndLife(world_.rng.Permille(300));
    return BeginSoon(world_.Millis(300, 4000));
  }
  In(shape_.step_time * static_cast<MonotonicNanos>(world_.rng.Between(500, 1500)) / 1000,
     [this] { NextStep(); });
}

// Somebody wants to know when it is safe.
void Job::AskProtected() {
  if (!world_.rng.Permille(400)) return;
  const RankState& rank = world_.rng.Pick(ranks_);
  const Level level = world_.rng.Permille(750) ? Level::kReplicated : Level::kPersisted;
  const CheckpointKey key = Part(0).checkpoint;
  event::Wait wait{{}, {key.job, key.step, key.attempt, key.revision}, level};
  wait.deadline = rank.node->now() + world_.Millis(1000, 20000);
  rank.node->Call(rank.session, std::move(wait),
                  InThisLife([this, key, level, node = rank.node](const auto& body) {
                    if (!body.ok()) return world_.report.Count("wait in vain");
                    world_.truth.ToldSafe(*node, key, level);
                  }));
}

}  // namespace cairn::engine::ringsim
