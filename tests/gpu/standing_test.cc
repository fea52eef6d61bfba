// Streams out of standing mappings (client/gpu/standing_slabs.h): what is registered when, what a stream makes of a slab
// that is written anew or loses pages under it, and what it does where a slab cannot be had.
//
// One file: one small vocabulary (a slab, the versions in it, a stream), over devices and with faults.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/falloc.h>
#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <map>
#include <thread>

#include "absl/strings/str_cat.h"
#include "client/cpp/weights_plan.h"
#include "client/gpu/host_device.h"
#include "client/gpu/standing_slabs.h"
#include "client/gpu/weight_stream.h"
#include "common/checksum.h"
#include "common/fd.h"
#include "common/keys.h"
#include "tests/gpu/device_kinds.h"
#include "tests/gpu/faulty_device.h"
#include "tests/gpu/pattern.h"
#include "tests/support/measure.h"

namespace cairn::gpu {
namespace {

using client::MakePlan;
using client::Plan;
using client::Shard;
using client::WeightsIndex;
using ::testing::HasSubstr;

using Check = StreamOptions::Check;
constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kTensors = 10;
constexpr uint64_t kTensorBytes = 2 * kMiB + 4096;
constexpr uint64_t kModelBytes = kTensors * kTensorBytes;

// A slab of a node, and who has a standing mapping of it.
class Slab {
 public:
  explicit Slab(uint64_t bytes = kModelBytes + kMiB)
      : bytes_(bytes), fd_(testing::Must(MakeMemfd("slab", bytes, 0600))) {}

  void Write(uint64_t offset, std::string_view bytes) const {
    ASSERT_TRUE(PwriteAll(fd_.get(), bytes.data(), bytes.size(), offset).ok());
  }
  void Punch(uint64_t offset, uint64_t length) const {
    ASSERT_EQ(fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                        static_cast<off_t>(offset), static_cast<off_t>(length)),
              0);
  }

  int fd() const { return fd_.get(); }
  uint64_t bytes() const { return bytes_; }
  int asked() const { return asked_; }
  int live() const { return live_; }
  // What the node answers, and how it is mapped.
  void Refuse(Status with) {
    MutexLock lock(&mutex_);
    refusal_ = std::move(with);
  }
  void MapReadOnly() { protection_ = PROT_READ; }
  void WantBack() {
    std::function<void()> wanted_back;
    {
      MutexLock lock(&mutex_);
      wanted_back = wanted_back_;
    }
    if (wanted_back) wanted_back();
  }

  client::StandingPlace At(uint64_t offset) {
    return {"the slab", offset,
            [this](std::function<void()> wanted_back) { return Map(std::move(wanted_back)); }};
  }

 private:
  class Mapped : public client::StandingMapping {
   public:
    Mapped(Slab* slab, Mapping mapping) : slab_(slab), mapping_(std::move(mapping)) {}
    ~Mapped() override {
      mapping_.Reset();
      --slab_->live_;
    }
    char* data() const override { return mapping_.data(); }
    uint64_t bytes() const override { return mapping_.length(); }

   private:
    Slab* const slab_;
    Mapping mapping_;
  };

  StatusOr<std::unique_ptr<client::StandingMapping>> Map(std::function<void()> wanted_back) {
    MutexLock lock(&mutex_);
    ++asked_;
    CAIRN_RETURN_IF_ERROR(refusal_);
    CAIRN_ASSIGN_OR_RETURN(Mapping mapping,
                           Mapping::Map(fd_.get(), 0, bytes_, protection_, MAP_SHARED));
    wanted_back_ = std::move(wanted_back);
    ++live_;
    return std::make_unique<Mapped>(this, std::move(mapping));
  }

  const uint64_t bytes_;
  const UniqueFd fd_;
  std::atomic<int> asked_{0}, live_{0};
  int protection_ = PROT_READ | PROT_WRITE;
  Mutex mutex_;
  Status refusal_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> wanted_back_ ABSL_GUARDED_BY(mutex_);
};

// A version of the model in the slab; ReadChecked has it right even when the slab does not, unless it is lost.
class Version : public Source {
 public:
  // Written into the slab.
  Version(Slab* slab, uint32_t seed, uint64_t offset = 0, uint64_t tensors = kTensors)
      : slab_(slab),
        offset_(offset),
        tensors_(tensors),
        bytes_(Bytes(seed).data(), tensors * kTensorBytes),
        crcs_(BlockCrcs(bytes_.data(), bytes_.size(), kBlockBytes)),
        memory_("version " + std::to_string(seed)),
        mapping_(testing::Must(Mapping::Map(slab->fd(), 0, slab->bytes(), PROT_READ, MAP_SHARED))) {
    slab->Write(offset, bytes_);
  }

