#include "common/directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace cairn {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class Directory : public ::testing::Test {
 protected:
  Directory() {
    char path[] = "/tmp/cairn-directory-XXXXXX";
    folder_ = ::mkdtemp(path);
    fs::create_directories(folder_ + "/real/inner");
  }
  ~Directory() override { fs::remove_all(folder_); }

  // Whether the descriptor is of the directory that `path` names.
  static bool Leads(const StatusOr<UniqueFd>& opened, const std::string& path) {
    struct stat found = {}, wanted = {};
    EXPECT_TRUE(opened.ok()) << opened.status();
    return opened.ok() && ::fstat(opened->get(), &found) == 0 &&
           ::stat(path.c_str(), &wanted) == 0 && found.st_dev == wanted.st_dev &&
           found.st_ino == wanted.st_ino;
  }

  std::string folder_;
};

TEST(DirectoryPaths, AreSplitAtTheLastComponent) {
  const auto split = [](const std::string& path) {
    const DirectoryPath parts = SplitDirectoryPath(path);
    return std::make_pair(parts.parent, parts.base);
  };
  using Pair = std::pair<std::string, std::string>;
  EXPECT_EQ(split("/a/b"), Pair("/a", "b"));
  EXPECT_EQ(split("/a/b//"), Pair("/a", "b"));
  EXPECT_EQ(split("/a//b"), Pair("/a", "b"));
  EXPECT_EQ(split("//a"), Pair("/", "a"));
  EXPECT_EQ(split("b"), Pair(".", "b"));
  EXPECT_EQ(split("a/b"), Pair("a", "b"));
  EXPECT_EQ(split("/"), Pair("/", ""));
}

TEST_F(Directory, IsReachedThroughLinksOfOnesOwn) {
  fs::create_symlink("real", folder_ + "/relative");
  fs::create_symlink(folder_ + "/relative/inner", folder_ + "/absolute");
  const std::string inner = folder_ + "/real/inner";
  EXPECT_TRUE(Leads(OpenDirectoryWarily(inner + "/"), inner));
  EXPECT_TRUE(Leads(OpenDirectoryWarily(folder_ + "/relative/inner"), inner));
  EXPECT_TRUE(Leads(OpenDirectoryWarily(folder_ + "/absolute"), inner));
  EXPECT_TRUE(Leads(OpenDirectoryWarily(folder_ + "/absolute/../../relative/./inner"), inner));
  EXPECT_TRUE(Leads(OpenDirectoryWarily("/"), "/"));
  EXPECT_TRUE(Leads(OpenDirectoryWarily("."), "."));
}

TEST_F(Directory, ThatIsMissingOrAFileIsSaidByName) {
  EXPECT_TRUE(absl::IsNotFound(OpenDirectoryWarily(folder_ + "/none").status()));
  EXPECT_TRUE(absl::IsNotFound(OpenDirectoryWarily(folder_ + "/none/at/all").status()));
  std::ofstream(folder_ + "/file").put('x');
  const Status file = OpenDirectoryWarily(folder_ + "/file").status();
  EXPECT_EQ(file.code(), absl::StatusCode::kFailedPrecondition) << file;
  EXPECT_THAT(std::string(file.message()), HasSubstr(folder_ + "/file is not a directory"));
  fs::create_symlink("loop", folder_ + "/loop");
  EXPECT_THAT(std::string(OpenDirectoryWarily(folder_ + "/loop").status().message()),
              HasSubstr("ELOOP"));
}

TEST_F(Directory, BehindALinkThatAStrangerPlantedIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root: makes another user's link";
  const std::string open = folder_ + "/open", link = open + "/link";
  fs::create_directory(open);
  ASSERT_EQ(::chmod(open.c_str(), 01777), 0);
  fs::create_symlink(folder_ + "/real", link);
  EXPECT_TRUE(Leads(OpenDirectoryWarily(link + "/inner"), folder_ + "/real/inner")) << "root's own";
  ASSERT_EQ(::lchown(link.c_str(), 12345, 12345), 0);
  for (const std::string& path : {link, link + "/inner"}) {
    const Status refused = OpenDirectoryWarily(path).status();
    EXPECT_TRUE(absl::IsPermissionDenied(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("symbolic link of uid 12345"));
  }
  ASSERT_EQ(::chown(open.c_str(), 12345, 0), 0);
  EXPECT_TRUE(OpenDirectoryWarily(link).ok()) << "the directory's owner may do as he likes there";
  ASSERT_EQ(::chown(open.c_str(), 0, 0), 0);
  ASSERT_EQ(::chmod(open.c_str(), 0755), 0);
  EXPECT_TRUE(OpenDirectoryWarily(link).ok()) << "nobody else could have planted it there";
}

}  // namespace
}  // namespace cairn
