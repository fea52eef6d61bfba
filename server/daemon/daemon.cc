#include "server/daemon/daemon.h"

#include <malloc.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/failpoint.h"
#include "common/mutex.h"
#include "common/version.h"
#include "glog/logging.h"
#include "server/cache/cache.h"
#include "server/daemon/catalog_opener.h"
#include "server/daemon/ring_options.h"
#include "server/daemon/ring_seat.h"
#include "server/daemon/ring_transport.h"
#include "server/keeper/death.h"
#include "server/keeper/link.h"
#include "server/node/background_gate.h"
#include "server/node/node.h"
#include "server/rpc/peers.h"
#include "server/rpc/server.h"
#include "server/storage/posix_storage.h"
#include "server/storage/suspects.h"
#include "server/storage/wary_storage.h"
#include "server/transport/transport.h"

namespace cairn::daemon {
namespace {

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "localhost";
}

node::Options NodeOptions(const Options& options, const node::Inherited& inherited) {
  node::Options node = options.node;
  node.engine.own_uid = geteuid();
  // Half of the descriptors are for slabs; the rest for connections, sessions and files.
  struct rlimit descriptors = {};
  if (getrlimit(RLIMIT_NOFILE, &descriptors) == 0) {
    node.engine.max_slabs = std::clamp<int64_t>(
        static_cast<int64_t>(std::min<rlim_t>(descriptors.rlim_cur, rlim_t{1} << 30)) / 2, 64,
        node.engine.max_slabs);
  }
  // A daemon in safe mode makes no new slabs.
  if (!inherited.safe_mode.empty()) node.engine.pool_slabs.clear();
  node.engine.storage = !options.storage.root.empty();
  node.name = HostName();
  if (options.UsesMysql()) node.recorder.backend = "mysql";
  node.engine.shared_catalog = options.UsesMysql();
  if (!options.node.engine.ring.Alone()) node.recorder.look_again_ms = 30'000;
  node.version = std::string(Version());
  node.fd_socket = FdSocketPath(options.socket);
  node.storage_root = options.storage.root;
  return node;
}

// Ends the process when a drain takes too long: a write that hangs in the kernel has no end.
class Deadline {
 public:
  explicit Deadline(std::chrono::steady_clock::time_point at)
      : thread_([this, at] {
          MutexLock lock(&mu_);
          while (!over_) {
            if (!wake_.WaitUntil(&mu_, at) && !over_) {
              LOG(ERROR) << "stopping took too long, leaving the rest";
              google::FlushLogFiles(google::GLOG_INFO);
              _exit(0);
            }
          }
        }) {}
  ~Deadline() {
    {
      MutexLock lock(&mu_);
      over_ = true;
      wake_.NotifyAll();
    }
    thread_.join();
  }

