#include "tests/engine/ring_fixture.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/checksum.h"

namespace cairn::engine {

Manifest ManifestOf(const PartKey& part, int32_t world_size, uint64_t bytes) {
  Manifest manifest;
  manifest.job = part.checkpoint.job;
  manifest.step = manifest.first = part.checkpoint.step;
  manifest.attempt = part.checkpoint.attempt;
  manifest.writer = part.writer;
  manifest.world_size = world_size;
  manifest.owner_uid = 1000;
  ObjectEntry entry;
  entry.name = absl::StrCat("model-", part.writer);
  entry.length = bytes;
  entry.block_crcs.assign(BlockCount(bytes, kBlockBytes), 7);
  manifest.objects.push_back(entry);
  return manifest;
}

std::string DigestOf(const Manifest& manifest) { return ManifestDigest(EncodeManifest(manifest)); }

peer::Want WantOf(const Manifest& manifest, bool target) {
  peer::Want want;
  want.part = manifest.Part();
  want.digest = DigestOf(manifest);
  want.manifest_bytes = EncodeManifest(manifest).size();
  want.bytes = manifest.TotalBytes();
  want.world_size = manifest.world_size;
  want.owner_uid = want.owner_gid = manifest.owner_uid;
  want.target = target;
  return want;
}

void RingTest::Bring(const action::Fetch& fetch, const Manifest& manifest) {
  Apply(event::Fetched{fetch.fetch, absl::OkStatus(),
                       TableOf(manifest, {{fetch.slab, 0, manifest.TotalBytes()}}),
                       DigestOf(manifest)});
}

void PartsElsewhere::SetUp() {
  // The job's home is the other member, whose word the tests bring.
  const std::vector<Rank> order = HomeOrder("job", {0, 1});
  other = {order.front(), 1, std::string(kInstanceBytes, 'o')};
  options.ring.cluster = "test";
  options.ring.rank = order.back();
  options.ring.members = {{0, "10.0.0.1:1"}, {1, "10.0.0.2:1"}};
  while (HomeOrder(another_job, {0, 1}).front() != other.rank) another_job += "x";
  options.storage = storage;
  EngineTest::SetUp();
  Apply(event::Exchanged{other.rank, other});
}

SessionId PartsElsewhere::OfAnotherJob() {
  const SessionId session = Hello({.job = another_job});
  JobVerdict nothing;
  nothing.job = another_job;
  nothing.final = true;
  Apply(event::PeerSaid{other, peer::VerdictSaid{nothing}});
  return session;
}

void PartsElsewhere::Hear() {
  verdict.job = "job";
  verdict.final = true;
  verdict.asked = 1;
  Apply(event::PeerSaid{other, peer::VerdictSaid{verdict}});
}

void PartsElsewhere::RestartInTheRing(StartFrom from) {
  Restart(from);
  Apply(event::Exchanged{other.rank, other});
  Hear();
}

void PartsElsewhere::Complete(Step step, int replicas) {
  CheckpointVerdict& said = verdict.checkpoints[{step, 1, 0}];
  said.world_size = 2;
  said.complete = said.in_memory = true;
  said.digest = absl::StrCat("digest of ", step);
  said.replicas = replicas;
}

SessionId PartsElsewhere::OneOfTwo(Attempt attempt) {
  const SessionId session =
      Hello({.writer = 0, .world_size = 2, .attempt = attempt, .local_writers = 1});
  Hear();
  return session;
}

Status PartsElsewhere::Asks(SessionId session, Step step, uint64_t bytes, const std::string& name) {
  const event::Create create = CreateOf(session, PartOf(session, step), {{name, bytes}});
  Apply(create);
  for (int i = 0; i < 11 && !Answered(create.caller.request); ++i) {
    Advance(kNanosPerSecond);
    Hear();
  }
  return AnswerTo(create.caller.request).status();
}

bool PartsElsewhere::Holds(Step step, Attempt attempt) {
  for (const auto& part : engine->Describe("job", {{"job", step, attempt, 0}}).parts) {
    if (part.resident) return true;
  }
  return false;
}

void PartsElsewhere::StoreWhole(Step step, Attempt attempt, int32_t world_size,
                                uint64_t bytes_each) {
  for (Writer writer = 0; writer < world_size; ++writer) {
    WritePart(ManifestOf({{"job", step, attempt, 0}, writer}, world_size, bytes_each));
  }
  line_records[{attempt, LineRecordKind::kOrigin}] = {"job", attempt, LineRecordKind::kOrigin, {}};
}

std::string PartsElsewhere::Want(const Manifest& manifest, const PartKey& part, uint64_t bytes,
                                 bool target) {
  peer::Want want = WantOf(manifest, target);
  want.part = part;
  want.bytes = bytes;
  Wants({want});
  return want.digest;
}

void PartsElsewhere::Wants(std::vector<peer::Want> list) {
  fetches.clear();
  Apply(event::PeerSaid{other, peer::WantList{++wants, std::move(list)}});
}

std::vector<peer::Have> PartsElsewhere::SaidHaves() const {
  std::vector<peer::Have> haves;
  for (const action::Tell& tell : tells) {
    if (const auto* list = std::get_if<peer::HaveList>(&tell.message)) haves = list->haves;
  }
  return haves;
}

const peer::Have* PartsElsewhere::SaidOf(const PartKey& part) const {
  const auto* list = LastSaid<peer::HaveList>(other.rank);
  if (list == nullptr) return nullptr;
  const auto have = std::find_if(list->haves.begin(), list->haves.end(),
                                 [&](const peer::Have& it) { return it.part == part; });
  return have == list->haves.end() ? nullptr : &*have;
}

void PartsElsewhere::Replicate(const PartKey& part, int32_t world_size, uint64_t bytes) {
  const Manifest manifest = ManifestOf(part, world_size, bytes);
  Want(manifest, part, bytes);
  ASSERT_EQ(fetches.size(), 1u) << part.DebugString();
  Bring(fetches[0], manifest);
}

RequestId PartsElsewhere::OpensWhatTheOtherHas(SessionId reader, const Manifest& manifest) {
  const event::Open open = OpenOf(reader, manifest.step, manifest.objects[0].name);
  fetches.clear();
  Apply(open);
  Apply(event::PeerSaid{other, PlacesOf(manifest)});
  return open.caller.request;
}

peer::PlacesSaid PartsElsewhere::PlacesOf(const Manifest& manifest) const {
  return {manifest.Checkpoint(),
          manifest.objects[0].name,
          {{manifest.writer,
            DigestOf(manifest),
            manifest.world_size,
            manifest.TotalBytes(),
            other.rank,
            {other.rank}}}};
}

void PartsElsewhere::OneWriterCompletes(Step step) {
  verdict.owned = true;
  verdict.owner_uid = verdict.owner_gid = 1000;
  Complete(step);
  verdict.checkpoints.at({step, 1, 0}).world_size = 1;
}

}  // namespace cairn::engine
