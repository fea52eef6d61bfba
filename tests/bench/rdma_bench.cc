// How fast one transport reads from another over a device of this machine (tests/bench/rdma_bench.py runs it in a
// guest): rdma_bench DEVICE SECONDS [checked]. Prints MB/s.
//
// rdma_bench DEVICE registration PAGE_KIB: how long a slab of a quarter of a GiB whose pages are there takes to be
// registered, and to be deregistered, in pages of 4 KiB or huge ones (2 MiB).
// Prints ms for each GiB, of both.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "common/fd.h"
#include "server/transport/ibverbs.h"
#include "server/transport/rdma_slab.h"
#include "server/transport/rdma_transport.h"

namespace cairn::transport {
namespace {

constexpr SlabId kOwned = 1, kFetched = 2;
constexpr uint64_t kSlabBytes = 64 << 20;
constexpr int kAhead = 8;  // reads under way, of 4 MiB

class Direct final : public RdmaControl {
 public:
  StatusOr<RdmaConnected> Connect(const std::string&, const RdmaConnect& request,
                                  MonotonicNanos) override {
    return owner->Connect({}, request);
  }
  StatusOr<RdmaOpened> Open(const std::string&, const RdmaOpen& request, MonotonicNanos) override {
    return owner->Open({}, request);
  }
  RdmaOwner* owner = nullptr;
};

struct End {
  std::unique_ptr<RdmaTransport> transport;
  Direct* control = nullptr;
};

StatusOr<End> Start(const std::string& device, SlabId slab, bool checked) {
  CAIRN_ASSIGN_OR_RETURN(auto opened, OpenRdmaDevice(device));
  auto control = std::make_unique<Direct>();
  End end;
  end.control = control.get();
  RdmaOptions options;
  options.reader.read_back = checked;
  CAIRN_ASSIGN_OR_RETURN(end.transport, RdmaTransport::Start(std::move(opened), /*port=*/1, "peer",
                                                             options, std::move(control)));
  CAIRN_ASSIGN_OR_RETURN(UniqueFd memory, MakeMemfd("rdma-bench", kSlabBytes, 0600));
  CAIRN_RETURN_IF_ERROR(
      end.transport->Attach(slab, std::make_shared<const UniqueFd>(std::move(memory)), kSlabBytes));
  CAIRN_RETURN_IF_ERROR(end.transport->Register(slab));
  return end;
}

StatusOr<double> Measure(const std::string& device, double seconds, bool checked) {
  CAIRN_ASSIGN_OR_RETURN(End owner, Start(device, kOwned, checked));
  CAIRN_ASSIGN_OR_RETURN(End reader, Start(device, kFetched, checked));
  reader.control->owner = owner.transport->owner();
  const GrantToken token = NewGrantToken();
  const ExtentRef all = {kOwned, 0, kSlabBytes};
  CAIRN_RETURN_IF_ERROR(owner.transport->Grant(token, {}, {all}));
  CAIRN_ASSIGN_OR_RETURN(const std::string region, owner.transport->Describe(all));
  uint64_t next = 0;
  const auto begin_one = [&] {
    auto promise = std::make_shared<std::promise<Status>>();
    const uint64_t at = next++ * kMaxReadBytes % kSlabBytes;
    reader.transport->Read(
        {.address = "peer",
         .token = token,
         .region = region,
         .offset = at,
         .into = {kFetched, 0, kSlabBytes},
         .into_offset = at,
         .length = kMaxReadBytes,
         .deadline = RealClock()->Now() + 60 * kNanosPerSecond},
        [promise](const StatusOr<uint32_t>& crc) { promise->set_value(crc.status()); });
    return promise->get_future();
  };
  CAIRN_RETURN_IF_ERROR(begin_one().get());  // connects
  std::vector<std::future<Status>> under_way;
  const MonotonicNanos begin = RealClock()->Now();
  const auto until = begin + static_cast<MonotonicNanos>(seconds * kNanosPerSecond);
  uint64_t bytes = 0;
  for (int i = 0; i < kAhead; ++i) under_way.push_back(begin_one());
  for (size_t i = 0; RealClock()->Now() < until; i = (i + 1) % kAhead) {
    CAIRN_RETURN_IF_ERROR(under_way[i].get());
    bytes += kMaxReadBytes;
    under_way[i] = begin_one();
  }
  const auto took = static_cast<double>(RealClock()->Now() - begin) / kNanosPerSecond;
  for (auto& one : under_way) one.get().IgnoreError();
  return static_cast<double>(bytes) / 1e6 / took;
}

struct Registration {
  double register_ms = 0, deregister_ms = 0;  // for each GiB
};

StatusOr<Registration> MeasureRegistration(const std::string& device, int page_kib) {
  constexpr uint64_t kBytes = 256 << 20;
  constexpr double kOfGib = static_cast<double>(uint64_t{1} << 30) / kBytes;
  CAIRN_ASSIGN_OR_RETURN(const auto opened, OpenRdmaDevice(device));
  const unsigned huge = page_kib > 4 ? MFD_HUGETLB : 0U;
  UniqueFd memory(::memfd_create("rdma-bench", MFD_CLOEXEC | huge));
  if (!memory.valid() || ftruncate(memory.get(), kBytes) != 0 ||
      fallocate(memory.get(), 0, 0, kBytes) != 0) {
    return ErrnoStatus(errno, "memory of such pages");
  }
  RdmaSlab slab(opened.get(), std::make_shared<const UniqueFd>(std::move(memory)), kBytes);
  const MonotonicNanos begin = RealClock()->Now();
  CAIRN_RETURN_IF_ERROR(slab.Register());
  const MonotonicNanos registered = RealClock()->Now();
  slab.Detach();
  const auto ms = [](MonotonicNanos time) {
    return static_cast<double>(time) / kNanosPerMilli * kOfGib;
  };
  return Registration{ms(registered - begin), ms(RealClock()->Now() - registered)};
}

}  // namespace
}  // namespace cairn::transport

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr,
                 "usage: rdma_bench DEVICE SECONDS [checked] | DEVICE registration PAGE_KIB\n");
    return 2;
  }
  if (std::strcmp(argv[2], "registration") == 0 && argc == 4) {
    const auto took = cairn::transport::MeasureRegistration(argv[1], std::atoi(argv[3]));
    if (!took.ok()) {
      std::fprintf(stderr, "rdma_bench: %s\n", took.status().ToString().c_str());
      return 1;
    }
    std::printf("%.1f %.1f\n", took->register_ms, took->deregister_ms);
    return 0;
  }
  const cairn::StatusOr<double> rate =
      cairn::transport::Measure(argv[1], std::atof(argv[2]), argc > 3);
  if (!rate.ok()) {
    std::fprintf(stderr, "rdma_bench: %s\n", rate.status().ToString().c_str());
    return 1;
  }
  std::printf("%.1f\n", *rate);
  return 0;
}
