// StepWriter whose part goes straight into storage: its objects are read where they lie, once for their checksums and once
// more while the node writes them, which asks for the bytes over a stream socket (proto/README.md).
#pragma once

#include <atomic>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "client/cpp/link.h"
#include "client/cpp/object_bytes.h"
#include "client/cpp/object_layout.h"
#include "client/cpp/session.h"
#include "client/cpp/step_writer.h"
#include "common/fd.h"

namespace cairn::client {

class StoreWriter : public StepWriter {
 public:
  // `timeout` of each call, and with no progress; zero: the session's.
  StoreWriter(std::shared_ptr<Link> link, const StepIdentity& identity, absl::Duration timeout)
      : link_(std::move(link)), identity_(identity), timeout_(timeout) {}

  Status Write(const std::string& name, ObjectKind kind, absl::Span<const Source> sources) override;
  Status WriteZip(const std::string& name, ObjectKind kind, const ZipPlan& plan,
                  absl::Span<const Source> records) override;
  StatusOr<std::vector<PiecePlace>> WritePieces(const std::string& name, ObjectKind kind,
                                                absl::Span<const Piece> pieces) override;
  Status WriteMany(absl::Span<const Item> items) override;
  // It needs none.
  Status SetAside(const Room& room, absl::Duration patience) override;
  StatusOr<Buffer> Reserve(const std::string& name, ObjectKind kind, uint64_t length) override;
  Status Seal(const std::string& name) override;
  void CopyBeside(const std::atomic<bool>* beside) override { (void)beside; }
  StatusOr<CommitResult> Commit(const std::map<std::string, std::string>& notes) override;
  Status Abort() override;
  StatusOr<std::string> HandOver() override;
  Step step() const override { return identity_.step; }
  Revision revision() const override { return identity_.revision; }
  uint64_t bytes_written() const override { return bytes_sent_.load(std::memory_order_relaxed); }

 private:
  struct Object {
    ObjectKind kind = ObjectKind::kRaw;
    ObjectLayout layout;
    std::unique_ptr<ObjectBytes> bytes;  // of `layout`
    std::vector<uint32_t> block_crcs;
  };

  Status Usable() const;
  Status Add(const std::string& name, ObjectKind kind, ObjectLayout layout);
  wire::StoreRequest Request(const std::map<std::string, std::string>& notes) const;
  // The writer's end of a new one, of that session.
  StatusOr<UniqueFd> OpenStream(std::shared_ptr<Attachment>* attachment, int64_t* lease);
  // One stream, and one store that is asked for until it has ended, or nothing moves any more.
  Status Store(wire::StoreRequest* request, wire::CommitReply* reply);
  // Sends what is asked for until the socket is closed. Not OK: what could not be read.
  Status Serve(int socket);

  const std::shared_ptr<Link> link_;
  const StepIdentity identity_;
  const absl::Duration timeout_;
  std::map<std::string, std::unique_ptr<Object>> objects_;
  std::atomic<uint64_t> bytes_sent_{0};
  Status failure_;
  bool done_ = false;
};

}  // namespace cairn::client
