// Which devices are near, and which share a link, on machines as their sysfs shows them.
#include "server/transport/nic_topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>

namespace cairn::transport {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Machine {
 public:
  explicit Machine(const std::string& name) {
    std::ifstream file(std::string(CAIRN_TOPOLOGIES) + "/" + name + ".txt");
    for (std::string line; std::getline(file, line);) {
      if (line.empty() || line[0] == '#') continue;
      std::istringstream words(line);
      std::string device, node, path;
      words >> device >> node >> path;
      places_[device] = PlaceOf(device, path, node + "\n");
      ports_.push_back({device, 1});
    }
    EXPECT_FALSE(ports_.empty()) << name;
  }
  PciDistance Between(const std::string& a, const std::string& b) const {
    EXPECT_EQ(DistanceBetween(places_.at(a), places_.at(b)),
              DistanceBetween(places_.at(b), places_.at(a)));
    return DistanceBetween(places_.at(a), places_.at(b));
  }
  std::vector<std::string> Rails(const std::vector<int>& memory_nodes, size_t most) const {
    return RailsOf(ports_, memory_nodes, most);
  }
  std::vector<std::string> RailsOf(const std::vector<NicPort>& ports,
                                   const std::vector<int>& memory_nodes, size_t most) const {
    std::vector<std::string> names;
    const auto place_of = [this](const std::string& device) { return places_.at(device); };
    for (const NicPort& port : ChooseRails(ports, place_of, memory_nodes, most)) {
      names.push_back(port.device);
    }
    return names;
  }
  const NicPlace& Place(const std::string& device) const { return places_.at(device); }

 private:
  std::map<std::string, NicPlace> places_;
  std::vector<NicPort> ports_;
};

TEST(NicTopology, APlaceIsReadFromItsPath) {
  const Machine machine("two_sockets");
  const NicPlace& place = machine.Place("mlx5_5");
  EXPECT_EQ(place.numa_node, 1);
  EXPECT_THAT(place.pci, ElementsAre("pci0000:97", "0000:97:01.0", "0000:98:00.0", "0000:99:01.0",
                                     "0000:9b:00.0"));
  const Machine small("virtual_machine");
  EXPECT_EQ(small.Place("mlx5_0").numa_node, -1);
  EXPECT_THAT(small.Place("rxe0").pci, IsEmpty());
  EXPECT_EQ(PlaceOf("mlx5_0", "", "").numa_node, -1);
}

TEST(NicTopology, DistancesAreThoseOfTheLinksBetween) {
  const Machine machine("two_sockets");
  EXPECT_EQ(machine.Between("mlx5_0", "mlx5_0"), PciDistance::kSameFunction);
  EXPECT_EQ(machine.Between("mlx5_8", "mlx5_9"), PciDistance::kSwitch);  // of one adapter
  EXPECT_EQ(machine.Between("mlx5_0", "mlx5_1"), PciDistance::kSwitch);
  EXPECT_EQ(machine.Between("mlx5_0", "mlx5_8"), PciDistance::kRootComplex);
  EXPECT_EQ(machine.Between("mlx5_0", "mlx5_2"), PciDistance::kNode);
  EXPECT_EQ(machine.Between("mlx5_0", "mlx5_4"), PciDistance::kSystem);
  const NicPlace deep = PlaceOf(
      "deep",
      "pci0000:16/0000:16:01.0/0000:17:00.0/0000:18:02.0/0000:1b:00.0/0000:1c:00.0/0000:1d:00.0",
      "0");
  EXPECT_EQ(DistanceBetween(deep, machine.Place("mlx5_0")), PciDistance::kSwitches);
  const Machine small("virtual_machine");
  EXPECT_EQ(small.Between("mlx5_0", "mlx5_1"), PciDistance::kRootComplex);
  EXPECT_EQ(small.Between("mlx5_0", "rxe0"), PciDistance::kSystem);  // not known
}

TEST(NicTopology, DevicesNearThisProcessesMemoryAreTaken) {
  const Machine machine("two_sockets");
  EXPECT_THAT(machine.Rails({1}, 8), ElementsAre("mlx5_4", "mlx5_5", "mlx5_6", "mlx5_7"));
  EXPECT_EQ(machine.Rails({0, 1}, 16).size(), 10U);
  EXPECT_EQ(machine.Rails({}, 16).size(), 10U);   // all are as good
  EXPECT_EQ(machine.Rails({7}, 16).size(), 10U);  // none is near: better than none at all
  EXPECT_THAT(Machine("virtual_machine").Rails({0}, 8), ElementsAre("mlx5_0", "mlx5_1", "rxe0"));
}

TEST(NicTopology, OfTooManyThoseThatShareNoLinkAreTaken) {
  const Machine machine("two_sockets");
  EXPECT_THAT(machine.Rails({0, 1}, 1), ElementsAre("mlx5_0"));
  EXPECT_THAT(machine.Rails({0, 1}, 2), ElementsAre("mlx5_0", "mlx5_4"));  // one of each socket
  EXPECT_THAT(machine.Rails({0, 1}, 4), ElementsAre("mlx5_0", "mlx5_2", "mlx5_4", "mlx5_6"));
  EXPECT_THAT(machine.Rails({0}, 3), ElementsAre("mlx5_0", "mlx5_2", "mlx5_8"));
  EXPECT_THAT(machine.Rails({0, 1}, 0), IsEmpty());
}

TEST(NicTopology, OfADeviceTheFirstPortThatMayBeUsedIsTaken) {
  const Machine machine("two_sockets");
  const std::vector<NicPort> ports = {{"mlx5_4", 2}, {"mlx5_4", 1}, {"mlx5_0", 1}};
  EXPECT_THAT(machine.RailsOf(ports, {}, 8), ElementsAre("mlx5_4", "mlx5_0"));
  const auto chosen = ChooseRails(
      ports, [&](const std::string& device) { return machine.Place(device); }, {}, 1);
  EXPECT_THAT(chosen, ElementsAre(NicPort{"mlx5_4", 2}));
}

TEST(NicTopology, ListsOfNodesAreReadAndOthersRefused) {
  EXPECT_THAT(*ParseNodeList("0-1,3\n"), ElementsAre(0, 1, 3));
  EXPECT_THAT(*ParseNodeList("2"), ElementsAre(2));
  EXPECT_THAT(*ParseNodeList(""), IsEmpty());
  for (const char* const wrong : {"x", "1-", "3-1", "0-1-2", "-1", "0-99999"}) {
    EXPECT_THAT(ParseNodeList(wrong).status().message(), HasSubstr("NUMA nodes")) << wrong;
  }
}

}  // namespace
}  // namespace cairn::transport
