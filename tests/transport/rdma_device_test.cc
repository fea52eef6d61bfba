// What devices do with registered memory, on Soft-RoCE (hack/guest): the facts that the RDMA transport stands on.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <linux/falloc.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <thread>

#include "common/checksum.h"
#include "server/cache/slab.h"
#include "server/transport/ibverbs.h"
#include "server/transport/locked_memory.h"
#include "server/transport/rdma_slab.h"
#include "tests/transport/rdma_nodes.h"
#include "tests/transport/two_nodes.h"

namespace cairn::transport {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kMib = 1 << 20;

std::unique_ptr<VerbsDevice> Open(const std::string& name = "rxe0") {
  auto device = OpenRdmaDevice(name);
  EXPECT_TRUE(device.ok()) << device.status();
  return device.ok() ? *std::move(device) : nullptr;
}

// One queue pair that is connected to another one of the device.
class Loop {
 public:
  explicit Loop(VerbsDevice* device) {
    const VerbsPort& port = device->info().ports[0];
    const VerbsGid gid = *ChooseGid(device->info(), port);
    completions_ = *device->MakeCompletions(16);
    reader_ = *device->MakeQueuePair(port, gid, 16, completions_.get());
    owner_ = *device->MakeQueuePair(port, gid, 1, completions_.get());
    EXPECT_TRUE(reader_->Connect(owner_->endpoint()).ok());
    EXPECT_TRUE(owner_->Connect(reader_->endpoint()).ok());
  }
  // The read's end.
  Status Read(const VerbsRead& read) {
    CAIRN_RETURN_IF_ERROR(reader_->PostRead(read));
    std::array<VerbsCompletion, 1> one;
    const MonotonicNanos until = After(10);
    while (RealClock()->Now() < until) {
      CAIRN_ASSIGN_OR_RETURN(const int count, completions_->Poll(absl::MakeSpan(one)));
      if (count == 1) return one[0].status;
    }
    return absl::DeadlineExceededError("no completion");
  }

