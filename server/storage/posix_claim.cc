#include "server/storage/posix_claim.h"

#include <linux/fs.h>

#include <utility>

#include "absl/strings/strip.h"
#include "common/layout.h"
#include "server/storage/files.h"
#include "server/storage/posix_lay_out.h"
#include "server/storage/posix_trash.h"

namespace cairn::storage {
namespace {

// Publishers that meet at one step settle in a few rounds; more means that something else moves
// things about.
constexpr int kMaxRounds = 64;
constexpr int kMaxInVain = 3;

// A claim on its way, and what comes out of places on that way. Each round looks at one claim and
// at its step's place, and then moves once.
class Settling {
 public:
  Settling(PosixRoot* root, const JobDirectories& at, const std::string& claim)
      : root_(root), at_(at), main_(claim), claims_({claim}) {}

  StatusOr<bool> Run() {
    for (int round = 0; round < kMaxRounds; ++round) {
      if (claims_.empty()) {
        CAIRN_RETURN_IF_ERROR(Sync(at_.publish.get()));
        return brought_;
      }
      CAIRN_RETURN_IF_ERROR(Round(claims_.back()));
    }
    return absl::AbortedError(absl::StrCat(at_.path, ": a step keeps changing"));
  }

 private:
  Status Round(const std::string claim) {
    // The claim first: what it holds stays the same while the place is looked at.
    CAIRN_ASSIGN_OR_RETURN(const Place aside, LookAt(at_.publish.get(), claim, at_.path));
    if (aside.kind == Place::Kind::kForeign) return PutBack(claim);
    const StoredCheckpoint& stored = aside.stored;
    if (!aside.Ours() || stored.key.job != SplitPath(at_.path).base) return Done();
    if (IsRemoved(at_, stored.key)) return Throw(claim, stored.key);
    CAIRN_ASSIGN_OR_RETURN(const bool has_parts, HasParts(aside));
    if (has_parts && stored.Complete()) {
      // The publisher that held the claim before may lay it out at the same time, and take the parts away.
      const Status laid_out = LayOut(root_, at_, aside);
      return absl::IsNotFound(laid_out) && ++laid_out_in_vain_ < kMaxInVain ? absl::OkStatus()
                                                                            : laid_out;
    }
    const std::string step = StepDirectory(stored.key.step);
    CAIRN_ASSIGN_OR_RETURN(const Place standing, LookAt(at_.job.get(), step, at_.path));
    if (standing.kind == Place::Kind::kForeign) return NotOurs(at_, stored.key.step);
    CAIRN_ASSIGN_OR_RETURN(const bool repairs, Repairs(aside, standing));
    if (!standing.Ours() || RankOf(stored) > RankOf(standing.stored) || repairs) {
      if (!stored.Complete()) return Done();  // damaged since it was claimed
      return Bring(claim, stored.key, standing);
    }
    // What stands is made durable before the other goes.
    CAIRN_RETURN_IF_ERROR(Sync(at_.job.get()));
    const bool replaced =
        standing.stored.Complete() && standing.stored.key.attempt == stored.key.attempt;
    if (replaced || !stored.Complete()) return Throw(claim, stored.key);
    return SetAside(claim, stored.key);
  }

  // Both are the same checkpoint, and what stands has lost files.
  static StatusOr<bool> Repairs(const Place& aside, const Place& standing) {
    if (!standing.Holds(aside.stored.key) || !standing.stored.Complete()) return false;
    CAIRN_ASSIGN_OR_RETURN(const bool stands, HoldsWhole(standing, aside.stored.key));
    if (stands) return false;
    return HoldsWhole(aside, aside.stored.key);
  }

  Status Done() {
    claims_.pop_back();
    exchanged_.clear();
    return absl::OkStatus();
  }

  Status Throw(const std::string& claim, const CheckpointKey& key) {
    CAIRN_RETURN_IF_ERROR(Done());
    return Discard(root_, at_, at_.publish.get(), claim, key);
  }

  void Brought(const std::string& claim) {
    if (claim != main_) return;
    brought_ = true;
    main_.clear();  // what the claim holds from now on came out of the place
  }

