// Messages between members with something in every field, and how they travel.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/frame.h"
#include "server/rpc/peer_convert.h"

namespace cairn::testing {

inline std::string SomeDigest(int n) {
  return absl::StrCat("0123456789abcdef0123456789abcde", n % 10);
}

inline PartKey SomePart(Step step, Writer writer = 1) { return {{"job", step, 7, 2}, writer}; }

inline engine::MemberId SomeMember(engine::Rank rank) {
  return {rank, 1'000 + rank, std::string(engine::kInstanceBytes, static_cast<char>('a' + rank))};
}

inline engine::peer::WantList SomeWants() {
  engine::peer::WantList list;
  list.version = 9;
  list.wants.push_back({SomePart(1), SomeDigest(1), 100, 4096, 4, 1000, 4'000'000'000, true, 2});
  list.wants.push_back({SomePart(2), SomeDigest(2), 0, 0, 2, 0, 0, false});
  return list;
}

inline engine::peer::HaveList SomeHaves() {
  using engine::peer::HaveState;
  engine::peer::HaveList list;
  list.wants_version = 9;
  list.version = 3;
  list.haves.push_back({SomePart(1), SomeDigest(1), HaveState::kUnderWay, "", 17});
  list.haves.push_back({SomePart(2), SomeDigest(2), HaveState::kRefused, "needs 2, has 1", 0});
  list.haves.push_back({SomePart(3), SomeDigest(3), HaveState::kHeld, "", 0});
  return list;
}

inline engine::peer::ReleaseList SomeReleases() {
  using engine::peer::Fate;
  engine::peer::ReleaseList list;
  list.haves_version = 3;
  list.releases.push_back({SomePart(1), SomeDigest(1), Fate::kRemoved, {}});
  list.releases.push_back({SomePart(2), SomeDigest(2), Fate::kSuperseded, {"job", 3, 7, 0}});
  list.releases.push_back({SomePart(3), SomeDigest(3), Fate::kKeep, {}});
  return list;
}

inline engine::peer::Report SomeReport() {
  engine::ReportDelta delta;
  delta.job = "job";
  delta.after = 5;
  delta.number = 6;
  delta.owned = true;
  delta.owner_uid = 4'294'967'294;
  delta.owner_gid = 100;
  delta.policy.replicas = 2;
  delta.policy.keep_last = 3;
  delta.attempts[7] = {1, Lineage{{{6, 5}, {4, 3}}, true}, 123};
  delta.attempts_gone = {3, 4};
  engine::PartReport part;
  part.world_size = 4;
  part.digest = SomeDigest(1);
  part.role = PartRole::kReplica;
  part.owner = 2;
  part.bytes = 1 << 20;
  part.stored = true;
  part.names = std::make_shared<const std::vector<uint64_t>>(std::vector<uint64_t>{1, 1, ~0ull});
  delta.parts[{{8, 7, 0}, 3}] = part;
  part.owner = engine::kNoRank;
  part.in_memory = false;
  delta.parts[{{8, 7, 1}, 0}] = part;
  delta.parts_gone = {{{7, 7, 0}, 3}};
  delta.writers[{7, {4, 3}}] = {{8, 1}, false, {{5, 0}, {6, 2}}};
  delta.writers[{7, {8, 4}}] = {};
  delta.writers_gone = {{6, {4, 3}}};
  delta.published = {{6, 7, 0}};
  delta.published_gone = {{5, 7, 0}};
  delta.target = engine::CheckpointId{8, 7, 0};
  delta.answers = 78;
  delta.saving = {{7, "", -1, {12}}, {7, "a launcher's run", 2, {13, 14}}};
  return {delta};
}

inline engine::peer::VerdictSaid SomeVerdict() {
  engine::JobVerdict verdict;
  verdict.job = "job";
  verdict.reports[0] = {SomeMember(0), 6};
  verdict.reports[2] = {SomeMember(2), 1};
  verdict.silent = {1, 63};
  verdict.final = true;
  verdict.head = {7, true};
  verdict.checkpoints[{8, 7, 0}] = {4, true, SomeDigest(4), 1 << 30, true, true, 1, false, ""};
  verdict.checkpoints[{9, 7, 0}] = {4, false, "", 1, false, false, 0, true, "writers 1, 2: \"a\""};
  verdict.latest = engine::CheckpointId{8, 7, 0};
  verdict.protect = engine::CheckpointId{6, 7, 0};
  verdict.target = engine::CheckpointId{9, 7, 0};
  verdict.asked = 1;
  verdict.why = "rank 1 was lost";
  verdict.owned = true;
  verdict.owner_uid = 4'294'967'294;
  verdict.owner_gid = 100;
  verdict.policy.replicas = 2;
  verdict.attempts[7] = {1, Lineage{{{6, 5}}, false}, 123};
  verdict.safe = {7, 6};
  verdict.saving[2] = {{7, "a launcher's run", 2, {13, 14}}};
  return {verdict, 80};
}

inline engine::peer::PlacesSaid SomePlaces() {
  engine::peer::PlacesSaid places;
  places.checkpoint = SomePart(3).checkpoint;
  places.name = "a/b";
  places.places.push_back({1, SomeDigest(1), 4, 4096, 2, {0, 2}});
  places.places.push_back({2, SomeDigest(2), 4, 0, engine::kNoRank, {}});
  return places;
}

inline std::vector<engine::peer::Message> SomeOfEachKind() {
  return {SomeWants(),
          SomeHaves(),
          SomeReleases(),
          SomeReport(),
          engine::peer::ReportWanted{"job", 79},
          SomeVerdict(),
          engine::peer::VerdictWanted{"job", 81},
          engine::peer::PlacesWanted{SomePart(3).checkpoint, "a/b"},
          SomePlaces(),
          engine::peer::Record{"job", "decisions", 7},
          engine::peer::RecordHeld{"job", 7}};
}

// As a message's bytes in a frame.
template <typename Wire>
std::string EncodePeer(const Wire& value) {
  FrameWriter writer;
  value.write(writer.protocol());
  return std::string(writer.Finish().substr(kFrameHeaderBytes));
}

// What the bytes say; throws what Thrift throws.
inline peerwire::Message DecodePeer(absl::string_view bytes) {
  MessageBytes in;
  in.Set(bytes);
  auto shared = std::shared_ptr<MessageBytes>(&in, [](MessageBytes*) {});
  FrameReader<MessageBytes> reader(shared, 64 << 20);
  const auto limit = static_cast<int32_t>(bytes.size()) + 1;
  reader.setStringSizeLimit(limit);
  reader.setContainerSizeLimit(limit);
  peerwire::Message message;
  message.read(&reader);
  return message;
}

inline StatusOr<engine::peer::Message> ArrivedFrom(absl::string_view bytes) {
  return rpc::FromPeerWire(DecodePeer(bytes));
}

}  // namespace cairn::testing
