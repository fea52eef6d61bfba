#include "server/storage/posix_storage.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "common/checksum.h"
#include "common/failpoint.h"
#include "common/fd.h"

namespace cairn::storage {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint32_t kBlock = 64 << 10;  // small blocks, so that small objects have several

// Bytes in memory as a slab holds them: whole pages.
class MemoryObject final : public ObjectSource {
 public:
  MemoryObject(const std::string& name, uint64_t length, uint32_t seed) {
    entry.name = name;
    entry.length = length;
    entry.block_bytes = kBlock;
    if (length > 0) {
      mapping_ = *Mapping::Anonymous((length + kPageBytes - 1) / kPageBytes * kPageBytes);
      std::mt19937 random(seed);
      for (uint64_t i = 0; i < length; ++i) mapping_.data()[i] = static_cast<char>(random());
      // What stands behind the object on its last page must not reach the file.
      for (uint64_t i = length; i < mapping_.length(); ++i) mapping_.data()[i] = 'Z';
    }
    entry.block_crcs = BlockCrcs(mapping_.data(), length, kBlock);
  }

  char* bytes() { return mapping_.data(); }
  Status Read(uint64_t offset, absl::Span<char> into) const override {
    std::copy_n(mapping_.data() + offset, into.size(), into.data());
    return absl::OkStatus();
  }
  std::string text() const { return std::string(mapping_.data(), entry.length); }

  ObjectEntry entry;

 private:
  Mapping mapping_;
};

// One writer's part of a checkpoint, with its bytes.
struct Part {
  Manifest manifest;
  std::vector<std::unique_ptr<MemoryObject>> objects;

  PartToWrite ToWrite() const {
    PartToWrite part{&manifest, EncodeManifest(manifest), {}};
    for (const auto& object : objects) part.sources.push_back(object.get());
    return part;
  }
};

Owner Me() { return {::geteuid(), ::getegid()}; }

class PosixStorage : public ::testing::Test {
 protected:
  PosixStorage() { UseRoot("/tmp"); }
  ~PosixStorage() override {
    EXPECT_TRUE(ArmFailpoints("").ok());
    fs::remove_all(root_);
  }

  void UseRoot(const std::string& below) {
    if (!root_.empty()) fs::remove_all(root_);
    std::string path = below + "/cairn-storage-XXXXXX";
    root_ = ::mkdtemp(path.data());
    fs::permissions(root_, fs::perms::all);
    storage_ = Make();
  }

  std::unique_ptr<Storage> Make(int threads = 2) {
    PosixOptions options;
    options.root = root_;
    options.threads = threads;
    auto storage = MakePosixStorage(options);
    EXPECT_TRUE(storage.ok()) << storage.status();
    return *std::move(storage);
  }

  static CheckpointKey Key(Step step, Attempt attempt, Revision revision = 0) {
    return {"job", step, attempt, revision};
  }

  static Part MakePart(const CheckpointKey& key, Writer writer = 0, int32_t world_size = 1,
                       std::vector<std::pair<std::string, uint64_t>> objects = {}) {
    if (objects.empty()) {
      objects = {{absl::StrCat("big/", writer), 5 * kBlock + 1},
                 {absl::StrCat("empty-", writer), 0},
                 {absl::StrCat("small/deep/", writer), 1},
                 {absl::StrCat("whole-", writer), 2 * kBlock}};
    }
    Part part;
    part.manifest.job = key.job;
    part.manifest.owner_uid = ::geteuid();
    part.manifest.step = key.step;
    part.manifest.attempt = key.attempt;
    part.manifest.revision = key.revision;
    part.manifest.writer = writer;
    part.manifest.world_size = world_size;
    const auto seed =
        static_cast<uint32_t>(key.step * 7919 + key.attempt * 31 + key.revision * 7 + writer);
    for (const auto& [name, length] : objects) {
      part.objects.push_back(std::make_unique<MemoryObject>(name, length, seed));
      part.manifest.objects.push_back(part.objects.back()->entry);
    }
    return part;
  }

  Status Write(const Part& part) {
    return storage_->WriteParts(part.manifest.Checkpoint(), Me(), {part.ToWrite()});
  }
  bool Publish(const CheckpointKey& key) {
    const auto published = storage_->Publish(key, Me());
    EXPECT_TRUE(published.ok()) << published.status();
    return published.ok() && published->has_value();
  }
  // Supersedes nothing: finishes claims and empties the trash.
  void Sweep() {
    const Status status = storage_->Sweep("job", [](const CheckpointKey&) { return false; });
    EXPECT_TRUE(status.ok()) << status;
  }
  void WriteAndPublish(const Part& part) {
    const Status status = Write(part);
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_TRUE(Publish(part.manifest.Checkpoint()));
  }

