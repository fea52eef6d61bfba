// Files that go by policy, compared with rules 17 and 21 of docs/line.md.
#include <algorithm>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/sim/checks.h"
#include "tests/sim/node.h"
#include "tests/sim/world.h"

namespace cairn::engine::sim {
namespace {

// What the node knows of one job, for one deletion.
class Deletion {
 public:
  Deletion(const Node& node, const CheckpointKey& key)
      : node_(node),
        key_(key),
        history_(node.HistoryOf(key.job)),
        line_(ComputeLine(history_)),
        head_(HeadOf(history_)) {
    for (const auto& [of_job, number] : node.last.began_after) {
      if (of_job == key.job) history_.attempts.erase(number);
    }
    const auto job = node.mirror.jobs.find(key.job);
    if (job != node.mirror.jobs.end()) policy_ = job->second.policy;
  }

  // "" when it may go; else why not.
  std::string WhyNot() const {
    if (policy_.keep_last <= 0) return "the job has no keep_last";
    if (const std::string unknown = UnknownOrigin(); !unknown.empty()) return unknown;
    if (node_.mirror.pinned.contains(key_)) return "it is pinned";
    const std::optional<CheckpointKey> latest = node_.LatestNow(key_.job);
    if (latest && *latest == key_) return "it is the newest complete one";
    if (const std::string young = ComeFromByYoung(); !young.empty()) return young;
    const auto on_line = std::find_if(line_.begin(), line_.end(),
                                      [&](const LineStep& at) { return at.step == key_.step; });
    const bool of_its_attempt = on_line != line_.end() && on_line->attempt == key_.attempt;
    if (!of_its_attempt) return WhyNotAbandoned();
    if (on_line->revision != key_.revision) return "";
    return WhyNotOnLine();
  }

 private:
  bool IsStored(const LineStep& at) const {
    return node_.known_stored.contains({key_.job, at.step, at.attempt, at.revision});
  }

  std::string UnknownOrigin() const {
    for (const auto& [number, attempt] : history_.attempts) {
      if (!attempt.lineage.open || !node_.Matters(key_.job, number)) continue;
      return absl::StrCat("it is not known where attempt ", number, " comes from");
    }
    return "";
  }

  int64_t FilesOf(Attempt attempt) const {
    return std::count_if(
        node_.known_stored.begin(), node_.known_stored.end(),
        [&](const CheckpointKey& key) { return key.job == key_.job && key.attempt == attempt; });
  }

  std::string ComeFromByYoung() const {
    const auto comes_from_it = [&](const Lineage& lineage) {
      return lineage.step() == key_.step && lineage.attempt() == key_.attempt;
    };
    for (const auto& [number, attempt] : history_.attempts) {
      if (!comes_from_it(attempt.lineage) || !node_.Matters(key_.job, number)) continue;
      if (FilesOf(number) < policy_.keep_last) {
        return absl::StrCat("attempt ", number, " comes from it and has few files yet");
      }
    }
    for (const auto& [number, lineage] : history_.decisions) {
      const bool counts = number > head_.number || (number == head_.number && head_.decided);
      if (counts && comes_from_it(lineage)) return absl::StrCat(number, " was decided for it");
    }
    return "";
  }

  std::string WhyNotOnLine() const {
    const auto newer = std::count_if(line_.begin(), line_.end(), [&](const LineStep& at) {
      return at.step > key_.step && IsStored(at);
    });
    if (newer < policy_.keep_last) {
      return absl::StrCat("only ", newer, " newer ones of the line are in storage");
    }
    if (policy_.keep_every > 0 && key_.step % policy_.keep_every == 0) {
      return "keep_every names it";
    }
    return "";
  }

  std::string WhyNotAbandoned() const {
    if (head_.number == 0 || head_.decided) return "a decision is the head, not an attempt";
    const auto own = std::count_if(line_.begin(), line_.end(), [&](const LineStep& at) {
      return at.attempt == head_.number && IsStored(at);
    });
    if (own < policy_.keep_last) {
      return absl::StrCat("attempt ", head_.number, " left it and has only ", own,
                          " steps of its own in storage");
    }
    const Storage& storage = node_.world.storage;
    const auto recorded = storage.OriginRecordedMs(key_.job, head_.number);
    if (!recorded) return absl::StrCat("the origin of attempt ", head_.number, " is not recorded");
    const int64_t age_ms = storage.UnixMs() - *recorded;
    if (age_ms < node_.options.keep_abandoned_seconds * 1000) {
      return absl::StrCat("attempt ", head_.number, ", which left it, has its origin recorded ",
                          age_ms, " ms ago");
    }
    const bool at_once = node_.options.keep_abandoned_seconds == 0;
    node_.world.report.Count(at_once ? "abandoned files deleted"
                                     : "abandoned files deleted after a grace");
    return "";
  }

  const Node& node_;
  const CheckpointKey& key_;
  History history_;
  const std::vector<LineStep> line_;
  const LineHead head_;
  JobPolicy policy_;
};

}  // namespace

void CheckOtherNodesOrigin(const Node& node, const action::DeleteFiles& deletion) {
  const CheckpointKey& key = deletion.checkpoint;
  const std::optional<OtherLife>& life = node.world.other_life;
  if (deletion.tombstone || !life.has_value() || life->job != key.job) return;
  const StatusOr<LineNumbers> numbers = node.world.storage.Numbers(key.job);
  const bool newest = numbers.ok() && numbers->published == life->attempt;
  if (!newest || life->lineage.step() != key.step || life->lineage.attempt() != key.attempt) return;
  node.world.report.Fail(absl::StrCat("retention: the files of ", key.DebugString(),
                                      " are deleted, and attempt ", life->attempt,
                                      " of another node goes on from it"));
}

void CheckSomethingStays(const Node& node, const action::DeleteFiles& deletion) {
  if (deletion.tombstone) return;
  const std::vector<CheckpointKey> published = node.world.storage.AllPublished();
  const bool any = std::any_of(published.begin(), published.end(), [&](const CheckpointKey& key) {
    return key.job == deletion.checkpoint.job;
  });
  if (any) return;
  node.world.report.Fail(absl::StrCat("retention: the files of ", deletion.checkpoint.DebugString(),
                                      " were deleted by policy, and the job has no others"));
}

void CheckDeletionByPolicy(const Node& node, const CheckpointKey& key) {
  if (node.last.changed.contains(key.job)) {
    return node.world.report.Count("deletions by policy that nobody can judge");
  }
  const std::string why_not = Deletion(node, key).WhyNot();
  if (why_not.empty()) return node.world.report.Count("files given up by policy");
  node.world.report.Fail(
      absl::StrCat("retention: the files of ", key.DebugString(), " are deleted: ", why_not));
}

void CheckOriginsKnown(const Node& node) {
  for (const auto& [job, attempts] : node.mirror.attempts) {
    for (const auto& [number, begun] : attempts) {
      if (!begun.lineage.open || !node.Matters(job, number)) continue;
      return node.world.report.Fail(
          absl::StrCat("retention: storage can be read, yet it is not known where attempt ", number,
                       " of ", job, " comes from"));
    }
  }
}

}  // namespace cairn::engine::sim
