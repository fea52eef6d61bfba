// One node for a year: a journal of encoded facts from which each next daemon goes on, slabs that outlive daemons,
// and a clock that goes as fast as the events do. It counts what the engine holds and what it does, and checks
// nothing: tests/sim does.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/world/lone_node.h"
#include "tests/year/heap.h"

namespace cairn::year {

using world::Event;
using world::RequestId;
using world::Storage;
namespace action = world::action;
namespace event = world::event;
namespace reply = world::reply;

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

class Node : public world::LoneNode {
 public:
  Node(const engine::Options& options, Storage* storage);

  // The daemon dies and the next one begins. What storage was writing is written, or not.
  void KillDaemon(bool persists_happen);

  // --- the processes' side
  SessionId Hello(event::Hello hello);  // 0: refused
  void EndProcess(SessionId session);

  // In those facts, and in the records of the parts that they name.
  int64_t LineageEntries(const std::vector<Fact>& facts) const;
  Work TakeWork() { return std::exchange(work_, {}); }

 private:
  void Start(engine::Recovered recovered);
  void MakeRoom(const Event& event);
  std::map<PartKey, std::shared_ptr<const PartTable>> Tables(const std::vector<Fact>& facts) const;

  engine::Outcome Enter(Event event) override;
  void Keep(const std::vector<Fact>& facts) override;
  void Made(SlabId slab, uint64_t bytes, const Status&) override { keeper_[slab] = bytes; }
  void Destroyed(SlabId slab) override;
  Status WriteRecord(const action::WriteManifest& write, std::string manifest) override;
  using LoneNode::Do;
  void Do(action::EndSession& a) override { live_.erase(a.session); }

  Journal journal_;
  std::map<SlabId, uint64_t> keeper_;
  std::set<SessionId> live_;
  std::map<std::pair<SlabId, uint64_t>, std::string> records_;  // of parts, where they lie
  Work work_;
};

}  // namespace cairn::year
