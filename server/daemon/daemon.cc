#include "server/daemon/daemon.h"

#include <signal.h>
#include <unistd.h>

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
#include "server/catalog/catalog.h"
#include "server/keeper/keeper.h"
#include "server/node/node.h"
#include "server/rpc/server.h"
#include "server/storage/storage.h"

namespace cairn::daemon {
namespace {

class KeeperSessions : public node::SessionHolder {
 public:
  explicit KeeperSessions(keeper::KeeperLink* link) : link_(link) {}
  Status HoldSession(SessionId session, int channel, int pidfd, int progress) override {
    return link_->HoldSession(session, channel, pidfd, progress);
  }
  void DropSession(SessionId session) override { link_->DropSession(session); }

 private:
  keeper::KeeperLink* const link_;
};

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "localhost";
}

node::Options NodeOptions(const Options& options, const keeper::Inheritance& inheritance) {
  node::Options node = options.node;
  // A daemon in safe mode makes nothing new.
  if (!inheritance.safe_mode.empty()) node.engine.pool_slabs.clear();
  node.engine.storage = !options.storage.root.empty();
  node.engine.storage_root = options.storage.root;
  node.name = HostName();
  node.version = std::string(Version());
  node.fd_socket = FdSocketPath(options.socket);
  node.storage_root = options.storage.root;
  node.restarts = inheritance.restarts;
  node.safe_mode = inheritance.safe_mode;
  return node;
}

// Ends the process when a drain overstays: a write that hangs in the kernel cannot be waited for.
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

// Members are declared in the order in which they start; they stop in the reverse one.
struct Rooms {
  std::unique_ptr<keeper::KeeperLink> keeper;
  std::unique_ptr<KeeperSessions> sessions;
  std::unique_ptr<cache::Cache> cache;
  std::unique_ptr<storage::Storage> storage;
  std::unique_ptr<node::Node> node;
  std::unique_ptr<rpc::Server> server;
};

StatusOr<Rooms> Start(const Options& options, int keeper_fd) {
  Rooms rooms;
  keeper::Inheritance inheritance;
  CAIRN_ASSIGN_OR_RETURN(rooms.keeper, keeper::KeeperLink::Connect(keeper_fd, &inheritance));
  CAIRN_ASSIGN_OR_RETURN(const std::string failpoints,
                         FailpointsOfLife(options.failpoints, inheritance.restarts));
  CAIRN_RETURN_IF_ERROR(ArmFailpoints(failpoints));
  rooms.sessions = std::make_unique<KeeperSessions>(rooms.keeper.get());

  CAIRN_RETURN_IF_ERROR(Annotate(cache::SelfTest(), "this kernel cannot say who maps a slab"));
  CAIRN_ASSIGN_OR_RETURN(rooms.cache, cache::Cache::Start(options.cache, rooms.keeper.get()));

  if (!options.storage.root.empty()) {
    CAIRN_ASSIGN_OR_RETURN(rooms.storage, storage::MakePosixStorage(options.storage));
  }

  node::Rooms below;
  below.clock = RealClock();
  below.cache = rooms.cache.get();
  below.storage = rooms.storage.get();
  below.holder = rooms.sessions.get();
  if (!options.catalog_path.empty()) {
    below.open_catalog = [path = options.catalog_path] {
      std::string moved_aside;
      StatusOr<std::unique_ptr<catalog::Catalog>> opened =
          catalog::OpenSqliteCatalog(path, &moved_aside);
      if (!moved_aside.empty()) LOG(WARNING) << "catalog made anew: " << moved_aside;
      return opened;
    };
  }
  node::Inherited inherited;
  inherited.journal = std::move(inheritance.journal);
  inherited.fd_listener = std::move(inheritance.fd_listener);
  for (keeper::Inheritance::HeldSlab& slab : inheritance.slabs) {
    inherited.slabs.push_back({slab.slab, slab.bytes, std::move(slab.fd)});
  }
  for (keeper::Inheritance::HeldSession& session : inheritance.sessions) {
    inherited.sessions.push_back({session.session, std::move(session.channel),
                                  std::move(session.pidfd), std::move(session.progress)});
  }
  CAIRN_ASSIGN_OR_RETURN(rooms.node, node::Node::Start(NodeOptions(options, inheritance), below,
                                                       std::move(inherited)));
  rooms.server = std::make_unique<rpc::Server>(options.rpc, rooms.node.get(),
                                               std::move(inheritance.thrift_listener));
  rooms.server->Start();
  LOG(INFO) << "serving on " << options.socket << ", budget "
            << FormatBytes(options.node.engine.budget_bytes)
            << (inheritance.restarts > 0 ? absl::StrCat(", restart ", inheritance.restarts) : "")
            << (inheritance.safe_mode.empty() ? "" : ", safe mode: " + inheritance.safe_mode);
  return rooms;
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

int RunDaemon(const Options& options, int keeper_fd) {
  // Blocked before any thread exists, so that all inherit it and only sigwait sees them.
  sigset_t stops;
  sigemptyset(&stops);
  sigaddset(&stops, SIGTERM);
  sigaddset(&stops, SIGINT);
  pthread_sigmask(SIG_BLOCK, &stops, nullptr);
  signal(SIGPIPE, SIG_IGN);

  StatusOr<Rooms> rooms = Start(options, keeper_fd);
  if (!rooms.ok()) {
    LOG(ERROR) << "cannot start: " << rooms.status();
    return rooms.status().code() == absl::StatusCode::kInvalidArgument ? 2 : 1;
  }
  int signal = 0;
  sigwait(&stops, &signal);
  LOG(INFO) << "stopping: " << strsignal(signal);
  constexpr int kStopSeconds = 5;  // beyond the drain's own time
  const Deadline deadline(std::chrono::steady_clock::now() +
                          std::chrono::seconds(options.drain_timeout_seconds + kStopSeconds));
  const bool drained =
      rooms->node->Drain(RealClock()->Now() + options.drain_timeout_seconds * kNanosPerSecond);
  if (!drained) LOG(WARNING) << "stopping before everything is persisted: out of time";
  rooms->node->Stop();  // answers parked calls, so that the server's threads end
  rooms->server->Stop();
  { const Rooms stopped = *std::move(rooms); }  // in the reverse of their order
  LOG(INFO) << "stopped";
  return 0;
}

}  // namespace cairn::daemon
