#include "common/keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>

namespace cairn {
namespace {

using ::testing::HasSubstr;

// The message of a refusal, which must be INVALID_ARGUMENT and name the field.
std::string Refusal(const Status& status, absl::string_view field) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(std::string(field)));
  return std::string(status.message());
}

std::string RefusedName(absl::string_view name) {
  return Refusal(ValidateObjectName(name), "name: ");
}

TEST(ObjectNames, OrdinaryOnesAreAccepted) {
  for (const char* name : {"a", "model.pt", "a/b/c", "layer.0/weight", "...", "..a", "a..", ".a",
                           ".cair", "x.cairn", "größe/重み/𝛼", " ", "a b", "-", "~", "\\"}) {
    EXPECT_TRUE(ValidateObjectName(name).ok()) << name;
  }
}

TEST(ObjectNames, DotComponentsAreRefused) {
  for (const char* name : {".", "..", "../a", "a/..", "a/../b", "./a", "a/./b", "a/."}) {
    EXPECT_THAT(RefusedName(name), HasSubstr("component")) << name;
  }
}

TEST(ObjectNames, EmptyComponentsAndLeadingSlashesAreRefused) {
  EXPECT_THAT(RefusedName(""), HasSubstr("empty"));
  for (const char* name : {"/", "/a", "a/", "a//b", "//"}) {
    EXPECT_THAT(RefusedName(name), HasSubstr("empty component")) << name;
  }
}

TEST(ObjectNames, ControlCharactersAreRefused) {
  for (int c = 0; c < 0x20; ++c) {
    EXPECT_THAT(RefusedName(std::string("a") + static_cast<char>(c)), HasSubstr("control"));
  }
  EXPECT_THAT(RefusedName("a\x7f"), HasSubstr("control"));
  EXPECT_THAT(RefusedName(absl::string_view("a\0b", 3)), HasSubstr("byte 1"));
}

TEST(ObjectNames, TheLimitsAre512BytesAnd200PerComponent) {
  const std::string longest_component(200, 'x');
  EXPECT_TRUE(ValidateObjectName(longest_component).ok());
  EXPECT_THAT(RefusedName(longest_component + "x"), HasSubstr("201"));
  const std::string longest =
      longest_component + "/" + longest_component + "/" + std::string(512 - 402, 'y');
  ASSERT_EQ(longest.size(), 512u);
  EXPECT_TRUE(ValidateObjectName(longest).ok());
  EXPECT_THAT(RefusedName(longest + "y"), HasSubstr("513"));
}

TEST(ObjectNames, OurOwnPrefixIsRefusedInEveryComponent) {
  for (const char* name : {".cairn", ".cairn/x", "a/.cairn", ".cairnabc", "a/.cairn.tmp/b"}) {
    EXPECT_THAT(RefusedName(name), HasSubstr("reserved")) << name;
  }
}

TEST(ObjectNames, OnlyShortestFormUtf8IsAccepted) {
  for (const char* name : {"\x80", "a\xC0\xAF", "\xC1\xBF", "\xE0\x80\xAF", "\xED\xA0\x80",
                           "\xF0\x80\x80\xAF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF",
                           "\xC3", "\xE2\x82", "\xF0\x9D\x9B", "\xC3(", "\xE2\x28\xA1"}) {
    EXPECT_THAT(RefusedName(name), HasSubstr("UTF-8"));
  }
  EXPECT_TRUE(ValidateObjectName("\xED\x9F\xBF\xEE\x80\x80\xF4\x8F\xBF\xBF").ok());
}

// The name among `names` that `name` collides with; "" when there is none.
std::string CollisionOf(const std::string& name, const std::vector<std::string>& names) {
  std::map<std::string, int> known;
  for (const std::string& one : names) known[one] = 0;
  const auto found = FindCollision(known, name);
  return found == known.end() ? "" : found->first;
}

TEST(ObjectNames, ADirectoryOfAnotherCollides) {
  EXPECT_EQ(CollisionOf("a/b", {"a"}), "a");
  EXPECT_EQ(CollisionOf("a/b/c", {"0", "a", "z"}), "a");
  EXPECT_EQ(CollisionOf("a/b/c/d", {"a/b/c"}), "a/b/c");
  EXPECT_EQ(CollisionOf("a", {"a/b/c"}), "a/b/c");
  EXPECT_EQ(CollisionOf("a", {"a!", "a-b", "a/b", "ab"}), "a/b");
  EXPECT_EQ(CollisionOf("a", {"ab", "b/a", "a-b", "a."}), "");
  EXPECT_EQ(CollisionOf("a-b", {"a/b", "a"}), "");
  EXPECT_EQ(CollisionOf("a", {}), "");
}

