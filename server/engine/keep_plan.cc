#include "server/engine/keep_plan.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/engine/attempts.h"

namespace cairn::engine {
namespace {

// Abandoned files are deleted by a look at storage that is not older.
constexpr MonotonicNanos kLookAge = 600 * kNanosPerSecond;

std::string Words(KeepReason reason, const JobPolicy& policy);

// What goes, now or later.
void AddTo(PolicyPreview* preview, const PlannedFiles& files, const JobPolicy& policy,
           int64_t grace_over_unix_ms) {
  const uint64_t bytes = files.checkpoint->content->bytes;
  ++(files.Goes() ? preview->go_now : preview->go_later);
  (files.Goes() ? preview->bytes_now : preview->bytes_later) += bytes;
  if (preview->files.size() == kMostFatesNamed) return;
  const int64_t after = files.reason == KeepReason::kGrace ? grace_over_unix_ms : 0;
  preview->files.push_back(
      {files.checkpoint->key, bytes, files.Goes(), after, Words(files.reason, policy)});
}

class Planning {
 public:
  Planning(const Job& job, const JobPolicy& policy, const Options& options,
           const Standing& standing, MonotonicNanos now)
      : job_(job),
        policy_(policy),
        options_(options),
        standing_(standing),
        now_(now),
        head_(standing.Head(job)),
        newest_(standing.Newest(job)) {}

  KeepPlan Run() {
    const bool any = policy_.keep_last > 0 && options_.storage;
    FindPersisted();
    attempts_ = &counted_;
    if (any) gone_on_from_ = GoneOnFrom();
    const std::optional<KeepReason> hold = any ? Hold() : std::nullopt;
    plan_.files.reserve(persisted_.size());
    for (Checkpoint* checkpoint : persisted_) {
      if (checkpoint->files->deleting) continue;
      PlannedFiles files{checkpoint, any ? Reason(*checkpoint) : KeepReason::kNoKeepLast};
      if (hold.has_value() && (files.Goes() || files.GoesLater())) files.reason = *hold;
      plan_.files.push_back(files);
    }
    return std::move(plan_);
  }

  // As PreviewOf what Run finds.
  PolicyPreview RunPreview() {
    const KeepIndex& index = job_.standing->keep;
    PolicyPreview preview;
    preview.stay = static_cast<uint64_t>(index.files());
    if (policy_.keep_last <= 0 || !options_.storage) return preview;
    attempts_ = &index.attempts();
    if (index.surplus().empty() && index.abandoned().empty()) return preview;
    gone_on_from_ = GoneOnFrom();
    const std::optional<KeepReason> hold = Hold();
    const KeepReason of_surplus = hold.value_or(KeepReason::kSurplus);
    KeepReason of_abandoned = KeepReason::kAbandoned;
    if (!index.abandoned().empty()) of_abandoned = OfAbandoned();
    if (hold.has_value()) of_abandoned = *hold;
    std::map<CheckpointId, KeepReason> going;
    for (const CheckpointId& id : index.surplus()) going.emplace(id, of_surplus);
    for (const CheckpointId& id : index.abandoned()) going.emplace(id, of_abandoned);
    for (const auto& [id, reason] : going) {
      if (gone_on_from_.contains({id.step, id.attempt, 0})) continue;
      --preview.stay;
      AddTo(&preview, {CheckpointOf(job_, id), reason}, policy_, plan_.grace_over_unix_ms);
    }
    return preview;
  }

  Deletions RunDeletions() {
    Deletions deletions;
    if (policy_.keep_last <= 0 || !options_.storage) return deletions;
    const KeepIndex& index = job_.standing->keep;
    attempts_ = &index.attempts();
    const std::optional<KeepReason> hold = Hold();
    if (!index.surplus().empty() || !index.abandoned().empty()) {
      gone_on_from_ = GoneOnFrom();
      const int64_t surplus = ThatMayGo(index.surplus());
      const int64_t abandoned = ThatMayGo(index.abandoned());
      deletions.all = surplus + abandoned;
      const bool for_good = abandoned > 0 && OfAbandoned() == KeepReason::kAbandoned;
      if (!hold.has_value()) {
        if (for_good) AddDeletions(index.abandoned(), &deletions);
        AddDeletions(index.surplus(), &deletions);
        std::sort(deletions.now.begin(), deletions.now.end(),
                  [](const Checkpoint* a, const Checkpoint* b) { return a->Id() > b->Id(); });
      }
      deletions.unread = deletions.all > 0 && hold == KeepReason::kUnread;
    }
    deletions.look = plan_.look;
    return deletions;
  }

