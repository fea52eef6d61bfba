#include "server/storage/storage.h"

#include "absl/strings/str_cat.h"

namespace cairn::storage {

Status CheckPartsAreOf(const CheckpointKey& checkpoint, const std::vector<PartToWrite>& parts) {
  CAIRN_RETURN_IF_ERROR(ValidateJob(checkpoint.job));
  for (const PartToWrite& part : parts) {
    if (part.manifest == nullptr || !(part.manifest->Checkpoint() == checkpoint) ||
        part.sources.size() != part.manifest->objects.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat(checkpoint.DebugString(), ": a part is not of this checkpoint"));
    }
  }
  return absl::OkStatus();
}

Status CheckWithinObject(uint64_t offset, uint64_t length, uint64_t object_length) {
  if (offset <= object_length && length <= object_length - offset) return absl::OkStatus();
  return absl::OutOfRangeError(
      absl::StrCat("offset: ", offset, " + ", length, " is beyond the object's ", object_length));
}

StatusOr<StoredJob> Storage::ReadSummary(const std::string& job) {
  StatusOr<StoredJob> stored = Read(job);
  if (!stored.ok()) return stored;
  for (StoredCheckpoint& checkpoint : stored->checkpoints) {
    for (StoredPart& part : checkpoint.parts) Summarize(&part);
  }
  return stored;
}

StatusOr<StoredCheckpoint> Storage::ReadCheckpoint(const CheckpointKey& checkpoint) {
  CAIRN_ASSIGN_OR_RETURN(StoredJob stored, Read(checkpoint.job));
  for (StoredCheckpoint& found : stored.checkpoints) {
    if (found.key == checkpoint && found.published) return std::move(found);
  }
  return absl::NotFoundError(absl::StrCat(checkpoint.DebugString(), " is no longer in storage"));
}

StatusOr<StoredObject> FindObject(const StoredCheckpoint& checkpoint, absl::string_view name) {
  for (const StoredPart& part : checkpoint.parts) {
    if (const ObjectEntry* entry = part.manifest.Find(name)) return StoredObject{&part, entry};
  }
  return absl::NotFoundError(
      absl::StrCat(checkpoint.key.DebugString(), " ", name, ": no such object"));
}

}  // namespace cairn::storage