  // "step@attempt.revision", "/" when published.
  std::vector<std::string> Stored() {
    std::vector<std::string> words;
    const auto job = storage_->Read("job");
    EXPECT_TRUE(job.ok()) << job.status();
    for (const StoredCheckpoint& c : job->checkpoints) {
      words.push_back(absl::StrCat(c.key.step, "@", c.key.attempt, ".", c.key.revision,
                                   c.published ? "/" : ""));
    }
    EXPECT_THAT(job->problems, IsEmpty());
    return words;
  }
  std::string Path(const std::string& path) const { return root_ + "/job/" + path; }
  static std::string Bytes(const std::string& path) {
    auto bytes = ReadFile(path);
    return bytes.ok() ? *bytes : bytes.status().ToString();
  }
  void ExpectFiles(const Part& part, const std::string& directory) {
    for (const auto& object : part.objects) {
      EXPECT_EQ(Bytes(Path(directory + "/" + object->entry.name)), object->text())
          << object->entry.name;
    }
  }
  // Everything below the job that is neither a final file nor a directory.
  std::vector<std::string> Leftovers() {
    std::vector<std::string> found;
    for (const auto& entry : fs::recursive_directory_iterator(root_)) {
      const std::string path = entry.path();
      if (absl::EndsWith(path, ".tmp")) found.push_back(path);
    }
    for (const char* place : {".cairn/trash", ".cairn/publish"}) {
      if (!fs::exists(Path(place))) continue;
      for (const auto& entry : fs::directory_iterator(Path(place))) found.push_back(entry.path());
    }
    return found;
  }
  // Nothing in this tree has changed for two minutes.
  void Age(const std::string& directory) {
    const timespec old[2] = {{::time(nullptr) - 120, 0}, {::time(nullptr) - 120, 0}};
    for (const auto& entry : fs::recursive_directory_iterator(directory)) {
      ::utimensat(AT_FDCWD, entry.path().c_str(), old, AT_SYMLINK_NOFOLLOW);
    }
    ::utimensat(AT_FDCWD, directory.c_str(), old, 0);
  }
  // How a child that runs `body` ends; kFailpointExitCode when a failpoint ended it.
  static int InChild(const std::function<int()>& body) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(body());
    int state = 0;
    EXPECT_EQ(::waitpid(child, &state, 0), child);
    return WIFEXITED(state) ? WEXITSTATUS(state) : -1;
  }

  std::string root_;
  std::unique_ptr<Storage> storage_;
};

// --- the way of a checkpoint

