// The command line: options that every command has, help, errors and exit codes.
#include <CLI/CLI.hpp>
#include <exception>
#include <ostream>

#include "absl/strings/str_cat.h"
#include "client/cli/context.h"
#include "client/cli/exit_code.h"
#include "client/cli/format.h"
#include "common/version.h"

namespace cairn::cli {
namespace {

constexpr char kDescription[] =
    "Look after the checkpoints that Cairn keeps in memory.\n\n"
    "Paths are JOB/STEP/NAME (cairn://JOB/STEP/NAME works too); STEP is a number or \"latest\".";

constexpr char kFooter[] = R"(
Examples:
  cairn status                                  is my checkpoint safe?
  cairn status run7 --watch                     one job, again every 2 seconds
  cairn peers                                   the other nodes of the ring, and what they keep
  cairn top                                     the ring as it works, until Ctrl-C
  cairn ls run7                                 the checkpoints of a job
  cairn ls run7/latest                          what its newest complete one holds
  cairn get run7/latest/model.pt model.pt       a file that torch.load opens
  cairn get run7/120/notes.txt - | less         bytes to standard output
  cairn put model.pt run7/120/model.pt          save a file, as the only writer of that step
  cairn put a.bin b.bin run7/121/               several files, one step
  cairn wait run7/120 --level persisted --timeout 10m
  tar c logs | cairn put - run7/122/logs.tar    from standard input
  cairn get run7/latest out/                    all of a step
  cairn weights get run7 model.safetensors      its tensors, whole, as one file
  cairn rm run7/90                              asks before the last copy goes
  cairn rm run7                                 every checkpoint of a job
  cairn policy run7 --every 100 --keep-last 3   what goes to storage, what stays there
  cairn storage init /mnt/ckpt                  this mounted folder is a storage root
  CAIRN_STORAGE=/ckpt cairn get run7/latest/model.pt model.pt    also when the daemon is down

Exit codes: 0 done, 2 bad argument, 3 not found, 4 data loss, 5 no room, 6 no daemon,
7 not in time, 8 not allowed, 1 anything else.
)";

// The only place of the command line that reads the environment is here, by envname().
void AddSettings(CLI::App* app, Settings* settings) {
  app->add_option("--socket", settings->socket, "the daemon's socket")
      ->envname("CAIRN_SOCKET")
      ->capture_default_str();
  app->add_option("--storage", settings->storage,
                  "storage root to read when no daemon answers (ls, stat, latest, get, weights)")
      ->envname("CAIRN_STORAGE");
  app->add_option_function<std::string>(
         "--timeout",
         [settings](const std::string& text) {
           const StatusOr<absl::Duration> timeout = ParseTimeout(text);
           if (!timeout.ok()) throw CLI::ValidationError(std::string(timeout.status().message()));
           settings->timeout = *timeout;
         },
         "of each call: 30, 500ms, 2m")
      ->default_str("30s");
  app->add_option_function<std::string>(
         "-o,--output",
         [settings](const std::string& text) {
           if (text != "json" && text != "table" && text != "wide") {
             throw CLI::ValidationError("output: \"" + text + "\" is none of table, wide and json");
           }
           settings->json = text == "json";
           settings->wide = text == "wide";
         },
         "table, wide (tables with every column) or json (exact numbers)")
      ->default_str("table");
}

// Commands inherit the footer of the one above them, which is about that one.
void KeepFooterToItself(CLI::App* app, const std::string& footer) {
  for (CLI::App* command : app->get_subcommands({})) {
    if (command->get_footer() == footer) command->footer("");
    KeepFooterToItself(command, footer);
  }
}

// `help`, `help COMMAND`, `help storage init`.
void AddHelpCommand(CLI::App* app, Context* context) {
  auto* command = app->add_subcommand("help", "What a command does and takes");
  auto names = std::make_shared<std::vector<std::string>>();
  command->add_option("COMMAND", *names, "the command; nothing: all of them")->type_name("");
  command->callback([=] {
    context->action = [=]() -> Status {
      const CLI::App* about = app;
      std::string words = about->get_name();
      for (const std::string& name : *names) {
        const auto commands =
            about->get_subcommands([&](const CLI::App* one) { return one->get_name() == name; });
        if (commands.empty()) {
          return absl::InvalidArgumentError(
              absl::StrCat("help: \"", name, "\" is not a command; `cairn help` lists them"));
        }
        about = commands.front();
        absl::StrAppend(&words, " ", name);
      }
      // Not about->help(), which is about the command that was parsed: this one.
      *context->console.out << about->get_formatter()->make_help(about, words,
                                                                 CLI::AppFormatMode::Normal);
      return absl::OkStatus();
    };
  });
}

Status RunAction(const Context& context) {
  try {
    return context.action();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("out of memory");
  } catch (const std::exception& error) {
    return absl::InternalError(error.what());
  }
}

}  // namespace

int Run(const std::vector<std::string>& arguments, Context* context) {
  CLI::App app(kDescription, "cairn");
  app.footer(kFooter);
  app.require_subcommand(0, 1);  // so that an unknown one is named instead of "none was given"
  app.fallthrough();             // general options may stand behind the command
  app.set_version_flag("--version", absl::StrCat("cairn ", Version()));
  AddSettings(&app, &context->settings);
  AddStatusCommands(&app, context);
  AddTopCommand(&app, context);
  AddFindCommands(&app, context);
  AddPutCommand(&app, context);
  AddGetCommand(&app, context);
  AddRemoveCommand(&app, context);
  AddManageCommands(&app, context);
  AddRingCommands(&app, context);
  AddStorageCommands(&app, context);
  AddClusterCommands(&app, context);
  AddWeightsCommands(&app, context);
  AddHelpCommand(&app, context);
  KeepFooterToItself(&app, app.get_footer());

  std::ostream& err = *context->console.err;
  try {
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());  // as CLI11 takes them
    app.parse(reversed);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0)
      return app.exit(error, *context->console.out, err);  // --help, --version
    err << "cairn: " << error.what() << "\n";
    return ExitCode(absl::InvalidArgumentError(""));
  }
  if (!context->action) {
    err << "cairn: no command was given; `cairn --help` lists them\n";
    return ExitCode(absl::InvalidArgumentError(""));
  }
  const Status status = RunAction(*context);
  context->console.out->flush();
  if (status.ok() && !context->console.out->good()) {
    if (context->console.reader_left && context->console.reader_left()) return 0;
    err << "cairn: standard output: could not be written\n";
    return kExitOther;
  }
  if (!status.ok()) {
    err << "cairn: " << InWords(status) << "\n";
  }
  return ExitCode(status);
}

}  // namespace cairn::cli
