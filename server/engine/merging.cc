#include "server/engine/merging.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace cairn::engine {

bool Merging::Begin(Job* job, const event::JobScanned& scanned, const Status& room, bool in_part) {
  const JobAttempts& known = *job->attempts;
  // Attempts that a reading told of before its rest was dropped are new once more.
  const Attempt newest = in_part ? 0 : known.newest(), fence = in_part ? 0 : known.fence();
  UnderWay begun{scanned.stored, {}, newest, fence, out_.now(), in_part};
  UnderWay& under_way = under_way_.insert_or_assign(job->name, std::move(begun)).first->second;
  const Reading& reading = scanned.stored;
  under_way.status = reading.ok() ? room : reading.status();
  under_way.sweeps =
      under_way.status.ok() ? CheckAllRead(*reading).ok() : absl::IsNotFound(under_way.status);
  if (!under_way.status.ok()) return false;
  if (!IsOfItsOwner(job, scanned)) {
    under_way.next = reading->checkpoints.size();
    return false;
  }
  for (const std::string& problem : reading->problems) {
    out_.Log(Severity::kWarning, absl::StrCat("job ", job->name, " in storage: ", problem));
  }
  LearnLine(job, reading);
  retention_.Learn(job, reading->removed);
  return IsNewer(*job, under_way);
}

void Merging::Drop(const Job& job) {
  const auto at = under_way_.find(job.name);
  if (at == under_way_.end()) return;
  out_.DestroyLater(std::move(at->second.reading));
  under_way_.erase(at);
}

bool Merging::IsNewer(const Job& job, const UnderWay& than) {
  return job.attempts->newest() != than.newest || job.attempts->fence() != than.fence;
}

// Else it is another job's of that name: none of it is shown, kept or deleted for this one.
bool Merging::IsOfItsOwner(Job* job, const event::JobScanned& scanned) {
  if (!job->owner->owned) {
    jobs_.TakeOwnership(job, scanned.owner_uid, scanned.owner_gid, std::nullopt);
  }
  if (job->owner->uid == scanned.owner_uid) return true;
  out_.Log(Severity::kError, absl::StrCat("job ", job->name, " is owned by uid ", job->owner->uid,
                                          " in memory, its directory by uid ", scanned.owner_uid));
  return false;
}

std::optional<Merging::Ended> Merging::Some(int* budget) {
  while (!under_way_.empty() && *budget > 0) {
    const auto first = under_way_.begin();
    UnderWay& under_way = first->second;
    Job* job = jobs_.Find(first->first);
    if (under_way.status.ok()) {
      const std::vector<StoredCheckpoint>& checkpoints = under_way.reading->checkpoints;
      for (; under_way.next < checkpoints.size() && *budget > 0; ++under_way.next) {
        const StoredCheckpoint& stored = checkpoints[under_way.next];
        *budget -= static_cast<int>(std::max<size_t>(stored.parts.size(), 1));
        // Parts that could not be read may be there.
        if (stored.Complete() || under_way.sweeps) Merge(job, stored);
      }
    }
    if (*budget > 0 && under_way.sweeps) {
      under_way.sweeps = !persistence_.Looked(job, &under_way.swept, budget);
    }
    if (*budget <= 0) break;
    const bool newer = IsNewer(*job, under_way);
    const bool merged = under_way.status.ok() || absl::IsNotFound(under_way.status);
    const bool in_part = !merged && under_way.in_part;
    Ended ended{first->first,
                std::move(under_way.reading),
                std::move(under_way.status),
                newer,
                under_way.begun,
                in_part};
    under_way_.erase(first);
    return ended;
  }
  return std::nullopt;
}

// Of the decisions that storage tells so many are remembered; 0: all.
Attempt Merging::OldestKeptDecision(const StoredJob& stored) {
  std::set<Attempt> kept;
  for (const LineRecord& record : stored.records) {
    if (record.kind == LineRecordKind::kOrigin) continue;
    kept.insert(record.number);
    if (kept.size() > kKeptDecisions) kept.erase(kept.begin());
  }
  return kept.size() < kKeptDecisions ? 0 : *kept.begin();
}

// An upper bound of the facts that a reading makes.
uint64_t Merging::JournalCostOf(const Job& job, const Reading& reading) {
  const StoredJob& stored = *reading;
  const std::map<Attempt, AttemptLine>& shown = reading.line().attempts;
  const uint64_t fact = JournalRoom::kFactBytes + job.name.size();
  const auto of_lineage = [&](const Lineage& lineage) {
    return fact + EncodedLineageSize(lineage);
  };
  uint64_t bytes = 0;
  const auto& begun = job.attempts->begun;
  size_t lives = 0;
  for (auto at = shown.rbegin(); at != shown.rend() && lives++ < kJournaledLives; ++at) {
    const auto known = begun.find(at->first);
    const bool told = known == begun.end() || known->second.lineage.open;
    if (told) bytes += of_lineage(at->second.lineage);
  }
  const Attempt kept = OldestKeptDecision(stored);
  for (const LineRecord& record : stored.records) {
    if (record.kind == LineRecordKind::kOrigin) {
      const auto known = begun.find(record.number);
      const bool told = known != begun.end() && known->second.lineage != record.lineage;
      if (told) bytes += of_lineage(record.lineage);
    } else if (record.number >= kept && !job.attempts->decisions.contains(record.number)) {
      bytes += of_lineage(record.lineage);
    }
  }
  const auto& removed = job.tombstones->removed.steps;
  for (const auto& [step, attempts] : stored.removed.steps) {
    const auto known = removed.find(step);
    for (const AttemptRanges::Range& range : attempts.ranges()) {
      if (known == removed.end() || !known->second.Covers(range)) bytes += fact;
    }
  }
  return bytes;
}