TEST(ObjectNames, TheSameNameCollides) { EXPECT_EQ(CollisionOf("a/b", {"a/b"}), "a/b"); }

TEST(ObjectNames, OnlyADirectoryIsFoundAsOne) {
  const std::map<std::string, int> names = {{"a/b", 1}, {"a/b/c", 2}};
  EXPECT_EQ(FindDirectoryOf("a/b/c", names)->first, "a/b");
  EXPECT_EQ(FindDirectoryOf("a/b", names), names.end()) << "no name is a directory of itself";
  EXPECT_EQ(FindDirectoryOf("a", names), names.end());
}

TEST(Jobs, OnlyTheGrammarIsAccepted) {
  for (const char* job : {"a", "0", "run-1.2_x", "A"}) EXPECT_TRUE(ValidateJob(job).ok()) << job;
  EXPECT_TRUE(ValidateJob(std::string(128, 'j')).ok());
  EXPECT_THAT(Refusal(ValidateJob(std::string(129, 'j')), "job: "), HasSubstr("128"));
  for (const char* job : {"", ".a", "-a", "_a", "a/b", "a b", "ä", "a\n", "..", "a:b", "a'--"}) {
    Refusal(ValidateJob(job), "job: ");
  }
  Refusal(ValidateJob(absl::string_view("a\0", 2)), "job: ");
}

TEST(Numbers, AreCheckedAgainstTheirLimits) {
  EXPECT_TRUE(ValidateStep(0).ok());
  EXPECT_TRUE(ValidateStep(std::numeric_limits<Step>::max()).ok());
  EXPECT_EQ(Refusal(ValidateStep(-1), "step"), "step: -1 is below 0");
  EXPECT_TRUE(ValidateAttempt(1).ok());
  Refusal(ValidateAttempt(0), "attempt: 0");
  EXPECT_TRUE(ValidateWorld(0, 1).ok());
  EXPECT_TRUE(ValidateWorld(kMaxWorldSize - 1, kMaxWorldSize).ok());
  Refusal(ValidateWorld(0, 0), "world_size");
  Refusal(ValidateWorld(0, kMaxWorldSize + 1), "world_size");
  Refusal(ValidateWorld(1, 1), "writer: 1");
  Refusal(ValidateWorld(-1, 1), "writer: -1");
  EXPECT_TRUE(ValidateObjectLength(0).ok());
  EXPECT_TRUE(ValidateObjectLength(static_cast<int64_t>(kMaxObjectBytes)).ok());
  Refusal(ValidateObjectLength(static_cast<int64_t>(kMaxObjectBytes) + 1), "length");
  // What 2^63 becomes on the wire.
  Refusal(ValidateObjectLength(std::numeric_limits<int64_t>::min()), "length");
}

TEST(Paths, NameAStepAndAnObject) {
  const auto full = ParseCairnPath("cairn://job-1/12/a/b.pt", "");
  ASSERT_TRUE(full.ok()) << full.status();
  EXPECT_EQ(full->job, "job-1");
  EXPECT_EQ(full->step, 12);
  EXPECT_FALSE(full->latest);
  EXPECT_EQ(full->name, "a/b.pt");

  const auto latest = ParseCairnPath("cairn://j/latest/m", "other");
  ASSERT_TRUE(latest.ok());
  EXPECT_TRUE(latest->latest);
  EXPECT_EQ(latest->job, "j");

  const auto step_only = ParseCairnPath("cairn://j/9223372036854775807", "");
  ASSERT_TRUE(step_only.ok());
  EXPECT_EQ(step_only->step, std::numeric_limits<Step>::max());
  EXPECT_EQ(step_only->name, "");

  const auto short_form = ParseCairnPath("7/m.pt", "j");
  ASSERT_TRUE(short_form.ok());
  EXPECT_EQ(short_form->job, "j");
  EXPECT_EQ(short_form->step, 7);
}

