// stall, restart_large: what one client of a node feels of another's very many objects. Their bars
// are absolute.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <thread>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "tests/bench/echo.h"
#include "tests/bench/harness.h"

namespace cairn::bench {
namespace {

constexpr uint64_t kTiny = 100;  // bytes of an object
// No pairs: what is measured takes long, and the bar is absolute.
const int kRepeats = Sized(3, 1);

// --- a client that asks once a millisecond

// Each call has a time at which it is due; how late its answer is counts, so that a stall counts for
// every call that would have been made meanwhile.
constexpr double kEveryMs = 1;

bool Exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }
void Touch(const std::string& path) { std::ofstream file(path); }

StatusOr<Values> AskSteadily(const Values& arguments, const std::function<Status()>& call) {
  const std::string signals = arguments.at("signals");
  CAIRN_RETURN_IF_ERROR(call());
  Touch(arguments.at("ready"));
  while (!Exists(signals + ".go")) absl::SleepFor(absl::Milliseconds(1));
  std::vector<double> late;
  for (double due = NowMs(); !Exists(signals + ".stop"); due += kEveryMs) {
    if (const double early = due - NowMs(); early > 0) absl::SleepFor(absl::Milliseconds(early));
    CAIRN_RETURN_IF_ERROR(call());
    late.push_back(NowMs() - due);
  }
  if (late.empty()) return absl::InternalError("not one call was made");
  std::sort(late.begin(), late.end());
  const auto at = [&](double q) { return late[static_cast<size_t>(q * (late.size() - 1))]; };
  return Values{{"p50", absl::StrFormat("%.4f", at(0.5))},
                {"p999", absl::StrFormat("%.4f", at(0.999))},
                {"worst", absl::StrFormat("%.4f", late.back())},
                {"calls", absl::StrCat(late.size())}};
}

// --- one step of very many objects

std::string NameOf(int object) { return absl::StrCat("layers.", object / 12, "/w", object % 12); }

// Object i begins at byte i of the source.
Status SaveTiny(client::Session* session, Step step, int objects, const Buffer& source) {
  std::vector<client::StepWriter::Item> items;
  items.reserve(objects);
  for (int i = 0; i < objects; ++i) {
    items.push_back({NameOf(i), ObjectKind::kRaw, {{source.data() + 8 * i, kTiny}}});
  }
  CAIRN_ASSIGN_OR_RETURN(auto writer, session->BeginStep(step));
  CAIRN_RETURN_IF_ERROR(writer->WriteMany(items));
  return writer->Commit({}).status();
}

Status CheckTiny(client::Session* session, Step step, int object, const Buffer& source) {
  client::CheckpointRef ref;
  ref.step = step;
  char into[kTiny];
  CAIRN_ASSIGN_OR_RETURN(auto opened, session->Open(ref, NameOf(object), client::OpenMode::kRead));
  if (opened->info().length != kTiny) return absl::DataLossError("length");
  CAIRN_RETURN_IF_ERROR(opened->ReadInto(into));
  if (std::memcmp(into, source.data() + 8 * object, kTiny) == 0) return absl::OkStatus();
  return absl::DataLossError(NameOf(object));
}

uint64_t MemoryAvailable() {
  std::ifstream file("/proc/meminfo");
  std::string word;
  uint64_t kib = 0;
  while (file >> word) {
    if (word == "MemAvailable:" && file >> kib) break;
  }
  return kib << 10;
}

}  // namespace

// --- stall

StatusOr<Values> StallStatChild(const Values& arguments) {
  client::ConnectOptions options;
  options.socket = arguments.at("socket");
  options.job = "other";
  options.timeout = absl::Minutes(2);
  CAIRN_ASSIGN_OR_RETURN(auto session, client::Session::Connect(options));
  client::CheckpointRef ref;
  ref.step = 1;
  int turn = 0;
  return AskSteadily(arguments, [&]() -> Status {
    if (++turn % 2 == 0) return session->Stat(ref).status();
    const std::string name = NameOf(turn % 100);
    CAIRN_ASSIGN_OR_RETURN(const auto info, session->StatObject(ref, name));
    return info.name == name ? absl::OkStatus() : absl::DataLossError(name);
  });
}

