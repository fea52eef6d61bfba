// StepWriter over a Link: create, copy, and one commit that seals everything.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "client/cpp/copy_engine.h"
#include "client/cpp/huge_memory.h"
#include "client/cpp/link.h"
#include "client/cpp/session.h"
#include "client/cpp/slab_view.h"

namespace cairn::client {

struct StepIdentity {
  Step step = 0;
  Attempt attempt = 0;
  Revision revision = 0;
  Writer writer = 0;
  int32_t world_size = 1;
};

class StepWriterImpl : public StepWriter {
 public:
  // `timeout` of each call, zero: the session's.
  StepWriterImpl(std::shared_ptr<Link> link, const StepIdentity& identity, absl::Duration timeout)
      : link_(std::move(link)), identity_(identity), timeout_(timeout) {}
  ~StepWriterImpl() override;
  static StatusOr<std::unique_ptr<StepWriter>> TakeOver(std::shared_ptr<Link> link,
                                                        const std::string& handed_over,
                                                        absl::Duration timeout);

  Status Write(const std::string& name, ObjectKind kind, absl::Span<const Source> sources) override;
  Status WriteZip(const std::string& name, ObjectKind kind, const ZipPlan& plan,
                  absl::Span<const Source> records) override;
  StatusOr<std::vector<PiecePlace>> WritePieces(const std::string& name, ObjectKind kind,
                                                absl::Span<const Piece> pieces) override;
  Status WriteMany(absl::Span<const Item> items) override;
  Status SetAside(const Room& room, absl::Duration patience) override;
  StatusOr<Buffer> Reserve(const std::string& name, ObjectKind kind, uint64_t length) override;
  Status Seal(const std::string& name) override;
  void CopyBeside(const std::atomic<bool>* beside) override { beside_ = beside; }
  StatusOr<CommitResult> Commit(const std::map<std::string, std::string>& notes) override;
  Status Abort() override;
  StatusOr<std::string> HandOver() override;
  Step step() const override { return identity_.step; }
  Revision revision() const override { return identity_.revision; }
  uint64_t bytes_written() const override { return bytes_written_.load(std::memory_order_relaxed); }

 private:
  struct Pending {
    std::string name;
    ObjectKind kind = ObjectKind::kRaw;
    ObjectLayout layout;
    const ZipPlan* plan = nullptr;  // may be padded: laid out when the extent is known
    absl::Span<const Source> records;
  };

  // Where one object goes.
  struct Place {
    wire::Extent extent;
    std::shared_ptr<MappedSlab> slab;  // null without descriptors, or for an empty object
  };
  // An object that its caller fills: in one of the two, in none when it is empty.
  struct Reserved {
    uint64_t length = 0;
    LeaseId lease = 0;
    std::shared_ptr<SlabView> view;
    std::shared_ptr<HugeMemory> memory;  // without descriptors: sent when it is sealed
  };
  using ReservedMap = std::map<std::string, Reserved>;

  Status Usable() const;
  wire::CommitRequest TakeSeals();  // the commit of what is sealed, which it then has
  Status Join();                    // of what another session wrote: this one writes it, too
  Status Add(std::vector<Pending> objects);
  Status CreateAll(const std::vector<Pending>& objects, std::vector<Place>* places);
  StatusOr<Buffer> MakeBuffer(const Place& place, Reserved* reserved);
  // Takes what is reserved out of its caller's hands.
  static Status EndBuffers(const ReservedMap& reserved);
  static void DropBuffers(ReservedMap reserved);
  Status SealReserved(ReservedMap reserved);
  static size_t EndOfCreate(const std::vector<Pending>& objects, size_t begin);
  static Room Sum(absl::Span<const Pending> objects);
  // `to_come`: the objects of the creates that follow. `patience`: how long the daemon may wait for room.
  Status Create(absl::Span<const Pending> objects, const Room& to_come, MonotonicNanos deadline,
                std::vector<Place>* places, absl::Duration patience = absl::InfiniteDuration());
  Status AskForExtents(wire::CreateRequest* request, MonotonicNanos deadline,
                       absl::Duration patience, wire::CreateReply* reply);
  Status CopyIntoSlabs(std::vector<Pending>* objects, const std::vector<Place>& places,
                       std::vector<Written>* written);
  // How the slab that the session writes into is had for good.
  StandingPlace PlaceOf(const wire::Extent& extent) const;
  Status SendInChunks(const ObjectLayout& layout, LeaseId lease, Written* written);
  StatusOr<std::shared_ptr<MappedSlab>> Slab(const wire::Extent& extent, MonotonicNanos deadline);
  // What status shows of the step under way.
  void Announce(uint64_t more_bytes);
  void AnnounceEnd();
  Status AbortWithin(MonotonicNanos deadline);
  // Other writers' parts stay in memory until the node knows that this one will not come.
  bool OthersWait() const { return identity_.world_size > 1; }

  const std::shared_ptr<Link> link_;
  const StepIdentity identity_;
  const absl::Duration timeout_;
  // The session that made the step's first create; a later session knows nothing of the step.
  std::shared_ptr<Attachment> attachment_;
  std::vector<wire::SealedObject> seals_;
  std::set<std::string> names_;
  ReservedMap reserved_;  // and not sealed
  std::atomic<uint64_t> bytes_written_{0};
  const std::atomic<bool>* beside_ = nullptr;
  Status failure_;  // an object may be half written: nothing can be committed any more
  bool done_ = false;
};

}  // namespace cairn::client
