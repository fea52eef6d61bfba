// Pieces of an object against the plainest reading of what they mean: element by element.
#include "client/cpp/strided_pieces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "client/cpp/block_reader.h"
#include "common/checksum.h"
#include "common/keys.h"

namespace cairn::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

std::string RandomBytes(uint64_t length, uint32_t seed) {
  std::mt19937_64 random(seed);
  std::string out(length + 8, '\0');
  for (uint64_t i = 0; i < length; i += 8) {
    const uint64_t word = random();
    std::memcpy(out.data() + i, &word, 8);
  }
  out.resize(length);
  return out;
}

// A piece that owns what its spans point to.
struct Wanted {
  uint64_t offset = 0;
  uint64_t item_bytes = 1;
  std::vector<int64_t> shape;
  std::vector<int64_t> from_strides;
  char* into = nullptr;
  std::vector<int64_t> into_strides;

  operator StridedPiece() const {
    return {offset, item_bytes, shape, from_strides, into, into_strides};
  }
};

// What a piece means.
void CopyPlainly(const Wanted& piece, const std::string& object) {
  const int64_t count = std::accumulate(piece.shape.begin(), piece.shape.end(), int64_t{1},
                                        std::multiplies<int64_t>());
  for (int64_t i = 0; i < count; ++i) {
    int64_t left = i, from = 0, into = 0;
    for (size_t d = piece.shape.size(); d-- > 0;) {
      from += left % piece.shape[d] * piece.from_strides[d];
      into += left % piece.shape[d] * piece.into_strides[d];
      left /= piece.shape[d];
    }
    std::memcpy(piece.into + into, object.data() + piece.offset + from, piece.item_bytes);
  }
}

class Pieces : public ::testing::Test {
 protected:
  void Hold(std::string object) {
    object_ = std::move(object);
    crcs_ = BlockCrcs(object_.data(), object_.size(), kBlockBytes);
    reads_ = std::vector<std::atomic<int>>(BlockCount(object_.size(), kBlockBytes));
  }

  Status Read(const std::vector<Wanted>& wanted) {
    const std::vector<StridedPiece> pieces(wanted.begin(), wanted.end());
    return ReadPiecesOf(
        &threads_, {"the object", object_.size(), &crcs_}, pieces,
        [&](uint64_t at, uint64_t n, char* to) {
          if (at % kBlockBytes == 0) ++reads_[at / kBlockBytes];
          std::memcpy(to, object_.data() + at, n);
          return absl::OkStatus();
        },
        in_memory_ ? memory_ : none_);
  }

  // From here on it is read where it lies in memory.
  void LayInMemory(bool in_slab) {
    auto fd = MakeMemfd("object", kSkip + object_.size(), 0600);
    ASSERT_TRUE(fd.ok()) << fd.status();
    ASSERT_EQ(pwrite(fd->get(), object_.data(), object_.size(), kSkip),
              static_cast<ssize_t>(object_.size()));
    if (in_slab) {
      auto mapping = Mapping::MapSealed(fd->get(), 0, kSkip + object_.size(),
                                        PROT_READ | PROT_WRITE, MAP_SHARED);
      ASSERT_TRUE(mapping.ok()) << mapping.status();
      memory_ = ObjectMemory(
          std::make_shared<MappedSlab>(1, *std::move(mapping), std::make_shared<UnmapBook>()),
          kSkip);
    } else {
      memory_ = ObjectMemory::Map(fd->get(), kSkip, object_.size());
    }
    ASSERT_TRUE(memory_.valid());
    in_memory_ = true;
  }

  std::string Refused(const Wanted& wanted) {
    const Status status = Read({wanted});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  }

  std::vector<int> Reads() const { return std::vector<int>(reads_.begin(), reads_.end()); }

  static constexpr uint64_t kSkip = 100;  // of the slab before the object

  CopyThreads threads_{3};
  bool in_memory_ = false;
  ObjectMemory memory_;
  const ObjectMemory none_;
  std::string object_;
  std::vector<uint32_t> crcs_;
  std::vector<std::atomic<int>> reads_;
};

// --- the same bytes as plainly

