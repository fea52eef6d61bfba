#include "server/storage/posix_trash.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "common/layout.h"
#include "server/storage/files.h"

namespace cairn::storage {
namespace {

// Whether less than an eighth of the file system is left to its users.
bool IsTight(int directory) {
  struct statvfs info = {};
  return ::fstatvfs(directory, &info) == 0 && info.f_bavail < info.f_blocks / 8;
}

}  // namespace

Status Discard(PosixRoot* root, const JobDirectories& at, int from, const std::string& name,
               const CheckpointKey& named, bool deleted) {
  std::string to = NumberedName(named, root->UniqueNumber());
  if (deleted) {
    to += kDeletedSuffix;
    // Its hour begins now. One whose directory keeps its old time merely goes earlier.
    if (const auto directory = OpenDirectoryAt(from, name); directory.ok()) {
      (void)Touch(directory->get());
    }
  }
  const Status moved = RenameAt(from, name, at.trash.get(), to, RENAME_NOREPLACE);
  if (absl::IsNotFound(moved)) return absl::OkStatus();
  CAIRN_RETURN_IF_ERROR(moved);
  return Sync(from);
}

Status EmptyTrash(const JobDirectories& at, bool all, bool* removed) {
  CAIRN_ASSIGN_OR_RETURN(const auto names, ListDirectory(at.trash.get()));
  if (names.empty()) return absl::OkStatus();
  CAIRN_ASSIGN_OR_RETURN(const int64_t now, Touch(at.trash.get()));
  all = all || IsTight(at.trash.get());
  CAIRN_ASSIGN_OR_RETURN(const auto ahead, ReadLineAhead(at.job.get(), SplitPath(at.path).base));
  for (const std::string& name : names) {
    std::string going = name;
    if (absl::EndsWith(name, kDeletedSuffix)) {
      struct stat info = {};
      if (::fstatat(at.trash.get(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) {
        if (errno == ENOENT) continue;
        return ErrnoStatus(errno, name);
      }
      CheckpointKey named;
      const absl::string_view numbered = absl::StripSuffix(name, kDeletedSuffix);
      if (ParseCheckpointDirectory(numbered, &named) && IsDecided(ahead.decisions, named)) continue;
      if (!all && now - info.st_mtim.tv_sec < kKeepSeconds) continue;
      // Nobody brings back what is half gone.
      going += kGoingSuffix;
      const Status moved = RenameAt(at.trash.get(), name, at.trash.get(), going, RENAME_NOREPLACE);
      if (absl::IsNotFound(moved)) continue;
      CAIRN_RETURN_IF_ERROR(moved);
    }
    CAIRN_RETURN_IF_ERROR(RemoveTreeAt(at.trash.get(), going));
    if (removed != nullptr) *removed = true;
  }
  return absl::OkStatus();
}

bool IsDecided(const std::vector<LineRecord>& ahead, const CheckpointKey& checkpoint) {
  return std::any_of(ahead.begin(), ahead.end(), [&](const LineRecord& decision) {
    return decision.lineage.step() == checkpoint.step &&
           decision.lineage.attempt() == checkpoint.attempt;
  });
}

bool IsRemoved(const JobDirectories& at, const CheckpointKey& checkpoint) {
  const auto removed = ReadTombstones(at.job.get(), checkpoint.step);
  return removed.ok() && removed->Contains(checkpoint.attempt);
}

}  // namespace cairn::storage
