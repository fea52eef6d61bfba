// Microseconds per Apply, with 10,000 checkpoints known: an event costs what it names.
#include <benchmark/benchmark.h>

#include "absl/strings/str_cat.h"
#include "common/checksum.h"
#include "server/engine/engine.h"

namespace cairn::engine {
namespace {

constexpr int kKnown = 10'000;

// Every action ends at once; facts are not kept.
class Bench {
 public:
  explicit Bench(int objects) : objects_(objects) {
    Options options;
    options.budget_bytes = uint64_t{64} << 30;
    engine_ = std::make_unique<Engine>(options);
    Carry(engine_->Start(1, 1, {}));
    event::Hello hello;
    hello.caller.request = ++request_;
    hello.caller.uid = 1000;
    hello.process = "process";
    hello.job = "job";
    hello.attempt = 1;
    hello.writer = 0;
    hello.world_size = 1;
    Apply(hello);
    for (int i = 0; i < kKnown; ++i) Save(1);
  }

  void Apply(Event event) {
    Carry(engine_->Apply(++now_, std::move(event)));
    while (!pending_.empty()) {
      Event next = std::move(pending_.back());
      pending_.pop_back();
      Carry(engine_->Apply(++now_, std::move(next)));
    }
  }
  void Save(int objects) {
    event::Create create;
    create.caller = Me();
    create.call = ++call_;
    create.part = {{"job", ++step_, 1, 0}, 0};
    create.world_size = 1;
    create.deadline = now_ + kNanosPerSecond;
    event::Commit commit;
    commit.part = create.part;
    commit.world_size = 1;
    for (int i = 0; i < objects; ++i) {
      create.objects.push_back({absl::StrCat("layer", i), 4096});
      commit.seals.push_back({absl::StrCat("layer", i), 4096, {1}, {{0, 4096}}});
    }
    Apply(std::move(create));
    commit.caller = Me();
    commit.call = ++call_;
    Apply(std::move(commit));
  }
  void SaveAll() { Save(objects_); }
  LeaseId Open() {
    event::Open open;
    open.caller = Me();
    open.ref = {"job", step_};
    open.name = "layer0";
    open.deadline = now_ + kNanosPerSecond;
    Apply(std::move(open));
    return lease_;
  }
  void Release(LeaseId lease) { Apply(event::Release{Me(), {lease}}); }
  void Stat() {
    Apply(event::StatObject{Me(), {"job", step_ / 2 + 1}, "layer0", now_ + kNanosPerSecond});
  }

 private:
  Caller Me() { return {++request_, session_, 1000, 1000}; }
  void Carry(Outcome outcome) {
    for (Action& action : outcome.actions) {
      if (auto* make = std::get_if<action::MakeSlab>(&action)) {
        pending_.push_back(event::SlabMade{make->slab, absl::OkStatus()});
      } else if (auto* destroy = std::get_if<action::DestroySlab>(&action)) {
        pending_.push_back(event::SlabDestroyed{destroy->slab});
      } else if (auto* probe = std::get_if<action::ProbeSlab>(&action)) {
        pending_.push_back(event::SlabProbed{probe->slab, false, probe->leases});
      } else if (auto* manifest = std::get_if<action::WriteManifest>(&action)) {
        pending_.push_back(
            event::ManifestWritten{manifest->part, manifest->extent, absl::OkStatus(), "digest"});
      } else if (auto* reply = std::get_if<action::Reply>(&action)) {
        if (!reply->body.ok()) std::abort();
        if (auto* hello = std::get_if<reply::Hello>(&*reply->body)) session_ = hello->session;
        if (auto* open = std::get_if<reply::Open>(&*reply->body)) lease_ = open->lend.lease;
      }
    }
  }

  const int objects_;
  std::unique_ptr<Engine> engine_;
  MonotonicNanos now_ = 1;
  RequestId request_ = 0;
  int64_t call_ = 0;
  Step step_ = 0;
  SessionId session_ = 0;
  LeaseId lease_ = 0;
  std::vector<Event> pending_;
};

void SaveStep(benchmark::State& state) {
  Bench bench(static_cast<int>(state.range(0)));
  for (auto _ : state) bench.SaveAll();
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(SaveStep)->Arg(1)->Arg(400)->Unit(benchmark::kMicrosecond);

void OpenAndRelease(benchmark::State& state) {
  Bench bench(1);
  for (auto _ : state) bench.Release(bench.Open());
}
BENCHMARK(OpenAndRelease)->Unit(benchmark::kMicrosecond);

void StatObject(benchmark::State& state) {
  Bench bench(1);
  for (auto _ : state) bench.Stat();
}
BENCHMARK(StatObject)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace cairn::engine

BENCHMARK_MAIN();
