#include "server/node/found_parts.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/removed.h"
#include "server/engine/restored.h"

namespace cairn::node {
namespace {

uint64_t Pages(uint64_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

bool IsRange(const fact::StepRemoved& removed) {
  return removed.first_attempt >= 1 && removed.first_attempt <= removed.up_to_attempt;
}

std::set<SlabId> SlabsOf(const PartTable& table) {
  std::set<SlabId> slabs;
  for (const ExtentRef& extent : table.extents) slabs.insert(extent.slab);
  return slabs;
}

// What facts say that speaks against a part, and what a part that joins them needs not say again.
class Known {
 public:
  Known(const std::vector<Fact>& facts, const std::vector<Fact>& behind,
        const std::vector<FoundPart>& found)
      : said_(facts), removed_(said_.removed) {
    for (const Fact& fact : facts) TakeEarlier(fact);
    for (const Fact& fact : behind) TakeBehind(fact);
    for (const FoundPart& part : found) owners_[part.head().job].insert(part.head().owner_uid);
    for (const auto& [job, said] : said_.jobs) owners_[job] = {said.owner_uid};
  }

  // Why the part does not count; empty: nothing speaks against it.
  std::string Against(const FoundPart& part, const HeldMemory& memory) const {
    const Manifest& head = part.head();
    if (forgotten_.contains(head.job)) return "its job was forgotten";
    if (owners_.at(head.job) != std::set<uint32_t>{head.owner_uid}) {
      return absl::StrCat("whether uid ", head.owner_uid, " owns its job is not known");
    }
    const auto removed = removed_.find(head.job);
    if (removed != removed_.end() && removed->second.Forbids(head.step, head.attempt)) {
      return "its step was removed";
    }
    if (gone_.contains(head.Part())) return "it has left memory";
    const auto record = records_behind_.find(head.Part());
    if (record != records_behind_.end() && record->second != part.extent) {
      return "another record of it was the last";
    }
    const auto own = said_.slabs.find(part.extent.slab);
    if (own != said_.slabs.end() && own->second.use != fact::SlabUse::kManifests) {
      return absl::StrCat("slab ", part.extent.slab, " was not kept for manifests");
    }
    for (const ExtentRef& extent : part.record.table->extents) {
      std::string problem = Against(extent, head, memory);
      if (!problem.empty()) return problem;
    }
    return "";
  }

  bool KnowsSlab(SlabId slab) const { return said_.slabs.contains(slab); }
  bool KnowsOwner(SlabId slab) const {
    const auto at = said_.slabs.find(slab);
    return at != said_.slabs.end() && !at->second.owner_job.empty();
  }
  const std::map<PartKey, engine::Restored::Committed>& committed() const {
    return said_.committed;
  }
  // How many writers the step has, 0: that is not known.
  int32_t WorldOf(const CheckpointKey& key) const {
    const auto world = said_.worlds.find({key.job, key.attempt, key.step});
    if (world != said_.worlds.end()) return world->second.world_size;
    const auto part = said_.committed.lower_bound(PartKey{key, 0});
    const bool known = part != said_.committed.end() && part->first.checkpoint == key;
    return known ? part->second.fact.world_size : 0;
  }
  bool KnowsJob(const std::string& job) const { return said_.jobs.contains(job); }
  bool KnowsAttempt(const std::string& job, Attempt attempt) const {
    return said_.attempts.contains({job, attempt});
  }
  // What was said of them behind the damage; nullptr: nothing.
  const fact::Job* JobBehind(const std::string& job) const {
    const auto at = jobs_behind_.find(job);
    return at == jobs_behind_.end() ? nullptr : &at->second;
  }
  const fact::AttemptBegun* AttemptBehind(const std::string& job, Attempt attempt) const {
    const auto at = attempts_behind_.find({job, attempt});
    return at == attempts_behind_.end() ? nullptr : &at->second;
  }

 private:
  void TakeEarlier(const Fact& fact) {
    if (const auto* committed = std::get_if<fact::PartCommitted>(&fact)) {
      gone_.erase(committed->part);
    } else if (const auto* begun = std::get_if<fact::Job>(&fact)) {
      forgotten_.erase(begun->job);
    } else {
      TakeLoss(fact);
    }
  }
  void TakeBehind(const Fact& fact) {
    if (const auto* job = std::get_if<fact::Job>(&fact)) {
      jobs_behind_[job->job] = *job;
      owners_[job->job].insert(job->owner_uid);
    } else if (const auto* committed = std::get_if<fact::PartCommitted>(&fact)) {
      gone_.erase(committed->part);
      records_behind_[committed->part] = committed->extent;
    } else if (const auto* begun = std::get_if<fact::AttemptBegun>(&fact)) {
      attempts_behind_[{begun->job, begun->attempt}] = *begun;
    } else if (const auto* removed = std::get_if<fact::StepRemoved>(&fact)) {
      if (!IsRange(*removed)) return;
      removed_[removed->job].steps[removed->step].Add(removed->first_attempt,
                                                      removed->up_to_attempt);
    } else {
      TakeLoss(fact);
    }
  }
  void TakeLoss(const Fact& fact) {
    if (const auto* dropped = std::get_if<fact::PartDropped>(&fact)) {
      gone_.insert(dropped->part);
    } else if (const auto* left = std::get_if<fact::PartLeftSlab>(&fact)) {
      gone_.insert(left->part);
    } else if (const auto* gone = std::get_if<fact::SlabGone>(&fact)) {
      slabs_gone_.insert(gone->slab);
    } else if (const auto* forgotten = std::get_if<fact::JobForgotten>(&fact)) {
      forgotten_.insert(forgotten->job);
    }
  }

  std::string Against(const ExtentRef& extent, const Manifest& head,
                      const HeldMemory& memory) const {
    const auto held = memory.slabs.find(extent.slab);
    if (held == memory.slabs.end() || slabs_gone_.contains(extent.slab)) {
      return absl::StrCat("slab ", extent.slab, " is gone");
    }
    if (held->second.use != fact::SlabUse::kObjects || extent.offset > held->second.bytes ||
        extent.length > held->second.bytes - extent.offset) {
      return absl::StrCat("slab ", extent.slab, " is not one that has its objects");
    }
    const auto said = said_.slabs.find(extent.slab);
    if (said == said_.slabs.end() || said->second.owner_job.empty()) return "";
    const bool same =
        said->second.owner_job == head.job && said->second.owner_uid == head.owner_uid;
    return same ? "" : absl::StrCat("slab ", extent.slab, " is another's");
  }

  const engine::Restored said_;
  std::map<std::string, RemovedSteps> removed_;
  std::set<PartKey> gone_;
  std::set<SlabId> slabs_gone_;
  std::set<std::string> forgotten_;
  std::map<std::string, std::set<uint32_t>> owners_;  // all that are named
  std::map<PartKey, ExtentRef> records_behind_;       // the last of each part
  std::map<std::string, fact::Job> jobs_behind_;
  std::map<std::pair<std::string, Attempt>, fact::AttemptBegun> attempts_behind_;
};

// Which part has which slab, the latest word of each.
class Claims {
 public:
  struct Claim {
    PartKey part;
    int64_t unix_ms = 0;
  };
  void Add(const PartKey& part, int64_t unix_ms, const std::set<SlabId>& slabs) {
    for (SlabId slab : slabs) slabs_[slab] = {part, unix_ms};
  }
  // The parts that have any of the slabs.
  std::map<PartKey, int64_t> Of(const std::set<SlabId>& slabs) const {
    std::map<PartKey, int64_t> parts;
    for (SlabId slab : slabs) {
      const auto at = slabs_.find(slab);
      if (at != slabs_.end()) parts[at->second.part] = at->second.unix_ms;
    }
    return parts;
  }
  void Remove(const PartKey& part) {
    std::erase_if(slabs_, [&](const auto& at) { return at.second.part == part; });
  }

 private:
  std::map<SlabId, Claim> slabs_;
};

Status VerifyBytes(const PartTable& table, const HeldMemory& memory) {
  for (size_t i = 0; i < table.entries.size(); ++i) {
    const ObjectEntry& entry = *table.entries[i];
    CAIRN_ASSIGN_OR_RETURN(const std::vector<uint32_t> crcs,
                           memory.crcs(table.extents[i], entry.length, entry.block_bytes));
    if (crcs != entry.block_crcs) return absl::DataLossError("its memory was written over");
  }
  return absl::OkStatus();
}

// Joins one part after the other to the facts, the latest first.
class Joiner {
 public:
  Joiner(const Known& known, const HeldMemory& memory,
         const std::map<PartKey, std::shared_ptr<const PartTable>>& tables,
         std::vector<Fact>* facts)
      : known_(known), memory_(memory), tables_(tables), facts_(*facts) {
    for (const auto& [key, committed] : known.committed()) {
      const auto table = tables.find(key);
      if (table == tables.end()) continue;  // its record does not verify: it is lost
      claims_.Add(key, table->second->head.created_unix_ms,
                  {committed.fact.slabs.begin(), committed.fact.slabs.end()});
      there_.insert(key);
    }
  }

  // Why it does not join; empty: it has, or was there.
  std::string Join(const FoundPart& part) {
    const Manifest& head = part.head();
    if (there_.contains(head.Part())) return "";
    if (std::string problem = known_.Against(part, memory_); !problem.empty()) return problem;
    if (std::string problem = CheckWorld(head); !problem.empty()) return problem;
    const std::set<SlabId> slabs = SlabsOf(*part.record.table);
    const std::map<PartKey, int64_t> others = claims_.Of(slabs);
    for (const auto& [other, unix_ms] : others) {
      if (unix_ms >= head.created_unix_ms) {
        return absl::StrCat("its memory is that of ", other.DebugString(), " now");
      }
    }
    if (Status status = VerifyBytes(*part.record.table, memory_); !status.ok()) {
      return std::string(status.message());
    }
    for (const auto& [other, unix_ms] : others) LetGo(other);
    Say(part, slabs);
    return "";
  }

  const std::vector<PartKey>& joined() const { return joined_; }

 private:
  std::string CheckWorld(const Manifest& head) const {
    const auto joined = worlds_.find({head.job, head.attempt, head.step});
    const int32_t world =
        joined != worlds_.end() ? joined->second : known_.WorldOf(head.Checkpoint());
    if (world == 0 || world == head.world_size) return "";
    return absl::StrCat("it is of ", head.world_size, " writers, its step of ", world);
  }

  // Its memory was another part's since.
  void LetGo(const PartKey& part) {
    const auto& entries = tables_.at(part)->entries;
    facts_.push_back(fact::PartDropped{part, entries.empty() ? "" : entries.front()->name});
    claims_.Remove(part);
    there_.erase(part);
  }

  void Say(const FoundPart& part, const std::set<SlabId>& slabs) {
    const Manifest& head = part.head();
    const std::string& job = head.job;
    if (!known_.KnowsJob(job) && jobs_said_.insert(job).second) {
      const fact::Job* behind = known_.JobBehind(job);
      facts_.push_back(
          behind != nullptr ? *behind : fact::Job{job, head.owner_uid, part.record.owner_gid, {}});
    }
    if (!known_.KnowsAttempt(job, head.attempt)) SayAttempt(head);
    worlds_[{job, head.attempt, head.step}] = head.world_size;
    facts_.push_back(fact::StepWorld{job, head.attempt, head.step, head.world_size, {}, 0});
    if (!known_.KnowsSlab(part.extent.slab)) {
      facts_.push_back(fact::Slab{part.extent.slab, memory_.slabs.at(part.extent.slab).bytes,
                                  fact::SlabUse::kManifests});
    }
    for (SlabId slab : slabs) {
      if (known_.KnowsOwner(slab)) continue;
      facts_.push_back(fact::Slab{slab, memory_.slabs.at(slab).bytes, fact::SlabUse::kObjects,
                                  head.owner_uid, job});
    }
    facts_.push_back(fact::PartCommitted{head.Part(),
                                         head.world_size,
                                         part.extent,
                                         part.record.manifest_bytes,
                                         part.record.digest,
                                         {slabs.begin(), slabs.end()}});
    claims_.Add(head.Part(), head.created_unix_ms, slabs);
    there_.insert(head.Part());
    joined_.push_back(head.Part());
  }

  // What writer 0's latest manifest says counts, else what the latest does.
  void SayAttempt(const Manifest& head) {
    const auto [said, fresh] = said_by_.try_emplace({head.job, head.attempt}, head.writer);
    if (!fresh && (head.writer != 0 || said->second == 0)) return;
    said->second = head.writer;
    const fact::AttemptBegun* behind = known_.AttemptBehind(head.job, head.attempt);
    facts_.push_back(behind != nullptr ? *behind
                                       : fact::AttemptBegun{head.job, head.attempt, head.first,
                                                            head.lineage, head.created_unix_ms});
  }

  const Known& known_;
  const HeldMemory& memory_;
  const std::map<PartKey, std::shared_ptr<const PartTable>>& tables_;
  std::vector<Fact>& facts_;
  Claims claims_;
  std::set<PartKey> there_;
  std::set<std::string> jobs_said_;
  std::map<std::pair<std::string, Attempt>, Writer> said_by_;
  std::map<std::tuple<std::string, Attempt, Step>, int32_t> worlds_;
  std::vector<PartKey> joined_;
};

}  // namespace

void JoinLosses(const std::vector<Fact>& behind, std::vector<Fact>* facts) {
  for (const Fact& fact : behind) {
    const auto* removed = std::get_if<fact::StepRemoved>(&fact);
    const bool sound = removed == nullptr || IsRange(*removed);
    if (sound && (removed != nullptr || std::holds_alternative<fact::PartDropped>(fact) ||
                  std::holds_alternative<fact::PartLeftSlab>(fact))) {
      facts->push_back(fact);
    }
  }
  const engine::Restored said(*facts);
  for (const auto& [part, committed] : said.committed) {
    const CheckpointKey& key = part.checkpoint;
    const auto removed = said.removed.find(key.job);
    if (removed == said.removed.end() || !removed->second.Forbids(key.step, key.attempt)) continue;
    facts->push_back(fact::PartDropped{part, ""});
  }
}

std::vector<FoundPart> FindParts(const HeldMemory& memory, uint64_t secret,
                                 std::vector<std::string>* problems) {
  std::vector<FoundPart> found;
  for (const auto& [id, slab] : memory.slabs) {
    if (slab.use != fact::SlabUse::kManifests) continue;
    const StatusOr<std::string> bytes = memory.read({id, 0, slab.bytes}, slab.bytes);
    if (!bytes.ok()) {
      problems->push_back(absl::StrCat("slab ", id, ": ", bytes.status().message()));
      continue;
    }
    for (uint64_t at = 0; at < bytes->size();) {
      std::optional<SealedRecord> record =
          FindSealedRecord(absl::string_view(*bytes).substr(at), {secret, id, at});
      const uint64_t length = record.has_value() ? Pages(record->bytes) : kPageBytes;
      if (record.has_value()) found.push_back({*std::move(record), {id, at, length}});
      at += length;
    }
  }
  return found;
}

std::vector<PartKey> JoinFoundParts(
    std::vector<FoundPart> found, const std::vector<Fact>& behind, const HeldMemory& memory,
    const std::map<PartKey, std::shared_ptr<const PartTable>>& tables, std::vector<Fact>* facts,
    std::vector<std::string>* problems) {
  std::sort(found.begin(), found.end(), [](const FoundPart& a, const FoundPart& b) {
    const auto rank = [](const FoundPart& part) {
      return std::make_tuple(part.head().created_unix_ms, part.head().Part());
    };
    return rank(b) < rank(a);
  });
  const Known known(*facts, behind, found);
  Joiner joiner(known, memory, tables, facts);
  for (const FoundPart& part : found) {
    const std::string problem = joiner.Join(part);
    if (problem.empty()) continue;
    problems->push_back(absl::StrCat(part.head().Part().DebugString(), ": ", problem));
  }
  return joiner.joined();
}

}  // namespace cairn::node
