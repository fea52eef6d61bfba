#include "tests/bench/echo.h"

#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <thrift/protocol/TBinaryProtocol.h>
#include <thrift/server/TThreadedServer.h>
#include <thrift/transport/TBufferTransports.h>
#include <thrift/transport/TServerSocket.h>
#include <thrift/transport/TSocket.h>
#include <unistd.h>

#include <cerrno>
#include <exception>
#include <utility>

#include "absl/time/clock.h"

namespace cairn::bench {
namespace {

using apache::thrift::protocol::TBinaryProtocol;
using apache::thrift::protocol::TBinaryProtocolFactory;
using apache::thrift::transport::TBufferedTransport;
using apache::thrift::transport::TBufferedTransportFactory;
using apache::thrift::transport::TServerSocket;
using apache::thrift::transport::TSocket;

class EchoHandler : public wire::CairnNull {
 public:
  void latest(wire::Latest& reply, const std::string& job, int64_t) override { reply.digest = job; }
};

}  // namespace

StatusOr<Values> EchoChild(const Values& arguments) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  apache::thrift::server::TThreadedServer server(
      std::make_shared<wire::CairnProcessor>(std::make_shared<EchoHandler>()),
      std::make_shared<TServerSocket>(arguments.at("socket")),
      std::make_shared<TBufferedTransportFactory>(), std::make_shared<TBinaryProtocolFactory>());
  server.serve();
  return Values();
}

StatusOr<std::unique_ptr<EchoServer>> EchoServer::Start(const Settings& settings,
                                                        const std::string& folder) {
  const std::string socket = folder + "/echo.sock";
  std::string program = settings.program, flag = "--child", child = "echo",
              where = "socket=" + socket;
  char* argv[] = {program.data(), flag.data(), child.data(), where.data(), nullptr};
  pid_t pid = -1;
  const int error = posix_spawn(&pid, argv[0], nullptr, nullptr, argv, environ);
  if (error != 0) return ErrnoStatus(error, "posix_spawn");
  std::unique_ptr<EchoServer> server(new EchoServer(socket, pid));
  for (const double deadline = NowMs() + 10'000; NowMs() < deadline;) {
    try {
      Echo(EchoClient(socket).get());
      return server;
    } catch (const std::exception&) {
      absl::SleepFor(absl::Milliseconds(5));
    }
  }
  return absl::DeadlineExceededError("the echo server does not answer");
}

EchoServer::~EchoServer() {
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

std::unique_ptr<wire::CairnClient> EchoClient(const std::string& socket) {
  auto transport = std::make_shared<TBufferedTransport>(std::make_shared<TSocket>(socket));
  transport->open();
  return std::make_unique<wire::CairnClient>(
      std::make_shared<TBinaryProtocol>(std::move(transport)));
}

void Echo(wire::CairnClient* client) {
  wire::Latest reply;
  client->latest(reply, "echo echo echo", 0);
}

}  // namespace cairn::bench
