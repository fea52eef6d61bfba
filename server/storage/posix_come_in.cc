#include "server/storage/posix_come_in.h"

#include <linux/fs.h>

#include <vector>

#include "server/storage/posix_claim.h"

namespace cairn::storage {
namespace {

// Writers and publishers of one checkpoint that meet settle in a few rounds.
constexpr int kMaxComeInRounds = 16;

// From writing/ to `stands` in partial/`name`. By paths: a directory that was opened before may be published by now.
// NOT_FOUND: it was claimed meanwhile.
Status Bring(const JobDirectories& at, const std::string& name, const std::string& stands,
             const std::string& own) {
  const std::string parts = SplitPath(stands).directory;
  for (const std::string& directory : {name, SplitPath(parts).directory, parts}) {
    CAIRN_RETURN_IF_ERROR(MakeDirectoryAt(at.partial.get(), directory));
    // No link stands there.
    CAIRN_RETURN_IF_ERROR(OpenDirectoryAt(at.partial.get(), directory).status());
  }
  return RenameAt(at.writing.get(), own, at.partial.get(), stands, RENAME_NOREPLACE);
}

}  // namespace

StatusOr<bool> StandsPublished(const JobDirectories& at, const CheckpointKey& checkpoint,
                               const Holds& holds) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<Place> places, WherePublished(at, checkpoint));
  for (const Place& place : places) {
    if (IsNewerRevision(place, checkpoint)) {
      return absl::FailedPreconditionError(
          absl::StrCat("revision ", place.stored.key.revision, " has replaced it in storage"));
    }
    if (!place.Holds(checkpoint) || !place.stored.Complete()) continue;
    CAIRN_ASSIGN_OR_RETURN(const bool whole, holds(place));
    if (!whole) continue;
    CAIRN_RETURN_IF_ERROR(SyncDirectoryAt(place.directory.get(), kMetaDirectory));
    for (const int directory :
         {place.directory.get(), at.publish.get(), at.abandoned.get(), at.job.get()}) {
      CAIRN_RETURN_IF_ERROR(Sync(directory));
    }
    return true;
  }
  return false;
}

Status ComeIn(PosixRoot* root, const JobDirectories& at, const CheckpointKey& checkpoint,
              Writer writer, const Holds& holds, OwnDirectory* own) {
  const std::string name = SplitPath(PartialDirectory(checkpoint)).base;
  const std::string stands = absl::StrCat(name, "/", PartDirectory(writer));
  for (int round = 0; round < kMaxComeInRounds; ++round) {
    const Status moved = Bring(at, name, stands, own->name());
    if (moved.ok()) {
      own->CameIn();
      return absl::OkStatus();
    }
    if (absl::IsAlreadyExists(moved)) {
      CAIRN_ASSIGN_OR_RETURN(const Place partial, LookAt(at.partial.get(), name, at.path));
      CAIRN_ASSIGN_OR_RETURN(const bool whole, holds(partial));
      if (whole) return absl::OkStatus();
      // Damaged: it goes, and this one comes.
      const Status gone =
          RenameAt(at.partial.get(), stands, at.trash.get(),
                   NumberedName(checkpoint, root->UniqueNumber()), RENAME_NOREPLACE);
      if (!gone.ok() && !absl::IsNotFound(gone)) return gone;
      continue;
    }
    if (!absl::IsNotFound(moved)) return moved;
    // It was claimed with another's part in this one's place; or a sweep took this one away.
    CAIRN_ASSIGN_OR_RETURN(const bool published, StandsPublished(at, checkpoint, holds));
    if (published) return absl::OkStatus();
    CAIRN_RETURN_IF_ERROR(OpenDirectoryAt(at.writing.get(), own->name()).status());
  }
  return absl::AbortedError(absl::StrCat(at.path, "/", name, " keeps changing"));
}

}  // namespace cairn::storage
