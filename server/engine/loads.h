// Parts that are brought here from other members: for who opens an object that this node does not have, and
// for this node itself when it comes back empty: then its own parts of what is protected, of the target and
// of the latest step are read back from who kept them. Where a part lies, its job's home knows.
//
// Saving and serving never wait for a restore.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "server/engine/callers.h"
#include "server/engine/fetches.h"

namespace cairn::engine {

class Loads : public Waitlist {
 public:
  // `again` handles a parked event once more; `ask` asks the job's home where a checkpoint's parts are.
  using AskPlaces = std::function<void(const CheckpointKey&, const std::string& name)>;
  Loads(Outbox* out, Callers* callers, const Members* members, Jobs* jobs, Parts* parts,
        Fetches* fetches, std::function<void(const Event&)> again);
  ~Loads() override;
  void set_ask(AskPlaces ask) { ask_ = std::move(ask); }

  // Parks the event until the part with that object is here; false: other members do not have it, or it
  // was tried.
  bool Await(const Caller& caller, const Checkpoint& checkpoint, const std::string& name,
             MonotonicNanos deadline, const Event& event);
  // The same of all its parts.
  bool AwaitAll(const Caller& caller, const Checkpoint& checkpoint, MonotonicNanos deadline,
                const Event& event) {
    return Await(caller, checkpoint, kAll, deadline, event);
  }
  // Of the event under way, which has waited: why what it asks for did not come; OK: nothing went wrong, or all that
  // it lacked was room for these parts.
  const Status& problem() const { return problem_; }
  const std::vector<reply::PartElsewhere>& without_room() const { return without_room_; }
  // The answer to it where the object is not here: where to read it, or why it did not come, or else `otherwise`.
  // `like`: Describing::Elsewhere.
  StatusOr<Body> NotHere(ObjectInfo like, const Status& otherwise) const;
  void On(const peer::PlacesSaid& said);
  // The job has another verdict: what is this node's own comes back, once in this daemon's life.
  void VerdictChanged(const Job& job);
  // Something of it did not verify here: where it counts, this node's own parts of it come back.
  void Broke(const Checkpoint& checkpoint);
  void Run(bool again);  // asks again where an answer was lost
  size_t restoring() const { return restoring_.size(); }
  bool Restoring(const CheckpointKey& key) const;

  void Left(const Parked& parked) override;
  void TimeUp(const Parked& parked) override;
  bool NothingHasBegun() const override { return true; }

 private:
  // And the object's name; no object is called kAll.
  using Wanted = std::pair<CheckpointKey, std::string>;
  static constexpr char kAll[] = "/";
  struct Waiting {
    std::set<RequestId> requests;
    std::set<PartKey> coming;
    bool answered = false;
    Status problem;  // why something of it did not come, but for want of memory
    std::vector<reply::PartElsewhere> without_room;
    // There was no memory for something of it, and some is on its way: what the home said, which counts again
    // once that is here.
    std::optional<peer::PlacesSaid> waits_for_memory;
    MonotonicNanos memory_until = kNever;
    bool Settled() const { return coming.empty() && !waits_for_memory.has_value(); }
  };
  void Ask(const Wanted& wanted) { ask_(wanted.first, wanted.second == kAll ? "" : wanted.second); }
  Fetches::Order OrderOf(const CheckpointKey& key, const peer::Place& place, PartRole role) const;
  void Restore(const peer::PlacesSaid& said);
  void Ended(const Fetches::Order& order, const Status& status);
  void Begin(const peer::PlacesSaid& said, Waiting* waiting);
  bool IsTheOnlyCopy(const CheckpointKey& key, const peer::Place& place) const;
  void DidNotCome(const Fetches::Order& order, const Status& why, Waiting* waiting) const;
  void ResumeGone();
  static std::set<CheckpointKey> ThatCount(const Job& job);
  void AskToRestore(const CheckpointKey& key);
  void TryMemoryAgain(bool again);
  void Resume(const Wanted& wanted);

  Outbox& out_;
  Callers& callers_;
  const Members& members_;
  Jobs& jobs_;
  Parts& parts_;
  Fetches& fetches_;
  const std::function<void(const Event&)> again_;
  AskPlaces ask_;

  std::map<Wanted, Waiting> waiting_;
  std::map<RequestId, Wanted> of_request_;
  std::set<std::string> restored_;  // jobs whose own parts were asked for
  // Checkpoints of which something is still to come, with those of their parts whose copies are bad at each source.
  std::map<CheckpointKey, std::set<PartKey>> restore_;
  std::set<PartKey> restoring_;
  uint64_t memory_version_ = 0;
  bool verdict_changed_ = false;
  const Wanted* tried_ = nullptr;  // the event under way has waited for this already
  Status problem_;                 // and this is why it did not come
  std::vector<reply::PartElsewhere> without_room_;
};

}  // namespace cairn::engine
