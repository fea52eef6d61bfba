// What every storage must do. A back end joins with a Backend (storage_backends.h) in the list at
// the end; what only one back end does has a test file of its own.
// One file: the contract is one suite, which every back end passes as a whole.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <thread>

#include "tests/storage/parts.h"
#include "tests/storage/storage_backends.h"

namespace cairn::storage {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Kind {
  std::string name;
  std::function<std::unique_ptr<Backend>()> make;
};

class StorageContract : public ::testing::TestWithParam<Kind> {
 protected:
  std::vector<std::string> Stored() { return storage::Stored(*storage_); }
  StoredCheckpoint Find(const CheckpointKey& key) {
    const auto job = storage_->Read(key.job);
    EXPECT_TRUE(job.ok()) << job.status();
    for (const StoredCheckpoint& stored : job->checkpoints) {
      if (stored.key == key) return stored;
    }
    ADD_FAILURE() << key.DebugString() << " is not stored";
    return {};
  }
  // A whole object, read through a reader.
  std::string Bytes(const StoredCheckpoint& checkpoint, const std::string& name) {
    const auto reader = storage_->Open(checkpoint, name, Me());
    if (!reader.ok()) return reader.status().ToString();
    std::string bytes((*reader)->length(), '\0');
    const Status status = (*reader)->ReadAt(0, absl::MakeSpan(bytes));
    return status.ok() ? bytes : status.ToString();
  }
  void ExpectStored(const Part& part) {
    const StoredCheckpoint stored = Find(part.manifest.Checkpoint());
    for (const auto& object : part.objects) {
      EXPECT_EQ(Bytes(stored, object->entry.name), object->text()) << object->entry.name;
    }
  }

  const std::unique_ptr<Backend> backend_ = GetParam().make();
  std::unique_ptr<Storage> storage_ = backend_->Open();
};

// --- which storage it is

TEST_P(StorageContract, DaemonsThatShareAStorageReadTheSameIdentity) {
  const auto identity = storage_->Identity();
  ASSERT_TRUE(identity.ok()) << identity.status();
  EXPECT_FALSE(identity->id.empty());
  const auto other = backend_->Open()->Identity();
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ(other->id, identity->id);
  EXPECT_EQ(other->instance, identity->instance);
}

// R32
TEST_P(StorageContract, AnotherStorageInItsPlaceIsNeitherReadNorWritten) {
  const Part part = MakePart(Key(5, 100));
  storage::WriteAndPublish(*storage_, part);
  const StoredCheckpoint stored = Find(Key(5, 100));
  backend_->Replace();
  const std::vector<std::pair<const char*, Status>> calls = {
      {"write", storage::Write(*storage_, MakePart(Key(6, 100)))},
      {"publish", storage_->Publish(Key(5, 100), Me()).status()},
      {"reinstate", storage_->Reinstate(Key(5, 100), Me())},
      {"delete", storage_->Delete(Key(5, 100), Me(), DeleteKind::kUpToAttempt)},
      {"sweep", storage_->Sweep("job", {})},
      {"read", storage_->Read("job").status()},
      {"jobs", storage_->Jobs().status()},
      {"owner", storage_->JobOwner("job").status()},
      {"open", storage_->Open(stored, "big/0", Me()).status()}};
  for (const auto& [name, status] : calls) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << name << ": " << status;
  }
  backend_->PutBack();
  ExpectStored(part);
}

// Line rules 6, 18: what stands first is what counts.
TEST_P(StorageContract, ALineRecordIsWrittenOnceAndOnlyAResumeIsSaidAnew) {
  for (const LineRecordKind kind :
       {LineRecordKind::kUse, LineRecordKind::kOrigin, LineRecordKind::kResume}) {
    const LineRecord first{"job", 900, kind, LineageFrom(5, 100, {})};
    const LineRecord other{"job", 900, kind, LineageFrom(6, 100, {})};
    EXPECT_EQ(*storage_->WriteLineRecord(first, Me()), first);
    EXPECT_EQ(*storage_->WriteLineRecord(first, Me()), first);
    const bool anew = kind == LineRecordKind::kResume;
    EXPECT_EQ(*backend_->Open()->WriteLineRecord(other, Me()), anew ? other : first);
  }
  EXPECT_EQ(storage_->Read("job")->records.size(), 3);
}

TEST_P(StorageContract, TheGreatestNumbersOfLineRecordsAreReadAlone) {
  EXPECT_EQ(storage_->ReadLineNumbers("job").status().code(), absl::StatusCode::kNotFound);
  storage::WriteAndPublish(*storage_, MakePart(Key(5, 100)));
  EXPECT_EQ(storage_->ReadLineNumbers("job")->published, 0);
  EXPECT_EQ(storage_->ReadLineNumbers("job")->decided, 0);
  for (const Attempt number : {200, 901, 300}) {
    const LineRecord origin{"job", number, LineRecordKind::kOrigin, LineageFrom(5, 100, {})};
    ASSERT_TRUE(storage_->WriteLineRecord(origin, Me()).ok());
  }
  const LineRecord use{"job", 700, LineRecordKind::kUse, LineageFrom(5, 100, {})};
  const LineRecord resume{"job", 800, LineRecordKind::kResume, LineageFrom(5, 100, {})};
  ASSERT_TRUE(storage_->WriteLineRecord(resume, Me()).ok());
  ASSERT_TRUE(storage_->WriteLineRecord(use, Me()).ok());
  EXPECT_EQ(backend_->Open()->ReadLineNumbers("job")->published, 901);
  EXPECT_EQ(backend_->Open()->ReadLineNumbers("job")->decided, 800);
}

