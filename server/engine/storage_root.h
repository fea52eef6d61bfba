// Which storage the node's facts are about, and whether it is there.
//
// The first storage that the node meets is its storage, for as long as its memory lives: what is
// PERSISTED is in that one. Another one in its place, or none, is no storage. A root that returns with
// the same marker is the same storage. When it is the very directory that went, what was persisted
// counts at once; when it is another one (a copy, a new mount) only what a scan finds counts.
//
// Changes Mode::storage_here and storage_problem. Says fact::StorageRoot.
#pragma once

#include <string>
#include <vector>

#include "server/engine/mode.h"
#include "server/engine/outbox.h"
#include "server/engine/restored.h"

namespace cairn::engine {

class StorageRoot {
 public:
  StorageRoot(Mode* mode, Outbox* out) : mode_(*mode), out_(*out) {}

  // What the event is news of. Both: it was replaced by another directory with the same marker. Mode
  // already says what holds after `left`; Came says the rest.
  struct Change {
    bool left = false;
    bool came = false;
    bool same = false;  // `came`: the directory that was there before
  };
  Change On(const event::StorageSeen& event);
  void Came();

  const std::string& id() const { return root_.id; }

  void Restore(const Restored& restored) { root_ = restored.storage_root; }
  void Snapshot(std::vector<Fact>* facts) const;

 private:
  Change Away(const std::string& problem);

  Mode& mode_;
  Outbox& out_;

  fact::StorageRoot root_;  // as last met
};

}  // namespace cairn::engine
