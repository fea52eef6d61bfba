// What an operator does to a storage root by hand. No daemon is asked: it finds the marker by itself.
#include <fcntl.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <ostream>

#include "absl/strings/str_cat.h"
#include "client/cli/context.h"
#include "common/fd.h"
#include "common/root_marker.h"

namespace cairn::cli {
namespace {

struct InitStorageArguments {
  std::string root;      // empty: the one that --storage names
  std::string identity;  // empty: a new one
};

Status InitStorage(Context* context, const InitStorageArguments& arguments) {
  const std::string& path = arguments.root.empty() ? context->settings.storage : arguments.root;
  if (path.empty()) {
    return absl::InvalidArgumentError("storage init: name the ROOT (or set CAIRN_STORAGE)");
  }
  const UniqueFd root(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!root.valid()) return ErrnoStatus(errno, path);
  const std::string id = arguments.identity.empty() ? DrawRootId() : arguments.identity;
  const Status made = MakeRootMarker(root.get(), id);
  if (!made.ok() && !absl::IsAlreadyExists(made)) return Annotate(made, path);
  CAIRN_ASSIGN_OR_RETURN(const RootIdentity identity, ReadRootMarker(root.get()));
  // Who asks for no identity in particular is content with the one that is there.
  if (!arguments.identity.empty() && identity.id != id) {
    return absl::AlreadyExistsError(absl::StrCat(path, " has the identity ", identity.id,
                                                 " already; if it is to be ", id, " from now on, ",
                                                 "remove ", path, "/", kRootMarker, " first"));
  }
  *context->console.out << path << " has the identity " << identity.id << "\n";
  return absl::OkStatus();
}

}  // namespace

void AddStorageCommands(CLI::App* app, Context* context) {
  auto* storage = app->add_subcommand("storage", "Prepare a folder as a daemon's storage root");
  storage->require_subcommand(1);
  auto* command = storage->add_subcommand(
      "init", "Give a root its identity, once: cairnd writes nowhere else with require_marker");
  auto arguments = std::make_shared<InitStorageArguments>();
  command->add_option("ROOT", arguments->root, "the mounted folder [what --storage names]");
  command->add_option("--identity", arguments->identity,
                      "one that a node knows already (status shows it): the root is that storage");
  command->footer("Example:\n  cairn storage init /mnt/ckpt");
  command->callback([=] { context->action = [=] { return InitStorage(context, *arguments); }; });
}

}  // namespace cairn::cli