 private:
  // Of these so many, for some may be what a life goes on from.
  int64_t ThatMayGo(const std::set<CheckpointId>& files) const {
    auto count = static_cast<int64_t>(files.size());
    for (const CheckpointId& from : gone_on_from_) {
      for (auto at = files.lower_bound(from); at != files.end() && IsOf(from, *at); ++at) --count;
    }
    return count;
  }
  void AddDeletions(const std::set<CheckpointId>& files, Deletions* deletions) const {
    for (const CheckpointId& id : files) {
      if (gone_on_from_.contains({id.step, id.attempt, 0})) continue;
      deletions->now.push_back(CheckpointOf(job_, id));
    }
  }
  // Whatever its revision.
  static bool IsOf(const CheckpointId& origin, const CheckpointId& id) {
    return id.step == origin.step && id.attempt == origin.attempt;
  }

  // In one walk, for there may be thousands.
  void FindPersisted() {
    persisted_.reserve(job_.files->persisted.size());
    const auto& all = job_.steps->all;
    for (auto at = all.rbegin(); at != all.rend(); ++at) {
      if (!at->second->files->persisted) continue;
      persisted_.push_back(at->second.get());
      KeepIndex::OfAttempt& of_attempt = counted_[at->first.attempt];
      ++of_attempt.files;
      if (standing_.OnLine(*at->second)) ++of_attempt.on_line;
    }
  }

  // Why nothing at all is deleted now.
  std::optional<KeepReason> Hold() {
    // Whoever has just decided by hand what counts is not done with it.
    if (head_.decided) return KeepReason::kDecision;
    // What a life goes on from may be anything as long as it is not known.
    if (!Attempts::OriginsKnown(job_)) return KeepReason::kOrigin;
    // Also while it is tried once more, and while what has come is merged.
    const bool in_part = job_.scan->merging || job_.scan->unread_up_to != kNoStep;
    if (job_.scan->state == ScanState::kFailed || in_part) return KeepReason::kUnread;
    // A life elsewhere is newer than all that have begun here. What it has published by now counts.
    const bool elsewhere = job_.attempts->newest_recorded() > job_.attempts->newest();
    if (elsewhere && job_.scan->read < job_.files->persisted_at) {
      plan_.look = true;
      return KeepReason::kNotLooked;
    }
    return std::nullopt;
  }

  KeepReason Reason(const Checkpoint& checkpoint) {
    const bool newest = &checkpoint == newest_;
    if (newest) ++kept_;
    if (newest) return KeepReason::kNewest;
    if (*checkpoint.pinned) return KeepReason::kPinned;
    const bool abandoned = standing_.Abandoned(checkpoint);
    // What took the place of an older revision on the line takes its files, too.
    if (!abandoned && !standing_.OnLine(checkpoint)) return KeepReason::kAmongNewest;
    if (!abandoned && ++kept_ <= policy_.keep_last) return KeepReason::kAmongNewest;
    if (gone_on_from_.contains({checkpoint.key.step, checkpoint.key.attempt, 0})) {
      return KeepReason::kGoneOnFrom;
    }
    if (abandoned) {
      if (!of_abandoned_.has_value()) of_abandoned_ = OfAbandoned();
      return *of_abandoned_;
    }
    const bool spared = policy_.keep_every > 0 && checkpoint.key.step % policy_.keep_every == 0;
    return spared ? KeepReason::kKeepEvery : KeepReason::kSurplus;
  }

  // Whether the life that left them is there to stay.
  KeepReason OfAbandoned() {
    if (head_.number == 0 || head_.decided) return KeepReason::kYoung;
    const AttemptState& attempt = job_.attempts->begun.at(head_.number);
    if (attempt.lineage.Full()) return KeepReason::kLineIsLong;
    const auto own = attempts_->find(head_.number);
    if (own == attempts_->end() || own->second.on_line < policy_.keep_last) {
      return KeepReason::kYoung;
    }
    return AfterGrace(attempt.recorded_unix_ms);
  }

  // By what storage shows now, and by storage's own clock, which no node's clock that jumps can hurry.
  KeepReason AfterGrace(int64_t recorded_ms) {
    const JobScan& scan = *job_.scan;
    const bool known = recorded_ms != 0 && scan.storage_unix_ms != 0;
    plan_.look = known ? now_ - scan.read > kLookAge : scan.read <= job_.files->persisted_at;
    if (plan_.look || !known) return KeepReason::kNotLooked;
    const int64_t now_ms = scan.storage_unix_ms + (now_ - scan.read) / kNanosPerMilli;
    const int64_t over_ms = recorded_ms + options_.keep_abandoned_seconds * 1000;
    if (now_ms >= over_ms) return KeepReason::kAbandoned;
    plan_.grace_over_unix_ms = over_ms;
    return KeepReason::kGrace;
  }

