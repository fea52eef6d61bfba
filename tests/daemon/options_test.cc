#include "server/daemon/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace cairn::daemon {
namespace {

using ::testing::AllOf;
using ::testing::ContainerEq;
using ::testing::HasSubstr;

class OptionsFile : public ::testing::Test {
 protected:
  OptionsFile() {
    std::string pattern = std::filesystem::temp_directory_path() / "cairn-options-XXXXXX";
    directory_ = mkdtemp(pattern.data());
    path_ = directory_ + "/cairnd.toml";
  }
  ~OptionsFile() override { std::filesystem::remove_all(directory_); }
  void Write(const std::string& text) { std::ofstream(path_) << text; }

  std::string directory_, path_;
};

std::string Refusal(const std::vector<std::string>& arguments,
                    const std::vector<std::string>& environment = {}) {
  const StatusOr<ParsedOptions> parsed = ParseOptions(arguments, environment);
  return parsed.ok() ? "accepted" : std::string(parsed.status().message());
}

TEST(Options, DefaultsAreValid) {
  auto parsed = ParseOptions({}, {"HOME=/root"});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->options.node.engine.default_policy.mode, PersistMode::kNewest);
  EXPECT_EQ(parsed->origins.at("memory.budget"), "default");
}

// Whose daemon listens where: tests/common/socket_path_test.cc.
TEST_F(OptionsFile, TheSocketOfAnOrdinaryUserIsInTheUsersRuntimeDirectory) {
  const std::string variable = "XDG_RUNTIME_DIR=" + directory_;
  const auto parsed = ParseOptions({}, {variable});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->options.socket,
            ::geteuid() == 0 ? kDefaultSocketPath : directory_ + "/cairn/cairn.sock");
  EXPECT_EQ(parsed->origins.at("socket"), "default");
  const auto told = ParseOptions({"--socket=/tmp/a.sock"}, {variable});
  ASSERT_TRUE(told.ok()) << told.status();
  EXPECT_EQ(told->options.socket, "/tmp/a.sock");
}

TEST(Options, ARuntimeDirectoryThatIsNotUsableIsNamed) {
  const auto parsed = ParseOptions({}, {"XDG_RUNTIME_DIR=/dev/null"});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->options.socket, kDefaultSocketPath);
  EXPECT_EQ(parsed->origins.at("socket"),
            ::geteuid() == 0
                ? "default"
                : "default; XDG_RUNTIME_DIR is not used: /dev/null is not a directory");
}

TEST_F(OptionsFile, FlagsBeatTheEnvironmentBeatsTheFileBeatsDefaults) {
  Write(
      "[memory]\nbudget = \"1GiB\"\n[persist]\nmode = \"every\"\nevery = 3\n[log]\nlevel = "
      "\"error\"\n");
  auto parsed = ParseOptions({"--config", path_, "--memory.budget=3GiB"},
                             {"CAIRND_MEMORY_BUDGET=2GiB", "CAIRND_PERSIST_EVERY=4"});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->options.node.engine.budget_bytes, 3ull << 30);
  EXPECT_EQ(parsed->origins.at("memory.budget"), "flag");
  EXPECT_EQ(parsed->options.node.engine.default_policy.every, 4);
  EXPECT_EQ(parsed->origins.at("persist.every"), "environment CAIRND_PERSIST_EVERY");
  EXPECT_EQ(parsed->options.node.engine.default_policy.mode, PersistMode::kEvery);
  EXPECT_EQ(parsed->origins.at("persist.mode"), "file " + path_);
  EXPECT_EQ(parsed->origins.at("socket"), "default");
}

TEST_F(OptionsFile, AnUnknownKeyIsRefusedByName) {
  Write("[memory]\nbudgte = \"1GiB\"\n");
  EXPECT_THAT(Refusal({"--config", path_}), AllOf(HasSubstr("memory.budgte"), HasSubstr(path_)));
}

