// One file: what is derived settles in one place, and each part of it looks at the others.
#include "server/engine/standing.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/engine/evict_class.h"
#include "server/engine/own_parts.h"

namespace cairn::engine {
namespace {

KeepIndex::Seen SeenOf(const Checkpoint& checkpoint, const Checkpoint* newest) {
  KeepIndex::Seen seen;
  seen.persisted = checkpoint.files->persisted;
  if (!seen.persisted) return seen;
  seen.on_line = checkpoint.standing->place == LinePlace::kOnLine;
  seen.abandoned = checkpoint.standing->place == LinePlace::kAbandoned;
  seen.deleting = checkpoint.files->deleting;
  seen.counted = !seen.deleting && (!*checkpoint.pinned || &checkpoint == newest);
  return seen;
}

}  // namespace

std::map<Attempt, Line::Origin> Standing::OriginsOf(const JobAttempts& attempts) {
  std::map<Attempt, Line::Origin> origins;
  for (const auto& [number, attempt] : attempts.begun) {
    origins[number] = {attempt.first_step, attempt.lineage};
  }
  return origins;
}

std::map<Attempt, Lineage> Standing::DecisionsOf(const JobAttempts& attempts) {
  std::map<Attempt, Lineage> decisions;
  for (const auto& [number, decision] : attempts.decisions) decisions[number] = decision.lineage;
  return decisions;
}

// --- settling

void Standing::SettleChanges() {
  if (settling_) return;
  settling_ = true;
  while (!changes_.Empty()) {
    // The line first, for the classes depend on it; settling it may touch more.
    for (size_t i = 0; i < changes_.checkpoints().size(); ++i) {
      SettleLine(changes_.checkpoints()[i]);
    }
    for (Job* job : changes_.TakeJobs()) SettleJob(job);
    const std::vector<Part*> parts = changes_.TakeParts();
    for (Part* part : parts) {
      if (part != nullptr) SettleHeld(part);
    }
    for (Checkpoint* checkpoint : changes_.TakeCheckpoints()) {
      SettleClass(checkpoint);
      SettleSums(checkpoint);
      SettleShown(checkpoint);
    }
    for (Part* part : parts) {
      if (part != nullptr) SettleShown(part);
    }
  }
  settling_ = false;
}

// The checkpoint came to be obtainable, or ceased to be.
void Standing::SettleLine(Checkpoint* checkpoint) {
  const bool obtainable = checkpoint->Obtainable();
  if (obtainable == checkpoint->standing->known_to_line) return;
  checkpoint->standing.Edit().known_to_line = obtainable;
  Job* job = checkpoint->job;
  SettleAttempts(job);
  Line& line = job->standing.Edit().line;
  Affect(job, obtainable ? line.Add(checkpoint->Id()) : line.Remove(checkpoint->Id()));
  job->Touch();
}

void Standing::SettleAttempts(Job* job) {
  if (job->attempts->line_version == job->standing->line_version) return;
  JobStanding& standing = job->standing.Edit();
  standing.line_version = job->attempts->line_version;
  to_record_[job->name].attempts = true;
  Affect(job, standing.line.SetAttempts(OriginsOf(*job->attempts), DecisionsOf(*job->attempts)));
}

void Standing::Affect(Job* job, const Line::Affected& affected) {
  if (affected.all) {
    for (const auto& [id, checkpoint] : job->steps->all) checkpoint->Touch();
  } else if (affected.replaced.has_value()) {
    // With it, its older revisions are abandoned, if another attempt has taken its place.
    for (Checkpoint* other : CheckpointsAt(*job, affected.replaced->step)) other->Touch();
  }
}

// The newest of the line has a class of its own, and it decides about incomplete ones.
void Standing::SettleJob(Job* job) {
  if (reports_) {
    to_report_[job->name];
    touched_(job->name);
  }
  SettleAttempts(job);
  JobStanding& seen = job->standing.Edit();
  const std::optional<CheckpointId> id = seen.line.Newest();
  Checkpoint* newest = id.has_value() ? CheckpointOf(*job, *id) : nullptr;
  const bool only_stored = !job->steps->all.empty() && seen.in_memory == 0 &&
                           job->steps->all.size() == job->files->persisted.size();
  // In a ring a job of which nothing is here, and nobody, is only remembered for others, and counts where it is.
  const bool of_others = !options_.ring.Alone() && seen.in_memory == 0 &&
                         job->files->persisted.empty() && job->sessions->all.empty();
  if (job->owner->owned) jobs_.SetCounts(*job, !only_stored && !of_others);
  const bool has_writers = !IsOver(*job);
  const Attempt attempt = job->attempts->fence();
  const bool moved = newest != seen.newest || attempt != seen.attempt;
  const bool looked_at = job->scan->read >= OverSince(*job);
  if (moved || has_writers != seen.has_writers || looked_at != seen.looked_at) {
    ++version_;  // a finished job's latest may make room now, whatever its class
    if (!has_writers && !looked_at) finished_.insert(job->name);
    if (seen.newest != nullptr) seen.newest->Touch();
    if (newest != nullptr) newest->Touch();
    for (const CheckpointId& other : job->steps->incomplete) CheckpointOf(*job, other)->Touch();
  }
  const bool went_on =
      newest != nullptr && seen.newest != nullptr && Supersedes(newest->Id(), seen.newest->Id());
  if (newest != seen.newest && !went_on) JudgeAllAnew(*job);
  if (moved || *job->owner != seen.owner) waits_to_check_.insert(job->name);
  if (*job->owner != seen.owner) {
    to_record_[job->name].attempts = true;
    seen.keep.SetPolicy(job->owner->policy);
  }
  seen.newest = newest;
  seen.has_writers = has_writers;
  seen.looked_at = looked_at;
  seen.attempt = attempt;
  seen.owner = *job->owner;
  if (!options_.ring.Alone()) SettleRing(job);
}

// In a ring the class of every step depends on the newest: what it supersedes may go, and while the line has none every
// complete step stays. So all are judged anew when another one becomes the newest that is not a later one.
void Standing::JudgeAllAnew(const Job& job) const {
  if (options_.ring.Alone()) return;
  for (const auto& [id, checkpoint] : job.steps->all) checkpoint->Touch();
}

EvictClass Standing::ClassOf(const Checkpoint& checkpoint) const {
  const JobStanding& of_job = *checkpoint.job->standing;
  return engine::ClassOf(checkpoint, {Newest(*checkpoint.job), LeftBehind(checkpoint)},
                         of_job.ring.has_value() ? &*of_job.ring : nullptr);
}

// Keeps the index of what could be evicted, and its sums, in step with one checkpoint. Most of those that
// are touched with all of their job stay where they are.
void Standing::SettleClass(Checkpoint* checkpoint) {
  Job* job = checkpoint->job;
  // Before anything is classified as if the node were alone.
  if (!options_.ring.Alone() && !job->standing->ring.has_value()) SettleRing(job);
  checkpoint->standing.Edit().place = PlaceOf(*checkpoint);
  job->standing.Edit().keep.Put(checkpoint->Id(), SeenOf(*checkpoint, Newest(*job)));
  const Footprint& memory = *checkpoint->memory;
  // One whose parts are all empty costs records and facts.
  const bool has_records =
      checkpoint->content->committed > 0 &&
      static_cast<uint64_t>(checkpoint->content->committed) > checkpoint->manifests->absent;
  const bool gains =
      memory.slab_bytes == 0 ? has_records : memory.slab_bytes != memory.locked_bytes;
  const EvictClass evict_class = gains ? ClassOf(*checkpoint) : EvictClass::kKept;
  Gain gain;
  if (evict_class != EvictClass::kKept) {
    gain.bytes = memory.slab_bytes - memory.locked_bytes;
    gain.mapped_bytes = memory.mapped_bytes;
    gain.slabs = static_cast<int64_t>(memory.slabs.size());
    gain.uncharged_bytes = memory.uncharged_bytes;
    gain.uncharged_slabs = memory.uncharged_slabs;
    gain.record_bytes = checkpoint->manifests->record_bytes;
    gain.journal_bytes = checkpoint->content->journal_kept;
  }
  const CheckpointStanding& before = *checkpoint->standing;
  if (evict_class == before.evict_class && gain == before.gain) return;
  ++version_;
  Unindex(checkpoint);
  if (evict_class == EvictClass::kKept) return;
  CheckpointStanding& standing = checkpoint->standing.Edit();
  standing.evict_class = evict_class;
  standing.gain = gain;
  standing.gain_of = job->owner->uid;
  could_go_.Add(checkpoint);
  could_go_of_[standing.gain_of].Add(checkpoint);
  JobStanding& of_job = job->standing.Edit();
  of_job.evictable.insert({evict_class, checkpoint->Id()});
  of_job.evictable_mapped_bytes += gain.mapped_bytes;
}

void Standing::Unindex(Checkpoint* checkpoint) {
  CheckpointStanding& standing = checkpoint->standing.Edit();
  if (standing.evict_class == EvictClass::kKept) return;
  could_go_.Drop(checkpoint);
  const auto of_user = could_go_of_.find(standing.gain_of);
  of_user->second.Drop(checkpoint);
  if (of_user->second.evictable.empty()) could_go_of_.erase(of_user);
  JobStanding& of_job = checkpoint->job->standing.Edit();
  of_job.evictable.erase({standing.evict_class, checkpoint->Id()});
  of_job.evictable_mapped_bytes -= standing.gain.mapped_bytes;
  standing.evict_class = EvictClass::kKept;
  standing.gain = {};
}

void Standing::CouldGo::Add(Checkpoint* checkpoint) {
  const CheckpointStanding& standing = *checkpoint->standing;
  const std::pair<EvictClass, uint64_t> place = {standing.evict_class, checkpoint->sequence};
  evictable.emplace(place, checkpoint);
  if (standing.gain.slabs == 0) only_records.emplace(place, checkpoint);
  gain += standing.gain;
}

void Standing::CouldGo::Drop(Checkpoint* checkpoint) {
  const CheckpointStanding& standing = *checkpoint->standing;
  evictable.erase({standing.evict_class, checkpoint->sequence});
  only_records.erase({standing.evict_class, checkpoint->sequence});
  gain -= standing.gain;
}

LinePlace Standing::PlaceOf(const Checkpoint& checkpoint) const {
  const Line& line = checkpoint.job->standing->line;
  if (line.Has(checkpoint.Id())) return LinePlace::kOnLine;
  return line.Abandoned(checkpoint.Id()) ? LinePlace::kAbandoned : LinePlace::kBeside;
}

void Standing::SettleSums(Checkpoint* checkpoint) {
  DropSums(checkpoint);
  CheckpointStanding& standing = checkpoint->standing.Edit();
  JobStanding& sums = checkpoint->job->standing.Edit();
  standing.resident_bytes = checkpoint->memory->slab_bytes;
  standing.in_memory = checkpoint->InMemory();
  sums.in_memory += standing.in_memory ? 1 : 0;
  if (sums.in_memory <= 1) checkpoint->job->Touch();  // whether the job counts may have changed
  standing.unprotected =
      !checkpoint->files->persisted && !checkpoint->elsewhere->stored && checkpoint->Obtainable();
  sums.resident_bytes += standing.resident_bytes;
  if (standing.unprotected) sums.unprotected[checkpoint->Id()] = checkpoint->content->bytes;
  const Files& files = *checkpoint->files;
  if (standing.unprotected && files.owes && !files.problem.ok()) {
    sums.troubled.insert(checkpoint->Id());
  }
}

void Standing::DropSums(Checkpoint* checkpoint) {
  CheckpointStanding& standing = checkpoint->standing.Edit();
  JobStanding& sums = checkpoint->job->standing.Edit();
  sums.resident_bytes -= std::exchange(standing.resident_bytes, 0);
  sums.in_memory -= std::exchange(standing.in_memory, false) ? 1 : 0;
  if (std::exchange(standing.unprotected, false)) sums.unprotected.erase(checkpoint->Id());
  sums.troubled.erase(checkpoint->Id());
}

void Standing::SettleShown(Checkpoint* checkpoint) {
  Shown shown;
  shown.committed = checkpoint->content->committed;
  shown.absent = checkpoint->content->absent + checkpoint->manifests->absent;
  shown.broken_objects = checkpoint->content->broken_objects;
  shown.complete = checkpoint->content->complete;
  shown.resident = checkpoint->content->complete && checkpoint->Resident();
  shown.obtainable = checkpoint->Obtainable();
  shown.persisted = checkpoint->files->persisted;
  shown.pinned = *checkpoint->pinned;
  shown.written = checkpoint->files->written;
  shown.elsewhere = *checkpoint->elsewhere;
  const Files& files = *checkpoint->files;
  const bool due = ((files.owes || files.persisting) && !files.parked) || files.unconfirmed;
  CheckpointStanding& standing = checkpoint->standing.Edit();
  const std::string& job = checkpoint->key.job;
  if (shown.committed > 0 || shown.elsewhere.complete) standing.recorded = true;
  const bool told = shown.complete || standing.shown.complete || shown.elsewhere.complete ||
                    standing.shown.elsewhere.complete;
  if (shown != standing.shown && told) to_record_[job].checkpoints.insert(checkpoint->key);
  if (shown.persisted != standing.shown.persisted) to_record_[job].whole[checkpoint->key] = 0;
  if (shown.committed < standing.shown.committed) {
    to_record_[job].left.insert(checkpoint->key);
    to_record_[job].whole[checkpoint->key] = 0;
  }
  if (reports_ && shown.persisted != standing.shown.persisted) {
    to_report_[job].checkpoints.insert(checkpoint->Id());
  }
  if (reports_ && shown.written != standing.shown.written) {
    for (const auto& [writer, part] : checkpoint->content->parts) {
      to_report_[job].parts.insert(part->key);
    }
  }
  if (shown != standing.shown || due != standing.shown_due) waits_to_check_.insert(job);
  standing.shown = shown;
  standing.shown_due = due;
}

void Standing::SettleShown(Part* part) {
  const PartContent& content = *part->content;
  const PartShown shown{.committed = content.committed,
                        .resident = part->manifest->resident && content.absent == 0,
                        .broken = !content.broken.empty()};
  if (shown.committed && shown != *part->shown) {
    to_record_[part->key.checkpoint.job].parts.insert(part->key);
  }
  if (reports_ && shown.committed) {
    to_report_[part->key.checkpoint.job].parts.insert(part->key);
  }
  part->shown.Edit() = shown;
}

void Standing::Forget(Checkpoint* checkpoint) {
  Settle();
  Job* job = checkpoint->job;
  waits_to_check_.insert(job->name);
  // Nothing is left of it by now that could be shown.
  if (checkpoint->standing->recorded) {
    to_record_[job->name].checkpoints.insert(checkpoint->key);
    to_record_[job->name].left.insert(checkpoint->key);
  }
  Unindex(checkpoint);
  DropSums(checkpoint);
  ++version_;
  JobStanding& standing = job->standing.Edit();
  if (checkpoint->standing->known_to_line) {
    checkpoint->standing.Edit().known_to_line = false;
    Affect(job, standing.line.Remove(checkpoint->Id()));
  }
  checkpoint->standing.Edit().place = LinePlace::kBeside;
  standing.keep.Put(checkpoint->Id(), {});
  if (standing.newest == checkpoint) {
    standing.newest = nullptr;
    JudgeAllAnew(*job);
  }
  changes_.Forget(checkpoint);
  job->Touch();
}

// --- the line

LineHead Standing::Head(const Job& job) const {
  Settle();
  return job.standing->line.Head();
}

Checkpoint* Standing::Newest(const Job& job) const {
  Settle();
  const std::optional<CheckpointId> id = job.standing->line.Newest();
  return id.has_value() ? CheckpointOf(job, *id) : nullptr;
}

Checkpoint* Standing::NewestPersisted(const Job& job) const {
  const std::set<CheckpointId>& persisted = job.files->persisted;
  const auto at = std::find_if(persisted.rbegin(), persisted.rend(), [&](const CheckpointId& id) {
    return OnLine(*CheckpointOf(job, id));
  });
  return at == persisted.rend() ? nullptr : CheckpointOf(job, *at);
}

Checkpoint* Standing::At(const Job& job, Step step) const {
  Settle();
  const std::optional<CheckpointId> id = job.standing->line.At(step);
  return id.has_value() ? CheckpointOf(job, *id) : nullptr;
}

Checkpoint* Standing::AtBelow(const Job& job, Step step, Attempt below) const {
  Settle();
  const std::optional<CheckpointId> id = job.standing->line.AtBelow(step, below);
  return id.has_value() ? CheckpointOf(job, *id) : nullptr;
}

Checkpoint* Standing::Next(const Job& job, Step after) const {
  Settle();
  const std::optional<CheckpointId> id = job.standing->line.Next(after);
  return id.has_value() ? CheckpointOf(job, *id) : nullptr;
}

bool Standing::OnLine(const Checkpoint& checkpoint) const {
  Settle();
  return checkpoint.standing->place == LinePlace::kOnLine;
}

bool Standing::Abandoned(const Checkpoint& checkpoint) const {
  Settle();
  return checkpoint.standing->place == LinePlace::kAbandoned;
}

bool Standing::LeftBehind(const Checkpoint& checkpoint) const {
  return Abandoned(checkpoint) && !checkpoint.job->standing->line.Head().decided;
}

Lineage Standing::LineageBelow(const Job& job, Step first_step) const {
  Settle();
  return job.standing->line.LineageBelow(first_step);
}

Lineage Standing::LineageOf(const Checkpoint& checkpoint) const {
  Settle();
  return checkpoint.job->standing->line.LineageOf(checkpoint.Id());
}

Lineage Standing::Resolved(const Job& job, Attempt attempt) const {
  Settle();
  return ResolveLineage(job.standing->line.ToHistory(), attempt);
}

// --- what could be evicted

Checkpoint* Standing::FirstEvictable(EvictClass evict_class, bool soft, const Whose& whose) const {
  Settle();
  const Evictable* evictable = &could_go_.evictable;
  if (whose.uid.has_value()) {
    const auto of_user = could_go_of_.find(*whose.uid);
    if (of_user == could_go_of_.end()) return nullptr;
    evictable = &of_user->second.evictable;
  }
  for (const bool partly : {false, true}) {
    for (auto at = evictable->lower_bound({evict_class, 0});
         at != evictable->end() && at->first.first == evict_class; ++at) {
      Checkpoint* checkpoint = at->second;
      if ((checkpoint->memory->locked_bytes > 0) != partly) continue;
      if (whose.only != nullptr && checkpoint->job != whose.only) continue;
      if (checkpoint->job == whose.except) continue;
      const Gain& gain = checkpoint->standing->gain;
      if (soft ? gain.mapped_bytes == 0 : gain.bytes == gain.mapped_bytes) continue;
      // What is kept for others is on no user's account.
      if (whose.uid.has_value() && gain.bytes == gain.uncharged_bytes) continue;
      return checkpoint;
    }
  }
  return nullptr;
}

Checkpoint* Standing::FirstEvictable() const {
  Settle();
  return could_go_.evictable.empty() ? nullptr : could_go_.evictable.begin()->second;
}

Checkpoint* Standing::FirstEvictable(uint32_t uid) const {
  Settle();
  const auto of_user = could_go_of_.find(uid);
  return of_user == could_go_of_.end() ? nullptr : of_user->second.evictable.begin()->second;
}

const std::set<std::pair<EvictClass, CheckpointId>>& Standing::EvictableOf(const Job& job) const {
  Settle();
  return job.standing->evictable;
}

size_t Standing::only_records() const {
  Settle();
  return could_go_.only_records.size();
}

Checkpoint* Standing::FirstOfOnlyRecords() const {
  Settle();
  return could_go_.only_records.empty() ? nullptr : could_go_.only_records.begin()->second;
}

Checkpoint* Standing::FirstOfOnlyRecords(uint32_t uid) const {
  Settle();
  const auto of_user = could_go_of_.find(uid);
  if (of_user == could_go_of_.end() || of_user->second.only_records.empty()) return nullptr;
  return of_user->second.only_records.begin()->second;
}

Gain Standing::gain() const {
  Settle();
  return could_go_.gain;
}

Gain Standing::gain_of(uint32_t uid) const {
  Settle();
  const auto of_user = could_go_of_.find(uid);
  return of_user == could_go_of_.end() ? Gain() : of_user->second.gain;
}

uint64_t Standing::version() const {
  Settle();
  return version_;
}

std::set<std::string> Standing::TakeWaitsToCheck() {
  Settle();
  return std::exchange(waits_to_check_, {});
}

std::map<std::string, Standing::ToReport> Standing::TakeToReport() {
  Settle();
  return std::exchange(to_report_, {});
}

std::vector<action::Record> Standing::TakeToRecord(size_t most) {
  Settle();
  std::vector<action::Record> records;
  while (!to_record_.empty() && most > 0) {
    auto& [name, of_job] = *to_record_.begin();
    const Job* job = jobs_.Find(name);
    if (job == nullptr) of_job.whole.clear();  // it went, and its checkpoints before it
    action::Record record{name, std::exchange(of_job.attempts, false), {}, {}};
    record.forgotten = std::exchange(of_job.forgotten, false) && job == nullptr;
    const auto take = [&most](auto* from, auto* into) {
      while (!from->empty() && most > 0) {
        into->push_back(std::move(from->extract(from->begin()).value()));
        --most;
      }
    };
    take(&of_job.left, &record.left);
    take(&of_job.parts, &record.parts);
    take(&of_job.checkpoints, &record.checkpoints);
    while (!of_job.whole.empty() && most > 0) {
      const size_t before = record.parts.size();
      TakeWhole(*job, &of_job, most, &record);
      most -= std::min(most, record.parts.size() - before + 1);
    }
    records.push_back(std::move(record));
    if (of_job.Empty()) to_record_.erase(to_record_.begin());
  }
  return records;
}

void Standing::TakeWhole(const Job& job, ToRecord* from, size_t most, action::Record* record) {
  const auto whole = from->whole.begin();
  const CheckpointKey& key = whole->first;
  const Checkpoint* checkpoint = CheckpointOf(job, {key.step, key.attempt, key.revision});
  if (checkpoint != nullptr) {
    const auto& parts = checkpoint->content->parts;
    for (auto at = parts.lower_bound(whole->second); at != parts.end(); ++at) {
      if (most-- == 0) {
        whole->second = at->first;
        return;
      }
      record->parts.push_back(at->second->key);
    }
  }
  from->whole.erase(whole);
}

// --- what the members of a ring say

void Standing::PassTime() {
  while (!stale_at_.empty() && stale_at_.begin()->first < out_.now()) {
    Job* job = jobs_.Find(stale_at_.begin()->second);
    stale_at_.erase(stale_at_.begin());
    if (job != nullptr) job->Touch();
  }
}

void Standing::SettleRing(Job* job) {
  JobStanding& standing = job->standing.Edit();
  const RingSays before = standing.ring.value_or(RingSays());
  standing.ring = HeardOf(job);
  if (*standing.ring != before) TouchHeld(job, before, *standing.ring);
}

RingSays Standing::HeardOf(Job* job) {
  const JobVerdictHeard& verdict = *job->verdict;
  JobStanding& standing = job->standing.Edit();
  const MonotonicNanos stale_at = verdict.heard ? verdict.at + kVerdictFresh : 0;
  RingSays says;
  says.fresh = stale_at >= out_.now() && verdict.heard;
  says.final = verdict.final;
  says.protect = verdict.protect;
  says.target = verdict.target;
  says.safe = verdict.safe;
  says.asked = verdict.asked;
  if (!verdict.heard) {
    const int of_policy = job->owner->policy.replicas;
    says.asked = of_policy >= 0 ? of_policy : options_.ring.replicas;
  }
  if (standing.stale_at != stale_at || !says.fresh) {
    stale_at_.erase({standing.stale_at, job->name});
    standing.stale_at = says.fresh ? stale_at : 0;
    if (says.fresh) stale_at_.insert({stale_at, job->name});
  }
  const Attempt head = standing.line.Head().number;
  says.left = standing.ring.has_value() ? standing.ring->left : std::nullopt;
  if (std::exchange(standing.left_by, head) != head) says.left = NewestLeft(*job, says.asked);
  return says;
}

// Once for each time that the head moves, which touches all of the job anyway.
std::optional<CheckpointId> Standing::NewestLeft(const Job& job, int asked) const {
  std::optional<CheckpointId> newest;
  for (const auto& [id, checkpoint] : job.steps->all) {
    if (!job.standing->line.Abandoned(id) || !checkpoint->InMemory()) continue;
    if (!IsProtected(*checkpoint, asked)) continue;
    if (!newest.has_value() || Supersedes(id, *newest)) newest = id;
  }
  return newest;
}

// Those whose class may have changed. While the line goes on these are what became superseded, the target,
// and what is complete nowhere; it is not all that the job has.
void Standing::TouchHeld(Job* job, const RingSays& before, const RingSays& now) {
  const auto& all = job->steps->all;
  const bool goes_on = before.protect.has_value() && now.protect.has_value() &&
                       before.protect->attempt == now.protect->attempt &&
                       before.protect->step <= now.protect->step;
  const bool any = before.asked != now.asked || (before.protect != now.protect && !goes_on);
  if (any || before.fresh != now.fresh || before.final != now.final) {
    for (const auto& [id, checkpoint] : all) {
      if (any || checkpoint->standing->held.replicas > 0 || *checkpoint->copied != Copied::kNo) {
        checkpoint->Touch();
      }
    }
  }
  for (const auto& id : {before.target, now.target, before.left, now.left}) {
    if (id.has_value() && all.contains(*id)) all.at(*id)->Touch();
  }
  if (before.safe != now.safe) {
    for (const Step step : {before.safe.second, now.safe.second}) {
      for (Checkpoint* checkpoint : CheckpointsAt(*job, step)) checkpoint->Touch();
    }
  }
  if (any || before.protect == now.protect) return;
  for (const CheckpointId& id : job->steps->incomplete) CheckpointOf(*job, id)->Touch();
  for (auto at = all.lower_bound({before.protect->step, 0, 0});
       at != all.end() && at->first.step <= now.protect->step; ++at) {
    at->second->Touch();
  }
}

void Standing::SettleHeld(Part* part) {
  std::optional<PartRole> held;
  if (HeldInMemory(*part)) held = part->source->role;
  if (held == *part->held) return;
  HeldParts& counts = part->checkpoint->standing.Edit().held;
  if (part->held->has_value()) --counts.Of(**part->held);
  if (held.has_value()) ++counts.Of(*held);
  part->held.Edit() = held;
}

void Standing::Forget(Part* part) {
  changes_.Forget(part);
  if (reports_ && part->content->committed) {
    to_report_[part->key.checkpoint.job].parts.insert(part->key);
  }
  if (part->held->has_value()) --part->checkpoint->standing.Edit().held.Of(**part->held);
}

}  // namespace cairn::engine
