// Words for tests about reports of a ring's members: who reports what.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/engine/report.h"
#include "server/engine/view.h"

namespace cairn::engine {

inline MemberId Life(Rank rank, int64_t incarnation = 1) {
  return {rank, incarnation,
          absl::StrCat("instance ", rank, ".", incarnation, std::string(16, '.')).substr(0, 16)};
}

inline NameHashes Names(std::vector<uint64_t> hashes) {
  return std::make_shared<const std::vector<uint64_t>>(std::move(hashes));
}

// What a manifest's digest is, in so far as it matters here.
inline std::string DigestNamed(absl::string_view name) {
  std::string digest(name);
  digest.resize(32, '.');
  return digest;
}
inline std::string DigestOf(const CheckpointId& id, Writer writer) {
  return DigestNamed(absl::StrCat(id.step, "/", id.attempt, "/", id.revision, "/", writer));
}

// What members report of one job, said one after the other.
class Reports {
 public:
  explicit Reports(int members = 4, int replicas = 1) : ring{members, replicas} {}

  Reports& Member(Rank rank) {
    Heard& heard = gathering.reports[rank];
    heard.from = Life(rank);
    heard.number = 1;
    return *this;
  }
  JobReport& Of(Rank rank) {
    Member(rank);
    return gathering.reports[rank].report;
  }
  PartReport& Part(Rank rank, const CheckpointId& id, Writer writer, int32_t world_size) {
    JobReport& report = Of(rank);
    // What takes part in an attempt knows where it comes from.
    report.attempts.try_emplace(id.attempt, AttemptReport{0, {}, 1});
    PartReport& part = report.parts[{id, writer}];
    part.world_size = world_size;
    part.digest = DigestOf(id, writer);
    part.owner = rank;
    part.bytes = 100;
    return part;
  }
  PartReport& Replica(Rank rank, const CheckpointId& id, Writer writer, int32_t world_size) {
    PartReport& part = Part(rank, id, writer, world_size);
    part.role = PartRole::kReplica;
    return part;
  }
  // All writers of the checkpoint, one on each member.
  Reports& Complete(const CheckpointId& id, int32_t world_size) {
    for (Writer writer = 0; writer < world_size; ++writer) Part(writer, id, writer, world_size);
    return *this;
  }
  // And a copy of each on the next member.
  Reports& Replicated(const CheckpointId& id, int32_t world_size) {
    Complete(id, world_size);
    for (Writer writer = 0; writer < world_size; ++writer) {
      Replica((writer + 1) % ring.members, id, writer, world_size);
    }
    return *this;
  }
  WriterReport& WriterAt(Rank rank, Attempt attempt, const WorldWriter& writer, Step reached) {
    WriterReport& said = Of(rank).writers[{attempt, writer}];
    said.reached = {reached, 0};
    return said;
  }
  // Everybody has answered.
  Reports& Final() {
    for (Rank rank = 0; rank < ring.members; ++rank) {
      if (!gathering.silent.contains(rank)) Member(rank);
    }
    gathering.final = true;
    return *this;
  }
  Reports& Silent(Rank rank) {
    gathering.silent.insert(rank);
    return *this;
  }

  JobVerdict Verdict() const { return View("job", gathering, record, ring); }
  CheckpointVerdict VerdictOf(const CheckpointId& id) const {
    const JobVerdict verdict = Verdict();
    const auto at = verdict.checkpoints.find(id);
    return at == verdict.checkpoints.end() ? CheckpointVerdict() : at->second;
  }

  RingShape ring;
  Gathering gathering;
  JobRecord record;
};

}  // namespace cairn::engine
