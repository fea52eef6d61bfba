// Jobs and their processes: writers that save, and readers that ask. A process has here what it has
// mapped, holds open and waits for; what it was promised is in Promises.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "server/engine/actions.h"
#include "server/engine/events.h"
#include "tests/sim/bytes.h"
#include "tests/sim/calls.h"
#include "tests/sim/memory.h"

namespace cairn::engine::sim {

class Node;
struct World;

// The uid of readers that own no job.
inline constexpr uint32_t kStranger = 2000;

struct Hold {  // what a reader has open
  SlabId slab = 0;
  ExtentRef extent;
  ObjectBytes bytes;
};

struct Process {
  int id = 0;
  int node = 0;  // the node it talks to
  int job = 0;
  ProcessToken token;
  uint32_t uid = 0;
  bool alive = true;
  bool stopped = false;  // it holds what it has, and does nothing more
  bool takes_fds = true;
  bool gone_from_group = false;
  Attempt attempt = 0;
  Writer writer = -1;
  int32_t world_size = 0, local_writers = 1;
  SessionId session = 0;
  int64_t next_call = 1;
  std::set<SlabId> maps;
  std::vector<SlabId> unmapped;  // to be said with the next call
  std::map<LeaseId, Hold> leases;

  // --- the save under way
  struct Object {
    event::ObjectSpec spec;
    reply::GrantedExtent extent;
    ObjectBytes bytes;
    bool written = false, sealed = false;
  };
  using Place = std::pair<SlabId, uint64_t>;  // a slab and an offset in it
  enum class Phase : uint8_t { kIdle, kCreating, kGranted, kCommitting } phase = Phase::kIdle;
  Step step = 0;
  std::map<Step, Revision> entered;  // how often
  PartKey part;
  std::vector<std::vector<event::ObjectSpec>> creates;  // calls still to make
  std::map<std::string, Object> objects;                // those granted
  std::map<int64_t, std::vector<Place>> granted;        // each create call's first answer
  std::optional<Event> under_way;  // the call that changes something and has no answer yet
  RequestId request = 0;           // its request; 0: it was lost and is to be repeated
  int repeats = 0;

  void ForgetSave();  // what was asked for and granted
};

struct Job {
  std::string name;
  uint32_t uid = 0;
  int32_t world_size = 1;
  bool elsewhere = false;  // one writer is on a node that is not simulated: nothing completes here
  uint64_t step_bytes = 0;
  int objects = 2;  // per writer
  int large = 0;    // of them with a slab of their own, where large enough
  bool can_pad = false;
  std::vector<int> group;  // processes of the newest attempt
  Attempt attempt = 0;
};

class Clients {
 public:
  explicit Clients(World* world) : world_(*world) {}

  std::vector<Job> jobs;
  std::deque<Process> processes;  // by id; references to them stay valid

  // --- life of jobs and processes (clients.cc)
  // Draws the jobs of this life; `budget` is what a node has.
  void DrawJobs(uint64_t budget);
  Process& NewProcess(const Node& node, int job, Attempt attempt, Writer writer,
                      int32_t world_size);
  // A job begins, or begins again: its processes from before are dead, or live on as zombies.
  void NewGroup(int job, bool goes_back = false);  // for sure; else that is drawn
  void Kill(Process* process, bool lingers);
  void SayHello(Process* process);
  void SessionOver(Process* process);
  void Unmap(Process* process, const std::vector<SlabId>& slabs, bool tell);
  std::vector<int> Alive() const;
  // A negative number for what may be left of a process.
  Holder NewGhost() { return --ghosts_; }

  // --- what they do (writer.cc, reader.cc)
  void DoSomeWriter();
  void DoWriterOf(int job);
  void DoSomeReader();

  // --- answers (answers.cc)
  void OnReply(Node* node, action::Reply reply);
  // Asks and lets the world go on until the answer comes; for the end of the life.
  StatusOr<reply::Body> AskAndWait(Process* process, Event event, MonotonicNanos deadline);

 private:
  friend class Answer;

  Node& NodeOf(const Process& process) const;

  // --- writing (writer.cc)
  void DoWriter(Process* process);
  void BeginStep(Process* process);
  void GoOnSaving(Process* process);
  void SendCreate(Process* process);
  // False when the save ended meanwhile, or chunks are still to be written.
  bool WriteObjects(Process* process);
  bool SendSeals(Process* process);
  void SendCommit(Process* process);
  void AbandonStep(Process* process);
  // A call of the save under way: kept until its answer has come, so that it can be repeated.
  void Send(Process* process, Event event, MonotonicNanos deadline);
  void Repeat(Process* process);

  // --- reading (reader.cc)
  void DoReader(Process* process);

  World& world_;
  Holder ghosts_ = -1;
  std::optional<StatusOr<reply::Body>> scripted_;  // what AskAndWait waits for
};

}  // namespace cairn::engine::sim
