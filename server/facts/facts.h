// What the journal keeps: facts as values, so that applying one twice is applying it once, and a
// later build with another policy can read them. The engine produces them; `journal/` stores them;
// a new daemon hands them back to the engine, which rebuilds its state from facts alone.
//
// Encoding (EncodeFact): u8 kind, u8 version, then the fields in order, little-endian, strings as
// u32 length + bytes. An unknown kind or a newer version is refused: the journal belongs to one
// node's memory and never travels.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "common/keys.h"
#include "common/manifest.h"
#include "common/policy.h"

namespace cairn {

struct ExtentRef {
  SlabId slab = 0;
  uint64_t offset = 0;
  uint64_t length = 0;  // room, a multiple of the page size
  bool operator==(const ExtentRef&) const = default;
};

enum class LeaseMode : uint8_t {
  kWrite = 0,  // the writer's own slab, mapped read-write
  kMap = 1,    // a reader's private mapping
  kFile = 2,   // a reader that may open by path
  kRead = 3,   // bytes are copied out at once (pread or Thrift chunks)
};

namespace fact {

struct Incarnation {
  int64_t started_unix_ms = 0;
  uint64_t next_id = 0;
  bool operator==(const Incarnation&) const = default;
};  // ids below next_id are used
struct Job {
  std::string job;
  uint32_t owner_uid = 0;
  uint32_t owner_gid = 0;
  JobPolicy policy;
  bool operator==(const Job&) const = default;
};
struct AttemptBegun {
  std::string job;
  Attempt attempt = 0;
  Step comes_from = kNoStep;
  int64_t unix_ms = 0;
  bool operator==(const AttemptBegun&) const = default;
};
// Which process is (attempt, writer).
struct WriterProcess {
  std::string job;
  Attempt attempt = 0;
  Writer writer = 0;
  ProcessToken process;
  bool operator==(const WriterProcess&) const = default;
};
struct StepWorld {
  std::string job;
  Attempt attempt = 0;
  Step step = 0;
  int32_t world_size = 0;
  bool operator==(const StepWorld&) const = default;
};
struct Resume {
  std::string job;
  Attempt attempt = 0;
  Step comes_from = kNoStep;
  bool operator==(const Resume&) const = default;
};

enum class SlabUse : uint8_t { kObjects = 0, kManifests = 1 };
// A slab that the keeper holds. owner_job empty: never lent, anyone's.
struct Slab {
  SlabId slab = 0;
  uint64_t bytes = 0;
  SlabUse use = SlabUse::kObjects;
  uint32_t owner_uid = 0;
  std::string owner_job;
  bool operator==(const Slab&) const = default;
};
struct SlabGone {
  SlabId slab = 0;
  bool operator==(const SlabGone&) const = default;
};

struct SessionBegun {
  SessionId session = 0;
  std::string secret;
  uint32_t uid = 0;
  uint32_t gid = 0;
  int32_t pid = 0;
  ProcessToken process;
  std::string job;
  Attempt attempt = 0;
  Writer writer = -1;
  int32_t world_size = 0;
  int32_t local_writers = 1;
  bool takes_fds = true;
  bool operator==(const SessionBegun&) const = default;
};
struct SessionEnded {
  SessionId session = 0;
  bool operator==(const SessionEnded&) const = default;
};
// `lease` lets `session` use `slab`. For kWrite it stands for the mapping, until Unlent.
struct Lent {
  LeaseId lease = 0;
  SessionId session = 0;
  SlabId slab = 0;
  LeaseMode mode = LeaseMode::kMap;
  PartKey part;
  std::string name;
  bool operator==(const Lent&) const = default;
};  // part and name: what a reader opened
struct Unlent {
  LeaseId lease = 0;
  bool operator==(const Unlent&) const = default;
};

// An unsealed object: a save in flight goes on across the daemon's death. `call` is the create's
// number in its session, so that a repeat of it is told from a second create.
struct ObjectCreated {
  PartKey part;
  int32_t world_size = 0;
  std::string name;
  ObjectKind kind = ObjectKind::kRaw;
  uint64_t length = 0;
  ExtentRef extent;
  SessionId session = 0;
  int64_t call = 0;
  bool operator==(const ObjectCreated&) const = default;
};

struct ObjectSealed {
  PartKey part;
  ObjectEntry entry;
  ExtentRef extent;
  bool operator==(const ObjectSealed&) const = default;
};
struct ObjectDropped {
  PartKey part;
  std::string name;
  bool operator==(const ObjectDropped&) const = default;
};  // before its bytes are reused
struct ManifestCommitted {
  PartKey part;
  int32_t world_size = 0;
  ExtentRef extent;
  uint64_t bytes = 0;
  std::string digest;
  bool operator==(const ManifestCommitted&) const = default;
};
struct ManifestDropped {
  PartKey part;
  bool operator==(const ManifestDropped&) const = default;
};  // its bytes leave memory
struct Persisted {
  CheckpointKey checkpoint;
  std::string digest;
  bool operator==(const Persisted&) const = default;
};
struct FilesDeleted {
  CheckpointKey checkpoint;
  bool operator==(const FilesDeleted&) const = default;
};
struct StepRemoved {
  std::string job;
  Step step = 0;
  Attempt up_to_attempt = 0;
  bool operator==(const StepRemoved&) const = default;
};  // `rm`
// Somebody asked for storage whatever the policy; over once it is Persisted.
struct PersistAsked {
  CheckpointKey checkpoint;
  bool operator==(const PersistAsked&) const = default;
};
struct Pinned {
  CheckpointKey checkpoint;
  bool pinned = true;
  bool operator==(const Pinned&) const = default;
};

}  // namespace fact

using Fact = std::variant<fact::Incarnation, fact::Job, fact::AttemptBegun, fact::WriterProcess,
                          fact::StepWorld, fact::Resume, fact::Slab, fact::SlabGone,
                          fact::SessionBegun, fact::SessionEnded, fact::Lent, fact::Unlent,
                          fact::ObjectCreated, fact::ObjectSealed, fact::ObjectDropped,
                          fact::ManifestCommitted, fact::ManifestDropped, fact::Persisted,
                          fact::FilesDeleted, fact::StepRemoved, fact::Pinned, fact::PersistAsked>;

std::string EncodeFact(const Fact& fact);
StatusOr<Fact> DecodeFact(absl::string_view bytes);

}  // namespace cairn
