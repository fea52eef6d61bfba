#include <CLI/CLI.hpp>
#include <optional>
#include <ostream>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "client/cli/context.h"
#include "client/cli/format.h"
#include "client/cli/render.h"

namespace cairn::cli {
namespace {

// What AddTo is told by every command here.
constexpr char kStepPath[] = "JOB/STEP, STEP a number or \"latest\"";

StatusOr<CheckpointRef> ParseStep(const PathArguments& arguments) {
  CAIRN_ASSIGN_OR_RETURN(const Target target, arguments.Parse(TargetNeeds::kStep));
  return target.checkpoint;
}

Status Persist(Context* context, const PathArguments& arguments, bool wait) {
  CAIRN_ASSIGN_OR_RETURN(const client::CheckpointRef checkpoint, ParseStep(arguments));
  CAIRN_ASSIGN_OR_RETURN(auto session, context->Connect());
  CAIRN_RETURN_IF_ERROR(session->Persist(checkpoint));
  if (!wait) return absl::OkStatus();
  CAIRN_ASSIGN_OR_RETURN(
      auto info, session->Wait(checkpoint, client::Level::kPersisted, context->settings.timeout));
  if (context->settings.json) {
    *context->console.out << Dump(ToJson(info));
  } else {
    *context->console.out << info.key.job << "/" << info.key.step << " is in storage\n";
  }
  return absl::OkStatus();
}

Status SetPin(Context* context, const PathArguments& arguments, bool pinned) {
  CAIRN_ASSIGN_OR_RETURN(const client::CheckpointRef checkpoint, ParseStep(arguments));
  CAIRN_ASSIGN_OR_RETURN(auto session, context->Connect());
  return session->Pin(checkpoint, pinned);
}

Status Use(Context* context, const PathArguments& arguments, bool fence) {
  CAIRN_ASSIGN_OR_RETURN(const client::CheckpointRef checkpoint, ParseStep(arguments));
  if (checkpoint.step == kNoStep) {
    return absl::InvalidArgumentError("path: `latest` counts already; name a step");
  }
  CAIRN_ASSIGN_OR_RETURN(auto session, context->Connect());
  CAIRN_ASSIGN_OR_RETURN(const client::LatestCheckpoint used, session->Use(checkpoint, fence));
  if (context->settings.json) {
    *context->console.out << Dump(ToJson(used));
    return absl::OkStatus();
  }
  *context->console.out << used.key.job << "/" << used.key.step << " of attempt "
                        << used.key.attempt << " is latest from now on\n";
  if (!used.recorded) {
    *context->console.out << "only this node's memory knows so yet: storage has not taken it\n";
  }
  return absl::OkStatus();
}

struct PolicyArguments {
  std::string job;
  std::optional<std::string> persist, readers;
  std::optional<int64_t> every, keep_last, keep_every;
  std::optional<int32_t> replicas;
  bool dry_run = false;
  bool changes() const {
    return persist || readers || every || keep_last || keep_every || replicas;
  }
};

// The daemon takes any number and keeps as many replicas as the ring has other members.
Status CheckReplicas(const Json& status, int32_t replicas) {
  const size_t members = RingSize(status);
  if (replicas <= 0 || static_cast<size_t>(replicas) < members) return absl::OkStatus();
  if (members < 2) {
    return absl::InvalidArgumentError(absl::StrCat(
        "replicas: ", replicas, ", but this node is alone: ring.nodes names no other members"));
  }
  return absl::InvalidArgumentError(absl::StrCat("replicas: ", replicas, " is not 0 to ",
                                                 members - 1, " with ", members, " members"));
}

// The daemon's status. Where the job is not in it, the ring and the storage are asked for the job first.
StatusOr<Json> StatusWith(client::Session* session, const std::string& job) {
  CAIRN_ASSIGN_OR_RETURN(Json status, AskStatus(session));
  if (!JobIn(status, job).empty()) return status;
  CAIRN_RETURN_IF_ERROR(session->List(job).status());
  CAIRN_ASSIGN_OR_RETURN(status, AskStatus(session));
  return status;
}

StatusOr<JobPolicy> ReadPolicy(const Json& status, const std::string& job) {
  const Json entry = JobIn(status, job);
  if (entry.contains("policy")) return PolicyFromJson(entry["policy"]);
  return absl::NotFoundError(absl::StrCat("job: \"", job, "\" is not known"));
}

Status Policy(Context* context, const PolicyArguments& arguments) {
  CAIRN_RETURN_IF_ERROR(ValidateJob(arguments.job));
  // Looked up without entering the job: a misspelled name must not bring a job into being.
  CAIRN_ASSIGN_OR_RETURN(auto reader, context->Connect());
  CAIRN_ASSIGN_OR_RETURN(const Json status, StatusWith(reader.get(), arguments.job));
  CAIRN_ASSIGN_OR_RETURN(JobPolicy policy, ReadPolicy(status, arguments.job));
  if (arguments.changes()) {
    if (arguments.persist) {
      // proto/cairn.thrift writes ON_DEMAND.
      const StatusOr<PersistMode> mode = ParsePersistMode(
          absl::AsciiStrToLower(absl::StrReplaceAll(*arguments.persist, {{"_", "-"}})));
      CAIRN_RETURN_IF_ERROR(Annotate(mode.status(), "mode"));
      policy.mode = *mode;
    }
    if (arguments.readers) {
      const StatusOr<Readers> readers = ParseReaders(*arguments.readers);
      CAIRN_RETURN_IF_ERROR(Annotate(readers.status(), "readers"));
      policy.readers = *readers;
    }
    if (arguments.every) {
      policy.every = *arguments.every;
      if (!arguments.persist) policy.mode = PersistMode::kEvery;
    }
    if (arguments.keep_last) policy.keep_last = *arguments.keep_last;
    if (arguments.keep_every) policy.keep_every = *arguments.keep_every;
    if (arguments.replicas) {
      CAIRN_RETURN_IF_ERROR(CheckReplicas(status, *arguments.replicas));
      policy.replicas = *arguments.replicas;
    }
  }
  if (arguments.dry_run) {
    CAIRN_ASSIGN_OR_RETURN(const PolicyPreview preview,
                           reader->PreviewPolicy(arguments.job, policy));
    *context->console.out << (context->settings.json ? Dump(ToJson(preview))
                                                     : RenderPreview(preview));
    return absl::OkStatus();
  }
  if (arguments.changes()) {
    CAIRN_ASSIGN_OR_RETURN(auto session, context->Connect(arguments.job));
    CAIRN_RETURN_IF_ERROR(session->SetPolicy(policy));
    // Of a job in which nobody had saved it was a proposal of this session, which ends with the command.
    CAIRN_ASSIGN_OR_RETURN(const Json now, StatusWith(reader.get(), arguments.job));
    CAIRN_ASSIGN_OR_RETURN(const JobPolicy counts, ReadPolicy(now, arguments.job));
    if (counts != policy && JobIn(status, arguments.job).value("attempt", int64_t{1}) == 0) {
      return absl::FailedPreconditionError(absl::StrCat(
          "job: \"", arguments.job,
          "\" has nothing in it yet: it gets the policy of the trainer that saves first; "
          "say another one after that"));
    }
  }
  const std::string mode(PersistModeName(policy.mode));
  const std::string readers(ReadersName(policy.readers));
  if (context->settings.json) {
    *context->console.out << Dump({{"job", arguments.job},
                                   {"persist", mode},
                                   {"every", policy.every},
                                   {"keep_last", policy.keep_last},
                                   {"keep_every", policy.keep_every},
                                   {"replicas", policy.replicas},
                                   {"readers", readers}});
    return absl::OkStatus();
  }
  std::ostream& out = *context->console.out;
  out << "persist     " << mode;
  if (policy.mode == PersistMode::kEvery) out << ", step % " << policy.every << " == 0";
  out << "\nkeep files  " << KeepText(policy) << "\nreplicas    "
      << (policy.replicas == kRingsReplicas ? "as the ring" : std::to_string(policy.replicas))
      << "\nreaders     " << readers << "\n";
  return absl::OkStatus();
}

}  // namespace

void AddManageCommands(CLI::App* app, Context* context) {
  {
    auto* command = app->add_subcommand(
        "persist", "Ask for a checkpoint to be put into storage, whatever the policy");
    auto arguments = std::make_shared<PathArguments>();
    auto no_wait = std::make_shared<bool>(false);
    arguments->AddTo(command, kStepPath);
    command->add_flag("--no-wait", *no_wait,
                      "do not wait for the file; `cairn wait PATH --level persisted` does");
    command->callback(
        [=] { context->action = [=] { return Persist(context, *arguments, !*no_wait); }; });
  }
  {
    auto* command = app->add_subcommand(
        "use", "Make a step count that was left behind; `cairn ls JOB --all` shows what there is");
    auto arguments = std::make_shared<PathArguments>();
    auto fence = std::make_shared<bool>(false);
    arguments->AddTo(command, "JOB/STEP");
    command->add_flag(
        "--fence", *fence,
        "also while processes of the newest attempt live; they can save nothing more");
    command->footer("Example:\n  cairn use run7/120 --attempt 1763798400123");
    command->callback([=] { context->action = [=] { return Use(context, *arguments, *fence); }; });
  }
  for (const bool pinned : {true, false}) {
    auto* command = app->add_subcommand(pinned ? "pin" : "unpin",
                                        pinned ? "Keep a checkpoint in memory until it is unpinned"
                                               : "Let a pinned checkpoint go when its turn comes");
    auto arguments = std::make_shared<PathArguments>();
    arguments->AddTo(command, kStepPath);
    command->callback(
        [=] { context->action = [=] { return SetPin(context, *arguments, pinned); }; });
  }
  {
    auto* command =
        app->add_subcommand("policy", "Show or change when a job's checkpoints go to storage");
    auto arguments = std::make_shared<PolicyArguments>();
    command->add_option("JOB", arguments->job, "the job")->required();
    command->add_option("--mode,--persist", arguments->persist, "on-demand, every or newest");
    command->add_option("--every", arguments->every,
                        "persist steps divisible by this (implies --mode every)");
    command->add_option("--keep-last", arguments->keep_last,
                        "keep the files of the newest N steps; 0 keeps all");
    command->add_option("--keep-every", arguments->keep_every, "and of steps divisible by this");
    command->add_option("--replicas", arguments->replicas,
                        "copies on other members of the ring; -1: as many as the ring's default");
    command->add_option("--readers", arguments->readers, "who may read: owner");
    command->add_flag("--dry-run", arguments->dry_run,
                      "change nothing; show whose files such a policy deletes, and when");
    command->footer(
        "Without an option it shows the policy. What is not named stays as it is.\n\n"
        "Examples:\n"
        "  cairn policy run7\n"
        "  cairn policy run7 --mode newest\n"
        "  cairn policy run7 --every 100 --keep-last 3 --dry-run");
    command->callback([=] { context->action = [=] { return Policy(context, *arguments); }; });
  }
}

}  // namespace cairn::cli
