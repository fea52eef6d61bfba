#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <ostream>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/context.h"
#include "client/cli/format.h"
#include "client/cli/progress.h"
#include "client/cli/render.h"
#include "common/fd.h"
#include "common/mutex.h"

namespace cairn::cli {
namespace {

struct PutArguments {
  std::vector<std::string> files;  // the last one is the path
  std::string kind = "raw";
  std::string wait;
  Attempt attempt = 0;
};

// A file to be saved, mapped: its bytes go to the slab in one pass.
struct Input {
  std::string file, name;
  Mapping mapping;  // invalid for an empty file
  uint64_t length = 0;
};

// A file without a name, which goes with its last descriptor, however this process ends.
StatusOr<UniqueFd> NamelessFile(const std::string& directory) {
  UniqueFd fd(open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (fd.valid()) return fd;
  // Not every file system can do that.
  std::string path = absl::StrCat(directory, "/cairn-put-XXXXXX");
  fd.Reset(mkostemp(path.data(), O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, directory);
  unlink(path.c_str());
  return fd;
}

// How long the input is shows only at its end, and a save must know before it begins.
StatusOr<UniqueFd> Spool(int in_fd) {
  std::error_code error;
  const std::string directory = std::filesystem::temp_directory_path(error);
  if (error) return absl::InvalidArgumentError(absl::StrCat("TMPDIR: ", error.message()));
  const std::string where =
      absl::StrCat("standard input, kept in ", directory, " (TMPDIR names another folder)");
  CAIRN_ASSIGN_OR_RETURN(UniqueFd spool, NamelessFile(directory));
  std::string piece(size_t{1} << 20, '\0');
  while (true) {
    const ssize_t got = read(in_fd, piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoStatus(errno, "standard input");
    if (got == 0) return spool;
    CAIRN_RETURN_IF_ERROR(WriteAll(spool.get(), piece.data(), static_cast<uint64_t>(got), where));
  }
}

StatusOr<Input> OpenInput(const Console& console, const std::string& file,
                          const std::string& name) {
  const bool standard_input = file == "-";
  const std::string what = standard_input ? "standard input" : absl::StrCat("FILE: ", file);
  CAIRN_RETURN_IF_ERROR(Annotate(ValidateObjectName(name), what));
  UniqueFd fd;
  if (standard_input) {
    CAIRN_ASSIGN_OR_RETURN(fd, Spool(console.in_fd));
  } else {
    fd.Reset(open(file.c_str(), O_RDONLY | O_CLOEXEC));
  }
  if (!fd.valid()) return ErrnoStatus(errno, what);
  struct stat status {};
  if (fstat(fd.get(), &status) != 0) return ErrnoStatus(errno, what);
  if (!S_ISREG(status.st_mode)) return absl::InvalidArgumentError(what + " is not a regular file");
  Input input{file, name, {}, static_cast<uint64_t>(status.st_size)};
  if (input.length > 0) {
    CAIRN_ASSIGN_OR_RETURN(input.mapping,
                           Mapping::Map(fd.get(), 0, input.length, PROT_READ, MAP_PRIVATE));
    madvise(input.mapping.data(), input.mapping.length(), MADV_SEQUENTIAL);
  }
  return input;
}

constexpr char kAtOnce[] =
    "put all files of a step at once, or save them in one step() of the Python or C++ client";

// Names of what is at `path`, a checkpoint, that are not among the inputs.
StatusOr<std::vector<std::string>> NamesLeftOut(client::Session* session, const std::string& path,
                                                const std::vector<Input>& inputs) {
  CAIRN_ASSIGN_OR_RETURN(const client::Listing listing, session->List(path));
  std::set<std::string> written;
  for (const Input& input : inputs) written.insert(input.name);
  std::vector<std::string> lost;
  for (const client::ObjectInfo& object : listing.objects) {
    if (!written.count(object.name)) lost.push_back(object.name);
  }
  return lost;
}

std::string Some(const std::vector<std::string>& names) {
  const size_t shown = std::min<size_t>(names.size(), 3);
  return absl::StrCat(
      absl::StrJoin(names.begin(), names.begin() + static_cast<ptrdiff_t>(shown), ", "),
      names.size() > shown ? ", …" : "");
}

// A put is one writer's whole step. It makes a new revision, which has only the names that are written
// now: names of the step that are not among them would be lost.
Status NothingIsLeftBehind(client::Session* session, const Target& target,
                           const std::vector<Input>& inputs) {
  const client::CheckpointRef checkpoint{target.job, target.checkpoint.step};
  const StatusOr<client::CheckpointInfo> info = session->Stat(checkpoint);
  if (absl::IsNotFound(info.status())) return absl::OkStatus();
  CAIRN_RETURN_IF_ERROR(info.status());
  const std::string step = absl::StrCat(target.job, "/", target.checkpoint.step);
  if (info->world_size > 1) {
    return absl::FailedPreconditionError(
        absl::StrCat("step: ", step, " has ", info->world_size,
                     " writers; a put is writer 0 of 1 and cannot join them"));
  }
  if (!info->facts.complete) return absl::OkStatus();
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> lost, NamesLeftOut(session, step, inputs));
  if (lost.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "step: ", step, " holds ", Plural(static_cast<int64_t>(lost.size()), "other name"), " (",
      Some(lost), ") that this put would leave out; ", kAtOnce));
}

using Saved = std::set<std::pair<Attempt, Revision>>;

// What is complete of the step.
StatusOr<Saved> SavedOf(client::Session* session, const Target& target) {
  const client::CheckpointRef checkpoint{target.job, target.checkpoint.step};
  const Status known = session->Stat(checkpoint).status();
  if (absl::IsNotFound(known)) return Saved{};
  CAIRN_RETURN_IF_ERROR(known);
  CAIRN_ASSIGN_OR_RETURN(const client::Listing listing, session->List(target.job));
  Saved saved;
  for (const client::CheckpointInfo& info : listing.checkpoints) {
    if (info.key.step != target.checkpoint.step || !info.facts.complete) continue;
    saved.emplace(info.key.attempt, info.key.revision);
  }
  return saved;
}

// This put waits for the end of another that saves in the job, and takes its place: what that one saved of
// the step was not there when NothingIsLeftBehind looked. From WriteMany on no older attempt saves.
Status NothingCameMeanwhile(client::Session* session, const Target& target,
                            const std::vector<Input>& inputs, const Saved& before) {
  CAIRN_ASSIGN_OR_RETURN(const Saved now, SavedOf(session, target));
  for (const auto& [attempt, revision] : now) {
    if (before.contains({attempt, revision})) continue;
    const CheckpointKey key{target.job, target.checkpoint.step, attempt, revision};
    CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> lost,
                           NamesLeftOut(session, ExactListPath(key), inputs));
    if (lost.empty()) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "step: ", key.job, "/", key.step, " was saved by another while this put waited, with ",
        Plural(static_cast<int64_t>(lost.size()), "other name"), " (", Some(lost),
        ") that it would leave out; nothing of this put was saved; ", kAtOnce));
  }
  return absl::OkStatus();
}

