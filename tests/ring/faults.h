// What strikes a ring, and that it ends. Each fault is one of kFaults, drawn by its weight; it is counted
// under its name, so that a test can ask whether it ever happened.
#pragma once

#include <set>
#include <vector>

#include "tests/sim/clock.h"

namespace cairn::engine::ringsim {

struct World;
class SimNode;

class Faults {
 public:
  explicit Faults(World* world) : world_(*world) {}

  // From now until `until`.
  void Begin(MonotonicNanos until);
  // All that strikes ends at once; the dead are replaced.
  void EndAll();
  // Nothing strikes, nor has for long enough that all members know each other.
  bool Calm() const;

 private:
  using Strike = bool (Faults::*)();
  struct Kind {
    const char* name;
    int weight;
    Strike strike;  // false: not now
  };
  static const Kind kFaults[];
  // And these, where the members stand in the catalog.
  static const std::vector<Kind> kCatalogFaults;

  bool DaemonDies();
  bool NodeDies();
  bool TwoNodesDie();
  bool NodePauses();
  bool NodeInSafeMode();
  void LeaveSafeMode(SimNode* node);
  bool LinkBreaks();
  bool LinkBreaksOneWay();
  bool NodeIsCutOff();
  bool RingSplits();
  bool BadWeather();
  bool DataPortBlocked();
  bool StorageSlow();
  bool StorageAway();
  bool ClockJumps();
  bool RankClaimedTwice();
  bool ReplacedWhileItLives();

  // --- the catalog (catalog_faults.cc)
  bool DatabaseAway();
  bool DatabaseSlow();
  bool DatabaseDoesNotAnswer();
  bool DatabaseRestored();
  bool NodeWithoutDatabase();
  bool NodeOversleeps();
  bool DiesWhileDatabaseIsAway();
  bool OversleepsWhileDatabaseIsAway();
  bool RingGrows();
  bool RingShrinks();
  bool NodeIsDrained();
  MonotonicNanos LongerThanATakeover();
  void TakeOut(SimNode* node);
  void EndAllOfCatalog();

  const Kind* Draw();
  void Next(MonotonicNanos delay);
  void StrikeOne();
  void Kill(SimNode* node);
  SimNode* SomeMember();
  void Sever(const std::vector<SimNode*>& some, const std::vector<SimNode*>& others);
  MonotonicNanos ItLasts();

  World& world_;
  MonotonicNanos until_ = 0, mean_ = 0;  // between two
  MonotonicNanos last_end_ = 0;          // of all that struck so far, the latest
};

}  // namespace cairn::engine::ringsim
