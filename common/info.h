// What `stat`, `ls` and `latest` say of checkpoints and objects, as the engine answers it and as a
// client receives it. proto/convert.h carries these values over the wire; JSON and Python take them
// field by field from VisitFields.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/keys.h"
#include "common/level.h"
#include "common/manifest.h"

namespace cairn {

// At most this many missing writers are named.
inline constexpr size_t kMostMissingWritersNamed = 64;

struct CheckpointInfo {
  CheckpointKey key;
  int32_t world_size = 0;
  std::vector<Writer> missing_writers;  // the first kMostMissingWritersNamed
  uint64_t bytes = 0;                   // of the objects known here
  uint64_t objects = 0;
  Facts facts;
  Level level = Level::kWriting;
  int64_t created_unix_ms = 0;
  std::string why;  // in words, when it is incomplete, in conflict, broken or cannot be persisted
  bool on_line = false;
  std::string digest;  // empty until it is complete
};

struct ObjectInfo {
  std::string name;
  Writer writer = 0;
  ObjectKind kind = ObjectKind::kRaw;
  uint64_t length = 0;
  Level level = Level::kWriting;
  std::vector<uint32_t> block_crcs;  // `stat` and `open` fill it, a listing leaves it empty
  int64_t verified_unix_ms = 0;      // when its bytes were last checked; 0: not since the seal
  Facts facts;
};

// The checkpoint a job goes on from. key.step kNoStep: from nothing.
struct LatestCheckpoint {
  CheckpointKey key;
  int32_t world_size = 0;
  std::string digest;
  std::string source;  // where its bytes are: "memory", "peer", "storage"; empty: nowhere
  int64_t as_of_unix_ms = 0;
  Attempt head = 0;       // the attempt that the line is of, or the number of a decision
  bool recorded = false;  // of resume and use: the decision stands in storage, too
  std::string passed_over =
      {};  // a higher step that lost files in storage, and which; empty: there is none
};

// What a keep policy would make of the files of one checkpoint.
struct FilesFate {
  CheckpointKey key;
  uint64_t bytes = 0;
  bool now = false;  // they go when the policy is applied next; else once `why` has come about
  int64_t after_unix_ms = 0;  // not before, by storage's clock; 0: no time is known
  std::string why;
};

// The most files that a preview names.
inline constexpr size_t kMostFatesNamed = 1000;

struct PolicyPreview {
  std::vector<FilesFate> files;  // those that go, the lowest steps first; at most kMostFatesNamed
  uint64_t stay = 0, go_now = 0, go_later = 0;  // how many, all of them
  uint64_t bytes_now = 0, bytes_later = 0;
};

// --- fields by name
//
// VisitFields(value, visit) calls visit(name, field) for each field in turn, in the order in which
// people see them. Names are those of proto/cairn.thrift. What is more than a plain number, text or
// list arrives as Level, ObjectKind, Facts, BlockChecksums or UnixMillis.

struct BlockChecksums {
  const std::vector<uint32_t>& crcs;
};
struct UnixMillis {  // a field whose name ends in _unix_ms
  int64_t value = 0;
};

template <typename Visit>
void VisitFields(const FilesFate& files, Visit&& visit) {
  visit("step", files.key.step);
  visit("attempt", files.key.attempt);
  visit("revision", files.key.revision);
  visit("bytes", files.bytes);
  visit("now", files.now);
  visit("after_unix_ms", UnixMillis{files.after_unix_ms});
  visit("why", files.why);
}

template <typename Visit>
void VisitFields(const Facts& facts, Visit&& visit) {
  visit("complete", facts.complete);
  visit("resident", facts.resident);
  visit("replicas", facts.replicas);
  visit("replicas_asked", facts.replicas_asked);
  visit("replicas_age_ms", facts.replicas_age_ms);
  visit("persisted", facts.persisted);
  visit("broken", facts.broken);
  visit("in_conflict", facts.in_conflict);
  visit("abandoned", facts.abandoned);
  visit("pinned", facts.pinned);
}

template <typename Visit>
void VisitFields(const CheckpointKey& key, Visit&& visit) {
  visit("job", key.job);
  visit("step", key.step);
  visit("attempt", key.attempt);
  visit("revision", key.revision);
}

template <typename Visit>
void VisitFields(const CheckpointInfo& info, Visit&& visit) {
  VisitFields(info.key, visit);
  visit("world_size", info.world_size);
  visit("missing_writers", info.missing_writers);
  visit("bytes", info.bytes);
  visit("objects", info.objects);
  visit("facts", info.facts);
  visit("level", info.level);
  visit("created_unix_ms", UnixMillis{info.created_unix_ms});
  visit("why", info.why);
  visit("on_line", info.on_line);
  visit("digest", info.digest);
}

template <typename Visit>
void VisitFields(const ObjectInfo& info, Visit&& visit) {
  visit("name", info.name);
  visit("writer", info.writer);
  visit("kind", info.kind);
  visit("length", info.length);
  visit("level", info.level);
  visit("block_crcs", BlockChecksums{info.block_crcs});
  visit("verified_unix_ms", UnixMillis{info.verified_unix_ms});
  visit("facts", info.facts);
}

template <typename Visit>
void VisitFields(const LatestCheckpoint& latest, Visit&& visit) {
  VisitFields(latest.key, visit);
  visit("world_size", latest.world_size);
  visit("digest", latest.digest);
  visit("source", latest.source);
  visit("as_of_unix_ms", UnixMillis{latest.as_of_unix_ms});
  visit("head", latest.head);
  visit("recorded", latest.recorded);
  visit("passed_over", latest.passed_over);
}

// How an object is opened. Numbers are those of the wire.
enum class OpenMode : uint8_t {
  kMap = 1,   // a private mapping
  kFile = 2,  // a path that loaders open; in memory it needs an object that fills its slab
  kRead = 3,  // a copy of the bytes
};

}  // namespace cairn