TEST(Paths, EverythingElseIsRefusedSayingWhy) {
  const auto why = [](absl::string_view path, absl::string_view job) {
    const auto parsed = ParseCairnPath(path, job);
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument) << path;
    return std::string(parsed.status().message());
  };
  EXPECT_THAT(why("cairn:/j/1/a", "j"), HasSubstr("pathlib"));
  EXPECT_THAT(why("cairn://", ""), HasSubstr("job"));
  EXPECT_THAT(why("cairn://j", ""), HasSubstr("no step"));
  EXPECT_THAT(why("cairn://j/", ""), HasSubstr("no step"));
  EXPECT_THAT(why("cairn://j/1/", ""), HasSubstr("name"));
  EXPECT_THAT(why("cairn://j/-1/a", ""), HasSubstr("step"));
  EXPECT_THAT(why("cairn://j/1x/a", ""), HasSubstr("step"));
  EXPECT_THAT(why("cairn://j/9223372036854775808/a", ""), HasSubstr("limit"));
  EXPECT_THAT(why("cairn://j/1/../a", ""), HasSubstr("name"));
  EXPECT_THAT(why("cairn://../1/a", ""), HasSubstr("job"));
  EXPECT_THAT(why("7/a", ""), HasSubstr("needs a job"));
  EXPECT_THAT(why("latest/a", "j"), HasSubstr("step"));
  EXPECT_THAT(why("7", "j"), HasSubstr("no object"));
  EXPECT_THAT(why("model.pt", "j"), HasSubstr("step"));
  EXPECT_THAT(why("", "j"), HasSubstr("step"));
}

TEST(CheckpointRefs, MatchWhatTheyGive) {
  const CheckpointKey key = {"j", 7, 2, 1};
  EXPECT_TRUE((CheckpointRef{"j"}).Matches(key)) << "latest gives nothing";
  EXPECT_TRUE((CheckpointRef{"j", 7}).Matches(key));
  EXPECT_TRUE((CheckpointRef{"j", 7, 2}).Matches(key));
  EXPECT_TRUE((CheckpointRef{"j", 7, 2, 1}).Matches(key));
  EXPECT_TRUE((CheckpointRef{"j", 7, 0, 1}).Matches(key));
  EXPECT_FALSE((CheckpointRef{"j", 6}).Matches(key));
  EXPECT_FALSE((CheckpointRef{"j", 7, 3}).Matches(key));
  EXPECT_FALSE((CheckpointRef{"j", 7, 2, 0}).Matches(key));
}

TEST(CheckpointRefs, AreCheckedAgainstTheirLimits) {
  EXPECT_TRUE(ValidateCheckpointRef({"j"}).ok());
  EXPECT_TRUE(ValidateCheckpointRef({"j", 0, 1, 0}).ok());
  Refusal(ValidateCheckpointRef({""}), "job");
  Refusal(ValidateCheckpointRef({"j", -2}), "step: -2");
  Refusal(ValidateCheckpointRef({"j", 1, -1}), "attempt: -1");
  Refusal(ValidateCheckpointRef({"j", 1, 1, -2}), "revision: -2");
  Refusal(ValidateCheckpointRef({"j", kNoStep, 1}), "latest");
  Refusal(ValidateCheckpointRef({"j", kNoStep, 0, 0}), "latest");
}

TEST(ListPaths, NameJobsAJobOrAStep) {
  EXPECT_EQ(ParseListPath("")->ref.job, "");
  EXPECT_EQ(ParseListPath("run")->ref.job, "run");
  EXPECT_FALSE(ParseListPath("run")->names_step);
  const auto step = ParseListPath("run/12");
  ASSERT_TRUE(step.ok());
  EXPECT_TRUE(step->names_step);
  EXPECT_EQ(step->ref.step, 12);
  const auto latest = ParseListPath("run/latest");
  ASSERT_TRUE(latest.ok());
  EXPECT_TRUE(latest->names_step);
  EXPECT_EQ(latest->ref.step, kNoStep);
  const auto exact = ParseListPath(ExactListPath({"run", 12, 1763798400123, 3}));
  ASSERT_TRUE(exact.ok());
  EXPECT_EQ(exact->ref.step, 12);
  EXPECT_EQ(exact->ref.attempt, 1763798400123);
  EXPECT_EQ(exact->ref.revision, 3);
  for (const char* path :
       {"/", "run/", "run/newest", "run/-1", "run/1/", "run/1/a", "ru n", "run/9223372036854775808",
        "run/1@", "run/1@2", "run/1@2.", "run/1@.3", "run/1@0.3", "run/1@-2.3", "run/1@2.-3",
        "run/1@2.3.4", "run/1@9223372036854775808.0", "run/1@2.2147483648", "run/latest@2.3"}) {
    EXPECT_EQ(ParseListPath(path).status().code(), absl::StatusCode::kInvalidArgument) << path;
  }
}

}  // namespace
}  // namespace cairn
