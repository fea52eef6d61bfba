// The reader's end of RDMA to one peer: two threads, a completion queue and a few queue pairs. A read is cut into
// chunks, which stay under way in as many slots as the device has; when all of one have arrived its bytes are
// read back from the slab, for their checksum.
//
// What a broken connection leaves unread is read once more on a new one, for a read changes nothing; the second
// time it is UNAVAILABLE. The device cannot be told to forget a read, so one that must end (its deadline has
// passed, its slab goes) breaks the connection.
//
// Invariants:
//   1. Chunks are posted, and completions taken, under the peer's mutex only. So whoever holds it can end all
//      reads into a slab: no chunk of them is in the device when Drop returns.
//   2. The mutex is never held while the owner is asked, memory is registered, a checksum is computed, or a read's
//      end is told. What may take long has a thread of its own: reads that lack nothing go on meanwhile.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/clock.h"
#include "common/fd.h"
#include "common/mutex.h"
#include "common/status.h"
#include "server/transport/rdma_control.h"
#include "server/transport/rdma_options.h"
#include "server/transport/rdma_slab.h"
#include "server/transport/transport.h"
#include "server/transport/verbs.h"

namespace cairn::transport {

// One peer. Thread-safe.
class RdmaPeer {
 public:
  // All but the address outlive it.
  RdmaPeer(std::string address, const RdmaReaderOptions& options, VerbsDevice* device, int port,
           RdmaControl* control);
  ~RdmaPeer();
  // Ends its threads; what is waiting, and what comes later, ends with CANCELLED.
  void Close();

  struct Waiting {
    ReadRequest request;
    ReadDone done;
    std::shared_ptr<RdmaSlab> into;
    ExtentRef from;  // the owner's bytes
    int tries = 0;
    std::optional<RdmaOpen::Came> came;  // of a read that is made again: as the bytes came before
    bool asked_anew = false;             // of a read that is made again: the owner has heard that
  };
  void Read(Waiting read) ABSL_LOCKS_EXCLUDED(mu_);
  // As Transport::Finish.
  ItsReads Finish(const GrantToken& token) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends reads into the slab, which has begun to be detached, with CANCELLED. On return the device writes none
  // of them any more.
  void Drop(const RdmaSlab* slab) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // A read whose chunks are being posted, or are under way.
  struct Active {
    Waiting read;
    std::vector<RdmaPiece> local, remote;  // of the two slabs
    uint64_t posted = 0;                   // bytes
    int under_way = 0;                     // chunks
  };
  using ActiveAt = std::list<Active>::iterator;
  // A grant of which the owner has told the keys.
  struct Opened {
    RdmaOpened answer;
    MonotonicNanos answered_at = 0;
    MonotonicNanos asked_at = 0;  // the last time
    MonotonicNanos used_at = 0;
  };
  struct Connection {
    RdmaConnectionId id = 0;
    std::unique_ptr<VerbsCompletions> completions;
    std::vector<std::unique_ptr<VerbsQueuePair>> pairs;  // destroyed before the completions
    std::vector<int> posted;                             // chunks, of each pair
    std::map<GrantToken, Opened> opened;
    MonotonicNanos moved_at = 0;  // when a chunk last arrived, or the first was posted
  };
  struct Chunk {
    ActiveAt read;
    size_t pair = 0;
  };
  struct Ended {
    Waiting read;
    Status status;  // OK: all chunks have arrived
  };
  // What takes its time, and must be before some read can be posted.
  struct Need {
    std::shared_ptr<RdmaSlab> slab;   // that it is registered; else, of the owner,
    std::optional<GrantToken> token;  // what may be read under it; else a connection
    bool anew = false;
    std::optional<RdmaOpen::Came> came;
  };
  // What a step has come to.
  struct Outcome {
    std::vector<Ended> ended;
    bool closed = false;
    bool again = false;  // there is more to do at once
    int events = -1;     // a descriptor to wait for, while chunks are under way
  };

  // What the owner has said of a grant is gone by for so long, though it is not heard: it ends a grant by ending the
  // connection.
  static constexpr MonotonicNanos kGoodFor = 8 * kNanosPerSecond;

  static Status DestinationDetached();
  static Status Late();

  void Run();
  // One round of what can be done without waiting for anybody.
  Outcome Step() ABSL_LOCKS_EXCLUDED(mu_);
  void StepLocked(Outcome* outcome) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CloseLocked(std::vector<Ended>* ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Takes completions; whether there were any.
  bool Collect(std::vector<Ended>* ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Arrived(uint64_t chunk, std::vector<Ended>* ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends reads whose deadline has passed, and a connection that does not move.
  void EndLate(std::vector<Ended>* ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Makes reads active that have what they need, and asks for what another one lacks.
  void Activate(std::vector<Ended>* ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // An error is the read's end. Sets *lacks when it must wait.
  Status Prepare(const Waiting& read, Active* active, std::optional<Need>* lacks)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Tells the owner that the grants of active reads are used.
  void Renew() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // One at a time; what is lacked meanwhile is seen again once it is met.
  void AskFor(Need need) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Post(std::vector<Ended>* ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The next chunk of the read, over the pair. After an error the connection is of no use.
  Status PostChunk(ActiveAt read, size_t pair) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends the connection. Its reads wait again; those that had their second try (`counts`) or are late have
  // ended, and those into a slab that is being detached.
  void Break(const Status& why, bool counts, std::vector<Ended>* ended)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The other thread: meets one need after the other.
  void RunNeeds();
  void Meet(const Need& need) ABSL_LOCKS_EXCLUDED(mu_);
  Status AskToConnect() ABSL_LOCKS_EXCLUDED(mu_);
  void AskToOpen(const GrantToken& token, bool anew, const std::optional<RdmaOpen::Came>& came)
      ABSL_LOCKS_EXCLUDED(mu_);
  // The owner's answer, or none.
  void NoteOpened(const GrantToken& token, bool anew, StatusOr<RdmaOpened> answer)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  StatusOr<std::unique_ptr<Connection>> MakeConnection() const;
  // Ends the waiting reads that `which` says; those that are late, as late.
  void FailWaiting(const Status& status, const std::function<bool(const Waiting&)>& which)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Checks what arrived, and tells whoever waits.
  void End(Ended ended) ABSL_LOCKS_EXCLUDED(mu_);
  // Until something arrives or is to be read, and no longer than it may take unnoticed.
  void Wait(int events) ABSL_LOCKS_EXCLUDED(mu_);
  void Wake();
  Status Unavailable(const Status& why) const;

  const std::string address_;
  const RdmaReaderOptions options_;
  VerbsDevice* const device_;
  const int port_;
  RdmaControl* const control_;
  const int slots_;  // of each queue pair
  const UniqueFd wake_;

  Mutex mu_;
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<Waiting> waiting_ ABSL_GUARDED_BY(mu_);
  std::list<Active> active_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<Connection> connection_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint64_t, Chunk> chunks_ ABSL_GUARDED_BY(mu_);  // under way, by id
  uint64_t next_chunk_ ABSL_GUARDED_BY(mu_) = 1;
  RdmaConnectionId last_connection_ ABSL_GUARDED_BY(mu_) = 0;
  // What came last, in its order: a reader that finds it wrong reads it again soon.
  std::deque<RdmaOpen::Came> came_ ABSL_GUARDED_BY(mu_);
  std::optional<Need> need_ ABSL_GUARDED_BY(mu_);  // being met, or about to be
  CondVar needs_;                                  // with mu_
  std::thread needs_thread_, thread_;              // last: they use the members above
};

}  // namespace cairn::transport
