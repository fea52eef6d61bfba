#include "server/storage/posix_read.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>

#include "common/layout.h"
#include "server/storage/files.h"
#include "server/storage/owner.h"

namespace cairn::storage {
namespace {

// The open file is the object for good: a replaced or deleted file keeps its inode.
class FileReader final : public Reader {
 public:
  FileReader(UniqueFd file, uint64_t length) : file_(std::move(file)), length_(length) {}

  uint64_t length() const override { return length_; }
  Status ReadAt(uint64_t offset, absl::Span<char> into) const override {
    CAIRN_RETURN_IF_ERROR(CheckWithinObject(offset, into.size(), length_));
    return PreadAll(file_.get(), into.data(), into.size(), offset);
  }
  std::optional<int> Descriptor() const override { return file_.get(); }

 private:
  const UniqueFd file_;
  const uint64_t length_;
};

// True when the manifest with this digest stands in `directory`.
StatusOr<bool> HoldsManifest(int directory, Writer writer, const std::string& digest) {
  const auto file = OpenAt(directory, ManifestFile(writer), O_RDONLY);
  if (absl::IsNotFound(file.status())) return false;
  CAIRN_RETURN_IF_ERROR(file.status());
  const auto bytes = ReadRegularFile(file->get(), kMaxManifestBytes);
  return bytes.ok() && ManifestDigest(*bytes) == digest;
}

// Where the checkpoint may stand, relative to the job, the likeliest first. In publish/ and
// abandoned/ a name may be another's for a moment.
StatusOr<std::vector<std::string>> PlacesOf(int job, const CheckpointKey& key) {
  std::vector<std::string> places = {StepDirectory(key.step), AbandonedDirectory(key),
                                     PartialDirectory(key)};
  for (const char* which : {"publish", "abandoned"}) {
    const std::string inside = absl::StrCat(kMetaDirectory, "/", which);
    const auto directory = OpenDirectoryAt(job, inside);
    if (absl::IsNotFound(directory.status())) continue;
    CAIRN_RETURN_IF_ERROR(directory.status());
    CAIRN_ASSIGN_OR_RETURN(const auto names, ListDirectory(directory->get()));
    for (const std::string& name : names) {
      CheckpointKey named;
      if (!ParseCheckpointDirectory(name, &named) || named.step != key.step) continue;
      places.push_back(absl::StrCat(inside, "/", name));
    }
  }
  return places;
}

StatusOr<std::unique_ptr<Reader>> OpenFile(int directory, const ObjectEntry& entry,
                                           const std::string& what) {
  auto file = OpenAt(directory, entry.name, O_RDONLY);
  if (absl::IsNotFound(file.status())) {
    return absl::DataLossError(absl::StrCat(what, ": its file is gone"));
  }
  CAIRN_RETURN_IF_ERROR(file.status());
  struct stat info = {};
  if (::fstat(file->get(), &info) != 0) return ErrnoStatus(errno, what);
  if (!S_ISREG(info.st_mode) || static_cast<uint64_t>(info.st_size) != entry.length) {
    return absl::DataLossError(
        absl::StrCat(what, ": its file has ", info.st_size, " bytes, not ", entry.length));
  }
  return std::make_unique<FileReader>(*std::move(file), entry.length);
}

}  // namespace

StatusOr<std::unique_ptr<Reader>> OpenBelow(const PosixRoot& root,
                                            const StoredCheckpoint& checkpoint,
                                            absl::string_view name, Owner reader) {
  CAIRN_ASSIGN_OR_RETURN(const StoredObject object, FindObject(checkpoint, name));
  const Manifest& manifest = object.part->manifest;
  const std::string what = absl::StrCat(checkpoint.key.DebugString(), " ", name);
  CAIRN_ASSIGN_OR_RETURN(const UniqueFd entered, root.Enter());
  CAIRN_ASSIGN_OR_RETURN(const AsOwner as, AsOwner::Become(reader));
  CAIRN_ASSIGN_OR_RETURN(const UniqueFd job, OpenDirectoryAt(entered.get(), checkpoint.key.job));
  // It may have moved since it was found, and another may stand in its place by now: the manifest
  // decides. One that moves during the first look is found by the second.
  for (int look = 0; look < 2; ++look) {
    CAIRN_ASSIGN_OR_RETURN(const auto places, PlacesOf(job.get(), checkpoint.key));
    for (const std::string& place : places) {
      const auto directory = OpenDirectoryAt(job.get(), place);
      if (absl::IsNotFound(directory.status())) continue;
      CAIRN_RETURN_IF_ERROR(directory.status());
      CAIRN_ASSIGN_OR_RETURN(const bool holds,
                             HoldsManifest(directory->get(), manifest.writer, object.part->digest));
      if (holds) return OpenFile(directory->get(), *object.entry, what);
    }
  }
  return absl::NotFoundError(absl::StrCat(what, ": is no longer in storage"));
}

}  // namespace cairn::storage
