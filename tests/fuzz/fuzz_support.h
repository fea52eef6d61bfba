// What the fuzzers of sockets share.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <string>

#include "common/clock.h"
#include "common/fd.h"
#include "tests/support/patience.h"

namespace cairn::testing {

// Says what is wrong, and ends the process as libFuzzer's findings do.
[[noreturn]] inline void Finding(const std::string& what) {
  std::fprintf(stderr, "FINDING: %s\n", what.c_str());
  std::abort();
}

// Waits until `calm()`; a finding when that takes longer than anything here should.
template <typename F>
void AwaitCalm(const char* what, F calm) {
  constexpr int kHurriedLooks = 20;
  const MonotonicNanos deadline = RealClock()->Now() + Patient(20 * kNanosPerSecond);
  for (int looks = 0; !calm(); ++looks) {
    if (RealClock()->Now() > deadline) Finding(std::string("does not come to rest: ") + what);
    if (looks > kHurriedLooks) usleep(50);
  }
}

inline size_t OpenDescriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

// The same once whatever has been closed is closed: the least of many looks.
inline size_t DescriptorsAtRest() {
  constexpr int kLooks = 100;
  size_t least = OpenDescriptors();
  for (int i = 0; i < kLooks; ++i) {
    usleep(1000);
    least = std::min(least, OpenDescriptors());
  }
  return least;
}

// Not valid when the connection is not taken.
inline UniqueFd ConnectUnix(const std::string& path, int type) {
  UniqueFd fd(socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    fd.Reset();
  }
  return fd;
}

// A folder for the sockets of this process, which goes with it.
class SocketFolder {
 public:
  SocketFolder() {
    std::string pattern = std::filesystem::temp_directory_path() / "cairn-fuzz-XXXXXX";
    if (mkdtemp(pattern.data()) == nullptr) Finding("mkdtemp " + pattern);
    folder_ = pattern;
  }
  ~SocketFolder() { std::filesystem::remove_all(folder_); }
  std::string Path(const std::string& name) const { return folder_ + "/" + name; }

 private:
  std::string folder_;
};

}  // namespace cairn::testing