  std::string_view bytes() const { return bytes_; }
  uint64_t tensors() const { return tensors_; }
  bool lost = false;

  const std::string& what() const override { return memory_; }
  uint64_t length() const override { return bytes_.size(); }
  const std::vector<uint32_t>& block_crcs() const override { return crcs_; }
  const char* Mapped(uint64_t block) override {
    return mapping_.data() + offset_ + block * kBlockBytes;
  }
  const std::string& memory() const override { return memory_; }
  client::StandingPlace standing() override { return slab_->At(offset_); }
  Status Read(uint64_t block, void* into, uint32_t* crc) override {
    const uint64_t n = std::min<uint64_t>(kBlockBytes, length() - block * kBlockBytes);
    std::memcpy(into, Mapped(block), n);
    if (crc != nullptr) *crc = Crc32c(0, into, n);
    return absl::OkStatus();
  }
  Status ReadChecked(uint64_t block, void* into) override {
    if (lost) return absl::DataLossError(memory_ + ": there is no good copy");
    const uint64_t n = std::min<uint64_t>(kBlockBytes, length() - block * kBlockBytes);
    std::memcpy(into, bytes_.data() + block * kBlockBytes, n);
    return absl::OkStatus();
  }

 private:
  static const std::string& Bytes(uint32_t seed) {
    static std::map<uint32_t, std::string> of;
    std::string& bytes = of[seed];
    if (bytes.empty()) bytes = Pattern(kModelBytes, seed);
    return bytes;
  }

  Slab* const slab_;
  const uint64_t offset_;
  const uint64_t tensors_;
  const std::string_view bytes_;
  const std::vector<uint32_t> crcs_;
  const std::string memory_;
  const Mapping mapping_;
};

WeightsIndex Index(uint64_t tensors = kTensors) {
  WeightsIndex index;
  index.objects = {"model.safetensors"};
  for (uint64_t i = 0; i < tensors; ++i) {
    index.tensors.push_back({"w" + std::to_string(i),
                             "U8",
                             {kTensorBytes / 1024, 1024},
                             {{0, i * kTensorBytes, {0, 0}, {kTensorBytes / 1024, 1024}}}});
  }
  return index;
}

// Its first tensors.
Plan Whole(uint64_t tensors = kTensors) { return *MakePlan(Index(tensors), {}); }

void Append(Device* device, DevicePtr from, uint64_t bytes, std::string* text) {
  if (device->IsHost()) {
    text->append(reinterpret_cast<const char*>(from), bytes);
    return;
  }
  text->append(bytes, '?');
  const CopyOut piece{from, text->data() + text->size() - bytes, bytes};
  EXPECT_TRUE(device->Copy({&piece, 1}, kDefaultStream).ok());
  EXPECT_TRUE(device->Synchronize(kDefaultStream).ok());
}

// All tensors, one after the other, in memory of the next call too: under ThreadSanitizer fresh memory is slow.
StatusOr<std::string_view> TakeAll(Device* device, WeightStream* stream) {
  static std::string& came = *new std::string;
  came.clear();
  for (;;) {
    CAIRN_ASSIGN_OR_RETURN(const auto tensors, stream->Next());
    if (tensors.empty()) return std::string_view(came);
    for (const WeightStream::Tensor& tensor : tensors) {
      Append(device, tensor.data, tensor.wanted->bytes, &came);
    }
  }
}

StatusOr<std::string_view> Stream(Streamer* streamer, const std::shared_ptr<Version>& version,
                                  StreamStats* stats, const StreamOptions& options = {}) {
  CAIRN_ASSIGN_OR_RETURN(const auto stream,
                         streamer->Start({version}, Whole(version->tensors()), options));
  auto came = TakeAll(streamer->device(), stream.get());
  *stats = stream->stats();
  streamer->standing()->Settle();
  return came;
}

constexpr uint64_t kChunk = 8 * kMiB;
uint64_t Chunks(const Slab& slab) { return (slab.bytes() + kChunk - 1) / kChunk; }

class StandingStreams : public ::testing::TestWithParam<std::tuple<DeviceKind, Check>> {
 protected:
  void SetUp() override {
    auto opened = std::get<0>(GetParam()).open();
    ASSERT_TRUE(opened.ok()) << opened.status();
    streamer_ = std::make_unique<Streamer>(*std::move(opened),
                                           StreamerOptions{.standing_chunk_bytes = kChunk});
    options_.check = std::get<1>(GetParam());
    options_.threads = 2;
    if (!device()->IsHost() && options_.check == Check::kHost) {
      GTEST_SKIP() << "the host cannot tell what a GPU copied";
    }
  }
  // The host device counts pinned memory, too.
  uint64_t Registered() {
    const DeviceUse use = device()->Use();
    return use.registrations - (device()->IsHost() ? use.pinned : 0);
  }
  Device* device() { return streamer_->device(); }
  std::string FirstWay() { return device()->IsHost() ? "direct" : "ring"; }
  void Expect(const std::shared_ptr<Version>& version, const std::string& way,
              uint64_t read_again = 0) {
    const auto came = Stream(streamer_.get(), version, &stats_, options_);
    ASSERT_TRUE(came.ok()) << came.status();
    EXPECT_TRUE(*came == version->bytes());
    EXPECT_EQ(stats_.way, way);
    EXPECT_EQ(stats_.read_again, read_again);
  }

