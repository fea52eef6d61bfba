// One node for a year: the shipped engine, a journal of encoded facts from which each next daemon goes
// on, slabs that outlive daemons, and a clock that goes as fast as the events do. What the engine asks
// for happens at once, but for persists, which take as long as storage says. It counts what the engine
// holds and what it does, and checks nothing: tests/sim does.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "server/engine/engine.h"
#include "tests/support/slab_users.h"
#include "tests/year/heap.h"
#include "tests/year/storage.h"

namespace cairn::year {

using engine::Event;
using engine::RequestId;
namespace action = engine::action;
namespace event = engine::event;
namespace reply = engine::reply;

inline constexpr uint32_t kUid = 1000;

// As the journal of a node keeps them: encoded, a snapshot and what came since.
class Journal {
 public:
  static constexpr uint64_t kHalf = uint64_t{8} << 20;

  void Append(const std::vector<Fact>& facts);
  void Switch(const std::vector<Fact>& snapshot);
  // The rule of node::JournalWriter, but sooner, so that a year has many.
  bool WantsSnapshot() const { return bytes_.size() > kHalf / 8 && bytes_.size() >= 2 * snapshot_; }
  std::vector<Fact> Read() const;
  uint64_t used() const { return bytes_.size(); }

 private:
  std::string bytes_;
  uint64_t snapshot_ = 0;
};

// Of the events since it was last taken. The processor's time is that of one event of so many: a prime,
// so that no kind is left out.
inline constexpr uint64_t kTimedEvery = 7;
struct Work {
  uint64_t events = 0, allocations = 0;
  double us = 0;                // of those that were timed …
  std::vector<float> calls_us;  // … and of each that somebody asked for
};

class Node {
 public:
  Node(const engine::Options& options, Storage* storage);

  // One event, and all that follow from it at once.
  void Apply(Event event);
  void Pass(MonotonicNanos by);
  // Time passes until the call is answered.
  template <class T>
  StatusOr<T> Ask(Event event, RequestId request) {
    StatusOr<reply::Body> body = Answer(std::move(event), request);
    if (!body.ok()) return body.status();
    return std::get<T>(*std::move(body));
  }
  StatusOr<reply::Body> Answer(Event event, RequestId request);
  engine::Caller From(SessionId session) { return {++last_request_, session, kUid, kUid}; }
  MonotonicNanos Soon() const { return now_ + 60 * kNanosPerSecond; }

  // The daemon dies and the next one begins. What storage was writing is written, or not.
  void KillDaemon(bool persists_happen);
  // What StorageWatch sees.
  void SeeStorage();

  // --- the processes' side
  SessionId Hello(event::Hello hello);
  void EndProcess(SessionId session);  // the kernel takes back what it had
  testing::SlabUsers& users() { return users_; }

  const engine::Engine& engine() const { return *engine_; }
  MonotonicNanos now() const { return now_; }
  int64_t unix_ms() const { return kUnix + now_ / kNanosPerMilli; }
  // In those facts, and in the records of the parts that they name.
  int64_t LineageEntries(const std::vector<Fact>& facts) const;
  bool Quiet() const { return persists_.empty(); }
  Work TakeWork();
  const std::map<std::string, int64_t>& counters() const { return counters_; }
  int64_t next_call() { return ++last_call_; }
  void Count(const std::string& what) { ++counters_[what]; }

 private:
  static constexpr int64_t kUnix = 1'700'000'000'000;

  void Start(engine::Recovered recovered);
  void ApplyAll();
  void ApplyOne(Event event);
  void MakeRoom(const Event& event);
  void Carry(engine::Outcome outcome);
  void EndPersist();
  std::map<PartKey, std::shared_ptr<const PartTable>> Tables(const std::vector<Fact>& facts) const;

  void Do(action::Reply& a);
  void Do(action::MakeSlab& a);
  void Do(action::HurrySlab&) {}
  void Do(action::DestroySlab& a);
  void Do(action::ProbeSlab& a);
  void Do(action::WriteManifest& a);
  void Do(action::Verify& a);
  void Do(action::Persist& a);
  void Do(action::WriteLineRecord& a);
  void Do(action::Store&) {}  // no writer here asks for it
  void Do(action::Reinstate&) {}
  void Do(action::DeleteFiles& a);
  void Do(action::ScanJob& a);
  void Do(action::ReadTables& a);
  void Do(action::ReadLineNumbers& a);
  void Do(action::Tell&) {}
  void Do(action::BecomeLife&) {}
  void Do(action::Fetch&) {}
  void Do(action::FetchFrom&) {}
  void Do(action::CancelFetch&) {}
  void Do(action::RevokeGrant&) {}
  void Do(action::Record&) {}
  void Do(action::WakeAt& a) { wake_at_ = a.at; }
  void Do(action::EndSession& a) { live_.erase(a.session); }
  void Do(action::Discard&) {}
  void Do(action::Drained&) {}
  void Do(action::Log&) {}

  const engine::Options options_;
  Storage& storage_;
  std::unique_ptr<engine::Engine> engine_;
  Journal journal_;
  std::deque<Event> pending_;
  std::multimap<MonotonicNanos, action::Persist> persists_;  // under way, by when they end
  MonotonicNanos now_ = kNanosPerSecond, wake_at_ = 0;
  RequestId last_request_ = 0;
  int64_t last_call_ = 0;
  int32_t last_pid_ = 100;
  RequestId awaited_ = 0;
  std::unique_ptr<StatusOr<reply::Body>> answer_;

  std::map<SlabId, uint64_t> keeper_;
  std::set<SessionId> live_;
  testing::SlabUsers users_;
  std::map<std::pair<SlabId, uint64_t>, std::string> records_;  // of parts, where they lie

  Work work_;
  std::map<std::string, int64_t> counters_;  // what happened
};

}  // namespace cairn::year
