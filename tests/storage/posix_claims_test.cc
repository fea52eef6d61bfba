// One file: publishers and deleters that meet, stopped in the vocabulary of one fixture.
// What happens where publishers of several daemons meet at one step, and where one of them is
// stopped between a look and the move that it decided on.
#include <algorithm>
#include <atomic>
#include <iostream>
#include <map>
#include <random>
#include <thread>
#include <utility>

#include "common/layout.h"
#include "common/mutex.h"
#include "tests/storage/posix_fixture.h"

namespace cairn::storage {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Stops threads where a test says, until it says go.
class Stops {
 public:
  Stops() {
    SetFailpointHook([this](Failpoint point) { Reach(point); });
  }
  ~Stops() {
    Go();
    SetFailpointHook(nullptr);
  }

  // The calling thread stops when it reaches `point` for the `n`-th time from now, and, with
  // `then`, the next time that it reaches that.
  static void StopHereAt(Failpoint point, int n = 1, Failpoint then = Failpoint::kCount) {
    at_ = {point, n};
    then_ = then;
  }
  // The calling thread will not stop any more.
  void End() {
    MutexLock lock(&mu_);
    ++ended_;
    changed_.NotifyAll();
  }
  void WaitUntilStoppedOrEnded(int threads) {
    MutexLock lock(&mu_);
    while (stopped_ + ended_ != threads) changed_.Wait(&mu_);
  }
  void WaitUntilStopped(int threads) {
    MutexLock lock(&mu_);
    while (stopped_ != threads) changed_.Wait(&mu_);
  }
  bool stopped() {
    MutexLock lock(&mu_);
    return stopped_ > 0;
  }
  // The thread that stopped first, of those that still are, goes on.
  void GoFirst() {
    MutexLock lock(&mu_);
    ++next_to_go_;
    --stopped_;
    changed_.NotifyAll();
  }
  void Go() {
    MutexLock lock(&mu_);
    next_to_go_ = 1 << 30;
    stopped_ = 0;
    changed_.NotifyAll();
  }

 private:
  void Reach(Failpoint point) {
    if (point != at_.first || --at_.second != 0) return;
    at_ = {then_, 1};
    then_ = Failpoint::kCount;
    MutexLock lock(&mu_);
    const int mine = arrived_++;
    ++stopped_;
    changed_.NotifyAll();
    while (mine >= next_to_go_) changed_.Wait(&mu_);
  }

  static thread_local std::pair<Failpoint, int> at_;
  static thread_local Failpoint then_;
  Mutex mu_;
  CondVar changed_;
  int arrived_ ABSL_GUARDED_BY(mu_) = 0;
  int stopped_ ABSL_GUARDED_BY(mu_) = 0;
  int ended_ ABSL_GUARDED_BY(mu_) = 0;
  int next_to_go_ ABSL_GUARDED_BY(mu_) = 0;
};
thread_local std::pair<Failpoint, int> Stops::at_ = {Failpoint::kCount, 0};
thread_local Failpoint Stops::then_ = Failpoint::kCount;

class PosixClaims : public PosixFixture {
 protected:
  // A publisher of another daemon, which has no lock in common with ours.
  std::thread Publisher(const CheckpointKey& key, Failpoint stop, int n = 1) {
    return std::thread([this, key, stop, n, storage = Make().release()] {
      const std::unique_ptr<Storage> owned(storage);
      Stops::StopHereAt(stop, n);
      const auto published = owned->Publish(key, Me());
      if (!published.ok()) error_ = published.status();
      published_ += published.ok() && published->where.has_value();
    });
  }
  // Storage of a file system that cannot exchange two directories.
  std::unique_ptr<Storage> MakeWithoutExchange() {
    auto storage = Make();
    // It finds out at its first exchange.
    const std::string job = absl::StrCat("first-", ::getpid());
    for (const Revision revision : {0, 1}) {
      const CheckpointKey key{job, 1, 1, revision};
      EXPECT_TRUE(storage::Write(*storage, MakePart(key, 0, 1, {{"a", 1}})).ok());
      EXPECT_TRUE(ArmFailpoints("storage.exchange=EINVAL").ok());
      EXPECT_TRUE(storage::Publish(*storage, key));
      EXPECT_EQ(FailpointsHit(), revision);
      EXPECT_TRUE(ArmFailpoints("").ok());
    }
    fs::remove_all(root_ + "/" + job);
    return storage;
  }

