#include "common/socket_path.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/fd.h"

namespace cairn {
namespace {

using ::testing::HasSubstr;

// XDG_RUNTIME_DIR of an ordinary user: who runs the tests, or a stranger when that is root.
class SocketPath : public ::testing::Test {
 protected:
  SocketPath() {
    char path[] = "/tmp/cairn-socket-path-XXXXXX";
    user_.runtime_dir = ::mkdtemp(path);
    user_.uid = ::geteuid() != 0 ? ::geteuid() : 12345;
    if (::geteuid() == 0) {
      EXPECT_EQ(::chown(path, user_.uid, 0), 0);
    }
    own_ = user_.runtime_dir + "/cairn/cairn.sock";
    folder_ = user_.runtime_dir;
  }
  ~SocketPath() override { std::filesystem::remove_all(folder_); }

  std::string WhyNot() const {
    const auto own = OwnSocketPath(user_);
    EXPECT_EQ(own.status().code(), absl::StatusCode::kFailedPrecondition) << own.status();
    EXPECT_EQ(ClientSocketPath(user_), kDefaultSocketPath);
    return std::string(own.status().message());
  }

  SocketUser user_;
  std::string own_;
  std::string folder_;
};

TEST_F(SocketPath, OfAUserIsInTheUsersRuntimeDirectory) {
  EXPECT_EQ(*OwnSocketPath(user_), own_) << "also when nothing is there yet";
}

TEST_F(SocketPath, OfRootIsTheMachines) {
  EXPECT_TRUE(absl::IsNotFound(OwnSocketPath({0, user_.runtime_dir}).status()));
  EXPECT_EQ(ClientSocketPath({0, user_.runtime_dir}), kDefaultSocketPath);
}

TEST_F(SocketPath, WithoutARuntimeDirectoryIsTheMachines) {
  user_.runtime_dir.clear();
  EXPECT_TRUE(absl::IsNotFound(OwnSocketPath(user_).status()));
  EXPECT_EQ(ClientSocketPath(user_), kDefaultSocketPath);
}

TEST_F(SocketPath, OfAClientIsTheUsersOwnOnlyWhereASocketIs) {
  EXPECT_EQ(ClientSocketPath(user_), kDefaultSocketPath) << "a user's client reaches root's daemon";
  std::filesystem::create_directory(user_.runtime_dir + "/cairn");
  std::ofstream(own_).put('x');
  EXPECT_EQ(ClientSocketPath(user_), kDefaultSocketPath) << "a file is no socket";
  std::filesystem::remove(own_);
  const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, own_.c_str(), sizeof(address.sun_path) - 1);
  ASSERT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_EQ(ClientSocketPath(user_), own_);
}

TEST_F(SocketPath, OfARuntimeDirectoryThatIsNotUsableSaysWhy) {
  user_.uid += 1;
  EXPECT_THAT(WhyNot(), HasSubstr(absl::StrCat("belongs to uid ", user_.uid - 1)));
  user_.uid -= 1;
  ASSERT_EQ(::chmod(folder_.c_str(), 0777), 0);
  EXPECT_THAT(WhyNot(), HasSubstr("can be written by other users"));
  user_.runtime_dir = "here";
  EXPECT_THAT(WhyNot(), HasSubstr("here is not an absolute path"));
  user_.runtime_dir = folder_ + "/none";
  EXPECT_THAT(WhyNot(), HasSubstr("ENOENT"));
  user_.runtime_dir = "/dev/null";
  EXPECT_THAT(WhyNot(), HasSubstr("/dev/null is not a directory"));
}

}  // namespace
}  // namespace cairn
