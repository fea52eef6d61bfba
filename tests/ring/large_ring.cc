// Prints what becomes of a large ring of the shipped engines; docs/testing.md says more.
//
//   large_ring [--nodes=N] [--replicas=F] [--mib=N] [--steps=N] [--mbit=N] [--gone=SECONDS] [--seed=N]
//              [--lost=K,K,...] [--draws=N] [--json]
//
// A node is replaced by an empty one: the simulated seconds until everything has its replicas again. Then, of
// `--lost` nodes that are lost at once, the share of draws in which every part is still held, and the exact
// probability; it exits with 1 where these two are further apart than chance makes them.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "tests/ring/large.h"
#include "tests/ring/losses.h"

namespace cairn::engine::ringsim {
namespace {

struct Asked {
  LargeRing ring;
  std::vector<int> lost = {2, 3, 5, 10};
  int64_t draws = 20'000;
  bool json = false;
};

bool Take(const std::string& name, const std::string& value, Asked* asked) {
  int64_t number = 0;
  const bool whole = absl::SimpleAtoi(value, &number) && number >= 0;
  if (name == "--nodes") asked->ring.nodes = static_cast<int>(number);
  if (name == "--replicas") asked->ring.replicas = static_cast<int>(number);
  if (name == "--mib") asked->ring.part_bytes = static_cast<uint64_t>(number) << 20;
  if (name == "--steps") asked->ring.steps = static_cast<int>(number);
  if (name == "--seed") asked->ring.seed = static_cast<uint64_t>(number);
  if (name == "--draws") asked->draws = number;
  for (const char* known : {"--nodes", "--replicas", "--mib", "--steps", "--seed", "--draws"}) {
    if (name == known) return whole;
  }
  if (name == "--mbit") return absl::SimpleAtod(value, &asked->ring.mbit) && asked->ring.mbit > 0;
  if (name == "--gone") return absl::SimpleAtod(value, &asked->ring.gone_s);
  if (name == "--json") return asked->json = true;
  if (name != "--lost") return false;
  asked->lost.clear();
  for (const auto word : absl::StrSplit(value, ',', absl::SkipEmpty())) {
    if (!absl::SimpleAtoi(word, &asked->lost.emplace_back())) return false;
  }
  return true;
}

double ProcessorSeconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

int Run(const Asked& asked) {
  const LargeRing& ring = asked.ring;
  LargeLife life(ring);
  const auto so_far = [&](const char* what) {
    fprintf(stderr, "%s: %.1f simulated s, %.1f processor s, %lld events, %lld exchanges\n", what,
            life.now_s(), ProcessorSeconds(), static_cast<long long>(life.events()),
            static_cast<long long>(life.exchanges()));
    return life.failure().empty();
  };
  life.Begin();
  const Holders holders = life.HoldersNow();
  double seconds = 0;
  if (so_far("all is protected")) {
    seconds = life.Replace(ring.nodes / 2);
    so_far("one was replaced");
  }
  if (!life.failure().empty()) {
    fprintf(stderr, "%s\n", life.failure().c_str());
    return 1;
  }
  if (asked.json) {
    printf("{\"nodes\": %d, \"replicas\": %d, \"seconds\": %.3f}\n", ring.nodes, ring.replicas,
           seconds);
    return 0;
  }
  printf(
      "%d nodes, %d replicas, %llu MiB each, %g Mbit/s: protected again %.1f s after the "
      "replacement started\n",
      ring.nodes, ring.replicas, static_cast<unsigned long long>(ring.part_bytes >> 20), ring.mbit,
      seconds);
  printf("%8s %12s %12s %12s\n", "lost", "held", "exact", "error");
  bool agrees = true;
  sim::Rng rng(sim::Mix(ring.seed, 17));
  for (const int lost : asked.lost) {
    if (lost > ring.nodes) continue;
    const double exact = ProbabilityHeld(ring.nodes, lost, ring.replicas);
    const double share = ShareHeld(holders, ring.nodes, lost, asked.draws, &rng);
    const double error = SamplingError(exact, asked.draws);
    const bool near = std::abs(share - exact) <= error;
    agrees = agrees && near;
    printf("%8d %12.5f %12.5f %12.5f%s\n", lost, share, exact, error, near ? "" : "  DIFFERS");
  }
  return agrees ? 0 : 1;
}

}  // namespace
}  // namespace cairn::engine::ringsim

int main(int argc, char** argv) {
  cairn::engine::ringsim::Asked asked;
  for (int i = 1; i < argc; ++i) {
    const std::pair<std::string, std::string> word =
        absl::StrSplit(argv[i], absl::MaxSplits('=', 1));
    if (cairn::engine::ringsim::Take(word.first, word.second, &asked)) continue;
    fprintf(stderr, "%s: not understood; the head of tests/ring/large_ring.cc has the options\n",
            argv[i]);
    return 2;
  }
  return cairn::engine::ringsim::Run(asked);
}
