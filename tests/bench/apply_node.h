// A node without threads, sockets and disk around the shipped engine: what the engine asks for
// happens at once and comes back as an event, as the node would bring it, and the processor time of
// every single Apply is kept by kind of event.
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

namespace cairn::bench {

using engine::Event;
using engine::RequestId;
namespace action = engine::action;
namespace event = engine::event;
namespace reply = engine::reply;

double ThreadMicros();  // processor time of this thread

// Microseconds by kind of event. What is told aside is shown, but is no Apply.
class Meter {
 public:
  struct Kind {
    std::vector<float> us;
    bool aside = false;
  };
  // Of a pass; a row shows each pass and the worst of all.
  struct Figures {
    double p50 = 0, worst = 0;
    // Without what slabs bring, whose number depends on how many there are: the same events for
    // every size.
    double p50_of_calls = 0;
    std::string worst_kind;
    size_t events = 0;
  };

  void Add(const std::string& kind, double us, bool aside = false);
  Figures EndPass();  // of all that is not aside, since the last one
  double Worst(const std::string& kind) const;
  double Median(const std::string& kind) const;
  std::string Table() const;
  const std::map<std::string, Kind>& kinds() const { return kinds_; }

 private:
  std::map<std::string, Kind> kinds_;
  std::vector<float> pass_, pass_calls_;
  double pass_worst_ = 0;
  std::string pass_worst_kind_;
};

// One process that saves or reads. It unmaps what it is told to, and says so with its next call.
struct Client {
  std::string job;
  Attempt attempt = 0;
  Writer writer = -1;
  int32_t world_size = 0;
  JobPolicy policy = {};
  SessionId session = 0;
  std::vector<SlabId> unmapped = {};
};

class ApplyNode {
 public:
  ApplyNode(const engine::Options& options, Meter* meter);

  // One event, and all that follow from it. Nothing is kept of it while the meter is off.
  void Apply(Event event);
  void set_measuring(bool measuring) { measuring_ = measuring; }

  // --- what clients do
  void Hello(Client* client);
  void End(const Client& client);
  // In batches of `batch` objects to a create, a seal or a commit. The first `sealed` are sealed by
  // calls of their own; what a commit cannot take with one batch is, too.
  void Save(Client* client, Step step, const std::vector<std::string>& names, size_t batch,
            size_t sealed);
  void Create(Client* client, Step step, const std::vector<std::string>& names, size_t begin,
              size_t end);
  LeaseId Open(const Client& client, Step step, const std::string& name);  // 0: not from memory
  void Release(const Client& client, LeaseId lease);
  engine::Caller From(const Client& client) { return {++request_, client.session, kUid, kUid}; }
  MonotonicNanos Soon() const { return now_ + 10 * kNanosPerSecond; }

  void Snapshot();  // as the journal takes it under the node's lock
  reply::Status Status();
  uint64_t refused() const { return refused_; }
  const std::string& last_refusal() const { return last_refusal_; }
  uint64_t facts() const { return facts_; }
  const engine::Engine& engine() const { return *engine_; }
  MonotonicNanos now() const { return now_; }

  static constexpr uint32_t kUid = 1000;
  static constexpr uint64_t kObjectBytes = 100;

 private:
  struct Storage {
    std::map<CheckpointKey, std::vector<std::shared_ptr<const PartTable>>> checkpoints;
    std::map<std::pair<Attempt, LineRecordKind>, LineRecord> records;
    std::map<Attempt, int64_t> recorded_at;
    RemovedSteps removed;
  };

  void ApplyOne(Event event);
  void Carry(engine::Outcome outcome);
  void Spin();
  int64_t UnixMillis() const { return kUnix + now_ / kNanosPerMilli; }
  LineRecord Record(const LineRecord& record);
  static event::Seal SealOf(const std::string& name);

  void Do(action::Reply& reply);
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
  void Do(action::Record& a);
  void Do(action::WakeAt& a) { wake_at_ = a.at; }
  void Do(action::EndSession&) {}
  void Do(action::Discard&) {}  // the node frees it without its lock
  void Do(action::Drained&) {}
  void Do(action::Log&) {}

  static constexpr int64_t kUnix = 1'700'000'000'000;

  Meter* const meter_;
  bool measuring_ = false;
  std::unique_ptr<engine::Engine> engine_;
  std::deque<Event> pending_;
  MonotonicNanos now_ = kNanosPerSecond, wake_at_ = 0;
  RequestId request_ = 0;
  int64_t call_ = 0;
  uint64_t events_ = 0, refused_ = 0, facts_ = 0;
  std::string last_refusal_;

  absl::flat_hash_map<RequestId, const Client*> asking_;  // who is lent what the answer names
  absl::flat_hash_map<RequestId, reply::Body> bodies_;
  std::set<RequestId> awaited_;
  testing::SlabUsers users_;
  std::map<std::string, Storage> storage_;
};

}  // namespace cairn::bench