// Attempts, where they come from, and decisions, before the checkpoints that hang on them.
void Merging::LearnLine(Job* job, const Reading& reading) {
  const StoredJob& stored = *reading;
  const ReadLine& line = reading.line();
  attempts_.Saw(job, line.greatest);
  // From the newest on: only of so many the journal is told.
  for (auto at = line.attempts.rbegin(); at != line.attempts.rend(); ++at) {
    attempts_.Learn(job, at->first, at->second, line.began.at(at->first));
  }
  const Attempt kept = OldestKeptDecision(stored);
  for (const LineRecord& record : stored.records) {
    if (record.kind != LineRecordKind::kOrigin && record.number < kept) {
      attempts_.Saw(job, record.number);
      continue;
    }
    if (record.kind == LineRecordKind::kOrigin) {
      attempts_.Adopt(job, record);
      const auto written = stored.written_unix_ms.find(record.number);
      if (written != stored.written_unix_ms.end()) {
        attempts_.OriginRecorded(job, record.number, written->second);
      }
    } else {
      attempts_.Learn(job, record, out_.UnixMillis());
    }
  }
  records_.Scanned(*job, stored.records, line.with_files);
}

// Both are whole. That of all digests is made only where those of the parts do not tell.
bool Merging::IsThatOf(const StoredCheckpoint& stored, const Checkpoint& known) {
  const auto& parts = known.content->parts;
  if (parts.size() == stored.parts.size()) {
    const auto same = [](const auto& part, const StoredPart& there) {
      return part.first == there.manifest.writer && part.second->content->digest == there.digest;
    };
    return std::equal(parts.begin(), parts.end(), stored.parts.begin(), same);
  }
  return known.content->digest == CheckpointDigest(stored.Digests());
}

void Merging::Merge(Job* job, const StoredCheckpoint& stored) {
  const CheckpointKey& key = stored.key;
  if (!stored.published || !stored.conflict.empty()) return;
  Checkpoint* known = CheckpointOf(*job, {key.step, key.attempt, key.revision});
  if (!stored.Complete()) {
    return persistence_.FoundHalfGone(job, {key.step, key.attempt, key.revision}, stored.damage);
  }
  // Its files went after they had been read, or are going: that they did will be told.
  if (job->files->gone.contains({key.step, key.attempt, key.revision})) return;
  const bool is_persisted = known != nullptr && known->files->persisted;
  if (!is_persisted && retention_.IsDeleting(key)) return;
  if (!Retention::CheckRemoved(*job, key.step, key.attempt).ok()) {
    return retention_.DeleteLeftover(*job, key);
  }
  if (known == nullptr) known = parts_.FindOrMake(job, key, stored.world_size);
  if (!known->content->complete) return Complete(known, stored);
  if (!IsThatOf(stored, *known)) {
    out_.Log(Severity::kError,
             absl::StrCat(key.DebugString(), " in storage is not the one in memory"));
    return;
  }
  persistence_.FoundStored(known, stored.location);
}

void Merging::Complete(Checkpoint* checkpoint, const StoredCheckpoint& stored) {
  const auto& parts = checkpoint->content->parts;
  bool same = checkpoint->content->world_size == stored.world_size;
  for (size_t i = 0; same && i < stored.parts.size(); ++i) {
    const auto known = parts.find(stored.parts[i].manifest.writer);
    if (known == parts.end()) continue;
    const PartContent& part = *known->second->content;
    same = part.committed && part.digest == stored.parts[i].digest;
  }
  if (!same) {
    out_.Log(Severity::kWarning, absl::StrCat(checkpoint->key.DebugString(),
                                              " is complete in storage, but being written here"));
    return;
  }
  for (size_t i = 0; i < stored.parts.size(); ++i) {
    if (parts.contains(stored.parts[i].manifest.writer)) continue;
    parts_.AddStored(checkpoint, stored.parts[i]);
  }
  const bool condemned = checkpoint->content->condemned;
  persistence_.FoundStored(checkpoint, stored.location);
  parts_.CompleteStored(checkpoint, CheckpointDigest(stored.Digests()));
  if (condemned) persistence_.SayPersisted(*checkpoint);  // it was not, for a while
}

}  // namespace cairn::engine
