// What a node's engine asked for and has not ended: slabs being made, probes, writes to storage.
// The node's way to storage has faults of its own here.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "common/clock.h"
#include "server/engine/actions.h"
#include "server/engine/events.h"

namespace cairn::engine::sim {

class Node;

// What ends later, with what is needed to end it.
namespace completion {
struct Make {
  SlabId slab = 0;
  bool fails = false;
};
struct Destroy {
  SlabId slab = 0;
};
struct Probe {
  SlabId slab = 0;
  std::vector<LeaseId> leases;
  std::optional<event::SlabProbed> early;  // what it saw, if it looked when it was asked
};
struct Manifest {
  action::WriteManifest write;
  bool fails = false;
};
struct Verify {
  action::Verify verify;
};
struct Persist {
  std::shared_ptr<action::Persist> persist;
  bool in_the_way = false;  // something of the user's stands in its place
  Status trouble;           // why it fails
};
struct Delete {
  action::DeleteFiles deletion;
  bool fails = false;
};
struct Record {
  action::WriteLineRecord write;
  Status trouble;
};
struct Scan {
  std::string job;
  int64_t storage_changes = 0;               // of the node, when it was asked for
  std::optional<StatusOr<StoredJob>> early;  // likewise
  bool fails = false;
};
struct TableRead {
  CheckpointKey checkpoint;
  bool fails = false;
};
struct LineLook {
  std::string job;
  bool fails = false;
};
struct SessionGone {  // the keeper has seen that the connection is closed, or the process dead
  SessionId session = 0;
};
}  // namespace completion

using Completion =
    std::variant<completion::Make, completion::Destroy, completion::Probe, completion::Manifest,
                 completion::Verify, completion::Persist, completion::Delete, completion::Record,
                 completion::Scan, completion::TableRead, completion::LineLook,
                 completion::SessionGone>;

class Executor {
 public:
  explicit Executor(Node* node) : node_(*node) {}

  // Each takes what it needs out of the action and draws when, and how, it will end.
  void Begin(action::MakeSlab& a);
  void Begin(action::DestroySlab& a);
  void Begin(action::ProbeSlab& a);
  void Begin(action::WriteManifest& a);
  void Begin(action::Verify& a);
  void Begin(action::Persist& a);
  void Begin(action::DeleteFiles& a);
  void Begin(action::WriteLineRecord& a);
  void Begin(action::ScanJob& a);
  void Begin(action::ReadTables& a);
  void Begin(action::ReadLineNumbers& a);
  // The keeper will see that the session is over.
  void NoticeEndOf(SessionId session);

  // When the next one ends; kNoTime: none does.
  MonotonicNanos Due() const;
  void EndNext();
  // The daemon is dead: each thing under way has happened, or not.
  void Crash();
  // Something is under way that only the daemon's death ends.
  bool Hangs() const;
  // What hung goes on.
  void Release();
  // Something under way reads or writes bytes of the slab.
  bool Uses(SlabId slab) const;

  // How this node sees storage now.
  struct StorageFaults {
    bool fails = false;
    bool away = false;  // what is asked of it never ends, until the daemon is restarted
    bool slow = false;
    bool full = false;  // it takes nothing new
    bool gone = false;  // something else, or nothing, stands at its root
  };
  StorageFaults storage;

 private:
  void Post(MonotonicNanos due, Completion completion);
  void PostRead(Completion read);  // in the order in which they were asked for
  bool Away() const;
  Status TroubleWithWriting() const;  // drawn
  event::SlabProbed Probe(SlabId slab, const std::vector<LeaseId>& leases) const;
  Status Publish(const action::Persist& persist);
  Status ReadPart(const PartTable& part, StoredCheckpoint* checkpoint);

  // The completion happens, or fails, and its event is applied.
  void End(completion::Make& c);
  void End(completion::Destroy& c);
  void End(completion::Probe& c);
  void End(completion::Manifest& c);
  void End(completion::Verify& c);
  void End(completion::Persist& c);
  void End(completion::Delete& c);
  void End(completion::Record& c);
  void End(completion::Scan& c);
  void End(completion::TableRead& c);
  void End(completion::LineLook& c);
  void End(completion::SessionGone& c);

  // The daemon died before the completion's event could be applied.
  void Cut(completion::Make& c, bool happened);
  void Cut(completion::Destroy& c, bool happened);
  void Cut(completion::Probe&, bool) {}
  void Cut(completion::Manifest&, bool) {}
  void Cut(completion::Verify&, bool) {}
  void Cut(completion::Persist& c, bool happened);
  void Cut(completion::Delete& c, bool happened);
  void Cut(completion::Record& c, bool happened);
  void Cut(completion::Scan&, bool) {}
  void Cut(completion::TableRead&, bool) {}
  void Cut(completion::LineLook&, bool) {}
  void Cut(completion::SessionGone& c, bool);

  Node& node_;
  std::multimap<MonotonicNanos, Completion> under_way_;
  MonotonicNanos storage_free_at_ = 0;  // scans and deletions are done one after the other
};

}  // namespace cairn::engine::sim