TEST_F(OptionsFile, AMissingFileIsRefused) {
  EXPECT_THAT(Refusal({"--config", directory_ + "/none"}), HasSubstr("/none"));
}

TEST_F(OptionsFile, TheEnvironmentMayNameTheFile) {
  Write("socket = \"/tmp/a.sock\"\n");
  auto parsed = ParseOptions({}, {"CAIRND_CONFIG=" + path_});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->options.socket, "/tmp/a.sock");
}

TEST(Options, AnUnknownVariableIsRefusedByName) {
  EXPECT_THAT(Refusal({}, {"CAIRND_MEMORY_BUGDET=1GiB"}), HasSubstr("CAIRND_MEMORY_BUGDET"));
}

TEST(Options, AnUnknownFlagIsRefusedByName) {
  EXPECT_THAT(Refusal({"--memroy.budget=1GiB"}), HasSubstr("memroy"));
}

TEST(Options, AnEmptyValueIsAnEmptyValue) {
  const auto parsed = ParseOptions({"--peers.cert=", "--check-config", "--config=", "--log.dir=x",
                                    "--log.dir=", "--ring.nodes=", "--log.level=error"},
                                   {});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_TRUE(parsed->check_config);
  EXPECT_EQ(parsed->options.peers.tls.cert, "");
  EXPECT_EQ(parsed->options.log_dir, "");
  EXPECT_EQ(parsed->options.log_level, "error");
  EXPECT_EQ(parsed->origins.at("peers.cert"), "flag");
  EXPECT_THAT(Refusal({"--memory.budget=", "--check-config"}),
              HasSubstr("memory.budget (flag): \"\""));
  const auto child = ParseOptions(AsFlags(*parsed), {});
  ASSERT_TRUE(child.ok()) << child.status();
  EXPECT_EQ(child->options.log_level, "error");
}

TEST(Options, ABadValueNamesOptionValueAndOrigin) {
  EXPECT_THAT(Refusal({"--memory.budget=lots"}),
              AllOf(HasSubstr("memory.budget"), HasSubstr("lots"), HasSubstr("flag")));
  EXPECT_THAT(Refusal({}, {"CAIRND_PERSIST_MODE=sometimes"}),
              AllOf(HasSubstr("persist.mode"), HasSubstr("sometimes"), HasSubstr("environment")));
  EXPECT_THAT(Refusal({"--pool.threads=0"}), AllOf(HasSubstr("pool.threads"), HasSubstr("1 …")));
  EXPECT_THAT(Refusal({"--socket.mode=9"}), HasSubstr("socket.mode"));
  EXPECT_THAT(Refusal({"--storage.scope=node"}), HasSubstr("storage.scope"));
  EXPECT_THAT(Refusal({"--storage.root=here"}), HasSubstr("storage.root"));
  EXPECT_THAT(Refusal({"--socket=" + std::string(200, 'x')}), HasSubstr("200 bytes"));
  EXPECT_THAT(Refusal({"--memory.budget=1GiB", "--pool.slabs=1GiB*2"}), HasSubstr("pool.slabs"));
}

// --- the ring

std::vector<std::string> Ring(std::vector<std::string> more = {}) {
  more.insert(more.begin(), {"--ring.cluster=c", "--ring.rank=1",
                             "--ring.nodes=0=127.0.0.1:7400, 1=127.0.0.2:7400"});
  return more;
}

TEST(Options, ARingIsReadFromOneListOrSeveral) {
  const auto parsed = ParseOptions(Ring({"--ring.nodes=2=[::1]:7400"}), {});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const engine::RingOptions& ring = parsed->options.node.engine.ring;
  EXPECT_EQ(ring.cluster, "c");
  EXPECT_EQ(ring.rank, 1);
  EXPECT_EQ(ring.members, (std::map<engine::Rank, std::string>{
                              {0, "127.0.0.1:7400"}, {1, "127.0.0.2:7400"}, {2, "[::1]:7400"}}));
  EXPECT_FALSE(ring.Alone());
  EXPECT_EQ(*DataAddress(parsed->options), "127.0.0.2:7401");
  const auto child = ParseOptions(AsFlags(*parsed), {});
  ASSERT_TRUE(child.ok()) << child.status();
  EXPECT_EQ(child->options.node.engine.ring.members, ring.members);
  EXPECT_EQ(child->options.node.engine.ring.rank, 1);
}

