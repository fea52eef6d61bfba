// What the owner of a job decided (`resume`, `use`, `rm`, pins, its policy, `persist`) counts with every member:
// each tells the others what it knows, when it changes, when one comes, and again every few seconds. Decisions
// only add up (job_record.h), so they may arrive in any order and any number of times; a member that was away
// learns what was removed before anything of it is asked for again.
//
// A decision is acknowledged when two journals have it: while another member is up, the answer is held back until
// one says that it has journaled the job's record as it was then. It says so
// (peer::RecordHeld) in the event whose facts are the record's, and no action leaves before its facts are
// journaled. A member with which something else counts answers with its own record. If that has a later policy, the
// caller's is said anew, once.
//
// A record with nothing but a policy is journaled by members that know the job, and by the first three live ones in
// HomeOrder. A member that has nothing else of the job tells it only when it changes and to members that come: told in
// turn, a job of which nothing is left would never be forgotten.
//
// Invariants:
//   1. An answer that is held back leaves once: when another member has the record, when none is up, at the
//      call's deadline (as an error), at once (as an error) when max_waiting wait already, or when its session ends
//      or nobody reads it any more.
//   2. Numbers of a job's record only grow, also across daemons, so an answer to an older daemon's is of none of
//      this one's decisions.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "server/engine/job_record.h"
#include "server/engine/members.h"
#include "server/engine/retention.h"

namespace cairn::engine {

class Decisions : public RingWatcher {
 public:
  using Changed = std::function<void(const std::string& job, const JobRecord& record)>;

  Decisions(const Options& options, Outbox* out, const Members* members, Jobs* jobs,
            Attempts* attempts, Persistence* persistence, Retention* retention);
  // This node's record of a job is another one now.
  void set_changed(Changed changed) { changed_ = std::move(changed); }
  // The job is forgotten here.
  void set_forgotten(std::function<void(const std::string&)> call) { forgotten_ = std::move(call); }
  // Older attempts are to be fenced.
  void set_newer_attempt(std::function<void(Job*)> call) { newer_attempt_ = std::move(call); }
  // Another member knows that a step was protected.
  using LearnSafe = std::function<void(Job*, const std::pair<Attempt, Step>&)>;
  void set_learn_safe(LearnSafe learn) { learn_safe_ = std::move(learn); }
  void Start() { last_number_ = out_.NextId() << 32; }

  // Something of the job was touched; what was decided may have changed.
  void Look(const std::string& job) { due_.insert(job); }
  void On(const MemberId& from, const peer::Record& said);
  void On(const MemberId& from, const peer::RecordHeld& said);
  // `again`: a second has passed; what calls wait for is told again. `whole`: so is all the rest.
  void Run(bool again, bool whole);

  // Whether a call waits here for what the ring knows of the job.
  void set_awaited(std::function<bool(const std::string&)> call) { awaited_ = std::move(call); }
  // A call that decides came, or comes again: its answer will wait for a second journal. `deadline`: nullopt where it
  // carries none; then it waits for other members for kPatience, and for the second journal at least for kAtLeast.
  // `policy`: what it says.
  void Decided(const Caller& caller, const std::string& job, std::optional<MonotonicNanos> deadline,
               const JobPolicy* policy);
  std::optional<MonotonicNanos> DeadlineOf(RequestId request) const;  // nullopt: it decides nothing
  static constexpr MonotonicNanos kPatience = 10 * kNanosPerSecond;
  static constexpr MonotonicNanos kAtLeast = 3 * kNanosPerSecond;
  // Says this node's record of the job to that member, and wants no answer.
  void TellOf(const std::string& job, Rank to);
  void SessionEnds(SessionId session);
  void CallerLeft(RequestId request);
  // Of the answers among `actions` takes out those that have to wait, and adds those that may leave now.
  void HoldBack(std::vector<Action>* actions);
  MonotonicNanos next() const;  // the first deadline of the answers that are held back
  size_t held_back() const { return held_.size(); }

  void MemberCame(Rank rank) override;

  // What is decided here; false: nothing is.
  bool RecordOf(const Job& job, JobRecord* record) const;

 private:
  // What a record is made of, to see at each event whether it is another one.
  struct Looked {
    uint64_t removed = 0;  // JobTombstones::changes
    bool owned = false;
    JobPolicy policy;
    Stamp said;
    std::vector<std::tuple<Attempt, int64_t, int64_t>> decisions;  // number, time, version
    std::map<CheckpointId, JobRecord::Pin> pins;
    std::set<CheckpointId> asked;
    std::pair<Attempt, Step> safe;
    bool operator==(const Looked&) const = default;
  };
  struct Told {
    Looked looked;
    std::string encoded, decided;   // the latter without how far protection came
    bool policy_only = false;       // no decision, removal, pin or persist
    uint64_t number = 0;            // of `decided`
    std::map<Rank, uint64_t> held;  // by members, up to this number
  };
  struct Held {
    SessionId session = 0;
    std::string job;
    MonotonicNanos deadline = 0;
    bool carried = false;                 // by the call
    std::optional<uint64_t> number;       // that another member has to hold; nullopt: not told yet
    std::optional<JobPolicy> policy;      // that it says
    std::optional<action::Reply> answer;  // once it is there
    bool left = false;                    // nobody waits for a second journal any more
  };

  // Whether this node keeps what the record says.
  bool Keeps(const std::string& job, const JobRecord& record) const;
  // Whether the record's decisions are this node's, too.
  static bool Holds(const Job& job, const JobRecord& record);
  void Learn(Job* job, const JobRecord& record);
  static Looked LookAt(const Job& job);
  // True: it is another one than before.
  bool TellOne(const std::string& name);
  // Members are many: who tells all of them walks over them, and nobody else does.
  void TellAll(const std::string& job, const Told& told);
  void Tell(Rank to, const std::string& job, const Told& told);
  void HearPolicy(Job* job, const JobRecord& record);
  bool MayLeave(const Held& held) const;
  bool SecondHolds(const std::string& job, uint64_t number) const;
  void Number(Held* held, const std::set<std::string>& just_told);

  const Options& options_;
  Outbox& out_;
  const Members& members_;
  Jobs& jobs_;
  Attempts& attempts_;
  Persistence& persistence_;
  Retention& retention_;
  Changed changed_;
  std::function<void(const std::string&)> forgotten_;
  std::function<void(Job*)> newer_attempt_;
  LearnSafe learn_safe_;
  std::function<bool(const std::string&)> awaited_;
  uint64_t last_number_ = 0;
  std::set<std::string> due_;
  std::set<Rank> came_;
  std::map<std::string, Told> told_;  // by job
  std::map<RequestId, Held> held_;
};

}  // namespace cairn::engine
