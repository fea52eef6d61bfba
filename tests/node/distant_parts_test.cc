// Objects that are read where they lie, because this node has no room for them.
#include "server/node/distant_parts.h"

#include <thread>

#include "gtest/gtest.h"
#include "tests/node/members.h"

namespace cairn::node {
namespace {

using engine::reply::PartElsewhere;
using testing::Owner;
using testing::Part;
using transport::TransportCall;
using FaultKind = testing::FaultKind;

PartElsewhere Lies(const Part& part, std::vector<engine::Rank> where) {
  return {part.key, part.digest(), /*uid=*/0, std::move(where)};
}

MonotonicNanos Soon() { return RealClock()->Now() + 20 * kNanosPerSecond; }

struct Distance {
  Distance() : faults(std::make_shared<transport::TransportFaults>()), memory(9, faults) {
    links.Set(&neighbours);
    parts =
        std::make_unique<DistantParts>(MoverOptions(), &links, memory.transport.get(), RealClock());
  }
  ~Distance() {
    faults->Clear();
    parts->Stop();
    links.Set(nullptr);
  }
  DistantParts::Object Open(const Part& part, std::vector<engine::Rank> where, size_t object = 0) {
    auto opened =
        parts->Open({Lies(part, std::move(where))}, part.manifest.objects[object].name, Soon());
    EXPECT_TRUE(opened.ok()) << opened.status();
    return *std::move(opened);
  }