  Status Bring(const std::string& claim, const CheckpointKey& key, const Place& standing) {
    const std::string step = StepDirectory(key.step);
    if (standing.Ours() && !root_->exchanges()) return Displace(step, standing.stored.key);
    const Status moved = RenameAt(at_.publish.get(), claim, at_.job.get(), step,
                                  standing.Ours() ? RENAME_EXCHANGE : RENAME_NOREPLACE);
    if (absl::IsUnimplemented(moved)) {
      root_->set_cannot_exchange();
      return absl::OkStatus();
    }
    // Another publisher was quicker: at the claim or at the place.
    if (absl::IsAlreadyExists(moved) || absl::IsNotFound(moved)) return absl::OkStatus();
    CAIRN_RETURN_IF_ERROR(moved);
    Brought(claim);
    CAIRN_RETURN_IF_ERROR(Sync(at_.job.get()));
    if (standing.Ours()) {
      exchanged_ = step;
    } else {
      CAIRN_RETURN_IF_ERROR(Done());
    }
    return DropOlder(key);
  }

  // Without an exchange what stands goes aside first. The scan and readers look into publish/.
  Status Displace(const std::string& step, const CheckpointKey& standing) {
    CAIRN_ASSIGN_OR_RETURN(const auto out, TakeClaim(root_, at_, at_.job.get(), step, standing));
    if (!out.has_value()) return absl::OkStatus();
    CAIRN_ASSIGN_OR_RETURN(const Place came, LookAt(at_.publish.get(), *out, at_.path));
    if (came.kind == Place::Kind::kForeign) {
      CAIRN_RETURN_IF_ERROR(
          RenameAt(at_.publish.get(), *out, at_.job.get(), step, RENAME_NOREPLACE));
      return NotOurs(at_, standing.step);
    }
    claims_.insert(claims_.begin(), *out);  // after what is to stand there
    return absl::OkStatus();
  }

  // The user put a directory of their own at the step just before the exchange: it goes back.
  Status PutBack(const std::string& claim) {
    CheckpointKey named;
    if (exchanged_.empty() || !ParseCheckpointDirectory(claim, &named)) return Done();
    CAIRN_RETURN_IF_ERROR(
        RenameAt(at_.publish.get(), claim, at_.job.get(), exchanged_, RENAME_EXCHANGE));
    return NotOurs(at_, named.step);
  }

  // Another attempt's checkpoint stands in the place. The newest revision of this one is kept.
  Status SetAside(const std::string& claim, const CheckpointKey& key) {
    CAIRN_ASSIGN_OR_RETURN(const auto held, ListHeld(at_, at_.abandoned.get(), key));
    for (const Held& other : held) {
      const CheckpointKey& there = other.place.stored.key;
      if (other.place.Ours() && other.place.stored.Complete() && there.attempt == key.attempt &&
          there.revision >= key.revision) {
        CAIRN_RETURN_IF_ERROR(Sync(at_.abandoned.get()));
        return Throw(claim, key);
      }
    }
    const std::string name = SplitPath(AbandonedDirectory(key)).base;
    const Status moved =
        RenameAt(at_.publish.get(), claim, at_.abandoned.get(), name, RENAME_NOREPLACE);
    if (absl::IsAlreadyExists(moved)) {
      // Another one under its name: damaged, or left by a Reinstate that did not end.
      CAIRN_ASSIGN_OR_RETURN(const auto out, TakeClaim(root_, at_, at_.abandoned.get(), name, key));
      if (out.has_value()) claims_.insert(claims_.begin(), *out);
      return absl::OkStatus();
    }
    if (absl::IsNotFound(moved)) return absl::OkStatus();
    CAIRN_RETURN_IF_ERROR(moved);
    Brought(claim);
    CAIRN_RETURN_IF_ERROR(Done());
    CAIRN_RETURN_IF_ERROR(Sync(at_.abandoned.get()));
    return DropOlder(key);
  }

