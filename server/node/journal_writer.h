// Keeps the journal able to take the next facts.
//
// The journal has two halves; this class decides when the half in use is replaced by a snapshot of
// the engine, and what happens when even a snapshot leaves no space. It has no lock of its own:
// the node's lock guards it, because facts are journaled in the order in which the engine emitted
// them and a snapshot, or a piece of one, must be of the state that has emitted exactly those.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "server/engine/engine.h"
#include "server/facts/facts.h"
#include "server/journal/journal.h"

namespace cairn::node {

class JournalWriter {
 public:
  // `capacity_bytes` is the size of the whole journal (journal::Options::bytes). Without `writable`
  // no fact is ever written: the journal is damaged, or another build's, and the node only reads.
  JournalWriter(std::unique_ptr<journal::Journal> journal, uint64_t capacity_bytes, bool writable)
      : journal_(std::move(journal)), capacity_bytes_(capacity_bytes), writable_(writable) {}

  // Journals the facts of an event that `engine` has applied already. Ends the process when neither
  // the half in use nor a snapshot in the other takes them: no action of the event has left, and
  // the next daemon decides anew from what is journaled.
  void Append(const std::vector<Fact>& facts, const engine::Engine& engine);

  // Before an event that the journal has no room for: a snapshot without what has ended since the last
  // one; and if that brings little and `let_go`, one without a batch of the oldest state. `tell` as below.
  void MakeRoom(const engine::Engine& engine, bool let_go,
                const std::function<bool(bool full)>& tell);
  // After every event; true: call Relieve.
  bool NeedsRelief() const { return writable_ && (full_ || journal_->Full()); }
  // Once per event while the journal is full. The engine lets go of a batch of its oldest state,
  // and a snapshot without that batch may leave space again. So a job with very many small steps
  // can go on saving, at the price of its oldest steps.
  // `tell(full)` applies event::JournalFull{full}, with Append for its facts; it returns true when
  // the engine let go of something.
  void Relieve(const engine::Engine& engine, const std::function<bool(bool full)>& tell);

  uint64_t used_bytes() const { return journal_->used_bytes(); }
  // 0: nothing is written, so there is room for anything.
  uint64_t half_bytes() const { return writable_ ? journal_->half_bytes() : 0; }

 private:
  Status Switch(const engine::Engine& engine);                     // in one go
  void GoOnSwitching(const engine::Engine& engine, size_t added);  // facts, by the event
  bool SnapshotIsWorthwhile() const;  // enough has come since the last one

  const std::unique_ptr<journal::Journal> journal_;
  const uint64_t capacity_bytes_;
  const bool writable_;
  bool full_ = false;              // as the engine was told last
  uint64_t snapshot_bytes_ = 0;    // what the last snapshot took of its half
  uint64_t begun_at_ = 0;          // used_bytes when the one in pieces was begun
  engine::SnapshotCursor cursor_;  // of the one that the journal is writing in pieces, if it is
};

}  // namespace cairn::node
