// What the journal says: the last value of every fact, kept apart from the engine's own reading.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "common/removed.h"
#include "server/facts/facts.h"
#include "server/facts/part_record.h"

namespace cairn::engine::sim {

class Mirror {
 public:
  // What lies in memory where a part's record is said to be; nullptr: nothing that verifies.
  using ReadRecord =
      std::function<std::shared_ptr<const PartTable>(const fact::PartCommitted& committed)>;
  explicit Mirror(ReadRecord read) : read_(std::move(read)) {}

  struct Object {
    bool sealed = false;
    ObjectEntry entry;
    ExtentRef extent;
    bool operator==(const Object& o) const {
      return sealed == o.sealed && extent == o.extent && (!sealed || entry == o.entry);
    }
  };

  void Take(const Fact& fact);

  bool Removed(const CheckpointKey& key) const;
  size_t CommittedWriters(const CheckpointKey& key) const;
  // nullptr: the part has none.
  const std::map<std::string, Object>* ObjectsOf(const PartKey& part) const;
  // The newest that has begun, or a `use`: what is older is fenced. 0: neither.
  Attempt NewestAttempt(const std::string& job) const;

  std::map<std::string, fact::Job> jobs;
  std::map<std::string, std::map<Attempt, fact::AttemptBegun>> attempts;
  std::map<std::pair<std::string, Attempt>, LineRecord> decisions;
  std::map<SlabId, fact::Slab> slabs;
  std::map<SessionId, fact::SessionBegun> sessions;
  std::map<LeaseId, fact::Lent> leases;
  std::map<PartKey, std::map<std::string, Object>> objects;
  std::map<CheckpointKey, std::map<Writer, fact::PartCommitted>> manifests;
  std::map<CheckpointKey, std::string> persisted;  // and its digest
  std::set<CheckpointKey> pinned;
  fact::StorageRoot storage_root;
  std::map<std::string, RemovedSteps> removed;  // what stays away

 private:
  // One per kind: a new fact does not compile until it is decided what the model does with it.
  void On(const fact::DaemonLife&) {}  // ids are compared where they are given out
  void On(const fact::Job& f) { jobs[f.job] = f; }
  void On(const fact::JobForgotten& f);
  void On(const fact::AttemptBegun& f) { attempts[f.job][f.attempt] = f; }
  void On(const fact::WriterProcess&) {}  // the unit tests of attempts have it
  void On(const fact::StepWorld&) {}      // every manifest says its world size
  void On(const fact::LineDecided& f) { decisions[{f.record.job, f.record.number}] = f.record; }
  void On(const fact::Slab& f) { slabs[f.slab] = f; }
  void On(const fact::SlabGone& f) { slabs.erase(f.slab); }
  void On(const fact::SessionBegun& f) { sessions[f.session] = f; }
  void On(const fact::SessionEnded& f) { sessions.erase(f.session); }
  void On(const fact::Lent& f) { leases[f.lease] = f; }
  void On(const fact::Unlent& f) { leases.erase(f.lease); }
  void On(const fact::ObjectCreated& f) { objects[f.part][f.name] = {false, {}, f.extent}; }
  void On(const fact::ObjectSealed& f) {
    objects[f.part][f.entry.name] = {true, f.entry, f.extent};
  }
  void On(const fact::ObjectDropped& f);
  void On(const fact::PartCommitted& f);
  void On(const fact::PartLeftSlab& f);
  void On(const fact::PartDropped& f);
  void On(const fact::Persisted& f) { persisted[f.checkpoint] = f.digest; }
  void On(const fact::FilesDeleted& f) { persisted.erase(f.checkpoint); }
  void On(const fact::StepRemoved& f);
  void On(const fact::Pinned& f);
  void On(const fact::StorageRoot& f) { storage_root = f; }
  void On(const fact::MemberLife&) {}    // the node is in no ring
  void On(const fact::RingSeat&) {}      // likewise
  void On(const fact::StepSafe&) {}      // likewise
  void On(const fact::FetchBegun&) {}    // likewise
  void On(const fact::Leaving&) {}       // nobody takes it out of service
  void On(const fact::PersistAsked&) {}  // promises nothing until the checkpoint is Persisted

  // nullptr: the part is not committed.
  fact::PartCommitted* Committed(const PartKey& part);
  void Forget(const PartKey& part, const std::string& name);

  ReadRecord read_;
};

}  // namespace cairn::engine::sim
