#include <CLI/CLI.hpp>
#include <map>
#include <optional>
#include <ostream>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/context.h"
#include "client/cli/format.h"
#include "client/cli/render.h"

namespace cairn::cli {
namespace {

constexpr size_t kMostCheckpointsShown = 8;  // checkpoints that a question lists

struct RemoveArguments {
  PathArguments path;
  bool memory_only = false;
  bool yes = false;
};

std::string Shown(const CheckpointKey& key) { return absl::StrCat(key.job, "/", key.step); }

// What lets a pinned checkpoint go.
std::string UnpinCommand(const client::CheckpointInfo& info) {
  std::string command = absl::StrCat("cairn unpin ", Shown(info.key));
  // The step alone means the one that counts.
  if (!info.on_line) {
    absl::StrAppend(&command, " --attempt ", info.key.attempt, " --revision ", info.key.revision);
  }
  return command;
}

// --- one checkpoint

// What retention has in mind for it anyway, for a question; empty: nothing, or it cannot be asked.
std::string ByPolicy(client::Session* session, const CheckpointKey& key) {
  const auto preview = session->PreviewPolicy(key.job, std::nullopt);
  if (!preview.ok()) return "";
  for (const FilesFate& files : preview->files) {
    if (!(files.key == key)) continue;
    return absl::StrCat(" By policy its files go ", files.now ? "at once" : "later", ": ",
                        files.why, ".");
  }
  return "";
}

// What goes with it for good: of the step, or of the attempt that is named, every complete checkpoint. What
// is shown of a step need not be among them.
std::vector<client::CheckpointInfo> LastCopies(client::Session* session,
                                               const client::CheckpointRef& ref,
                                               const client::CheckpointInfo& shown,
                                               bool memory_only) {
  if (memory_only) return {shown};
  const StatusOr<client::Listing> listing = session->List(ref.job);
  if (!listing.ok()) return {shown};
  std::vector<client::CheckpointInfo> lost;
  for (const client::CheckpointInfo& info : listing->checkpoints) {
    const bool goes =
        info.key.step == ref.step && (ref.attempt == 0 || info.key.attempt == ref.attempt);
    if (goes && info.facts.complete) lost.push_back(info);
  }
  return lost.empty() ? std::vector{shown} : lost;
}

std::string Size(const client::CheckpointInfo& info) {
  return absl::StrCat(Plural(static_cast<int64_t>(info.objects), "object"), ", ",
                      HumanBytes(info.bytes), ", ", Whereabouts(info));
}

std::string LossOf(client::Session* session, const std::vector<client::CheckpointInfo>& lost) {
  const client::CheckpointInfo& first = lost.front();
  if (lost.size() == 1) {
    return absl::StrCat(
        "This is the last copy of ", Shown(first.key),
        first.on_line ? "" : absl::StrCat(", of attempt ", first.key.attempt, ", not on the line"),
        ": ", Size(first), ". Nothing brings it back.", ByPolicy(session, first.key));
  }
  std::vector<std::string> each;
  for (const client::CheckpointInfo& info : lost) {
    if (each.size() == kMostCheckpointsShown) {
      each.push_back("…");
      break;
    }
    each.push_back(absl::StrCat("of attempt ", info.key.attempt, " (revision ", info.key.revision,
                                "): ", Size(info), info.on_line ? "" : ", not on the line"));
  }
  return absl::StrCat("These are the last copies of ", Shown(first.key), ", ",
                      Plural(static_cast<int64_t>(lost.size()), "complete checkpoint"), ": ",
                      absl::StrJoin(each, "; "), ". Nothing brings them back.");
}

Status RemoveCheckpoint(Context* context, const RemoveArguments& arguments, const Target& target) {
  client::CheckpointRef checkpoint = target.checkpoint;
  CAIRN_ASSIGN_OR_RETURN(auto session, context->Connect());
  // "latest" is looked up once: the checkpoint that the question names is the one that is removed.
  CAIRN_ASSIGN_OR_RETURN(const client::CheckpointInfo info, session->Stat(checkpoint));
  checkpoint.step = info.key.step;
  const std::string what =
      absl::StrCat(Shown(info.key), arguments.memory_only ? " from memory" : "");
  if (info.facts.pinned) {
    return absl::FailedPreconditionError(absl::StrCat("remove: ", Shown(info.key), " is pinned; `",
                                                      UnpinCommand(info), "` lets it go"));
  }
  Status removed = session->Remove(checkpoint, arguments.memory_only, arguments.yes);
  if (removed.code() == absl::StatusCode::kFailedPrecondition && !arguments.yes &&
      !absl::StrContains(removed.message(), " is pinned")) {
    if (!context->console.ask) {
      return absl::FailedPreconditionError(
          absl::StrCat(removed.message(), absl::StrContains(removed.message(), "force removes it")
                                              ? " (nobody is here to ask)"
                                              : "; --yes removes it all the same"));
    }
    const std::string question = absl::StrCat(
        LossOf(session.get(), LastCopies(session.get(), checkpoint, info, arguments.memory_only)),
        " Remove ", what, "?");
    if (!context->console.ask(question)) {
      return absl::CancelledError(absl::StrCat(what, " was not removed"));
    }
    removed = session->Remove(checkpoint, arguments.memory_only, /*force=*/true);
  }
  CAIRN_RETURN_IF_ERROR(removed);
  if (context->settings.json) {
    *context->console.out << Dump({{"job", info.key.job},
                                   {"step", info.key.step},
                                   {"memory_only", arguments.memory_only},
                                   {"bytes", info.bytes}});
  } else {
    *context->console.out << "removed " << what << "\n";
  }
  return absl::OkStatus();
}

// --- a whole job

// One call of Remove, and the checkpoints that go with it.
struct Removal {
  client::CheckpointRef ref;
  std::vector<const client::CheckpointInfo*> checkpoints;
  bool loses = false;  // a last copy goes: the question counts it
};

struct RemovalPlan {
  std::vector<Removal> removals;
  std::vector<const client::CheckpointInfo*> pinned;
  int64_t last_copies = 0;
  uint64_t bytes = 0;
  int64_t checkpoints = 0;
};

// A step goes as a whole, so that nothing of it comes back. If one of its attempts is pinned, the others
// go one by one.
RemovalPlan PlanRemovals(const std::vector<client::CheckpointInfo>& all, bool memory_only) {
  std::map<Step, std::vector<const client::CheckpointInfo*>> steps;
  for (const client::CheckpointInfo& info : all) steps[info.key.step].push_back(&info);
  RemovalPlan plan;
  for (const auto& [step, checkpoints] : steps) {
    std::set<Attempt> pinned;
    for (const auto* info : checkpoints) {
      if (!info->facts.pinned) continue;
      pinned.insert(info->key.attempt);
      plan.pinned.push_back(info);
    }
    std::map<std::pair<Attempt, Revision>, Removal> removals;
    for (const auto* info : checkpoints) {
      const CheckpointKey& key = info->key;
      client::CheckpointRef ref{key.job, step};
      if (memory_only) {
        if (!info->facts.resident || info->facts.pinned) continue;
        ref.attempt = key.attempt;
        ref.revision = key.revision;
      } else if (!pinned.empty()) {
        if (pinned.contains(key.attempt)) continue;
        ref.attempt = key.attempt;
      }
      Removal& removal = removals[{ref.attempt, ref.revision}];
      removal.ref = ref;
      removal.checkpoints.push_back(info);
      ++plan.checkpoints;
      plan.bytes += info->bytes;
      if (info->facts.complete && !(memory_only && info->facts.persisted)) {
        removal.loses = true;
        ++plan.last_copies;
      }
    }
    for (auto& [key, removal] : removals) plan.removals.push_back(std::move(removal));
  }
  return plan;
}

Status AskForJob(Context* context, const std::string& job, const RemovalPlan& plan,
                 const RemoveArguments& arguments) {
  if (arguments.yes || plan.last_copies == 0) return absl::OkStatus();
  const std::string what =
      absl::StrCat(Plural(plan.checkpoints, "checkpoint"), " of ", job, ", ",
                   HumanBytes(plan.bytes), arguments.memory_only ? ", from memory" : "");
  const std::string loss =
      absl::StrCat(Plural(plan.last_copies, "complete checkpoint"),
                   plan.last_copies == 1 ? " has no other copy" : " have no other copy");
  if (!context->console.ask) {
    return absl::FailedPreconditionError(absl::StrCat(
        "remove: ", what, ": ", loss, "; --yes removes them all the same (nobody is here to ask)"));
  }
  if (context->console.ask(absl::StrCat("This removes ", what, ". ", loss,
                                        ", and nothing brings them back. Remove them?"))) {
    return absl::OkStatus();
  }
  return absl::CancelledError(absl::StrCat("nothing of ", job, " was removed"));
}

Status RemoveJob(Context* context, const RemoveArguments& arguments, const std::string& job) {
  if (arguments.path.attempt != 0 || arguments.path.revision >= 0) {
    return absl::InvalidArgumentError("path: --attempt and --revision need JOB/STEP");
  }
  CAIRN_ASSIGN_OR_RETURN(auto session, context->Connect());
  CAIRN_ASSIGN_OR_RETURN(const client::Listing listing, session->List(job));
  const RemovalPlan plan = PlanRemovals(listing.checkpoints, arguments.memory_only);
  CAIRN_RETURN_IF_ERROR(AskForJob(context, job, plan, arguments));
  int64_t removed = 0;
  uint64_t bytes = 0;
  std::vector<std::pair<std::string, Status>> refused;
  for (const auto* info : plan.pinned) {
    refused.emplace_back(Shown(info->key),
                         absl::FailedPreconditionError(
                             absl::StrCat("it is pinned; `", UnpinCommand(*info), "` lets it go")));
  }
  for (const Removal& removal : plan.removals) {
    // What became a last copy after the question, or where none was asked, stays and is named.
    const bool force = arguments.yes || removal.loses;
    const Status status = session->Remove(removal.ref, arguments.memory_only, force);
    if (!status.ok() && !absl::IsNotFound(status)) {  // NOT_FOUND: something else was faster
      refused.emplace_back(Shown(removal.checkpoints.front()->key), status);
      if (absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) break;
      continue;
    }
    for (const auto* info : removal.checkpoints) {
      ++removed;
      bytes += info->bytes;
    }
  }
  std::ostream& out = *context->console.out;
  if (context->settings.json) {
    Json json = {{"job", job},
                 {"memory_only", arguments.memory_only},
                 {"removed", removed},
                 {"bytes", bytes}};
    json["refused"] = Json::array();
    for (const auto& [what, status] : refused) {
      json["refused"].push_back({{"checkpoint", what}, {"why", std::string(status.message())}});
    }
    out << Dump(json);
  } else {
    out << "removed " << Plural(removed, "checkpoint") << " of " << job
        << (arguments.memory_only ? " from memory" : "") << ", " << HumanBytes(bytes) << "\n";
  }
  if (refused.empty()) return absl::OkStatus();
  for (const auto& [what, status] : refused) {
    *context->console.err << "cairn: " << what << " stays: " << InWords(status) << "\n";
  }
  return Status(refused.front().second.code(),
                absl::StrCat("remove: ", Plural(static_cast<int64_t>(refused.size()), "refusal"),
                             ", listed above"));
}

Status Remove(Context* context, const RemoveArguments& arguments) {
  CAIRN_ASSIGN_OR_RETURN(const Target target, arguments.path.Parse(TargetNeeds::kJob));
  if (!target.has_step) {
    // As `rm JOB/$STEP` is written where STEP is unset.
    if (arguments.path.path.back() == '/') {
      return absl::InvalidArgumentError(absl::StrCat("path: \"", arguments.path.path,
                                                     "\" names no step; \"", target.job,
                                                     "\" would remove all of the job"));
    }
    return RemoveJob(context, arguments, target.job);
  }
  if (!target.name.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "path: \"", arguments.path.path, "\" names an object; JOB/STEP or JOB is needed"));
  }
  return RemoveCheckpoint(context, arguments, target);
}

}  // namespace

void AddRemoveCommand(CLI::App* app, Context* context) {
  auto* command = app->add_subcommand(
      "rm", "Remove a checkpoint, or all of a job; asks before the last copy goes");
  auto arguments = std::make_shared<RemoveArguments>();
  arguments->path.AddTo(command, "JOB/STEP, STEP a number or \"latest\"; or JOB for all of it");
  command->add_flag("--memory-only", arguments->memory_only, "keep its files in storage");
  command->add_flag("-y,--yes", arguments->yes, "do not ask");
  command->footer(
      "JOB/STEP removes the step of every attempt unless --attempt names one. A pinned checkpoint\n"
      "stays until `cairn unpin`; of a job the rest goes, and the exit code is not 0.\n\n"
      "Examples:\n"
      "  cairn rm run7/90\n"
      "  cairn rm run7 --yes\n"
      "  cairn rm run7 --memory-only");
  command->callback([=] { context->action = [=] { return Remove(context, *arguments); }; });
}

}  // namespace cairn::cli
