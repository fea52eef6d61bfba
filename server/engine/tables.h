// What the parts of a checkpoint hold that only storage has: read when somebody asks for an object of
// it, and kept of the last few. All others cost memory for what they are, not for what they hold.
//
// Invariant: who waits, waits for a reading that is under way.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <set>

#include "server/engine/callers.h"
#include "server/engine/parts.h"

namespace cairn::engine {

class Tables : public Waitlist {
 public:
  // `again` handles a parked event once more.
  Tables(Outbox* out, Callers* callers, Parts* parts, std::function<void(const Event&)> again)
      : out_(*out), callers_(*callers), parts_(*parts), again_(std::move(again)) {}
  ~Tables() override;

  // Parks the event until all tables of the checkpoint are there; false: they are.
  bool Await(const Caller& caller, Checkpoint* checkpoint, MonotonicNanos deadline,
             const Event& event);
  void Read(Checkpoint* checkpoint);  // nobody waits
  // Likewise, of one that stands in storage and of which parts are not known here.
  void ReadParts(const Checkpoint& checkpoint);
  // Who waited goes on, or hears why they could not be read. The checkpoint, nullptr: it is gone.
  Checkpoint* On(const event::TablesRead& event);

  void Left(const Parked& parked) override;
  void TimeUp(const Parked& parked) override;

 private:
  void Keep(Checkpoint* checkpoint);

  Outbox& out_;
  Callers& callers_;
  Parts& parts_;
  const std::function<void(const Event&)> again_;

  std::map<CheckpointKey, std::set<RequestId>> reading_;
  absl::flat_hash_map<RequestId, CheckpointKey> waiting_;
  std::deque<CheckpointKey> kept_;  // whose tables were read; the latest last
};

}  // namespace cairn::engine
