#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <csignal>
#include <iostream>
#include <string>

#include "client/cli/context.h"
#include "client/cli/new_file.h"

namespace {

// Whoever reads standard output has gone, or goes within `timeout_ms`.
bool ReaderLeft(int timeout_ms) {
  pollfd out = {STDOUT_FILENO, 0, 0};
  return poll(&out, 1, timeout_ms) == 1 && (out.revents & (POLLERR | POLLHUP)) != 0;
}

bool AskOnTerminal(const std::string& question) {
  std::cerr << question << " [y/N] " << std::flush;
  std::string answer;
  std::getline(std::cin, answer);
  return answer == "y" || answer == "Y" || answer == "yes";
}

cairn::cli::Screen ScreenOfOutput() {
  winsize size = {};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) return {};
  return {size.ws_col, size.ws_row};
}

}  // namespace

int main(int argc, char** argv) {
  // A daemon's socket that closes is an error message, not a silent death.
  std::signal(SIGPIPE, SIG_IGN);
  cairn::cli::RemoveUnfinishedOnSignals();
  cairn::cli::Context context;
  context.console.out = &std::cout;
  context.console.err = &std::cerr;
  context.console.out_terminal = isatty(STDOUT_FILENO) == 1;
  context.console.err_terminal = isatty(STDERR_FILENO) == 1;
  if (isatty(STDIN_FILENO) == 1) context.console.ask = AskOnTerminal;
  context.console.pause = [](absl::Duration time) {
    return !ReaderLeft(static_cast<int>(absl::ToInt64Milliseconds(time)));
  };
  context.console.screen = ScreenOfOutput;
  context.console.reader_left = [] { return ReaderLeft(0); };
  context.clock = cairn::RealClock();
  context.connect = cairn::client::Session::Connect;
  return cairn::cli::Run({argv + 1, argv + argc}, &context);
}