// Another node decided since this one decided to delete (line rule 21).
TEST_P(StorageContract, WhatADecisionNeedsIsNotDeletedByPolicy) {
  const Part part = MakePart(Key(5, 100));
  storage::WriteAndPublish(*storage_, part);
  const LineRecord use{"job", 900, LineRecordKind::kUse, LineageFrom(6, 100, {})};
  ASSERT_TRUE(storage_->WriteLineRecord(use, Me()).ok());
  EXPECT_EQ(storage_->Delete(Key(5, 100), Me(), DeleteKind::kFiles).code(),
            absl::StatusCode::kFailedPrecondition);
  ExpectStored(part);
  // A life went on from it, and has published.
  const LineRecord origin{"job", 901, LineRecordKind::kOrigin, LineageFrom(6, 100, {})};
  ASSERT_TRUE(storage_->WriteLineRecord(origin, Me()).ok());
  EXPECT_TRUE(storage_->Delete(Key(5, 100), Me(), DeleteKind::kFiles).ok());
}

// Another node's life has published something since this one looked: it may come from just this.
TEST_P(StorageContract, WhatWasChosenWithoutKnowingANewerLifeIsNotDeletedByPolicy) {
  const Part part = MakePart(Key(5, 100));
  storage::WriteAndPublish(*storage_, part);
  const LineRecord origin{"job", 901, LineRecordKind::kOrigin, LineageFrom(5, 100, {})};
  ASSERT_TRUE(storage_->WriteLineRecord(origin, Me()).ok());
  EXPECT_EQ(storage_->Delete(Key(5, 100), Me(), DeleteKind::kFiles, {900}).code(),
            absl::StatusCode::kFailedPrecondition);
  ExpectStored(part);
  EXPECT_TRUE(storage_->Delete(Key(5, 100), Me(), DeleteKind::kFiles, {901}).ok());
}

