// The real binary, from outside: keeper and daemon as processes, a client of both sockets that
// knows no libcairn, SIGKILL at what it cannot choose.
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "client/cli/certificates.h"
#include "common/fd.h"
#include "gtest/gtest.h"
#include "server/daemon/daemon.h"
#include "tests/rpc/raw_client.h"
#include "tests/support/await.h"

namespace cairn::testing {
namespace {

struct Finished {
  int code = -1;  // exit code, or -signal
  std::string out;
};

class Cairnd : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = std::filesystem::temp_directory_path() / "cairnd-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    std::filesystem::create_directory(Path("storage"));
  }
  void TearDown() override {
    if (keeper_ > 0) {
      for (pid_t daemon : Daemons()) kill(daemon, SIGKILL);
      kill(keeper_, SIGKILL);
      waitpid(keeper_, nullptr, 0);
    }
    if (HasFailure()) std::fputs(Log().c_str(), stderr);
    std::filesystem::remove_all(folder_);
  }

  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  std::string Socket() const { return Path("cairn.sock"); }
  std::string Log() const {
    StatusOr<std::string> log = ReadFile(Path("log"));
    return log.ok() ? *log : "";
  }

  std::vector<std::string> Flags(const std::vector<std::string>& more) const {
    std::vector<std::string> flags = {"--socket=" + Socket(),
                                      "--memory.budget=128MiB",
                                      "--journal.bytes=8MiB",
                                      "--persist.mode=on-demand",
                                      "--storage.root=" + Path("storage"),
                                      "--catalog.path=" + Path("catalog.sqlite")};
    for (const std::string& flag : more) {
      const std::string name = flag.substr(0, flag.find('=') + 1);
      std::erase_if(flags, [&](const std::string& f) { return f.rfind(name, 0) == 0; });
      flags.push_back(flag);
    }
    return flags;
  }

  static pid_t Spawn(const std::vector<std::string>& flags, const std::string& output,
                     const std::vector<std::string>& environment = {}) {
    std::vector<std::string> arguments = {CAIRND};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    std::vector<char*> argv, envp;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    std::vector<std::string> variables = environment;
    for (std::string& variable : variables) envp.push_back(variable.data());
    envp.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, output.c_str(), O_WRONLY | O_CREAT | O_APPEND,
                                     0600);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    pid_t pid = -1;
    EXPECT_EQ(posix_spawn(&pid, CAIRND, &actions, nullptr, argv.data(), envp.data()), 0);
    posix_spawn_file_actions_destroy(&actions);
    return pid;
  }

  // Runs to its end.
  Finished Run(const std::vector<std::string>& flags,
               const std::vector<std::string>& environment = {}) const {
    const std::string output = Path("run.out");
    std::filesystem::remove(output);
    int status = 0;
    waitpid(Spawn(flags, output, environment), &status, 0);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), *ReadFile(output)};
  }

  void Start(const std::vector<std::string>& more = {}) {
    keeper_ = Spawn(Flags(more), Path("log"));
    ASSERT_TRUE(testing::Await([&] { return Log().find("serving on") != std::string::npos; }));
  }

  // The keeper's children.
  std::set<pid_t> Daemons() const {
    std::set<pid_t> children;
    StatusOr<std::string> text =
        ReadFile(absl::StrCat("/proc/", keeper_, "/task/", keeper_, "/children"));
    if (!text.ok()) return children;
    for (absl::string_view word : absl::StrSplit(*text, ' ', absl::SkipWhitespace())) {
      pid_t pid = 0;
      if (absl::SimpleAtoi(word, &pid)) children.insert(pid);
    }
    return children;
  }

  void KillDaemon() {
    const std::set<pid_t> before = Daemons();
    ASSERT_EQ(before.size(), 1u);
    kill(*before.begin(), SIGKILL);
    ASSERT_TRUE(testing::Await([&] {
      const std::set<pid_t> now = Daemons();
      return now.size() == 1 && now != before;
    }));
  }

  int Wait() {
    int status = 0;
    waitpid(keeper_, &status, 0);
    keeper_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

  std::string folder_;
  pid_t keeper_ = -1;
};