TEST_F(OptionsFile, ARingIsReadFromAFile) {
  Write(
      "[ring]\ncluster = \"c\"\nrank = 0\nnodes = [\"0=127.0.0.1:7400\", \"1=127.0.0.2:7400\"]\n"
      "[peers]\ndata_port = 7500\n");
  const auto parsed = ParseOptions({"--config", path_}, {});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->options.node.engine.ring.members.size(), 2u);
  EXPECT_EQ(*DataAddress(parsed->options), "127.0.0.1:7500");
}

TEST(Options, WithoutARingANodeIsAlone) {
  EXPECT_TRUE(ParseOptions({}, {})->options.node.engine.ring.Alone());
  const auto one =
      ParseOptions({"--ring.cluster=c", "--ring.rank=0", "--ring.nodes=0=10.0.0.1:1"}, {});
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_TRUE(one->options.node.engine.ring.Alone());
}

TEST(Options, ARingThatContradictsItselfIsRefusedNamingTheOptions) {
  EXPECT_THAT(Refusal({"--ring.rank=0"}), AllOf(HasSubstr("ring.nodes"), HasSubstr("ring.rank")));
  EXPECT_THAT(Refusal({"--ring.cluster=c"}),
              AllOf(HasSubstr("ring.nodes"), HasSubstr("ring.cluster")));
  EXPECT_THAT(Refusal({"--ring.nodes=0=127.0.0.1:1"}), HasSubstr("ring.cluster: missing"));
  EXPECT_THAT(Refusal({"--ring.nodes=0=127.0.0.1:1", "--ring.cluster=c"}),
              HasSubstr("ring.rank: missing"));
  EXPECT_THAT(Refusal(Ring({"--ring.rank=7"})), HasSubstr("ring.rank: 7 is not among ring.nodes"));
  EXPECT_THAT(Refusal(Ring({"--ring.rank=-1"})), HasSubstr("ring.rank"));
  EXPECT_THAT(Refusal(Ring({"--ring.replicas=2"})),
              HasSubstr("ring.replicas: 2 is not 0 to 1 with 2 members"));
  EXPECT_THAT(Refusal(Ring({"--ring.nodes=0=127.0.0.1:1"})),
              HasSubstr("rank 0 stands there twice"));
  EXPECT_THAT(Refusal(Ring({"--ring.nodes=2=host:1"})),
              HasSubstr("\"host:1\" is not ADDRESS:PORT"));
  EXPECT_THAT(Refusal(Ring({"--ring.nodes=2"})), HasSubstr("ring.nodes"));
  EXPECT_THAT(Refusal(Ring({"--ring.nodes=2=127.0.0.1:7400"})),
              HasSubstr("ranks 0 and 2 are both at"));
  EXPECT_THAT(Refusal(Ring({"--ring.nodes=2=0.0.0.0:7400"})),
              AllOf(HasSubstr("ring.nodes"), HasSubstr("0.0.0.0:7400 is not an address")));
  EXPECT_THAT(Refusal(Ring({"--ring.cluster=a/b"})), HasSubstr("ring.cluster"));
  EXPECT_THAT(Refusal(Ring({"--memory.replicas=2GiB", "--memory.budget=1GiB"})),
              AllOf(HasSubstr("memory.replicas"), HasSubstr("memory.budget")));
}

