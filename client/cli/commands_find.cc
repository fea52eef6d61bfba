#include <CLI/CLI.hpp>
#include <algorithm>
#include <optional>
#include <ostream>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "client/cli/context.h"
#include "client/cli/finder.h"
#include "client/cli/render.h"

namespace cairn::cli {
namespace {

// How long `latest` waits for what the catalog adds.
constexpr absl::Duration kFindPatience = absl::Seconds(2);
constexpr int kIndexed = 100, kMostIndexed = 1000;

// What the catalog of the ring knows, whoever of its members lives.
Status ListCluster(Context* context, const std::string& text, bool all) {
  std::string job;
  if (!text.empty() && text != "cairn://") {
    CAIRN_ASSIGN_OR_RETURN(const Target target, ParseTarget(text, TargetNeeds::kJob));
    if (target.has_step || !target.name.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "path: \"", text,
          "\" names more than a job; --cluster lists jobs, or the checkpoints of one"));
    }
    job = target.job;
  }
  CAIRN_ASSIGN_OR_RETURN(auto session, context->Connect());
  CAIRN_ASSIGN_OR_RETURN(
      const Json index,
      AskIndex(session.get(), job, all ? kMostIndexed : kIndexed, context->settings.timeout));
  const int64_t now = context->clock->UnixMillis();
  *context->console.out << (context->settings.json ? Dump(index)
                            : job.empty()          ? RenderIndexedJobs(index, now)
                                                   : RenderIndexedCheckpoints(index, now));
  return absl::OkStatus();
}

Status ListPath(Context* context, const std::string& text, bool all) {
  std::string path;
  if (!text.empty() && text != "cairn://") {
    CAIRN_ASSIGN_OR_RETURN(const Target target, ParseTarget(text, TargetNeeds::kJob));
    if (!target.name.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("path: \"", text, "\" names an object; `cairn stat` shows one"));
    }
    path = target.job;
    if (target.has_step) {
      absl::StrAppend(
          &path, "/",
          target.checkpoint.step == kNoStep ? "latest" : absl::StrCat(target.checkpoint.step));
    }
  }
  CAIRN_ASSIGN_OR_RETURN(auto finder, Find(context));
  CAIRN_ASSIGN_OR_RETURN(const client::Listing listing, finder->List(path));
  std::ostream& out = *context->console.out;
  if (context->settings.json) {
    Json json = {{"path", path}, {"jobs", listing.jobs}};
    json["checkpoints"] = Json::array();
    json["objects"] = Json::array();
    for (const auto& checkpoint : listing.checkpoints)
      json["checkpoints"].push_back(ToJson(checkpoint));
    for (const auto& object : listing.objects) json["objects"].push_back(ToJson(object));
    out << Dump(json);
    return absl::OkStatus();
  }
  const int64_t now = context->clock->UnixMillis();
  const bool wide = context->settings.wide;
  if (wide && !listing.jobs.empty()) {
    CAIRN_ASSIGN_OR_RETURN(const Json status, finder->NodeStatus());
    out << RenderJobsWide(listing.jobs, status);
  } else {
    out << RenderJobs(listing.jobs);
  }
  if (!listing.checkpoints.empty()) {
    CAIRN_ASSIGN_OR_RETURN(const PolicyPreview preview,
                           finder->Preview(listing.checkpoints.front().key.job));
    out << RenderCheckpoints(listing.checkpoints, preview, {all, wide, now});
  }
  if (!listing.objects.empty()) out << RenderObjects(listing.objects, wide, now);
  return absl::OkStatus();
}

