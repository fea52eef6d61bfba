#include "server/storage/posix_storage.h"

#include <fcntl.h>
#include <sys/random.h>

#include <cerrno>
#include <map>
#include <string>
#include <utility>

#include "common/failpoint.h"
#include "common/layout.h"
#include "common/mutex.h"
#include "common/stored_job.h"
#include "server/storage/files.h"
#include "server/storage/owner.h"
#include "server/storage/posix_delete.h"
#include "server/storage/posix_looks.h"
#include "server/storage/posix_publish.h"
#include "server/storage/posix_read.h"
#include "server/storage/posix_records.h"
#include "server/storage/posix_root.h"
#include "server/storage/posix_sweep.h"
#include "server/storage/posix_trash.h"
#include "server/storage/posix_write.h"

namespace cairn::storage {
namespace {

constexpr int kMaxThreads = 64;

// A lock for each job of which a whole checkpoint is being moved, so that the publishers of one daemon do
// not meet; those of several daemons meet at a claim (posix_claim.h). One each, because a call that hangs
// keeps it. Never held while the bytes of objects are written.
class Publishing {
 public:
  Mutex* Enter(const std::string& job) {
    MutexLock lock(&mu_);
    Entry& entry = jobs_[job];
    ++entry.users;
    return &entry.mutex;
  }
  void Leave(const std::string& job) {
    MutexLock lock(&mu_);
    const auto at = jobs_.find(job);
    if (--at->second.users == 0) jobs_.erase(at);
  }

 private:
  struct Entry {
    Mutex mutex;
    int users = 0;  // that hold the mutex or wait for it
  };
  Mutex mu_;  // a leaf
  std::map<std::string, Entry> jobs_ ABSL_GUARDED_BY(mu_);
};

class PublishLock {
 public:
  // The mutex is one of many, which the analysis cannot tell apart.
  PublishLock(Publishing* publishing, std::string job) ABSL_NO_THREAD_SAFETY_ANALYSIS
      : publishing_(*publishing),
        job_(std::move(job)),
        mutex_(*publishing->Enter(job_)) {
    mutex_.Lock();
  }
  ~PublishLock() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    mutex_.Unlock();
    publishing_.Leave(job_);
  }
  PublishLock(const PublishLock&) = delete;
  PublishLock& operator=(const PublishLock&) = delete;

 private:
  Publishing& publishing_;
  const std::string job_;
  Mutex& mutex_;
};

// Finds the job's directories, becomes its owner and takes the lock that a call needs; what the
// call does is in the file of its name.
class PosixStorage final : public Storage {
 public:
  PosixStorage(const PosixOptions& options, uint64_t instance) : root_(options, instance) {}

  StatusOr<RootIdentity> Identity() override { return root_.Identity(); }
  void Expect(const std::string& id) override { root_.Expect(id); }

  Status WriteParts(const CheckpointKey& checkpoint, Owner owner,
                    const std::vector<PartToWrite>& parts) override {
    CAIRN_RETURN_IF_ERROR(CheckPartsAreOf(checkpoint, parts));
    const auto write = [&]() -> Status {
      CAIRN_ASSIGN_OR_RETURN(const JobDirectories at,
                             root_.OpenJob(checkpoint.job, owner, /*create=*/true));
      {
        CAIRN_ASSIGN_OR_RETURN(const AsOwner as, AsOwner::Become(owner));
        Status written = WritePartsBelow(&root_, at, checkpoint, owner, parts);
        if (absl::IsResourceExhausted(written)) {
          // Storage is full. What was deleted need not wait any longer.
          bool made_room = false;
          const PublishLock lock(&publishing_, checkpoint.job);
          CAIRN_RETURN_IF_ERROR(EmptyTrash(at, /*all=*/true, &made_room));
          if (made_room) written = WritePartsBelow(&root_, at, checkpoint, owner, parts);
        }
        CAIRN_RETURN_IF_ERROR(written);
      }
      return root_.StillThere(at.root.get());
    };
    return Annotate(write(), checkpoint.DebugString());
  }

