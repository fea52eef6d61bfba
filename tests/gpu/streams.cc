// How fast weights stream into a device from memory, without a daemon.
//
// usage: gpu_streams host|cuda [MIB] [PAIRS] [ROW]     ROW: only those whose names begin so
// Prints a line per sample: "sample NAME OURS REFERENCE UNIT". Ours and the reference take turns; the bytes change before
// every pair; what arrived is compared when the clock has stopped.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>

#include "client/gpu/cuda_device.h"
#include "client/gpu/host_device.h"
#include "client/gpu/weight_stream.h"
#include "tests/gpu/slab_source.h"

namespace cairn::gpu {
namespace {

using client::MakePlan;
using client::Plan;
using client::Selection;
using client::Shard;
using client::WeightsIndex;
using testing::Must;
using testing::Seconds;

constexpr uint64_t kKiB = 1 << 10, kMiB = 1 << 20;

void Sample(const std::string& name, double ours, double reference, const char* unit) {
  std::printf("sample %s %.6g %.6g %s\n", name.c_str(), ours, reference, unit);
  std::fflush(stdout);
}

class Streams {
 public:
  Streams(bool cuda, uint64_t bytes, int pairs, std::string only)
      : cuda_(cuda),
        bytes_(bytes),
        pairs_(pairs),
        only_(std::move(only)),
        streamer_(std::make_unique<Streamer>(Open())),
        slab_(std::make_shared<SlabSource>(bytes, 1)),
        into_(Must(NewDeviceBlock(device(), bytes))) {
    std::printf("%s, %llu MiB\n", device()->Name().c_str(),
                static_cast<unsigned long long>(bytes / kMiB));
    Reference(bytes);  // so that every page of the destination is there
  }

  void All() {
    const WeightsIndex large = EvenWeights(400, kKiB, bytes_ / 400 / kKiB / 8 * 8);
    const Plan whole = *MakePlan(large, {});
    First(whole);
    using Check = StreamOptions::Check;
    StreamOptions direct;
    direct.way = StreamOptions::Way::kDirect;
    if (!cuda_) Pairs("stream_host", whole, {});
    if (!cuda_) Pairs("stream_host/direct", whole, direct);
    if (cuda_) Pairs("h2d_standing", whole, {});
    StreamOptions ring;
    ring.way = StreamOptions::Way::kRing;
    const std::string name = cuda_ ? "h2d_stream" : "stream_ring";
    Pairs(name, whole, ring);
    StreamOptions on_host = ring;
    on_host.check = cuda_ ? Check::kHost : Check::kDevice;
    Pairs(name + (cuda_ ? "/checked_on_host" : "/checked_on_device"), whole, on_host);
    slab_->is_mapped = false;
    Pairs(name + "/by_descriptor", whole, ring);
    slab_->is_mapped = true;
    StreamOptions views;
    views.views = true;
    Pairs(name + "/views", whole, views);
    Many();
    const auto cut = [&](int dim, uint64_t columns) {
      const uint64_t rows = bytes_ / 400 / columns;
      return *MakePlan(EvenWeights(400, rows, columns), {{}, {{"*", Shard{1, 4, dim}}}});
    };
    Pairs("stream_slices/dim0", cut(0, 8 * kKiB), {}, true);
    Pairs("stream_slices/dim1", cut(1, 8 * kKiB), {}, true);
  }

 private:
  std::unique_ptr<Device> Open() const {
    if (cuda_) return Must(OpenCudaDevice(0));
    return MakeHostDevice({.memory_bytes = bytes_ * 2 + 64 * kMiB});
  }
  Device* device() { return streamer_->device(); }

  static uint64_t Wanted(const Plan& plan) {
    uint64_t bytes = 0;
    for (const client::WantedTensor& tensor : plan.tensors) bytes += tensor.bytes;
    return bytes;
  }

  // Seconds to stream the plan. Tensors go one after the other into memory that is there.
  double Stream(const Plan& plan, StreamOptions options, StreamStats* stats = nullptr) {
    uint64_t at = 0;
    if (!cuda_) options.threads = 2;
    if (!options.views) {
      options.place = [&](const client::WantedTensor& tensor) -> StatusOr<DevicePtr> {
        const DevicePtr here = into_.get() + at;
        at += tensor.bytes;
        return here;
      };
    }
    Plan own = plan;
    return Seconds([&] {
      const auto stream = Must(streamer_->Start({slab_}, std::move(own), options));
      while (!Must(stream->Next()).empty()) {
      }
      if (stats != nullptr) *stats = stream->stats();
    });
  }

  // Seconds of the best copy of as many bytes: from pinned memory on a GPU, memcpy by one thread else.
  double Reference(uint64_t bytes) {
    if (!cuda_) {
      return Seconds(
          [&] { std::memcpy(reinterpret_cast<void*>(into_.get()), slab_->data(), bytes); });
    }
    if (!pinned_.valid()) {
      pinned_ = Must(NewPinnedBlock(device(), bytes_));
      std::memset(pinned_.get(), 1, bytes_);
    }
    if (bytes == 0) return 0;
    return Seconds([&] {
      const CopyIn all{pinned_.get(), into_.get(), bytes};
      Must(device()->Copy({&all, 1}, kDefaultStream));
      Must(device()->Synchronize(kDefaultStream));
    });
  }