  // A life that has just gone back is not done with what it went back to: the origins, revisions left
  // out, of every attempt with fewer than keep_last files of its own.
  std::set<CheckpointId> GoneOnFrom() const {
    const Attempt newest = attempts_->empty() ? 0 : attempts_->rbegin()->first;
    std::set<CheckpointId> from;
    for (const auto& [number, attempt] : job_.attempts->begun) {
      const auto own = attempts_->find(number);
      if (own != attempts_->end() && own->second.files >= policy_.keep_last) continue;
      from.insert({attempt.lineage.step(), attempt.lineage.attempt(), 0});
    }
    // One that has begun on another node, and is newer than all that have files.
    for (const auto& [number, lineage] : job_.attempts->elsewhere) {
      if (number > newest) from.insert({lineage.step(), lineage.attempt(), 0});
    }
    for (const auto& [number, decision] : job_.attempts->decisions) {
      if (number > head_.number || head_.decided) {
        from.insert({decision.lineage.step(), decision.lineage.attempt(), 0});
      }
    }
    return from;
  }

  const Job& job_;
  const JobPolicy& policy_;
  const Options& options_;
  const Standing& standing_;
  const MonotonicNanos now_;
  const LineHead head_;
  const Checkpoint* const newest_;
  std::vector<Checkpoint*> persisted_;               // highest step first
  std::map<Attempt, KeepIndex::OfAttempt> counted_;  // by a walk
  const std::map<Attempt, KeepIndex::OfAttempt>* attempts_ = nullptr;
  std::set<CheckpointId> gone_on_from_;
  std::optional<KeepReason> of_abandoned_;
  int64_t kept_ = 0;  // of the line
  KeepPlan plan_;
};

bool AreEqual(const PolicyPreview& one, const PolicyPreview& other) {
  const auto sums = [](const PolicyPreview& of) {
    return std::tuple(of.stay, of.go_now, of.go_later, of.bytes_now, of.bytes_later);
  };
  return sums(one) == sums(other) &&
         std::equal(one.files.begin(), one.files.end(), other.files.begin(), other.files.end(),
                    [](const FilesFate& a, const FilesFate& b) {
                      return std::tie(a.key, a.bytes, a.now, a.after_unix_ms, a.why) ==
                             std::tie(b.key, b.bytes, b.now, b.after_unix_ms, b.why);
                    });
}

// Why files go, in words.
std::string Words(KeepReason reason, const JobPolicy& policy) {
  const int64_t last = policy.keep_last;
  switch (reason) {
    case KeepReason::kSurplus:
      return absl::StrCat("older than the newest ", last);
    case KeepReason::kAbandoned:
      return "abandoned";
    case KeepReason::kDecision:
      return "once a step is saved after the `use` or `resume`";
    case KeepReason::kOrigin:
      return "once storage tells where every attempt comes from";
    case KeepReason::kUnread:
      return "once storage can be read";
    case KeepReason::kYoung:
      return absl::StrCat("abandoned: once the newest attempt has ", last, " persisted steps");
    case KeepReason::kLineIsLong:
      return "perhaps abandoned: the line is too long to tell";
    case KeepReason::kNotLooked:
      return "abandoned: once storage has been read anew";
    case KeepReason::kGrace:
      return "abandoned: once its grace is over";
    default:
      return "";  // it stays
  }
}

}  // namespace

KeepPlan PlanKeep(const Job& job, const JobPolicy& policy, const Options& options,
                  const Standing& standing, MonotonicNanos now) {
  return Planning(job, policy, options, standing, now).Run();
}

Deletions PlanDeletions(const Job& job, const Options& options, const Standing& standing,
                        MonotonicNanos now) {
  return Planning(job, job.owner->policy, options, standing, now).RunDeletions();
}

std::string CheckDeletions(const Job& job, const Options& options, const Standing& standing,
                           MonotonicNanos now) {
  const KeepPlan plan = PlanKeep(job, job.owner->policy, options, standing, now);
  Deletions due{.look = plan.look};
  for (const PlannedFiles& files : plan.files) {
    if (files.Goes()) due.now.push_back(files.checkpoint);
    if (files.Goes() || files.GoesLater()) ++due.all;
    due.unread = due.unread || files.reason == KeepReason::kUnread;
  }
  if (PlanDeletions(job, options, standing, now) != due) {
    return absl::StrCat("job ", job.name, ": what its policy deletes is not what a walk finds");
  }
  if (!AreEqual(PreviewOf(job, options, standing, now), PreviewOf(plan, job.owner->policy))) {
    return absl::StrCat("job ", job.name, ": what its policy is said to do is not what it does");
  }
  return "";
}

PolicyPreview PreviewOf(const KeepPlan& plan, const JobPolicy& policy) {
  PolicyPreview preview;
  for (auto at = plan.files.rbegin(); at != plan.files.rend(); ++at) {
    if (at->Goes() || at->GoesLater()) {
      AddTo(&preview, *at, policy, plan.grace_over_unix_ms);
    } else {
      ++preview.stay;
    }
  }
  return preview;
}

PolicyPreview PreviewOf(const Job& job, const Options& options, const Standing& standing,
                        MonotonicNanos now) {
  return Planning(job, job.owner->policy, options, standing, now).RunPreview();
}

}  // namespace cairn::engine
