// How well a stream of weights keeps its slowest stage busy (tests/bench/stream_bench.py runs it): reading, copying and
// the caller each take a known time for a bucket, and one of them twice as long as the others.
//
// usage: pipeline_bench [PAIRS] [ROW]
// Prints a line per sample: "sample NAME OURS REFERENCE ms"; the reference is what the slowest stage takes alone.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <utility>

#include "client/gpu/host_device.h"
#include "client/gpu/weight_stream.h"
#include "common/mutex.h"
#include "tests/bench/tiny.h"
#include "tests/gpu/slab_source.h"

namespace cairn::gpu {
namespace {

using std::chrono::duration;
using testing::Must;
using testing::Seconds;
using Clock = std::chrono::steady_clock;
using Time = Clock::time_point;

const uint64_t kBuckets = bench::Sized(64, 4);
constexpr uint64_t kBlocksPerBucket = 4;
constexpr double kSlow = 0.020, kQuick = 0.010;  // seconds for a bucket

// What does one thing at a time, for a known time each.
class Pace {
 public:
  explicit Pace(double bucket_seconds) : each_(bucket_seconds / kBlocksPerBucket) {}
  // When a block will be done that can begin at `ready`.
  Time Done(Time ready) {
    MutexLock lock(&mutex_);
    free_ = std::max(free_, ready) + std::chrono::duration_cast<Clock::duration>(each_);
    return free_;
  }

 private:
  const duration<double> each_;
  Mutex mutex_;
  Time free_ ABSL_GUARDED_BY(mutex_);
};

// One disk, whoever reads.
class SlowSource : public SlabSource {
 public:
  SlowSource(uint64_t bytes, double bucket_seconds) : SlabSource(bytes, 1), pace_(bucket_seconds) {
    is_mapped = false;
  }
  Status Read(uint64_t block, void* into, uint32_t* crc) override {
    const Time done = pace_.Done(Clock::now());
    CAIRN_RETURN_IF_ERROR(SlabSource::Read(block, into, crc));
    std::this_thread::sleep_until(done);
    return absl::OkStatus();
  }

 private:
  Pace pace_;
};

// As a GPU: it is not the host, and has one engine for copies to it, in which each takes its time. What comes after a
// copy in the order of a stream comes after that time; nobody waits for it but who synchronizes.
class SlowDevice final : public Device {
 public:
  SlowDevice(std::unique_ptr<Device> inner, double bucket_seconds)
      : inner_(std::move(inner)), engine_(bucket_seconds) {}

  std::string Name() const override { return inner_->Name(); }
  int NumaNode() const override { return inner_->NumaNode(); }
  bool IsHost() const override { return false; }
  DeviceUse Use() const override { return inner_->Use(); }
  StatusOr<DeviceMemory> Memory() override { return inner_->Memory(); }
  StatusOr<DevicePtr> Allocate(uint64_t bytes) override { return inner_->Allocate(bytes); }
  StatusOr<DevicePtr> AllocateShared(uint64_t bytes) override {
    return inner_->AllocateShared(bytes);
  }
  StatusOr<UniqueFd> Export(DevicePtr shared) override { return inner_->Export(shared); }
  StatusOr<DevicePtr> Import(UniqueFd exported, uint64_t bytes) override {
    return inner_->Import(std::move(exported), bytes);
  }
  Status Free(DevicePtr memory) override { return inner_->Free(memory); }
  StatusOr<void*> AllocatePinned(uint64_t bytes) override { return inner_->AllocatePinned(bytes); }
  Status FreePinned(void* memory) override { return inner_->FreePinned(memory); }
  Status Register(void* at, uint64_t bytes, Access access) override {
    return inner_->Register(at, bytes, access);
  }
  Status Unregister(void* at) override { return inner_->Unregister(at); }
  StatusOr<StreamId> NewStream() override { return inner_->NewStream(); }
  Status EndStream(StreamId stream) override { return inner_->EndStream(stream); }
  StatusOr<EventId> NewEvent() override { return inner_->NewEvent(); }
  Status EndEvent(EventId event) override { return inner_->EndEvent(event); }

