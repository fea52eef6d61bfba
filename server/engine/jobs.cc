#include "server/engine/jobs.h"

#include "absl/strings/str_cat.h"
#include "server/engine/restored.h"

namespace cairn::engine {

Jobs::~Jobs() = default;

Job* Jobs::Find(const std::string& name) const {
  const auto at = jobs_.find(name);
  return at == jobs_.end() ? nullptr : at->second.get();
}

Job* Jobs::FindOrMake(const std::string& name) {
  std::unique_ptr<Job>& job = jobs_[name];
  if (job == nullptr) {
    job = std::make_unique<Job>(name, &changes_);
    job->owner.Edit().policy = options_.default_policy;
    maybe_forget_.insert(name);
  }
  return job.get();
}

Status Jobs::CheckAccess(const Job& job, const Caller& caller) {
  if (!job.owner->owned || caller.uid == job.owner->uid || caller.uid == 0) {
    return absl::OkStatus();
  }
  return absl::PermissionDeniedError(absl::StrCat(
      "job: ", job.name, " is owned by uid ", job.owner->uid, ", the caller is uid ", caller.uid));
}

void Jobs::Say(const Job& job) {
  const JobOwner& owner = *job.owner;
  out_.Say(
      fact::Job{job.name, owner.uid, owner.gid, owner.policy, owner.said.version, owner.said.rank});
}

void Jobs::TakeOwnership(Job* job, uint32_t uid, uint32_t gid,
                         const std::optional<JobPolicy>& policy, bool said) {
  if (job->owner->owned) return;
  JobOwner& owner = job->owner.Edit();
  owner.owned = true;
  if (policy.has_value()) owner.policy = *policy;
  if (policy.has_value() && said) owner.said = {1, options_.ring.rank};
  owner.uid = uid;
  owner.gid = gid;
  SetCounts(*job, true);
  Say(*job);
}

void Jobs::SetPolicy(Job* job, const JobPolicy& policy) {
  JobOwner& owner = job->owner.Edit();
  owner.policy = policy;
  owner.said = {owner.said.version + 1, options_.ring.rank};
  Say(*job);
}

bool Jobs::HearPolicy(Job* job, const JobPolicy& policy, const Stamp& said) {
  const JobOwner& known = *job->owner;
  if (!known.owned || said.version == 0) return false;  // a default is nobody's word
  if (!IsLater(policy, said, known.policy, known.said)) return false;
  JobOwner& owner = job->owner.Edit();
  owner.policy = policy;
  owner.said = said;
  Say(*job);
  return true;
}

// Such a job was only asked about: nothing was created in it and no session is in it.
void Jobs::ForgetUnused() {
  for (const std::string& name : std::exchange(maybe_forget_, {})) {
    Job* job = Find(name);
    if (job != nullptr && job->owner->owned && IsIdle(*job) && !idle_at_.contains(name)) {
      LookAgain(*job);
    }
    if (job == nullptr || job->owner->owned || !job->sessions->all.empty() ||
        !job->steps->all.empty() || !job->waits->requests.empty() || !job->scan->waiting.empty() ||
        job->scan->state == ScanState::kScanning || job->scan->stale > 0) {
      continue;
    }
    changes_.Forget(job);
    jobs_.erase(name);
  }
}

bool Jobs::IsIdle(const Job& job) {
  return job.sessions->all.empty() && job.steps->all.empty() && job.pins->empty() &&
         job.waits->requests.empty() && job.scan->waiting.empty() && job.files->under_way == 0;
}

// A job that was used meanwhile becomes idle anew, with another ten minutes to wait.
std::vector<Job*> Jobs::TakeIdle() {
  std::vector<Job*> idle;
  while (!idle_.empty() && idle_.begin()->first <= out_.now()) {
    const std::string name = idle_.begin()->second;
    idle_.erase(idle_.begin());
    idle_at_.erase(name);
    Job* job = Find(name);
    if (job == nullptr || !job->owner->owned || !IsIdle(*job)) continue;
    if (out_.now() - job->sessions->finished >= kIdleKept) {
      idle.push_back(job);
    } else {
      LookAgain(*job);
    }
  }
  return idle;
}

void Jobs::SetCounts(const Job& job, bool counts) {
  if (counts ? !counted_.insert(job.name).second : counted_.erase(job.name) == 0) return;
  if (counts) {
    owned_.Add(job.owner->uid);
  } else {
    owned_.Drop(job.owner->uid);
  }
}

void Jobs::LookAgain(const Job& job) {
  const MonotonicNanos at = out_.now() + kIdleKept;
  if (idle_at_.emplace(job.name, at).second) idle_.emplace(at, job.name);
}

void Jobs::Forget(Job* job) {
  out_.Say(fact::JobForgotten{job->name});
  SetCounts(*job, false);
  changes_.Forget(job);
  jobs_.erase(job->name);
}

void Jobs::Restore(const Restored& restored) {
  for (const auto& [name, fact] : restored.jobs) {
    JobOwner& owner = FindOrMake(name)->owner.Edit();
    owner.owned = true;
    owner.uid = fact.owner_uid;
    SetCounts(*Find(name), true);
    owner.gid = fact.owner_gid;
    owner.policy = fact.policy;
    owner.said = {fact.policy_version, fact.policy_rank};
    maybe_forget_.insert(name);
  }
}

void Jobs::Snapshot(const Job& job, std::vector<Fact>* facts) const {
  if (!job.owner->owned) return;
  const JobOwner& owner = *job.owner;
  facts->push_back(
      fact::Job{job.name, owner.uid, owner.gid, owner.policy, owner.said.version, owner.said.rank});
}

}  // namespace cairn::engine
