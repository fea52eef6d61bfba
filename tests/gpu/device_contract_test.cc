// The contract of Device (client/gpu/device.h), for every implementation and decorator.
//
// One file: one suite over one fixture.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <thread>

#include "client/gpu/owned.h"
#include "common/checksum.h"
#include "tests/gpu/device_kinds.h"
#include "tests/gpu/pattern.h"

namespace cairn::gpu {
namespace {

constexpr uint64_t kMiB = 1 << 20, kBlock = 4 * kMiB;
constexpr uint64_t kSharedBytes = 5 * kMiB + 1;

// A slab as a client maps one.
Mapping Slab(const std::string& bytes, int protection = PROT_READ | PROT_WRITE) {
  StatusOr<UniqueFd> fd = MakeMemfd("slab", bytes.size(), 0600);
  EXPECT_TRUE(fd.ok()) << fd.status();
  EXPECT_TRUE(PwriteAll(fd->get(), bytes.data(), bytes.size(), 0).ok());
  StatusOr<Mapping> mapped = Mapping::Map(fd->get(), 0, bytes.size(), protection, MAP_SHARED);
  EXPECT_TRUE(mapped.ok()) << mapped.status();
  return *std::move(mapped);
}

class DeviceContract : public ::testing::TestWithParam<DeviceKind> {
 protected:
  void SetUp() override {
    auto opened = GetParam().open();
    ASSERT_TRUE(opened.ok()) << opened.status();
    device_ = *std::move(opened);
    auto stream = NewStream(device_.get());
    ASSERT_TRUE(stream.ok()) << stream.status();
    stream_ = *std::move(stream);
  }

  void TearDown() override {
    if (device_ == nullptr) return;
    EXPECT_TRUE(stream_.Reset().ok());
    EXPECT_EQ(device_->Use(), DeviceUse{}) << "something was not given back";
  }

  Device& device() { return *device_; }
  StreamId stream() const { return stream_.get(); }

  DeviceBlock OnDevice(uint64_t bytes) {
    auto block = NewDeviceBlock(device_.get(), bytes);
    EXPECT_TRUE(block.ok()) << block.status();
    return *std::move(block);
  }

  Status In(const void* from, DevicePtr to, uint64_t bytes, StreamId on) {
    const CopyIn piece{from, to, bytes};
    return device_->Copy({&piece, 1}, on);
  }
  Status In(const void* from, DevicePtr to, uint64_t bytes) {
    return In(from, to, bytes, stream());
  }

  std::string Out(DevicePtr from, uint64_t bytes) {
    std::string text(bytes, '?');
    const CopyOut piece{from, text.data(), bytes};
    EXPECT_TRUE(device_->Copy({&piece, 1}, stream()).ok());
    EXPECT_TRUE(device_->Synchronize(stream()).ok());
    return text;
  }

  struct Place {
    uint64_t start = 0;
    uint64_t length = 0;
  };

  // That the device's checksums of these places in `bytes` are those of the host, and that nothing is written beside
  // them.
  void ExpectHostSums(Sum kind, const std::string& bytes, const std::vector<Place>& places) {
    const uint64_t sums_bytes = places.size() * sizeof(uint32_t);
    const DeviceBlock data = OnDevice(bytes.size()), sums = OnDevice(sums_bytes + 8);
    ASSERT_TRUE(In(bytes.data(), data.get(), bytes.size()).ok());
    const std::string before = Pattern(sums_bytes + 8);
    ASSERT_TRUE(In(before.data(), sums.get(), before.size()).ok());
    std::vector<Range> ranges;
    for (const Place& place : places) ranges.push_back({data.get() + place.start, place.length});
    const Status asked = device().Checksum(kind, ranges, sums.get() + 4, stream());
    if (absl::IsUnimplemented(asked)) GTEST_SKIP() << asked;
    ASSERT_TRUE(asked.ok()) << asked;
    const std::string after = Out(sums.get(), before.size());
    EXPECT_EQ(after.substr(0, 4), before.substr(0, 4));
    EXPECT_EQ(after.substr(4 + sums_bytes), before.substr(4 + sums_bytes));
    for (size_t i = 0; i < places.size(); ++i) {
      uint32_t sum = 0;
      std::memcpy(&sum, after.data() + 4 + i * sizeof sum, sizeof sum);
      const auto [start, length] = places[i];
      const char* const from = bytes.data() + start;
      EXPECT_EQ(sum, kind == Sum::kCrc32c ? Crc32c(0, from, length) : ZipCrc32(0, from, length))
          << "kind " << int(kind) << ", range " << i << ": " << length << " bytes from " << start;
    }
  }

