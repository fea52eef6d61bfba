#include "client/cpp/weights.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cpp/process.h"
#include "common/safetensors.h"

namespace cairn::client {
namespace {

StatusOr<CheckpointKey> Resolve(Session* session, const CheckpointRef& checkpoint) {
  if (checkpoint.step == kNoStep) {
    CAIRN_ASSIGN_OR_RETURN(const LatestCheckpoint latest, session->Latest(checkpoint.job));
    return latest.key;
  }
  CAIRN_ASSIGN_OR_RETURN(const CheckpointInfo info, session->Stat(checkpoint));
  // What is there of it may look whole: a writer that is missing may have had layers of its own.
  if (!info.facts.complete) {
    return absl::NotFoundError(
        absl::StrCat(info.key.DebugString(), " is not complete: other writers have not committed"));
  }
  return info.key;
}

Status NoWeights(const CheckpointKey& checkpoint, const std::vector<ObjectInfo>& objects) {
  std::map<absl::string_view, int> kinds;
  for (const ObjectInfo& object : objects) ++kinds[ObjectKindName(object.kind)];
  std::string has;
  for (const auto& [kind, count] : kinds) {
    absl::StrAppend(&has, has.empty() ? "" : ", ", count, " ", kind);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      checkpoint.DebugString(), " has no index of tensors: none of its objects is of kind ",
      "safetensors (it has ", has.empty() ? "none" : has, ")"));
}

// Keeps of `all` what `one` says, too.
void KeepAlike(const std::map<std::string, std::string>& one,
               std::map<std::string, std::string>* all) {
  std::erase_if(*all, [&](const auto& entry) {
    const auto found = one.find(entry.first);
    return found == one.end() || found->second != entry.second;
  });
}

}  // namespace

StatusOr<std::unique_ptr<Weights>> Weights::Open(Session* session, const CheckpointRef& checkpoint,
                                                 absl::Duration timeout) {
  std::unique_ptr<Weights> weights;
  const Status status = Contain([&]() -> Status {
    CAIRN_ASSIGN_OR_RETURN(const CheckpointKey key, Resolve(session, checkpoint));
    CAIRN_ASSIGN_OR_RETURN(const Listing listing, session->List(ExactListPath(key)));
    CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                           SafetensorsAmong(key, listing.objects));
    const CheckpointRef exact{key.job, key.step, key.attempt, key.revision};
    std::vector<std::shared_ptr<OpenObject>> objects;
    for (const std::string& name : names) {
      CAIRN_ASSIGN_OR_RETURN(std::shared_ptr<OpenObject> object,
                             session->Open(exact, name, OpenMode::kRead, timeout));
      objects.push_back(std::move(object));
    }
    CAIRN_ASSIGN_OR_RETURN(weights, Of(key, std::move(objects)));
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  return weights;
}

StatusOr<std::unique_ptr<Weights>> Weights::Of(CheckpointKey checkpoint,
                                               std::vector<std::shared_ptr<OpenObject>> objects) {
  std::unique_ptr<Weights> weights(new Weights);
  weights->checkpoint_ = std::move(checkpoint);
  std::vector<WeightsObject> headers;
  std::map<std::string, std::shared_ptr<OpenObject>> opened;
  for (std::shared_ptr<OpenObject>& object : objects) {
    const std::string name = object->info().name;
    StatusOr<SafetensorsHeader> header = ReadHeader(object.get());
    if (absl::IsInvalidArgument(header.status())) {
      return Annotate(header.status(),
                      absl::StrCat(weights->checkpoint_.DebugString(), " object ", name));
    }
    CAIRN_RETURN_IF_ERROR(header.status());
    if (headers.empty()) {
      weights->metadata_ = header->metadata;
      weights->metadata_.erase(kPartsKey);
    }
    KeepAlike(header->metadata, &weights->metadata_);
    headers.push_back({name, *std::move(header)});
    opened[name] = std::move(object);
  }
  CAIRN_ASSIGN_OR_RETURN(weights->index_, BuildWeightsIndex(std::move(headers)));
  for (const std::string& name : weights->index_.objects) {
    weights->objects_.push_back(opened[name]);
  }
  return weights;
}

StatusOr<std::vector<std::string>> SafetensorsAmong(const CheckpointKey& checkpoint,
                                                    const std::vector<ObjectInfo>& objects) {
  std::vector<std::string> names;
  for (const ObjectInfo& info : objects) {
    if (info.kind == ObjectKind::kSafetensors) names.push_back(info.name);
  }
  if (names.empty()) return NoWeights(checkpoint, objects);
  return names;
}

StatusOr<SafetensorsHeader> ReadHeader(OpenObject* object) {
  const uint64_t length = object->info().length;
  // Most headers lie in the first block, which is read and checked whole in any case.
  std::string head(std::min<uint64_t>(length, kBlockBytes), '\0');
  CAIRN_RETURN_IF_ERROR(object->ReadRange(0, head.size(), head.data()));
  CAIRN_ASSIGN_OR_RETURN(const uint64_t bytes, SafetensorsHeaderBytes(head, length));
  if (bytes > head.size()) {
    const uint64_t have = head.size();
    head.resize(bytes);
    CAIRN_RETURN_IF_ERROR(object->ReadRange(have, bytes - have, head.data() + have));
  }
  return ReadSafetensorsHeader(head, length);
}

}  // namespace cairn::client
