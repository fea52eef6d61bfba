#include "server/rpc/server.h"

#include <algorithm>
#include <map>
#include <set>
#include <system_error>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/mutex.h"
#include "glog/logging.h"
#include "server/rpc/handler.h"

namespace cairn::rpc {
namespace {

// Connections that are only there to be told that they are too many, of one user and of all.
constexpr int64_t kMaxRefusedOfUser = 16;
constexpr int64_t kMaxRefused = 256;

}  // namespace

class Server::Impl {
 public:
  Impl(const Options& options, node::Node* node, UniqueFd listener)
      : options_(options),
        node_(node),
        budget_(options.max_message_bytes, options.max_message_bytes_of_user),
        workers_(options.workers),
        acceptor_(
            node->loops().accepting(), "Thrift socket", std::move(listener),
            [this](UniqueFd socket, const node::Peer& peer) { Accept(std::move(socket), peer); }) {}

  void Start() { acceptor_.Start(); }

  void Stop() {
    acceptor_.Stop();
    std::map<node::EventLoop*, std::vector<std::shared_ptr<Connection>>> by_loop;
    {
      MutexLock lock(&mu_);
      stopping_ = true;
      for (const auto& connection : open_) by_loop[connection->loop().get()].push_back(connection);
    }
    for (auto& [loop, connections] : by_loop) {
      loop->Post([connections = std::move(connections)] {
        for (const auto& connection : connections) connection->Close();
      });
    }
    by_loop.clear();
    {
      MutexLock lock(&mu_);
      while (!open_.empty()) closed_.Wait(&mu_);
    }
    workers_.Stop();
  }

 private:
  struct OfUser {
    int64_t served = 0, refused = 0;
  };

  // Counts a connection in. Not OK: it is only told so. nullopt: not even that.
  std::optional<Status> Admit(uint32_t uid) {
    MutexLock lock(&mu_);
    const int64_t reserved = uid == 0 ? 0 : std::min<int64_t>(64, options_.max_connections / 16);
    OfUser& of_user = users_[uid];
    Status full;
    if (served_ >= options_.max_connections - reserved) {
      full = absl::ResourceExhaustedError(
          absl::StrCat("connections: ", served_,
                       " are open, the limit is limits.connections = ", options_.max_connections,
                       reserved > 0 ? absl::StrCat(" less ", reserved, " for uid 0") : ""));
    } else if (const engine::Options& engine = node_->options().engine;
               of_user.served >= engine.OfUser(options_.max_connections, uid)) {
      full = absl::ResourceExhaustedError(absl::StrCat(
          "connections: uid ", uid, " has ", of_user.served, " open, the limit is ",
          engine.user_percent,
          " % (limits.user_percent) of limits.connections = ", options_.max_connections));
    }
    if (full.ok()) {
      ++of_user.served;
      ++served_;
      return full;
    }
    LOG_EVERY_N(WARNING, 100) << full;
    if (refused_ >= kMaxRefused || of_user.refused >= kMaxRefusedOfUser) return std::nullopt;
    ++of_user.refused;
    ++refused_;
    return full;
  }

  void Leave(uint32_t uid, bool served) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto of_user = users_.find(uid);
    --(served ? of_user->second.served : of_user->second.refused);
    --(served ? served_ : refused_);
    if (of_user->second.served == 0 && of_user->second.refused == 0) users_.erase(of_user);
  }

  void Accept(UniqueFd socket, const node::Peer& peer) {
    const std::optional<Status> admitted = Admit(peer.uid);
    if (!admitted.has_value()) return node_->loops().Dispose(peer.uid, std::move(socket));
    try {
      Serve(std::move(socket), peer, *admitted);
    } catch (const std::exception& e) {  // no memory, no thread
      LOG_EVERY_N(ERROR, 100) << "a client was not accepted: " << e.what();
      MutexLock lock(&mu_);
      Leave(peer.uid, admitted->ok());
    }
  }

  void Serve(UniqueFd socket, const node::Peer& peer, const Status& admitted) {
    // Made first: the connection calls it, and it the connection.
    auto handler = std::make_shared<std::shared_ptr<Handler>>();
    Connection::Owner owner;
    owner.receive = [handler](Connection*, absl::string_view message) {
      (*handler)->Receive(message);
    };
    owner.closed = [this, handler, served = admitted.ok()](Connection* connection) {
      (*handler)->Closed();
      Forget(connection, served);
    };
    ConnectionOptions options = options_.connection;
    if (!admitted.ok()) options.stall_timeout_ms = std::min(options.stall_timeout_ms, 1000);
    auto connection = std::make_shared<Connection>(
        std::move(socket), Credentials{peer.uid, peer.gid, peer.pid}, options,
        node_->loops().Of(peer.uid), &budget_, std::move(owner));
    *handler = std::make_shared<Handler>(node_, &workers_, connection.get(), admitted);
    {
      MutexLock lock(&mu_);
      open_.insert(connection);
    }
    node::EventLoop* const loop = connection->loop().get();
    loop->Post([connection = std::move(connection)] { connection->Start(); });
  }

  void Forget(Connection* connection, bool served) {
    std::shared_ptr<Connection> last;  // goes without the lock
    MutexLock lock(&mu_);
    Leave(connection->credentials().uid, served);
    const auto at = open_.find(connection->shared_from_this());
    last = *at;
    open_.erase(at);
    closed_.NotifyAll();
  }

  const Options options_;
  node::Node* const node_;
  ByteBudget budget_;
  Workers workers_;

  Mutex mu_;
  CondVar closed_;  // with mu_: a connection has closed
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::set<std::shared_ptr<Connection>> open_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint32_t, OfUser> users_ ABSL_GUARDED_BY(mu_);
  int64_t served_ ABSL_GUARDED_BY(mu_) = 0, refused_ ABSL_GUARDED_BY(mu_) = 0;

  node::Acceptor acceptor_;  // last: it uses the members above
};

Server::Server(const Options& options, node::Node* node, UniqueFd listener)
    : impl_(std::make_unique<Impl>(options, node, std::move(listener))) {}
Server::~Server() { Stop(); }
void Server::Start() { impl_->Start(); }
void Server::Stop() { impl_->Stop(); }

}  // namespace cairn::rpc