// Shows how far this session's save is, as status does, while its calls block the calling thread.
class Watcher {
 public:
  Watcher(Context* context, std::shared_ptr<client::Session> session, const std::string& label,
          uint64_t total)
      : progress_(context->console.err, context->console.err_terminal, context->clock, label,
                  total) {
    if (!context->console.err_terminal) return;
    thread_ = std::thread([this, session = std::move(session)] {
      while (!DoneWithin(std::chrono::milliseconds(200))) {
        if (const std::optional<uint64_t> written = BytesWritten(session.get()))
          progress_.Update(*written);
      }
    });
  }
  ~Watcher() {
    if (!thread_.joinable()) return;
    {
      MutexLock lock(&mu_);
      done_ = true;
    }
    changed_.NotifyAll();
    thread_.join();
  }

 private:
  bool DoneWithin(std::chrono::milliseconds pause) {
    const auto end = std::chrono::steady_clock::now() + pause;
    MutexLock lock(&mu_);
    while (!done_ && changed_.WaitUntil(&mu_, end)) {
    }
    return done_;
  }

  static std::optional<uint64_t> BytesWritten(client::Session* session) {
    const StatusOr<std::string> text = session->StatusJson();
    if (!text.ok()) return std::nullopt;
    const Json status = Json::parse(*text, nullptr, false);
    if (!status.is_object() || !status.contains("sessions")) return std::nullopt;
    for (const Json& entry : status["sessions"]) {
      if (entry.value("session", int64_t{0}) == static_cast<int64_t>(session->id())) {
        return entry.value("writing_done", uint64_t{0});
      }
    }
    return std::nullopt;
  }

