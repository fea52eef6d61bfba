// Named places where a test makes a process die, or a system call fail. Compiled in everywhere;
// unarmed they cost one relaxed load. Armed only by ArmFailpoints: in tests, and by the daemon from
// its option of that name.
//
// The list below is the only one. A test walks it (AllFailpoints), so that a point without a case
// fails; a room that adds a point adds its case.
#pragma once

#include <atomic>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/status.h"

namespace cairn {

// Enumerator, name. A point stands *before* the call or step it is named after.
#define CAIRN_FAILPOINTS(X)                        \
  X(kStorageOpen, "storage.open")                  \
  X(kStorageMakeDirectory, "storage.mkdir")        \
  X(kStorageAllocate, "storage.fallocate")         \
  X(kStorageWrite, "storage.write")                \
  X(kStorageTruncate, "storage.ftruncate")         \
  X(kStorageSync, "storage.fsync")                 \
  X(kStorageClose, "storage.close")                \
  X(kStorageRename, "storage.rename")              \
  X(kStorageUnlink, "storage.unlink")              \
  X(kStorageDone, "storage.done")                  \
  X(kNodeApplied, "node.applied")                  \
  X(kNodeJournaled, "node.journaled")              \
  X(kNodeReply, "node.reply")                      \
  X(kNodeLend, "node.lend")                        \
  X(kNodeLent, "node.lent")                        \
  X(kNodeAttached, "node.attached")                \
  X(kNodeManifest, "node.manifest")                \
  X(kNodeManifestWritten, "node.manifest_written") \
  X(kNodePersist, "node.persist")                  \
  X(kNodePublish, "node.publish")                  \
  X(kNodePublished, "node.published")              \
  X(kNodeDelete, "node.delete")                    \
  X(kNodeDeleted, "node.deleted")                  \
  X(kNodeSwitch, "node.switch")                    \
  X(kNodeSwitched, "node.switched")                \
  X(kNodeRecover, "node.recover")                  \
  X(kNodeRecovered, "node.recovered")

enum class Failpoint : int {
#define CAIRN_FAILPOINT_ENUMERATOR_(id, name) id,
  CAIRN_FAILPOINTS(CAIRN_FAILPOINT_ENUMERATOR_)
#undef CAIRN_FAILPOINT_ENUMERATOR_
      kCount
};

inline constexpr int kFailpointExitCode = 86;  // tells such a death from any other

absl::string_view FailpointName(Failpoint point);
std::vector<Failpoint> AllFailpoints();

// Replaces what was armed. `spec` is a comma-separated list of POINT[:N][=ERRNO], e.g.
// "storage.fsync:2=EIO,storage.rename": at its N-th reach (default 1, counted from this call) the
// point fails once with that errno, or, without one, ends the process as SIGKILL would: no handler,
// no flush. POINT "any" counts the reaches of all points together. Empty disarms. INVALID_ARGUMENT
// names the part that is wrong, and then nothing is armed. Not to be called while points are being
// reached.
Status ArmFailpoints(absl::string_view spec);

// How many of the armed failures have happened since ArmFailpoints: 0 tells a test that walks N
// that it has come to the end.
int FailpointsHit();

namespace failpoint_internal {
extern std::atomic<bool> armed;
int Reach(Failpoint point);
}  // namespace failpoint_internal

// 0, or the errno with which the caller shall fail instead of doing what the point stands before.
inline int ReachFailpoint(Failpoint point) {
  if (!failpoint_internal::armed.load(std::memory_order_relaxed)) return 0;
  return failpoint_internal::Reach(point);
}

}  // namespace cairn
