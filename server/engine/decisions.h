// What the owner of a job decided (`resume`, `use`, `rm`) counts with every member: each tells the others
// what it knows, when it changes, when one comes, and again every few seconds. Decisions only add up
// (job_record.h), so they may arrive in any order and any number of times; a member that was away learns
// what was removed before anything of it is asked for again.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>

#include "server/engine/job_record.h"
#include "server/engine/members.h"
#include "server/engine/retention.h"

namespace cairn::engine {

class Decisions : public RingWatcher {
 public:
  using Changed = std::function<void(const std::string& job, const JobRecord& record)>;

  Decisions(Outbox* out, const Members* members, Jobs* jobs, Attempts* attempts,
            Retention* retention);
  // This node's record of a job is another one now.
  void set_changed(Changed changed) { changed_ = std::move(changed); }

  // Something of the job was touched; what was decided may have changed.
  void Look(const std::string& job) { due_.insert(job); }
  void On(const peer::Record& said);
  void Run(bool whole);

  void MemberCame(Rank rank) override { came_.insert(rank); }

  // What is decided here; false: nothing is.
  bool RecordOf(const Job& job, JobRecord* record) const;

 private:
  void TellAll(const std::set<Rank>& to, const std::string& job, const std::string& encoded);

  Outbox& out_;
  const Members& members_;
  Jobs& jobs_;
  Attempts& attempts_;
  Retention& retention_;
  Changed changed_;
  std::set<std::string> due_;
  std::set<Rank> came_;
  std::map<std::string, std::string> told_, decided_;        // encoded
  std::map<std::string, std::pair<Attempt, Step>> highest_;  // ever protected, by job
};

}  // namespace cairn::engine
