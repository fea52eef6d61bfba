// What is decided and settled about the line, as files: each record is owed to storage until it stands
// there, and whoever decided is told whether it does.
//
// A record that storage does not take now is tried again, for as long as the job is known, and holds no
// other one up. What a scan does not find is owed again.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/line_record.h"
#include "server/engine/callers.h"
#include "server/engine/jobs.h"

namespace cairn::engine {

class Describing;

// How long who decided waits to hear that the file is written.
inline constexpr MonotonicNanos kRecordPatience = 2 * kNanosPerSecond;

class Records : public Waitlist {
 public:
  Records(const Options& options, Outbox* out, Callers* callers, Jobs* jobs)
      : options_(options), out_(*out), callers_(*callers), jobs_(*jobs) {}

  void Owe(LineRecord record);
  bool Owes(const std::string& job) const { return jobs_owing_.contains(job); }
  // Storage was read, and holds these: owes what is missing of the job's decisions and of the origins
  // of those attempts that have something there.
  void Scanned(const Job& job, const std::vector<LineRecord>& stored,
               const std::set<Attempt>& with_files);
  // Answers with `body`, and whether the file stands: now, or once a first try to write it has ended and
  // storage was read after that, within kRecordPatience if the deadline allows.
  void AnswerWritten(const Caller& caller, Job* job, Attempt number, LineRecordKind kind,
                     MonotonicNanos deadline, reply::Latest body);
  struct Written {
    // Storage holds another record of this number, which counts.
    const LineRecord* other = nullptr;
    // Somebody waits to hear of a decision that has come to stand. What it needs may have been deleted
    // by another node just before: storage is to be read once more.
    bool look = false;
  };
  Written On(const event::LineRecordWritten& event);
  // The job's storage was read, or could not be: who waits for that is told what has become of what he
  // decided for.
  void LookEnded(const Job& job, const Describing& describing);

  // Sends what is due, one of a job at a time.
  void Run();
  MonotonicNanos next() const;

  void Left(const Parked& parked) override;
  void TimeUp(const Parked& parked) override;

 private:
  using Id = std::pair<Attempt, LineRecordKind>;
  struct Owed {
    LineRecord record;
    MonotonicNanos at = 0, wait = 0;  // no try before then; the last pause
  };
  struct OfJob {
    std::map<Id, Owed> owed;
    bool writing = false;
    struct Waiting {
      Id id;
      reply::Latest body;  // `recorded`: the file stands, and storage is being read once more
    };
    std::map<RequestId, Waiting> waiting;
  };
  // The newest one whose time has come; nullptr: none.
  const LineRecord* Next(const OfJob& of_job) const;
  void RefuseOthers(OfJob* of_job, const Id& id, const LineRecord& stands);

  const Options& options_;
  Outbox& out_;
  Callers& callers_;
  Jobs& jobs_;

  std::map<std::string, OfJob> jobs_owing_;
};

}  // namespace cairn::engine
