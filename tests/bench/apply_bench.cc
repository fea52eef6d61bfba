// cairn_apply_bench [--table] [--passes N] [--rounds N] [--large N] [row …]
//
// Processor time of one Apply of the engine, in a node that saves, persists, evicts, deletes and is
// read, with so many objects in memory: rows apply/1000/p50, apply/1000/worst, and so on, one JSON
// object each, as tests/bench/run.py reads them. --table shows every kind of event; --large N adds,
// to the table alone, a step of N objects of one writer. Row home: of what a job's home does with reports.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/bench/apply_loads.h"
#include "tests/bench/home_load.h"

namespace cairn::bench {
namespace {

constexpr double kP50Bar = 20, kWorstBar = 2000;
// log(10^6) / log(10^3): what grows with the logarithm at most.
constexpr double kGrowthBar = 2;
constexpr double kHomeBar = 2;
const int kHomeSamples = Sized(9, 1);
// Of one kind of event: what stays below twice this has not grown.
constexpr double kNothingUs = 10;
constexpr double kLeeway = 1.05;  // noise; tests/bench/run.py

std::string Commit() {
  FILE* pipe = popen("git -C '" CAIRN_SOURCE_FOLDER "' rev-parse --short HEAD 2>/dev/null", "r");
  char line[64] = {};
  const bool read = pipe != nullptr && fgets(line, sizeof line, pipe) != nullptr;
  if (pipe != nullptr) pclose(pipe);
  std::string out = read ? line : "";
  while (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

struct Row {
  std::string name, unit;
  double value = 0, bar = 0;
  std::string reference;
  double reference_value = 0;
  std::vector<double> samples;
  std::string note;
};

// Bars are absolute: there is no ratio.
void Print(const Row& row) {
  const nlohmann::ordered_json json = {{"name", row.name},
                                       {"value", row.value},
                                       {"unit", row.unit},
                                       {"reference", row.reference},
                                       {"reference_value", row.reference_value},
                                       {"ratio", nullptr},
                                       {"direction", "lower"},
                                       {"bar", row.bar},
                                       {"ok", row.value <= row.bar * kLeeway},
                                       {"pages", ""},
                                       {"samples", row.samples},
                                       {"commit", Commit()},
                                       {"invalid", ""},
                                       {"note", row.note}};
  std::printf("%s\n", json.dump().c_str());
  std::fflush(stdout);
}

class Rows {
 public:
  explicit Rows(std::vector<std::string> wanted) : wanted_(std::move(wanted)) {}

  bool Wants(const std::string& name) const {
    return wanted_.empty() || std::find(wanted_.begin(), wanted_.end(), name) != wanted_.end();
  }
  bool WantsAnyOf(const std::string& group) const {
    if (wanted_.empty()) return true;
    return std::any_of(wanted_.begin(), wanted_.end(), [&](const std::string& name) {
      return name == group || absl::StartsWith(name, group + "/");
    });
  }
  void Emit(const Row& row) const {
    if (Wants(row.name) || Wants(row.name.substr(0, row.name.rfind('/')))) Print(row);
  }
  void Emit(const ApplyResult& result) const {
    Row p50 = {result.name + "/p50", "us", result.P50(), kP50Bar};
    p50.reference = "a fixed loop, p50";
    p50.reference_value = result.spin_p50;
    p50.note = result.held;
    Row worst = {result.name + "/worst", "us", result.Worst().worst, kWorstBar};
    worst.reference = "a fixed loop, worst";
    worst.reference_value = result.spin_worst;
    worst.note = absl::StrCat("the worst was ", result.Worst().worst_kind);
    for (const Meter::Figures& pass : result.passes) {
      p50.samples.push_back(pass.p50);
      worst.samples.push_back(pass.worst);
    }
    Emit(p50);
    Emit(worst);
  }

 private:
  const std::vector<std::string> wanted_;
};

// How the p50 of all calls, and that of the kind of event that grew the most, at 10^6 objects
// compares with that at 10^3.
void EmitGrowth(const Rows& rows, const ApplyResult& small, const ApplyResult& large) {
  Row growth = {"apply/growth", "x", 0, kGrowthBar};
  const double few = small.Median(&Meter::Figures::p50_of_calls);
  const double many = large.Median(&Meter::Figures::p50_of_calls);
  growth.value = many / few;
  growth.reference = "p50 with 1,000 objects, us";
  growth.reference_value = few;
  growth.note = absl::StrFormat("p50 with 1,000,000 objects: %.2f us", many);
  growth.samples = {many, few};
  rows.Emit(growth);

  Row kinds = {"apply/growth_of_kind", "x", 0, kGrowthBar};
  kinds.reference = growth.reference;
  for (const auto& [kind, p50] : large.p50_of_kind) {
    const auto before = small.p50_of_kind.find(kind);
    if (before == small.p50_of_kind.end() || kind == "(Snapshot piece)") continue;
    if (kind == "List of 1000 at most") continue;  // the small node has fewer
    const double ratio = p50 / std::max(before->second, kNothingUs);
    if (ratio > 1) {
      absl::StrAppend(&kinds.note, kinds.note.empty() ? "" : "; ",
                      absl::StrFormat("%s %.0f to %.0f us", kind, before->second, p50));
    }
    if (ratio <= kinds.value) continue;
    kinds.value = ratio;
    kinds.reference_value = before->second;
    kinds.samples = {p50, before->second};
  }
  rows.Emit(kinds);
}

// Of all sizes and worlds: the worst that happens under the node's lock beside Apply.
void EmitAside(const Rows& rows, const std::vector<ApplyResult>& results, const std::string& name,
               double ApplyResult::*figure) {
  Row row = {name, "us", 0, kWorstBar};
  row.reference = "a fixed loop, worst";
  for (const ApplyResult& result : results) {
    row.value = std::max(row.value, result.*figure);
    row.reference_value = std::max(row.reference_value, result.spin_worst);
    row.samples.push_back(result.*figure);
    absl::StrAppend(&row.note, row.note.empty() ? "" : "; ", result.name,
                    absl::StrFormat(": %.0f us", result.*figure));
  }
  if (!results.empty()) rows.Emit(row);
}

// How a part that is reported of 4,096 writers compares with one of 64.
void EmitHome(const Rows& rows) {
  if (!rows.Wants("home")) return;
  HomeResult result = RunHome(kHomeSamples);
  std::sort(result.few.begin(), result.few.end());
  std::sort(result.many.begin(), result.many.end());
  const double few = result.few[result.few.size() / 2];
  const double many = result.many[result.many.size() / 2];
  Row row = {"home", "x", many / few, kHomeBar};
  row.reference = absl::StrFormat("a part of %d writers, us", result.few_writers);
  row.reference_value = few;
  row.note = absl::StrFormat("a part of %d writers: %.2f us", result.many_writers, many);
  row.samples = result.many;
  rows.Emit(row);
}

int Run(const ApplySettings& settings, const Rows& rows) {
  EmitHome(rows);
  const bool growth = rows.Wants("apply/growth") || rows.Wants("apply/growth_of_kind");
  const bool aside = rows.Wants("apply/snapshot") || rows.Wants("apply/describe");
  std::vector<ApplyResult> results;
  for (const size_t objects : {1000, 100'000, 1'000'000}) {
    const bool an_end = objects != 100'000;
    if (!rows.WantsAnyOf(absl::StrCat("apply/", objects)) && !aside && !(growth && an_end)) {
      continue;
    }
    results.push_back(RunObjects(settings, objects));
    rows.Emit(results.back());
  }
  if (growth) EmitGrowth(rows, results.front(), results.back());
  if (rows.WantsAnyOf("apply/writers_4096") || aside) {
    results.push_back(RunWriters(settings, 4096));
    rows.Emit(results.back());
  }
  if (aside) {
    EmitAside(rows, results, "apply/snapshot", &ApplyResult::snapshot);
    EmitAside(rows, results, "apply/describe", &ApplyResult::describe);
  }
  if (settings.large > 0) RunLarge(settings, settings.large);
  return 0;
}

int Main(int argc, char** argv) {
  ApplySettings settings;
  std::vector<std::string> wanted;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto number = [&] { return i + 1 < argc ? std::atoi(argv[++i]) : 0; };
    if (word == "--table") {
      settings.table = true;
    } else if (word == "--passes") {
      settings.passes = number();
    } else if (word == "--rounds") {
      settings.rounds = number();
    } else if (word == "--large") {
      settings.large = static_cast<size_t>(number());
    } else if (absl::StartsWith(word, "--")) {
      std::fprintf(stderr, "unknown option %s\n", word.c_str());
      return 2;
    } else {
      wanted.push_back(word);
    }
  }
  if (settings.passes < 1 || settings.rounds < 1) {
    std::fprintf(stderr, "--passes and --rounds must be above 0\n");
    return 2;
  }
  return Run(settings, Rows(wanted));
}

}  // namespace
}  // namespace cairn::bench

int main(int argc, char** argv) { return cairn::bench::Main(argc, argv); }