  std::shared_ptr<transport::TransportFaults> faults;
  testing::Memory memory;
  testing::Neighbours neighbours;
  Links links;
  std::unique_ptr<DistantParts> parts;
};

StatusOr<std::string> Read(const DistantParts::Object& object, uint64_t offset, uint64_t length) {
  std::string bytes(length, '\0');
  CAIRN_RETURN_IF_ERROR(object.reader->ReadAt(offset, absl::MakeSpan(bytes)));
  return bytes;
}

void ExpectAll(const DistantParts::Object& object, const std::string& bytes) {
  const auto read = Read(object, 0, bytes.size());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(*read == bytes) << "promise 2";
}

TEST(DistantParts, AnObjectIsReadAsItWas) {
  const Part part({100, 3 * size_t{kBlockBytes} + 17, 0});
  Owner owner(1, part);
  Distance d;
  d.neighbours.owners = {{1, &owner}};
  const auto object = d.Open(part, {1}, 1);
  EXPECT_EQ(object.found.part, part.key);
  EXPECT_EQ(object.reader->length(), part.objects[1].size());
  ExpectAll(object, part.objects[1]);
  for (const auto& [offset, length] : std::vector<std::pair<uint64_t, uint64_t>>{
           {1, 10}, {kBlockBytes - 3, 7}, {2 * kBlockBytes, kBlockBytes + 17}, {5, 0}}) {
    const auto read = Read(object, offset, length);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_TRUE(*read == part.objects[1].substr(offset, length)) << offset;
  }
  ExpectAll(d.Open(part, {1}, 2), "");
  EXPECT_TRUE(absl::IsOutOfRange(Read(object, part.objects[1].size(), 1).status()));
}

TEST(DistantParts, WhatThePartConsistsOfIsTold) {
  const Part part({100, 200});
  Owner owner(2, part);
  Distance d;
  d.neighbours.owners = {{2, &owner}};
  const auto table = d.parts->Table(Lies(part, {1, 2}), Soon());  // rank 1 has it no more
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_EQ((*table)->entries.size(), 2u);
  EXPECT_TRUE(absl::IsNotFound(d.parts->Open({Lies(part, {2})}, "another", Soon()).status()));
  const auto found = d.parts->Find({Lies(part, {2})}, part.manifest.objects[1].name, Soon());
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->entry->length, 200u);
  EXPECT_EQ(owner.granted, 1u) << "a loader opens one object after the other";
  const Part other({300}, "other");
  const Status nobody = d.parts->Table(Lies(other, {1}), Soon()).status();
  EXPECT_TRUE(absl::IsUnavailable(nobody)) << nobody;
  EXPECT_NE(nobody.message().find("rank 1: "), std::string::npos) << nobody;
}

// libcairn reads pieces of 256 KiB.
TEST(DistantParts, ABlockThatIsReadInPiecesComesOnce) {
  const Part part({2 * size_t{kBlockBytes}});
  Owner owner(1, part);
  Distance d;
  d.neighbours.owners = {{1, &owner}};
  const auto object = d.Open(part, {1});
  constexpr uint64_t kPiece = 256 << 10;
  for (uint64_t at = 0; at < part.objects[0].size(); at += kPiece) {
    const auto read = Read(object, at, kPiece);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_TRUE(*read == part.objects[0].substr(at, kPiece)) << at;
  }
  EXPECT_EQ(d.faults->Calls(TransportCall::kRead), 2);
  ExpectAll(d.Open(part, {1}), part.objects[0]);
  EXPECT_EQ(d.faults->Calls(TransportCall::kRead), 4) << "another reader has blocks of its own";
}

TEST(DistantParts, ASourceThatFailedIsNotTheFirstForWhoOpensNext) {
  const Part part({100, 100});
  Owner first(1, part), second(2, part);
  Distance d;
  d.neighbours.owners = {{1, &first}, {2, &second}};
  const auto object = d.Open(part, {1, 2});
  first.Die();
  ExpectAll(object, part.objects[0]);
  const int reads = d.faults->Calls(TransportCall::kRead);
  ExpectAll(d.Open(part, {1, 2}, 1), part.objects[1]);
  EXPECT_EQ(d.faults->Calls(TransportCall::kRead), reads + 1);
}

TEST(DistantParts, AFlippedBlockIsReadAgain) {
  const Part part({2 * size_t{kBlockBytes}});
  Owner owner(1, part);
  Distance d;
  d.neighbours.owners = {{1, &owner}};
  d.faults->Add({.call = TransportCall::kFlip, .after = 1, .times = 1});
  ExpectAll(d.Open(part, {1}), part.objects[0]);
  EXPECT_EQ(d.faults->Calls(TransportCall::kRead), 3);
}

TEST(DistantParts, ABlockThatOneSourceHasWrongComesFromTheOther) {
  const Part part({3 * size_t{kBlockBytes}});
  Owner bad(1, part), good(2, part);
  bad.Spoil(0, kBlockBytes + 5);
  Distance d;
  d.neighbours.owners = {{1, &bad}, {2, &good}};
  ExpectAll(d.Open(part, {1, 2}), part.objects[0]);
}

TEST(DistantParts, ABlockThatAllHaveWrongIsDataLossThatNamesIt) {
  const Part part({100, 3 * size_t{kBlockBytes}});
  Owner first(1, part), second(2, part);
  for (Owner* owner : {&first, &second}) owner->Spoil(1, 2 * kBlockBytes + 5);
  Distance d;
  d.neighbours.owners = {{1, &first}, {2, &second}};
  const auto object = d.Open(part, {1, 2}, 1);
  const Status lost = Read(object, 2 * kBlockBytes, 10).status();
  EXPECT_TRUE(absl::IsDataLoss(lost)) << lost;
  EXPECT_NE(lost.message().find("block 2 of \"object-1001\""), std::string::npos) << lost;
  EXPECT_TRUE(Read(object, 0, 10).ok()) << "the others are as they were";
}

TEST(DistantParts, WhenASourceDiesTheOtherGoesOn) {
  const Part part({4 * size_t{kBlockBytes}});
  Owner first(1, part), second(2, part);
  Distance d;
  d.neighbours.owners = {{1, &first}, {2, &second}};
  const auto object = d.Open(part, {1, 2});
  ASSERT_TRUE(Read(object, 0, 10).ok());
  first.Die();
  ExpectAll(object, part.objects[0]);
}

TEST(DistantParts, WithoutASourceItIsUnavailable) {
  const Part part({size_t{kBlockBytes}});
  Owner owner(1, part);
  Distance d;
  d.neighbours.owners = {{1, &owner}};
  const auto object = d.Open(part, {1});
  owner.Die();
  const Status gone = Read(object, 0, 10).status();
  EXPECT_TRUE(absl::IsUnavailable(gone)) << gone;
}

TEST(DistantParts, AGrantThatEndedUnusedIsAskedForAnew) {
  const Part part({size_t{kBlockBytes}});
  Owner owner(1, part, {.without_progress = 500 * kNanosPerMilli});
  Distance d;
  d.neighbours.owners = {{1, &owner}};
  const auto object = d.Open(part, {1});
  owner.events.Next<engine::event::GrantEnded>();
  ExpectAll(object, part.objects[0]);
  // More than two where this machine is slow: a grant lasts half a second here.
  EXPECT_GE(owner.granted, 2u);
}

TEST(DistantParts, ASourceThatTellsOfAnotherPartIsNotRead) {
  const Part part({100}), other({200});
  Owner liar(1, other), owner(2, part);
  Distance d;
  d.neighbours.owners = {{1, &liar}, {2, &owner}};
  ExpectAll(d.Open(part, {1, 2}), part.objects[0]);
}

TEST(DistantParts, MoreThanItsMemoryHoldsWaitForEachOther) {
  const Part part({2 * size_t{kBlockBytes}});
  Owner owner(1, part);
  Distance d;
  d.neighbours.owners = {{1, &owner}};
  std::vector<std::thread> readers;
  for (int i = 0; i < 20; ++i) {
    readers.emplace_back([&] { ExpectAll(d.Open(part, {1}), part.objects[0]); });
  }
  for (std::thread& reader : readers) reader.join();
}

TEST(DistantParts, StoppingEndsReadsThatHang) {
  const Part part({size_t{kBlockBytes}});
  Owner owner(1, part);
  Distance d;
  d.neighbours.owners = {{1, &owner}};
  const auto object = d.Open(part, {1});
  owner.memory().transport->Revoke({}, transport::ItsReads::kMayBeUnderWay);
  d.faults->Add({.kind = FaultKind::kHang, .call = TransportCall::kRead});
  std::thread reading([&] { EXPECT_FALSE(Read(object, 0, 10).ok()); });
  d.faults->WaitUntilHung(1);
  std::thread stopping([&] { d.parts->Stop(); });
  // Not before it has begun: until then what hangs may go on.
  while (d.parts->Open({Lies(part, {1})}, part.manifest.objects[0].name, Soon()).ok()) {
    std::this_thread::yield();
  }
  d.faults->Clear();
  stopping.join();
  reading.join();
  EXPECT_FALSE(d.parts->Open({Lies(part, {1})}, part.manifest.objects[0].name, Soon()).ok());
}

}  // namespace
}  // namespace cairn::node
