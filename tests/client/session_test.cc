// libcairn against the real daemon: every test starts a cairnd of its own.
//
// One file: what one session does over its life, told in the vocabulary of one fixture.
#include "client/cpp/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "client/cpp/process.h"
#include "common/checksum.h"
#include "tests/support/await.h"
#include "tests/support/daemon_fixture.h"

namespace cairn::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;
using Json = nlohmann::json;

constexpr uint64_t kMiB = 1 << 20;

std::string RandomBytes(uint64_t length, uint32_t seed) {
  std::mt19937_64 random(seed);
  std::string out(length, '\0');
  for (uint64_t i = 0; i < length; i += 8) {
    const uint64_t word = random();
    std::copy_n(reinterpret_cast<const char*>(&word), std::min<uint64_t>(8, length - i),
                out.data() + i);
  }
  return out;
}

CheckpointRef At(Step step) {
  CheckpointRef ref;
  ref.step = step;
  return ref;
}

#define ASSERT_OK(expression)             \
  do {                                    \
    const Status status_ = (expression);  \
    ASSERT_TRUE(status_.ok()) << status_; \
  } while (false)

class SessionTest : public ::testing::Test {
 protected:
  void StartDaemon(const testing::DaemonOptions& options = {}) {
    auto started = testing::Daemon::Start(options);
    ASSERT_TRUE(started.ok()) << started.status();
    daemon_ = *std::move(started);
  }
  void SetUp() override { StartDaemon(); }

  std::shared_ptr<Session> Connect(ConnectOptions options) {
    auto session = Session::Connect(options);
    EXPECT_TRUE(session.ok()) << session.status();
    return session.ok() ? *session : nullptr;
  }
  // One job per test: revisions are counted for the life of the process, not of a daemon.
  const std::string job_ = ::testing::UnitTest::GetInstance()->current_test_info()->name();
  std::shared_ptr<Session> Connect() { return Connect(daemon_->Client(job_)); }

  // One object in one step, committed.
  static Status Save(Session* session, Step step, const std::string& name,
                     const std::string& bytes) {
    CAIRN_ASSIGN_OR_RETURN(auto writer, session->BeginStep(step));
    const Source source = {bytes.data(), bytes.size()};
    CAIRN_RETURN_IF_ERROR(writer->Write(name, ObjectKind::kRaw, absl::MakeConstSpan(&source, 1)));
    return writer->Commit({}).status();
  }

  static StatusOr<std::string> Load(Session* session, const CheckpointRef& ref,
                                    const std::string& name, OpenMode mode = OpenMode::kRead) {
    CAIRN_ASSIGN_OR_RETURN(auto object, session->Open(ref, name, mode));
    std::string out(object->info().length, '\0');
    CAIRN_RETURN_IF_ERROR(object->ReadInto(out.data()));
    return out;
  }

  Json NodeStatus() {
    const auto json = daemon_->StatusJson();
    EXPECT_TRUE(json.ok()) << json.status();
    return json.ok() ? Json::parse(*json) : Json();
  }

  std::unique_ptr<testing::Daemon> daemon_;
};

// Promise 2, for sizes about every border there is.
TEST_F(SessionTest, WhatIsLoadedIsWhatWasSaved) {
  const auto session = Connect();
  const std::vector<uint64_t> sizes = {0,        1,        4095,        4096,     4097,
                                       kMiB - 1, kMiB + 1, kBlockBytes, 5 * kMiB, 9 * kMiB + 3};
  std::vector<std::string> contents;
  auto writer = session->BeginStep(1);
  ASSERT_TRUE(writer.ok()) << writer.status();
  for (size_t i = 0; i < sizes.size(); ++i) {
    contents.push_back(RandomBytes(sizes[i], static_cast<uint32_t>(i)));
    const Source source = {contents[i].data(), contents[i].size()};
    ASSERT_OK(
        (*writer)->Write(absl::StrCat("o", i), ObjectKind::kRaw, absl::MakeConstSpan(&source, 1)));
  }
  const auto committed = (*writer)->Commit({{"note", "n"}});
  ASSERT_TRUE(committed.ok()) << committed.status();
  EXPECT_TRUE(committed->complete);
  for (size_t i = 0; i < sizes.size(); ++i) {
    for (OpenMode mode : {OpenMode::kRead, OpenMode::kMap, OpenMode::kFile}) {
      const auto loaded = Load(session.get(), CheckpointRef{}, absl::StrCat("o", i), mode);
      ASSERT_TRUE(loaded.ok()) << loaded.status();
      EXPECT_TRUE(*loaded == contents[i]) << "object of " << sizes[i] << " bytes";
    }
  }
  const auto latest = session->Latest();
  ASSERT_TRUE(latest.ok()) << latest.status();
  EXPECT_EQ(latest->key.step, 1);
  EXPECT_EQ(latest->source, "memory");
}

TEST_F(SessionTest, ManyObjectsTakeOneCreate) {
  const auto session = Connect();
  auto writer = session->BeginStep(1);
  ASSERT_TRUE(writer.ok());
  std::vector<std::string> contents;
  for (uint32_t i = 0; i < 100; ++i) contents.push_back(RandomBytes(i * 1001, i));
  std::vector<StepWriter::Item> items;
  for (size_t i = 0; i < contents.size(); ++i) {
    items.push_back(
        {absl::StrCat("d/", i), ObjectKind::kNumpy, {{contents[i].data(), contents[i].size()}}});
  }
  ASSERT_OK((*writer)->WriteMany(items));
  ASSERT_TRUE((*writer)->Commit({}).ok());
  for (size_t i = 0; i < contents.size(); i += 13) {
    const auto loaded = Load(session.get(), At(1), absl::StrCat("d/", i));
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_TRUE(*loaded == contents[i]);
  }
  const auto listing = session->List(job_ + "/1");
  ASSERT_TRUE(listing.ok()) << listing.status();
  EXPECT_EQ(listing->objects.size(), 100u);
}

