#include "server/node/journal_writer.h"

#include <algorithm>

#include "common/failpoint.h"
#include "glog/logging.h"

namespace cairn::node {

void JournalWriter::Append(const std::vector<Fact>& facts, const engine::Engine& engine) {
  if (facts.empty() || !writable_) return;
  ReachFailpoint(Failpoint::kNodeApplied);
  const Status appended = journal_->Append(facts);
  // The half must be twice as full as the last snapshot left it: a large state is not written out for
  // every few facts.
  const bool due = journal_->WantsSnapshot() && journal_->used_bytes() >= 2 * snapshot_bytes_;
  if (!appended.ok()) {
    // The engine's state already holds these facts, so its snapshot does.
    const Status switched = Switch(engine);
    CHECK(switched.ok()) << "journal: " << appended << "; with a snapshot: " << switched;
  } else if (due || journal_->WritingSnapshot()) {
    GoOnSwitching(engine, facts.size());
  }
  ReachFailpoint(Failpoint::kNodeJournaled);
}

// One piece with each event: a large state holds up no event for long. It tells more than the event has
// added, so the snapshot comes to its end.
void JournalWriter::GoOnSwitching(const engine::Engine& engine, size_t added) {
  ReachFailpoint(Failpoint::kNodeSwitch);
  if (!journal_->WritingSnapshot()) {
    cursor_ = {};
    begun_at_ = journal_->used_bytes();
    if (!journal_->BeginSnapshot().ok()) return;  // the half in use goes on
  }
  const size_t most = std::max(engine::SnapshotCursor::kPiece, 2 * added);
  if (!journal_->AddToSnapshot(engine.SnapshotPiece(&cursor_, most)).ok()) return;
  if (!cursor_.done()) return;
  // What was said meanwhile may have ended: the next snapshot can leave it out.
  const uint64_t said = journal_->used_bytes() - begun_at_;
  if (journal_->FinishSnapshot().ok()) snapshot_bytes_ = journal_->used_bytes() - said;
  ReachFailpoint(Failpoint::kNodeSwitched);
}

Status JournalWriter::Switch(const engine::Engine& engine) {
  ReachFailpoint(Failpoint::kNodeSwitch);
  const Status switched = journal_->Switch(engine.Snapshot());
  ReachFailpoint(Failpoint::kNodeSwitched);
  if (switched.ok()) snapshot_bytes_ = journal_->used_bytes();
  return switched;
}

bool JournalWriter::SnapshotIsWorthwhile() const {
  return journal_->used_bytes() >= snapshot_bytes_ + capacity_bytes_ / 32;
}

void JournalWriter::MakeRoom(const engine::Engine& engine, bool let_go,
                             const std::function<bool(bool full)>& tell) {
  if (!writable_) return;
  if (SnapshotIsWorthwhile()) {
    Switch(engine).IgnoreError();  // what does not fit stays as it was
  } else if (let_go && !full_) {
    if (tell(true)) Switch(engine).IgnoreError();
    tell(false);
  }
}

void JournalWriter::Relieve(const engine::Engine& engine,
                            const std::function<bool(bool full)>& tell) {
  if (!full_ && SnapshotIsWorthwhile()) {
    // A snapshot without what has ended since the last one may be enough.
    if (Switch(engine).ok() && !journal_->Full()) return;
  }
  if (journal_->Full()) {
    full_ = true;
    const bool let_go = tell(true);
    if (!let_go || !Switch(engine).ok() || journal_->Full()) return;
  }
  full_ = false;
  tell(false);
}

}  // namespace cairn::node
