// Attempts of a job: which may go on, which begins and from where, which process is which writer; and
// what was decided about its line.
//
// Changes Job::attempts. Says fact::AttemptBegun, WriterProcess, StepWorld, LineDecided.
//
// Invariant: what is remembered as dropped is bounded, of the newest attempt, and not there again.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "server/engine/records.h"
#include "server/engine/sessions.h"
#include "server/engine/standing.h"

namespace cairn::engine {

// Of lives of which memory has nothing, the newest that the journal is told of: what it may cost does not
// grow with the lives that a job has had. The others are known from storage, as after a fresh start.
inline constexpr size_t kJournaledLives = 16;

class Attempts {
 public:
  Attempts(const Options& options, Outbox* out, Jobs* jobs, Sessions* sessions, Standing* standing,
           Records* records)
      : options_(options),
        out_(*out),
        jobs_(*jobs),
        sessions_(*sessions),
        standing_(*standing),
        records_(*records) {}

  // --- what an attempt may do
  // Whether `attempt` may go on, or begin: superseded_by is set when not.
  static Status CheckFence(const Job& job, Attempt attempt, Attempt* superseded_by);
  // Of an attempt that has not begun, whoever chose its number.
  Status CheckBound(const Job& job, Attempt attempt) const;
  // In a ring: the clock of the member that is the furthest ahead, in Unix ms.
  void set_ring_clock(std::function<int64_t()> clock) { ring_clock_ = std::move(clock); }
  // Whether the session's process is the writer. `world_size`: as its call says, 0 where it does not.
  Status CheckProcess(const Job& job, const PartKey& part, int32_t world_size,
                      const Session& session) const;
  // Of a step that is entered: the attempt goes on from before it.
  static Status CheckOrigin(const Job& job, const CheckpointKey& key);
  static Status CheckWorld(const Job& job, const PartKey& part, int32_t world_size);
  static Status CheckRefused(const Job& job, const CheckpointKey& key);
  // Whether the part is remembered as dropped; the name of an object it held, else nullptr.
  static const std::string* FindDropped(const Job& job, const PartKey& part);

  // --- what it does
  // A number above all that are known, and the clock's.
  Attempt Choose(Job* job, int64_t unix_ms);
  void Saw(Job* job, Attempt attempt);
  // `resume` and `use`; older ones than the kKeptDecisions newest are forgotten.
  void Decide(Job* job, Attempt number, Decision decision);
  // Begins the attempt if it has not begun, and registers writer and process. All checks passed. True: it has just
  // begun, and the caller fences the older ones (Admission::Fence).
  [[nodiscard]] bool Enter(Job* job, const PartKey& part, int32_t world_size,
                           const Session& session);
  // The step, which is in memory from now on, has so many writers; with one it is this process's.
  void TakeStep(Job* job, const PartKey& part, int32_t world_size, const Session& session);
  // The newest attempt has just begun, and older ones can complete nothing more: forgets those that
  // left nothing behind, and what was dropped of the others.
  void ForgetOlder(Job* job);
  void Refuse(Job* job, const CheckpointKey& key, const Status& why);
  void RememberDropped(const PartKey& part, const std::string& object);
  void ForgetDropped(const PartKey& part);  // it is begun anew
  // The part's writer will not commit it. `session` is that writer's.
  void Withdraw(const PartKey& part, int32_t world_size, const Session& session);
  void CheckpointMade(Job* job, const CheckpointKey& key);
  void CheckpointGone(Job* job, const CheckpointKey& key);
  // The session is in its job now: a process that had ended its last one is back.
  void Joined(const Session& session) { Notice(session, /*ends=*/false); }
  // Attempts in which the session created something, which no other live session of this node did.
  std::set<std::pair<std::string, Attempt>> EndSession(SessionId session);

  // --- what storage tells
  // An attempt that storage shows, with what storage alone says where it comes from.
  void Learn(Job* job, Attempt attempt, const AttemptLine& shown, int64_t unix_ms);
  // A decision that storage shows.
  void Learn(Job* job, const LineRecord& record, int64_t unix_ms);
  // By storage's own clock.
  static void OriginRecorded(Job* job, Attempt attempt, int64_t unix_ms);
  // A record that storage holds counts, whatever was assumed here.
  void Adopt(Job* job, const LineRecord& record);
  // Storage was read: those that began before it could be come from the line as it is known now.
  void SettleOrigins(Job* job);
  // All members of the ring have said what they know of the job, or are lost.
  bool RingAnswered(const Job& job) const;
  static bool OriginsKnown(const Job& job);

  void Restore(const Restored& restored);
  // What is left out is known from storage only, and is found there again.
  static bool InSnapshot(const Job& job, const AttemptState& attempt);
  void RestoreSessions();  // which attempts each live session is a writer of
  void RestoreReached();   // the parts are there
  void Snapshot(const Job& job, Attempt number, const AttemptState& attempt,
                std::vector<Fact>* facts) const;
  void SnapshotWriter(const Job& job, Attempt number, const WorldWriter& writer,
                      std::vector<Fact>* facts) const;
  void SnapshotWorld(const Job& job, Attempt number, Step step, std::vector<Fact>* facts) const;
  void SnapshotDecisions(const Job& job, std::vector<Fact>* facts) const;
  // `writes`: whether the part is being written and holds objects.
  std::string CheckInvariants(const Job& job,
                              const std::function<bool(const PartKey&)>& writes) const;

 private:
  static void Remember(Job* job, Attempt number, Decision decision);
  void Say(const Job& job, AttemptState* attempt);
  static bool AmongNewest(const Job& job, Attempt number);  // kJournaledLives
  static bool HasMemory(const Job& job, const AttemptState& attempt);
  void SetOrigin(Job* job, Attempt attempt, Lineage lineage);
  Status CheckOwner(const Job& job, const PartKey& part, const StepWorld& world,
                    const Session& session) const;
  bool HasLiveSession(const Job& job, const ProcessToken& process, SessionId besides = 0) const;
  // Which writers of the newest attempt its process is: they are there, or not any more.
  void Notice(const Session& session, bool ends);
  // What a writer leaves behind may be garbage now, and is not any more when it comes back.
  static void TouchIncomplete(Job* job, Attempt attempt);

  const Options& options_;
  Outbox& out_;
  Jobs& jobs_;
  Sessions& sessions_;
  Standing& standing_;
  Records& records_;

  std::map<SessionId, std::set<std::pair<std::string, Attempt>>> entered_;
  std::function<int64_t()> ring_clock_ = [] { return int64_t{0}; };
};

}  // namespace cairn::engine
