// What the members of a ring say, as far as the classes of a job's checkpoints depend on it.
#include <utility>

#include "server/engine/evict_class.h"
#include "server/engine/own_parts.h"
#include "server/engine/standing.h"

namespace cairn::engine {

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
  says.protect = verdict.protect;
  says.target = verdict.target;
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
  if (any || before.fresh != now.fresh) {
    for (const auto& [id, checkpoint] : all) {
      if (any || checkpoint->standing->held.replicas > 0) checkpoint->Touch();
    }
  }
  for (const auto& id : {before.target, now.target, before.left, now.left}) {
    if (id.has_value() && all.contains(*id)) all.at(*id)->Touch();
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