// More objects than one call may name. The daemon that dies at the end of the commit has forgotten what
// the calls before it sealed.
TEST_F(SessionTest, MoreObjectsThanACallMayNameAreSavedAlsoAcrossADeath) {
  for (const std::string failpoint : {"", "node.manifest"}) {
    testing::DaemonOptions options;
    options.budget_bytes = 512 * kMiB;
    if (!failpoint.empty()) options.flags = {"--test.failpoints=" + failpoint};
    StartDaemon(options);
    const auto session = Connect();
    const std::string bytes = RandomBytes(5000, 1);
    std::vector<StepWriter::Item> items;
    for (uint64_t i = 0; i < 2 * kMaxObjectsPerCall + 500; ++i) {
      items.push_back({absl::StrCat("o", i), ObjectKind::kRaw, {{bytes.data() + i, 100}}});
    }
    auto writer = session->BeginStep(1);
    ASSERT_TRUE(writer.ok());
    ASSERT_OK((*writer)->WriteMany(items));
    const auto committed = (*writer)->Commit({});
    ASSERT_TRUE(committed.ok()) << committed.status();
    EXPECT_TRUE(committed->complete);
    EXPECT_EQ(NodeStatus()["restarts"], failpoint.empty() ? 0 : 1);
    for (uint64_t i = 0; i < items.size(); i += 311) {
      const auto loaded = Load(session.get(), At(1), absl::StrCat("o", i));
      ASSERT_TRUE(loaded.ok()) << loaded.status();
      EXPECT_TRUE(*loaded == bytes.substr(i, 100)) << i;
    }
  }
}

// All of it is refused with the first call, before anything is written.
TEST_F(SessionTest, MoreNamesThanTheJournalHoldsAreRefusedAtOnce) {
  testing::DaemonOptions options;
  options.flags = {"--journal.bytes=1MiB"};
  StartDaemon(options);
  const auto session = Connect();
  std::vector<StepWriter::Item> items;
  for (int i = 0; i < 5000; ++i) items.push_back({absl::StrCat("o", i), ObjectKind::kRaw, {}});
  auto writer = session->BeginStep(1);
  ASSERT_TRUE(writer.ok());
  const Status refused = (*writer)->WriteMany(items);
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("journal: this create may cost"));
  EXPECT_EQ(NodeStatus()["writing_bytes"], 0);
  ASSERT_OK((*writer)->Abort());
  ASSERT_OK(Save(session.get(), 2, "a", "small"));
}

// Each object of 1 MiB has a slab of its own, whose descriptor comes with the create.
TEST_F(SessionTest, MoreSlabsAtOnceThanTheChannelHoldsArriveAllTheSame) {
  testing::DaemonOptions options;
  options.budget_bytes = 512 * kMiB;
  StartDaemon(options);
  const auto session = Connect();
  const std::string bytes = RandomBytes(kMiB + 400, 1);
  std::vector<StepWriter::Item> items;
  for (uint64_t i = 0; i < 400; ++i) {
    items.push_back({absl::StrCat("o", i), ObjectKind::kRaw, {{bytes.data() + i, kMiB}}});
  }
  auto writer = session->BeginStep(1);
  ASSERT_TRUE(writer.ok());
  ASSERT_OK((*writer)->WriteMany(items));
  ASSERT_TRUE((*writer)->Commit({}).ok());
  for (uint64_t i = 0; i < 400; i += 57) {
    EXPECT_TRUE(*Load(session.get(), At(1), absl::StrCat("o", i)) == bytes.substr(i, kMiB));
  }
}

// A loaded state dict is one mapping per object; descriptors are what a process has few of.
TEST_F(SessionTest, AMappingKeepsNoDescriptorOpen) {
  const auto session = Connect();
  ASSERT_OK(Save(session.get(), 1, "a", RandomBytes(2 * kMiB, 1)));
  const auto descriptors = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                         std::filesystem::directory_iterator());
  };
  const auto before = descriptors();
  std::vector<OpenObject::View> views;
  for (int i = 0; i < 10; ++i) {
    auto object = session->Open(At(1), "a", OpenMode::kMap);
    ASSERT_TRUE(object.ok()) << object.status();
    views.push_back(*(*object)->Map());
  }
  EXPECT_EQ(descriptors(), before);
}

TEST_F(SessionTest, AZipOpensFromTheSlabByItsPath) {
  const auto session = Connect();
  const std::string data = RandomBytes(3 * kMiB + 5, 1);
  auto plan = ZipPlan::Make({{"archive/data.pkl", 10}, {"archive/data/0", data.size()}});
  ASSERT_TRUE(plan.ok());
  const std::string pickle = "0123456789";
  const std::vector<Source> records = {{pickle.data(), 10}, {data.data(), data.size()}};
  for (Step step : {1, 2, 3}) {  // later ones in recycled slabs, whose old bytes lie in the gap
    auto writer = session->BeginStep(step);
    ASSERT_TRUE(writer.ok());
    if (step == 2) {
      const StepWriter::Item items[] = {{"beside", ObjectKind::kRaw, {records[0]}},
                                        {"model.pt", ObjectKind::kTorch, records, &*plan}};
      ASSERT_OK((*writer)->WriteMany(items));
    } else {
      ASSERT_OK((*writer)->WriteZip("model.pt", ObjectKind::kTorch, *plan, records));
    }
    ASSERT_TRUE((*writer)->Commit({}).ok());
    auto object = session->Open(At(step), "model.pt", OpenMode::kFile);
    ASSERT_TRUE(object.ok()) << object.status();
    const auto path = (*object)->Path();
    ASSERT_TRUE(path.ok()) << path.status();
    std::ifstream file(*path, std::ios::binary);
    std::stringstream bytes;
    bytes << file.rdbuf();
    EXPECT_EQ(bytes.str().size(), (*object)->info().length);
    const std::string archive = bytes.str();
    const auto entries = ReadZipDirectory(archive);
    ASSERT_TRUE(entries.ok()) << entries.status();
    ASSERT_EQ(entries->size(), 2u);
    EXPECT_TRUE(archive.substr((*entries)[1].offset, (*entries)[1].length) == data);
    EXPECT_EQ((*entries)[1].crc, ZipCrc32(0, data.data(), data.size()));
    ASSERT_OK((*object)->Verify());
  }
}