// A piece within `length` bytes of shape and strides of any kind, whose destinations in `room` are all apart.
Wanted RandomPiece(std::mt19937_64* random, uint64_t length, std::string* room) {
  const auto below = [&](uint64_t n) { return (*random)() % n; };
  Wanted piece;
  const int64_t items[] = {1, 2, 3, 4, 8, 16, 24};
  piece.item_bytes = items[below(7)];
  const size_t rank = below(5);
  const uint64_t large = rank == 0 ? 1 : uint64_t{1} << (below(14) / rank);
  for (size_t d = 0; d < rank; ++d) piece.shape.push_back(1 + below(3 * large));
  // Both sides as dense arrays with gaps, their dimensions in an order of their own, up or down.
  const auto lay = [&](std::vector<int64_t>* strides, uint64_t* before) {
    std::vector<size_t> order(rank);
    std::iota(order.begin(), order.end(), 0);
    if (below(2) == 0) std::shuffle(order.begin(), order.end(), *random);
    strides->resize(rank);
    int64_t step = static_cast<int64_t>(piece.item_bytes);
    *before = 0;
    for (size_t i = rank; i-- > 0;) {
      const size_t d = order[i];
      if (below(3) == 0) step += static_cast<int64_t>(below(40));
      const bool down = below(6) == 0;
      (*strides)[d] = down ? -step : step;
      if (down) *before += static_cast<uint64_t>(step) * static_cast<uint64_t>(piece.shape[d] - 1);
      step *= piece.shape[d];
    }
    return static_cast<uint64_t>(step);
  };
  uint64_t from_before = 0, into_before = 0;
  uint64_t from = lay(&piece.from_strides, &from_before);
  const uint64_t into = lay(&piece.into_strides, &into_before);
  if (rank > 0 && below(8) == 0) {  // the same element many times
    const size_t d = below(rank);
    const int64_t reach = piece.from_strides[d] * (piece.shape[d] - 1);
    if (reach < 0) from_before += static_cast<uint64_t>(reach);
    piece.from_strides[d] = 0;
  }
  if (from > length) return {0, 1, {0}, {1}, nullptr, {1}};
  room->assign(into + 64, '\0');
  const uint64_t last = length - from;  // where it may begin; half of them near the end of a block
  const uint64_t begin = below(2) == 0 ? below(last + 1) : kBlockBytes - below(from + 1);
  piece.offset = from_before + std::min(last, begin);
  piece.into = room->data() + 32 + into_before;
  return piece;
}

// Where the object is, when it is read.
enum class Where { kElsewhere, kMapped, kInWrittenSlab };

class Anywhere : public Pieces, public ::testing::WithParamInterface<Where> {};

TEST_P(Anywhere, OfAnyShapeAreTheBytesThatPlainCopiesBring) {
  Hold(RandomBytes(2 * kBlockBytes + 12345, 1));
  if (GetParam() != Where::kElsewhere) LayInMemory(GetParam() == Where::kInWrittenSlab);
  std::mt19937_64 random(2);
  for (int round = 0; round < 60; ++round) {
    std::vector<Wanted> wanted;
    std::vector<std::string> rooms(1 + random() % 40);
    for (std::string& room : rooms) {
      wanted.push_back(RandomPiece(&random, object_.size(), &room));
    }
    const Status status = Read(wanted);
    ASSERT_TRUE(status.ok()) << status;
    const std::vector<std::string> got = rooms;
    for (size_t i = 0; i < rooms.size(); ++i) {
      std::fill(rooms[i].begin(), rooms[i].end(), '\0');
      CopyPlainly(wanted[i], object_);
      ASSERT_TRUE(got[i] == rooms[i]) << "round " << round << ", piece " << i;
    }
  }
  if (GetParam() != Where::kElsewhere) {
    EXPECT_THAT(Reads(), ElementsAre(0, 0, 0));
  }
}

