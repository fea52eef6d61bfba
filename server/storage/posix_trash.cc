#include "server/storage/posix_trash.h"

#include <linux/fs.h>

#include "common/failpoint.h"
#include "common/layout.h"
#include "server/storage/files.h"
#include "server/storage/posix_place.h"

namespace cairn::storage {
namespace {

Status WriteTombstone(PosixRoot* root, const JobDirectories& at, Step step, Attempt attempt) {
  CAIRN_ASSIGN_OR_RETURN(const UniqueFd removed, MakeDirectoriesAt(at.meta.get(), "removed"));
  CAIRN_RETURN_IF_ERROR(root->RemoveStale(removed.get(), ""));
  const auto present = ReadTombstone(at.job.get(), step);
  if (!present.ok() || *present < attempt) {  // one that cannot be read is written anew
    CAIRN_RETURN_IF_ERROR(WriteMetaFile(
        removed.get(), SplitPath(TombstoneFile(step)).base, absl::StrCat(attempt, "\n"),
        [root] { return root->TemporaryName(); }, root->counters()));
  }
  CAIRN_RETURN_IF_ERROR(Sync(removed.get()));
  return Sync(at.meta.get());
}

}  // namespace

Status Discard(PosixRoot* root, const JobDirectories& at, int from, const std::string& name,
               const CheckpointKey& named) {
  const Status moved =
      RenameAt(from, name, at.trash.get(), TrashName(named, root->TrashNumber()), RENAME_NOREPLACE);
  if (absl::IsNotFound(moved)) return absl::OkStatus();
  CAIRN_RETURN_IF_ERROR(moved);
  return Sync(from);
}

Status EmptyTrash(const JobDirectories& at) {
  CAIRN_ASSIGN_OR_RETURN(const auto names, ListDirectory(at.trash.get()));
  for (const std::string& name : names) CAIRN_RETURN_IF_ERROR(RemoveTreeAt(at.trash.get(), name));
  return absl::OkStatus();
}

bool IsRemoved(const JobDirectories& at, const CheckpointKey& checkpoint) {
  const auto removed = ReadTombstone(at.job.get(), checkpoint.step);
  return removed.ok() && checkpoint.attempt <= *removed;
}

Status DeleteBelow(PosixRoot* root, const JobDirectories& at, const CheckpointKey& checkpoint,
                   bool tombstone) {
  if (tombstone) {
    CAIRN_RETURN_IF_ERROR(WriteTombstone(root, at, checkpoint.step, checkpoint.attempt));
  }
  const auto meant = [&](const CheckpointKey& key) {
    return tombstone ? key.step == checkpoint.step && key.attempt <= checkpoint.attempt
                     : key.Tie() == checkpoint.Tie();
  };
  const std::string step_name = StepDirectory(checkpoint.step);
  CAIRN_ASSIGN_OR_RETURN(const Place standing, LookAt(at.job.get(), step_name, at.path));
  if (standing.Ours() && standing.stored.key.job == checkpoint.job && meant(standing.stored.key)) {
    CAIRN_RETURN_IF_ERROR(Discard(root, at, at.job.get(), step_name, standing.stored.key));
  }
  for (int parent : {at.publish.get(), at.partial.get()}) {
    CAIRN_ASSIGN_OR_RETURN(const auto names, ListDirectory(parent));
    for (const std::string& name : names) {
      CheckpointKey named;
      if (!ParseCheckpointDirectory(name, &named)) continue;
      named.job = checkpoint.job;
      // Without a tombstone a partial one is left alone: another node may be about to complete it.
      if (meant(named) && (tombstone || parent == at.publish.get())) {
        CAIRN_RETURN_IF_ERROR(Discard(root, at, parent, name, named));
      }
    }
  }
  CAIRN_RETURN_IF_ERROR(EmptyTrash(at));
  if (const int error = ReachFailpoint(Failpoint::kStorageDone); error != 0) {
    return ErrnoStatus(error, "after deleting");
  }
  return absl::OkStatus();
}

}  // namespace cairn::storage