  void ExpectOneMended(const std::shared_ptr<Version>& version) {
    const auto came = Stream(streamer_.get(), version, &stats_, options_);
    ASSERT_TRUE(came.ok()) << came.status();
    EXPECT_TRUE(*came == version->bytes());
    EXPECT_GT(stats_.standing, 0u);
    EXPECT_EQ(stats_.ring, 1u) << stats_.way;
    EXPECT_EQ(stats_.read_again, 1u);
  }

  // In this order: mappings go before the slab that counts them.
  Slab slab_;
  std::unique_ptr<Streamer> streamer_;
  StreamOptions options_;
  StreamStats stats_;
};

INSTANTIATE_TEST_SUITE_P(, StandingStreams,
                         ::testing::Combine(::testing::ValuesIn(DeviceKinds()),
                                            ::testing::Values(Check::kDevice, Check::kHost)),
                         [](const auto& made) {
                           return std::get<0>(made.param).name +
                                  (std::get<1>(made.param) == Check::kHost ? "ChecksOnHost"
                                                                           : "ChecksOnDevice");
                         });

TEST_P(StandingStreams, ComeFromTheMappingOnceItIsRegistered) {
  const auto version = std::make_shared<Version>(&slab_, 1);
  Expect(version, FirstWay());
  EXPECT_EQ(Registered(), Chunks(slab_));
  Expect(version, "standing");
  EXPECT_EQ(stats_.standing, stats_.blocks);
  EXPECT_EQ(stats_.checked_on_host + stats_.checked_on_device, stats_.blocks);
  EXPECT_EQ(stats_.standing_because, "");
  // The slab is written anew: the same mapping has the next version.
  for (uint32_t seed = 2; seed < 5; ++seed) {
    Expect(std::make_shared<Version>(&slab_, seed), "standing");
  }
  EXPECT_EQ(slab_.asked(), 1);
  streamer_.reset();
  EXPECT_EQ(slab_.live(), 0);
}

TEST_P(StandingStreams, TheMappingIsReadOnlyOnceItIsRegistered) {
  Expect(std::make_shared<Version>(&slab_, 1), FirstWay());
  EXPECT_EQ(slab_.live(), 1);
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> maps(std::fopen("/proc/self/maps", "re"),
                                                             std::fclose);
  char line[4096];
  int writable = 0, readable = 0;
  while (std::fgets(line, sizeof line, maps.get()) != nullptr) {
    if (std::strstr(line, "memfd:slab") == nullptr) continue;
    ++(std::strstr(line, " rw-s ") != nullptr ? writable : readable);
  }
  EXPECT_EQ(writable, 0);
  EXPECT_GE(readable, 1);
}

TEST_P(StandingStreams, WhoAsksForTheRingGetsIt) {
  const auto version = std::make_shared<Version>(&slab_, 1);
  Expect(version, FirstWay());
  options_.way = StreamOptions::Way::kRing;
  Expect(version, "ring");
}

TEST_P(StandingStreams, ObjectsMayBeginAnywhereAndBlocksAcrossRegistrationsTakeTheOldWay) {
  Slab slab(kModelBytes + 3 * kMiB);
  const auto version = std::make_shared<Version>(&slab, 1, /*offset=*/kMiB + 4096);
  Expect(version, FirstWay());
  ASSERT_TRUE(Stream(streamer_.get(), version, &stats_, options_).ok());
  EXPECT_GT(stats_.standing, 0u);
  EXPECT_GT(stats_.direct + stats_.ring, 0u) << "some lie in two registrations";
  EXPECT_EQ(stats_.read_again, 0u);
  streamer_.reset();
}

TEST_P(StandingStreams, ASlabRewrittenUnderTheMappingCostsReadingAgain) {
  const auto first = std::make_shared<Version>(&slab_, 1);
  Expect(first, FirstWay());
  const auto second = std::make_shared<Version>(&slab_, 2);
  // The bytes of the second, by the checksums of the first.
  const auto came = Stream(streamer_.get(), first, &stats_, options_);
  ASSERT_TRUE(came.ok()) << came.status();
  EXPECT_TRUE(*came == first->bytes());
  EXPECT_GT(stats_.standing, 0u);
  EXPECT_GT(stats_.read_again, 0u);
  EXPECT_GE(slab_.asked(), 2) << "it is mapped and registered anew";
  EXPECT_EQ(slab_.live(), 1);
  EXPECT_EQ(Registered(), Chunks(slab_));
  Expect(second, "standing");
}

TEST_P(StandingStreams, APartlyRewrittenSlabCostsOnlyThoseBlocks) {
  const auto version = std::make_shared<Version>(&slab_, 1);
  Expect(version, FirstWay());
  slab_.Write(5 * kMiB, "something else");
  ExpectOneMended(version);
}

TEST_P(StandingStreams, AHolePunchedUnderTheMappingIsSeen) {
  const auto version = std::make_shared<Version>(&slab_, 1);
  Expect(version, FirstWay());
  slab_.Punch(4 * kMiB, 64 << 10);
  if (!device()->IsHost()) GTEST_SKIP() << "a GPU goes on reading the page that it holds";
  ExpectOneMended(version);
  EXPECT_GE(slab_.asked(), 2);
  EXPECT_EQ(slab_.live(), 1);
}

TEST_P(StandingStreams, ABlockThatIsGoodNowhereIsDataLoss) {
  const auto version = std::make_shared<Version>(&slab_, 1);
  Expect(version, FirstWay());
  slab_.Write(5 * kMiB, "something else");
  version->lost = true;
  const Status status = Stream(streamer_.get(), version, &stats_, options_).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
}

TEST_P(StandingStreams, LittleOfABlockIsCheckedBeforeItIsCopiedAndTakesTheOldWay) {
  const auto version = std::make_shared<Version>(&slab_, 1);
  Expect(version, FirstWay());
  const Plan plan = *MakePlan(Index(), {{}, {{"*", Shard{0, 8, 1}}}});
  const auto stream = *streamer_->Start({version}, plan, options_);
  ASSERT_TRUE(TakeAll(device(), stream.get()).ok());
  EXPECT_EQ(stream->stats().standing, 0u);
}

TEST_P(StandingStreams, WhatIsWantedBackInMidStreamIsGivenUpAtOnce) {
  const auto version = std::make_shared<Version>(&slab_, 1);
  Expect(version, FirstWay());
  options_.bucket_bytes = kTensorBytes;
  auto stream = *streamer_->Start({version}, Whole(), options_);
  std::string came;
  for (int bucket = 0;; ++bucket) {
    const auto tensors = stream->Next();
    ASSERT_TRUE(tensors.ok()) << tensors.status();
    if (tensors->empty()) break;
    for (const auto& tensor : *tensors) {
      Append(device(), tensor.data, tensor.wanted->bytes, &came);
    }
    if (bucket != 1) continue;
    slab_.WantBack();
    EXPECT_EQ(slab_.live(), 0);
    EXPECT_EQ(Registered(), 0u);
  }
  EXPECT_TRUE(came == version->bytes());
  EXPECT_GT(stream->stats().standing, 0u);
  EXPECT_GT(stream->stats().ring + stream->stats().direct, 0u);
  // The next stream asks for it again.
  Expect(version, FirstWay());
  Expect(version, "standing");
}

TEST_P(StandingStreams, OneThatTheNodeRefusesIsAskedForWithEachStream) {
  const auto version = std::make_shared<Version>(&slab_, 1);
  slab_.Refuse(absl::FailedPreconditionError("no writer maps it"));
  for (int i = 1; i < 4; ++i) {
    Expect(version, FirstWay());
    EXPECT_EQ(slab_.asked(), i);
  }
  EXPECT_THAT(stats_.standing_because, HasSubstr("no writer maps it"));
  slab_.Refuse(absl::OkStatus());
  Expect(version, FirstWay());
  Expect(version, "standing");
}

TEST_P(StandingStreams, OneThatIsMappedReadOnlyIsNotRegistered) {
  if (!device()->IsHost()) GTEST_SKIP() << "drivers differ";
  const auto version = std::make_shared<Version>(&slab_, 1);
  slab_.MapReadOnly();
  for (int i = 0; i < 3; ++i) Expect(version, FirstWay());
  EXPECT_EQ(slab_.asked(), 1) << "said once, and not tried again";
  EXPECT_EQ(slab_.live(), 0);
  EXPECT_THAT(stats_.standing_because, HasSubstr("not all mapped for reading and writing"));
}

// --- with faults

struct Faulty {
  Faulty() : streamer(MakeFaultyDevice(MakeHostDevice(), faults), Options()) {}
  static StreamerOptions Options() {
    return {.lanes = 2, .slots = 2, .standing_chunk_bytes = kChunk};
  }
  const std::shared_ptr<DeviceFaults> faults = std::make_shared<DeviceFaults>();
  Streamer streamer;
};

TEST(StandingFaults, ARegistrationRefusedInAnyWayIsSaidAndTheStreamGoesOnWithoutIt) {
  for (const Status& refusal :
       {absl::InvalidArgumentError("not mapped"), absl::AlreadyExistsError("overlaps"),
        absl::UnimplementedError("not here"), absl::ResourceExhaustedError("no pages"),
        absl::InternalError("broken")}) {
    for (int after = 0; after < 3; after += Stride()) {  // the first chunk, or a later one
      Slab slab;
      Faulty faulty;
      const auto version = std::make_shared<Version>(&slab, 1);
      faulty.faults->Add(
          {.call = DeviceCall::kRegister, .after = after, .times = 1, .error = refusal});
      StreamStats stats;
      for (int i = 0; i < 3; ++i) {
        const auto came = Stream(&faulty.streamer, version, &stats);
        ASSERT_TRUE(came.ok()) << came.status();
        EXPECT_TRUE(*came == version->bytes());
        EXPECT_EQ(stats.way, "direct");
      }
      EXPECT_THAT(stats.standing_because, HasSubstr(std::string(refusal.message())));
      EXPECT_EQ(slab.asked(), 1);
      EXPECT_EQ(slab.live(), 0);
      EXPECT_EQ(faulty.streamer.device()->Use().registrations,
                faulty.streamer.device()->Use().pinned);
    }
  }
}

TEST(StandingFaults, WhatIsWantedBackWhileItIsRegisteredIsGivenUp) {
  Slab slab;
  Faulty faulty;
  const auto version = std::make_shared<Version>(&slab, 1);
  faulty.faults->Add(
      {.kind = testing::FaultKind::kHang, .call = DeviceCall::kRegister, .times = 1});
  auto stream = *faulty.streamer.Start({version}, Whole(), {});
  EXPECT_TRUE(*TakeAll(faulty.streamer.device(), stream.get()) == version->bytes());
  faulty.faults->WaitUntilHung(1);  // it began when the first layer was there
  std::atomic<bool> asks = false;
  std::thread node([&] {
    asks = true;
    slab.WantBack();
  });
  while (!asks) std::this_thread::yield();
  std::this_thread::sleep_for(
      std::chrono::milliseconds(300));  // it waits for what hangs, and nothing shows that
  faulty.faults->Clear();
  node.join();
  faulty.streamer.standing()->Settle();
  EXPECT_EQ(slab.live(), 0);
  EXPECT_LT(faulty.faults->Calls(DeviceCall::kRegister), static_cast<int>(Chunks(slab)));
}

// Bug: mapping and registering a slab took from the first layer the time that it had.
TEST(StandingFaults, NothingIsRegisteredBeforeTheFirstTensorsAreThere) {
  Slab slab;
  Faulty faulty;
  const auto version = std::make_shared<Version>(&slab, 1);
  auto stream = *faulty.streamer.Start({version}, Whole(), {});
  faulty.streamer.standing()->Settle();
  EXPECT_EQ(faulty.faults->Calls(DeviceCall::kRegister), 0);
  ASSERT_TRUE(stream->Next().ok());
  faulty.streamer.standing()->Settle();
  EXPECT_EQ(faulty.faults->Calls(DeviceCall::kRegister), static_cast<int>(Chunks(slab)));
}

// The device may still have the pages: the node must not hear that it has not.
TEST(StandingFaults, WhatCannotBeUnregisteredIsNotGivenUp) {
  Slab slab;
  {
    Faulty faulty;
    const auto version = std::make_shared<Version>(&slab, 1);
    StreamStats stats;
    ASSERT_TRUE(Stream(&faulty.streamer, version, &stats).ok());
    faulty.faults->Add({.call = DeviceCall::kUnregister, .error = absl::InternalError("broken")});
    slab.WantBack();
    EXPECT_EQ(slab.live(), 1);
    EXPECT_EQ(*Stream(&faulty.streamer, version, &stats), version->bytes());
    faulty.faults->Clear();
  }
}

// Whatever call fails, the stream ends with that error or brings all; nothing is left mapped or registered. The number of
// such calls that a stream makes, which is at least one more than `n` as long as it met the fault.
int StreamWithFault(DeviceCall call, int n, Check check, bool rewritten, int* failed) {
  Slab slab(11 * kMiB);
  Faulty faulty;
  const auto version = std::make_shared<Version>(&slab, 1, 0, /*tensors=*/5);
  StreamOptions options;
  options.check = check;
  options.threads = 2;
  options.bucket_bytes = 4 * kMiB;
  StreamStats stats;
  EXPECT_TRUE(Stream(&faulty.streamer, version, &stats, options).ok());
  EXPECT_EQ(slab.live(), 1);
  if (rewritten) slab.Write(5 * kMiB, "something else");
  faulty.faults->Add({.call = call,
                      .after = n,
                      .times = 1,
                      .error = absl::InternalError("the device call failed")});
  const int before = faulty.faults->Calls(call);
  const auto came = Stream(&faulty.streamer, version, &stats, options);
  const int made = faulty.faults->Calls(call) - before;
  if (came.ok()) {
    EXPECT_TRUE(*came == version->bytes());
  } else {
    ++*failed;
    // A bit that is flipped while a block is mended.
    EXPECT_THAT(std::string(came.status().message()),
                HasSubstr(call == DeviceCall::kFlip ? "on the device" : "call failed"));
  }
  faulty.faults->Clear();
  const auto again = Stream(&faulty.streamer, version, &stats, options);
  EXPECT_TRUE(again.ok()) << again.status();
  if (again.ok()) {
    EXPECT_TRUE(*again == version->bytes());
  }
  slab.WantBack();
  // But where a mapping stays because nobody can tell whether the device has let go.
  const bool kept = call == DeviceCall::kUnregister || call == DeviceCall::kSynchronize;
  EXPECT_LE(slab.live(), kept ? 1 : 0);
  const DeviceUse use = faulty.streamer.device()->Use();
  if (!kept) {
    EXPECT_EQ(use.registrations, use.pinned);
  }
  return made;
}

TEST(StandingFaults, AnyDeviceCallMayFail) {
  for (const Check check : {Check::kDevice, Check::kHost}) {
    for (const bool rewritten : {false, true}) {
      int failed = 0;
      for (int of = 0; of <= static_cast<int>(DeviceCall::kFlip); ++of) {
        const auto call = static_cast<DeviceCall>(of);
        // The host's check is of what was copied, not of what came.
        if (call == DeviceCall::kFlip && check == Check::kHost) continue;
        for (int n = 0, made = 1; n < made; n += Stride()) {
          SCOPED_TRACE(absl::StrCat("call ", of, " number ", n, rewritten ? ", rewritten" : "",
                                    check == Check::kHost ? ", checked by the host" : ""));
          made = StreamWithFault(call, n, check, rewritten, &failed);
          ASSERT_LT(n, 500);
        }
      }
      EXPECT_GT(failed * Stride(), 10);
    }
  }
}

}  // namespace
}  // namespace cairn::gpu