// Promise 9: the files are exactly the objects.
TEST_F(PosixStorage, APublishedCheckpointIsExactlyItsObjects) {
  const Part part = MakePart(Key(5, 100));
  WriteAndPublish(part);
  ExpectFiles(part, "5");
  EXPECT_EQ(Bytes(Path("5/.cairn/0.manifest")), EncodeManifest(part.manifest));
  EXPECT_THAT(Stored(), ElementsAre("5@100.0/"));
  EXPECT_THAT(Leftovers(), IsEmpty());
  EXPECT_EQ(storage_->counters().objects_written, 4u);
  EXPECT_EQ(storage_->counters().bytes_written, part.manifest.TotalBytes());
  EXPECT_EQ(storage_->counters().published, 1u);
  struct stat info = {};
  ASSERT_EQ(::stat(Path("").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  EXPECT_THAT(*storage_->Jobs(), ElementsAre("job"));
  EXPECT_EQ(storage_->JobOwner("job")->uid, ::geteuid());
}

TEST_F(PosixStorage, ManyThreadsWriteManyFilesAlike) {
  std::vector<std::pair<std::string, uint64_t>> objects;
  for (uint64_t i = 0; i < 60; ++i) {
    objects.emplace_back(absl::StrCat("t/", 100 + i), i % 7 == 0 ? 0 : i * 9001);
  }
  const Part part = MakePart(Key(5, 100), 0, 1, objects);
  storage_ = Make(/*threads=*/8);
  WriteAndPublish(part);
  ExpectFiles(part, "5");
}

TEST_F(PosixStorage, NothingIsPublishedBeforeEveryWriterIsThere) {
  const Part zero = MakePart(Key(5, 100), 0, 2), one = MakePart(Key(5, 100), 1, 2);
  ASSERT_TRUE(Write(zero).ok());
  EXPECT_FALSE(Publish(Key(5, 100)));
  EXPECT_FALSE(fs::exists(Path("5")));
  ASSERT_TRUE(Write(one).ok());
  EXPECT_TRUE(Publish(Key(5, 100)));
  ExpectFiles(zero, "5");
  ExpectFiles(one, "5");
}

TEST_F(PosixStorage, AWriterWithNothingToSaveCounts) {
  Part part;
  part.manifest.job = "job";
  part.manifest.step = 5;
  part.manifest.attempt = 100;
  WriteAndPublish(part);
  EXPECT_THAT(Stored(), ElementsAre("5@100.0/"));
}

TEST_F(PosixStorage, APartThatStandsIsKept) {
  const Part zero = MakePart(Key(5, 100), 0, 2), one = MakePart(Key(5, 100), 1, 2);
  ASSERT_TRUE(Write(zero).ok());
  const uint64_t files = storage_->counters().objects_written;
  ASSERT_TRUE(Write(zero).ok());
  EXPECT_EQ(storage_->counters().objects_written, files);
  ASSERT_TRUE(Write(one).ok());
  ASSERT_TRUE(Publish(Key(5, 100)));
  const uint64_t all = storage_->counters().objects_written;
  ASSERT_TRUE(Write(zero).ok()) << "also when it stands in its final place";
  EXPECT_TRUE(Publish(Key(5, 100)));
  EXPECT_EQ(storage_->counters().objects_written, all);
}

TEST_F(PosixStorage, APartWhoseFilesAreDamagedIsWrittenAgain) {
  const Part part = MakePart(Key(5, 100));
  ASSERT_TRUE(Write(part).ok());
  fs::resize_file(Path(".cairn/partial/5.100.0/big/0"), 3);
  WriteAndPublish(part);
  ExpectFiles(part, "5");
}

TEST_F(PosixStorage, ForOneWriterAndRevisionWhatIsStoredWins) {
  ASSERT_TRUE(Write(MakePart(Key(5, 100), 0, 2)).ok());
  const Part other = MakePart(Key(5, 100), 0, 2, {{"other", 10}});
  EXPECT_EQ(Write(other).code(), absl::StatusCode::kAlreadyExists);
}

// R28: one name from two writers.
TEST_F(PosixStorage, WhatIsInConflictIsNeverPublished) {
  ASSERT_TRUE(Write(MakePart(Key(5, 100), 0, 2, {{"same", 10}})).ok());
  const Status status = Write(MakePart(Key(5, 100), 1, 2, {{"same", 10}}));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("writers 0 and 1"));
  EXPECT_FALSE(Publish(Key(5, 100)));
}

// --- replacing

TEST_F(PosixStorage, ANewerRevisionTakesThePlaceOfTheOlder) {
  WriteAndPublish(MakePart(Key(5, 100, 0)));
  const Part newer = MakePart(Key(5, 100, 1));
  WriteAndPublish(newer);
  ExpectFiles(newer, "5");
  EXPECT_THAT(Stored(), ElementsAre("5@100.1/"));
  Sweep();
  EXPECT_THAT(Leftovers(), IsEmpty());
}

TEST_F(PosixStorage, ANewerAttemptReplacesWhateverTheRevision) {
  WriteAndPublish(MakePart(Key(5, 100, 7)));
  WriteAndPublish(MakePart(Key(5, 101, 0)));
  EXPECT_THAT(Stored(), ElementsAre("5@101.0/"));
}

TEST_F(PosixStorage, AnOlderOneNeverTakesThePlaceOfANewer) {
  const Part newer = MakePart(Key(5, 101));
  WriteAndPublish(newer);
  ASSERT_TRUE(Write(MakePart(Key(5, 100))).ok());
  EXPECT_FALSE(Publish(Key(5, 100)));
  ExpectFiles(newer, "5");
  EXPECT_THAT(Stored(), ElementsAre("5@101.0/"));
  Sweep();
  EXPECT_THAT(Leftovers(), IsEmpty());
}

TEST_F(PosixStorage, PublishersThatMeetLeaveTheNewest) {
  for (int round = 0; round < 10; ++round) {
    const Step step = round;
    std::vector<Part> parts;
    for (Revision revision = 0; revision < 4; ++revision) {
      parts.push_back(MakePart(Key(step, 100, revision), 0, 1, {{"a", 100}}));
      ASSERT_TRUE(Write(parts.back()).ok());
    }
    std::vector<std::thread> threads;
    for (const Part& part : parts) {
      threads.emplace_back([this, key = part.manifest.Checkpoint()] {
        // A daemon of its own each: their locks don't know each other.
        auto other = Make();
        const auto published = other->Publish(key, Me());
        EXPECT_TRUE(published.ok()) << published.status();
      });
    }
    for (std::thread& thread : threads) thread.join();
    Sweep();
    ExpectFiles(parts.back(), std::to_string(step));
    EXPECT_THAT(Leftovers(), IsEmpty());
  }
}

// --- what is not ours

TEST_F(PosixStorage, AUsersDirectoryIsNeverTouched) {
  ASSERT_TRUE(Write(MakePart(Key(5, 100))).ok());
  fs::create_directories(Path("5"));
  std::ofstream(Path("5/thesis.txt")) << "years of work";
  const Status status = storage_->Publish(Key(5, 100), Me()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(status.message()), HasSubstr("not Cairn's"));
  EXPECT_TRUE(storage_->Delete(Key(5, 100), Me(), true).ok());
  EXPECT_TRUE(storage_->Sweep("job", [](const CheckpointKey&) { return true; }).ok());
  EXPECT_EQ(Bytes(Path("5/thesis.txt")), "years of work");
}

TEST_F(PosixStorage, AUsersFileOrLinkAtTheStepIsNotOursEither) {
  ASSERT_TRUE(Write(MakePart(Key(5, 100))).ok());
  ASSERT_TRUE(Write(MakePart(Key(6, 100))).ok());
  std::ofstream(Path("5")) << "a file";
  fs::create_directories(root_ + "/elsewhere");
  fs::create_directory_symlink(root_ + "/elsewhere", Path("6"));
  for (Step step : {5, 6}) {
    EXPECT_EQ(storage_->Publish(Key(step, 100), Me()).status().code(),
              absl::StatusCode::kAlreadyExists);
  }
  EXPECT_EQ(Bytes(Path("5")), "a file");
  EXPECT_TRUE(fs::is_empty(root_ + "/elsewhere"));
}

// Promise 6.
TEST_F(PosixStorage, NoSymbolicLinkIsWrittenThrough) {
  fs::create_directories(root_ + "/victim");
  fs::create_directory_symlink(root_ + "/victim", root_ + "/job");
  EXPECT_FALSE(Write(MakePart(Key(5, 100))).ok());
  fs::remove(root_ + "/job");
  fs::create_directories(Path(""));
  fs::create_directory_symlink(root_ + "/victim", Path(".cairn"));
  EXPECT_EQ(Write(MakePart(Key(5, 100))).code(), absl::StatusCode::kPermissionDenied);
  fs::remove(Path(".cairn"));
  fs::create_directories(Path(".cairn/partial/5.100.0"));
  fs::create_directory_symlink(root_ + "/victim", Path(".cairn/partial/5.100.0/big"));
  EXPECT_EQ(Write(MakePart(Key(5, 100))).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_TRUE(fs::is_empty(root_ + "/victim"));
}

// --- deleting and sweeping

TEST_F(PosixStorage, DeletingTakesTheWholeCheckpointAndOnlyIt) {
  WriteAndPublish(MakePart(Key(5, 100)));
  WriteAndPublish(MakePart(Key(6, 100)));
  ASSERT_TRUE(storage_->Delete(Key(5, 99), Me(), false).ok()) << "another attempt's: not there";
  EXPECT_THAT(Stored(), ElementsAre("5@100.0/", "6@100.0/"));
  ASSERT_TRUE(storage_->Delete(Key(5, 100), Me(), false).ok());
  ASSERT_TRUE(storage_->Delete(Key(5, 100), Me(), false).ok()) << "twice is once";
  EXPECT_THAT(Stored(), ElementsAre("6@100.0/"));
  EXPECT_THAT(Leftovers(), IsEmpty());
  WriteAndPublish(MakePart(Key(5, 100)));  // without a tombstone it may come back
}

TEST_F(PosixStorage, ARemovedStepIsNotBroughtBackByALatePersist) {
  WriteAndPublish(MakePart(Key(5, 100)));
  const Part late = MakePart(Key(5, 100, 1)), next_life = MakePart(Key(5, 101));
  ASSERT_TRUE(Write(late).ok());
  ASSERT_TRUE(storage_->Delete(Key(5, 100, 1), Me(), true).ok());
  EXPECT_THAT(Stored(), IsEmpty());
  EXPECT_FALSE(fs::exists(Path("5")));
  EXPECT_EQ(Write(late).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(Publish(Key(5, 100, 1)));
  ASSERT_TRUE(storage_->Delete(Key(5, 50), Me(), true).ok());
  EXPECT_EQ(Write(late).code(), absl::StatusCode::kFailedPrecondition)
      << "a tombstone never goes back";
  WriteAndPublish(next_life);
  EXPECT_THAT(Stored(), ElementsAre("5@101.0/"));
}

TEST_F(PosixStorage, SweepingFinishesWhatADeadPublisherClaimed) {
  const Part part = MakePart(Key(5, 100));
  ASSERT_TRUE(Write(part).ok());
  fs::rename(Path(".cairn/partial/5.100.0"), Path(".cairn/publish/5.100.0"));
  EXPECT_THAT(Stored(), ElementsAre("5@100.0/"));
  Sweep();
  ExpectFiles(part, "5");
  EXPECT_THAT(Leftovers(), IsEmpty());
}

TEST_F(PosixStorage, SweepingThrowsAwayWhatAnExchangeLeftAside) {
  const Part newer = MakePart(Key(5, 101));
  WriteAndPublish(newer);
  ASSERT_TRUE(Write(MakePart(Key(5, 100))).ok());
  fs::rename(Path(".cairn/partial/5.100.0"), Path(".cairn/publish/5.101.0"));
  Sweep();
  ExpectFiles(newer, "5");
  EXPECT_THAT(Leftovers(), IsEmpty());
}

TEST_F(PosixStorage, SweepingTakesSupersededPartialsButNoneThatIsYoung) {
  for (Step step : {1, 2, 3}) ASSERT_TRUE(Write(MakePart(Key(step, 100), 0, 2)).ok());
  Age(Path(".cairn/partial/1.100.0"));
  Age(Path(".cairn/partial/2.100.0"));
  std::ofstream(Path(".cairn/partial/2.100.0/small/deep/new")) << "just now";
  Age(Path(".cairn/partial/3.100.0"));
  ASSERT_TRUE(storage_->Sweep("job", [](const CheckpointKey& key) { return key.step != 3; }).ok());
  EXPECT_THAT(Stored(), ElementsAre("2@100.0", "3@100.0"));
  EXPECT_THAT(Leftovers(), IsEmpty());
}

TEST_F(PosixStorage, SweepingAJobWithoutFilesIsNothing) {
  EXPECT_TRUE(storage_->Sweep("none", [](const CheckpointKey&) { return true; }).ok());
  const auto published = storage_->Publish({"none", 1, 1, 0}, Me());
  ASSERT_TRUE(published.ok()) << published.status();
  EXPECT_FALSE(published->has_value());
  EXPECT_TRUE(storage_->Delete({"none", 1, 1, 0}, Me(), false).ok());
}

// --- reading

TEST_F(PosixStorage, AnObjectIsOpenedWhereverItsCheckpointHasMovedTo) {
  const Part part = MakePart(Key(5, 100));
  ASSERT_TRUE(Write(part).ok());
  const StoredCheckpoint found = storage_->Read("job")->checkpoints.at(0);
  ASSERT_TRUE(Publish(Key(5, 100)));
  auto reader = storage_->Open(found, "big/0", Me());
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ(*ReadRegularFile((*reader)->Descriptor().value(), 1 << 30), part.objects[0]->text());
  EXPECT_EQ(storage_->Open(found, "nothing", Me()).status().code(), absl::StatusCode::kNotFound);
  // Replaced: the same name is there, but it is another checkpoint's.
  WriteAndPublish(MakePart(Key(5, 101)));
  EXPECT_EQ(storage_->Open(found, "big/0", Me()).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(PosixStorage, AFileOfTheWrongLengthOrNoneIsDataLoss) {
  WriteAndPublish(MakePart(Key(5, 100)));
  const StoredCheckpoint found = storage_->Read("job")->checkpoints.at(0);
  fs::resize_file(Path("5/big/0"), 5);
  EXPECT_EQ(storage_->Open(found, "big/0", Me()).status().code(), absl::StatusCode::kDataLoss);
  fs::remove(Path("5/whole-0"));
  EXPECT_EQ(storage_->Open(found, "whole-0", Me()).status().code(), absl::StatusCode::kDataLoss);
  fs::remove(Path("5/empty-0"));
  fs::create_symlink("/etc/passwd", Path("5/empty-0"));
  EXPECT_FALSE(storage_->Open(found, "empty-0", Me()).ok());
}

// --- failures

// R11: what a writer changed after sealing goes no further.
TEST_F(PosixStorage, BytesThatNoLongerVerifyAreNotWritten) {
  const Part part = MakePart(Key(5, 100));
  part.objects[0]->bytes()[3 * kBlock] ^= 1;
  const Status status = Write(part);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("big/0"));
  EXPECT_FALSE(Publish(Key(5, 100)));
  EXPECT_THAT(Leftovers(), IsEmpty());
  EXPECT_FALSE(fs::exists(Path(".cairn/partial/5.100.0/big/0")));
}

// R10.
TEST_F(PosixStorage, MemoryThatIsGoneIsDataLoss) {
  class Gone final : public ObjectSource {
    Status Read(uint64_t, absl::Span<char>) const override {
      return absl::DataLossError("the page is broken");
    }
  };
  Part part = MakePart(Key(5, 100), 0, 1, {{"a", 4096}});
  const Gone gone;
  PartToWrite to_write = part.ToWrite();
  to_write.sources[0] = &gone;
  EXPECT_EQ(storage_->WriteParts(Key(5, 100), Me(), {to_write}).code(),
            absl::StatusCode::kDataLoss);
  EXPECT_THAT(Leftovers(), IsEmpty());
}

// R4.
TEST_F(PosixStorage, AFileThatCouldNotBeSyncedIsWrittenAnewToANewInode) {
  ASSERT_TRUE(Write(MakePart(Key(4, 100))).ok());  // the job has its directories
  const Part part = MakePart(Key(5, 100), 0, 1, {{"a", 3 * kBlock}});
  for (const char* fault : {"storage.fsync=EIO", "storage.close=EIO", "storage.fsync:1=ENOSPC"}) {
    ASSERT_TRUE(ArmFailpoints(fault).ok());
    const Status status = Write(part);
    ASSERT_TRUE(ArmFailpoints("").ok());
    if (absl::EndsWith(fault, "ENOSPC")) {
      EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << fault;
    } else {
      EXPECT_TRUE(status.ok()) << status;
    }
    EXPECT_THAT(Leftovers(), IsEmpty());
    fs::remove_all(Path(".cairn/partial"));
  }
  EXPECT_EQ(storage_->counters().sync_failures, 3u);
  EXPECT_EQ(storage_->counters().rewrites, 2u);
}

TEST_F(PosixStorage, AFileThatCanNeverBeSyncedIsGivenUp) {
  ASSERT_TRUE(Write(MakePart(Key(4, 100))).ok());
  const Part part = MakePart(Key(5, 100), 0, 1, {{"a", 3 * kBlock}});
  ASSERT_TRUE(ArmFailpoints("storage.fsync:1=EIO,storage.close:1=EIO,storage.write:7=EIO").ok());
  EXPECT_EQ(Write(part).code(), absl::StatusCode::kDataLoss);
  ASSERT_TRUE(ArmFailpoints("").ok());
  EXPECT_FALSE(Publish(Key(5, 100)));
  EXPECT_THAT(Leftovers(), IsEmpty());
  EXPECT_FALSE(fs::exists(Path(".cairn/partial/5.100.0/a")));
}

// R6: file systems that refuse O_DIRECT at the write.
TEST_F(PosixStorage, WithoutDirectWritesTheBytesAreTheSame) {
  const Part part = MakePart(Key(5, 100));
  ASSERT_TRUE(ArmFailpoints("storage.write:2=EINVAL").ok());
  WriteAndPublish(part);
  ASSERT_TRUE(ArmFailpoints("").ok());
  ExpectFiles(part, "5");
}

// The N-th system call fails, for every N: an error or success, and then everything works again.
TEST_F(PosixStorage, WhicheverCallFailsNothingIsLostAndTheNextTrySucceeds) {
  UseRoot(fs::exists("/dev/shm") ? "/dev/shm" : "/tmp");
  const Part old = MakePart(Key(5, 100, 0), 0, 1, {{"d/a", 2 * kBlock + 5}, {"e", 0}});
  const Part newer = MakePart(Key(5, 100, 1), 0, 1, {{"d/a", kBlock}, {"f", 9}});
  for (const char* error : {"EIO", "ENOSPC", "ENOENT"}) {
    for (int n = 1;; ++n) {
      ASSERT_LT(n, 400);
      fs::remove_all(Path(""));
      WriteAndPublish(old);
      ASSERT_TRUE(ArmFailpoints(absl::StrCat("any:", n, "=", error)).ok());
      Status status = Write(newer);
      bool published = false;
      if (status.ok()) {
        const auto answer = storage_->Publish(Key(5, 100, 1), Me());
        status = answer.status();
        published = answer.ok() && answer->has_value();
      }
      const bool reached = FailpointsHit() > 0;
      ASSERT_TRUE(ArmFailpoints("").ok());
      if (!(status.ok() && published)) {
        const auto found = storage_->Read("job");
        ASSERT_TRUE(found.ok());
        EXPECT_FALSE(found->checkpoints.empty()) << error << " " << n << " " << status;
      }
      ASSERT_TRUE(Write(newer).ok()) << error << " at call " << n << ": " << status;
      ASSERT_TRUE(Publish(Key(5, 100, 1))) << error << " at call " << n << ": " << status;
      ExpectFiles(newer, "5");
      Sweep();
      EXPECT_THAT(Leftovers(), IsEmpty()) << error << " at call " << n;
      if (!reached) break;
    }
  }
}

// --- crashes

// R1, promise 3: a process that dies before its N-th call, for every N, and once more in its
// recovery.
TEST_F(PosixStorage, DyingAtAnyCallLeavesTheOldOrTheNewCheckpointWhole) {
  UseRoot(fs::exists("/dev/shm") ? "/dev/shm" : "/tmp");
  const Part old = MakePart(Key(5, 100, 0), 0, 1, {{"d/a", 2 * kBlock + 5}, {"e", 0}});
  const Part newer = MakePart(Key(5, 100, 1), 0, 1, {{"d/a", kBlock}, {"f", 9}});
  const auto replace = [&](const std::string& failpoint) {
    return InChild([&] {
      auto storage = Make();
      if (!ArmFailpoints(failpoint).ok()) return 1;
      if (!storage->Sweep("job", [](const CheckpointKey&) { return false; }).ok()) return 2;
      if (!storage->WriteParts(Key(5, 100, 1), Me(), {newer.ToWrite()}).ok()) return 3;
      const auto published = storage->Publish(Key(5, 100, 1), Me());
      if (!published.ok()) return 4;
      return published->has_value() ? 0 : 5;
    });
  };
  const auto check = [&](const std::string& when) {
    const auto found = storage_->Read("job");
    ASSERT_TRUE(found.ok()) << when;
    ASSERT_THAT(found->problems, IsEmpty()) << when;
    bool old_or_new = false;
    for (const StoredCheckpoint& stored : found->checkpoints) {
      if (!stored.Complete()) continue;
      old_or_new = true;
      const Part& part = stored.key.revision == 0 ? old : newer;
      for (const auto& object : part.objects) {
        ASSERT_EQ(Bytes(stored.location.text() + "/" + object->entry.name), object->text()) << when;
      }
    }
    ASSERT_TRUE(old_or_new) << when;
  };
  int n = 1;
  for (;; ++n) {
    ASSERT_LT(n, 400);
    for (int again : {0, 1, 2, 3, 5, 8, 13, 21, 34}) {
      fs::remove_all(Path(""));
      WriteAndPublish(old);
      const int died = replace(absl::StrCat("any:", n));
      if (died == 0) {
        EXPECT_GT(n, 40) << "the calls are no longer counted";
        return;
      }
      ASSERT_EQ(died, kFailpointExitCode) << "at call " << n;
      const std::string when = absl::StrCat("dead at call ", n, ", then at call ", again);
      check(when);
      if (again > 0) {
        const int second = replace(absl::StrCat("any:", again));
        ASSERT_TRUE(second == kFailpointExitCode || second == 0) << when;
        check(when);
      }
      ASSERT_EQ(replace(""), 0) << when;
      Sweep();
      ExpectFiles(newer, "5");
      EXPECT_THAT(Stored(), ElementsAre("5@100.1/")) << when;
      EXPECT_THAT(Leftovers(), ::testing::Each(HasSubstr("/partial/"))) << when;
      if (again == 0 && n % 8 != 1) break;  // every eighth crash is followed by a second one
    }
  }
}

TEST_F(PosixStorage, DyingWhileDeletingLeavesItWholeOrGone) {
  UseRoot(fs::exists("/dev/shm") ? "/dev/shm" : "/tmp");
  const Part part = MakePart(Key(5, 100), 0, 1, {{"d/a", kBlock}, {"e", 0}});
  for (bool tombstone : {false, true}) {
    for (int n = 1;; ++n) {
      ASSERT_LT(n, 300);
      fs::remove_all(Path(""));
      WriteAndPublish(part);
      const int died = InChild([&] {
        auto storage = Make();
        if (!ArmFailpoints(absl::StrCat("any:", n)).ok()) return 1;
        return storage->Delete(Key(5, 100), Me(), tombstone).ok() ? 0 : 2;
      });
      if (fs::exists(Path("5"))) ExpectFiles(part, "5");
      ASSERT_TRUE(storage_->Delete(Key(5, 100), Me(), tombstone).ok());
      EXPECT_THAT(Stored(), IsEmpty());
      EXPECT_THAT(Leftovers(), IsEmpty());
      if (died == 0) break;
      ASSERT_EQ(died, kFailpointExitCode);
    }
  }
}

// A failpoint that this room never reaches would prove nothing above.
TEST_F(PosixStorage, EveryFailpointOfStorageIsReached) {
  for (Failpoint point : AllFailpoints()) {
    if (!absl::StartsWith(FailpointName(point), "storage.")) continue;
    fs::remove_all(root_ + "/job");
    const int died = InChild([&] {
      auto storage = Make();
      if (!ArmFailpoints(FailpointName(point)).ok()) return 1;
      const Part part = MakePart(Key(5, 100));
      if (!storage->WriteParts(Key(5, 100), Me(), {part.ToWrite()}).ok()) return 2;
      if (!storage->Publish(Key(5, 100), Me()).ok()) return 3;
      return storage->Delete(Key(5, 100), Me(), true).ok() ? 0 : 4;
    });
    EXPECT_EQ(died, kFailpointExitCode) << FailpointName(point);
  }
}

// --- full disks and other users

// R5: in a mount namespace of its own, with a tmpfs of 4 MiB as the root.
TEST_F(PosixStorage, AFullDiskIsToldLeavesNothingAndIsGotOver) {
  const Part big = MakePart(Key(5, 100), 0, 1, {{"a", 8 << 20}});
  const Part wide = MakePart(Key(6, 100), 0, 1, {{"a", 1 << 20}, {"b", 1 << 20}, {"c", 8 << 20}});
  const Part small = MakePart(Key(7, 100), 0, 1, {{"a", 3 << 20}});
  constexpr int kNoNamespace = 77;
  const int result = InChild([&] {
    const Owner me = Me();
    if (::unshare(CLONE_NEWNS) != 0) {
      if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return kNoNamespace;
      std::ofstream("/proc/self/setgroups") << "deny";
      std::ofstream("/proc/self/uid_map") << me.uid << " " << me.uid << " 1";
      std::ofstream("/proc/self/gid_map") << me.gid << " " << me.gid << " 1";
    }
    if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("small", root_.c_str(), "tmpfs", 0, "size=4m") != 0) {
      return kNoNamespace;
    }
    storage_ = Make();
    for (const Part* part : {&big, &wide}) {
      const Status status = Write(*part);
      if (!absl::IsResourceExhausted(status)) return 1;
      for (const auto& entry : fs::recursive_directory_iterator(root_)) {
        if (entry.is_regular_file()) return 2;
      }
    }
    // What a dead daemon left of the same part makes room for it: the disk does not hold it twice.
    fs::create_directories(Path(".cairn/partial/7.100.0"));
    std::ofstream(Path(".cairn/partial/7.100.0/a")) << std::string(3 << 20, 'x');
    if (!Write(small).ok()) return 3;
    return Publish(Key(7, 100)) && Bytes(Path("7/a")) == small.objects[0]->text() ? 0 : 4;
  });
  if (result == kNoNamespace) GTEST_SKIP() << "no right to mount a small tmpfs";
  EXPECT_EQ(result, 0);
}

class AsRoot : public PosixStorage {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs uid 0 to act as another user";
  }
  static constexpr Owner kUser{12345, 23456};
};

// Promise 9: owned by who saved it.
TEST_F(AsRoot, EverythingBelongsToTheOwnerOfTheJob) {
  fs::permissions(root_, fs::perms::owner_all | fs::perms::group_exec | fs::perms::others_exec);
  const Part part = MakePart(Key(5, 100));
  for (Step step : {5, 6}) {
    const Part one = MakePart(Key(step, 100));
    ASSERT_TRUE(storage_->WriteParts(Key(step, 100), kUser, {one.ToWrite()}).ok());
    const auto published = storage_->Publish(Key(step, 100), kUser);
    ASSERT_TRUE(published.ok()) << published.status();
    ASSERT_TRUE(published->has_value());
  }
  for (const auto& entry : fs::recursive_directory_iterator(Path(""))) {
    struct stat info = {};
    ASSERT_EQ(::lstat(entry.path().c_str(), &info), 0);
    EXPECT_EQ(info.st_uid, kUser.uid) << entry.path();
    EXPECT_EQ(info.st_gid, kUser.gid) << entry.path();
  }
  EXPECT_EQ(storage_->JobOwner("job")->uid, kUser.uid);
  EXPECT_EQ(::geteuid(), 0u);
  // Another user may not open it; the owner may.
  const StoredCheckpoint found = storage_->Read("job")->checkpoints.at(0);
  EXPECT_EQ(storage_->Open(found, "big/0", {999, 999}).status().code(),
            absl::StatusCode::kPermissionDenied);
  EXPECT_TRUE(storage_->Open(found, "big/0", kUser).ok());
  // Nor may another user's job go there.
  EXPECT_EQ(storage_->WriteParts(Key(7, 100), {999, 999}, {MakePart(Key(7, 100)).ToWrite()}).code(),
            absl::StatusCode::kPermissionDenied);
}

TEST_F(AsRoot, WhatTheOwnerMayNotWriteIsNotWritten) {
  fs::create_directories(Path(".cairn/partial"));
  ASSERT_EQ(::chown(Path("").c_str(), kUser.uid, kUser.gid), 0);
  // .cairn is root's: the owner has no right there, and the daemon does not lend its own.
  const Part part = MakePart(Key(5, 100));
  EXPECT_EQ(storage_->WriteParts(Key(5, 100), kUser, {part.ToWrite()}).code(),
            absl::StatusCode::kPermissionDenied);
}

TEST_F(AsRoot, ADaemonWithoutTheRightPersistsOnlyItsOwnJobs) {
  const Part part = MakePart(Key(5, 100));
  const int result = InChild([&] {
    if (::setgid(777) != 0 || ::setuid(777) != 0) return 1;
    auto storage = Make();
    const Status other = storage->WriteParts(Key(5, 100), kUser, {part.ToWrite()});
    if (!absl::IsPermissionDenied(other)) return 2;
    if (!absl::StrContains(other.message(), "777") ||
        !absl::StrContains(other.message(), "12345")) {
      return 3;
    }
    return storage->WriteParts(Key(5, 100), {777, 777}, {part.ToWrite()}).ok() ? 0 : 4;
  });
  EXPECT_EQ(result, 0);
}

// --- options

TEST(StorageOptions, ThatCannotWorkAreRefusedNamingThem) {
  const auto refusal = [](PosixOptions options) {
    const auto storage = MakePosixStorage(options);
    EXPECT_FALSE(storage.ok());
    return std::string(storage.status().message());
  };
  PosixOptions options;
  EXPECT_THAT(refusal(options), HasSubstr("storage.root"));
  EXPECT_TRUE(options.Validate().ok()) << "no storage at all is a choice";
  options.root = "relative";
  EXPECT_THAT(refusal(options), HasSubstr("absolute"));
  options.root = "/nowhere/at/all";
  EXPECT_THAT(refusal(options), HasSubstr("/nowhere/at/all"));
  options.root = "/etc/passwd";
  EXPECT_THAT(refusal(options), HasSubstr("/etc/passwd"));
  options.root = "/tmp";
  options.threads = 0;
  EXPECT_THAT(refusal(options), HasSubstr("storage.threads"));
}

}  // namespace
}  // namespace cairn::storage
