#include "server/storage/posix_records.h"

#include <linux/fs.h>

#include "common/layout.h"
#include "server/storage/files.h"

namespace cairn::storage {

StatusOr<LineRecord> WriteRecordBelow(PosixRoot* root, const JobDirectories& at,
                                      const LineRecord& record) {
  CAIRN_ASSIGN_OR_RETURN(const UniqueFd line, MakeDirectoriesAt(at.meta.get(), "line"));
  const auto standing = [&] {
    return ReadLineRecord(at.job.get(), record.job, record.number, record.kind);
  };
  const StatusOr<LineRecord> before = standing();
  const bool replaces = record.kind == LineRecordKind::kResume;
  if (before.ok() && (*before == record || !replaces)) {
    // A writer that died may have made it and not synced it.
    CAIRN_RETURN_IF_ERROR(Sync(line.get()));
    return *before;
  }
  // One that does not decode was cut short by a file system that lost its tail: written anew.
  if (!before.ok() && !absl::IsNotFound(before.status()) && !absl::IsDataLoss(before.status())) {
    return before.status();
  }
  // Each node of a ring writes its own record of a life's beginning, at about the same time.
  constexpr int64_t kNobodyWritesSoLong = 600;
  CAIRN_RETURN_IF_ERROR(root->RemoveStale(line.get(), kNobodyWritesSoLong));
  const std::string written = root->TemporaryName();
  CAIRN_RETURN_IF_ERROR(
      WriteSmallFile(line.get(), written, EncodeLineRecord(record), root->counters()));
  const std::string name = LineRecordName(record.number, record.kind);
  Status named;
  if (absl::IsNotFound(before.status())) {
    // A link replaces nothing, where a rename may: a network file system has no rename that does not.
    named = LinkAt(line.get(), written, line.get(), name);
    if (absl::IsUnimplemented(named)) {
      named = RenameAt(line.get(), written, line.get(), name, RENAME_NOREPLACE);
    }
  } else {
    named = RenameAt(line.get(), written, line.get(), name, 0);
  }
  (void)RemoveFileAt(line.get(), written);
  if (!named.ok() && !absl::IsAlreadyExists(named)) return named;
  CAIRN_RETURN_IF_ERROR(Sync(line.get()));
  CAIRN_RETURN_IF_ERROR(Sync(at.meta.get()));
  return standing();
}

}  // namespace cairn::storage
