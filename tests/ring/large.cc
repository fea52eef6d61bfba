#include "tests/ring/large.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace cairn::engine::ringsim {
namespace {

constexpr MonotonicNanos kLookEvery = kSecond / 10;
constexpr MonotonicNanos kToStart = 3 * kSecond;
// Of a frame of 1,514 bytes so many are a stream's.
constexpr double kPayload = 1448.0 / 1514.0;

Given GivenBy(const LargeRing& ring) {
  Given given;
  Shape& shape = given.shape;
  shape.nodes = ring.nodes;
  shape.replicas = ring.replicas;
  shape.lost_after_seconds = ring.lost_after_seconds;
  shape.storage = false;
  shape.rate = static_cast<uint64_t>(ring.mbit * 1e6 / 8 * kPayload);
  shape.links = true;
  shape.checked = false;
  shape.most_events = std::numeric_limits<int64_t>::max();  // deadlines end it
  JobShape job;
  job.name = "job";
  job.writers = job.hosts = ring.nodes;
  job.objects = {ring.part_bytes};
  job.policy.mode = PersistMode::kOnDemand;
  job.step_time = kSecond;
  job.steady = true;
  given.jobs.push_back(std::move(job));
  return given;
}

RingSimOptions OptionsOf(const LargeRing& ring) {
  RingSimOptions options;
  options.seed = ring.seed;
  return options;
}

MonotonicNanos Nanos(double seconds) { return static_cast<MonotonicNanos>(seconds * 1e9); }

}  // namespace

LargeLife::LargeLife(const LargeRing& ring)
    : ring_(ring), given_(GivenBy(ring)), world_(OptionsOf(ring), &given_) {
  world_.ending = true;  // nothing strikes
}

CheckpointKey LargeLife::Last() const {
  const Job& job = *world_.jobs.front();
  return {job.name(), ring_.steps - 1, job.attempt(), 0};
}

bool LargeLife::Protected() const { return world_.truth.Copies(Last()) > ring_.replicas; }

void LargeLife::Begin() {
  for (const auto& node : world_.nodes) {
    world_.In(world_.Millis(0, kToStart / kMilli), [node = node.get()] { node->StartDaemon(); });
  }
  world_.jobs.front()->Finish(ring_.steps);
  world_.jobs.front()->BeginSoon(kToStart + 2 * kSecond);
  AwaitSaved();
  if (world_.ok()) AwaitSaid(world_.At(0));
}

void LargeLife::AwaitSaved() {
  const MonotonicNanos deadline = world_.clock.now + Nanos(ring_.deadline_s);
  while (!world_.jobs.front()->finished() && Advance(kLookEvery)) {
    if (world_.clock.now > deadline) return world_.Fail("the steps were not saved in time");
  }
}

void LargeLife::AwaitSaid(SimNode* node) {
  const CheckpointKey key = Last();
  const MonotonicNanos deadline = world_.clock.now + Nanos(ring_.deadline_s);
  // It outlives this call, for answers may come later.
  struct Said {
    SessionId session = 0;
    int replicas = 0;
  };
  const auto said = std::make_shared<Said>();
  event::Hello hello;
  hello.job = key.job;
  node->Hello(std::move(hello), [said](const StatusOr<reply::Body>& body) {
    if (body.ok()) said->session = std::get<reply::Hello>(*body).session;
  });
  while (Advance(kLookEvery)) {
    if (said->replicas >= ring_.replicas && Protected()) return;
    if (world_.clock.now > deadline) {
      return world_.Fail(absl::StrCat("not protected in time: ", key.DebugString(), " has ",
                                      world_.truth.Copies(key), " copies, and node ", node->id(),
                                      " knows of ", said->replicas, " replicas"));
    }
    if (said->session == 0) continue;
    node->Call(said->session,
               event::StatCheckpoint{{}, {key.job, key.step, key.attempt, key.revision}},
               [said](const StatusOr<reply::Body>& stat) {
                 if (stat.ok()) said->replicas = std::get<CheckpointInfo>(*stat).facts.replicas;
               });
  }
}

double LargeLife::Replace(Rank rank) {
  Lose({rank}, ring_.gone_s);
  SimNode* node = world_.Replace(rank);
  const MonotonicNanos began = world_.clock.now;
  AwaitSaid(node);
  return static_cast<double>(world_.clock.now - began) / 1e9;
}

void LargeLife::Lose(const std::set<Rank>& ranks, double seconds) {
  for (const Rank rank : ranks) {
    SimNode* node = world_.At(rank);
    world_.truth.NodeDied(*node);
    node->Die();
  }
  Advance(Nanos(seconds));
}

Step LargeLife::Latest(Rank rank) {
  const auto step = std::make_shared<Step>(kNoStep);
  SimNode* node = world_.At(rank);
  event::Hello hello;
  hello.job = Last().job;
  node->Hello(std::move(hello), [node, step](const StatusOr<reply::Body>& body) {
    if (!body.ok()) return;
    const SessionId session = std::get<reply::Hello>(*body).session;
    node->Call(session, event::Latest{{}, "job"}, [step](const StatusOr<reply::Body>& latest) {
      if (latest.ok()) *step = std::get<reply::Latest>(*latest).key.step;
    });
  });
  Advance(kSecond);
  return *step;
}

Holders LargeLife::HoldersNow() const {
  Holders holders(static_cast<size_t>(ring_.nodes));
  const CheckpointKey last = Last();
  for (const SimNode* node : world_.Members()) {
    for (const auto& [part, held] : node->held()) {
      if (part.checkpoint != last || !node->Whole(part, held.digest)) continue;
      holders[static_cast<size_t>(part.writer)].insert(node->rank());
    }
  }
  return holders;
}

}  // namespace cairn::engine::ringsim