  // `key` stands published: older revisions of its attempt that are kept aside go.
  Status DropOlder(const CheckpointKey& key) {
    const auto older = [&](const CheckpointKey& other) {
      return other.attempt == key.attempt && other.revision < key.revision;
    };
    CAIRN_ASSIGN_OR_RETURN(const auto held, ListHeld(at_, at_.abandoned.get(), key));
    for (const Held& other : held) {
      if (!other.place.Ours() || !older(other.place.stored.key)) continue;
      CAIRN_ASSIGN_OR_RETURN(const auto out,
                             TakeClaim(root_, at_, at_.abandoned.get(), other.name, other.named));
      if (!out.has_value()) continue;
      CAIRN_ASSIGN_OR_RETURN(const Place came, LookAt(at_.publish.get(), *out, at_.path));
      if (came.Ours() && older(came.stored.key)) {
        CAIRN_RETURN_IF_ERROR(Discard(root_, at_, at_.publish.get(), *out, came.stored.key));
      } else {
        claims_.insert(claims_.begin(), *out);
      }
    }
    return absl::OkStatus();
  }

  PosixRoot* const root_;
  const JobDirectories& at_;
  std::string main_;                 // the claim that this is about, until it has been brought
  std::vector<std::string> claims_;  // to be settled, the last one first
  std::string exchanged_;            // the step with which the last one was exchanged
  bool brought_ = false;
  int laid_out_in_vain_ = 0;
};

}  // namespace

StatusOr<std::optional<std::string>> TakeClaim(PosixRoot* root, const JobDirectories& at, int from,
                                               const std::string& name,
                                               const CheckpointKey& named) {
  const std::string claim = NumberedName(named, root->UniqueNumber());
  const Status moved = RenameAt(from, name, at.publish.get(), claim, RENAME_NOREPLACE);
  if (absl::IsNotFound(moved)) return std::nullopt;
  CAIRN_RETURN_IF_ERROR(moved);
  CAIRN_RETURN_IF_ERROR(Sync(at.publish.get()));
  if (from != at.publish.get()) CAIRN_RETURN_IF_ERROR(Sync(from));
  return claim;
}

StatusOr<std::vector<Held>> ListHeld(const JobDirectories& at, int directory,
                                     const CheckpointKey& step_of) {
  CAIRN_ASSIGN_OR_RETURN(const auto names, ListDirectory(directory));
  std::vector<Held> held;
  for (const std::string& name : names) {
    CheckpointKey named;
    if (!ParseCheckpointDirectory(name, &named) || named.step != step_of.step) continue;
    named.job = step_of.job;
    CAIRN_ASSIGN_OR_RETURN(Place place, LookAt(directory, name, at.path));
    if (place.Ours() && place.stored.key.job != step_of.job) continue;
    held.push_back({name, named, std::move(place)});
  }
  return held;
}

StatusOr<bool> Settle(PosixRoot* root, const JobDirectories& at, const std::string& claim) {
  return Settling(root, at, claim).Run();
}

StatusOr<std::vector<Place>> WherePublished(const JobDirectories& at,
                                            const CheckpointKey& step_of) {
  std::vector<Place> places;
  CAIRN_ASSIGN_OR_RETURN(places.emplace_back(),
                         LookAt(at.job.get(), StepDirectory(step_of.step), at.path));
  for (const int directory : {at.publish.get(), at.abandoned.get()}) {
    CAIRN_ASSIGN_OR_RETURN(auto held, ListHeld(at, directory, step_of));
    for (Held& one : held) places.push_back(std::move(one.place));
  }
  return places;
}

bool IsNewerRevision(const Place& place, const CheckpointKey& checkpoint) {
  return place.Ours() && place.stored.Complete() &&
         place.stored.key.attempt == checkpoint.attempt &&
         place.stored.key.revision > checkpoint.revision;
}

StatusOr<std::optional<std::string>> FindPublished(const JobDirectories& at,
                                                   const CheckpointKey& checkpoint) {
  const std::string step = StepDirectory(checkpoint.step);
  CAIRN_ASSIGN_OR_RETURN(const Place standing, LookAt(at.job.get(), step, at.path));
  CAIRN_ASSIGN_OR_RETURN(const bool in_place, HoldsWhole(standing, checkpoint));
  if (in_place) return step;
  CAIRN_ASSIGN_OR_RETURN(const auto held, ListHeld(at, at.abandoned.get(), checkpoint));
  for (const Held& aside : held) {
    CAIRN_ASSIGN_OR_RETURN(const bool whole, HoldsWhole(aside.place, checkpoint));
    if (!whole) continue;
    return absl::StrCat(SplitPath(AbandonedDirectory(checkpoint)).directory, "/", aside.name);
  }
  return std::nullopt;
}

Status TakeAway(PosixRoot* root, const JobDirectories& at, const CheckpointKey& step_of,
                const std::function<bool(const CheckpointKey&)>& meant, bool deleted) {
  const auto is_meant = [&](const Place& place) {
    return place.Ours() && place.stored.key.job == step_of.job && meant(place.stored.key);
  };
  const auto take = [&](int from, const std::string& name, const CheckpointKey& named) -> Status {
    CAIRN_ASSIGN_OR_RETURN(const auto claim, TakeClaim(root, at, from, name, named));
    if (!claim.has_value()) return absl::OkStatus();
    CAIRN_ASSIGN_OR_RETURN(const Place came, LookAt(at.publish.get(), *claim, at.path));
    if (is_meant(came)) {
      return Discard(root, at, at.publish.get(), *claim, came.stored.key, deleted);
    }
    if (came.kind == Place::Kind::kForeign && from == at.job.get()) {
      return RenameAt(at.publish.get(), *claim, from, name, RENAME_NOREPLACE);
    }
    // Another one has come to stand there since it was looked at.
    return Settle(root, at, *claim).status();
  };
  const std::string step = StepDirectory(step_of.step);
  const auto take_from_place = [&]() -> Status {
    CAIRN_ASSIGN_OR_RETURN(const Place standing, LookAt(at.job.get(), step, at.path));
    return is_meant(standing) ? take(at.job.get(), step, standing.stored.key) : absl::OkStatus();
  };
  // In the order in which checkpoints move, and once more where a reinstated one comes to stand.
  CAIRN_RETURN_IF_ERROR(take_from_place());
  for (const int directory : {at.publish.get(), at.abandoned.get()}) {
    CAIRN_ASSIGN_OR_RETURN(const auto held, ListHeld(at, directory, step_of));
    for (const Held& one : held) {
      if (is_meant(one.place)) CAIRN_RETURN_IF_ERROR(take(directory, one.name, one.named));
    }
  }
  return take_from_place();
}

Status BringBack(PosixRoot* root, const JobDirectories& at, const std::string& job,
                 const std::function<bool(const CheckpointKey&)>& meant) {
  CAIRN_ASSIGN_OR_RETURN(const auto names, ListDirectory(at.trash.get()));
  Status first;  // one that cannot be read keeps no other one there
  for (const std::string& name : names) {
    absl::string_view numbered = name;
    CheckpointKey named;
    if (!absl::ConsumeSuffix(&numbered, kDeletedSuffix) ||
        !ParseCheckpointDirectory(numbered, &named)) {
      continue;
    }
    named.job = job;
    if (!meant(named)) continue;
    const auto bring = [&]() -> Status {
      CAIRN_ASSIGN_OR_RETURN(const Place place, LookAt(at.trash.get(), name, at.path));
      if (!place.Holds(named) || !place.stored.Complete()) return absl::OkStatus();
      // Removed for good meanwhile, or perhaps so.
      CAIRN_ASSIGN_OR_RETURN(const auto removed, ReadTombstones(at.job.get(), named.step));
      if (removed.Contains(named.attempt)) return absl::OkStatus();
      CAIRN_ASSIGN_OR_RETURN(const auto claim, TakeClaim(root, at, at.trash.get(), name, named));
      return claim.has_value() ? Settle(root, at, *claim).status() : absl::OkStatus();
    };
    first.Update(bring());
  }
  return first;
}

}  // namespace cairn::storage
