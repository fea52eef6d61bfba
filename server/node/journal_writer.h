// Keeps the journal able to take the next facts.
//
// The journal has two halves; this class decides when the half in use is replaced by a snapshot of
// the engine, and what happens when even a snapshot leaves no space. It has no lock of its own:
// the node's lock guards it, because facts are journaled in the order in which the engine emitted
// them and a snapshot must be of the state that has emitted exactly those.
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
  // `capacity_bytes` is the size of the whole journal (journal::Options::bytes).
  JournalWriter(std::unique_ptr<journal::Journal> journal, uint64_t capacity_bytes)
      : journal_(std::move(journal)), capacity_bytes_(capacity_bytes) {}

  // Journals the facts of an event that `engine` has applied already. Ends the process when neither
  // the half in use nor a snapshot in the other takes them: no action of the event has left, and
  // the next daemon decides anew from what is journaled.
  void Append(const std::vector<Fact>& facts, const engine::Engine& engine);

  // After every event; true: call Relieve.
  bool NeedsRelief() const { return full_ || journal_->Full(); }
  // Once per event while the journal is full. The engine lets go of a batch of its oldest state,
  // and a snapshot without that batch may leave space again. So a job with very many small steps
  // can go on saving, at the price of its oldest steps.
  // `tell(full)` applies event::JournalFull{full}, with Append for its facts; it returns true when
  // the engine let go of something.
  void Relieve(const engine::Engine& engine, const std::function<bool(bool full)>& tell);

  uint64_t used_bytes() const { return journal_->used_bytes(); }

 private:
  Status Switch(const engine::Engine& engine);

  const std::unique_ptr<journal::Journal> journal_;
  const uint64_t capacity_bytes_;
  bool full_ = false;            // as the engine was told last
  uint64_t snapshot_bytes_ = 0;  // what the last snapshot took of its half
};

}  // namespace cairn::node
