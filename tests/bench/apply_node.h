// A node of which the processor time of every single Apply is kept, by kind of event.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/world/lone_node.h"

namespace cairn::bench {

using world::Event;
using world::RequestId;
using world::ThreadMicros;
namespace action = world::action;
namespace event = world::event;
namespace reply = world::reply;

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

class ApplyNode : public world::LoneNode {
 public:
  ApplyNode(const engine::Options& options, Meter* meter);

  // Nothing is kept of events while the meter is off.
  void set_measuring(bool measuring) { measuring_ = measuring; }

  // --- what clients do
  void Hello(Client* client);
  void End(const Client& client) { Disconnect(client.session); }
  // In batches of `batch` objects to a create, a seal or a commit. The first `sealed` are sealed by
  // calls of their own; what a commit cannot take with one batch is, too.
  void Save(Client* client, Step step, const std::vector<std::string>& names, size_t batch,
            size_t sealed);
  void Create(Client* client, Step step, const std::vector<std::string>& names, size_t begin,
              size_t end);
  LeaseId Open(const Client& client, Step step, const std::string& name);  // 0: not from memory
  void Release(const Client& client, LeaseId lease);
  engine::Caller From(const Client& client) { return LoneNode::From(client.session); }

  void Snapshot();  // as the journal takes it under the node's lock
  reply::Status Status();
  uint64_t refused() const { return refused_; }
  const std::string& last_refusal() const { return last_refusal_; }

  static constexpr uint64_t kObjectBytes = 100;

 private:
  engine::Outcome Enter(Event event) override;
  using LoneNode::Do;
  void Do(action::Record& a) override;
  void Answered(const action::Reply& a) override;
  void Spin();
  static event::Seal SealOf(const std::string& name);

  Meter* const meter_;
  bool measuring_ = false;
  world::Storage files_;
  uint64_t events_ = 0, refused_ = 0;
  std::string last_refusal_;
};

}  // namespace cairn::bench
