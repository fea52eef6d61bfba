// Which catalog a daemon keeps, and the file with the password of a database.
#include "server/daemon/catalog_opener.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace cairn::daemon {
namespace {

using ::testing::HasSubstr;

class PasswordFile : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = std::filesystem::temp_directory_path() / "password-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    path_ = folder_ + "/password";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void Write(const std::string& text, unsigned mode = 0600) {
    std::filesystem::remove(path_);
    std::ofstream(path_) << text;
    ASSERT_EQ(::chmod(path_.c_str(), mode), 0);
  }
  std::string Refusal() const {
    const StatusOr<std::string> read = ReadPasswordFile(path_);
    if (read.ok()) return "accepted";
    EXPECT_TRUE(absl::IsInvalidArgument(read.status())) << read.status();
    EXPECT_THAT(read.status().message(), HasSubstr("catalog.mysql.password_file: " + path_));
    return std::string(read.status().message());
  }

  std::string folder_, path_;
};

TEST_F(PasswordFile, ItsFirstLineIsThePassword) {
  for (const std::string text : {"se cret", "se cret\n", "se cret\nand more\n"}) {
    Write(text);
    EXPECT_EQ(*ReadPasswordFile(path_), "se cret");
  }
  Write("read only", 0400);
  EXPECT_EQ(*ReadPasswordFile(path_), "read only");
}

TEST_F(PasswordFile, WhichOthersCanReadOrWriteIsRefused) {
  for (const unsigned mode : {0640U, 0604U, 0620U, 0602U, 0644U}) {
    Write("secret", mode);
    EXPECT_THAT(Refusal(), HasSubstr("others may read or write it")) << std::oct << mode;
    EXPECT_THAT(Refusal(), ::testing::Not(HasSubstr("secret")));
  }
}

TEST_F(PasswordFile, WhichIsNoneIsRefusedAtOnce) {
  EXPECT_THAT(Refusal(), HasSubstr("No such file"));
  Write("");
  EXPECT_THAT(Refusal(), HasSubstr("empty"));
  Write("\nsecond line");
  EXPECT_THAT(Refusal(), HasSubstr("empty"));
  Write(std::string(5000, 'x'));
  EXPECT_THAT(Refusal(), HasSubstr("5000"));
  std::filesystem::remove(path_);
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  EXPECT_THAT(Refusal(), HasSubstr("no regular file"));
}

TEST_F(PasswordFile, OfAnotherUserIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs uid 0";
  Write("secret");
  ASSERT_EQ(::chown(path_.c_str(), 1234, 1234), 0);
  EXPECT_THAT(Refusal(), HasSubstr("belongs to uid 1234"));
}

TEST_F(PasswordFile, StopsADaemonThatNeedsIt) {
  Options options;
  options.mysql.socket = "/nowhere";
  options.mysql_password_file = path_;
  EXPECT_TRUE(absl::IsInvalidArgument(CheckPasswordFile(options)));
  Write("secret");
  EXPECT_TRUE(CheckPasswordFile(options).ok());
  Write("secret", 0644);
  EXPECT_TRUE(absl::IsInvalidArgument(CatalogOpener(options)().status())) << "read at each opening";
}

TEST(CatalogOpener, WithoutOneThereIsNone) {
  EXPECT_EQ(CatalogOpener(Options()), nullptr);
  EXPECT_TRUE(CheckPasswordFile(Options()).ok());
}

}  // namespace
}  // namespace cairn::daemon
