#include "server/engine/reporting.h"

#include <algorithm>
#include <utility>

#include "server/engine/needs.h"

namespace cairn::engine {
namespace {

// A collector that asked goes on hearing of changes for so long; it asks again while it cares.
constexpr MonotonicNanos kCollectorsKept = 30 * kNanosPerSecond;
// Of a writer's steps that it gave up.
constexpr size_t kGivenUpTold = 128;

NameHashes HashesOf(const PartTable& table) {
  auto hashes = std::make_shared<std::vector<uint64_t>>();
  hashes->reserve(table.entries.size());
  for (const auto& entry : table.entries) hashes->push_back(NameHash(entry->name));
  std::sort(hashes->begin(), hashes->end());
  return hashes;
}

}  // namespace

// FNV-1a, then mixed, so that names that differ in the end differ everywhere.
uint64_t NameHash(absl::string_view name) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  hash ^= hash >> 32;
  hash *= 0xd6e8feb86659fd93;
  return hash ^ (hash >> 32);
}

Reporting::Reporting(Outbox* out, const Members* members, Jobs* jobs, Parts* parts,
                     Standing* standing, const Offers* offers, const Copies* copies)
    : out_(*out),
      members_(*members),
      jobs_(*jobs),
      parts_(*parts),
      standing_(*standing),
      offers_(*offers),
      copies_(*copies) {}

Reporting::~Reporting() = default;

// What a home has to know of: a part that can be read from this node's memory, and will stay there.
bool Reporting::Counts(const Part* part) const {
  return part != nullptr && Fetches::Holds(*part) && !copies_.MakesWay(part->key);
}

// `known`: what was told of the same part, whose names and size need not be gone through again.
PartReport Reporting::ReportOf(const Part& part, const PartReport* known) const {
  PartReport report;
  report.world_size = part.checkpoint->content->world_size;
  report.digest = part.content->digest;
  report.role = part.source->role;
  report.owner = report.role == PartRole::kOwn ? members_.self() : part.source->owner;
  const Files& files = *part.checkpoint->files;
  report.stored = files.persisted || (files.written && report.role == PartRole::kOwn);
  if (known != nullptr) {
    report.bytes = known->bytes;
    report.names = known->names;
    return report;
  }
  for (const auto& entry : part.content->table->entries) {
    report.bytes += RoundUpToPages(entry->length);
  }
  report.names =
      HashesOf(*part.content->table);  // of copies, too: they outlive the node that wrote the part
  return report;
}

void Reporting::UpdateJob(const Job& job, JobReport* report) const {
  report->owned = job.owner->owned;
  report->owner_uid = job.owner->uid;
  report->owner_gid = job.owner->gid;
  report->policy = job.owner->policy;
  report->attempts.clear();
  report->writers.clear();
  const Attempt newest = job.attempts->newest();
  for (const auto& [number, attempt] : job.attempts->begun) {
    if (number != newest && attempt.checkpoints_at.empty()) continue;
    report->attempts[number] = {attempt.first_step, attempt.lineage, attempt.unix_ms};
  }
  const auto begun = job.attempts->begun.find(newest);
  if (begun != job.attempts->begun.end()) {
    const AttemptState& attempt = begun->second;
    for (const auto& [writer, process] : attempt.processes) {
      WriterReport& writer_report = report->writers[{newest, writer}];
      const auto reached = attempt.reached.find(process.Seat());
      if (reached != attempt.reached.end()) writer_report.reached = reached->second;
      writer_report.alive = !attempt.ended.contains(writer);
      for (const auto& [refused, why] : attempt.refused) writer_report.given_up.insert(refused);
      for (const auto& [step, revision, by] : attempt.withdrawn) {
        if (by == writer.writer) writer_report.given_up.insert({step, revision});
      }
      while (writer_report.given_up.size() > kGivenUpTold) {
        writer_report.given_up.erase(writer_report.given_up.begin());
      }
    }
  }
  report->saving = saving_(job);
  report->target = offers_.WorkingOn(job);
  const std::optional<CheckpointId> written = writing_(job);
  if (written.has_value() && (!report->target.has_value() || *written < *report->target)) {
    report->target = written;
  }
}

