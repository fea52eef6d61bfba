#include "server/transport/nic_topology.h"

#include <algorithm>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace cairn::transport {
namespace {

// A bridge and the function below it: what is above counts as one switch more.
constexpr size_t kBelowOneBridge = 1;

bool IsPciFunction(absl::string_view part) {  // 0000:16:01.0
  return part.size() >= 12 && part[4] == ':' && part[7] == ':' && part[10] == '.';
}

size_t CommonParts(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  const size_t most = std::min(a.size(), b.size());
  size_t common = 0;
  while (common < most && a[common] == b[common]) ++common;
  return common;
}

}  // namespace

NicPlace PlaceOf(absl::string_view device, absl::string_view path, absl::string_view numa_node) {
  NicPlace place;
  place.device = std::string(device);
  int node = -1;
  if (absl::SimpleAtoi(absl::StripAsciiWhitespace(numa_node), &node) && node >= 0) {
    place.numa_node = node;
  }
  for (const absl::string_view part : absl::StrSplit(path, '/', absl::SkipEmpty())) {
    if (place.pci.empty() ? absl::StartsWith(part, "pci") : IsPciFunction(part)) {
      place.pci.emplace_back(part);
    }
  }
  return place;
}

PciDistance DistanceBetween(const NicPlace& a, const NicPlace& b) {
  const size_t common = CommonParts(a.pci, b.pci);
  if (common >= 2) {  // a root complex and a root port, at least
    if (a.pci.size() == common && b.pci.size() == common) return PciDistance::kSameFunction;
    const size_t below = std::max(a.pci.size(), b.pci.size()) - common;
    return below <= kBelowOneBridge + 1 ? PciDistance::kSwitch : PciDistance::kSwitches;
  }
  if (common == 1) return PciDistance::kRootComplex;
  const bool same_node = a.numa_node >= 0 && a.numa_node == b.numa_node;
  return same_node ? PciDistance::kNode : PciDistance::kSystem;
}

StatusOr<std::vector<int>> ParseNodeList(absl::string_view list) {
  constexpr int kMostNodes = 4096;
  std::vector<int> nodes;
  for (const absl::string_view item :
       absl::StrSplit(absl::StripAsciiWhitespace(list), ',', absl::SkipEmpty())) {
    const std::vector<absl::string_view> ends = absl::StrSplit(item, '-');
    int first = 0, last = 0;
    if (ends.size() > 2 || !absl::SimpleAtoi(ends.front(), &first) ||
        !absl::SimpleAtoi(ends.back(), &last) || first < 0 || last < first || last >= kMostNodes) {
      return absl::InvalidArgumentError(
          absl::StrCat("NUMA nodes: \"", item, "\" is not a node, or two with a dash between"));
    }
    for (int node = first; node <= last; ++node) nodes.push_back(node);
  }
  return nodes;
}

namespace {

// Those near this process's memory; all, where none is.
std::vector<NicPort> NearMemory(const std::vector<NicPort>& ports,
                                const std::map<std::string, NicPlace>& places,
                                const std::vector<int>& memory_nodes) {
  std::vector<NicPort> near;
  for (const NicPort& port : ports) {
    const int node = places.at(port.device).numa_node;
    const bool here =
        memory_nodes.empty() || node < 0 ||
        std::find(memory_nodes.begin(), memory_nodes.end(), node) != memory_nodes.end();
    if (here) near.push_back(port);
  }
  return near.empty() ? ports : near;
}

}  // namespace

std::vector<NicPort> ChooseRails(const std::vector<NicPort>& ports,
                                 const std::function<NicPlace(const std::string&)>& place_of,
                                 const std::vector<int>& memory_nodes, size_t most) {
  std::map<std::string, NicPlace> places;
  std::vector<NicPort> one_each;
  for (const NicPort& port : ports) {
    if (places.try_emplace(port.device, place_of(port.device)).second) one_each.push_back(port);
  }
  const std::vector<NicPort> near = NearMemory(one_each, places, memory_nodes);
  std::vector<bool> taken(near.size());
  for (size_t count = 0; count < std::min(most, near.size()); ++count) {
    // The one that is farthest from the nearest of those that are taken; of equal ones the first.
    size_t best = near.size();
    PciDistance best_distance = PciDistance::kSameFunction;
    for (size_t i = 0; i < near.size(); ++i) {
      if (taken[i]) continue;
      PciDistance nearest = PciDistance::kSystem;
      for (size_t j = 0; j < near.size(); ++j) {
        if (!taken[j]) continue;
        nearest = std::min(nearest,
                           DistanceBetween(places.at(near[i].device), places.at(near[j].device)));
      }
      if (best == near.size() || nearest > best_distance) {
        best = i;
        best_distance = nearest;
      }
    }
    taken[best] = true;
  }
  std::vector<NicPort> chosen;
  for (size_t i = 0; i < near.size(); ++i) {
    if (taken[i]) chosen.push_back(near[i]);
  }
  return chosen;
}

}  // namespace cairn::transport
