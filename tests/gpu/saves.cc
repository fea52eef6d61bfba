// How fast what lies on a device is saved into a slab, without a daemon: what a step's write does, without the calls.
//
// usage: gpu_saves host|cuda [MIB] [PAIRS]
// Prints a line per sample: "sample NAME OURS REFERENCE UNIT". The first saves are printed, too: until the slab is
// registered, copies pass through slots. Ours and the reference take turns; the bytes change before every pair; what
// arrived is compared, and its checksums, when the clock has stopped.
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/cpp/copy_engine.h"
#include "client/gpu/cuda_device.h"
#include "client/gpu/device_saver.h"
#include "client/gpu/host_device.h"
#include "common/checksum.h"
#include "common/keys.h"
#include "tests/support/measure.h"

namespace cairn::gpu {
namespace {

using testing::Must;
using testing::Seconds;

constexpr uint64_t kMiB = 1 << 20;
constexpr size_t kTensors = 400;

class Saves {
 public:
  Saves(bool cuda, uint64_t bytes)
      : bytes_(bytes / kTensors * kTensors),
        device_(cuda ? Must(OpenCudaDevice(0))
                     : MakeHostDevice({.memory_bytes = bytes_ + 64 * kMiB})),
        there_(Must(NewDeviceBlock(device_.get(), bytes_))),
        pinned_(Must(NewPinnedBlock(device_.get(), bytes_))),
        saver_(device_.get()),
        fd_(Must(MakeMemfd("slab", bytes_, 0600))) {
    written_ = Map();
    std::printf("%s, %llu MiB in %zu tensors\n", device_->Name().c_str(),
                static_cast<unsigned long long>(bytes_ / kMiB), kTensors);
  }

  void All(int pairs) {
    Fill();
    Report("d2h_first");
    Report("d2h_first/again");
    std::printf("registering: %.3g s\n", Seconds([&] { saver_.slabs()->Settle(); }));
    for (int i = 0; i < pairs; ++i) Report("d2h_save");
    const SaveStats stats = saver_.stats();
    std::printf("%llu of %llu pieces without a slot, %llu summed on the device %s %s\n",
                static_cast<unsigned long long>(stats.direct),
                static_cast<unsigned long long>(stats.pieces),
                static_cast<unsigned long long>(stats.summed_on_device), stats.host_because.c_str(),
                stats.slots_because.c_str());
  }

 private:
  // As the node lends it.
  struct Standing : client::StandingMapping {
    explicit Standing(Mapping of) : mapping(std::move(of)) {}
    char* data() const override { return mapping.data(); }
    uint64_t bytes() const override { return mapping.length(); }
    const Mapping mapping;
  };
  Mapping Map() const {
    return Must(Mapping::Map(fd_.get(), 0, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED));
  }
  StatusOr<std::unique_ptr<client::StandingMapping>> MapForGood() const {
    return std::make_unique<Standing>(Map());
  }

  void Fill() {
    ++seed_;
    auto* const words = static_cast<uint64_t*>(pinned_.get());
    Share([&](uint64_t begin, uint64_t end) {
      for (uint64_t i = begin / 8; i < end / 8; ++i) words[i] = (i + seed_) * 0x9e3779b97f4a7c15u;
    });
    const CopyIn all{pinned_.get(), there_.get(), bytes_};
    Must(device_->Copy({&all, 1}, kDefaultStream));
    Must(device_->Synchronize(kDefaultStream));
  }

  // Seconds of the best copy back of all of it.
  double Reference() {
    return Seconds([&] {
      const CopyOut all{there_.get(), pinned_.get(), bytes_};
      Must(device_->Copy({&all, 1}, kDefaultStream));
      Must(device_->Synchronize(kDefaultStream));
    });
  }

  double Save() {
    client::Written written;
    const double seconds = Seconds([&] {
      const auto reader = saver_.After(kDefaultStream);
      std::vector<client::Source> sources;
      for (size_t i = 0; i < kTensors; ++i) {
        const uint64_t each = bytes_ / kTensors;
        sources.push_back(
            {reinterpret_cast<const void*>(there_.get() + i * each), each, -1, 0, reader.get()});
      }
      const client::ObjectLayout layout = client::ObjectLayout::Raw(sources);
      reader->Into({written_.data(), bytes_, {"the slab", 0, [this](const std::function<void()>&) {
                                                return MapForGood();
                                              }}});
      const client::CopyTask task{&layout, written_.data(), std::exchange(unpopulated_, false)};
      std::vector<client::Written> results;
      Must(client::CopyObjects(&threads_, {&task, 1}, nullptr, &results));
      written = std::move(results[0]);
    });
    Compare(written);
    return seconds;
  }

  void Compare(const client::Written& written) {
    std::vector<uint32_t> crcs(written.block_crcs.size());
    Share([&](uint64_t begin, uint64_t end) {
      const auto* const came = written_.data();
      if (std::memcmp(came + begin, static_cast<char*>(pinned_.get()) + begin, end - begin) != 0) {
        std::fprintf(stderr, "wrong bytes\n");
        std::exit(1);
      }
      for (uint64_t at = begin; at < end; at += kBlockBytes) {
        crcs[at / kBlockBytes] = Crc32c(0, came + at, std::min<uint64_t>(kBlockBytes, end - at));
      }
    });
    if (crcs != written.block_crcs) {
      std::fprintf(stderr, "wrong checksums\n");
      std::exit(1);
    }
  }

  // The bytes, whole blocks of them to each processor.
  template <typename Work>
  void Share(const Work& work) {
    const uint64_t count = std::max(1u, std::thread::hardware_concurrency());
    const uint64_t blocks = BlockCount(bytes_, kBlockBytes);
    std::vector<std::thread> threads;
    for (uint64_t t = 0; t < count; ++t) {
      threads.emplace_back([&, t] {
        work(std::min(bytes_, blocks * t / count * kBlockBytes),
             std::min(bytes_, blocks * (t + 1) / count * kBlockBytes));
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  void Report(const char* name) {
    Fill();
    const double reference = Reference(), ours = Save();
    const auto bytes = static_cast<double>(bytes_);
    std::printf("sample %s %.6g %.6g GB/s\n", name, bytes / ours / 1e9, bytes / reference / 1e9);
    std::fflush(stdout);
  }

  const uint64_t bytes_;
  const std::unique_ptr<Device> device_;
  const DeviceBlock there_;
  const PinnedBlock pinned_;
  DeviceSaver saver_;
  const UniqueFd fd_;
  Mapping written_;
  bool unpopulated_ = true;
  client::CopyThreads threads_{2};
  uint64_t seed_ = 0;
};

}  // namespace
}  // namespace cairn::gpu

int main(int argc, char** argv) {
  const std::string device = argc > 1 ? argv[1] : "";
  if (device != "host" && device != "cuda") {
    std::fprintf(stderr, "usage: gpu_saves host|cuda [MIB] [PAIRS]\n");
    return 2;
  }
  if (device == "cuda" && !cairn::gpu::CudaAvailable().ok()) {
    std::printf("no GPU here: %s\n", std::string(cairn::gpu::CudaAvailable().message()).c_str());
    return 3;
  }
  const unsigned long mib = argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 1024;
  cairn::gpu::Saves(device == "cuda", uint64_t{mib} << 20).All(argc > 3 ? std::atoi(argv[3]) : 5);
  return 0;
}
