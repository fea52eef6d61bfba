// save_warm, save_standing, save_new_client, save_early: bytes into the node's memory.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/time/clock.h"
#include "client/gpu/host_device.h"
#include "client/gpu/standing_slabs.h"
#include "common/fd.h"
#include "tests/bench/harness.h"

namespace cairn::bench {
namespace {

// A memcpy of 1 GiB in more than this: the machine is doing something else.
constexpr double kAbsurdMemcpyMsPerGiB = 250;

double PerGiB(uint64_t bytes) { return static_cast<double>(bytes) / (uint64_t{1} << 30); }

double Memcpy(const Buffer& to, const Buffer& from) {
  const double start = NowMs();
  std::memcpy(to.data(), from.data(), from.size());
  return NowMs() - start;
}

std::string SlabFlag(uint64_t bytes, int count) {
  return absl::StrCat("--pool.slabs=", bytes, "*", count);
}

}  // namespace

StatusOr<Row> SaveWarm(const Settings& settings) {
  Row row = {"save_warm", "ms", "memcpy, one thread, faulted", 1.05, false, {}, 0, "aim 0.92"};
  row.absurd_reference = kAbsurdMemcpyMsPerGiB * PerGiB(settings.bytes);
  testing::DaemonOptions options;
  // Two steps fit: steady state, where an old step makes room for the new one, begins with the
  // third.
  options.budget_bytes = 2 * settings.bytes + settings.bytes / 4;
  CAIRN_ASSIGN_OR_RETURN(auto daemon, testing::Daemon::Start(options));
  CAIRN_ASSIGN_OR_RETURN(auto session, client::Session::Connect(daemon->Client("bench")));
  CAIRN_ASSIGN_OR_RETURN(Buffer source, Buffer::Make(settings.bytes));
  CAIRN_ASSIGN_OR_RETURN(Buffer other, Buffer::Make(settings.bytes));
  Step step = 0;
  for (; step < 3; ++step) {  // the fourth save of this rank and size is the first that counts
    CAIRN_RETURN_IF_ERROR(SaveOne(session.get(), step, source));
  }
  for (int i = 0; i < settings.pairs; ++i, ++step) {
    Pair pair;
    for (int half = 0; half < 2; ++half) {
      const bool ours = (half + i) % 2 == 0;
      const uint64_t seed = 2 * step + half + 1;
      source.Fill(seed);
      CAIRN_RETURN_IF_ERROR(WaitIdle(*daemon));
      if (ours) {
        const double start = NowMs();
        CAIRN_RETURN_IF_ERROR(SaveOne(session.get(), step, source));
        pair.ours = NowMs() - start;
        CAIRN_RETURN_IF_ERROR(ReadBack(session.get(), step, other));
      } else {
        pair.reference = Memcpy(other, source);
      }
      CAIRN_RETURN_IF_ERROR(other.Check(seed));
    }
    row.pairs.push_back(pair);
  }
  return row;
}

namespace {

constexpr int kWarm = 4;      // saves before the first that counts
constexpr size_t kSlabs = 2;  // that steady state goes round

bool Exists(const std::string& file) { return access(file.c_str(), F_OK) == 0; }
void Touch(const std::string& file) { std::ofstream(file).flush(); }
Status Await(const std::string& file) {
  for (const double deadline = NowMs() + 60'000; !Exists(file);) {
    if (NowMs() > deadline) return absl::DeadlineExceededError(file + " does not come");
    absl::SleepFor(absl::Milliseconds(5));
  }
  return absl::OkStatus();
}

// A node of save_warm's size, warm.
struct Warm {
  std::unique_ptr<testing::Daemon> daemon;
  std::shared_ptr<client::Session> session;
  Step step = 0;
};

StatusOr<Warm> Start(const Settings& settings) {
  testing::DaemonOptions options;
  options.budget_bytes = 2 * settings.bytes + settings.bytes / 4;
  Warm warm;
  CAIRN_ASSIGN_OR_RETURN(warm.daemon, testing::Daemon::Start(options));
  CAIRN_ASSIGN_OR_RETURN(warm.session, client::Session::Connect(warm.daemon->Client("bench")));
  return warm;
}

StatusOr<int64_t> CounterOf(const testing::Daemon& daemon, const std::string& name) {
  CAIRN_ASSIGN_OR_RETURN(const std::string text, daemon.StatusJson());
  return nlohmann::json::parse(text)["counters"].value(name, int64_t{0});
}

}  // namespace

// Has standing mappings, registered with a host device, of the slabs that the warming saves use, until it is told to stop.
StatusOr<Values> StandingHolderChild(const Values& arguments) {
  const std::string& signals = arguments.at("signals");
  client::ConnectOptions options;
  options.socket = arguments.at("socket");
  options.job = "bench";
  CAIRN_ASSIGN_OR_RETURN(const auto session, client::Session::Connect(options));
  const auto device = gpu::MakeHostDevice({.memory_bytes = 64 << 20});
  gpu::StandingSlabs standing(device.get(), 64 << 20);
  std::map<std::string, std::shared_ptr<gpu::StandingSlab>> slabs;
  for (Step step = 0; step < kWarm; ++step) {
    CAIRN_RETURN_IF_ERROR(Await(absl::StrCat(signals, ".saved", step)));
    client::CheckpointRef ref;
    ref.step = step;
    CAIRN_ASSIGN_OR_RETURN(const auto object,
                           session->Open(ref, "checkpoint", client::OpenMode::kRead));
    const client::StandingPlace place = object->standing();
    (void)standing.Want(place);
    standing.Settle();
    slabs[place.slab] = standing.Want(place);
    if (slabs[place.slab] == nullptr) return absl::InternalError(standing.why());
    Touch(absl::StrCat(signals, ".held", step));
  }
  CAIRN_RETURN_IF_ERROR(Await(signals + ".stop"));
  int held = 0;
  for (const auto& [name, slab] : slabs) held += slab->ready() ? 1 : 0;
  return Values{{"held", absl::StrCat(held)}};
}

StatusOr<Row> SaveStanding(const Settings& settings) {
  Row row = {"save_standing",
             "ms",
             "the same save, of a node without a consumer",
             1.05,
             false,
             {},
             0,
             "another process has standing mappings of all slabs"};
  row.absurd_reference = kAbsurdMemcpyMsPerGiB * PerGiB(settings.bytes);
  CAIRN_ASSIGN_OR_RETURN(Warm held, Start(settings));
  CAIRN_ASSIGN_OR_RETURN(Warm bare, Start(settings));
  CAIRN_ASSIGN_OR_RETURN(Buffer source, Buffer::Make(settings.bytes));
  CAIRN_ASSIGN_OR_RETURN(Buffer other, Buffer::Make(settings.bytes));
  const std::string signals = held.daemon->folder() + "/holder";
  StatusOr<Values> holder;
  std::thread holding([&] {
    holder = RunChild(settings, "standing_holder",
                      {{"socket", held.daemon->socket()}, {"signals", signals}});
  });
  const Status status = [&]() -> Status {
    for (Step step = 0; step < kWarm; ++step) {
      CAIRN_RETURN_IF_ERROR(SaveOne(held.session.get(), held.step++, source));
      CAIRN_RETURN_IF_ERROR(SaveOne(bare.session.get(), bare.step++, source));
      Touch(absl::StrCat(signals, ".saved", step));
      CAIRN_RETURN_IF_ERROR(Await(absl::StrCat(signals, ".held", step)));
    }
    CAIRN_ASSIGN_OR_RETURN(const int64_t made, CounterOf(*held.daemon, "slabs_made"));
    for (int i = 0; i < settings.pairs; ++i) {
      Pair pair;
      for (int half = 0; half < 2; ++half) {
        const bool ours = (half + i) % 2 == 0;
        Warm& node = ours ? held : bare;
        const uint64_t seed = 2 * i + half + 1;
        source.Fill(seed);
        CAIRN_RETURN_IF_ERROR(WaitIdle(*node.daemon));
        const double start = NowMs();
        CAIRN_RETURN_IF_ERROR(SaveOne(node.session.get(), node.step, source));
        (ours ? pair.ours : pair.reference) = NowMs() - start;
        CAIRN_RETURN_IF_ERROR(ReadBack(node.session.get(), node.step++, other));
        CAIRN_RETURN_IF_ERROR(other.Check(seed));
      }
      row.pairs.push_back(pair);
    }
    CAIRN_ASSIGN_OR_RETURN(const int64_t made_at_the_end, CounterOf(*held.daemon, "slabs_made"));
    if (made_at_the_end != made) return absl::InternalError("slabs were made meanwhile");
    return absl::OkStatus();
  }();
  Touch(signals + ".stop");
  holding.join();
  CAIRN_RETURN_IF_ERROR(status);
  CAIRN_RETURN_IF_ERROR(holder.status());
  if (Number(*holder, "held") != kSlabs) {
    return absl::InternalError(absl::StrCat("the consumer had ", Number(*holder, "held"),
                                            " slabs mapped at the end, not ", kSlabs));
  }
  return row;
}

StatusOr<Values> SaveNewClientChild(const Values& arguments) {
  const auto bytes = static_cast<uint64_t>(Number(arguments, "bytes"));
  const auto seed = static_cast<uint64_t>(Number(arguments, "seed"));
  CAIRN_ASSIGN_OR_RETURN(Buffer source, Buffer::Make(bytes));
  CAIRN_ASSIGN_OR_RETURN(Buffer other, Buffer::Make(bytes));
  client::ConnectOptions options;
  options.socket = arguments.at("socket");
  options.job = "bench";
  options.attempt = static_cast<Attempt>(seed);  // each process is another life of the job
  options.writer = 0;
  options.world_size = 1;
  const auto step = static_cast<Step>(seed);
  Values out;
  source.Fill(seed);
  out["reference"] = absl::StrCat(Memcpy(other, source));
  source.Fill(seed + 1);
  const double start = NowMs();
  CAIRN_ASSIGN_OR_RETURN(auto session, client::Session::Connect(options));
  CAIRN_RETURN_IF_ERROR(SaveOne(session.get(), step, source));
  out["ours"] = absl::StrCat(NowMs() - start);
  CAIRN_RETURN_IF_ERROR(ReadBack(session.get(), step, other));
  CAIRN_RETURN_IF_ERROR(other.Check(seed + 1));
  return out;
}

StatusOr<Row> SaveNewClient(const Settings& settings) {
  Row row = {"save_new_client", "ms", "memcpy, one thread, faulted", 2.3, false, {}, 0, ""};
  row.absurd_reference = kAbsurdMemcpyMsPerGiB * PerGiB(settings.bytes);
  testing::DaemonOptions options;
  options.budget_bytes = 4 * settings.bytes + (256 << 20);
  options.flags = {SlabFlag(settings.bytes, 3)};
  CAIRN_ASSIGN_OR_RETURN(auto daemon, testing::Daemon::Start(options));
  for (int i = 0; i < settings.pairs; ++i) {
    CAIRN_RETURN_IF_ERROR(WaitIdle(*daemon));
    CAIRN_ASSIGN_OR_RETURN(const Values values, RunChild(settings, "save_new_client",
                                                         {{"socket", daemon->socket()},
                                                          {"bytes", absl::StrCat(settings.bytes)},
                                                          {"seed", absl::StrCat(1 + 2 * i)}}));
    row.pairs.push_back({Number(values, "ours"), Number(values, "reference")});
  }
  return row;
}

StatusOr<Row> SaveEarly(const Settings& settings) {
  Row row = {"save_early", "ms", "memcpy into a fresh memfd", 1.1, false, {}, 0, ""};
  row.absurd_reference = 4000 * PerGiB(settings.bytes);
  CAIRN_ASSIGN_OR_RETURN(Buffer source, Buffer::Make(settings.bytes));
  CAIRN_ASSIGN_OR_RETURN(Buffer other, Buffer::Make(settings.bytes));
  testing::DaemonOptions options;
  options.budget_bytes = settings.node_bytes;
  options.flags = {
      SlabFlag(settings.bytes, static_cast<int>(settings.node_bytes / settings.bytes) - 1)};
  for (int i = 0; i < settings.pairs; ++i) {
    Pair pair;
    const uint64_t seed = i + 1;
    source.Fill(seed);
    {
      UniqueFd fd(memfd_create("floor", MFD_CLOEXEC));
      if (!fd.valid() || ftruncate(fd.get(), static_cast<off_t>(source.size())) != 0) {
        return absl::InternalError("memfd");
      }
      const double start = NowMs();
      CAIRN_ASSIGN_OR_RETURN(const Mapping fresh, Mapping::Map(fd.get(), 0, source.size(),
                                                               PROT_READ | PROT_WRITE, MAP_SHARED));
      std::memcpy(fresh.data(), source.data(), source.size());
      pair.reference = NowMs() - start;
      if (std::memcmp(fresh.data(), source.data(), source.size()) != 0) {
        return absl::DataLossError("floor");
      }
    }
    source.Fill(seed + 1000);
    CAIRN_ASSIGN_OR_RETURN(auto daemon, testing::Daemon::Prepare(options));
    const double exec = NowMs();
    CAIRN_RETURN_IF_ERROR(daemon->Exec());
    absl::SleepFor(absl::Milliseconds(100 - (NowMs() - exec)));
    const double start = NowMs();
    CAIRN_ASSIGN_OR_RETURN(auto session, client::Session::Connect(daemon->Client("bench")));
    CAIRN_RETURN_IF_ERROR(SaveOne(session.get(), 1, source));
    pair.ours = NowMs() - start;
    CAIRN_RETURN_IF_ERROR(ReadBack(session.get(), 1, other));
    CAIRN_RETURN_IF_ERROR(other.Check(seed + 1000));
    row.pairs.push_back(pair);
  }
  return row;
}

}  // namespace cairn::bench
