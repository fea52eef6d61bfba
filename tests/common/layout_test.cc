#include "common/layout.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/fsuid.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_join.h"
#include "common/checksum.h"
#include "common/codec.h"
#include "common/fd.h"
#include "common/stored_checkpoint.h"
#include "common/stored_job.h"
#include "tests/support/peak_memory.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class StoredLayout : public ::testing::Test {
 protected:
  StoredLayout() {
    char path[] = "/tmp/cairn-layout-XXXXXX";
    root_ = ::mkdtemp(path);
    fs::create_directories(root_ + "/job/.cairn");
  }
  ~StoredLayout() override { fs::remove_all(root_); }

  static Manifest Part(Step step, Attempt attempt, Writer writer, int32_t world_size,
                       Revision revision = 0) {
    Manifest manifest;
    manifest.job = "job";
    manifest.step = step;
    manifest.attempt = attempt;
    manifest.revision = revision;
    manifest.writer = writer;
    manifest.world_size = world_size;
    manifest.objects.resize(1);
    manifest.objects[0].name = "w" + std::to_string(writer);
    return manifest;
  }
  void Put(const std::string& path, const std::string& bytes) {
    const fs::path whole = root_ + "/job/" + path;
    fs::create_directories(whole.parent_path());
    std::ofstream(whole, std::ios::binary) << bytes;
  }
  void PutManifest(const std::string& directory, const Manifest& manifest) {
    Put(directory + "/" + ManifestFile(manifest.writer), EncodeManifest(manifest));
  }
  StoredJob Look() {
    auto job = ReadStoredJob(root_, "job");
    EXPECT_TRUE(job.ok()) << job.status();
    return job.ok() ? *std::move(job) : StoredJob();
  }
  // "step@attempt.revision", "+" when complete, "/" when published.
  std::vector<std::string> Found(const StoredJob& job) {
    std::vector<std::string> words;
    for (const StoredCheckpoint& c : job.checkpoints) {
      words.push_back(absl::StrCat(c.key.step, "@", c.key.attempt, ".", c.key.revision,
                                   c.Complete() ? "+" : "", c.published ? "/" : ""));
    }
    return words;
  }

  std::string root_;
};

TEST_F(StoredLayout, NamesParseBackToWhatTheyStandFor) {
  const CheckpointKey key{"", 12, 34, 5};
  CheckpointKey parsed;
  EXPECT_EQ(PartialDirectory(key), ".cairn/partial/12.34.5");
  EXPECT_TRUE(ParseCheckpointDirectory("12.34.5", &parsed));
  EXPECT_EQ(parsed, key);
  EXPECT_EQ(NumberedName(key, 9), "12.34.5.9");
  EXPECT_EQ(AbandonedDirectory(key), ".cairn/abandoned/12.34.5");
  EXPECT_TRUE(ParseCheckpointDirectory("12.34.5.9", &parsed));
  for (const char* name : {"", "1", "1.2", "1.2.3.4.5", "1.0.3", "-1.2.3", "01.2.3", "1.2.3.x",
                           "1.2.99999999999", " 1.2.3", "1.2.+3", "tmp.1.2"}) {
    EXPECT_FALSE(ParseCheckpointDirectory(name, &parsed)) << name;
  }
  EXPECT_EQ(ParseStepDirectory("7"), 7);
  for (const char* name : {"07", "-1", "7 ", "x", "", "9223372036854775808"}) {
    EXPECT_EQ(ParseStepDirectory(name), kNoStep) << name;
  }
}

TEST_F(StoredLayout, APublishedCheckpointIsFoundWhole) {
  PutManifest("5", Part(5, 100, 0, 2));
  PutManifest("5", Part(5, 100, 1, 2));
  const StoredJob job = Look();
  EXPECT_THAT(Found(job), ElementsAre("5@100.0+/"));
  ASSERT_EQ(job.checkpoints[0].parts.size(), 2u);
  EXPECT_EQ(job.checkpoints[0].parts[1].digest, ManifestDigest(EncodeManifest(Part(5, 100, 1, 2))));
  EXPECT_EQ(job.checkpoints[0].location.text(), root_ + "/job/5");
  EXPECT_THAT(job.problems, IsEmpty());
}

