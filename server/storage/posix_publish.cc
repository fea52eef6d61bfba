#include "server/storage/posix_publish.h"

#include <fcntl.h>
#include <linux/fs.h>

#include <algorithm>

#include "common/layout.h"
#include "common/stored_checkpoint.h"
#include "server/storage/files.h"
#include "server/storage/posix_claim.h"
#include "server/storage/posix_come_in.h"
#include "server/storage/posix_lay_out.h"
#include "server/storage/posix_place.h"
#include "server/storage/posix_trash.h"

namespace cairn::storage {
namespace {

// Publishers of one checkpoint that take it from each other settle in a few rounds.
constexpr int kMaxPublishRounds = 32;
// Where it may stand is looked through one place after the other, and it may be moved meanwhile.
// After so many times it is not there.
constexpr int kLooksInVain = 3;

StatusOr<bool> IsForbidden(const JobDirectories& at, const CheckpointKey& checkpoint) {
  CAIRN_ASSIGN_OR_RETURN(const AttemptRanges removed,
                         ReadTombstones(at.job.get(), checkpoint.step));
  return removed.Contains(checkpoint.attempt);
}

// A newer revision of its attempt is published, or on its way there.
StatusOr<bool> IsReplaced(const JobDirectories& at, const CheckpointKey& checkpoint) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<Place> places, WherePublished(at, checkpoint));
  return std::any_of(places.begin(), places.end(),
                     [&](const Place& place) { return IsNewerRevision(place, checkpoint); });
}

// A published one of which files are missing is stored again from what is left of it and the parts that were
// written again: brings those that are whole there, and that `partial` lacks, into it. False: others are lacking.
StatusOr<bool> FillFromDamaged(PosixRoot* root, const JobDirectories& at,
                               const CheckpointKey& checkpoint, const Place& partial) {
  CAIRN_ASSIGN_OR_RETURN(const Place standing,
                         LookAt(at.job.get(), StepDirectory(checkpoint.step), at.path));
  if (!standing.Holds(checkpoint)) return false;
  size_t together = partial.stored.parts.size();
  std::vector<const StoredPart*> lacking;
  for (const StoredPart& part : standing.stored.parts) {
    const auto& there = partial.stored.parts;
    if (std::any_of(there.begin(), there.end(), [&](const StoredPart& other) {
          return other.manifest.writer == part.manifest.writer;
        })) {
      continue;
    }
    if (!CheckPartFiles(standing.directory.get(), part).ok()) return false;
    lacking.push_back(&part);
    ++together;
  }
  if (together != static_cast<size_t>(partial.stored.world_size)) return false;
  for (const StoredPart* part : lacking) {
    OwnDirectory own(root, at, checkpoint);
    const Status linked = LinkPart(standing, *part, at.writing.get(), own.name());
    if (absl::IsUnimplemented(linked)) return false;  // the writers' nodes write them again
    CAIRN_RETURN_IF_ERROR(linked);
    const auto holds = [&](const Place& place) -> StatusOr<bool> {
      const auto& there = place.stored.parts;
      return std::any_of(there.begin(), there.end(),
                         [&](const StoredPart& other) { return other.digest == part->digest; });
    };
    CAIRN_RETURN_IF_ERROR(ComeIn(root, at, checkpoint, part->manifest.writer, holds, &own));
  }
  return true;
}

// Claims the partial directory when it is whole. nullopt: it lacks parts (*lacks_parts), or is not
// there.
StatusOr<std::optional<std::string>> ClaimPartial(PosixRoot* root, const JobDirectories& at,
                                                  const CheckpointKey& checkpoint,
                                                  bool* lacks_parts) {
  const std::string name = SplitPath(PartialDirectory(checkpoint)).base;
  CAIRN_ASSIGN_OR_RETURN(const Place partial, LookAt(at.partial.get(), name, at.path));
  if (!partial.Holds(checkpoint)) return std::nullopt;
  if (!partial.stored.conflict.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("in conflict: ", partial.stored.conflict));
  }
  if (!partial.stored.Complete()) {
    CAIRN_ASSIGN_OR_RETURN(const bool filled, FillFromDamaged(root, at, checkpoint, partial));
    *lacks_parts = !filled;
    return std::nullopt;
  }
  const Status whole = CheckStoredFiles(partial.directory.get(), partial.stored);
  if (!whole.ok()) {
    // Or another publisher has taken it since, and what it was is on its way out of the trash.
    if (!StillStands(at.partial.get(), name, partial)) return std::nullopt;
    return whole;
  }
  CAIRN_ASSIGN_OR_RETURN(const Place standing,
                         LookAt(at.job.get(), StepDirectory(checkpoint.step), at.path));
  if (standing.kind == Place::Kind::kForeign) return NotOurs(at, checkpoint.step);
  return TakeClaim(root, at, at.partial.get(), name, checkpoint);
}

