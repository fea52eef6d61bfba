#include "server/node/mappers.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/fd.h"
#include "gtest/gtest.h"

namespace cairn::node {
namespace {

TEST(Mappers, AForkedChildThatOnlyMapsIsNamedAndWeAreNot) {  // R29, as status shows it
  UniqueFd memfd = *MakeMemfd("cairn-test", 4096, 0600);
  struct stat attributes = {};
  ASSERT_EQ(fstat(memfd.get(), &attributes), 0);
  Mapping mapping = *Mapping::Map(memfd.get(), 0, 4096, PROT_READ, MAP_SHARED);
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    close(memfd.get());
    (void)!write(ready[1], "x", 1);
    pause();
    _exit(0);
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  const auto mappers = FindMappers({attributes.st_ino});
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  close(ready[0]);
  close(ready[1]);
  ASSERT_EQ(mappers.count(attributes.st_ino), 1u);
  EXPECT_EQ(mappers.at(attributes.st_ino), std::set<int32_t>{child});
}

TEST(Mappers, NothingAskedIsNothingLookedAt) {
  EXPECT_TRUE(FindMappers({}, "/does/not/exist").empty());
  EXPECT_TRUE(FindMappers({1}, "/does/not/exist").empty());
}

}  // namespace
}  // namespace cairn::node
