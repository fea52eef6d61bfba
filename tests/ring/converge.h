// The end of a life: nothing strikes any more, and within a stated time all members say the same of each
// job: the same latest, which is protected, with as many replicas as were asked for where there is room.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tests/ring/node.h"

namespace cairn::engine::ringsim {

struct World;

class Convergence {
 public:
  explicit Convergence(World* world) : world_(*world) {}

  // Asks every member about every job. The answers come while time passes.
  void Ask();
  // What is not so yet, in words; "": all agree.
  std::string Missing() const;

 private:
  struct Said {
    bool answered = false;
    Status status;
    CheckpointKey latest;
    bool stated = false;
    int replicas = 0;
    bool persisted = false;
  };
  void AskOne(SimNode* node, const std::string& job, SessionId session);

  World& world_;
  std::map<std::pair<int, std::string>, SessionId> sessions_;  // node, job
  std::map<std::pair<int, std::string>, Said> said_;
};

}  // namespace cairn::engine::ringsim
