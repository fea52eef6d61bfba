// The ring: which members there are, who is whose backup, and where the reports of a job meet. Values and
// pure functions; who lives at this moment is Members' (members.h).
//
// A member is known by its rank, its incarnation and its instance. The rank is its place in the static
// list, or the one that it has by the catalog (membership.h). The incarnation orders the lives of that place: one life is
// one keeper's, or one seat's, so a daemon that its keeper starts again keeps it. The instance, 16 random bytes, tells apart two processes that claim the
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
inline constexpr size_t kMaxMembers = 64;           // of a static list
inline constexpr size_t kMaxCatalogMembers = 1024;  // of a ring whose members stand in the catalog
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

// Who keeps whose parts. Along the ring: the next members after the owner. In groups: the other members of the
// owner's group, so that fewer combinations of lost members take every copy of something. A group has `factor`
// members whose places in the order of ranks are `jump` apart, as machines of different racks are.
struct Placement {
  int factor = 0;  // 0: along the ring; else at least 2
  int jump = 1;    // at least 1
  bool Groups() const { return factor > 0; }
  bool operator==(const Placement&) const = default;
};

// So many exchanges with a member, in a row, have failed before it counts as lost.
inline constexpr int kFailedExchanges = 10;

struct RingOptions {
  std::string cluster;                  // a name that all members share
  Rank rank = kNoRank;                  // this node's
  std::map<Rank, std::string> members;  // rank → ADDRESS:PORT; empty or of one: no ring
  int replicas = 1;                     // of a job whose policy names none
  int64_t lost_after_seconds = 30;      // silence after which a member counts as lost
  uint64_t replica_bytes = 0;           // quota of parts kept for others; 0: half the budget
  Placement placement;
  // The members are those of the catalog (membership.h). An address is empty where nobody has the rank, and
  // kNoRank is this node's own while it has none: to the engine it is then a member that nobody answers.
  bool from_catalog = false;
  int64_t epoch = 0;  // of the members' number, from the catalog

  bool Alone() const { return members.size() <= 1; }
  // Of a ring that has members. INVALID_ARGUMENT names the option as the daemon spells it: 1 to 64 members (1,024
  // from the catalog) at addresses of their own, this rank among them, replicas below the number of members and, in
  // groups, below the group's.
  cairn::Status Validate() const;
};

// What is known of a ring whose members stand in the catalog. Of two views the one of the greater epoch has the size, and
// of each rank the greater incarnation counts, and of one incarnation the address that is known: so views merge in any
// order.
struct RingView {
  struct Seat {
    int64_t incarnation = 0;  // 0: nobody ever had the rank
    std::string address;      // empty: nobody has it
    bool operator==(const Seat&) const = default;
  };
  int64_t epoch = 0;        // of the size; 0: no ring is known
  std::vector<Seat> seats;  // by rank
  bool operator==(const RingView&) const = default;

  // True: it knows more now.
  bool Merge(const RingView& other);
};

// The groups of a ring of `members`, as places in the order of ranks, each ascending. Every run of factor × jump
// places makes `jump` groups. Of what remains as many groups as it has room for, with the jump that fits; the fewer
// than `factor` places that are left then join one group each, the last groups first. One group of all where there
// are fewer members than `factor`.
std::vector<std::vector<int>> GroupsOf(int members, const Placement& placement);

// The members that keep copies of `owner`'s parts, in the order in which they are asked, leaving out those in
// `silent`: in groups the group's other members, from the one after it around the group; then, or at once without
// groups, the ranks after it around the list. At most `replicas`; fewer when the ring is smaller.
std::vector<Rank> BackupsOf(Rank owner, const std::set<Rank>& members, const std::set<Rank>& silent,
                            int replicas, const Placement& placement = {});
// Whose parts `backup` is to keep, in the same sense, ascending: each owner, silent or not, that has it among
// its backups. Nobody's while it is silent itself.
std::vector<Rank> OwnersFor(Rank backup, const std::set<Rank>& members,
                            const std::set<Rank>& silent, int replicas,
                            const Placement& placement = {});
// The member with the greatest of these is the job's home, of equal ones the lower rank: so a member that comes or goes
// moves only the jobs that it is home of.
uint64_t HomeHash(absl::string_view job, Rank rank);
// All members in the order in which they are the job's home: the first that answers is.
std::vector<Rank> HomeOrder(absl::string_view job, const std::set<Rank>& members);

}  // namespace cairn::engine