TEST(Options, TheWireThatContradictsItselfIsRefusedNamingTheOptions) {
  EXPECT_THAT(Refusal(Ring({"--peers.ca=/ca.pem"})), HasSubstr("all of them or none"));
  EXPECT_THAT(Refusal(Ring({"--peers.data_port=7400"})), HasSubstr("is where rank 1 listens"));
  EXPECT_THAT(Refusal({"--ring.cluster=c", "--ring.rank=0",
                       "--ring.nodes=0=127.0.0.1:65535,1=127.0.0.2:1"}),
              HasSubstr("peers.data_port: missing"));
  EXPECT_THAT(Refusal({"--peers.in_flight=32MiB"}), HasSubstr("peers.in_flight"));
  EXPECT_THAT(Refusal({"--peers.in_flight_per_peer=1MiB"}), HasSubstr("below one block"));
  EXPECT_THAT(Refusal({"--peers.streams=9"}), HasSubstr("peers.streams"));
  EXPECT_THAT(Refusal({"--transport=infiniband"}),
              HasSubstr("transport (flag): \"infiniband\" is none of auto, rdma, tcp"));
  const std::vector<std::string> open = {"--ring.cluster=c", "--ring.rank=0",
                                         "--ring.nodes=0=192.0.2.1:7400,1=192.0.2.2:7400"};
  EXPECT_THAT(Refusal(open), AllOf(HasSubstr("peers.cert"), HasSubstr("peers.insecure")));
  std::vector<std::string> insecure = open;
  insecure.push_back("--peers.insecure=true");
  EXPECT_EQ(Refusal(insecure), "accepted");
}

TEST(Options, WhatIsToBeEncryptedNeedsCertificatesAndExcludesRdma) {
  EXPECT_THAT(Refusal({"--peers.encrypt=some"}),
              HasSubstr("peers.encrypt (flag): \"some\" is none of control, all"));
  EXPECT_THAT(Refusal(Ring({"--peers.encrypt=all"})),
              HasSubstr("peers.encrypt: all needs certificates"));
  const auto with = [](std::vector<std::string> more) {
    more.insert(more.end(),
                {"--peers.ca=/ca.pem", "--peers.cert=/cert.pem", "--peers.key=/key.pem"});
    return Refusal(Ring(more));
  };
  EXPECT_THAT(with({"--peers.encrypt=all", "--transport=rdma"}),
              AllOf(HasSubstr("transport: rdma"), HasSubstr("peers.encrypt = all")));
  EXPECT_EQ(with({"--peers.encrypt=control", "--transport=rdma"}), "accepted");
  EXPECT_EQ(with({"--peers.encrypt=all", "--transport=auto"}), "accepted");
  EXPECT_EQ(with({"--peers.encrypt=all", "--transport=tcp"}), "accepted");
}

TEST(Options, ACatalogThatContradictsItselfIsRefusedNamingTheOptions) {
  EXPECT_THAT(Refusal({"--catalog.mysql.user=u"}),
              AllOf(HasSubstr("catalog.mysql.user"), HasSubstr("host or socket")));
  EXPECT_THAT(Refusal({"--catalog.mysql.password_file=/p"}), HasSubstr("password_file"));
  const std::vector<std::string> mysql = {"--catalog.mysql.host=db", "--catalog.mysql.user=u",
                                          "--catalog.mysql.database=d"};
  EXPECT_THAT(Refusal(mysql), HasSubstr("ring.cluster: missing; catalog.mysql needs it"));
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), mysql.begin(), mysql.end());
    return Refusal(Ring(more));
  };
  EXPECT_EQ(with({}), "accepted");
  EXPECT_THAT(with({"--catalog.path=/c"}), HasSubstr("one of both"));
  EXPECT_THAT(with({"--catalog.mysql.socket=/s"}), HasSubstr("catalog.mysql.host"));
  EXPECT_THAT(with({"--catalog.mysql.port=0"}), HasSubstr("catalog.mysql.port"));
  EXPECT_THAT(Refusal(Ring({"--catalog.mysql.host=db", "--catalog.mysql.user=u"})),
              HasSubstr("catalog.mysql.database"));
}