 private:
  Mutex mu_;
  CondVar wake_;
  bool over_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

// Members are declared in the order in which they start; they stop in the reverse one. Without a ring there is
// neither transport nor peers.
struct Rooms {
  std::unique_ptr<node::BackgroundGate> background =
      std::make_unique<node::BackgroundGate>(RealClock());
  std::unique_ptr<keeper::Link> keeper;
  std::unique_ptr<cache::Cache> cache;
  std::unique_ptr<storage::Suspects> suspects;
  std::unique_ptr<storage::Storage> storage;
  std::unique_ptr<MembersWire> wire;
  std::unique_ptr<transport::Transport> transport;
  std::unique_ptr<node::Node> node;
  std::unique_ptr<RingSeat> seat;
  std::unique_ptr<rpc::Peers> peers;
  std::unique_ptr<rpc::Server> server;
};

std::unique_ptr<storage::Suspects> LearnSuspects(UniqueFd black_box) {
  static_assert(node::kBlackBoxBytes >= storage::BlackBox::kBytes);
  std::unique_ptr<storage::BlackBox> box;
  if (black_box.valid()) {
    auto opened = storage::BlackBox::Open(std::move(black_box));
    LOG_IF(ERROR, !opened.ok()) << "nobody is suspected: black box: " << opened.status();
    if (opened.ok()) box = *std::move(opened);
  }
  auto suspects = std::make_unique<storage::Suspects>(std::move(box), RealClock());
  for (const std::string& learnt : suspects->learnt()) LOG(ERROR) << learnt;
  return suspects;
}

Status StartBelowNode(const Options& options, UniqueFd black_box, Rooms* rooms) {
  CAIRN_RETURN_IF_ERROR(Annotate(cache::SelfTest(), "this kernel cannot say who maps a slab"));
  CAIRN_ASSIGN_OR_RETURN(rooms->cache, cache::Cache::Start(options.cache, rooms->keeper.get()));
  if (options.storage.root.empty()) return absl::OkStatus();
  // What storage holds of a job is anybody's who may write there: it takes its share of memory, no more.
  storage::PosixOptions posix = options.storage;
  uint64_t scan_memory = options.scan_memory_bytes;
  if (scan_memory == 0) {
    scan_memory = std::max<uint64_t>(options.node.engine.budget_bytes / 16, 64 << 20);
  }
  posix.limits = {.manifest_bytes = scan_memory, .memory_bytes = scan_memory};
  rooms->suspects = LearnSuspects(std::move(black_box));
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<storage::Storage> files, storage::MakePosixStorage(posix));
  rooms->storage = storage::MakeWaryStorage(std::move(files), rooms->suspects.get());
  return absl::OkStatus();
}

// The node hears the others from here on, and they it.
Status StartPeers(const Options& options, Rooms* rooms) {
  CAIRN_ASSIGN_OR_RETURN(
      rooms->peers,
      rpc::Peers::Open(PeersOf(options, rooms->transport->Address()), rooms->node.get()));
  rooms->node->SetLinks(rooms->peers.get());
  rooms->wire->Set(rooms->peers.get());
  rooms->peers->Start();
  return absl::OkStatus();
}

// What this process is asked by its own membership: to hand over to the next daemon. Blocked as the others.
constexpr int kReplaceSignal = SIGUSR2;

void AskToBeReplaced(const std::string& why) {
  LOG(INFO) << "ring: " << why << ": the next daemon takes over";
  ::kill(::getpid(), kReplaceSignal);
}

StatusOr<Rooms> Start(const Options& given, int keeper_fd) {
  Rooms rooms;
  node::Inherited inherited;
  CAIRN_ASSIGN_OR_RETURN(rooms.keeper, keeper::Link::Connect(keeper_fd, &inherited));
  Options options = given;
  fact::RingSeat seat;
  if (given.members_from_catalog) {
    CAIRN_ASSIGN_OR_RETURN(seat, SeatIn(inherited.journal, given));
    options.node.engine.ring = RingOf(given, seat);
  }
  const int restarts = inherited.restarts;
  const std::string safe_mode = inherited.safe_mode;
  CAIRN_ASSIGN_OR_RETURN(const std::string failpoints,
                         FailpointsOfLife(options.failpoints, restarts));
  CAIRN_RETURN_IF_ERROR(ArmFailpoints(failpoints));
  CAIRN_RETURN_IF_ERROR(StartBelowNode(options, std::move(inherited.black_box), &rooms));

  const engine::RingOptions& ring = options.node.engine.ring;
  const bool unranked = ring.from_catalog && ring.rank == engine::kNoRank;
  const bool in_ring = !ring.Alone() && !unranked;
  if (in_ring) {
    rooms.wire = std::make_unique<MembersWire>();
    CAIRN_ASSIGN_OR_RETURN(rooms.transport,
                           StartRingTransport(options, rooms.background.get(), rooms.wire.get()));
  }

  node::Rooms below;
  below.clock = RealClock();
  below.cache = rooms.cache.get();
  below.storage = rooms.storage.get();
  below.suspects = rooms.suspects.get();
  below.transport = rooms.transport.get();
  below.background = rooms.background.get();
  below.holder = rooms.keeper.get();
  // What a node without a rank has is in no index: its rows would be nobody's.
  if (!unranked) below.open_catalog = CatalogOpener(options, seat);
  if (inherited.restarts == 0 && inherited.slabs.empty()) {
    CAIRN_RETURN_IF_ERROR(CheckPasswordFile(options));
  }
  const node::Options node = NodeOptions(options, inherited);
  UniqueFd thrift_listener = std::move(inherited.thrift_listener);
  CAIRN_ASSIGN_OR_RETURN(rooms.node, node::Node::Start(node, below, std::move(inherited)));
  if (given.members_from_catalog) {
    rooms.seat = std::make_unique<RingSeat>(options, given.node.engine.ring.rank, seat,
                                            rooms.node.get(), AskToBeReplaced);
  }
  if (in_ring) CAIRN_RETURN_IF_ERROR(StartPeers(options, &rooms));
  if (rooms.seat != nullptr) rooms.seat->Start();

  rooms.server =
      std::make_unique<rpc::Server>(options.rpc, rooms.node.get(), std::move(thrift_listener));
  rooms.server->Start();
  rooms.keeper->Serving();
  LOG(INFO) << "serving on " << options.socket << ", budget "
            << FormatBytes(node.engine.budget_bytes)
            << (restarts > 0 ? absl::StrCat(", restart ", restarts) : "")
            << (safe_mode.empty() ? "" : ", safe mode: " + safe_mode);
  return rooms;
}

// Waits for what ends the daemon: SIGTERM, SIGINT, or SIGHUP from the keeper.
int WaitForStop(const sigset_t& stops) {
  const pid_t keeper = getppid();
  siginfo_t info = {};
  while (true) {
    const int signal = sigwaitinfo(&stops, &info);
    if (signal == SIGHUP && info.si_pid != keeper) {
      LOG(WARNING) << "SIGHUP is for the keeper, process " << keeper << "; nothing is done";
    } else if (signal == kReplaceSignal && info.si_pid != ::getpid()) {
      LOG(WARNING) << "SIGUSR2 is nobody else's to send; nothing is done";
    } else if (signal > 0) {
      return signal;
    }
  }
}

// The next daemon takes over at once. For clients this is a death: they repeat their call. Only
// commits are let finish, because each is nearly done, and the catalog's rows are written. Nothing is
// stopped or answered otherwise: what a caller waits for, it goes on waiting for with the next daemon.
[[noreturn]] void HandOver(node::Node* node, int exit_code) {
  constexpr MonotonicNanos kFinishCommits = 2 * kNanosPerSecond;
  const bool finished = node->FinishCommits(RealClock()->Now() + kFinishCommits);
  constexpr int kFlushCatalogMs = 500;
  node->FlushCatalog(kFlushCatalogMs);
  LOG(INFO) << "handing over to the next daemon"
            << (finished ? "" : "; commits are under way and will be repeated");
  google::FlushLogFiles(google::GLOG_INFO);
  _exit(exit_code);
}

}  // namespace