TEST_F(StoredLayout, PartialOnesAndThoseOnTheirWayAreFoundToo) {
  PutManifest(".cairn/partial/6.100.0", Part(6, 100, 1, 2));
  PutManifest(".cairn/publish/5.100.1", Part(5, 100, 0, 1, 1));
  EXPECT_THAT(Found(Look()), ElementsAre("5@100.1+/", "6@100.0"));
}

// Half of one life and half of the next never add up: R28.
TEST_F(StoredLayout, ManifestsOfTwoLivesNeverAddUp) {
  PutManifest("5", Part(5, 100, 0, 2));
  PutManifest("5", Part(5, 101, 1, 2));
  const StoredJob job = Look();
  EXPECT_THAT(Found(job), ElementsAre("5@100.0/"));
  EXPECT_THAT(job.problems, ElementsAre(HasSubstr("conflict")));
}

TEST_F(StoredLayout, OneNameFromTwoWritersIsAConflictThatSaysWhy) {
  Manifest other = Part(5, 100, 1, 2);
  other.objects[0].name = "w0";
  PutManifest("5", Part(5, 100, 0, 2));
  PutManifest("5", other);
  const StoredJob job = Look();
  EXPECT_FALSE(job.checkpoints[0].Complete());
  EXPECT_THAT(job.checkpoints[0].conflict, HasSubstr("\"w0\" is of writers 0 and 1"));
}

TEST_F(StoredLayout, DamagedAndMisplacedManifestsAreReportedNotUsed) {
  std::string damaged = EncodeManifest(Part(5, 100, 0, 1));
  damaged[20] = static_cast<char>(damaged[20] ^ 1);
  Put("5/" + ManifestFile(0), damaged);
  PutManifest("6", Part(7, 100, 0, 1));                             // another step's
  PutManifest(".cairn/partial/8.100.0", Part(8, 101, 0, 1));        // another attempt's
  Put("9/" + ManifestFile(1), EncodeManifest(Part(9, 100, 0, 2)));  // another writer's
  const StoredJob job = Look();
  EXPECT_THAT(Found(job), IsEmpty());
  EXPECT_EQ(job.problems.size(), 6u) << ::testing::PrintToString(job.problems);
  EXPECT_THAT(job.problems, ::testing::Contains(HasSubstr("/5/.cairn/0.manifest: manifest: ")));
}