  Status Record(EventId event, StreamId stream) override {
    {
      MutexLock lock(&mutex_);
      events_[event] = streams_[stream];
    }
    return inner_->Record(event, stream);
  }
  Status Wait(StreamId stream, EventId event) override {
    {
      MutexLock lock(&mutex_);
      streams_[stream] = std::max(streams_[stream], events_[event]);
    }
    return inner_->Wait(stream, event);
  }
  StatusOr<bool> Happened(EventId event) override {
    if (Clock::now() < At(&events_, event)) return false;
    return inner_->Happened(event);
  }
  Status Synchronize(EventId event) override {
    const Time until = At(&events_, event);
    CAIRN_RETURN_IF_ERROR(inner_->Synchronize(event));
    std::this_thread::sleep_until(until);
    return absl::OkStatus();
  }
  Status Synchronize(StreamId stream) override {
    const Time until = At(&streams_, stream);
    CAIRN_RETURN_IF_ERROR(inner_->Synchronize(stream));
    std::this_thread::sleep_until(until);
    return absl::OkStatus();
  }
  Status Copy(absl::Span<const CopyIn> pieces, StreamId stream) override {
    {
      MutexLock lock(&mutex_);
      streams_[stream] = engine_.Done(std::max(Clock::now(), streams_[stream]));
    }
    return inner_->Copy(pieces, stream);
  }
  Status Copy(absl::Span<const CopyOut> pieces, StreamId stream) override {
    return inner_->Copy(pieces, stream);
  }
  Status CopyRows(const void* from, DevicePtr to, const Rows& rows, StreamId stream) override {
    return inner_->CopyRows(from, to, rows, stream);
  }
  Status Checksum(Sum kind, absl::Span<const Range> ranges, DevicePtr sums,
                  StreamId stream) override {
    return inner_->Checksum(kind, ranges, sums, stream);
  }

 private:
  template <typename Id>
  Time At(std::map<Id, Time>* times, Id id) {
    MutexLock lock(&mutex_);
    return (*times)[id];
  }

  const std::unique_ptr<Device> inner_;
  Pace engine_;
  Mutex mutex_;
  // When what was asked for so far will be over.
  std::map<StreamId, Time> streams_;
  std::map<EventId, Time> events_;
};

// Blocks of one tensor each, so that each is one copy.
void Pairs(const std::string& name, int pairs, double read, double copy, double caller) {
  const uint64_t bytes = kBuckets * kBlocksPerBucket * kBlockBytes;
  const client::Plan plan =
      *client::MakePlan(EvenWeights(kBuckets * kBlocksPerBucket, kBlockBytes >> 10, 1 << 10), {});
  Streamer streamer(
      std::make_unique<SlowDevice>(MakeHostDevice({.memory_bytes = bytes + (64 << 20)}), copy));
  const DeviceBlock into = Must(NewDeviceBlock(streamer.device(), bytes));
  std::memset(reinterpret_cast<void*>(into.get()), 1, bytes);
  const auto source = std::make_shared<SlowSource>(bytes, read);
  for (int i = 0; i <= pairs; ++i) {
    source->Fill(i + 2);
    StreamOptions options;
    options.threads = 2;
    options.bucket_bytes = kBlocksPerBucket * kBlockBytes;
    options.place = [at = into.get()](const client::WantedTensor& tensor) mutable {
      return StatusOr<DevicePtr>(std::exchange(at, at + tensor.bytes));
    };
    uint64_t buckets = 0;
    const double ours = Seconds([&] {
      const auto stream = Must(streamer.Start({source}, plan, options));
      while (!Must(stream->Next()).empty()) {
        std::this_thread::sleep_for(duration<double>(caller));
      }
      buckets = stream->stats().buckets;
    });
    if (buckets != kBuckets ||
        std::memcmp(reinterpret_cast<void*>(into.get()), source->data(), bytes) != 0) {
      std::fprintf(stderr, "%s: other bytes, or %llu buckets\n", name.c_str(),
                   static_cast<unsigned long long>(buckets));
      std::exit(1);
    }
    if (i == 0) continue;  // it made the ring
    std::printf("sample %s %.6g %.6g ms\n", name.c_str(), ours * 1e3, kBuckets * kSlow * 1e3);
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace cairn::gpu

int main(int argc, char** argv) {
  using cairn::gpu::kQuick;
  using cairn::gpu::kSlow;
  const int pairs = argc > 1 ? std::atoi(argv[1]) : 9;
  const std::string only = argc > 2 ? argv[2] : "";
  const auto row = [&](const std::string& name, double read, double copy, double caller) {
    if (name.starts_with(only)) cairn::gpu::Pairs(name, pairs, read, copy, caller);
  };
  row("pipeline/read", kSlow, kQuick, kQuick);
  row("pipeline/copy", kQuick, kSlow, kQuick);
  row("pipeline/caller", kQuick, kQuick, kSlow);
  return 0;
}
