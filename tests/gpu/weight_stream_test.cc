// Streams of weights into a device (client/gpu/weight_stream.h): into the host device, the GPU where there is one, and
// with faults.
//
// One file: one small vocabulary (a model, a source, a stream), over a device and without one.
#include "client/gpu/weight_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <thread>

#include "client/gpu/block_check.h"
#include "client/gpu/buckets.h"
#include "client/gpu/host_device.h"
#include "tests/gpu/device_kinds.h"
#include "tests/gpu/faulty_device.h"
#include "tests/gpu/memory_source.h"
#include "tests/gpu/pattern.h"

namespace cairn::gpu {
namespace {

using client::IndexedTensor;
using client::MakePlan;
using client::Plan;
using client::Selection;
using client::Shard;
using client::Slice;
using client::WeightsIndex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Check = StreamOptions::Check;
constexpr uint64_t kMiB = 1 << 20;

// A model of one object: tensors of bytes one after the other, behind a header.
class Model {
 public:
  Model() { index_.objects = {"model.safetensors"}; }

  Model& Add(const std::string& name, const std::vector<uint64_t>& shape) {
    uint64_t n = 1;
    for (uint64_t d : shape) n *= d;
    index_.tensors.push_back(
        {name, "U8", shape, {{0, bytes_->size(), std::vector<uint64_t>(shape.size(), 0), shape}}});
    content_[name] = Pattern(n, static_cast<uint32_t>(index_.tensors.size()));
    *bytes_ += content_[name];
    return *this;
  }

  std::shared_ptr<MemorySource> Source(bool mapped = false, const std::string& run = "run") const {
    return std::make_shared<MemorySource>(run + "/3 object model.safetensors", bytes_, mapped);
  }
  Plan PlanOf(const Selection& selection = {}) const { return *MakePlan(index_, selection); }
  const std::string& operator[](const std::string& name) const { return content_.at(name); }
  const std::map<std::string, std::string>& content() const { return content_; }

 private:
  WeightsIndex index_;
  const std::shared_ptr<std::string> bytes_ = std::make_shared<std::string>(1234, 'h');
  std::map<std::string, std::string> content_;
};

// Some large tensors, some small, one larger than a bucket, none of them aligned to blocks.
Model MakeMixed() {
  Model model;
  model.Add("embed", {3, kMiB + 5});
  for (int i = 0; i < 40; ++i) model.Add("small." + std::to_string(i), {97, 13});
  model.Add("empty", {0, 7}).Add("large", {11, kMiB}).Add("scalar", {}).Add("last", {2, 3 * kMiB});
  return model;
}
const Model& Mixed() {
  static const Model& model = *new Model(MakeMixed());
  return model;
}

std::string Out(Device* device, DevicePtr from, uint64_t bytes) {
  std::string text(bytes, '?');
  if (bytes == 0) return text;
  const CopyOut piece{from, text.data(), bytes};
  EXPECT_TRUE(device->Copy({&piece, 1}, kDefaultStream).ok());
  EXPECT_TRUE(device->Synchronize(kDefaultStream).ok());
  return text;
}

// All that a stream brings, by name; its error if it ends with one.
StatusOr<std::map<std::string, std::string>> TakeAll(Device* device, WeightStream* stream) {
  std::map<std::string, std::string> came;
  for (;;) {
    auto tensors = stream->Next();
    if (!tensors.ok()) return tensors.status();
    if (tensors->empty()) return came;
    for (const WeightStream::Tensor& tensor : *tensors) {
      came[tensor.wanted->name] = Out(device, tensor.data, tensor.wanted->bytes);
    }
  }
}

class WeightStreams : public ::testing::TestWithParam<DeviceKind> {
 protected:
  void SetUp() override {
    auto opened = GetParam().open();
    ASSERT_TRUE(opened.ok()) << opened.status();
    streamer_ = std::make_unique<Streamer>(*std::move(opened));
  }

  Device* device() { return streamer_->device(); }
  Streamer& streamer() { return *streamer_; }

