#include "tests/bench/harness.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace cairn::bench {
namespace {

constexpr double kLeeway = 1.05;  // noise; tests/bench/run.py

uint64_t Word(uint64_t seed, uint64_t i) {
  return (i + 1) * 0x9E3779B97F4A7C15ull + seed * 0xD1B54A32D192ED03ull;
}

std::vector<double> Column(const Row& row, double (*pick)(const Pair&)) {
  std::vector<double> out;
  for (const Pair& pair : row.pairs) out.push_back(pick(pair));
  return out;
}
double Ratio(const Row& row) {
  return Median(Column(row, [](const Pair& p) { return p.ours / p.reference; }));
}
double Ours(const Row& row) {
  return Median(Column(row, [](const Pair& p) { return p.ours; }));
}
double Reference(const Row& row) {
  return Median(Column(row, [](const Pair& p) { return p.reference; }));
}

std::string Invalid(const Row& row) {
  if (row.absurd_reference == 0) return "";
  const double reference = Reference(row);
  const bool absurd =
      row.higher_is_better ? reference < row.absurd_reference : reference > row.absurd_reference;
  if (!absurd) return "";
  return absl::StrFormat("the reference took %.4g %s, on a machine fit for this it is %s %.4g",
                         reference, row.unit, row.higher_is_better ? "above" : "below",
                         row.absurd_reference);
}

std::string Commit() {
  FILE* pipe = popen("git -C '" CAIRN_SOURCE_FOLDER "' rev-parse --short HEAD 2>/dev/null", "r");
  if (pipe == nullptr) return "";
  char line[64] = {};
  const bool read = fgets(line, sizeof line, pipe) != nullptr;
  pclose(pipe);
  std::string out = read ? line : "";
  while (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

// utime + stime of a process, in clock ticks.
StatusOr<uint64_t> ProcessorTicks(pid_t pid) {
  CAIRN_ASSIGN_OR_RETURN(const std::string stat, ReadFile(absl::StrCat("/proc/", pid, "/stat")));
  std::istringstream fields(stat.substr(stat.rfind(')') + 2));
  std::string skip;
  uint64_t user = 0, system = 0;
  for (int i = 0; i < 11; ++i) fields >> skip;
  if (!(fields >> user >> system)) return absl::InternalError("/proc/pid/stat");
  return user + system;
}

}  // namespace

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

double NowMs() {
  return std::chrono::duration<double, std::milli>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

bool Missed(const Row& row) {
  const double measured = row.absolute ? Ours(row) : Ratio(row);
  return row.higher_is_better ? measured < row.bar / kLeeway : measured > row.bar * kLeeway;
}

std::string RowJson(const Row& row) {
  using Json = nlohmann::ordered_json;
  nlohmann::ordered_json samples = nlohmann::ordered_json::array();
  for (const Pair& pair : row.pairs) samples.push_back({pair.ours, pair.reference});
  const nlohmann::ordered_json json = {{"name", row.name},
                                       {"value", Ours(row)},
                                       {"unit", row.unit},
                                       {"reference", row.reference},
                                       {"reference_value", Reference(row)},
                                       {"ratio", row.absolute ? Json() : Json(Ratio(row))},
                                       {"direction", row.higher_is_better ? "higher" : "lower"},
                                       {"bar", row.bar},
                                       {"ok", !Missed(row) && Invalid(row).empty()},
                                       {"pages", "4 KiB"},
                                       {"samples", samples},
                                       {"commit", Commit()},
                                       {"invalid", Invalid(row)},
                                       {"note", row.note}};
  return json.dump();
}

std::string RowText(const Row& row) {
  const std::string invalid = Invalid(row);
  const std::string ratio = row.absolute ? "     -" : absl::StrFormat("%6.3f", Ratio(row));
  return absl::StrFormat("%-16s %10.4g %-8s %-40s %10.4g   ratio %s  bar %s %.2f  %s", row.name,
                         Ours(row), row.unit, row.reference, Reference(row), ratio,
                         row.higher_is_better ? ">=" : "<=", row.bar,
                         !invalid.empty() ? "invalid: " + invalid
                         : Missed(row)    ? "MISSED"
                                          : "ok");
}

StatusOr<Buffer> Buffer::Make(uint64_t bytes) {
  Buffer out;
  CAIRN_ASSIGN_OR_RETURN(out.mapping_, Mapping::Anonymous(bytes));
  out.Fill(0);
  return out;
}

void Buffer::Fill(uint64_t seed) {
  auto* words = reinterpret_cast<uint64_t*>(data());
  for (uint64_t i = 0; i < size() / 8; ++i) words[i] = Word(seed, i);
}

Status Buffer::Check(uint64_t seed) const {
  const auto* words = reinterpret_cast<const uint64_t*>(data());
  for (uint64_t i = 0; i < size() / 8; ++i) {
    if (words[i] != Word(seed, i)) {
      return absl::DataLossError(absl::StrCat("read back a wrong byte near ", i * 8));
    }
  }
  return absl::OkStatus();
}

Status WaitIdle(const testing::Daemon& daemon) {
  constexpr absl::Duration kQuiet = absl::Milliseconds(60);
  CAIRN_ASSIGN_OR_RETURN(const pid_t pid, daemon.daemon_pid());
  const double deadline = NowMs() + 120'000;
  while (NowMs() < deadline) {
    CAIRN_ASSIGN_OR_RETURN(const std::string text, daemon.StatusJson());
    const auto status = nlohmann::json::parse(text);
    if (!status["prefault_done"].get<bool>() || status["quarantined_bytes"].get<int64_t>() > 0) {
      absl::SleepFor(absl::Milliseconds(20));
      continue;
    }
    CAIRN_ASSIGN_OR_RETURN(const uint64_t before, ProcessorTicks(pid));
    absl::SleepFor(kQuiet);
    CAIRN_ASSIGN_OR_RETURN(const uint64_t after, ProcessorTicks(pid));
    if (after <= before + 1) return absl::OkStatus();  // the question itself may cost a tick
  }
  CAIRN_ASSIGN_OR_RETURN(const std::string text, daemon.StatusJson());
  return absl::DeadlineExceededError("the daemon does not become idle: " + text);
}

StatusOr<Values> RunChild(const Settings& settings, const std::string& child,
                          const Values& arguments) {
  std::vector<std::string> words = {settings.program, "--child", child};
  for (const auto& [name, value] : arguments) words.push_back(name + "=" + value);
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe");
  UniqueFd read_end(ends[0]), write_end(ends[1]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, write_end.get(), STDOUT_FILENO);
  pid_t pid = -1;
  const int error = posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return ErrnoStatus(error, "posix_spawn");
  write_end.Reset();
  std::string printed;
  char buffer[4096];
  for (ssize_t n; (n = read(read_end.get(), buffer, sizeof buffer)) > 0;) printed.append(buffer, n);
  int code = 0;
  waitpid(pid, &code, 0);
  Values out;
  std::istringstream lines(printed);
  for (std::string line; std::getline(lines, line);) {
    const size_t at = line.find('=');
    if (at != std::string::npos) out[line.substr(0, at)] = line.substr(at + 1);
  }
  if (code != 0) return absl::InternalError(absl::StrCat(child, ": ", out["error"]));
  return out;
}

double Number(const Values& values, const std::string& name) {
  const auto found = values.find(name);
  return found == values.end() ? 0 : std::strtod(found->second.c_str(), nullptr);
}

Status SaveOne(client::Session* session, Step step, const Buffer& source) {
  CAIRN_ASSIGN_OR_RETURN(auto writer, session->BeginStep(step));
  const client::Source bytes = {source.data(), source.size()};
  CAIRN_RETURN_IF_ERROR(
      writer->Write("checkpoint", ObjectKind::kRaw, absl::MakeConstSpan(&bytes, 1)));
  return writer->Commit({}).status();
}

Status ReadBack(client::Session* session, Step step, const Buffer& into) {
  client::CheckpointRef ref;
  ref.step = step;
  CAIRN_ASSIGN_OR_RETURN(auto object, session->Open(ref, "checkpoint", client::OpenMode::kRead));
  if (object->info().length != into.size()) return absl::DataLossError("length");
  return object->ReadInto(into.data());
}

StatusOr<double> BestFio(const std::string& file, uint64_t bytes, bool read) {
  const std::string how =
      read ? "--rw=read --readonly" : "--rw=write --fallocate=posix --end_fsync=1";
  // A disk reads into huge pages more than twice as fast; without this fio has some, or none, by chance.
  const std::string pages = read ? "GLIBC_TUNABLES=glibc.malloc.hugetlb=1 " : "";
  double best = 0;
  for (const char* engine :
       {"--ioengine=psync", "--ioengine=io_uring --iodepth=4", "--ioengine=io_uring --iodepth=8",
        "--ioengine=io_uring --iodepth=16"}) {
    const std::string command = absl::StrCat(
        pages, "fio --name=floor --filename='", file, "' ", how, " --bs=4M --size=", bytes,
        " --direct=1 --output-format=json ", engine, " 2>/dev/null");
    FILE* pipe = popen(command.c_str(), "r");
    if (pipe == nullptr) return absl::InternalError("popen");
    std::string text;
    char buffer[4096];
    for (size_t n; (n = fread(buffer, 1, sizeof buffer, pipe)) > 0;) text.append(buffer, n);
    const int code = pclose(pipe);
    if (!read) unlink(file.c_str());
    const size_t begin = text.find('{');
    if (code != 0 || begin == std::string::npos) continue;  // io_uring may be forbidden here
    const auto json = nlohmann::json::parse(text.substr(begin), nullptr, false);
    if (json.is_discarded()) continue;
    const double ms = json["jobs"][0]["job_runtime"].get<double>();  // end_fsync included
    if (ms > 0) best = std::max(best, static_cast<double>(bytes) / 1e3 / ms);
  }
  if (best == 0)
    return absl::FailedPreconditionError("fio does not run here (Debian's package fio)");
  return best;
}

}  // namespace cairn::bench
