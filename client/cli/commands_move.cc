#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <optional>
#include <ostream>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/context.h"
#include "client/cli/finder.h"
#include "client/cli/format.h"
#include "client/cli/progress.h"
#include "client/cli/render.h"
#include "common/fd.h"
#include "common/mutex.h"

namespace cairn::cli {
namespace {

// --- get

constexpr uint64_t kPieceBytes =
    16 * kBlockBytes;  // of one read: whole blocks, so that none is verified twice

Status WriteAll(int fd, const char* data, uint64_t length, const std::string& where) {
  while (length > 0) {
    const ssize_t written = write(fd, data, length);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EPIPE)
      return absl::CancelledError(absl::StrCat(where, ": its reader left"));
    if (written < 0) return ErrnoStatus(errno, where);
    data += written;
    length -= static_cast<uint64_t>(written);
  }
  return absl::OkStatus();
}

// A file that gets its name only when it is complete.
class NewFile {
 public:
  static StatusOr<NewFile> Begin(const std::string& path) {
    NewFile file;
    file.path_ = path;
    file.temporary_ = absl::StrCat(path, ".part-", getpid());
    file.fd_.Reset(open(file.temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (!file.fd_.valid()) {
      const int error = errno;
      file.temporary_.clear();
      return ErrnoStatus(error, absl::StrCat("FILE: ", path));
    }
    return file;
  }
  NewFile(NewFile&& other) noexcept
      : path_(std::move(other.path_)),
        temporary_(std::exchange(other.temporary_, "")),
        fd_(std::move(other.fd_)) {}
  NewFile& operator=(NewFile&&) = delete;
  ~NewFile() {
    if (!temporary_.empty()) unlink(temporary_.c_str());
  }

  int fd() const { return fd_.get(); }
  Status Finish() {
    if (fsync(fd_.get()) != 0) return ErrnoStatus(errno, absl::StrCat("FILE: ", path_));
    if (close(fd_.Release()) != 0) return ErrnoStatus(errno, absl::StrCat("FILE: ", path_));
    if (rename(temporary_.c_str(), path_.c_str()) != 0) {
      return ErrnoStatus(errno, absl::StrCat("FILE: ", path_));
    }
    temporary_.clear();
    return absl::OkStatus();
  }

 private:
  NewFile() = default;
  std::string path_, temporary_;  // temporary_ empty: nothing to remove
  UniqueFd fd_;
};

struct GetArguments {
  std::string path, file;
  Attempt attempt = 0;
  Revision revision = -1;
};

Status Copy(Context* context, client::OpenObject* bytes, int fd, const std::string& where) {
  const uint64_t length = bytes->info().length;
  Progress progress(context->console.err, context->console.err_terminal, context->clock,
                    bytes->info().name, length);
  std::string piece(std::min(length, kPieceBytes), '\0');
  for (uint64_t offset = 0; offset < length; offset += piece.size()) {
    const uint64_t now = std::min<uint64_t>(piece.size(), length - offset);
    CAIRN_RETURN_IF_ERROR(bytes->ReadRange(offset, now, piece.data()));
    CAIRN_RETURN_IF_ERROR(WriteAll(fd, piece.data(), now, where));
    progress.Update(offset + now);
  }
  return absl::OkStatus();
}

Status Get(Context* context, const GetArguments& arguments) {
  CAIRN_ASSIGN_OR_RETURN(Target target, ParseTarget(arguments.path, TargetNeeds::kName));
  target.checkpoint.attempt = arguments.attempt;
  target.checkpoint.revision = arguments.revision;
  const bool to_stdout = arguments.file == "-";
  if (to_stdout && context->console.out_terminal) {
    return absl::InvalidArgumentError(
        "FILE: \"-\" would throw the object's bytes at a terminal; redirect it");
  }
  std::string file = arguments.file;
  struct stat status {};
  if (!to_stdout && stat(file.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) {
    absl::StrAppend(&file, "/", target.name.substr(target.name.rfind('/') + 1));
  }
  CAIRN_ASSIGN_OR_RETURN(auto finder, Find(context));
  CAIRN_ASSIGN_OR_RETURN(auto bytes, finder->Open(target.checkpoint, target.name));
  const MonotonicNanos started = context->clock->Now();
  if (to_stdout) return Copy(context, bytes.get(), context->console.out_fd, "standard output");
  if (stat(file.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
    // A pipe or a device is written to directly; there is nothing to rename.
    UniqueFd fd(open(file.c_str(), O_WRONLY | O_CLOEXEC));
    if (!fd.valid()) return ErrnoStatus(errno, absl::StrCat("FILE: ", file));
    CAIRN_RETURN_IF_ERROR(Copy(context, bytes.get(), fd.get(), absl::StrCat("FILE: ", file)));
  } else {
    CAIRN_ASSIGN_OR_RETURN(NewFile output, NewFile::Begin(file));
    CAIRN_RETURN_IF_ERROR(Copy(context, bytes.get(), output.fd(), absl::StrCat("FILE: ", file)));
    CAIRN_RETURN_IF_ERROR(output.Finish());
  }
  const double seconds = absl::ToDoubleSeconds(absl::Nanoseconds(context->clock->Now() - started));
  const char* source = bytes->from_storage() ? "storage" : "memory";
  const CheckpointKey& key = bytes->checkpoint();
  if (context->settings.json) {
    *context->console.out << Dump({{"job", key.job},
                                   {"step", key.step},
                                   {"attempt", key.attempt},
                                   {"revision", key.revision},
                                   {"name", bytes->info().name},
                                   {"file", file},
                                   {"bytes", bytes->info().length},
                                   {"source", source},
                                   {"seconds", seconds}});
  } else {
    *context->console.out << Printable(file) << ": " << HumanBytes(bytes->info().length) << " of "
                          << key.job << "/" << key.step << "/" << bytes->info().name
                          << ", verified, from " << source << "\n";
  }
  return absl::OkStatus();
}

// --- put

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

StatusOr<Input> OpenInput(const std::string& file, const std::string& name) {
  const std::string what = absl::StrCat("FILE: ", file);
  UniqueFd fd(open(file.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, what);
  struct stat status {};
  if (fstat(fd.get(), &status) != 0) return ErrnoStatus(errno, what);
  if (!S_ISREG(status.st_mode)) return absl::InvalidArgumentError(what + " is not a regular file");
  CAIRN_RETURN_IF_ERROR(Annotate(ValidateObjectName(name), what));
  Input input{file, name, {}, static_cast<uint64_t>(status.st_size)};
  if (input.length > 0) {
    CAIRN_ASSIGN_OR_RETURN(input.mapping,
                           Mapping::Map(fd.get(), 0, input.length, PROT_READ, MAP_PRIVATE));
    madvise(input.mapping.data(), input.mapping.length(), MADV_SEQUENTIAL);
  }
  return input;
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
  CAIRN_ASSIGN_OR_RETURN(const client::Listing listing, session->List(step));
  std::set<std::string> written;
  for (const Input& input : inputs) written.insert(input.name);
  std::vector<std::string> lost;
  for (const client::ObjectInfo& object : listing.objects) {
    if (!written.count(object.name)) lost.push_back(object.name);
  }
  if (lost.empty()) return absl::OkStatus();
  const size_t shown = std::min<size_t>(lost.size(), 3);
  const std::string names =
      absl::StrJoin(lost.begin(), lost.begin() + static_cast<ptrdiff_t>(shown), ", ");
  return absl::FailedPreconditionError(absl::StrCat(
      "step: ", step, " holds ", Plural(static_cast<int64_t>(lost.size()), "other name"), " (",
      names, lost.size() > shown ? ", …" : "",
      ") that this put would leave out; put all files of a step at once, or save them in one "
      "step() of the Python or C++ client"));
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

StatusOr<std::vector<Input>> OpenInputs(const PutArguments& arguments, const Target& target) {
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
    CAIRN_ASSIGN_OR_RETURN(Input input, OpenInput(file, name));
    inputs.push_back(std::move(input));
  }
  return inputs;
}

Status Put(Context* context, const PutArguments& arguments) {
  if (arguments.files.size() < 2)
    return absl::InvalidArgumentError("PATH: missing; put FILE… JOB/STEP/NAME");
  CAIRN_ASSIGN_OR_RETURN(const Target target,
                         ParseTarget(arguments.files.back(), TargetNeeds::kJob));
  if (!target.has_step || target.checkpoint.step == kNoStep) {
    return absl::InvalidArgumentError(absl::StrCat("path: \"", arguments.files.back(),
                                                   "\" needs a step by number: JOB/STEP/NAME"));
  }
  CAIRN_ASSIGN_OR_RETURN(const ObjectKind kind, ParseObjectKind(arguments.kind));
  if (!arguments.wait.empty() && arguments.wait != "persisted" && arguments.wait != "replicated") {
    return absl::InvalidArgumentError(
        absl::StrCat("wait: \"", arguments.wait, "\" is neither persisted nor replicated"));
  }
  CAIRN_ASSIGN_OR_RETURN(std::vector<Input> inputs, OpenInputs(arguments, target));
  uint64_t total = 0;
  for (const Input& input : inputs) total += input.length;

  CAIRN_ASSIGN_OR_RETURN(auto session, context->ConnectWriter(target.job, arguments.attempt));
  CAIRN_RETURN_IF_ERROR(NothingIsLeftBehind(session.get(), target, inputs));
  if (arguments.attempt == 0) CAIRN_RETURN_IF_ERROR(session->ChooseAttempt().status());
  const MonotonicNanos started = context->clock->Now();
  CAIRN_ASSIGN_OR_RETURN(auto writer, session->BeginStep(target.checkpoint.step, 1));
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
  CAIRN_ASSIGN_OR_RETURN(const client::CommitResult committed, writer->Commit({}));
  const double seconds = absl::ToDoubleSeconds(absl::Nanoseconds(context->clock->Now() - started));

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

void AddMoveCommands(CLI::App* app, Context* context) {
  {
    auto* command = app->add_subcommand("put",
                                        "Save files as a whole step of a job (as its lone writer): "
                                        "FILE JOB/STEP/NAME, or FILE... JOB/STEP/");
    auto arguments = std::make_shared<PutArguments>();
    command->add_option("FILE... PATH", arguments->files, "files, then JOB/STEP/NAME or JOB/STEP/")
        ->required()
        ->type_name("")
        ->expected(2, 1 << 16);
    command->footer(
        "Examples:\n"
        "  cairn put model.pt run7/120/model.pt --kind torch\n"
        "  cairn put a.bin b.bin run7/121/ --wait persisted");
    command
        ->add_option("--kind", arguments->kind,
                     "raw, torch, safetensors or numpy: what the bytes are")
        ->capture_default_str();
    command->add_option("--attempt", arguments->attempt,
                        "an attempt chosen elsewhere (default: a new one)");
    command->add_option("--wait", arguments->wait, "persisted: return when the step is in storage");
    command->callback([=] { context->action = [=] { return Put(context, *arguments); }; });
  }
  {
    auto* command = app->add_subcommand(
        "get", "Write an object to a file, or to standard output with -, every block verified");
    auto arguments = std::make_shared<GetArguments>();
    command->add_option("PATH", arguments->path, "JOB/STEP/NAME, STEP a number or \"latest\"")
        ->required();
    command->add_option("FILE", arguments->file, "a file, a directory, or -")->required();
    command->footer(
        "Examples:\n"
        "  cairn get run7/latest/model.pt model.pt\n"
        "  cairn get run7/120/notes.txt - | less\n"
        "  cairn get --storage /ckpt run7/latest/model.pt .     also when the daemon is down");
    command->add_option("--attempt", arguments->attempt, "this attempt's instead of the line's");
    command->add_option("--revision", arguments->revision, "this revision instead of the newest");
    command->callback([=] { context->action = [=] { return Get(context, *arguments); }; });
  }
}

}  // namespace cairn::cli