 private:
  std::unique_ptr<VerbsCompletions> completions_;
  std::unique_ptr<VerbsQueuePair> reader_, owner_;
};

// A slab that is registered: the owner's or the reader's.
struct Registered {
  Registered(VerbsDevice* device, const Memory& memory) : slab(device, memory.fd(), memory.size()) {
    EXPECT_TRUE(slab.Register().ok());
  }
  uint32_t key() const { return slab.remote_pieces().at(0).key; }
  uint32_t local() const { return slab.local_pieces().at(0).key; }
  RdmaSlab slab;
};

VerbsRead AllOf(const Registered& from, const Registered& into, uint64_t length) {
  return {.id = 1,
          .local_key = into.local(),
          .local_offset = 0,
          .remote_key = from.key(),
          .remote_offset = 0,
          .length = static_cast<uint32_t>(length)};
}

void Punch(const Memory& memory, uint64_t offset, uint64_t length) {
  ASSERT_EQ(fallocate(memory.fd()->get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                      static_cast<off_t>(offset), static_cast<off_t>(length)),
            0);
}

int64_t PinnedPages() {
  std::ofstream("/proc/sys/vm/stat_refresh") << "1";
  std::ifstream vmstat("/proc/vmstat");
  int64_t pinned = 0, count = 0;
  for (std::string name; vmstat >> name >> count;) {
    if (name == "nr_foll_pin_acquired") pinned += count;
    if (name == "nr_foll_pin_released") pinned -= count;
  }
  return pinned;
}

// In a child, which tells by its exit status.
bool InChild(const std::function<bool()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body() ? 0 : 1);
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(RdmaDevice, IsListedAndTellsOfItsPort) {
  const auto names = ListRdmaDevices();
  ASSERT_TRUE(names.ok()) << names.status();
  EXPECT_THAT(*names, ::testing::UnorderedElementsAre("rxe0", "rxe1"));
  const auto device = Open();
  ASSERT_EQ(device->info().ports.size(), 1U);
  const VerbsPort& port = device->info().ports[0];
  EXPECT_TRUE(port.active);
  EXPECT_TRUE(port.ethernet);
  EXPECT_EQ(port.mtu_bytes, 4096);
  EXPECT_EQ(ChooseGid(device->info(), port)->kind, GidKind::kRoceV2);
  EXPECT_TRUE(absl::IsNotFound(OpenRdmaDevice("mlx5_7").status()));
}

TEST(RdmaDevice, ARegistrationOutlivesItsMapping) {
  const auto device = Open();
  const std::string bytes = Noise(2 * kMib, 3);
  Memory from(bytes), into(bytes.size());
  const Registered source(device.get(), from), target(device.get(), into);
  std::ifstream maps("/proc/self/maps");
  std::stringstream text;
  text << maps.rdbuf();
  EXPECT_THAT(text.str(), ::testing::Not(HasSubstr("transport-test")));

  Loop loop(device.get());
  ASSERT_TRUE(loop.Read(AllOf(source, target, bytes.size())).ok());
  EXPECT_EQ(into.Read(0, bytes.size()), bytes);
  // What a client writes into its mapping is seen, and what is written into the file.
  const SharedFd client = from.fd();
  auto* const mapped = static_cast<char*>(
      mmap(nullptr, bytes.size(), PROT_READ | PROT_WRITE, MAP_SHARED, client->get(), 0));
  ASSERT_NE(mapped, MAP_FAILED);
  mapped[7] = static_cast<char>(~mapped[7]);
  munmap(mapped, bytes.size());
  from.Write(kMib, "written");
  ASSERT_TRUE(loop.Read(AllOf(source, target, bytes.size())).ok());
  EXPECT_EQ(into.Read(0, bytes.size()), from.Read(0, bytes.size()));
  EXPECT_EQ(*target.slab.Crc(0, bytes.size()), *source.slab.Crc(0, bytes.size()));
}

TEST(RdmaDevice, TheProbeForBorrowersIsRightBesideARegistration) {
  const auto device = Open();
  auto slab = cache::Slab::Make("probed", 4 * kMib);
  ASSERT_TRUE(slab.ok()) << slab.status();
  RdmaSlab registered(device.get(), SharedFd(*slab, &(*slab)->description()), 4 * kMib);
  ASSERT_TRUE(registered.Register().ok());
  EXPECT_TRUE(*(*slab)->Probe());  // nobody else has it
  {
    const UniqueFd lent = *(*slab)->Lend(1, /*writable=*/true);
    EXPECT_FALSE(*(*slab)->Probe());
  }
  EXPECT_TRUE(*(*slab)->Probe());
}

TEST(RdmaDevice, APageThatWasTakenAwayIsReadAsItWasUntilItIsRegisteredAnew) {
  const auto device = Open();
  const std::string bytes = Noise(kMib, 4);
  Memory from(bytes), into(bytes.size());
  Registered source(device.get(), from);
  const Registered target(device.get(), into);
  Loop loop(device.get());

  Punch(from, 0, kPageBytes);
  EXPECT_FALSE(source.slab.Registered());  // it sees that a page is missing
  ASSERT_TRUE(loop.Read(AllOf(source, target, bytes.size())).ok());
  EXPECT_EQ(into.Read(0, bytes.size()), bytes);  // right, and the owner's own copy is not
  EXPECT_EQ(from.Read(0, 4), std::string(4, '\0'));

  const std::string next = Noise(kMib, 5);
  from.Write(0, next);
  EXPECT_TRUE(source.slab.Registered());  // no page is missing now
  ASSERT_TRUE(loop.Read(AllOf(source, target, bytes.size())).ok());
  EXPECT_EQ(into.Read(0, kPageBytes), bytes.substr(0, kPageBytes));  // stale: the checksum objects
  EXPECT_EQ(into.Read(kPageBytes, kPageBytes), next.substr(kPageBytes, kPageBytes));

  Registered anew(device.get(), from);
  ASSERT_TRUE(loop.Read(AllOf(anew, target, bytes.size())).ok());
  EXPECT_EQ(into.Read(0, bytes.size()), next);
}

TEST(RdmaDevice, WhatIsReadIntoAPageThatWasTakenAwayIsLostAndTheChecksumSaysSo) {
  const auto device = Open();
  const std::string bytes = Noise(kMib, 6);
  Memory from(bytes), into(bytes.size());
  const Registered source(device.get(), from);
  Registered target(device.get(), into);
  Loop loop(device.get());
  Punch(into, 0, kPageBytes);
  ASSERT_TRUE(loop.Read(AllOf(source, target, bytes.size())).ok());  // so says the device
  EXPECT_NE(*target.slab.Crc(0, bytes.size()), *source.slab.Crc(0, bytes.size()));
  ASSERT_TRUE(target.slab.Register().ok());  // anew, for a page is missing
  ASSERT_TRUE(loop.Read(AllOf(source, target, bytes.size())).ok());
  EXPECT_EQ(*target.slab.Crc(0, bytes.size()), *source.slab.Crc(0, bytes.size()));
}

TEST(RdmaDevice, AnOldKeyIsRefusedAndTouchesNothing) {
  const auto device = Open();
  Memory from(Noise(kMib, 7));
  const std::string canary = Noise(kMib, 8);
  Memory into(canary);
  const Registered target(device.get(), into);
  VerbsRead read;
  {
    const Registered source(device.get(), from);
    read = AllOf(source, target, kMib);
    ASSERT_TRUE(Loop(device.get()).Read(read).ok());
    into.Write(0, canary);
    // Past the end, by a byte; and with a key that is nobody's.
    VerbsRead wrong = read;
    wrong.remote_offset = 1;
    EXPECT_TRUE(absl::IsPermissionDenied(Loop(device.get()).Read(wrong)));
    wrong = read;
    wrong.remote_key ^= 0x55;
    EXPECT_TRUE(absl::IsPermissionDenied(Loop(device.get()).Read(wrong)));
  }
  EXPECT_TRUE(absl::IsPermissionDenied(Loop(device.get()).Read(read)));
  EXPECT_EQ(into.Read(0, kMib), canary);
}

TEST(RdmaDevice, AKilledProcessHoldsNoPagesBeforeItsEndIsSeen) {
  const int64_t before = PinnedPages();
  const auto memory = std::make_shared<const UniqueFd>(*MakeMemfd("held", 128 * kMib, 0600));
  int ready[2] = {};
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    const auto device = OpenRdmaDevice("rxe0");
    RdmaSlab slab(device->get(), memory, 128 * kMib);
    const bool ok = slab.Register().ok();
    (void)!write(ready[1], ok ? "y" : "n", 1);
    pause();
    _exit(0);
  }
  char answer = 0;
  ASSERT_EQ(read(ready[0], &answer, 1), 1);
  ASSERT_EQ(answer, 'y');
  EXPECT_EQ(PinnedPages() - before, 128 * 256);
  kill(child, SIGKILL);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(PinnedPages(), before);
  close(ready[0]);
  close(ready[1]);
}