// Claims the checkpoint where another publisher, alive or dead, has left it in publish/.
StatusOr<std::optional<std::string>> TakeOver(PosixRoot* root, const JobDirectories& at,
                                              const CheckpointKey& checkpoint) {
  CAIRN_ASSIGN_OR_RETURN(const auto held, ListHeld(at, at.publish.get(), checkpoint));
  for (const Held& claim : held) {
    if (!claim.place.Holds(checkpoint)) continue;
    CAIRN_ASSIGN_OR_RETURN(auto taken,
                           TakeClaim(root, at, at.publish.get(), claim.name, claim.named));
    if (taken.has_value()) return taken;
  }
  return std::nullopt;
}

// Puts what stands aside as `name` into the step's place, where `standing` was seen, and what stood
// there aside. Who calls looks again at what has become of it.
Status Swap(PosixRoot* root, const JobDirectories& at, const CheckpointKey& checkpoint,
            const std::string& name, const Place& standing) {
  const std::string step = StepDirectory(checkpoint.step);
  const auto aside_name = [](const CheckpointKey& key) {
    return SplitPath(AbandonedDirectory(key)).base;
  };
  if (standing.Ours() && root->exchanges()) {
    const Status moved = RenameAt(at.abandoned.get(), name, at.job.get(), step, RENAME_EXCHANGE);
    if (absl::IsUnimplemented(moved)) root->set_cannot_exchange();
    if (!moved.ok()) {
      return absl::IsUnimplemented(moved) || absl::IsNotFound(moved) ? absl::OkStatus() : moved;
    }
    // It stands aside under the other one's name. Readers go by its manifests.
    CAIRN_ASSIGN_OR_RETURN(const Place came, LookAt(at.abandoned.get(), name, at.path));
    if (came.kind == Place::Kind::kForeign) {
      CAIRN_RETURN_IF_ERROR(
          RenameAt(at.abandoned.get(), name, at.job.get(), step, RENAME_EXCHANGE));
      return NotOurs(at, checkpoint.step);
    }
    if (!came.Ours()) return absl::OkStatus();
    const Status named = RenameAt(at.abandoned.get(), name, at.abandoned.get(),
                                  aside_name(came.stored.key), RENAME_NOREPLACE);
    return absl::IsAlreadyExists(named) || absl::IsNotFound(named) ? absl::OkStatus() : named;
  }
  if (standing.Ours()) {
    const std::string out = aside_name(standing.stored.key);
    const Status moved = RenameAt(at.job.get(), step, at.abandoned.get(), out, RENAME_NOREPLACE);
    if (absl::IsAlreadyExists(moved)) {
      return absl::AbortedError(
          absl::StrCat(at.path, "/", kMetaDirectory, "/abandoned/", out, " is in the way"));
    }
    if (!moved.ok() && !absl::IsNotFound(moved)) return moved;
    CAIRN_ASSIGN_OR_RETURN(const Place came, LookAt(at.abandoned.get(), out, at.path));
    if (moved.ok() && came.kind == Place::Kind::kForeign) {
      CAIRN_RETURN_IF_ERROR(
          RenameAt(at.abandoned.get(), out, at.job.get(), step, RENAME_NOREPLACE));
      return NotOurs(at, checkpoint.step);
    }
    CAIRN_RETURN_IF_ERROR(Sync(at.abandoned.get()));
  }
  const Status moved = RenameAt(at.abandoned.get(), name, at.job.get(), step, RENAME_NOREPLACE);
  return absl::IsAlreadyExists(moved) || absl::IsNotFound(moved) ? absl::OkStatus() : moved;
}

// What is published although it was removed meanwhile is taken back. True: so it was.
StatusOr<bool> TakeBackIfForbidden(PosixRoot* root, const JobDirectories& at,
                                   const CheckpointKey& checkpoint) {
  CAIRN_ASSIGN_OR_RETURN(const bool forbidden, IsForbidden(at, checkpoint));
  if (!forbidden) return false;
  CAIRN_RETURN_IF_ERROR(TakeAway(
      root, at, checkpoint, [&](const CheckpointKey& key) { return key == checkpoint; },
      /*deleted=*/false));
  return true;
}

}  // namespace

