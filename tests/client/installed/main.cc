// A program outside the tree: every documented header compiles, and a dead socket is an error, not
// a crash.
#include <cstdio>

#include "client/cpp/session.h"
#include "client/cpp/stored.h"
#include "common/checksum.h"

int main() {
  cairn::client::ConnectOptions options;
  options.socket = "/nonexistent/cairn.sock";
  options.job = "run";
  options.timeout = absl::Milliseconds(50);
  const cairn::Status status = cairn::client::Session::Connect(options).status();
  const cairn::Status stored = cairn::client::StoredLatest("/nonexistent", "run").status();
  std::puts(status.ToString().c_str());
  return absl::IsUnavailable(status) && absl::IsNotFound(stored) && cairn::Crc32c(0, "a", 1) != 0
             ? 0
             : 1;
}
