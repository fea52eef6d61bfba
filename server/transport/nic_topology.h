// Where RDMA devices are in a machine, and which of them to use: pure functions over what sysfs says.
//
// A device reads host memory over the links between it and its root complex. Devices on the other side of the link
// between sockets are slower to memory of this one, and devices behind one PCI switch share its link upwards.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/status.h"
#include "server/transport/nic_choice.h"

namespace cairn::transport {

struct NicPlace {
  std::string device;  // mlx5_0
  int numa_node = -1;  // -1: not known
  // From the root complex down: "pci0000:16", "0000:16:01.0", …, the device's own function last. Empty: it is not a PCI
  // device, as Soft-RoCE, or not known.
  std::vector<std::string> pci;
  bool operator==(const NicPlace&) const = default;
};

// How far two devices are from each other, in the order of growing distance. The names in brackets are those that NCCL
// and nvidia-smi print.
enum class PciDistance {
  kSameFunction,  // two ports of one
  kSwitch,        // at most one bridge between them (PIX): they share its link
  kSwitches,      // several bridges, below one root port (PXB)
  kRootComplex,   // below one root complex, by root ports of their own (PHB)
  kNode,          // root complexes of one NUMA node (NODE)
  kSystem,        // of two, or not known (SYS)
};
PciDistance DistanceBetween(const NicPlace& a, const NicPlace& b);

// `path` is where /sys/class/infiniband/DEVICE/device leads, or what stands in its place in a test: its parts from
// "pci…" on. `numa_node` is the text of the file of that name in it; empty when there is none.
NicPlace PlaceOf(absl::string_view device, absl::string_view path, absl::string_view numa_node);

// "0-1,3" → 0, 1, 3, as Mems_allowed_list and the files of sysfs write it. INVALID_ARGUMENT for what is no such list.
StatusOr<std::vector<int>> ParseNodeList(absl::string_view list);

// Of ports that may be used, one of each device at most: those to stripe over, `most` of them, in the order of `ports`.
// Devices of other NUMA nodes than those where this process may have memory are used only where there are no others;
// an empty `memory_nodes` says that all are as good. Where there are more than `most` those are taken that share the
// fewest links with each other.
std::vector<NicPort> ChooseRails(const std::vector<NicPort>& ports,
                                 const std::function<NicPlace(const std::string&)>& place_of,
                                 const std::vector<int>& memory_nodes, size_t most);

}  // namespace cairn::transport