TEST(RdmaBadInput, MemoryThatMustNotBeLockedIsCalledByItsName) {
  EXPECT_TRUE(InChild([] {
    const rlimit limit = {kMib, kMib};
    setrlimit(RLIMIT_MEMLOCK, &limit);
    __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    std::array<__user_cap_data_struct, 2> none = {};
    syscall(SYS_capset, &header, none.data());
    const LockedMemory locked = ThisProcessesLockedMemory();
    if (locked.unlimited || locked.limit != kMib) return false;
    const auto device = OpenRdmaDevice("rxe0");
    if (!device.ok()) return false;
    const auto memory = std::make_shared<const UniqueFd>(*MakeMemfd("too-much", 8 * kMib, 0600));
    RdmaSlab slab(device->get(), memory, 8 * kMib);
    const Status refused = slab.Register();
    std::fprintf(stderr, "%s\n", refused.ToString().c_str());
    const std::string why(refused.message());
    return absl::IsResourceExhausted(refused) &&
           why.find("locked memory is 1 MiB") != std::string::npos &&
           why.find("registering 8 MiB") != std::string::npos;
  }));
}

int Shell(const std::string& command) {
  return std::system(command.c_str());  // NOLINT(cert-env33-c): the guest's own tools
}

// The network goes in the middle, then the device: what is under way ends with an error and in time, and nothing
// that is open keeps the system from taking the device away once it is closed.
TEST(RdmaFaults, ADeviceThatGoesEndsWhatIsUnderWay) {
  const std::string bytes = Noise(8 * kMib, 9);
  const Memory owned(bytes), fetched(bytes.size());
  auto owner = StartRdma({.rank = 1, .incarnation = 5}, Open("rxe1"));
  auto reader = StartRdma(kReader, Open("rxe1"));
  ASSERT_TRUE(owner->Attach(kOwned, owned.fd(), owned.size()).ok());
  ASSERT_TRUE(reader->Attach(kFetched, fetched.fd(), fetched.size()).ok());
  const GrantToken token = NewGrantToken();
  const ExtentRef all = {kOwned, 0, owned.size()};
  ASSERT_TRUE(owner->Grant(token, kReader, {all}).ok());
  const std::string region = *owner->Describe(all);
  ASSERT_TRUE(ReadAllOf(reader.get(), *owner, token, region, bytes, fetched).ok());

  std::vector<std::future<StatusOr<uint32_t>>> reads;
  for (int i = 0; i < 32; ++i) {
    reads.push_back(Begin(reader.get(), ReadOf(*owner, token, region, 0, kBlockBytes, fetched)));
  }
  ASSERT_EQ(Shell("ip link set veth1 down"), 0);
  const MonotonicNanos begin = RealClock()->Now();
  int failed = 0;
  for (auto& read : reads) failed += read.get().ok() ? 0 : 1;
  EXPECT_LT(RealClock()->Now() - begin, testing::Patient(20 * kNanosPerSecond));
  EXPECT_GT(failed, 0);
  ASSERT_EQ(Shell("ip link set veth1 up"), 0);
  EXPECT_TRUE(ReadAllOf(reader.get(), *owner, token, region, bytes, fetched).ok());

  // In the middle of reads. Soft-RoCE waits until nobody has the device open: they end, well or with an error.
  reads.clear();
  for (int i = 0; i < 32; ++i) {
    reads.push_back(Begin(reader.get(), ReadOf(*owner, token, region, 0, kBlockBytes, fetched)));
  }
  ASSERT_EQ(reads.back().wait_for(std::chrono::milliseconds(1)), std::future_status::timeout);
  ASSERT_EQ(Shell("rdma link del rxe1 & echo $! > /tmp/deleting"), 0);
  const MonotonicNanos deleting = RealClock()->Now();
  for (auto& read : reads) read.wait();
  EXPECT_LT(RealClock()->Now() - deleting, testing::Patient(30 * kNanosPerSecond));
  EXPECT_EQ(fetched.Read(0, kBlockBytes), bytes.substr(0, kBlockBytes));
  reader.reset();
  owner.reset();
  ASSERT_EQ(Shell("timeout 20 tail --pid=$(cat /tmp/deleting) -f /dev/null"), 0);
  EXPECT_TRUE(absl::IsNotFound(OpenRdmaDevice("rxe1").status()));
  ASSERT_EQ(Shell("rdma link add rxe1 type rxe netdev veth1"), 0);
}

