// One file: what is wanted, what is held and who stalls judge the same lists.
#include "server/engine/offers.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/engine/evict_class.h"
#include "server/engine/needs.h"

namespace cairn::engine {
namespace {

bool IsRefusal(const peer::Have& have) {
  return have.state == peer::HaveState::kRefused || have.state == peer::HaveState::kNoRoom;
}

// All its writers are this node's.
bool IsWholeHere(const Checkpoint& checkpoint) {
  const auto& parts = checkpoint.content->parts;
  return checkpoint.content->complete &&
         std::all_of(parts.begin(), parts.end(),
                     [](const auto& part) { return part.second->source->role == PartRole::kOwn; });
}

CheckpointKey KeyOf(const Job& job, const CheckpointId& id) {
  return {job.name, id.step, id.attempt, id.revision};
}

bool IsAmong(Rank rank, const std::vector<Rank>& ranks) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

}  // namespace

Offers::Offers(Outbox* out, const Members* members, Jobs* jobs, Parts* parts, Standing* standing)
    : out_(*out), members_(*members), jobs_(*jobs), parts_(*parts), standing_(*standing) {}

// --- what is wanted

// The members hold what one had that is gone; the first of its backups that lives answers for it meanwhile.
bool Offers::ActsFor(const Part& part) const {
  const PartSource& source = *part.source;
  if (source.role != PartRole::kReplica || !members_.Gone(source.owner)) return false;
  const std::vector<Rank> backups = members_.BackupsOf(source.owner, members_.Lost(), 1);
  return !backups.empty() && backups.front() == members_.self();
}

// Also where that backup has nothing of it, as one that came back empty: each member that has the part sees to it that it
// has copies, and is written.
bool Offers::Answers(const Part& part) const {
  if (part.source->role == PartRole::kOwn || ActsFor(part)) return true;
  const bool lacks = part.checkpoint->elsewhere->replicas < part.checkpoint->job->verdict->asked;
  return lacks && part.source->role == PartRole::kReplica && members_.Gone(part.source->owner);
}

void Offers::AddParts(const Checkpoint& checkpoint, bool target, Wanted* wanted) const {
  wanted->checkpoints.push_back(checkpoint.key);
  for (const auto& [writer, part] : checkpoint.content->parts) {
    if (!Answers(*part) || !Fetches::Holds(*part)) continue;
    peer::Want want;
    want.part = part->key;
    want.digest = part->content->digest;
    want.manifest_bytes = part->manifest->bytes;
    for (const auto& entry : part->content->table->entries) {
      want.bytes += RoundUpToPages(entry->length);
    }
    want.world_size = checkpoint.content->world_size;
    want.owner_uid = checkpoint.job->owner->uid;
    want.owner_gid = checkpoint.job->owner->gid;
    want.target = target;
    if (part->source->role == PartRole::kReplica) want.owner = part->source->owner;
    wanted->wants.push_back(std::move(want));
  }
}

bool Offers::IsHeld(Rank backup, const Part& part) const {
  const auto at = backups_.find(backup);
  if (at == backups_.end()) return false;
  const auto have = at->second.haves.find(part.key);
  return have != at->second.haves.end() && have->second.state == peer::HaveState::kHeld &&
         have->second.digest == part.content->digest;
}

bool Offers::HeldEverywhere(const Checkpoint& checkpoint, int replicas) const {
  const std::vector<Rank> backups = Backups(checkpoint.key.job, replicas);
  for (const auto& [writer, part] : checkpoint.content->parts) {
    const bool held = std::all_of(backups.begin(), backups.end(),
                                  [&, &of = *part](Rank rank) { return IsHeld(rank, of); });
    if (Answers(*part) && !held) return false;
  }
  return true;
}

void Offers::Given(Rank reader, const PartKey& key) {
  Backup& backup = backups_[reader];
  backup.tried |= std::any_of(backup.told.begin(), backup.told.end(),
                              [&](const peer::Want& want) { return want.part == key; });
  const Part* part = parts_.Find(key);
  if (part == nullptr || part->source->role != PartRole::kOwn) return;
  const std::string& job = key.checkpoint.job;
  given_[job][part->checkpoint->Id()] = out_.now();
  Changed(job);
}

// The newest of those all of whose parts here the backups say to have.
std::optional<CheckpointId> Offers::NewestSecured(const Job& job, int replicas) const {
  if (replicas == 0) return std::nullopt;
  std::set<CheckpointId> of_backups;
  const PartKey first{{job.name, std::numeric_limits<Step>::min(), 0, 0}, 0};
  for (const Rank rank : have_something_) {
    const auto& haves = backups_.at(rank).haves;
    for (auto at = haves.lower_bound(first);
         at != haves.end() && at->first.checkpoint.job == job.name; ++at) {
      const CheckpointKey& key = at->first.checkpoint;
      of_backups.insert({key.step, key.attempt, key.revision});
    }
  }
  std::optional<CheckpointId> newest;
  for (const CheckpointId& id : of_backups) {
    const Checkpoint* checkpoint = CheckpointOf(job, id);
    if (checkpoint == nullptr || (newest.has_value() && Supersedes(*newest, id))) continue;
    const auto& parts = checkpoint->content->parts;
    const bool own = std::any_of(parts.begin(), parts.end(), [](const auto& part) {
      return part.second->source->role == PartRole::kOwn && Fetches::Holds(*part.second);
    });
    if (own && HeldEverywhere(*checkpoint, replicas)) newest = id;
  }
  return newest;
}

// Marks what a home may have called protected, to somebody else: the newest that the backups are known to have,
// and what is newer and was given to members, for what they say of it may be lost on its way. Of what was given just
// now even a home that has heard all members lately may not have heard yet.
void Offers::NoteCopied(Job* job, int replicas) {
  const std::optional<CheckpointId> newest = NewestSecured(*job, replicas);
  std::map<CheckpointId, Copied> copied;
  if (newest.has_value()) copied[*newest] = Copied::kMaybe;
  if (const auto given = given_.find(job->name); given != given_.end()) {
    // Of what is secured here the parts of other nodes may be nowhere: only the whole takes an older one's place.
    const std::optional<CheckpointId>& protect = job->verdict->protect;
    const bool whole = newest.has_value() && IsWholeHere(*CheckpointOf(*job, *newest));
    std::erase_if(given->second, [&](const auto& of) {
      return CheckpointOf(*job, of.first) == nullptr || (whole && Supersedes(*newest, of.first)) ||
             (protect.has_value() && Supersedes(*protect, of.first));
    });
    for (const auto& [id, at] : given->second) {
      if (replicas == 0) break;
      copied[id] = out_.now() - at < kNotHeardOf ? Copied::kJustGiven : Copied::kMaybe;
    }
    if (given->second.empty()) given_.erase(given);
  }
  std::map<CheckpointId, Copied>& before = copied_[job->name];
  const auto mark = [job](const CheckpointId& id, Copied as) {
    Checkpoint* checkpoint = CheckpointOf(*job, id);
    if (checkpoint != nullptr && *checkpoint->copied != as) checkpoint->copied.Edit() = as;
  };
  for (const auto& [id, was] : before) {
    if (!copied.contains(id)) mark(id, Copied::kNo);
  }
  for (const auto& [id, is] : copied) mark(id, is);
  before = std::move(copied);
  if (before.empty()) copied_.erase(job->name);
}

// The target first, then what protects, then what comes next.
Offers::Wanted Offers::WantedOf(const Job& job) const {
  Wanted wanted;
  wanted.replicas = members_.ReplicasOf(job.owner->policy);
  if (wanted.replicas == 0) return wanted;
  const JobVerdictHeard& verdict = *job.verdict;
  const auto find = [&](const std::optional<CheckpointId>& id) {
    return id.has_value() ? CheckpointOf(job, *id) : nullptr;
  };
  const Checkpoint* target = find(verdict.target);
  const Checkpoint* protect = find(verdict.protect);
  if (target != nullptr) AddParts(*target, /*target=*/true, &wanted);
  if (protect != nullptr && protect != target) {
    AddParts(*protect, /*target=*/false, &wanted);
  }
  // A new step waits for the target, so that all members secure the same one.
  if (target != nullptr && !HeldEverywhere(*target, wanted.replicas)) return wanted;
  for (auto at = job.steps->all.rbegin(); at != job.steps->all.rend(); ++at) {
    const Checkpoint& checkpoint = *at->second;
    if (checkpoint.key.attempt < job.attempts->fence() || standing_.Abandoned(checkpoint)) continue;
    const auto& parts = checkpoint.content->parts;
    const bool own = std::any_of(parts.begin(), parts.end(), [this](const auto& part) {
      return Answers(*part.second) && Fetches::Holds(*part.second);
    });
    if (!own) continue;
    if (&checkpoint != target && &checkpoint != protect) {
      AddParts(checkpoint, /*target=*/false, &wanted);
    }
    break;
  }
  return wanted;
}

std::optional<CheckpointId> Offers::WorkingOn(const Job& job) const {
  const auto wanted = jobs_wanted_.find(job.name);
  if (wanted == jobs_wanted_.end()) return std::nullopt;
  std::optional<CheckpointId> lowest;
  for (const CheckpointKey& key : wanted->second.checkpoints) {
    const Checkpoint* checkpoint = parts_.Find(key);
    // What a backup refuses is worked on by nobody: no save waits for it.
    if (checkpoint == nullptr || HeldEverywhere(*checkpoint, wanted->second.replicas) ||
        !RefusalOf(*checkpoint, wanted->second.replicas).empty()) {
      continue;
    }
    if (!lowest.has_value() || checkpoint->Id() < *lowest) lowest = checkpoint->Id();
  }
  return lowest;
}

// What was given a moment ago is Copied::kJustGiven until it is looked at again.
void Offers::Age() {
  for (const auto& [job, given] : given_) {
    const bool young = std::any_of(given.begin(), given.end(), [this](const auto& of) {
      return of.second > out_.now() - kNotHeardOf - 2 * kNanosPerSecond;
    });
    if (young) due_.insert(job);
  }
}

// --- backups that read nothing

std::vector<Rank> Offers::Backups(const std::string& job, int replicas) const {
  std::vector<Rank> natural = members_.Backups(replicas);
  const auto refused = refused_.find(job);
  if (natural.empty() || (stalled_.empty() && refused == refused_.end())) return natural;
  std::set<Rank> passed_over = members_.Lost();
  passed_over.insert(stalled_.begin(), stalled_.end());
  if (refused != refused_.end()) {
    for (const auto& [rank, at] : refused->second) passed_over.insert(rank);
  }
  std::vector<Rank> backups = members_.BackupsOf(members_.self(), passed_over, replicas);
  // Where nobody takes its place, it stays.
  for (const Rank rank : natural) {
    if (backups.size() == natural.size()) break;
    if (passed_over.contains(rank)) backups.push_back(rank);
  }
  return backups;
}

std::vector<Rank> Offers::ToldTo(const std::string& job, int replicas) const {
  std::vector<Rank> told = Backups(job, replicas);
  for (const Rank rank : members_.Backups(replicas)) {
    if (!IsAmong(rank, told)) told.push_back(rank);
  }
  return told;
}

bool Offers::Stalled(Rank backup) const {
  const auto at = backups_.find(backup);
  return at != backups_.end() && at->second.stalled;
}

// A refusal is no stall: it says why, and nobody waits for it. Nor is one whose turn has not come: it has asked for
// nothing yet.
void Offers::LookForStalls() {
  for (auto& [rank, backup] : backups_) {
    // What it reads again after a failure is no advance.
    std::map<PartKey, uint64_t> most;
    bool more = false, advanced = false;
    for (const peer::Want& want : backup.told) {
      const auto have = backup.haves.find(want.part);
      const bool here = have != backup.haves.end() && have->second.digest == want.digest;
      const bool held = here && have->second.state == peer::HaveState::kHeld;
      more = more || (!held && !(here && IsRefusal(have->second)));
      const auto before = backup.most.find(want.part);
      const uint64_t had = before == backup.most.end() ? 0 : before->second;
      uint64_t has = held ? want.bytes + 1 : 0;  // a part of no bytes counts, too
      if (here && have->second.state == peer::HaveState::kUnderWay) has = have->second.done_bytes;
      advanced = advanced || has > had;
      most[want.part] = std::max(had, has);
    }
    backup.most = std::move(most);
    if (!more || advanced || !members_.Up(rank)) {
      backup.came_at = out_.now();
      backup.tried = false;
      SetStalled(rank, &backup, false);
    } else if ((backup.tried || PassesOver(backup)) &&
               out_.now() - backup.came_at >= members_.lost_after()) {
      SetStalled(rank, &backup, true);
    }
  }
}

// Each second it is told anew, under the next version, so one that takes its lists says another version each second.
bool Offers::PassesOver(const Backup& backup) const {
  return backup.took != backup.version && out_.now() - backup.took_at >= members_.lost_after();
}

void Offers::TimerWasLate() {
  for (auto& [rank, backup] : backups_) backup.came_at = backup.took_at = out_.now();
}

void Offers::TellAll() {
  for (const auto& [rank, backup] : backups_) due_members_.insert(rank);
}

void Offers::SetStalled(Rank rank, Backup* backup, bool stalled) {
  if (std::exchange(backup->stalled, stalled) == stalled) return;
  if (stalled) {
    stalled_.insert(rank);
  } else {
    stalled_.erase(rank);
  }
  out_.Log(Severity::kWarning,
           stalled ? absl::StrCat("ring: rank ", rank, " answers, and for ",
                                  members_.lost_after() / kNanosPerSecond,
                                  " s has read nothing of what it is to keep: the next member "
                                  "keeps it, too")
                   : absl::StrCat("ring: rank ", rank, " reads again"));
  TellAll();
  for (const auto& [name, wanted] : jobs_wanted_) due_.insert(name);
}

void Offers::Run(bool again) {
  if (again) {
    Age();
    LookForStalls();
    ForgetRefusals(
        [this](Rank, MonotonicNanos at) { return out_.now() - at >= members_.lost_after(); });
  }
  for (const std::string& name : std::exchange(due_, {})) {
    Job* job = jobs_.Find(name);
    Wanted wanted = job == nullptr ? Wanted() : WantedOf(*job);
    if (job == nullptr) {
      copied_.erase(name);
      given_.erase(name);
    } else {
      NoteCopied(job, wanted.replicas);
    }
    Wanted& before = jobs_wanted_[name];
    if (before.wants != wanted.wants || before.replicas != wanted.replicas) {
      TellAll();
    }
    before = std::move(wanted);
    if (before.wants.empty()) jobs_wanted_.erase(name);
  }
  Tell(again);
}

// Every member is told, with an empty list where it is no backup: it then knows that nothing new comes. Members are
// many, and this is asked with each event: only those that are due are looked at.
void Offers::Tell(bool again) {
  std::set<Rank> due = std::exchange(due_members_, {});
  if (again) due = members_.all();
  if (due.empty()) return;
  // By the replicas asked for, and by the job where a member has refused it.
  std::map<std::pair<int, std::string>, std::vector<Rank>> told_to;
  const auto is_told = [&](Rank rank, const std::string& job, int replicas) {
    const auto [at, fresh] = told_to.try_emplace({replicas, refused_.contains(job) ? job : ""});
    if (fresh) at->second = ToldTo(job, replicas);
    return IsAmong(rank, at->second);
  };
  for (const Rank rank : due) {
    if (rank == members_.self() || !members_.Up(rank)) continue;  // who comes is due again
    Backup& backup = backups_[rank];
    // What is long is not said with each event.
    if (!again && backup.told.size() > peer::kLongList &&
        out_.now() - backup.told_at < peer::kLongListEvery) {
      due_members_.insert(rank);
      continue;
    }
    backup.told_at = out_.now();
    peer::WantList list;
    for (const auto& [name, wanted] : jobs_wanted_) {
      if (!is_told(rank, name, wanted.replicas)) continue;
      list.wants.insert(list.wants.end(), wanted.wants.begin(), wanted.wants.end());
    }
    std::stable_partition(list.wants.begin(), list.wants.end(),
                          [](const peer::Want& want) { return want.target; });
    if (backup.told.empty()) backup.came_at = out_.now();
    if (list.wants == backup.told && backup.version != 0 && !again) continue;
    backup.told = list.wants;
    list.version = ++backup.version;
    list.epoch = members_.epoch();
    out_.Do(action::Tell{rank, std::move(list)});
  }
}

// --- what is held

std::map<PartKey, peer::Have> Offers::SetHaves(Rank rank, std::map<PartKey, peer::Have> haves) {
  if (haves.empty()) {
    have_something_.erase(rank);
  } else {
    have_something_.insert(rank);
  }
  return std::exchange(backups_[rank].haves, std::move(haves));
}

void Offers::On(const MemberId& from, const peer::HaveList& list) {
  Backup& backup = backups_[from.rank];
  peer::ReleaseList releases;
  releases.haves_version = list.version;
  std::set<std::string> jobs, refusals;
  std::map<PartKey, peer::Have> haves;
  std::map<PartKey, std::string> told;  // digests
  for (const peer::Want& want : backup.told) told[want.part] = want.digest;
  for (const peer::Have& have : list.haves) {
    const auto before = backup.haves.find(have.part);
    if (before == backup.haves.end() || before->second != have) {
      jobs.insert(have.part.checkpoint.job);
    }
    const bool refused = before != backup.haves.end() && IsRefusal(before->second);
    if (refused != IsRefusal(have)) refusals.insert(have.part.checkpoint.job);
    if (IsRefusal(have)) Refused(from.rank, have.part.checkpoint.job);
    haves[have.part] = have;
    if (have.state != peer::HaveState::kHeld) continue;
    const auto want = told.find(have.part);
    if (want != told.end() && want->second == have.digest) continue;
    std::optional<peer::Release> release = FateOf(have);
    if (!release.has_value() && IsSurplus(from.rank, have)) {
      release = {have.part, have.digest, peer::Fate::kSurplus, {}};
    }
    if (release.has_value()) releases.releases.push_back(*std::move(release));
  }
  for (const auto& [part, have] : backup.haves) {
    if (haves.contains(part)) continue;
    jobs.insert(part.checkpoint.job);
    if (IsRefusal(have)) refusals.insert(part.checkpoint.job);
  }
  SetHaves(from.rank, std::move(haves));
  backup.heard_at = out_.now();
  if (std::exchange(backup.took, list.wants_version) != list.wants_version) {
    backup.took_at = out_.now();
  }
  for (const std::string& name : jobs) {
    Changed(name);
    Job* job = jobs_.Find(name);
    if (job != nullptr && refusals.contains(name)) refusals_changed_(job);
    if (job == nullptr || !job->verdict->heard) unknown_(name);
  }
  if (!releases.releases.empty()) out_.Do(action::Tell{from.rank, std::move(releases)});
  MakeRoomAt(from.rank);
}

void Offers::Refused(Rank rank, const std::string& job) {
  if (!refused_[job].insert_or_assign(rank, out_.now()).second) return;
  Changed(job);
  TellAll();
}

void Offers::ForgetRefusals(const std::function<bool(Rank, MonotonicNanos)>& which) {
  for (auto of_job = refused_.begin(); of_job != refused_.end();) {
    const size_t forgotten =
        std::erase_if(of_job->second, [&](const auto& of) { return which(of.first, of.second); });
    if (forgotten > 0) {
      Changed(of_job->first);
      TellAll();
    }
    of_job = of_job->second.empty() ? refused_.erase(of_job) : std::next(of_job);
  }
}

// One for each list, where all that may go would be enough, and no other member takes what is refused.
void Offers::MakeRoomAt(Rank rank) {
  uint64_t lacking = 0, gain = 0;
  const auto& haves = backups_[rank].haves;
  for (const auto& [part, have] : haves) {
    if (have.state != peer::HaveState::kNoRoom) continue;
    const auto wanted = jobs_wanted_.find(part.checkpoint.job);
    if (wanted == jobs_wanted_.end()) continue;
    if (!IsAmong(rank, Backups(wanted->first, wanted->second.replicas))) continue;
    lacking = std::max(lacking, have.done_bytes);
  }
  if (lacking == 0) return;
  judge_finished_();
  standing_.Settle();
  Checkpoint* oldest = nullptr;
  for (const auto& [key, have] : haves) {
    const Part* part = parts_.Find(key);
    if (have.state != peer::HaveState::kHeld || part == nullptr) continue;
    Checkpoint* checkpoint = part->checkpoint;
    if (checkpoint->standing->evict_class != EvictClass::kLastOfFinished) continue;
    gain += 2 * part->content->bytes;  // it sets two steps of each job aside
    if (oldest == nullptr || checkpoint->sequence < oldest->sequence) oldest = checkpoint;
  }
  if (gain >= lacking) let_go_(oldest);
}

std::optional<peer::Release> Offers::FateOf(const peer::Have& have) const {
  const CheckpointKey& key = have.part.checkpoint;
  const Job* job = jobs_.Find(key.job);
  if (job == nullptr) return std::nullopt;
  peer::Release release{have.part, have.digest, peer::Fate::kRemoved, {}};
  if (!Retention::CheckRemoved(*job, key.step, key.attempt).ok()) return release;
  const JobVerdictHeard& verdict = *job->verdict;
  const CheckpointId id{key.step, key.attempt, key.revision};
  const Checkpoint* checkpoint = CheckpointOf(*job, id);
  const std::optional<peer::Fate> last = FateOfLast(*job, checkpoint);
  if (last == peer::Fate::kGivenUp) {
    release.fate = *last;
    return release;
  }
  if (!verdict.protect.has_value()) return std::nullopt;
  const CheckpointId& protect = *verdict.protect;
  release.by = KeyOf(*job, protect);
  if (id == protect && last.has_value()) {
    release.fate = *last;  // superseded by its files
    return release;
  }
  if (id == protect || verdict.target == id) return std::nullopt;
  if (checkpoint != nullptr && standing_.LeftBehind(*checkpoint)) {
    // Until the life that left it has something protected of its own, it may be needed again.
    if (protect.attempt <= id.attempt) return std::nullopt;
    release.fate = peer::Fate::kAbandoned;
    return release;
  }
  // An older step of the line, or an older revision of what protects.
  if (id < protect && protect.attempt >= id.attempt) {
    release.fate = peer::Fate::kSuperseded;
    return release;
  }
  return std::nullopt;
}

bool Offers::IsSurplus(Rank holder, const peer::Have& have) const {
  const Part* part = parts_.Find(have.part);
  if (part == nullptr || !Answers(*part) || !Fetches::Holds(*part)) return false;
  const int replicas = members_.ReplicasOf(part->checkpoint->job->owner->policy);
  const std::string& job = have.part.checkpoint.job;
  if (replicas == 0 || IsAmong(holder, ToldTo(job, replicas))) return false;
  const std::vector<Rank> backups = Backups(job, replicas);
  return backups.size() >= static_cast<size_t>(replicas) &&
         std::all_of(backups.begin(), backups.end(), [&](Rank rank) {
           const auto backup = backups_.find(rank);
           return backup != backups_.end() &&
                  out_.now() - backup->second.heard_at <= peer::kListFresh && members_.Up(rank) &&
                  IsHeld(rank, *part);
         });
}

// The job is over, its last step is in storage or was kept long enough, and this node has given up its own part of it.
std::optional<peer::Fate> Offers::FateOfLast(const Job& job, const Checkpoint* checkpoint) const {
  if (checkpoint == nullptr) return std::nullopt;
  const Files& files = *checkpoint->files;
  const bool stored = checkpoint->elsewhere->stored && files.persisted && !files.unconfirmed;
  const std::optional<RingSays>& ring = job.standing->ring;
  const bool kept_long_enough = KeptLongEnough(*checkpoint) && !*checkpoint->pinned &&
                                ring.has_value() && ring->fresh && ring->final;
  if (!stored && !kept_long_enough) return std::nullopt;
  const bool over = job.sessions->all.empty() && job.verdict->saving.empty();
  const auto& parts = checkpoint->content->parts;
  const bool gone = std::none_of(parts.begin(), parts.end(), [](const auto& part) {
    return part.second->source->role == PartRole::kOwn && Fetches::Holds(*part.second);
  });
  if (!over || !gone || restoring_(checkpoint->key)) return std::nullopt;
  return stored ? peer::Fate::kSuperseded : peer::Fate::kGivenUp;
}

uint64_t Offers::HeldBy(Rank backup) const {
  const auto at = backups_.find(backup);
  if (at == backups_.end()) return 0;
  uint64_t bytes = 0;
  for (const auto& [key, have] : at->second.haves) {
    const Part* part = parts_.Find(key);
    if (have.state == peer::HaveState::kHeld && part != nullptr) bytes += part->content->bytes;
  }
  return bytes;
}

// A member that only stands in, and lacks memory to begin with, is not waited for: it was sized for others.
std::string Offers::RefusalOf(const Checkpoint& checkpoint, int replicas) const {
  const std::vector<Rank> natural = members_.Backups(replicas);
  for (const Rank rank : Backups(checkpoint.key.job, replicas)) {
    const auto backup = backups_.find(rank);
    if (backup == backups_.end() || !members_.Up(rank)) continue;
    for (const auto& [writer, part] : checkpoint.content->parts) {
      const auto have = backup->second.haves.find(part->key);
      if (have == backup->second.haves.end()) continue;
      const bool lacks =
          !IsAmong(rank, natural) && !backup->second.tried && !have->second.why.empty();
      if (!IsRefusal(have->second) && !lacks) continue;
      return absl::StrCat("rank ", rank, ": ", have->second.why);
    }
  }
  return "";
}

std::string Offers::Refusal(const std::string& job) const {
  const auto wanted = jobs_wanted_.find(job);
  if (wanted == jobs_wanted_.end()) return "";
  for (const CheckpointKey& key : wanted->second.checkpoints) {
    const Checkpoint* checkpoint = parts_.Find(key);
    if (checkpoint == nullptr) continue;
    std::string refusal = RefusalOf(*checkpoint, wanted->second.replicas);
    if (!refusal.empty()) return refusal;
  }
  return "";
}

// --- members

void Offers::MemberCame(Rank rank) {
  Backup& backup = backups_[rank];
  due_members_.insert(rank);
  backup.came_at = backup.took_at = out_.now();
  backup.tried = false;
  backup.most.clear();
  SetStalled(rank, &backup, false);
  backup.told.clear();
  ForgetRefusals([rank](Rank of, MonotonicNanos) { return of == rank; });
  // Another life may hold nothing of it; its list will say.
  for (const auto& [part, have] : SetHaves(rank, {})) Changed(part.checkpoint.job);
  for (const auto& [name, wanted] : jobs_wanted_) Changed(name);
}

void Offers::MemberLost(Rank rank) {
  (void)rank;
  TellAll();  // others are the backups now
  for (const auto& [name, wanted] : jobs_wanted_) Changed(name);
}

}  // namespace cairn::engine