std::optional<ReportDelta> Reporting::Update(const std::string& name,
                                             const Standing::ToReport& changed, Told* told) {
  JobReport& report = told->report;
  const JobReport before_job{report.owned,     report.owner_uid,
                             report.owner_gid, report.policy,
                             report.attempts,  {},
                             report.writers,   {},
                             report.target,    report.saving};
  ReportDelta delta;
  const Job* job = jobs_.Find(name);
  if (job != nullptr) {
    UpdateJob(*job, &report);
  } else {
    for (const auto& [id, part] : report.parts) delta.parts_gone.insert(id);
    report = {};
  }
  for (const PartKey& key : changed.parts) {
    const PartId id{{key.checkpoint.step, key.checkpoint.attempt, key.checkpoint.revision},
                    key.writer};
    const Part* part = parts_.Find(key);
    const auto known = report.parts.find(id);
    if (!Counts(part)) {
      if (known == report.parts.end()) continue;
      report.parts.erase(known);
      delta.parts_gone.insert(id);
      continue;
    }
    const bool same = known != report.parts.end() && known->second.digest == part->content->digest;
    PartReport now = ReportOf(*part, same ? &known->second : nullptr);
    if (known != report.parts.end() && known->second == now) continue;
    report.parts[id] = now;
    delta.parts[id] = std::move(now);
  }
  for (const CheckpointId& id : changed.checkpoints) {
    const Checkpoint* checkpoint = job == nullptr ? nullptr : CheckpointOf(*job, id);
    const bool published = checkpoint != nullptr && checkpoint->files->persisted;
    if (published == report.published.contains(id)) continue;
    if (published) {
      report.published.insert(id);
      delta.published.insert(id);
    } else {
      report.published.erase(id);
      delta.published_gone.insert(id);
    }
  }
  // The report without what may be long.
  auto parts = std::exchange(report.parts, {});
  auto published = std::exchange(report.published, {});
  const JobReport after_job = report;
  report.parts = std::move(parts);
  report.published = std::move(published);
  const bool nothing = delta.parts.empty() && delta.parts_gone.empty() && delta.published.empty() &&
                       delta.published_gone.empty();
  if (nothing && after_job == before_job && told->number != 0) return std::nullopt;
  const uint64_t after = told->number;
  told->number = NextNumber();
  ReportDelta of_job =
      DeltaOf(name, before_job, after_job, std::max<uint64_t>(after, 1), told->number);
  of_job.after = after;
  of_job.parts = std::move(delta.parts);
  of_job.parts_gone = std::move(delta.parts_gone);
  of_job.published = std::move(delta.published);
  of_job.published_gone = std::move(delta.published_gone);
  return of_job;
}

void Reporting::Send(Rank to, const ReportDelta& delta) {
  if (to == members_.self()) return to_self_(delta);
  if (members_.Up(to)) out_.Do(action::Tell{to, peer::Report{delta}});
}

void Reporting::SendWhole(Rank to, const std::string& name, const Told& told, uint64_t answers) {
  ReportDelta whole = DeltaOf(name, {}, told.report, /*after=*/0, told.number);
  whole.answers = answers;
  Send(to, whole);
}

void Reporting::WholeTo(Rank collector, const std::string& job, uint64_t question) {
  Told& told = told_[job];
  if (told.number == 0) told.number = NextNumber();  // of nothing: that is an answer, too
  if (collector != told.home) told.askers[collector] = out_.now() + kCollectorsKept;
  SendWhole(collector, job, told, question);
}

void Reporting::Run(bool again) {
  for (auto& [name, changed] : standing_.TakeToReport()) {
    Told& told = told_[name];
    const std::optional<ReportDelta> delta = Update(name, changed, &told);
    if (!delta.has_value()) continue;
    if (told.home != kNoRank) Send(told.home, *delta);
    for (const auto& [asker, until] : told.askers) {
      if (asker != told.home) Send(asker, *delta);
    }
    if (told.home == kNoRank) homes_may_have_moved_ = true;
  }
  if (!std::exchange(homes_may_have_moved_, false) && !again) return;
  for (auto at = told_.begin(); at != told_.end();) {
    auto& [name, told] = *at;
    std::erase_if(told.askers, [&](const auto& asker) { return asker.second < out_.now(); });
    if (jobs_.Find(name) == nullptr && told.report == JobReport() && told.askers.empty()) {
      at = told_.erase(at);
      continue;
    }
    const Rank home = members_.HomeOf(name);
    if (home != told.home || again) {
      // The one before goes on as a home for a while, for who asks it: it counts what it has heard.
      const bool moved = told.home != kNoRank && told.home != home;
      if (moved) told.askers[told.home] = out_.now() + kCollectorsKept;
      told.home = home;
      SendWhole(home, name, told);
    }
    ++at;
  }
}

}  // namespace cairn::engine
