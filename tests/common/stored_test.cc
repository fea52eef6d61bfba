#include "common/stored.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cairn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Manifest Part(Writer writer, int32_t world_size, const std::string& name, Attempt attempt = 100) {
  Manifest manifest;
  manifest.job = "job";
  manifest.step = 5;
  manifest.attempt = attempt;
  manifest.writer = writer;
  manifest.world_size = world_size;
  manifest.objects.resize(1);
  manifest.objects[0].name = name;
  return manifest;
}

std::string Conflict(const Manifest& one, const Manifest& other) {
  return ManifestConflict({&one, &other});
}

TEST(ManifestConflict, PartsOfOneCheckpointBelongTogether) {
  EXPECT_EQ(Conflict(Part(0, 2, "a"), Part(1, 2, "b")), "");
  EXPECT_EQ(Conflict(Part(0, 2, "a"), Part(1, 2, "ab")), "");
  EXPECT_EQ(PartConflict({}), "");
}

TEST(ManifestConflict, SaysWhichNameTwoWritersClaim) {
  EXPECT_THAT(Conflict(Part(0, 2, "a"), Part(1, 2, "a")), HasSubstr("\"a\" is of writers 0 and 1"));
  EXPECT_THAT(Conflict(Part(0, 2, "a"), Part(1, 2, "a/inside")),
              HasSubstr("\"a\" of writer 0 is a directory of \"a/inside\" of writer 1"));
  EXPECT_THAT(Conflict(Part(0, 2, "a/b/c"), Part(1, 2, "a/b")),
              HasSubstr("\"a/b\" of writer 1 is a directory of \"a/b/c\" of writer 0"));
}

TEST(ManifestConflict, SaysWhatDiffersBetweenTwoCheckpoints) {
  EXPECT_THAT(Conflict(Part(0, 2, "a"), Part(1, 3, "b")), HasSubstr("world_size"));
  EXPECT_THAT(Conflict(Part(0, 2, "a"), Part(1, 2, "b", 101)), HasSubstr("attempt=101"));
}

// Half of the parts, or parts in conflict, are not a checkpoint (promise 3).
TEST(StoredCheckpoint, IsCompleteWithAllItsPartsAndNoConflict) {
  StoredCheckpoint stored;
  stored.world_size = 2;
  stored.parts.push_back({Part(0, 2, "a"), "d0"});
  EXPECT_FALSE(stored.Complete());
  stored.parts.push_back({Part(1, 2, "b"), "d1"});
  EXPECT_TRUE(stored.Complete());
  EXPECT_THAT(stored.Digests(), ElementsAre("d0", "d1"));
  stored.conflict = "why";
  EXPECT_FALSE(stored.Complete());
}

}  // namespace
}  // namespace cairn
