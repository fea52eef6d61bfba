// What the posix storage does when a system call fails, the process dies, or the disk is full.
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>

#include "server/storage/files.h"
#include "server/storage/wary_storage.h"
#include "tests/storage/posix_fixture.h"

namespace cairn::storage {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class PosixFaults : public PosixFixture {};

// R4.
TEST_F(PosixFaults, AFileThatCouldNotBeSyncedIsWrittenAnewToANewInode) {
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

TEST_F(PosixFaults, AFileThatCanNeverBeSyncedIsGivenUp) {
  ASSERT_TRUE(Write(MakePart(Key(4, 100))).ok());
  const Part part = MakePart(Key(5, 100), 0, 1, {{"a", 3 * kBlock}});
  ASSERT_TRUE(ArmFailpoints("storage.fsync:1=EIO,storage.close:1=EIO,storage.write:7=EIO").ok());
  EXPECT_EQ(Write(part).code(), absl::StatusCode::kDataLoss);
  ASSERT_TRUE(ArmFailpoints("").ok());
  EXPECT_FALSE(Publish(Key(5, 100)));
  EXPECT_THAT(Leftovers(), IsEmpty());
}

// Bug: of two publishers of one step the slower one called its bytes bad: between its link and its look the other one had
// laid the file out, too, and removed the part's own directory.
TEST_F(PosixFaults, ALinkThatAnotherMadeBeforeTheSourceWentIsNotInTheWay) {
  ASSERT_TRUE(Write(MakePart(Key(4, 100))).ok());  // the job has a directory
  const UniqueFd job(::open(Path("").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_TRUE(job.valid());
  ASSERT_TRUE(ArmFailpoints("storage.link=EEXIST").ok());
  EXPECT_EQ(LinkAt(job.get(), "gone", job.get(), ".cairn").code(), absl::StatusCode::kNotFound);
}

// Some network file systems cannot sync a directory, and some cannot reserve room. Steps are stored there, and the
// status says what that means.
TEST_F(PosixFaults, StepsAreStoredWhereADirectoryCannotBeSynced) {
  UseRootInMemory();
  for (const char* call : {"storage.fsync", "storage.fallocate"}) {
    for (const char* error : {"EINVAL", "EOPNOTSUPP", "EPERM"}) {
      int failed = 0;
      for (int n = 1;; ++n) {
        fs::remove_all(Path(""));
        const Part part = MakePart(Key(5, 100));
        ASSERT_TRUE(ArmFailpoints(absl::StrCat(call, ":", n, "=", error)).ok());
        const Status status = Write(part);
        const auto published = storage_->Publish(Key(5, 100), Me());
        const bool reached = FailpointsHit() > 0;
        ASSERT_TRUE(ArmFailpoints("").ok());
        if (!reached) break;
        // A file that cannot be synced is another matter.
        failed += !status.ok();
        if (!status.ok()) continue;
        ASSERT_TRUE(published.ok()) << call << " " << n << " " << error << published.status();
        ExpectFiles(part, "5");
      }
      EXPECT_LE(failed, 5) << call << " " << error << ": four objects and a manifest";
    }
  }
  EXPECT_THAT(storage_->counters().weaknesses,
              ElementsAre(HasSubstr("fallocate"), HasSubstr("fsync of a directory")));
}

// R6: file systems that refuse O_DIRECT at the write.
TEST_F(PosixFaults, WithoutDirectWritesTheBytesAreTheSame) {
  const Part part = MakePart(Key(5, 100));
  ASSERT_TRUE(ArmFailpoints("storage.write:2=EINVAL").ok());
  WriteAndPublish(part);
  ASSERT_TRUE(ArmFailpoints("").ok());
  ExpectFiles(part, "5");
}

// The N-th system call fails, for every N: an error or success, and then everything works again.
TEST_F(PosixFaults, WhicheverCallFailsNothingIsLostAndTheNextTrySucceeds) {
  UseRootInMemory();
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
        published = answer.ok() && answer->where.has_value();
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
      if (fs::exists(Path(".cairn/writing"))) Age(Path(".cairn/writing"), 3700);
      Sweep();
      EXPECT_THAT(Leftovers(), IsEmpty()) << error << " at call " << n;
      if (!reached) break;
    }
  }
}

// R1, promise 3: a process that dies before its N-th call, for every N, and once more in its
// recovery.
TEST_F(PosixFaults, DyingAtAnyCallLeavesTheOldOrTheNewCheckpointWhole) {
  UseRootInMemory();
  const Part old = MakePart(Key(5, 100, 0), 0, 1, {{"d/a", 2 * kBlock + 5}, {"e", 0}});
  const Part newer = MakePart(Key(5, 100, 1), 0, 1, {{"d/a", kBlock}, {"f", 9}});
  const auto replace = [&](const std::string& failpoint) {
    return InChild([&] {
      auto storage = Make();
      if (!ArmFailpoints(failpoint).ok()) return 1;
      if (!storage->Sweep("job", {}).ok()) return 2;
      if (!storage->WriteParts(Key(5, 100, 1), Me(), {newer.ToWrite()}).ok()) return 3;
      const auto published = storage->Publish(Key(5, 100, 1), Me());
      if (!published.ok()) return 4;
      return published->where.has_value() ? 0 : 5;
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
        const std::string& inside = stored.parts.at(0).directory;
        ASSERT_EQ(Bytes(stored.location.text() + "/" + inside + "/" + object->entry.name),
                  object->text())
            << when;
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
      EXPECT_THAT(Leftovers(), ::testing::Each(HasSubstr("/writing/"))) << when;
      Age(Path(".cairn/writing"), 3700);
      Sweep();  // into the trash
      Sweep();
      EXPECT_THAT(Leftovers(), IsEmpty()) << when;
      if (again == 0 && n % 8 != 1) break;  // every eighth crash is followed by a second one
    }
  }
}

TEST_F(PosixFaults, DyingWhileDeletingLeavesItWholeOrGone) {
  UseRootInMemory();
  const Part part = MakePart(Key(5, 100), 0, 1, {{"d/a", kBlock}, {"e", 0}});
  for (const DeleteKind kind :
       {DeleteKind::kFiles, DeleteKind::kUpToAttempt, DeleteKind::kThisAttempt}) {
    for (int n = 1;; ++n) {
      ASSERT_LT(n, 300);
      fs::remove_all(Path(""));
      WriteAndPublish(part);
      const int died = InChild([&] {
        auto storage = Make();
        if (!ArmFailpoints(absl::StrCat("any:", n)).ok()) return 1;
        return storage->Delete(Key(5, 100), Me(), kind).ok() ? 0 : 2;
      });
      if (fs::exists(Path("5"))) ExpectFiles(part, "5");
      ASSERT_TRUE(storage_->Delete(Key(5, 100), Me(), kind).ok());
      EXPECT_THAT(Stored(), IsEmpty());
      EXPECT_THAT(Leftovers(), IsEmpty());
      if (died == 0) break;
      ASSERT_EQ(died, kFailpointExitCode);
    }
  }
}

// A failpoint that this room never reaches would prove nothing above.
TEST_F(PosixFaults, EveryFailpointOfStorageIsReached) {
  for (Failpoint point : AllFailpoints()) {
    if (!absl::StartsWith(FailpointName(point), "storage.")) continue;
    fs::remove_all(root_ + "/job");
    const int died = InChild([&] {
      Suspects suspects(nullptr, RealClock());
      auto storage = MakeWaryStorage(Make(), &suspects);
      if (!ArmFailpoints(FailpointName(point)).ok()) return 1;
      for (Revision revision : {0, 1}) {
        const Part part = MakePart(Key(5, 100, revision));
        if (!storage->WriteParts(Key(5, 100, revision), Me(), {part.ToWrite()}).ok()) return 2;
        if (!storage->Publish(Key(5, 100, revision), Me()).ok()) return 3;
      }
      if (!storage->Sweep("job", {}).ok()) return 4;
      return storage->Delete(Key(5, 100), Me(), DeleteKind::kUpToAttempt).ok() ? 0 : 5;
    });
    EXPECT_EQ(died, kFailpointExitCode) << FailpointName(point);
  }
}

constexpr int kNoNamespace = 77;

// R5: in a mount namespace of its own, with a tmpfs of 4 MiB as the root.
class FullDisk : public PosixFaults {
 protected:
  // `body` returns 0, or which of its expectations failed.
  void OnASmallDisk(const std::function<int()>& body) {
    const int result = InChild([&] {
      if (!MountSmall()) return kNoNamespace;
      storage_ = Make();
      return body();
    });
    if (result == kNoNamespace) GTEST_SKIP() << "no right to mount a small tmpfs";
    EXPECT_EQ(result, 0);
  }
  // A part of one object.
  static Part OfSize(Step step, uint64_t bytes, Writer writer = 0, int32_t world_size = 1) {
    return MakePart(Key(step, 100), writer, world_size, {{absl::StrCat("a", writer), bytes}});
  }
  bool Full(const Part& part) { return absl::IsResourceExhausted(Write(part)); }

 private:
  bool MountSmall() {
    const Owner me = Me();
    if (::unshare(CLONE_NEWNS) != 0) {
      if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
      std::ofstream("/proc/self/setgroups") << "deny";
      std::ofstream("/proc/self/uid_map") << me.uid << " " << me.uid << " 1";
      std::ofstream("/proc/self/gid_map") << me.gid << " " << me.gid << " 1";
    }
    return ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
           ::mount("small", root_.c_str(), "tmpfs", 0, "size=4m") == 0;
  }
};

// Parts that were written before the one that did not fit give back their room: their step may
// never be tried again.
TEST_F(FullDisk, AStepThatDoesNotFitGivesBackWhatWasWrittenOfIt) {
  OnASmallDisk([&] {
    const Part first = OfSize(5, 3 << 20, 0, 2), second = OfSize(5, 3 << 20, 1, 2);
    const Status status =
        storage_->WriteParts(Key(5, 100), Me(), {first.ToWrite(), second.ToWrite()});
    if (!absl::IsResourceExhausted(status)) return 1;
    if (!Write(OfSize(6, 3 << 20)).ok()) return 2;
    return Publish(Key(6, 100)) ? 0 : 3;
  });
}

// Regression: what another writer had stored of a step that failed stayed for ever.
TEST_F(FullDisk, WhatNobodyFinishesMakesRoomForTheNextStep) {
  OnASmallDisk([&] {
    if (!Write(OfSize(5, 3 << 20, 0, 2)).ok()) return 1;
    const Part next = OfSize(6, 3 << 20);
    if (!Full(OfSize(5, 3 << 20, 1, 2)) || !Full(next)) return 2;
    const SweepRules rules = {.wanted = [](const CheckpointKey& key) { return key.step == 6; },
                              .full = true};
    if (!storage_->Sweep("job", rules).ok() || !Full(next)) return 3;  // it may still come
    Age(Path(".cairn/partial/5.100.0"));
    if (!storage_->Sweep("job", rules).ok() || !Write(next).ok()) return 4;
    return Publish(Key(6, 100)) ? 0 : 5;
  });
}

TEST_F(FullDisk, WhatWasDeletedMakesRoomAtOnce) {
  OnASmallDisk([&] {
    if (!Write(OfSize(5, 2 << 20)).ok() || !Publish(Key(5, 100))) return 1;
    if (!storage_->Delete(Key(5, 100), Me(), DeleteKind::kFiles).ok()) return 2;
    if (fs::is_empty(Path(".cairn/trash"))) return 3;
    return Write(OfSize(6, 3 << 20)).ok() && Publish(Key(6, 100)) ? 0 : 4;
  });
}

TEST_F(FullDisk, WhatWasDeletedDoesNotWaitWhenLittleIsLeft) {
  OnASmallDisk([&] {
    if (!Write(OfSize(5, 3700 << 10)).ok() || !Publish(Key(5, 100))) return 1;
    if (!storage_->Delete(Key(5, 100), Me(), DeleteKind::kFiles).ok()) return 2;
    return fs::is_empty(Path(".cairn/trash")) ? 0 : 3;
  });
}

TEST_F(FullDisk, IsToldLeavesNothingAndIsGotOver) {
  const Part big = MakePart(Key(5, 100), 0, 1, {{"a", 8 << 20}});
  const Part wide = MakePart(Key(6, 100), 0, 1, {{"a", 1 << 20}, {"b", 1 << 20}, {"c", 8 << 20}});
  const Part small = MakePart(Key(7, 100), 0, 1, {{"a", 3 << 20}});
  OnASmallDisk([&] {
    for (const Part* part : {&big, &wide}) {
      const Status status = Write(*part);
      if (!absl::IsResourceExhausted(status)) return 1;
      for (const auto& entry : fs::recursive_directory_iterator(root_)) {
        if (entry.is_regular_file() && entry.path().filename() != kRootMarker) return 2;
      }
    }
    // A dead daemon's part of the same step goes when it has not changed for a minute.
    fs::create_directories(Path(".cairn/writing/7.100.0.123"));
    std::ofstream(Path(".cairn/writing/7.100.0.123/a")) << std::string(3 << 20, 'x');
    const SweepRules rules = {.wanted = [](const CheckpointKey&) { return true; }, .full = true};
    if (!Full(small) || !storage_->Sweep("job", rules).ok() || !Full(small)) return 3;
    Age(Path(".cairn/writing/7.100.0.123"));
    if (!storage_->Sweep("job", rules).ok() || !Write(small).ok()) return 4;
    return Publish(Key(7, 100)) && Bytes(Path("7/a")) == small.objects[0]->text() ? 0 : 5;
  });
}

}  // namespace
}  // namespace cairn::storage
