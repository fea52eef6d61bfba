// What a scan has found becomes part of what is known: what it tells of the line at once, its checkpoints
// some with each event, for a job may have thousands. Between two of those, what was merged counts and the
// rest is not known yet, as before the scan; the job's files are not deleted by its policy.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "server/engine/attempts.h"
#include "server/engine/parts.h"
#include "server/engine/persistence.h"
#include "server/engine/records.h"
#include "server/engine/retention.h"

namespace cairn::engine {

class Merging {
 public:
  Merging(Outbox* out, Jobs* jobs, Attempts* attempts, Parts* parts, Persistence* persistence,
          Retention* retention, Records* records)
      : out_(*out),
        jobs_(*jobs),
        attempts_(*attempts),
        parts_(*parts),
        persistence_(*persistence),
        retention_(*retention),
        records_(*records) {}

  // An upper bound of the facts that a reading makes.
  static uint64_t JournalCostOf(const Job& job, const Reading& reading);

  // `room`: what the journal says to that; without room nothing is merged. `in_part`: so was another reading
  // before, and the rest of it was dropped. Learns what there is of
  // attempts, where they come from, decisions and removed steps. True: of a newer attempt, or `use`, than
  // all before.
  bool Begin(Job* job, const event::JobScanned& scanned, const Status& room, bool in_part);
  struct Ended {
    std::string job;
    Reading reading;
    Status status;       // why nothing was merged
    bool newer_attempt;  // or `use`, has come since it began
    MonotonicNanos begun;
    bool in_part;  // of what a reading found some is merged, and not all
  };
  // Goes on, and takes what it did from `budget`. The job of which all is merged now; what was persisted and
  // was not found is gone.
  std::optional<Ended> Some(int* budget);
  bool more() const { return !under_way_.empty(); }
  bool Has(const Job& job) const { return under_way_.contains(job.name); }
  void Drop(const Job& job);  // another reading will tell
  // One checkpoint as it stands in storage: it is persisted, and parts that are not here are known.
  void Merge(Job* job, const StoredCheckpoint& stored);

 private:
  struct UnderWay {
    Reading reading;
    Status status;
    Attempt newest = 0, fence = 0;  // before
    MonotonicNanos begun = 0;
    bool in_part = false;             // another reading was, before
    size_t next = 0;                  // of its checkpoints
    bool sweeps = false;              // what it did not find is gone
    CheckpointId swept = {-1, 0, 0};  // up to this one
  };

  static bool IsNewer(const Job& job, const UnderWay& than);
  static Attempt OldestKeptDecision(const StoredJob& stored);
  bool IsOfItsOwner(Job* job, const event::JobScanned& scanned);
  void LearnLine(Job* job, const Reading& reading);
  static bool IsThatOf(const StoredCheckpoint& stored, const Checkpoint& known);
  // Parts that memory lacks are as storage has them; those it has stay where they are.
  void Complete(Checkpoint* checkpoint, const StoredCheckpoint& stored);

  Outbox& out_;
  Jobs& jobs_;
  Attempts& attempts_;
  Parts& parts_;
  Persistence& persistence_;
  Retention& retention_;
  Records& records_;

  std::map<std::string, UnderWay> under_way_;  // by job
};

}  // namespace cairn::engine