TEST_P(StorageContract, WhatIsDeletedByPolicyGoesOnlyIfTheNewestStays) {  // promise 1
  const Part part = MakePart(Key(5, 100)), newest = MakePart(Key(6, 100));
  storage::WriteAndPublish(*storage_, part);
  const Chosen chosen{.stays = Key(6, 100)};
  EXPECT_EQ(storage_->Delete(Key(5, 100), Me(), DeleteKind::kFiles, chosen).code(),
            absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(storage::Write(*storage_, newest).ok());
  EXPECT_EQ(storage_->Delete(Key(5, 100), Me(), DeleteKind::kFiles, chosen).code(),
            absl::StatusCode::kFailedPrecondition)
      << "it is not published";
  ExpectStored(part);
  storage::WriteAndPublish(*storage_, newest);
  EXPECT_TRUE(storage_->Delete(Key(5, 100), Me(), DeleteKind::kFiles, chosen).ok());
}

TEST_P(StorageContract, OnlyTheExpectedIdentityIsServed) {
  const auto identity = storage_->Identity();
  ASSERT_TRUE(identity.ok()) << identity.status();
  const auto other = backend_->Open();
  other->Expect(DrawRootId());
  EXPECT_EQ(other->Jobs().status().code(), absl::StatusCode::kUnavailable);
  const auto same = backend_->Open();
  same->Expect(identity->id);
  EXPECT_TRUE(same->Jobs().ok());
}

// --- the way of a checkpoint

TEST_P(StorageContract, APublishedCheckpointIsExactlyItsObjects) {
  const Part part = MakePart(Key(5, 100));
  ASSERT_TRUE(Write(*storage_, part).ok());
  EXPECT_THAT(Stored(), ElementsAre("5@100.0"));
  const auto published = storage_->Publish(Key(5, 100), Me());
  ASSERT_TRUE(published.ok()) << published.status();
  ASSERT_TRUE(published->where.has_value());
  EXPECT_THAT(Stored(), ElementsAre("5@100.0/"));

  const StoredCheckpoint stored = Find(Key(5, 100));
  EXPECT_TRUE(stored.Complete());
  EXPECT_EQ(stored.location, *published->where) << "the scan and the publisher name the same place";
  EXPECT_FALSE(stored.location.empty());
  ASSERT_EQ(stored.parts.size(), 1u);
  EXPECT_EQ(stored.parts[0].manifest, part.manifest);
  EXPECT_EQ(stored.parts[0].digest, ManifestDigest(EncodeManifest(part.manifest)));
  ExpectStored(part);

  EXPECT_THAT(backend_->Leftovers(), IsEmpty());
  EXPECT_EQ(storage_->counters().objects_written, 4u);
  EXPECT_EQ(storage_->counters().bytes_written, part.manifest.TotalBytes());
  EXPECT_EQ(storage_->counters().published, 1u);
  EXPECT_THAT(*storage_->Jobs(), ElementsAre("job"));
  EXPECT_EQ(storage_->JobOwner("job")->uid, ::geteuid());
}

TEST_P(StorageContract, WhatOneDaemonStoredTheNextOneFinds) {
  const Part part = MakePart(Key(5, 100));
  WriteAndPublish(*storage_, part);
  storage_.reset();
  storage_ = backend_->Open();
  EXPECT_THAT(Stored(), ElementsAre("5@100.0/"));
  ExpectStored(part);
}

TEST_P(StorageContract, NothingIsPublishedBeforeEveryWriterIsThere) {
  const Part zero = MakePart(Key(5, 100), 0, 2), one = MakePart(Key(5, 100), 1, 2);
  ASSERT_TRUE(Write(*storage_, zero).ok());
  EXPECT_FALSE(Publish(*storage_, Key(5, 100)));
  EXPECT_FALSE(Find(Key(5, 100)).published);
  EXPECT_FALSE(Find(Key(5, 100)).Complete());
  // The other writer's part comes from another node.
  ASSERT_TRUE(Write(*backend_->Open(), one).ok());
  EXPECT_TRUE(Publish(*storage_, Key(5, 100)));
  ExpectStored(zero);
  ExpectStored(one);
}

// Who has written its own parts must know whether it is to look again.
TEST_P(StorageContract, APublisherHearsWhetherPartsAreStillToCome) {
  const auto answer = [&](const CheckpointKey& key) {
    const auto published = storage_->Publish(key, Me());
    EXPECT_TRUE(published.ok()) << published.status();
    return std::pair(published->where.has_value(), published->lacks_parts);
  };
  const std::pair published(true, false), lacks_parts(false, true), never(false, false);
  EXPECT_EQ(answer(Key(5, 100)), lacks_parts) << "nothing was ever written of the job";
  ASSERT_TRUE(Write(*storage_, MakePart(Key(5, 100), 0, 2)).ok());
  EXPECT_EQ(answer(Key(5, 100)), lacks_parts);
  EXPECT_EQ(answer(Key(6, 100)), lacks_parts) << "nothing of this one";
  ASSERT_TRUE(Write(*backend_->Open(), MakePart(Key(5, 100), 1, 2)).ok());
  EXPECT_EQ(answer(Key(5, 100)), published);
  EXPECT_EQ(answer(Key(5, 100)), published) << "another node put it there";

  ASSERT_TRUE(Write(*storage_, MakePart(Key(6, 100, 0), 0, 2)).ok());
  WriteAndPublish(*storage_, MakePart(Key(6, 100, 1)));
  EXPECT_EQ(answer(Key(6, 100, 0)), never) << "a newer revision of its attempt stands";
  ASSERT_TRUE(Write(*storage_, MakePart(Key(7, 100), 0, 2)).ok());
  ASSERT_TRUE(storage_->Delete(Key(7, 100), Me(), DeleteKind::kUpToAttempt).ok());
  EXPECT_EQ(answer(Key(7, 100)), never) << "it was removed";
}

TEST_P(StorageContract, SeveralPartsAreWrittenInOneCall) {
  const Part zero = MakePart(Key(5, 100), 0, 2), one = MakePart(Key(5, 100), 1, 2);
  ASSERT_TRUE(storage_->WriteParts(Key(5, 100), Me(), {zero.ToWrite(), one.ToWrite()}).ok());
  EXPECT_TRUE(Publish(*storage_, Key(5, 100)));
  ExpectStored(zero);
  ExpectStored(one);
}

TEST_P(StorageContract, AWriterWithNothingToSaveCounts) {
  Part part;
  part.manifest.job = "job";
  part.manifest.step = 5;
  part.manifest.attempt = 100;
  WriteAndPublish(*storage_, part);
  EXPECT_THAT(Stored(), ElementsAre("5@100.0/"));
}

TEST_P(StorageContract, APartThatStandsIsKept) {
  const Part zero = MakePart(Key(5, 100), 0, 2), one = MakePart(Key(5, 100), 1, 2);
  ASSERT_TRUE(Write(*storage_, zero).ok());
  const uint64_t written = storage_->counters().objects_written;
  ASSERT_TRUE(Write(*storage_, zero).ok());
  EXPECT_EQ(storage_->counters().objects_written, written);
  ASSERT_TRUE(Write(*storage_, one).ok());
  ASSERT_TRUE(Publish(*storage_, Key(5, 100)));
  const uint64_t all = storage_->counters().objects_written;
  ASSERT_TRUE(Write(*storage_, zero).ok()) << "also when it stands in its final place";
  EXPECT_TRUE(Publish(*storage_, Key(5, 100)));
  EXPECT_EQ(storage_->counters().objects_written, all);
}

TEST_P(StorageContract, APartThatIsDamagedIsWrittenAgain) {
  const Part part = MakePart(Key(5, 100));
  ASSERT_TRUE(Write(*storage_, part).ok());
  backend_->Truncate(Key(5, 100), "big/0", 3);
  WriteAndPublish(*storage_, part);
  ExpectStored(part);
}

TEST_P(StorageContract, APartThatIsDamagedIsNotPublished) {
  ASSERT_TRUE(Write(*storage_, MakePart(Key(5, 100))).ok());
  backend_->Remove(Key(5, 100), "whole-0");
  EXPECT_EQ(storage_->Publish(Key(5, 100), Me()).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_FALSE(Find(Key(5, 100)).published);
}

TEST_P(StorageContract, ForOneWriterAndRevisionWhatIsStoredWins) {
  ASSERT_TRUE(Write(*storage_, MakePart(Key(5, 100), 0, 2)).ok());
  const Part other = MakePart(Key(5, 100), 0, 2, {{"other", 10}});
  EXPECT_EQ(Write(*storage_, other).code(), absl::StatusCode::kAlreadyExists);
}

TEST_P(StorageContract, APartOfAnotherCheckpointIsRefused) {
  const Part part = MakePart(Key(6, 100));
  EXPECT_EQ(storage_->WriteParts(Key(5, 100), Me(), {part.ToWrite()}).code(),
            absl::StatusCode::kInvalidArgument);
  PartToWrite without_sources = part.ToWrite();
  without_sources.sources.pop_back();
  EXPECT_EQ(storage_->WriteParts(Key(6, 100), Me(), {without_sources}).code(),
            absl::StatusCode::kInvalidArgument);
}

// R28: one name from two writers.
TEST_P(StorageContract, WhatIsInConflictIsNeverPublished) {
  ASSERT_TRUE(Write(*storage_, MakePart(Key(5, 100), 0, 2, {{"same", 10}})).ok());
  const Status status = Write(*storage_, MakePart(Key(5, 100), 1, 2, {{"same", 10}}));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("writers 0 and 1"));
  EXPECT_FALSE(Publish(*storage_, Key(5, 100)));
}

// Promise 6.
TEST_P(StorageContract, AnotherUsersJobIsNotWrittenPublishedOrDeleted) {
  WriteAndPublish(*storage_, MakePart(Key(5, 100)));
  ASSERT_TRUE(Write(*storage_, MakePart(Key(6, 100))).ok());
  const Owner other{Me().uid + 1, Me().gid + 1};
  const Part part = MakePart(Key(7, 100));
  EXPECT_EQ(storage_->WriteParts(Key(7, 100), other, {part.ToWrite()}).code(),
            absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(storage_->Publish(Key(6, 100), other).status().code(),
            absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(storage_->Delete(Key(5, 100), other, DeleteKind::kUpToAttempt).code(),
            absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(storage_->Open(Find(Key(5, 100)), "big/0", other).status().code(),
            absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(Stored(), ElementsAre("5@100.0/", "6@100.0"));
}

// --- replacing

TEST_P(StorageContract, ANewerRevisionTakesThePlaceOfTheOlder) {
  WriteAndPublish(*storage_, MakePart(Key(5, 100, 0)));
  const Part newer = MakePart(Key(5, 100, 1));
  WriteAndPublish(*storage_, newer);
  ExpectStored(newer);
  EXPECT_THAT(Stored(), ElementsAre("5@100.1/"));
  Sweep(*storage_);
  EXPECT_THAT(backend_->Leftovers(), IsEmpty());
}

TEST_P(StorageContract, ANewerAttemptReplacesWhateverTheRevision) {
  WriteAndPublish(*storage_, MakePart(Key(5, 100, 7)));
  WriteAndPublish(*storage_, MakePart(Key(5, 101, 0)));
  EXPECT_EQ(backend_->InPlace(5), Key(5, 101, 0));
}

TEST_P(StorageContract, WhatAnotherAttemptReplacedIsKeptAside) {
  const Part older = MakePart(Key(5, 100, 7)), newer = MakePart(Key(5, 101, 0));
  WriteAndPublish(*storage_, older);
  WriteAndPublish(*storage_, newer);
  Sweep(*storage_);
  EXPECT_THAT(Stored(), ElementsAre("5@100.7/", "5@101.0/"));
  ExpectStored(older);
  ExpectStored(newer);
  EXPECT_FALSE(Find(Key(5, 100, 7)).location == Find(Key(5, 101, 0)).location);
  EXPECT_THAT(backend_->Leftovers(), IsEmpty());
}

TEST_P(StorageContract, OfEachAttemptTheNewestRevisionIsKeptAside) {
  WriteAndPublish(*storage_, MakePart(Key(5, 102)));
  for (Revision revision : {0, 1}) {
    WriteAndPublish(*storage_, MakePart(Key(5, 100, revision)));
    WriteAndPublish(*storage_, MakePart(Key(5, 101, revision)));
  }
  Sweep(*storage_);
  EXPECT_THAT(Stored(), ElementsAre("5@100.1/", "5@101.1/", "5@102.0/"));
  EXPECT_EQ(backend_->InPlace(5), Key(5, 102));
  ExpectStored(MakePart(Key(5, 101, 1)));
  EXPECT_THAT(backend_->Leftovers(), IsEmpty());
}

TEST_P(StorageContract, AnOlderRevisionNeverTakesThePlaceOfANewer) {
  const Part newer = MakePart(Key(5, 100, 1)), older = MakePart(Key(5, 100, 0));
  ASSERT_TRUE(Write(*storage_, older).ok());
  WriteAndPublish(*storage_, newer);
  EXPECT_FALSE(Publish(*storage_, Key(5, 100, 0)));
  ExpectStored(newer);
  EXPECT_THAT(Stored(), ElementsAre("5@100.1/"));
  // It would never be published: nothing is written for it.
  const uint64_t written = storage_->counters().objects_written;
  EXPECT_EQ(Write(*storage_, older).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(storage_->counters().objects_written, written);
  Sweep(*storage_);
  EXPECT_THAT(backend_->Leftovers(), IsEmpty());
}

TEST_P(StorageContract, AnOlderAttemptThatArrivesLateIsPublishedAside) {
  const Part newer = MakePart(Key(5, 101)), late = MakePart(Key(5, 100));
  WriteAndPublish(*storage_, newer);
  ASSERT_TRUE(Write(*storage_, late).ok());
  const auto published = storage_->Publish(Key(5, 100), Me());
  ASSERT_TRUE(published.ok()) << published.status();
  ASSERT_TRUE(published->where.has_value());
  EXPECT_EQ(Find(Key(5, 100)).location, *published->where);
  EXPECT_EQ(backend_->InPlace(5), Key(5, 101));
  ExpectStored(newer);
  ExpectStored(late);
  // Once more is no work.
  const uint64_t written = storage_->counters().objects_written;
  ASSERT_TRUE(Write(*storage_, late).ok());
  EXPECT_TRUE(Publish(*storage_, Key(5, 100)));
  EXPECT_EQ(storage_->counters().objects_written, written);
  EXPECT_EQ(storage_->counters().published, 2u);
  EXPECT_THAT(backend_->Leftovers(), IsEmpty());
}

TEST_P(StorageContract, AnotherAttemptsCheckpointIsReinstatedAndWhatStoodThereIsKept) {
  const Part older = MakePart(Key(5, 100)), newer = MakePart(Key(5, 101));
  WriteAndPublish(*storage_, older);
  WriteAndPublish(*storage_, newer);
  ASSERT_TRUE(storage_->Reinstate(Key(5, 100), Me()).ok());
  EXPECT_EQ(backend_->InPlace(5), Key(5, 100));
  ASSERT_TRUE(storage_->Reinstate(Key(5, 100), Me()).ok()) << "twice is once";
  EXPECT_EQ(backend_->InPlace(5), Key(5, 100));
  Sweep(*storage_);
  EXPECT_TRUE(Publish(*storage_, Key(5, 101)));
  EXPECT_EQ(backend_->InPlace(5), Key(5, 100)) << "neither undoes it";
  EXPECT_THAT(Stored(), ElementsAre("5@100.0/", "5@101.0/"));
  ExpectStored(older);
  ExpectStored(newer);
  ASSERT_TRUE(storage_->Reinstate(Key(5, 101), Me()).ok());
  EXPECT_EQ(backend_->InPlace(5), Key(5, 101));
  // A new revision of a newer attempt takes the place, whatever stands there.
  ASSERT_TRUE(storage_->Reinstate(Key(5, 100), Me()).ok());
  WriteAndPublish(*storage_, MakePart(Key(5, 101, 1)));
  EXPECT_EQ(backend_->InPlace(5), Key(5, 101, 1));
  EXPECT_THAT(Stored(), ElementsAre("5@100.0/", "5@101.1/"));
  Sweep(*storage_);
  EXPECT_THAT(backend_->Leftovers(), IsEmpty());
}

TEST_P(StorageContract, WhatIsReinstatedWhereNothingStandsTakesThePlace) {
  WriteAndPublish(*storage_, MakePart(Key(5, 100)));
  WriteAndPublish(*storage_, MakePart(Key(5, 101)));
  ASSERT_TRUE(storage_->Delete(Key(5, 101), Me(), DeleteKind::kFiles).ok());
  EXPECT_EQ(backend_->InPlace(5).revision, -1);
  ASSERT_TRUE(storage_->Reinstate(Key(5, 100), Me()).ok());
  EXPECT_EQ(backend_->InPlace(5), Key(5, 100));
}

TEST_P(StorageContract, WhatIsNotPublishedIsNotReinstated) {
  WriteAndPublish(*storage_, MakePart(Key(5, 101)));
  WriteAndPublish(*storage_, MakePart(Key(5, 101, 1)));
  ASSERT_TRUE(Write(*storage_, MakePart(Key(5, 100))).ok());
  EXPECT_EQ(storage_->Reinstate(Key(5, 100), Me()).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(storage_->Reinstate(Key(6, 100), Me()).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(storage_->Reinstate({"none", 1, 1, 0}, Me()).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(storage_->Reinstate(Key(5, 101), Me()).code(), absl::StatusCode::kFailedPrecondition);
  const Owner other{Me().uid + 1, Me().gid + 1};
  EXPECT_EQ(storage_->Reinstate(Key(5, 101, 1), other).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(backend_->InPlace(5), Key(5, 101, 1));
}

TEST_P(StorageContract, WhatIsDamagedIsNotReinstated) {
  WriteAndPublish(*storage_, MakePart(Key(5, 100)));
  WriteAndPublish(*storage_, MakePart(Key(5, 101)));
  backend_->Truncate(Key(5, 100), "big/0", 3);
  EXPECT_EQ(storage_->Reinstate(Key(5, 100), Me()).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(backend_->InPlace(5), Key(5, 101));
}

TEST_P(StorageContract, PublishersThatMeetLeaveTheNewest) {
  for (int round = 0; round < 10; ++round) {
    const Step step = round;
    std::vector<Part> parts;
    for (Revision revision = 0; revision < 4; ++revision) {
      parts.push_back(MakePart(Key(step, 100, revision), 0, 1, {{"a", 100}}));
      ASSERT_TRUE(Write(*storage_, parts.back()).ok());
    }
    std::vector<std::thread> threads;
    for (const Part& part : parts) {
      threads.emplace_back([this, key = part.manifest.Checkpoint()] {
        const auto published = backend_->Open()->Publish(key, Me());
        EXPECT_TRUE(published.ok()) << published.status();
      });
    }
    for (std::thread& thread : threads) thread.join();
    Sweep(*storage_);
    ExpectStored(parts.back());
    EXPECT_TRUE(Find(Key(step, 100, 3)).published);
    EXPECT_THAT(backend_->Leftovers(), IsEmpty());
  }
}

// --- deleting and sweeping

TEST_P(StorageContract, DeletingTakesTheWholeCheckpointAndOnlyIt) {
  WriteAndPublish(*storage_, MakePart(Key(5, 100)));
  WriteAndPublish(*storage_, MakePart(Key(6, 100)));
  ASSERT_TRUE(storage_->Delete(Key(5, 99), Me(), DeleteKind::kFiles).ok())
      << "another attempt's: not there";
  EXPECT_THAT(Stored(), ElementsAre("5@100.0/", "6@100.0/"));
  ASSERT_TRUE(storage_->Delete(Key(5, 100), Me(), DeleteKind::kFiles).ok());
  ASSERT_TRUE(storage_->Delete(Key(5, 100), Me(), DeleteKind::kFiles).ok()) << "twice is once";
  EXPECT_THAT(Stored(), ElementsAre("6@100.0/"));
  EXPECT_THAT(backend_->Leftovers(), IsEmpty());
  WriteAndPublish(*storage_, MakePart(Key(5, 100)));  // without a tombstone it may come back
}

TEST_P(StorageContract, DeletingWithoutATombstoneLeavesUnpublishedPartsAlone) {
  ASSERT_TRUE(Write(*storage_, MakePart(Key(5, 100), 0, 2)).ok());
  ASSERT_TRUE(storage_->Delete(Key(5, 100), Me(), DeleteKind::kFiles).ok());
  EXPECT_THAT(Stored(), ElementsAre("5@100.0"));
}

TEST_P(StorageContract, ARemovedStepIsNotBroughtBackByALatePersist) {
  WriteAndPublish(*storage_, MakePart(Key(5, 100)));
  const Part late = MakePart(Key(5, 100, 1)), next_life = MakePart(Key(5, 101));
  ASSERT_TRUE(Write(*storage_, late).ok());
  ASSERT_TRUE(storage_->Delete(Key(5, 100, 1), Me(), DeleteKind::kUpToAttempt).ok());
  EXPECT_THAT(Stored(), IsEmpty());
  EXPECT_THAT(storage_->Read("job")->removed.steps.at(5).ranges(),
              ElementsAre(AttemptRanges::Range{1, 100}));
  EXPECT_EQ(Write(*storage_, late).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(Publish(*storage_, Key(5, 100, 1)));
  ASSERT_TRUE(storage_->Delete(Key(5, 50), Me(), DeleteKind::kUpToAttempt).ok());
  EXPECT_EQ(Write(*storage_, late).code(), absl::StatusCode::kFailedPrecondition)
      << "a tombstone never goes back";
  WriteAndPublish(*storage_, next_life);
  EXPECT_THAT(Stored(), ElementsAre("5@101.0/"));
}

TEST_P(StorageContract, DeletingTakesACheckpointWhereverItStandsAndOnlyIt) {
  for (Attempt attempt : {100, 101, 102}) WriteAndPublish(*storage_, MakePart(Key(5, attempt)));
  ASSERT_TRUE(storage_->Delete(Key(5, 101), Me(), DeleteKind::kFiles).ok());
  EXPECT_THAT(Stored(), ElementsAre("5@100.0/", "5@102.0/"));
  ASSERT_TRUE(storage_->Delete(Key(5, 102), Me(), DeleteKind::kFiles).ok());
  EXPECT_THAT(Stored(), ElementsAre("5@100.0/"));
  ExpectStored(MakePart(Key(5, 100)));
}

TEST_P(StorageContract, OneAttemptIsRemovedForGoodAndNoOther) {
  for (Attempt attempt : {100, 101, 102}) {
    WriteAndPublish(*storage_, MakePart(Key(5, attempt)));
    ASSERT_TRUE(Write(*storage_, MakePart(Key(5, attempt, 1), 0, 2)).ok());
  }
  ASSERT_TRUE(storage_->Delete(Key(5, 101), Me(), DeleteKind::kThisAttempt).ok());
  EXPECT_THAT(Stored(), ElementsAre("5@100.0/", "5@100.1", "5@102.0/", "5@102.1"));
  EXPECT_EQ(Write(*storage_, MakePart(Key(5, 101, 2))).code(),
            absl::StatusCode::kFailedPrecondition);
  const auto removed = storage_->Read("job")->removed;
  EXPECT_TRUE(removed.Forbids(5, 101));
  EXPECT_FALSE(removed.Forbids(5, 100));
  EXPECT_FALSE(removed.Forbids(5, 102));
  EXPECT_EQ(backend_->InPlace(5), Key(5, 102));
  // Also where it stands in the place, and then what it is added to.
  ASSERT_TRUE(storage_->Delete(Key(5, 102), Me(), DeleteKind::kThisAttempt).ok());
  EXPECT_THAT(Stored(), ElementsAre("5@100.0/", "5@100.1"));
  EXPECT_THAT(storage_->Read("job")->removed.steps.at(5).ranges(),
              ElementsAre(AttemptRanges::Range{101, 102}));
  ASSERT_TRUE(storage_->Delete(Key(5, 100), Me(), DeleteKind::kUpToAttempt).ok());
  EXPECT_THAT(Stored(), IsEmpty());
  EXPECT_THAT(storage_->Read("job")->removed.steps.at(5).ranges(),
              ElementsAre(AttemptRanges::Range{1, 102}));
  EXPECT_THAT(backend_->Leftovers(), IsEmpty());
}

TEST_P(StorageContract, RemovedRangesOfAStepAreBounded) {
  Attempt attempt = 1;
  for (size_t i = 0; i < kMaxRemovedRanges; ++i) {
    attempt += 2;
    ASSERT_TRUE(storage_->Delete(Key(5, attempt), Me(), DeleteKind::kThisAttempt).ok());
  }
  WriteAndPublish(*storage_, MakePart(Key(5, attempt + 2)));
  EXPECT_EQ(storage_->Delete(Key(5, attempt + 2), Me(), DeleteKind::kThisAttempt).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Stored(), ::testing::SizeIs(1)) << "what is refused changes nothing";
  ASSERT_TRUE(storage_->Delete(Key(5, attempt + 2), Me(), DeleteKind::kUpToAttempt).ok());
  EXPECT_THAT(storage_->Read("job")->removed.steps.at(5).ranges(), ::testing::SizeIs(1));
}

TEST_P(StorageContract, AStepMayBeRemovedBeforeAnythingOfItIsStored) {
  ASSERT_TRUE(storage_->Delete(Key(5, 100), Me(), DeleteKind::kUpToAttempt).ok());
  EXPECT_EQ(Write(*storage_, MakePart(Key(5, 100))).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_P(StorageContract, SweepingTakesSupersededPartsButNoneThatIsYoung) {
  for (Step step : {1, 2, 3}) ASSERT_TRUE(Write(*storage_, MakePart(Key(step, 100), 0, 2)).ok());
  backend_->Age(Key(1, 100), 120);
  backend_->Age(Key(3, 100), 120);
  const auto all_but_three = [](const CheckpointKey& key) { return key.step != 3; };
  ASSERT_TRUE(storage_->Sweep("job", {.superseded = all_but_three}).ok());
  EXPECT_THAT(Stored(), ElementsAre("2@100.0", "3@100.0"));
  EXPECT_THAT(backend_->Leftovers(), IsEmpty());
}

TEST_P(StorageContract, SweepingTakesWhatNobodyWantsAnHourAfterItsLastChange) {
  for (Step step : {1, 2, 3}) ASSERT_TRUE(Write(*storage_, MakePart(Key(step, 100), 0, 2)).ok());
  backend_->Age(Key(1, 100), 3700);
  backend_->Age(Key(2, 100), 3700);
  backend_->Age(Key(3, 100), 3500);
  Sweep(*storage_);
  EXPECT_THAT(Stored(), ElementsAre("1@100.0", "2@100.0", "3@100.0")) << "all may be wanted";
  const SweepRules rules = {.wanted = [](const CheckpointKey& key) { return key.step == 2; }};
  ASSERT_TRUE(storage_->Sweep("job", rules).ok());
  EXPECT_THAT(Stored(), ElementsAre("2@100.0", "3@100.0"));
}

TEST_P(StorageContract, FullStorageGivesUpWhatNobodyWantsAfterAMinute) {
  for (Step step : {1, 2, 3}) ASSERT_TRUE(Write(*storage_, MakePart(Key(step, 100), 0, 2)).ok());
  backend_->Age(Key(1, 100), 120);
  backend_->Age(Key(2, 100), 120);
  const SweepRules rules = {.wanted = [](const CheckpointKey& key) { return key.step == 2; },
                            .full = true};
  ASSERT_TRUE(storage_->Sweep("job", rules).ok());
  EXPECT_THAT(Stored(), ElementsAre("2@100.0", "3@100.0"));
}

TEST_P(StorageContract, AJobThatIsNotStoredIsNothingToSweepPublishOrDelete) {
  EXPECT_TRUE(storage_->Sweep("none", {}).ok());
  EXPECT_FALSE(Publish(*storage_, {"none", 1, 1, 0}));
  EXPECT_TRUE(storage_->Delete({"none", 1, 1, 0}, Me(), DeleteKind::kFiles).ok());
  EXPECT_EQ(storage_->Read("none").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(storage_->JobOwner("none").status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(*storage_->Jobs(), IsEmpty());
}

TEST_P(StorageContract, ANameThatIsNotAJobsIsRefused) {
  EXPECT_EQ(storage_->Read("../job").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(storage_->JobOwner("../job").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(storage_->Publish({"../job", 1, 1, 0}, Me()).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(storage_->Delete({"../job", 1, 1, 0}, Me(), DeleteKind::kUpToAttempt).code(),
            absl::StatusCode::kInvalidArgument);
}

// --- reading

TEST_P(StorageContract, AnObjectIsOpenedWhereverItsCheckpointHasMovedTo) {
  const Part part = MakePart(Key(5, 100));
  ASSERT_TRUE(Write(*storage_, part).ok());
  const StoredCheckpoint found = Find(Key(5, 100));
  ASSERT_TRUE(Publish(*storage_, Key(5, 100)));
  EXPECT_EQ(Bytes(found, "big/0"), part.objects[0]->text());
  EXPECT_EQ(storage_->Open(found, "nothing", Me()).status().code(), absl::StatusCode::kNotFound);
  // Another attempt's takes the place.
  WriteAndPublish(*storage_, MakePart(Key(5, 101)));
  EXPECT_EQ(Bytes(found, "big/0"), part.objects[0]->text());
  // Replaced: the same name is there, but it is another checkpoint's.
  const StoredCheckpoint newer = Find(Key(5, 101));
  WriteAndPublish(*storage_, MakePart(Key(5, 101, 1)));
  EXPECT_EQ(storage_->Open(newer, "big/0", Me()).status().code(), absl::StatusCode::kNotFound);
}

TEST_P(StorageContract, ACheckpointIsFoundWithoutItsLocation) {
  const Part part = MakePart(Key(5, 100));
  WriteAndPublish(*storage_, part);
  StoredCheckpoint known = Find(Key(5, 100));
  known.location = Location();
  EXPECT_EQ(Bytes(known, "big/0"), part.objects[0]->text());
}

TEST_P(StorageContract, AReaderReadsAnyRangeAndNothingBeyondIt) {
  const Part part = MakePart(Key(5, 100));
  WriteAndPublish(*storage_, part);
  const auto reader = storage_->Open(Find(Key(5, 100)), "big/0", Me());
  ASSERT_TRUE(reader.ok()) << reader.status();
  const std::string whole = part.objects[0]->text();
  EXPECT_EQ((*reader)->length(), whole.size());
  std::string bytes(1000, '\0');
  ASSERT_TRUE((*reader)->ReadAt(kBlock - 500, absl::MakeSpan(bytes)).ok());
  EXPECT_EQ(bytes, whole.substr(kBlock - 500, 1000));
  ASSERT_TRUE((*reader)->ReadAt(whole.size(), absl::Span<char>()).ok());
  for (uint64_t offset : {uint64_t{whole.size() - 999}, uint64_t{whole.size()}, ~uint64_t{0}}) {
    EXPECT_EQ((*reader)->ReadAt(offset, absl::MakeSpan(bytes)).code(),
              absl::StatusCode::kOutOfRange)
        << offset;
  }
}

TEST_P(StorageContract, ALentDescriptorIsExactlyTheObject) {
  const Part part = MakePart(Key(5, 100));
  WriteAndPublish(*storage_, part);
  const auto reader = storage_->Open(Find(Key(5, 100)), "big/0", Me());
  ASSERT_TRUE(reader.ok()) << reader.status();
  const std::optional<int> descriptor = (*reader)->Descriptor();
  ASSERT_EQ(descriptor.has_value(), backend_->LendsDescriptors());
  if (!descriptor.has_value()) return;
  EXPECT_EQ(*ReadRegularFile(*descriptor, 1 << 30), part.objects[0]->text());
  EXPECT_LT(::write(*descriptor, "x", 1), 0) << "it is open for reading only";
}

TEST_P(StorageContract, AReaderNeverReturnsBytesOfWhatTookItsPlace) {
  const Part older = MakePart(Key(5, 100));
  WriteAndPublish(*storage_, older);
  const auto reader = storage_->Open(Find(Key(5, 100)), "whole-0", Me());
  ASSERT_TRUE(reader.ok()) << reader.status();
  WriteAndPublish(*storage_, MakePart(Key(5, 101)));
  Sweep(*storage_);
  std::string bytes((*reader)->length(), '\0');
  const Status status = (*reader)->ReadAt(0, absl::MakeSpan(bytes));
  if (status.ok()) {
    EXPECT_EQ(bytes, older.objects[3]->text());
  }
}

TEST_P(StorageContract, AnObjectOfTheWrongLengthOrNoneIsDataLoss) {
  WriteAndPublish(*storage_, MakePart(Key(5, 100)));
  const StoredCheckpoint found = Find(Key(5, 100));
  backend_->Truncate(Key(5, 100), "big/0", 5);
  EXPECT_EQ(storage_->Open(found, "big/0", Me()).status().code(), absl::StatusCode::kDataLoss);
  backend_->Remove(Key(5, 100), "whole-0");
  EXPECT_EQ(storage_->Open(found, "whole-0", Me()).status().code(), absl::StatusCode::kDataLoss);
}

// --- failures

// R11: what a writer changed after sealing goes no further.
TEST_P(StorageContract, BytesThatNoLongerVerifyAreNotStored) {
  const Part part = MakePart(Key(5, 100));
  part.objects[0]->bytes()[3 * kBlock] ^= 1;
  const Status status = Write(*storage_, part);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("big/0"));
  EXPECT_FALSE(Publish(*storage_, Key(5, 100)));
  EXPECT_THAT(backend_->Leftovers(), IsEmpty());
  part.objects[0]->bytes()[3 * kBlock] ^= 1;
  WriteAndPublish(*storage_, part);
}

// R10.
TEST_P(StorageContract, MemoryThatIsGoneIsDataLoss) {
  class Gone final : public ObjectSource {
    Status Read(uint64_t, absl::Span<char>) const override {
      return absl::DataLossError("the page is broken");
    }
  };
  const Part part = MakePart(Key(5, 100), 0, 1, {{"a", 4096}});
  const Gone gone;
  PartToWrite to_write = part.ToWrite();
  to_write.sources[0] = &gone;
  EXPECT_EQ(storage_->WriteParts(Key(5, 100), Me(), {to_write}).code(),
            absl::StatusCode::kDataLoss);
  EXPECT_FALSE(Publish(*storage_, Key(5, 100)));
  EXPECT_THAT(backend_->Leftovers(), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(
    Storage, StorageContract,
    ::testing::Values(Kind{"Posix", [] { return std::make_unique<PosixBackend>(); }},
                      Kind{"Memory", [] { return std::make_unique<MemoryBackend>(); }},
                      Kind{"Wary", [] { return std::make_unique<WaryBackend>(); }},
                      Kind{"Faultless", [] { return std::make_unique<FaultlessBackend>(); }}),
    [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace cairn::storage
