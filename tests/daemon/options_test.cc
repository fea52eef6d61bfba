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
