#include "tests/golden/golden.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cairn {
namespace {

std::filesystem::path Folder() { return CAIRN_GOLDEN_FOLDER; }

}  // namespace

std::string Golden(const std::string& name, absl::string_view encoded) {
  const std::filesystem::path path = Folder() / name;
  if (std::getenv("CAIRN_WRITE_GOLDEN") != nullptr) {
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << std::string(encoded);
  }
  const std::string bytes = OldGolden(name);
  EXPECT_TRUE(bytes == encoded)
      << path << " and what this build writes differ; tests/golden/golden.h says what to do";
  return bytes;
}

std::string OldGolden(const std::string& name) {
  const std::filesystem::path path = Folder() / name;
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    ADD_FAILURE() << path << " is missing; tests/golden/golden.h says how to write it";
    return std::string();
  }
  std::ostringstream bytes;
  bytes << file.rdbuf();
  return bytes.str();
}

void ExpectGoldenFilesAre(const std::string& folder, std::vector<std::string> names) {
  std::vector<std::string> files;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(Folder() / folder, none)) {
    files.push_back(entry.path().filename());
  }
  EXPECT_THAT(files, ::testing::UnorderedElementsAreArray(names)) << folder;
}

}  // namespace cairn
