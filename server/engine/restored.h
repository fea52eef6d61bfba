// What a dead daemon's facts come to: the last word of each. Components restore themselves from it.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "server/engine/engine.h"
#include "server/engine/world_writer.h"
#include "server/facts/facts.h"

namespace cairn::engine {

struct Restored {
  struct Object {
    std::optional<fact::ObjectCreated> created;
    std::optional<fact::ObjectSealed> sealed;
    const ExtentRef& Extent() const { return sealed ? sealed->extent : created->extent; }
  };

  explicit Restored(const std::vector<Fact>& facts);

  uint64_t next_id = 1;
  std::map<std::string, fact::Job> jobs;
  std::map<std::pair<std::string, Attempt>, fact::AttemptBegun> attempts;
  std::map<std::tuple<std::string, Attempt, WorldWriter>, WriterRun> processes;
  std::map<std::tuple<std::string, Attempt, Step>, fact::StepWorld> worlds;
  std::map<std::pair<std::string, Attempt>, fact::LineDecided> decisions;
  std::map<SlabId, fact::Slab> slabs;
  std::map<SlabId, fact::FetchBegun> fetches;  // that no PartCommitted has ended
  std::map<SessionId, fact::SessionBegun> sessions;
  std::map<LeaseId, fact::Lent> leases;
  std::map<PartKey, std::map<std::string, Object>> objects;  // of parts that are not committed
  // Parts that objects were dropped of → one of them. Not those that began anew with none left.
  std::map<PartKey, std::string> dropped;
  struct Committed {
    fact::PartCommitted fact;  // its slabs: those that its objects have not left
    std::set<std::string> broken;
  };
  std::map<PartKey, Committed> committed;
  std::map<CheckpointKey, std::string> persisted;
  std::map<std::string, RemovedSteps> removed;
  std::map<CheckpointKey, fact::Pinned> pinned;  // in a ring those that were taken back, too
  std::set<CheckpointKey> asked;
  std::set<CheckpointKey> files_deleted;                 // since they were persisted last
  std::map<std::string, std::pair<Attempt, Step>> safe;  // by job
  fact::StorageRoot storage_root;                        // empty: none was met
  fact::MemberLife member_life;                          // likewise, of a node that was in no ring
  fact::RingSeat ring_seat;                              // likewise, without a catalog of members
  // Whether an operator takes the node out of service. Of a build that did not say it the seat tells.
  std::optional<bool> leaving;

 private:
  void Take(const fact::DaemonLife& f);
  void Take(const fact::Job& f);
  void Take(const fact::JobForgotten& f);
  void Take(const fact::AttemptBegun& f);
  void Take(const fact::WriterProcess& f);
  void Take(const fact::StepWorld& f);
  void Take(const fact::LineDecided& f);
  void Take(const fact::Slab& f);
  void Take(const fact::SlabGone& f);
  void Take(const fact::FetchBegun& f);
  void Take(const fact::SessionBegun& f);
  void Take(const fact::SessionEnded& f);
  void Take(const fact::Lent& f);
  void Take(const fact::Unlent& f);
  void Take(const fact::ObjectCreated& f);
  void Take(const fact::ObjectSealed& f);
  void Take(const fact::ObjectDropped& f);
  void Take(const fact::PartCommitted& f);
  void Take(const fact::PartLeftSlab& f);
  void Take(const fact::PartDropped& f);
  void Take(const fact::Persisted& f);
  void Take(const fact::PersistAsked& f);
  void Take(const fact::FilesDeleted& f);
  void Take(const fact::StepRemoved& f);
  void Take(const fact::Pinned& f);
  void Take(const fact::StorageRoot& f);
  void Take(const fact::MemberLife& f);
  void Take(const fact::RingSeat& f);
  void Take(const fact::Leaving& f);
  void Take(const fact::StepSafe& f);
};

}  // namespace cairn::engine