Status Show(Context* context, const PathArguments& arguments) {
  CAIRN_ASSIGN_OR_RETURN(const Target target, arguments.Parse(TargetNeeds::kJob));
  if (!target.has_step) {
    return absl::InvalidArgumentError(absl::StrCat(
        "path: \"", arguments.path, "\" names a job; JOB/STEP or JOB/STEP/NAME is needed"));
  }
  CAIRN_ASSIGN_OR_RETURN(auto finder, Find(context));
  std::ostream& out = *context->console.out;
  if (target.name.empty()) {
    CAIRN_ASSIGN_OR_RETURN(const client::CheckpointInfo info, finder->Stat(target.checkpoint));
    out << (context->settings.json ? Dump(ToJson(info)) : RenderCheckpoint(info));
    return absl::OkStatus();
  }
  CAIRN_ASSIGN_OR_RETURN(const client::ObjectInfo info,
                         finder->StatObject(target.checkpoint, target.name));
  const CheckpointKey key{target.job, target.checkpoint.step, 0, 0};
  out << (context->settings.json ? Dump(ToJson(info)) : RenderObject(key, info));
  return absl::OkStatus();
}

Status ShowLatest(Context* context, const std::string& job) {
  CAIRN_ASSIGN_OR_RETURN(const Target target, ParseTarget(job, TargetNeeds::kJob));
  if (target.has_step) {
    return absl::InvalidArgumentError(
        absl::StrCat("job: \"", job, "\" is a path; the job's name alone is needed"));
  }
  CAIRN_ASSIGN_OR_RETURN(auto finder, Find(context));
  const StatusOr<client::LatestCheckpoint> latest = finder->Latest(target.job);
  if (latest.ok() && context->settings.json) {
    *context->console.out << Dump(ToJson(*latest));
  } else if (latest.ok()) {
    // The number alone: `STEP=$(cairn latest run7)`.
    *context->console.out << latest->key.step << "\n";
    if (!latest->passed_over.empty()) {
      *context->console.err << "cairn: note: a higher step lost files: " << latest->passed_over
                            << "\n";
    }
  }
  if (absl::IsPermissionDenied(latest.status())) return latest.status();
  // What was complete, and nobody who answers has: where there is a catalog that knows.
  const StatusOr<Json> index =
      finder->Index(target.job, 1, std::min(kFindPatience, context->settings.timeout));
  const std::string beyond = index.ok() ? IndexedBeyond(*index, latest.ok() ? &*latest : nullptr,
                                                        context->clock->UnixMillis())
                                        : "";
  if (!beyond.empty()) *context->console.err << "cairn: note: " << beyond << "\n";
  return latest.status();
}

StatusOr<Level> ParseLevelToWaitFor(const std::string& text) {
  const std::optional<Level> level = ParseLevel(absl::AsciiStrToUpper(text));
  if (level >= Level::kCached && level <= Level::kPersisted) return *level;
  return absl::InvalidArgumentError(
      absl::StrCat("level: \"", text, "\" is none of cached, replicated, persisted"));
}

struct WaitArguments {
  PathArguments path;
  std::string level = "persisted";
  int64_t after = -1;
};

Status Wait(Context* context, const WaitArguments& arguments) {
  CAIRN_ASSIGN_OR_RETURN(const Level level, ParseLevelToWaitFor(arguments.level));
  CAIRN_ASSIGN_OR_RETURN(const Target target, arguments.path.Parse(TargetNeeds::kJob));
  if (!target.name.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("path: \"", arguments.path.path,
                     "\" names an object; a checkpoint is waited for: JOB/STEP"));
  }
  const bool after = arguments.after >= 0;
  if (after == target.has_step) {
    return absl::InvalidArgumentError(after ? "after: goes with JOB alone, not with JOB/STEP"
                                            : "path: JOB/STEP is needed, or JOB with --after");
  }
  const absl::Duration timeout = context->settings.timeout;
  const MonotonicNanos deadline = context->clock->Now() + absl::ToInt64Nanoseconds(timeout);
  client::CheckpointRef checkpoint = target.checkpoint;
  std::shared_ptr<client::Session> session;
  if (after) {
    // A wait for "after" is about the session's own job, and a session brings its job into being: the
    // job must exist before.
    CAIRN_ASSIGN_OR_RETURN(auto reader, context->Connect());
    CAIRN_RETURN_IF_ERROR(reader->List(target.job).status());
    CAIRN_ASSIGN_OR_RETURN(session, context->Connect(target.job));
    CAIRN_ASSIGN_OR_RETURN(const auto found, session->WaitAfter(arguments.after, timeout));
    checkpoint = {target.job, found.key.step, found.key.attempt, found.key.revision};
  } else {
    CAIRN_ASSIGN_OR_RETURN(session, context->Connect());
  }
  const absl::Duration left =
      absl::Nanoseconds(std::max<int64_t>(0, deadline - context->clock->Now()));
  CAIRN_ASSIGN_OR_RETURN(const client::CheckpointInfo info,
                         session->Wait(checkpoint, level, std::max(left, absl::Milliseconds(1))));
  if (context->settings.json) {
    *context->console.out << Dump(ToJson(info));
  } else {
    *context->console.out << info.key.job << "/" << info.key.step << " is " << Whereabouts(info)
                          << "\n";
  }
  return absl::OkStatus();
}

}  // namespace