TEST_F(SessionTest, AMappingIsPrivateAndOutlivesItsObject) {
  const auto session = Connect();
  const std::string bytes = RandomBytes(2 * kMiB, 1);
  ASSERT_OK(Save(session.get(), 1, "a", bytes));
  OpenObject::View view;
  {
    auto object = session->Open(At(1), "a", OpenMode::kMap);
    ASSERT_TRUE(object.ok()) << object.status();
    auto mapped = (*object)->Map();
    ASSERT_TRUE(mapped.ok()) << mapped.status();
    view = *std::move(mapped);
  }
  EXPECT_EQ(absl::string_view(view.data, view.length), bytes);
  view.data[0] = static_cast<char>(~view.data[0]);
  EXPECT_TRUE(*Load(session.get(), At(1), "a") == bytes);
}

TEST_F(SessionTest, SavingAgainReusesTheMappedSlabs) {
  testing::DaemonOptions options;
  options.budget_bytes = 20 * kMiB;  // for two steps: from the third on an old one makes room
  StartDaemon(options);
  const auto session = Connect();
  std::vector<int64_t> made;
  for (Step step = 1; step <= 6; ++step) {
    ASSERT_OK(Save(session.get(), step, "a", RandomBytes(8 * kMiB, static_cast<uint32_t>(step))));
    made.push_back(NodeStatus()["slab_bytes"].get<int64_t>());
  }
  // Promise 5: from some step on no slab is made any more.
  EXPECT_EQ(made[5], made[3]) << ::testing::PrintToString(made);
}

TEST_F(SessionTest, RangesAreReadAndVerified) {
  const auto session = Connect();
  const std::string bytes = RandomBytes(9 * kMiB + 1, 1);
  ASSERT_OK(Save(session.get(), 1, "a", bytes));
  auto object = session->Open(At(1), "a", OpenMode::kRead);
  ASSERT_TRUE(object.ok());
  for (const auto& [offset, length] : std::vector<std::pair<uint64_t, uint64_t>>{
           {0, 1}, {kBlockBytes - 1, 2}, {3, 8 * kMiB}, {9 * kMiB, 1}, {5, 0}}) {
    std::string out(length, '\0');
    ASSERT_OK((*object)->ReadRange(offset, length, out.data()));
    EXPECT_TRUE(out == bytes.substr(offset, length));
  }
}

// Every second byte of each row of 1,000, from memory and from storage.
TEST_F(SessionTest, PiecesAreReadIntoTheirPlaces) {
  const auto session = Connect();
  const std::string bytes = RandomBytes(9 * kMiB, 1);
  ASSERT_OK(Save(session.get(), 1, "a", bytes));
  const int64_t rows = static_cast<int64_t>(bytes.size() / 1000);
  const std::vector<int64_t> shape = {rows, 500}, from = {1000, 2}, into = {500, 1};
  for (const bool stored : {false, true}) {
    if (stored) {
      ASSERT_OK(session->Persist(At(1)));
      ASSERT_OK(
          session->Wait(At(1), Level::kPersisted, testing::Patient(absl::Seconds(60))).status());
      ASSERT_OK(session->Remove(At(1), /*memory_only=*/true, /*force=*/true));
    }
    auto object = session->Open(At(1), "a", OpenMode::kRead);
    ASSERT_TRUE(object.ok()) << object.status();
    EXPECT_EQ((*object)->from_storage(), stored);
    std::string out(rows * 500, '\0'), last(3, '\0');
    ASSERT_OK((*object)->ReadPieces(
        {{0, 1, shape, from, out.data(), into}, {bytes.size() - 3, 3, {}, {}, last.data(), {}}}));
    for (int64_t i = 0; i < rows * 500; ++i) {
      ASSERT_EQ(out[i], bytes[i / 500 * 1000 + i % 500 * 2]) << i;
    }
    EXPECT_EQ(last, bytes.substr(bytes.size() - 3));
    EXPECT_EQ((*object)->ReadPieces({{bytes.size(), 1, {}, {}, out.data(), {}}}).code(),
              absl::StatusCode::kInvalidArgument);
    std::string peeked(5, '\0');
    ASSERT_OK((*object)->PeekRanges({{kBlockBytes - 1, 2}, {7, 3}}, peeked.data()));
    EXPECT_EQ(peeked, bytes.substr(kBlockBytes - 1, 2) + bytes.substr(7, 3));
    EXPECT_EQ((*object)->PeekRanges({{bytes.size() - 1, 2}}, peeked.data()).code(),
              absl::StatusCode::kOutOfRange);
  }
}

