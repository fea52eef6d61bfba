// Carries out the actions of a simulated node's engine. Slabs, records and storage are the same in every world: an
// action becomes a task, which ends later with an event for the engine. Each world decides when a task ends and
// whether it fails, and keeps the memory.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "server/engine/actions.h"
#include "server/engine/events.h"
#include "tests/world/storage.h"

namespace cairn::world {

using engine::Event;
using engine::RequestId;
namespace event = engine::event;
namespace reply = engine::reply;

inline constexpr uint32_t kUid = 1000;

struct Task {
  enum class Kind {  // OfStorage goes by the order
    kMake,
    kDestroy,
    kProbe,
    kRecord,  // a part's, into its slab
    kVerify,
    kPersist,
    kLineRecord,
    kDelete,
    kScan,
    kTables,
    kNumbers,
    kSessionEnd,  // the keeper notices it
  };
  // Ends the task, once at most. With OK its effect happens; else it fails with that status, unless it is one that
  // cannot fail: kDestroy, kProbe, kSessionEnd.
  using End = std::function<Event(const Status& trouble)>;

  Kind kind;
  End end;
  uint64_t bytes = 0;              // that a persist writes
  bool urgent = false;             // a slab for which a call waits
  std::vector<SlabId> slabs = {};  // whose bytes it reads or writes
  bool tombstone = false;          // a deletion that leaves one
  bool OfStorage() const { return kind >= Kind::kPersist && kind <= Kind::kNumbers; }
};

class Executor {
 public:
  explicit Executor(Storage* storage) : storage_(*storage) {}
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;
  virtual ~Executor() = default;

  void CarryOut(engine::Action* action);

 protected:
  virtual void Begin(Task task) = 0;

  virtual int64_t unix_ms() const = 0;                           // by the node's clock
  virtual int64_t storage_unix_ms() const { return unix_ms(); }  // by storage's

  // --- what happens when a task ends well
  virtual void Made(SlabId, uint64_t /*bytes*/, const Status&) {}  // or was not
  virtual void Destroyed(SlabId) {}
  virtual event::SlabProbed Probe(const action::ProbeSlab& probe) = 0;
  virtual Status WriteRecord(const action::WriteManifest&, std::string /*manifest*/) {
    return absl::OkStatus();
  }
  virtual Status Verify(const action::Verify&) { return absl::OkStatus(); }
  // True: with that the checkpoint is published.
  virtual StatusOr<bool> Write(const action::Persist& persist) {
    return storage_.Write(persist, storage_unix_ms());
  }
  virtual Status Delete(const action::DeleteFiles& deletion) { return storage_.Delete(deletion); }
  virtual StatusOr<StoredJob> Scan(const std::string& job) {
    return storage_.Scan(job, storage_unix_ms());
  }
  virtual uint32_t OwnerOf(const std::string& /*job*/) const { return kUid; }

  // --- one per kind of action, so that a new one does not compile without it. It begins as `= 0`, until each world
  // has said that it may ignore it.
  virtual void Do(action::Reply& a) = 0;
  virtual void Do(action::MakeSlab& a);
  virtual void Do(action::HurrySlab&) {}  // a slab is made no sooner for it
  virtual void Do(action::DestroySlab& a);
  virtual void Do(action::ProbeSlab& a);
  virtual void Do(action::WriteManifest& a);
  virtual void Do(action::Verify& a);
  virtual void Do(action::Persist& a);
  virtual void Do(action::Store&) {}  // no writer of a world asks for it
  virtual void Do(action::WriteLineRecord& a);
  virtual void Do(action::Reinstate&) {}  // all that is published can be read alike
  virtual void Do(action::DeleteFiles& a);
  virtual void Do(action::ScanJob& a);
  virtual void Do(action::ReadTables& a);
  virtual void Do(action::ReadLineNumbers& a);
  virtual void Do(action::Tell&) {}  // of a ring; a lone node is in none
  virtual void Do(action::BecomeLife&) {}
  virtual void Do(action::Fetch&) {}
  virtual void Do(action::FetchFrom&) {}
  virtual void Do(action::CancelFetch&) {}
  virtual void Do(action::RevokeGrant&) {}
  virtual void Do(action::Record&) {}
  virtual void Do(action::WakeAt& a) = 0;
  virtual void Do(action::EndSession&) {}
  virtual void Do(action::Discard&) {}
  virtual void Do(action::Drained&) {}
  virtual void Do(action::Log&) {}

  Storage& storage_;
};

}  // namespace cairn::world
