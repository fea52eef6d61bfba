#include "server/storage/posix_storage.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <ctime>
#include <functional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/failpoint.h"
#include "common/fd.h"
#include "common/layout.h"
#include "common/mutex.h"
#include "server/storage/files.h"
#include "server/storage/owner.h"
#include "server/storage/part_writer.h"

namespace cairn::storage {
namespace {

constexpr unsigned kJobMode = 0700;
constexpr char kTemporarySuffix[] = ".tmp";
constexpr int kMaxThreads = 64;
constexpr int64_t kSweepAgeSeconds = 60;
// Publishers that meet at one step settle in two exchanges; more means someone else moves things
// about.
constexpr int kMaxExchanges = 8;

// How checkpoints of one step rank: newer replaces older, and whole replaces damaged.
std::tuple<Attempt, Revision, bool> RankOf(const StoredCheckpoint& stored) {
  return {stored.key.attempt, stored.key.revision, stored.Complete()};
}

// What a look at a place where a checkpoint may stand finds.
struct Place {
  enum class Kind { kNothing, kForeign, kOurs } kind = Kind::kNothing;
  UniqueFd directory;
  StoredCheckpoint stored;  // kOurs
  std::vector<std::string> problems;

  bool Ours() const { return kind == Kind::kOurs; }
  bool Holds(const CheckpointKey& key) const { return Ours() && stored.key == key; }
};

// A job's directories, held open while one call works below them.
struct JobDirectories {
  std::string path;
  UniqueFd job, meta, partial, publish, trash;
};

class PosixStorage final : public Storage {
 public:
  PosixStorage(PosixOptions options, UniqueFd root, uint64_t instance)
      : options_(std::move(options)), root_(std::move(root)), instance_(instance) {}

  Status WriteParts(const CheckpointKey& checkpoint, Owner owner,
                    const std::vector<PartToWrite>& parts) override;
  StatusOr<std::optional<Location>> Publish(const CheckpointKey& checkpoint, Owner owner) override;
  Status Sweep(const std::string& job,
               const std::function<bool(const CheckpointKey&)>& superseded) override;
  Status Delete(const CheckpointKey& checkpoint, Owner owner, bool tombstone) override;
  StatusOr<StoredJob> Read(const std::string& job) override;
  StatusOr<std::vector<std::string>> Jobs() override { return ListStoredJobs(options_.root); }
  StatusOr<Owner> JobOwner(const std::string& job) override;
  StatusOr<std::unique_ptr<Reader>> Open(const StoredCheckpoint& checkpoint, absl::string_view name,
                                         Owner reader) override;
  Counters counters() const override;

 private:
  // --- places

  StatusOr<JobDirectories> OpenJob(const std::string& job, Owner owner, bool create);
  Status MakeJobDirectory(const std::string& job, Owner owner);
  StatusOr<Place> Look(int parent, const std::string& name, const std::string& path) const;
  std::string Temporary() { return absl::StrCat(Unique(), kTemporarySuffix); }
  // Unique among all daemons that share the storage.
  std::string Unique() { return absl::StrCat(absl::Hex(instance_), "-", serial_.fetch_add(1) + 1); }
  uint64_t TrashNumber() { return (instance_ << 20) ^ (serial_.fetch_add(1) + 1); }
  Mutex* PublishMutex(const std::string& job) {
    return &publish_mutexes_[std::hash<std::string>()(job) % publish_mutexes_.size()];
  }

  // --- steps of the public calls, all as the owner

  Status WriteAsOwner(const CheckpointKey& checkpoint, Owner owner,
                      const std::vector<PartToWrite>& parts);
  Status WriteMissing(Owner owner, int directory, const std::vector<const PartToWrite*>& missing);
  // True when `place` holds this part, whole. ALREADY_EXISTS when it holds another manifest of its
  // writer.
  StatusOr<bool> PartStands(const Place& place, const PartToWrite& part) const;
  // Every object of `manifest` is a file of the right length below `directory`.
  Status CheckFiles(int directory, const Manifest& manifest) const;
  // Removes what a dead daemon wrote of a part without a manifest: the disk may not hold it twice.
  Status RemoveFiles(int directory, const Manifest& manifest);
  // Removes temporaries that a dead daemon left in `meta`; only those whose names begin with
  // `prefix`.
  Status RemoveStale(int meta, const std::string& prefix);
  Status PublishLocked(const JobDirectories& at, const CheckpointKey& checkpoint, bool* published);
  // Brings what stands claimed in publish/ to its step's place.
  Status PutInPlace(const JobDirectories& at, const std::string& claim, bool* published);
  Status SweepClaims(const JobDirectories& at);
  Status SweepPartials(const JobDirectories& at, const std::string& job,
                       const std::function<bool(const CheckpointKey&)>& superseded);
  Status EmptyTrash(const JobDirectories& at);
  Status Discard(const JobDirectories& at, int from, const std::string& name,
                 const CheckpointKey& named);
  Status WriteTombstone(const JobDirectories& at, Step step, Attempt attempt);

