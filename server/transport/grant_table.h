// The grants of a transport, and what they permit. Not thread-safe: who has one guards it together with what its
// readers are doing, so that a grant ends for all of them at one instant.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <vector>

#include "common/clock.h"
#include "common/status.h"
#include "server/facts/extent.h"
#include "server/transport/transport.h"

namespace cairn::transport {

// A grant may name as many extents as a manifest has objects; all together this many.
inline constexpr size_t kMaxGrants = 4096;
inline constexpr size_t kMaxGrantedExtents = 4 << 20;

class GrantTable {
 public:
  struct Entry {
    PeerId reader;
    std::vector<ExtentRef> extents;  // by slab and offset; none overlaps the next
    MonotonicNanos last_used = 0;
  };

  // As Transport::Grant. `look` says of an extent whether it may be granted; it is asked once the grant
  // can be found by its slab, so that a slab that is detached meanwhile is in no grant.
  Status Add(const GrantToken& token, PeerId reader, std::vector<ExtentRef> extents,
             const std::function<Status(const ExtentRef&)>& look);
  bool Erase(const GrantToken& token);
  Entry* Find(const GrantToken& token);  // null: there is none
  const Entry* Find(const GrantToken& token) const;
  std::vector<GrantToken> OfPeer(PeerId reader) const;
  std::vector<GrantToken> OfSlab(SlabId slab) const;

 private:
  std::map<GrantToken, Entry> grants_;
  std::map<SlabId, std::set<GrantToken>> by_slab_;
  size_t extents_ = 0;
};

// By slab and offset.
bool InOrder(const std::vector<ExtentRef>& extents);
// Whether `extents`, in order, have all of it in one of them.
bool Covers(const std::vector<ExtentRef>& extents, const ExtentRef& asked);
// One answer for all that is not permitted, so that it tells nothing about what exists.
Status NotPermitted();

}  // namespace cairn::transport
