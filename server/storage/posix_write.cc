#include "server/storage/posix_write.h"

#include <algorithm>
#include <deque>
#include <set>

#include "common/failpoint.h"
#include "common/layout.h"
#include "common/stored_checkpoint.h"
#include "server/storage/files.h"
#include "server/storage/posix_come_in.h"
#include "server/storage/posix_place.h"

namespace cairn::storage {
namespace {

// Those of `parts` that the partial directory does not hold whole. FAILED_PRECONDITION when the
// parts in it and the missing ones cannot belong together.
StatusOr<std::vector<const PartToWrite*>> FindMissing(const Place& partial,
                                                      const std::vector<PartToWrite>& parts) {
  std::vector<const PartToWrite*> missing;
  std::vector<const Manifest*> joining;
  std::vector<const StoredPart*> standing;
  for (const StoredPart& stored : partial.stored.parts) standing.push_back(&stored);
  for (const PartToWrite& part : parts) {
    CAIRN_ASSIGN_OR_RETURN(const bool stands, PartStands(partial, part));
    if (stands) continue;
    missing.push_back(&part);
    // A part whose files are damaged is replaced by itself.
    const Writer writer = part.manifest->writer;
    std::erase_if(standing, [writer](const StoredPart* p) { return p->manifest.writer == writer; });
    joining.push_back(part.manifest);
  }
  CAIRN_ASSIGN_OR_RETURN(const std::string conflict,
                         ConflictBelow(partial.directory.get(), standing, joining));
  if (!conflict.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("in conflict: ", conflict));
  }
  return missing;
}

// Writes the whole part. All of it is durable, except the directory's own name.
Status WriteOwn(PosixRoot* root, const JobDirectories& at, Owner owner, const PartToWrite& part,
                const std::string& name) {
  CAIRN_ASSIGN_OR_RETURN(const UniqueFd own, MakeDirectoriesAt(at.writing.get(), name));
  CAIRN_ASSIGN_OR_RETURN(const UniqueFd meta, MakeDirectoriesAt(own.get(), kMetaDirectory));
  WriteOptions write;
  write.owner = owner;
  write.threads = root->options().threads;
  write.direct = root->options().direct;
  CAIRN_RETURN_IF_ERROR(WriteObjects(own.get(), part, write, root->counters()));
  std::set<std::string> inside;
  for (const ObjectEntry& object : part.manifest->objects) AddDirectoriesOf(object.name, &inside);
  for (const std::string& inner : inside) {
    CAIRN_RETURN_IF_ERROR(SyncDirectoryAt(own.get(), inner));
  }
  // The objects' names are durable before a manifest says so.
  CAIRN_RETURN_IF_ERROR(Sync(own.get()));
  CAIRN_RETURN_IF_ERROR(WriteSmallFile(meta.get(), ManifestName(part.manifest->writer),
                                       part.encoded, root->counters()));
  return Sync(meta.get());
}

// From the inside out, also what stood already: a dead writer may have made it and not synced it.
Status SyncPartial(const JobDirectories& at, const CheckpointKey& checkpoint) {
  const std::string name = SplitPath(PartialDirectory(checkpoint)).base;
  const std::string meta = absl::StrCat(name, "/", kMetaDirectory);
  for (const std::string& inner : {absl::StrCat(meta, "/", kPartsDirectory), meta, name}) {
    CAIRN_RETURN_IF_ERROR(SyncDirectoryAt(at.partial.get(), inner));
  }
  for (const int directory : {at.writing.get(), at.partial.get(), at.meta.get(), at.job.get()}) {
    CAIRN_RETURN_IF_ERROR(Sync(directory));
  }
  return absl::OkStatus();
}

}  // namespace

Status WritePartsBelow(PosixRoot* root, const JobDirectories& at, const CheckpointKey& checkpoint,
                       Owner owner, const std::vector<PartToWrite>& parts) {
  CAIRN_ASSIGN_OR_RETURN(const AttemptRanges removed,
                         ReadTombstones(at.job.get(), checkpoint.step));
  if (removed.Contains(checkpoint.attempt)) {
    return absl::FailedPreconditionError("the step was removed for this attempt");
  }
  const auto holds_all = [&](const Place& place) -> StatusOr<bool> {
    for (const PartToWrite& part : parts) {
      CAIRN_ASSIGN_OR_RETURN(const bool stands, PartStands(place, part));
      if (!stands) return false;
    }
    return true;
  };
  CAIRN_ASSIGN_OR_RETURN(const bool published, StandsPublished(at, checkpoint, holds_all));
  if (published) return absl::OkStatus();

  const std::string name = SplitPath(PartialDirectory(checkpoint)).base;
  CAIRN_ASSIGN_OR_RETURN(const Place partial, LookAt(at.partial.get(), name, at.path));
  if (partial.Ours() && !partial.Holds(checkpoint)) {
    return absl::DataLossError(absl::StrCat(at.path, "/", PartialDirectory(checkpoint),
                                            " holds manifests of ",
                                            partial.stored.key.DebugString()));
  }
  CAIRN_ASSIGN_OR_RETURN(const auto missing, FindMissing(partial, parts));
  // All are written before one comes in: after an error, what was written gives back its room.
  std::deque<OwnDirectory> own;
  for (const PartToWrite* part : missing) {
    const Status written =
        WriteOwn(root, at, owner, *part, own.emplace_back(root, at, checkpoint).name());
    CAIRN_RETURN_IF_ERROR(Annotate(written, absl::StrCat("writer ", part->manifest->writer)));
  }
  for (size_t i = 0; i < missing.size(); ++i) {
    const auto holds = [&](const Place& place) { return PartStands(place, *missing[i]); };
    const Writer writer = missing[i]->manifest->writer;
    CAIRN_RETURN_IF_ERROR(ComeIn(root, at, checkpoint, writer, holds, &own[i]));
  }
  const Status synced = SyncPartial(at, checkpoint);
  if (absl::IsNotFound(synced)) {  // it was claimed meanwhile
    CAIRN_ASSIGN_OR_RETURN(const bool claimed, StandsPublished(at, checkpoint, holds_all));
    if (!claimed) return absl::AbortedError(absl::StrCat(at.path, "/", name, " keeps changing"));
  } else {
    CAIRN_RETURN_IF_ERROR(synced);
  }
  if (const int error = ReachFailpoint(Failpoint::kStorageDone); error != 0) {
    return ErrnoStatus(error, "after writing");
  }
  return absl::OkStatus();
}

}  // namespace cairn::storage
