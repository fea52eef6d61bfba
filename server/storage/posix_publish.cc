#include "server/storage/posix_publish.h"

#include <linux/fs.h>

#include "common/layout.h"
#include "server/storage/files.h"
#include "server/storage/posix_place.h"
#include "server/storage/posix_trash.h"

namespace cairn::storage {
namespace {

// Publishers that meet at one step settle in two exchanges; more means that something else moves
// things about.
constexpr int kMaxExchanges = 8;

// Moves the partial directory `name`, when it is whole, into publish/. False: it is not there, or
// lacks parts. `claimed` is what stands under that name in publish/, and `standing` in the step's
// place.
StatusOr<bool> Claim(PosixRoot* root, const JobDirectories& at, const CheckpointKey& checkpoint,
                     const std::string& name, const Place& claimed, const Place& standing) {
  CAIRN_ASSIGN_OR_RETURN(const Place partial, LookAt(at.partial.get(), name, at.path));
  if (!partial.Holds(checkpoint)) return false;
  if (!partial.stored.conflict.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("in conflict: ", partial.stored.conflict));
  }
  if (!partial.stored.Complete()) return false;
  for (const StoredPart& part : partial.stored.parts) {
    CAIRN_RETURN_IF_ERROR(CheckFiles(partial.directory.get(), part.manifest));
  }
  if (standing.kind == Place::Kind::kForeign) return NotOurs(at, checkpoint.step);
  {
    CAIRN_ASSIGN_OR_RETURN(const UniqueFd meta,
                           OpenDirectoryAt(partial.directory.get(), kMetaDirectory));
    CAIRN_RETURN_IF_ERROR(root->RemoveStale(meta.get(), ""));
  }
  // What an earlier replacement left under this name is older than what stands in place.
  if (claimed.kind != Place::Kind::kNothing) {
    CAIRN_RETURN_IF_ERROR(Discard(root, at, at.publish.get(), name, checkpoint));
  }
  const Status moved = RenameAt(at.partial.get(), name, at.publish.get(), name, RENAME_NOREPLACE);
  // NOT_FOUND and ALREADY_EXISTS: another publisher has won the claim. It brings the same to the
  // same place.
  if (!moved.ok() && !absl::IsNotFound(moved) && !absl::IsAlreadyExists(moved)) return moved;
  CAIRN_RETURN_IF_ERROR(Sync(at.publish.get()));
  CAIRN_RETURN_IF_ERROR(Sync(at.partial.get()));
  return true;
}

// One claim on its way to its step. Each round looks at both places and then settles, or moves once
// and asks for another look.
class Placing {
 public:
  Placing(PosixRoot* root, const JobDirectories& at, const std::string& claim,
          const CheckpointKey& named)
      : root_(root), at_(at), claim_(claim), named_(named), step_name_(StepDirectory(named.step)) {}

  StatusOr<bool> Run() {
    for (int round = 0; round < kMaxExchanges; ++round) {
      bool settled = false;
      CAIRN_RETURN_IF_ERROR(Round(/*first=*/round == 0, &settled));
      if (settled) return in_place_;
    }
    return absl::AbortedError(absl::StrCat(at_.path, "/", step_name_, " keeps changing"));
  }

 private:
  Status Round(bool first, bool* settled) {
    CAIRN_ASSIGN_OR_RETURN(const Place standing, LookAt(at_.job.get(), step_name_, at_.path));
    CAIRN_ASSIGN_OR_RETURN(const Place aside, LookAt(at_.publish.get(), claim_, at_.path));
    in_place_ = standing.Holds(named_) && standing.stored.Complete();
    *settled = true;
    if (moved_ && aside.kind == Place::Kind::kForeign) {
      // The user put a directory of their own at the step just before the exchange: it goes back.
      CAIRN_RETURN_IF_ERROR(Move(RENAME_EXCHANGE));
      return NotOurs(at_, named_.step);
    }
    if (!aside.Ours()) {
      // Nothing to bring: it stands in place already, or another publisher brought it on between
      // the two looks.
      if (!in_place_ && first) {
        *settled = false;
        return absl::OkStatus();
      }
      CAIRN_RETURN_IF_ERROR(Sync(at_.job.get()));
      CAIRN_RETURN_IF_ERROR(Sync(at_.publish.get()));
      CountPublished();
      return absl::OkStatus();
    }
    if (standing.kind == Place::Kind::kForeign) return NotOurs(at_, named_.step);
    if (standing.Ours() && RankOf(aside.stored) <= RankOf(standing.stored)) {
      // What stands is as new or newer. It is made durable before the other goes. The trash can
      // wait for the next sweep, the caller cannot.
      CAIRN_RETURN_IF_ERROR(Sync(at_.job.get()));
      CAIRN_RETURN_IF_ERROR(Discard(root_, at_, at_.publish.get(), claim_, aside.stored.key));
      CountPublished();
      return absl::OkStatus();
    }
    if (!aside.stored.Complete()) return absl::OkStatus();  // damaged since it was claimed
    *settled = false;
    // With nothing there it is a plain move. Otherwise the older one comes out under the claim's
    // name, and the next round looks at what really came out: another publisher may have been
    // quicker.
    const Status done = Move(standing.Ours() ? RENAME_EXCHANGE : RENAME_NOREPLACE);
    if (absl::IsAlreadyExists(done) || absl::IsNotFound(done)) return absl::OkStatus();
    CAIRN_RETURN_IF_ERROR(done);
    moved_ = true;
    return absl::OkStatus();
  }

  Status Move(unsigned flags) {
    return RenameAt(at_.publish.get(), claim_, at_.job.get(), step_name_, flags);
  }

  void CountPublished() {
    if (moved_ && in_place_) root_->counters()->published.fetch_add(1, std::memory_order_relaxed);
  }

  PosixRoot* const root_;
  const JobDirectories& at_;
  const std::string& claim_;
  const CheckpointKey& named_;
  const std::string step_name_;
  bool in_place_ = false;  // as the last look showed
  bool moved_ = false;     // by this publisher
};

}  // namespace

StatusOr<bool> PublishBelow(PosixRoot* root, const JobDirectories& at,
                            const CheckpointKey& checkpoint) {
  CAIRN_ASSIGN_OR_RETURN(const Attempt removed, ReadTombstone(at.job.get(), checkpoint.step));
  if (checkpoint.attempt <= removed) return false;

  CAIRN_ASSIGN_OR_RETURN(const Place standing,
                         LookAt(at.job.get(), StepDirectory(checkpoint.step), at.path));
  if (standing.Holds(checkpoint) && standing.stored.Complete()) {
    // This daemon put it there before a crash, or another one did: its entry is made durable.
    CAIRN_RETURN_IF_ERROR(Sync(at.job.get()));
    return true;
  }
  const std::string name = SplitPath(PublishDirectory(checkpoint)).base;
  CAIRN_ASSIGN_OR_RETURN(const Place claimed, LookAt(at.publish.get(), name, at.path));
  if (!claimed.Holds(checkpoint)) {
    CAIRN_ASSIGN_OR_RETURN(const bool ours, Claim(root, at, checkpoint, name, claimed, standing));
    if (!ours) return false;
  }
  return PutInPlace(root, at, name);
}

StatusOr<bool> PutInPlace(PosixRoot* root, const JobDirectories& at, const std::string& claim) {
  CheckpointKey named;
  if (!ParseCheckpointDirectory(claim, &named)) return false;
  named.job = SplitPath(at.path).base;
  return Placing(root, at, claim, named).Run();
}

}  // namespace cairn::storage
