#include "server/storage/posix_delete.h"

#include <fcntl.h>

#include "common/failpoint.h"
#include "common/layout.h"
#include "server/storage/files.h"
#include "server/storage/posix_claim.h"
#include "server/storage/posix_trash.h"

namespace cairn::storage {
namespace {

constexpr unsigned kRangeMode = 0644;

// A tombstone is a file that says all in its name, so that it is there whole or not at all, and two
// daemons that write one at a time cannot lose each other's. The new one says what the others say
// that it touches, and they go.
Status WriteTombstone(const JobDirectories& at, Step step, const AttemptRanges::Range& range) {
  AttemptRanges removed;
  // One of an older version that cannot be read is replaced.
  const auto present = ReadTombstones(at.job.get(), step);
  if (!present.ok() && !absl::IsDataLoss(present.status())) return present.status();
  if (present.ok()) removed = *present;
  removed.Add(range.first, range.last);
  if (removed.ranges().size() > kMaxRemovedRanges) {
    return absl::ResourceExhaustedError(
        absl::StrCat("attempts of step ", step, " were removed in ", kMaxRemovedRanges,
                     " ranges, the most that can be recorded: remove the step up to an attempt"));
  }
  CAIRN_ASSIGN_OR_RETURN(const UniqueFd all, MakeDirectoriesAt(at.meta.get(), "removed"));
  const std::string name = SplitPath(TombstoneDirectory(step)).base;
  CAIRN_ASSIGN_OR_RETURN(const UniqueFd own, MakeDirectoriesAt(all.get(), name));
  for (const AttemptRanges::Range& merged : removed.ranges()) {
    if (!AttemptRanges(merged).Covers(range)) continue;
    CAIRN_RETURN_IF_ERROR(
        OpenAt(own.get(), RangeName(merged), O_CREAT | O_WRONLY, kRangeMode).status());
    for (const int directory : {own.get(), all.get(), at.meta.get()}) {
      CAIRN_RETURN_IF_ERROR(Sync(directory));
    }
    CAIRN_ASSIGN_OR_RETURN(const auto names, ListDirectory(own.get()));
    for (const std::string& other : names) {
      AttemptRanges::Range said;
      if (ParseRangeName(other, &said) && !(said == merged) && AttemptRanges(merged).Covers(said)) {
        CAIRN_RETURN_IF_ERROR(RemoveFileAt(own.get(), other));
      }
    }
    // What an older version wrote begins at attempt 1.
    if (merged.first == 1) {
      CAIRN_RETURN_IF_ERROR(RemoveFileAt(all.get(), SplitPath(TombstoneFile(step)).base));
    }
  }
  return absl::OkStatus();
}

// Unpublished parts of it go without a claim: nobody but a publisher moves them, and it reads the
// tombstones once more when it is done.
Status DropPartials(PosixRoot* root, const JobDirectories& at, const CheckpointKey& checkpoint,
                    const AttemptRanges::Range& range) {
  CAIRN_ASSIGN_OR_RETURN(const auto names, ListDirectory(at.partial.get()));
  for (const std::string& name : names) {
    CheckpointKey named;
    if (!ParseCheckpointDirectory(name, &named) || named.step != checkpoint.step ||
        !AttemptRanges(range).Contains(named.attempt)) {
      continue;
    }
    CAIRN_RETURN_IF_ERROR(Discard(root, at, at.partial.get(), name, named));
  }
  return absl::OkStatus();
}

// FAILED_PRECONDITION: a decision needs it, or another life may.
Status CheckNotNeeded(const JobDirectories& at, const CheckpointKey& checkpoint,
                      Attempt newest_known) {
  CAIRN_ASSIGN_OR_RETURN(const LineAhead ahead, ReadLineAhead(at.job.get(), checkpoint.job));
  if (ahead.published > newest_known) {
    return absl::FailedPreconditionError(
        absl::StrCat(checkpoint.DebugString(), ": attempt ", ahead.published,
                     " has published something that whoever deletes this does not know of"));
  }
  const Attempt decision = DecisionThatNeeds(ahead.decisions, checkpoint);
  if (decision == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(checkpoint.DebugString(), ": decision ", decision, " needs it"));
}

}  // namespace

Status DeleteBelow(PosixRoot* root, const JobDirectories& at, const CheckpointKey& checkpoint,
                   DeleteKind kind, const Chosen& chosen) {
  if (kind == DeleteKind::kFiles) {
    // Another node may have decided since the deletion was, or while the files are taken away. It looks
    // once more when its decision is written, so one of the two sees what the other did.
    const auto is_it = [&](const CheckpointKey& key) { return key == checkpoint; };
    CAIRN_RETURN_IF_ERROR(CheckNotNeeded(at, checkpoint, chosen.newest_known));
    CAIRN_RETURN_IF_ERROR(TakeAway(root, at, checkpoint, is_it, /*deleted=*/true));
    const Status needed = CheckNotNeeded(at, checkpoint, chosen.newest_known);
    if (!needed.ok()) {
      CAIRN_RETURN_IF_ERROR(BringBack(root, at, checkpoint.job, is_it));
      return needed;
    }
    CAIRN_RETURN_IF_ERROR(EmptyTrash(at, /*all=*/false));
  } else {
    const AttemptRanges::Range range{kind == DeleteKind::kUpToAttempt ? 1 : checkpoint.attempt,
                                     checkpoint.attempt};
    CAIRN_RETURN_IF_ERROR(WriteTombstone(at, checkpoint.step, range));
    CAIRN_RETURN_IF_ERROR(DropPartials(root, at, checkpoint, range));
    CAIRN_RETURN_IF_ERROR(TakeAway(
        root, at, checkpoint,
        [&](const CheckpointKey& key) {
          return key.step == checkpoint.step && AttemptRanges(range).Contains(key.attempt);
        },
        /*deleted=*/false));
    CAIRN_RETURN_IF_ERROR(EmptyTrash(at, /*all=*/false));
  }
  if (const int error = ReachFailpoint(Failpoint::kStorageDone); error != 0) {
    return ErrnoStatus(error, "after deleting");
  }
  return absl::OkStatus();
}

}  // namespace cairn::storage
