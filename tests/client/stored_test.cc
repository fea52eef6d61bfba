// Reading a storage root without a daemon (promise 9: the files are the user's).
#include "client/cpp/stored.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "common/checksum.h"
#include "common/layout.h"
#include "common/manifest.h"

namespace cairn::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Part {
  Step step = 0;
  Attempt attempt = 1;
  Revision revision = 0;
  Writer writer = 0;
  int32_t world_size = 1;
  Lineage lineage = {};
};

class Stored : public ::testing::Test {
 protected:
  Stored() {
    char name[] = "/tmp/cairn-stored-XXXXXX";
    root_ = mkdtemp(name);
  }
  ~Stored() override { std::filesystem::remove_all(root_); }

  // Puts a writer's part where the persister would: object `name` with `bytes`, and its manifest.
  void Put(const Part& part, const std::string& name, const std::string& bytes) {
    Manifest manifest;
    manifest.job = "run";
    manifest.step = part.step;
    manifest.attempt = part.attempt;
    manifest.revision = part.revision;
    manifest.writer = part.writer;
    manifest.world_size = part.world_size;
    manifest.lineage = part.lineage;
    manifest.objects.push_back({name, ObjectKind::kRaw, bytes.size(), kBlockBytes,
                                BlockCrcs(bytes.data(), bytes.size(), kBlockBytes)});
    const std::string folder = root_ + "/run/" + StepDirectory(part.step);
    std::filesystem::create_directories(folder + "/.cairn");
    std::filesystem::create_directories(std::filesystem::path(folder + "/" + name).parent_path());
    std::filesystem::create_directories(root_ + "/run/.cairn");
    std::ofstream(folder + "/" + name, std::ios::binary) << bytes;
    std::ofstream(folder + "/" + ManifestFile(part.writer), std::ios::binary)
        << EncodeManifest(manifest);
  }

  StatusOr<std::string> Load(Step step, const std::string& name) {
    CheckpointRef ref;
    ref.job = "run";
    ref.step = step;
    CAIRN_ASSIGN_OR_RETURN(auto object, OpenStored(root_, ref, name));
    std::string out(object->info().length, '\0');
    CAIRN_RETURN_IF_ERROR(object->ReadInto(out.data()));
    return out;
  }

  std::string root_;
};

TEST_F(Stored, AnObjectIsReadBack) {
  const std::string bytes(9 << 20, 'b');
  Put({.step = 4}, "model/weights.bin", bytes);
  const auto loaded = Load(4, "model/weights.bin");
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_TRUE(*loaded == bytes);
}

// A mapped file that is cut short kills who touches it; what was mapped of it is a copy (promise 4).
TEST_F(Stored, WhatIsMappedOutlivesItsFile) {
  const std::string bytes(3 << 20, 'b');
  Put({.step = 4}, "weights.bin", bytes);
  CheckpointRef ref;
  ref.job = "run";
  ref.step = 4;
  auto object = OpenStored(root_, ref, "weights.bin");
  ASSERT_TRUE(object.ok()) << object.status();
  auto view = (*object)->Map();
  ASSERT_TRUE(view.ok()) << view.status();
  std::filesystem::resize_file(root_ + "/run/4/weights.bin", 1);
  EXPECT_EQ(absl::string_view(view->data, view->length), bytes);
  EXPECT_EQ((*object)->Map().status().code(), absl::StatusCode::kDataLoss) << "checked, too";
}

TEST_F(Stored, LatestIsTheHighestCompleteStep) {
  Put({.step = 4}, "a", "four");
  Put({.step = 5}, "a", "five");
  Put({.step = 6, .writer = 1, .world_size = 2}, "a", "half of six");
  const auto latest = StoredLatest(root_, "run");
  ASSERT_TRUE(latest.ok()) << latest.status();
  EXPECT_EQ(latest->key.step, 5);
  EXPECT_EQ(latest->source, "storage");
  EXPECT_EQ(*Load(kNoStep, "a"), "five");
}

