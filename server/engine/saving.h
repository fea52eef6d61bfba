// The calls of a writer: create, seal, commit, abort. What is checked, when a call is a repeat, and
// what a granted one gets.
#pragma once

#include <functional>
#include <vector>

#include "server/engine/admission.h"
#include "server/engine/manifests.h"
#include "server/engine/pool.h"
#include "server/engine/scanning.h"
#include "server/engine/succession.h"

namespace cairn::engine {

class Cluster;

class Saving : public Granter {
 public:
  Saving(const Options& options, const Mode& mode, Outbox* out, Callers* callers, Jobs* jobs,
         Sessions* sessions, Leases* leases, Ledger* ledger, Attempts* attempts, Parts* parts,
         Manifests* manifests, Admission* admission, Pool* pool, Scanning* scanning,
         Succession* succession, JournalRoom* journal);

  void On(const event::Create& event);
  void On(const event::SealObjects& event);
  void On(const event::Commit& event);
  void On(const event::Abort& event);
  void On(const event::ManifestWritten& event);

  // What a create costs the journal beyond what an earlier one of its part has set aside for it.
  uint64_t MoreJournalFor(const event::Create& event) const;

  // Every need has its slab, ready. Facts come before the reply that depends on them.
  void Grant(const event::Create& event, Checkpoint* checkpoint,
             const std::vector<Need>& needs) override;
  std::optional<StatusOr<Body>> InsteadOfGrant(const event::Create& event) override;

  // In a ring: where an attempt comes from, other members know too.
  void set_cluster(Cluster* cluster) { cluster_ = cluster; }
  // Whether a part is on its way straight into storage (storing.h).
  void set_being_stored(std::function<bool(const PartKey&)> being_stored) {
    being_stored_ = std::move(being_stored);
  }

  // --- what a writer who needs no memory shares with one who does
  struct Who {
    const Session* session = nullptr;
    Job* job = nullptr;
  };
  // Who is to write the part, once storage and the other members have said what they know of its job. nullopt: `again`
  // waits for that, or was answered.
  std::optional<Who> WhoWrites(const Caller& caller, const PartKey& part, MonotonicNanos deadline,
                               const Event& again);
  // Whether the writer may begin the part. False: `again`, which asks for what `create` tells, waits for an older attempt's
  // processes, or was answered.
  bool MayBegin(const event::Create& create, const Who& who, const Event& again);
  // It begins the part: the job has an owner, the attempt has begun, and what the writer left of the step is over.
  void Begin(const Caller& caller, const PartKey& part, int32_t world_size, const Who& who);
  // A manifest of the part, without its objects.
  static Manifest HeadOf(const Job& job, const PartKey& part, int32_t world_size,
                         const std::map<std::string, std::string>& notes, int64_t unix_ms);

 private:
  // --- create
  // Steps of the user may be given up for it, unless it could never fit.
  Status CheckJournal(const event::Create& event, const Job& job);
  Status MakeJournalRoom(uint32_t uid, uint64_t bytes);
  Status CheckCreate(const event::Create& event, const Job& job, const Session& session,
                     Attempt* superseded_by) const;
  Status CheckNames(const event::Create& event) const;
  Status CheckRevision(const Job& job, const PartKey& part) const;
  // The writer has entered the step again: what it began of it before and did not commit is over.
  void DropOlderRevisions(Job* job, const PartKey& part);
  // What the call was answered before; nullopt: it was not.
  std::optional<StatusOr<Body>> AnswerOfRepeat(const event::Create& event, Part* part,
                                               const Session& session);
  reply::Create GrantReply(const std::vector<Object*>& objects, const Session& session,
                           bool repeat);
  bool AwaitRing(const Caller& caller, const Job& job, Attempt attempt, MonotonicNanos deadline,
                 const Event& event);

  // --- seal, commit, abort
  // The session and the job, after all checks that the three share; false after answering why not.
  bool MayWrite(const Caller& caller, const PartKey& part, int32_t world_size,
                const Session** session, Job** job);
  // Of a part that is not there: whether it was, and held objects.
  Status CheckDropped(const Job& job, const PartKey& part) const;
  Status CheckCommit(const event::Commit& event, const Job& job, const Part* part,
                     Attempt* superseded_by) const;

  Cluster* cluster_ = nullptr;  // set once, before the first event, as is the next
  std::function<bool(const PartKey&)> being_stored_;
  const Options& options_;
  const Mode& mode_;
  Outbox& out_;
  Callers& callers_;
  Jobs& jobs_;
  Sessions& sessions_;
  Leases& leases_;
  Ledger& ledger_;
  Attempts& attempts_;
  Parts& parts_;
  Manifests& manifests_;
  Admission& admission_;
  Pool& pool_;
  Scanning& scanning_;
  Succession& succession_;
  JournalRoom& journal_;
};

}  // namespace cairn::engine
