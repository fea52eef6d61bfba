#include "server/storage/posix_lay_out.h"

#include <fcntl.h>
#include <linux/fs.h>

#include <algorithm>
#include <set>
#include <string>

#include "common/layout.h"
#include "common/stored_checkpoint.h"
#include "server/storage/files.h"

namespace cairn::storage {
namespace {

// Gives the file `name` of the tree `from` that name in the tree `to`. Without links in the file system it is
// moved, where it may be. OK where another has done so.
Status LayOutFile(int from, int to, const std::string& name, bool may_move = true) {
  const PathParts parts = SplitPath(name);
  UniqueFd inner;
  if (!parts.directory.empty()) {
    CAIRN_ASSIGN_OR_RETURN(inner, MakeDirectoriesAt(to, parts.directory));
  }
  const int directory = inner.valid() ? inner.get() : to;
  Status named = LinkAt(from, name, directory, parts.base);
  if (absl::IsUnimplemented(named) && may_move) {
    named = RenameAt(from, name, directory, parts.base, RENAME_NOREPLACE);
  }
  if (absl::IsAlreadyExists(named)) {
    return absl::DataLossError(absl::StrCat("another file stands at ", name));
  }
  if (absl::IsNotFound(named) && OpenAt(directory, parts.base, O_PATH).ok()) {
    return absl::OkStatus();
  }
  return named;
}

// The objects of a part that stands in `place`, and the directories on the way to them.
Status LayOutFiles(const Place& place, const StoredPart& part, int to, bool may_move) {
  UniqueFd own;
  if (!part.directory.empty()) {
    CAIRN_ASSIGN_OR_RETURN(own, OpenDirectoryAt(place.directory.get(), part.directory));
  }
  const int from = own.valid() ? own.get() : place.directory.get();
  std::set<std::string> inside;
  Status status;
  const auto lay_out = [&](const ObjectEntry& object) {
    if (status.ok()) status = LayOutFile(from, to, object.name, may_move);
    AddDirectoriesOf(object.name, &inside);
  };
  const Writer writer = part.manifest.writer;
  CAIRN_RETURN_IF_ERROR(
      ReadPart(place.directory.get(), writer, ManifestDetail::kSummary, lay_out).status());
  CAIRN_RETURN_IF_ERROR(Annotate(status, absl::StrCat("writer ", writer)));
  for (const std::string& inner : inside) CAIRN_RETURN_IF_ERROR(SyncDirectoryAt(to, inner));
  return absl::OkStatus();
}

}  // namespace

StatusOr<bool> HasParts(const Place& place) {
  const auto& parts_there = place.stored.parts;
  if (std::any_of(parts_there.begin(), parts_there.end(),
                  [](const StoredPart& part) { return !part.directory.empty(); })) {
    return true;
  }
  const auto parts =
      OpenAt(place.directory.get(), absl::StrCat(kMetaDirectory, "/", kPartsDirectory), O_PATH);
  if (absl::IsNotFound(parts.status())) return false;
  CAIRN_RETURN_IF_ERROR(parts.status());
  return true;
}

Status LayOut(PosixRoot* root, const JobDirectories& at, const Place& place) {
  const int directory = place.directory.get();
  CAIRN_ASSIGN_OR_RETURN(const UniqueFd meta, OpenDirectoryAt(directory, kMetaDirectory));
  for (const StoredPart& part : place.stored.parts) {
    if (part.directory.empty()) continue;
    CAIRN_RETURN_IF_ERROR(LayOutFiles(place, part, directory, /*may_move=*/true));
  }
  // The objects' names are durable before a manifest says so.
  CAIRN_RETURN_IF_ERROR(Sync(directory));
  for (const StoredPart& part : place.stored.parts) {
    if (part.directory.empty()) continue;
    CAIRN_ASSIGN_OR_RETURN(const UniqueFd own, OpenDirectoryAt(directory, part.directory));
    CAIRN_RETURN_IF_ERROR(LayOutFile(own.get(), directory, ManifestFile(part.manifest.writer)));
  }
  CAIRN_RETURN_IF_ERROR(Sync(meta.get()));
  // By one rename: a part that comes late finds no directory to come into.
  const std::string out = NumberedName(place.stored.key, root->UniqueNumber());
  const Status gone = RenameAt(meta.get(), kPartsDirectory, at.trash.get(), out, RENAME_NOREPLACE);
  if (absl::IsNotFound(gone)) return absl::OkStatus();
  CAIRN_RETURN_IF_ERROR(gone);
  CAIRN_RETURN_IF_ERROR(Sync(meta.get()));
  return RemoveTreeAt(at.trash.get(), out);
}

Status LinkPart(const Place& from, const StoredPart& part, int directory, const std::string& name) {
  CAIRN_ASSIGN_OR_RETURN(const UniqueFd own, MakeDirectoriesAt(directory, name));
  CAIRN_ASSIGN_OR_RETURN(const UniqueFd meta, MakeDirectoriesAt(own.get(), kMetaDirectory));
  CAIRN_RETURN_IF_ERROR(LayOutFiles(from, part, own.get(), /*may_move=*/false));
  CAIRN_RETURN_IF_ERROR(Sync(own.get()));
  UniqueFd inner;
  if (!part.directory.empty()) {
    CAIRN_ASSIGN_OR_RETURN(inner, OpenDirectoryAt(from.directory.get(), part.directory));
  }
  CAIRN_RETURN_IF_ERROR(LayOutFile(inner.valid() ? inner.get() : from.directory.get(), own.get(),
                                   ManifestFile(part.manifest.writer), /*may_move=*/false));
  return Sync(meta.get());
}

}  // namespace cairn::storage
