// One file: what is counted, and what it comes to, change together.
#include "server/engine/gathered.h"

#include <algorithm>

namespace cairn::engine {
namespace {

bool SameNames(const PartReport& a, const PartReport& b) {
  return a.names == b.names || (a.names != nullptr && b.names != nullptr && *a.names == *b.names);
}

// Nothing of this writer's part is reported.
bool Lacks(const Tally& tally, const WorldWriter& writer) {
  return writer.world_size == tally.World() && !tally.Has(writer.writer);
}

}  // namespace

// --- what comes in

Gathered::Gathered(std::string job, const RingShape& ring) : ring_(ring) {
  verdict_.job = std::move(job);
  verdict_.asked = Asked();
}

bool Gathered::Apply(const MemberId& from, const ReportDelta& delta) {
  if (delta.number <= delta.after) return false;
  const auto present = present_.find(from.rank);
  if (present != present_.end() && present->second != from) {
    if (from.incarnation <= present->second.incarnation) return true;
    ForgetRank(from.rank);
  }
  present_[from.rank] = from;
  const auto at = gathering_.reports.find(from.rank);
  const uint64_t number = at == gathering_.reports.end() ? 0 : at->second.number;
  const bool news = delta.number > number;
  if (!news || (delta.after != 0 && delta.after != number)) {
    Settle();  // an older life's report may have gone
    return !news;
  }
  if (number == 0) {
    gathering_.reports[from.rank].from = from;
    Change(from.rank, delta);
  } else if (delta.after == 0) {
    JobReport whole;
    ApplyDelta(delta, &whole);
    Change(from.rank,
           DeltaOf(verdict_.job, at->second.report, whole, at->second.number, delta.number));
  } else {
    Change(from.rank, delta);
  }
  Settle();
  return true;
}

void Gathered::Seen(const MemberId& who) {
  const auto present = present_.find(who.rank);
  if (present != present_.end() && who.incarnation <= present->second.incarnation) return;
  present_[who.rank] = who;
  ForgetRank(who.rank);
  Settle();
}

void Gathered::Silent(Rank rank, bool silent) {
  if (gathering_.silent.contains(rank) == silent) return;
  if (silent) {
    gathering_.silent.insert(rank);
  } else {
    gathering_.silent.erase(rank);
  }
  const auto at = gathering_.reports.find(rank);
  if (at != gathering_.reports.end()) {
    CountReport(rank, at->second.report, !silent);
    if (silent) {
      verdict_.reports.erase(rank);
    } else {
      verdict_.reports[rank] = {at->second.from, at->second.number};
    }
  }
  Settle();
}

void Gathered::SetRecord(const JobRecord& record) {
  decisions_touched_ |= record.decisions != record_.decisions;
  for (const auto& [attempt, origin] : record.attempts) {
    const auto before = record_.attempts.find(attempt);
    if (before == record_.attempts.end() || before->second != origin) {
      origins_touched_.insert(attempt);
    }
  }
  for (const auto& [attempt, origin] : record_.attempts) {
    if (!record.attempts.contains(attempt)) origins_touched_.insert(attempt);
  }
  if (record.removed != record_.removed || record.removed_up_to != record_.removed_up_to) {
    for (const auto& [id, tally] : tallies_) touched_.insert(id);
  }
  record_ = record;
  verdict_.safe = record.highest_protected;
  Settle();
}

void Gathered::SetFinal(bool final) {
  gathering_.final = final;
  Settle();
}

uint64_t Gathered::NumberOf(Rank rank) const {
  const auto at = gathering_.reports.find(rank);
  return at == gathering_.reports.end() ? 0 : at->second.number;
}

void Gathered::ForgetRank(Rank rank) {
  const auto at = gathering_.reports.find(rank);
  if (at == gathering_.reports.end()) return;
  if (Hears(rank)) CountReport(rank, at->second.report, false);
  gathering_.reports.erase(at);
  verdict_.reports.erase(rank);
}

void Gathered::Change(Rank rank, const ReportDelta& delta) {
  ChangeParts(rank, delta);
  ChangeWriters(rank, delta);
  ChangeRest(rank, delta);
  Heard& heard = gathering_.reports.at(rank);
  heard.number = delta.number;
  if (Hears(rank)) verdict_.reports[rank] = {heard.from, heard.number};
}

void Gathered::ChangeParts(Rank rank, const ReportDelta& delta) {
  auto& parts = gathering_.reports.at(rank).report.parts;
  const bool counts = Hears(rank);
  for (const PartId& id : delta.parts_gone) {
    const auto at = parts.find(id);
    if (at == parts.end()) continue;
    if (counts) CountPart(rank, id, at->second, false);
    parts.erase(at);
  }
  for (const auto& [id, part] : delta.parts) {
    const auto [at, fresh] = parts.try_emplace(id, part);
    if (fresh) {
      if (counts) CountPart(rank, id, at->second, true);
      continue;
    }
    const bool alike = at->second.world_size == part.world_size && SameNames(at->second, part);
    if (counts && alike && Counts(id, part)) {
      tallies_.at(id.first).Replace(id.second, &at->second, part);
      touched_.insert(id.first);
      continue;
    }
    if (counts) CountPart(rank, id, at->second, false);
    at->second = part;
    if (counts) CountPart(rank, id, at->second, true);
  }
}

void Gathered::ChangeWriters(Rank rank, const ReportDelta& delta) {
  auto& writers = gathering_.reports.at(rank).report.writers;
  const bool counts = Hears(rank);
  for (const auto& id : delta.writers_gone) {
    if (!writers.contains(id)) continue;
    if (counts) CountWriter(rank, id, false);
    writers.erase(id);
  }
  for (const auto& [id, writer] : delta.writers) {
    const auto [at, fresh] = writers.try_emplace(id, writer);
    if (fresh) {
      if (counts) CountWriter(rank, id, true);
      continue;
    }
    if (counts) CountHopes(id.first, id.second, -1);
    at->second = writer;
    if (counts) CountHopes(id.first, id.second, +1);
  }
}

void Gathered::ChangeRest(Rank rank, const ReportDelta& delta) {
  JobReport& report = gathering_.reports.at(rank).report;
  const bool counts = Hears(rank);
  for (const Attempt attempt : delta.attempts_gone) {
    if (report.attempts.erase(attempt) > 0 && counts) CountAttempt(rank, attempt, false);
  }
  for (const auto& [attempt, said] : delta.attempts) {
    report.attempts.insert_or_assign(attempt, said);
    if (counts) CountAttempt(rank, attempt, true);
  }
  for (const CheckpointId& id : delta.published_gone) {
    if (report.published.erase(id) > 0 && counts) CountPublished(id, false);
  }
  for (const CheckpointId& id : delta.published) {
    if (report.published.insert(id).second && counts) CountPublished(id, true);
  }
  if (counts) CountTarget(report.target, false);
  report.target = delta.target;
  if (counts) CountTarget(report.target, true);
  report.saving = delta.saving;
  if (counts) CountSaving(rank, report.saving, true);
  report.owned = delta.owned;
  report.owner_uid = delta.owner_uid;
  report.owner_gid = delta.owner_gid;
  report.policy = delta.policy;
}

// --- counting

void Gathered::CountReport(Rank rank, const JobReport& report, bool counts) {
  for (const auto& [id, part] : report.parts) CountPart(rank, id, part, counts);
  for (const auto& [id, writer] : report.writers) CountWriter(rank, id, counts);
  for (const auto& [attempt, said] : report.attempts) CountAttempt(rank, attempt, counts);
  for (const CheckpointId& id : report.published) CountPublished(id, counts);
  CountTarget(report.target, counts);
  CountSaving(rank, report.saving, counts);
}

void Gathered::CountPart(Rank rank, const PartId& part_id, const PartReport& part, bool counts) {
  const auto& [id, writer] = part_id;
  if (!Counts(part_id, part)) return;
  touched_.insert(id);
  Life* const life = LifeOf(id.attempt);
  const auto [at, fresh] = tallies_.try_emplace(id);
  if (fresh) ++life->tallies;
  Tally* const tally = &at->second;
  const int32_t world = tally->World();
  const bool had = tally->Has(writer);
  if (counts) {
    tally->Add(rank, writer, part);
  } else {
    tally->Remove(rank, writer, part);
  }
  if (tally->World() != world) tally->weighed = false;
  if (tally->weighed && tally->Has(writer) != had) {
    const Outlook outlook = OutlookOf(id, {world, writer});
    tally->mentioned += had ? outlook.mentioned() : -outlook.mentioned();
    tally->expected += had ? outlook.expected() : -outlook.expected();
  }
  if (tally->Lacking() > 0) {
    life->lacking.insert(id);
  } else {
    life->lacking.erase(id);
  }
  if (!tally->empty()) return;
  tallies_.erase(id);
  --life->tallies;
}

void Gathered::CountWriter(Rank rank, const WriterKey& id, bool counts) {
  const auto& [attempt, writer] = id;
  CountHopes(attempt, writer, -1);
  Life* const life = LifeOf(attempt);
  auto& ranks = life->writers[writer];
  if (counts) {
    ranks.push_back(rank);
  } else {
    ranks.erase(std::find(ranks.begin(), ranks.end(), rank));
    if (ranks.empty()) life->writers.erase(writer);
  }
  CountHopes(attempt, writer, +1);
  // Writer 0's member says where the attempt comes from; and a life may have ended.
  if (writer.writer == 0 || life->writers.empty()) origins_touched_.insert(attempt);
}

void Gathered::CountAttempt(Rank rank, Attempt attempt, bool counts) {
  Life* const life = LifeOf(attempt);
  if (counts) {
    life->said_by.insert(rank);
  } else {
    life->said_by.erase(rank);
  }
  origins_touched_.insert(attempt);
}

void Gathered::CountPublished(const CheckpointId& id, bool counts) {
  AdjustCount(&published_, id, counts ? 1 : -1);
  touched_.insert(id);
}

void Gathered::CountTarget(const std::optional<CheckpointId>& target, bool counts) {
  if (target.has_value()) AdjustCount(&named_, *target, counts ? 1 : -1);
}

void Gathered::CountSaving(Rank rank, const std::vector<SavingReport>& saving, bool counts) {
  verdict_.saving.erase(rank);
  if (counts && !saving.empty()) verdict_.saving[rank] = saving;
}

Outlook Gathered::OutlookOf(const CheckpointId& id, const WorldWriter& writer) const {
  Outlook outlook(id.step, id.revision);
  const auto life = lives_.find(id.attempt);
  if (life == lives_.end()) return outlook;
  const auto ranks = life->second.writers.find(writer);
  if (ranks == life->second.writers.end()) return outlook;
  for (const Rank rank : ranks->second) {
    outlook.Hear(gathering_.reports.at(rank).report.writers.at({id.attempt, writer}));
  }
  return outlook;
}

void Gathered::CountHopes(Attempt attempt, const WorldWriter& writer, int sign) {
  const auto life = lives_.find(attempt);
  if (life == lives_.end()) return;
  for (const CheckpointId& id : life->second.lacking) {
    Tally& tally = tallies_.at(id);
    if (!tally.weighed || !Lacks(tally, writer)) continue;
    const Outlook outlook = OutlookOf(id, writer);
    tally.mentioned += sign * static_cast<int>(outlook.mentioned());
    tally.expected += sign * static_cast<int>(outlook.expected());
    touched_.insert(id);
  }
}

void Gathered::WeighHopes(const CheckpointId& id, Tally* tally) {
  tally->weighed = true;
  tally->mentioned = tally->expected = 0;
  for (const auto& [writer, ranks] : lives_.at(id.attempt).writers) {
    if (!Lacks(*tally, writer)) continue;
    const Outlook outlook = OutlookOf(id, writer);
    if (outlook.mentioned()) ++tally->mentioned;
    if (outlook.expected()) ++tally->expected;
  }
}

// --- what it comes to

void Gathered::Settle() {
  verdict_.silent = gathering_.silent;
  verdict_.final = gathering_.final;
  std::vector<CheckpointId> come, gone;
  SettleCheckpoints(&come, &gone);
  SettleLine(come, gone);
  SettleSatisfied();
  SettleHopes();
  SettleTarget();
  verdict_.why = WhyOf(verdict_, record_, ring_);
  for (const Attempt attempt : origins_touched_) DropIfEmpty(attempt);
  for (const CheckpointId& id : touched_) DropIfEmpty(id.attempt);
  touched_.clear();
  origins_touched_.clear();
}

void Gathered::DropIfEmpty(Attempt attempt) {
  const auto life = lives_.find(attempt);
  if (life != lives_.end() && life->second.empty()) lives_.erase(life);
}

void Gathered::SettleCheckpoints(std::vector<CheckpointId>* come, std::vector<CheckpointId>* gone) {
  for (const CheckpointId& id : touched_) {
    const auto before = verdict_.checkpoints.find(id);
    const bool was_visible = before != verdict_.checkpoints.end();
    const bool was_had = was_visible && CanBeHad(before->second);
    std::optional<CheckpointVerdict> verdict;
    const auto tally = tallies_.find(id);
    if (tally != tallies_.end() && !record_.Forbids(id.step, id.attempt)) {
      if (!tally->second.weighed) WeighHopes(id, &tally->second);
      verdict = tally->second.Judge(published_.contains(id));
      verdict->hopeless = was_visible && before->second.hopeless;  // as yet
    }
    if (!was_visible && !verdict.has_value()) continue;
    const bool had = verdict.has_value() && CanBeHad(*verdict);
    Life* const life = LifeOf(id.attempt);
    life->visible += static_cast<int>(verdict.has_value()) - static_cast<int>(was_visible);
    life->had += static_cast<int>(had) - static_cast<int>(was_had);
    if (was_visible != verdict.has_value()) origins_touched_.insert(id.attempt);
    if (life->had > 0) {
      shown_.insert(id.attempt);
    } else {
      shown_.erase(id.attempt);
    }
    if (had && !was_had) come->push_back(id);
    if (was_had && !had) gone->push_back(id);
    if (had || was_had) placed_.insert(id);
    SetCheckpoint(id, std::move(verdict));
  }
}

void Gathered::SetCheckpoint(const CheckpointId& id, std::optional<CheckpointVerdict> verdict) {
  if (!verdict.has_value()) {
    if (verdict_.checkpoints.erase(id) > 0) changed_.insert(id);
    return;
  }
  const auto [at, fresh] = verdict_.checkpoints.try_emplace(id);
  if (!fresh && at->second == *verdict) return;
  at->second = *std::move(verdict);
  changed_.insert(id);
}

void Gathered::SettleLine(const std::vector<CheckpointId>& come,
                          const std::vector<CheckpointId>& gone) {
  for (const CheckpointId& id : gone) NoteAffected(line_.Remove(id));
  bool moved = std::exchange(decisions_touched_, false);
  for (const Attempt attempt : origins_touched_) moved |= SettleOrigin(attempt);
  if (moved) NoteAffected(line_.SetAttempts(origins_, record_.Decided()));
  for (const CheckpointId& id : come) NoteAffected(line_.Add(id));
}

bool Gathered::SettleOrigin(Attempt attempt) {
  const auto life = lives_.find(attempt);
  const auto recorded = record_.attempts.find(attempt);
  std::vector<OriginSaid> said;
  bool known = recorded != record_.attempts.end();
  if (life != lives_.end()) {
    for (const Rank rank : life->second.said_by) {
      const auto& report = gathering_.reports.at(rank).report;
      said.push_back({RunsWriter0(report, attempt), &report.attempts.at(attempt)});
    }
    known |= !said.empty() || life->second.visible > 0;
  }
  if (!known) return origins_.erase(attempt) > 0;
  Line::Origin origin =
      MergeOrigins(recorded == record_.attempts.end() ? nullptr : &recorded->second, said);
  const auto [at, fresh] = origins_.try_emplace(attempt);
  if (!fresh && at->second == origin) return false;
  at->second = std::move(origin);
  return true;
}

void Gathered::NoteAffected(const Line::Affected& affected) {
  all_placed_ |= affected.all;
  if (affected.replaced.has_value()) placed_.insert(*affected.replaced);
}

void Gathered::SettleSatisfied() {
  const int asked = Asked();
  all_placed_ |= std::exchange(verdict_.asked, asked) != asked;
  const auto place = [&](const CheckpointId& id, const CheckpointVerdict& checkpoint) {
    if (CanBeHad(checkpoint) && IsSatisfied(checkpoint, asked) && line_.Has(id)) {
      satisfied_.insert(id);
    } else {
      satisfied_.erase(id);
    }
  };
  if (std::exchange(all_placed_, false)) {
    satisfied_.clear();
    for (const auto& [id, checkpoint] : verdict_.checkpoints) place(id, checkpoint);
  }
  for (const CheckpointId& id : placed_) {
    const auto at = verdict_.checkpoints.find(id);
    if (at == verdict_.checkpoints.end()) {
      satisfied_.erase(id);
    } else {
      place(id, at->second);
    }
  }
  placed_.clear();
}

void Gathered::SettleHopes() {
  const Prospects prospects{gathering_.final, !gathering_.silent.empty(),
                            origins_.empty() ? 0 : std::max<Attempt>(0, origins_.rbegin()->first),
                            shown_.empty() ? 0 : std::max<Attempt>(0, *shown_.rbegin())};
  if (prospects == prospects_) {
    for (const CheckpointId& id : touched_) SayHopeless(id);
    return;
  }
  prospects_ = prospects;
  for (const CheckpointId& id : touched_) SayHopeless(id);
  for (const auto& [attempt, life] : lives_) {
    for (const CheckpointId& id : life.lacking) SayHopeless(id);
  }
}

void Gathered::SayHopeless(const CheckpointId& id) {
  const auto at = verdict_.checkpoints.find(id);
  if (at == verdict_.checkpoints.end()) return;
  CheckpointVerdict& checkpoint = at->second;
  const Tally& tally = tallies_.at(id);
  bool hopeless = false;
  if (!checkpoint.complete && checkpoint.conflict.empty() && tally.Lacking() > 0) {
    hopeless =
        IsHopeless(id.attempt, tally.expected, tally.Lacking() - tally.mentioned, prospects_);
  }
  if (std::exchange(checkpoint.hopeless, hopeless) != hopeless) changed_.insert(id);
}

void Gathered::SettleTarget() {
  verdict_.head = line_.Head();
  verdict_.latest = line_.Newest();
  verdict_.protect.reset();
  if (!satisfied_.empty()) {
    verdict_.protect = *satisfied_.rbegin();
  } else if (verdict_.asked == 0) {
    verdict_.protect = verdict_.latest;
  }
  verdict_.target.reset();
  for (const auto& [id, members] : named_) {
    if (!line_.Has(id) || satisfied_.contains(id) || IsBehind(id, verdict_.protect)) continue;
    verdict_.target = id;
    return;
  }
  if (verdict_.latest.has_value() && !satisfied_.contains(*verdict_.latest)) {
    verdict_.target = verdict_.latest;
  }
}

int Gathered::Asked() const {
  std::optional<JobPolicy> reported;
  for (const auto& [rank, heard] : gathering_.reports) {
    if (!Hears(rank) || !heard.report.owned) continue;
    reported = heard.report.policy;
    break;
  }
  return AskedFor(record_, reported, ring_);
}

}  // namespace cairn::engine