  std::atomic<int> published_{0};
  Status error_;
};

// Regression: with one name for the claims of all publishers, the second one's exchange, decided on
// a stale look, brought the new checkpoint back under the claim, and the first one, which had seen
// it standing, threw the claim away as what had been replaced.
TEST_F(PosixClaims, TwoPublishersDoNotThrowTheNewCheckpointAway) {
  const Part newer = MakePart(Key(5, 100, 1));
  WriteAndPublish(MakePart(Key(5, 100, 0)));
  ASSERT_TRUE(Write(newer).ok());
  Stops stops;
  // The second has looked: the old one stands, the new one is claimed. It is about to exchange
  // them. Should that succeed, it stops once more, before it can look at what it has done.
  std::thread second([&] {
    const auto storage = Make();
    Stops::StopHereAt(Failpoint::kStorageExchange, 1, /*then=*/Failpoint::kStorageRenamed);
    EXPECT_TRUE(storage::Publish(*storage, Key(5, 100, 1)));
    stops.End();
  });
  stops.WaitUntilStopped(1);
  // The first exchanges them, sees the new one standing, and is about to throw the old one away.
  // Its renames: of the claim, the exchange, into the trash.
  std::thread first = Publisher(Key(5, 100, 1), Failpoint::kStorageRename, 3);
  stops.WaitUntilStopped(2);
  stops.GoFirst();
  stops.WaitUntilStoppedOrEnded(2);
  stops.GoFirst();
  first.join();
  stops.Go();
  second.join();
  EXPECT_TRUE(error_.ok()) << error_;
  EXPECT_EQ(published_, 1) << "by the first; the second says for itself";
  ExpectFiles(newer, "5");
  EXPECT_THAT(Stored(), ElementsAre("5@100.1/"));
}

// The second publisher's look is older still: it is stopped wherever it renames.
TEST_F(PosixClaims, APublisherThatWasAwayUndoesNothing) {
  UseRootInMemory();
  for (int n = 1; n < 7; ++n) {
    for (const Attempt attempt : {100, 101}) {
      fs::remove_all(Path(""));
      const Part older = MakePart(Key(5, 100, 0)), newer = MakePart(Key(5, attempt, 1));
      WriteAndPublish(older);
      ASSERT_TRUE(Write(newer).ok());
      published_ = 0;
      Stops stops;
      std::atomic<bool> done = false;
      std::thread away([&, storage = Make().release()] {
        const std::unique_ptr<Storage> owned(storage);
        Stops::StopHereAt(Failpoint::kStorageRename, n);
        EXPECT_TRUE(storage::Publish(*owned, newer.manifest.Checkpoint()));
        done = true;
      });
      if (n <= 4) stops.WaitUntilStopped(1);
      EXPECT_TRUE(Publish(newer.manifest.Checkpoint())) << n;
      WriteAndPublish(MakePart(Key(5, 102)));
      Sweep();
      stops.Go();
      away.join();
      Sweep();
      ExpectFiles(MakePart(Key(5, 102)), "5");
      ExpectFiles(newer, absl::StrCat(".cairn/abandoned/5.", attempt, ".1"));
      EXPECT_THAT(Leftovers(), IsEmpty()) << n;
      EXPECT_EQ(fs::exists(Path(".cairn/abandoned/5.100.0")), attempt == 101) << n;
    }
  }
}

TEST_F(PosixClaims, ADeletionDecidedOnAStaleLookTakesNothingElse) {
  const Part newer = MakePart(Key(5, 100, 1));
  WriteAndPublish(MakePart(Key(5, 100, 0)));
  Stops stops;
  std::thread deleting([&] {
    Stops::StopHereAt(Failpoint::kStorageRename);
    EXPECT_TRUE(Make()->Delete(Key(5, 100, 0), Me(), DeleteKind::kFiles).ok());
  });
  stops.WaitUntilStopped(1);
  WriteAndPublish(newer);
  stops.Go();
  deleting.join();
  EXPECT_THAT(Stored(), ElementsAre("5@100.1/"));
  ExpectFiles(newer, "5");
}

// Another node decides for a checkpoint while this one deletes it, at each of its moves and after it died.
TEST_F(PosixClaims, ADecisionMadeDuringADeletionBringsTheFilesBack) {
  UseRootInMemory();  // a full disk keeps nothing in its trash
  const Part part = MakePart(Key(5, 100, 0));
  const LineRecord use{"job", 900, LineRecordKind::kUse, LineageFrom(5, 100, {})};
  for (int n = 1; n <= 2; ++n) {
    fs::remove_all(Path(""));
    WriteAndPublish(part);
    int renames = 0;
    SetFailpointHook([&](Failpoint point) {
      if (point != Failpoint::kStorageRename || ++renames != n) return;
      EXPECT_TRUE(Make()->WriteLineRecord(use, Me()).ok());
    });
    EXPECT_EQ(storage_->Delete(Key(5, 100, 0), Me(), DeleteKind::kFiles).code(),
              absl::StatusCode::kFailedPrecondition);
    SetFailpointHook(nullptr);
    EXPECT_GT(renames, n);
    ExpectFiles(part, "5");
    EXPECT_TRUE(fs::is_empty(Path(".cairn/trash"))) << n;
  }
  fs::remove_all(Path(""));
  WriteAndPublish(part);
  ASSERT_TRUE(storage_->Delete(Key(5, 100, 0), Me(), DeleteKind::kFiles).ok());
  ASSERT_TRUE(storage_->WriteLineRecord(use, Me()).ok());
  // Its hour is over, and something else empties the trash.
  for (const auto& entry : fs::directory_iterator(Path(".cairn/trash"))) Age(entry.path(), 3700);
  ASSERT_TRUE(storage_->Delete(Key(6, 100, 0), Me(), DeleteKind::kUpToAttempt).ok());
  EXPECT_FALSE(fs::is_empty(Path(".cairn/trash")));
  Sweep();
  ExpectFiles(part, "5");
}

// What `rm` has removed for good meanwhile is not brought back, and nothing that is damaged.
TEST_F(PosixClaims, ADecisionBringsNothingBackThatIsGoneForGood) {
  UseRootInMemory();
  WriteAndPublish(MakePart(Key(5, 100, 0)));
  ASSERT_TRUE(storage_->Delete(Key(5, 100, 0), Me(), DeleteKind::kFiles).ok());
  const LineRecord use{"job", 900, LineRecordKind::kUse, LineageFrom(5, 100, {})};
  ASSERT_TRUE(storage_->WriteLineRecord(use, Me()).ok());
  ASSERT_TRUE(storage_->Delete(Key(5, 100, 0), Me(), DeleteKind::kUpToAttempt).ok());
  Sweep();
  EXPECT_FALSE(fs::exists(Path("5")));
}

// A step that is removed while it is published: whoever looks second sees the other's work.
TEST_F(PosixClaims, AStepThatIsRemovedWhileItIsPublishedIsTakenBack) {
  for (int n = 1; n <= 3; ++n) {
    for (const DeleteKind kind : {DeleteKind::kUpToAttempt, DeleteKind::kThisAttempt}) {
      fs::remove_all(Path(""));
      ASSERT_TRUE(Write(MakePart(Key(5, 100))).ok());
      Stops stops;
      std::thread publishing = Publisher(Key(5, 100), Failpoint::kStorageRename, n);
      stops.WaitUntilStopped(1);
      ASSERT_TRUE(storage_->Delete(Key(5, 100), Me(), kind).ok());
      stops.Go();
      publishing.join();
      EXPECT_EQ(published_, 0) << n;
      EXPECT_FALSE(fs::exists(Path("5"))) << n;
      Sweep();
      EXPECT_THAT(Leftovers(), IsEmpty()) << n;
    }
  }
  // It is removed when it already stands, and the deletion has not come to look there.
  fs::remove_all(Path(""));
  ASSERT_TRUE(Write(MakePart(Key(5, 100))).ok());
  fs::create_directories(Path(TombstoneDirectory(5)));
  std::atomic<int> renames = 0;
  SetFailpointHook([&](Failpoint point) {
    if (point == Failpoint::kStorageRename && ++renames == 3) {
      std::ofstream(Path(TombstoneDirectory(5)) + "/100-100") << "";
    }
  });
  EXPECT_FALSE(Publish(Key(5, 100)));
  EXPECT_EQ(renames, 5) << "claimed, laid out, in, out, and to the trash";
  EXPECT_FALSE(fs::exists(Path("5")));
}

// A directory of the user's appears between the look and the exchange.
TEST_F(PosixClaims, AUsersDirectoryThatCameInBetweenIsPutBack) {
  for (const char* armed : {"", "storage.exchange=EINVAL"}) {
    fs::remove_all(Path(""));
    storage_ = Make();
    const Part newer = MakePart(Key(5, 100, 1));
    WriteAndPublish(MakePart(Key(5, 100, 0)));
    ASSERT_TRUE(Write(newer).ok());
    int renames = 0;
    SetFailpointHook([&](Failpoint point) {
      if (point != Failpoint::kStorageRename || ++renames != 3) return;
      fs::rename(Path("5"), Path("moved"));
      fs::create_directories(Path("5"));
      std::ofstream(Path("5/thesis.txt")) << "years of work";
    });
    ASSERT_TRUE(ArmFailpoints(armed).ok());
    EXPECT_EQ(storage_->Publish(Key(5, 100, 1), Me()).status().code(),
              absl::StatusCode::kAlreadyExists);
    EXPECT_GE(renames, 4);
    SetFailpointHook(nullptr);
    ASSERT_TRUE(ArmFailpoints("").ok());
    EXPECT_EQ(Bytes(Path("5/thesis.txt")), "years of work");
    // Once the user's is gone, the checkpoint takes its place.
    fs::remove_all(Path("5"));
    EXPECT_TRUE(Publish(Key(5, 100, 1)));
    ExpectFiles(newer, "5");
  }
}

TEST_F(PosixClaims, SweepingFinishesADeadPublishersClaimUnderAnyName) {
  const Part part = MakePart(Key(5, 100));
  ASSERT_TRUE(Write(part).ok());
  fs::rename(Path(".cairn/partial/5.100.0"), Path(".cairn/publish/5.100.0.123456789"));
  EXPECT_THAT(Stored(), ElementsAre("5@100.0/"));
  EXPECT_TRUE(Write(part).ok());
  EXPECT_FALSE(fs::exists(Path(".cairn/partial/5.100.0"))) << "it stands claimed";
  EXPECT_TRUE(Publish(Key(5, 100)));
  ExpectFiles(part, "5");
  EXPECT_THAT(Leftovers(), IsEmpty());
}

// --- a writer that stands still, and its stand-in

class PosixWriters : public PosixClaims {
 protected:
  // All below the step: what each file holds, and the directories.
  std::map<std::string, std::string> Tree(const std::string& directory) {
    std::map<std::string, std::string> found;
    for (const auto& entry : fs::recursive_directory_iterator(Path(directory))) {
      found[entry.path()] = entry.is_directory() ? "a directory" : Bytes(entry.path());
    }
    return found;
  }
};

// Promise 3. Regression: it went on through directories that were open, which followed the rename, and removed by
// name from the published step what it could not finish.
TEST_F(PosixWriters, OneThatWasAwayChangesNothingThatIsPublished) {
  UseRootInMemory();
  const std::vector<Failpoint> points = {
      Failpoint::kStorageOpen,  Failpoint::kStorageMakeDirectory, Failpoint::kStorageAllocate,
      Failpoint::kStorageWrite, Failpoint::kStorageTruncate,      Failpoint::kStorageSync,
      Failpoint::kStorageClose, Failpoint::kStorageRename,        Failpoint::kStorageRenamed,
      Failpoint::kStorageUnlink};
  for (const Failpoint point : points) {
    for (const bool fails : {false, true}) {
      int n = 1;
      for (bool stopped = true; stopped; ++n) {
        ASSERT_LT(n, 100);
        fs::remove_all(Path(""));
        const Part part = MakePart(Key(5, 100)), same = MakePart(Key(5, 100));
        Stops stops;
        Status status;
        std::thread away([&, storage = Make().release()] {
          const std::unique_ptr<Storage> owned(storage);
          Stops::StopHereAt(point, n);
          status = storage::Write(*owned, part);
          stops.End();
        });
        stops.WaitUntilStoppedOrEnded(1);
        stopped = stops.stopped();
        const std::string when = absl::StrCat(FailpointName(point), " ", n, fails ? ", fails" : "");
        WriteAndPublish(same);
        const auto published = Tree("5");
        // The bytes that it still has to read have changed since they were sealed.
        for (const auto& object : part.objects) {
          if (fails && object->entry.length > 0) object->bytes()[object->entry.length - 1] ^= 1;
        }
        stops.Go();
        away.join();
        EXPECT_TRUE(status.ok() || (fails && absl::IsDataLoss(status))) << when << ": " << status;
        EXPECT_EQ(Tree("5"), published) << when;
        EXPECT_TRUE(Publish(Key(5, 100))) << when;
        Sweep();
        ExpectFiles(same, "5");
        EXPECT_THAT(Stored(), ElementsAre("5@100.0/")) << when;
        EXPECT_THAT(Leftovers(), IsEmpty()) << when;
      }
    }
  }
}

// Two publishers lay one checkpoint out, the first of them stopped at any of its links.
TEST_F(PosixWriters, TwoThatLayOutOneCheckpointLeaveItWhole) {
  UseRootInMemory();
  const Part first = MakePart(Key(5, 100), 0, 2), second = MakePart(Key(5, 100), 1, 2);
  for (int n = 1; n <= 10; ++n) {  // two parts of four files and a manifest
    fs::remove_all(Path(""));
    ASSERT_TRUE(Write(first).ok());
    ASSERT_TRUE(Write(second).ok());
    published_ = 0;
    Stops stops;
    std::thread away = Publisher(Key(5, 100), Failpoint::kStorageLink, n);
    stops.WaitUntilStopped(1);
    ASSERT_TRUE(Publish(Key(5, 100))) << n;
    const auto published = Tree("5");
    stops.Go();
    away.join();
    EXPECT_TRUE(error_.ok()) << error_;
    EXPECT_EQ(published_, 1) << n;
    EXPECT_EQ(Tree("5"), published) << n;
    ExpectFiles(first, "5");
    ExpectFiles(second, "5");
    Sweep();
    EXPECT_THAT(Leftovers(), IsEmpty()) << n;
  }
}

TEST_F(PosixWriters, AFileThatCannotBeLinkedIsMoved) {
  const Part part = MakePart(Key(5, 100));
  for (int n = 1; n <= 5; ++n) {  // four objects, and the manifest
    fs::remove_all(Path(""));
    ASSERT_TRUE(Write(part).ok());
    ASSERT_TRUE(ArmFailpoints(absl::StrCat("storage.link:", n, "=EPERM")).ok());
    EXPECT_TRUE(Publish(Key(5, 100)));
    EXPECT_EQ(FailpointsHit(), 1);
    ASSERT_TRUE(ArmFailpoints("").ok());
    ExpectFiles(part, "5");
    EXPECT_THAT(Stored(), ElementsAre("5@100.0/"));
  }
}

// A reader finds an object wherever a publisher that died has left it.
TEST_F(PosixWriters, WhatIsHalfLaidOutIsRead) {
  UseRootInMemory();
  const Part part = MakePart(Key(5, 100));
  for (int n = 1; n <= 5; ++n) {
    fs::remove_all(Path(""));
    ASSERT_TRUE(Write(part).ok());
    const int died = InChild([&] {
      auto storage = Make();
      if (!ArmFailpoints(absl::StrCat("storage.link:", n)).ok()) return 1;
      return storage->Publish(Key(5, 100), Me()).ok() ? 0 : 2;
    });
    ASSERT_EQ(died, kFailpointExitCode) << n;
    EXPECT_THAT(Stored(), ElementsAre("5@100.0/")) << n;
    const StoredCheckpoint found = storage_->Read("job")->checkpoints.at(0);
    for (const auto& object : part.objects) {
      const auto reader = storage_->Open(found, object->entry.name, Me());
      ASSERT_TRUE(reader.ok()) << n << ": " << reader.status();
      std::string bytes(object->entry.length, '?');
      ASSERT_TRUE((*reader)->ReadAt(0, absl::MakeSpan(bytes)).ok());
      EXPECT_EQ(bytes, object->text()) << n;
    }
    Sweep();
    ExpectFiles(part, "5");
    EXPECT_THAT(Leftovers(), IsEmpty()) << n;
  }
}

TEST_F(PosixWriters, APartWhoseFilesAreDamagedIsReplaced) {
  const Part part = MakePart(Key(5, 100), 0, 2), other = MakePart(Key(5, 100), 1, 2);
  ASSERT_TRUE(Write(part).ok());
  fs::resize_file(Path(".cairn/partial/5.100.0/.cairn/parts/0/big/0"), 7);
  ASSERT_TRUE(Write(part).ok());
  WriteAndPublish(other);
  ExpectFiles(part, "5");
}

// --- a published checkpoint that has lost files

TEST_F(PosixWriters, APublishedStepThatLostFilesIsStoredAgain) {
  UseRootInMemory();
  const Part first = MakePart(Key(5, 100), 0, 2), second = MakePart(Key(5, 100), 1, 2);
  const std::vector<std::function<void()>> damages = {
      [&] { fs::remove(Path("5/big/0")); },
      [&] { fs::remove_all(Path("5/big")); },  // of both: the second is written again, too
      [&] { fs::resize_file(Path("5/whole-0"), 3); },
      [&] { fs::remove(Path("5/.cairn/0.manifest")); },
  };
  for (size_t i = 0; i < damages.size(); ++i) {
    fs::remove_all(Path(""));
    ASSERT_TRUE(Write(first).ok());
    WriteAndPublish(second);
    damages[i]();
    ASSERT_TRUE(Write(first).ok()) << i;
    EXPECT_EQ(Publish(Key(5, 100)), i != 1) << i;
    if (i == 1) WriteAndPublish(second);
    ExpectFiles(first, "5");
    ExpectFiles(second, "5");
    Sweep();
    EXPECT_THAT(Stored(), ElementsAre("5@100.0/")) << i;
    EXPECT_THAT(Leftovers(), IsEmpty()) << i;
    EXPECT_TRUE(fs::is_empty(Path(".cairn/partial"))) << i;
  }
}

TEST_F(PosixWriters, WhatIsReadHasItsFiles) {
  UseRootInMemory();
  const Part first = MakePart(Key(5, 100), 0, 2), second = MakePart(Key(5, 100), 1, 2);
  ASSERT_TRUE(Write(first).ok());
  WriteAndPublish(second);
  const auto writers = [&] {
    std::vector<Writer> found;
    const auto job = storage_->Read("job");
    EXPECT_TRUE(job.ok()) << job.status();
    for (const StoredCheckpoint& stored : job->checkpoints) {
      EXPECT_EQ(job->problems.size(), 2 - stored.parts.size());
      for (const StoredPart& part : stored.parts) found.push_back(part.manifest.writer);
    }
    return found;
  };
  EXPECT_THAT(writers(), ElementsAre(0, 1));
  EXPECT_THAT(writers(), ElementsAre(0, 1))
      << "of what was whole only the directories are looked at";
  fs::remove(Path("5/small/deep/1"));
  EXPECT_THAT(writers(), ElementsAre(0));
  EXPECT_THAT(writers(), ElementsAre(0));
  ASSERT_TRUE(Write(second).ok());
  EXPECT_TRUE(Publish(Key(5, 100)));
  EXPECT_THAT(writers(), ElementsAre(0, 1));
  fs::resize_file(Path("5/big/0"), 3);
  fs::remove(Path("5/whole-1"));
  EXPECT_THAT(writers(), IsEmpty());
  fs::remove(Path("5/.cairn/1.manifest"));
  EXPECT_THAT(storage_->Read("job")->checkpoints.at(0).damage,
              testing::HasSubstr("of 2 writers 1 have a manifest there"));
}

// Whether it was looked at before, which is remembered, or not.
TEST_F(PosixWriters, NothingIsDeletedInFavourOfAStepThatLostFiles) {
  UseRootInMemory();
  const Chosen chosen{.stays = Key(6, 100)};
  for (const bool looked_at : {false, true}) {
    for (const char* lost : {"6/big/0", "6/.cairn/0.manifest"}) {
      fs::remove_all(Path(""));
      WriteAndPublish(MakePart(Key(4, 100)));
      WriteAndPublish(MakePart(Key(5, 100)));
      WriteAndPublish(MakePart(Key(6, 100)));
      if (looked_at) {
        ASSERT_TRUE(storage_->Delete(Key(4, 100), Me(), DeleteKind::kFiles, chosen).ok());
      }
      fs::remove(Path(lost));
      const Status refused = storage_->Delete(Key(5, 100), Me(), DeleteKind::kFiles, chosen);
      EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << lost;
      EXPECT_THAT(refused.message(), testing::HasSubstr("is not whole: ")) << lost;
      EXPECT_TRUE(fs::exists(Path("5/big/0"))) << lost;
    }
  }
}

// --- file systems that cannot exchange

TEST_F(PosixClaims, WithoutAnExchangeTheOldOneGoesAsideFirst) {
  for (const char* error : {"EINVAL", "ENOSYS", "EOPNOTSUPP"}) {
    fs::remove_all(Path(""));
    storage_ = Make();
    const Part revision = MakePart(Key(5, 100, 1)), attempt = MakePart(Key(5, 101));
    WriteAndPublish(MakePart(Key(5, 100, 0)));
    ASSERT_TRUE(Write(revision).ok());
    ASSERT_TRUE(ArmFailpoints(absl::StrCat("storage.exchange=", error)).ok());
    EXPECT_TRUE(Publish(Key(5, 100, 1)));
    EXPECT_EQ(FailpointsHit(), 1);
    ASSERT_TRUE(ArmFailpoints("storage.exchange").ok());  // would die: it is not tried again
    ExpectFiles(revision, "5");
    WriteAndPublish(attempt);
    ExpectFiles(attempt, "5");
    ExpectFiles(revision, ".cairn/abandoned/5.100.1");
    ASSERT_TRUE(storage_->Reinstate(Key(5, 100, 1), Me()).ok());
    ExpectFiles(revision, "5");
    ExpectFiles(attempt, ".cairn/abandoned/5.101.0");
    ASSERT_TRUE(ArmFailpoints("").ok());
    Sweep();
    EXPECT_THAT(Stored(), ElementsAre("5@100.1/", "5@101.0/"));
    EXPECT_THAT(Leftovers(), IsEmpty());
  }
}

// R1: also in between readers and the scan find the old one or the new one, and what another
// attempt's checkpoint replaces is never lost.
TEST_F(PosixClaims, DyingAtAnyCallOfAReplacementLosesNoAttempt) {
  UseRootInMemory();
  const Part older = MakePart(Key(5, 100), 0, 1, {{"d/a", 2 * kBlock + 5}});
  const Part newer = MakePart(Key(5, 101), 0, 1, {{"d/a", kBlock}});
  for (const bool exchange : {true, false}) {
    for (const bool reinstate : {false, true}) {
      for (int n = 1;; ++n) {
        ASSERT_LT(n, 200);
        fs::remove_all(Path(""));
        WriteAndPublish(older);
        ASSERT_TRUE(Write(newer).ok());
        if (reinstate) {
          ASSERT_TRUE(Publish(Key(5, 101)));
        }
        const int died = InChild([&] {
          auto storage = exchange ? Make() : MakeWithoutExchange();
          if (!ArmFailpoints(absl::StrCat("any:", n)).ok()) return 1;
          const bool done = reinstate ? storage->Reinstate(Key(5, 100), Me()).ok()
                                      : storage->Publish(Key(5, 101), Me()).ok();
          return done ? 0 : 2;
        });
        ASSERT_TRUE(died == 0 || died == kFailpointExitCode) << died;
        const auto found = storage_->Read("job");
        ASSERT_TRUE(found.ok());
        ASSERT_EQ(found->checkpoints.size(), 2u) << n;
        for (const StoredCheckpoint& stored : found->checkpoints) {
          EXPECT_TRUE(stored.Complete());
          const Part& part = stored.key.attempt == 100 ? older : newer;
          const std::string inside = stored.parts.at(0).directory + "/d/a";
          EXPECT_EQ(Bytes(stored.location.text() + "/" + inside), part.objects[0]->text()) << n;
          EXPECT_TRUE(storage_->Open(stored, "d/a", Me()).ok()) << n;
        }
        Sweep();
        EXPECT_TRUE(Publish(Key(5, 101)));
        if (reinstate) {
          EXPECT_TRUE(storage_->Reinstate(Key(5, 100), Me()).ok());
        }
        ExpectFiles(reinstate ? older : newer, "5");
        EXPECT_THAT(Stored(), ElementsAre("5@100.0/", "5@101.0/")) << n;
        EXPECT_THAT(Leftovers(), IsEmpty()) << n;
        if (died == 0) break;
      }
    }
  }
}

// A network file system may answer with an error what it has done.
TEST_F(PosixClaims, ARenameWithoutAnAnswerIsSettledByLooking) {
  UseRootInMemory();
  for (const char* error : {"EIO", "ENOENT", "EEXIST"}) {
    for (int n = 1;; ++n) {
      ASSERT_LT(n, 50);
      fs::remove_all(Path(""));
      const Part older = MakePart(Key(5, 100)), newer = MakePart(Key(5, 101));
      ASSERT_TRUE(ArmFailpoints(absl::StrCat("storage.renamed:", n, "=", error)).ok());
      WriteAndPublish(older);
      WriteAndPublish(newer);
      WriteAndPublish(MakePart(Key(5, 101, 1)));
      EXPECT_TRUE(storage_->Reinstate(Key(5, 100), Me()).ok());
      EXPECT_TRUE(storage_->Delete(Key(5, 100), Me(), DeleteKind::kFiles).ok());
      const bool reached = FailpointsHit() > 0;
      ASSERT_TRUE(ArmFailpoints("").ok());
      EXPECT_THAT(Stored(), ElementsAre("5@101.1/")) << error << " " << n;
      EXPECT_EQ(storage_->counters().rewrites, 0u);
      Sweep();
      EXPECT_THAT(Leftovers(), IsEmpty()) << error << " " << n;
      if (!reached) break;
    }
  }
}

// --- many publishers at once

class ManyPublishers : public PosixClaims {
 protected:
  static constexpr Attempt kAttempts[] = {100, 101, 102};
  static constexpr Revision kRevisions[] = {0, 1, 2};