TEST(RdmaFaults, ManyConnectionsLeaveNothingBehind) {
  const std::string bytes = Noise(kMib, 10);
  const Memory owned(bytes), fetched(bytes.size());
  const auto owner = StartRdma({.rank = 1, .incarnation = 5}, Open());
  ASSERT_TRUE(owner->Attach(kOwned, owned.fd(), owned.size()).ok());
  const ExtentRef all = {kOwned, 0, owned.size()};
  const auto round = [&] {
    const auto reader = StartRdma(kReader, Open());
    ASSERT_TRUE(reader->Attach(kFetched, fetched.fd(), fetched.size()).ok());
    const GrantToken token = NewGrantToken();
    ASSERT_TRUE(owner->Grant(token, kReader, {all}).ok());
    ASSERT_TRUE(ReadAllOf(reader.get(), *owner, token, *owner->Describe(all), bytes, fetched).ok());
    EXPECT_TRUE(owner->Revoke(token, ItsReads::kMayBeUnderWay));
  };
  const auto descriptors = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  };
  round();
  const int64_t pinned = PinnedPages();
  const auto open = descriptors();
  for (int i = 0; i < 200; ++i) round();
  EXPECT_EQ(descriptors(), open);
  EXPECT_EQ(PinnedPages(), pinned);
  EXPECT_EQ(owner->owner()->connections(), 0);
}

}  // namespace
}  // namespace cairn::transport