  StatusOr<LineRecord> WriteLineRecord(const LineRecord& record, Owner owner) override {
    CAIRN_ASSIGN_OR_RETURN(const JobDirectories at,
                           root_.OpenJob(record.job, owner, /*create=*/true));
    StatusOr<LineRecord> stands;
    {
      CAIRN_ASSIGN_OR_RETURN(const AsOwner as, AsOwner::Become(owner));
      const PublishLock lock(&publishing_, record.job);
      stands = WriteRecordBelow(&root_, at, record);
    }
    CAIRN_RETURN_IF_ERROR(root_.StillThere(at.root.get()));
    return stands;
  }

  StatusOr<Published> Publish(const CheckpointKey& checkpoint, Owner owner) override {
    CAIRN_RETURN_IF_ERROR(ValidateJob(checkpoint.job));
    const auto at = root_.OpenJob(checkpoint.job, owner, /*create=*/false);
    // Nothing was ever written.
    if (absl::IsNotFound(at.status())) return Published{std::nullopt, /*lacks_parts=*/true};
    CAIRN_RETURN_IF_ERROR(at.status());
    StatusOr<Published> published = PublishAs(owner, *at, checkpoint);
    CAIRN_RETURN_IF_ERROR(Annotate(published.status(), checkpoint.DebugString()));
    CAIRN_RETURN_IF_ERROR(root_.StillThere(at->root.get()));
    if (const int error = ReachFailpoint(Failpoint::kStorageDone); error != 0) {
      return ErrnoStatus(error, "after publishing");
    }
    return published;
  }

  Status Reinstate(const CheckpointKey& checkpoint, Owner owner) override {
    CAIRN_RETURN_IF_ERROR(ValidateJob(checkpoint.job));
    CAIRN_ASSIGN_OR_RETURN(const JobDirectories at,
                           root_.OpenJob(checkpoint.job, owner, /*create=*/false));
    {
      CAIRN_ASSIGN_OR_RETURN(const AsOwner as, AsOwner::Become(owner));
      const PublishLock lock(&publishing_, checkpoint.job);
      CAIRN_RETURN_IF_ERROR(ReinstateBelow(&root_, at, checkpoint));
    }
    return root_.StillThere(at.root.get());
  }

  Status Sweep(const std::string& job, const SweepRules& rules) override {
    const auto owner = JobOwner(job);
    if (absl::IsNotFound(owner.status())) return absl::OkStatus();
    CAIRN_RETURN_IF_ERROR(owner.status());
    // A job directory that holds nothing of ours yet has nothing to sweep.
    const auto at = root_.OpenJob(job, *owner, /*create=*/false);
    if (absl::IsNotFound(at.status())) return absl::OkStatus();
    CAIRN_RETURN_IF_ERROR(at.status());
    CAIRN_ASSIGN_OR_RETURN(const AsOwner as, AsOwner::Become(*owner));
    const PublishLock lock(&publishing_, job);
    return SweepBelow(&root_, *at, job, rules);
  }

  Status Delete(const CheckpointKey& checkpoint, Owner owner, DeleteKind kind,
                const Chosen& chosen) override {
    CAIRN_RETURN_IF_ERROR(ValidateJob(checkpoint.job));
    const bool create = kind != DeleteKind::kFiles;  // a tombstone needs a place
    const auto at = root_.OpenJob(checkpoint.job, owner, create);
    if (absl::IsNotFound(at.status())) return absl::OkStatus();
    CAIRN_RETURN_IF_ERROR(at.status());
    CAIRN_ASSIGN_OR_RETURN(const AsOwner as, AsOwner::Become(owner));
    if (kind == DeleteKind::kFiles && chosen.stays.has_value()) {
      const Status whole =
          looks_.Check(at->root.get(), root_.options().root, *chosen.stays, root_.options().limits);
      if (!whole.ok()) {
        return absl::FailedPreconditionError(
            absl::StrCat(checkpoint.DebugString(), " stays as long as ",
                         chosen.stays->DebugString(), " is not whole: ", whole.message()));
      }
    }
    const PublishLock lock(&publishing_, checkpoint.job);
    CAIRN_RETURN_IF_ERROR(DeleteBelow(&root_, *at, checkpoint, kind, chosen));
    looks_.Forget(checkpoint);
    return absl::OkStatus();
  }