  // That the tensors lie there one after the other, as the slab has them.
  void Compare(const Plan& plan) {
    const char* there = reinterpret_cast<const char*>(into_.get());
    if (cuda_) {
      Reference(0);  // whose memory is used
      const CopyOut all{into_.get(), pinned_.get(), Wanted(plan)};
      Must(device()->Copy({&all, 1}, kDefaultStream));
      Must(device()->Synchronize(kDefaultStream));
      there = static_cast<const char*>(pinned_.get());
    }
    std::vector<uint64_t> starts;
    uint64_t at = 0;
    for (const client::WantedTensor& tensor : plan.tensors) {
      starts.push_back(at);
      at += tensor.bytes;
    }
    std::vector<std::thread> threads;
    const size_t count = std::max(1u, std::thread::hardware_concurrency());
    for (size_t t = 0; t < count; ++t) {
      threads.emplace_back([&, t] {
        for (size_t i = t; i < plan.blocks.size(); i += count) {
          CompareBlock(plan, plan.blocks[i], starts, there);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  void CompareBlock(const Plan& plan, const client::PlannedBlock& block,
                    const std::vector<uint64_t>& starts, const char* there) {
    for (const client::PlannedPiece& piece : block.pieces) {
      for (uint64_t row = 0; row < piece.count; ++row) {
        const char* const from =
            slab_->data() + block.block * kBlockBytes + piece.from + row * piece.from_pitch;
        const char* const to = there + starts[piece.tensor] + piece.to + row * piece.to_pitch;
        if (std::memcmp(from, to, piece.width) == 0) continue;
        std::fprintf(stderr, "wrong bytes in %s\n", plan.tensors[piece.tensor].name.c_str());
        std::exit(1);
      }
    }
  }

  void Pairs(const std::string& name, const Plan& plan, const StreamOptions& options,
             bool warm = false) {
    if (!name.starts_with(only_)) return;
    StreamStats stats;
    Stream(plan, options);
    streamer_->standing()->Settle();  // from now on what is registered is used
    for (int i = 0; i < pairs_; ++i) {
      slab_->Fill(++seed_);
      if (warm) Stream(plan, options);                   // its blocks are checked once per process
      const double reference = Reference(Wanted(plan));  // leaves other bytes where `warm` put them
      const double ours = Stream(plan, options, &stats);
      if (!options.views) Compare(plan);
      Report(name, plan, ours, reference);
    }
    std::printf(
        "%s: by way of %s, %llu threads, %llu blocks checked on the device, %llu on the host, %llu "
        "before %s\n",
        name.c_str(), stats.way.c_str(), static_cast<unsigned long long>(stats.threads),
        static_cast<unsigned long long>(stats.checked_on_device),
        static_cast<unsigned long long>(stats.checked_on_host),
        static_cast<unsigned long long>(stats.checked_before), stats.host_because.c_str());
  }

  void Report(const std::string& name, const Plan& plan, double ours, double reference) {
    if (!cuda_) return Sample(name, ours * 1e3, reference * 1e3, "ms");
    const auto bytes = static_cast<double>(Wanted(plan));
    Sample(name, bytes / ours / 1e9, bytes / reference / 1e9, "GB/s");
  }

  // The first stream of a process that has a context: the ring is made while it runs.
  void First(const Plan& plan) {
    const double ours = Stream(plan, {});
    Compare(plan);
    Report(cuda_ ? "h2d_first" : "stream_first", plan, ours, Reference(Wanted(plan)));
  }

  void Many() {
    if (!std::string("stream_many").starts_with(only_)) return;
    const uint64_t each = 64 * kKiB, count = std::min<uint64_t>(10'000, bytes_ / each);
    const Plan many = *MakePlan(EvenWeights(count, 64, kKiB), {});
    const Plan one = *MakePlan(EvenWeights(1, count * 64, kKiB), {});
    Stream(many, {});
    for (int i = 0; i < pairs_; ++i) {
      slab_->Fill(++seed_);
      const double ours = Stream(many, {});
      Compare(many);
      slab_->Fill(++seed_);  // or its blocks would count as checked
      const double reference = Stream(one, {});
      Compare(one);
      Report("stream_many", many, ours, reference);
    }
  }

  const bool cuda_;
  const uint64_t bytes_;
  const int pairs_;
  const std::string only_;
  const std::unique_ptr<Streamer> streamer_;
  const std::shared_ptr<SlabSource> slab_;
  const DeviceBlock into_;
  uint64_t seed_ = 1;
  PinnedBlock pinned_;
};

}  // namespace
}  // namespace cairn::gpu

int main(int argc, char** argv) {
  const std::string device = argc > 1 ? argv[1] : "";
  if (device != "host" && device != "cuda") {
    std::fprintf(stderr, "usage: gpu_streams host|cuda [MIB] [PAIRS] [ROW]\n");
    return 2;
  }
  if (device == "cuda" && !cairn::gpu::CudaAvailable().ok()) {
    std::printf("no GPU here: %s\n", std::string(cairn::gpu::CudaAvailable().message()).c_str());
    return 3;
  }
  const unsigned long mib = argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 1024;
  const int pairs = argc > 3 ? std::atoi(argv[3]) : 5;
  cairn::gpu::Streams(device == "cuda", uint64_t{mib} << 20, pairs, argc > 4 ? argv[4] : "").All();
  return 0;
}
