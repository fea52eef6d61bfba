// The tensors that a step's safetensors objects hold together: listed, checked, written to one file.
#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <ostream>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/context.h"
#include "client/cli/finder.h"
#include "client/cli/format.h"
#include "client/cli/new_file.h"
#include "client/cli/progress.h"
#include "client/cli/render.h"
#include "client/cpp/weights.h"
#include "client/cpp/weights_check.h"
#include "client/cpp/weights_file.h"
#include "common/safetensors.h"

namespace cairn::cli {
namespace {

using client::IndexedTensor;
using client::TensorPart;
using client::Weights;
using client::WeightsIndex;

struct WeightsArguments {
  PathArguments path;
  std::string file;
  std::vector<std::string> patterns;
};

std::string Objects(uint64_t count) { return Plural(static_cast<int64_t>(count), "object"); }
std::string Tensors(uint64_t count) { return Plural(static_cast<int64_t>(count), "tensor"); }

std::string NameOf(const CheckpointKey& key) { return absl::StrCat(key.job, "/", key.step); }

Json ToJson(const CheckpointKey& key) {
  return {
      {"job", key.job}, {"step", key.step}, {"attempt", key.attempt}, {"revision", key.revision}};
}

// --- the step

// JOB is its latest step.
StatusOr<client::CheckpointRef> ParseCheckpoint(const PathArguments& path) {
  CAIRN_ASSIGN_OR_RETURN(Target target, path.Parse(TargetNeeds::kJob));
  if (!target.name.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "path: \"", path.path, "\" names an object; JOB/STEP or JOB is needed, for all of a step"));
  }
  target.checkpoint.job = target.job;
  return target.checkpoint;
}

struct Found {
  CheckpointKey key;
  std::vector<std::string> objects;  // those of kind safetensors
  uint64_t bytes = 0;                // of these

  client::CheckpointRef exact() const { return {key.job, key.step, key.attempt, key.revision}; }
};

StatusOr<Found> FindStep(Finder* finder, const client::CheckpointRef& checkpoint) {
  CAIRN_ASSIGN_OR_RETURN(const client::CheckpointInfo info, finder->Stat(checkpoint));
  if (!info.facts.complete) {
    return absl::NotFoundError(absl::StrCat("step: ", NameOf(info.key), " is ", Whereabouts(info)));
  }
  CAIRN_ASSIGN_OR_RETURN(const client::Listing listing, finder->List(ExactListPath(info.key)));
  Found found{info.key};
  CAIRN_ASSIGN_OR_RETURN(found.objects, client::SafetensorsAmong(info.key, listing.objects));
  for (const client::ObjectInfo& object : listing.objects) {
    if (object.kind == ObjectKind::kSafetensors) found.bytes += object.length;
  }
  return found;
}

StatusOr<std::unique_ptr<Weights>> OpenWeights(Finder* finder,
                                               const client::CheckpointRef& checkpoint) {
  CAIRN_ASSIGN_OR_RETURN(const Found found, FindStep(finder, checkpoint));
  std::vector<std::shared_ptr<client::OpenObject>> objects;
  for (const std::string& name : found.objects) {
    CAIRN_ASSIGN_OR_RETURN(auto object, finder->Open(found.exact(), name));
    objects.push_back(std::move(object));
  }
  return Weights::Of(found.key, std::move(objects));
}

// --- ls

uint64_t BytesOf(const IndexedTensor& tensor) {
  return TensorBytes(tensor.dtype, tensor.shape).value_or(0);  // the index has checked it
}

