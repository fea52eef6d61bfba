#include "client/cpp/wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace cairn::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

wire::Error MakeError(int code, const std::string& message) {
  wire::Error error;
  error.code = code;
  error.message = message;
  return error;
}

TEST(Wire, EveryCodeNumberIsTheSameOnBothSides) {
  for (int code = 1; code <= 16; ++code) {
    const Status status = FromWire(MakeError(code, "name: why"));
    EXPECT_EQ(static_cast<int>(status.code()), code);
    EXPECT_EQ(status.message(), "name: why");
  }
}

TEST(Wire, AnErrorThatIsNoErrorIsInternal) {
  for (int code : {0, -1, 17, 1 << 30}) {
    const Status status = FromWire(MakeError(code, "x"));
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << code;
  }
}

TEST(Wire, AReferenceWithoutAJobGetsTheSessions) {
  EXPECT_EQ(ToWire(CheckpointRef{}, "mine").job, "mine");
  CheckpointRef ref = {"other", 3, 4, 5};
  const wire::CheckpointRef out = ToWire(ref, "mine");
  EXPECT_EQ(out.job, "other");
  EXPECT_EQ(out.step, 3);
  EXPECT_EQ(out.attempt, 4);
  EXPECT_EQ(out.revision, 5);
}

TEST(Wire, AnObjectsChecksumsKeepTheirBits) {
  wire::ObjectInfo info;
  info.name = "a";
  info.length = 1;
  info.block_crcs = {-1, 0, 1};
  const auto out = FromWire(info);
  ASSERT_TRUE(out.ok());
  EXPECT_THAT(out->block_crcs, ElementsAre(0xffffffffu, 0u, 1u));
}

TEST(Wire, ValuesOutOfRangeAreRefusedNotCast) {
  wire::ObjectInfo negative;
  negative.length = -1;
  EXPECT_EQ(FromWire(negative).status().code(), absl::StatusCode::kInternal);
  wire::ObjectInfo kind;
  kind.kind = static_cast<wire::ObjectKind::type>(99);
  EXPECT_EQ(FromWire(kind).status().code(), absl::StatusCode::kInternal);
  wire::CheckpointInfo level;
  level.level = static_cast<wire::Level::type>(99);
  EXPECT_EQ(FromWire("job", level).status().code(), absl::StatusCode::kInternal);
}

TEST(Wire, LatestNamesItsJobAndSource) {
  wire::Latest latest;
  latest.step = 7;
  latest.source = wire::Source::STORAGE;
  const LatestCheckpoint out = FromWire("run", latest);
  EXPECT_EQ(out.key.job, "run");
  EXPECT_EQ(out.key.step, 7);
  EXPECT_EQ(out.source, "storage");
}

TEST(Wire, StatusBecomesJsonWithTheContractsNames) {
  wire::NodeStatus status;
  status.state = "serving";
  status.budget_bytes = 123;
  wire::SessionStatus session;
  session.client = "not utf-8: \xff";
  status.sessions.push_back(session);
  wire::JobStatus job;
  job.policy.mode = wire::PersistMode::EVERY;
  status.jobs.push_back(job);
  status.counters["creates"] = 5;
  const auto json = nlohmann::json::parse(ToJson(status));
  EXPECT_EQ(json["state"], "serving");
  EXPECT_EQ(json["budget_bytes"], 123);
  EXPECT_THAT(json["sessions"][0]["client"].get<std::string>(), HasSubstr("not utf-8: "));
  EXPECT_EQ(json["jobs"][0]["policy"]["mode"], "every");
  EXPECT_EQ(json["counters"]["creates"], 5);
}

}  // namespace
}  // namespace cairn::client