  std::unique_ptr<Device> device_;
  Stream stream_;
};

INSTANTIATE_TEST_SUITE_P(, DeviceContract, ::testing::ValuesIn(DeviceKinds()),
                         [](const auto& about) { return about.param.name; });

TEST_P(DeviceContract, HasAName) { EXPECT_FALSE(device().Name().empty()); }

TEST_P(DeviceContract, BytesComeBackAsTheyWere) {
  for (const uint64_t bytes : {uint64_t{1}, uint64_t{255}, 4096 + uint64_t{1}, 3 * kMiB + 5}) {
    const std::string sent = Pattern(bytes);
    const DeviceBlock block = OnDevice(bytes);
    EXPECT_EQ(block.get() % kDeviceAlignment, 0u);
    ASSERT_TRUE(In(sent.data(), block.get(), bytes).ok());
    EXPECT_TRUE(Out(block.get(), bytes) == sent) << bytes;
  }
}

TEST_P(DeviceContract, ManyPiecesAtOnce) {
  constexpr uint64_t kPieces = 1000, kEach = 3001;
  const std::string sent = Pattern(kPieces * kEach);
  const Mapping slab = Slab(sent);
  const auto registered =
      NewRegistration(device_.get(), slab.data(), slab.length(), Access::kReadWrite);
  ASSERT_TRUE(registered.ok()) << registered.status();
  const DeviceBlock block = OnDevice(sent.size());
  std::vector<CopyIn> in;
  for (uint64_t i = 0; i < kPieces; ++i) {  // the first comes last, one of them is empty
    in.push_back({slab.data() + i * kEach, block.get() + (kPieces - 1 - i) * kEach, kEach});
  }
  in.push_back({slab.data(), block.get(), 0});
  ASSERT_TRUE(device().Copy(in, stream()).ok());
  const Mapping back = Slab(std::string(sent.size(), 0));
  std::vector<CopyOut> out;
  for (uint64_t i = 0; i < kPieces; ++i) {
    out.push_back({block.get() + i * kEach, back.data() + (kPieces - 1 - i) * kEach, kEach});
  }
  ASSERT_TRUE(device().Copy(out, stream()).ok());
  ASSERT_TRUE(device().Synchronize(stream()).ok());
  EXPECT_EQ(std::memcmp(back.data(), sent.data(), sent.size()), 0);
}

TEST_P(DeviceContract, RowsBecomeATensorOfTheirOwn) {
  constexpr uint64_t kRows = 100, kPitch = 1000, kWidth = 250;
  const std::string all = Pattern(kRows * kPitch);
  std::string slice;
  for (uint64_t i = 0; i < kRows; ++i) slice += all.substr(i * kPitch + 500, kWidth);
  const DeviceBlock block = OnDevice(slice.size());
  ASSERT_TRUE(
      device()
          .CopyRows(all.data() + 500, block.get(),
                    {.width = kWidth, .count = kRows, .from_pitch = kPitch, .to_pitch = kWidth},
                    stream())
          .ok());
  EXPECT_TRUE(Out(block.get(), slice.size()) == slice);
  EXPECT_TRUE(device().CopyRows(all.data(), block.get(), {}, stream()).ok()) << "no rows";
  EXPECT_TRUE(absl::IsInvalidArgument(
      device().CopyRows(all.data(), block.get(),
                        {.width = 8, .count = 2, .from_pitch = 4, .to_pitch = 8}, stream())));
}

TEST_P(DeviceContract, MoreThanThereIsIsRefusedAndTheDeviceGoesOn) {
  const auto memory = device().Memory();
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_LE(memory->free, memory->total);
  for (const auto& asked :
       {device().Allocate(memory->total + kMiB), device().AllocateShared(memory->total + kMiB)}) {
    EXPECT_TRUE(absl::IsResourceExhausted(asked.status())) << asked.status();
  }
  const DeviceBlock block = OnDevice(kMiB);
  EXPECT_TRUE(In(std::string(100, 'x').data(), block.get(), 100).ok());
}

TEST_P(DeviceContract, WhatIsFreedIsFreeAgain) {
  const auto before = device().Memory();
  { const DeviceBlock block = OnDevice(64 * kMiB); }
  const auto after = device().Memory();
  ASSERT_TRUE(before.ok() && after.ok());
  EXPECT_EQ(after->free, before->free);
}

TEST_P(DeviceContract, FreeingWhatIsNotAllocated) {
  const DeviceBlock block = OnDevice(kMiB);
  EXPECT_TRUE(absl::IsNotFound(device().Free(block.get() + 256)));
  EXPECT_TRUE(absl::IsNotFound(device().Free(4096)));
}

TEST_P(DeviceContract, ARangeOfNoAllocationIsRefused) {
  const DeviceBlock block = OnDevice(kMiB);
  const std::string bytes(kMiB, 'x');
  EXPECT_TRUE(absl::IsInvalidArgument(In(bytes.data(), 4096, 100)));
  EXPECT_TRUE(In(bytes.data(), block.get(), kMiB).ok());
}

TEST_P(DeviceContract, PinnedMemoryCopiesInTheOrderOfTheStream) {
  const auto pinned = NewPinnedBlock(device_.get(), 2 * kMiB);
  ASSERT_TRUE(pinned.ok()) << pinned.status();
  auto* const at = static_cast<char*>(pinned->get());
  const std::string sent = Pattern(kMiB);
  std::memcpy(at, sent.data(), kMiB);
  const DeviceBlock block = OnDevice(kMiB);
  ASSERT_TRUE(In(at, block.get(), kMiB).ok());
  const CopyOut out{block.get(), at + kMiB, kMiB};
  ASSERT_TRUE(device().Copy({&out, 1}, stream()).ok());
  ASSERT_TRUE(device().Synchronize(stream()).ok());
  EXPECT_EQ(std::memcmp(at + kMiB, sent.data(), kMiB), 0);
}

TEST_P(DeviceContract, OneStreamWaitsForAnothersEvent) {
  auto other = NewStream(device_.get());
  auto event = NewEvent(device_.get());
  auto pinned = NewPinnedBlock(device_.get(), 64 * kMiB);
  ASSERT_TRUE(other.ok() && event.ok() && pinned.ok());
  EXPECT_TRUE(*device().Happened(event->get())) << "nothing was recorded";
  EXPECT_TRUE(device().Synchronize(event->get()).ok());
  EXPECT_TRUE(device().Wait(stream(), event->get()).ok());
  const DeviceBlock block = OnDevice(64 * kMiB);
  char* const at = static_cast<char*>(pinned->get());
  for (char round = 1; round < 6; ++round) {
    std::memset(at, round, 64 * kMiB);
    ASSERT_TRUE(In(at, block.get(), 64 * kMiB, other->get()).ok());
    ASSERT_TRUE(device().Record(event->get(), other->get()).ok());
    ASSERT_TRUE(device().Wait(stream(), event->get()).ok());
    EXPECT_EQ(Out(block.get() + 64 * kMiB - 1, 1)[0], round);
    EXPECT_TRUE(*device().Happened(event->get()));
  }
}

TEST_P(DeviceContract, ThreadsUseOneDevice) {
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      const auto own = NewStream(device_.get());
      ASSERT_TRUE(own.ok());
      const std::string sent = Pattern(kMiB + i, i);
      for (int round = 0; round < 10; ++round) {
        const DeviceBlock block = OnDevice(sent.size());
        std::string back(sent.size(), 0);
        const CopyOut out{block.get(), back.data(), back.size()};
        ASSERT_TRUE(In(sent.data(), block.get(), sent.size(), own->get()).ok());
        ASSERT_TRUE(device().Copy({&out, 1}, own->get()).ok());
        ASSERT_TRUE(device().Synchronize(own->get()).ok());
        EXPECT_TRUE(back == sent);
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

// --- registered memory

TEST_P(DeviceContract, ARegisteredSlabIsReadAndWritten) {
  const std::string sent = Pattern(8 * kMiB);
  const Mapping slab = Slab(sent);
  const auto registered =
      NewRegistration(device_.get(), slab.data(), slab.length(), Access::kReadWrite);
  ASSERT_TRUE(registered.ok()) << registered.status();
  EXPECT_EQ(device().Use().registrations, 1u);
  const DeviceBlock block = OnDevice(slab.length());
  ASSERT_TRUE(In(slab.data(), block.get(), slab.length()).ok());
  ASSERT_TRUE(device().Synchronize(stream()).ok());
  std::memset(slab.data(), 0, slab.length());
  const CopyOut out{block.get(), slab.data(), slab.length()};
  ASSERT_TRUE(device().Copy({&out, 1}, stream()).ok());
  ASSERT_TRUE(device().Synchronize(stream()).ok());
  EXPECT_EQ(std::memcmp(slab.data(), sent.data(), sent.size()), 0);
}

TEST_P(DeviceContract, AStandingMappingIsProtectedAfterItIsRegistered) {
  const std::string sent = Pattern(4 * kMiB);
  const Mapping slab = Slab(sent);
  const auto registered =
      NewRegistration(device_.get(), slab.data(), slab.length(), Access::kReadWrite);
  ASSERT_TRUE(registered.ok()) << registered.status();
  ASSERT_EQ(::mprotect(slab.data(), slab.length(), PROT_READ), 0);
  const DeviceBlock block = OnDevice(slab.length());
  ASSERT_TRUE(In(slab.data(), block.get(), slab.length()).ok());
  EXPECT_TRUE(Out(block.get(), slab.length()) == sent);
}

TEST_P(DeviceContract, AReadOnlyMappingIsRegisteredForReadingOnlyOrNotAtAll) {
  const std::string sent = Pattern(kMiB);
  const Mapping slab = Slab(sent, PROT_READ);
  EXPECT_TRUE(
      absl::IsInvalidArgument(device().Register(slab.data(), slab.length(), Access::kReadWrite)));
  const auto registered = NewRegistration(device_.get(), slab.data(), slab.length(), Access::kRead);
  if (absl::IsUnimplemented(registered.status())) return;
  ASSERT_TRUE(registered.ok()) << registered.status();
  const DeviceBlock block = OnDevice(kMiB);
  ASSERT_TRUE(In(slab.data(), block.get(), kMiB).ok());
  EXPECT_TRUE(Out(block.get(), kMiB) == sent);
}

TEST_P(DeviceContract, WhatMayNotBeRegistered) {
  const Mapping slab = Slab(std::string(4 * kMiB, 'x'));
  EXPECT_TRUE(absl::IsInvalidArgument(device().Register(slab.data(), 0, Access::kReadWrite)));
  EXPECT_TRUE(absl::IsInvalidArgument(
      device().Register(slab.data(), uint64_t{1} << 39, Access::kReadWrite)));
  void* const hole = ::mmap(nullptr, kMiB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(hole, MAP_FAILED);
  ::munmap(hole, kMiB);
  EXPECT_TRUE(absl::IsInvalidArgument(device().Register(hole, kMiB, Access::kReadWrite)));
  EXPECT_EQ(device().Use().registrations, 0u);

  char* const middle = slab.data() + kMiB;
  ASSERT_TRUE(device().Register(middle, kMiB, Access::kReadWrite).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(device().Register(middle, kMiB, Access::kReadWrite)));
  EXPECT_TRUE(absl::IsAlreadyExists(device().Register(slab.data(), 2 * kMiB, Access::kReadWrite)));
  EXPECT_TRUE(
      absl::IsAlreadyExists(device().Register(middle + kMiB / 2, kMiB / 4, Access::kReadWrite)));
  EXPECT_TRUE(absl::IsNotFound(device().Unregister(slab.data())));
  EXPECT_TRUE(absl::IsNotFound(device().Unregister(middle + kMiB / 2)));
  EXPECT_TRUE(device().Unregister(middle).ok());
  EXPECT_TRUE(absl::IsNotFound(device().Unregister(middle)));
  EXPECT_TRUE(device().Register(slab.data(), slab.length(), Access::kReadWrite).ok());
  EXPECT_TRUE(device().Unregister(slab.data()).ok());
}

TEST_P(DeviceContract, ACopyStaysInOneRegistration) {
  const std::string sent = Pattern(4 * kMiB);
  const Mapping slab = Slab(sent);
  const DeviceBlock block = OnDevice(slab.length());
  const auto first = NewRegistration(device_.get(), slab.data(), kMiB, Access::kReadWrite);
  const auto second = NewRegistration(device_.get(), slab.data() + kMiB, kMiB, Access::kReadWrite);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_TRUE(absl::IsInvalidArgument(In(slab.data(), block.get(), 2 * kMiB))) << "two of them";
  EXPECT_TRUE(absl::IsInvalidArgument(In(slab.data() + kMiB, block.get(), 2 * kMiB)))
      << "one, and what is none";
  const std::vector<CopyIn> pieces = {{slab.data(), block.get(), kMiB},
                                      {slab.data() + kMiB, block.get() + kMiB, kMiB}};
  ASSERT_TRUE(device().Copy(pieces, stream()).ok());
  ASSERT_TRUE(In(slab.data() + 2 * kMiB, block.get() + 2 * kMiB, 2 * kMiB).ok()) << "none";
  EXPECT_TRUE(Out(block.get(), slab.length()) == sent);
}

// --- checksums

TEST_P(DeviceContract, ChecksumsAreThoseOfTheHost) {
  const std::string bytes = Pattern(3 * kBlock + 12345 + 16);
  std::vector<Place> places;
  for (const uint64_t start : {0, 1, 8, 15}) {
    for (const uint64_t length :
         {uint64_t{0}, uint64_t{1}, uint64_t{15}, uint64_t{16}, uint64_t{17}, uint64_t{4095},
          uint64_t{65537}, kBlock - 1, kBlock, kBlock + 3, 3 * kBlock + 12345}) {
      places.push_back({start, length});
    }
  }
  for (const Sum kind : {Sum::kCrc32c, Sum::kZipCrc32}) ExpectHostSums(kind, bytes, places);
}

TEST_P(DeviceContract, ChecksumsOfManyRangesInAnyOrder) {
  constexpr uint64_t kRanges = 1000, kEach = 5003;  // several launches of a GPU's kernel
  std::vector<Place> places;
  for (uint64_t i = kRanges; i-- > 0;) places.push_back({i * kEach, (i * 37) % (2 * kEach)});
  const std::string bytes = Pattern((kRanges + 2) * kEach);
  for (const Sum kind : {Sum::kCrc32c, Sum::kZipCrc32}) ExpectHostSums(kind, bytes, places);
}

TEST_P(DeviceContract, ALongRangeAmongShortOnes) {
  const std::string bytes = Pattern(96 * kMiB);
  std::vector<Place> places;
  for (uint64_t i = 0; i < 300; ++i) places.push_back({i * 70'001, 1 + i * 997});
  places[7] = {3, 96 * kMiB - 5};
  places[299] = {kMiB + 9, 64 * kMiB + 1};
  ExpectHostSums(Sum::kCrc32c, bytes, places);
}

TEST_P(DeviceContract, ChecksumsThatAreRefused) {
  const DeviceBlock block = OnDevice(kMiB);
  const Range nothing{}, range{block.get(), 100};
  const auto check = [&](const Range& of, DevicePtr sums) {
    return device().Checksum(Sum::kCrc32c, {&of, 1}, sums, stream());
  };
  const Status asked = check(range, block.get() + 256);
  if (absl::IsUnimplemented(asked)) GTEST_SKIP() << asked;
  EXPECT_TRUE(asked.ok()) << asked;
  EXPECT_TRUE(check(nothing, block.get() + 256).ok()) << "an empty range is nowhere";
  EXPECT_TRUE(device().Checksum(Sum::kCrc32c, {}, 0, stream()).ok()) << "no ranges";
  EXPECT_TRUE(absl::IsInvalidArgument(check(range, 4096))) << "no space for the sum";
  if (GetParam().name == "Cuda") return;  // a GPU takes any addresses for ranges
  EXPECT_TRUE(absl::IsInvalidArgument(check({4096, 100}, block.get())));
  EXPECT_TRUE(absl::IsInvalidArgument(check({block.get() + 1, kMiB}, block.get())));
}

// --- other processes

TEST_P(DeviceContract, AForkedChildIsRefusedAndTheParentGoesOn) {
  const std::string sent = Pattern(kMiB);
  const DeviceBlock block = OnDevice(kMiB);
  const pid_t child = ::fork();
  if (child == 0) {
    const Status copied = In(sent.data(), block.get(), 100);
    const Status allocated = device().Allocate(kMiB).status();
    device_.reset();  // neither hangs nor touches what is the parent's
    ::_exit(absl::IsFailedPrecondition(copied) && absl::IsFailedPrecondition(allocated) ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ASSERT_TRUE(In(sent.data(), block.get(), kMiB).ok());
  EXPECT_TRUE(Out(block.get(), kMiB) == sent);
}

// Runs importer.cc in a new process, with the descriptor as its number 3.
int RunImporter(const std::string& kind, int fd) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, fd, 3);
  std::string program =
      std::filesystem::read_symlink("/proc/self/exe").parent_path() / "gpu_importer";
  std::string name = kind, bytes = std::to_string(kSharedBytes);
  char* argv[] = {program.data(), name.data(), bytes.data(), nullptr};
  pid_t pid = 0;
  EXPECT_EQ(::posix_spawn(&pid, argv[0], &actions, nullptr, argv, environ), 0);
  posix_spawn_file_actions_destroy(&actions);
  int status = -1;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);
  return status;
}

TEST_P(DeviceContract, MemoryIsSharedWithAnotherProcess) {
  const auto shared = Own<DeviceBlock>(device_.get(), device().AllocateShared(kSharedBytes));
  ASSERT_TRUE(shared.ok()) << shared.status();
  const std::string sent = Pattern(kSharedBytes);
  ASSERT_TRUE(In(sent.data(), shared->get(), kSharedBytes).ok());
  ASSERT_TRUE(device().Synchronize(stream()).ok());
  const StatusOr<UniqueFd> exported = device().Export(shared->get());
  ASSERT_TRUE(exported.ok()) << exported.status();
  EXPECT_EQ(RunImporter(GetParam().name, exported->get()), 0);
  EXPECT_TRUE(Out(shared->get(), kSharedBytes) == Pattern(kSharedBytes, 2));
}

TEST_P(DeviceContract, NoMoreIsImportedThanWasExported) {
  const auto shared = Own<DeviceBlock>(device_.get(), device().AllocateShared(kSharedBytes));
  ASSERT_TRUE(shared.ok()) << shared.status();
  StatusOr<UniqueFd> exported = device().Export(shared->get());
  ASSERT_TRUE(exported.ok()) << exported.status();
  const auto more = device().Import(*std::move(exported), 4 * kSharedBytes);
  EXPECT_TRUE(absl::IsInvalidArgument(more.status())) << more.status();
}

TEST_P(DeviceContract, OnlySharedMemoryIsExportedAndOnlyItImported) {
  const DeviceBlock block = OnDevice(kMiB);
  EXPECT_TRUE(absl::IsNotFound(device().Export(block.get()).status()));
  UniqueFd other(::open("/dev/null", O_RDWR | O_CLOEXEC));
  const auto imported = device().Import(std::move(other), kMiB);
  EXPECT_TRUE(absl::IsInvalidArgument(imported.status())) << imported.status();
  EXPECT_TRUE(In("x", block.get(), 1).ok()) << "the device goes on";
  EXPECT_EQ(Out(block.get(), 1), "x");
}

}  // namespace
}  // namespace cairn::gpu