  StatusOr<std::map<std::string, std::string>> Stream(const std::shared_ptr<MemorySource>& source,
                                                      Plan plan, const StreamOptions& options,
                                                      StreamStats* stats = nullptr) {
    auto stream = streamer_->Start({source}, std::move(plan), options);
    if (!stream.ok()) return stream.status();
    auto came = TakeAll(device(), stream->get());
    if (stats != nullptr) *stats = (*stream)->stats();
    return came;
  }

  // When a stream has ended, only lanes are left, for the next one.
  void ExpectOnlyLanes() {
    const DeviceUse use = device()->Use();
    EXPECT_EQ(use.allocations, 0u);
    EXPECT_LE(use.registrations, use.pinned);  // the host device counts pinned memory
    const size_t lanes = StreamerOptions().lanes;
    EXPECT_LE(use.streams, lanes);
    EXPECT_LE(use.pinned, lanes * StreamerOptions().slots);
    EXPECT_GT(use.events, use.pinned);  // one of each slot, one of each lane
    EXPECT_LE(use.events, use.pinned + lanes);
  }

 private:
  std::unique_ptr<Streamer> streamer_;
};

std::string KindName(const ::testing::TestParamInfo<DeviceKind>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(, WeightStreams, ::testing::ValuesIn(DeviceKinds()), KindName);

// Checked on the device, which a host device does not do by itself.
StreamOptions OfBuckets(uint64_t bytes) {
  StreamOptions options;
  options.check = Check::kDevice;
  options.bucket_bytes = bytes;
  return options;
}

TEST_P(WeightStreams, BringEveryTensorAsItWas) {
  const Model& model = Mixed();
  StreamStats stats;
  const auto came = Stream(model.Source(), model.PlanOf(), OfBuckets(2 * kMiB), &stats);
  ASSERT_TRUE(came.ok()) << came.status();
  EXPECT_TRUE(*came == model.content());
  EXPECT_EQ(stats.checked_on_device + stats.checked_on_host, stats.blocks);
  EXPECT_EQ(stats.read_again, 0u);
  EXPECT_GT(stats.checked_on_device, 0u) << stats.host_because;
}

TEST_P(WeightStreams, HandTensorsOutInOrder) {
  const Model& model = Mixed();
  auto stream = *streamer().Start({model.Source()}, model.PlanOf(), OfBuckets(2 * kMiB));
  std::vector<std::string> small;
  size_t buckets = 0;
  for (;; ++buckets) {
    auto tensors = *stream->Next();
    if (tensors.empty()) break;
    for (const auto& tensor : tensors) {
      if (tensor.wanted->name.starts_with("small.")) small.push_back(tensor.wanted->name);
    }
  }
  EXPECT_GE(buckets, 3u);
  ASSERT_EQ(small.size(), 40u);
  for (size_t i = 0; i < small.size(); ++i) EXPECT_EQ(small[i], "small." + std::to_string(i));
}

TEST_P(WeightStreams, ViewsLieInTwoBuffersUntilTheNextCall) {
  const Model& model = Mixed();
  StreamOptions options = OfBuckets(5 * kMiB);
  options.views = true;
  {
    auto stream = *streamer().Start({model.Source()}, model.PlanOf(), options);
    // Buffers and checksums; what is larger than a buffer has memory of its own.
    EXPECT_LE(device()->Use().allocations, 5u);
    EXPECT_TRUE(*TakeAll(device(), stream.get()) == model.content());
  }
  ExpectOnlyLanes();
}

TEST_P(WeightStreams, GoWhereTheCallerSays) {
  const Model& model = Mixed();
  std::map<std::string, DeviceBlock> placed;
  StreamOptions options = OfBuckets(3 * kMiB);
  options.caller = kDefaultStream;
  options.place = [&](const client::WantedTensor& tensor) -> StatusOr<DevicePtr> {
    if (tensor.bytes == 0) return DevicePtr{0};
    CAIRN_ASSIGN_OR_RETURN(placed[tensor.name], NewDeviceBlock(device(), tensor.bytes));
    return placed[tensor.name].get();
  };
  EXPECT_EQ(*Stream(model.Source(), model.PlanOf(), options), model.content());
  for (const auto& [name, bytes] : model.content()) {
    if (bytes.empty()) continue;
    EXPECT_EQ(Out(device(), placed[name].get(), bytes.size()), bytes) << name;
  }
}

TEST_P(WeightStreams, BringSlices) {
  const Model model = Model().Add("w", {64, 3000}).Add("v", {40, 70, 1000}).Add("b", {1 << 22});
  const Plan plan =
      model.PlanOf({{}, {{"w", Shard{1, 4, 1}}, {"v", Slice{1, 3, 9}}, {"b", Shard{2, 4}}}});
  const auto came = Stream(model.Source(), plan, {});
  ASSERT_TRUE(came.ok()) << came.status();
  std::string w, v;
  for (int i = 0; i < 64; ++i) w += model["w"].substr(i * 3000 + 750, 750);
  for (int i = 0; i < 40; ++i) v += model["v"].substr((i * 70 + 3) * 1000, 6000);
  EXPECT_EQ(came->at("w"), w);
  EXPECT_EQ(came->at("v"), v);
  EXPECT_EQ(came->at("b"), model["b"].substr(2 << 20, 1 << 20));
}

TEST_P(WeightStreams, BringWhatIsMapped) {
  const Model model = Model().Add("w", {64, 300'000}).Add("b", {1 << 20});
  const Plan sliced = model.PlanOf({{}, {{"w", Shard{1, 4, 1}}}});
  std::string w;
  for (int i = 0; i < 64; ++i) w += model["w"].substr(i * 300'000 + 75'000, 75'000);
  for (const auto way : {StreamOptions::Way::kAuto, StreamOptions::Way::kRing}) {
    for (const Check check : {Check::kAuto, Check::kDevice, Check::kHost}) {
      StreamOptions options;
      options.way = way;
      options.check = check;
      EXPECT_EQ(*Stream(model.Source(true), model.PlanOf(), options), model.content());
      EXPECT_EQ(Stream(model.Source(true), sliced, options)->at("w"), w);
    }
  }
}

TEST_P(WeightStreams, ABlockOfSlicesIsCheckedOncePerProcess) {
  const Model model = Model().Add("w", {64, 300'000});
  const Plan sliced = model.PlanOf({{}, {{"w", Shard{1, 4, 1}}}});
  StreamStats stats;
  ASSERT_TRUE(Stream(model.Source(true), sliced, {}, &stats).ok());
  EXPECT_EQ(stats.checked_on_host, stats.blocks);
  ASSERT_TRUE(Stream(model.Source(true), sliced, {}, &stats).ok());
  EXPECT_EQ(stats.checked_before, stats.blocks);
}

TEST_P(WeightStreams, ABitFlippedWhereItIsMappedIsReadAgain) {
  const Model model = Model().Add("w", {64, 300'000});
  int runs = 0;  // of which this process has checked nothing
  for (const Plan& plan : {model.PlanOf(), model.PlanOf({{}, {{"w", Shard{1, 4, 1}}}})}) {
    for (const Check check : {Check::kDevice, Check::kHost}) {
      const std::string whole = Stream(model.Source(), plan, {})->at("w");
      const auto source = model.Source(true, "run" + std::to_string(++runs));
      source->FlipMapped(5 * kMiB);
      StreamOptions options;
      options.check = check;
      StreamStats stats;
      EXPECT_EQ(Stream(source, plan, options, &stats)->at("w"), whole);
      EXPECT_EQ(stats.read_again, 1u);
    }
  }
}

TEST_P(WeightStreams, ABadBlockIsReadAgain) {
  const Model& model = Mixed();
  for (const Check check : {Check::kDevice, Check::kHost}) {
    const auto source = model.Source();
    source->Damage(0);
    source->Damage(3);
    StreamOptions options;
    options.check = check;
    StreamStats stats;
    const auto came = Stream(source, model.PlanOf(), options, &stats);
    ASSERT_TRUE(came.ok()) << came.status();
    EXPECT_TRUE(*came == model.content());
    EXPECT_EQ(stats.read_again, 2u);
  }
}

TEST_P(WeightStreams, ABlockWithoutAGoodCopyNamesTensorAndBlock) {
  const Model& model = Mixed();
  for (const Check check : {Check::kDevice, Check::kHost}) {
    const auto source = model.Source();
    source->Damage(2, true);
    StreamOptions options = OfBuckets(kMiB);
    options.check = check;
    const Status status = Stream(source, model.PlanOf(), options).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("tensor \"large\""));
    EXPECT_THAT(std::string(status.message()), HasSubstr("block 2"));
  }
}

TEST_P(WeightStreams, NothingOfABadBlockIsHandedOut) {
  const Model& model = Mixed();
  const auto source = model.Source();
  source->Damage(0, true);
  auto stream = *streamer().Start({source}, model.PlanOf(), OfBuckets(kMiB));
  EXPECT_TRUE(absl::IsDataLoss(stream->Next().status()));
  EXPECT_TRUE(absl::IsDataLoss(stream->Next().status())) << "the error stays";
}

TEST_P(WeightStreams, WhoAsksForItGetsUncheckedBytes) {
  const Model& model = Mixed();
  const auto source = model.Source();
  source->Damage(1, true);
  StreamOptions options;
  options.check = Check::kNone;
  StreamStats stats;
  ASSERT_TRUE(Stream(source, model.PlanOf(), options, &stats).ok());
  EXPECT_EQ(stats.checked_on_device + stats.checked_on_host, 0u);
}

TEST_P(WeightStreams, AnErrorOfTheSourceEndsIt) {
  const Model& model = Mixed();
  const auto source = model.Source();
  source->FailReads(absl::UnavailableError("gone"));
  source->Damage(2, true);
  const Status status = Stream(source, model.PlanOf(), {}).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
}

TEST_P(WeightStreams, WhoStopsTakingStopsTheStream) {
  const Model& model = Mixed();
  const auto source = model.Source();
  {
    auto stream = *streamer().Start({source}, model.PlanOf(), OfBuckets(kMiB));
    ASSERT_TRUE(stream->Next().ok());
  }
  ExpectOnlyLanes();
}

TEST_P(WeightStreams, ACallerThatNeverTakesHoldsABoundedPart) {
  Model model;
  for (int i = 0; i < 12; ++i) model.Add("w" + std::to_string(i), {4 * kMiB});
  const auto source = model.Source();
  size_t placed = 0;
  std::vector<DeviceBlock> blocks;
  StreamOptions options = OfBuckets(4 * kMiB);
  options.ahead = 2;
  options.place = [&](const client::WantedTensor& tensor) -> StatusOr<DevicePtr> {
    ++placed;
    CAIRN_ASSIGN_OR_RETURN(DeviceBlock block, NewDeviceBlock(device(), tensor.bytes));
    blocks.push_back(std::move(block));
    return blocks.back().get();
  };
  auto stream = *streamer().Start({source}, model.PlanOf(), options);
  EXPECT_LE(placed, 4u);
  ASSERT_TRUE(stream->Next().ok());
  EXPECT_LE(placed, 5u);
  EXPECT_LE(source->reads(), 6u);
}

TEST_P(WeightStreams, TwoAtOnceShareTheLanes) {
  const Model& model = Mixed();
  auto one = *streamer().Start({model.Source()}, model.PlanOf(), OfBuckets(kMiB));
  auto two = *streamer().Start({model.Source()}, model.PlanOf(), OfBuckets(kMiB));
  EXPECT_EQ(*TakeAll(device(), two.get()), model.content());
  EXPECT_EQ(*TakeAll(device(), one.get()), model.content());
}

#ifdef __SANITIZE_THREAD__
constexpr int kStreams = 200;  // each costs twenty times as much
#else
constexpr int kStreams = 1000;
#endif

TEST_P(WeightStreams, AThousandLeaveNothingBehind) {
  const Model model = Model().Add("a", {100}).Add("b", {kMiB});
  const auto source = model.Source();
  StreamOptions views;
  views.views = true;
  for (int i = 0; i < kStreams / 2; ++i) {
    ASSERT_TRUE(Stream(source, model.PlanOf(), {}).ok());
    ASSERT_TRUE(Stream(source, model.PlanOf(), views).ok());
  }
  ExpectOnlyLanes();
}

TEST_P(WeightStreams, AForkedChildIsRefusedAndTheParentGoesOn) {
  const Model& model = Mixed();
  auto stream = *streamer().Start({model.Source()}, model.PlanOf(), OfBuckets(kMiB));
  ASSERT_TRUE(stream->Next().ok());
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const bool refused = absl::IsFailedPrecondition(stream->Next().status());
    stream.reset();  // must not wait for threads that are not here
    _exit(refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(TakeAll(device(), stream.get()).ok());
}

TEST_P(WeightStreams, ABucketBelowTheAlignmentIsRefused) {
  const Model& model = Mixed();
  for (const bool views : {false, true}) {
    StreamOptions options = OfBuckets(255);
    options.views = views;
    const Status status = streamer().Start({model.Source()}, model.PlanOf(), options).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status));
    EXPECT_THAT(std::string(status.message()), HasSubstr("bucket_bytes: 255"));
  }
}

TEST_P(WeightStreams, ASourceThatIsShorterThanThePlanIsRefused) {
  const Model& model = Mixed();
  auto shorter = std::make_shared<MemorySource>("run/3 object short",
                                                std::make_shared<std::string>(5 * kMiB, 'x'));
  const Status status = streamer().Start({shorter}, model.PlanOf(), {}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("run/3 object short"));
}

TEST_P(WeightStreams, APlanOfNothingEndsAtOnce) {
  const Model model = Model().Add("empty", {0});
  EXPECT_EQ(*Stream(model.Source(), model.PlanOf(), {}), model.content());
  EXPECT_EQ(*Stream(model.Source(), Plan{}, {}), (std::map<std::string, std::string>{}));
}

// --- with faults

struct Faulty {
  explicit Faulty(const HostDeviceOptions& host = {}, const StreamerOptions& options = {})
      : streamer(MakeFaultyDevice(MakeHostDevice(host), faults), options) {}
  const std::shared_ptr<DeviceFaults> faults = std::make_shared<DeviceFaults>();
  Streamer streamer;
};

TEST(WeightStreamFaults, ABitThatTheDeviceFlipsIsMended) {
  const Model& model = Mixed();
  Faulty faulty;
  faulty.faults->Add({.call = DeviceCall::kFlip, .after = 1, .times = 1});
  auto stream = *faulty.streamer.Start({model.Source()}, model.PlanOf(), OfBuckets(kMiB));
  EXPECT_TRUE(*TakeAll(faulty.streamer.device(), stream.get()) == model.content());
  EXPECT_EQ(stream->stats().read_again, 1u);
}

TEST(WeightStreamFaults, ADeviceThatFlipsEveryTimeIsDataLoss) {
  const Model& model = Mixed();
  Faulty faulty;
  faulty.faults->Add({.call = DeviceCall::kFlip});
  auto stream = *faulty.streamer.Start({model.Source()}, model.PlanOf(), OfBuckets(kMiB));
  const Status status = TakeAll(faulty.streamer.device(), stream.get()).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("on the device"));
}

TEST(WeightStreamFaults, ADeviceWithoutChecksumsChecksOnTheHostAndSaysSo) {
  const Model& model = Mixed();
  Faulty faulty({.checksums = false});
  const auto source = model.Source();
  source->Damage(1);
  auto stream = *faulty.streamer.Start({source}, model.PlanOf(), OfBuckets(kMiB));
  EXPECT_TRUE(*TakeAll(faulty.streamer.device(), stream.get()) == model.content());
  EXPECT_EQ(stream->stats().checked_on_device, 0u);
  EXPECT_EQ(stream->stats().checked_on_host, stream->stats().blocks);
  EXPECT_THAT(stream->stats().host_because, HasSubstr("no checksums"));
}

// Whatever call fails, the stream ends with that error or brings all; the next one is as if nothing had been.
TEST(WeightStreamFaults, AnyDeviceCallMayFail) {
  const Model model = Model().Add("a", {100}).Add("b", {41, 100 << 10}).Add("c", {64, 1024});
  for (const bool views : {false, true}) {
    int failed = 0;
    for (int n = 0;; ++n) {
      Faulty faulty({}, {.lanes = 2, .slots = 2});
      StreamOptions options = OfBuckets(2 * kMiB);
      options.views = views;
      options.threads = 2;
      options.caller = kDefaultStream;
      faulty.faults->Add(
          {.after = n, .times = 1, .error = absl::InternalError("the device call failed")});
      auto stream = faulty.streamer.Start({model.Source()}, model.PlanOf(), options);
      Status status = stream.status();
      std::vector<WeightStream::Tensor> came;
      while (status.ok()) {
        auto tensors = (*stream)->Next();
        status = tensors.status();
        if (!tensors.ok() || tensors->empty()) break;
        for (WeightStream::Tensor& tensor : *tensors) came.push_back(std::move(tensor));
      }
      faulty.faults->Clear();
      if (status.ok()) {
        EXPECT_EQ(came.size(), model.content().size());
        for (const WeightStream::Tensor& tensor : came) {
          if (views) continue;  // valid no more
          const std::string& name = tensor.wanted->name;
          EXPECT_EQ(Out(faulty.streamer.device(), tensor.data, tensor.wanted->bytes), model[name]);
        }
        if (n > 70) break;  // a stream makes fewer calls than that
      } else {
        ++failed;
        EXPECT_THAT(std::string(status.message()), HasSubstr("call failed"));
      }
      came.clear();
      stream = absl::CancelledError();
      if (n % 8 == 0) {
        auto again = faulty.streamer.Start({model.Source()}, model.PlanOf(), options);
        ASSERT_TRUE(again.ok()) << n << ": " << again.status();
        EXPECT_EQ(*TakeAll(faulty.streamer.device(), again->get()), model.content()) << n;
      }
      ASSERT_LT(n, 2000);
    }
    EXPECT_GT(failed, 20);
  }
}

TEST(WeightStreamFaults, MemoryThatWentSinceItWasLookedAtMakesBuffersSmaller) {
  Model model;
  for (int i = 0; i < 20; ++i) model.Add("w" + std::to_string(i), {3 * kMiB});
  Faulty faulty;
  StreamOptions options = OfBuckets(32 * kMiB);
  options.views = true;
  faulty.faults->Add({.call = DeviceCall::kAllocate,
                      .after = 2,  // the trial of checksums, the first buffer
                      .times = 1,
                      .error = absl::ResourceExhaustedError("no memory")});
  auto stream = faulty.streamer.Start({model.Source()}, model.PlanOf(), options);
  ASSERT_TRUE(stream.ok()) << stream.status();
  EXPECT_EQ(*TakeAll(faulty.streamer.device(), stream->get()), model.content());
}

TEST(WeightStreamFaults, OneBufferIsEnough) {
  Model model;
  for (int i = 0; i < 20; ++i) model.Add("w" + std::to_string(i), {3 * kMiB});
  Faulty faulty({.memory_bytes = 40 * kMiB});
  StreamOptions options = OfBuckets(24 * kMiB);
  options.views = true;
  auto stream = faulty.streamer.Start({model.Source()}, model.PlanOf(), options);
  ASSERT_TRUE(stream.ok()) << stream.status();
  EXPECT_EQ(*TakeAll(faulty.streamer.device(), stream->get()), model.content());
}

TEST(WeightStreamFaults, NoMemoryForATensorNamesIt) {
  const Model model = Model().Add("small", {100}).Add("huge", {30 * kMiB});
  Faulty faulty({.memory_bytes = 20 * kMiB});
  const Status status = faulty.streamer.Start({model.Source()}, model.PlanOf(), {}).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("tensor \"huge\""));
}

// The caller's memory may still be used by what it asked for before.
TEST(WeightStreamFaults, CopiesWaitForTheCallersStream) {
  const Model model = Model().Add("w", {kMiB});
  Streamer streamer(MakeHostDevice());
  Device* const device = streamer.device();
  const DeviceBlock memory = *NewDeviceBlock(device, kMiB);
  const Stream before = *NewStream(device);
  const PinnedBlock old = *NewPinnedBlock(device, 64 * kMiB);
  const DeviceBlock elsewhere = *NewDeviceBlock(device, 64 * kMiB);
  std::memset(old.get(), 'o', 64 * kMiB);
  for (int i = 0; i < 8; ++i) {
    StreamOptions options;
    options.caller = before.get();
    options.place = [&](const client::WantedTensor&) -> StatusOr<DevicePtr> {
      // Much work, and last of all a write into the memory that is given.
      const CopyIn work[] = {{old.get(), elsewhere.get(), 64 * kMiB},
                             {old.get(), memory.get(), kMiB}};
      CAIRN_RETURN_IF_ERROR(device->Copy(absl::Span<const CopyIn>(work), before.get()));
      return memory.get();
    };
    auto stream = *streamer.Start({model.Source(true)}, model.PlanOf(), options);
    EXPECT_TRUE(TakeAll(device, stream.get())->at("w") == model["w"]);
  }
}

TEST(WeightStreamFaults, TheHostsDeviceTakesWhatIsMappedDirectly) {
  const Model& model = Mixed();
  Streamer streamer(MakeHostDevice());
  auto stream = *streamer.Start({model.Source(true)}, model.PlanOf(), {});
  EXPECT_TRUE(*TakeAll(streamer.device(), stream.get()) == model.content());
  EXPECT_EQ(stream->stats().direct, stream->stats().blocks);
}

TEST(WeightStreamFaults, AStopFromAnotherThreadEndsANextThatWaits) {
  const Model& model = Mixed();
  Faulty faulty;
  faulty.faults->Add({.kind = testing::FaultKind::kHang, .call = DeviceCall::kCopyIn});
  auto stream = *faulty.streamer.Start({model.Source()}, model.PlanOf(), OfBuckets(kMiB));
  std::thread stopper([&] { stream->Stop(); });
  EXPECT_TRUE(absl::IsCancelled(stream->Next().status()));
  stopper.join();
  faulty.faults->Clear();
}

TEST(WeightStreamFaults, FewerPinnedSlotsThanAskedForAreEnough) {
  const Model& model = Mixed();
  Faulty faulty({}, {.lanes = 1, .slots = 4});
  faulty.faults->Add({.call = DeviceCall::kAllocatePinned,
                      .after = 2,  // the checksums, the first slot
                      .error = absl::ResourceExhaustedError("no pages")});
  auto stream = faulty.streamer.Start({model.Source()}, model.PlanOf(), {});
  ASSERT_TRUE(stream.ok()) << stream.status();
  EXPECT_EQ(*TakeAll(faulty.streamer.device(), stream->get()), model.content());
}

TEST(WeightStreamFaults, MoreStreamsThanLanesAreRefused) {
  const Model& model = Mixed();
  Faulty faulty({}, {.lanes = 1, .slots = 2});
  auto one = *faulty.streamer.Start({model.Source()}, model.PlanOf(), {});
  EXPECT_TRUE(absl::IsResourceExhausted(
      faulty.streamer.Start({model.Source()}, model.PlanOf(), {}).status()));
  one.reset();
  EXPECT_TRUE(faulty.streamer.Start({model.Source()}, model.PlanOf(), {}).ok());
}

TEST(WeightStreamFaults, ACallerWithoutMemoryEndsItWithItsOwnWords) {
  const Model& model = Mixed();
  Faulty faulty;
  StreamOptions options = OfBuckets(kMiB);
  int asked = 0;
  std::vector<DeviceBlock> blocks;
  options.place = [&](const client::WantedTensor& tensor) -> StatusOr<DevicePtr> {
    if (++asked == 20) return absl::ResourceExhaustedError("CUDA out of memory");
    CAIRN_ASSIGN_OR_RETURN(DeviceBlock block, NewDeviceBlock(faulty.streamer.device(),
                                                             std::max<uint64_t>(1, tensor.bytes)));
    blocks.push_back(std::move(block));
    return blocks.back().get();
  };
  auto stream = faulty.streamer.Start({model.Source()}, model.PlanOf(), options);
  const Status status =
      stream.ok() ? TakeAll(faulty.streamer.device(), stream->get()).status() : stream.status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("CUDA out of memory"));
}

// --- the pure parts

client::PlannedBlock Block(std::vector<std::pair<uint64_t, uint64_t>> runs) {
  client::PlannedBlock block;
  uint64_t to = 0;
  for (const auto& [from, width] : runs) {
    block.pieces.push_back({0, from, to, width, 1, 0, 0});
    to += width;
  }
  return block;
}

TEST(BlockCheck, CombinesPiecesAndGaps) {
  const std::string bytes = Pattern(1000);
  for (const auto& runs : std::vector<std::vector<std::pair<uint64_t, uint64_t>>>{
           {{0, 1000}}, {{10, 990}}, {{0, 500}}, {{3, 100}, {103, 400}, {900, 100}}}) {
    const client::PlannedBlock block = Block(runs);
    ASSERT_TRUE(ChecksOnDevice(block, 1000));
    const std::vector<Gap> gaps = Gaps(block, 1000);
    std::vector<uint32_t> of_gaps, of_pieces;
    for (const Gap& gap : gaps) of_gaps.push_back(Crc32c(0, bytes.data() + gap.from, gap.length));
    for (const auto& [from, width] : runs) {
      of_pieces.push_back(Crc32c(0, bytes.data() + from, width));
    }
    EXPECT_EQ(CombineBlock(block, gaps, of_gaps, of_pieces.data()), Crc32c(0, bytes.data(), 1000));
  }
}

TEST(BlockCheck, LittleOrScatteredBytesAreCheckedOnTheHost) {
  EXPECT_FALSE(ChecksOnDevice(Block({{0, 499}}), 1000));
  client::PlannedBlock rows = Block({{0, 1000}});
  rows.pieces[0].count = 2;
  EXPECT_FALSE(ChecksOnDevice(rows, 1000));
  std::vector<std::pair<uint64_t, uint64_t>> many;
  for (uint64_t i = 0; i <= kMostRunsChecked; ++i) many.push_back({i * 10, 9});
  EXPECT_FALSE(ChecksOnDevice(Block(many), 660));
}

TEST(VerifiedBlocks, AreRememberedByMemoryUpToABound) {
  VerifiedBlocks verified;
  verified.Add("a", 70);
  EXPECT_TRUE(verified.Has("a", 70));
  EXPECT_FALSE(verified.Has("a", 69));
  EXPECT_FALSE(verified.Has("a", 71));
  EXPECT_FALSE(verified.Has("b", 70));
  verified.Add("", 1);
  EXPECT_FALSE(verified.Has("", 1)) << "what has no name is not remembered";
  for (size_t i = 1; i < VerifiedBlocks::kMostMemories; ++i) verified.Add(std::to_string(i), 0);
  EXPECT_TRUE(verified.Has("a", 70));
  verified.Add("one more", 0);
  EXPECT_TRUE(verified.Has("a", 70)) << "asked about last";
  EXPECT_FALSE(verified.Has("1", 0));
}

TEST(Buckets, TheFirstIsSmallAndEveryBlockComesOnce) {
  Model model = Model().Add("a", {10 * kMiB}).Add("b", {10 * kMiB}).Add("c", {10 * kMiB});
  Plan plan = model.PlanOf();
  const size_t blocks = plan.blocks.size();
  const std::vector<Bucket> buckets = CutByBytes(plan, 4 * kMiB, 16 * kMiB);
  ASSERT_EQ(buckets.size(), 3u);
  EXPECT_EQ(buckets[0].blocks.size(), 1u);
  EXPECT_THAT(buckets[0].begins, ElementsAre(0));
  EXPECT_TRUE(buckets[0].ends.empty());
  EXPECT_THAT(buckets[1].begins, ElementsAre(1));
  EXPECT_THAT(buckets[1].ends, ElementsAre(0));
  EXPECT_THAT(buckets[2].ends, ElementsAre(1, 2));
  EXPECT_EQ(buckets[0].blocks.size() + buckets[1].blocks.size() + buckets[2].blocks.size(), blocks);
}

TEST(Buckets, ViewsAreAlignedAndShareNoBucketsBytes) {
  Model model = Model().Add("a", {100}).Add("b", {2 * kMiB}).Add("c", {kMiB}).Add("d", {9 * kMiB});
  Plan plan = model.PlanOf();
  const ViewBuckets cut = CutByTensors(plan, 2 * kMiB + 512, 256);
  ASSERT_EQ(cut.buckets.size(), 2u);
  EXPECT_THAT(cut.offset, ElementsAre(0, 256, 0, kNoBuffer));
  EXPECT_THAT(cut.buckets[0].ends, ElementsAre(0, 1));
  EXPECT_THAT(cut.buckets[1].ends, ElementsAre(2, 3));
}

}  // namespace
}  // namespace cairn::gpu
