#include "tests/ring/world.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/ring/converge.h"

namespace cairn::engine::ringsim {
namespace {

constexpr MonotonicNanos kCheckEvery = kSecond / 2;
constexpr MonotonicNanos kToConverge = 60 * kSecond;  // and the time that the bytes take

uint64_t RoundUp(uint64_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

Shape DrawShape(sim::Rng* rng) {
  Shape shape;
  shape.nodes = static_cast<int>(rng->Between(3, 9));
  shape.replicas = rng->Permille(750) ? 1 : static_cast<int>(rng->Between(0, 2));
  shape.lost_after_seconds = rng->Permille(800) ? 10 : 30;
  shape.storage = rng->Permille(600);
  shape.rate = rng->Pick<uint64_t>({20 << 20, 200 << 20, 1000 << 20});
  shape.active = static_cast<MonotonicNanos>(rng->Between(10, 60)) * kSecond;
  shape.clocks_apart = rng->Permille(100);
  shape.roomy = rng->Permille(800);
  return shape;
}

JobShape DrawJob(sim::Rng* rng, const Shape& ring, int number) {
  JobShape job;
  job.name = absl::StrCat("job", number);
  job.hosts = static_cast<int>(rng->Between(1, std::min(ring.nodes, 4)));
  job.writers = static_cast<int>(rng->Between(job.hosts, job.hosts * 2));
  for (uint64_t i = rng->Between(1, 3); i > 0; --i) {
    job.objects.push_back(rng->Permille(300) ? rng->Between(1, 100'000)
                                             : rng->Between(1, 16) << 20);
  }
  job.policy.mode = rng->Pick<PersistMode>(
      {PersistMode::kNewest, PersistMode::kNewest, PersistMode::kEvery, PersistMode::kOnDemand});
  job.policy.every = static_cast<int64_t>(rng->Between(1, 3));
  job.step_time = static_cast<MonotonicNanos>(rng->Between(300, 4000)) * kMilli;
  return job;
}

uint64_t BytesOf(const JobShape& job) {
  uint64_t bytes = 0;
  for (uint64_t length : job.objects) bytes += RoundUp(length) + (2 << 20);
  return bytes + (1 << 20);
}

}  // namespace

World::World(const RingSimOptions& its_options, const Given* given)
    : options(its_options),
      rng(sim::Mix(options.seed, 7)),
      report(options.trace, clock),
      shape(given == nullptr ? DrawShape(&rng) : given->shape),
      net(this),
      truth(this),
      faults(this) {
  std::vector<JobShape> shapes;
  if (given != nullptr) {
    shapes = given->jobs;
  } else {
    if (options.catalog.value_or(sim::Mix(options.seed, 11) % 3 == 0)) DrawCatalog();
    for (int i = 0, jobs_here = rng.Permille(250) ? 2 : 1; i < jobs_here; ++i) {
      shapes.push_back(DrawJob(&rng, shape, i));
    }
  }
  for (JobShape& job : shapes) {
    // All writers may once stand on one node, but for a job that has one on each.
    const int writers = job.steady ? 1 + shape.replicas : job.writers;
    most_bytes_ += BytesOf(job) * static_cast<uint64_t>(writers);
    jobs.push_back(std::make_unique<Job>(this, std::move(job)));
  }
  storage.forgets = options.lie == Lie::kStorageForgets;
  if (shape.catalog) {
    catalog = std::make_unique<Catalog>(this);
  } else {
    MakeMembers();
  }
}

void World::DrawCatalog() {
  shape.catalog = true;
  shape.spares = static_cast<int>(rng.Between(1, 2));
  shape.takeover_after = static_cast<MonotonicNanos>(rng.Pick<int>({5, 5, 10, 15})) * kSecond;
  shape.active += shape.takeover_after;
}

Options World::OptionsOfMachine() {
  Options o;
  // Two steps and one that is written, and two of each predecessor's, with what slabs waste.
  o.budget_bytes = RoundUp(most_bytes_ * (shape.roomy ? 10 : rng.Between(3, 6)) + (16 << 20));
  o.storage = shape.storage;
  o.own_uid = kUid;
  o.ring.cluster = "ring";
  o.ring.replicas = shape.replicas;
  o.ring.lost_after_seconds = shape.lost_after_seconds;
  return o;
}

void World::MakeMembers() {
  std::map<Rank, std::string> members;
  at_.resize(static_cast<size_t>(shape.nodes));
  for (Rank rank = 0; rank < shape.nodes; ++rank) {
    members[rank] = absl::StrCat("10.0.", rank / 250, ".", rank % 250 + 1, ":7000");
  }
  for (Rank rank = 0; rank < shape.nodes; ++rank) {
    Options& o = node_options_[rank] = OptionsOfMachine();
    o.ring.members = members;
    // A list has kMaxMembers at most: a larger ring runs as one of the catalog's.
    o.ring.from_catalog = shape.nodes > static_cast<int>(kMaxMembers);
    o.ring.rank = rank;
    if (!shape.roomy && rng.Permille(500)) {
      o.ring.replica_bytes = RoundUp(most_bytes_ * rng.Between(1, 2));
    }
    const Status valid = o.Validate();
    if (!valid.ok()) Fail(valid.ToString());
    AddNode(rank);
  }
}

void World::Fail(const std::string& what) {
  if (ok()) report.Fail(absl::StrCat("seed ", options.seed, ": ", what));
}

// --- members

SimNode* World::AddNode(Rank rank) {
  // More than any member has seen; how a newcomer learns that is the wire's.
  int64_t incarnation = clock.UnixMs();
  for (const auto& node : nodes) {
    if (node->rank() == rank) incarnation = std::max(incarnation, node->member().incarnation + 1);
  }
  nodes.push_back(std::make_unique<SimNode>(this, static_cast<int>(nodes.size()),
                                            node_options_[rank], incarnation));
  at_[static_cast<size_t>(rank)] = nodes.back().get();
  return nodes.back().get();
}

SimNode* World::At(Rank rank) const {
  if (catalog != nullptr) return catalog->At(rank);
  const auto at = static_cast<size_t>(rank);
  return rank >= 0 && at < at_.size() ? at_[at] : nullptr;
}

SimNode* World::Dial(const SimNode& node, Rank rank) const {
  return catalog != nullptr ? catalog->Dial(node, rank) : At(rank);
}

const std::vector<SimNode*>& World::Serving() const {
  return catalog != nullptr ? catalog->serving() : at_;
}

SimNode* World::Replace(Rank rank) {
  SimNode* node = AddNode(rank);
  report.Note([&] { return absl::StrCat("node ", node->id(), " begins at rank ", rank); });
  node->StartDaemon();
  return node;
}

SimNode* World::AddClaimant(Rank rank) {
  SimNode* stays = At(rank);
  SimNode* claimant = AddNode(rank);
  at_[static_cast<size_t>(rank)] = stays;
  claimant->StartDaemon();
  return claimant;
}

std::vector<SimNode*> World::Members() const {
  std::vector<SimNode*> members;
  for (SimNode* node : catalog != nullptr ? catalog->members() : at_) {
    if (node != nullptr && !node->dead()) members.push_back(node);
  }
  return members;
}

std::vector<SimNode*> World::Living() const {
  if (catalog == nullptr) return Members();
  std::vector<SimNode*> living;
  for (const auto& node : nodes) {
    if (!node->dead()) living.push_back(node.get());
  }
  return living;
}

// --- time

// What goes over a link follows what was to go there before. Pieces are short (fetching.cc), so that transfers
// share a link, and the switch between two links holds what waits for the second.
MonotonicNanos World::ReadTime(uint64_t bytes, SimNode* from, SimNode* to) {
  const MonotonicNanos takes = TransferTime(bytes);
  if (!shape.links) return takes + kMilli;
  const MonotonicNanos leaves = std::max(clock.now, from->sends_until);
  from->sends_until = leaves + takes;
  to->hears_until = std::max(leaves, to->hears_until) + takes;
  return to->hears_until - clock.now;
}

bool World::AdvanceTo(MonotonicNanos to) {
  while (ok() && schedule.next() <= to) {
    clock.now = std::max(clock.now, schedule.next());
    schedule.Take()();
    if (report.result().events > shape.most_events) Fail("there is no end of events");
  }
  clock.now = std::max(clock.now, to);
  return ok();
}

void World::Converge() {
  MonotonicNanos transfer = 0;
  for (const auto& job : jobs) {
    transfer += 4 *
                TransferTime(BytesOf(job->shape()) * static_cast<uint64_t>(job->shape().writers)) *
                (1 + shape.replicas);
  }
  Convergence convergence(this);
  const MonotonicNanos deadline =
      clock.now + kToConverge + transfer + shape.lost_after_seconds * kSecond +
      (catalog != nullptr ? Catalog::kUncertain + 4 * shape.takeover_after : 0);
  const MonotonicNanos patience = clock.now + (deadline - clock.now) / 2;
  std::string missing = "nothing was asked";
  while (clock.now < deadline && !missing.empty()) {
    if (options.converge) convergence.Ask();
    if (!AdvanceTo(clock.now + kSecond)) return;
    truth.CheckAll();
    if (catalog != nullptr) catalog->BringWhatIsMissing();
    missing = options.converge ? convergence.Missing() : "";
    // A trainer that stays keeps memory mapped that a replica or another job may need.
    if (clock.now > patience && !missing.empty()) {
      for (const auto& job : jobs) job->Leave();
    }
  }
  if (!missing.empty()) return Fail(absl::StrCat("no agreement: ", missing));
  report.Count("converged");
}

SimulatorResult World::Run() {
  for (const auto& node : nodes) {
    In(Millis(0, 3000), [node = node.get()] { node->StartDaemon(); });
  }
  for (const auto& job : jobs) job->BeginSoon(Millis(3000, 6000));
  faults.Begin(clock.now + shape.active);
  const MonotonicNanos end = clock.now + shape.active;
  while (clock.now < end && AdvanceTo(clock.now + kCheckEvery)) truth.CheckAll();
  if (ok()) {
    report.Note([] { return "--- nothing strikes any more"; });
    faults.EndAll();
    for (const auto& job : jobs) job->Finish(3);
    Converge();
  }
  for (const auto& node : nodes) {
    if (!ok() || !node->daemon_up()) continue;
    const std::string wrong = node->engine().CheckInvariants();
    if (!wrong.empty()) Fail(absl::StrCat("node ", node->id(), ": invariant: ", wrong));
  }
  return std::move(report.result());
}

SimulatorResult Simulate(const RingSimOptions& options) {
  World world(options);
  return world.ok() ? world.Run() : std::move(world.report.result());
}

}  // namespace cairn::engine::ringsim
