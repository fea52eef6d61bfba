// What is the posix storage's own: files, directories, links, rights. What every storage must do is
// in storage_contract_test.cc; what happens when system calls fail is in posix_faults_test.cc.
#include <thread>

#include "tests/storage/posix_fixture.h"

namespace cairn::storage {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class PosixStorage : public PosixFixture {};

// Promise 9: the files are exactly the objects.
TEST_F(PosixStorage, APublishedCheckpointIsFilesThatAreExactlyItsObjects) {
  const Part part = MakePart(Key(5, 100));
  ASSERT_TRUE(Write(part).ok());
  EXPECT_FALSE(fs::exists(Path("5")));
  const auto published = storage_->Publish(Key(5, 100), Me());
  ASSERT_TRUE(published.ok()) << published.status();
  ASSERT_TRUE(published->where.has_value());
  EXPECT_EQ(published->where->text(), root_ + "/job/5");
  ExpectFiles(part, "5");
  EXPECT_EQ(Bytes(Path("5/.cairn/0.manifest")), EncodeManifest(part.manifest));
  EXPECT_THAT(Leftovers(), IsEmpty());
  struct stat info = {};
  ASSERT_EQ(::stat(Path("").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
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

TEST_F(PosixStorage, AUsersDirectoryIsNeverTouched) {
  ASSERT_TRUE(Write(MakePart(Key(5, 100))).ok());
  fs::create_directories(Path("5"));
  std::ofstream(Path("5/thesis.txt")) << "years of work";
  const Status status = storage_->Publish(Key(5, 100), Me()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(status.message()), HasSubstr("not Cairn's"));
  EXPECT_TRUE(storage_->Delete(Key(5, 100), Me(), DeleteKind::kUpToAttempt).ok());
  EXPECT_TRUE(
      storage_->Sweep("job", {.superseded = [](const CheckpointKey&) { return true; }}).ok());
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
  fs::create_directories(Path(".cairn/partial"));
  fs::create_directory_symlink(root_ + "/victim", Path(".cairn/partial/5.100.0"));
  EXPECT_FALSE(Write(MakePart(Key(5, 100))).ok());
  fs::remove(Path(".cairn/partial/5.100.0"));
  ASSERT_TRUE(Write(MakePart(Key(5, 100))).ok());
  fs::create_directory_symlink(root_ + "/victim", Path(".cairn/partial/5.100.0/big"));
  EXPECT_EQ(storage_->Publish(Key(5, 100), Me()).status().code(),
            absl::StatusCode::kPermissionDenied);
  EXPECT_TRUE(fs::is_empty(root_ + "/victim"));
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

TEST_F(PosixStorage, SweepingThrowsAwayARevisionThatAnExchangeLeftAside) {
  const Part newer = MakePart(Key(5, 100, 1));
  ASSERT_TRUE(Write(MakePart(Key(5, 100, 0))).ok());
  WriteAndPublish(newer);
  fs::rename(Path(".cairn/partial/5.100.0"), Path(".cairn/publish/5.100.1.77"));
  Sweep();
  ExpectFiles(newer, "5");
  EXPECT_THAT(Stored(), ElementsAre("5@100.1/"));
  EXPECT_THAT(Leftovers(), IsEmpty());
}

TEST_F(PosixStorage, SweepingKeepsAnotherAttemptThatAnExchangeLeftAside) {
  const Part newer = MakePart(Key(5, 101)), older = MakePart(Key(5, 100));
  WriteAndPublish(newer);
  ASSERT_TRUE(Write(older).ok());
  fs::rename(Path(".cairn/partial/5.100.0"), Path(".cairn/publish/5.101.0.77"));
  Sweep();
  ExpectFiles(newer, "5");
  ExpectFiles(older, ".cairn/abandoned/5.100.0");
  EXPECT_THAT(Leftovers(), IsEmpty());
}

TEST_F(PosixStorage, SweepingTakesSupersededPartialsButNoneThatIsYoung) {
  for (Step step : {1, 2, 3}) ASSERT_TRUE(Write(MakePart(Key(step, 100), 0, 2)).ok());
  Age(Path(".cairn/partial/1.100.0"));
  Age(Path(".cairn/partial/2.100.0"));
  std::ofstream(Path(".cairn/partial/2.100.0/.cairn/parts/0/small/deep/new")) << "just now";
  Age(Path(".cairn/partial/3.100.0"));
  ASSERT_TRUE(
      storage_->Sweep("job", {.superseded = [](const CheckpointKey& key) { return key.step != 3; }})
          .ok());
  EXPECT_THAT(Stored(), ElementsAre("2@100.0", "3@100.0"));
  EXPECT_THAT(Leftovers(), IsEmpty());
}

TEST_F(PosixStorage, WhatWasDeletedWaitsInTheTrashForAnHour) {
  UseRootInMemory();
  const auto in_trash = [&] {
    int entries = 0;
    for (const auto& entry : fs::directory_iterator(Path(".cairn/trash"))) {
      entries += entry.exists() ? 1 : 0;
    }
    return entries;
  };
  for (Step step : {5, 6, 7}) WriteAndPublish(MakePart(Key(step, 100)));
  Age(Path("5"), 9000);  // the hour begins when it is deleted, however old it is
  for (Step step : {5, 6}) {
    ASSERT_TRUE(storage_->Delete(Key(step, 100), Me(), DeleteKind::kFiles).ok());
  }
  WriteAndPublish(MakePart(Key(7, 100, 1)));  // what it replaced is not waited for
  EXPECT_EQ(in_trash(), 3);
  Sweep();
  EXPECT_EQ(in_trash(), 2);
  EXPECT_THAT(Stored(), ElementsAre("7@100.1/"));
  for (const auto& entry : fs::directory_iterator(Path(".cairn/trash"))) {
    if (absl::StartsWith(std::string(entry.path().filename()), "5.")) Age(entry.path(), 3700);
  }
  Sweep();
  EXPECT_EQ(in_trash(), 1);
  ASSERT_TRUE(storage_->Sweep("job", {.full = true}).ok());
  EXPECT_EQ(in_trash(), 0);
}

TEST_F(PosixStorage, TombstonesOfOlderVersionsCountAndAreMerged) {
  ASSERT_TRUE(Write(MakePart(Key(5, 300))).ok());
  fs::create_directories(Path(".cairn/removed"));
  std::ofstream(Path(".cairn/removed/5")) << "100\n";
  EXPECT_EQ(Write(MakePart(Key(5, 100))).code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(storage_->Delete(Key(5, 102), Me(), DeleteKind::kThisAttempt).ok());
  EXPECT_TRUE(fs::exists(Path(".cairn/removed/5")));
  ASSERT_TRUE(storage_->Delete(Key(5, 101), Me(), DeleteKind::kThisAttempt).ok());
  EXPECT_FALSE(fs::exists(Path(".cairn/removed/5")));
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(Path(".cairn/removed/5.attempts"))) {
    files.push_back(entry.path().filename());
  }
  EXPECT_THAT(files, ElementsAre("1-102"));
  EXPECT_TRUE(Publish(Key(5, 300)));
}

TEST_F(PosixStorage, DaemonsThatRemoveAtTheSameTimeLoseNoTombstone) {
  UseRootInMemory();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      const auto storage = Make();
      for (Attempt attempt = i + 1; attempt <= 40; attempt += 4) {
        EXPECT_TRUE(storage->Delete(Key(5, attempt), Me(), DeleteKind::kThisAttempt).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(storage_->Read("job")->removed.steps.at(5).ranges(),
              ElementsAre(AttemptRanges::Range{1, 40}));
}

// What a mount that went and came back does to an open file: no read of it succeeds any more.
TEST_F(PosixStorage, AFileThatWentStaleIsOpenedAnew) {
  const Part part = MakePart(Key(5, 100), 0, 1, {{"a", 1000}});
  WriteAndPublish(part);
  const StatusOr<StoredJob> job = storage_->Read("job");
  ASSERT_TRUE(job.ok()) << job.status();
  const auto reader = storage_->Open(job->checkpoints.at(0), "a", Me());
  ASSERT_TRUE(reader.ok()) << reader.status();
  const UniqueFd unreadable(::open(root_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_GE(::dup3(unreadable.get(), *(*reader)->Descriptor(), O_CLOEXEC), 0);
  std::string bytes(1000, '\0');
  for (int read = 0; read < 2; ++read) {
    const Status status = (*reader)->ReadAt(0, absl::MakeSpan(bytes));
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(bytes, part.objects.at(0)->text());
  }
}

TEST_F(PosixStorage, ALinkInAnObjectsPlaceIsNotOpened) {
  WriteAndPublish(MakePart(Key(5, 100)));
  const StoredCheckpoint found = storage_->Read("job")->checkpoints.at(0);
  fs::remove(Path("5/empty-0"));
  fs::create_symlink("/etc/passwd", Path("5/empty-0"));
  EXPECT_FALSE(storage_->Open(found, "empty-0", Me()).ok());
}

// R11.
TEST_F(PosixStorage, BytesThatDoNotVerifyLeaveNoFile) {
  const Part part = MakePart(Key(5, 100));
  part.objects[0]->bytes()[3 * kBlock] ^= 1;
  EXPECT_EQ(Write(part).code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(Leftovers(), IsEmpty());
  EXPECT_THAT(Stored(), IsEmpty());
}

class AsRoot : public PosixFixture {
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
    ASSERT_TRUE(published->where.has_value());
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

// Where a group may write below the root, one of its users makes the directory that the daemon is
// about to make.
TEST_F(AsRoot, AJobDirectoryThatAnotherUserPreparedIsNotAdopted) {
  fs::permissions(root_, fs::perms::owner_all | fs::perms::group_exec | fs::perms::others_exec);
  const fs::path planted = fs::path(root_) / ".cairn.job";
  fs::create_directory(planted);
  ASSERT_EQ(::chown(planted.c_str(), 999, 999), 0);
  const Part part = MakePart(Key(5, 100));
  const Status refused = storage_->WriteParts(Key(5, 100), kUser, {part.ToWrite()});
  EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("belongs to uid 999"));
  EXPECT_FALSE(fs::exists(Path("")));
  fs::remove(planted);
  // What the daemon left in a crash of its own is used.
  fs::create_directory(planted);
  EXPECT_TRUE(storage_->WriteParts(Key(5, 100), kUser, {part.ToWrite()}).ok());
  EXPECT_EQ(storage_->JobOwner("job")->uid, kUser.uid);
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
  options.root = "/tmp";
  options.threads = 0;
  EXPECT_THAT(refusal(options), HasSubstr("storage.threads"));
}

// Each node of a ring records where a life comes from when it first publishes something of it. One that took the other's
// half-written record for a dead daemon's made its first step fail, and the next one supersede it.
TEST_F(PosixStorage, TwoNodesThatWriteRecordsAtOnceAreNotInEachOthersWay) {
  constexpr int kRecords = 200;
  const auto write = [this](int from) {
    const auto storage = Make();
    for (int i = 0; i < kRecords; ++i) {
      LineRecord record;
      record.job = "job";
      record.number = from + i;
      record.kind = LineRecordKind::kOrigin;
      const auto written = storage->WriteLineRecord(record, Me());
      ASSERT_TRUE(written.ok()) << written.status();
    }
  };
  std::thread other([&] { write(10'000); });
  write(1);
  other.join();
}

TEST_F(PosixStorage, WhatADeadDaemonLeftBesideTheRecordsGoesAfterAWhile) {
  LineRecord record;
  record.job = "job";
  record.number = 7;
  record.kind = LineRecordKind::kOrigin;
  ASSERT_TRUE(storage_->WriteLineRecord(record, Me()).ok());
  const std::string fresh = Path(".cairn/line/abc-1.tmp"), old = Path(".cairn/line/abc-2.tmp");
  for (const std::string& path : {fresh, old}) std::ofstream(path) << "half";
  fs::last_write_time(old, fs::file_time_type::clock::now() - std::chrono::hours(1));
  record.number = 8;
  ASSERT_TRUE(storage_->WriteLineRecord(record, Me()).ok());
  EXPECT_TRUE(fs::exists(fresh));
  EXPECT_FALSE(fs::exists(old));
}

}  // namespace
}  // namespace cairn::storage
