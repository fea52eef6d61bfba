#include "client/cpp/status_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace cairn::client {
namespace {

using ::testing::HasSubstr;

TEST(StatusJson, HasTheContractsNames) {
  wire::NodeStatus status;
  status.state = "serving";
  status.budget_bytes = 123;
  wire::SessionStatus session;
  session.client = "not utf-8: \xff";
  status.sessions.push_back(session);
  wire::JobStatus job;
  job.policy.mode = wire::PersistMode::EVERY;
  job.refused_saves = 12;
  job.last_refusal = "memory: full";
  job.last_refusal_unix_ms = 34;
  job.failed_persists = 5;
  job.last_failed_persist_unix_ms = 67;
  status.jobs.push_back(job);
  status.counters["creates"] = 5;
  const auto json = nlohmann::json::parse(ToJson(status));
  EXPECT_EQ(json["state"], "serving");
  EXPECT_EQ(json["budget_bytes"], 123);
  EXPECT_THAT(json["sessions"][0]["client"].get<std::string>(), HasSubstr("not utf-8: "));
  EXPECT_EQ(json["jobs"][0]["policy"]["mode"], "every");
  EXPECT_EQ(json["jobs"][0]["refused_saves"], 12);
  EXPECT_EQ(json["jobs"][0]["last_refusal"], "memory: full");
  EXPECT_EQ(json["jobs"][0]["last_refusal_unix_ms"], 34);
  EXPECT_EQ(json["jobs"][0]["failed_persists"], 5);
  EXPECT_EQ(json["jobs"][0]["last_failed_persist_unix_ms"], 67);
  EXPECT_EQ(json["counters"]["creates"], 5);
}

TEST(StatusJson, WritesEnumeratorsAsPeopleDo) {
  wire::NodeStatus status;
  for (int mode : {0, 1, 2, 3}) {
    wire::JobStatus job;
    job.policy.mode = static_cast<wire::PersistMode::type>(mode);
    status.jobs.push_back(job);
  }
  const auto json = nlohmann::json::parse(ToJson(status));
  EXPECT_EQ(json["jobs"][0]["policy"]["mode"], "on-demand");
  EXPECT_EQ(json["jobs"][1]["policy"]["mode"], "every");
  EXPECT_EQ(json["jobs"][2]["policy"]["mode"], "newest");
  EXPECT_EQ(json["jobs"][3]["policy"]["mode"], "unknown");
  EXPECT_EQ(json["jobs"][0]["policy"]["readers"], "owner");
}

}  // namespace
}  // namespace cairn::client
