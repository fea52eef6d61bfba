#include "tests/bench/apply_loads.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/engine/ledger.h"

namespace cairn::bench {
namespace {

const size_t kEnough = Sized(30, 1);  // events of a kind whose p50 says something
constexpr size_t kBatch = 1000;       // objects that one create, seal or commit names at most

// What a node is, in turns: jobs with steps of many objects, of several ranks, of few, of one. A
// round is one turn of all of them.
struct Shape {
  const char* job;
  size_t objects;  // of a part
  int32_t world_size;
  int steps;  // of a round
};
constexpr Shape kShapes[] = {
    {"wide", 1000, 1, 1}, {"ranks", 50, 8, 1}, {"small", 10, 1, 4}, {"single", 1, 1, 8}};

constexpr size_t ObjectsOfRound() {
  size_t objects = 0;
  for (const Shape& shape : kShapes) objects += shape.objects * shape.world_size * shape.steps;
  return objects;
}

uint64_t Slab(size_t objects) { return engine::SlabBytesFor(objects * kPageBytes); }
uint64_t ManifestBytes(size_t objects) {
  return (200 + 80 * objects + kPageBytes - 1) / kPageBytes * kPageBytes;
}

std::vector<std::string> Names(Writer writer, size_t objects) {
  std::vector<std::string> names;
  for (size_t i = 0; i < objects; ++i) {
    names.push_back(absl::StrCat("rank", writer, "/layers.", i / 12, ".weight", i % 12));
  }
  return names;
}

class Job {
 public:
  Job(ApplyNode* node, const Shape& shape, size_t rounds) : node_(node), shape_(shape) {
    JobPolicy policy;
    policy.mode = PersistMode::kEvery;
    // Files of as many steps as memory holds.
    policy.keep_last = static_cast<int64_t>(std::max<size_t>(2, rounds * shape.steps));
    for (Writer writer = 0; writer < shape.world_size; ++writer) {
      clients_.push_back({shape.job, 1, writer, shape.world_size, policy});
      node_->Hello(&clients_.back());
      names_.push_back(Names(writer, shape.objects));
    }
  }

  void Save() {
    ++step_;
    for (Writer writer = 0; writer < shape_.world_size; ++writer) {
      const std::vector<std::string>& names = names_[writer];
      const size_t sealed = step_ % 2 == 0 ? names.size() / 2 : 0;  // every other step in halves
      node_->Save(&clients_[writer], step_, names, kBatch, sealed);
    }
  }
  // All its writers die, and the next life goes on from the newest step.
  void LiveAgain() {
    for (const Client& client : clients_) node_->End(client);
    for (Client& client : clients_) {
      ++client.attempt;
      node_->Hello(&client);
    }
  }
  // One of the newest half of those it holds.
  CheckpointRef Recent(uint64_t turn, size_t rounds) const {
    const Step window = static_cast<Step>(std::max<size_t>(1, rounds * shape_.steps / 2));
    const Step back = static_cast<Step>(turn * 2'654'435'761u % static_cast<uint64_t>(window));
    return {shape_.job, std::max<Step>(1, step_ - back)};
  }
  const std::string& Name(uint64_t turn) const {
    const std::vector<std::string>& names = names_[turn % names_.size()];
    return names[turn * 7919 % names.size()];
  }
  const Client& client() const { return clients_.front(); }
  Step step() const { return step_; }
  const Shape& shape() const { return shape_; }

 private:
  ApplyNode* const node_;
  const Shape shape_;
  std::vector<Client> clients_;
  std::vector<std::vector<std::string>> names_;
  Step step_ = 0;
};

uint64_t ResidentBytes(const reply::Status& status) {
  uint64_t bytes = 0;
  for (const reply::JobStatus& job : status.jobs) bytes += job.resident_bytes;
  return bytes;
}

double ResidentMemoryMiB() {
  std::ifstream file("/proc/self/statm");
  double size = 0, resident = 0;
  file >> size >> resident;
  return resident * static_cast<double>(sysconf(_SC_PAGESIZE)) / (1 << 20);
}

void Finish(const ApplySettings& settings, const Meter& meter, ApplyResult* result) {
  result->spin_p50 = meter.Median("(a loop)");
  result->spin_worst = meter.Worst("(a loop)");
  result->snapshot = meter.Worst("(Snapshot piece)");
  result->describe = meter.Worst("(Describe)");
  for (const auto& [name, kind] : meter.kinds()) {
    if (kind.us.size() >= kEnough) result->p50_of_kind[name] = meter.Median(name);
  }
  if (!settings.table) return;
  std::printf("%s: %s\n%s", result->name.c_str(), result->held.c_str(), meter.Table().c_str());
  std::fflush(stdout);
}

// --- a node of many steps

class Node {
 public:
  Node(size_t objects, Meter* meter)
      : rounds_((objects + ObjectsOfRound() - 1) / ObjectsOfRound()),
        node_(OptionsFor(rounds_), meter) {
    for (const Shape& shape : kShapes) jobs_.emplace_back(&node_, shape, rounds_);
    reader_ = {kShapes[0].job};
    node_.Hello(&reader_);
    for (size_t i = 0; i < rounds_ + 2; ++i) SaveRound();
  }

