#include "server/engine/view.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/line.h"
#include "common/manifest.h"

namespace cairn::engine {
namespace {

// All reports of one writer's part.
struct WriterParts {
  absl::string_view digest;                         // of the first; the reports outlive the pass
  bool disputed = false;                            // another has a different one
  std::vector<const std::vector<uint64_t>*> names;  // each that differs from the one before
  uint64_t bytes = 0;
  int kept = 0, fetched = 0;  // in memory
  int Copies() const { return CopiesThatCount(kept, fetched); }
};

struct Parts {
  int32_t least_world = std::numeric_limits<int32_t>::max(), most_world = 0;
  std::map<Writer, WriterParts> writers;
  bool stored = false;

  int32_t World() const { return most_world; }
  int64_t Lacking() const { return World() - static_cast<int64_t>(writers.size()); }
};

// One pass over everything, for one verdict.
class Viewing {
 public:
  Viewing(const std::string& job, const Gathering& gathering, const JobRecord& record,
          const RingShape& ring)
      : gathering_(gathering), record_(record), ring_(ring) {
    verdict_.job = job;
  }

  JobVerdict Run() {
    Hear();
    for (const auto& [id, parts] : parts_) {
      verdict_.checkpoints.emplace_hint(verdict_.checkpoints.end(), id, Judge(parts));
    }
    DrawLine();
    FindHopeless();
    verdict_.asked = AskedFor(record_, policy_, ring_);
    verdict_.safe = record_.highest_protected;
    Protect();
    verdict_.why = WhyOf(verdict_, record_, ring_);
    return std::move(verdict_);
  }

 private:
  void Hear() {
    verdict_.silent = gathering_.silent;
    verdict_.final = gathering_.final;
    for (const auto& [rank, heard] : gathering_.reports) {
      if (gathering_.silent.contains(rank)) continue;
      verdict_.reports[rank] = {heard.from, heard.number};
      heard_.push_back(&heard.report);
      if (heard.report.owned && !policy_.has_value()) policy_ = heard.report.policy;
      if (!heard.report.saving.empty()) verdict_.saving[rank] = heard.report.saving;
      last_ = nullptr;
      for (const auto& [id, part] : heard.report.parts) TakePart(id, part);
    }
    for (const JobReport* report : heard_) {
      for (const CheckpointId& id : report->published) {
        if (const auto at = parts_.find(id); at != parts_.end()) at->second.stored = true;
      }
    }
  }

  void TakePart(const PartId& part_id, const PartReport& part) {
    const auto& [id, writer] = part_id;
    if (!Counts(part_id, part) || record_.Forbids(id.step, id.attempt)) return;
    // A report's parts of one checkpoint stand together.
    if (last_ == nullptr || last_->first != id) last_ = &*parts_.try_emplace(id).first;
    Parts& parts = last_->second;
    parts.least_world = std::min(parts.least_world, part.world_size);
    parts.most_world = std::max(parts.most_world, part.world_size);
    const auto [at, first] = parts.writers.try_emplace(writer);
    WriterParts& of_writer = at->second;
    if (first) of_writer.digest = part.digest;
    of_writer.disputed |= part.digest != of_writer.digest;
    of_writer.bytes = std::max(of_writer.bytes, part.bytes);
    if (part.in_memory) ++(part.role == PartRole::kFetched ? of_writer.fetched : of_writer.kept);
    if (part.names == nullptr) return;
    const bool another = of_writer.names.empty() || *of_writer.names.back() != *part.names;
    if (another) of_writer.names.push_back(part.names.get());
  }

  static std::string Conflict(const Parts& parts) {
    if (parts.least_world != parts.most_world) {
      return WorldConflict(parts.least_world, parts.most_world);
    }
    std::vector<std::pair<uint64_t, Writer>> claims;
    for (const auto& [writer, of_writer] : parts.writers) {
      if (of_writer.disputed) return DigestConflict(writer);
      for (const std::vector<uint64_t>* names : of_writer.names) {
        for (const uint64_t name : *names) claims.emplace_back(name, writer);
      }
    }
    std::sort(claims.begin(), claims.end());
    claims.erase(std::unique(claims.begin(), claims.end()), claims.end());
    std::optional<std::pair<Writer, Writer>> lowest;
    for (size_t i = 1; i < claims.size(); ++i) {
      // A third writer of a name makes no pair that is lower than that of its first two.
      if (claims[i].first != claims[i - 1].first) continue;
      const std::pair pair(claims[i - 1].second, claims[i].second);
      if (!lowest.has_value() || pair < *lowest) lowest = pair;
    }
    return lowest.has_value() ? NameConflict(lowest->first, lowest->second) : "";
  }

