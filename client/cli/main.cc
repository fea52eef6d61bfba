#include <unistd.h>

#include <csignal>
#include <iostream>
#include <string>

#include "client/cli/context.h"

namespace {

bool AskOnTerminal(const std::string& question) {
  std::cerr << question << " [y/N] " << std::flush;
  std::string answer;
  std::getline(std::cin, answer);
  return answer == "y" || answer == "Y" || answer == "yes";
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGPIPE,
              SIG_IGN);  // a reader that leaves early is an error message, not a silent death
  cairn::cli::Context context;
  context.console.out = &std::cout;
  context.console.err = &std::cerr;
  context.console.out_terminal = isatty(STDOUT_FILENO) == 1;
  context.console.err_terminal = isatty(STDERR_FILENO) == 1;
  if (isatty(STDIN_FILENO) == 1) context.console.ask = AskOnTerminal;
  context.clock = cairn::RealClock();
  context.connect = cairn::client::Session::Connect;
  return cairn::cli::Run({argv + 1, argv + argc}, &context);
}