  void SaveRound() {
    for (Job& job : jobs_) {
      for (int i = 0; i < job.shape().steps; ++i) job.Save();
    }
  }

  void Round(bool new_life) {
    ++round_;
    if (new_life) jobs_[2].LiveAgain();
    WaitForNext();
    SaveRound();
    Read();
    Manage();
    Visit();
    node_.Snapshot();
  }

  ApplyNode& node() { return node_; }
  std::string Held() {
    const reply::Status status = node_.Status();
    return absl::StrFormat("%d objects in memory, %.0f MiB of this process, %d calls refused%s",
                           HeldObjects(), ResidentMemoryMiB(), node_.refused(),
                           node_.refused() > 0 ? " (" + node_.last_refusal() + ")" : "");
  }

 private:
  static engine::Options OptionsFor(size_t rounds) {
    engine::Options options;
    options.storage = true;
    uint64_t round = 0;
    for (const Shape& shape : kShapes) {
      round += (Slab(shape.objects) + ManifestBytes(shape.objects)) * shape.world_size *
               static_cast<uint64_t>(shape.steps);
    }
    options.budget_bytes = round * (rounds + rounds / 15 + 1) + (4 << 20);
    return options;
  }
  // As the parts that stand in memory say.
  uint64_t HeldObjects() const {
    uint64_t objects = 0;
    for (const Fact& any : node_.engine().Snapshot()) {
      const auto* committed = std::get_if<fact::PartCommitted>(&any);
      if (committed == nullptr) continue;
      for (const Shape& shape : kShapes) {
        if (committed->part.checkpoint.job == shape.job) objects += shape.objects;
      }
    }
    return objects;
  }

  void WaitForNext() {
    for (const Job& job : jobs_) {
      const CheckpointRef next = {job.shape().job, job.step() + 1};
      node_.Apply(event::Wait{node_.From(job.client()), next, Level::kPersisted, -1, node_.Soon()});
    }
  }
  void Read() {
    for (uint64_t i = 0; i < 40; ++i) {
      const Job& job = jobs_[i % jobs_.size()];
      const Client& client = i % 8 == 0 ? reader_ : job.client();
      const CheckpointRef ref = job.Recent(round_ * 100 + i, rounds_);
      const std::string& name = job.Name(0);
      node_.Apply(event::StatObject{node_.From(client), ref, name, node_.Soon()});
      node_.Apply(event::Latest{node_.From(client), ref.job, node_.Soon()});
      if (i % 2 == 0) {
        node_.Apply(event::StatCheckpoint{node_.From(client), ref, node_.Soon()});
        const Client& opener = job.client();
        if (const LeaseId lease = node_.Open(opener, ref.step, name)) node_.Release(opener, lease);
      }
    }
    for (const Job& job : jobs_) {
      const engine::Caller caller = node_.From(job.client());
      node_.Apply(event::List{caller, job.shape().job, "", 1000, node_.Soon()});
      node_.Apply(event::List{node_.From(job.client()), job.shape().job, "", 2, node_.Soon()});
      const std::string step = absl::StrCat(job.shape().job, "/", job.step());
      node_.Apply(event::List{node_.From(job.client()), step, "", 1000, node_.Soon()});
      const CheckpointRef newest = {job.shape().job, job.step()};
      node_.Apply(
          event::Wait{node_.From(job.client()), newest, Level::kPersisted, -1, node_.Soon()});
    }
  }
  void Manage() {
    for (const Job& job : jobs_) {
      const CheckpointRef ref = {job.shape().job, std::max<Step>(1, job.step() - 2)};
      node_.Apply(event::Pin{node_.From(job.client()), ref, true});
      node_.Apply(event::Pin{node_.From(job.client()), ref, false});
      node_.Apply(event::PreviewPolicy{node_.From(job.client()), ref.job, {}, node_.Soon()});
    }
    const Job& single = jobs_[3];
    const CheckpointRef gone = {single.shape().job, std::max<Step>(1, single.step() - 3)};
    node_.Apply(event::Remove{node_.From(single.client()), gone, false, true, node_.Soon()});
    node_.Status();
  }
  // A reader that dies with a lease, and a trainer of its own job that dies before its commit.
  void Visit() {
    Client reader = {kShapes[0].job};
    node_.Hello(&reader);
    node_.Open(reader, jobs_[0].step(), jobs_[0].Name(0));
    node_.End(reader);
    Client trainer = {"visitor", static_cast<Attempt>(round_), 0, 1};
    node_.Hello(&trainer);
    node_.Apply(event::ChooseAttempt{node_.From(trainer), "visitor", node_.Soon(), 0});
    node_.Create(&trainer, 1, Names(0, 10), 0, 10);
    node_.End(trainer);
  }

