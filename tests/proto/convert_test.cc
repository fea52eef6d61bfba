#include "proto/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cairn_constants.h"
#include "common/keys.h"

namespace cairn {
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

TEST(Wire, ItsLimitsAreThoseOfTheRooms) {
  EXPECT_EQ(static_cast<size_t>(wire::g_cairn_constants.MAX_OBJECTS_PER_CALL), kMaxObjectsPerCall);
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

CheckpointInfo SomeCheckpoint() {
  CheckpointInfo info;
  info.key = {"run", 7, 2, 1};
  info.world_size = 4;
  info.missing_writers = {1, 3};
  info.bytes = uint64_t{1} << 40;
  info.objects = 12;
  info.facts = {.complete = true,
                .resident = false,
                .persisted = true,
                .broken = false,
                .in_conflict = true,
                .abandoned = false,
                .pinned = true,
                .replicas = 5,
                .replicas_asked = 6,
                .replicas_age_ms = 7};
  info.level = Level::kEvicted;
  info.created_unix_ms = 1234;
  info.why = "why";
  info.on_line = true;
  info.digest = "abc";
  return info;
}

// A field that a conversion forgets would arrive as its default.
TEST(Wire, ACheckpointArrivesAsItWasSent) {
  const CheckpointInfo sent = SomeCheckpoint();
  const auto got = FromWire("run", ToWire(sent));
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(got->key, sent.key);
  EXPECT_EQ(got->world_size, sent.world_size);
  EXPECT_EQ(got->missing_writers, sent.missing_writers);
  EXPECT_EQ(got->bytes, sent.bytes);
  EXPECT_EQ(got->objects, sent.objects);
  EXPECT_EQ(got->facts, sent.facts);
  EXPECT_EQ(got->level, sent.level);
  EXPECT_EQ(got->created_unix_ms, sent.created_unix_ms);
  EXPECT_EQ(got->why, sent.why);
  EXPECT_EQ(got->on_line, sent.on_line);
  EXPECT_EQ(got->digest, sent.digest);
}

TEST(Wire, APreviewArrivesAsItWasSent) {
  PolicyPreview sent;
  sent.files = {{{"run7", 3, 11, 2}, 4096, true, 0, "older than the newest 2"},
                {{"run7", 4, 12, 0}, 5, false, 1234567, "abandoned"}};
  sent.stay = 7;
  sent.go_now = 8;
  sent.go_later = 9;
  sent.bytes_now = 10;
  sent.bytes_later = 11;
  const auto got = FromWire("run7", ToWire(sent));
  ASSERT_TRUE(got.ok()) << got.status();
  ASSERT_EQ(got->files.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(got->files[i].key, sent.files[i].key);
    EXPECT_EQ(got->files[i].bytes, sent.files[i].bytes);
    EXPECT_EQ(got->files[i].now, sent.files[i].now);
    EXPECT_EQ(got->files[i].after_unix_ms, sent.files[i].after_unix_ms);
    EXPECT_EQ(got->files[i].why, sent.files[i].why);
  }
  EXPECT_EQ(std::tie(got->stay, got->go_now, got->go_later, got->bytes_now, got->bytes_later),
            std::tie(sent.stay, sent.go_now, sent.go_later, sent.bytes_now, sent.bytes_later));
}

TEST(Wire, EachFactArrivesAlone) {
  for (bool Facts::*fact : {&Facts::complete, &Facts::resident, &Facts::persisted, &Facts::broken,
                            &Facts::in_conflict, &Facts::abandoned, &Facts::pinned}) {
    ObjectInfo sent;
    sent.facts.*fact = true;
    const auto got = FromWire(ToWire(sent));
    ASSERT_TRUE(got.ok());
    EXPECT_EQ(got->facts, sent.facts);
  }
}

TEST(Wire, AnObjectArrivesAsItWasSent) {
  ObjectInfo sent;
  sent.name = "model";
  sent.writer = 3;
  sent.kind = ObjectKind::kNumpy;
  sent.length = 9;
  sent.level = Level::kCached;
  sent.block_crcs = {0xffffffffu, 1};
  sent.verified_unix_ms = 55;
  sent.facts.resident = true;
  const auto got = FromWire(ToWire(sent));
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(got->name, sent.name);
  EXPECT_EQ(got->writer, sent.writer);
  EXPECT_EQ(got->kind, sent.kind);
  EXPECT_EQ(got->length, sent.length);
  EXPECT_EQ(got->level, sent.level);
  EXPECT_EQ(got->block_crcs, sent.block_crcs);
  EXPECT_EQ(got->verified_unix_ms, sent.verified_unix_ms);
  EXPECT_EQ(got->facts, sent.facts);
}

TEST(Wire, LatestArrivesAsItWasSent) {
  for (const char* source : {"", "memory", "peer", "storage"}) {
    const LatestCheckpoint sent = {{"run", 7, 2, 1}, 4, "abc", source, 99};
    const LatestCheckpoint got = FromWire("run", ToWire(sent));
    EXPECT_EQ(got.key, sent.key);
    EXPECT_EQ(got.world_size, sent.world_size);
    EXPECT_EQ(got.digest, sent.digest);
    EXPECT_EQ(got.source, sent.source);
    EXPECT_EQ(got.as_of_unix_ms, sent.as_of_unix_ms);
  }
}

TEST(Wire, APolicyArrivesAsItWasSent) {
  const JobPolicy sent = {PersistMode::kEvery, 5, 3, 100, Readers::kOwner};
  const auto got = FromWire(ToWire(sent));
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(*got, sent);
}

TEST(Wire, APolicyOutOfItsLimitsIsRefused) {
  const auto refusal = [](auto change) {
    wire::JobPolicy policy = ToWire(JobPolicy{});
    change(&policy);
    const Status status = FromWire(policy).status();
    return absl::StrCat(static_cast<int>(status.code()), " ", status.message());
  };
  EXPECT_THAT(refusal([](auto* p) { p->mode = static_cast<wire::PersistMode::type>(3); }),
              HasSubstr("3 policy.mode: 3"));
  EXPECT_THAT(refusal([](auto* p) { p->every = 0; }), HasSubstr("3 policy.every: 0"));
  EXPECT_THAT(refusal([](auto* p) { p->keep_last = -1; }), HasSubstr("3 policy.keep_last: -1"));
  EXPECT_THAT(refusal([](auto* p) { p->keep_every = -1; }), HasSubstr("3 policy.keep_every: -1"));
  EXPECT_THAT(refusal([](auto* p) { p->replicas = -2; }), HasSubstr("3 policy.replicas: -2"));
  EXPECT_THAT(refusal([](auto* p) { p->readers = wire::Readers::ALL; }),
              HasSubstr("12 policy.readers: 2"));
}

TEST(Wire, AnIdentityArrivesAsItWasSentWithoutWhatTheKernelKnows) {
  SessionIdentity sent;
  sent.job = "run";
  sent.attempt = 2;
  sent.writer = 1;
  sent.world_size = 4;
  sent.local_writers = 2;
  sent.takes_fds = false;
  sent.process = std::string(kProcessTokenBytes, 'p');
  wire::HelloRequest request;
  ToWire(sent, &request);
  const auto got = FromWire(request);
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(*got, sent);
  EXPECT_EQ(got->pid, 0);
}

TEST(Wire, AnIdentityThatIsNoneIsRefused) {
  const auto refusal = [](auto change) {
    SessionIdentity identity;
    identity.job = "run";
    identity.writer = 0;
    identity.world_size = 1;
    identity.process = std::string(kProcessTokenBytes, 'p');
    change(&identity);
    wire::HelloRequest request;
    ToWire(identity, &request);
    return std::string(FromWire(request).status().message());
  };
  EXPECT_EQ(refusal([](auto*) {}), "");
  EXPECT_THAT(refusal([](auto* i) { i->job = ""; }), HasSubstr("job"));
  EXPECT_THAT(refusal([](auto* i) { i->attempt = -1; }), HasSubstr("attempt: -1"));
  EXPECT_THAT(refusal([](auto* i) { i->writer = 1; }), HasSubstr("writer: 1"));
  EXPECT_THAT(refusal([](auto* i) { i->world_size = 0; }), HasSubstr("world_size: 0"));
  EXPECT_THAT(refusal([](auto* i) { i->local_writers = 0; }), HasSubstr("local_writers: 0"));
  EXPECT_THAT(refusal([](auto* i) { i->process.pop_back(); }), HasSubstr("process: 15 bytes"));
}

TEST(Wire, AReaderNeedsNoJobAndHasNoWorld) {
  SessionIdentity reader;
  reader.world_size = 7;
  reader.process = std::string(kProcessTokenBytes, 'p');
  wire::HelloRequest request;
  ToWire(reader, &request);
  const auto got = FromWire(request);
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(got->job, "");
  EXPECT_EQ(got->world_size, 0);
}

}  // namespace
}  // namespace cairn
