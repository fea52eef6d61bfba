#include "client/cli/format.h"

#include <gtest/gtest.h>

#include <sstream>

#include "client/cli/context.h"
#include "client/cli/exit_code.h"
#include "client/cli/progress.h"

namespace cairn::cli {
namespace {

TEST(Format, AnAgeHasOneUnit) {
  constexpr int64_t kNow = 1'000'000'000'000;
  EXPECT_EQ(HumanAge(0, kNow), "-");
  EXPECT_EQ(HumanAge(kNow + 5000, kNow), "0 s");
  EXPECT_EQ(HumanAge(kNow - 59'999, kNow), "59 s");
  EXPECT_EQ(HumanAge(kNow - 60'000, kNow), "1 min");
  EXPECT_EQ(HumanAge(kNow - 3'599'999, kNow), "59 min");
  EXPECT_EQ(HumanAge(kNow - 7'200'000, kNow), "2 h");
  EXPECT_EQ(HumanAge(kNow - 3 * 86'400'000LL, kNow), "3 d");
}

TEST(Format, BytesHaveThreeDigitsInBinaryUnits) {
  EXPECT_EQ(HumanBytes(0), "0 B");
  EXPECT_EQ(HumanBytes(1023), "1023 B");
  EXPECT_EQ(HumanBytes(1024), "1.00 KiB");
  EXPECT_EQ(HumanBytes(1536), "1.50 KiB");
  EXPECT_EQ(HumanBytes(10240), "10.0 KiB");
  EXPECT_EQ(HumanBytes(100 << 20), "100 MiB");
  EXPECT_EQ(HumanBytes(uint64_t{8} << 30), "8.00 GiB");
}

TEST(Format, BytesNeverShowTenTwentyFourOfAUnit) {
  EXPECT_EQ(HumanBytes((1u << 20) - 1), "1.00 MiB");
  EXPECT_EQ(HumanBytes((1u << 30) - 1), "1.00 GiB");
  EXPECT_EQ(HumanBytes(~uint64_t{0}), "16.0 EiB");
}

TEST(Format, DurationsShowTheirTwoLargestUnits) {
  EXPECT_EQ(HumanDuration(absl::Milliseconds(340)), "340 ms");
  EXPECT_EQ(HumanDuration(absl::Seconds(59)), "59 s");
  EXPECT_EQ(HumanDuration(absl::Seconds(200)), "3 min 20 s");
  EXPECT_EQ(HumanDuration(absl::Seconds(7500)), "2 h 5 min");
  EXPECT_EQ(HumanDuration(absl::Hours(99)), "4 d 3 h");
  EXPECT_EQ(HumanDuration(absl::Hours(48)), "2 d");
  EXPECT_EQ(HumanDuration(absl::Seconds(-5)), "0 ms");
}

TEST(Format, NumbersAreGroupedAndNounsCounted) {
  EXPECT_EQ(Grouped(0), "0");
  EXPECT_EQ(Grouped(999), "999");
  EXPECT_EQ(Grouped(1000), "1,000");
  EXPECT_EQ(Grouped(-1234567), "-1,234,567");
  EXPECT_EQ(Grouped(-123), "-123");
  EXPECT_EQ(Plural(1, "object"), "1 object");
  EXPECT_EQ(Plural(2000, "object"), "2,000 objects");
  EXPECT_EQ(Plural(2, "copy", "copies"), "2 copies");
}

TEST(Format, AStartedBarIsNotEmptyAndAnUnfinishedOneNotFull) {
  EXPECT_EQ(Bar(0, 100, 4), "[....]");
  EXPECT_EQ(Bar(1, 100, 4), "[#...]");
  EXPECT_EQ(Bar(50, 100, 4), "[##..]");
  EXPECT_EQ(Bar(99, 100, 4), "[###.]");
  EXPECT_EQ(Bar(100, 100, 4), "[####]");
  EXPECT_EQ(Bar(200, 100, 4), "[####]");
  EXPECT_EQ(Bar(0, 0, 4), "[####]");
}

TEST(Format, AHundredPercentMeansFinished) {
  EXPECT_EQ(Percent(0, 10), 0);
  EXPECT_EQ(Percent(999, 1000), 99);
  EXPECT_EQ(Percent(1000, 1000), 100);
  EXPECT_EQ(Percent(~uint64_t{0} - 1, ~uint64_t{0}), 99);
}

TEST(Format, AProgressLineHasBytesRateAndTimeLeft) {
  EXPECT_EQ(ProgressLine("m.bin", uint64_t{1} << 30, uint64_t{4} << 30, absl::Seconds(1)),
            "m.bin  1.00 GiB of 4.00 GiB  25 %  1.00 GiB/s  3 s left");
  EXPECT_EQ(ProgressLine("m.bin", 4096, 4096, absl::Seconds(2)),
            "m.bin  4.00 KiB of 4.00 KiB  100 %  2.00 KiB/s");
  EXPECT_EQ(ProgressLine("m.bin", 0, 4096, absl::Milliseconds(1)), "m.bin  0 B of 4.00 KiB  0 %");
}

TEST(Format, ControlCharactersDoNotReachTheTerminal) {
  EXPECT_EQ(Printable("a\x1b[2Jb\n"), "a\\x1b[2Jb\\x0a");
  EXPECT_EQ(Printable("größe"), "größe");
}

TEST(Format, TableColumnsAreAsWideAsTheirWidestCell) {
  Table table({"NAME", "SIZE"}, {1});
  table.Row({"ä", "1 B"});
  table.Row({"longer", "100 MiB"});
  EXPECT_EQ(table.Render(1),
            " NAME       SIZE\n"
            " ä           1 B\n"
            " longer  100 MiB\n");
}

class StillClock : public Clock {
 public:
  MonotonicNanos Now() const override { return now; }
  int64_t UnixMillis() const override { return 0; }
  MonotonicNanos now = 0;
};

TEST(Progress, IsSilentWithoutATerminal) {
  std::ostringstream err;
  StillClock clock;
  {
    Progress progress(&err, false, &clock, "x", 100);
    progress.Update(50);
    progress.Update(100);
  }
  EXPECT_EQ(err.str(), "");
}

TEST(Progress, RewritesItsLineAtMostTenTimesASecondAndAlwaysShowsTheEnd) {
  std::ostringstream err;
  StillClock clock;
  {
    Progress progress(&err, true, &clock, "x", 100);
    progress.Update(1);
    clock.now += kNanosPerSecond / 100;
    progress.Update(2);  // too soon
    clock.now += kNanosPerSecond;
    progress.Update(50);
    progress.Update(100);  // too soon, but the end
  }
  const std::string text = err.str();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\r'), 3);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
  EXPECT_EQ(text.find(" 2 %"), std::string::npos);
  EXPECT_NE(text.find(" 100 %"), std::string::npos);
}

TEST(ExitCodes, AreTheDocumentedOnes) {
  EXPECT_EQ(ExitCode(absl::OkStatus()), 0);
  EXPECT_EQ(ExitCode(absl::InvalidArgumentError("")), 2);
  EXPECT_EQ(ExitCode(absl::NotFoundError("")), 3);
  EXPECT_EQ(ExitCode(absl::DataLossError("")), 4);
  EXPECT_EQ(ExitCode(absl::ResourceExhaustedError("")), 5);
  EXPECT_EQ(ExitCode(absl::UnavailableError("")), 6);
  EXPECT_EQ(ExitCode(absl::DeadlineExceededError("")), 7);
  EXPECT_EQ(ExitCode(absl::PermissionDeniedError("")), 8);
  EXPECT_EQ(ExitCode(absl::InternalError("")), 1);
  EXPECT_EQ(ExitCode(absl::FailedPreconditionError("")), 1);
}

TEST(Paths, NameAJobAStepOrAnObject) {
  auto job = ParseTarget("run7", TargetNeeds::kJob);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->job, "run7");
  EXPECT_FALSE(job->has_step);
  for (const char* text : {"run7/12", "run7/12/", "cairn://run7/12"}) {
    auto step = ParseTarget(text, TargetNeeds::kStep);
    ASSERT_TRUE(step.ok()) << text << ": " << step.status();
    EXPECT_EQ(step->checkpoint.step, 12);
    EXPECT_EQ(step->name, "");
  }
  auto object = ParseTarget("cairn://run7/latest/opt/rank0.pt", TargetNeeds::kName);
  ASSERT_TRUE(object.ok()) << object.status();
  EXPECT_EQ(object->checkpoint.step, kNoStep);
  EXPECT_EQ(object->checkpoint.job, "run7");
  EXPECT_EQ(object->name, "opt/rank0.pt");
}

TEST(Paths, SayWhatIsMissingOrTooMuch) {
  EXPECT_TRUE(absl::IsInvalidArgument(ParseTarget("run7", TargetNeeds::kStep).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(ParseTarget("run7/3", TargetNeeds::kName).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(ParseTarget("run7/3/x", TargetNeeds::kStep).status()));
  for (const char* bad : {"", "/", "run 7", "run7/-1/x", "run7/x/y", "run7/3/../y", "run7/3//y",
                          "run7/3/y/", "run7/99999999999999999999/x"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseTarget(bad, TargetNeeds::kJob).status())) << bad;
  }
}

TEST(Timeouts, AreSecondsOrADurationAboveZero) {
  EXPECT_EQ(*ParseTimeout("30"), absl::Seconds(30));
  EXPECT_EQ(*ParseTimeout("0.5"), absl::Milliseconds(500));
  EXPECT_EQ(*ParseTimeout("1h30m"), absl::Minutes(90));
  for (const char* bad : {"", "0", "-1", "nan", "soon", "5 parsecs", "-3s"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseTimeout(bad).status())) << bad;
  }
}

}  // namespace
}  // namespace cairn::cli