  Progress progress_;
  Mutex mu_;
  CondVar changed_;
  bool done_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

StatusOr<std::vector<Input>> OpenInputs(const Console& console, const PutArguments& arguments,
                                        const Target& target) {
  std::vector<Input> inputs;
  const size_t count = arguments.files.size() - 1;
  if (count > 1 && !target.name.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("path: \"", arguments.files.back(),
                                                   "\" names one object for ", count,
                                                   " files; name the step alone: JOB/STEP/"));
  }
  std::set<std::string> names;
  for (size_t i = 0; i < count; ++i) {
    const std::string& file = arguments.files[i];
    const std::string name = target.name.empty() ? file.substr(file.rfind('/') + 1) : target.name;
    if (!names.insert(name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("FILE: ", file, ": a second file named \"", name, "\""));
    }
    CAIRN_ASSIGN_OR_RETURN(Input input, OpenInput(console, file, name));
    inputs.push_back(std::move(input));
  }
  return inputs;
}

// What can be refused before the daemon is asked. Opens the files and reads standard input.
Status ParsePut(Context* context, const PutArguments& arguments, Target* target, ObjectKind* kind,
                std::vector<Input>* inputs) {
  if (arguments.files.size() < 2)
    return absl::InvalidArgumentError("PATH: missing; put FILE… JOB/STEP/NAME");
  CAIRN_ASSIGN_OR_RETURN(*target, ParseTarget(arguments.files.back(), TargetNeeds::kJob));
  if (!target->has_step || target->checkpoint.step == kNoStep) {
    return absl::InvalidArgumentError(absl::StrCat("path: \"", arguments.files.back(),
                                                   "\" needs a step by number: JOB/STEP/NAME"));
  }
  CAIRN_ASSIGN_OR_RETURN(*kind, ParseObjectKind(arguments.kind));
  if (!arguments.wait.empty() && arguments.wait != "persisted" && arguments.wait != "replicated") {
    return absl::InvalidArgumentError(
        absl::StrCat("wait: \"", arguments.wait, "\" is neither persisted nor replicated"));
  }
  if (std::find(arguments.files.begin(), arguments.files.end() - 1, "-") !=
      arguments.files.end() - 1) {
    if (target->name.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("path: standard input has no name; \"",
                                                     arguments.files.back(),
                                                     "\" must be JOB/STEP/NAME"));
    }
    // Not after all of it was read.
    CAIRN_RETURN_IF_ERROR(context->CheckDaemonListens());
  }
  CAIRN_ASSIGN_OR_RETURN(*inputs, OpenInputs(context->console, arguments, *target));
  return absl::OkStatus();
}

