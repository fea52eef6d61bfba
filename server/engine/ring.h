// The ring: which members there are, who is whose backup, and where the reports of a job meet. Values and
// pure functions; who lives at this moment is Members' (members.h).
//
// A member is known by its rank, its incarnation and its instance. The rank is its place in the static
// list. The incarnation orders the lives of that place: one life is one keeper's, so a daemon that its
// keeper starts again keeps it. The instance, 16 random bytes, tells apart two processes that claim the
// same place.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/status.h"

namespace cairn::engine {

using Rank = int32_t;
inline constexpr Rank kNoRank = -1;
inline constexpr size_t kMaxMembers = 64;
inline constexpr size_t kInstanceBytes = 16;
// Milliseconds until the year 2248. No node takes a greater incarnation.
inline constexpr int64_t kMostIncarnation = (int64_t{1} << 43) - 1;

struct MemberId {
  Rank rank = kNoRank;
  int64_t incarnation = 0;
  std::string instance;
  bool operator==(const MemberId&) const = default;
  auto operator<=>(const MemberId&) const = default;
};

struct RingOptions {
  std::string cluster;                  // a name that all members share
  Rank rank = kNoRank;                  // this node's
  std::map<Rank, std::string> members;  // rank → ADDRESS:PORT; empty or of one: no ring
  int replicas = 1;                     // of a job whose policy names none
  int64_t lost_after_seconds = 30;      // silence after which a member counts as lost
  uint64_t replica_bytes = 0;           // quota of parts kept for others; 0: half the budget

  bool Alone() const { return members.size() <= 1; }
  // Of a ring that has members. INVALID_ARGUMENT names the option as the daemon spells it: 1 to 64 members
  // at addresses of their own, this rank among them, replicas below the number of members.
  cairn::Status Validate() const;
};

// The members that keep copies of `owner`'s parts: the next `replicas` ranks after it, around the list,
// leaving out those in `silent`, in that order. Fewer when the ring is smaller.
std::vector<Rank> BackupsOf(Rank owner, const std::set<Rank>& members, const std::set<Rank>& silent,
                            int replicas);
// Whose parts `backup` is to keep, in the same sense, ascending: each owner, silent or not, that has it among
// its backups. Nobody's while it is silent itself.
std::vector<Rank> OwnersFor(Rank backup, const std::set<Rank>& members,
                            const std::set<Rank>& silent, int replicas);
// The member with the greatest of these is the job's home, of equal ones the lower rank: so a member that comes or goes
// moves only the jobs that it is home of.
uint64_t HomeHash(absl::string_view job, Rank rank);
// All members in the order in which they are the job's home: the first that answers is.
std::vector<Rank> HomeOrder(absl::string_view job, const std::set<Rank>& members);

}  // namespace cairn::engine
