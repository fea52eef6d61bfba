// Handing out objects: from memory, or from storage; and verifying them first where that is due.
//
// Changes Object::check.
//
// Invariant: each verification under way pins its slab.
#pragma once

#include <map>

#include "server/engine/describing.h"
#include "server/engine/leases.h"
#include "server/engine/persistence.h"
#include "server/engine/scanning.h"
#include "server/engine/tables.h"

namespace cairn::engine {

class Cluster;

class Opening : public Waitlist {
 public:
  Opening(Outbox* out, Callers* callers, Sessions* sessions, Leases* leases, Ledger* ledger,
          Parts* parts, Persistence* persistence, Standing* standing, Describing* describing,
          Scanning* scanning, Tables* tables);
  ~Opening() override;

  void On(const event::Open& event);
  void On(const event::Verified& event);
  // A chunk of a client without descriptors: where it lies.
  void On(const event::LocateChunk& event);
  void On(const event::ChunkWritten& event);
  // Storage read bytes that do not match: every object is checked, so that the bad one is known by
  // name.
  void VerifyAll(Checkpoint* checkpoint);
  size_t under_way() const { return verifications_.size() + chunk_writes_.size(); }

  void Left(const Parked& parked) override;
  void TimeUp(const Parked& parked) override;

  // What a dead daemon left is verified before it is first handed out.
  void Restore(const Jobs& jobs);
  std::string CheckInvariants(std::map<SlabId, uint32_t>* pins) const;

  // Bytes may come from other members.
  void set_cluster(Cluster* cluster) { cluster_ = cluster; }

 private:
  struct Verification {
    PartKey part;
    std::string name;
    SlabId slab = 0;
    std::vector<RequestId> opens;
  };

  uint64_t StartVerify(const ObjectRef& object);
  ObjectCheck& CheckOf(const ObjectRef& object);  // to change it
  void AnswerVerified(const event::Open& open, const Verification& verification,
                      const Status& status);
  void Broke(const ObjectRef& object, const Status& why);
  void AnswerOpen(const Caller& caller, const ObjectRef& object, OpenMode mode);
  void AnswerStored(const Caller& caller, const ObjectRef& object);
  Status CheckChunk(const event::LocateChunk& event, const Session& session,
                    const Lease* lease) const;

  Cluster* cluster_ = nullptr;  // set once, before the first event
  Outbox& out_;
  Callers& callers_;
  Sessions& sessions_;
  Leases& leases_;
  Ledger& ledger_;
  Parts& parts_;
  Persistence& persistence_;
  Standing& standing_;
  Describing& describing_;
  Scanning& scanning_;
  Tables& tables_;

  std::map<uint64_t, Verification> verifications_;
  // Under way; each pins its slab. They are the daemon's own, so none outlives it.
  std::map<uint64_t, SlabId> chunk_writes_;
  uint64_t next_chunk_write_ = 1;
  absl::flat_hash_map<RequestId, uint64_t> opens_;  // → the verification it waits for
};

}  // namespace cairn::engine