StatusOr<std::string> FailpointsOfLife(const std::string& spec, int life) {
  std::vector<std::string> mine;
  for (absl::string_view item : absl::StrSplit(spec, ',', absl::SkipEmpty())) {
    const size_t at = item.find('@');
    int of_life = 0;
    std::string point(item);
    if (at != absl::string_view::npos) {
      const size_t end = item.find_first_of(":=", at);
      if (!absl::SimpleAtoi(
              item.substr(at + 1,
                          end == absl::string_view::npos ? absl::string_view::npos : end - at - 1),
              &of_life) ||
          of_life < 0) {
        return absl::InvalidArgumentError(
            absl::StrCat("test.failpoints: \"", item, "\" has a life that is not a number"));
      }
      point = std::string(item.substr(0, at));
      if (end != absl::string_view::npos) absl::StrAppend(&point, item.substr(end));
    }
    if (of_life == life) mine.push_back(std::move(point));
  }
  return absl::StrJoin(mine, ",");
}

// malloc would have eight for each processor, and every one keeps the pages that its busiest moment took:
// with a thread for each connection that is most of what a daemon holds beside the budget after some days.
constexpr int kMallocArenas = 4;

int RunDaemon(const Options& options, int keeper_fd) {
  // Blocked before any thread exists, so that all inherit it and only sigwaitinfo sees them.
  sigset_t stops;
  sigemptyset(&stops);
  for (int signal : {SIGTERM, SIGINT, SIGHUP, kReplaceSignal}) sigaddset(&stops, signal);
  pthread_sigmask(SIG_BLOCK, &stops, nullptr);
  mallopt(M_ARENA_MAX, kMallocArenas);
  RaiseDescriptorLimit();

  StatusOr<Rooms> rooms = Start(options, keeper_fd);
  if (!rooms.ok()) {
    LOG(ERROR) << "cannot start: " << rooms.status();
    return rooms.status().code() == absl::StatusCode::kInvalidArgument ? 2 : 1;
  }
  const int signal = WaitForStop(stops);
  // Its end is the keeper's wish from here on, whoever hangs until then.
  if (signal == SIGHUP && rooms->suspects != nullptr) rooms->suspects->EndInOrder();
  if (signal == SIGHUP) HandOver(rooms->node.get(), 0);
  if (signal == kReplaceSignal) {
    if (rooms->suspects != nullptr) rooms->suspects->EndInOrder();
    HandOver(rooms->node.get(), keeper::kHandsOverExitCode);
  }
  LOG(INFO) << "stopping: " << strsignal(signal);
  const auto in_seconds = [](int64_t seconds) {
    return std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  };
  constexpr int kStopSeconds = 5;  // beyond the drain's own time
  const Deadline deadline(in_seconds(options.drain_timeout_seconds + kStopSeconds));
  const bool drained =
      rooms->node->Drain(RealClock()->Now() + options.drain_timeout_seconds * kNanosPerSecond);
  if (rooms->suspects != nullptr) rooms->suspects->EndInOrder();
  if (!drained) LOG(WARNING) << "stopping before everything is persisted: out of time";
  // A drain that ended early leaves no more time to a thread that hangs in storage.
  const Deadline sooner(in_seconds(kStopSeconds));
  if (rooms->seat != nullptr) rooms->seat->Stop();
  if (rooms->peers != nullptr) rooms->peers->Stop();  // the node waits for no member
  rooms->node->Stop();  // answers parked calls, so that the server's threads end
  rooms->server->Stop();
  rooms->node->SetLinks(nullptr);
  if (rooms->wire != nullptr) rooms->wire->Set(nullptr);
  { const Rooms stopped = *std::move(rooms); }  // stops the rest, in the reverse of their order
  LOG(INFO) << "stopped";
  return 0;
}

}  // namespace cairn::daemon
