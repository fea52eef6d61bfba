// prefault, persist, restart, rpc_rate: what the daemon does by itself.
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "common/mutex.h"
#include "tests/bench/echo.h"
#include "tests/bench/harness.h"

namespace cairn::bench {
namespace {

constexpr uint64_t kPiece = 32 << 20;

// Two threads of MADV_POPULATE_WRITE over a fresh memfd.
StatusOr<double> Populate(uint64_t bytes) {
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
  UniqueFd fd(memfd_create("floor", MFD_CLOEXEC));
  if (!fd.valid() || ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return absl::InternalError("memfd");
  }
  const double start = NowMs();
  CAIRN_ASSIGN_OR_RETURN(const Mapping mapping,
                         Mapping::Map(fd.get(), 0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED));
  std::atomic<uint64_t> next{0};
  std::atomic<bool> failed{false};
  const auto work = [&] {
    for (uint64_t at; (at = next.fetch_add(kPiece)) < bytes;) {
      if (madvise(mapping.data() + at, std::min(kPiece, bytes - at), MADV_POPULATE_WRITE) != 0)
        failed = true;
    }
  };
  std::thread other(work);
  work();
  other.join();
  const double took = NowMs() - start;
  if (failed) return absl::InternalError("MADV_POPULATE_WRITE");
  return took;
}

// Until `ready` says so of the daemon's status.
Status PollStatus(const testing::Daemon& daemon,
                  const std::function<bool(const nlohmann::json&)>& ready) {
  client::ConnectOptions options;
  options.socket = daemon.socket();
  options.takes_fds = false;
  CAIRN_ASSIGN_OR_RETURN(auto session, client::Session::Connect(options));
  for (const double deadline = NowMs() + 120'000; NowMs() < deadline;) {
    CAIRN_ASSIGN_OR_RETURN(const std::string text, session->StatusJson());
    if (ready(nlohmann::json::parse(text))) return absl::OkStatus();
    absl::SleepFor(absl::Milliseconds(3));
  }
  return absl::DeadlineExceededError("the daemon's status does not change");
}

Status SameAsFile(const std::string& path, const Buffer& into, uint64_t seed) {
  FILE* file = fopen(path.c_str(), "rb");
  if (file == nullptr) return absl::DataLossError(path + " is not there");
  const size_t n = fread(into.data(), 1, into.size(), file);
  const bool end = fgetc(file) == EOF;
  fclose(file);
  if (n != into.size() || !end) return absl::DataLossError(path + " has another length");
  return into.Check(seed);
}

// Calls a second that four threads make together; `make` gives each its call.
StatusOr<double> RateOfFour(const std::function<std::function<Status()>()>& make) {
  constexpr int kClients = 4;
  const double kMs = Sized(1500.0, 100.0);
  std::atomic<uint64_t> calls{0};
  std::atomic<bool> go{false}, stop{false};
  std::vector<std::thread> threads;
  Status failure;
  Mutex mu;
  std::atomic<int> ready{0};
  for (int i = 0; i < kClients; ++i) {
    threads.emplace_back([&] {
      const std::function<Status()> call = make();
      Status status = call();  // the connection is made
      ++ready;
      while (!go) std::this_thread::yield();
      uint64_t mine = 0;
      while (status.ok() && !stop) {
        status = call();
        ++mine;
      }
      calls += mine;
      MutexLock lock(&mu);
      failure.Update(status);
    });
  }
  while (ready < kClients) std::this_thread::yield();
  const double start = NowMs();
  go = true;
  absl::SleepFor(absl::Milliseconds(kMs));
  stop = true;
  const double took = NowMs() - start;
  for (std::thread& thread : threads) thread.join();
  CAIRN_RETURN_IF_ERROR(failure);
  return static_cast<double>(calls) / took * 1000;
}

}  // namespace

StatusOr<Row> Prefault(const Settings& settings) {
  Row row = {"prefault", "ms", "two threads of MADV_POPULATE_WRITE",    1.15, false,
             {},         0,    "from exec to all of the budget faulted"};
  const uint64_t slab = settings.node_bytes / 128;  // small ones leave little of the budget over
  testing::DaemonOptions options;
  options.budget_bytes = settings.node_bytes;
  options.flags = {absl::StrCat("--pool.slabs=", slab, "*", settings.node_bytes / slab)};
  for (int i = 0; i < settings.pairs; ++i) {
    Pair pair;
    CAIRN_ASSIGN_OR_RETURN(auto daemon, testing::Daemon::Prepare(options));
    uint64_t faulted = 0;
    const double start = NowMs();
    CAIRN_RETURN_IF_ERROR(daemon->Exec());
    CAIRN_RETURN_IF_ERROR(PollStatus(*daemon, [&](const nlohmann::json& status) {
      faulted = status["slab_bytes"].get<uint64_t>();
      return status["prefault_done"].get<bool>() && faulted > 0;
    }));
    pair.ours = NowMs() - start;
    daemon.reset();
    if (faulted < settings.node_bytes - settings.node_bytes / 16) {
      return absl::InternalError(absl::StrCat("only ", faulted, " bytes were faulted"));
    }
    CAIRN_ASSIGN_OR_RETURN(pair.reference, Populate(faulted));
    row.pairs.push_back(pair);
  }
  return row;
}

StatusOr<Row> Persist(const Settings& settings) {
  Row row = {"persist",
             "MB/s",
             "fio, 4 MiB direct, best engine",
             0.85,
             true,
             {},
             100,
             "request to PERSISTED: renames, directory fsyncs, manifest"};
  testing::DaemonOptions options;
  options.budget_bytes = 4 * settings.bytes + (256 << 20);
  CAIRN_ASSIGN_OR_RETURN(auto daemon, testing::Daemon::Prepare(options, settings.folder));
  CAIRN_RETURN_IF_ERROR(daemon->StartAgain());
  CAIRN_ASSIGN_OR_RETURN(auto session, client::Session::Connect(daemon->Client("bench")));
  CAIRN_ASSIGN_OR_RETURN(Buffer source, Buffer::Make(settings.bytes));
  for (int i = 1; i <= settings.pairs; ++i) {
    Pair pair;
    source.Fill(i);
    CAIRN_RETURN_IF_ERROR(SaveOne(session.get(), i, source));
    CAIRN_RETURN_IF_ERROR(WaitIdle(*daemon));
    client::CheckpointRef ref;
    ref.step = i;
    sync();
    const double start = NowMs();
    CAIRN_RETURN_IF_ERROR(session->Persist(ref));
    CAIRN_RETURN_IF_ERROR(session->Wait(ref, client::Level::kPersisted, absl::Minutes(5)).status());
    pair.ours = static_cast<double>(settings.bytes) / 1e3 / (NowMs() - start);
    const std::string stored = absl::StrCat(daemon->storage(), "/bench/", i);
    CAIRN_RETURN_IF_ERROR(SameAsFile(stored + "/checkpoint", source, i));
    // A step removed while another is newer: the disk does not have to hold them all.
    if (i > 1) {
      ref.step = i - 1;
      (void)session->Remove(ref, /*memory_only=*/false, /*force=*/true);
    }
    sync();
    CAIRN_ASSIGN_OR_RETURN(pair.reference, BestFio(daemon->folder() + "/fio.data", settings.bytes,
                                                   /*read=*/false));
    row.pairs.push_back(pair);
  }
  return row;
}

StatusOr<Row> Restart(const Settings& settings) {
  Row row = {"restart", "ms", "exec to ready, with nothing",       3, false,
             {},        0,    "SIGKILL to the first open answered"};
  const int kObjects = Sized(1000, 100);
  const uint64_t object_bytes = settings.node_bytes / kObjects / kPageBytes * kPageBytes;
  CAIRN_ASSIGN_OR_RETURN(Buffer source, Buffer::Make(object_bytes + kObjects * 8));
  CAIRN_ASSIGN_OR_RETURN(Buffer into, Buffer::Make(object_bytes));
  for (int i = 0; i < settings.pairs; ++i) {
    Pair pair;
    {
      testing::DaemonOptions options;
      CAIRN_ASSIGN_OR_RETURN(auto daemon, testing::Daemon::Prepare(options));
      const double start = NowMs();
      CAIRN_RETURN_IF_ERROR(daemon->Exec());
      CAIRN_ASSIGN_OR_RETURN(auto session, client::Session::Connect(daemon->Client("bench")));
      CAIRN_RETURN_IF_ERROR(session->StatusJson().status());
      pair.reference = NowMs() - start;
    }
    testing::DaemonOptions options;
    options.budget_bytes = settings.node_bytes + settings.node_bytes / 8;
    CAIRN_ASSIGN_OR_RETURN(auto daemon, testing::Daemon::Start(options));
    auto client_options = daemon->Client("bench");
    client_options.timeout = absl::Minutes(2);
    CAIRN_ASSIGN_OR_RETURN(auto session, client::Session::Connect(client_options));
    source.Fill(i + 1);
    std::vector<client::StepWriter::Item> items;
    for (int n = 0; n < kObjects;
         ++n) {  // each object other bytes: another place to start in one buffer
      items.push_back(
          {absl::StrCat("object/", n), ObjectKind::kRaw, {{source.data() + 8 * n, object_bytes}}});
    }
    CAIRN_ASSIGN_OR_RETURN(auto writer, session->BeginStep(1));
    CAIRN_RETURN_IF_ERROR(writer->WriteMany(items));
    CAIRN_RETURN_IF_ERROR(writer->Commit({}).status());
    CAIRN_RETURN_IF_ERROR(WaitIdle(*daemon));
    const int pick = 37 * (i + 1) % kObjects;
    const std::string name = absl::StrCat("object/", pick);
    const double start = NowMs();
    CAIRN_RETURN_IF_ERROR(daemon->KillDaemon());
    CAIRN_ASSIGN_OR_RETURN(auto object, session->Open({}, name, client::OpenMode::kRead));
    pair.ours = NowMs() - start;
    if (object->from_storage()) return absl::DataLossError("it came from storage");
    CAIRN_RETURN_IF_ERROR(object->ReadInto(into.data()));
    if (std::memcmp(into.data(), source.data() + 8 * pick, object_bytes) != 0) {
      return absl::DataLossError(name);
    }
    row.pairs.push_back(pair);
  }
  return row;
}

StatusOr<Row> RpcRate(const Settings& settings) {
  Row row = {"rpc_rate",
             "calls/s",
             "bare Thrift echo, four clients",
             0.75,
             true,
             {},
             10'000,
             "stat of one of 10,000 objects, four clients"};
  const int kObjects = Sized(10'000, 100);
  testing::DaemonOptions options;
  CAIRN_ASSIGN_OR_RETURN(auto daemon, testing::Daemon::Start(options));
  CAIRN_ASSIGN_OR_RETURN(const auto echo, EchoServer::Start(settings, daemon->folder()));
  CAIRN_ASSIGN_OR_RETURN(auto session, client::Session::Connect(daemon->Client("bench")));
  {
    const std::string bytes(100, 'x');
    std::vector<client::StepWriter::Item> items;
    for (int n = 0; n < kObjects; ++n) {
      items.push_back(
          {absl::StrCat("object/", n), ObjectKind::kRaw, {{bytes.data(), bytes.size()}}});
    }
    CAIRN_ASSIGN_OR_RETURN(auto writer, session->BeginStep(1));
    CAIRN_RETURN_IF_ERROR(writer->WriteMany(items));
    CAIRN_RETURN_IF_ERROR(writer->Commit({}).status());
  }
  client::ConnectOptions reader;
  reader.socket = daemon->socket();
  reader.job = "bench";
  for (int i = 0; i < settings.pairs; ++i) {
    Pair pair;
    CAIRN_RETURN_IF_ERROR(WaitIdle(*daemon));
    CAIRN_ASSIGN_OR_RETURN(pair.reference, RateOfFour([&]() -> std::function<Status()> {
                             std::shared_ptr<wire::CairnClient> client = EchoClient(echo->socket());
                             return [client] {
                               Echo(client.get());
                               return absl::OkStatus();
                             };
                           }));
    std::atomic<int> thread{0};
    CAIRN_ASSIGN_OR_RETURN(
        pair.ours, RateOfFour([&]() -> std::function<Status()> {
          auto own = client::Session::Connect(reader);
          auto at = std::make_shared<int>(1000 * ++thread);
          return [own, at, kObjects]() -> Status {
            CAIRN_RETURN_IF_ERROR(own.status());
            client::CheckpointRef ref;
            ref.step = 1;
            const std::string name = absl::StrCat("object/", (*at += 7919) % kObjects);
            CAIRN_ASSIGN_OR_RETURN(const auto info, (*own)->StatObject(ref, name));
            if (info.name != name || info.length != 100) {
              return absl::DataLossError(name);
            }
            return absl::OkStatus();
          };
        }));
    row.pairs.push_back(pair);
  }
  return row;
}

}  // namespace cairn::bench
