// A storage root of a test's own, and what a test looks at below it.
#pragma once

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "common/failpoint.h"
#include "common/fd.h"
#include "server/storage/posix_storage.h"
#include "tests/storage/parts.h"

namespace cairn::storage {

class PosixFixture : public ::testing::Test {
 protected:
  PosixFixture() { UseRoot("/tmp"); }
  ~PosixFixture() override {
    SetFailpointHook(nullptr);
    EXPECT_TRUE(ArmFailpoints("").ok());
    std::filesystem::remove_all(root_);
  }

  void UseRoot(const std::string& below) {
    if (!root_.empty()) std::filesystem::remove_all(root_);
    std::string path = below + "/cairn-storage-XXXXXX";
    root_ = ::mkdtemp(path.data());
    std::filesystem::permissions(root_, std::filesystem::perms::all);
    storage_ = Make();
  }
  // For tests that make hundreds of checkpoints.
  void UseRootInMemory() { UseRoot(std::filesystem::exists("/dev/shm") ? "/dev/shm" : "/tmp"); }

  std::unique_ptr<Storage> Make(int threads = 2) {
    PosixOptions options;
    options.root = root_;
    options.threads = threads;
    auto storage = MakePosixStorage(options);
    EXPECT_TRUE(storage.ok()) << storage.status();
    return *std::move(storage);
  }

  Status Write(const Part& part) { return storage::Write(*storage_, part); }
  bool Publish(const CheckpointKey& key) { return storage::Publish(*storage_, key); }
  void WriteAndPublish(const Part& part) { storage::WriteAndPublish(*storage_, part); }
  void Sweep() { storage::Sweep(*storage_); }
  std::vector<std::string> Stored() { return storage::Stored(*storage_); }

  std::string Path(const std::string& path) const { return root_ + "/job/" + path; }
  static std::string Bytes(const std::string& path) {
    auto bytes = ReadFile(path);
    return bytes.ok() ? *bytes : bytes.status().ToString();
  }
  void ExpectFiles(const Part& part, const std::string& directory) {
    for (const auto& object : part.objects) {
      EXPECT_EQ(Bytes(Path(directory + "/" + object->entry.name)), object->text())
          << object->entry.name;
    }
  }
  // Everything below the job that is neither a final file nor a directory.
  std::vector<std::string> Leftovers() {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root_)) {
      const std::string path = entry.path();
      if (absl::EndsWith(path, ".tmp")) found.push_back(path);
    }
    for (const char* place : {".cairn/trash", ".cairn/publish", ".cairn/writing"}) {
      if (!std::filesystem::exists(Path(place))) continue;
      for (const auto& entry : std::filesystem::directory_iterator(Path(place))) {
        // What was deleted waits in the trash for an hour.
        if (!absl::EndsWith(std::string(entry.path()), ".deleted")) found.push_back(entry.path());
      }
    }
    return found;
  }
  // Nothing in this tree has changed for so long; two minutes, unless it is said.
  void Age(const std::string& directory, int seconds = 120) {
    const timespec old[2] = {{::time(nullptr) - seconds, 0}, {::time(nullptr) - seconds, 0}};
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
      ::utimensat(AT_FDCWD, entry.path().c_str(), old, AT_SYMLINK_NOFOLLOW);
    }
    ::utimensat(AT_FDCWD, directory.c_str(), old, 0);
  }
  // A child that runs `body`. The caller must be the only thread: a lock that another thread held at the
  // fork, the sanitizers' own among them, would stay locked in the child for ever.
  static pid_t StartChild(const std::function<int()>& body) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(body());
    return child;
  }
  // How it ends; kFailpointExitCode when a failpoint ended it.
  static int WaitFor(pid_t child) {
    int state = 0;
    EXPECT_EQ(::waitpid(child, &state, 0), child);
    return WIFEXITED(state) ? WEXITSTATUS(state) : -1;
  }
  static int InChild(const std::function<int()>& body) { return WaitFor(StartChild(body)); }

  std::string root_;
  std::unique_ptr<Storage> storage_;
};

}  // namespace cairn::storage
