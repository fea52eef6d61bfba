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
  return info.key;
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

}  // namespace

StatusOr<std::unique_ptr<Weights>> Weights::Open(Session* session, const CheckpointRef& checkpoint,
                                                 absl::Duration timeout) {
  std::unique_ptr<Weights> weights(new Weights);
  const Status status = Contain([&]() -> Status {
    CAIRN_ASSIGN_OR_RETURN(weights->checkpoint_, Resolve(session, checkpoint));
    const CheckpointKey& key = weights->checkpoint_;
    CAIRN_ASSIGN_OR_RETURN(const Listing listing, session->List(ExactListPath(key)));
    std::vector<WeightsObject> headers;
    std::map<std::string, std::shared_ptr<OpenObject>> opened;
    for (const ObjectInfo& info : listing.objects) {
      if (info.kind != ObjectKind::kSafetensors) continue;
      const CheckpointRef exact{key.job, key.step, key.attempt, key.revision};
      CAIRN_ASSIGN_OR_RETURN(std::shared_ptr<OpenObject> object,
                             session->Open(exact, info.name, OpenMode::kRead, timeout));
      StatusOr<SafetensorsHeader> header = ReadHeader(object.get());
      if (!header.ok()) {
        return Status(header.status().code(), absl::StrCat(key.DebugString(), " object ", info.name,
                                                           ": ", header.status().message()));
      }
      headers.push_back({info.name, *std::move(header)});
      opened[info.name] = std::move(object);
    }
    if (headers.empty()) return NoWeights(key, listing.objects);
    CAIRN_ASSIGN_OR_RETURN(weights->index_, BuildWeightsIndex(std::move(headers)));
    for (const std::string& name : weights->index_.objects) {
      weights->objects_.push_back(opened[name]);
    }
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  return weights;
}

}  // namespace cairn::client
