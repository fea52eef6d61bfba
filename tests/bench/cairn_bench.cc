// cairn_bench [--pairs N] [--mib N] [--node-mib N] [--folder DISK] [--out FILE] [row …]
//
// Prints one JSON object per row as it is done (tests/bench/run.py reads them), then a table; --out
// gets the rows as a JSON array. Ends with 1 when a row failed. `make bench` runs it.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/bench/harness.h"
#include "tests/bench/transport_ends.h"

namespace cairn::bench {
namespace {

const std::vector<std::pair<std::string, StatusOr<Row> (*)(const Settings&)>> kRows = {
    {"save_warm", SaveWarm},
    {"save_standing", SaveStanding},
    {"save_new_client", SaveNewClient},
    {"save_early", SaveEarly},
    {"prefault", Prefault},
    {"load_read", LoadRead},
    {"load_map", LoadMap},
    {"load_map/next", LoadMapNext},
    {"persist", Persist},
    {"restart", Restart},
    {"rpc_rate", RpcRate},
    {"stall", Stall},
    {"restart_large", RestartLarge},
    {"tcp_read", TcpRead},
    {"stream_storage", StreamStorage},
    {"first_layer", FirstLayer}};

const std::vector<std::pair<std::string, StatusOr<Values> (*)(const Values&)>> kChildren = {
    {"save_new_client", SaveNewClientChild},
    {"standing_holder", StandingHolderChild},
    {"load_read", LoadReadChild},
    {"load_map", LoadMapChild},
    {"echo", EchoChild},
    {"stall_stat", StallStatChild},
    {"stall_echo", StallEchoChild},
    {"tcp_read", TcpReadChild},
    {"first_layer", FirstLayerChild},
    {"transport_owner", TransportOwnerChild},
    {"transport_reader", TransportReaderChild}};

int RunAsChild(const std::string& name, const std::vector<std::string>& words) {
  Values arguments;
  for (const std::string& word : words) {
    const size_t at = word.find('=');
    arguments[word.substr(0, at)] = word.substr(at + 1);
  }
  for (const auto& [child, run] : kChildren) {
    if (child != name) continue;
    const StatusOr<Values> values = run(arguments);
    if (!values.ok()) {
      std::printf("error=%s\n", values.status().ToString().c_str());
      return 1;
    }
    for (const auto& [key, value] : *values) std::printf("%s=%s\n", key.c_str(), value.c_str());
    return 0;
  }
  return 2;
}

int Run(const Settings& settings, const std::vector<std::string>& wanted, const std::string& out) {
  int failed = 0;
  std::vector<std::string> json, text;
  for (const auto& [name, run] : kRows) {
    bool want = wanted.empty();
    for (const std::string& word : wanted) want = want || word == name;
    if (!want) continue;
    const StatusOr<Row> row = run(settings);
    if (!row.ok()) {
      std::printf("%s failed: %s\n", name.c_str(), row.status().ToString().c_str());
      ++failed;
      continue;
    }
    json.push_back(RowJson(*row));
    text.push_back(RowText(*row));
    std::printf("%s\n", json.back().c_str());
    std::fflush(stdout);
  }
  for (const std::string& line : text) std::printf("%s\n", line.c_str());
  if (!out.empty()) {
    std::ofstream file(out);
    file << "[\n";
    for (size_t i = 0; i < json.size(); ++i)
      file << json[i] << (i + 1 < json.size() ? ",\n" : "\n");
    file << "]\n";
  }
  return failed > 0 ? 1 : 0;
}

int Main(int argc, char** argv) {
  Settings settings;
  char self[4096] = {};
  if (readlink("/proc/self/exe", self, sizeof self - 1) <= 0) return 2;
  settings.program = self;
  std::string out;
  std::vector<std::string> rows;
  std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() >= 2 && words[0] == "--child") {
    return RunAsChild(words[1], {words.begin() + 2, words.end()});
  }
  for (size_t i = 0; i < words.size(); ++i) {
    const auto value = [&] { return i + 1 < words.size() ? words[++i] : std::string(); };
    if (words[i] == "--pairs") {
      settings.pairs = std::atoi(value().c_str());
    } else if (words[i] == "--mib") {
      settings.bytes = std::strtoull(value().c_str(), nullptr, 10) << 20;
    } else if (words[i] == "--node-mib") {
      settings.node_bytes = std::strtoull(value().c_str(), nullptr, 10) << 20;
    } else if (words[i] == "--folder") {
      settings.folder = std::filesystem::absolute(value()).string();
    } else if (words[i] == "--out") {
      out = value();
    } else if (words[i].starts_with("--")) {
      std::fprintf(stderr, "unknown option %s\n", words[i].c_str());
      return 2;
    } else {
      rows.push_back(words[i]);
    }
  }
  if (settings.pairs < 1 || settings.bytes == 0 || settings.node_bytes < 2 * settings.bytes) {
    std::fprintf(stderr, "--pairs and --mib must be above 0, --node-mib at least twice --mib\n");
    return 2;
  }
  return Run(settings, rows, out);
}

}  // namespace
}  // namespace cairn::bench

int main(int argc, char** argv) {
  try {
    return cairn::bench::Main(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "cairn_bench: %s\n", e.what());
    return 1;
  }
}