  StatusOr<StoredJob> Read(const std::string& job) override {
    return Read(job, ManifestDetail::kWhole);
  }
  StatusOr<StoredJob> ReadSummary(const std::string& job) override {
    return Read(job, ManifestDetail::kSummary);
  }
  StatusOr<StoredCheckpoint> ReadCheckpoint(const CheckpointKey& checkpoint) override {
    CAIRN_ASSIGN_OR_RETURN(const UniqueFd root, root_.Enter());
    CAIRN_ASSIGN_OR_RETURN(const Owner owner, PosixRoot::JobOwner(root.get(), checkpoint.job));
    StatusOr<StoredCheckpoint> stored;
    {
      const auto as = AsOwner::Become(owner);
      stored = ReadCheckpointBelow(root.get(), checkpoint, root_.options().limits);
    }
    CAIRN_RETURN_IF_ERROR(root_.StillThere(root.get()));
    return stored;
  }
  StatusOr<StoredJob> Read(const std::string& job, ManifestDetail detail) {
    CAIRN_ASSIGN_OR_RETURN(const UniqueFd root, root_.Enter());
    CAIRN_ASSIGN_OR_RETURN(const Owner owner, PosixRoot::JobOwner(root.get(), job));
    StatusOr<StoredJob> stored;
    {
      // As the owner, where that is possible: uid 0 is nobody on some network file systems.
      const auto as = AsOwner::Become(owner);
      stored =
          ReadStoredJobBelow(root.get(), root_.options().root, job, detail, root_.options().limits);
      if (stored.ok()) {
        looks_.DropDamaged(root.get(), root_.options().root, job, &*stored);
        stored->now_unix_ms = NowBelow(root.get(), job);
      }
    }
    CAIRN_RETURN_IF_ERROR(root_.StillThere(root.get()));
    return stored;
  }
  StatusOr<LineNumbers> ReadLineNumbers(const std::string& job) override {
    CAIRN_ASSIGN_OR_RETURN(const UniqueFd root, root_.Enter());
    CAIRN_ASSIGN_OR_RETURN(const Owner owner, PosixRoot::JobOwner(root.get(), job));
    StatusOr<LineNumbers> numbers;
    {
      const auto as = AsOwner::Become(owner);
      CAIRN_ASSIGN_OR_RETURN(const UniqueFd directory,
                             OpenBeneath(root.get(), job, O_RDONLY | O_DIRECTORY));
      numbers = cairn::ReadLineNumbers(directory.get());
    }
    CAIRN_RETURN_IF_ERROR(root_.StillThere(root.get()));
    return numbers;
  }
  StatusOr<std::vector<std::string>> Jobs() override {
    CAIRN_RETURN_IF_ERROR(root_.Enter().status());
    return ListStoredJobs(root_.options().root);
  }
  StatusOr<Owner> JobOwner(const std::string& job) override {
    CAIRN_ASSIGN_OR_RETURN(const UniqueFd root, root_.Enter());
    return PosixRoot::JobOwner(root.get(), job);
  }
  StatusOr<std::unique_ptr<Reader>> Open(const StoredCheckpoint& checkpoint, absl::string_view name,
                                         Owner reader) override {
    return OpenBelow(root_, checkpoint, name, reader);
  }
  Counters counters() const override {
    Counters counters = std::as_const(root_).counters().Read();
    counters.weaknesses = CallsLeftOut();
    return counters;
  }

 private:
  StatusOr<Published> PublishAs(Owner owner, const JobDirectories& at,
                                const CheckpointKey& checkpoint) {
    CAIRN_ASSIGN_OR_RETURN(const AsOwner as, AsOwner::Become(owner));
    const PublishLock lock(&publishing_, checkpoint.job);
    return PublishBelow(&root_, at, checkpoint);
  }
  // By the file system's clock; 0 when that cannot be told, as below a root that is read only.
  static int64_t NowBelow(int root, const std::string& job) {
    const auto line = OpenDirectoryAt(root, absl::StrCat(job, "/", kMetaDirectory, "/line"));
    const StatusOr<int64_t> now = line.ok() ? Touch(line->get()) : line.status();
    return now.ok() ? *now * 1000 : 0;
  }

  PosixRoot root_;
  PosixLooks looks_;
  Publishing publishing_;
};

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
  if (options.root.empty()) return absl::InvalidArgumentError("storage.root: is empty");
  uint64_t instance = 0;
  if (::getrandom(&instance, sizeof(instance), 0) != sizeof(instance)) {
    return ErrnoStatus(errno, "getrandom");
  }
  return std::unique_ptr<Storage>(new PosixStorage(options, instance));
}

}  // namespace cairn::storage
