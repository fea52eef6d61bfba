// Named places where a test makes a process die, or a system call fail. They are compiled in
// everywhere; an unarmed one costs a relaxed load. Only ArmFailpoints arms them: in tests, and in the
// daemon from its option test.failpoints.
//
// The list below is the only one. A test walks it (AllFailpoints) and fails for a point without a
// case, so a change that adds a point adds its case.
#pragma once

#include <atomic>
#include <functional>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/status.h"

namespace cairn {

// Enumerator, name. A point is reached *before* the call or step it is named after. One exception:
// storage.renamed is reached after a rename that happened, and makes it look as if it had failed.
#define CAIRN_FAILPOINTS(X)                        \
  X(kStorageOpen, "storage.open")                  \
  X(kStorageMakeDirectory, "storage.mkdir")        \
  X(kStorageAllocate, "storage.fallocate")         \
  X(kStorageWrite, "storage.write")                \
  X(kStorageTruncate, "storage.ftruncate")         \
  X(kStorageSync, "storage.fsync")                 \
  X(kStorageClose, "storage.close")                \
  X(kStorageRename, "storage.rename")              \
  X(kStorageExchange, "storage.exchange")          \
  X(kStorageRenamed, "storage.renamed")            \
  X(kStorageLink, "storage.link")                  \
  X(kStorageUnlink, "storage.unlink")              \
  X(kStorageTouch, "storage.touch")                \
  X(kStorageDone, "storage.done")                  \
  X(kStorageUse, "storage.use")                    \
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
  X(kNodeRecovered, "node.recovered")              \
  X(kRingLife, "ring.life")                        \
  X(kRingTell, "ring.tell")                        \
  X(kRingHeard, "ring.heard")                      \
  X(kRingAsk, "ring.ask")                          \
  X(kRingGrant, "ring.grant")                      \
  X(kRingGranted, "ring.granted")                  \
  X(kRingBlock, "ring.block")                      \
  X(kRingFetched, "ring.fetched")                  \
  X(kRingRevoke, "ring.revoke")

enum class Failpoint : int {
#define CAIRN_FAILPOINT_ENUMERATOR_(id, name) id,
  CAIRN_FAILPOINTS(CAIRN_FAILPOINT_ENUMERATOR_)
#undef CAIRN_FAILPOINT_ENUMERATOR_
      kCount
};

// Tells a death at a failpoint from any other.
inline constexpr int kFailpointExitCode = 86;

absl::string_view FailpointName(Failpoint point);
std::vector<Failpoint> AllFailpoints();

// Replaces what was armed. `spec` is a comma-separated list of POINT[(ABOUT)][:N][=ERRNO|=STOP], e.g.
// "storage.fsync:2=EIO,storage.rename". With ABOUT only reaches about that count. When it is reached for
// the N-th time (default 1, counted from this call) the point fails once with that errno or, without one,
// ends the process as SIGKILL would: no handler runs and nothing is flushed. With STOP the process stands still there
// until it gets SIGCONT, and nothing fails. POINT "any" counts the
// reaches of all points together. An empty spec disarms. INVALID_ARGUMENT names the part that is wrong,
// and then nothing is armed. Must not be called while other threads reach points.
Status ArmFailpoints(absl::string_view spec);

// How many of the armed failures have happened since ArmFailpoints. A test that tries N = 1, 2, … is
// done at the first N for which this is 0.
int FailpointsHit();

// For tests of two threads that meet: `hook` runs whenever any thread of this process reaches a
// point, on that thread, before what ArmFailpoints has armed. Empty: none. The same rule as for
// ArmFailpoints holds.
void SetFailpointHook(std::function<void(Failpoint)> hook);

namespace failpoint_internal {
extern std::atomic<bool> armed;
int Reach(Failpoint point, absl::string_view about);
}  // namespace failpoint_internal

// 0, or the errno with which the caller must fail instead of making the call. `about`: what the call is
// about, such as a job, where the point says so.
inline int ReachFailpoint(Failpoint point, absl::string_view about = {}) {
  if (!failpoint_internal::armed.load(std::memory_order_relaxed)) return 0;
  return failpoint_internal::Reach(point, about);
}

}  // namespace cairn