StatusOr<Values> StallEchoChild(const Values& arguments) {
  const auto client = EchoClient(arguments.at("socket"));
  return AskSteadily(arguments, [&] {
    Echo(client.get());
    return absl::OkStatus();
  });
}

StatusOr<Row> Stall(const Settings& settings) {
  const int kObjects = Sized(100'000, 1000);
  Row row = {"stall", "ms", "a bare Thrift echo meanwhile, p99.9", 20, false};
  row.absolute = true;
  row.absurd_reference = row.bar;  // then it is the machine that stalls
  testing::DaemonOptions options;
  options.budget_bytes = Sized<uint64_t>(2048, 256) << 20;
  options.flags = {"--journal.bytes=128MiB"};
  CAIRN_ASSIGN_OR_RETURN(auto daemon, testing::Daemon::Prepare(options, settings.folder));
  CAIRN_RETURN_IF_ERROR(daemon->StartAgain());
  CAIRN_ASSIGN_OR_RETURN(const auto echo, EchoServer::Start(settings, daemon->folder()));
  CAIRN_ASSIGN_OR_RETURN(Buffer source, Buffer::Make(8 * kObjects + kTiny));
  {
    CAIRN_ASSIGN_OR_RETURN(auto other, client::Session::Connect(daemon->Client("other")));
    CAIRN_RETURN_IF_ERROR(SaveTiny(other.get(), 1, 100, source));
  }
  auto saver = daemon->Client("bench");
  saver.timeout = absl::Minutes(2);
  CAIRN_ASSIGN_OR_RETURN(auto session, client::Session::Connect(saver));
  for (int i = 1; i <= kRepeats; ++i) {
    source.Fill(i);
    CAIRN_RETURN_IF_ERROR(WaitIdle(*daemon));
    const std::string signals = absl::StrCat(daemon->folder(), "/round", i);
    StatusOr<Values> stat, echoed;
    const auto ask = [&](const char* child, const std::string& socket, StatusOr<Values>* into) {
      *into = RunChild(settings, child,
                       {{"socket", socket}, {"signals", signals}, {"ready", signals + child}});
    };
    std::thread stats([&] { ask("stall_stat", daemon->socket(), &stat); });
    std::thread echoes([&] { ask("stall_echo", echo->socket(), &echoed); });
    for (const double deadline = NowMs() + 20'000; NowMs() < deadline;) {
      if (Exists(signals + "stall_stat") && Exists(signals + "stall_echo")) break;
      absl::SleepFor(absl::Milliseconds(5));
    }
    Touch(signals + ".go");
    client::CheckpointRef ref;
    ref.step = i;
    const double start = NowMs();
    Status status = SaveTiny(session.get(), i, kObjects, source);
    const double saved = NowMs();
    if (status.ok()) status = session->Persist(ref);
    if (status.ok()) {
      status = session->Wait(ref, client::Level::kPersisted, absl::Minutes(10)).status();
    }
    const double persisted = NowMs();
    Touch(signals + ".stop");
    stats.join();
    echoes.join();
    CAIRN_RETURN_IF_ERROR(status);
    CAIRN_RETURN_IF_ERROR(stat.status());
    CAIRN_RETURN_IF_ERROR(echoed.status());
    for (int object = i; object < kObjects; object += kObjects / 50) {
      CAIRN_RETURN_IF_ERROR(CheckTiny(session.get(), i, object, source));
    }
    row.pairs.push_back({Number(*stat, "p999"), Number(*echoed, "p999")});
    absl::StrAppend(
        &row.note, row.note.empty() ? "" : "; ",
        absl::StrFormat("saved in %.1f s, persisted in %.1f s, %.0f calls: p50 %.2f "
                        "(echo %.2f), worst %.0f ms (echo %.0f)",
                        (saved - start) / 1e3, (persisted - saved) / 1e3, Number(*stat, "calls"),
                        Number(*stat, "p50"), Number(*echoed, "p50"), Number(*stat, "worst"),
                        Number(*echoed, "worst")));
  }
  return row;
}

// --- restart_large

StatusOr<Row> RestartLarge(const Settings&) {
  constexpr int kOfPart = 1000;
  // Memory of an object: its page, its share of a manifest, what daemon, journal and this process
  // keep of it; twice, for others are here too.
  constexpr uint64_t kBytesOfObject = 2 * (4096 + 100 + 3000);
  const int wanted = Sized(1'000'000, 2000);
  const auto fits = static_cast<int>(std::min(
      static_cast<uint64_t>(wanted), MemoryAvailable() / kBytesOfObject / kOfPart * kOfPart));
  const int parts = fits / kOfPart;
  Row row = {"restart_large", "ms", "exec to ready, with nothing", 1500, false};
  row.absolute = true;
  row.note = absl::StrFormat("%d objects in %d parts%s", fits, parts,
                             fits < wanted ? ": memory is short here" : "");
  {
    testing::DaemonOptions empty;
    CAIRN_ASSIGN_OR_RETURN(auto daemon, testing::Daemon::Prepare(empty));
    const double start = NowMs();
    CAIRN_RETURN_IF_ERROR(daemon->Exec());
    CAIRN_ASSIGN_OR_RETURN(auto session, client::Session::Connect(daemon->Client("bench")));
    CAIRN_RETURN_IF_ERROR(session->StatusJson().status());
    row.pairs.assign(kRepeats, {0, NowMs() - start});
  }
  testing::DaemonOptions options;
  options.budget_bytes = static_cast<uint64_t>(fits) * (4096 + 200) + (uint64_t{512} << 20);
  options.flags = {"--journal.bytes=1GiB"};
  CAIRN_ASSIGN_OR_RETURN(auto daemon, testing::Daemon::Start(options));
  auto saver = daemon->Client("bench");
  saver.timeout = absl::Minutes(2);
  CAIRN_ASSIGN_OR_RETURN(auto session, client::Session::Connect(saver));
  CAIRN_ASSIGN_OR_RETURN(Buffer source, Buffer::Make(8 * kOfPart + kTiny));
  for (int part = 1; part <= parts; ++part) {
    source.Fill(part);
    CAIRN_RETURN_IF_ERROR(SaveTiny(session.get(), part, kOfPart, source));
  }
  for (int i = 0; i < kRepeats; ++i) {
    // The keeper takes its time after a second death within a minute.
    if (i > 0) absl::SleepFor(absl::Seconds(61));
    CAIRN_RETURN_IF_ERROR(WaitIdle(*daemon));
    const int part = 1 + (i + 1) * 337 % parts;
    source.Fill(part);
    client::CheckpointRef ref;
    ref.step = part;
    const double start = NowMs();
    CAIRN_RETURN_IF_ERROR(daemon->KillDaemon());
    CAIRN_ASSIGN_OR_RETURN(auto object, session->Open(ref, NameOf(37), client::OpenMode::kRead));
    row.pairs[i].ours = NowMs() - start;
    if (object->from_storage()) return absl::DataLossError("it came from storage");
    CAIRN_RETURN_IF_ERROR(CheckTiny(session.get(), part, 37, source));
    // Nothing was lost beside it.
    for (int other = 1; other <= parts; other += std::max(1, parts / 50)) {
      source.Fill(other);
      CAIRN_RETURN_IF_ERROR(CheckTiny(session.get(), other, other % kOfPart, source));
    }
  }
  return row;
}

}  // namespace cairn::bench