// Not there, and not to be read now, are two things: only the first one says that there is none.
TEST_F(StoredLayout, WhatCannotBeReadIsToldApartFromWhatIsNotThere) {
  PutManifest("5", Part(5, 100, 0, 1));
  PutManifest("6", Part(6, 100, 0, 1));
  PutManifest("7", Part(7, 100, 0, 1));
  PutManifest("8", Part(8, 100, 0, 1));
  PutManifest(".cairn/abandoned/9.100.0", Part(9, 100, 0, 1));
  Put(".cairn/removed/4.attempts/100-100", "");
  EXPECT_THAT(Look().unread, IsEmpty());
  std::string newer = EncodeManifest(Part(8, 100, 0, 1));
  newer[8] = 99;  // its format
  const uint32_t crc = Crc32c(0, newer.data(), newer.size() - sizeof(crc));
  std::memcpy(newer.data() + newer.size() - sizeof(crc), &crc, sizeof(crc));
  Put("8/" + ManifestFile(0), newer);
  const auto permit = [&](fs::perms permissions) {
    for (const char* path : {"5/.cairn/0.manifest", "6/.cairn", "7", ".cairn/abandoned/9.100.0",
                             ".cairn/removed/4.attempts"}) {
      fs::permissions(root_ + "/job/" + path, permissions);
    }
  };
  // A directory of another user is none of ours, whether it can be read or not.
  const bool root = ::geteuid() == 0;
  fs::create_directories(root_ + "/job/20261122");
  if (root) {
    ASSERT_EQ(::chown((root_ + "/job/20261122").c_str(), 1, 1), 0);
  }
  fs::permissions(root_ + "/job/20261122", root ? fs::perms::none : fs::perms::all);
  permit(fs::perms::none);
  fs::permissions(root_, fs::perms::all);
  if (::geteuid() == 0) ::setfsuid(65534);  // whom permissions bind
  const StoredJob job = Look();
  ::setfsuid(::geteuid());
  permit(fs::perms::all);
  EXPECT_THAT(Found(job), IsEmpty());
  EXPECT_EQ(job.problems.size(), root ? 1u : 0u) << ::testing::PrintToString(job.problems);
  std::vector<Step> steps;
  for (const Unread& unread : job.unread) steps.push_back(unread.step);
  EXPECT_THAT(steps, ElementsAre(4, 5, 6, 7, 8, 9));
  EXPECT_EQ(CheckAllRead(job).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(CheckAllRead(job, 9).code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(CheckAllRead(job, 10).ok());
  EXPECT_THAT(std::string(CheckAllRead(Look()).message()),
              HasSubstr("/8/.cairn/0.manifest: manifest: format 99"));
}

TEST_F(StoredLayout, WhatIsTheUsersIsPassedOver) {
  fs::create_directories(root_ + "/job/12/deep");
  Put("13", "a file with a number for a name");
  Put("notes.txt", "x");
  Put("07/" + ManifestFile(0), EncodeManifest(Part(7, 1, 0, 1)));
  Put("14/.cairn/readme", "no manifest");
  const StoredJob job = Look();
  EXPECT_THAT(job.checkpoints, IsEmpty());
  EXPECT_THAT(job.problems, IsEmpty());
}

// Promise 6.
TEST_F(StoredLayout, NoSymbolicLinkIsFollowed) {
  PutManifest("real", Part(5, 100, 0, 1));
  fs::create_directory_symlink("real", root_ + "/job/5");
  fs::create_directories(root_ + "/job/6");
  fs::create_directory_symlink("../real/.cairn", root_ + "/job/6/.cairn");
  fs::create_directories(root_ + "/job/7/.cairn");
  fs::create_symlink("../../real/.cairn/0.manifest", root_ + "/job/7/.cairn/0.manifest");
  const StoredJob job = Look();
  EXPECT_THAT(job.checkpoints, IsEmpty());
  EXPECT_EQ(job.problems.size(), 4u) << ::testing::PrintToString(job.problems);
  fs::create_directory_symlink("job", root_ + "/alias");
  EXPECT_EQ(ReadStoredJob(root_, "alias").status().code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(StoredLayout, AReplacedRevisionLeftAsideIsNotShown) {
  // After an exchange the older one stands under publish/, in the newer one's name.
  PutManifest("5", Part(5, 100, 0, 1, 1));
  PutManifest(".cairn/publish/5.100.1.77", Part(5, 100, 0, 1, 0));
  EXPECT_THAT(Found(Look()), ElementsAre("5@100.1+/"));
}

TEST_F(StoredLayout, AnotherAttemptsCheckpointIsShownBesideTheOneThatReplacedIt) {
  PutManifest("5", Part(5, 102, 0, 1));
  PutManifest(".cairn/publish/5.102.0.77", Part(5, 101, 0, 1));  // on its way to abandoned/
  PutManifest(".cairn/abandoned/5.100.0", Part(5, 100, 0, 1));
  const StoredJob job = Look();
  EXPECT_THAT(Found(job), ElementsAre("5@100.0+/", "5@101.0+/", "5@102.0+/"));
  EXPECT_EQ(job.checkpoints[0].location.text(), root_ + "/job/.cairn/abandoned/5.100.0");
}

TEST_F(StoredLayout, ANewerAttemptThatIsSetAsideIsShownBesideTheOneInUse) {
  PutManifest("5", Part(5, 100, 0, 1));
  PutManifest(".cairn/abandoned/5.101.0", Part(5, 101, 0, 1));
  EXPECT_THAT(Found(Look()), ElementsAre("5@100.0+/", "5@101.0+/"));
}

TEST_F(StoredLayout, ANewerOneWaitingForItsPlaceIsShownBesideTheOlder) {
  PutManifest("5", Part(5, 100, 0, 1));
  PutManifest(".cairn/publish/5.101.0", Part(5, 101, 0, 1));
  EXPECT_THAT(Found(Look()), ElementsAre("5@100.0+/", "5@101.0+/"));
}

TEST_F(StoredLayout, TombstonesHideWhatTheyForbid) {
  PutManifest("5", Part(5, 100, 0, 1));
  PutManifest(".cairn/partial/5.101.0", Part(5, 101, 0, 1));
  PutManifest(".cairn/partial/5.102.0", Part(5, 102, 0, 1));
  Put(TombstoneFile(5), "101\n");
  Put(TombstoneFile(6), "garbage");
  const StoredJob job = Look();
  EXPECT_THAT(Found(job), ElementsAre("5@102.0+"));
  EXPECT_TRUE(job.removed.Forbids(5, 101));
  EXPECT_FALSE(job.removed.Forbids(5, 102));
  EXPECT_THAT(job.problems, ElementsAre(HasSubstr("removed/6")));
}

TEST_F(StoredLayout, TombstonesOfOneStepCountTogether) {
  for (Attempt attempt : {100, 101, 102, 103}) {
    PutManifest(".cairn/abandoned/5." + std::to_string(attempt) + ".0", Part(5, attempt, 0, 1));
  }
  Put(TombstoneFile(5), "100\n");  // as older versions wrote it
  Put(TombstoneDirectory(5) + "/102-102", "");
  Put(TombstoneDirectory(5) + "/7-40", "");
  Put(TombstoneDirectory(5) + "/103", "");
  const StoredJob job = Look();
  EXPECT_THAT(Found(job), ElementsAre("5@101.0+/", "5@103.0+/"));
  EXPECT_THAT(job.removed.steps.at(5).ranges(),
              ElementsAre(AttemptRanges::Range{1, 100}, AttemptRanges::Range{102, 102}));
  EXPECT_THAT(job.problems, IsEmpty());
}

TEST_F(StoredLayout, AbsentJobsAndRootsAreNotFound) {
  EXPECT_EQ(ReadStoredJob(root_, "none").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ReadStoredJob(root_ + "/none", "job").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ReadStoredJob(root_, "../job").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(StoredLayout, JobsAreDirectoriesWithOurMark) {
  fs::create_directories(root_ + "/other");
  fs::create_directories(root_ + "/a-job/.cairn");
  std::ofstream(root_ + "/file") << "x";
  EXPECT_THAT(*ListStoredJobs(root_), ElementsAre("a-job", "job"));
}

// A sparse file costs whoever plants it nothing, and says of itself what it likes.
class PlantedManifest : public StoredLayout {
 protected:
  static constexpr uint64_t kLength = uint64_t{1} << 30;

  void Plant(const std::string& path, const std::string& begin) {
    Put(path, begin);
    fs::resize_file(root_ + "/job/" + path, kLength);
  }
  // One that begins as a manifest does, and says that it is as long as the file.
  static std::string Head() {
    Manifest manifest = Part(7, 3, 1, 2);
    std::string bytes = EncodeManifest(manifest);
    bytes.resize(bytes.size() - 4);
    std::string length;
    AppendInteger<uint32_t>(&length, static_cast<uint32_t>(kLength - 20));
    return bytes.replace(12, 4, length);
  }
};

TEST_F(PlantedManifest, CostsWhatItIsWorth) {
  PutManifest("7", Part(7, 3, 0, 2));
  PutManifest("8", Part(8, 3, 0, 1));
  Plant("7/.cairn/1.manifest", Head());
  Plant("9/.cairn/0.manifest", "");
  Plant(".cairn/partial/10.3.0/.cairn/0.manifest", "CAIRNMF");
  const testing::PeakMemory before;
  const uint64_t at_first = before.Bytes();
  const auto job = ReadStoredJob(root_, "job", ManifestDetail::kSummary);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_LT(before.Bytes(), at_first + (16 << 20));
  EXPECT_THAT(Found(*job), ElementsAre("7@3.0/", "8@3.0+/"));
  EXPECT_EQ(job->problems.size(), 5u) << absl::StrJoin(job->problems, "; ");
  EXPECT_THAT(job->unread, IsEmpty());
}

// All of it is zeros that no disk holds, and a manifest to the last byte: one that names objects of 4
// TiB, whose checksums are zeros.
TEST_F(PlantedManifest, ThatIsValidCostsASummaryNoMemory) {
  Manifest manifest = Part(7, 3, 0, 1);
  manifest.objects.clear();
  constexpr uint64_t kObject = uint64_t{1} << 42;
  for (int i = 0; i < 20; ++i) {
    ObjectEntry object;
    object.name = absl::StrCat("w", 100 + i);
    object.length = kObject;
    object.block_crcs.resize(BlockCount(kObject, object.block_bytes));
    manifest.objects.push_back(std::move(object));
  }
  PutManifest("7", manifest);  // 80 MiB
  manifest.objects.clear();
  const testing::PeakMemory before;
  const uint64_t at_first = before.Bytes();
  const auto job = ReadStoredJob(root_, "job", ManifestDetail::kSummary);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_LT(before.Bytes(), at_first + (24 << 20));
  ASSERT_THAT(Found(*job), ElementsAre("7@3.0+/"));
  EXPECT_EQ(job->checkpoints[0].parts[0].Bytes(), 20 * kObject);

  const UniqueFd directory(::open((root_ + "/job/7").c_str(), O_RDONLY | O_DIRECTORY));
  std::vector<std::string> problems, unread;
  const auto whole = ReadStoredCheckpoint(directory.get(), "7", ManifestDetail::kWhole,
                                          {.manifest_bytes = 64 << 20}, &problems, &unread);
  EXPECT_EQ(whole.status().code(), absl::StatusCode::kResourceExhausted) << whole.status();
  EXPECT_LT(before.Bytes(), at_first + (24 << 20));
}

// Saving and loading the newest goes on; nothing is deleted while something is unread.
TEST_F(StoredLayout, OfMoreThanFitsTheLowestStepsAreUnread) {
  for (Step step = 1; step <= 5; ++step) PutManifest(absl::StrCat(step), Part(step, 3, 0, 1));
  PutManifest(".cairn/partial/6.3.0", Part(6, 3, 0, 2));  // looked at twice, counted once
  const UniqueFd root(::open(root_.c_str(), O_RDONLY | O_DIRECTORY));
  const auto all = ReadStoredJobBelow(root.get(), root_, "job", ManifestDetail::kSummary);
  ASSERT_TRUE(all.ok() && all->unread.empty());
  uint64_t memory = 0;
  for (const StoredCheckpoint& checkpoint : all->checkpoints) memory += MemoryOf(checkpoint);
  const auto fit = ReadStoredJobBelow(root.get(), root_, "job", ManifestDetail::kSummary,
                                      {.memory_bytes = memory});
  ASSERT_TRUE(fit.ok()) << fit.status();
  EXPECT_EQ(Found(*fit), Found(*all));
  EXPECT_THAT(fit->unread, IsEmpty());
  const auto few = ReadStoredJobBelow(root.get(), root_, "job", ManifestDetail::kSummary,
                                      {.memory_bytes = memory / 2});
  ASSERT_TRUE(few.ok()) << few.status();
  EXPECT_THAT(Found(*few), ElementsAre("4@3.0+/", "5@3.0+/", "6@3.0"));
  ASSERT_EQ(few->unread.size(), 1u);
  EXPECT_EQ(few->unread[0].step, 3);
  EXPECT_THAT(few->unread[0].why, HasSubstr("3 checkpoints up to step 3 are left out"));
}

// However many there are of one checkpoint.
TEST_F(StoredLayout, OneCheckpointOfTooManyPartsIsLeftOut) {
  for (Writer writer = 0; writer < 100; ++writer) PutManifest("7", Part(7, 3, writer, 100));
  PutManifest("6", Part(6, 3, 0, 1));
  const UniqueFd root(::open(root_.c_str(), O_RDONLY | O_DIRECTORY));
  const auto job = ReadStoredJobBelow(root.get(), root_, "job", ManifestDetail::kSummary,
                                      {.memory_bytes = 20'000});
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_THAT(Found(*job), ElementsAre("6@3.0+/"));
  ASSERT_EQ(job->unread.size(), 1u);
  EXPECT_EQ(job->unread[0].step, 7);
}

TEST_F(StoredLayout, TombstonesAndDecisionsTakeNoMoreMemoryThanThereIs) {
  PutManifest("7", Part(7, 3, 0, 1));
  const UniqueFd root(::open(root_.c_str(), O_RDONLY | O_DIRECTORY));
  const StoredLimits limits{.memory_bytes = 50'000};
  ASSERT_THAT(
      Found(*ReadStoredJobBelow(root.get(), root_, "job", ManifestDetail::kSummary, limits)),
      ElementsAre("7@3.0+/"));
  for (int i = 0; i < 500; ++i) Put(absl::StrCat(".cairn/removed/", 100 + i), "3");
  const auto job = ReadStoredJobBelow(root.get(), root_, "job", ManifestDetail::kSummary, limits);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_LT(job->removed.steps.size(), 200u);
  ASSERT_FALSE(job->unread.empty());
  EXPECT_TRUE(absl::IsUnavailable(CheckAllRead(*job, 1000)));
}

TEST_F(StoredLayout, WhatIsWrongIsToldAThousandTimesAtMost) {
  for (int i = 0; i < 1500; ++i) {
    Put(absl::StrCat(i, "/.cairn/0.manifest"), "nonsense");
  }
  const auto job = ReadStoredJob(root_, "job", ManifestDetail::kSummary);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_LE(job->problems.size(), 3000u);
}

TEST_F(StoredLayout, ASummaryStillSeesNamesThatTwoWritersClaim) {
  Manifest other = Part(7, 3, 1, 2);
  other.objects[0].name = "w0";
  PutManifest("7", Part(7, 3, 0, 2));
  PutManifest("7", other);
  other = Part(8, 3, 1, 2);
  other.objects[0].name = "w0/below";
  PutManifest("8", Part(8, 3, 0, 2));
  PutManifest("8", other);
  PutManifest("9", Part(9, 3, 0, 2));
  PutManifest("9", Part(9, 3, 1, 2));
  const auto job = ReadStoredJob(root_, "job", ManifestDetail::kSummary);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_THAT(Found(*job), ElementsAre("7@3.0/", "8@3.0/", "9@3.0+/"));
  EXPECT_THAT(job->checkpoints[0].conflict, HasSubstr("\"w0\" is of writers 0 and 1"));
  EXPECT_THAT(job->checkpoints[1].conflict, HasSubstr("is a directory of \"w0/below\""));
}

TEST_F(StoredLayout, PartsThatAreToJoinAreComparedByName) {
  PutManifest("7", Part(7, 3, 0, 3));
  PutManifest("7", Part(7, 3, 1, 3));
  const auto job = ReadStoredJob(root_, "job", ManifestDetail::kSummary);
  ASSERT_TRUE(job.ok()) << job.status();
  std::vector<const StoredPart*> parts;
  for (const StoredPart& part : job->checkpoints[0].parts) parts.push_back(&part);
  const UniqueFd directory(::open((root_ + "/job/7").c_str(), O_RDONLY | O_DIRECTORY));
  Manifest joining = Part(7, 3, 2, 3);
  const auto conflict = [&] { return *ConflictBelow(directory.get(), parts, {&joining}); };
  EXPECT_EQ(conflict(), "");
  joining.objects[0].name = "w1";
  EXPECT_THAT(conflict(), HasSubstr("\"w1\" is of writers 1 and 2"));
  joining.objects[0].name = "w0/x";
  EXPECT_THAT(conflict(), HasSubstr("is a directory of \"w0/x\" of writer 2"));
  joining = Part(7, 3, 2, 4);
  EXPECT_THAT(conflict(), HasSubstr("world_size"));
}

// Few hashes are held at a time, whatever the number of names.
TEST(NamesSeen, LooksAtManyInPasses) {
  for (const absl::string_view last : {"n/499", "n/7/below", "n", "fresh"}) {
    NamesSeen names(/*most=*/64);
    const auto add = [&] {
      for (int i = 0; i < 500; ++i) names.Add(absl::StrCat("n/", i));
      names.Add(last);
    };
    add();
    int passes = 1;
    for (; names.NextPass(); ++passes) add();
    EXPECT_FALSE(names.too_many());
    EXPECT_EQ(names.may_conflict(), last != "fresh") << last;
    EXPECT_GT(passes, last == "fresh" ? 7 : 0);
  }
}

TEST(NamesSeen, NobodyHasSoMany) {
  NamesSeen names(/*most=*/2);
  const auto add = [&] {
    for (int i = 0; i < 1000; ++i) names.Add(absl::StrCat(i));
  };
  add();
  while (names.NextPass()) add();
  EXPECT_TRUE(names.too_many());
  EXPECT_FALSE(names.may_conflict());
}

}  // namespace
}  // namespace cairn