TEST_F(Cairnd, WhatWasCommittedOutlivesASigkilledDaemon) {  // promise 7, R15
  Start();
  RawClient client(Socket());
  client.Begin("job", 7, 0, 1);
  const std::string first = Pattern(3 << 20, 1), second = Pattern(70'000, 2);
  client.Save(1, "first", first);
  KillDaemon();
  client.Rejoin();
  client.Save(2, "second", second);
  KillDaemon();
  client.Rejoin();
  EXPECT_EQ(client.Load("job", 1, "first"), first);
  EXPECT_EQ(client.Load("job", 2, "second"), second);
}

TEST_F(Cairnd, ADescriptorThatWasLentStaysGoodWhileTheDaemonDies) {  // R14
  Start();
  RawClient client(Socket());
  client.Begin("job", 7, 0, 1);
  const std::string bytes = Pattern(2 << 20, 3);
  client.Save(1, "model", bytes);
  wire::OpenRequest open;
  open.checkpoint.__set_job("job");
  open.checkpoint.__set_step(1);
  open.__set_name("model");
  open.__set_mode(wire::OpenMode::MAP);
  open.__set_timeout_ms(10'000);
  wire::OpenReply opened;
  client.call().open(opened, client.NextCall(), open);
  UniqueFd fd = client.TakeFd(opened.lease);
  ASSERT_TRUE(fd.valid());
  KillDaemon();
  client.Rejoin();
  // Pressure: the lease keeps the bytes where they are.
  for (int step = 2; step <= 60; ++step) client.Save(step, "model", Pattern(4 << 20, 99));
  std::string read(bytes.size(), '\0');
  ASSERT_TRUE(
      PreadAll(fd.get(), read.data(), read.size(), static_cast<uint64_t>(opened.offset)).ok());
  EXPECT_EQ(read, bytes);
}

TEST_F(Cairnd, SigtermEndsWithZeroAndLeavesTheNewestStepInFiles) {  // R26
  Start({"--persist.mode=newest"});
  RawClient client(Socket());
  client.Begin("job", 7, 0, 1);
  const std::string bytes = Pattern(3 << 20, 4);
  client.Save(1, "model", Pattern(3 << 20, 5));
  client.Save(2, "model", bytes);
  kill(keeper_, SIGTERM);
  EXPECT_EQ(Wait(), 0);
  EXPECT_EQ(*ReadFile(Path("storage/job/2/model")), bytes);
}

TEST_F(Cairnd, ThreeDeathsLeadToSafeMode) {
  Start({"--test.failpoints=node.recovered@1,node.recovered@2"});
  RawClient client(Socket());
  client.Begin("job", 7, 0, 1);
  const std::string bytes = Pattern(1000, 6);
  client.Save(1, "model", bytes);
  kill(*Daemons().begin(), SIGKILL);
  ASSERT_TRUE(testing::Await([&] { return Log().find("safe mode: ") != std::string::npos; }));
  client.Rejoin();
  EXPECT_EQ(client.Load("job", 1, "model"), bytes);
  wire::NodeStatus status;
  client.call().status(status);
  EXPECT_EQ(status.state.rfind("safe mode: ", 0), 0u) << status.state;
  try {
    client.Save(2, "model", bytes);
    FAIL() << "safe mode admitted a step";
  } catch (const wire::Error& error) {
    EXPECT_EQ(error.code, static_cast<int>(absl::StatusCode::kUnavailable)) << error.message;
  }
}

TEST_F(Cairnd, ASecondOneOnTheSameSocketSaysSo) {
  Start();
  const Finished second = Run(Flags({}));
  EXPECT_NE(second.code, 0);
  EXPECT_NE(second.out.find(Socket()), std::string::npos) << second.out;
}

TEST_F(Cairnd, RefusesToStartNamingWhatIsWrong) {
  Finished finished = Run(Flags({"--memory.bugdet=1GiB"}));
  EXPECT_EQ(finished.code, 2);
  EXPECT_NE(finished.out.find("memory.bugdet"), std::string::npos) << finished.out;

  finished = Run({"--socket=" + Socket()}, {"CAIRND_MEMORY_BUDGET=lots"});
  EXPECT_EQ(finished.code, 2);
  EXPECT_NE(finished.out.find("CAIRND_MEMORY_BUDGET"), std::string::npos) << finished.out;

  finished = Run({"--socket=" + Socket(), "--memory.budget=4096TiB"});
  EXPECT_EQ(finished.code, 2);
  EXPECT_NE(finished.out.find("exceed the limit"), std::string::npos) << finished.out;

  finished = Run({"--socket=" + Socket(), "--memory.budget=64MiB", "--storage.root=not/absolute"});
  EXPECT_EQ(finished.code, 2);
  EXPECT_NE(finished.out.find("not/absolute"), std::string::npos) << finished.out;
}

TEST_F(Cairnd, ADaemonThatRunsIsNotReplacedByOneWhoseCertificateWouldNotDo) {
  const auto authority = cli::Authority::Make("ours");
  ASSERT_TRUE(authority.ok());
  const auto certify = [&](engine::Rank rank) {
    const auto pem = authority->Issue({"ours", rank});
    std::ofstream(Path("node.pem")) << pem->certificate;
    std::ofstream(Path("node.key")) << pem->key;
  };
  std::ofstream(Path("ca.pem")) << authority->ToPem()->certificate;
  certify(0);
  // Its own, where another run of the tests has its own, too.
  const std::string host = absl::StrCat("127.41.", getpid() / 250 % 250, ".", getpid() % 250 + 1);
  const std::vector<std::string> ring = {
      "--ring.cluster=ours",
      "--ring.rank=0",
      absl::StrCat("--ring.nodes=0=", host, ":7400,1=", host, ":7500"),
      "--peers.ca=" + Path("ca.pem"),
      "--peers.cert=" + Path("node.pem"),
      "--peers.key=" + Path("node.key")};
  Start(ring);
  const std::set<pid_t> before = Daemons();
  certify(1);
  std::vector<std::string> check = Flags(ring);
  check.push_back("--check-config");
  const Finished checked = Run(check);
  EXPECT_EQ(checked.code, 2);
  EXPECT_NE(checked.out.find("peers.cert: " + Path("node.pem")), std::string::npos) << checked.out;

  kill(keeper_, SIGHUP);
  ASSERT_TRUE(testing::Await(
      [&] { return Log().find("it names cairn://cluster/ours/rank/1") != std::string::npos; }));
  EXPECT_EQ(Daemons(), before);

  certify(0);
  EXPECT_EQ(Run(check).code, 0);
  kill(keeper_, SIGHUP);
  ASSERT_TRUE(testing::Await([&] { return Daemons().size() == 1 && Daemons() != before; }));
}

TEST_F(Cairnd, PrintsItsOptionsWithTheirOrigins) {
  std::ofstream(Path("config.toml")) << "[memory]\nbudget = \"64MiB\"\n";
  const Finished finished =
      Run({"--config=" + Path("config.toml"), "--log.level=warning", "--print-config"},
          {"CAIRND_JOURNAL_BYTES=4MiB"});
  EXPECT_EQ(finished.code, 0) << finished.out;
  for (const std::string& line :
       {"memory.budget = \"64MiB\"  # file " + Path("config.toml"),
        std::string("log.level = \"warning\"  # flag"),
        std::string("journal.bytes = \"4MiB\"  # environment CAIRND_JOURNAL_BYTES"),
        std::string("persist.mode = \"newest\"  # default")}) {
    EXPECT_NE(finished.out.find(line), std::string::npos) << line << "\n" << finished.out;
  }
}

TEST(FailpointsOfLife, AreThoseOfThatLifeInArmFailpointsOwnForm) {
  EXPECT_EQ(*daemon::FailpointsOfLife("", 0), "");
  EXPECT_EQ(*daemon::FailpointsOfLife("a,b@1:2,c@1=EIO,d:3=EIO", 0), "a,d:3=EIO");
  EXPECT_EQ(*daemon::FailpointsOfLife("a,b@1:2,c@1=EIO", 1), "b:2,c=EIO");
  EXPECT_EQ(daemon::FailpointsOfLife("a@x", 0).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace cairn::testing
