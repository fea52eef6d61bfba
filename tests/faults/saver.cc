// Savers that are killed: R13, with the library that trainers use.
//
//   cairn_fault_saver kill SOCKET JOB COUNT SEED   forks COUNT savers, one step each, and SIGKILLs
//   each of
//                                                  them while it connects, allocates, copies or
//                                                  commits
//   cairn_fault_saver verify SOCKET JOB            every visible step is complete and every byte is
//   its own
//
// Prints one line of JSON for the test that runs it. The parent never opens a session, so that its
// children inherit none.
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/cpp/session.h"

namespace cairn {
namespace {

using client::ConnectOptions;
using client::Session;

constexpr uint64_t kLargeBytes = 6 << 20;
constexpr uint64_t kSmallBytes = 10'000;

// What a saver reports before it goes on; it may be killed at any moment after.
enum Milestone : char { kStarted = 's', kConnected = 'c', kWritten = 'w', kCommitted = 'k' };

// Bytes that belong to one step and one object only.
std::string Content(Step step, uint64_t object, uint64_t length) {
  std::string bytes(length, '\0');
  const uint64_t tag = static_cast<uint64_t>(step) << 32 | object << 24;
  for (uint64_t at = 0; at + 8 <= length; at += 8) {
    const uint64_t word = tag + at / 8;
    std::memcpy(bytes.data() + at, &word, 8);
  }
  return bytes;
}

std::vector<std::pair<std::string, uint64_t>> Objects() {
  return {{"large.bin", kLargeBytes}, {"small.bin", kSmallBytes}, {"empty.bin", 0}};
}

StatusOr<std::shared_ptr<Session>> Connect(const std::string& socket, const std::string& job,
                                           bool writes) {
  ConnectOptions options;
  options.socket = socket;
  options.job = job;
  if (writes) {
    options.writer = 0;
    options.world_size = 1;
  }
  options.timeout = absl::Seconds(20);
  return Session::Connect(options);
}

Status SaveOne(const std::string& socket, const std::string& job, Step step, int pipe) {
  auto tell = [pipe](Milestone milestone) { return write(pipe, &milestone, 1) == 1; };
  tell(kStarted);
  CAIRN_ASSIGN_OR_RETURN(auto session, Connect(socket, job, true));
  CAIRN_RETURN_IF_ERROR(session->ChooseAttempt().status());
  std::vector<std::string> contents;
  for (uint64_t i = 0; const auto& [name, length] : Objects())
    contents.push_back(Content(step, i++, length));
  tell(kConnected);
  CAIRN_ASSIGN_OR_RETURN(auto writer, session->BeginStep(step, client::Among{}));
  for (size_t i = 0; const auto& [name, length] : Objects()) {
    const client::Source source{contents[i].data(), contents[i].size()};
    CAIRN_RETURN_IF_ERROR(writer->Write(name, ObjectKind::kRaw, {&source, 1}));
    ++i;
  }
  tell(kWritten);
  CAIRN_RETURN_IF_ERROR(writer->Commit({}).status());
  tell(kCommitted);
  return absl::OkStatus();
}

struct Outcome {
  std::string reached;  // milestones, in order
  bool killed = false;  // else it ended by itself
  std::string error;
};

// Forks a saver and kills it `delay` after it has told `at`.
Outcome KillOne(const std::string& socket, const std::string& job, Step step, Milestone at,
                std::chrono::microseconds delay) {
  int ends[2];
  if (pipe(ends) != 0) std::exit(2);
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    const Status status = SaveOne(socket, job, step, ends[1]);
    const std::string error = status.ok() ? "" : "!" + std::string(status.message());
    if (write(ends[1], error.data(), error.size()) < 0) _exit(2);
    pause();  // stays until it is killed: its session must not end by itself
    _exit(0);
  }
  close(ends[1]);
  Outcome outcome;
  std::string heard;
  auto hear = [&](int timeout_ms) {
    pollfd readable{ends[0], POLLIN, 0};
    char buffer[512];
    if (poll(&readable, 1, timeout_ms) != 1) return false;
    const ssize_t got = read(ends[0], buffer, sizeof(buffer));
    if (got <= 0) return false;
    heard.append(buffer, static_cast<size_t>(got));
    return true;
  };
  while (heard.find(at) == std::string::npos && heard.find('!') == std::string::npos &&
         hear(30'000)) {
  }
  std::this_thread::sleep_for(delay);
  kill(child, SIGKILL);
  int status = 0;
  waitpid(child, &status, 0);
  outcome.killed = WIFSIGNALED(status);
  while (hear(0)) {
  }
  close(ends[0]);
  const size_t error = heard.find('!');
  outcome.reached = heard.substr(0, error);
  if (error != std::string::npos) outcome.error = heard.substr(error + 1);
  return outcome;
}

int KillMany(const std::string& socket, const std::string& job, int count, uint32_t seed) {
  std::mt19937 random(seed);
  constexpr Milestone kMilestones[] = {kStarted, kConnected, kConnected, kWritten};
  nlohmann::json report = {{"seed", seed},
                           {"killed", 0},
                           {"last_committed", kNoStep},
                           {"errors", nlohmann::json::array()}};
  std::map<std::string, int> reached;
  for (Step step = 1; step <= count; ++step) {
    const Milestone at = kMilestones[random() % std::size(kMilestones)];
    const Outcome outcome =
        KillOne(socket, job, step, at, std::chrono::microseconds(random() % 4000));
    report["killed"] = report["killed"].get<int>() + outcome.killed;
    ++reached[outcome.reached];
    if (outcome.reached.find(kCommitted) != std::string::npos) report["last_committed"] = step;
    if (!outcome.error.empty())
      report["errors"].push_back(absl::StrCat("step ", step, ": ", outcome.error));
  }
  report["reached"] = reached;
  std::cout << report.dump() << std::endl;
  return 0;
}

Status Verify(const std::string& socket, const std::string& job) {
  CAIRN_ASSIGN_OR_RETURN(auto session, Connect(socket, "", false));
  CAIRN_ASSIGN_OR_RETURN(const client::Listing listing, session->List(job));
  nlohmann::json steps = nlohmann::json::array();
  for (const client::CheckpointInfo& info : listing.checkpoints) {
    if (!info.facts.complete) {
      return absl::InternalError(
          absl::StrCat(info.key.DebugString(), " is visible and incomplete"));
    }
    for (uint64_t i = 0; const auto& [name, length] : Objects()) {
      const client::CheckpointRef ref{job, info.key.step, info.key.attempt, info.key.revision};
      CAIRN_ASSIGN_OR_RETURN(auto object, session->Open(ref, name, client::OpenMode::kRead));
      std::string bytes(object->info().length, '\0');
      CAIRN_RETURN_IF_ERROR(object->ReadInto(bytes.data()));
      if (bytes != Content(info.key.step, i++, length)) {
        return absl::DataLossError(
            absl::StrCat(info.key.DebugString(), "/", name, " holds other bytes"));
      }
    }
    steps.push_back(info.key.step);
  }
  StatusOr<client::LatestCheckpoint> latest = session->Latest(job);
  std::cout << nlohmann::json{{"steps", steps},
                              {"latest", latest.ok() ? latest->key.step : kNoStep}}
                   .dump()
            << std::endl;
  return absl::OkStatus();
}

int Main(const std::vector<std::string>& arguments) {
  int count = 0;
  uint32_t seed = 0;
  if (arguments.size() == 5 && arguments[0] == "kill" && absl::SimpleAtoi(arguments[3], &count) &&
      absl::SimpleAtoi(arguments[4], &seed)) {
    return KillMany(arguments[1], arguments[2], count, seed);
  }
  if (arguments.size() == 3 && arguments[0] == "verify") {
    const Status status = Verify(arguments[1], arguments[2]);
    if (!status.ok()) std::cerr << status.message() << std::endl;
    return status.ok() ? 0 : 1;
  }
  std::cerr << "cairn_fault_saver kill SOCKET JOB COUNT SEED | verify SOCKET JOB" << std::endl;
  return 2;
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) { return cairn::Main({argv + 1, argv + argc}); }
