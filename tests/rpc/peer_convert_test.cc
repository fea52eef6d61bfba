// What members say to each other is the same on both ends of the wire, and what no member would say is
// refused.
#include "server/rpc/peer_convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/rpc/peer_messages.h"

namespace cairn::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
namespace peer = engine::peer;

// A message as it comes out at the other end.
template <typename T>
T Across(const T& message) {
  const StatusOr<peer::Message> out = ArrivedFrom(EncodePeer(rpc::ToPeerWire(message)));
  EXPECT_TRUE(out.ok()) << out.status();
  EXPECT_TRUE(out.ok() && std::holds_alternative<T>(*out));
  return out.ok() && std::holds_alternative<T>(*out) ? std::get<T>(*out) : T();
}

// Why the message is refused once `spoil` has changed it on the wire.
template <typename F>
std::string RefusalOf(const peer::Message& message, F spoil) {
  peerwire::Message wire = rpc::ToPeerWire(message);
  spoil(&wire);
  const StatusOr<peer::Message> out = rpc::FromPeerWire(std::move(wire));
  EXPECT_EQ(out.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(out.status().message());
}

TEST(PeerConvert, AWantListIsTheSameAtItsReceiver) {
  const peer::WantList sent = SomeWants();
  const peer::WantList got = Across(sent);
  EXPECT_EQ(got.version, sent.version);
  EXPECT_EQ(got.wants, sent.wants);
}

TEST(PeerConvert, AHaveListIsTheSameAtItsReceiver) {
  const peer::HaveList sent = SomeHaves();
  const peer::HaveList got = Across(sent);
  EXPECT_EQ(got.version, sent.version);
  EXPECT_EQ(got.wants_version, sent.wants_version);
  EXPECT_EQ(got.haves, sent.haves);
}

TEST(PeerConvert, AReleaseListIsTheSameAtItsReceiver) {
  const peer::ReleaseList sent = SomeReleases();
  const peer::ReleaseList got = Across(sent);
  EXPECT_EQ(got.haves_version, sent.haves_version);
  ASSERT_EQ(got.releases.size(), sent.releases.size());
  for (size_t i = 0; i < sent.releases.size(); ++i) {
    EXPECT_EQ(got.releases[i].part, sent.releases[i].part);
    EXPECT_EQ(got.releases[i].digest, sent.releases[i].digest);
    EXPECT_EQ(got.releases[i].fate, sent.releases[i].fate);
    EXPECT_EQ(got.releases[i].by, sent.releases[i].by);
  }
}

TEST(PeerConvert, AReportIsTheSameAtItsReceiver) {
  const engine::ReportDelta sent = SomeReport().delta;
  const engine::ReportDelta got = Across(SomeReport()).delta;
  EXPECT_EQ(got.job, sent.job);
  EXPECT_EQ(got.after, sent.after);
  EXPECT_EQ(got.number, sent.number);
  EXPECT_EQ(got.owned, sent.owned);
  EXPECT_EQ(got.owner_uid, sent.owner_uid);
  EXPECT_EQ(got.owner_gid, sent.owner_gid);
  EXPECT_EQ(got.policy, sent.policy);
  EXPECT_EQ(got.attempts, sent.attempts);
  EXPECT_EQ(got.attempts_gone, sent.attempts_gone);
  EXPECT_EQ(got.parts, sent.parts);
  EXPECT_EQ(got.parts_gone, sent.parts_gone);
  EXPECT_EQ(got.writers, sent.writers);
  EXPECT_EQ(got.writers_gone, sent.writers_gone);
  EXPECT_EQ(got.published, sent.published);
  EXPECT_EQ(got.published_gone, sent.published_gone);
  EXPECT_EQ(got.target, sent.target);
  EXPECT_EQ(got.saving, sent.saving);
  EXPECT_EQ(got.answers, sent.answers);
}

TEST(PeerConvert, NamesThatSomebodyElseReportsAreNoneAndNotAnEmptyList) {
  peer::Report report = SomeReport();
  for (auto& [id, part] : report.delta.parts) part.names = nullptr;
  for (const auto& [id, part] : Across(report).delta.parts) EXPECT_EQ(part.names, nullptr);
  for (auto& [id, part] : report.delta.parts) {
    part.names = std::make_shared<const std::vector<uint64_t>>();
  }
  for (const auto& [id, part] : Across(report).delta.parts) EXPECT_NE(part.names, nullptr);
}

TEST(PeerConvert, AVerdictIsTheSameAtItsReceiver) {
  EXPECT_EQ(Across(SomeVerdict()).verdict, SomeVerdict().verdict);
  EXPECT_EQ(Across(SomeVerdict()).answers, SomeVerdict().answers);
  EXPECT_EQ(Across(peer::VerdictWanted{"job", 5}).question, 5u);
  engine::JobVerdict empty;
  empty.job = "job";
  EXPECT_EQ(Across(peer::VerdictSaid{empty}).verdict, empty);
}

TEST(PeerConvert, PlacesAreTheSameAtTheirReceiver) {
  const peer::PlacesSaid sent = SomePlaces(), got = Across(sent);
  EXPECT_EQ(got.checkpoint, sent.checkpoint);
  EXPECT_EQ(got.name, sent.name);
  ASSERT_EQ(got.places.size(), sent.places.size());
  for (size_t i = 0; i < sent.places.size(); ++i) {
    EXPECT_EQ(got.places[i].writer, sent.places[i].writer);
    EXPECT_EQ(got.places[i].digest, sent.places[i].digest);
    EXPECT_EQ(got.places[i].world_size, sent.places[i].world_size);
    EXPECT_EQ(got.places[i].bytes, sent.places[i].bytes);
    EXPECT_EQ(got.places[i].owner, sent.places[i].owner);
    EXPECT_EQ(got.places[i].holders, sent.places[i].holders);
  }
  const peer::PlacesWanted all = Across(peer::PlacesWanted{sent.checkpoint, ""});
  EXPECT_EQ(all.checkpoint, sent.checkpoint);
  EXPECT_EQ(all.name, "");
}

TEST(PeerConvert, QuestionsAndRecordsAreTheSameAtTheirReceiver) {
  EXPECT_EQ(Across(peer::ReportWanted{"job", 5}).job, "job");
  EXPECT_EQ(Across(peer::ReportWanted{"job", 5}).question, 5u);
  EXPECT_EQ(Across(peer::VerdictWanted{"job"}).job, "job");
  const std::string bytes("any\0bytes\xFF", 10);
  const peer::Record got = Across(peer::Record{"job", bytes, 7});
  EXPECT_EQ(got.job, "job");
  EXPECT_EQ(got.encoded, bytes);
  EXPECT_EQ(got.number, 7u);
  EXPECT_EQ(Across(peer::RecordHeld{"job", 8}).job, "job");
  EXPECT_EQ(Across(peer::RecordHeld{"job", 8}).number, 8u);
}

TEST(PeerConvert, AGrantIsTheSameAtItsReceiver) {
  const peer::GrantQuestion question = {SomePart(3), SomeDigest(1)};
  const auto asked = rpc::FromPeerWire(rpc::ToPeerWire(question));
  ASSERT_TRUE(asked.ok()) << asked.status();
  EXPECT_EQ(asked->part, question.part);
  EXPECT_EQ(asked->digest, question.digest);

  const peer::GrantAnswer answer = {7, std::string(16, '\x80'), "manifest", {{"a"}, {"b"}}, 10'000};
  const auto got = rpc::FromPeerWire(rpc::ToPeerWire(answer));
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(got->grant, answer.grant);
  EXPECT_EQ(got->token, answer.token);
  EXPECT_EQ(got->manifest, answer.manifest);
  ASSERT_EQ(got->regions.size(), 2u);
  EXPECT_EQ(got->regions[1].descriptor, "b");
  EXPECT_EQ(got->valid_ms, answer.valid_ms);
}

TEST(PeerConvert, AMessageIsOfOneKind) {
  EXPECT_EQ(rpc::FromPeerWire(peerwire::Message()).status().message(), "no kind that is known");
  EXPECT_EQ(RefusalOf(peer::ReportWanted{"job"},
                      [](peerwire::Message* wire) {
                        wire->__set_verdict_wanted(std::make_shared<peerwire::VerdictWanted>());
                      }),
            "more than one kind");
}

TEST(PeerConvert, WhatNoMemberWouldSayIsRefusedNamingTheField) {
  using M = peerwire::Message;
  EXPECT_THAT(RefusalOf(SomeWants(), [](M* m) { m->want_list->version = -1; }),
              HasSubstr("want_list: version: -1 is below 0"));
  EXPECT_THAT(RefusalOf(SomeWants(), [](M* m) { m->want_list->wants[1].job = "a/b"; }),
              AllOf(HasSubstr("wants[1]"), HasSubstr("job")));
  EXPECT_THAT(RefusalOf(SomeWants(), [](M* m) { m->want_list->wants[0].part.step = -1; }),
              HasSubstr("wants[0]: step"));
  EXPECT_THAT(RefusalOf(SomeWants(), [](M* m) { m->want_list->wants[0].part.attempt = 0; }),
              HasSubstr("attempt"));
  EXPECT_THAT(RefusalOf(SomeWants(), [](M* m) { m->want_list->wants[0].part.revision = -1; }),
              HasSubstr("revision: -1"));
  EXPECT_THAT(RefusalOf(SomeWants(), [](M* m) { m->want_list->wants[0].world_size = 1; }),
              HasSubstr("writer"));
  EXPECT_THAT(RefusalOf(SomeWants(), [](M* m) { m->want_list->wants[0].digest = "../x"; }),
              HasSubstr("digest: not 32 hexadecimal digits"));
  EXPECT_THAT(
      RefusalOf(SomeWants(), [](M* m) { m->want_list->wants[0].manifest_bytes = 1LL << 40; }),
      HasSubstr("manifest_bytes: 1099511627776, at most"));
  EXPECT_THAT(RefusalOf(SomeHaves(),
                        [](M* m) {
                          const int unknown = 4;
                          std::memcpy(&m->have_list->haves[0].state, &unknown, sizeof unknown);
                        }),
              HasSubstr("state: 4 is not known"));
  EXPECT_THAT(RefusalOf(SomeHaves(), [](M* m) { m->have_list->haves[0].why.resize(1 << 20); }),
              HasSubstr("why: 1048576 bytes"));
  EXPECT_THAT(
      RefusalOf(SomeReleases(), [](M* m) { m->release_list->releases[0].__isset.by = true; }),
      HasSubstr("by: is said"));
}

TEST(PeerConvert, AReportThatContradictsItselfIsRefused) {
  using M = peerwire::Message;
  EXPECT_THAT(RefusalOf(SomeReport(), [](M* m) { m->report->number = m->report->after; }),
              HasSubstr("number: 5 is not above after"));
  EXPECT_THAT(
      RefusalOf(SomeReport(), [](M* m) { m->report->parts.push_back(m->report->parts[0]); }),
      HasSubstr("stands there twice"));
  EXPECT_THAT(RefusalOf(SomeReport(),
                        [](M* m) { m->report->parts_gone.push_back(m->report->parts[0].part); }),
              HasSubstr("parts_gone"));
  EXPECT_THAT(RefusalOf(SomeReport(), [](M* m) { m->report->parts[0].names = "123"; }),
              HasSubstr("names: 3 bytes"));
  EXPECT_THAT(
      RefusalOf(SomeReport(), [](M* m) { m->report->parts[0].__set_names("bbbbbbbbaaaaaaaa"); }),
      HasSubstr("names: do not ascend"));
  EXPECT_THAT(RefusalOf(SomeReport(), [](M* m) { m->report->attempts[0].lineage = "x"; }),
              HasSubstr("lineage"));
  EXPECT_THAT(RefusalOf(SomeReport(), [](M* m) { m->report->writers[0].given_up.resize(300); }),
              HasSubstr("given_up: 300 numbers"));
  EXPECT_THAT(RefusalOf(SomeReport(), [](M* m) { m->report->saving[1].run.resize(257); }),
              HasSubstr("saving[1]: run: 257 bytes"));
  EXPECT_THAT(RefusalOf(SomeReport(),
                        [](M* m) {
                          m->report->saving[0].pids = {4, 4};
                        }),
              HasSubstr("saving[0]: pids[1]: stands there twice"));
  EXPECT_THAT(RefusalOf(SomeReport(), [](M* m) { m->report->saving.resize(1025); }),
              HasSubstr("saving: 1025 entries, at most 64"));
  EXPECT_THAT(RefusalOf(SomeReport(), [](M* m) { m->report->policy.every = 0; }),
              HasSubstr("policy.every"));
}

TEST(PeerConvert, AVerdictThatContradictsItselfIsRefused) {
  using M = peerwire::Message;
  EXPECT_THAT(RefusalOf(SomeVerdict(), [](M* m) { m->verdict->reports[0].member.instance = "x"; }),
              HasSubstr("instance: 1 bytes, wants 16"));
  EXPECT_THAT(RefusalOf(SomeVerdict(), [](M* m) { m->verdict->reports.resize(1025); }),
              HasSubstr("reports: 1025 entries, at most 1024"));
  EXPECT_THAT(RefusalOf(SomeVerdict(),
                        [](M* m) {
                          m->verdict->silent = {4, 4};
                        }),
              HasSubstr("silent[1]: stands there twice"));
}

TEST(PeerConvert, PlacesThatCannotBeAreRefused) {
  using M = peerwire::Message;
  EXPECT_THAT(RefusalOf(SomePlaces(), [](M* m) { m->places->places[0].writer = 4; }),
              HasSubstr("places[0]: writer"));
  EXPECT_THAT(RefusalOf(SomePlaces(),
                        [](M* m) {
                          m->places->places[0].holders = {1, 1};
                        }),
              HasSubstr("holders[1]: stands there twice"));
  EXPECT_THAT(RefusalOf(SomePlaces(), [](M* m) { m->places->name = "../x"; }), HasSubstr("name"));
  EXPECT_THAT(RefusalOf(SomePlaces(), [](M* m) { m->places->checkpoint.attempt = 0; }),
              HasSubstr("attempt"));
}

TEST(PeerConvert, AGrantThatNoTransportGaveIsRefused) {
  peerwire::Granted granted =
      rpc::ToPeerWire(peer::GrantAnswer{1, std::string(15, 't'), "m", {}, 1});
  EXPECT_THAT(rpc::FromPeerWire(granted).status().message(),
              HasSubstr("token: 15 bytes, wants 16"));
  granted = rpc::ToPeerWire(
      peer::GrantAnswer{1, std::string(16, 't'), "m", {{std::string(5000, 'd')}}, 1});
  EXPECT_THAT(rpc::FromPeerWire(granted).status().message(), HasSubstr("regions[0]: 5000 bytes"));
  EXPECT_THAT(rpc::GrantsFromWire({1, -1}).status().message(), HasSubstr("grants[1]"));
}

}  // namespace
}  // namespace cairn::testing