std::string ShapeText(const std::vector<uint64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

std::set<uint32_t> ObjectsOf(const IndexedTensor& tensor) {
  std::set<uint32_t> objects;
  for (const TensorPart& part : tensor.parts) objects.insert(part.object);
  return objects;
}

std::string ObjectsText(const IndexedTensor& tensor, const WeightsIndex& index) {
  constexpr size_t kMostShown = 3;
  std::vector<std::string> names;
  const std::set<uint32_t> objects = ObjectsOf(tensor);
  for (const uint32_t object : objects) {
    if (names.size() == kMostShown) break;
    names.push_back(index.objects[object]);
  }
  const std::string more = objects.size() > kMostShown
                               ? absl::StrCat(" and ", objects.size() - kMostShown, " more")
                               : "";
  return absl::StrCat(absl::StrJoin(names, ", "), more);
}

Json TensorsJson(const std::vector<const IndexedTensor*>& tensors, const WeightsIndex& index) {
  Json all = Json::array();
  for (const IndexedTensor* tensor : tensors) {
    Json parts = Json::array();
    for (const TensorPart& part : tensor->parts) {
      parts.push_back({{"object", index.objects[part.object]},
                       {"start", part.start},
                       {"shape", part.shape},
                       {"offset", part.begin}});
    }
    all.push_back({{"name", tensor->name},
                   {"dtype", tensor->dtype},
                   {"shape", tensor->shape},
                   {"bytes", BytesOf(*tensor)},
                   {"parts", parts}});
  }
  return all;
}

std::string RenderTensors(const std::vector<const IndexedTensor*>& tensors,
                          const WeightsIndex& index, bool wide) {
  std::vector<std::string> head = {"NAME", "DTYPE", "SHAPE", "SIZE"};
  std::vector<size_t> right = {3};
  if (wide) {
    right.insert(right.end(), {head.size(), head.size() + 1});
    head.insert(head.end(), {"BYTES", "PARTS", "IN"});
  }
  Table table(head, right);
  for (const IndexedTensor* tensor : tensors) {
    const uint64_t bytes = BytesOf(*tensor);
    std::vector<std::string> row = {tensor->name, tensor->dtype, ShapeText(tensor->shape),
                                    HumanBytes(bytes)};
    if (wide) {
      row.push_back(Grouped(static_cast<int64_t>(bytes)));
      row.push_back(Grouped(static_cast<int64_t>(tensor->parts.size())));
      row.push_back(ObjectsText(*tensor, index));
    }
    table.Row(std::move(row));
  }
  return table.Render();
}

Status ListTensors(Context* context, const WeightsArguments& arguments) {
  CAIRN_ASSIGN_OR_RETURN(const client::CheckpointRef step, ParseCheckpoint(arguments.path));
  CAIRN_ASSIGN_OR_RETURN(auto finder, Find(context));
  CAIRN_ASSIGN_OR_RETURN(const auto weights, OpenWeights(finder.get(), step));
  const WeightsIndex& index = weights->index();
  CAIRN_ASSIGN_OR_RETURN(const auto tensors, client::SelectTensors(index, arguments.patterns));
  uint64_t bytes = 0;
  std::set<uint32_t> objects;
  for (const IndexedTensor* tensor : tensors) {
    bytes += BytesOf(*tensor);
    objects.merge(ObjectsOf(*tensor));
  }
  std::ostream& out = *context->console.out;
  if (context->settings.json) {
    Json json = ToJson(weights->checkpoint());
    json["tensors"] = TensorsJson(tensors, index);
    json["bytes"] = bytes;
    json["objects"] = Json::array();
    for (const uint32_t object : objects) json["objects"].push_back(index.objects[object]);
    out << Dump(json);
    return absl::OkStatus();
  }
  if (!tensors.empty()) out << RenderTensors(tensors, index, context->settings.wide);
  out << Tensors(tensors.size()) << ", " << HumanBytes(bytes) << " in " << Objects(objects.size())
      << "\n";
  return absl::OkStatus();
}

// --- check

Status Check(Context* context, const WeightsArguments& arguments) {
  CAIRN_ASSIGN_OR_RETURN(const client::CheckpointRef step, ParseCheckpoint(arguments.path));
  CAIRN_ASSIGN_OR_RETURN(auto finder, Find(context));
  CAIRN_ASSIGN_OR_RETURN(const Found found, FindStep(finder.get(), step));
  const MonotonicNanos started = context->clock->Now();
  StatusOr<client::WeightsCheck> check;
  {
    Progress progress(context->console.err, context->console.err_terminal, context->clock,
                      Objects(found.objects.size()), found.bytes);
    check = client::CheckWeights(
        found.objects, [&](const std::string& name) { return finder->Open(found.exact(), name); },
        [&](uint64_t bytes) { progress.Update(bytes); });
  }
  CAIRN_RETURN_IF_ERROR(check.status());
  const double seconds = context->SecondsSince(started);
  std::ostream& out = *context->console.out;
  if (context->settings.json) {
    Json json = ToJson(found.key);
    json.update({{"objects", check->objects},
                 {"tensors", check->tensors},
                 {"bytes", check->bytes},
                 {"wrong", check->wrong},
                 {"seconds", seconds}});
    out << Dump(json);
  } else if (check->wrong.empty()) {
    out << NameOf(found.key) << ": " << Tensors(check->tensors) << ", " << HumanBytes(check->bytes)
        << " in " << Objects(check->objects) << ", checked in " << absl::StrFormat("%.1f", seconds)
        << " s: all good\n";
  } else {
    for (const std::string& wrong : check->wrong) out << Printable(wrong) << "\n";
  }
  if (check->wrong.empty()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("weights: ", NameOf(found.key), " is bad"));
}

// --- get

// Refused before anything is read.
StatusOr<std::string> PlaceOf(const std::string& file) {
  if (file.empty()) return absl::InvalidArgumentError("FILE: is empty; name where it goes");
  if (file == "-") {
    return absl::InvalidArgumentError(
        "FILE: \"-\" cannot be written out of order, as the tensors come; name a file");
  }
  struct stat status {};
  if (stat(file.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat("FILE: ", file, " is there and is not a file"));
  }
  return BehindLink(file);
}

Status Get(Context* context, const WeightsArguments& arguments) {
  CAIRN_ASSIGN_OR_RETURN(const client::CheckpointRef step, ParseCheckpoint(arguments.path));
  CAIRN_ASSIGN_OR_RETURN(const std::string place, PlaceOf(arguments.file));
  CAIRN_ASSIGN_OR_RETURN(auto finder, Find(context));
  CAIRN_ASSIGN_OR_RETURN(const auto weights, OpenWeights(finder.get(), step));
  CAIRN_ASSIGN_OR_RETURN(const client::WeightsFile file,
                         client::LayOutFile(*weights, {arguments.patterns, {}}));
  const uint64_t count = file.plan.tensors.size();
  const MonotonicNanos started = context->clock->Now();
  {
    CAIRN_ASSIGN_OR_RETURN(NewFile output, NewFile::Begin(place));
    Progress progress(context->console.err, context->console.err_terminal, context->clock,
                      Tensors(count), file.bytes);
    CAIRN_RETURN_IF_ERROR(client::WriteFile(*weights, file, output.fd(),
                                            absl::StrCat("FILE: ", arguments.file),
                                            [&](uint64_t bytes) { progress.Update(bytes); }));
    CAIRN_RETURN_IF_ERROR(output.Close());
    CAIRN_RETURN_IF_ERROR(output.Publish());
  }
  std::set<std::string> sources;
  for (const client::PlannedBlock& block : file.plan.blocks) {
    sources.insert(SourceOf(*weights->objects()[block.object]));
  }
  const std::string source = absl::StrJoin(sources, " and ");
  std::ostream& out = *context->console.out;
  if (context->settings.json) {
    Json json = ToJson(weights->checkpoint());
    Json names = Json::array();
    for (const client::WantedTensor& tensor : file.plan.tensors) names.push_back(tensor.name);
    json.update({{"names", names},
                 {"file", arguments.file},
                 {"bytes", file.bytes},
                 {"source", source},
                 {"seconds", context->SecondsSince(started)}});
    out << Dump(json);
    return absl::OkStatus();
  }
  out << Printable(arguments.file) << ": " << Tensors(count) << ", " << HumanBytes(file.bytes)
      << " of " << NameOf(weights->checkpoint()) << ", verified"
      << (source.empty() ? "" : ", from ") << source << "\n";
  return absl::OkStatus();
}

constexpr char kStepHelp[] = "JOB/STEP, or JOB for its latest step";
constexpr char kPatternHelp[] = "names, or patterns as in a shell ('*.bias'); none: all tensors";

}  // namespace

