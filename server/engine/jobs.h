// Jobs by name: whose they are, and what their owner decided. A job comes into being when somebody
// names it, is owned from its first create, and is forgotten once nobody needs it.
//
// Changes Job::owner. Says fact::Job, JobForgotten.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "server/engine/model.h"
#include "server/engine/options.h"
#include "server/engine/outbox.h"
#include "server/engine/user_counts.h"

namespace cairn::engine {

struct Recovered;
struct Restored;

inline constexpr MonotonicNanos kIdleKept = 600 * kNanosPerSecond;

class Jobs {
 public:
  Jobs(const Options& options, Outbox* out, Changes* changes)
      : options_(options), out_(*out), changes_(*changes) {}
  ~Jobs();

  Job* Find(const std::string& name) const;
  Job* FindOrMake(const std::string& name);
  const std::map<std::string, std::unique_ptr<Job>>& all() const { return jobs_; }

  // Whether the caller may read and change it.
  static Status CheckAccess(const Job& job, const Caller& caller);
  // RESOURCE_EXHAUSTED when the user owns as many as he may.
  Status CheckRoom(const Job& job, uint32_t uid) const { return CheckRoom(job.name, &job, uid); }
  // The same of one that may not be known yet.
  Status CheckRoom(const std::string& name, const Job* job, uint32_t uid) const {
    if (counted_.contains(name)) return absl::OkStatus();
    const bool owned = job != nullptr && job->owner->owned;
    return owned_.CheckRoom(options_, options_.max_jobs, owned ? job->owner->uid : uid);
  }
  const UserCounts& owned() const { return owned_; }
  // One of which only storage has something does not count, nor in a ring one of which nothing is here.
  void SetCounts(const Job& job, bool counts);
  // Nothing happens when it is owned. `policy` is what the owner asked for, if anything; `said`: here.
  void TakeOwnership(Job* job, uint32_t uid, uint32_t gid, const std::optional<JobPolicy>& policy,
                     bool said = false);
  void SetPolicy(Job* job, const JobPolicy& policy);  // of an owned one
  // Another member says so. True: it counts now.
  bool HearPolicy(Job* job, const JobPolicy& policy, const Stamp& said);

  // Nobody may need it any more; ForgetUnused looks when the event is over.
  void MayForget(const std::string& name) { maybe_forget_.insert(name); }
  void ForgetUnused();
  // Owned ones that nobody has used for kIdleKept, and of which memory has nothing.
  std::vector<Job*> TakeIdle();
  void LookAgain(const Job& job);  // that is idle: after kIdleKept, counted anew
  void Forget(Job* job);           // says the fact
  MonotonicNanos next() const { return idle_.empty() ? kNever : idle_.begin()->first; }

  void Restore(const Restored& restored);
  void Snapshot(const Job& job, std::vector<Fact>* facts) const;

 private:
  static bool IsIdle(const Job& job);
  void Say(const Job& job);

  const Options& options_;
  Outbox& out_;
  Changes& changes_;

  std::map<std::string, std::unique_ptr<Job>> jobs_;
  UserCounts owned_{"jobs", "limits.jobs"};
  absl::flat_hash_set<std::string> counted_;  // jobs that owned_ counts
  std::set<std::string> maybe_forget_;
  // When to look at each that has become idle.
  std::map<std::string, MonotonicNanos> idle_at_;
  std::set<std::pair<MonotonicNanos, std::string>> idle_;
};

}  // namespace cairn::engine
