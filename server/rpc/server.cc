#include "server/rpc/server.h"

#include <pthread.h>
#include <thrift/TOutput.h>
#include <thrift/protocol/TBinaryProtocol.h>
#include <thrift/server/TThreadedServer.h>

#include <exception>
#include <utility>

#include "glog/logging.h"
#include "server/rpc/handler.h"

namespace cairn::rpc {
namespace {

using apache::thrift::protocol::TBinaryProtocolFactoryT;
using apache::thrift::protocol::TProtocol;
using apache::thrift::server::TServerEventHandler;
using apache::thrift::server::TThreadedServer;
using apache::thrift::transport::TTransport;
using apache::thrift::transport::TTransportFactory;

// The longest string (a chunk, and space for the rest of its call) and the longest list that an
// honest client sends. They bound what a length field can make the daemon allocate before its bytes
// have come.
constexpr int32_t kMaxString = (8 << 20) + (1 << 16);
constexpr int32_t kMaxContainer = 1 << 20;

// Tells a connection where its messages begin.
class MessageMarks : public TServerEventHandler {
 public:
  void processContext(void*, std::shared_ptr<TTransport> transport) override {
    if (auto* connection = dynamic_cast<Connection*>(transport.get())) connection->BeginMessage();
  }
};

// Thrift reports broken frames here, from any thread.
void LogThrift(const char* message) {
  LOG_EVERY_N(WARNING, 20) << "client connection: " << message;
}

}  // namespace

class Server::Impl {
 public:
  Impl(const Options& options, node::Node* node, UniqueFd listener)
      : listener_(std::make_shared<Listener>(std::move(listener), options.connection)) {
    apache::thrift::GlobalOutput.setOutputFunction(LogThrift);
    auto protocols = std::make_shared<TBinaryProtocolFactoryT<Connection>>(
        kMaxString, kMaxContainer, /*strict_read=*/true, /*strict_write=*/true);
    server_ = std::make_unique<TThreadedServer>(
        std::make_shared<wire::CairnProcessorFactory>(std::make_shared<HandlerFactory>(node)),
        listener_, std::make_shared<TTransportFactory>(), protocols);
    server_->setServerEventHandler(std::make_shared<MessageMarks>());
    server_->setConcurrentClientLimit(options.max_connections);
  }

  void Start() {
    thread_ = std::thread([this] {
      pthread_setname_np(pthread_self(), "accept");
      try {
        server_->serve();  // joins the connections' threads before it returns
      } catch (const std::exception& e) {
        LOG(FATAL) << "Thrift server: " << e.what();
      }
    });
  }

  void Stop() {
    if (!thread_.joinable()) return;
    listener_->interrupt();
    listener_->interruptChildren();
    server_->stop();
    thread_.join();
  }

 private:
  const std::shared_ptr<Listener> listener_;
  std::unique_ptr<TThreadedServer> server_;
  std::thread thread_;
};

Server::Server(const Options& options, node::Node* node, UniqueFd listener)
    : impl_(std::make_unique<Impl>(options, node, std::move(listener))) {}
Server::~Server() { Stop(); }
void Server::Start() { impl_->Start(); }
void Server::Stop() { impl_->Stop(); }

}  // namespace cairn::rpc
