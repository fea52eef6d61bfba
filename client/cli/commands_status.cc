#include <CLI/CLI.hpp>
#include <ostream>

#include "client/cli/context.h"
#include "client/cli/render.h"
#include "common/version.h"

namespace cairn::cli {
namespace {

Status ShowStatus(Context* context) {
  CAIRN_ASSIGN_OR_RETURN(auto session, context->Connect());
  CAIRN_ASSIGN_OR_RETURN(std::string text, session->StatusJson());
  Json status = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (status.is_discarded() || !status.is_object()) {
    return absl::InternalError("status: the daemon's answer is not a JSON object");
  }
  if (context->settings.json) {
    const Verdict verdict = IsMyCheckpointSafe(status);
    status["safe"] = verdict.safe;
    status["words"] = verdict.words;
    *context->console.out << Dump(status);
  } else {
    *context->console.out << RenderStatus(status, context->clock->UnixMillis());
  }
  return absl::OkStatus();
}

Status ShowVersion(Context* context) {
  // The version of this binary, and the daemon's when one answers. It is not an error when none does.
  std::string daemon;
  if (auto session = context->Connect(); session.ok()) {
    if (auto text = (*session)->StatusJson(); text.ok()) {
      const Json status = Json::parse(*text, nullptr, false);
      if (status.is_object() && status.contains("version") && status["version"].is_string()) {
        daemon = status["version"].get<std::string>();
      }
    }
  }
  const std::string version(Version());
  if (context->settings.json) {
    *context->console.out << Dump(
        {{"cairn", version}, {"daemon", daemon.empty() ? Json() : Json(daemon)}});
  } else {
    *context->console.out << "cairn " << version << "\ncairnd "
                          << (daemon.empty() ? "not running" : daemon) << "\n";
  }
  return absl::OkStatus();
}

}  // namespace

void AddStatusCommands(CLI::App* app, Context* context) {
  auto* status = app->add_subcommand(
      "status", "Is my checkpoint safe? Jobs, memory, sessions, what is unprotected");
  status->callback([context] { context->action = [context] { return ShowStatus(context); }; });
  auto* version = app->add_subcommand("version", "Versions of this command and of the daemon");
  version->callback([context] { context->action = [context] { return ShowVersion(context); }; });
}

}  // namespace cairn::cli