  // Publishes all of the step's checkpoints in an order of its own, and sweeps in between.
  static int PublishAll(Storage& storage, Step step, unsigned seed) {
    std::vector<CheckpointKey> keys;
    for (const Attempt attempt : kAttempts) {
      for (const Revision revision : kRevisions) keys.push_back(Key(step, attempt, revision));
    }
    std::mt19937 random(seed);
    std::shuffle(keys.begin(), keys.end(), random);
    for (const CheckpointKey& key : keys) {
      const auto published = storage.Publish(key, Me());
      if (!published.ok()) {
        std::cerr << published.status() << std::endl;
        return 1;
      }
      if (random() % 4 != 0) continue;
      const Status swept = storage.Sweep("job", {});
      if (!swept.ok()) {
        std::cerr << swept << std::endl;
        return 2;
      }
    }
    return 0;
  }
  // Two daemons of two threads each, or two processes of them.
  void Run(bool exchange, bool processes) {
    UseRootInMemory();
    const auto make = [&] { return exchange ? Make() : MakeWithoutExchange(); };
    for (Step step = 0; step < 20; ++step) {
      std::map<CheckpointKey, Part> parts;
      for (const Attempt attempt : kAttempts) {
        for (const Revision revision : kRevisions) {
          const CheckpointKey key = Key(step, attempt, revision);
          parts[key] = MakePart(key, 0, 1, {{"a", 100}});
          ASSERT_TRUE(Write(parts[key]).ok());
        }
      }
      const auto two_threads = [&](Storage& storage, unsigned seed) {
        int results[2] = {};
        std::thread other([&] { results[1] = PublishAll(storage, step, seed + 1); });
        results[0] = PublishAll(storage, step, seed);
        other.join();
        EXPECT_EQ(results[0] + results[1], 0);
        return results[0] + results[1];
      };
      const auto seed = static_cast<unsigned>(step) * 10;
      if (processes) {
        std::vector<pid_t> children;
        for (unsigned i = 0; i < 2; ++i) {
          children.push_back(StartChild([&, i] { return two_threads(*make(), seed + 2 * i); }));
        }
        for (const pid_t child : children) EXPECT_EQ(WaitFor(child), 0);
      } else {
        const auto one = make(), two = make();
        std::thread other([&] { two_threads(*one, seed); });
        two_threads(*two, seed + 2);
        other.join();
      }
      Sweep();
      ExpectFiles(parts[Key(step, 102, 2)], absl::StrCat(step));
      for (const Attempt attempt : {100, 101}) {
        const CheckpointKey key = Key(step, attempt, 2);
        ExpectFiles(parts[key], AbandonedDirectory(key));
      }
      std::vector<std::string> here;
      for (const std::string& word : Stored()) {
        if (absl::StartsWith(word, absl::StrCat(step, "@"))) here.push_back(word);
      }
      EXPECT_THAT(here, ElementsAre(absl::StrCat(step, "@100.2/"), absl::StrCat(step, "@101.2/"),
                                    absl::StrCat(step, "@102.2/")));
      EXPECT_THAT(Leftovers(), IsEmpty());
    }
  }
};

TEST_F(ManyPublishers, OfTwoDaemonsLoseNothing) { Run(/*exchange=*/true, /*processes=*/false); }
TEST_F(ManyPublishers, OfTwoProcessesLoseNothing) { Run(/*exchange=*/true, /*processes=*/true); }
TEST_F(ManyPublishers, WithoutAnExchangeLoseNothing) {
  Run(/*exchange=*/false, /*processes=*/true);
}

}  // namespace
}  // namespace cairn::storage
