// One file: layouts are checked by what the engine makes of them, with one set of made-up archives.
#include "client/cpp/copy_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "client/cpp/device_reader.h"
#include "common/checksum.h"
#include "common/copy.h"

namespace cairn::client {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

std::string RandomBytes(uint64_t length, uint32_t seed) {
  std::mt19937_64 random(seed);
  std::string out(length, '\0');
  for (uint64_t i = 0; i < length; i += 8) {
    const uint64_t word = random();
    std::memcpy(out.data() + i, &word, std::min<uint64_t>(8, length - i));
  }
  return out;
}

// A destination that shows every byte written beside the object.
class Room {
 public:
  explicit Room(uint64_t length) : bytes_(length + 2 * kGuard, kUntouched), length_(length) {}
  char* data() { return bytes_.data() + kGuard; }
  std::string contents() const { return bytes_.substr(kGuard, length_); }
  bool only_inside() const {
    return bytes_.substr(0, kGuard) == std::string(kGuard, kUntouched) &&
           bytes_.substr(kGuard + length_) == std::string(kGuard, kUntouched);
  }

 private:
  static constexpr uint64_t kGuard = 4096;
  static constexpr char kUntouched = '\x5a';
  std::string bytes_;
  uint64_t length_;
};

struct Copied {
  std::string bytes;
  Written written;
  bool only_inside = false;
};

Copied Copy(const ObjectLayout& layout, int threads = 2, ProgressPage* progress = nullptr) {
  CopyThreads copy_threads(threads);
  Room room(layout.length());
  const CopyTask task = {&layout, room.data(), false};
  std::vector<Written> written;
  const Status status =
      CopyObjects(&copy_threads, absl::MakeConstSpan(&task, 1), progress, &written);
  EXPECT_TRUE(status.ok()) << status;
  return {room.contents(), written.at(0), room.only_inside()};
}

std::vector<Source> Cut(const std::string& bytes, const std::vector<uint64_t>& lengths) {
  std::vector<Source> out;
  uint64_t at = 0;
  for (uint64_t length : lengths) {
    out.push_back({bytes.data() + at, length});
    at += length;
  }
  if (at < bytes.size()) out.push_back({bytes.data() + at, bytes.size() - at});
  return out;
}

class RawSizes : public ::testing::TestWithParam<uint64_t> {};

TEST_P(RawSizes, AreCopiedWithTheBlockChecksumsOfTheSource) {
  const std::string bytes = RandomBytes(GetParam(), 1);
  const ObjectLayout layout = ObjectLayout::Raw(Cut(bytes, {}));
  for (int threads : {1, 2, 3}) {
    const Copied copied = Copy(layout, threads);
    EXPECT_EQ(copied.bytes, bytes);
    EXPECT_TRUE(copied.only_inside);
    EXPECT_EQ(copied.written.block_crcs, BlockCrcs(bytes.data(), bytes.size(), kBlockBytes));
    EXPECT_THAT(copied.written.covered, ElementsAre(Pair(0, bytes.size())));
  }
}

TEST_P(RawSizes, HaveTheSameChecksumsInTheirPlace) {
  const std::string bytes = RandomBytes(GetParam(), 1), other = RandomBytes(kBlockBytes + 1, 2);
  for (int threads : {1, 2, 3}) {
    CopyThreads copy_threads(threads);
    ProgressPage progress = {};
    std::vector<Written> written;
    ChecksumObjects(&copy_threads,
                    {{bytes.data(), bytes.size()}, {nullptr, 0}, {other.data(), other.size()}},
                    &progress, &written);
    ASSERT_EQ(written.size(), 3u);
    EXPECT_EQ(written[0].block_crcs, BlockCrcs(bytes.data(), bytes.size(), kBlockBytes));
    EXPECT_THAT(written[0].covered, ElementsAre(Pair(0, bytes.size())));
    EXPECT_THAT(written[1].block_crcs, IsEmpty());
    EXPECT_THAT(written[1].covered, IsEmpty());
    EXPECT_EQ(written[2].block_crcs, BlockCrcs(other.data(), other.size(), kBlockBytes));
    EXPECT_EQ(progress.bytes_done, bytes.size() + other.size());
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, RawSizes,
                         ::testing::Values(1, 2, 63, 64, 65, 4095, 4097, 65536, 65537, 1000003,
                                           kBlockBytes - 1, kBlockBytes, kBlockBytes + 1,
                                           3 * kBlockBytes, 3 * kBlockBytes + 12345));

TEST(CopyEngine, AnEmptyObjectHasNoBlocksAndCoversNothing) {
  const ObjectLayout layout = ObjectLayout::Raw({});
  const Copied copied = Copy(layout);
  EXPECT_THAT(copied.written.block_crcs, IsEmpty());
  EXPECT_THAT(copied.written.covered, IsEmpty());
}

TEST(CopyEngine, ManySourcesOfOddLengthsJoinAcrossBlockBorders) {
  const std::string bytes = RandomBytes(2 * kBlockBytes + 777, 2);
  std::vector<uint64_t> lengths;
  for (uint64_t at = 0, n = 1; at + n < bytes.size(); at += n, n = n * 3 % 65521)
    lengths.push_back(n);
  lengths.insert(lengths.begin() + 5, 0);  // sources of no bytes are nothing
  const Copied copied = Copy(ObjectLayout::Raw(Cut(bytes, lengths)));
  EXPECT_EQ(copied.bytes, bytes);
  EXPECT_EQ(copied.written.block_crcs, BlockCrcs(bytes.data(), bytes.size(), kBlockBytes));
  EXPECT_THAT(copied.written.covered, ElementsAre(Pair(0, bytes.size())));
}

TEST(CopyEngine, ManyObjectsAreCopiedInOneGo) {
  std::vector<std::string> contents;
  std::vector<ObjectLayout> layouts;
  for (uint32_t i = 0; i < 200; ++i) contents.push_back(RandomBytes(i * 37 % 5000, i));
  for (const std::string& bytes : contents) layouts.push_back(ObjectLayout::Raw(Cut(bytes, {})));
  std::vector<std::unique_ptr<Room>> rooms;
  std::vector<CopyTask> tasks;
  for (const ObjectLayout& layout : layouts) {
    rooms.push_back(std::make_unique<Room>(layout.length()));
    tasks.push_back({&layout, rooms.back()->data(), false});
  }
  CopyThreads threads(2);
  std::vector<Written> written;
  ASSERT_TRUE(CopyObjects(&threads, tasks, nullptr, &written).ok());
  for (size_t i = 0; i < contents.size(); ++i) {
    EXPECT_EQ(rooms[i]->contents(), contents[i]);
    EXPECT_TRUE(rooms[i]->only_inside());
    EXPECT_EQ(written[i].block_crcs,
              BlockCrcs(contents[i].data(), contents[i].size(), kBlockBytes));
  }
}

TEST(CopyEngine, ProgressCountsEveryByteOnce) {
  const std::string bytes = RandomBytes(2 * kBlockBytes + 5, 3);
  ProgressPage page;
  Copy(ObjectLayout::Raw(Cut(bytes, {})), 2, &page);
  EXPECT_EQ(page.bytes_done, bytes.size());
}

// --- zip

struct Archive {
  std::vector<std::string> contents;
  ZipPlan plan;
  std::vector<Source> sources;

  ObjectLayout Layout(uint64_t longer = 0) const {
    auto layout = ObjectLayout::Zip(&plan, sources, plan.MinimumLength() + longer);
    EXPECT_TRUE(layout.ok()) << layout.status();
    return *std::move(layout);
  }

  // The archive put together without the engine.
  std::string Expected(uint64_t length) const {
    std::string out;
    std::vector<uint32_t> crcs;
    for (size_t i = 0; i < contents.size(); ++i) {
      crcs.push_back(ZipCrc32(0, contents[i].data(), contents[i].size()));
      out += plan.LocalHeader(i, crcs.back());
      out += contents[i];
    }
    out += *plan.Tail(crcs, length);
    return out;
  }
};

std::unique_ptr<Archive> MakeArchive(const std::vector<uint64_t>& lengths) {
  auto archive = std::make_unique<Archive>();
  std::vector<ZipRecord> records;
  for (size_t i = 0; i < lengths.size(); ++i) {
    archive->contents.push_back(RandomBytes(lengths[i], static_cast<uint32_t>(i) + 10));
    records.push_back({absl::StrCat("archive/data/", i), lengths[i]});
  }
  auto plan = ZipPlan::Make(std::move(records));
  EXPECT_TRUE(plan.ok()) << plan.status();
  archive->plan = *std::move(plan);
  for (const std::string& bytes : archive->contents) {
    archive->sources.push_back({bytes.data(), bytes.size()});
  }
  return archive;
}

void ExpectRight(const Archive& archive, uint64_t longer) {
  const ObjectLayout layout = archive.Layout(longer);
  const Copied copied = Copy(layout);
  EXPECT_TRUE(copied.bytes == archive.Expected(layout.length()));  // megabytes: no diff wanted
  EXPECT_TRUE(copied.only_inside);
  EXPECT_EQ(copied.written.block_crcs,
            BlockCrcs(copied.bytes.data(), copied.bytes.size(), kBlockBytes));
  EXPECT_THAT(copied.written.covered, ElementsAre(Pair(0, layout.length())));
}

TEST(CopyEngine, AZipOfSmallRecordsEqualsOneBuiltPieceByPiece) {
  ExpectRight(*MakeArchive({1, 0, 17, 100000, 3, 64, 4096}), 0);
}

TEST(CopyEngine, AZipOfRecordsThatSpanBlocksEqualsOneBuiltPieceByPiece) {
  ExpectRight(*MakeArchive({kBlockBytes * 2 + 13, 5, kBlockBytes - 100, 0, 777777, 200000}), 0);
}

TEST(CopyEngine, AZipWhoseHeaderStandsOnABlockBorderIsRight) {
  // Each length lets a header begin a few bytes further before the border.
  for (uint64_t before = 40; before <= 200; before += 32) {
    ExpectRight(*MakeArchive({kBlockBytes - 64 - before, 300, 70000}), 0);
  }
}

TEST(CopyEngine, AZipIsPaddedToTheLengthItIsGiven) {
  const auto archive = MakeArchive({100, kBlockBytes, 9});
  ExpectRight(*archive, 1);
  ExpectRight(*archive, 12345);
  ExpectRight(*archive, kZipMaxGap);
  EXPECT_EQ(ObjectLayout::Zip(&archive->plan, archive->sources,
                              archive->plan.MinimumLength() + kZipMaxGap + 1)
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
}

// What lies at each place is the piece, whatever is around it.
TEST(CopyEngine, PiecesOfOneObjectAreWholeArchivesAndRawBytes) {
  const std::vector<std::vector<uint64_t>> archives = {
      {500, 1}, {kBlockBytes + 77, 3, 200000}, {}, {0}, {kBlockBytes - 4000, 13}};
  const std::string raw = RandomBytes(1001, 7);
  std::vector<std::unique_ptr<Archive>> made;
  const std::vector<Source> one = {{raw.data(), 1000}, {raw.data() + 1000, 1}, {nullptr, 0}};
  std::vector<Piece> pieces;
  for (const auto& lengths : archives) {
    made.push_back(MakeArchive(lengths));
    pieces.push_back({&made.back()->plan, made.back()->sources});
    pieces.push_back({nullptr, one});
  }
  pieces.push_back({nullptr, {}});
  std::vector<PiecePlace> places;
  const auto layout = ObjectLayout::Pieces(pieces, &places);
  ASSERT_TRUE(layout.ok()) << layout.status();
  const Copied copied = Copy(*layout);
  EXPECT_EQ(copied.written.block_crcs,
            BlockCrcs(copied.bytes.data(), copied.bytes.size(), kBlockBytes));
  EXPECT_THAT(copied.written.covered, ElementsAre(Pair(0, layout->length())));
  ASSERT_EQ(places.size(), pieces.size());
  uint64_t end = 0;
  for (size_t i = 0; i < places.size(); ++i) {
    EXPECT_EQ(places[i].offset, (end + kZipAlignment - 1) / kZipAlignment * kZipAlignment);
    end = places[i].offset + places[i].length;
    const auto piece = absl::string_view(copied.bytes).substr(places[i].offset, places[i].length);
    if (pieces[i].plan == nullptr) {
      EXPECT_TRUE(piece == (pieces[i].sources.empty() ? "" : raw)) << i;
    } else {
      EXPECT_TRUE(piece == made[i / 2]->Expected(places[i].length)) << i;
      EXPECT_LT(places[i].length - pieces[i].plan->MinimumLength(), kZipAlignment);
    }
  }
  EXPECT_EQ(end, layout->length());
}

// Wherever its ends lie in the blocks.
TEST(CopyEngine, AnArchiveFromAFrameIsTheOneThatItsPlanMakes) {
  const std::vector<uint64_t> open = {0,     1,     4096,   131072,           131073,
                                      32768, 32768, 200000, kBlockBytes + 77, 64};
  std::vector<std::unique_ptr<Archive>> made;
  std::vector<ZipFrame> frames;
  std::vector<Piece> by_plan, by_frame;
  frames.reserve(30 * open.size());
  for (size_t i = 0; i < 30 * open.size(); ++i) {
    made.push_back(MakeArchive({500, 1, open[i * 7 % open.size()], 13}));
    const Archive& archive = *made.back();
    std::vector<absl::string_view> contents;
    for (const Source& source : archive.sources) {
      contents.emplace_back(static_cast<const char*>(source.data), source.length);
    }
    contents[2] = "";
    auto frame = ZipFrame::Make(archive.plan, contents, 2);
    ASSERT_TRUE(frame.ok()) << frame.status();
    frames.push_back(*std::move(frame));
    by_plan.push_back({&archive.plan, archive.sources});
    by_frame.push_back({nullptr, absl::MakeConstSpan(archive.sources).subspan(2, 1), &frames[i]});
  }
  std::vector<PiecePlace> places, expected_places;
  const auto expected = ObjectLayout::Pieces(by_plan, &expected_places);
  const auto layout = ObjectLayout::Pieces(by_frame, &places);
  ASSERT_TRUE(layout.ok() && expected.ok()) << layout.status();
  for (int threads : {1, 3}) {
    const Copied copied = Copy(*layout, threads);
    EXPECT_TRUE(copied.bytes == Copy(*expected).bytes);
    EXPECT_TRUE(copied.only_inside);
    EXPECT_EQ(copied.written.block_crcs,
              BlockCrcs(copied.bytes.data(), copied.bytes.size(), kBlockBytes));
    EXPECT_THAT(copied.written.covered, ElementsAre(Pair(0, layout->length())));
  }
  for (size_t i = 0; i < places.size(); ++i) {
    EXPECT_EQ(places[i].offset, expected_places[i].offset);
    EXPECT_EQ(places[i].length, expected_places[i].length);
  }
}

TEST(CopyEngine, AFrameIsOpenForOneSourceOfItsLength) {
  const auto archive = MakeArchive({5, 6});
  const absl::string_view five(static_cast<const char*>(archive->sources[0].data), 5);
  const auto frame = ZipFrame::Make(archive->plan, {five, ""}, 1);
  ASSERT_TRUE(frame.ok()) << frame.status();
  std::vector<PiecePlace> places;
  const std::vector<Piece> pieces = {
      {nullptr, {}}, {nullptr, absl::MakeConstSpan(archive->sources).subspan(0, 1), &*frame}};
  EXPECT_EQ(ObjectLayout::Pieces(pieces, &places).status().message(),
            "pieces[1]: sources: 1 of 5 bytes, the frame is open for one of 6");
  EXPECT_EQ(ZipFrame::Make(archive->plan, {five, ""}, 0).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ZipFrame::Make(archive->plan, {five}, 1).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(CopyEngine, OfAPieceThatDoesNotFitItsPlanTheNumberIsSaid) {
  const auto archive = MakeArchive({5, 6});
  const std::vector<Piece> pieces = {
      {nullptr, {}}, {&archive->plan, absl::MakeConstSpan(archive->sources).subspan(0, 1)}};
  std::vector<PiecePlace> places;
  EXPECT_THAT(std::string(ObjectLayout::Pieces(pieces, &places).status().message()),
              ::testing::HasSubstr("pieces[1]: records: 1, the plan has 2"));
}

TEST(CopyEngine, AnArchiveWithoutRecordsIsAnArchive) { ExpectRight(*MakeArchive({}), 0); }

TEST(CopyEngine, ThousandsOfRecordsAreRight) {
  std::vector<uint64_t> lengths;
  for (uint64_t i = 0; i < 3000; ++i) lengths.push_back(i * 131 % 4001);
  ExpectRight(*MakeArchive(lengths), 4000);
}

// --- what lies on a device

// Its addresses are no addresses of this process: what touches them without it ends the test.
class Elsewhere : public DeviceReader {
 public:
  Source There(const Source& source) {
    Source there = source;
    there.data = reinterpret_cast<const void*>(reinterpret_cast<uint64_t>(source.data) ^ kAway);
    there.device = this;
    return there;
  }
  Status Read(absl::Span<Piece> pieces) override {
    ++reads;
    if (!answer.ok()) return answer;
    for (Piece& piece : pieces) {
      EXPECT_LE(piece.bytes, kBlockBytes);
      const auto* from = reinterpret_cast<const char*>(piece.from ^ kAway);
      std::memcpy(piece.into, from, piece.bytes);
      piece.crc32c = Crc32c(0, from, piece.bytes);
      if (piece.wants_zip_crc) piece.zip_crc = ZipCrc32(0, from, piece.bytes);
    }
    return absl::OkStatus();
  }
  std::atomic<int> reads{0};
  Status answer;

 private:
  static constexpr uint64_t kAway = uint64_t{0xabc} << 48;  // above what a process can have
};

// Which of n sources lie on the device.
const std::vector<std::function<bool(size_t)>> kWhich = {
    [](size_t) { return true; }, [](size_t i) { return i % 2 == 0; },
    [](size_t i) { return i % 3 == 1; }, [](size_t i) { return i == 0; }};

TEST(DeviceSources, JoinWithTheHostsAcrossBlockBorders) {
  const std::string bytes = RandomBytes(2 * kBlockBytes + 777, 2);
  std::vector<uint64_t> lengths;
  for (uint64_t at = 0, n = 1; at + n < bytes.size(); at += n, n = n * 3 % 65521)
    lengths.push_back(n);
  for (const auto& which : kWhich) {
    Elsewhere device;
    std::vector<Source> sources = Cut(bytes, lengths);
    for (size_t i = 0; i < sources.size(); ++i) {
      if (which(i)) sources[i] = device.There(sources[i]);
    }
    for (const int threads : {1, 3}) {
      ProgressPage page;
      const Copied copied = Copy(ObjectLayout::Raw(sources), threads, &page);
      EXPECT_TRUE(copied.bytes == bytes);
      EXPECT_TRUE(copied.only_inside);
      EXPECT_EQ(copied.written.block_crcs, BlockCrcs(bytes.data(), bytes.size(), kBlockBytes));
      EXPECT_THAT(copied.written.covered, ElementsAre(Pair(0, bytes.size())));
      EXPECT_EQ(page.bytes_done, bytes.size());
    }
    EXPECT_EQ(device.reads, 2) << "all of it at once";
  }
}

TEST(DeviceSources, AreRecordsOfAZip) {
  for (const std::vector<uint64_t>& lengths :
       {std::vector<uint64_t>{1, 0, 17, 100000, 3, 64, 4096},
        std::vector<uint64_t>{kBlockBytes * 2 + 13, 5, kBlockBytes - 100, 0, 777777, 200000}}) {
    for (const auto& which : kWhich) {
      Elsewhere device;
      const auto archive = MakeArchive(lengths);
      for (size_t i = 0; i < lengths.size(); ++i) {
        if (which(i)) archive->sources[i] = device.There(archive->sources[i]);
      }
      ExpectRight(*archive, 12345);
    }
  }
}

TEST(DeviceSources, OfManyObjectsAndDevicesAreReadOncePerDevice) {
  const std::string bytes = RandomBytes(40000, 3);
  Elsewhere first, second;
  std::vector<ObjectLayout> layouts;
  for (size_t i = 0; i < 100; ++i) {
    layouts.push_back(ObjectLayout::Raw(
        {first.There({bytes.data() + i, 100}), second.There({bytes.data() + 200 * i, 200})}));
  }
  std::vector<std::unique_ptr<Room>> rooms;
  std::vector<CopyTask> tasks;
  for (const ObjectLayout& layout : layouts) {
    rooms.push_back(std::make_unique<Room>(layout.length()));
    tasks.push_back({&layout, rooms.back()->data(), false});
  }
  CopyThreads threads(2);
  std::vector<Written> written;
  ASSERT_TRUE(CopyObjects(&threads, tasks, nullptr, &written).ok());
  for (size_t i = 0; i < layouts.size(); ++i) {
    EXPECT_EQ(rooms[i]->contents(), bytes.substr(i, 100) + bytes.substr(200 * i, 200));
  }
  EXPECT_EQ(first.reads, 1);
  EXPECT_EQ(second.reads, 1);
}

TEST(DeviceSources, WhatTheDeviceSaysIsWhatTheCopySays) {
  const std::string bytes = RandomBytes(kBlockBytes, 4);
  Elsewhere device;
  device.answer = absl::InternalError("the device failed");
  const ObjectLayout layout = ObjectLayout::Raw({device.There({bytes.data(), bytes.size()})});
  Room room(layout.length());
  const CopyTask task = {&layout, room.data(), false};
  CopyThreads threads(2);
  std::vector<Written> written;
  EXPECT_EQ(CopyObjects(&threads, absl::MakeConstSpan(&task, 1), nullptr, &written), device.answer);
  Written sent;
  EXPECT_EQ(
      SendObject(
          layout, nullptr, [](uint64_t, absl::string_view) { return absl::OkStatus(); }, &sent),
      device.answer);
}

TEST(DeviceSources, AreSentInChunks) {
  const auto archive = MakeArchive({kBlockBytes + 5, 3, 70000});
  Elsewhere device;
  archive->sources[0] = device.There(archive->sources[0]);
  archive->sources[2] = device.There(archive->sources[2]);
  const ObjectLayout layout = archive->Layout();
  std::string sent;
  Written written;
  const Status status = SendObject(
      layout, nullptr,
      [&](uint64_t offset, absl::string_view bytes) {
        EXPECT_EQ(offset, sent.size());
        sent += std::string(bytes);
        return absl::OkStatus();
      },
      &written);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_TRUE(sent == archive->Expected(layout.length()));
  EXPECT_EQ(written.block_crcs, BlockCrcs(sent.data(), sent.size(), kBlockBytes));
}

TEST(CopyEngine, RecordsOfAnotherLengthThanPlannedAreRefused) {
  const auto archive = MakeArchive({100, 200});
  auto sources = archive->sources;
  sources[1].length = 199;
  EXPECT_EQ(
      ObjectLayout::Zip(&archive->plan, sources, archive->plan.MinimumLength()).status().code(),
      absl::StatusCode::kInvalidArgument);
  sources.pop_back();
  EXPECT_EQ(
      ObjectLayout::Zip(&archive->plan, sources, archive->plan.MinimumLength()).status().code(),
      absl::StatusCode::kInvalidArgument);
}

TEST(CopyEngine, PythonsZipfileOpensWhatWasCopied) {
  const auto archive = MakeArchive({kBlockBytes + 1, 0, 5, 150000});
  const Copied copied = Copy(archive->Layout(99999));
  const std::string path = ::testing::TempDir() + "/copied-" + std::to_string(getpid()) + ".zip";
  std::ofstream(path, std::ios::binary) << copied.bytes;
  const std::string command =
      "python3 -c 'import sys, zipfile; z = zipfile.ZipFile(sys.argv[1]); "
      "sys.exit(z.testzip() is not None or len(z.namelist()) != 4)' '" +
      path + "'";
  const int code = std::system(command.c_str());
  EXPECT_EQ(code, 0);
  unlink(path.c_str());
}

// --- chunks

struct Sent {
  std::string bytes;
  Written written;
};

Sent Send(const ObjectLayout& layout) {
  Sent out;
  const Status status = SendObject(
      layout, nullptr,
      [&](uint64_t offset, absl::string_view bytes) {
        EXPECT_EQ(offset, out.bytes.size());
        EXPECT_LE(bytes.size(), kBlockBytes);
        out.bytes.append(bytes.data(), bytes.size());
        return absl::OkStatus();
      },
      &out.written);
  EXPECT_TRUE(status.ok()) << status;
  return out;
}

TEST(CopyEngine, ChunksCarryTheSameBytesAndChecksumsAsACopy) {
  const auto archive = MakeArchive({kBlockBytes + 1, 0, 5, 150000});
  const ObjectLayout zip = archive->Layout(5000);
  const std::string bytes = RandomBytes(2 * kBlockBytes + 1, 4);
  const ObjectLayout raw = ObjectLayout::Raw(Cut(bytes, {1, 70000}));
  const ObjectLayout empty = ObjectLayout::Raw({});
  for (const ObjectLayout* layout : {&zip, &raw, &empty}) {
    const Copied copied = Copy(*layout);
    const Sent sent = Send(*layout);
    EXPECT_TRUE(sent.bytes == copied.bytes);
    EXPECT_EQ(sent.written.block_crcs, copied.written.block_crcs);
    EXPECT_EQ(sent.written.covered, copied.written.covered);
  }
}

TEST(CopyEngine, AFailedChunkEndsTheSending) {
  const std::string bytes = RandomBytes(3 * kBlockBytes, 5);
  int calls = 0;
  Written written;
  const Status status = SendObject(
      ObjectLayout::Raw(Cut(bytes, {})), nullptr,
      [&](uint64_t, absl::string_view) {
        return ++calls == 2 ? absl::UnavailableError("gone") : absl::OkStatus();
      },
      &written);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(calls, 2);
}

// --- threads

TEST(CopyThreads, RunsEachPieceOnceForEveryCaller) {
  CopyThreads threads(3);
  constexpr size_t kCallers = 4, kPieces = 500;
  std::vector<std::vector<std::atomic<int>>> ran(kCallers);
  for (auto& pieces : ran) pieces = std::vector<std::atomic<int>>(kPieces);
  std::vector<std::thread> callers;
  for (size_t c = 0; c < kCallers; ++c) {
    callers.emplace_back([&, c] { threads.Run(kPieces, [&, c](size_t i) { ++ran[c][i]; }); });
  }
  for (std::thread& caller : callers) caller.join();
  for (const auto& pieces : ran) {
    for (const auto& count : pieces) EXPECT_EQ(count.load(), 1);
  }
}

}  // namespace
}  // namespace cairn::client
