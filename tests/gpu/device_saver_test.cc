// Saves of device memory, on every device: the host's, one with faults, and a GPU where there is one.
#include "client/gpu/device_saver.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "client/gpu/host_device.h"
#include "common/checksum.h"
#include "common/keys.h"
#include "tests/gpu/device_kinds.h"
#include "tests/gpu/faulty_device.h"
#include "tests/gpu/pattern.h"
#include "tests/support/measure.h"

namespace cairn::gpu {
namespace {

using client::DeviceReader;
using testing::Must;
using Piece = DeviceReader::Piece;

constexpr uint64_t kMiB = 1 << 20;

// Bytes on a device, and the memory that they are saved into.
class Bytes {
 public:
  Bytes(Device* device, uint64_t count) : bytes_(Some(count)), into_(count, '?') {
    auto block = NewDeviceBlock(device, count);
    EXPECT_TRUE(block.ok()) << block.status();
    block_ = *std::move(block);
    const CopyIn in{bytes_.data(), block_.get(), count};
    EXPECT_TRUE(device->Copy({&in, 1}, kDefaultStream).ok());
    EXPECT_TRUE(device->Synchronize(kDefaultStream).ok());
  }
  // Cut into pieces of these lengths, over and over; every second one wants both checksums.
  std::vector<Piece> Cut(const std::vector<uint64_t>& lengths) {
    std::vector<Piece> pieces;
    for (uint64_t at = 0, i = 0; at < bytes_.size(); ++i) {
      Piece piece;
      piece.bytes = std::min<uint64_t>(lengths[i % lengths.size()], bytes_.size() - at);
      piece.from = block_.get() + at;
      piece.into = into_.data() + at;
      piece.wants_zip_crc = i % 2 == 1;
      pieces.push_back(piece);
      at += piece.bytes;
    }
    return pieces;
  }
  void ExpectSaved(const std::vector<Piece>& pieces) { ExpectIn(into_.data(), pieces); }
  void ExpectIn(const char* into, const std::vector<Piece>& pieces) {
    EXPECT_EQ(std::memcmp(into, bytes_.data(), bytes_.size()), 0);  // megabytes: no diff wanted
    uint64_t at = 0;
    for (const Piece& piece : pieces) {
      EXPECT_EQ(piece.crc32c, Crc32c(0, bytes_.data() + at, piece.bytes)) << at;
      if (piece.wants_zip_crc) {
        EXPECT_EQ(piece.zip_crc, ZipCrc32(0, bytes_.data() + at, piece.bytes)) << at;
      }
      at += piece.bytes;
    }
  }
  void Forget() { into_.assign(into_.size(), '?'); }
  DevicePtr at() const { return block_.get(); }

 private:
  static std::string Some(uint64_t count) {
    static const std::string all = Pattern(10 * kBlockBytes);
    return all.substr(0, count);
  }

  const std::string bytes_;
  std::string into_;
  DeviceBlock block_;
};

// Gives a stream work for a tenth of a second or more: copies of `host`, which is pinned.
void KeepBusy(Device* device, StreamId stream, const char* host, DevicePtr to, uint64_t bytes) {
  for (uint64_t copied = 0; copied < 400 * kMiB; copied += bytes) {
    const CopyIn in{host, to, bytes};
    ASSERT_TRUE(device->Copy({&in, 1}, stream).ok());
  }
}

Status Save(DeviceSaver* saver, std::vector<Piece>* pieces) {
  return saver->After(kDefaultStream)->Read(absl::MakeSpan(*pieces));
}

class SaverOn : public ::testing::TestWithParam<DeviceKind> {
 protected:
  void SetUp() override {
    auto opened = GetParam().open();
    ASSERT_TRUE(opened.ok()) << opened.status();
    device_ = *std::move(opened);
  }
  void TearDown() override {
    if (device_ == nullptr) return;
    EXPECT_EQ(device_->Use(), DeviceUse{}) << "something was not given back";
  }