TEST_F(SessionTest, AbortLeavesNothingAndTheStepCanBeSavedAgain) {
  const auto session = Connect();
  const std::string bytes = RandomBytes(kMiB, 1);
  const Source source = {bytes.data(), bytes.size()};
  for (int i = 0; i < 2; ++i) {
    auto writer = session->BeginStep(1);
    ASSERT_TRUE(writer.ok());
    ASSERT_OK((*writer)->Write("a", ObjectKind::kRaw, absl::MakeConstSpan(&source, 1)));
    if (i == 0) ASSERT_OK((*writer)->Abort());
    EXPECT_EQ(session->Latest().status().code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(NodeStatus()["writing_bytes"].get<int64_t>() > 0, i == 1);
  }  // the second one is destroyed uncommitted: the same
  EXPECT_EQ(NodeStatus()["writing_bytes"], 0);
  ASSERT_OK(Save(session.get(), 1, "a", bytes));
  EXPECT_TRUE(*Load(session.get(), At(1), "a") == bytes);
}

TEST_F(SessionTest, AStepSavedAgainReplacesTheOldRevision) {
  const auto session = Connect();
  ASSERT_OK(Save(session.get(), 1, "a", "first"));
  ASSERT_OK(Save(session.get(), 1, "a", "second"));
  EXPECT_EQ(*Load(session.get(), At(1), "a"), "second");
  EXPECT_EQ(session->Latest()->key.revision, 1);
}

TEST_F(SessionTest, TwoWritersMakeACheckpointTogether) {
  // (attempt, writer) is one process; two writers of one process are two sessions.
  const auto first = Connect(daemon_->Client(job_, 1, 0, 2));
  const auto second = Connect(daemon_->Client(job_, 1, 1, 2));
  ASSERT_OK(Save(first.get(), 1, "a", "of writer 0"));
  EXPECT_EQ(first->Latest().status().code(), absl::StatusCode::kNotFound);
  std::thread waiter([&] {
    const auto info = first->WaitAfter(0, testing::Patient(absl::Seconds(30)));
    EXPECT_TRUE(info.ok()) << info.status();
  });
  ASSERT_OK(Save(second.get(), 1, "b", "of writer 1"));
  waiter.join();
  EXPECT_EQ(*Load(first.get(), At(1), "b"), "of writer 1");
}

TEST_F(SessionTest, AWaitDoesNotBlockOtherCalls) {
  const auto session = Connect();
  ASSERT_OK(Save(session.get(), 1, "a", "x"));
  std::atomic<bool> answered{false};
  std::thread waiter([&] {
    const auto info = session->WaitAfter(1, testing::Patient(absl::Seconds(30)));
    EXPECT_TRUE(info.ok()) << info.status();
    answered = true;
  });
  EXPECT_TRUE(testing::Await([&] { return NodeStatus()["counters"]["waiting_calls"] == 1; }));
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(session->Stat(At(1)).ok());
  EXPECT_FALSE(answered);
  ASSERT_OK(Save(session.get(), 2, "a", "y"));
  waiter.join();
}

TEST_F(SessionTest, AWaitEndsByItsDeadline) {
  const auto session = Connect();
  ASSERT_OK(Save(session.get(), 1, "a", "x"));
  const absl::Time start = absl::Now();
  EXPECT_EQ(session->WaitAfter(1, absl::Milliseconds(200)).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_LT(absl::Now() - start, testing::Patient(absl::Seconds(30)));
}

TEST_F(SessionTest, PersistedObjectsLoadFromStorageByEveryMode) {
  const auto session = Connect();
  const std::string bytes = RandomBytes(6 * kMiB + 7, 1);
  ASSERT_OK(Save(session.get(), 1, "dir/a", bytes));
  ASSERT_OK(session->Persist(At(1)));
  const auto info = session->Wait(At(1), Level::kPersisted, testing::Patient(absl::Seconds(60)));
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_TRUE(info->facts.persisted);
  ASSERT_OK(session->Remove(At(1), /*memory_only=*/true, /*force=*/true));
  for (OpenMode mode : {OpenMode::kRead, OpenMode::kMap, OpenMode::kFile}) {
    auto object = session->Open(At(1), "dir/a", mode);
    ASSERT_TRUE(object.ok()) << object.status();
    EXPECT_TRUE((*object)->from_storage());
    std::string out(bytes.size(), '\0');
    ASSERT_OK((*object)->ReadInto(out.data()));
    EXPECT_TRUE(out == bytes);
  }
}

// Flips a byte of the only slab of at least `length` bytes that this process maps: the writer's own mapping still stands.
void FlipInSlab(uint64_t length, uint64_t at) {
  std::ifstream maps("/proc/self/maps");
  std::string line;
  char* slab = nullptr;
  while (std::getline(maps, line)) {
    unsigned long begin = 0, end = 0;
    if (line.find("rw-s") == std::string::npos || line.find("memfd") == std::string::npos) continue;
    if (std::sscanf(line.c_str(), "%lx-%lx", &begin, &end) != 2) continue;
    if (end - begin >= length) slab = reinterpret_cast<char*>(begin);
  }
  ASSERT_NE(slab, nullptr);
  slab[at] = static_cast<char>(~slab[at]);
}

// R11: whoever copies bytes to a user verifies them.
TEST_F(SessionTest, BytesChangedAfterTheSealAreReportedNotReturned) {
  const auto session = Connect();
  const std::string bytes = RandomBytes(9 * kMiB, 1);
  ASSERT_OK(Save(session.get(), 1, "a", bytes));
  FlipInSlab(bytes.size(), 5 * kMiB);
  const Status status = Load(session.get(), At(1), "a").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("block 1 of 3"));
}

TEST_F(SessionTest, OfPiecesOnlyTheBlocksTheyTouchMustBeGood) {
  const auto session = Connect();
  const std::string bytes = RandomBytes(9 * kMiB, 1);
  ASSERT_OK(Save(session.get(), 1, "a", bytes));
  FlipInSlab(bytes.size(), 5 * kMiB);
  auto object = session->Open(At(1), "a", OpenMode::kRead);
  ASSERT_TRUE(object.ok()) << object.status();
  std::string out(16, '\0'), other(16, '\0');
  const StridedPiece beside = {3, 16, {}, {}, out.data(), {}};
  ASSERT_OK((*object)->ReadPieces({beside}));
  EXPECT_EQ(out, bytes.substr(3, 16));
  const StridedPiece touching = {8 * kMiB - 8, 16, {}, {}, other.data(), {}};
  const Status status = (*object)->ReadPieces({beside, touching});
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("block 1 of 3"));
}

