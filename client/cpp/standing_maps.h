// A session's standing mappings, and the thread that hears which of them the node wants back. It begins with the first
// one and waits at the daemon, a few seconds at a time.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <thread>

#include "client/cpp/link.h"
#include "client/cpp/standing.h"
#include "common/mutex.h"

namespace cairn::client {

// Thread-safe. Owned by its link; mappings keep both.
class StandingMaps : public std::enable_shared_from_this<StandingMaps> {
 public:
  explicit StandingMaps(Link* link) : link_(*link) {}
  ~StandingMaps() { Join(); }

  // The slab in which the object lies that is open under `lease`.
  StatusOr<std::unique_ptr<StandingMapping>> Map(const std::shared_ptr<Attachment>& attachment,
                                                 LeaseId lease, std::function<void()> wanted_back);
  // All are given up, and the daemon is told. Before goodbye. False: it is not known that no device has any of them.
  bool LetGo();
  // After goodbye, which ends what the thread waits for.
  void Join();

 private:
  class Mapped;
  struct Live {
    std::shared_ptr<Attachment> attachment;
    std::function<void()> wanted_back;
    bool asked = false;  // it was called, and what it stands for is still there
  };

  void Run(std::shared_ptr<Link> link);
  // Those of sessions that the daemon has forgotten.
  void DropOthers(const Attachment* current);
  void WantBack(const std::shared_ptr<Attachment>& attachment, const std::vector<int64_t>& slabs);
  void Gone(const Mapped& mapped);
  void Tell(const std::shared_ptr<Attachment>& attachment, SlabId slab);
  // What it has not heard yet, in one call. Under asking_, so that nothing is mapped anew meanwhile.
  Status TellAll(const std::shared_ptr<Attachment>& attachment, MonotonicNanos deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(asking_);
  void Pause();

  Link& link_;
  // Held from the question to the mapping: the thread does not take one that is on its way for an unknown one. Before mu_.
  Mutex asking_;
  Mutex mu_;
  CondVar changed_;
  bool ending_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t next_ ABSL_GUARDED_BY(mu_) = 1;
  std::map<std::pair<SlabId, uint64_t>, Live> live_ ABSL_GUARDED_BY(mu_);
  std::set<SlabId> untold_ ABSL_GUARDED_BY(mu_);  // given up, and the daemon did not hear it
  std::thread thread_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::client