TEST(Options, SlabListsExpand) {
  auto parsed = ParseOptions({"--pool.slabs=1GiB*2, 64MiB"}, {});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->options.node.engine.pool_slabs,
            (std::vector<uint64_t>{1ull << 30, 1ull << 30, 64ull << 20}));
}

TEST(Options, TheChildGetsTheSameOptions) {
  auto parsed = ParseOptions({"--pool.slabs=1GiB*2,64MiB", "--socket.mode=0660",
                              "--log.level=error", "--persist.mode=on-demand"},
                             {"CAIRND_MEMORY_BUDGET=4GiB"});
  ASSERT_TRUE(parsed.ok());
  auto child = ParseOptions(AsFlags(*parsed), {});
  ASSERT_TRUE(child.ok()) << child.status();
  EXPECT_EQ(child->options.node.engine.pool_slabs, parsed->options.node.engine.pool_slabs);
  EXPECT_EQ(child->options.node.engine.budget_bytes, 4ull << 30);
  EXPECT_EQ(child->options.socket_mode, 0660u);
  EXPECT_EQ(child->options.node.engine.default_policy.mode, PersistMode::kOnDemand);
}

TEST(Options, PrintedConfigShowsEachOrigin) {
  auto parsed = ParseOptions({"--memory.budget=4GiB", "--print-config"}, {});
  ASSERT_TRUE(parsed.ok());
  EXPECT_TRUE(parsed->print_config);
  const std::string text = PrintConfig(*parsed);
  EXPECT_THAT(text, HasSubstr("memory.budget = \"4GiB\"  # flag\n"));
  EXPECT_THAT(text, HasSubstr("log.level = \"info\"  # default\n"));
}

// Name to default, as the table in docs/operations.md has them.
std::map<std::string, std::string> DocumentedDefaults() {
  std::ifstream page(CAIRN_OPERATIONS_PAGE);
  std::map<std::string, std::string> defaults;
  bool in_options = false;
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with("## ")) in_options = line == "## Options";
    if (!in_options || !line.starts_with("| `")) continue;
    const std::vector<std::string> cells = absl::StrSplit(line, absl::MaxSplits('|', 3));
    const auto text = [](const std::string& cell) {
      return absl::StrReplaceAll(absl::StripAsciiWhitespace(cell), {{"`", ""}});
    };
    defaults[text(cells[1])] = text(cells[2]);
  }
  return defaults;
}

TEST(Options, TheDocumentedOnesAndTheirDefaultsAreThoseThereAre) {
  auto parsed = ParseOptions({}, {});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  std::map<std::string, std::string> defaults;
  for (absl::string_view line : absl::StrSplit(PrintConfig(*parsed), '\n', absl::SkipEmpty())) {
    const std::pair<std::string, std::string> halves =
        absl::StrSplit(line, absl::MaxSplits(" = ", 1));
    const std::string quoted = halves.second.substr(0, halves.second.rfind("  # "));
    defaults[halves.first] = quoted.substr(1, quoted.size() - 2);
  }
  EXPECT_THAT(DocumentedDefaults(), ContainerEq(defaults));
}

TEST(Bytes, ParseAndPrintExactly) {
  EXPECT_EQ(*ParseBytes("8GiB"), 8ull << 30);
  EXPECT_EQ(*ParseBytes(" 512 MiB"), 512ull << 20);
  EXPECT_EQ(*ParseBytes("4096"), 4096u);
  EXPECT_FALSE(ParseBytes("8GB").ok());
  EXPECT_FALSE(ParseBytes("-1").ok());
  EXPECT_FALSE(ParseBytes("9999999999TiB").ok());
  EXPECT_EQ(FormatBytes(1ull << 30), "1GiB");
  EXPECT_EQ(FormatBytes((1ull << 30) + 1), "1073741825");
}

}  // namespace
}  // namespace cairn::daemon
