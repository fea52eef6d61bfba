// Room in the journal. What a create may cost there, until its part is committed, is set aside before it
// is admitted: so whatever was admitted can be sealed and committed, however full the journal gets. A
// committed part costs a fact, and eight bytes and a fact for each slab it lies in.
//
// The node says how much of the journal's half is used. That counts what has ended since the last
// snapshot, so it is never less than what is live.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "absl/strings/string_view.h"
#include "common/status.h"
#include "server/engine/events.h"
#include "server/engine/options.h"

namespace cairn::engine {

class JournalRoom {
 public:
  explicit JournalRoom(const Options& options) : options_(&options) {}

  // Bytes of one half: 0: as many as anybody wants.
  void Set(uint64_t used, uint64_t capacity) {
    used_ = used;
    capacity_ = capacity;
  }

  // Upper bounds of the bytes of facts …
  // … of a create and of its objects until their part is committed, and of the creates that it says are
  // to come. `first`: and of the part itself.
  static uint64_t CostOf(const event::Create& create, bool first);
  // … of creates that were only told of.
  static uint64_t CostOf(const PartKey& part, const event::ToCome& to_come);
  // … of the seal of one object.
  static uint64_t CostOfSeal(const PartKey& part, absl::string_view name, uint64_t length);
  // … of the commit of a part, its slabs, and its end.
  static uint64_t CostOfPart(const PartKey& part);
  static constexpr uint64_t kSmallBytes = 4096;
  // Of a fact beside its names, checksums and lineage: its length, kind, numbers, extent; rounded up.
  static constexpr uint64_t kFactBytes = 112;

  void Reserve(uint32_t uid, uint64_t bytes);
  void Release(uint32_t uid, uint64_t bytes);
  uint64_t reserved() const { return reserved_; }
  // What a committed part costs as long as it is in memory, in so many slabs.
  static uint64_t CostOfKept(const PartKey& part, size_t slabs);
  void ChargeSteps(uint32_t uid, uint64_t bytes);
  void RefundSteps(uint32_t uid, uint64_t bytes);
  const std::map<uint32_t, uint64_t>& kept() const { return kept_by_; }
  // What a reader's lease costs while there is one, or a removed step for as long as its job is known.
  static uint64_t CostOfLease(const PartKey& part, absl::string_view name) {
    return kFactBytes + part.checkpoint.job.size() + name.size();
  }
  static uint64_t CostOfRemoved(absl::string_view job) { return kFactBytes + job.size(); }
  void ChargeLasting(uint32_t uid, uint64_t bytes);
  void RefundLasting(uint32_t uid, uint64_t bytes);
  const std::map<uint32_t, uint64_t>& held() const { return held_by_; }
  // More than one user may have, with what is kept for him but for `given_up`. Root and who runs the
  // daemon may have all.
  bool OverShare(uint32_t uid, uint64_t bytes, uint64_t given_up = 0) const;
  Status CheckShare(uint32_t uid, uint64_t bytes) const;  // RESOURCE_EXHAUSTED when it is so
  // The same for a reader's lease, up to 9/8 of the share: no step is given up for it.
  Status CheckLease(uint32_t uid, uint64_t bytes) const;
  // Who keeps the most, of several.
  std::optional<uint32_t> Greediest() const;

  // RESOURCE_EXHAUSTED, with the arithmetic, when `bytes` more may not fit, or are more than one user may
  // have set aside.
  Status CheckCreate(uint32_t uid, uint64_t bytes) const;
  // It does not fit now, and would if what has ended were not in the journal any more.
  bool ASnapshotMayHelp(uint32_t uid, uint64_t bytes) const;
  bool MoreThanHalf() const { return capacity_ != 0 && used_ + reserved_ > capacity_ / 2; }
  // So much must go for `bytes` more to fit.
  uint64_t Lacking(uint64_t bytes) const;
  // The same for what costs a fact or two; it may use a little of what creates may not.
  Status CheckSmall(absl::string_view what) const;
  // The same for what storage tells of a job.
  Status CheckStored(absl::string_view job, uint64_t bytes) const;

 private:
  Status Check(absl::string_view what, uint64_t bytes, uint64_t limit) const;
  static uint64_t Of(const std::map<uint32_t, uint64_t>& users, uint32_t uid);
  uint64_t MostOfUser() const;
  uint64_t Theirs(uint32_t uid, uint64_t given_up) const;

  const Options* options_;
  uint64_t used_ = 0, capacity_ = 0;
  uint64_t reserved_ = 0;
  std::map<uint32_t, uint64_t> reserved_by_, kept_by_, held_by_;  // uid
};

}  // namespace cairn::engine
