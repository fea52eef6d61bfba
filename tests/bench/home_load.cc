#include "tests/bench/home_load.h"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/engine/gathered.h"
#include "tests/bench/apply_node.h"

namespace cairn::bench {
namespace {

using engine::CheckpointId;
using engine::MemberId;
using engine::PartReport;
using engine::Rank;
using engine::ReportDelta;

constexpr int kMembers = 64;
constexpr int kFewWriters = 64, kManyWriters = 4096;
constexpr int kNames = 10;
constexpr Step kKept = 3;
constexpr int kPartsOfASample = 2 * kManyWriters;

class Home {
 public:
  explicit Home(int writers)
      : writers_(writers), gathered_("job", {kMembers, 1}), numbers_(kMembers, 0) {
    gathered_.SetFinal(true);
    for (Step step = 0; step <= kKept; ++step) Save();
  }

  // The writers commit the next step; the processor time that this takes here.
  double Save() {
    const std::vector<std::pair<Rank, ReportDelta>> said = Said();
    const double begin = ThreadMicros();
    for (const auto& [rank, delta] : said) {
      if (!gathered_.Apply({rank, 1, std::string(engine::kInstanceBytes, 'i')}, delta)) Wrong();
    }
    const double took = ThreadMicros() - begin;
    const CheckpointId id{step_, 1, 0};
    const engine::JobVerdict& verdict = gathered_.Verdict();
    if (verdict.latest != id || verdict.protect != id) Wrong();
    (void)gathered_.TakeChanged();
    ++step_;
    return took;
  }

 private:
  [[noreturn]] static void Wrong() {
    std::fprintf(stderr, "home: the verdict is wrong\n");
    std::exit(1);
  }

  std::vector<std::pair<Rank, ReportDelta>> Said() {
    std::vector<std::pair<Rank, ReportDelta>> said;
    const CheckpointId id{step_, 1, 0};
    for (Writer writer = 0; writer < writers_; ++writer) {
      const Rank rank = writer % kMembers;
      ReportDelta& entered = Add(rank, &said);
      entered.writers[{1, {writers_, writer}}].reached = {step_, 0};
      entered.attempts[1] = {0, {}, 1};
    }
    for (Writer writer = 0; writer < writers_; ++writer) {
      const Rank rank = writer % kMembers;
      PartReport part;
      part.world_size = writers_;
      part.digest = absl::StrCat(step_, ".", writer, std::string(32, 'd')).substr(0, 32);
      part.owner = rank;
      part.bytes = 1 << 20;
      const PartReport replica = part;
      auto names = std::make_shared<std::vector<uint64_t>>();
      for (int i = 0; i < kNames; ++i) {
        names->push_back(static_cast<uint64_t>(writer) * kNames + static_cast<uint64_t>(i));
      }
      part.names = std::move(names);
      Say(rank, writer, id, part, &said);
      Say((rank + 1) % kMembers, writer, id, replica, &said);
    }
    return said;
  }

  void Say(Rank rank, Writer writer, const CheckpointId& id, const PartReport& part,
           std::vector<std::pair<Rank, ReportDelta>>* said) {
    ReportDelta& delta = Add(rank, said);
    delta.parts[{id, writer}] = part;
    if (id.step >= kKept) delta.parts_gone.insert({{id.step - kKept, 1, 0}, writer});
  }

  ReportDelta& Add(Rank rank, std::vector<std::pair<Rank, ReportDelta>>* said) {
    uint64_t& number = numbers_[static_cast<size_t>(rank)];
    ReportDelta& delta = said->emplace_back(rank, ReportDelta()).second;
    delta.job = "job";
    delta.after = number;
    delta.number = ++number;
    return delta;
  }

  const int writers_;
  engine::Gathered gathered_;
  std::vector<uint64_t> numbers_;
  Step step_ = 0;
};

double Sample(Home* home, int writers) {
  double took = 0;
  const int steps = kPartsOfASample / writers;
  for (int i = 0; i < steps; ++i) took += home->Save();
  return took / (steps * writers);
}

}  // namespace

HomeResult RunHome(int samples) {
  HomeResult result;
  result.few_writers = kFewWriters;
  result.many_writers = kManyWriters;
  Home few(kFewWriters), many(kManyWriters);
  for (int i = 0; i < samples; ++i) {
    result.few.push_back(Sample(&few, kFewWriters));
    result.many.push_back(Sample(&many, kManyWriters));
  }
  return result;
}

}  // namespace cairn::bench
