#include "client/cpp/open_object.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "client/cpp/process.h"
#include "client/cpp/standing_maps.h"
#include "common/checksum.h"
#include "proto/convert.h"

namespace cairn::client {
namespace {

constexpr absl::Duration kDescriptorPatience = absl::Seconds(2);

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

StatusOr<UniqueFd> PrivateMemory(uint64_t bytes) {
  int fd = memfd_create("cairn-copy", MFD_CLOEXEC | MFD_NOEXEC_SEAL);
  if (fd < 0 && errno == EINVAL) fd = memfd_create("cairn-copy", MFD_CLOEXEC);
  if (fd < 0) return ErrnoStatus(errno, "memfd_create");
  UniqueFd out(fd);
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) return ErrnoStatus(errno, "ftruncate");
  return out;
}

// The same file, opened for direct reads; invalid where it cannot be.
UniqueFd OpenDirect(int fd) {
  return UniqueFd(
      open(absl::StrCat("/proc/self/fd/", fd).c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
}

// Reads [offset, offset+length) and up to the end of its last page. False: not so, read it as usual.
bool ReadDirect(int fd, uint64_t offset, uint64_t length, void* into) {
  const uint64_t pages = (length + kPageBytes - 1) / kPageBytes * kPageBytes;
  const auto address = reinterpret_cast<uintptr_t>(into);
  if (fd < 0 || offset % kPageBytes != 0 || address % kPageBytes != 0) return false;
  uint64_t done = 0;
  while (done < length) {
    const ssize_t n =
        pread(fd, static_cast<char*>(into) + done, pages - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    const auto got = static_cast<uint64_t>(n);
    if (got % kPageBytes != 0 && done + got < length) return false;
    done += got;
  }
  return true;
}

// A View's owner. Members are destroyed in reverse: the mapping, then the lease.
struct MappedView {
  std::shared_ptr<Lease> lease;
  Mapping mapping;
};

}  // namespace

Lease::~Lease() {
  if (id == 0 || !link->InThisProcess()) return;
  (void)Contain([&] {
    link->Release(attachment, id);
    return absl::OkStatus();
  });
}

StatusOr<std::unique_ptr<OpenObject>> OpenObjectImpl::Open(std::shared_ptr<Link> link,
                                                           const CheckpointRef& checkpoint,
                                                           const std::string& name, OpenMode mode,
                                                           absl::Duration timeout) {
  std::unique_ptr<OpenObjectImpl> object(new OpenObjectImpl(std::move(link), mode, timeout));
  CheckpointRef asked = checkpoint;
  if (asked.job.empty()) asked.job = object->link_->options().job;
  CAIRN_RETURN_IF_ERROR(object->Reopen(asked, name, false));
  return std::unique_ptr<OpenObject>(std::move(object));
}

std::unique_ptr<OpenObject> OpenObjectImpl::OfFile(CheckpointKey checkpoint, ObjectInfo info,
                                                   UniqueFd fd, int copy_threads) {
  std::unique_ptr<OpenObjectImpl> object(
      new OpenObjectImpl(nullptr, OpenMode::kRead, absl::ZeroDuration()));
  object->own_threads_ = std::make_unique<CopyThreads>(copy_threads);
  object->checkpoint_ = std::move(checkpoint);
  object->info_ = std::move(info);
  auto hold = std::make_shared<Hold>();
  hold->fd = std::move(fd);
  hold->file_bytes = object->info_.length;
  hold->exact = true;
  hold->from_storage = true;
  hold->direct = OpenDirect(hold->fd.get());
  MutexLock lock(&object->mu_);
  object->hold_ = std::move(hold);
  return object;
}

Status OpenObjectImpl::Reopen(const CheckpointRef& checkpoint, const std::string& name,
                              bool verify) {
  const MonotonicNanos deadline = link_->Deadline(timeout_);
  wire::OpenRequest request;
  request.checkpoint = ToWire(checkpoint, "");
  request.name = name;
  request.mode = ToWire(mode_);
  request.verify = verify;
  const int64_t call = link_->NextCall();
  wire::OpenReply reply;
  std::shared_ptr<Attachment> answered;
  Link::FdCall fd_call(link_.get());
  CAIRN_RETURN_IF_ERROR(
      link_->Call("open", deadline,
                  [&](wire::CairnClient& client, const std::shared_ptr<Attachment>& attachment) {
                    answered = attachment;
                    request.timeout_ms = Link::TimeoutMillis(deadline);
                    client.open(reply, call, request);
                  }));
  auto hold = std::make_shared<Hold>();
  hold->lease = std::make_shared<Lease>(link_, answered, static_cast<LeaseId>(reply.lease));
  hold->offset = static_cast<uint64_t>(reply.offset);
  hold->slab = static_cast<SlabId>(reply.slab);
  hold->exact = reply.exact;
  hold->from_storage = reply.slab == 0 && !reply.from_member;
  CAIRN_ASSIGN_OR_RETURN(ObjectInfo info, FromWire(reply.object));
  if (reply.fd_sent && answered->fds != nullptr) {
    CAIRN_ASSIGN_OR_RETURN(
        ReceivedFd received,
        answered->fds->Take(hold->lease->id,
                            std::min(deadline, DeadlineAfter(kDescriptorPatience))));
    hold->fd = std::move(received.fd);
    hold->file_bytes = received.bytes;
    if (reply.offset < 0 || hold->offset > received.bytes ||
        info.length > received.bytes - hold->offset) {
      const std::string found = absl::StrCat(name, ": ", info.length, " bytes at ", hold->offset,
                                             " of a file of ", received.bytes);
      if (hold->from_storage) return absl::DataLossError(found);
      return absl::InternalError(found);
    }
  }
  if (info_.name.empty()) {
    info_ = std::move(info);
    checkpoint_ = {checkpoint.job, reply.step, reply.attempt, reply.revision};
    CAIRN_RETURN_IF_ERROR(FetchChecksums());
  } else if (info.length != info_.length) {
    // Another copy, after a bad one. info_ stays as it is: other threads read it.
    return absl::InternalError(absl::StrCat(name, " has changed its length"));
  }
  if (hold->from_storage && hold->fd.valid()) hold->direct = OpenDirect(hold->fd.get());
  MutexLock lock(&mu_);
  hold_ = std::move(hold);
  return absl::OkStatus();
}

bool OpenObjectImpl::from_storage() const { return hold()->from_storage; }

std::string OpenObjectImpl::memory() const {
  const std::shared_ptr<Hold> from = hold();
  struct stat file;
  if (!from->fd.valid() || from->from_storage || fstat(from->fd.get(), &file) != 0) return "";
  return absl::StrCat(checkpoint_.DebugString(), " ", info_.name, " in ", file.st_ino, " at ",
                      from->offset);
}

StandingPlace OpenObjectImpl::standing() {
  const std::shared_ptr<Hold> from = hold();
  struct stat file;
  if (link_ == nullptr || from->slab == 0 || !from->fd.valid() ||
      fstat(from->fd.get(), &file) != 0) {
    return {};
  }
  const std::shared_ptr<Lease>& lease = from->lease;
  // Another daemon's slab may have this number.
  return {absl::StrCat("slab ", from->slab, " of session ", lease->attachment->session, " in ",
                       file.st_ino),
          from->offset,
          // Weak: what waits to be registered keeps no version in memory.
          [link = link_, weak = std::weak_ptr<Lease>(lease)](
              std::function<void()> wanted_back) -> StatusOr<std::unique_ptr<StandingMapping>> {
            const std::shared_ptr<Lease> held = weak.lock();
            if (held == nullptr) return absl::CancelledError("the object is closed");
            return link->standing().Map(held->attachment, held->id, std::move(wanted_back));
          }};
}

std::shared_ptr<Hold> OpenObjectImpl::hold() const {
  MutexLock lock(&mu_);
  return hold_;
}

CopyThreads* OpenObjectImpl::threads() {
  return link_ != nullptr ? link_->copy_threads() : own_threads_.get();
}

Status OpenObjectImpl::CheckProcess() const {
  return link_ != nullptr ? link_->CheckProcess() : absl::OkStatus();
}

BlockSource OpenObjectImpl::Blocks() const {
  return {absl::StrCat(checkpoint_.DebugString(), " object ", info_.name), info_.length,
          &info_.block_crcs};
}

Status OpenObjectImpl::FetchChecksums() {
  if (info_.block_crcs.size() == BlockCount(info_.length, kBlockBytes)) return absl::OkStatus();
  wire::CheckpointRef ref;
  ref.job = checkpoint_.job;
  ref.step = checkpoint_.step;
  ref.attempt = checkpoint_.attempt;
  ref.revision = checkpoint_.revision;
  wire::ObjectInfo reply;
  const MonotonicNanos deadline = link_->Deadline(timeout_);
  CAIRN_RETURN_IF_ERROR(link_->Call(
      "stat", deadline, [&](wire::CairnClient& client, const std::shared_ptr<Attachment>&) {
        client.stat(reply, ref, info_.name, Link::TimeoutMillis(deadline));
      }));
  CAIRN_ASSIGN_OR_RETURN(const ObjectInfo info, FromWire(reply));
  info_.block_crcs = info.block_crcs;
  return absl::OkStatus();
}

// --- copies

Status OpenObjectImpl::ReadPieceOf(const Hold& from, uint64_t offset, uint64_t length, char* into) {
  if (from.fd.valid()) return PreadAll(from.fd.get(), into, length, from.offset + offset);
  std::string bytes;
  CAIRN_RETURN_IF_ERROR(link_->Call(
      "readChunk", link_->Deadline(timeout_),
      [&](wire::CairnClient& client, const std::shared_ptr<Attachment>&) {
        client.readChunk(bytes, static_cast<int64_t>(from.lease->id), static_cast<int64_t>(offset),
                         static_cast<int32_t>(length));
      },
      from.lease->attachment.get()));
  if (bytes.size() != length) {
    return absl::InternalError(
        absl::StrCat("readChunk of ", length, " bytes was answered with ", bytes.size()));
  }
  std::copy(bytes.begin(), bytes.end(), into);
  return absl::OkStatus();
}

ObjectMemory OpenObjectImpl::MemoryOf(const Hold& from) const {
  if (from.slab == 0 || !from.fd.valid() || info_.length < kBlockBytes) return {};
  // Numbers of slabs are the session's daemon's: only what this very session wrote into.
  const std::shared_ptr<MappedSlab> written = from.lease->attachment->slabs.Find(from.slab);
  if (written != nullptr && from.offset <= written->bytes() &&
      info_.length <= written->bytes() - from.offset) {
    return {written, from.offset};
  }
  return ObjectMemory::Map(from.fd.get(), from.offset, info_.length);
}

Status OpenObjectImpl::ReadInto(void* into) { return ReadRange(0, info_.length, into); }

Status OpenObjectImpl::ReadRange(uint64_t offset, uint64_t length, void* into) {
  return ReadFromGood([&](const Hold& from) {
    return ReadBlocks(
        threads(), Blocks(), offset, length, static_cast<char*>(into),
        [&](uint64_t at, uint64_t n, char* to) { return ReadPieceOf(from, at, n, to); });
  });
}

Status OpenObjectImpl::ReadPieces(absl::Span<const StridedPiece> pieces) {
  return ReadFromGood([&](const Hold& from) {
    const ObjectMemory memory = MemoryOf(from);
    return ReadPiecesOf(
        threads(), Blocks(), pieces,
        [&](uint64_t at, uint64_t n, char* to) { return ReadPieceOf(from, at, n, to); }, memory);
  });
}

Status OpenObjectImpl::PeekRanges(absl::Span<const ObjectRange> ranges, void* into) {
  return Contain([&]() -> Status {
    CAIRN_RETURN_IF_ERROR(CheckProcess());
    const std::shared_ptr<Hold> from = hold();
    if (!from->fd.valid()) {
      return absl::UnimplementedError(absl::StrCat(Blocks().what, " comes in chunks"));
    }
    char* to = static_cast<char*>(into);
    for (const ObjectRange& range : ranges) {
      if (range.offset > info_.length || range.length > info_.length - range.offset) {
        return absl::OutOfRangeError(absl::StrCat(Blocks().what, ": range ", range.offset, " + ",
                                                  range.length, " is beyond its ", info_.length,
                                                  " bytes"));
      }
      CAIRN_RETURN_IF_ERROR(ReadPieceOf(*from, range.offset, range.length, to));
      to += range.length;
    }
    return absl::OkStatus();
  });
}

Status OpenObjectImpl::ReadFromGood(absl::FunctionRef<Status(const Hold& from)> read) {
  return Contain([&]() -> Status {
    CAIRN_RETURN_IF_ERROR(CheckProcess());
    const Status status = read(*hold());
    if (status.ok() || link_ == nullptr) return status;
    // A bad copy: the daemon checks it and gives another if there is one. Without a descriptor a lease
    // may also have expired, or ended with its connection.
    const bool bad = absl::IsDataLoss(status);
    const bool lease_lost =
        !hold()->fd.valid() && (absl::IsNotFound(status) || absl::IsUnavailable(status));
    if (!bad && !lease_lost) return status;
    const CheckpointRef same = {checkpoint_.job, checkpoint_.step, checkpoint_.attempt,
                                checkpoint_.revision};
    if (!Reopen(same, std::string(info_.name), bad).ok()) return status;
    return read(*hold());
  });
}

Status OpenObjectImpl::ReadUnchecked(uint64_t block, void* into, uint32_t* crc) {
  return Contain([&]() -> Status {
    CAIRN_RETURN_IF_ERROR(CheckProcess());
    const uint64_t begin = block * kBlockBytes;
    if (begin >= info_.length) {
      return absl::OutOfRangeError(absl::StrCat(Blocks().what, " has no block ", block));
    }
    const uint64_t length = std::min<uint64_t>(kBlockBytes, info_.length - begin);
    char* const to = static_cast<char*>(into);
    const std::shared_ptr<Hold> from = hold();
    if (ReadDirect(from->direct.get(), from->offset + begin, length, into)) {
      if (crc != nullptr) *crc = Crc32c(0, into, length);
      return absl::OkStatus();
    }
    uint32_t sum = 0;
    // In chunks of what a message may hold; or while the bytes are in the cache.
    const uint64_t most = crc == nullptr && from->fd.valid() ? length : kCheckedReadBytes;
    for (uint64_t at = 0; at < length; at += most) {
      const uint64_t n = std::min(most, length - at);
      CAIRN_RETURN_IF_ERROR(ReadPieceOf(*from, begin + at, n, to + at));
      if (crc != nullptr) sum = Crc32c(sum, to + at, n);
    }
    if (crc != nullptr) *crc = sum;
    return absl::OkStatus();
  });
}

Status OpenObjectImpl::Verify() {
  return Contain([&]() -> Status {
    CAIRN_RETURN_IF_ERROR(CheckProcess());
    const std::shared_ptr<Hold> from = hold();
    return CheckBlocks(threads(), Blocks(), [&](uint64_t at, uint64_t n, char* to) {
      return ReadPieceOf(*from, at, n, to);
    });
  });
}

// --- mappings and paths

StatusOr<OpenObject::View> OpenObjectImpl::Map() {
  View view;
  const Status status = Contain([&]() -> Status {
    CAIRN_RETURN_IF_ERROR(CheckProcess());
    auto owner = std::make_shared<MappedView>();
    const std::shared_ptr<Hold> from = hold();
    view.length = info_.length;
    // A file may be cut short while it is mapped, by anybody who may write it: it is copied instead.
    if (info_.length > 0 && from->fd.valid() && !from->from_storage) {
      owner->lease = from->lease;
      const uint64_t skip = from->offset % kPageBytes;
      CAIRN_ASSIGN_OR_RETURN(
          owner->mapping,
          Mapping::MapSealed(from->fd.get(), from->offset - skip, info_.length + skip,
                             PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE));
      view.data = owner->mapping.data() + skip;
    } else if (info_.length > 0) {
      CAIRN_ASSIGN_OR_RETURN(owner->mapping, Mapping::Anonymous(info_.length));
      CAIRN_RETURN_IF_ERROR(ReadInto(owner->mapping.data()));
      view.data = owner->mapping.data();
    }
    view.owner = std::move(owner);
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  return view;
}

StatusOr<std::string> OpenObjectImpl::Path() {
  int fd = -1;
  const Status status = Contain([&]() -> Status {
    CAIRN_RETURN_IF_ERROR(CheckProcess());
    const std::shared_ptr<Hold> from = hold();
    // Only a lease of mode `file` lets other code open the slab by its path.
    const bool may_open = from->from_storage || mode_ == OpenMode::kFile;
    if (from->fd.valid() && may_open && from->exact && from->file_bytes == info_.length) {
      fd = from->fd.get();
      MutexLock lock(&mu_);
      path_hold_ = from;
      return absl::OkStatus();
    }
    {
      MutexLock lock(&mu_);
      fd = copy_.get();
    }
    if (fd >= 0) return absl::OkStatus();
    CAIRN_ASSIGN_OR_RETURN(UniqueFd copy, PrivateMemory(info_.length));
    if (info_.length > 0) {
      CAIRN_ASSIGN_OR_RETURN(
          const Mapping mapping,
          Mapping::Map(copy.get(), 0, info_.length, PROT_READ | PROT_WRITE, MAP_SHARED));
      CAIRN_RETURN_IF_ERROR(ReadInto(mapping.data()));
    }
    MutexLock lock(&mu_);
    if (!copy_.valid()) copy_ = std::move(copy);
    fd = copy_.get();
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  return absl::StrCat("/proc/self/fd/", fd);
}

}  // namespace cairn::client
