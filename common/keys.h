// The words every part of Cairn uses to name things (docs/architecture.md, "Words").
//
// All keys compare as bytes. Validation and the parsing of paths live here, once. Every edge (RPC
// handler, client library, command line) calls them, and nothing below an edge checks again.
#pragma once

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "common/status.h"

namespace cairn {

using Step = int64_t;        // 0 … 2^63-1: an iteration, or a weight version
using Attempt = int64_t;     // > 0; greater is newer
using Revision = int32_t;    // >= 0
using Writer = int32_t;      // 0 … world_size-1
using SlabId = uint64_t;     // unique per node for the life of the keeper; never reused
using LeaseId = uint64_t;    // likewise; the byte its OFD lock stands at
using SessionId = uint64_t;  // likewise

// Identifies one process: 16 random bytes drawn by the client library when it loads, drawn anew
// after fork. Works across PID namespaces, where a number would not.
using ProcessToken = std::string;
inline constexpr size_t kProcessTokenBytes = 16;

inline constexpr Step kNoStep = -1;
// Where an attempt comes from, as long as not everything could be read that knows.
inline constexpr Step kUnknownStep = -2;
inline constexpr int32_t kMaxWorldSize = 1 << 20;
inline constexpr size_t kMaxJobBytes = 128;
inline constexpr size_t kMaxNameBytes = 512;
inline constexpr size_t kMaxComponentBytes = 200;
// 8 TiB, more than any node's memory: 8 MiB of checksums in a manifest.
inline constexpr uint64_t kMaxObjectBytes = uint64_t{1} << 43;
// That one create may name, and that are sealed at once: the node answers nobody else meanwhile.
inline constexpr size_t kMaxObjectsPerCall = 1000;
// In each list of one awaitUnmap; such a message takes no room for long ones while it waits.
inline constexpr size_t kMaxSlabsPerCall = 3000;
inline constexpr uint32_t kBlockBytes = 4u << 20;  // unit of checksums
inline constexpr uint64_t kPageBytes = 4096;

// One generation of a step. Complete when the manifests of all its writers exist.
struct CheckpointKey {
  std::string job;
  Step step = 0;
  Attempt attempt = 0;
  Revision revision = 0;

  auto Tie() const { return std::tie(job, step, attempt, revision); }
  bool operator==(const CheckpointKey& o) const { return Tie() == o.Tie(); }
  bool operator<(const CheckpointKey& o) const { return Tie() < o.Tie(); }
  std::string DebugString() const;  // "job/step attempt=A revision=R"
  template <typename H>
  friend H AbslHashValue(H h, const CheckpointKey& k) {
    return H::combine(std::move(h), k.job, k.step, k.attempt, k.revision);
  }
};

// Names a checkpoint to be found. kNoStep: the latest of the line. Attempt 0 and revision -1: those
// of the line. A client leaves `job` empty to mean its session's.
struct CheckpointRef {
  std::string job;
  Step step = kNoStep;
  Attempt attempt = 0;
  Revision revision = -1;

  // Step, attempt and revision are those of `key` wherever they are given.
  bool Matches(const CheckpointKey& key) const {
    return (step == kNoStep || step == key.step) && (attempt == 0 || attempt == key.attempt) &&
           (revision < 0 || revision == key.revision);
  }
};

// One writer's part of a checkpoint: what one manifest describes.
struct PartKey {
  CheckpointKey checkpoint;
  Writer writer = 0;

  auto Tie() const { return std::tie(checkpoint, writer); }
  bool operator==(const PartKey& o) const { return Tie() == o.Tie(); }
  bool operator<(const PartKey& o) const { return Tie() < o.Tie(); }
  std::string DebugString() const;
  template <typename H>
  friend H AbslHashValue(H h, const PartKey& k) {
    return H::combine(std::move(h), k.checkpoint, k.writer);
  }
};

// What a job may be called: [A-Za-z0-9][A-Za-z0-9._-]{0,127}.
Status ValidateJob(absl::string_view job);
Status ValidateStep(Step step);
Status ValidateAttempt(Attempt attempt);
Status ValidateWorld(Writer writer, int32_t world_size);
// Lengths are signed on the wire: one below 0 is refused, as is one above kMaxObjectBytes.
Status ValidateObjectLength(int64_t length);
// The job is given. `latest` (kNoStep) takes neither an attempt nor a revision.
Status ValidateCheckpointRef(const CheckpointRef& ref);

// 1–512 bytes of UTF-8 (well-formed, shortest form), components of 1–200 bytes joined by '/'. No
// component is "." or "..", none begins ".cairn", and there are no control characters
// (U+0000–U+001F, U+007F).
Status ValidateObjectName(absl::string_view name);

// The entry of `names` (a set of names, or a map keyed by name) that is a directory of `name`: "a" for
// "a/b"; end() when there is none.
template <typename Names>
typename Names::const_iterator FindDirectoryOf(absl::string_view name, const Names& names) {
  for (size_t slash = name.find('/'); slash != name.npos; slash = name.find('/', slash + 1)) {
    const auto above = names.find(typename Names::key_type(name.substr(0, slash)));
    if (above != names.end()) return above;
  }
  return names.end();
}

// The entry of `names` (a std::map keyed by name) that cannot stand in one checkpoint with `name`:
// the same name, a directory of it, or a name below it; end() when there is none.
template <typename Names>
typename Names::const_iterator FindCollision(const Names& names, const std::string& name) {
  if (const auto same = names.find(name); same != names.end()) return same;
  if (const auto above = FindDirectoryOf(name, names); above != names.end()) return above;
  const std::string directory = name + "/";
  const auto below = names.lower_bound(directory);
  return below != names.end() && absl::StartsWith(below->first, directory) ? below : names.end();
}

// A cairn path: cairn://JOB/STEP/NAME, STEP a number or "latest"; or STEP/NAME once connected.
struct CairnPath {
  std::string job;  // the default job for STEP/NAME
  bool latest = false;
  Step step = kNoStep;
  std::string name;  // may be empty when the path names a step
};
// INVALID_ARGUMENT names what is wrong. `default_job` fills STEP/NAME; empty refuses that form.
StatusOr<CairnPath> ParseCairnPath(absl::string_view path, absl::string_view default_job);

// What `ls` lists: "" lists jobs, "JOB" that job's checkpoints, "JOB/STEP" or "JOB/latest" the
// objects of the checkpoint that counts, "JOB/STEP@ATTEMPT.REVISION" those of exactly that one.
struct ListPath {
  CheckpointRef ref;  // ref.job is empty: jobs. With names_step its step, kNoStep for latest
  bool names_step = false;
};
StatusOr<ListPath> ParseListPath(absl::string_view path);
std::string ExactListPath(const CheckpointKey& checkpoint);

}  // namespace cairn