// As tensors lie in a file: one behind the other, and what is between them is wanted too.
TEST_P(Anywhere, RunsBehindEachOtherAreWhole) {
  Hold(RandomBytes(3 * kBlockBytes, 11));
  if (GetParam() != Where::kElsewhere) LayInMemory(GetParam() == Where::kInWrittenSlab);
  std::mt19937_64 random(12);
  std::vector<Wanted> wanted;
  std::vector<std::string> rooms(600);
  uint64_t at = 0;
  for (std::string& room : rooms) {
    room.resize(1 + random() % (random() % 2 == 0 ? 100 : 700'000));
    if (at + room.size() > object_.size()) break;
    wanted.push_back({at, room.size(), {}, {}, room.data(), {}});
    at += room.size() + random() % 3 * 50;
  }
  std::shuffle(wanted.begin(), wanted.end(), random);
  const Status status = Read(wanted);
  ASSERT_TRUE(status.ok()) << status;
  for (const Wanted& piece : wanted) {
    ASSERT_EQ(object_.compare(piece.offset, piece.item_bytes, piece.into, piece.item_bytes), 0);
  }
}

// Rows saved one after the other, wanted by two who each want a half of every row.
TEST_P(Anywhere, HalvesOfRowsAreColumns) {
  constexpr int64_t kRows = 1500, kRow = 7001;
  Hold(RandomBytes(kRows * kRow, 3));
  if (GetParam() != Where::kElsewhere) LayInMemory(GetParam() == Where::kInWrittenSlab);
  std::string left(kRows * 3000, '\0'), right(kRows * 4001, '\0');
  ASSERT_TRUE(Read({{0, 1, {kRows, 3000}, {kRow, 1}, left.data(), {3000, 1}},
                    {3000, 1, {kRows, 4001}, {kRow, 1}, right.data(), {4001, 1}}})
                  .ok());
  for (int64_t row = 0; row < kRows; ++row) {
    ASSERT_EQ(left.compare(row * 3000, 3000, object_, row * kRow, 3000), 0) << row;
    ASSERT_EQ(right.compare(row * 4001, 4001, object_, row * kRow + 3000, 4001), 0) << row;
  }
}

// Runs that are not copied aside first, of which several pieces may want the same bytes, up to the object's end.
TEST_P(Anywhere, LongRunsAreWhole) {
  Hold(RandomBytes(2 * kBlockBytes + 54321, 15));
  if (GetParam() != Where::kElsewhere) LayInMemory(GetParam() == Where::kInWrittenSlab);
  std::mt19937_64 random(16);
  const auto below = [&](uint64_t n) { return static_cast<int64_t>(random() % n); };
  for (int round = 0; round < 40; ++round) {
    std::vector<Wanted> wanted;
    std::vector<std::string> rooms(1 + random() % 6);
    for (std::string& room : rooms) {
      const int64_t run = 1024 + below(below(2) == 0 ? 3000 : 30'000);
      const int64_t from = run + (below(3) == 0 ? 0 : below(9000));
      const int64_t into = run + (below(2) == 0 ? 0 : below(200));
      const int64_t count = 1 + below((object_.size() - run) / from);
      const int64_t reach = (count - 1) * from + run;
      const int64_t offset = below(2) == 0 ? below(object_.size() - reach + 1)
                                           : static_cast<int64_t>(object_.size()) - reach;
      room.assign(64 + (count - 1) * into + run, '\0');
      char* const to = room.data() + below(64);
      if (below(4) == 0) {  // the last comes first
        wanted.push_back({static_cast<uint64_t>(offset + (count - 1) * from),
                          1,
                          {count, run},
                          {-from, 1},
                          to,
                          {into, 1}});
      } else {
        wanted.push_back(
            {static_cast<uint64_t>(offset), 1, {count, run}, {from, 1}, to, {into, 1}});
      }
    }
    const Status status = Read(wanted);
    ASSERT_TRUE(status.ok()) << status;
    const std::vector<std::string> got = rooms;
    for (size_t i = 0; i < rooms.size(); ++i) {
      std::fill(rooms[i].begin(), rooms[i].end(), '\0');
      const Wanted& piece = wanted[i];
      for (int64_t row = 0; row < piece.shape[0]; ++row) {
        std::memcpy(piece.into + row * piece.into_strides[0],
                    object_.data() + piece.offset + row * piece.from_strides[0], piece.shape[1]);
      }
      ASSERT_TRUE(got[i] == rooms[i]) << "round " << round << ", piece " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Objects, Anywhere,
                         ::testing::Values(Where::kElsewhere, Where::kMapped,
                                           Where::kInWrittenSlab));

TEST_F(Pieces, ABadBlockInMemoryIsFound) {
  Hold(RandomBytes(2 * kBlockBytes, 13));
  object_[kBlockBytes + 17] ^= 1;
  LayInMemory(false);
  std::string into(kBlockBytes, '\0');
  EXPECT_TRUE(Read({{0, kBlockBytes, {}, {}, into.data(), {}}}).ok());
  for (const Wanted& touching :
       {Wanted{2 * kBlockBytes - 8, 8, {}, {}, into.data(), {}},
        Wanted{kBlockBytes, 1, {50, 50}, {100, 2}, into.data(), {50, 1}},
        Wanted{2 * kBlockBytes - 9000, 1, {3, 2000}, {3000, 1}, into.data(), {2000, 1}}}) {
    const Status status = Read({touching});
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("block 1 of 2"));
  }
}

TEST_F(Pieces, WhatCannotBeHadInMemoryIsReadOtherwise) {
  Hold(RandomBytes(2 * kBlockBytes, 14));
  LayInMemory(true);
  auto nothing =
      Mapping::Map(-1, 0, kSkip + object_.size(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS);
  ASSERT_TRUE(nothing.ok()) << nothing.status();
  memory_ = ObjectMemory(
      std::make_shared<MappedSlab>(1, *std::move(nothing), std::make_shared<UnmapBook>()), kSkip);
  std::string into(object_.size(), '\0');
  ASSERT_TRUE(Read({{0, object_.size(), {}, {}, into.data(), {}}}).ok());
  EXPECT_TRUE(into == object_);
  EXPECT_THAT(Reads(), ElementsAre(1, 1));
}

TEST_F(Pieces, ElementsThatLieInTwoBlocksAreWhole) {
  Hold(RandomBytes(kBlockBytes + 100, 4));
  std::string into(5 * 16, '\0');
  ASSERT_TRUE(Read({{kBlockBytes - 35, 16, {5}, {17}, into.data(), {16}}}).ok());
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(into.compare(i * 16, 16, object_, kBlockBytes - 35 + i * 17, 16), 0) << i;
  }
}

TEST_F(Pieces, OfNothingReadNothing) {
  Hold(RandomBytes(kBlockBytes + 100, 5));
  EXPECT_TRUE(Read({}).ok());
  EXPECT_TRUE(Read({{kBlockBytes + 100, 4, {3, 0}, {kMax, kMax}, nullptr, {kMax, kMax}}}).ok());
  EXPECT_THAT(Reads(), ElementsAre(0, 0));
  Hold("");
  EXPECT_TRUE(Read({}).ok());
  EXPECT_TRUE(Read({{0, 4, {0}, {4}, nullptr, {4}}}).ok());
}

// --- what is read and verified

TEST_F(Pieces, ABlockIsReadOnceHoweverManyWantIt) {
  Hold(RandomBytes(3 * kBlockBytes, 6));
  std::string into(10'000 * 64, '\0');
  std::vector<Wanted> wanted;
  for (int i = 0; i < 10'000; ++i) {
    wanted.push_back({(i * 1237 + kBlockBytes) % (2 * kBlockBytes), 64, {}, {}, &into[i * 64], {}});
  }
  ASSERT_TRUE(Read(wanted).ok());
  EXPECT_THAT(Reads(), ElementsAre(1, 1, 0));
}

TEST_F(Pieces, BlocksBetweenTheElementsAreNotRead) {
  Hold(RandomBytes(5 * kBlockBytes, 7));
  std::string into(3 * 10, '\0');
  ASSERT_TRUE(Read({{5, 10, {3}, {2 * kBlockBytes}, into.data(), {10}}}).ok());
  EXPECT_THAT(Reads(), ElementsAre(1, 0, 1, 0, 1));
}

TEST_F(Pieces, ABadBlockCountsWhereSomethingOfItIsWanted) {
  Hold(RandomBytes(3 * kBlockBytes, 8));
  object_[kBlockBytes + 17] ^= 1;
  std::string into(kBlockBytes, '\0');
  EXPECT_TRUE(Read({{0, 1, {kBlockBytes}, {1}, into.data(), {1}},
                    {2 * kBlockBytes, 1, {kBlockBytes}, {1}, into.data(), {1}}})
                  .ok());
  for (const Wanted& touching : {Wanted{kBlockBytes, 1, {1}, {1}, into.data(), {1}},
                                 Wanted{kBlockBytes - 1, 4, {}, {}, into.data(), {}},
                                 Wanted{2 * kBlockBytes - 8, 8, {}, {}, into.data(), {}}}) {
    const Status status = Read({{0, 8, {}, {}, into.data() + 100, {}}, touching});
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("block 1 of 3"));
  }
}

// --- what does not fit

TEST_F(Pieces, WhatLeavesTheObjectIsRefusedByPieceAndField) {
  Hold(RandomBytes(1000, 9));
  char into[64];
  const auto refused = [&](uint64_t offset, uint64_t item, std::vector<int64_t> shape,
                           std::vector<int64_t> from) {
    return Refused({offset, item, shape, from, into, std::vector<int64_t>(shape.size(), 0)});
  };
  EXPECT_THAT(refused(1001, 1, {}, {}), HasSubstr("piece 0: offset: 1001 of 1000 bytes"));
  EXPECT_THAT(refused(~uint64_t{0}, 1, {}, {}), HasSubstr("offset"));
  EXPECT_THAT(refused(0, 0, {}, {}), HasSubstr("item_bytes: is 0"));
  EXPECT_THAT(refused(997, 4, {}, {}), HasSubstr("item_bytes"));
  EXPECT_THAT(refused(1000, 1, {}, {}), HasSubstr("item_bytes"));
  EXPECT_THAT(refused(0, ~uint64_t{0}, {}, {}), HasSubstr("item_bytes"));
  EXPECT_THAT(refused(0, 4, {251}, {4}), HasSubstr("item_bytes"));
  EXPECT_THAT(refused(0, 4, {252}, {4}), HasSubstr("from_strides"));
  EXPECT_THAT(refused(1, 4, {2, 2}, {500, 500}), HasSubstr("from_strides"));
  EXPECT_THAT(refused(3, 4, {2}, {-4}), HasSubstr("from_strides"));
  EXPECT_THAT(refused(600, 4, {2, 2}, {-400, -400}), HasSubstr("dimensions up to 1"));
  EXPECT_THAT(refused(0, 4, {kMax}, {kMax}), HasSubstr("from_strides"));
  EXPECT_THAT(refused(0, 4, {2}, {-kMax - 1}), HasSubstr("from_strides"));
  EXPECT_THAT(refused(0, 1, {kMax, kMax}, {1, 1}), HasSubstr("from_strides"));
  EXPECT_THAT(refused(0, 1, {-1}, {1}), HasSubstr("shape: -1 in dimension 0"));
  EXPECT_THAT(refused(0, 1, {1}, {}), HasSubstr("from_strides: 0 for 1 dimensions"));
  EXPECT_THAT(Refused({0, 1, {1}, {1}, into, {}}), HasSubstr("into_strides: 0 for 1"));
  EXPECT_THAT(Refused({0, 1, {1}, {1}, nullptr, {1}}), HasSubstr("into: no address"));
  EXPECT_THAT(Refused({0, 1, {3}, {1}, into, {kMax}}), HasSubstr("into_strides"));
  EXPECT_THAT(Refused({0, 1, {2, 2, 2}, {1, 1, 1}, into, {kMax, kMax, kMax}}),
              HasSubstr("into_strides"));
  EXPECT_THAT(Refused({0, 1, {2}, {1}, into, {kMax}}), HasSubstr("into_strides"));
  EXPECT_THAT(Reads(), ElementsAre(0));
}

TEST_F(Pieces, OfSeveralTheOneThatDoesNotFitIsNamedAndNothingIsCopied) {
  Hold(RandomBytes(1000, 10));
  std::string into(20, '\0');
  const Status status =
      Read({{0, 10, {}, {}, into.data(), {}}, {995, 10, {}, {}, into.data() + 10, {}}});
  EXPECT_THAT(std::string(status.message()), HasSubstr("piece 1: item_bytes"));
  EXPECT_EQ(into, std::string(20, '\0'));
}

}  // namespace
}  // namespace cairn::client
