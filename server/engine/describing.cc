#include "server/engine/describing.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/engine/own_parts.h"

namespace cairn::engine {
namespace {

// Why something of it cannot be had, in words; empty when there is nothing to say.
const std::string& WhyOf(const Checkpoint& checkpoint) {
  return checkpoint.content->why.empty() ? checkpoint.verdict->why : checkpoint.content->why;
}

const std::string& DigestOf(const Checkpoint& checkpoint) {
  return checkpoint.content->complete ? checkpoint.content->digest : checkpoint.elsewhere->digest;
}

// Where one stands that was persisted and cannot be looked up now.
std::string NotConfirmed(const Checkpoint& checkpoint) {
  const JobScan& scan = *checkpoint.job->scan;
  if (scan.state != ScanState::kFailed) return "in storage, as far as is known: it is being read";
  return absl::StrCat("in storage that cannot be read now: ", scan.problem.message());
}

}  // namespace

std::vector<Writer> MissingWriters(const Checkpoint& checkpoint) {
  std::vector<Writer> missing;
  const StepContent& content = *checkpoint.content;
  if (checkpoint.Complete()) return missing;
  auto part = content.parts.begin();
  for (Writer writer = 0; writer < content.world_size && missing.size() < kMostMissingWritersNamed;
       ++writer) {
    while (part != content.parts.end() && part->first < writer) ++part;
    const bool there =
        part != content.parts.end() && part->first == writer && part->second->content->committed;
    if (!there) missing.push_back(writer);
  }
  return missing;
}

StatusOr<ObjectRef> ObjectNamed(const Checkpoint& checkpoint, const std::string& name) {
  if (const ObjectRef object = ObjectIn(checkpoint, name)) return object;
  return absl::NotFoundError(absl::StrCat("name: \"", absl::CHexEscape(name), "\" is not in ",
                                          checkpoint.key.DebugString()));
}

std::string PersistProblem(const Checkpoint& checkpoint) {
  const Status& own = checkpoint.files->problem;
  return own.ok() ? checkpoint.job->files->problem : std::string(own.message());
}

Status NoGoodCopy(const Checkpoint& checkpoint) {
  if (checkpoint.files->unconfirmed) {
    return absl::UnavailableError(
        absl::StrCat(checkpoint.key.DebugString(), " is ", NotConfirmed(checkpoint)));
  }
  return absl::DataLossError(absl::StrCat(checkpoint.key.DebugString(),
                                          " has no good copy any more: ", WhyOf(checkpoint)));
}

Status StepWasRemoved(const Job& job, Step step) {
  return absl::NotFoundError(absl::StrCat("step: ", step, " of job ", job.name, " was removed"));
}

// --- what is known

CheckpointInfo Describing::InfoOf(const Checkpoint& checkpoint) const {
  const StepContent& content = *checkpoint.content;
  const Job& job = *checkpoint.job;
  CheckpointInfo info;
  info.key = checkpoint.key;
  info.world_size = content.world_size;
  info.missing_writers = MissingWriters(checkpoint);
  info.bytes = content.bytes;
  info.objects = content.objects;
  const bool complete = checkpoint.Complete();
  info.facts.complete = complete;
  info.facts.resident = content.complete && checkpoint.Resident();
  info.facts.persisted = checkpoint.files->persisted || checkpoint.elsewhere->stored;
  info.facts.broken = complete && !checkpoint.Obtainable() && !checkpoint.files->unconfirmed;
  info.facts.in_conflict = !checkpoint.elsewhere->conflict.empty();
  CountReplicas(checkpoint, &info.facts);
  info.facts.abandoned = standing_.Abandoned(checkpoint);
  info.facts.pinned = *checkpoint.pinned;
  info.level = LevelOf(info.facts, complete);
  info.created_unix_ms = content.created_unix_ms;
  info.on_line = standing_.OnLine(checkpoint);
  info.digest = DigestOf(checkpoint);
  info.why = info.facts.in_conflict ? checkpoint.elsewhere->conflict : WhyOf(checkpoint);
  if (info.why.empty() && !complete) {
    info.why = absl::StrCat("lacks writers ", absl::StrJoin(info.missing_writers, ", "),
                            info.missing_writers.size() == kMostMissingWritersNamed ? ", …" : "");
  }
  if (info.why.empty() && info.facts.abandoned) {
    const LineHead head = standing_.Head(job);
    info.why = absl::StrCat("abandoned: ", head.decided ? "decision " : "attempt ", head.number,
                            " went on from before it");
  }
  if (info.why.empty() && checkpoint.files->unconfirmed) {
    info.why = absl::StrCat("it was persisted, ", NotConfirmed(checkpoint));
  }
  if (info.why.empty() && checkpoint.files->owes) {
    const std::string problem = PersistProblem(checkpoint);
    if (!problem.empty()) info.why = absl::StrCat("not persisted: ", problem);
  }
  return info;
}

void Describing::CountReplicas(const Checkpoint& checkpoint, Facts* facts) const {
  const JobVerdictHeard& verdict = *checkpoint.job->verdict;
  facts->replicas = checkpoint.elsewhere->replicas;
  facts->replicas_asked = verdict.asked;
  if (verdict.heard) facts->replicas_age_ms = (out_.now() - verdict.at) / kNanosPerMilli;
}

Facts Describing::ObjectFactsOf(const Checkpoint& checkpoint) const {
  Facts facts;
  facts.complete = checkpoint.Complete();
  CountReplicas(checkpoint, &facts);
  facts.persisted = checkpoint.files->persisted;
  facts.abandoned = standing_.Abandoned(checkpoint);
  facts.pinned = *checkpoint.pinned;
  return facts;
}

ObjectInfo Describing::InfoOf(const ObjectRef& object, bool with_crcs) const {
  const Checkpoint& checkpoint = *object.part->checkpoint;
  const bool sealed = object.sealed(), resident = object.resident();
  ObjectInfo info;
  info.facts = ObjectFactsOf(checkpoint);
  info.name = object.name();
  info.writer = object.part->key.writer;
  info.kind = object.entry().kind;
  info.length = object.entry().length;
  if (with_crcs) info.block_crcs = object.entry().block_crcs;
  info.verified_unix_ms = object.check().verified_unix_ms;
  info.facts.resident = resident && sealed;
  info.facts.broken =
      sealed && !resident && !checkpoint.files->persisted && !checkpoint.files->unconfirmed;
  info.level = LevelOf(info.facts, sealed);
  return info;
}

ObjectInfo Describing::Elsewhere(const Checkpoint& checkpoint) const {
  ObjectInfo info;
  info.facts = ObjectFactsOf(checkpoint);
  info.level = LevelOf(info.facts, /*written=*/true);
  return info;
}

reply::Latest Describing::LatestOf(const Checkpoint& checkpoint) const {
  return {checkpoint.key,
          checkpoint.content->world_size,
          DigestOf(checkpoint),
          checkpoint.content->complete && checkpoint.Resident(),
          checkpoint.files->persisted,
          checkpoint.elsewhere->in_memory,
          standing_.Head(*checkpoint.job).number};
}

// --- which one is meant

Status Describing::NothingYet(const Job& job) {
  if (job.scan->state == ScanState::kFailed) {
    return absl::UnavailableError(absl::StrCat(
        "job ", job.name, ": nothing in memory, and in storage: ", job.scan->problem.message()));
  }
  if (job.scan->state == ScanState::kScanning) {
    return absl::UnavailableError(absl::StrCat(
        "job ", job.name, ": nothing in memory, and its storage has not answered yet"));
  }
  return absl::NotFoundError(
      absl::StrCat("job: ", job.name, " has no complete checkpoint that can be had now"));
}

StatusOr<Checkpoint*> Describing::ResolveLatest(const Job& job) const {
  if (Checkpoint* newest = standing_.Newest(job)) {
    // A newer one may be there that could not be read just now: who went on from this one would abandon it.
    const JobScan& scan = *job.scan;
    if (newest->Resident() || newest->elsewhere->in_memory || scan.Known() ||
        scan.unread_up_to < newest->key.step)
      return newest;
    return absl::UnavailableError(absl::StrCat(
        "job ", job.name, ": ",
        scan.problem.ok() ? std::string("only part of what it has in storage is known yet")
                          : absl::StrCat("in storage: ", scan.problem.message())));
  }
  const auto& all = job.steps->all;
  for (auto at = all.rbegin(); at != all.rend(); ++at) {
    const Checkpoint& checkpoint = *at->second;
    if (checkpoint.Complete() && !checkpoint.Obtainable()) return NoGoodCopy(checkpoint);
  }
  return NothingYet(job);
}

StatusOr<Checkpoint*> Describing::Resolve(const Job& job, const CheckpointRef& ref) const {
  if (ref.step == kNoStep) return ResolveLatest(job);
  Checkpoint* found = nullptr;
  const Checkpoint* other = nullptr;  // to say why not
  const Checkpoint* on_line = standing_.At(job, ref.step);
  for (Checkpoint* checkpoint : CheckpointsAt(job, ref.step)) {
    const bool meant =
        (ref.attempt == 0 ? on_line == nullptr || on_line->key.attempt == checkpoint->key.attempt
                          : ref.attempt == checkpoint->key.attempt) &&
        (ref.revision < 0 || ref.revision == checkpoint->key.revision);
    if (!meant) continue;
    other = checkpoint;
    if (!checkpoint->Complete()) continue;
    const bool broken = !checkpoint->Obtainable();
    // Without an attempt only the line counts; what is abandoned must be asked for by its attempt.
    if (ref.attempt == 0 && ref.revision < 0 && !broken && checkpoint != on_line) continue;
    if (found == nullptr || !broken || !found->Obtainable()) found = checkpoint;
  }
  if (found != nullptr) {
    if (found->Obtainable()) return found;
    return NoGoodCopy(*found);
  }
  if (other == nullptr) {
    if (job.tombstones->removed.steps.contains(ref.step)) return StepWasRemoved(job, ref.step);
    const Status nothing = NothingYet(job);
    if (!absl::IsNotFound(nothing)) return nothing;
    return absl::NotFoundError(
        absl::StrCat("step: ", ref.step, " of job ", job.name, " is unknown"));
  }
  if (!other->Complete()) {
    return absl::NotFoundError(absl::StrCat("step: ", other->key.DebugString(),
                                            " is not complete: it lacks writers ",
                                            absl::StrJoin(MissingWriters(*other), ", ")));
  }
  return absl::NotFoundError(absl::StrCat("step: ", other->key.DebugString(),
                                          " is abandoned; name its attempt to have it"));
}

Checkpoint* Describing::ForShow(const Job& job, const CheckpointRef& ref) const {
  if (ref.step == kNoStep) return standing_.Newest(job);
  if (ref.attempt == 0 && ref.revision < 0) {
    if (Checkpoint* on_line = standing_.At(job, ref.step)) return on_line;
  }
  Checkpoint* found = nullptr;
  for (Checkpoint* checkpoint : CheckpointsAt(job, ref.step)) {
    if (ref.attempt != 0 && checkpoint->key.attempt != ref.attempt) continue;
    if (ref.revision >= 0 && checkpoint->key.revision != ref.revision) continue;
    found = checkpoint;
  }
  return found;
}

// --- for the recorder

Engine::Description::Part Describing::PartOf(const Part& part) const {
  const Checkpoint& checkpoint = *part.checkpoint;
  const PartContent& content = *part.content;
  const bool persisted = checkpoint.files->persisted;
  return {.key = part.key,
          .world_size = checkpoint.content->world_size,
          .digest = content.digest,
          .bytes = content.bytes,
          .objects = content.count,
          .resident = part.manifest->resident && content.absent == 0,
          .persisted = persisted,
          .broken = !content.broken.empty() && !persisted,
          .own = IsOwn(part, options_.ring)};
}

// For good and for everybody, not only here: in a ring others may have what this node let go, unless it was removed.
bool Describing::IsGone(const Job& job, const CheckpointKey& key) const {
  return options_.ring.Alone() || job.tombstones->removed.Forbids(key.step, key.attempt);
}

// Nobody has it, as far as all members and storage are heard just now, and what came after it is safe.
bool Describing::Vanished(const Job& job, const CheckpointKey& key) const {
  const JobVerdictHeard& heard = *job.verdict;
  const bool all_heard = heard.final && heard.silent.empty();
  const bool storage_known = !options_.storage || job.scan->Known();
  return all_heard && storage_known && std::pair(key.attempt, key.step) < heard.safe;
}

// Each lineage may be long, and all of them are told whenever the line changes: so the newest alone. The
// catalog keeps those that it was told of before.
void Describing::DescribeLine(const Job& job, Engine::Description* description) {
  const auto newest = [](const auto& all) {
    const size_t left_out = all.size() - std::min(all.size(), Engine::kDescribedRecords);
    return std::next(all.begin(), static_cast<ptrdiff_t>(left_out));
  };
  const auto& decisions = job.attempts->decisions;
  for (auto at = newest(decisions); at != decisions.end(); ++at) {
    const auto& [number, decision] = *at;
    description->line.push_back(
        {{job.name, number, decision.kind, decision.lineage}, decision.unix_ms, decision.version});
  }
  const auto& begun = job.attempts->begun;
  for (auto at = newest(begun); at != begun.end(); ++at) {
    const auto& [number, attempt] = *at;
    if (attempt.lineage.Unknown()) continue;
    description->line.push_back({{job.name, number, LineRecordKind::kOrigin, attempt.lineage},
                                 attempt.unix_ms,
                                 attempt.lineage.open ? 0 : 1});
  }
}

Engine::Description Describing::Describe(const action::Record& record) const {
  Engine::Description description;
  const Job* job = jobs_.Find(record.job);
  description.writes_checkpoints = options_.ring.Alone() || (is_home_ && is_home_(record.job));
  for (const CheckpointKey& key : record.left) {
    const bool known = job != nullptr && CheckpointOf(*job, {key.step, key.attempt, key.revision});
    description.left.push_back({key, /*whole=*/!known});
  }
  if (job == nullptr) {  // forgotten, and its checkpoints before it
    if (record.forgotten && description.writes_checkpoints) description.forgotten = record.job;
    if (options_.ring.Alone()) description.gone = record.checkpoints;
    return description;
  }
  const JobOwner& owner = *job->owner;
  if (owner.owned) {
    description.job = fact::Job{job->name,    owner.uid,          owner.gid,
                                owner.policy, owner.said.version, owner.said.rank};
  }
  if (record.attempts) {
    for (const auto& [number, attempt] : job->attempts->begun) {
      description.attempts.push_back(
          {job->name, number, attempt.first_step, attempt.lineage, attempt.unix_ms});
    }
    DescribeLine(*job, &description);
  }
  const auto find = [&](const CheckpointKey& key) {
    return CheckpointOf(*job, {key.step, key.attempt, key.revision});
  };
  for (const PartKey& key : record.parts) {
    const Checkpoint* checkpoint = find(key.checkpoint);
    if (checkpoint == nullptr) continue;
    const auto part = checkpoint->content->parts.find(key.writer);
    if (part == checkpoint->content->parts.end() || !part->second->content->committed) continue;
    description.parts.push_back(PartOf(*part->second));
  }
  for (const CheckpointKey& key : record.checkpoints) {
    const Checkpoint* checkpoint = find(key);
    if (checkpoint == nullptr || checkpoint->content->condemned) {
      if (IsGone(*job, key)) {
        description.gone.push_back(key);
      } else if (description.writes_checkpoints && Vanished(*job, key)) {
        description.vanished.push_back(key);
      }
    } else if (checkpoint->Complete()) {
      description.complete.push_back(InfoOf(*checkpoint));
    }
  }
  description.scanned = job->scan->read != 0;
  description.settled = options_.ring.Alone() || job->verdict->final;
  return description;
}

Engine::Description Describing::Describe(const std::string& name,
                                         const std::vector<CheckpointKey>& checkpoints) const {
  action::Record all{name, /*attempts=*/true, {}, checkpoints};
  const Job* job = jobs_.Find(name);
  for (const CheckpointKey& key : checkpoints) {
    const Checkpoint* checkpoint =
        job == nullptr ? nullptr : CheckpointOf(*job, {key.step, key.attempt, key.revision});
    if (checkpoint == nullptr) continue;
    for (const auto& [writer, part] : checkpoint->content->parts) all.parts.push_back(part->key);
  }
  return Describe(all);
}

std::vector<std::string> Describing::JobNames() const {
  std::vector<std::string> names;
  for (const auto& [name, job] : jobs_.all()) names.push_back(name);
  return names;
}

std::vector<CheckpointKey> Describing::CheckpointsOf(const CheckpointKey& after, int limit) const {
  std::vector<CheckpointKey> keys;
  const Job* job = jobs_.Find(after.job);
  if (job == nullptr) return keys;
  const auto& all = job->steps->all;
  for (auto at = all.upper_bound({after.step, after.attempt, after.revision});
       at != all.end() && static_cast<int>(keys.size()) < limit; ++at) {
    keys.push_back(at->second->key);
  }
  return keys;
}

}  // namespace cairn::engine