  const PosixOptions options_;
  const UniqueFd root_;
  const uint64_t instance_;

  std::atomic<uint64_t> serial_{0};
  AtomicCounters counters_;
  // Taken for everything that moves whole checkpoints, so that the publishers of one daemon don't
  // meet; those of several meet in PutInPlace. Never held while object bytes are written.
  std::array<Mutex, 64> publish_mutexes_;
};

// What is last in `path` and what stands before it.
std::pair<std::string, std::string> SplitPath(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return {"", path};
  return {path.substr(0, slash), path.substr(slash + 1)};
}

std::string NameOf(const std::string& path) { return SplitPath(path).second; }

// --- places

Status PosixStorage::MakeJobDirectory(const std::string& job, Owner owner) {
  {
    // Where users may write below the root, the owner makes it.
    CAIRN_ASSIGN_OR_RETURN(const AsOwner as, AsOwner::Become(owner));
    const Status made = MakeDirectoryAt(root_.get(), job, kJobMode);
    if (!absl::IsPermissionDenied(made)) {
      CAIRN_RETURN_IF_ERROR(made);
      return Sync(root_.get());
    }
  }
  // Else the daemon does, and gives it away before it has its name: a crash in between must not
  // leave the job to the daemon's own user.
  const std::string temporary = absl::StrCat(kMetaDirectory, ".", job);
  CAIRN_RETURN_IF_ERROR(MakeDirectoryAt(root_.get(), temporary, kJobMode));
  {
    CAIRN_ASSIGN_OR_RETURN(const UniqueFd fd, OpenDirectoryAt(root_.get(), temporary));
    if (::fchown(fd.get(), owner.uid, owner.gid) != 0) {
      return ErrnoStatus(errno, absl::StrCat("giving ", job, " to uid ", owner.uid));
    }
  }
  const Status renamed = RenameAt(root_.get(), temporary, root_.get(), job, RENAME_NOREPLACE);
  if (absl::IsAlreadyExists(renamed)) {
    (void)UnlinkAt(root_.get(), temporary, /*is_directory=*/true);
  } else {
    CAIRN_RETURN_IF_ERROR(renamed);
  }
  return Sync(root_.get());
}

StatusOr<JobDirectories> PosixStorage::OpenJob(const std::string& job, Owner owner, bool create) {
  JobDirectories at;
  at.path = absl::StrCat(options_.root, "/", job);
  StatusOr<Owner> stands = JobOwner(job);
  if (absl::IsNotFound(stands.status()) && create) {
    CAIRN_RETURN_IF_ERROR(MakeJobDirectory(job, owner));
    stands = JobOwner(job);
  }
  CAIRN_RETURN_IF_ERROR(stands.status());
  if (stands->uid != owner.uid) {
    return absl::PermissionDeniedError(
        absl::StrCat(at.path, " belongs to uid ", stands->uid, ", the job to uid ", owner.uid));
  }
  CAIRN_ASSIGN_OR_RETURN(const AsOwner as, AsOwner::Become(owner));
  CAIRN_ASSIGN_OR_RETURN(at.job, OpenDirectoryAt(root_.get(), job));
  const auto open = [&](int parent, const char* name, UniqueFd* fd) -> Status {
    auto opened = create ? MakeDirectoriesAt(parent, name) : OpenDirectoryAt(parent, name);
    CAIRN_RETURN_IF_ERROR(opened.status());
    *fd = *std::move(opened);
    return absl::OkStatus();
  };
  CAIRN_RETURN_IF_ERROR(open(at.job.get(), kMetaDirectory, &at.meta));
  CAIRN_RETURN_IF_ERROR(open(at.meta.get(), "partial", &at.partial));
  CAIRN_RETURN_IF_ERROR(open(at.meta.get(), "publish", &at.publish));
  CAIRN_RETURN_IF_ERROR(open(at.meta.get(), "trash", &at.trash));
  return at;
}

StatusOr<Place> PosixStorage::Look(int parent, const std::string& name,
                                   const std::string& path) const {
  Place place;
  auto directory = OpenDirectoryAt(parent, name);
  if (absl::IsNotFound(directory.status())) return place;
  if (!directory.ok()) {
    // A file or a symbolic link: something is there, and it is not ours.
    struct stat info = {};
    if (::fstatat(parent, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0 &&
        !S_ISDIR(info.st_mode)) {
      place.kind = Place::Kind::kForeign;
      return place;
    }
    return directory.status();
  }
  place.directory = *std::move(directory);
  auto stored = ReadStoredCheckpoint(place.directory.get(), path, &place.problems);
  if (stored.ok()) {
    place.kind = Place::Kind::kOurs;
    place.stored = *std::move(stored);
  } else if (absl::IsNotFound(stored.status()) || absl::IsDataLoss(stored.status()) ||
             absl::IsPermissionDenied(stored.status())) {
    place.kind = Place::Kind::kForeign;
  } else {
    return stored.status();
  }
  return place;
}

StatusOr<Owner> PosixStorage::JobOwner(const std::string& job) {
  CAIRN_RETURN_IF_ERROR(ValidateJob(job));
  CAIRN_ASSIGN_OR_RETURN(const UniqueFd fd, OpenAt(root_.get(), job, O_PATH | O_DIRECTORY));
  struct stat info = {};
  if (::fstat(fd.get(), &info) != 0) return ErrnoStatus(errno, job);
  return Owner{info.st_uid, info.st_gid};
}

// --- writing

Status PosixStorage::WriteParts(const CheckpointKey& checkpoint, Owner owner,
                                const std::vector<PartToWrite>& parts) {
  for (const PartToWrite& part : parts) {
    if (part.manifest == nullptr || !(part.manifest->Checkpoint() == checkpoint) ||
        part.sources.size() != part.manifest->objects.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat(checkpoint.DebugString(), ": a part is not of this checkpoint"));
    }
  }
  return Annotate(WriteAsOwner(checkpoint, owner, parts), checkpoint.DebugString());
}

Status PosixStorage::WriteAsOwner(const CheckpointKey& checkpoint, Owner owner,
                                  const std::vector<PartToWrite>& parts) {
  CAIRN_RETURN_IF_ERROR(ValidateJob(checkpoint.job));
  CAIRN_ASSIGN_OR_RETURN(const JobDirectories at, OpenJob(checkpoint.job, owner, /*create=*/true));
  CAIRN_ASSIGN_OR_RETURN(const AsOwner as, AsOwner::Become(owner));
  CAIRN_ASSIGN_OR_RETURN(const Attempt removed, ReadTombstone(at.job.get(), checkpoint.step));
  if (checkpoint.attempt <= removed) {
    return absl::FailedPreconditionError(
        absl::StrCat("the step was removed for attempts up to ", removed));
  }

  const std::string name = NameOf(PartialDirectory(checkpoint));
  const auto keeps_all = [&](const Place& place) -> StatusOr<bool> {
    for (const PartToWrite& part : parts) {
      CAIRN_ASSIGN_OR_RETURN(const bool stands, PartStands(place, part));
      if (!stands) return false;
    }
    return true;
  };
  CAIRN_ASSIGN_OR_RETURN(Place place, Look(at.job.get(), StepDirectory(checkpoint.step), at.path));
  if (!place.Holds(checkpoint)) {
    CAIRN_ASSIGN_OR_RETURN(place, Look(at.publish.get(), name, at.path));
  }
  if (place.Holds(checkpoint) && place.stored.Complete()) {
    CAIRN_ASSIGN_OR_RETURN(const bool kept, keeps_all(place));
    if (kept) {
      CAIRN_RETURN_IF_ERROR(SyncDirectoryAt(place.directory.get(), kMetaDirectory));
      CAIRN_RETURN_IF_ERROR(Sync(place.directory.get()));
      CAIRN_RETURN_IF_ERROR(Sync(at.publish.get()));
      return Sync(at.job.get());
    }
  }

  CAIRN_ASSIGN_OR_RETURN(const UniqueFd made, MakeDirectoriesAt(at.partial.get(), name));
  CAIRN_ASSIGN_OR_RETURN(place, Look(at.partial.get(), name, at.path));
  if (place.Ours() && !place.Holds(checkpoint)) {
    return absl::DataLossError(absl::StrCat(at.path, "/", PartialDirectory(checkpoint),
                                            " holds manifests of ",
                                            place.stored.key.DebugString()));
  }
  std::vector<const PartToWrite*> missing;
  std::vector<const Manifest*> together;
  for (const StoredPart& part : place.stored.parts) together.push_back(&part.manifest);
  for (const PartToWrite& part : parts) {
    CAIRN_ASSIGN_OR_RETURN(const bool stands, PartStands(place, part));
    if (stands) continue;
    missing.push_back(&part);
    const Writer writer = part.manifest->writer;
    // One whose files are damaged is replaced by itself.
    together.erase(std::remove_if(together.begin(), together.end(),
                                  [&](const Manifest* m) { return m->writer == writer; }),
                   together.end());
    together.push_back(part.manifest);
  }
  const std::string conflict = ManifestConflict(together);
  if (!conflict.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("in conflict: ", conflict));
  }
  CAIRN_RETURN_IF_ERROR(WriteMissing(owner, made.get(), missing));
  // From the inside out, whoever made them: a dead writer may have made and not synced them.
  CAIRN_RETURN_IF_ERROR(Sync(made.get()));
  CAIRN_RETURN_IF_ERROR(Sync(at.partial.get()));
  CAIRN_RETURN_IF_ERROR(Sync(at.meta.get()));
  CAIRN_RETURN_IF_ERROR(Sync(at.job.get()));
  if (const int error = ReachFailpoint(Failpoint::kStorageDone); error != 0) {
    return ErrnoStatus(error, "after writing");
  }
  return absl::OkStatus();
}

Status PosixStorage::WriteMissing(Owner owner, int directory,
                                  const std::vector<const PartToWrite*>& missing) {
  CAIRN_ASSIGN_OR_RETURN(const UniqueFd meta, MakeDirectoriesAt(directory, kMetaDirectory));
  WriteOptions write;
  write.owner = owner;
  write.threads = options_.threads;
  write.direct = options_.direct;
  std::set<std::string> directories;  // that got a new entry
  for (const PartToWrite* part : missing) {
    const Writer writer = part->manifest->writer;
    CAIRN_RETURN_IF_ERROR(RemoveStale(meta.get(), absl::StrCat(writer, ".")));
    // A manifest that no longer tells the truth goes before the files it names change.
    const Status gone = UnlinkAt(meta.get(), NameOf(ManifestFile(writer)));
    if (!gone.ok() && !absl::IsNotFound(gone)) return gone;
    write.temporary_name = [this, writer] { return absl::StrCat(writer, ".", Temporary()); };
    CAIRN_RETURN_IF_ERROR(RemoveFiles(directory, *part->manifest));
    const Status written = WriteObjects(directory, meta.get(), *part, write, &counters_);
    CAIRN_RETURN_IF_ERROR(Annotate(written, absl::StrCat("writer ", writer)));
    for (const ObjectEntry& object : part->manifest->objects) {
      const std::string& name = object.name;
      for (size_t slash = name.find('/'); slash != std::string::npos;
           slash = name.find('/', slash + 1)) {
        directories.insert(name.substr(0, slash));
      }
    }
  }
  for (const std::string& inner : directories) {
    CAIRN_RETURN_IF_ERROR(SyncDirectoryAt(directory, inner));
  }
  // The objects' names are durable before a manifest says so.
  CAIRN_RETURN_IF_ERROR(Sync(directory));
  for (const PartToWrite* part : missing) {
    const Writer writer = part->manifest->writer;
    CAIRN_RETURN_IF_ERROR(WriteMetaFile(
        meta.get(), NameOf(ManifestFile(writer)), part->encoded,
        [this, writer] { return absl::StrCat(writer, ".", Temporary()); }, &counters_));
  }
  return Sync(meta.get());
}

Status PosixStorage::RemoveFiles(int directory, const Manifest& manifest) {
  for (const ObjectEntry& object : manifest.objects) {
    const auto [inner, base] = SplitPath(object.name);
    UniqueFd parent;
    if (!inner.empty()) {
      auto opened = OpenDirectoryAt(directory, inner);
      if (absl::IsNotFound(opened.status())) continue;
      CAIRN_RETURN_IF_ERROR(opened.status());
      parent = *std::move(opened);
    }
    const Status gone = UnlinkAt(parent.valid() ? parent.get() : directory, base);
    if (!gone.ok() && !absl::IsNotFound(gone)) return gone;
  }
  return absl::OkStatus();
}

Status PosixStorage::RemoveStale(int meta, const std::string& prefix) {
  const std::string ours = absl::StrCat(absl::Hex(instance_), "-");
  CAIRN_ASSIGN_OR_RETURN(const auto names, ListDirectory(meta));
  for (const std::string& name : names) {
    if (!absl::EndsWith(name, kTemporarySuffix) || !absl::StartsWith(name, prefix) ||
        absl::StrContains(name, ours)) {
      continue;  // ours may be in use by another thread
    }
    const Status gone = UnlinkAt(meta, name);
    if (!gone.ok() && !absl::IsNotFound(gone)) return gone;
  }
  return absl::OkStatus();
}

StatusOr<bool> PosixStorage::PartStands(const Place& place, const PartToWrite& part) const {
  if (!place.Ours()) return false;
  const std::string digest = ManifestDigest(part.encoded);
  for (const StoredPart& stored : place.stored.parts) {
    if (stored.manifest.writer != part.manifest->writer) continue;
    if (stored.digest == digest) {
      return CheckFiles(place.directory.get(), *part.manifest).ok();
    }
    return absl::AlreadyExistsError(
        absl::StrCat("writer ", part.manifest->writer,
                     " has another manifest in storage: ", stored.digest, ", not ", digest));
  }
  return false;
}

Status PosixStorage::CheckFiles(int directory, const Manifest& manifest) const {
  for (const ObjectEntry& object : manifest.objects) {
    const auto damaged = [&](absl::string_view why) {
      return absl::DataLossError(
          absl::StrCat("file ", object.name, " of writer ", manifest.writer, " ", why));
    };
    const auto fd = OpenAt(directory, object.name, O_PATH);
    if (!fd.ok()) return damaged(fd.status().message());
    struct stat info = {};
    if (::fstat(fd->get(), &info) != 0) return ErrnoStatus(errno, object.name);
    if (!S_ISREG(info.st_mode)) return damaged("is not a file");
    if (static_cast<uint64_t>(info.st_size) != object.length) {
      return damaged(absl::StrCat("has ", info.st_size, " bytes, not ", object.length));
    }
  }
  return absl::OkStatus();
}

// --- publishing

StatusOr<std::optional<Location>> PosixStorage::Publish(const CheckpointKey& checkpoint,
                                                        Owner owner) {
  CAIRN_RETURN_IF_ERROR(ValidateJob(checkpoint.job));
  auto at = OpenJob(checkpoint.job, owner, /*create=*/false);
  if (absl::IsNotFound(at.status())) return std::nullopt;  // nothing was ever written
  CAIRN_RETURN_IF_ERROR(at.status());
  CAIRN_ASSIGN_OR_RETURN(const AsOwner as, AsOwner::Become(owner));
  MutexLock lock(PublishMutex(checkpoint.job));
  bool published = false;
  CAIRN_RETURN_IF_ERROR(
      Annotate(PublishLocked(*at, checkpoint, &published), checkpoint.DebugString()));
  if (const int error = ReachFailpoint(Failpoint::kStorageDone); error != 0) {
    return ErrnoStatus(error, "after publishing");
  }
  if (!published) return std::nullopt;
  return Location(absl::StrCat(at->path, "/", StepDirectory(checkpoint.step)));
}

Status PosixStorage::PublishLocked(const JobDirectories& at, const CheckpointKey& checkpoint,
                                   bool* published) {
  const std::string step_name = StepDirectory(checkpoint.step);
  const std::string name = NameOf(PartialDirectory(checkpoint));
  CAIRN_ASSIGN_OR_RETURN(const Attempt removed, ReadTombstone(at.job.get(), checkpoint.step));
  if (checkpoint.attempt <= removed) return absl::OkStatus();

  CAIRN_ASSIGN_OR_RETURN(const Place standing, Look(at.job.get(), step_name, at.path));
  if (standing.Holds(checkpoint) && standing.stored.Complete()) {
    *published =
        true;  // by us before a crash, or by another: its place in the directory is made sure
    return Sync(at.job.get());
  }
  CAIRN_ASSIGN_OR_RETURN(const Place claimed, Look(at.publish.get(), name, at.path));
  if (!claimed.Holds(checkpoint)) {
    CAIRN_ASSIGN_OR_RETURN(const Place partial, Look(at.partial.get(), name, at.path));
    if (!partial.Holds(checkpoint)) return absl::OkStatus();
    if (!partial.stored.conflict.empty()) {
      return absl::FailedPreconditionError(absl::StrCat("in conflict: ", partial.stored.conflict));
    }
    if (!partial.stored.Complete()) return absl::OkStatus();
    for (const StoredPart& part : partial.stored.parts) {
      CAIRN_RETURN_IF_ERROR(CheckFiles(partial.directory.get(), part.manifest));
    }
    if (standing.kind == Place::Kind::kForeign) {
      return absl::AlreadyExistsError(
          absl::StrCat(at.path, "/", step_name, " stands there and is not Cairn's"));
    }
    {
      CAIRN_ASSIGN_OR_RETURN(const UniqueFd meta,
                             OpenDirectoryAt(partial.directory.get(), kMetaDirectory));
      CAIRN_RETURN_IF_ERROR(RemoveStale(meta.get(), ""));
    }
    // What is left of an older replacement under this name is older than what stands in place.
    if (claimed.kind != Place::Kind::kNothing) {
      CAIRN_RETURN_IF_ERROR(Discard(at, at.publish.get(), name, checkpoint));
    }
    const Status claim = RenameAt(at.partial.get(), name, at.publish.get(), name, RENAME_NOREPLACE);
    // Another publisher has won the claim: what it brings in place is the same.
    if (!claim.ok() && !absl::IsNotFound(claim) && !absl::IsAlreadyExists(claim)) return claim;
    CAIRN_RETURN_IF_ERROR(Sync(at.publish.get()));
    CAIRN_RETURN_IF_ERROR(Sync(at.partial.get()));
  }
  return PutInPlace(at, name, published);
}

Status PosixStorage::PutInPlace(const JobDirectories& at, const std::string& claim,
                                bool* published) {
  CheckpointKey named;
  if (!ParseCheckpointDirectory(claim, &named)) return absl::OkStatus();
  named.job = NameOf(at.path);
  const std::string step_name = StepDirectory(named.step);
  const auto foreign = [&] {
    return absl::AlreadyExistsError(
        absl::StrCat(at.path, "/", step_name, " stands there and is not Cairn's"));
  };
  const auto move = [&](unsigned flags) {
    return RenameAt(at.publish.get(), claim, at.job.get(), step_name, flags);
  };
  bool moved = false;
  for (int exchanges = 0; exchanges < kMaxExchanges; ++exchanges) {
    CAIRN_ASSIGN_OR_RETURN(const Place standing, Look(at.job.get(), step_name, at.path));
    CAIRN_ASSIGN_OR_RETURN(const Place aside, Look(at.publish.get(), claim, at.path));
    *published = standing.Holds(named) && standing.stored.Complete();
    if (!aside.Ours() && moved && aside.kind == Place::Kind::kForeign) {
      // The user put a directory of their own at the step just before the exchange: theirs goes
      // back.
      CAIRN_RETURN_IF_ERROR(move(RENAME_EXCHANGE));
      *published = false;
      return foreign();
    }
    if (!aside.Ours()) {
      // Nothing to bring: it stands in place already, or another brought it on between the two
      // looks.
      if (!*published && exchanges == 0) continue;
      CAIRN_RETURN_IF_ERROR(Sync(at.job.get()));
      CAIRN_RETURN_IF_ERROR(Sync(at.publish.get()));
      if (moved && *published) counters_.published.fetch_add(1, std::memory_order_relaxed);
      return absl::OkStatus();
    }
    if (standing.kind == Place::Kind::kForeign) return foreign();
    if (standing.Ours() && RankOf(aside.stored) <= RankOf(standing.stored)) {
      // What stands is as new or newer. It is made durable before the other goes.
      CAIRN_RETURN_IF_ERROR(Sync(at.job.get()));
      CAIRN_RETURN_IF_ERROR(Discard(at, at.publish.get(), claim, aside.stored.key));
      if (moved && *published) counters_.published.fetch_add(1, std::memory_order_relaxed);
      return absl::OkStatus();  // the trash can wait for the next sweep; who persists can't
    }
    if (!aside.stored.Complete()) return absl::OkStatus();  // damaged since it was claimed
    // With nothing there, a plain move; else the older comes out under the claim's name, and the
    // next round looks at what really came out: another publisher may have been quicker.
    const Status done = move(standing.Ours() ? RENAME_EXCHANGE : RENAME_NOREPLACE);
    if (absl::IsAlreadyExists(done) || absl::IsNotFound(done)) continue;
    CAIRN_RETURN_IF_ERROR(done);
    moved = true;
  }
  return absl::AbortedError(absl::StrCat(at.path, "/", step_name, " keeps changing"));
}

Status PosixStorage::Discard(const JobDirectories& at, int from, const std::string& name,
                             const CheckpointKey& named) {
  const Status moved =
      RenameAt(from, name, at.trash.get(), TrashName(named, TrashNumber()), RENAME_NOREPLACE);
  if (absl::IsNotFound(moved)) return absl::OkStatus();  // another took it away
  CAIRN_RETURN_IF_ERROR(moved);
  return Sync(from);
}

Status PosixStorage::EmptyTrash(const JobDirectories& at) {
  CAIRN_ASSIGN_OR_RETURN(const auto names, ListDirectory(at.trash.get()));
  for (const std::string& name : names) CAIRN_RETURN_IF_ERROR(RemoveTreeAt(at.trash.get(), name));
  return absl::OkStatus();
}

// --- sweeping and deleting

// The newest change of anything in a tree, in seconds since the epoch.
StatusOr<int64_t> NewestChange(int directory, int depth = 300) {
  struct stat info = {};
  if (::fstat(directory, &info) != 0) return ErrnoStatus(errno, "fstat");
  int64_t newest = info.st_mtim.tv_sec;
  CAIRN_ASSIGN_OR_RETURN(const auto names, ListDirectory(directory));
  for (const std::string& name : names) {
    if (::fstatat(directory, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) {
      if (errno == ENOENT) continue;
      return ErrnoStatus(errno, name);
    }
    newest = std::max<int64_t>(newest, info.st_mtim.tv_sec);
    if (!S_ISDIR(info.st_mode) || depth == 0) continue;
    const auto inner = OpenDirectoryAt(directory, name);
    if (absl::IsNotFound(inner.status())) continue;
    CAIRN_RETURN_IF_ERROR(inner.status());
    CAIRN_ASSIGN_OR_RETURN(const int64_t below, NewestChange(inner->get(), depth - 1));
    newest = std::max(newest, below);
  }
  return newest;
}

Status PosixStorage::Sweep(const std::string& job,
                           const std::function<bool(const CheckpointKey&)>& superseded) {
  const auto owner = JobOwner(job);
  if (absl::IsNotFound(owner.status())) return absl::OkStatus();
  CAIRN_RETURN_IF_ERROR(owner.status());
  // A job directory that holds nothing of ours yet has nothing to sweep.
  const auto at = OpenJob(job, *owner, /*create=*/false);
  if (absl::IsNotFound(at.status())) return absl::OkStatus();
  CAIRN_RETURN_IF_ERROR(at.status());
  CAIRN_ASSIGN_OR_RETURN(const AsOwner as, AsOwner::Become(*owner));
  MutexLock lock(PublishMutex(job));
  // One that can't be finished must not keep the rest from being swept.
  const Status claims = SweepClaims(*at);
  const Status partials = SweepPartials(*at, job, superseded);
  const Status trash = EmptyTrash(*at);
  for (const Status& status : {claims, partials, trash}) {
    CAIRN_RETURN_IF_ERROR(Annotate(status, absl::StrCat("sweeping ", job)));
  }
  return absl::OkStatus();
}

Status PosixStorage::SweepClaims(const JobDirectories& at) {
  CAIRN_ASSIGN_OR_RETURN(const auto claims, ListDirectory(at.publish.get()));
  Status first;
  for (const std::string& claim : claims) {
    CheckpointKey named;
    if (!ParseCheckpointDirectory(claim, &named)) continue;
    const auto removed = ReadTombstone(at.job.get(), named.step);
    bool published = false;
    const Status status = removed.ok() && named.attempt <= *removed
                              ? Discard(at, at.publish.get(), claim, named)
                              : PutInPlace(at, claim, &published);
    // A directory of the user's in the way is told when the checkpoint is published, not at every
    // sweep.
    if (!status.ok() && !absl::IsAlreadyExists(status) && first.ok()) first = status;
  }
  return first;
}

Status PosixStorage::SweepPartials(const JobDirectories& at, const std::string& job,
                                   const std::function<bool(const CheckpointKey&)>& superseded) {
  CAIRN_ASSIGN_OR_RETURN(const auto names, ListDirectory(at.partial.get()));
  for (const std::string& name : names) {
    CheckpointKey named;
    if (!ParseCheckpointDirectory(name, &named)) continue;
    named.job = job;
    const auto removed = ReadTombstone(at.job.get(), named.step);
    if (!(removed.ok() && named.attempt <= *removed) && !superseded(named)) continue;
    const auto directory = OpenDirectoryAt(at.partial.get(), name);
    if (!directory.ok()) continue;
    // Another node may be writing its part of it just now.
    CAIRN_ASSIGN_OR_RETURN(const int64_t newest, NewestChange(directory->get()));
    if (::time(nullptr) - newest < kSweepAgeSeconds) continue;
    CAIRN_RETURN_IF_ERROR(Discard(at, at.partial.get(), name, named));
  }
  return absl::OkStatus();
}

Status PosixStorage::WriteTombstone(const JobDirectories& at, Step step, Attempt attempt) {
  CAIRN_ASSIGN_OR_RETURN(const UniqueFd removed, MakeDirectoriesAt(at.meta.get(), "removed"));
  CAIRN_RETURN_IF_ERROR(RemoveStale(removed.get(), ""));
  const auto present = ReadTombstone(at.job.get(), step);
  if (!present.ok() || *present < attempt) {  // one that can't be read is written anew
    CAIRN_RETURN_IF_ERROR(WriteMetaFile(
        removed.get(), absl::StrCat(step), absl::StrCat(attempt, "\n"),
        [this] { return Temporary(); }, &counters_));
  }
  CAIRN_RETURN_IF_ERROR(Sync(removed.get()));
  return Sync(at.meta.get());
}

Status PosixStorage::Delete(const CheckpointKey& checkpoint, Owner owner, bool tombstone) {
  CAIRN_RETURN_IF_ERROR(ValidateJob(checkpoint.job));
  const auto at = OpenJob(checkpoint.job, owner, /*create=*/tombstone);
  if (absl::IsNotFound(at.status())) return absl::OkStatus();
  CAIRN_RETURN_IF_ERROR(at.status());
  CAIRN_ASSIGN_OR_RETURN(const AsOwner as, AsOwner::Become(owner));
  MutexLock lock(PublishMutex(checkpoint.job));
  if (tombstone) {
    CAIRN_RETURN_IF_ERROR(WriteTombstone(*at, checkpoint.step, checkpoint.attempt));
  }
  const auto meant = [&](const CheckpointKey& key) {
    return tombstone ? key.step == checkpoint.step && key.attempt <= checkpoint.attempt
                     : key.Tie() == checkpoint.Tie();
  };
  const std::string step_name = StepDirectory(checkpoint.step);
  CAIRN_ASSIGN_OR_RETURN(const Place standing, Look(at->job.get(), step_name, at->path));
  if (standing.Ours() && standing.stored.key.job == checkpoint.job && meant(standing.stored.key)) {
    CAIRN_RETURN_IF_ERROR(Discard(*at, at->job.get(), step_name, standing.stored.key));
  }
  for (int parent : {at->publish.get(), at->partial.get()}) {
    CAIRN_ASSIGN_OR_RETURN(const auto names, ListDirectory(parent));
    for (const std::string& name : names) {
      CheckpointKey named;
      if (!ParseCheckpointDirectory(name, &named)) continue;
      named.job = checkpoint.job;
      // Without a tombstone a partial is left alone: somebody may be about to complete it.
      if (meant(named) && (tombstone || parent == at->publish.get())) {
        CAIRN_RETURN_IF_ERROR(Discard(*at, parent, name, named));
      }
    }
  }
  CAIRN_RETURN_IF_ERROR(EmptyTrash(*at));
  if (const int error = ReachFailpoint(Failpoint::kStorageDone); error != 0) {
    return ErrnoStatus(error, "after deleting");
  }
  return absl::OkStatus();
}

// --- reading

// An open file is the object for good: a replaced or deleted one keeps its inode.
class FileReader final : public Reader {
 public:
  FileReader(UniqueFd file, uint64_t length) : file_(std::move(file)), length_(length) {}

  uint64_t length() const override { return length_; }
  Status ReadAt(uint64_t offset, absl::Span<char> into) const override {
    if (offset > length_ || into.size() > length_ - offset) {
      return absl::OutOfRangeError(absl::StrCat("offset: ", offset, " + ", into.size(),
                                                " is beyond the object's ", length_));
    }
    return PreadAll(file_.get(), into.data(), into.size(), offset);
  }
  std::optional<int> Descriptor() const override { return file_.get(); }

 private:
  const UniqueFd file_;
  const uint64_t length_;
};

StatusOr<StoredJob> PosixStorage::Read(const std::string& job) {
  CAIRN_ASSIGN_OR_RETURN(const Owner owner, JobOwner(job));
  // As the owner, where that is possible: uid 0 is nobody on some network file systems.
  const auto as = AsOwner::Become(owner);
  return ReadStoredJob(options_.root, job);
}

StatusOr<std::unique_ptr<Reader>> PosixStorage::Open(const StoredCheckpoint& checkpoint,
                                                     absl::string_view name, Owner reader) {
  const Manifest* manifest = nullptr;
  const ObjectEntry* entry = nullptr;
  for (const StoredPart& candidate : checkpoint.parts) {
    if (const ObjectEntry* found = candidate.manifest.Find(name); found != nullptr) {
      manifest = &candidate.manifest;
      entry = found;
    }
  }
  const std::string what = absl::StrCat(checkpoint.key.DebugString(), " ", name);
  if (entry == nullptr) return absl::NotFoundError(absl::StrCat(what, ": no such object"));
  const std::string digest = ManifestDigest(EncodeManifest(*manifest));
  CAIRN_ASSIGN_OR_RETURN(const AsOwner as, AsOwner::Become(reader));
  CAIRN_ASSIGN_OR_RETURN(const UniqueFd job, OpenDirectoryAt(root_.get(), checkpoint.key.job));
  // It may have moved since it was found, and its place may hold another by now: the manifest
  // decides.
  for (const std::string& place :
       {StepDirectory(checkpoint.key.step), PublishDirectory(checkpoint.key),
        PartialDirectory(checkpoint.key)}) {
    const auto directory = OpenDirectoryAt(job.get(), place);
    if (absl::IsNotFound(directory.status())) continue;
    CAIRN_RETURN_IF_ERROR(directory.status());
    const auto file = OpenAt(directory->get(), ManifestFile(manifest->writer), O_RDONLY);
    if (absl::IsNotFound(file.status())) continue;
    CAIRN_RETURN_IF_ERROR(file.status());
    const auto bytes = ReadRegularFile(file->get(), kMaxManifestBytes);
    if (!bytes.ok() || ManifestDigest(*bytes) != digest) continue;
    auto object = OpenAt(directory->get(), std::string(name), O_RDONLY);
    if (absl::IsNotFound(object.status())) {
      return absl::DataLossError(absl::StrCat(what, ": its file is gone"));
    }
    CAIRN_RETURN_IF_ERROR(object.status());
    struct stat info = {};
    if (::fstat(object->get(), &info) != 0) return ErrnoStatus(errno, what);
    if (!S_ISREG(info.st_mode) || static_cast<uint64_t>(info.st_size) != entry->length) {
      return absl::DataLossError(
          absl::StrCat(what, ": its file has ", info.st_size, " bytes, not ", entry->length));
    }
    return std::unique_ptr<Reader>(new FileReader(*std::move(object), entry->length));
  }
  return absl::NotFoundError(absl::StrCat(what, ": is no longer in storage"));
}

Counters PosixStorage::counters() const {
  Counters now;
  now.objects_written = counters_.objects_written.load(std::memory_order_relaxed);
  now.bytes_written = counters_.bytes_written.load(std::memory_order_relaxed);
  now.sync_failures = counters_.sync_failures.load(std::memory_order_relaxed);
  now.rewrites = counters_.rewrites.load(std::memory_order_relaxed);
  now.published = counters_.published.load(std::memory_order_relaxed);
  return now;
}

}  // namespace

Status PosixOptions::Validate() const {
  if (!root.empty() && root[0] != '/') {
    return absl::InvalidArgumentError(
        absl::StrCat("storage.root: \"", root, "\" is not an absolute path"));
  }
  if (threads < 1 || threads > kMaxThreads) {
    return absl::InvalidArgumentError(
        absl::StrCat("storage.threads: ", threads, " is not in 1 … ", kMaxThreads));
  }
  return absl::OkStatus();
}

StatusOr<std::unique_ptr<Storage>> MakePosixStorage(const PosixOptions& options) {
  CAIRN_RETURN_IF_ERROR(options.Validate());
  const std::string what = absl::StrCat("storage.root ", options.root);
  if (options.root.empty()) return absl::InvalidArgumentError("storage.root: is empty");
  UniqueFd root(::open(options.root.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!root.valid()) return ErrnoStatus(errno, what);
  if (::faccessat(root.get(), ".", W_OK | X_OK, AT_EACCESS) != 0) {
    return ErrnoStatus(errno, absl::StrCat(what, " can't be written"));
  }
  uint64_t instance = 0;
  if (::getrandom(&instance, sizeof(instance), 0) != sizeof(instance)) {
    return ErrnoStatus(errno, "getrandom");
  }
  return std::unique_ptr<Storage>(new PosixStorage(options, std::move(root), instance));
}

}  // namespace cairn::storage