void AddWeightsCommands(CLI::App* app, Context* context) {
  auto* weights = app->add_subcommand(
      "weights", "The tensors that a step's safetensors objects hold together: ls, check, get");
  weights->require_subcommand(1);
  {
    auto* command = weights->add_subcommand("ls", "List the tensors of a step");
    auto arguments = std::make_shared<WeightsArguments>();
    arguments->path.AddTo(command, kStepHelp);
    command->add_option("PATTERN", arguments->patterns, kPatternHelp);
    command->footer(
        "A tensor whose parts several writers saved is listed once, as a whole. -o wide shows its\n"
        "exact bytes, how many parts it has, and in which objects.\n\n"
        "Examples:\n"
        "  cairn weights ls run7\n"
        "  cairn weights ls run7/120 'model.layers.0.*' -o wide");
    command->callback([=] { context->action = [=] { return ListTensors(context, *arguments); }; });
  }
  {
    auto* command = weights->add_subcommand(
        "check", "Verify every block, every header, and that every tensor is whole");
    auto arguments = std::make_shared<WeightsArguments>();
    arguments->path.AddTo(command, kStepHelp);
    command->footer(
        "Prints all that is wrong, each with its object or tensor; the exit code is 4 then.\n\n"
        "Example:\n  cairn weights check run7/120");
    command->callback([=] { context->action = [=] { return Check(context, *arguments); }; });
  }
  {
    auto* command = weights->add_subcommand(
        "get", "Write tensors of a step to one safetensors file; every block is verified");
    auto arguments = std::make_shared<WeightsArguments>();
    arguments->path.AddTo(command, kStepHelp);
    command->add_option("FILE", arguments->file, "the file; one that is there is replaced")
        ->required();
    command->add_option("PATTERN", arguments->patterns, kPatternHelp);
    command->footer(
        "Parts that several writers saved are put together: each tensor is whole in the file, in\n"
        "the order of layers. A file that is there is replaced once the new one is whole.\n\n"
        "Examples:\n"
        "  cairn weights get run7 model.safetensors\n"
        "  cairn weights get run7/120 head.safetensors lm_head.weight '*.norm.weight'");
    command->callback([=] { context->action = [=] { return Get(context, *arguments); }; });
  }
}

}  // namespace cairn::cli
