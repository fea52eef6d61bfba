// A port for a server that a test starts, or at which a caller must be refused.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <string>

#include "common/fd.h"

namespace cairn::testing {

// Bound at 127.0.0.1, but not listened at: the kernel gives it to no other process while this lives, a caller is refused,
// and one that binds it by its number, with SO_REUSEADDR as servers do, can listen there.
class HeldPort {
 public:
  HeldPort() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int yes = 1;
    EXPECT_EQ(::setsockopt(socket_.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)), 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    EXPECT_EQ(::bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
    EXPECT_EQ(::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
    number_ = ntohs(address.sin_port);
  }
  int number() const { return number_; }
  std::string address() const { return "127.0.0.1:" + std::to_string(number_); }

 private:
  UniqueFd socket_;
  int number_ = 0;
};

}  // namespace cairn::testing
