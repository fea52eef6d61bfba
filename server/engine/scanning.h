// A job's storage is read when the job first matters, and again when the answer depends on it and another
// node may have written since: other nodes share the root. Until it was read, and when storage is away,
// memory answers alone. When storage comes, or comes back, all that was read before,
// or is said to be persisted, is read again.
//
// Changes Job::scan.
#pragma once

#include <functional>

#include "server/engine/callers.h"
#include "server/engine/journal_room.h"
#include "server/engine/merging.h"
#include "server/engine/persistence.h"
#include "server/engine/records.h"

namespace cairn::engine {

// How long a call that brings no deadline of its own waits for storage.
inline constexpr MonotonicNanos kScanPatience = 10 * kNanosPerSecond;

class Scanning : public Waitlist {
 public:
  // `again` handles a parked event once more.
  Scanning(const Options& options, const Mode& mode, const JournalRoom* journal, Outbox* out,
           Callers* callers, Jobs* jobs, Attempts* attempts, Persistence* persistence,
           Records* records, Merging* merging, std::function<void(const Event&)> again);

  // Parks the event until the job's storage has been read; false: no need to. What can do without
  // storage waits a little for it at most.
  bool Await(const Caller& caller, Job* job, MonotonicNanos deadline, const Event& event,
             bool can_do_without = false);
  // The same, for what is decided by storage: however young the view is, it is read once more. Another
  // node may just have deleted what is decided for.
  bool AwaitLook(const Caller& caller, Job* job, MonotonicNanos deadline, const Event& event,
                 bool can_do_without = false);
  // The same, for who has found nothing: another node may have it, also while a writer lives here.
  bool AwaitWhole(const Caller& caller, Job* job, MonotonicNanos deadline, const Event& event);
  void Start(Job* job);
  // It is read anew, whatever is known.
  void Look(Job* job);
  // The same, and a reading that is under way does not do.
  void LookFromNow(Job* job);
  // What is known of storage is as young as an answer may ask, which then need not say how old it is.
  bool Fresh(const Job& job) const;
  // A writer of the newest attempt lives here, and storage was read before. Another node changes what
  // counts by an attempt or a decision with a greater number, so the line records are listed, and
  // nothing else is read.
  bool WriterIsHere(const Job& job) const;
  // They are listed, unless they were lately; what they tell of is read.
  void LookAhead(Job* job);
  // The job's storage is read until that succeeds, whoever asks: an attempt waits to know where it
  // comes from.
  void Insist(Job* job);
  void ReadDue();
  MonotonicNanos next() const { return due_.empty() ? kNever : due_.begin()->first; }
  // The event under way has waited for storage long enough, and goes on with what memory knows.
  bool gave_up() const { return gave_up_; }
  // The job, readable by the caller, or nullptr after parking or answering. A job that nobody knows
  // may be in storage.
  Job* Readable(Sessions* sessions, const Caller& caller, const std::string& job,
                MonotonicNanos deadline, const Event& event, bool scan);

  // Begins to merge what storage holds. True: that tells of an attempt or a `use` that is newer than all
  // before; the older attempts are to be fenced.
  bool On(const event::JobScanned& event);
  // Goes on merging, so many checkpoints at most; it is called after each event, and soon when there is
  // more. The job of which all is merged now; the callers that waited go on with Resume, once all is in
  // order. nullptr: none.
  struct Taken {
    Job* job = nullptr;
    bool told = false;           // storage had something to tell
    bool newer_attempt = false;  // or `use`, has come since it began: to be fenced once more
  };
  Taken TakeIn(int* budget);
  bool IsMerging(const Job& job) const { return merging_.Has(job); }
  bool more_to_take_in() const { return merging_.more(); }
  // Whether the journal has room for what that tells.
  Status CheckJournal(const event::JobScanned& event) const;
  void Resume(Job* job);
  void On(const event::LineNumbersRead& event);

  // What Mode says of storage has changed: of each job.
  void StorageLeft(Job* job);
  void StorageCame(Job* job);

  void Left(const Parked& parked) override;
  void TimeUp(const Parked& parked) override;
  bool NothingHasBegun() const override { return true; }

 private:
  // Who waits for the line records alone. When that takes too long they go on, and may then wait for
  // all of storage.
  class LineWaits : public Waitlist {
   public:
    explicit LineWaits(Scanning* scanning) : scanning_(*scanning) {}
    void Left(const Parked& parked) override { scanning_.Left(parked); }
    void TimeUp(const Parked& parked) override { scanning_.GoOn(parked, &scanning_.line_gave_up_); }
    bool NothingHasBegun() const override { return true; }

   private:
    Scanning& scanning_;
  };

  // The event goes on with what memory knows; `gave_up` is set meanwhile.
  void GoOn(const Parked& parked, bool* gave_up);
  bool Await(const Caller& caller, Job* job, MonotonicNanos deadline, const Event& event,
             bool can_do_without, bool known);
  bool AwaitLine(const Caller& caller, Job* job, MonotonicNanos deadline, const Event& event);
  bool FailedLately(const Job& job) const;  // not to be read again yet
  // Whether a call of the caller's may make him the owner of a job that storage knows as another's.
  bool MayOwn(const Job& job, const Caller& caller) const;
  // It is read until that succeeds.
  static bool MustBeRead(const Job& job);
  void Ask(Job* job);
  void Failed(Job* job, const Status& why);

  const Options& options_;
  const Mode& mode_;
  const JournalRoom& journal_;
  Outbox& out_;
  Callers& callers_;
  Jobs& jobs_;
  Attempts& attempts_;
  Persistence& persistence_;
  Records& records_;
  Merging& merging_;
  const std::function<void(const Event&)> again_;

  LineWaits line_waits_{this};
  bool gave_up_ = false, line_gave_up_ = false;
  std::set<std::pair<MonotonicNanos, std::string>> due_;  // jobs to read, and when
};

}  // namespace cairn::engine