StatusOr<Published> PublishBelow(PosixRoot* root, const JobDirectories& at,
                                 const CheckpointKey& checkpoint) {
  CAIRN_ASSIGN_OR_RETURN(const bool forbidden, IsForbidden(at, checkpoint));
  if (forbidden) return Published();
  int looks_in_vain = 0;
  bool lacks_parts = false;
  for (int round = 0; round < kMaxPublishRounds; ++round) {
    CAIRN_ASSIGN_OR_RETURN(auto published, FindPublished(at, checkpoint));
    if (published.has_value()) {
      // This daemon put it there, perhaps before a crash, or another one did: it is made durable.
      CAIRN_RETURN_IF_ERROR(Sync(at.abandoned.get()));
      CAIRN_RETURN_IF_ERROR(Sync(at.job.get()));
      // The step may have been removed since the first look, by one who could not see this yet.
      CAIRN_ASSIGN_OR_RETURN(const bool taken_back, TakeBackIfForbidden(root, at, checkpoint));
      if (taken_back) return Published();
      return Published{Location(absl::StrCat(at.path, "/", *published))};
    }
    CAIRN_ASSIGN_OR_RETURN(auto claim, TakeOver(root, at, checkpoint));
    if (!claim.has_value()) {
      CAIRN_ASSIGN_OR_RETURN(claim, ClaimPartial(root, at, checkpoint, &lacks_parts));
    }
    if (claim.has_value()) {
      looks_in_vain = 0;
      CAIRN_ASSIGN_OR_RETURN(const bool brought, Settle(root, at, *claim));
      if (brought) root->counters()->published.fetch_add(1, std::memory_order_relaxed);
    } else if (lacks_parts || ++looks_in_vain == kLooksInVain) {
      CAIRN_ASSIGN_OR_RETURN(const bool replaced, IsReplaced(at, checkpoint));
      CAIRN_ASSIGN_OR_RETURN(const bool removed, IsForbidden(at, checkpoint));
      return Published{std::nullopt, /*lacks_parts=*/!replaced && !removed};
    }
  }
  return absl::AbortedError(absl::StrCat(at.path, ": a step keeps changing"));
}

Status ReinstateBelow(PosixRoot* root, const JobDirectories& at, const CheckpointKey& checkpoint) {
  const auto not_found = [&] {
    return absl::NotFoundError(absl::StrCat(checkpoint.DebugString(), ": is not in storage"));
  };
  int looks_in_vain = 0;
  for (int round = 0; round < kMaxPublishRounds; ++round) {
    CAIRN_ASSIGN_OR_RETURN(const bool taken_back, TakeBackIfForbidden(root, at, checkpoint));
    if (taken_back) return not_found();
    CAIRN_ASSIGN_OR_RETURN(const Place standing,
                           LookAt(at.job.get(), StepDirectory(checkpoint.step), at.path));
    if (standing.Holds(checkpoint) && standing.stored.Complete()) {
      CAIRN_RETURN_IF_ERROR(Sync(at.abandoned.get()));
      return Sync(at.job.get());
    }
    if (standing.kind == Place::Kind::kForeign) return NotOurs(at, checkpoint.step);
    if (standing.Ours() && standing.stored.Complete() &&
        standing.stored.key.attempt == checkpoint.attempt &&
        standing.stored.key.revision > checkpoint.revision) {
      return absl::FailedPreconditionError(absl::StrCat(checkpoint.DebugString(), ": revision ",
                                                        standing.stored.key.revision,
                                                        " has replaced it"));
    }
    CAIRN_ASSIGN_OR_RETURN(const auto claim, TakeOver(root, at, checkpoint));
    if (claim.has_value()) {
      CAIRN_RETURN_IF_ERROR(Settle(root, at, *claim).status());
      continue;
    }
    CAIRN_ASSIGN_OR_RETURN(const auto held, ListHeld(at, at.abandoned.get(), checkpoint));
    const Held* found = nullptr;
    for (const Held& aside : held) {
      if (aside.place.Holds(checkpoint) && aside.place.stored.Complete()) found = &aside;
    }
    if (found != nullptr) {
      const Status whole = CheckStoredFiles(found->place.directory.get(), found->place.stored);
      if (!whole.ok() && StillStands(at.abandoned.get(), found->name, found->place)) return whole;
      if (!whole.ok()) continue;
      CAIRN_RETURN_IF_ERROR(Swap(root, at, checkpoint, found->name, standing));
    } else if (++looks_in_vain == kLooksInVain) {
      return not_found();
    }
  }
  return absl::AbortedError(absl::StrCat(at.path, ": a step keeps changing"));
}

}  // namespace cairn::storage