  const size_t rounds_;
  ApplyNode node_;
  std::vector<Job> jobs_;
  Client reader_;
  uint64_t round_ = 0;
};

}  // namespace

ApplyResult RunObjects(const ApplySettings& settings, size_t objects) {
  ApplyResult result{absl::StrCat("apply/", objects)};
  objects = Sized<size_t>(objects, 1000);
  Meter meter;
  Node node(objects, &meter);
  node.node().set_measuring(true);
  for (int pass = 0; pass < settings.passes; ++pass) {
    for (int i = 0; i < settings.rounds; ++i) node.Round(/*new_life=*/i == 0);
    result.passes.push_back(meter.EndPass());
  }
  node.node().set_measuring(false);
  result.held = node.Held();
  Finish(settings, meter, &result);
  return result;
}

// --- one step of many writers

ApplyResult RunWriters(const ApplySettings& settings, int32_t writers) {
  constexpr size_t kObjects = 20;
  ApplyResult result{absl::StrCat("apply/writers_", writers)};
  writers = Sized(writers, 64);
  engine::Options options;
  options.storage = true;
  options.max_sessions = writers + 1;
  options.user_percent = 100;  // all writers are of one user
  options.budget_bytes =
      5 * static_cast<uint64_t>(writers) * (Slab(kObjects) + ManifestBytes(kObjects)) / 2;
  Meter meter;
  ApplyNode node(options, &meter);
  JobPolicy policy;
  policy.mode = PersistMode::kEvery;
  policy.keep_last = 1;
  std::vector<Client> clients;
  std::vector<std::vector<std::string>> names;
  for (Writer writer = 0; writer < writers; ++writer) {
    clients.push_back({"world", 1, writer, writers, policy});
    names.push_back(Names(writer, kObjects));
  }
  for (Client& client : clients) node.Hello(&client);
  const auto save = [&](Step step) {
    for (Writer writer = 0; writer < writers; ++writer) {
      node.Save(&clients[writer], step, names[writer], kBatch, 0);
    }
  };
  save(1);
  node.set_measuring(true);
  for (int pass = 0; pass < settings.passes; ++pass) {
    save(pass + 2);
    for (Writer writer = 0; writer < writers; writer += 16) {
      const Client& client = clients[writer];
      const CheckpointRef ref = {"world", pass + 2};
      node.Apply(event::StatObject{node.From(client), ref, names[writer][0], node.Soon()});
      node.Apply(event::Latest{node.From(client), "world", node.Soon()});
      if (writer % 256 == 0) {
        node.Apply(event::StatCheckpoint{node.From(client), ref, node.Soon()});
      }
      const LeaseId lease = node.Open(client, ref.step, names[writer][1]);
      if (lease != 0) node.Release(client, lease);
    }
    node.Snapshot();
    result.passes.push_back(meter.EndPass());
  }
  node.set_measuring(false);
  const uint64_t resident = ResidentBytes(node.Status());
  result.held = absl::StrFormat(
      "steps of %d writers with %d objects each, %.0f MiB held, "
      "%.0f MiB of this process, %d calls refused%s",
      writers, kObjects, static_cast<double>(resident) / (1 << 20), ResidentMemoryMiB(),
      node.refused(), node.refused() > 0 ? " (" + node.last_refusal() + ")" : "");
  Finish(settings, meter, &result);
  return result;
}

// --- one step of many objects

void RunLarge(const ApplySettings& settings, size_t objects) {
  ApplyResult result{
      absl::StrCat("a step of ", objects, " objects of one writer, by the thousand")};
  engine::Options options;
  options.storage = true;
  options.budget_bytes = 3 * (Slab(objects) + ManifestBytes(objects) + (uint64_t{64} << 20));
  Meter meter;
  ApplyNode node(options, &meter);
  Client client = {"large", 1, 0, 1};
  client.policy.mode = PersistMode::kEvery;
  client.policy.keep_last = 1;
  node.Hello(&client);
  const std::vector<std::string> names = Names(0, objects);
  node.set_measuring(true);
  for (int pass = 0; pass < settings.passes; ++pass) {
    node.Save(&client, pass + 1, names, kBatch, 0);
    node.Snapshot();
    result.passes.push_back(meter.EndPass());
  }
  result.held = absl::StrFormat("%.0f MiB of this process, %d calls refused %s",
                                ResidentMemoryMiB(), node.refused(), node.last_refusal());
  ApplySettings shown = settings;
  shown.table = true;
  Finish(shown, meter, &result);
}

}  // namespace cairn::bench
