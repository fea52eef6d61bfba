// `top` shows the ring in its order, rates only where two pages tell them, and fits a narrow terminal.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cli/render.h"

namespace cairn::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr int64_t kMiB = int64_t{1} << 20;

Json Fetch(int64_t step, int64_t done, std::vector<int> sources) {
  return {{"job", "run7"},         {"attempt", 5},
          {"step", step},          {"writer", 0},
          {"what_for", "replica"}, {"bytes", 100 * kMiB},
          {"done_bytes", done},    {"sources", std::move(sources)}};
}

Json Node(std::vector<Json> fetches, int64_t read_over_tcp, int64_t read_over_rdma = 0) {
  const Json members = Json::array(
      {{{"rank", 0},
        {"address", "10.0.0.1:7400"},
        {"state", "up"},
        {"incarnation", 7},
        {"silent_ms", 10},
        {"held_for_us_bytes", 0},
        {"held_for_it_bytes", 2 * kMiB}},
       {{"rank", 1}, {"address", "10.0.0.2:7400"}, {"state", "self"}, {"incarnation", 8}},
       {{"rank", 2},
        {"address", "10.0.0.3:7400"},
        {"state", "silent"},
        {"incarnation", 9},
        {"silent_ms", 12'000},
        {"held_for_us_bytes", 3 * kMiB},
        {"held_for_it_bytes", 0}}});
  return {{"state", "serving"},
          {"budget_bytes", 64 * kMiB},
          {"used_bytes", 16 * kMiB},
          {"storage_root", "/ckpt"},
          {"counters",
           {{"bytes_read_over_tcp", read_over_tcp}, {"bytes_read_over_rdma", read_over_rdma}}},
          {"ring",
           {{"cluster", "train"},
            {"rank", 1},
            {"members", members},
            {"replica_bytes", 2 * kMiB},
            {"replica_quota_bytes", 32 * kMiB},
            {"grants", 1},
            {"fetches", fetches}}},
          {"jobs", Json::array({{{"job", "run7"},
                                 {"latest_step", 12},
                                 {"latest_persisted_step", 10},
                                 {"unprotected_checkpoints", 2},
                                 {"unprotected_bytes", 8 * kMiB},
                                 {"ring",
                                  {{"latest", 12},
                                   {"protected", 11},
                                   {"target", 12},
                                   {"replicas", 0},
                                   {"asked", 1}}}}})}};
}

TopPage Page(Json status, Json before = Json::object(), double seconds = 0) {
  TopPage page;
  page.status = std::move(status);
  page.before = std::move(before);
  page.between = absl::Seconds(seconds);
  page.now_unix_ms = 12 * 3600 * 1000;
  return page;
}

TEST(Top, ShowsTheRingInItsOrder) {
  const std::string text = RenderTop(Page(Node({}, 0)));
  EXPECT_THAT(text, StartsWith("12:00:00  rank 1 of 3 in train, 2 of 3 up; rank 2 silent for 12 s\n"
                               "memory    16.0 MiB of 64.0 MiB, 2.00 MiB of 32.0 MiB kept for "
                               "others\n"));
  const size_t first = text.find("   0  up"), second = text.find("   1  self"),
               third = text.find("   2  silent for 12 s");
  EXPECT_LT(first, second) << text;
  EXPECT_LT(second, third) << text;
  EXPECT_NE(third, std::string::npos) << text;
  EXPECT_THAT(text, HasSubstr("1 grant to others"));
}

TEST(Top, ShowsWhatIsNotYetSafe) {
  EXPECT_THAT(
      RenderTop(Page(Node({}, 0))),
      HasSubstr("run7      12    0 of 1         11      12          10  2 steps, 8.00 MiB"));
}

TEST(Top, TheFirstPageHasNoRates) {
  const std::string text = RenderTop(Page(Node({Fetch(12, 25 * kMiB, {0})}, 500 * kMiB)));
  EXPECT_THAT(text, AllOf(HasSubstr("reading   - over TCP, - over RDMA"), HasSubstr("25 %"),
                          HasSubstr("rank 0"), Not(HasSubstr("/s"))));
}

TEST(Top, RatesAreWhatCameBetweenTwoPages) {
  const std::string text =
      RenderTop(Page(Node({Fetch(12, 65 * kMiB, {0})}, 60 * kMiB, 30 * kMiB),
                     Node({Fetch(12, 25 * kMiB, {0})}, 20 * kMiB, 30 * kMiB), 2));
  EXPECT_THAT(text, HasSubstr("reading   20.0 MiB/s over TCP, 0 B/s over RDMA"));
  EXPECT_THAT(text, HasSubstr("65 %  100 MiB  20.0 MiB/s"));
  EXPECT_THAT(text, HasSubstr("1 part  10.0.0.1:7400"));
}

TEST(Top, APartThatWasBegunSinceHasARateToo) {
  const std::string text = RenderTop(
      Page(Node({Fetch(13, 40 * kMiB, {0, 2})}, 0), Node({Fetch(12, 90 * kMiB, {0})}, 0), 4));
  EXPECT_THAT(text, AllOf(HasSubstr("rank 0, 2"), HasSubstr("10.0 MiB/s")));
}

TEST(Top, ADaemonThatBeganToCountAnewHasNoRate) {
  const std::string text = RenderTop(Page(Node({}, 5), Node({}, 500 * kMiB), 2));
  EXPECT_THAT(text, HasSubstr("reading   - over TCP"));
  EXPECT_TRUE(
      TopToJson(Page(Node({}, 5), Node({}, 500), 2))["bytes_per_second_over_tcp"].is_null());
}

TEST(Top, FitsATerminalOfAnyWidthAndKeepsRankAndState) {
  for (const int columns : {120, 80, 60, 44, 30, 20}) {
    TopPage page = Page(Node({Fetch(12, 25 * kMiB, {0})}, 0));
    page.columns = columns;
    const std::string text = RenderTop(page);
    for (const auto line : absl::StrSplit(text, '\n')) {
      EXPECT_LE(line.size(), static_cast<size_t>(columns)) << text;
    }
    EXPECT_THAT(text, AllOf(HasSubstr("   1  self"), HasSubstr("LATEST")));
    EXPECT_EQ(text.find("ADDRESS") != std::string::npos, columns == 120) << text;
  }
}

TEST(Top, FitsATerminalOfFewLinesAndSaysHowMuchIsMissing) {
  TopPage page = Page(Node({Fetch(12, 25 * kMiB, {0})}, 0));
  const std::string all = RenderTop(page);
  const auto lines_of = [](const std::string& text) {
    return static_cast<int>(std::count(text.begin(), text.end(), '\n'));
  };
  for (const int lines : {24, 14, 10, 5, 3}) {
    page.lines = lines;
    const std::string text = RenderTop(page);
    if (lines_of(all) < lines) {
      EXPECT_EQ(text, all);
      continue;
    }
    EXPECT_EQ(lines_of(text), lines - 1) << text;
    EXPECT_EQ(text.substr(0, 20), all.substr(0, 20));
    EXPECT_THAT(text, HasSubstr(absl::StrCat("+ ", lines_of(all) - lines + 2, " lines\n")));
  }
}

TEST(Top, NamesFromElsewhereDoNotSteerTheTerminal) {
  Json node = Node({Fetch(12, 0, {0})}, 0);
  node["state"] = "safe mode: \x1b[2J";
  node["jobs"][0]["job"] = "\x1b[31mred";
  node["ring"]["fetches"][0]["job"] = "\x1b[31mred";
  EXPECT_THAT(RenderTop(Page(node)), Not(HasSubstr("\x1b")));
}

TEST(Top, ANodeAloneHasItsMemoryAndItsJobs) {
  Json node = Node({}, 0);
  node.erase("ring");
  node["jobs"][0].erase("ring");
  const std::string text = RenderTop(Page(node));
  EXPECT_THAT(text, AllOf(StartsWith("12:00:00  alone\nmemory    16.0 MiB of 64.0 MiB\n"),
                          HasSubstr("2 steps, 8.00 MiB"), Not(HasSubstr("RANK"))));
}

TEST(Top, JsonHasExactNumbers) {
  const Json json = TopToJson(
      Page(Node({Fetch(12, 65 * kMiB, {0})}, 300), Node({Fetch(12, 25 * kMiB, {0})}, 100), 2));
  EXPECT_EQ(json["bytes_per_second_over_tcp"], 100);
  EXPECT_EQ(json["ring"]["fetches"][0]["bytes_per_second"], 20 * kMiB);
  EXPECT_EQ(json["jobs"][0]["unprotected_bytes"], 8 * kMiB);
  EXPECT_EQ(json["used_bytes"], 16 * kMiB);
}

}  // namespace
}  // namespace cairn::cli