  std::unique_ptr<Device> device_;
};

TEST_P(SaverOn, BringsPiecesOfAllSizesWithTheirChecksums) {
  for (const std::vector<uint64_t>& lengths :
       {std::vector<uint64_t>{kBlockBytes}, std::vector<uint64_t>{1, 63, 64, 65, 100000},
        std::vector<uint64_t>{kBlockBytes - 1, 2}, std::vector<uint64_t>{4096}}) {
    DeviceSaver saver(device_.get());
    Bytes bytes(device_.get(), 9 * kBlockBytes + 77);  // more than all slots hold
    std::vector<Piece> pieces = bytes.Cut(lengths);
    ASSERT_TRUE(Save(&saver, &pieces).ok());
    bytes.ExpectSaved(pieces);
    EXPECT_EQ(saver.stats().bytes, 9 * kBlockBytes + 77);
    bytes.Forget();
    pieces = bytes.Cut(lengths);
    ASSERT_TRUE(Save(&saver, &pieces).ok()) << "once more, with what the first left";
    bytes.ExpectSaved(pieces);
  }
}

TEST_P(SaverOn, ComesAfterTheCallersStream) {
  DeviceSaver saver(device_.get());
  Bytes bytes(device_.get(), kMiB);
  auto stream = NewStream(device_.get());
  ASSERT_TRUE(stream.ok());
  auto pinned = NewPinnedBlock(device_.get(), 2 * kMiB);
  ASSERT_TRUE(pinned.ok());
  auto* const host = static_cast<char*>(pinned->get());
  const std::string other(kMiB, 'x');
  std::memset(host, 'o', kMiB);
  std::memset(host + kMiB, 'x', kMiB);
  std::string into(kMiB, '?');
  Piece piece;
  piece.from = bytes.at();
  piece.into = into.data();
  piece.bytes = kMiB;
  KeepBusy(device_.get(), stream->get(), host, bytes.at(), kMiB);
  const CopyIn last{host + kMiB, bytes.at(), kMiB};
  ASSERT_TRUE(device_->Copy({&last, 1}, stream->get()).ok());
  ASSERT_TRUE(saver.After(stream->get())->Read(absl::MakeSpan(&piece, 1)).ok());
  EXPECT_TRUE(into == other);
  EXPECT_EQ(piece.crc32c, Crc32c(0, other.data(), kMiB));
}

TEST_P(SaverOn, ManyThreadsSaveOneAfterTheOther) {
  DeviceSaver saver(device_.get());
  std::vector<std::unique_ptr<Bytes>> all;
  for (int i = 0; i < 4; ++i) all.push_back(std::make_unique<Bytes>(device_.get(), 5 * kMiB + i));
  std::vector<std::thread> threads;
  for (const auto& bytes : all) {
    threads.emplace_back([&saver, bytes = bytes.get()] {
      for (int i = 0; i < 5; ++i) {
        bytes->Forget();
        std::vector<Piece> pieces = bytes->Cut({kMiB});
        ASSERT_TRUE(Save(&saver, &pieces).ok());
        bytes->ExpectSaved(pieces);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(DeviceSaver, WithoutTheDevicesChecksumsTheHostTakesThem) {
  HostDeviceOptions options;
  options.checksums = false;
  const std::unique_ptr<Device> device = MakeHostDevice(options);
  DeviceSaver saver(device.get());
  Bytes bytes(device.get(), 6 * kBlockBytes);
  std::vector<Piece> pieces = bytes.Cut({kBlockBytes, 1000, 70000});
  ASSERT_TRUE(Save(&saver, &pieces).ok());
  bytes.ExpectSaved(pieces);
  EXPECT_EQ(saver.stats().summed_on_device, 0u);
  EXPECT_EQ(saver.stats().host_because, "this device has no checksums");
}

TEST(DeviceSaver, WithADeviceThatChecksTheHostReadsNothingTwice) {
  const std::unique_ptr<Device> device = MakeHostDevice();
  DeviceSaver saver(device.get());
  Bytes bytes(device.get(), kMiB);
  std::vector<Piece> pieces = bytes.Cut({70000});
  ASSERT_TRUE(Save(&saver, &pieces).ok());
  EXPECT_EQ(saver.stats().summed_on_device, pieces.size());
  EXPECT_EQ(saver.stats().host_because, "");
}

// --- slabs that are registered

// A slab that this process saves into, as a session maps one, and what the node lends for good.
class Slab {
 public:
  explicit Slab(uint64_t bytes)
      : fd_(Must(MakeMemfd("slab", bytes, 0600))),
        written_(Must(Mapping::Map(fd_.get(), 0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED))) {}

  // One save of `bytes` into it; whether all of it is there.
  void Save(DeviceSaver* saver, Bytes* bytes, const std::vector<uint64_t>& lengths) {
    std::vector<Piece> pieces = bytes->Cut(lengths);
    uint64_t at = 0;
    for (Piece& piece : pieces) {
      piece.into = written_.data() + at;
      at += piece.bytes;
    }
    const auto reader = saver->After(kDefaultStream);
    reader->Into({written_.data(), written_.length(), Place()});
    const Status status = reader->Read(absl::MakeSpan(pieces));
    ASSERT_TRUE(status.ok()) << status;
    bytes->ExpectIn(written_.data(), pieces);
    std::memset(written_.data(), 0, at);
  }
  void WantBack() { wanted_back_(); }
  int live() const { return live_; }
  int asked() const { return asked_; }

 private:
  class Mapped : public client::StandingMapping {
   public:
    Mapped(Slab* slab, Mapping mapping) : slab_(slab), mapping_(std::move(mapping)) {}
    ~Mapped() override { --slab_->live_; }
    char* data() const override { return mapping_.data(); }
    uint64_t bytes() const override { return mapping_.length(); }

   private:
    Slab* const slab_;
    const Mapping mapping_;
  };

  client::StandingPlace Place() {
    return {
        "the slab", 0,
        [this](std::function<void()> back) -> StatusOr<std::unique_ptr<client::StandingMapping>> {
          ++asked_;
          wanted_back_ = std::move(back);
          CAIRN_ASSIGN_OR_RETURN(Mapping mapping, Mapping::Map(fd_.get(), 0, written_.length(),
                                                               PROT_READ | PROT_WRITE, MAP_SHARED));
          ++live_;
          return std::make_unique<Mapped>(this, std::move(mapping));
        }};
  }

  const UniqueFd fd_;
  const Mapping written_;
  std::atomic<int> live_{0}, asked_{0};
  std::function<void()> wanted_back_;
};

constexpr SaverOptions kSmallChunks = {.registered_at_once = 2 * kBlockBytes};

TEST_P(SaverOn, FromTheSecondSaveOnItCopiesStraightIntoASlab) {
  DeviceSaver saver(device_.get(), kSmallChunks);
  Bytes bytes(device_.get(), 5 * kBlockBytes);
  Slab slab(5 * kBlockBytes);
  slab.Save(&saver, &bytes, {kBlockBytes});
  EXPECT_EQ(saver.stats().direct, 0u);
  saver.slabs()->Settle();
  EXPECT_EQ(saver.stats().slots_because, "");
  EXPECT_EQ(slab.asked(), 1);
  slab.Save(&saver, &bytes, {kBlockBytes});
  EXPECT_EQ(saver.stats().direct, 5u);
  // What lies across the border of two registrations passes through a slot.
  slab.Save(&saver, &bytes, {kBlockBytes - 1000});
  EXPECT_GT(saver.stats().direct, 5u + 2);
  EXPECT_LT(saver.stats().direct, 5u + 6);
}

TEST_P(SaverOn, ASlabThatIsWantedBackIsGivenUpAndAskedForAgain) {
  DeviceSaver saver(device_.get(), kSmallChunks);
  Bytes bytes(device_.get(), 3 * kBlockBytes);
  std::vector<Piece> pieces = bytes.Cut({kBlockBytes});
  ASSERT_TRUE(Save(&saver, &pieces).ok());  // which makes the slots
  const uint64_t without = device_->Use().registrations;
  Slab slab(3 * kBlockBytes);
  for (int i = 0; i < 3; ++i) {
    slab.Save(&saver, &bytes, {kBlockBytes});
    saver.slabs()->Settle();
    EXPECT_EQ(device_->Use().registrations, without + 2);
    EXPECT_EQ(slab.live(), 1);
    slab.WantBack();
    EXPECT_EQ(device_->Use().registrations, without);
    EXPECT_EQ(slab.live(), 0);
  }
  EXPECT_EQ(slab.asked(), 3);
}

TEST_P(SaverOn, GivesSlabsUpWhenItEnds) {
  Slab slab(kBlockBytes);
  {
    DeviceSaver saver(device_.get());
    Bytes bytes(device_.get(), kBlockBytes);
    slab.Save(&saver, &bytes, {kBlockBytes});
    saver.slabs()->Settle();
    EXPECT_EQ(slab.live(), 1);
  }
  EXPECT_EQ(slab.live(), 0);
}

TEST(DeviceSaver, WithoutTheDevicesChecksumsTheyAreOfTheSlab) {
  HostDeviceOptions options;
  options.checksums = false;
  const std::unique_ptr<Device> device = MakeHostDevice(options);
  DeviceSaver saver(device.get());
  Bytes bytes(device.get(), 2 * kBlockBytes);
  Slab slab(2 * kBlockBytes);
  const auto pinned = NewPinnedBlock(device.get(), kMiB);
  const auto elsewhere = NewDeviceBlock(device.get(), kMiB);
  ASSERT_TRUE(pinned.ok() && elsewhere.ok());
  for (int i = 0; i < 2; ++i) {
    // The slab holds the bytes only when the device has done this too.
    KeepBusy(device.get(), kDefaultStream, static_cast<char*>(pinned->get()), elsewhere->get(),
             kMiB);
    slab.Save(&saver, &bytes, {kBlockBytes, 1000});
    saver.slabs()->Settle();
  }
  EXPECT_GT(saver.stats().direct, 0u);
}

TEST(DeviceSaver, ASlabThatIsRefusedIsSavedIntoBySlotsAndNotAskedForAgain) {
  for (const absl::StatusCode code :
       {absl::StatusCode::kInvalidArgument, absl::StatusCode::kAlreadyExists,
        absl::StatusCode::kUnimplemented, absl::StatusCode::kResourceExhausted}) {
    auto faults = std::make_shared<DeviceFaults>();
    const std::unique_ptr<Device> device = MakeFaultyDevice(MakeHostDevice(), faults);
    DeviceSaver saver(device.get(), kSmallChunks);
    Bytes bytes(device.get(), 5 * kBlockBytes);
    Slab slab(5 * kBlockBytes);
    // The second of three chunks.
    faults->Add({.call = DeviceCall::kRegister, .after = 1, .error = Status(code, "refused")});
    for (int i = 0; i < 3; ++i) {
      slab.Save(&saver, &bytes, {kBlockBytes});
      saver.slabs()->Settle();
    }
    EXPECT_EQ(saver.stats().slots_because, "refused");
    EXPECT_EQ(saver.stats().direct, 0u);
    EXPECT_EQ(slab.asked(), 1);
    EXPECT_EQ(slab.live(), 0);
  }
}

TEST(DeviceSaver, GoesOnWithFewerSlots) {
  for (const int slots : {1, 2}) {
    auto faults = std::make_shared<DeviceFaults>();
    const std::unique_ptr<Device> device = MakeFaultyDevice(MakeHostDevice(), faults);
    faults->Add({.call = DeviceCall::kAllocatePinned,
                 .after = slots,
                 .error = absl::ResourceExhaustedError("no pages")});
    DeviceSaver saver(device.get());
    Bytes bytes(device.get(), 6 * kBlockBytes);
    std::vector<Piece> pieces = bytes.Cut({kBlockBytes / 2});
    ASSERT_TRUE(Save(&saver, &pieces).ok());
    bytes.ExpectSaved(pieces);
  }
}

TEST(DeviceSaver, WithoutAnyPinnedMemoryItSaysSo) {
  auto faults = std::make_shared<DeviceFaults>();
  const std::unique_ptr<Device> device = MakeFaultyDevice(MakeHostDevice(), faults);
  faults->Add({.call = DeviceCall::kAllocatePinned, .error = absl::ResourceExhaustedError("none")});
  DeviceSaver saver(device.get());
  Bytes bytes(device.get(), kMiB);
  std::vector<Piece> pieces = bytes.Cut({kMiB});
  EXPECT_EQ(Save(&saver, &pieces), absl::ResourceExhaustedError("none"));
}

// Whichever call fails, the save fails or is whole, nothing is kept, and the next one succeeds.
TEST(DeviceSaver, AnyCallMayFail) {
  bool reached = true;
  for (int n = 0; reached; n += Stride()) {
    auto faults = std::make_shared<DeviceFaults>();
    const std::unique_ptr<Device> device = MakeFaultyDevice(MakeHostDevice(), faults);
    {
      DeviceSaver saver(device.get());
      Bytes bytes(device.get(), 6 * kBlockBytes);
      std::vector<Piece> pieces = bytes.Cut({kBlockBytes, 1000});
      faults->Add({.after = n, .times = 1, .error = absl::InternalError("broken")});
      const Status status = Save(&saver, &pieces);
      reached = !status.ok();
      if (reached) {
        EXPECT_EQ(status, absl::InternalError("broken")) << n;
        faults->Clear();
        pieces = bytes.Cut({kBlockBytes, 1000});
        bytes.Forget();
        ASSERT_TRUE(Save(&saver, &pieces).ok()) << n;
      }
      bytes.ExpectSaved(pieces);
    }
    // The last call gives back; what it does not give back is left.
    if (reached) {
      EXPECT_EQ(device->Use(), DeviceUse{}) << n;
    }
    ASSERT_LT(n, 200);
  }
}

TEST(DeviceSaver, InAForkedChildItIsRefused) {
  const std::unique_ptr<Device> device = MakeHostDevice();
  DeviceSaver saver(device.get());
  Bytes bytes(device.get(), kMiB);
  std::vector<Piece> pieces = bytes.Cut({kMiB});
  ASSERT_TRUE(Save(&saver, &pieces).ok());
  const pid_t child = fork();
  if (child == 0) {
    const Status status = Save(&saver, &pieces);
    _exit(absl::IsFailedPrecondition(status) ? 0 : 1);
  }
  int how = 0;
  ASSERT_EQ(waitpid(child, &how, 0), child);
  EXPECT_TRUE(WIFEXITED(how) && WEXITSTATUS(how) == 0);
}

TEST(DeviceSaver, NothingIsKeptOfAThousandSaves) {
  const std::unique_ptr<Device> device = MakeHostDevice();
  DeviceSaver saver(device.get());
  Bytes bytes(device.get(), 100000);
  std::vector<Piece> pieces = bytes.Cut({30000});
  ASSERT_TRUE(Save(&saver, &pieces).ok());
  const DeviceUse use = device->Use();
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(Save(&saver, &pieces).ok());
  EXPECT_EQ(device->Use(), use);
}

INSTANTIATE_TEST_SUITE_P(Devices, SaverOn, ::testing::ValuesIn(DeviceKinds()),
                         [](const auto& kind) { return kind.param.name; });

}  // namespace
}  // namespace cairn::gpu
