// Writes parts of checkpoints from slabs into storage, and publishes what is whole there (action::Persist).
// Of a checkpoint that several members hold each writes its own parts, and who sees the last one publishes.
//
// Threads of its own because a persist takes as long as the disk does. Their number is the
// engine's bound on persists under way, so one that has begun waits for no other. The engine lets a job
// have one of them, and sweeps have threads of their own, so what hangs below one job's directory
// leaves the other jobs theirs.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/mutex.h"
#include "server/cache/cache.h"
#include "server/engine/actions.h"
#include "server/node/background_gate.h"
#include "server/node/event_gate.h"
#include "server/node/executor.h"
#include "server/node/job_executor.h"
#include "server/node/store_streams.h"
#include "server/storage/storage.h"

namespace cairn::node {

// Thread-safe.
class Persister {
 public:
  // All pointers outlive the persister. Without storage the engine never persists: `storage` may
  // be null when `threads` is 0. So may `background`.
  Persister(int threads, cache::Cache* cache, storage::Storage* storage, Clock* clock,
            std::shared_ptr<EventGate> gate, BackgroundGate* background);

  // Returns at once; event::Persisted follows, unless Stop comes first.
  void Start(engine::action::Persist action);
  // Likewise, of a part whose bytes come over `stream`; event::Stored follows. Threads of their own: a writer waits for it.
  void Start(engine::action::Store action, UniqueFd stream);
  void Stop();

 private:
  void Persist(const engine::action::Persist& action);
  void Store(const engine::action::Store& action, StoreStream* stream);
  // What sweeps leave alone meanwhile.
  void Want(const CheckpointKey& checkpoint);
  void WantNoMore(const CheckpointKey& checkpoint);
  struct Work {
    CheckpointKey checkpoint;
    storage::Owner owner;
    std::optional<LineRecord> origin;  // written first
    std::vector<storage::PartToWrite> parts;
  };
  // nullopt: it is written, and parts of other writers are not there yet.
  StatusOr<std::optional<Location>> WriteAndPublish(const Work& work);
  // `published`: it was. What it has replaced goes, and of a `full` storage what nobody wants.
  void SweepAfter(const CheckpointKey& done, bool published, bool full);
  // What a job's next sweep takes beside what nobody wants any more.
  struct Due {
    std::set<CheckpointKey> published;  // what they have replaced
    bool full = false;                  // as SweepRules::full
  };
  void SweepSoon(const std::string& job, const Due& due);
  // Storage is full: gives back what nobody wants, of every job.
  void MakeRoom();
  void SweepJob(const std::string& job);
  bool IsWanted(const CheckpointKey& checkpoint);

  cache::Cache* const cache_;
  storage::Storage* const storage_;
  Clock* const clock_;
  const std::shared_ptr<EventGate> gate_;
  BackgroundGate* const background_;
  Mutex mu_;
  // Being persisted, or waiting for it. A checkpoint that the engine tries again later is none of
  // them: it is written anew, should a sweep have taken what was there.
  std::multiset<CheckpointKey> wanted_ ABSL_GUARDED_BY(mu_);
  std::set<StoreStream*> streams_ ABSL_GUARDED_BY(mu_);  // of stores that have begun
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  // By job, until its sweep begins: however many persists end while one hangs, one more follows.
  std::map<std::string, Due> due_ ABSL_GUARDED_BY(mu_);
  JobExecutor sweeps_;
  // Last: their threads use the members above.
  JobExecutor stores_;
  Executor executor_;
};

}  // namespace cairn::node