  static CheckpointVerdict Judge(const Parts& parts) {
    CheckpointVerdict verdict;
    verdict.world_size = parts.World();
    verdict.stored = parts.stored;
    verdict.conflict = Conflict(parts);
    int least = parts.writers.begin()->second.Copies();
    std::vector<absl::string_view> digests;
    digests.reserve(parts.writers.size());
    for (const auto& [writer, of_writer] : parts.writers) {
      verdict.bytes += static_cast<int64_t>(of_writer.bytes);
      least = std::min(least, of_writer.Copies());
      digests.push_back(of_writer.digest);
    }
    const bool all = parts.Lacking() == 0;
    verdict.complete = verdict.conflict.empty() && (all || parts.stored);
    if (verdict.complete && all) {
      verdict.digest = CheckpointDigest(digests);
      verdict.in_memory = least > 0;
      verdict.replicas = std::max(0, least - 1);
    }
    return verdict;
  }

  void DrawLine() {
    std::set<Attempt> attempts;
    for (const auto& [attempt, origin] : record_.attempts) attempts.insert(attempt);
    for (const JobReport* report : heard_) {
      for (const auto& [attempt, said] : report->attempts) attempts.insert(attempt);
    }
    for (const auto& [id, parts] : parts_) attempts.insert(id.attempt);
    for (const Attempt attempt : attempts) {
      std::vector<OriginSaid> said;
      for (const JobReport* report : heard_) {
        const auto at = report->attempts.find(attempt);
        if (at == report->attempts.end()) continue;
        said.push_back({RunsWriter0(*report, attempt), &at->second});
      }
      const auto recorded = record_.attempts.find(attempt);
      const Line::Origin origin =
          MergeOrigins(recorded == record_.attempts.end() ? nullptr : &recorded->second, said);
      history_.attempts[attempt] = {origin.first, origin.lineage, {}};
    }
    history_.decisions = record_.Decided();
    for (const auto& [id, checkpoint] : verdict_.checkpoints) {  // revisions ascend: the last stays
      if (CanBeHad(checkpoint)) history_.attempts[id.attempt].complete[id.step] = id.revision;
    }
    verdict_.head = HeadOf(history_);
    for (const LineStep& step : ComputeLine(history_)) {
      line_.push_back({step.step, step.attempt, step.revision});
    }
    if (!line_.empty()) verdict_.latest = line_.back();
  }

  void FindHopeless() {
    Prospects prospects{gathering_.final, !gathering_.silent.empty(), 0, 0};
    for (const auto& [attempt, line] : history_.attempts) {
      prospects.begun = std::max(prospects.begun, attempt);
      if (!line.complete.empty()) prospects.shown = std::max(prospects.shown, attempt);
    }
    for (auto& [id, checkpoint] : verdict_.checkpoints) {
      const Parts& parts = parts_.at(id);
      if (checkpoint.complete || !checkpoint.conflict.empty() || parts.Lacking() == 0) continue;
      int64_t expected = 0, unknown = 0;
      for (Writer writer = 0; writer < parts.World(); ++writer) {
        if (parts.writers.contains(writer)) continue;
        Outlook outlook(id.step, id.revision);
        for (const JobReport* report : heard_) {
          const auto at = report->writers.find({id.attempt, {parts.World(), writer}});
          if (at != report->writers.end()) outlook.Hear(at->second);
        }
        if (!outlook.mentioned()) ++unknown;
        if (outlook.expected()) ++expected;
      }
      checkpoint.hopeless = IsHopeless(id.attempt, expected, unknown, prospects);
    }
  }

  void Protect() {
    const int asked = verdict_.asked;
    const auto satisfied = [&](const CheckpointId& id) {
      return IsSatisfied(verdict_.checkpoints.at(id), asked);
    };
    const auto newest = std::find_if(line_.rbegin(), line_.rend(), satisfied);
    if (newest != line_.rend()) verdict_.protect = *newest;
    if (asked == 0 && newest == line_.rend()) verdict_.protect = verdict_.latest;
    std::set<CheckpointId> named;
    for (const JobReport* report : heard_) {
      if (report->target.has_value()) named.insert(*report->target);
    }
    for (const CheckpointId& id : line_) {
      if (!named.contains(id) || satisfied(id) || IsBehind(id, verdict_.protect)) continue;
      verdict_.target = id;
      return;
    }
    if (verdict_.latest.has_value() && !satisfied(*verdict_.latest)) {
      verdict_.target = verdict_.latest;
    }
  }

