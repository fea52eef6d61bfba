#include "server/rpc/server.h"

#include <algorithm>
#include <map>
#include <set>
#include <system_error>
#include <utility>

#include "common/mutex.h"
#include "glog/logging.h"
#include "server/rpc/connection_limits.h"
#include "server/rpc/handler.h"

namespace cairn::rpc {
class Server::Impl {
 public:
  Impl(const Options& options, node::Node* node, UniqueFd listener)
      : options_(options),
        node_(node),
        budget_(options.max_message_bytes, options.max_message_bytes_of_user),
        limits_(options.max_connections, node->options().engine),
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

  Held held() const {
    MutexLock lock(&mu_);
    return {open_.size(), budget_.taken()};
  }

 private:
  void Accept(UniqueFd socket, const node::Peer& peer) {
    try {
      std::shared_ptr<ConnectionLimits::Ticket> ticket = limits_.Admit(peer.uid);
      if (ticket == nullptr) return node_->loops().Dispose(peer.uid, std::move(socket));
      Serve(std::move(socket), peer, std::move(ticket));
    } catch (const std::exception& e) {  // no memory, no thread
      LOG_EVERY_N(ERROR, 100) << "a client was not accepted: " << e.what();
    }
  }

  void Serve(UniqueFd socket, const node::Peer& peer,
             std::shared_ptr<ConnectionLimits::Ticket> ticket) {
    // Made first: the connection calls it, and it the connection.
    auto handler = std::make_shared<std::shared_ptr<Handler>>();
    Connection::Owner owner;
    owner.receive = [handler](Connection*, absl::string_view message) {
      const std::shared_ptr<Handler> self = *handler;  // what it does may close the connection
      self->Receive(message);
    };
    owner.receive_too_long = [handler](Connection*, absl::string_view begin, uint32_t length) {
      const std::shared_ptr<Handler> self = *handler;
      self->ReceiveTooLong(begin, length);
    };
    owner.closed = [this, handler](Connection* connection) {
      (*handler)->Closed();
      // Calls that are under way may keep the handler; it keeps nothing.
      handler->reset();
      Forget(connection);
    };
    ConnectionOptions options = options_.connection;
    if (!ticket->refused().ok())
      options.stall_timeout_ms = std::min(options.stall_timeout_ms, 1000);
    auto connection = std::make_shared<Connection>(
        std::move(socket), Credentials{peer.uid, peer.gid, peer.pid}, options,
        node_->loops().Of(peer.uid), &budget_, std::move(owner));
    *handler = std::make_shared<Handler>(node_, &workers_, connection.get(), std::move(ticket));
    {
      MutexLock lock(&mu_);
      open_.insert(connection);
    }
    node::EventLoop* const loop = connection->loop().get();
    loop->Post([connection = std::move(connection)] { connection->Start(); });
  }

  void Forget(Connection* connection) {
    std::shared_ptr<Connection> last;  // goes without the lock
    MutexLock lock(&mu_);
    const auto at = open_.find(connection->shared_from_this());
    last = *at;
    open_.erase(at);
    closed_.NotifyAll();
  }

  const Options options_;
  node::Node* const node_;
  ByteBudget budget_;
  ConnectionLimits limits_;
  Workers workers_;

  mutable Mutex mu_;
  CondVar closed_;  // with mu_: a connection has closed
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::set<std::shared_ptr<Connection>> open_ ABSL_GUARDED_BY(mu_);

  node::Acceptor acceptor_;  // last: it uses the members above
};

Server::Server(const Options& options, node::Node* node, UniqueFd listener)
    : impl_(std::make_unique<Impl>(options, node, std::move(listener))) {}
Server::~Server() { Stop(); }
void Server::Start() { impl_->Start(); }
void Server::Stop() { impl_->Stop(); }
Server::Held Server::held() const { return impl_->held(); }

}  // namespace cairn::rpc
