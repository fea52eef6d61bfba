// A connection to a database server that breaks at the worst moment: after the server has done what was asked of it.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "common/mutex.h"

namespace cairn::catalog {

// Stands between a catalog and the server's socket, and can lose the answer to a COMMIT.
class LossyProxy {
 public:
  LossyProxy(const std::string& server, const std::string& path) : server_(server) {
    listener_ = Socket();
    const sockaddr_un address = AddressOf(path);
    EXPECT_EQ(::bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(::listen(listener_, 8), 0);
    accepting_ = std::thread([this] { Accept(); });
  }
  ~LossyProxy() {
    ::shutdown(listener_, SHUT_RDWR);
    accepting_.join();
    for (std::thread& thread : serving_) thread.join();
    ::close(listener_);
  }
  // Of the next statement that has this in it the server's answer is lost, and the connection cut.
  void LoseTheAnswerTo(const std::string& statement) {
    MutexLock lock(&mu_);
    lost_ = statement;
  }
  int lost() {
    MutexLock lock(&mu_);
    return losses_;
  }

 private:
  static int Socket() { return ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0); }
  static sockaddr_un AddressOf(const std::string& path) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    EXPECT_LT(path.size(), sizeof(address.sun_path));
    path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    return address;
  }
  void Accept() {
    for (;;) {
      const int client = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (client < 0) return;
      serving_.emplace_back([this, client] { Serve(client); });
    }
  }
  void Serve(int client) {
    const int server = Socket();
    const sockaddr_un address = AddressOf(server_);
    bool open =
        ::connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
    bool losing = false;
    std::vector<char> bytes(1 << 16);
    while (open) {
      pollfd ends[] = {{client, POLLIN, 0}, {server, POLLIN, 0}};
      if (::poll(ends, 2, -1) < 0) break;
      for (const int from : {0, 1}) {
        if (ends[from].revents == 0) continue;
        const ssize_t length = ::read(ends[from].fd, bytes.data(), bytes.size());
        open = open && length > 0;
        if (length <= 0) continue;
        if (from == 0) losing = losing || IsLost({bytes.data(), static_cast<size_t>(length)});
        if (from == 1 && losing) {
          open = false;  // the server has done it
          continue;
        }
        open = open && ::send(ends[1 - from].fd, bytes.data(), static_cast<size_t>(length),
                              MSG_NOSIGNAL) == length;
      }
    }
    ::close(server);
    ::close(client);
  }
  bool IsLost(absl::string_view said) {
    MutexLock lock(&mu_);
    if (lost_.empty() || !absl::StrContains(said, lost_)) return false;
    lost_.clear();
    ++losses_;
    return true;
  }

  const std::string server_;
  int listener_ = -1;
  Mutex mu_;
  std::string lost_ ABSL_GUARDED_BY(mu_);
  int losses_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<std::thread> serving_;  // of the accepting thread, until that has ended
  std::thread accepting_;
};

}  // namespace cairn::catalog
