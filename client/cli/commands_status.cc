#include <CLI/CLI.hpp>
#include <optional>
#include <ostream>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cli/context.h"
#include "client/cli/format.h"
#include "client/cli/render.h"
#include "common/version.h"

namespace cairn::cli {
namespace {

struct StatusArguments {
  std::string job;
  std::optional<std::string> watch;  // seconds; empty: the default
  bool cluster = false;
};

constexpr char kDefaultInterval[] = "2s";
// `version` answers soon: a daemon that hangs is what it is there to show.
constexpr absl::Duration kVersionPatience = absl::Seconds(5);
// How long the members' page waits for what the catalog adds.
constexpr absl::Duration kIndexPatience = absl::Seconds(2);

Status ShowNode(Context* context, client::Session* session) {
  CAIRN_ASSIGN_OR_RETURN(Json status, AskStatus(session));
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

Status ShowJob(Context* context, client::Session* session, const std::string& name) {
  // Also brings a job into memory that only storage had, so that status knows it.
  CAIRN_ASSIGN_OR_RETURN(const client::Listing listing, session->List(name));
  CAIRN_ASSIGN_OR_RETURN(Json status, AskStatus(session));
  Json job = JobIn(status, name);
  if (job.empty()) {
    return absl::NotFoundError(absl::StrCat("job: \"", name, "\" is not known"));
  }
  if (!context->settings.json) {
    *context->console.out << RenderJob(status, job, listing.checkpoints,
                                       context->clock->UnixMillis());
    return absl::OkStatus();
  }
  status["jobs"] = Json::array({job});
  const Verdict verdict = IsMyCheckpointSafe(status);
  job["checkpoints"] = listing.checkpoints.size();
  job["state"] = status.value("state", "");
  job["safe"] = verdict.safe;
  job["words"] = verdict.words;
  *context->console.out << Dump(job);
  return absl::OkStatus();
}

// What all nodes last said of themselves, where the ring shares a catalog; or why it cannot be told; else empty.
Json NodesInCatalog(Context* context, client::Session* session, const Json& status) {
  const auto catalog = status.find("catalog");
  if (catalog == status.end() || !catalog->is_string() ||
      !absl::StartsWith(catalog->get<std::string>(), "mysql")) {
    return Json::object();
  }
  StatusOr<Json> index =
      AskIndex(session, "", 0, std::min(kIndexPatience, context->settings.timeout));
  if (!index.ok()) return {{"problem", std::string(index.status().message())}};
  return {{"as_of_unix_ms", (*index)["as_of_unix_ms"]}, {"nodes", (*index)["nodes"]}};
}

// The ring's part of the page, and of each job's.
Status ShowCluster(Context* context, client::Session* session) {
  CAIRN_ASSIGN_OR_RETURN(const Json status, AskStatus(session));
  const Json index = NodesInCatalog(context, session, status);
  if (!context->settings.json) {
    *context->console.out << RenderCluster(status);
    if (!index.empty()) {
      *context->console.out << RenderIndexedNodes(index, context->clock->UnixMillis());
    }
    return absl::OkStatus();
  }
  Json json = {{"ring", status.value("ring", Json::object())}, {"jobs", Json::array()}};
  if (!index.empty()) json["catalog"] = index;
  for (const Json& job : status.value("jobs", Json::array())) {
    if (job.is_object() && job.contains("ring")) {
      json["jobs"].push_back({{"job", job.value("job", "")}, {"ring", job["ring"]}});
    }
  }
  *context->console.out << Dump(json);
  return absl::OkStatus();
}

Status ShowPeers(Context* context) {
  CAIRN_ASSIGN_OR_RETURN(auto session, context->Connect());
  CAIRN_ASSIGN_OR_RETURN(const Json status, AskStatus(session.get()));
  *context->console.out << (context->settings.json ? Dump(status.value("ring", Json::object()))
                                                   : RenderPeers(status));
  return absl::OkStatus();
}

Status ShowOnce(Context* context, const StatusArguments& arguments) {
  CAIRN_ASSIGN_OR_RETURN(auto session, context->Connect());
  if (arguments.cluster) return ShowCluster(context, session.get());
  return arguments.job.empty() ? ShowNode(context, session.get())
                               : ShowJob(context, session.get(), arguments.job);
}

Status ShowStatus(Context* context, StatusArguments arguments) {
  absl::Duration interval;
  if (arguments.watch) {
    StatusOr<absl::Duration> parsed =
        ParseInterval("watch", arguments.watch->empty() ? kDefaultInterval : *arguments.watch);
    // `status --watch JOB`: the word behind an option that may stand alone. What begins with a digit is
    // a time.
    if (!parsed.ok() && arguments.job.empty() && ValidateJob(*arguments.watch).ok() &&
        !absl::ascii_isdigit(static_cast<unsigned char>(arguments.watch->front()))) {
      arguments.job = *arguments.watch;
      parsed = ParseInterval("watch", kDefaultInterval);
    }
    if (!parsed.ok()) return parsed.status();
    interval = *parsed;
  }
  if (!arguments.job.empty()) {
    CAIRN_ASSIGN_OR_RETURN(const Target target, ParseTarget(arguments.job, TargetNeeds::kJob));
    if (target.has_step) {
      return absl::InvalidArgumentError(
          absl::StrCat("job: \"", arguments.job,
                       "\" is a path; the job's name alone is needed (`cairn stat` shows a step)"));
    }
    arguments.job = target.job;
  }
  if (arguments.cluster && !arguments.job.empty()) {
    return absl::InvalidArgumentError(
        "cluster: --cluster shows all jobs of the ring; leave out JOB, or --cluster");
  }
  const auto show = [&] { return ShowOnce(context, arguments); };
  const Status shown = arguments.watch ? ShowAgain(context, interval, show) : show();
  if (!absl::IsUnavailable(shown) || !absl::StrContains(shown.message(), "no daemon listens")) {
    return shown;
  }
  return absl::UnavailableError(absl::StrCat(
      shown.message(), "; what storage has, `cairn ls --storage=DIR` shows without one"));
}

// The daemon's version.
StatusOr<std::string> AskVersion(Context* context) {
  context->settings.timeout = std::min(context->settings.timeout, kVersionPatience);
  CAIRN_ASSIGN_OR_RETURN(auto session, context->Connect());
  CAIRN_ASSIGN_OR_RETURN(const Json status, AskStatus(session.get()));
  const auto version = status.find("version");
  if (version == status.end() || !version->is_string()) {
    return absl::InternalError("status: the daemon's answer names no version");
  }
  return version->get<std::string>();
}

Status ShowVersion(Context* context) {
  // It is not an error when no daemon answers: this command's own version is an answer, too.
  const StatusOr<std::string> daemon = AskVersion(context);
  const std::string version(Version());
  const std::string problem = daemon.ok()
                                  ? ""
                                  : absl::StrCat("none answers at ", context->settings.socket, ": ",
                                                 std::string(daemon.status().message()));
  if (context->settings.json) {
    Json json = {{"cairn", version}, {"daemon", daemon.ok() ? Json(*daemon) : Json()}};
    if (!daemon.ok()) json["problem"] = problem;
    *context->console.out << Dump(json);
  } else {
    *context->console.out << "cairn " << version << "\ncairnd "
                          << Printable(daemon.ok() ? *daemon : problem) << "\n";
  }
  return absl::OkStatus();
}

}  // namespace

void AddStatusCommands(CLI::App* app, Context* context) {
  auto* status = app->add_subcommand(
      "status",
      "Is my checkpoint safe? Jobs, memory, sessions, what is unprotected or was refused");
  auto arguments = std::make_shared<StatusArguments>();
  status->add_option("JOB", arguments->job, "this job alone [the node]");
  status
      ->add_option_function<std::string>(
          "--watch", [arguments](const std::string& text) { arguments->watch = text; },
          "show it again every so often [2s], until Ctrl-C")
      ->expected(0, 1)
      ->type_name("SECONDS");
  status->add_flag("--cluster", arguments->cluster,
                   "the whole ring: its members, and where each job's steps are safe");
  status->footer(
      "The exit code is 0 when the daemon answered, whether or not everything is safe; `-o json` "
      "has\n"
      "\"safe\" for scripts.\n\n"
      "Examples:\n"
      "  cairn status\n"
      "  cairn status run7 --watch=5\n"
      "  cairn status run7 -o json\n"
      "  cairn status --cluster");
  status->callback([=] { context->action = [=] { return ShowStatus(context, *arguments); }; });
  auto* peers = app->add_subcommand(
      "peers", "The members of this node's ring: which are up, and who keeps what for whom");
  peers->callback([context] { context->action = [context] { return ShowPeers(context); }; });
  auto* version =
      app->add_subcommand("version", "Versions of this command and of the daemon, if one answers");
  version->callback([context] { context->action = [context] { return ShowVersion(context); }; });
}

}  // namespace cairn::cli