TEST_F(Stored, LatestFollowsTheLine) {
  Put({.step = 4, .attempt = 1}, "a", "four");
  Put({.step = 9, .attempt = 1}, "a", "abandoned");
  Put({.step = 5, .attempt = 2, .lineage = LineageFrom(4, 1, {})}, "a", "five");
  EXPECT_EQ(*Load(kNoStep, "a"), "five");
  EXPECT_EQ(*Load(4, "a"), "four");
  EXPECT_EQ(Load(9, "a").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(Stored, AnAbandonedStepIsFoundByItsAttempt) {
  Put({.step = 9, .attempt = 1}, "a", "abandoned");
  Put({.step = 5, .attempt = 2}, "a", "five");
  const CheckpointRef ref = {"run", 9, 1, -1};
  EXPECT_TRUE(OpenStored(root_, ref, "a").ok());
}

TEST_F(Stored, WhatAnotherAttemptReplacedIsFoundByItsAttempt) {
  Put({.step = 9, .attempt = 1}, "a", "abandoned");
  const std::string aside = root_ + "/run/" + AbandonedDirectory({"run", 9, 1, 0});
  std::filesystem::create_directories(root_ + "/run/.cairn/abandoned");
  std::filesystem::rename(root_ + "/run/9", aside);
  Put({.step = 9, .attempt = 2}, "a", "in its place");
  EXPECT_EQ(*Load(9, "a"), "in its place");
  const auto object = OpenStored(root_, {"run", 9, 1, -1}, "a");
  ASSERT_TRUE(object.ok()) << object.status();
  std::string bytes((*object)->info().length, '\0');
  ASSERT_TRUE((*object)->ReadInto(bytes.data()).ok());
  EXPECT_EQ(bytes, "abandoned");
}

TEST_F(Stored, WhatIsMissingIsNotFound) {
  EXPECT_EQ(StoredLatest(root_, "run").status().code(), absl::StatusCode::kNotFound);
  Put({.step = 4}, "a", "four");
  EXPECT_EQ(Load(5, "a").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Load(4, "b").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Load(4, "../a").status().code(), absl::StatusCode::kInvalidArgument);
}

// Promise 3.
TEST_F(Stored, WhatLostAFileIsNotTheLatestAndTheAnswerSaysWhy) {
  Put({.step = 4}, "a", "four");
  Put({.step = 5}, "a", "five");
  std::filesystem::remove(root_ + "/run/5/a");
  const auto latest = StoredLatest(root_, "run");
  ASSERT_TRUE(latest.ok()) << latest.status();
  EXPECT_EQ(latest->key.step, 4);
  EXPECT_THAT(latest->passed_over, HasSubstr("run/5: file a of writer 0 is gone"));
  EXPECT_EQ(*Load(kNoStep, "a"), "four");
  EXPECT_EQ(Load(5, "a").status().code(), absl::StatusCode::kDataLoss);
  std::filesystem::resize_file(root_ + "/run/4/a", 1);
  const Status none = StoredLatest(root_, "run").status();
  EXPECT_EQ(none.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(none.message()), HasSubstr("run/5: file a of writer 0 is gone"));
}

// Promise 2.
// The newest may be what cannot be read: going on from an older one would abandon it.
TEST_F(Stored, LatestIsUnavailableWhileSomethingCannotBeRead) {
  Put({.step = 1}, "a", "one");
  Put({.step = 2}, "a", "two");
  // As a build of a later version writes it.
  const std::string path = root_ + "/run/2/" + ManifestFile(0);
  std::ostringstream read;
  read << std::ifstream(path, std::ios::binary).rdbuf();
  std::string bytes = read.str();
  bytes[8] = 99;
  const uint32_t crc = Crc32c(0, bytes.data(), bytes.size() - sizeof(crc));
  std::memcpy(bytes.data() + bytes.size() - sizeof(crc), &crc, sizeof(crc));
  std::ofstream(path, std::ios::binary) << bytes;
  EXPECT_EQ(StoredLatest(root_, "run").status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(*Load(1, "a"), "one");
  Put({.step = 3}, "a", "three");
  EXPECT_EQ(StoredLatest(root_, "run")->key.step, 3);
  const Status second = Load(2, "a").status();
  EXPECT_EQ(second.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.message()), HasSubstr("format 99"));
}

TEST_F(Stored, AFlippedBitIsDataLossThatNamesTheBlock) {
  std::string bytes(9 << 20, 'b');
  Put({.step = 4}, "a", bytes);
  std::fstream file(root_ + "/run/4/a", std::ios::binary | std::ios::in | std::ios::out);
  file.seekp((4 << 20) + 17);
  file.put('B');
  file.close();
  const Status status = Load(4, "a").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("block 1 of 3"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("run/4"));
}

TEST_F(Stored, ATruncatedOrMissingFileIsDataLoss) {
  Put({.step = 4}, "a", "0123456789");
  std::filesystem::resize_file(root_ + "/run/4/a", 5);
  EXPECT_EQ(Load(4, "a").status().code(), absl::StatusCode::kDataLoss);
  std::filesystem::remove(root_ + "/run/4/a");
  EXPECT_EQ(Load(4, "a").status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(Stored, ALinkOutOfTheRootIsNotFollowed) {
  Put({.step = 4}, "a", "0123456789");
  std::filesystem::remove(root_ + "/run/4/a");
  std::filesystem::create_symlink("/etc/hostname", root_ + "/run/4/a");
  EXPECT_EQ(Load(4, "a").status().code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(Stored, ARangeIsVerifiedToo) {
  std::string bytes(9 << 20, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 7 >> 3);
  Put({.step = 4}, "a", bytes);
  const CheckpointRef ref = {"run", 4, 0, -1};
  auto object = OpenStored(root_, ref, "a");
  ASSERT_TRUE(object.ok());
  for (const auto& [offset, length] : std::vector<std::pair<uint64_t, uint64_t>>{
           {0, 1}, {5, 0}, {(4 << 20) - 1, 2}, {100, 8 << 20}, {bytes.size() - 3, 3}}) {
    std::string out(length, '\0');
    ASSERT_TRUE((*object)->ReadRange(offset, length, out.data()).ok());
    EXPECT_TRUE(out == bytes.substr(offset, length)) << offset;
  }
  char one;
  EXPECT_EQ((*object)->ReadRange(bytes.size(), 1, &one).code(), absl::StatusCode::kOutOfRange);
  EXPECT_TRUE((*object)->Verify().ok());
}

TEST_F(Stored, OfPiecesTheBlocksTheyTouchAreVerified) {
  std::string bytes(9 << 20, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 7 >> 3);
  Put({.step = 4}, "a", bytes);
  std::fstream file(root_ + "/run/4/a", std::ios::binary | std::ios::in | std::ios::out);
  file.seekp((4 << 20) + 17);
  file.put(static_cast<char>(~bytes[(4 << 20) + 17]));
  file.close();
  auto object = OpenStored(root_, {"run", 4, 0, -1}, "a");
  ASSERT_TRUE(object.ok());
  std::string out(2 * 64, '\0');
  const std::vector<int64_t> shape = {2}, from = {8 << 20}, into = {64};
  const StridedPiece beside = {100, 64, shape, from, out.data(), into};
  ASSERT_TRUE((*object)->ReadPieces({beside}).ok());
  EXPECT_EQ(out, bytes.substr(100, 64) + bytes.substr((8 << 20) + 100, 64));
  char last_of_block = 0;  // memory of its own: blocks are copied by several threads at once
  const StridedPiece touching = {(8 << 20) - 1, 1, {}, {}, &last_of_block, {}};
  const Status status = (*object)->ReadPieces({beside, touching});
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("block 1 of 3"));
}

TEST_F(Stored, AnObjectHasAPathAndAMapping) {
  Put({.step = 4}, "a", "0123456789");
  auto object = OpenStored(root_, {"run", 4, 0, -1}, "a");
  ASSERT_TRUE(object.ok());
  const auto path = (*object)->Path();
  ASSERT_TRUE(path.ok());
  std::string bytes;
  std::ifstream(*path) >> bytes;
  EXPECT_EQ(bytes, "0123456789");
  auto view = (*object)->Map();
  ASSERT_TRUE(view.ok());
  view->data[0] = 'X';  // private: the file stays as it is
  EXPECT_EQ(*Load(4, "a"), "0123456789");
}

TEST_F(Stored, ListingsShowJobsCheckpointsAndObjects) {
  Put({.step = 4, .world_size = 2}, "a", "a of 4");
  Put({.step = 4, .writer = 1, .world_size = 2}, "b", "b");
  Put({.step = 5, .writer = 1, .world_size = 2}, "c", "half");
  const auto jobs = ListStored(root_, "");
  ASSERT_TRUE(jobs.ok()) << jobs.status();
  EXPECT_THAT(jobs->jobs, ElementsAre("run"));
  const auto checkpoints = ListStored(root_, "run");
  ASSERT_TRUE(checkpoints.ok());
  ASSERT_EQ(checkpoints->checkpoints.size(), 2u);
  const CheckpointInfo& four = checkpoints->checkpoints[0];
  EXPECT_EQ(four.key.step, 4);
  EXPECT_TRUE(four.facts.complete);
  EXPECT_TRUE(four.on_line);
  EXPECT_THAT(four.missing_writers, IsEmpty());
  EXPECT_EQ(four.bytes, 7u);
  const CheckpointInfo& five = checkpoints->checkpoints[1];
  EXPECT_FALSE(five.facts.complete);
  EXPECT_THAT(five.missing_writers, ElementsAre(0));
  const auto objects = ListStored(root_, "run/latest");
  ASSERT_TRUE(objects.ok());
  ASSERT_EQ(objects->objects.size(), 2u);
  EXPECT_EQ(objects->objects[0].name, "a");
  EXPECT_EQ(objects->objects[1].writer, 1);
  const auto exact = ListStored(root_, ExactListPath(four.key));
  ASSERT_TRUE(exact.ok()) << exact.status();
  EXPECT_EQ(exact->objects.size(), 2u);
  CheckpointKey other = four.key;
  ++other.attempt;
  EXPECT_EQ(ListStored(root_, ExactListPath(other)).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ListStored(root_, "run/x").status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace cairn::client
