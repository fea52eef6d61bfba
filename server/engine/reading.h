// What storage tells of a job, and what follows from it for the job's line. Worked out by whoever makes the
// event, for it costs what the job has in storage. Shared, for the engine takes it in over several
// events.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>

#include "common/keys.h"
#include "common/line.h"
#include "common/status.h"
#include "common/stored.h"

namespace cairn::engine {

// Of the checkpoints alone, and of the origins that are recorded.
struct ReadLine {
  Attempt greatest = 0;
  std::map<Attempt, AttemptLine> attempts;  // AttemptsOf
  std::map<Attempt, int64_t> began;         // when the first of their parts was created
  std::set<Attempt> with_files;             // that have published a checkpoint
};

class Reading {
 public:
  // NOT_FOUND: storage holds nothing of the job. Another error: it cannot be read now.
  Reading(Status why_not) : Reading(StatusOr<StoredJob>(std::move(why_not))) {}   // NOLINT
  Reading(StoredJob stored) : Reading(StatusOr<StoredJob>(std::move(stored))) {}  // NOLINT
  Reading(StatusOr<StoredJob> stored);                                            // NOLINT

  bool ok() const { return read_->stored.ok(); }
  const Status& status() const { return read_->stored.status(); }
  // When ok.
  const StoredJob& operator*() const { return *read_->stored; }
  const StoredJob* operator->() const { return &*read_->stored; }
  const ReadLine& line() const { return read_->line; }

 private:
  struct Read {
    StatusOr<StoredJob> stored;
    ReadLine line;
  };
  std::shared_ptr<const Read> read_;
};

}  // namespace cairn::engine
