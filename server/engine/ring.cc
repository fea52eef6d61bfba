#include "server/engine/ring.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/policy.h"

namespace cairn::engine {
namespace {

constexpr size_t kMaxClusterBytes = 64;
constexpr int64_t kMostLostAfterSeconds = 86'400;

Status BadRing(absl::string_view what) { return absl::InvalidArgumentError(what); }

bool IsClusterName(absl::string_view name) {
  return !name.empty() && name.size() <= kMaxClusterBytes &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' ||
                  c == '-';
         });
}

// HOST:PORT, or [ADDRESS]:PORT where the address has colons of its own.
bool IsAddressAndPort(absl::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == text.npos) return false;
  absl::string_view host = text.substr(0, colon);
  const absl::string_view port = text.substr(colon + 1);
  int number = 0;
  const bool digits = std::all_of(port.begin(), port.end(), [](char c) {
    return absl::ascii_isdigit(static_cast<unsigned char>(c));
  });
  if (!digits || !absl::SimpleAtoi(port, &number) || number < 1 || number > 65'535) return false;
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  return !host.empty() && (bracketed || host.find(':') == host.npos) &&
         std::all_of(host.begin(), host.end(), [](char c) {
           return absl::ascii_isgraph(static_cast<unsigned char>(c)) && c != '[' && c != ']' &&
                  c != ',' && c != '=';
         });
}

Status CheckMembers(const std::map<Rank, std::string>& members, bool from_catalog) {
  std::map<std::string, Rank> at;
  for (const auto& [rank, address] : members) {
    if (from_catalog && (rank == kNoRank || address.empty())) continue;
    if (rank < 0) return BadRing(absl::StrCat("ring.nodes: rank ", rank, " is below 0"));
    if (!IsAddressAndPort(address)) {
      return BadRing(absl::StrCat("ring.nodes: \"", absl::CHexEscape(address), "\" of rank ", rank,
                                  " is not ADDRESS:PORT"));
    }
    const auto [other, fresh] = at.emplace(address, rank);
    // Of others in the catalog none can keep this node from its own work.
    if (!fresh && !from_catalog) {
      return BadRing(absl::StrCat("ring.nodes: ranks ", other->second, " and ", rank,
                                  " are both at ", address));
    }
  }
  return absl::OkStatus();
}

Status CheckPlacement(const Placement& placement) {
  const int most = static_cast<int>(kMaxCatalogMembers);
  if (!placement.Groups()) return absl::OkStatus();
  if (placement.factor < 2 || placement.factor > most || placement.jump < 1 ||
      placement.jump > most) {
    return BadRing(absl::StrCat("ring.placement: groups of ", placement.factor, " with jump ",
                                placement.jump, "; a group has 2 to ", most,
                                " members, and its jump is 1 to ", most));
  }
  return absl::OkStatus();
}

// The others of the owner's group, from the one after it around the group.
std::vector<Rank> GroupAfter(Rank owner, const std::set<Rank>& members,
                             const Placement& placement) {
  const std::vector<Rank> ranks(members.begin(), members.end());
  const auto place = std::lower_bound(ranks.begin(), ranks.end(), owner) - ranks.begin();
  for (const std::vector<int>& group : GroupsOf(static_cast<int>(ranks.size()), placement)) {
    const auto at = std::find(group.begin(), group.end(), static_cast<int>(place));
    if (at == group.end()) continue;
    std::vector<Rank> others;
    for (size_t i = 1; i < group.size(); ++i) {
      others.push_back(ranks[group[(at - group.begin() + i) % group.size()]]);
    }
    return others;
  }
  return {};
}

}  // namespace

std::vector<std::vector<int>> GroupsOf(int members, const Placement& placement) {
  std::vector<std::vector<int>> groups;
  const auto add = [&groups, &placement](int begin, int jump) {
    for (int j = 0; j < jump; ++j) {
      std::vector<int>& group = groups.emplace_back();
      for (int i = 0; i < placement.factor; ++i) group.push_back(begin + j + i * jump);
    }
  };
  const int run = placement.factor * placement.jump;
  int begin = 0;
  for (; begin + run <= members; begin += run) add(begin, placement.jump);
  if (const int jump = (members - begin) / placement.factor; jump > 0) {
    add(begin, jump);
    begin += jump * placement.factor;
  }
  if (groups.empty()) groups.emplace_back();
  for (int i = 0; begin < members; ++begin, ++i) {
    groups[groups.size() - 1 - i % groups.size()].push_back(begin);
  }
  return groups;
}

