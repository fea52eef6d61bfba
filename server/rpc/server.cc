#include "server/rpc/server.h"

#include <pthread.h>
#include <thrift/TOutput.h>
#include <thrift/protocol/TBinaryProtocol.h>
#include <unistd.h>

#include <exception>
#include <list>
#include <thread>
#include <utility>

#include "common/mutex.h"
#include "glog/logging.h"
#include "server/rpc/handler.h"

namespace cairn::rpc {
namespace {

using apache::thrift::protocol::TBinaryProtocolT;
using apache::thrift::transport::TTransportException;

// The longest string (a chunk, and space for the rest of its call) and the longest list that an
// honest client sends. They bound what a length field can make the daemon allocate before its bytes
// have come.
constexpr int32_t kMaxString = (8 << 20) + (1 << 16);
constexpr int32_t kMaxContainer = 1 << 20;

void LogBroken(const char* message) {
  LOG_EVERY_N(WARNING, 20) << "client connection: " << message;
}

// Answers a connection's calls until it ends.
void ServeCalls(node::Node* node, const std::shared_ptr<Connection>& connection) {
  try {
    const auto protocol = std::make_shared<TBinaryProtocolT<Connection>>(
        connection, kMaxString, kMaxContainer, /*strict_read=*/true, /*strict_write=*/true);
    wire::CairnProcessor processor(std::make_shared<Handler>(node, connection.get()));
    do {
      connection->BeginMessage();
    } while (processor.process(protocol, protocol, nullptr));
  } catch (const TTransportException& e) {
    // END_OF_FILE: closed; TIMED_OUT: silent for too long.
    if (e.getType() == TTransportException::CORRUPTED_DATA) LogBroken(e.what());
  } catch (const std::exception& e) {
    LogBroken(e.what());
  }
  connection->close();
}

}  // namespace

class Server::Impl {
 public:
  Impl(const Options& options, node::Node* node, UniqueFd listener)
      : max_connections_(options.max_connections),
        node_(node),
        listener_(std::move(listener), options.connection) {
    apache::thrift::GlobalOutput.setOutputFunction(LogBroken);
  }

  void Start() {
    accepting_ = std::thread([this] {
      pthread_setname_np(pthread_self(), "accept");
      while (AwaitRoom()) {
        try {
          std::shared_ptr<Connection> connection = listener_.Accept();
          if (connection == nullptr) return;
          ServeInThread(std::move(connection));
        } catch (const std::exception& e) {  // no memory, no thread: that client is turned away
          LOG_EVERY_N(ERROR, 100) << "a client was not accepted: " << e.what();
          usleep(50'000);
        }
      }
    });
  }

  void Stop() {
    if (!accepting_.joinable()) return;
    {
      MutexLock lock(&mu_);
      stopping_ = true;
      ended_one_.NotifyAll();
    }
    listener_.Interrupt();
    listener_.ShutdownConnections();
    accepting_.join();
    MutexLock lock(&mu_);
    while (!serving_.empty()) ended_one_.Wait(&mu_);
    for (std::thread& thread : ended_) thread.join();
    ended_.clear();
  }

 private:
  using Threads = std::list<std::thread>;

  // Waits until one more connection may be served; false: the server stops. Joins what has ended.
  bool AwaitRoom() {
    Threads ended;
    {
      MutexLock lock(&mu_);
      while (!stopping_ && static_cast<int64_t>(serving_.size()) >= max_connections_) {
        ended_one_.Wait(&mu_);
      }
      if (stopping_) return false;
      ended.swap(ended_);
    }
    for (std::thread& thread : ended) thread.join();
    return true;
  }

  void ServeInThread(std::shared_ptr<Connection> connection) {
    MutexLock starting(&mu_);  // so that the thread does not end before it is in serving_
    const Threads::iterator self = serving_.emplace(serving_.end());
    try {
      *self = std::thread([this, self, connection = std::move(connection)]() mutable {
        pthread_setname_np(pthread_self(), "client");
        ServeCalls(node_, connection);
        connection.reset();
        MutexLock lock(&mu_);
        ended_.splice(ended_.end(), serving_, self);
        ended_one_.NotifyAll();
      });
    } catch (...) {
      serving_.erase(self);
      throw;
    }
  }

  const int64_t max_connections_;
  node::Node* const node_;
  Listener listener_;
  std::thread accepting_;
  Mutex mu_;
  CondVar ended_one_;  // with mu_
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  Threads serving_ ABSL_GUARDED_BY(mu_);
  Threads ended_ ABSL_GUARDED_BY(mu_);  // and not joined yet
};

Server::Server(const Options& options, node::Node* node, UniqueFd listener)
    : impl_(std::make_unique<Impl>(options, node, std::move(listener))) {}
Server::~Server() { Stop(); }
void Server::Start() { impl_->Start(); }
void Server::Stop() { impl_->Stop(); }

}  // namespace cairn::rpc
