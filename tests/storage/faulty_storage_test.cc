#include "tests/storage/faulty_storage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/storage/memory_storage.h"
#include "tests/storage/parts.h"

namespace cairn::storage {
namespace {

using cairn::testing::FaultKind;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class FaultyStorage : public ::testing::Test {
 protected:
  // "." for every call that is answered, "x" for every one that fails.
  std::string Answers(int calls) {
    std::string answers;
    for (int i = 0; i < calls; ++i) answers += storage_->Jobs().ok() ? "." : "x";
    return answers;
  }

  const std::shared_ptr<MemoryStore> store_ = std::make_shared<MemoryStore>();
  const std::shared_ptr<StorageFaults> faults_ = std::make_shared<StorageFaults>();
  const std::unique_ptr<Storage> storage_ = MakeFaultyStorage(MakeMemoryStorage(store_), faults_);
};

TEST_F(FaultyStorage, FailsEveryCallAfterSoMany) {
  faults_->Add({.after = 3});
  EXPECT_EQ(Answers(6), "...xxx");
  EXPECT_EQ(faults_->Calls(StorageCall::kJobs), 6);
}

TEST_F(FaultyStorage, FailsEveryThirdCall) {
  faults_->Add({.every = 3});
  EXPECT_EQ(Answers(7), "..x..x.");
}

TEST_F(FaultyStorage, FailsSoManyTimesAndThenNoMore) {
  faults_->Add({.after = 1, .times = 2});
  EXPECT_EQ(Answers(5), ".xx..");
}

TEST_F(FaultyStorage, FailsNoMoreOnceCleared) {
  faults_->Add({});
  EXPECT_EQ(Answers(1), "x");
  faults_->Clear();
  EXPECT_EQ(Answers(1), ".");
}

TEST_F(FaultyStorage, TheFaultAddedFirstCounts) {
  faults_->Add({.times = 1, .error = absl::PermissionDeniedError("first")});
  faults_->Add({.error = absl::ResourceExhaustedError("second")});
  EXPECT_EQ(storage_->Jobs().status().message(), "first");
  EXPECT_EQ(storage_->Jobs().status().message(), "second");
}

// Every call of the interface can be made to fail, with the error that was asked for, and the
// others are left alone.
TEST_F(FaultyStorage, EachCallFailsOnItsOwn) {
  const Part part = MakePart(Key(5, 100));
  WriteAndPublish(*storage_, part);
  const StoredCheckpoint stored = storage_->Read("job")->checkpoints.at(0);
  const auto reader = *storage_->Open(stored, "big/0", Me());
  char byte = 0;
  const std::map<StorageCall, std::function<Status()>> calls = {
      {StorageCall::kWriteParts, [&] { return Write(*storage_, part); }},
      {StorageCall::kPublish, [&] { return storage_->Publish(Key(5, 100), Me()).status(); }},
      {StorageCall::kReinstate, [&] { return storage_->Reinstate(Key(5, 100), Me()); }},
      {StorageCall::kSweep, [&] { return storage_->Sweep("job", {}); }},
      {StorageCall::kDelete,
       [&] { return storage_->Delete(Key(6, 100), Me(), DeleteKind::kFiles); }},
      {StorageCall::kRead, [&] { return storage_->Read("job").status(); }},
      {StorageCall::kJobs, [&] { return storage_->Jobs().status(); }},
      {StorageCall::kJobOwner, [&] { return storage_->JobOwner("job").status(); }},
      {StorageCall::kOpen, [&] { return storage_->Open(stored, "big/0", Me()).status(); }},
      {StorageCall::kReadAt, [&] { return reader->ReadAt(0, absl::MakeSpan(&byte, 1)); }},
  };
  for (const auto& [failing, ignored] : calls) {
    faults_->Add({.call = failing, .error = absl::ResourceExhaustedError("full")});
    for (const auto& [call, make] : calls) {
      const Status status = make();
      EXPECT_EQ(status.code(),
                call == failing ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kOk)
          << static_cast<int>(failing) << " " << static_cast<int>(call);
    }
    faults_->Clear();
  }
}

TEST_F(FaultyStorage, ACallThatFailsDoesNothing) {
  ASSERT_TRUE(Write(*storage_, MakePart(Key(5, 100))).ok());
  faults_->Add({.call = StorageCall::kPublish});
  EXPECT_FALSE(storage_->Publish(Key(5, 100), Me()).ok());
  EXPECT_THAT(Stored(*storage_), ElementsAre("5@100.0"));
}

TEST_F(FaultyStorage, ACallMayHaveHappenedAndAskingAgainIsHarmless) {
  faults_->Add({.kind = FaultKind::kMaybeHappened, .call = StorageCall::kPublish, .times = 1});
  faults_->Add({.kind = FaultKind::kMaybeHappened, .call = StorageCall::kDelete, .times = 1});
  ASSERT_TRUE(Write(*storage_, MakePart(Key(5, 100))).ok());
  EXPECT_TRUE(absl::IsUnavailable(storage_->Publish(Key(5, 100), Me()).status()));
  EXPECT_THAT(Stored(*storage_), ElementsAre("5@100.0/"));
  EXPECT_TRUE(Publish(*storage_, Key(5, 100)));
  EXPECT_TRUE(absl::IsUnavailable(storage_->Delete(Key(5, 100), Me(), DeleteKind::kFiles)));
  EXPECT_THAT(Stored(*storage_), IsEmpty());
  EXPECT_TRUE(storage_->Delete(Key(5, 100), Me(), DeleteKind::kFiles).ok());
}

TEST_F(FaultyStorage, ACallHangsUntilItIsReleased) {
  ASSERT_TRUE(Write(*storage_, MakePart(Key(5, 100))).ok());
  faults_->Add({.kind = FaultKind::kHang, .call = StorageCall::kPublish});
  bool first = false, second = false;
  std::thread caller([&] {
    first = Publish(*storage_, Key(5, 100));
    second = Publish(*storage_, Key(5, 100));
  });
  faults_->WaitUntilHung(1);
  EXPECT_THAT(Stored(*storage_), ElementsAre("5@100.0")) << "other calls go on";
  faults_->Release();
  faults_->WaitForCalls(StorageCall::kPublish, 2);
  faults_->WaitUntilHung(1);
  EXPECT_THAT(Stored(*storage_), ElementsAre("5@100.0/"));
  faults_->Clear();
  caller.join();
  EXPECT_TRUE(first);
  EXPECT_TRUE(second);
}

}  // namespace
}  // namespace cairn::storage
