// A node without threads, sockets and disk around the shipped engine. Each action happens at once and its result
// comes back as an event. A persist takes `persist_takes`. Those that derive from it keep the journal and measure.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/engine/engine.h"
#include "tests/support/slab_users.h"
#include "tests/world/executor.h"
#include "tests/world/storage.h"

namespace cairn::world {

double ThreadMicros();  // processor time of this thread

class LoneNode : public Executor {
 public:
  LoneNode(const engine::Options& options, Storage* storage)
      : Executor(storage), options_(options) {}

  // One event, all events that follow from it at once, and persists and ticks that are due.
  void Apply(Event event);
  void Pass(MonotonicNanos by);
  // Time passes until the call is answered; DEADLINE_EXCEEDED after `answers_within_s`.
  StatusOr<reply::Body> Answer(Event event, RequestId request);
  template <class T>
  StatusOr<T> Ask(Event event, RequestId request) {
    StatusOr<reply::Body> body = Answer(std::move(event), request);
    if (!body.ok()) return body.status();
    return std::get<T>(*std::move(body));
  }
  engine::Caller From(SessionId session) { return {++last_request_, session, kUid, kUid}; }
  MonotonicNanos Soon() const { return now_ + 60 * kNanosPerSecond; }
  int64_t next_call() { return ++last_call_; }
  // As StorageWatch does.
  void SeeStorage();

  // --- the processes' side
  // A new process says hello; the caller has filled in its job.
  StatusOr<SessionId> Connect(event::Hello hello);
  void Disconnect(SessionId session);  // the kernel takes back what the process had
  testing::SlabUsers& users() { return users_; }

  const engine::Engine& engine() const { return *engine_; }
  MonotonicNanos now() const { return now_; }
  int64_t unix_ms() const override { return kUnix + now_ / kNanosPerMilli; }
  bool Quiet() const { return persists_.empty(); }
  const std::map<std::string, int64_t>& counters() const { return counters_; }
  void Count(const std::string& what) { ++counters_[what]; }

  MonotonicNanos persist_takes = 0;  // 0: done with the event that led to it
  int answers_within_s = 0;          // 0: at once

 protected:
  // The engine's answer to an event.
  virtual engine::Outcome Enter(Event event) { return engine_->Apply(now_, std::move(event)); }
  virtual void Keep(const std::vector<Fact>&) {}
  virtual void Answered(const action::Reply&) {}
  void Destroyed(SlabId slab) override { users_.Destroyed(slab); }
  using Executor::Do;
  void Do(action::Reply& a) override;
  void Do(action::WakeAt& a) override { wake_at_ = a.at; }

  void Carry(engine::Outcome outcome);
  void Drain();

  const engine::Options options_;
  std::unique_ptr<engine::Engine> engine_;
  std::deque<Event> pending_;
  std::multimap<MonotonicNanos, Task::End> persists_;  // under way, by when they end
  MonotonicNanos now_ = kNanosPerSecond, wake_at_ = 0;
  testing::SlabUsers users_;

 private:
  static constexpr int64_t kUnix = 1'700'000'000'000;

  void EndPersist();

  void Begin(Task task) override;
  event::SlabProbed Probe(const action::ProbeSlab& probe) override { return users_.Probe(probe); }

  RequestId last_request_ = 0, awaited_ = 0;
  int64_t last_call_ = 0;
  int32_t last_pid_ = 100;
  std::unique_ptr<StatusOr<reply::Body>> answer_;  // to the call that is awaited
  std::map<std::string, int64_t> counters_;
};

}  // namespace cairn::world