Status RingOptions::Validate() const {
  if (members.empty()) return BadRing("ring.nodes: is empty");
  if (const size_t most = from_catalog ? kMaxCatalogMembers : kMaxMembers; members.size() > most) {
    return BadRing(
        absl::StrCat("ring.nodes: has ", members.size(), " members, the limit is ", most));
  }
  if (!IsClusterName(cluster)) {
    return BadRing(absl::StrCat("ring.cluster: \"", absl::CHexEscape(cluster), "\" is not 1 to ",
                                kMaxClusterBytes, " of A-Z, a-z, 0-9, '.', '_', '-'"));
  }
  CAIRN_RETURN_IF_ERROR(CheckMembers(members, from_catalog));
  if (!members.contains(rank)) {
    return BadRing(
        absl::StrCat("ring.rank: ", rank, " is not among ring.nodes, which are ",
                     absl::StrJoin(members, ", ", [](std::string* out, const auto& member) {
                       absl::StrAppend(out, member.first);
                     })));
  }
  // A ring of one keeps no replicas, whatever is asked for.
  const int most = Alone() || from_catalog ? kMostReplicas : static_cast<int>(members.size()) - 1;
  if (replicas < 0 || replicas > most) {
    return BadRing(absl::StrCat("ring.replicas: ", replicas, " is not 0 to ", most, " with ",
                                members.size(), " members"));
  }
  CAIRN_RETURN_IF_ERROR(CheckPlacement(placement));
  if (placement.Groups() && (from_catalog || !Alone()) && replicas >= placement.factor) {
    return BadRing(absl::StrCat("ring.replicas: ", replicas, " is not below the ", placement.factor,
                                " members of a group (ring.placement)"));
  }
  if (lost_after_seconds < 1 || lost_after_seconds > kMostLostAfterSeconds) {
    return BadRing(absl::StrCat("ring.lost_after_seconds: ", lost_after_seconds, " is not 1 to ",
                                kMostLostAfterSeconds));
  }
  return absl::OkStatus();
}

std::vector<Rank> BackupsOf(Rank owner, const std::set<Rank>& members, const std::set<Rank>& silent,
                            int replicas, const Placement& placement) {
  std::vector<Rank> backups;
  std::vector<Rank> group;
  if (placement.Groups()) group = GroupAfter(owner, members, placement);
  for (const Rank rank : group) {
    if (static_cast<int>(backups.size()) >= replicas) return backups;
    if (!silent.contains(rank)) backups.push_back(rank);
  }
  auto at = members.upper_bound(owner);
  for (size_t i = 0; i < members.size(); ++i, ++at) {
    if (static_cast<int>(backups.size()) >= replicas) break;
    if (at == members.end()) at = members.begin();
    const bool asked = std::find(group.begin(), group.end(), *at) != group.end();
    if (*at != owner && !asked && !silent.contains(*at)) backups.push_back(*at);
  }
  return backups;
}

std::vector<Rank> OwnersFor(Rank backup, const std::set<Rank>& members,
                            const std::set<Rank>& silent, int replicas,
                            const Placement& placement) {
  std::vector<Rank> owners;
  if (!members.contains(backup) || silent.contains(backup)) return owners;
  if (placement.Groups()) {
    for (const Rank owner : members) {
      const std::vector<Rank> of = BackupsOf(owner, members, silent, replicas, placement);
      if (std::find(of.begin(), of.end(), backup) != of.end()) owners.push_back(owner);
    }
    return owners;
  }
  // Backwards around the list, until as many live members stand between as there are replicas.
  int between = 0;
  auto at = members.find(backup);
  for (size_t i = 1; i < members.size() && between < replicas; ++i) {
    if (at == members.begin()) at = members.end();
    --at;
    owners.push_back(*at);
    if (!silent.contains(*at)) ++between;
  }
  std::sort(owners.begin(), owners.end());
  return owners;
}

bool RingView::Merge(const RingView& other) {
  const RingView before = *this;
  if (other.epoch > epoch) {
    epoch = other.epoch;
    seats.resize(other.seats.size());
  }
  for (size_t rank = 0; rank < std::min(seats.size(), other.seats.size()); ++rank) {
    const Seat& seat = other.seats[rank];
    const bool newer = seat.incarnation > seats[rank].incarnation;
    const bool found = seat.incarnation == seats[rank].incarnation && seats[rank].address.empty();
    if (newer || found) seats[rank] = seat;
  }
  return *this != before;
}

// FNV-1a over the job's bytes and the rank's four, the lowest first; then the finalizer of MurmurHash3,
// for FNV-1a alone leaves the upper bits of short inputs alike. All members must say the same, whatever
// they were compiled with: this must not change while a ring lives.
uint64_t HomeHash(absl::string_view job, Rank rank) {
  uint64_t hash = 0xcbf29ce484222325;
  const auto take = [&hash](uint8_t byte) { hash = (hash ^ byte) * 0x100000001b3; };
  for (const char c : job) take(static_cast<uint8_t>(c));
  for (int i = 0; i < 4; ++i) take(static_cast<uint8_t>(static_cast<uint32_t>(rank) >> (8 * i)));
  hash = (hash ^ (hash >> 33)) * 0xff51afd7ed558ccd;
  hash = (hash ^ (hash >> 33)) * 0xc4ceb9fe1a85ec53;
  return hash ^ (hash >> 33);
}

std::vector<Rank> HomeOrder(absl::string_view job, const std::set<Rank>& members) {
  std::vector<std::pair<uint64_t, Rank>> hashed;
  hashed.reserve(members.size());
  for (const Rank rank : members) hashed.emplace_back(HomeHash(job, rank), rank);
  std::sort(hashed.begin(), hashed.end(), [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  });
  std::vector<Rank> order;
  order.reserve(hashed.size());
  for (const auto& [hash, rank] : hashed) order.push_back(rank);
  return order;
}

}  // namespace cairn::engine
