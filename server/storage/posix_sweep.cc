#include "server/storage/posix_sweep.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "common/layout.h"
#include "server/storage/files.h"
#include "server/storage/posix_claim.h"
#include "server/storage/posix_trash.h"

namespace cairn::storage {
namespace {

constexpr int64_t kSweepAgeSeconds = 60;

// The newest change of anything in a tree, in seconds since the epoch.
StatusOr<int64_t> NewestChange(int directory, int depth = kMaxTreeDepth) {
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

Status SweepClaims(PosixRoot* root, const JobDirectories& at) {
  CAIRN_ASSIGN_OR_RETURN(const auto claims, ListDirectory(at.publish.get()));
  Status first;
  for (const std::string& claim : claims) {
    CheckpointKey named;
    if (!ParseCheckpointDirectory(claim, &named)) continue;
    // A publisher of another daemon that is alive finds its claim gone, and looks again.
    const auto taken = TakeClaim(root, at, at.publish.get(), claim, named);
    Status status = taken.status();
    if (taken.ok() && taken->has_value()) {
      const StatusOr<bool> brought = Settle(root, at, **taken);
      status = brought.status();
      if (brought.ok() && *brought) {
        root->counters()->published.fetch_add(1, std::memory_order_relaxed);
      }
    }
    // A directory of the user's in the way is reported when the checkpoint is published, not at
    // every sweep.
    if (!status.ok() && !absl::IsAlreadyExists(status) && first.ok()) first = status;
  }
  return first;
}

// Sweeps `directory`, which is partial/ or writing/.
Status SweepUnpublished(PosixRoot* root, const JobDirectories& at, int directory,
                        const std::string& job, const SweepRules& rules) {
  CAIRN_ASSIGN_OR_RETURN(const auto names, ListDirectory(directory));
  if (names.empty()) return absl::OkStatus();
  // The file system's clock: this machine's may be hours away from that of a file server.
  CAIRN_ASSIGN_OR_RETURN(const int64_t now, Touch(at.trash.get()));
  for (const std::string& name : names) {
    CheckpointKey named;
    if (!ParseCheckpointDirectory(name, &named)) continue;
    named.job = job;
    const bool useless = IsRemoved(at, named) || (rules.superseded && rules.superseded(named));
    const bool kept = directory == at.partial.get() && (!rules.wanted || rules.wanted(named));
    if (!useless && kept) continue;
    const auto tree = OpenDirectoryAt(directory, name);
    if (!tree.ok()) continue;
    // Another node may be writing it just now. If it stood still so long, it finds it gone and writes it again.
    CAIRN_ASSIGN_OR_RETURN(const int64_t newest, NewestChange(tree->get()));
    if (now - newest < (useless || rules.full ? kSweepAgeSeconds : kKeepSeconds)) continue;
    CAIRN_RETURN_IF_ERROR(Discard(root, at, directory, name, named));
  }
  return absl::OkStatus();
}

// A daemon that deletes files looks afterwards whether a decision made meanwhile needs them. One that
// died in between left them in the trash.
Status BringBackDecided(PosixRoot* root, const JobDirectories& at, const std::string& job) {
  CAIRN_ASSIGN_OR_RETURN(const auto ahead, ReadLineAhead(at.job.get(), job));
  if (ahead.decisions.empty()) return absl::OkStatus();
  return BringBack(root, at, job,
                   [&](const CheckpointKey& key) { return IsDecided(ahead.decisions, key); });
}

}  // namespace

Status SweepBelow(PosixRoot* root, const JobDirectories& at, const std::string& job,
                  const SweepRules& rules) {
  // A claim that cannot be finished must not keep the rest from being swept.
  const Status claims = SweepClaims(root, at);
  const Status partials = SweepUnpublished(root, at, at.partial.get(), job, rules);
  const Status writing = SweepUnpublished(root, at, at.writing.get(), job, rules);
  const Status decided = BringBackDecided(root, at, job);
  const Status trash = decided.ok() ? EmptyTrash(at, /*all=*/rules.full) : absl::OkStatus();
  for (const Status& status : {claims, partials, writing, decided, trash}) {
    CAIRN_RETURN_IF_ERROR(Annotate(status, absl::StrCat("sweeping ", job)));
  }
  return absl::OkStatus();
}

}  // namespace cairn::storage
