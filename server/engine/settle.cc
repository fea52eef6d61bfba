// What follows from the state: the line, the evict classes, what the recorder and those who wait
// must hear. Whoever changes a checkpoint touches it; all of this is brought up to date before it
// is next read, and at the latest at the end of the event.
#include <algorithm>

#include "server/engine/impl.h"

namespace cairn::engine {

void Engine::Impl::Touch(Checkpoint* checkpoint) {
  if (std::exchange(checkpoint->touched, true)) return;
  touched_.push_back(checkpoint);
}

void Engine::Impl::TouchJob(Job* job) {
  if (std::exchange(job->touched, true)) return;
  touched_jobs_.push_back(job);
}

void Engine::Impl::SettleTouched() {
  if (settling_) return;
  settling_ = true;
  while (!touched_.empty() || !touched_jobs_.empty()) {
    for (size_t i = 0; i < touched_.size(); ++i) RefreshLine(touched_[i]);
    for (Job* job : std::exchange(touched_jobs_, {})) SettleJob(job);
    for (Checkpoint* checkpoint : std::exchange(touched_, {})) {
      checkpoint->touched = false;
      Classify(checkpoint);
      Show(checkpoint);
    }
  }
  settling_ = false;
}

// The newest of the line has a class of its own, and it decides about incomplete ones.
void Engine::Impl::SettleJob(Job* job) {
  job->touched = false;
  Checkpoint* newest = NewestOnLine(*job);
  const bool has_writers = job->writers > 0;
  const Attempt attempt = job->attempts.empty() ? 0 : job->attempts.rbegin()->first;
  if (newest == job->settled_newest && has_writers == job->settled_writers &&
      attempt == job->settled_attempt) {
    return;
  }
  if (job->settled_newest != nullptr) Touch(job->settled_newest);
  if (newest != nullptr) Touch(newest);
  for (const CheckpointId& id : job->incomplete) Touch(job->checkpoints.at(id).get());
  if (attempt != job->settled_attempt || newest != job->settled_newest)
    waits_to_check_.insert(job->name);
  job->settled_newest = newest;
  job->settled_writers = has_writers;
  job->settled_attempt = attempt;
}

void Engine::Impl::Show(Checkpoint* checkpoint) {
  Shown shown;
  shown.committed = checkpoint->committed;
  shown.complete = checkpoint->complete;
  shown.resident = checkpoint->complete && checkpoint->Resident();
  shown.obtainable = checkpoint->Obtainable();
  shown.persisted = checkpoint->persisted;
  shown.pinned = checkpoint->pinned;
  if (shown != checkpoint->shown) {
    checkpoint->shown = shown;
    to_record_[checkpoint->key.job].insert(checkpoint->key);
    waits_to_check_.insert(checkpoint->key.job);
  }
  const bool due = checkpoint->owes || checkpoint->persisting;
  if (due != checkpoint->shown_due) waits_to_check_.insert(checkpoint->key.job);
  checkpoint->shown_due = due;
}

void Engine::Impl::Unsettle(Checkpoint* checkpoint) {
  SettleTouched();
  Job* job = checkpoint->job;
  if (checkpoint->shown != Shown{}) {
    to_record_[job->name].insert(checkpoint->key);
    waits_to_check_.insert(job->name);
  }
  checkpoint->complete = checkpoint->persisted = false;
  settling_ = true;
  RefreshLine(checkpoint);
  settling_ = false;
  if (job->settled_newest == checkpoint) {
    job->settled_newest = nullptr;
    TouchJob(job);
  }
}

void Engine::Impl::CheckWaits() {
  while (!waits_to_check_.empty()) {
    SettleTouched();
    for (const std::string& name : std::exchange(waits_to_check_, {})) {
      if (Job* job = FindJob(name)) NotifyWaits(job);
    }
  }
}

}  // namespace cairn::engine
