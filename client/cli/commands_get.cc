#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <ostream>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "client/cli/context.h"
#include "client/cli/finder.h"
#include "client/cli/format.h"
#include "client/cli/new_file.h"
#include "client/cli/progress.h"
#include "client/cli/render.h"

namespace cairn::cli {
namespace {

constexpr uint64_t kPieceBytes =
    16 * kBlockBytes;  // of one read: whole blocks, so that none is verified twice

struct GetArguments {
  std::string path, file;
  Attempt attempt = 0;
  Revision revision = -1;
};

// `before`: of the bytes that `progress` is about, those that are copied already.
Status Copy(client::OpenObject* bytes, int fd, const std::string& where, uint64_t before,
            Progress* progress) {
  const uint64_t length = bytes->info().length;
  std::string piece(std::min(length, kPieceBytes), '\0');
  for (uint64_t offset = 0; offset < length; offset += piece.size()) {
    const uint64_t now = std::min<uint64_t>(piece.size(), length - offset);
    CAIRN_RETURN_IF_ERROR(bytes->ReadRange(offset, now, piece.data()));
    CAIRN_RETURN_IF_ERROR(WriteAll(fd, piece.data(), now, where));
    progress->Update(before + offset + now);
  }
  return absl::OkStatus();
}

Status CopyOne(Context* context, client::OpenObject* bytes, int fd, const std::string& where) {
  Progress progress(context->console.err, context->console.err_terminal, context->clock,
                    bytes->info().name, bytes->info().length);
  return Copy(bytes, fd, where, 0, &progress);
}

// --- one object

// FILE is "-", or another name of what standard output is already, such as /dev/stdout. It is written to,
// not replaced: what a shell put there stays, and what comes after it follows.
bool MeansStandardOutput(const Console& console, const std::string& file) {
  struct stat named {
  }, out{};
  if (file == "-") return true;
  return stat(file.c_str(), &named) == 0 && fstat(console.out_fd, &out) == 0 &&
         named.st_dev == out.st_dev && named.st_ino == out.st_ino;
}

Status GetObject(Context* context, const GetArguments& arguments, const Target& target) {
  const bool to_stdout = MeansStandardOutput(context->console, arguments.file);
  if (to_stdout && context->console.out_terminal) {
    return absl::InvalidArgumentError(
        absl::StrCat("FILE: \"", arguments.file,
                     "\" would throw the object's bytes at a terminal; redirect it"));
  }
  std::string file = arguments.file;
  struct stat status {};
  if (!to_stdout && stat(file.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) {
    absl::StrAppend(&file, "/", target.name.substr(target.name.rfind('/') + 1));
  }
  CAIRN_ASSIGN_OR_RETURN(auto finder, Find(context));
  CAIRN_ASSIGN_OR_RETURN(auto bytes, finder->Open(target.checkpoint, target.name));
  const MonotonicNanos started = context->clock->Now();
  if (to_stdout) {
    const Status copied = CopyOne(context, bytes.get(), context->console.out_fd, "standard output");
    return absl::IsCancelled(copied) ? absl::OkStatus() : copied;  // its reader has what it wanted
  }
  if (stat(file.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
    // A pipe or a device is written to directly; there is nothing to rename.
    UniqueFd fd(open(file.c_str(), O_WRONLY | O_CLOEXEC));
    if (!fd.valid()) return ErrnoStatus(errno, absl::StrCat("FILE: ", file));
    CAIRN_RETURN_IF_ERROR(CopyOne(context, bytes.get(), fd.get(), absl::StrCat("FILE: ", file)));
  } else {
    CAIRN_ASSIGN_OR_RETURN(const std::string place, BehindLink(file));
    CAIRN_ASSIGN_OR_RETURN(NewFile output, NewFile::Begin(place));
    CAIRN_RETURN_IF_ERROR(CopyOne(context, bytes.get(), output.fd(), absl::StrCat("FILE: ", file)));
    CAIRN_RETURN_IF_ERROR(output.Close());
    CAIRN_RETURN_IF_ERROR(output.Publish());
  }
  const CheckpointKey& key = bytes->checkpoint();
  if (context->settings.json) {
    *context->console.out << Dump({{"job", key.job},
                                   {"step", key.step},
                                   {"attempt", key.attempt},
                                   {"revision", key.revision},
                                   {"name", bytes->info().name},
                                   {"file", file},
                                   {"bytes", bytes->info().length},
                                   {"source", SourceOf(*bytes)},
                                   {"seconds", context->SecondsSince(started)}});
  } else {
    *context->console.out << Printable(file) << ": " << HumanBytes(bytes->info().length) << " of "
                          << key.job << "/" << key.step << "/" << bytes->info().name
                          << ", verified, from " << SourceOf(*bytes) << "\n";
  }
  return absl::OkStatus();
}

// --- a whole step

struct StepCopy {
  uint64_t bytes = 0;
  std::set<std::string> sources;
  std::vector<NewFile> files;  // all closed
};

// Where each object goes; refused before anything is read if something else stands there.
StatusOr<std::vector<std::string>> PlacesIn(const std::string& directory,
                                            const std::vector<client::ObjectInfo>& objects) {
  std::vector<std::string> places;
  std::set<std::filesystem::path> taken;
  for (const client::ObjectInfo& object : objects) {
    CAIRN_RETURN_IF_ERROR(ValidateObjectName(object.name));  // it must not lead out of DIR
    const std::string file = absl::StrCat(directory, "/", object.name);
    struct stat status {};
    if (stat(file.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
      return absl::InvalidArgumentError(
          absl::StrCat("FILE: ", file, " is there and is not a file"));
    }
    CAIRN_ASSIGN_OR_RETURN(std::string place, BehindLink(file));
    std::error_code error;
    const std::filesystem::path end = std::filesystem::weakly_canonical(file, error);
    if (!error && !taken.insert(end).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("FILE: ", file, " and another object's file lead to one file, ", place));
    }
    places.push_back(std::move(place));
  }
  return places;
}

Status CopyStep(Context* context, Finder* finder, const client::CheckpointRef& exact,
                const std::vector<client::ObjectInfo>& objects,
                const std::vector<std::string>& places, NewDirectories* directories,
                StepCopy* out) {
  uint64_t total = 0;
  for (const client::ObjectInfo& object : objects) total += object.length;
  Progress progress(context->console.err, context->console.err_terminal, context->clock,
                    Plural(static_cast<int64_t>(objects.size()), "object"), total);
  for (size_t i = 0; i < objects.size(); ++i) {
    const std::string& place = places[i];
    CAIRN_RETURN_IF_ERROR(directories->Make(place.substr(0, place.rfind('/'))));
    CAIRN_ASSIGN_OR_RETURN(auto bytes, finder->Open(exact, objects[i].name));
    CAIRN_ASSIGN_OR_RETURN(NewFile file, NewFile::Begin(place));
    CAIRN_RETURN_IF_ERROR(
        Copy(bytes.get(), file.fd(), absl::StrCat("FILE: ", place), out->bytes, &progress));
    CAIRN_RETURN_IF_ERROR(file.Close());
    out->bytes += bytes->info().length;
    out->sources.insert(SourceOf(*bytes));
    out->files.push_back(std::move(file));
  }
  return absl::OkStatus();
}

Status GetStep(Context* context, const GetArguments& arguments, const Target& target) {
  const std::string directory(absl::StripSuffix(arguments.file, "/"));
  if (arguments.file == "-") {
    return absl::InvalidArgumentError(
        absl::StrCat("DIR: \"-\" takes one object; \"", arguments.path, "\" names a whole step"));
  }
  struct stat status {};
  if (stat(arguments.file.c_str(), &status) == 0 && !S_ISDIR(status.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat("DIR: ", arguments.file,
                                                   " is not a directory, and \"", arguments.path,
                                                   "\" names a whole step"));
  }
  CAIRN_ASSIGN_OR_RETURN(auto finder, Find(context));
  // One attempt and revision from here on, whatever is saved meanwhile.
  CAIRN_ASSIGN_OR_RETURN(const client::CheckpointInfo info, finder->Stat(target.checkpoint));
  const CheckpointKey& key = info.key;
  if (!info.facts.complete) {
    return absl::NotFoundError(
        absl::StrCat("step: ", key.job, "/", key.step, " is ", Whereabouts(info)));
  }
  CAIRN_ASSIGN_OR_RETURN(const client::Listing listing, finder->List(ExactListPath(key)));
  CAIRN_ASSIGN_OR_RETURN(const auto places, PlacesIn(directory, listing.objects));
  const MonotonicNanos started = context->clock->Now();
  NewDirectories directories;
  CAIRN_RETURN_IF_ERROR(directories.Make(arguments.file));
  const bool made = directories.made_any();
  StepCopy copy;
  CAIRN_RETURN_IF_ERROR(CopyStep(context, finder.get(),
                                 {key.job, key.step, key.attempt, key.revision}, listing.objects,
                                 places, &directories, &copy));
  CAIRN_RETURN_IF_ERROR(NewFile::PublishAll(&copy.files));
  directories.Keep();

  const std::string source = absl::StrJoin(copy.sources, " and ");
  if (context->settings.json) {
    Json names = Json::array();
    for (const client::ObjectInfo& object : listing.objects) names.push_back(object.name);
    *context->console.out << Dump({{"job", key.job},
                                   {"step", key.step},
                                   {"attempt", key.attempt},
                                   {"revision", key.revision},
                                   {"names", names},
                                   {"directory", arguments.file},
                                   {"directory_made", made},
                                   {"bytes", copy.bytes},
                                   {"source", source},
                                   {"seconds", context->SecondsSince(started)}});
    return absl::OkStatus();
  }
  std::ostream& out = *context->console.out;
  if (made) out << "made the directory " << Printable(arguments.file) << "\n";
  out << Printable(directory) << "/: " << Plural(static_cast<int64_t>(places.size()), "object")
      << ", " << HumanBytes(copy.bytes) << " of " << key.job << "/" << key.step << ", verified"
      << (source.empty() ? "" : ", from ") << source << "\n";
  return absl::OkStatus();
}

Status Get(Context* context, const GetArguments& arguments) {
  CAIRN_ASSIGN_OR_RETURN(Target target, ParseTarget(arguments.path, TargetNeeds::kJob));
  if (!target.has_step) {
    return absl::InvalidArgumentError(
        absl::StrCat("path: \"", arguments.path,
                     "\" names a job; JOB/STEP/NAME, JOB/STEP or JOB/latest is needed"));
  }
  if (arguments.file.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(target.name.empty() ? "DIR" : "FILE",
                                                   ": is empty; name where it goes (\".\": here)"));
  }
  target.checkpoint.attempt = arguments.attempt;
  target.checkpoint.revision = arguments.revision;
  return target.name.empty() ? GetStep(context, arguments, target)
                             : GetObject(context, arguments, target);
}

}  // namespace

void AddGetCommand(CLI::App* app, Context* context) {
  auto* command = app->add_subcommand(
      "get",
      "Write an object to a file, or to standard output with -, or all objects of a step into a "
      "directory; every block is verified");
  auto arguments = std::make_shared<GetArguments>();
  command
      ->add_option("PATH", arguments->path,
                   "JOB/STEP/NAME, or JOB/STEP for all of it; STEP a number or \"latest\"")
      ->required();
  command
      ->add_option(
          "FILE", arguments->file,
          "a file, a directory, or -; of a whole step a directory, which is made if need be")
      ->required();
  command->footer(
      "Files that are there are replaced once the new ones are whole; of a step, once all are.\n"
      "Ctrl-C leaves them as they were; once they are being replaced, it waits until all are.\n\n"
      "Examples:\n"
      "  cairn get run7/latest/model.pt model.pt\n"
      "  cairn get run7/latest out/               every object of the newest complete step\n"
      "  cairn get run7/120/notes.txt - | less\n"
      "  cairn get --storage /ckpt run7/latest/model.pt .     also when the daemon is down");
  command->add_option("--attempt", arguments->attempt, "this attempt's instead of the line's");
  command->add_option("--revision", arguments->revision, "this revision instead of the newest");
  command->callback([=] { context->action = [=] { return Get(context, *arguments); }; });
}

}  // namespace cairn::cli
