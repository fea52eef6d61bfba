#include "server/storage/posix_write.h"

#include <algorithm>
#include <set>

#include "absl/cleanup/cleanup.h"
#include "common/failpoint.h"
#include "common/layout.h"
#include "common/stored_checkpoint.h"
#include "server/storage/files.h"
#include "server/storage/posix_claim.h"
#include "server/storage/posix_place.h"

namespace cairn::storage {
namespace {

// True when all parts already stand, whole, in the published checkpoint or in one on its way there;
// then their names are durable too. FAILED_PRECONDITION when a newer revision of the same attempt
// is published: what is written would never be.
StatusOr<bool> StandPublished(const JobDirectories& at, const CheckpointKey& checkpoint,
                              const std::vector<PartToWrite>& parts) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<Place> places, WherePublished(at, checkpoint));
  for (const Place& place : places) {
    const StoredCheckpoint& stored = place.stored;
    if (IsNewerRevision(place, checkpoint)) {
      return absl::FailedPreconditionError(
          absl::StrCat("revision ", stored.key.revision, " has replaced it in storage"));
    }
    if (!place.Holds(checkpoint) || !stored.Complete()) continue;
    bool all = true;
    for (const PartToWrite& part : parts) {
      CAIRN_ASSIGN_OR_RETURN(const bool stands, PartStands(place, part));
      all = all && stands;
    }
    if (!all) continue;
    CAIRN_RETURN_IF_ERROR(SyncDirectoryAt(place.directory.get(), kMetaDirectory));
    for (const int directory :
         {place.directory.get(), at.publish.get(), at.abandoned.get(), at.job.get()}) {
      CAIRN_RETURN_IF_ERROR(Sync(directory));
    }
    return true;
  }
  return false;
}

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

// Removes files that a dead daemon wrote of a part without a manifest: the disk may not hold the
// part twice.
Status RemoveFiles(int directory, const Manifest& manifest) {
  for (const ObjectEntry& object : manifest.objects) {
    const auto [inner, base] = SplitPath(object.name);
    UniqueFd parent;
    if (!inner.empty()) {
      auto opened = OpenDirectoryAt(directory, inner);
      if (absl::IsNotFound(opened.status())) continue;
      CAIRN_RETURN_IF_ERROR(opened.status());
      parent = *std::move(opened);
    }
    CAIRN_RETURN_IF_ERROR(RemoveFileAt(parent.valid() ? parent.get() : directory, base));
  }
  return absl::OkStatus();
}

// Every directory on the way to an object gets a new entry.
void AddDirectories(const Manifest& manifest, std::set<std::string>* directories) {
  for (const ObjectEntry& object : manifest.objects) {
    const std::string& name = object.name;
    for (size_t slash = name.find('/'); slash != std::string::npos;
         slash = name.find('/', slash + 1)) {
      directories->insert(name.substr(0, slash));
    }
  }
}

// `directory` is the checkpoint's partial directory.
Status WriteMissing(PosixRoot* root, int directory, Owner owner,
                    const std::vector<const PartToWrite*>& missing) {
  CAIRN_ASSIGN_OR_RETURN(const UniqueFd meta, MakeDirectoriesAt(directory, kMetaDirectory));
  WriteOptions write;
  write.owner = owner;
  write.threads = root->options().threads;
  write.direct = root->options().direct;
  const auto name_for = [root](Writer writer) {
    return [root, writer] { return absl::StrCat(writer, ".", root->TemporaryName()); };
  };
  std::set<std::string> directories;
  // After an error, parts that are not stored whole give back their room: nobody may come to finish
  // them.
  std::vector<const Manifest*> unfinished;
  absl::Cleanup give_back = [&] {
    for (const Manifest* manifest : unfinished) (void)RemoveFiles(directory, *manifest);
  };
  for (const PartToWrite* part : missing) {
    const Writer writer = part->manifest->writer;
    CAIRN_RETURN_IF_ERROR(root->RemoveStale(meta.get(), absl::StrCat(writer, ".")));
    // A manifest that no longer tells the truth goes before the files it names change.
    CAIRN_RETURN_IF_ERROR(RemoveFileAt(meta.get(), SplitPath(ManifestFile(writer)).base));
    unfinished.push_back(part->manifest);
    write.temporary_name = name_for(writer);
    CAIRN_RETURN_IF_ERROR(RemoveFiles(directory, *part->manifest));
    const Status written = WriteObjects(directory, meta.get(), *part, write, root->counters());
    CAIRN_RETURN_IF_ERROR(Annotate(written, absl::StrCat("writer ", writer)));
    AddDirectories(*part->manifest, &directories);
  }
  for (const std::string& inner : directories) {
    CAIRN_RETURN_IF_ERROR(SyncDirectoryAt(directory, inner));
  }
  // The objects' names are durable before a manifest says so.
  CAIRN_RETURN_IF_ERROR(Sync(directory));
  for (const PartToWrite* part : missing) {
    const Writer writer = part->manifest->writer;
    CAIRN_RETURN_IF_ERROR(WriteMetaFile(meta.get(), SplitPath(ManifestFile(writer)).base,
                                        part->encoded, name_for(writer), root->counters()));
    std::erase(unfinished, part->manifest);
  }
  return Sync(meta.get());
}

}  // namespace

Status WritePartsBelow(PosixRoot* root, const JobDirectories& at, const CheckpointKey& checkpoint,
                       Owner owner, const std::vector<PartToWrite>& parts) {
  CAIRN_ASSIGN_OR_RETURN(const AttemptRanges removed,
                         ReadTombstones(at.job.get(), checkpoint.step));
  if (removed.Contains(checkpoint.attempt)) {
    return absl::FailedPreconditionError("the step was removed for this attempt");
  }
  CAIRN_ASSIGN_OR_RETURN(const bool published, StandPublished(at, checkpoint, parts));
  if (published) return absl::OkStatus();

  const std::string name = SplitPath(PartialDirectory(checkpoint)).base;
  CAIRN_ASSIGN_OR_RETURN(const UniqueFd directory, MakeDirectoriesAt(at.partial.get(), name));
  CAIRN_ASSIGN_OR_RETURN(const Place partial, LookAt(at.partial.get(), name, at.path));
  if (partial.Ours() && !partial.Holds(checkpoint)) {
    return absl::DataLossError(absl::StrCat(at.path, "/", PartialDirectory(checkpoint),
                                            " holds manifests of ",
                                            partial.stored.key.DebugString()));
  }
  CAIRN_ASSIGN_OR_RETURN(const auto missing, FindMissing(partial, parts));
  CAIRN_RETURN_IF_ERROR(WriteMissing(root, directory.get(), owner, missing));
  // From the inside out, also those that stood already: a dead writer may have made them and not
  // synced them.
  CAIRN_RETURN_IF_ERROR(Sync(directory.get()));
  CAIRN_RETURN_IF_ERROR(Sync(at.partial.get()));
  CAIRN_RETURN_IF_ERROR(Sync(at.meta.get()));
  CAIRN_RETURN_IF_ERROR(Sync(at.job.get()));
  if (const int error = ReachFailpoint(Failpoint::kStorageDone); error != 0) {
    return ErrnoStatus(error, "after writing");
  }
  return absl::OkStatus();
}

}  // namespace cairn::storage
