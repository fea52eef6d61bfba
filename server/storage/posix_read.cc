#include "server/storage/posix_read.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <memory>
#include <optional>
#include <utility>

#include "common/layout.h"
#include "common/mutex.h"
#include "common/stored_checkpoint.h"
#include "server/storage/files.h"
#include "server/storage/owner.h"

namespace cairn::storage {
namespace {

// The part whose manifest has this digest; nullopt when it does not stand in `directory`.
StatusOr<std::optional<StoredPart>> FindPart(int directory, Writer writer,
                                             const std::string& digest) {
  auto part = ReadPart(directory, writer, ManifestDetail::kSummary, nullptr);
  if (absl::IsUnavailable(part.status())) return part.status();
  if (!part.ok() || part->digest != digest) return std::nullopt;
  return *std::move(part);
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

StatusOr<UniqueFd> OpenFile(int directory, const StoredPart& part, const ObjectEntry& entry,
                            const std::string& what) {
  auto file = OpenPartFile(directory, part, entry.name, O_RDONLY);
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
  return std::move(*file);
}

// What finds an object's file again.
struct Wanted {
  CheckpointKey checkpoint;
  Writer writer = 0;
  std::string digest;  // of the writer's manifest
  ObjectEntry entry;
  Owner reader;
};

StatusOr<UniqueFd> OpenWanted(const PosixRoot& root, const Wanted& wanted) {
  const std::string what = absl::StrCat(wanted.checkpoint.DebugString(), " ", wanted.entry.name);
  CAIRN_ASSIGN_OR_RETURN(const UniqueFd entered, root.Enter());
  CAIRN_ASSIGN_OR_RETURN(const AsOwner as, AsOwner::Become(wanted.reader));
  CAIRN_ASSIGN_OR_RETURN(const UniqueFd job, OpenDirectoryAt(entered.get(), wanted.checkpoint.job));
  // It may have moved since it was found, and another may stand in its place by now: the manifest
  // decides. One that moves during the first look is found by the second.
  for (int look = 0; look < 2; ++look) {
    CAIRN_ASSIGN_OR_RETURN(const auto places, PlacesOf(job.get(), wanted.checkpoint));
    for (const std::string& place : places) {
      const auto directory = OpenDirectoryAt(job.get(), place);
      if (absl::IsNotFound(directory.status())) continue;
      CAIRN_RETURN_IF_ERROR(directory.status());
      CAIRN_ASSIGN_OR_RETURN(const auto part,
                             FindPart(directory->get(), wanted.writer, wanted.digest));
      if (part.has_value()) return OpenFile(directory->get(), *part, wanted.entry, what);
    }
  }
  return absl::NotFoundError(absl::StrCat(what, ": is no longer in storage"));
}

// The open file is the object for good: a replaced or deleted file keeps its inode. But a mount that went
// and came back leaves what was open before unreadable (ESTALE, EIO, ENOTCONN), so a read that fails is
// tried once more on the file as it is found then.
class FileReader final : public Reader {
 public:
  FileReader(const PosixRoot& root, Wanted wanted, UniqueFd file)
      : root_(root),
        wanted_(std::move(wanted)),
        first_(std::move(file)),
        newest_(std::shared_ptr<void>(), &first_) {}

  uint64_t length() const override { return wanted_.entry.length; }
  Status ReadAt(uint64_t offset, absl::Span<char> into) const override {
    CAIRN_RETURN_IF_ERROR(CheckWithinObject(offset, into.size(), length()));
    const auto read = [&](int fd) { return PreadAll(fd, into.data(), into.size(), offset); };
    const std::shared_ptr<const UniqueFd> open = newest();
    if (read(open->get()).ok()) return absl::OkStatus();
    CAIRN_ASSIGN_OR_RETURN(UniqueFd again, OpenWanted(root_, wanted_));
    const auto reopened = std::make_shared<const UniqueFd>(std::move(again));
    CAIRN_RETURN_IF_ERROR(read(reopened->get()));
    MutexLock lock(&mu_);
    newest_ = reopened;
    return absl::OkStatus();
  }
  std::optional<int> Descriptor() const override { return first_.get(); }

 private:
  std::shared_ptr<const UniqueFd> newest() const {
    MutexLock lock(&mu_);
    return newest_;
  }

  const PosixRoot& root_;
  const Wanted wanted_;
  const UniqueFd first_;
  mutable Mutex mu_;                                                     // a leaf
  mutable std::shared_ptr<const UniqueFd> newest_ ABSL_GUARDED_BY(mu_);  // first_, or opened since
};

}  // namespace

StatusOr<std::unique_ptr<Reader>> OpenBelow(const PosixRoot& root,
                                            const StoredCheckpoint& checkpoint,
                                            absl::string_view name, Owner reader) {
  CAIRN_ASSIGN_OR_RETURN(const StoredObject object, FindObject(checkpoint, name));
  Wanted wanted{checkpoint.key, object.part->manifest.writer, object.part->digest, *object.entry,
                reader};
  CAIRN_ASSIGN_OR_RETURN(UniqueFd file, OpenWanted(root, wanted));
  return std::make_unique<FileReader>(root, std::move(wanted), std::move(file));
}

StatusOr<StoredCheckpoint> ReadCheckpointBelow(int root, const CheckpointKey& checkpoint,
                                               const StoredLimits& limits) {
  CAIRN_ASSIGN_OR_RETURN(const UniqueFd job, OpenDirectoryAt(root, checkpoint.job));
  // What is read whole is bounded by the manifests' bytes.
  const StoredLimits whole{.manifest_bytes = limits.manifest_bytes};
  Status unread;
  for (int look = 0; look < 2; ++look) {  // as for an object
    CAIRN_ASSIGN_OR_RETURN(const auto places, PlacesOf(job.get(), checkpoint));
    for (const std::string& place : places) {
      const auto directory = OpenDirectoryAt(job.get(), place);
      if (absl::IsNotFound(directory.status())) continue;
      CAIRN_RETURN_IF_ERROR(directory.status());
      std::vector<std::string> problems, not_read;
      auto stored = ReadStoredCheckpoint(directory->get(), place, ManifestDetail::kWhole, whole,
                                         &problems, &not_read);
      if (absl::IsResourceExhausted(stored.status())) return stored;
      if (!not_read.empty()) unread = absl::UnavailableError(not_read.front());
      if (stored.ok() && stored->key == checkpoint && stored->Complete()) return stored;
    }
  }
  CAIRN_RETURN_IF_ERROR(unread);
  return absl::NotFoundError(absl::StrCat(checkpoint.DebugString(), " is no longer in storage"));
}

}  // namespace cairn::storage
