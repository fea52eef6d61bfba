#include "server/node/journal_writer.h"

#include "common/failpoint.h"
#include "glog/logging.h"

namespace cairn::node {

void JournalWriter::Append(const std::vector<Fact>& facts, const engine::Engine& engine) {
  if (facts.empty()) return;
  ReachFailpoint(Failpoint::kNodeApplied);
  const Status appended = journal_->Append(facts);
  // Half of what a snapshot freed must be used before the next one: a large state is not written
  // out for every few facts.
  const bool due = journal_->WantsSnapshot() && journal_->used_bytes() >= 2 * snapshot_bytes_;
  if (!appended.ok() || due) {
    // The engine's state already holds these facts, so its snapshot does.
    const Status switched = Switch(engine);
    CHECK(appended.ok() || switched.ok())
        << "journal: " << appended << "; with a snapshot: " << switched;
  }
  ReachFailpoint(Failpoint::kNodeJournaled);
}

Status JournalWriter::Switch(const engine::Engine& engine) {
  ReachFailpoint(Failpoint::kNodeSwitch);
  const Status switched = journal_->Switch(engine.Snapshot());
  ReachFailpoint(Failpoint::kNodeSwitched);
  if (switched.ok()) snapshot_bytes_ = journal_->used_bytes();
  return switched;
}

void JournalWriter::Relieve(const engine::Engine& engine,
                            const std::function<bool(bool full)>& tell) {
  const uint64_t worthwhile = capacity_bytes_ / 32;  // what has come since the last snapshot
  if (!full_ && journal_->used_bytes() >= snapshot_bytes_ + worthwhile) {
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
