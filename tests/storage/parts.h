// Parts of checkpoints with bytes of their own, and the few words that tests of storage speak.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/checksum.h"
#include "common/fd.h"
#include "server/storage/storage.h"

namespace cairn::storage {

inline constexpr uint32_t kBlock = 64 << 10;  // small blocks, so that small objects have several

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
      // What is behind the object on its last page must not be stored.
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

inline CheckpointKey Key(Step step, Attempt attempt, Revision revision = 0) {
  return {"job", step, attempt, revision};
}

inline Owner Me() { return {::geteuid(), ::getegid()}; }

// The bytes of a part follow from its key. Without `objects` it has four: in a directory, empty,
// deep and short, of whole blocks.
inline Part MakePart(const CheckpointKey& key, Writer writer = 0, int32_t world_size = 1,
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

inline Status Write(Storage& storage, const Part& part) {
  return storage.WriteParts(part.manifest.Checkpoint(), Me(), {part.ToWrite()});
}

// True when it now stands in place; an error fails the test.
inline bool Publish(Storage& storage, const CheckpointKey& key) {
  const auto published = storage.Publish(key, Me());
  EXPECT_TRUE(published.ok()) << published.status();
  return published.ok() && published->where.has_value();
}

inline void WriteAndPublish(Storage& storage, const Part& part) {
  const Status status = Write(storage, part);
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_TRUE(Publish(storage, part.manifest.Checkpoint()));
}

// Supersedes nothing: finishes claims and empties the trash.
inline void Sweep(Storage& storage) {
  const Status status = storage.Sweep("job", {});
  EXPECT_TRUE(status.ok()) << status;
}

// What storage has of the job: "step@attempt.revision", "/" when published.
inline std::vector<std::string> Stored(Storage& storage) {
  std::vector<std::string> words;
  const auto job = storage.Read("job");
  EXPECT_TRUE(job.ok()) << job.status();
  if (!job.ok()) return words;
  for (const StoredCheckpoint& c : job->checkpoints) {
    words.push_back(
        absl::StrCat(c.key.step, "@", c.key.attempt, ".", c.key.revision, c.published ? "/" : ""));
  }
  EXPECT_EQ(job->problems, std::vector<std::string>());
  return words;
}

}  // namespace cairn::storage
