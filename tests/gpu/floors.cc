// What this machine's GPU and bus can do through a Device: the floors that streams and saves are compared with.
//
// usage: gpu_floors [GIB]     how much is copied at once; 8
//        gpu_floors --check   only whether there is a GPU; exits 3 and says why when there is none, as without
// Prints one line per figure: its name, the median of its runs, the unit.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "client/gpu/cuda_device.h"
#include "client/gpu/owned.h"
#include "common/checksum.h"
#include "common/copy.h"
#include "tests/support/measure.h"

namespace cairn::gpu {
namespace {

using testing::Median;
using testing::Must;
using testing::Seconds;

constexpr uint64_t kKiB = 1 << 10, kMiB = 1 << 20, kGiB = 1 << 30;

void Figure(const std::string& name, double value, const char* unit) {
  std::printf("%-40s %10.4g  %s\n", name.c_str(), value, unit);
  std::fflush(stdout);
}

// The median of five runs, after one that does not count.
double Typical(const std::function<void()>& what) {
  what();
  std::vector<double> took;
  for (int i = 0; i < 5; ++i) took.push_back(Seconds(what));
  return Median(took);
}

double Rate(uint64_t bytes, double seconds) { return static_cast<double>(bytes) / seconds / 1e9; }

std::string Size(uint64_t bytes) {
  if (bytes >= kGiB) return std::to_string(bytes / kGiB) + "GiB";
  if (bytes >= kMiB) return std::to_string(bytes / kMiB) + "MiB";
  return std::to_string(bytes / kKiB) + "KiB";
}

class Floors {
 public:
  explicit Floors(uint64_t bytes)
      : bytes_(bytes),
        device_(Must(OpenCudaDevice(0))),
        stream_(Must(NewStream(device_.get()))),
        on_device_(Must(NewDeviceBlock(device_.get(), bytes))) {
    const UniqueFd fd = Must(MakeMemfd("floor", bytes, 0600));
    slab_ = Must(Mapping::Map(fd.get(), 0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED));
    Figure("fault", Seconds([&] { Fill(); }) / Gib(), "s/GiB, 8 threads");
    std::printf("%s, %s\n", device_->Name().c_str(), Size(bytes).c_str());
  }

  void All() {
    Registering();
    const Registration whole =
        Must(NewRegistration(device_.get(), slab_.data(), bytes_, Access::kReadWrite));
    Copies();
    Pieces();
    Checksums();
    Ring();
  }

 private:
  double Gib() const { return static_cast<double>(bytes_) / kGiB; }

