#include "tests/sim/checks.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/sim/node.h"
#include "tests/sim/trace.h"
#include "tests/sim/world.h"
#include "tests/support/line.h"

namespace cairn::engine::sim {
namespace {

// What one Apply says of why memory may be given up.
struct DropReasons {
  std::set<CheckpointKey> dropped;  // checkpoints that lose something of a committed part
  std::map<std::string, RemovedSteps> removed;
  std::set<std::string> removed_from_memory;  // jobs
  bool broke = false;                         // something did not verify
};

DropReasons ReasonsIn(const Node& node, const std::vector<Fact>& facts, const Event* event,
                      const Outcome& outcome) {
  DropReasons reasons;
  for (const Fact& fact : facts) {
    const PartKey* part = nullptr;
    if (const auto* object = std::get_if<fact::ObjectDropped>(&fact)) part = &object->part;
    if (const auto* dropped = std::get_if<fact::PartDropped>(&fact)) part = &dropped->part;
    if (const auto* left = std::get_if<fact::PartLeftSlab>(&fact)) part = &left->part;
    if (const auto* step = std::get_if<fact::StepRemoved>(&fact)) {
      reasons.removed[step->job].steps[step->step].Add(step->first_attempt, step->up_to_attempt);
    }
    if (part == nullptr) continue;
    const auto committed = node.mirror.manifests.find(part->checkpoint);
    if (committed != node.mirror.manifests.end() && committed->second.contains(part->writer)) {
      reasons.dropped.insert(part->checkpoint);
    }
  }
  for (const Action& action : outcome.actions) {
    const auto* reply = std::get_if<action::Reply>(&action);
    if (reply == nullptr || !reply->body.ok()) continue;
    const auto asked = node.calls.outstanding.find(reply->request);
    if (asked == node.calls.outstanding.end()) continue;
    const auto* remove = std::get_if<event::Remove>(&asked->second.event);
    if (remove != nullptr && remove->memory_only) {
      reasons.removed_from_memory.insert(remove->ref.job);
    }
  }
  const auto* verified = event == nullptr ? nullptr : std::get_if<event::Verified>(event);
  reasons.broke = verified != nullptr && !verified->status.ok();
  return reasons;
}

// Why a complete checkpoint may not leave memory; "" when it may.
std::string WhyItMustStay(const Node& node, const CheckpointKey& key) {
  const std::optional<CheckpointKey> latest = node.LatestNow(key.job);
  if (!latest || !(*latest == key)) return "";
  const Storage& storage = node.world.storage;
  if (!storage.Published(key) && !storage.TakenByHand(key)) {
    return "it is the newest, and nowhere else";
  }
  for (const auto& [session, begun] : node.mirror.sessions) {
    if (begun.job == key.job && begun.writer >= 0) return "it is a live job's newest";
  }
  return "";
}

// A newer attempt, or a later complete step of its own attempt.
bool LeftBehind(const Node& node, const CheckpointKey& key) {
  if (node.mirror.NewestAttempt(key.job) > key.attempt) return true;
  return std::any_of(node.world.promises.complete.begin(), node.world.promises.complete.end(),
                     [&](const auto& complete) {
                       const CheckpointKey& other = complete.first;
                       return other.job == key.job && other.attempt == key.attempt && key < other;
                     });
}

// Each writer that it lacks is on this node and has left the step behind: it has gone on, entered
// the step anew, was refused, or its session is over.
bool GivenUp(const Node& node, const CheckpointKey& key, const Event* event) {
  const auto committed = node.mirror.manifests.find(key);
  if (committed == node.mirror.manifests.end()) return false;
  const int32_t world_size = committed->second.begin()->second.world_size;
  const bool refused = node.world.promises.refused.contains(key);
  const auto* ended = event == nullptr ? nullptr : std::get_if<event::SessionEnded>(event);
  const SessionId ends = ended == nullptr ? 0 : ended->session;
  std::set<Writer> left;
  for (const auto& [writer, manifest] : committed->second) left.insert(writer);
  for (const Process& process : node.world.clients.processes) {
    if (node.world.clients.jobs[process.job].name != key.job || process.node != node.id ||
        process.attempt != key.attempt || process.writer < 0) {
      continue;
    }
    const auto entered = process.entered.find(key.step);
    const bool anew = entered != process.entered.end() && entered->second > key.revision + 1;
    const bool over = process.session == 0 || process.session == ends;
    if (refused || process.step > key.step || anew || over) left.insert(process.writer);
  }
  return static_cast<int32_t>(left.size()) == world_size;
}

}  // namespace

void NoteRefusals(Node* node, const Outcome& outcome) {
  for (const Action& action : outcome.actions) {
    const auto* reply = std::get_if<action::Reply>(&action);
    if (reply == nullptr || reply->body.ok()) continue;
    const auto asked = node->calls.outstanding.find(reply->request);
    if (asked == node->calls.outstanding.end()) continue;
    const auto* create = std::get_if<event::Create>(&asked->second.event);
    if (create != nullptr && absl::StartsWith(reply->body.status().message(), "memory:")) {
      node->world.promises.refused.insert(create->part.checkpoint);
    }
  }
}

void CheckDrops(const Node& node, const std::vector<Fact>& facts, const Event* event,
                const Outcome& outcome) {
  const DropReasons reasons = ReasonsIn(node, facts, event, outcome);
  Report& report = node.world.report;
  for (const CheckpointKey& key : reasons.dropped) {
    const auto rm = reasons.removed.find(key.job);
    if (rm != reasons.removed.end() && rm->second.Forbids(key.step, key.attempt)) continue;
    if (reasons.removed_from_memory.contains(key.job) || reasons.broke) continue;
    if (node.in_start && node.memory.manifest_flips > 0) continue;
    const std::string shown = absl::StrCat("promise 3: ", key.DebugString(), " leaves memory: ");
    if (node.in_start) {
      return report.Fail(shown + "the daemon's death is no reason (promise 7)");
    }
    const bool complete = node.world.promises.EverComplete(key);
    if (node.mirror.pinned.contains(key) && complete && node.KnownToBeHad(key)) {
      return report.Fail(shown + "it is pinned");
    }
    if (complete) {
      if (const std::string why = WhyItMustStay(node, key); !why.empty()) {
        return report.Fail(shown + why);
      }
    } else if (!LeftBehind(node, key) && GivenUp(node, key, event)) {
      report.Count("incomplete step given up");
    } else if (!LeftBehind(node, key)) {
      return report.Fail(shown + "it may still be completed by its other writers");
    }
  }
}

void CheckAttempt(const Node& node, const fact::AttemptBegun& begun, const Event* event) {
  if (event == nullptr) return;
  const auto attempts = node.mirror.attempts.find(begun.job);
  if (attempts != node.mirror.attempts.end() && attempts->second.contains(begun.attempt)) return;
  const PartKey* part = nullptr;
  if (const auto* create = std::get_if<event::Create>(event)) part = &create->part;
  if (const auto* commit = std::get_if<event::Commit>(event)) part = &commit->part;
  // Else one that had waited for storage went on.
  if (part == nullptr || part->checkpoint.job != begun.job) return;
  if (part->checkpoint.attempt != begun.attempt) return;
  // Not always this create's step: one that had waited may have gone on first.
  const Step first = begun.first_step;
  const auto decided = node.mirror.decisions.find({begun.job, begun.attempt});
  const bool was_decided = decided != node.mirror.decisions.end();
  if (begun.lineage.Unknown() && node.options.storage && !was_decided) return;
  const Lineage wanted = was_decided
                             ? decided->second.lineage
                             : LineageBelow(node.HistoryOf(begun.job), kEveryAttempt, first);
  if (begun.lineage != wanted) {
    node.world.report.Fail(absl::StrCat("promise 3: attempt ", begun.attempt, " of ", begun.job,
                                        " comes from ", OriginText(begun.lineage),
                                        ", the line says ", OriginText(wanted)));
  }
}

void CheckCallers(const Node& node) {
  Report& report = node.world.report;
  const auto& outstanding = node.calls.outstanding;
  if (static_cast<int64_t>(outstanding.size()) > node.options.max_waiting) {
    return report.Fail(absl::StrCat("promise 8: ", outstanding.size(),
                                    " callers wait, the limit is ", node.options.max_waiting));
  }
  MonotonicNanos first = kNoTime;
  for (const auto& [request, call] : outstanding) {
    const auto still_waits = [&, id = request] {
      return absl::StrCat("promise 4: request ", id, " (", Name(call.event), ") has no answer ");
    };
    if (call.deadline <= node.world.clock.now) {
      return report.Fail(still_waits() + "though its deadline has passed");
    }
    const Caller* caller = CallerOf(call.event);
    if (caller != nullptr && caller->session != 0 &&
        !node.mirror.sessions.contains(caller->session)) {
      return report.Fail(still_waits() + "though its session has ended");
    }
    // A commit has no deadline of its own: it waits for its manifest.
    if (!Is<event::Commit>(call.event)) first = std::min(first, call.deadline);
  }
  if (first != kNoTime && (node.wake_at == 0 || node.wake_at > first)) {
    report.Fail(absl::StrCat("promise 4: a caller waits until ", first,
                             ", but the engine wants to be woken at ", node.wake_at));
  }
}

void CheckPersisted(const Node& node) {
  Report& report = node.world.report;
  for (const auto& [key, digest] : node.mirror.persisted) {
    if (!node.world.storage.AccountsFor(key)) {
      return report.Fail(absl::StrCat("promise 1: ", key.DebugString(),
                                      " was acknowledged PERSISTED and is not in storage"));
    }
    const StatusOr<StoredCheckpoint> stored = node.world.storage.Read(key);
    if (stored.ok() && CheckpointDigest(stored->Digests()) != digest) {
      return report.Fail(
          absl::StrCat("promise 1: ", key.DebugString(), " stands in storage with other content"));
    }
  }
}

void CheckNothingUses(const Node& node, SlabId slab, const char* what) {
  if (!node.executor.Uses(slab)) return;
  node.world.report.Fail(
      absl::StrCat("pin: slab ", slab, " is ", what, " while an action uses it"));
}

namespace {

// "" when the extent may be lent to the process for writing.
std::string WrongGrant(Node* node, const Process& process, const reply::GrantedExtent& extent) {
  const auto at = node->memory.slabs.find(extent.slab);
  if (at == node->memory.slabs.end() || node->memory.making.contains(extent.slab)) {
    return absl::StrCat("slab ", extent.slab, " is lent, but it is not there");
  }
  SimSlab& slab = at->second;
  if (extent.offset + extent.length > slab.bytes || slab.bytes != extent.slab_bytes) {
    return absl::StrCat("an extent of slab ", extent.slab, " is beyond its end");
  }
  const std::pair<uint32_t, std::string> owner{process.uid,
                                               node->world.clients.jobs[process.job].name};
  if (slab.owner && *slab.owner != owner) {
    return absl::StrCat("promise 6: slab ", extent.slab, " of uid ", slab.owner->first, " job ",
                        slab.owner->second, " is lent to uid ", owner.first, " job ", owner.second);
  }
  slab.owner = owner;
  const std::string lent =
      absl::StrCat("promise 6: slab ", extent.slab, " is lent for writing while ");
  if (!slab.locks.empty() || !slab.by_path.empty()) return lent + "a reader still sees it";
  for (Holder holder : slab.maps) {
    if (holder != process.id) return absl::StrCat(lent, holder, " still maps it");
  }
  const auto fact = node->mirror.slabs.find(extent.slab);
  if (fact == node->mirror.slabs.end() || fact->second.use != fact::SlabUse::kObjects) {
    return absl::StrCat("slab ", extent.slab, " is lent for writing, the journal does not say so");
  }
  return "";
}

}  // namespace

void CheckGrant(Node* node, const Process& process, const reply::Create& create) {
  for (const reply::GrantedExtent& extent : create.extents) {
    if (std::string wrong = WrongGrant(node, process, extent); !wrong.empty()) {
      return node->world.report.Fail(std::move(wrong));
    }
    CheckNothingUses(*node, extent.slab, "lent");
  }
}

void CheckLatest(Node* node, const std::string& job, const StatusOr<reply::Body>& body) {
  Report& report = node->world.report;
  const std::optional<CheckpointKey> wanted = node->LatestNow(job);
  const std::string shown =
      absl::StrCat("promise 3: latest of ", job, " is ", wanted ? wanted->DebugString() : "nothing",
                   ", the answer was ");
  // Who has no time left is told what of the job is merged by then.
  const bool merging = node->MayBeMerging();
  if (!body.ok()) {
    const Status& status = body.status();
    if (absl::IsNotFound(status) && (merging || node->last.nothing_during.contains(job))) return;
    if (wanted && !absl::IsPermissionDenied(status) && !absl::IsUnavailable(status) &&
        !absl::IsResourceExhausted(status)) {
      report.Fail(shown + status.ToString());
    }
    return;
  }
  const auto& latest = std::get<reply::Latest>(*body);
  report.Count("latest");
  const auto during = node->last.latest_during.find(job);
  if (during != node->last.latest_during.end() && during->second.contains(latest.key)) return;
  if (merging && node->KnownToBeHad(latest.key)) return;
  // The scan that found it damaged is not merged yet.
  if (merging && node->world.storage.TakenByHand(latest.key)) return;
  if (!wanted || !(*wanted == latest.key)) return report.Fail(shown + latest.key.DebugString());
  if (const std::string wrong = node->WrongCheckpoint(latest.key);
      !wrong.empty() && !node->world.storage.AccountsFor(latest.key)) {
    return report.Fail("promise 3: latest names what can't be had: " + wrong);
  }
  Promises& promises = node->world.promises;
  if (latest.digest != promises.DigestOf(latest.key, latest.world_size) ||
      latest.world_size != promises.complete[latest.key]) {
    report.Fail(absl::StrCat("promise 2: latest names ", latest.key.DebugString(),
                             " with another digest or world"));
  }
}

void CheckInfo(const Node& node, const CheckpointInfo& info) {
  if (node.last.left.contains(info.key)) return;
  Report& report = node.world.report;
  const auto shown = [&](const char* promise, const char* as) {
    return absl::StrCat(promise, info.key.DebugString(), " is shown ", as);
  };
  if (info.facts.complete && !node.world.promises.EverComplete(info.key)) {
    return report.Fail(shown("promise 3: ", "complete, but never was"));
  }
  if (info.facts.persisted && !node.world.storage.AccountsFor(info.key)) {
    return report.Fail(shown("promise 1: ", "PERSISTED, but is not in storage"));
  }
  if (info.facts.persisted && !node.storage_here) {
    return report.Fail(shown("promise 1: ", "PERSISTED, while its storage is not there"));
  }
  // Of one without any objects, memory holds all there is.
  if (info.facts.complete && info.facts.resident && info.objects > 0 && !node.MemoryHas(info.key)) {
    return report.Fail(shown("promise 3: ", "resident, but is not in memory"));
  }
  if (info.facts.broken && node.memory.flips == 0 && node.memory.manifest_flips == 0 &&
      !node.world.storage.AccountsFor(info.key)) {
    return report.Fail(shown("promise 2: ", "broken, but no bit ever flipped: ") + info.why);
  }
}

void CheckHolds(const Node& node) {
  for (const Process& process : node.world.clients.processes) {
    if (process.node != node.id) continue;
    for (const auto& [lease, hold] : process.leases) {
      if (hold.slab == 0 || !node.memory.Locked(hold.slab, lease)) continue;
      const std::string wrong = node.memory.WrongBytes(hold.extent, hold.bytes);
      if (wrong.empty()) continue;
      return node.world.report.Fail(absl::StrCat("promise 6: process ", process.id,
                                                 " reads through lease ", lease, ": ", wrong));
    }
  }
}

}  // namespace cairn::engine::sim