void AddFindCommands(CLI::App* app, Context* context) {
  {
    auto* command =
        app->add_subcommand("ls", "List jobs, a job's checkpoints, or a checkpoint's objects");
    auto path = std::make_shared<std::string>();
    auto all = std::make_shared<bool>(false);
    auto cluster = std::make_shared<bool>(false);
    command->add_option("PATH", *path, "nothing, JOB, or JOB/STEP");
    command->add_flag("--cluster", *cluster,
                      "what the catalog that the ring shares knows, of members that are lost, too");
    command->add_flag(
        "-a,--all", *all,
        "of a job also what no longer counts: abandoned checkpoints, older revisions");
    command->footer(
        "AGE is the time since it was saved. -o wide shows more of each: of jobs their owner, "
        "what\n"
        "memory and storage hold, and their policy; of checkpoints when they were saved (UTC),\n"
        "ATTEMPT and REV, and where they are; of objects their bytes, and when they were last "
        "verified.\n\n"
        "Examples:\n"
        "  cairn ls\n"
        "  cairn ls run7 -o wide\n"
        "  cairn ls run7/latest\n"
        "  cairn ls --cluster run7              also what no node that lives has\n"
        "  cairn ls --storage /ckpt run7        also when the daemon is down");
    command->callback([=] {
      context->action = [=] {
        return *cluster ? ListCluster(context, *path, *all) : ListPath(context, *path, *all);
      };
    });
  }
  {
    auto* command = app->add_subcommand("stat", "Everything known about one checkpoint or object");
    auto arguments = std::make_shared<PathArguments>();
    arguments->AddTo(command, "JOB/STEP or JOB/STEP/NAME");
    command->callback([=] { context->action = [=] { return Show(context, *arguments); }; });
  }
  {
    auto* command = app->add_subcommand(
        "latest",
        "The step a job would go on from: its number alone. A later one that was complete and\n"
        "cannot be had now is noted on standard error, where a catalog knows of it");
    auto job = std::make_shared<std::string>();
    command->add_option("JOB", *job, "the job")->required();
    command->callback([=] { context->action = [=] { return ShowLatest(context, *job); }; });
  }
  {
    auto* command = app->add_subcommand(
        "wait", "Wait until a checkpoint is as safe as asked (exit code 7: it was not in time)");
    auto arguments = std::make_shared<WaitArguments>();
    arguments->path.AddTo(command, "JOB/STEP, or JOB with --after");
    command->add_option("--level", arguments->level, "cached, replicated or persisted")
        ->capture_default_str();
    command->add_option("--after", arguments->after, "the first complete step above this one");
    command->footer(
        "Examples:\n"
        "  cairn wait run7/120 --level persisted --timeout 10m\n"
        "  cairn wait run7 --after 120 --level cached");
    command->callback([=] { context->action = [=] { return Wait(context, *arguments); }; });
  }
}

}  // namespace cairn::cli