Status Put(Context* context, const PutArguments& arguments) {
  Target target;
  ObjectKind kind = ObjectKind::kRaw;
  std::vector<Input> inputs;
  CAIRN_RETURN_IF_ERROR(ParsePut(context, arguments, &target, &kind, &inputs));
  uint64_t total = 0;
  for (const Input& input : inputs) total += input.length;

  CAIRN_ASSIGN_OR_RETURN(auto session, context->ConnectWriter(target.job, arguments.attempt));
  CAIRN_ASSIGN_OR_RETURN(const Saved before, SavedOf(session.get(), target));
  CAIRN_RETURN_IF_ERROR(NothingIsLeftBehind(session.get(), target, inputs));
  if (arguments.attempt == 0) CAIRN_RETURN_IF_ERROR(session->ChooseAttempt().status());
  const MonotonicNanos started = context->clock->Now();
  CAIRN_ASSIGN_OR_RETURN(auto writer, session->BeginStep(target.checkpoint.step, client::Among{}));
  {
    Watcher watcher(
        context, session,
        inputs.size() == 1 ? inputs[0].name : Plural(static_cast<int64_t>(inputs.size()), "file"),
        total);
    std::vector<client::StepWriter::Item> items;
    for (const Input& input : inputs) {
      items.push_back({input.name,
                       kind,
                       {{input.mapping.valid() ? input.mapping.data() : nullptr, input.length}}});
    }
    CAIRN_RETURN_IF_ERROR(writer->WriteMany(items));
  }
  if (const Status lost = NothingCameMeanwhile(session.get(), target, inputs, before); !lost.ok()) {
    (void)writer->Abort();  // else its session's end does it
    return lost;
  }
  CAIRN_ASSIGN_OR_RETURN(const client::CommitResult committed, writer->Commit({}));
  const double seconds = context->SecondsSince(started);

  const client::CheckpointRef checkpoint{target.job, target.checkpoint.step};
  std::string where = "in this node's memory";
  if (!arguments.wait.empty()) {
    const auto level =
        arguments.wait == "persisted" ? client::Level::kPersisted : client::Level::kReplicated;
    if (level == client::Level::kPersisted) CAIRN_RETURN_IF_ERROR(session->Persist(checkpoint));
    CAIRN_ASSIGN_OR_RETURN(const auto info,
                           session->Wait(checkpoint, level, context->settings.timeout));
    where = Whereabouts(info);
  }
  if (context->settings.json) {
    Json names = Json::array();
    for (const Input& input : inputs) names.push_back(input.name);
    *context->console.out << Dump({{"job", target.job},
                                   {"step", target.checkpoint.step},
                                   {"names", names},
                                   {"bytes", total},
                                   {"digest", committed.digest},
                                   {"complete", committed.complete},
                                   {"seconds", seconds}});
  } else {
    *context->console.out << target.job << "/" << target.checkpoint.step << ": "
                          << Plural(static_cast<int64_t>(inputs.size()), "object") << ", "
                          << HumanBytes(total) << ", " << where << "\n";
  }
  return absl::OkStatus();
}

}  // namespace

void AddPutCommand(CLI::App* app, Context* context) {
  auto* command = app->add_subcommand(
      "put",
      "Save files, or standard input with -, as a whole step of a job (as its lone writer): "
      "FILE JOB/STEP/NAME, or FILE... JOB/STEP/");
  auto arguments = std::make_shared<PutArguments>();
  command
      ->add_option("FILE... PATH", arguments->files, "files or -, then JOB/STEP/NAME or JOB/STEP/")
      ->required()
      ->type_name("")
      ->expected(2, 1 << 16);
  command->footer(
      "Standard input is read to its end into a file without a name in TMPDIR (or /tmp), which "
      "must\n"
      "have room for it, before anything is saved. Ctrl-C drops the step.\n\n"
      "Examples:\n"
      "  cairn put model.pt run7/120/model.pt --kind torch\n"
      "  cairn put a.bin b.bin run7/121/ --wait persisted\n"
      "  tar c logs | cairn put - run7/122/logs.tar");
  command
      ->add_option("--kind", arguments->kind,
                   "raw, torch, safetensors or numpy: what the bytes are")
      ->capture_default_str();
  command->add_option("--attempt", arguments->attempt,
                      "an attempt chosen elsewhere (default: a new one)");
  command->add_option("--wait", arguments->wait, "persisted: return when the step is in storage");
  command->callback([=] { context->action = [=] { return Put(context, *arguments); }; });
}

}  // namespace cairn::cli
