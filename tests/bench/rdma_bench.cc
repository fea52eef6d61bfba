// How fast one transport reads from another over a device of this machine (tests/bench/rdma_bench.py runs it in a
// guest): rdma_bench DEVICE SECONDS [checked]. Prints MB/s.
#include <cstdio>
#include <cstdlib>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "common/fd.h"
#include "server/transport/ibverbs.h"
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
  CAIRN_RETURN_IF_ERROR(end.transport->Attach(slab, std::move(memory), kSlabBytes));
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

}  // namespace
}  // namespace cairn::transport

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: rdma_bench DEVICE SECONDS [checked]\n");
    return 2;
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
