// Room in the journal. What a create may cost there, until its part is committed, is set aside before it
// is admitted: so whatever was admitted can be sealed and committed, however full the journal gets. A
// committed part costs a fact, and eight bytes and a fact for each slab it lies in.
//
// The node says how much of the journal's half is used. That counts what has ended since the last
// snapshot, so it is never less than what is live.
#pragma once

#include <cstdint>
#include <map>

#include "absl/strings/string_view.h"
#include "common/status.h"
#include "server/engine/events.h"

namespace cairn::engine {

class JournalRoom {
 public:
  // Bytes of one half: 0: as many as anybody wants.
  void Set(uint64_t used, uint64_t capacity) {
    used_ = used;
    capacity_ = capacity;
  }

  // Upper bounds of what the journal is told of a create, and of what it may be told of one of its objects
  // later, until its part is committed; and of the part then.
  // Of what is to come after it, too. `first`: of its part.
  static uint64_t CostOf(const event::Create& create, bool first);
  static uint64_t CostOf(const PartKey& part, const event::ToCome& to_come);
  static uint64_t CostOfSeal(const PartKey& part, absl::string_view name, uint64_t length);
  static uint64_t CostOfPart(const PartKey& part);
  static constexpr uint64_t kSmallBytes = 4096;

  void Reserve(uint32_t uid, uint64_t bytes);
  void Release(uint32_t uid, uint64_t bytes);
  uint64_t reserved() const { return reserved_; }

  // RESOURCE_EXHAUSTED, with the arithmetic, when `bytes` more may not fit, or are more than one user may
  // have set aside.
  Status CheckCreate(uint32_t uid, uint64_t bytes) const;
  // It does not fit now, and would if what has ended were not in the journal any more.
  bool ASnapshotMayHelp(uint32_t uid, uint64_t bytes) const;
  // The same for what costs a fact or two; it may use a little of what creates may not.
  Status CheckSmall(absl::string_view what) const;

 private:
  Status Check(absl::string_view what, uint64_t bytes, uint64_t limit) const;

  uint64_t used_ = 0, capacity_ = 0;
  uint64_t reserved_ = 0;
  std::map<uint32_t, uint64_t> reserved_by_;  // uid
};

}  // namespace cairn::engine
