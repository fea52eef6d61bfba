// save_warm, save_new_client, save_early: bytes into the node's memory.
#include <sys/mman.h>

#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/time/clock.h"
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
  options.budget_bytes = 2 * settings.bytes + (256 << 20);
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
