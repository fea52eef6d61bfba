// The owner's end of data streams: a thread accepts, and each stream has one that answers its
// questions. Streams are bounded; so are those whose peer has not yet shown a token that counts,
// of which the oldest gives way: strangers do not keep members out.
#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "common/mutex.h"
#include "common/status.h"
#include "common/tcp_listener.h"
#include "server/transport/slabs.h"
#include "server/transport/tcp_grants.h"
#include "server/transport/tcp_socket.h"

namespace cairn::transport {

struct TcpServerOptions {
  std::string listen = "127.0.0.1:0";  // ADDRESS:PORT; port 0: the kernel chooses
  int max_streams = 256;               // 2 … 4,096; one more than `max_strangers` at least
  int max_strangers = 32;              // 1 … max_streams − 1
  MonotonicNanos stall = 3 * kNanosPerSecond;  // a peer that moves nothing for so long is cut off
  MonotonicNanos idle = 60 * kNanosPerSecond;  // a stream without questions is closed after it
  // Called before each answer that has bytes, on its stream's thread: it may hold the answer up, for much less
  // than `stall`.
  std::function<void()> before_answer = [] {};
  // With TLS a stream is answered once its certificate names the rank that it says it is.
  StreamSecurity security;
  Status Validate() const;
};

// Thread-safe.
class TcpServer {
 public:
  // `slabs` and `grants` outlive it.
  static StatusOr<std::unique_ptr<TcpServer>> Start(const TcpServerOptions& options, Slabs* slabs,
                                                    TcpGrants* grants);
  ~TcpServer();
  std::string address() const { return listener_->address().ToString(); }
  std::string problem() const { return listener_->Problem(); }  // why nobody can open a stream
  int streams() const;                                          // that are open now

 private:
  struct Stream {
    Stream(UniqueFd fd, MonotonicNanos stall, std::unique_ptr<tls::TlsSession> session)
        : socket(std::move(fd), stall, std::move(session)) {}
    TcpSocket socket;
    TcpGrants::StreamId id = 0;
    std::atomic<bool> stranger = true;
    std::atomic<bool> ended = false;
    std::thread thread;
  };

  TcpServer(const TcpServerOptions& options, Slabs* slabs, TcpGrants* grants);
  void Accept();
  void AwaitListener();  // or that it stops
  void Admit(UniqueFd connection) ABSL_LOCKS_EXCLUDED(mu_);
  // Of streams that are too many the oldest of a stranger gives way. False: there is none.
  bool MakeRoom() ABSL_LOCKS_EXCLUDED(mu_);
  void Reap(bool all) ABSL_LOCKS_EXCLUDED(mu_);  // joins threads that have ended
  void Serve(Stream* stream);
  Status Greet(Stream* stream, PeerId* reader);
  // OK: the next question may follow.
  Status AnswerOne(Stream* stream, PeerId reader);

  const TcpServerOptions options_;
  Slabs* const slabs_;
  TcpGrants* const grants_;
  std::unique_ptr<TcpListener> listener_;  // constant after Start
  std::atomic<bool> stopping_ = false;
  mutable Mutex mu_;
  std::list<std::unique_ptr<Stream>> streams_ ABSL_GUARDED_BY(mu_);  // in order of their coming
  std::thread accepting_;
};

}  // namespace cairn::transport
