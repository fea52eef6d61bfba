// Carries out a node's actions. The time and the result of each one are drawn when it begins, and the daemon's death
// cuts it off. The node's way to storage has faults of its own.
#pragma once

#include <map>
#include <string>

#include "common/clock.h"
#include "server/engine/actions.h"
#include "server/engine/events.h"
#include "tests/world/executor.h"

namespace cairn::engine::sim {

class Node;

class Executor : public world::Executor {
 public:
  explicit Executor(Node* node);

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
  struct UnderWay {
    world::Task task;
    Status trouble;               // why it fails
    int64_t storage_changes = 0;  // of the node, when it began
  };

  // Draws when, and how, it will end.
  void Begin(world::Task task) override;
  Status Trouble(const world::Task& task) const;
  Status TroubleWithWriting() const;
  MonotonicNanos EndOf(const world::Task& task);
  bool Away() const;
  // Counts an action that ended, and updates what the node knows.
  void Note(const UnderWay& ended, const Event& event);
  void NoteScanned(const event::JobScanned& scanned);

  int64_t unix_ms() const override;
  int64_t storage_unix_ms() const override;
  void Made(SlabId slab, uint64_t bytes, const Status& status) override;
  void Destroyed(SlabId slab) override;
  event::SlabProbed Probe(const action::ProbeSlab& probe) override;
  Status WriteRecord(const action::WriteManifest& write, std::string manifest) override;
  Status Verify(const action::Verify& verify) override;
  StatusOr<bool> Write(const action::Persist& persist) override;
  Status Delete(const action::DeleteFiles& deletion) override;
  uint32_t OwnerOf(const std::string& job) const override;

  using world::Executor::Do;
  void Do(action::Reply& a) override;
  void Do(action::MakeSlab& a) override;
  void Do(action::DestroySlab& a) override;
  void Do(action::ProbeSlab& a) override;
  void Do(action::DeleteFiles& a) override;
  void Do(action::ScanJob& a) override;
  void Do(action::WakeAt& a) override;
  void Do(action::EndSession& a) override;
  void Do(action::Drained& a) override;

  Status ReadPart(const PartTable& part);

  Node& node_;
  std::multimap<MonotonicNanos, UnderWay> under_way_;
  MonotonicNanos storage_free_at_ = 0;  // scans and deletions are done one after the other
};

}  // namespace cairn::engine::sim
