// The kinds of storage that pass the contract (storage_contract_test.cc).
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/layout.h"
#include "common/stored_job.h"
#include "server/storage/posix_storage.h"
#include "server/storage/wary_storage.h"
#include "tests/storage/faulty_storage.h"
#include "tests/storage/memory_storage.h"

namespace cairn::storage {

// One kind of storage, and what the suite does to what it stored behind its back.
class Backend {
 public:
  virtual ~Backend() = default;
  // Each is another daemon's: they share what is stored, and no locks.
  virtual std::unique_ptr<Storage> Open() = 0;
  // Whether its readers lend descriptors.
  virtual bool LendsDescriptors() const = 0;
  virtual void Truncate(const CheckpointKey& checkpoint, const std::string& object,
                        uint64_t length) = 0;
  virtual void Remove(const CheckpointKey& checkpoint, const std::string& object) = 0;
  // Makes an unpublished checkpoint one that has not changed for so long.
  virtual void Age(const CheckpointKey& checkpoint, int seconds) = 0;
  // What stands in the step's place; the key's revision is -1 when nothing does.
  virtual CheckpointKey InPlace(Step step) = 0;
  // Another storage, an empty one, stands in this one's place, until PutBack.
  virtual void Replace() = 0;
  virtual void PutBack() = 0;
  // What stands between "not stored" and "stored", by its names; nothing after a sweep.
  virtual std::vector<std::string> Leftovers() = 0;
};

class PosixBackend final : public Backend {
 public:
  PosixBackend() {
    char path[] = "/tmp/cairn-storage-XXXXXX";
    root_ = ::mkdtemp(path);
  }
  ~PosixBackend() override {
    std::filesystem::remove_all(root_);
    std::filesystem::remove_all(root_ + ".away");
  }

  std::unique_ptr<Storage> Open() override {
    PosixOptions options;
    options.root = root_;
    options.threads = 2;
    auto storage = MakePosixStorage(options);
    EXPECT_TRUE(storage.ok()) << storage.status();
    return *std::move(storage);
  }
  bool LendsDescriptors() const override { return true; }
  void Truncate(const CheckpointKey& checkpoint, const std::string& object,
                uint64_t length) override {
    std::filesystem::resize_file(FileOf(checkpoint, object), length);
  }
  void Remove(const CheckpointKey& checkpoint, const std::string& object) override {
    ASSERT_TRUE(std::filesystem::remove(FileOf(checkpoint, object)));
  }
  CheckpointKey InPlace(Step step) override {
    const auto job = ReadStoredJob(root_, "job");
    EXPECT_TRUE(job.ok()) << job.status();
    for (const StoredCheckpoint& stored : job->checkpoints) {
      if (stored.location.text() == absl::StrCat(root_, "/job/", step)) return stored.key;
    }
    return {"job", step, 0, -1};
  }
  void Age(const CheckpointKey& checkpoint, int seconds) override {
    const auto then = std::filesystem::file_time_type::clock::now() - std::chrono::seconds(seconds);
    const std::string directory = DirectoryOf(checkpoint);
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
      std::filesystem::last_write_time(entry.path(), then);
    }
    std::filesystem::last_write_time(directory, then);
  }
  void Replace() override {
    std::filesystem::rename(root_, root_ + ".away");
    std::filesystem::create_directory(root_);
  }
  void PutBack() override {
    std::filesystem::remove_all(root_);
    std::filesystem::rename(root_ + ".away", root_);
  }
  std::vector<std::string> Leftovers() override {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root_)) {
      const std::string path = entry.path();
      if (absl::StrContains(path, ".deleted")) continue;  // waits for an hour
      if (absl::EndsWith(path, ".tmp") || absl::StrContains(path, "/.cairn/trash/") ||
          absl::StrContains(path, "/.cairn/publish/")) {
        found.push_back(path);
      }
    }
    return found;
  }

 private:
  std::string DirectoryOf(const CheckpointKey& key) const {
    for (const std::string& aside : {PartialDirectory(key), AbandonedDirectory(key)}) {
      const std::string directory = absl::StrCat(root_, "/", key.job, "/", aside);
      if (std::filesystem::exists(directory)) return directory;
    }
    return absl::StrCat(root_, "/", key.job, "/", key.step);
  }
  // Among the checkpoint's own, or in a part's directory.
  std::string FileOf(const CheckpointKey& key, const std::string& object) const {
    const std::string directory = DirectoryOf(key);
    for (Writer writer = 0; writer < 8; ++writer) {
      const std::string file = absl::StrCat(directory, "/", PartDirectory(writer), "/", object);
      if (std::filesystem::exists(file)) return file;
    }
    return directory + "/" + object;
  }

  std::string root_;
};

class MemoryBackend : public Backend {
 public:
  std::unique_ptr<Storage> Open() override { return MakeMemoryStorage(store_); }
  bool LendsDescriptors() const override { return false; }
  void Truncate(const CheckpointKey& checkpoint, const std::string& object,
                uint64_t length) override {
    store_->Truncate(checkpoint, object, length);
  }
  void Remove(const CheckpointKey& checkpoint, const std::string& object) override {
    store_->Remove(checkpoint, object);
  }
  void Age(const CheckpointKey& checkpoint, int seconds) override {
    store_->Age(checkpoint, seconds);
  }
  CheckpointKey InPlace(Step step) override { return store_->InPlace("job", step); }
  void Replace() override { store_->Replace(DrawRootId()); }
  void PutBack() override { store_->PutBack(); }
  std::vector<std::string> Leftovers() override { return {}; }

 private:
  const std::shared_ptr<MemoryStore> store_ = std::make_shared<MemoryStore>();
};

// As a daemon has it, whose black box nobody reads.
class WaryBackend final : public MemoryBackend {
 public:
  std::unique_ptr<Storage> Open() override {
    auto page = MakeMemfd("black-box", BlackBox::kBytes, 0600);
    EXPECT_TRUE(page.ok()) << page.status();
    auto box = BlackBox::Open(*std::move(page));
    EXPECT_TRUE(box.ok()) << box.status();
    suspects_.push_back(std::make_unique<Suspects>(*std::move(box), RealClock()));
    return MakeWaryStorage(MemoryBackend::Open(), suspects_.back().get());
  }

 private:
  std::vector<std::unique_ptr<Suspects>> suspects_;
};

// The decorator with its faults off.
class FaultlessBackend final : public MemoryBackend {
 public:
  std::unique_ptr<Storage> Open() override {
    return MakeFaultyStorage(MemoryBackend::Open(), std::make_shared<StorageFaults>());
  }
};

}  // namespace cairn::storage