// --- straight into storage

TEST_F(SessionTest, WhatGoesStraightIntoStorageIsWhatWasThere) {
  const auto session = Connect();
  const std::vector<uint64_t> sizes = {0, 1, 4095, 4097, kBlockBytes, 9 * kMiB + 3};
  std::vector<std::string> contents;
  for (size_t i = 0; i < sizes.size(); ++i) {
    contents.push_back(RandomBytes(sizes[i], static_cast<uint32_t>(i)));
  }
  const Json used = NodeStatus()["used_bytes"];
  auto writer = session->BeginStored(1);
  ASSERT_TRUE(writer.ok()) << writer.status();
  for (size_t i = 0; i < sizes.size(); ++i) {
    const Source sources[] = {{contents[i].data(), sizes[i] / 2},
                              {contents[i].data() + sizes[i] / 2, sizes[i] - sizes[i] / 2}};
    ASSERT_OK((*writer)->Write(absl::StrCat("o", i), ObjectKind::kRaw, sources));
  }
  const std::string pixels = RandomBytes(6 * kMiB, 7), note = "note";
  const auto plan =
      ZipPlan::Make({{"archive/data/0", pixels.size()}, {"archive/note", note.size()}});
  ASSERT_TRUE(plan.ok()) << plan.status();
  const Source records[] = {{pixels.data(), pixels.size()}, {note.data(), note.size()}};
  ASSERT_OK((*writer)->WriteZip("zip.pt", ObjectKind::kTorch, *plan, records));
  EXPECT_EQ((*writer)->Write("o1", ObjectKind::kRaw, {}).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ((*writer)->Write("../o", ObjectKind::kRaw, {}).code(),
            absl::StatusCode::kInvalidArgument);
  const auto committed = (*writer)->Commit({{"note", "n"}});
  ASSERT_TRUE(committed.ok()) << committed.status();
  EXPECT_TRUE(committed->complete);
  EXPECT_EQ(NodeStatus()["used_bytes"], used);
  for (size_t i = 0; i < sizes.size(); ++i) {
    const auto loaded = Load(session.get(), At(1), absl::StrCat("o", i));
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_TRUE(*loaded == contents[i]) << i;
  }
  // The same archive as one that goes through memory, but for a gap there.
  auto other = session->BeginStep(2);
  ASSERT_TRUE(other.ok());
  ASSERT_OK((*other)->WriteZip("zip.pt", ObjectKind::kTorch, *plan, records));
  ASSERT_TRUE((*other)->Commit({}).ok());
  const auto stored = Load(session.get(), At(1), "zip.pt"),
             cached = Load(session.get(), At(2), "zip.pt");
  ASSERT_TRUE(stored.ok() && cached.ok()) << stored.status() << cached.status();
  EXPECT_EQ(stored->size(), plan->MinimumLength());
  EXPECT_EQ(stored->substr(0, plan->TailOffset()), cached->substr(0, plan->TailOffset()));
}

TEST_F(SessionTest, AStepOfNoObjectsMayGoStraightIntoStorage) {
  const auto session = Connect();
  auto writer = session->BeginStored(1);
  ASSERT_TRUE(writer.ok()) << writer.status();
  const auto committed = (*writer)->Commit({});
  ASSERT_TRUE(committed.ok()) << committed.status();
  EXPECT_TRUE(committed->complete);
  EXPECT_EQ((*writer)->Commit({}).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(SessionTest, WhatChangesOnItsWayIntoStorageIsNotSaved) {
  const auto session = Connect();
  std::string bytes = RandomBytes(9 * kMiB, 1);
  auto writer = session->BeginStored(1);
  ASSERT_TRUE(writer.ok()) << writer.status();
  const Source source = {bytes.data(), bytes.size()};
  ASSERT_OK((*writer)->Write("a", ObjectKind::kRaw, absl::MakeConstSpan(&source, 1)));
  bytes[5 * kMiB] = static_cast<char>(~bytes[5 * kMiB]);
  const Status status = (*writer)->Commit({}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("a: block 1"));
  EXPECT_EQ(session->Latest().status().code(), absl::StatusCode::kNotFound);
}

TEST_F(SessionTest, AFileThatBecomesShorterOnItsWayIntoStorageIsToldAsThat) {
  const auto session = Connect();
  char path[] = "/tmp/cairn-shorter-XXXXXX";
  const UniqueFd file(mkstemp(path));
  unlink(path);
  const std::string bytes = RandomBytes(9 * kMiB, 1);
  ASSERT_EQ(pwrite(file.get(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  auto writer = session->BeginStored(1);
  ASSERT_TRUE(writer.ok()) << writer.status();
  const Source source = {nullptr, bytes.size(), file.get(), 0};
  ASSERT_OK((*writer)->Write("a", ObjectKind::kRaw, absl::MakeConstSpan(&source, 1)));
  ASSERT_EQ(ftruncate(file.get(), kMiB), 0);
  const Status status = (*writer)->Commit({}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("shorter"));
}

// Bug: where another thread had the only connection, nobody said goodbye, and the session stayed.
TEST_F(SessionTest, EndsWithACloseWhileACallWaits) {
  const auto session = Connect();
  ASSERT_OK(Save(session.get(), 1, "a", "bytes"));
  auto options = daemon_->Client(job_);
  options.writer = -1;
  options.attempt = 0;
  options.world_size = 0;
  const auto reader = Connect(options);
  std::thread waits(
      [&] { EXPECT_FALSE(reader->WaitAfter(1, testing::Patient(absl::Seconds(60))).ok()); });
  EXPECT_TRUE(testing::Await([&] { return NodeStatus()["counters"]["waiting_calls"] == 1; }));
  reader->Close();
  const auto sessions = [&] {
    const Json status = NodeStatus();
    return std::count_if(status["sessions"].begin(), status["sessions"].end(),
                         [&](const Json& one) { return one["job"] == job_; });
  };
  EXPECT_TRUE(testing::Await([&] { return sessions() == 1; }));
  waits.join();
}

TEST_F(SessionTest, AMissingObjectIsNotFound) {
  const auto session = Connect();
  EXPECT_EQ(Load(session.get(), At(1), "a").status().code(), absl::StatusCode::kNotFound);
  ASSERT_OK(Save(session.get(), 1, "a", "x"));
  EXPECT_EQ(Load(session.get(), At(1), "b").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Load(session.get(), At(2), "a").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Load(session.get(), At(1), "a/../b").status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(SessionTest, MoreThanTheBudgetIsFullWithTheArithmetic) {
  const auto session = Connect();
  const std::string piece(64 * kMiB, 'x');
  const std::vector<Source> sources(10, Source{piece.data(), piece.size()});
  auto writer = session->BeginStep(1, {}, absl::Seconds(5));
  ASSERT_TRUE(writer.ok());
  const Status status = (*writer)->Write("a", ObjectKind::kRaw, sources);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
}

TEST_F(SessionTest, ALoneWriterChoosesItsAttempt) {
  auto options = daemon_->Client(job_, 0);
  const auto session = Connect(options);
  EXPECT_EQ(session->BeginStep(1).status().code(), absl::StatusCode::kFailedPrecondition);
  const auto attempt = session->ChooseAttempt();
  ASSERT_TRUE(attempt.ok()) << attempt.status();
  EXPECT_GT(*attempt, 1'600'000'000'000);
  ASSERT_OK(Save(session.get(), 1, "a", "x"));
  EXPECT_EQ(session->Latest()->key.attempt, *attempt);
}

// --- the daemon dies

// Promise 7, R15.
TEST_F(SessionTest, ACommittedStepIsThereAfterTheDaemonWasKilled) {
  const auto session = Connect();
  const std::string bytes = RandomBytes(5 * kMiB, 1);
  ASSERT_OK(Save(session.get(), 1, "a", bytes));
  ASSERT_OK(daemon_->KillDaemon());
  const auto loaded = Load(session.get(), CheckpointRef{}, "a");
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_TRUE(*loaded == bytes);
  ASSERT_OK(Save(session.get(), 2, "a", "after"));
  EXPECT_EQ(*Load(session.get(), CheckpointRef{}, "a"), "after");
}

TEST_F(SessionTest, AStepInFlightGoesOnAfterTheDaemonWasKilled) {
  const auto session = Connect();
  auto writer = session->BeginStep(1);
  ASSERT_TRUE(writer.ok());
  const std::string first = RandomBytes(2 * kMiB, 1), second = RandomBytes(3 * kMiB, 2);
  Source source = {first.data(), first.size()};
  ASSERT_OK((*writer)->Write("a", ObjectKind::kRaw, absl::MakeConstSpan(&source, 1)));
  ASSERT_OK(daemon_->KillDaemon());
  source = {second.data(), second.size()};
  ASSERT_OK((*writer)->Write("b", ObjectKind::kRaw, absl::MakeConstSpan(&source, 1)));
  ASSERT_OK(daemon_->KillDaemon());
  const auto committed = (*writer)->Commit({});
  ASSERT_TRUE(committed.ok()) << committed.status();
  EXPECT_TRUE(*Load(session.get(), At(1), "a") == first);
  EXPECT_TRUE(*Load(session.get(), At(1), "b") == second);
}

TEST_F(SessionTest, AMappingStaysReadableWhileTheDaemonIsAway) {
  const auto session = Connect();
  const std::string bytes = RandomBytes(2 * kMiB, 1);
  ASSERT_OK(Save(session.get(), 1, "a", bytes));
  auto object = session->Open(At(1), "a", OpenMode::kMap);
  ASSERT_TRUE(object.ok());
  const auto view = (*object)->Map();
  ASSERT_TRUE(view.ok());
  ASSERT_OK(daemon_->KillEverything());
  EXPECT_EQ(absl::string_view(view->data, view->length), bytes);
  std::string out(bytes.size(), '\0');
  ASSERT_OK((*object)->ReadInto(out.data()));
  EXPECT_TRUE(out == bytes);
}

TEST_F(SessionTest, ANodeThatForgotEverythingIsUnavailableForTheStepAndFineForTheNext) {
  const auto session = Connect();
  auto writer = session->BeginStep(1);
  ASSERT_TRUE(writer.ok());
  const std::string bytes = RandomBytes(2 * kMiB, 1);
  const Source source = {bytes.data(), bytes.size()};
  ASSERT_OK((*writer)->Write("a", ObjectKind::kRaw, absl::MakeConstSpan(&source, 1)));
  ASSERT_OK(daemon_->KillEverything());
  ASSERT_OK(daemon_->StartAgain());
  const Status lost = (*writer)->Commit({}).status();
  EXPECT_EQ(lost.code(), absl::StatusCode::kUnavailable) << lost;
  EXPECT_THAT(std::string(lost.message()), HasSubstr("begin the step again"));
  writer->reset();
  ASSERT_OK(Save(session.get(), 2, "a", bytes));
  EXPECT_TRUE(*Load(session.get(), CheckpointRef{}, "a") == bytes);
}

// Promise 4.
TEST_F(SessionTest, ADaemonThatIsGoneIsUnavailableByTheDeadline) {
  auto options = daemon_->Client(job_);
  options.timeout = testing::Patient(absl::Seconds(1));
  ASSERT_OK(Save(Connect().get(), 1, "a", "x"));
  const auto session = Connect(options);
  ASSERT_OK(daemon_->KillEverything());
  const absl::Time start = absl::Now();
  const Status status = session->Stat(At(1)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr(options.socket));
  EXPECT_EQ(Save(session.get(), 2, "a", "x").code(), absl::StatusCode::kUnavailable);
  EXPECT_LT(absl::Now() - start, testing::Patient(absl::Seconds(20)));
}

// --- fork

TEST_F(SessionTest, AForkedChildIsToldToConnectAnewAndMay) {
  auto session = Connect();
  ASSERT_OK(Save(session.get(), 1, "a", "x"));
  auto object = session->Open(At(1), "a", OpenMode::kRead);
  ASSERT_TRUE(object.ok());
  auto writer = session->BeginStep(2);
  ASSERT_TRUE(writer.ok());
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto refused = [](const Status& status) {
      return status.code() == absl::StatusCode::kFailedPrecondition &&
             std::string(status.message()).find("forked child") != std::string::npos &&
             std::string(status.message()).find("connect anew") != std::string::npos;
    };
    char byte = 0;
    if (!refused(session->Latest().status())) _exit(1);
    if (!refused(session->BeginStep(3).status())) _exit(2);
    if (!refused((*writer)->Commit({}).status())) _exit(3);
    if (!refused((*object)->ReadInto(&byte))) _exit(4);
    writer->reset();
    object->reset();
    session->Close();
    session.reset();
    auto options = daemon_->Client(job_, 0, -1, 0);
    auto own = Session::Connect(options);
    if (!own.ok()) _exit(5);
    const auto loaded = Load(own->get(), CheckpointRef{}, "a");
    if (!loaded.ok() || *loaded != "x") _exit(6);
    own->reset();
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  // The parent noticed nothing.
  char byte = 0;
  ASSERT_OK((*object)->ReadInto(&byte));
  const Source source = {"y", 1};
  ASSERT_OK((*writer)->Write("a", ObjectKind::kRaw, absl::MakeConstSpan(&source, 1)));
  ASSERT_TRUE((*writer)->Commit({}).ok());
  EXPECT_EQ(*Load(session.get(), CheckpointRef{}, "a"), "y");
}

TEST_F(SessionTest, ASessionsEndDropsWhatItHadNotCommitted) {
  auto session = Connect();
  auto writer = session->BeginStep(1);
  ASSERT_TRUE(writer.ok());
  const std::string bytes = RandomBytes(2 * kMiB, 1);
  const Source source = {bytes.data(), bytes.size()};
  ASSERT_OK((*writer)->Write("a", ObjectKind::kRaw, absl::MakeConstSpan(&source, 1)));
  session->Close();
  EXPECT_EQ((*writer)->Commit({}).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(NodeStatus()["writing_bytes"], 0);
}

// --- from one session to another

// A second session of the process, as a child has one that was given the process's token.
TEST_F(SessionTest, AnotherSessionOfTheProcessGoesOnWithAStep) {
  const auto session = Connect();
  const std::string first = RandomBytes(2 * kMiB, 1), second = RandomBytes(3 * kMiB, 2);
  auto writer = session->BeginStep(1);
  ASSERT_TRUE(writer.ok());
  Source source = {first.data(), first.size()};
  ASSERT_OK((*writer)->Write("a", ObjectKind::kRaw, absl::MakeConstSpan(&source, 1)));
  const auto handed_over = (*writer)->HandOver();
  ASSERT_TRUE(handed_over.ok()) << handed_over.status();
  EXPECT_EQ((*writer)->Commit({}).status().code(), absl::StatusCode::kFailedPrecondition);
  writer->reset();  // which drops nothing

  const auto other = Connect();
  auto taken = other->TakeOver(*handed_over);
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_EQ((*taken)->bytes_written(), first.size());
  source = {second.data(), second.size()};
  EXPECT_EQ((*taken)->Write("a", ObjectKind::kRaw, absl::MakeConstSpan(&source, 1)).code(),
            absl::StatusCode::kAlreadyExists);
  ASSERT_OK((*taken)->Write("b", ObjectKind::kRaw, absl::MakeConstSpan(&source, 1)));
  ASSERT_TRUE((*taken)->Commit({}).ok());
  EXPECT_TRUE(*Load(session.get(), At(1), "a") == first);
  EXPECT_TRUE(*Load(session.get(), At(1), "b") == second);
  EXPECT_EQ(other->TakeOver(*handed_over).status().code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(SessionTest, WhatWasHandedOverGoesWithEitherSession) {
  const std::string bytes = RandomBytes(2 * kMiB, 1);
  const Source source = {bytes.data(), bytes.size()};
  const auto begin = [&](Session* session, Step step) {
    auto writer = session->BeginStep(step);
    EXPECT_TRUE(writer.ok());
    EXPECT_TRUE((*writer)->Write("a", ObjectKind::kRaw, absl::MakeConstSpan(&source, 1)).ok());
    return *(*writer)->HandOver();
  };
  const auto session = Connect();
  auto other = Connect();
  std::string handed_over = begin(session.get(), 1);
  ASSERT_TRUE(other->TakeOver(handed_over).ok());  // and is dropped: nobody keeps it
  EXPECT_EQ(NodeStatus()["writing_bytes"], 0);

  handed_over = begin(session.get(), 2);
  auto taken = other->TakeOver(handed_over);
  ASSERT_TRUE(taken.ok());
  other->Close();
  EXPECT_EQ(NodeStatus()["writing_bytes"], 0);

  handed_over = begin(session.get(), 3);
  session->Close();
  other = Connect();
  const auto late = other->TakeOver(handed_over);
  EXPECT_EQ(late.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(late.status().message()), HasSubstr("its session ended"));
}

TEST_F(SessionTest, OnlyTheProcessAndWhoHasItsTokenIsTheWriter) {
  auto options = daemon_->Client(job_, 7, 0, 2);
  const auto session = Connect(options);
  ASSERT_OK(Save(session.get(), 1, "a", "x"));
  options.process = std::string(kProcessTokenBytes, 'p');
  const auto stranger = Connect(options);
  EXPECT_EQ(Save(stranger.get(), 2, "a", "y").code(), absl::StatusCode::kAlreadyExists);
  options.process = *ThisProcess();
  const auto child = Connect(options);
  ASSERT_OK(Save(child.get(), 3, "a", "z"));
  options.process = "short";
  EXPECT_EQ(Session::Connect(options).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(SessionTest, WhatIsNotAHandedOverStepIsRefused) {
  const auto session = Connect();
  for (const std::string& bytes :
       {std::string(), std::string("\x08\x00\x01", 3), std::string(100, '\xff')}) {
    EXPECT_EQ(session->TakeOver(bytes).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST_F(SessionTest, WhatWasEnteredIsToldAndNoted) {
  for (Step step = 0; step < 10; ++step) EnterStep(job_, 1, 0, step);
  EXPECT_EQ(EnterStep(job_, 1, 0, 9), 1);
  EXPECT_THAT(StepsEntered(job_, 1, 0, 2), ElementsAre(std::pair(9, 2), std::pair(8, 1)));
  EXPECT_THAT(StepsEntered(job_, 1, 1, 2), ElementsAre());
  NoteEntered(job_, 1, 0, {{9, 5}, {8, 0}, {20, 1}});
  EXPECT_THAT(StepsEntered(job_, 1, 0, 3),
              ElementsAre(std::pair(20, 1), std::pair(9, 5), std::pair(8, 1)));
  EXPECT_EQ(EnterStep(job_, 1, 0, 9), 5);
}

// --- without descriptors

class ChunkTest : public SessionTest {
 protected:
  std::shared_ptr<Session> ConnectWithoutFds() {
    auto options = daemon_->Client(job_);
    options.takes_fds = false;
    return Connect(options);
  }
};

TEST_F(ChunkTest, ChunksSaveAndLoadTheSameBytes) {
  const auto session = ConnectWithoutFds();
  const std::string large = RandomBytes(9 * kMiB + 1, 1), small = RandomBytes(1000, 2);
  auto writer = session->BeginStep(1);
  ASSERT_TRUE(writer.ok());
  const std::vector<StepWriter::Item> items = {
      {"s1", ObjectKind::kRaw, {{small.data(), small.size()}}},
      {"s2", ObjectKind::kRaw, {{small.data(), 10}}},
      {"empty", ObjectKind::kRaw, {}},
      {"large", ObjectKind::kRaw, {{large.data(), large.size()}}}};
  ASSERT_OK((*writer)->WriteMany(items));
  auto plan = ZipPlan::Make({{"a/0", small.size()}, {"a/1", large.size()}});
  ASSERT_TRUE(plan.ok());
  const std::vector<Source> records = {{small.data(), small.size()}, {large.data(), large.size()}};
  ASSERT_OK((*writer)->WriteZip("zip", ObjectKind::kTorch, *plan, records));
  const auto committed = (*writer)->Commit({});
  ASSERT_TRUE(committed.ok()) << committed.status();
  const auto with_fds = Connect(daemon_->Client(job_, 0, -1, 0));
  for (Session* reader : {session.get(), with_fds.get()}) {
    for (OpenMode mode : {OpenMode::kRead, OpenMode::kMap, OpenMode::kFile}) {
      EXPECT_TRUE(*Load(reader, At(1), "s1", mode) == small);
      EXPECT_TRUE(*Load(reader, At(1), "s2", mode) == small.substr(0, 10));
      EXPECT_EQ(*Load(reader, At(1), "empty", mode), "");
      EXPECT_TRUE(*Load(reader, At(1), "large", mode) == large);
    }
    const auto archive = Load(reader, At(1), "zip");
    ASSERT_TRUE(archive.ok()) << archive.status();
    const auto entries = ReadZipDirectory(*archive);
    ASSERT_TRUE(entries.ok()) << entries.status();
    EXPECT_TRUE(archive->substr((*entries)[1].offset, (*entries)[1].length) == large);
  }
}

TEST_F(ChunkTest, PiecesAreReadAndNothingIsPeeked) {
  const auto session = ConnectWithoutFds();
  const std::string bytes = RandomBytes(9 * kMiB, 1);
  ASSERT_OK(Save(session.get(), 1, "a", bytes));
  auto object = session->Open(At(1), "a", OpenMode::kRead);
  ASSERT_TRUE(object.ok()) << object.status();
  std::string out(2 * 100, '\0');
  const std::vector<int64_t> shape = {2}, from = {5 * kMiB}, into = {100};
  ASSERT_OK((*object)->ReadPieces({{kMiB, 100, shape, from, out.data(), into}}));
  EXPECT_EQ(out, bytes.substr(kMiB, 100) + bytes.substr(6 * kMiB, 100));
  EXPECT_EQ((*object)->PeekRanges({{0, 2}}, out.data()).code(), absl::StatusCode::kUnimplemented);
}

TEST_F(ChunkTest, MappingsAndPathsArePrivateCopies) {
  const auto session = ConnectWithoutFds();
  const std::string bytes = RandomBytes(5 * kMiB, 1);
  ASSERT_OK(Save(session.get(), 1, "a", bytes));
  auto object = session->Open(At(1), "a", OpenMode::kMap);
  ASSERT_TRUE(object.ok()) << object.status();
  const auto view = (*object)->Map();
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_EQ(absl::string_view(view->data, view->length), bytes);
  const auto path = (*object)->Path();
  ASSERT_TRUE(path.ok()) << path.status();
  std::ifstream file(*path, std::ios::binary);
  std::stringstream read;
  read << file.rdbuf();
  EXPECT_TRUE(read.str() == bytes);
  ASSERT_OK((*object)->Verify());
}

}  // namespace
}  // namespace cairn::client
