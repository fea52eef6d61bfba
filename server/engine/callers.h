// Callers whose answer is not there yet, and their deadlines. Each waits in one list, which belongs
// to the component that will answer it.
//
// Invariants:
//   1. Every parked caller has a session, a deadline, and stands in its list.
//   2. It is answered exactly once: by its list, at its deadline, or when its session ends.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/clock.h"
#include "server/engine/events.h"
#include "server/engine/outbox.h"
#include "server/engine/user_counts.h"

namespace cairn::engine {

class Waitlist;

struct Parked {
  RequestId request = 0;
  SessionId session = 0;
  uint32_t uid = 0;
  std::string job;
  MonotonicNanos deadline = 0;
  Waitlist* list = nullptr;
  Event event;  // what was asked
};

// Implemented by a component that parks callers.
class Waitlist {
 public:
  virtual ~Waitlist() = default;
  // The caller leaves, for whatever reason: the list forgets it. It is answered afterwards.
  virtual void Left(const Parked& parked) = 0;
  // Its deadline has come. The list answers it; it is still parked.
  virtual void TimeUp(const Parked& parked) = 0;
  // What waits here has changed nothing yet: it is forgotten when nobody would hear the answer any more,
  // also of a call that goes on without its caller once it has begun.
  virtual bool NothingHasBegun() const { return false; }
};

class Callers {
 public:
  Callers(Outbox* out, const Options& options) : out_(*out), options_(options) {}
  ~Callers();

  // False after answering that too many wait. The list adds the request to its own books
  // afterwards.
  bool Park(Waitlist* list, const Caller& caller, const std::string& job, MonotonicNanos deadline,
            Event event);
  // RESOURCE_EXHAUSTED: Park would refuse. Who changes something first asks this before.
  Status CheckRoom(const Caller& caller) const {
    return users_.CheckRoom(options_, options_.max_waiting, caller.uid);
  }
  const Parked* Find(RequestId request) const;
  void SetDeadline(RequestId request, MonotonicNanos deadline);
  // Takes the caller out of its list; nullptr when it is not parked. The taker answers it.
  std::unique_ptr<Parked> Unpark(RequestId request);
  // Its connection is closed. What has begun goes on, for the caller may come back and ask again.
  void HangUp(RequestId request);
  // Of creates of the part that the session waits for, before anything of them has begun.
  void CancelCreates(SessionId session, const PartKey& part, const Status& why);
  // Nothing happens when it is not parked.
  void Answer(RequestId request, StatusOr<Body> body, Attempt superseded_by = 0);
  // Calls TimeUp for each caller whose deadline has come.
  void Expire();

  std::set<RequestId> Of(SessionId session) const;
  // Jobs of which somebody waits for something.
  std::set<std::string> JobsAwaited() const;
  size_t size() const { return parked_.size(); }
  bool Contains(RequestId request) const { return parked_.contains(request); }
  MonotonicNanos next_deadline() const {
    return deadlines_.empty() ? kNever : deadlines_.begin()->first;
  }
  // Jobs that a caller left since the last call.
  std::set<std::string> TakeJobsLeft() { return std::exchange(jobs_left_, {}); }

  std::string CheckInvariants(const std::function<bool(SessionId)>& lives) const;
  const UserCounts& users() const { return users_; }

 private:
  Outbox& out_;
  const Options& options_;
  UserCounts users_{"waiting callers", "limits.waiting"};

  absl::flat_hash_map<RequestId, std::unique_ptr<Parked>> parked_;
  std::set<std::pair<MonotonicNanos, RequestId>> deadlines_;
  absl::flat_hash_map<SessionId, std::set<RequestId>> of_session_;
  std::set<std::string> jobs_left_;
};

}  // namespace cairn::engine
