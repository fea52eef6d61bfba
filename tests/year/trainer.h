// A job's trainers, life after life, as libcairn would call for them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/sim/random.h"
#include "tests/year/node.h"

namespace cairn::year {

using engine::sim::Rng;

struct Shape {
  int32_t writers = 1;
  std::vector<uint64_t> objects;  // their lengths, of each writer
};

class Trainer {
 public:
  Trainer(Node* node, Rng* rng, std::string job, Shape shape);

  // A new life: its processes connect, choose their attempt and the step they go on from.
  void Begin(const JobPolicy& policy);
  // All its processes end.
  void End();
  // The next step. What goes wrong in a save goes wrong sometimes; false: this life cannot save any more.
  struct Mishaps {
    uint64_t abort = 0, die = 0, seal_apart = 0, twice = 0;  // permille
  };
  bool Save(const Mishaps& mishaps, bool kill_daemon);

  void SetPolicy(const JobPolicy& policy);
  // Of the steps that the job shows: the oldest but the newest `spare` of them. kNoStep: there is none.
  Step Oldest(size_t spare);
  std::vector<CheckpointInfo> List();
  StatusOr<reply::Latest> Latest();

  const std::string& job() const { return job_; }
  Attempt attempt() const { return attempt_; }
  Step next() const { return next_; }
  bool alive() const { return !sessions_.empty(); }
  SessionId session() const { return sessions_.front(); }
  int64_t saves() const { return saves_; }
  // Parts aborted in this life, of which a new daemon does not know.
  int64_t aborted() const { return aborted_; }
  void DaemonDied() { aborted_ = 0; }
  std::string object() const { return Name(0, 0); }

 private:
  static std::string Name(Writer writer, size_t object);
  PartKey Part(Writer writer) const { return {{job_, next_, attempt_, revision_}, writer}; }
  Status Create(Writer writer);
  Status Commit(Writer writer, bool seal_apart);
  void ChooseStep();
  std::vector<event::Seal> Seals(Writer writer) const;
  void Count(const std::string& what) { node_.Count(what); }

  Node& node_;
  Rng& rng_;
  const std::string job_;
  const Shape shape_;
  std::vector<SessionId> sessions_;            // of the writers
  std::vector<std::vector<SlabId>> unmapped_;  // to be named in each one's next call
  Attempt attempt_ = 0;
  Step next_ = 0;
  Revision revision_ = 0;
  int64_t saves_ = 0, aborted_ = 0;
};

}  // namespace cairn::year
