// OpenObject over a descriptor (of a slab or of a file in storage), or in chunks for a session that
// takes none.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "client/cpp/block_reader.h"
#include "client/cpp/link.h"
#include "client/cpp/session.h"
#include "common/fd.h"
#include "common/mutex.h"

namespace cairn::client {

// A reader's lease. Its destructor tells the daemon that the lease has ended, so it must be destroyed
// after every descriptor and mapping that was made under it.
struct Lease {
  Lease(std::shared_ptr<Link> link_in, std::shared_ptr<Attachment> attachment_in, LeaseId id_in)
      : link(std::move(link_in)), attachment(std::move(attachment_in)), id(id_in) {}
  ~Lease();
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  const std::shared_ptr<Link> link;
  const std::shared_ptr<Attachment> attachment;
  const LeaseId id;
};

// What was opened. Mappings share the lease but not the descriptor: a process that maps ten
// thousand objects and drops the objects keeps none open.
struct Hold {
  std::shared_ptr<Lease> lease;  // null: a file of a storage root, no daemon involved
  UniqueFd fd;                   // invalid: in chunks. After `lease`, so closed before it ends
  UniqueFd direct;               // the file once more, for direct reads; invalid: there are none
  SlabId slab = 0;               // that `fd` is of; 0: of none
  uint64_t offset = 0;           // of the object in `fd`
  uint64_t file_bytes = 0;       // length of what `fd` is
  bool exact = false;            // `fd` is the object and nothing else
  bool from_storage = false;
};

class OpenObjectImpl : public OpenObject {
 public:
  static StatusOr<std::unique_ptr<OpenObject>> Open(std::shared_ptr<Link> link,
                                                    const CheckpointRef& checkpoint,
                                                    const std::string& name, OpenMode mode,
                                                    absl::Duration timeout);
  // An object of a storage root, opened by the caller.
  static std::unique_ptr<OpenObject> OfFile(CheckpointKey checkpoint, ObjectInfo info, UniqueFd fd,
                                            int copy_threads);

  const ObjectInfo& info() const override { return info_; }
  const CheckpointKey& checkpoint() const override { return checkpoint_; }
  bool from_storage() const override;
  std::string memory() const override;

  Status ReadInto(void* into) override;
  Status ReadRange(uint64_t offset, uint64_t length, void* into) override;
  Status ReadPieces(absl::Span<const StridedPiece> pieces) override;
  Status PeekRanges(absl::Span<const ObjectRange> ranges, void* into) override;
  Status ReadUnchecked(uint64_t block, void* into, uint32_t* crc) override;
  StatusOr<View> Map() override;
  StandingPlace standing() override;
  StatusOr<std::string> Path() override;
  Status Verify() override;

 private:
  OpenObjectImpl(std::shared_ptr<Link> link, OpenMode mode, absl::Duration timeout)
      : link_(std::move(link)), mode_(mode), timeout_(timeout) {}

  // Opens (checkpoint, name) and reads from that copy from now on. `verify`: the daemon checks its
  // copy first, and finds another when it is bad.
  Status Reopen(const CheckpointRef& checkpoint, const std::string& name, bool verify);
  // When the answer to open did not bring them. Called before the object is handed out.
  Status FetchChecksums();
  Status CheckProcess() const;
  // The object, if it lies in a slab and so much of it is read that a mapping is worth it.
  ObjectMemory MemoryOf(const Hold& from) const;
  Status ReadPieceOf(const Hold& from, uint64_t offset, uint64_t length, char* into);
  // `read` reads from a hold; when that copy is bad or its lease is lost, once more from another.
  Status ReadFromGood(absl::FunctionRef<Status(const Hold& from)> read);
  BlockSource Blocks() const;
  CopyThreads* threads();
  std::shared_ptr<Hold> hold() const;

  const std::shared_ptr<Link> link_;          // null: see OfFile
  std::unique_ptr<CopyThreads> own_threads_;  // without a link
  const OpenMode mode_;
  const absl::Duration timeout_;
  CheckpointKey checkpoint_;  // this and info_: constant once opened
  ObjectInfo info_;

  mutable Mutex mu_;
  std::shared_ptr<Hold> hold_ ABSL_GUARDED_BY(mu_);       // replaced when a bad copy is opened anew
  std::shared_ptr<Hold> path_hold_ ABSL_GUARDED_BY(mu_);  // whose descriptor Path has named
  UniqueFd copy_ ABSL_GUARDED_BY(mu_);                    // memfd with the exact bytes, for Path
};

}  // namespace cairn::client