  const Gathering& gathering_;
  const JobRecord& record_;
  const RingShape& ring_;
  std::vector<const JobReport*> heard_;  // by rank
  std::optional<JobPolicy> policy_;
  std::map<CheckpointId, Parts> parts_;
  std::pair<const CheckpointId, Parts>* last_ = nullptr;  // that the part before is of
  History history_;
  std::vector<CheckpointId> line_;
  JobVerdict verdict_;
};

}  // namespace

RingShape RingShape::Of(const RingOptions& options) {
  return {std::max(1, static_cast<int>(options.members.size())), options.replicas};
}

JobVerdict View(const std::string& job, const Gathering& gathering, const JobRecord& record,
                const RingShape& ring) {
  return Viewing(job, gathering, record, ring).Run();
}

std::string WorldConflict(int32_t least, int32_t most) {
  return absl::StrCat("world_size is ", least, " for some writers and ", most, " for others");
}

std::string DigestConflict(Writer writer) {
  return absl::StrCat("writer ", writer, " is reported with different manifests");
}

std::string NameConflict(Writer one, Writer other) {
  return absl::StrCat("writers ", one, " and ", other, " claim the same name");
}

Line::Origin MergeOrigins(const JobRecord::Origin* recorded, const std::vector<OriginSaid>& said) {
  // What each says, from the one whose word counts most on.
  std::vector<std::pair<Step, const Lineage*>> words;
  if (recorded != nullptr) words.emplace_back(recorded->first, &recorded->lineage);
  for (const bool writer_0 : {true, false}) {
    for (const OriginSaid& one : said) {
      if (one.writer_0 == writer_0) words.emplace_back(one.said->first, &one.said->lineage);
    }
  }
  Line::Origin origin{kNoStep, Lineage::OfUnknown()};
  for (const auto& [first, lineage] : words) {
    if (origin.first == kNoStep) origin.first = first;
    const bool knows_more = origin.lineage.open &&
                            (!lineage->open || (origin.lineage.Unknown() && !lineage->Unknown()));
    if (knows_more) origin.lineage = *lineage;
  }
  return origin;
}

int AskedFor(const JobRecord& record, const std::optional<JobPolicy>& reported,
             const RingShape& ring) {
  int32_t replicas = kRingsReplicas;
  if (record.policy_stamp.version > 0) {
    replicas = record.policy.replicas;
  } else if (reported.has_value()) {
    replicas = reported->replicas;
  }
  if (replicas == kRingsReplicas) replicas = ring.replicas;
  return std::clamp(replicas, 0, ring.members - 1);
}

bool IsHopeless(Attempt attempt, int64_t expected, int64_t unknown, const Prospects& prospects) {
  if (!prospects.final) return false;
  if (attempt < prospects.shown) return true;
  return expected == 0 && (unknown == 0 || (!prospects.silent && attempt < prospects.begun));
}

std::string WhyOf(const JobVerdict& verdict, const JobRecord& record, const RingShape& ring) {
  std::string why;
  const auto& [attempt, step] = record.highest_protected;
  const Step latest = verdict.latest.has_value() ? verdict.latest->step : kNoStep;
  const bool moved_back =
      attempt > 0 && !record.Forbids(step, attempt) &&
      (verdict.head.number < attempt ||
       (verdict.head.number == attempt && !verdict.head.decided && latest < step));
  if (moved_back) {
    why = absl::StrCat("step ", step, " of attempt ", attempt,
                       " was protected and cannot be had now");
  }
  const int others = ring.members - 1 - static_cast<int>(verdict.silent.size());
  if (verdict.target.has_value() && others < verdict.asked) {
    absl::StrAppend(&why, why.empty() ? "" : "; ", verdict.asked, " replicas are asked for, and ",
                    std::max(0, others), " other members answer");
  }
  if (!why.empty() && !verdict.silent.empty()) {
    absl::StrAppend(&why, "; silent: ", absl::StrJoin(verdict.silent, ", "));
  }
  return why;
}

}  // namespace cairn::engine
