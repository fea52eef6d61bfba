// The records of committed parts (part_record.h): which slab each lies in, and who waits for its
// commit. Records share slabs that are never lent for writing. The node encodes and writes them,
// outside its lock.
//
// Changes Part::manifest and Checkpoint::manifests. Says fact::PartCommitted.
//
// Invariants:
//   1. Every extent of a manifest slab is a part's, or of a write whose part is gone.
//   2. A part that is committing waits for space, or its write is under way.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "server/engine/eviction.h"
#include "server/engine/parts.h"

namespace cairn::engine {

class Manifests : public Waitlist, public StepWatcher {
 public:
  Manifests(const Options& options, Outbox* out, Callers* callers, Sessions* sessions,
            Ledger* ledger, Parts* parts, Eviction* eviction);
  ~Manifests() override;

  // Parks the caller until the part's commit is answered. False after answering why not.
  bool Await(Part* part, const event::Commit& event);
  // Writes the part's manifest, of this head and the part's objects, as soon as there is space for it.
  void Begin(Part* part, Manifest head);
  // Of a part that came from another member and is committed already: writes its record, and says the
  // fact once it is written. `set_kept` hears how that ended.
  void Keep(Part* part);
  void set_kept(std::function<void(Part*, const Status&)> kept) { kept_ = std::move(kept); }
  // The part, or its memory, went before its record was written.
  void set_keeping_ended(std::function<void(const PartKey&)> ended) {
    keeping_ended_ = std::move(ended);
  }
  // Its source has changed: the fact once more.
  void SayAgain(const Part& part) { out_.Say(FactOf(part, part.content->digest)); }
  void Free(Part* part);  // its memory; Parts says the fact

  // Before the part's session hears that it may write: its answer says which slabs it is to unmap, should
  // the part's record need their memory. A commit that waits for memory cannot tell it that.
  // `most`: memory that nobody was promised.
  void Prepare(const Part& part, SessionId session, uint64_t most);
  // Commits that found no space: makes a slab for them, evicting if it must. How much budget they wait
  // for, which is no create's.
  uint64_t Retry();
  // Keeps space for the next manifest, so that commits do not wait for a slab to be faulted in.
  void KeepSpace();
  // True: the slab was made for manifests.
  bool SlabMade(SlabId slab, const Status& status);
  // When a slab could not be made, the next one is tried a little later, at next().
  void PauseOver();
  MonotonicNanos next() const { return make_at_ == 0 ? kNever : make_at_; }
  // The part that is committed now, nullptr: the write failed, or its part is gone.
  Part* On(const event::ManifestWritten& event);

  // Grows when a commit begins to wait for space, and when space comes free.
  uint64_t version() const { return version_; }
  uint64_t used_bytes() const { return used_bytes_; }  // whole pages for each record
  bool Idle() const { return under_way_.empty(); }     // no commit is under way

  void Left(const Parked& parked) override;
  void TimeUp(const Parked& parked) override;
  void PartGoes(Part* part) override;
  void PartEmptied(Part* part) override;

  void PartStored(Part* part) override;

  void RestoreSlabs();  // those of the ledger that are kept for manifests
  void RestorePlace(Part* part, const fact::PartCommitted& committed);
  std::string CheckInvariants(const Checkpoint& checkpoint, const Parts::Placer& place,
                              std::map<SlabId, uint32_t>* pins) const;
  std::string CheckSpace() const;
  std::string CheckOrphans(const Parts::Placer& place, std::map<SlabId, uint32_t>* pins) const;

 private:
  struct Space {
    uint64_t bytes = 0;                    // of the slab
    std::map<uint64_t, uint64_t> extents;  // offset → length
    uint64_t used = 0;
    uint32_t uid = 0;  // whose manifests lie in it, once some do
  };

  static uint64_t Charge(uint64_t bytes);
  uint64_t Adds(uint32_t uid, uint64_t bytes);
  void SettleRoom(SlabId slab, const Space& space);
  bool Coming(uint64_t bytes) const;  // a slab that is as large
  void Write(Part* part);
  void Adopt(const SlabRecord& slab);
  void Use(SlabId slab, uint64_t offset, uint64_t bytes, uint32_t uid);
  SlabRecord* Find(uint32_t uid, uint64_t bytes, uint64_t* offset);
  void MakeSlab(uint64_t bytes, bool urgent);
  void FreeExtent(const ExtentRef& extent);
  void AnswerCommitters(Part* part, const StatusOr<Body>& body);
  void Ended(Part* part);
  void Failed(Part* part, const Status& why);
  static fact::PartCommitted FactOf(const Part& part, const std::string& digest);

  const uint64_t slab_bytes_;
  Outbox& out_;
  Callers& callers_;
  Sessions& sessions_;
  Ledger& ledger_;
  Parts& parts_;
  Eviction& eviction_;

  std::function<void(Part*, const Status&)> kept_;
  std::function<void(const PartKey&)> keeping_ended_;
  std::map<SlabId, Space> slabs_;
  std::map<uint32_t, std::set<SlabId>> roomy_;  // of them, those with manifests and room, by user
  std::set<SlabId> empty_;                      // those that nothing uses
  uint64_t slabs_bytes_ = 0, used_bytes_ = 0;   // of them all
  std::set<SlabId> coming_;
  uint64_t version_ = 0;
  MonotonicNanos make_at_ = 0;   // not before, after a slab could not be made; 0: any time
  std::set<PartKey> under_way_;  // parts that are committing
  std::set<PartKey> waiting_;    // for such a slab
  std::multimap<PartKey, ExtentRef> orphans_;  // being written for a part that is gone
  absl::flat_hash_map<RequestId, PartKey> committing_;
};

}  // namespace cairn::engine