  void Fill() {
    std::vector<std::thread> threads;
    for (uint64_t i = 0; i < 8; ++i) {
      threads.emplace_back([this, i] {
        auto* const words = reinterpret_cast<uint64_t*>(slab_.data() + i * (bytes_ / 8));
        for (uint64_t k = 0; k < bytes_ / 64; ++k) words[k] = (i + k) * 0x9e3779b97f4a7c15u;
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  void Wait() { Must(device_->Synchronize(stream_.get())); }

  void In(const char* from, uint64_t bytes, uint64_t each) {
    for (uint64_t at = 0; at < bytes; at += each) {
      const CopyIn piece{from + at, on_device_.get() + at, std::min(each, bytes - at)};
      Must(device_->Copy({&piece, 1}, stream_.get()));
    }
  }
  void Out(char* to, uint64_t bytes, uint64_t each) {
    for (uint64_t at = 0; at < bytes; at += each) {
      const CopyOut piece{on_device_.get() + at, to + at, std::min(each, bytes - at)};
      Must(device_->Copy({&piece, 1}, stream_.get()));
    }
  }

  // How long it takes to register and give back, by the size of what is registered at once.
  void Registering() {
    for (const uint64_t each : {bytes_, kGiB, 256 * kMiB, 64 * kMiB}) {
      Figure("register_by_" + Size(each),
             Seconds([&] {
               for (uint64_t at = 0; at < bytes_; at += each) {
                 Must(device_->Register(slab_.data() + at, each, Access::kReadWrite));
               }
             }) / Gib(),
             "s/GiB");
      Figure("unregister_by_" + Size(each), Seconds([&] {
                                              for (uint64_t at = 0; at < bytes_; at += each) {
                                                Must(device_->Unregister(slab_.data() + at));
                                              }
                                            }) / Gib(),
             "s/GiB");
    }
  }

  void Copies() {
    const uint64_t pinned_bytes = std::min(bytes_, 4 * kGiB);
    const PinnedBlock pinned = Must(NewPinnedBlock(device_.get(), pinned_bytes));
    auto* const at = static_cast<char*>(pinned.get());
    std::memset(at, 1, pinned_bytes);
    const auto both = [&](const std::string& name, char* host, uint64_t bytes, uint64_t each) {
      Figure(name + "/in", Rate(bytes, Typical([&] {
                                  In(host, bytes, each);
                                  Wait();
                                })),
             "GB/s");
      Figure(name + "/out", Rate(bytes, Typical([&] {
                                   Out(host, bytes, each);
                                   Wait();
                                 })),
             "GB/s");
    };
    both("pinned_whole", at, pinned_bytes, pinned_bytes);
    both("slab_whole", slab_.data(), bytes_, bytes_);
    for (const uint64_t each : {64 * kKiB, 256 * kKiB, kMiB, 4 * kMiB, 16 * kMiB, 64 * kMiB}) {
      both("slab_by_" + Size(each), slab_.data(), bytes_, each);
    }
    std::vector<char> pageable(kGiB, 1);
    both("pageable", pageable.data(), kGiB, kGiB);
  }

  // Many tensors, and slices of them.
  void Pieces() {
    for (const uint64_t each : {4 * kKiB, 16 * kKiB, 64 * kKiB, 256 * kKiB}) {
      const uint64_t count = std::min<uint64_t>(10'000, bytes_ / each);
      std::vector<CopyIn> pieces;
      for (uint64_t i = 0; i < count; ++i) {
        pieces.push_back({slab_.data() + i * each, on_device_.get() + i * each, each});
      }
      Figure("10000_pieces_of_" + Size(each), Rate(count * each, Typical([&] {
                                                     Must(device_->Copy(pieces, stream_.get()));
                                                     Wait();
                                                   })),
             "GB/s");
    }
    for (const uint64_t width : {uint64_t{256}, 2 * kKiB, 16 * kKiB}) {
      const Rows rows{
          .width = width, .count = kGiB / width / 4, .from_pitch = 4 * width, .to_pitch = width};
      Figure("quarter_in_rows_of_" + std::to_string(width),
             Rate(kGiB / 4, Typical([&] {
                    Must(device_->CopyRows(slab_.data(), on_device_.get(), rows, stream_.get()));
                    Wait();
                  })),
             "GB/s");
    }
  }

  void Checksums() {
    constexpr uint64_t kBlock = 4 * kMiB;
    const DeviceBlock sums = Must(NewDeviceBlock(device_.get(), bytes_ / kBlock * 4));
    const Stream checks = Must(NewStream(device_.get()));
    std::vector<Range> blocks;
    for (uint64_t at = 0; at < bytes_; at += kBlock) {
      blocks.push_back({on_device_.get() + at, kBlock});
    }
    const auto check = [&](uint64_t at, uint64_t bytes, StreamId on) {
      return device_->Checksum(Sum::kCrc32c,
                               absl::MakeConstSpan(blocks).subspan(at / kBlock, bytes / kBlock),
                               sums.get() + at / kBlock * 4, on);
    };
    if (const Status can = check(0, kBlock, checks.get()); !can.ok()) {
      std::printf("no checksums: %s\n", can.ToString().c_str());
      return;
    }
    for (const uint64_t bytes : {kBlock, 16 * kBlock, 64 * kBlock, bytes_}) {
      Figure("checksum_of_" + Size(bytes), Rate(bytes, Typical([&] {
                                                  Must(check(0, bytes, checks.get()));
                                                  Must(device_->Synchronize(checks.get()));
                                                })),
             "GB/s");
    }
    const double plain = Typical([&] {
      In(slab_.data(), bytes_, bytes_);
      Wait();
    });
    for (const uint64_t bucket : {16 * kMiB, 64 * kMiB, 256 * kMiB}) {
      std::vector<Event> arrived;
      for (uint64_t at = 0; at < bytes_; at += bucket) {
        arrived.push_back(Must(NewEvent(device_.get())));
      }
      const double took = Typical([&] {
        for (uint64_t at = 0; at < bytes_; at += bucket) {
          const Event& event = arrived[at / bucket];
          const CopyIn piece{slab_.data() + at, on_device_.get() + at, bucket};
          Must(device_->Copy({&piece, 1}, stream_.get()));
          Must(device_->Record(event.get(), stream_.get()));
          Must(device_->Wait(checks.get(), event.get()));
          Must(check(at, bucket, checks.get()));
        }
        Must(device_->Synchronize(checks.get()));
      });
      Figure("copied_and_checked_by_" + Size(bucket), Rate(bytes_, took), "GB/s");
      Figure("copied_and_checked_by_" + Size(bucket) + "/copied", plain / took, "");
    }
  }

  // Through pinned slots that threads fill, each its own, checking what they copy.
  void Ring() {
    constexpr uint64_t kSlot = 4 * kMiB, kSlots = 4, kThreads[] = {1, 2, 4, 8, 12};
    for (const uint64_t count : kThreads) {
      const double took = Typical([&] {
        std::atomic<uint64_t> next{0};
        std::vector<std::thread> threads;
        for (uint64_t i = 0; i < count; ++i) {
          threads.emplace_back([&] { FillSlots(next, kSlot, kSlots / 2); });
        }
        for (std::thread& thread : threads) thread.join();
      });
      Figure("ring_" + std::to_string(count) + "_threads", Rate(bytes_, took), "GB/s, checked");
    }
  }

  void FillSlots(std::atomic<uint64_t>& next, uint64_t slot, uint64_t slots) {
    const PinnedBlock ring = Must(NewPinnedBlock(device_.get(), slot * slots));
    const Stream stream = Must(NewStream(device_.get()));
    std::vector<Event> empty;
    for (uint64_t i = 0; i < slots; ++i) empty.push_back(Must(NewEvent(device_.get())));
    uint32_t sum = 0;
    for (uint64_t i = 0;; i = (i + 1) % slots) {
      const uint64_t at = next.fetch_add(slot);
      if (at >= bytes_) break;
      Must(device_->Synchronize(empty[i].get()));
      char* const to = static_cast<char*>(ring.get()) + i * slot;
      sum ^= CopyCrc32c(to, slab_.data() + at, slot, 0);
      const CopyIn piece{to, on_device_.get() + at, slot};
      Must(device_->Copy({&piece, 1}, stream.get()));
      Must(device_->Record(empty[i].get(), stream.get()));
    }
    Must(device_->Synchronize(stream.get()));
    sum_ ^= sum;
  }

  const uint64_t bytes_;
  const std::unique_ptr<Device> device_;
  const Stream stream_;
  const DeviceBlock on_device_;
  Mapping slab_;
  std::atomic<uint32_t> sum_{0};  // so that the checksums are not left out
};

}  // namespace
}  // namespace cairn::gpu

int main(int argc, char** argv) {
  const cairn::Status available = cairn::gpu::CudaAvailable();
  if (!available.ok()) {
    std::printf("no GPU here: %s\n", std::string(available.message()).c_str());
    return 3;
  }
  if (argc > 1 && std::strcmp(argv[1], "--check") == 0) return 0;
  const unsigned long gib = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 8;
  if (gib < 1) {
    std::fprintf(stderr, "usage: gpu_floors [GIB] | --check\n");
    return 2;
  }
  cairn::gpu::Floors(uint64_t{gib} << 30).All();
  return 0;
}
