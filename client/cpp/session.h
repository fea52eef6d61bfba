// libcairn: what a process that saves or loads checkpoints talks to.
//
//   auto session = Session::Connect({.job = "run7", .attempt = 1, .writer = 0, .world_size = 1});
//   auto step = (*session)->BeginStep(12);
//   (*step)->Write("model.bin", ObjectKind::kRaw, {bytes, length});
//   (*step)->Commit({});
//   auto object = (*session)->Open({.step = kNoStep}, "model.bin", OpenMode::kRead);
//   (*object)->ReadInto(buffer, length);
//
// It runs inside a trainer: it starts no thread when it is loaded, installs no signal handler and
// never aborts or exits. Every call has a deadline; until then a lost connection is made again, with
// the same session. All classes are thread-safe unless they say otherwise. After fork the child's
// calls fail with FAILED_PRECONDITION, which says so; the child may Connect anew.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/cpp/standing.h"
#include "common/fd.h"
#include "common/info.h"
#include "common/keys.h"
#include "common/level.h"
#include "common/manifest.h"
#include "common/policy.h"
#include "common/socket_path.h"
#include "common/status.h"
#include "common/zip.h"

namespace cairn::client {

struct ConnectOptions {
  std::string socket = ClientSocketPath();  // the user's own daemon's, else the machine's
  std::string job;
  Attempt attempt = 0;  // 0: reads only, until ChooseAttempt
  Writer writer = -1;   // this rank; -1: reads only
  int32_t world_size = 0;
  // Writers of this job on this node; admission is decided for all of them at once.
  int32_t local_writers = 1;
  // false: bytes go in chunks over Thrift, as from another container without the fd socket.
  bool takes_fds = true;
  std::optional<JobPolicy> policy;
  int copy_threads = 2;                        // ≥ 1, the caller's included
  absl::Duration timeout = absl::Seconds(30);  // of each call that gives none
  // True: an attempt that begins does not wait for the end of the processes that save in an older one;
  // they may save nothing more.
  bool fence = false;
  // Of the launcher that started this process, where it tells: its run, and how often it has started that
  // run again (-1: it does not tell). A later start of the same run is no copy started by mistake.
  std::string run;
  int32_t restart = -1;
  // Of the process whose child this one is, where it handed it on (ThisProcess() there): to the daemon both are one
  // writer. Empty: this process's own. A secret: who has it may save as that writer, if it has its user's id too.
  ProcessToken process;
  std::string client;  // for people, shown in status
};

using cairn::CheckpointInfo;
using cairn::CheckpointRef;
using cairn::LatestCheckpoint;
using cairn::Level;
using cairn::LevelName;
using cairn::ObjectInfo;
using cairn::OpenMode;
using CheckpointFacts = cairn::Facts;

struct Listing {
  std::vector<std::string> jobs;
  std::vector<CheckpointInfo> checkpoints;
  std::vector<ObjectInfo> objects;
};

class DeviceReader;  // device_reader.h

// A run of bytes of an object being written: `length` bytes at `data`, or of the file `fd` from `offset`
// on. A file that has become shorter fails the write as FAILED_PRECONDITION. With `device`, which lives until the write
// returns, `data` is an address of its memory.
struct Source {
  const void* data = nullptr;
  uint64_t length = 0;
  int fd = -1;
  uint64_t offset = 0;
  DeviceReader* device = nullptr;
};

// Part of an object that has many: an archive, as of WriteZip or, with a frame, whose open record is the one source; with
// neither the sources' bytes as they are.
struct Piece {
  const ZipPlan* plan = nullptr;
  absl::Span<const Source> sources;
  const ZipFrame* frame = nullptr;
};

// Where a piece lies in its object.
struct PiecePlace {
  uint64_t offset = 0;  // multiple of kZipAlignment
  uint64_t length = 0;
};

// Of a step that some of the ranks save, or one alone: how many, and which of them this is.
struct Among {
  int32_t writers = 1;
  Writer writer = 0;
};

struct CommitResult {
  std::string digest;
  bool complete = false;
};

class Session;

// One writer's part of one step, from BeginStep to Commit or Abort. Not thread-safe. Destroying it
// uncommitted aborts it.
class StepWriter {
 public:
  virtual ~StepWriter() = default;

  // Object `name` is the sources' bytes in order: one pass, CRC32C fused with the copy.
  virtual Status Write(const std::string& name, ObjectKind kind,
                       absl::Span<const Source> sources) = 0;
  // A zip archive: record i of `plan` is records[i]. Headers, CRC-32s, gap and directory are filled
  // in the same pass. The object fills its slab when the slab is at most kZipMaxGap longer.
  virtual Status WriteZip(const std::string& name, ObjectKind kind, const ZipPlan& plan,
                          absl::Span<const Source> records) = 0;
  // One object of pieces in order, each where a reader who is told its place finds a whole archive. An archive is up to
  // kZipAlignment bytes longer than its plan needs, by a gap before its directory.
  virtual StatusOr<std::vector<PiecePlace>> WritePieces(const std::string& name, ObjectKind kind,
                                                        absl::Span<const Piece> pieces) = 0;
  // Several objects at once: one create call for any number of small ones, one per 64 of 1 MiB and more.
  struct Item {
    std::string name;
    ObjectKind kind = ObjectKind::kRaw;
    std::vector<Source> sources;
    const ZipPlan* plan = nullptr;  // as of WriteZip, whose records the sources then are
  };
  virtual Status WriteMany(absl::Span<const Item> items) = 0;
  // Enters the step at the node, and sets memory aside for objects that are written next.
  // RESOURCE_EXHAUSTED: there is none within `patience`, and this revision of the step is refused.
  struct Room {
    size_t objects = 0;
    uint64_t bytes = 0;       // each object's in whole pages
    uint64_t name_bytes = 0;  // of all names together

    void Add(uint64_t length, size_t name_length);
  };
  virtual Status SetAside(const Room& room, absl::Duration patience) = 0;

  // Memory of an object that the caller fills, from any threads, until the object is sealed.
  struct Buffer {
    std::shared_ptr<void> owner;  // of `data`
    char* data = nullptr;         // `length` bytes, not zeroed; null for an empty object
    uint64_t length = 0;
    // How a device has the memory mapped for good, to be filled there; nowhere without descriptors.
    StandingPlace place;
  };
  // Object `name` is `length` bytes that the caller puts into memory of the object's own: none is copied, and its
  // checksums are taken when it is sealed. After that, as after Abort and the end of this writer, `data` lies in memory
  // of nobody's: while `owner` is held it may still be touched, but what it shows is not the object, and what is written
  // there is lost. A device must be done by then: what it writes late spoils the object, which its checksums tell.
  // Not for a forked child. Errors as of Write.
  virtual StatusOr<Buffer> Reserve(const std::string& name, ObjectKind kind, uint64_t length) = 0;
  // The object is filled: takes its checksums. Others may be filled meanwhile. INVALID_ARGUMENT: it was not reserved, or
  // is sealed.
  virtual Status Seal(const std::string& name) = 0;

  // While `*beside` holds, the thread that writes copies by itself, beside what the process does; afterwards, and with
  // null, with all the session's threads.
  virtual void CopyBeside(const std::atomic<bool>* beside) = 0;

  // Seals everything, also what is reserved, and commits this writer's manifest, in one call.
  virtual StatusOr<CommitResult> Commit(const std::map<std::string, std::string>& notes) = 0;
  virtual Status Abort() = 0;
  // Ends this writer and drops nothing: what TakeOver, on a session of the same process token, goes on from. What was
  // written stays until either session ends.
  virtual StatusOr<std::string> HandOver() = 0;

  virtual Step step() const = 0;
  virtual Revision revision() const = 0;
  virtual uint64_t bytes_written() const = 0;
};

// Elements of an object that are wanted in memory, as of a tensor or a cut of one. Both strides are in bytes, and may
// be negative or 0. What it points to lives until the read returns. Several threads copy at once: which piece is
// written last where two overlap in memory is not defined.
struct StridedPiece {
  uint64_t offset = 0;      // in the object, of the element of index 0, 0, …
  uint64_t item_bytes = 0;  // of an element
  absl::Span<const int64_t> shape;
  absl::Span<const int64_t> from_strides;  // in the object
  void* into = nullptr;                    // of the element of index 0, 0, …
  absl::Span<const int64_t> into_strides;
};

// A run of bytes of an object.
struct ObjectRange {
  uint64_t offset = 0;
  uint64_t length = 0;
};

// An opened object. Its lease ends when it and every View taken from it are gone.
class OpenObject {
 public:
  virtual ~OpenObject() = default;
  virtual const ObjectInfo& info() const = 0;
  virtual const CheckpointKey& checkpoint() const = 0;
  virtual bool from_storage() const = 0;
  // Names the memory that Map maps, other memory or other content being named otherwise; empty where Map makes a copy.
  virtual std::string memory() const = 0;

  // Copies the object into `into`, which has space for info().length bytes, with `copy_threads`
  // threads. Every block is verified; DATA_LOSS names one that is bad and has no good copy. The bytes
  // come from memory, from a file in storage, or in chunks, as from another node's memory.
  virtual Status ReadInto(void* into) = 0;
  // The same for [offset, offset+length). Blocks are verified whole, so those at its ends are read
  // whole.
  virtual Status ReadRange(uint64_t offset, uint64_t length, void* into) = 0;
  // The same for any number of pieces, in one pass: a block is read and verified once however many pieces want something
  // of it, and not at all where none does. Bytes where several pieces go are those of any of them.
  // INVALID_ARGUMENT names the piece and its field that does not fit; nothing has been copied then.
  virtual Status ReadPieces(absl::Span<const StridedPiece> pieces) = 0;
  // The ranges one after the other, as they lie there and not verified: for a reader that finds in them what to read,
  // and reads them again among those pieces. UNIMPLEMENTED: they would have to be asked for one by one.
  virtual Status PeekRanges(absl::Span<const ObjectRange> ranges, void* into) = 0;
  // One block (of kBlockBytes; the last is shorter) as it lies there, by the calling thread alone, for a
  // reader that compares the checksum elsewhere and has ReadRange for a block that is bad. `into` has
  // room for whole pages, and begins at one: then a file in storage is read without filling the page
  // cache, where that can be. With `crc`: the CRC32C of what was read.
  virtual Status ReadUnchecked(uint64_t block, void* into, uint32_t* crc) = 0;
  // A private copy-on-write mapping of the object in memory; `data` is its first byte. It and the lease
  // live until `owner` is gone. Of one that only storage has: a verified copy, because a mapped file that
  // somebody cuts short kills the process that touches it.
  struct View {
    std::shared_ptr<void> owner;
    char* data = nullptr;
    uint64_t length = 0;
  };
  virtual StatusOr<View> Map() = 0;
  // Where it lies in its slab, for a mapping that outlives this object; of one elsewhere: nowhere.
  virtual StandingPlace standing() { return {}; }
  // A path that stock loaders open while this object lives: "/proc/self/fd/N".
  virtual StatusOr<std::string> Path() = 0;
  // Checks every block of a mapping against the checksums.
  virtual Status Verify() = 0;
};

// Who has which rank of a ring whose members stand in the catalog.
struct RingInfo {
  struct Seat {
    int32_t rank = 0;
    bool taken = false;
    int64_t incarnation = 0;  // of the newest life that had it; 0: nobody ever did
    std::string address;
    int64_t beat_age_ms = -1;  // -1: never
  };
  int64_t epoch = 0;  // 0: the cluster has no ring yet
  std::vector<Seat> seats;
  int32_t rank = -1;    // of the node that was asked; -1: none
  std::string problem;  // why it has none, or what is wrong with the catalog; empty: nothing
};

class Session : public std::enable_shared_from_this<Session> {
 public:
  // UNAVAILABLE when no daemon answers at the socket by the deadline.
  static StatusOr<std::shared_ptr<Session>> Connect(const ConnectOptions& options);
  virtual ~Session() = default;
  // Aborts what is unfinished, ends leases, says goodbye. Further calls fail.
  virtual void Close() = 0;
  virtual const ConnectOptions& options() const = 0;
  virtual const std::string& storage_root() const = 0;
  virtual SessionId id() const = 0;

  // A number for an attempt that begins: the clock in ms, or more where the daemon knows of a greater attempt. The
  // greatest of what the ranks of a group hear is above all that any of their nodes knows: SetAttempt on each.
  virtual StatusOr<Attempt> ProposeAttempt() = 0;
  // Proposes one and makes it this session's: for a lone writer.
  virtual StatusOr<Attempt> ChooseAttempt() = 0;
  // On a session that began with 0.
  virtual Status SetAttempt(Attempt attempt) = 0;

  // `among`: of a step that not all ranks save. The revision is the number of times that this process entered the step
  // before in this attempt.
  virtual StatusOr<std::unique_ptr<StepWriter>> BeginStep(
      Step step, std::optional<Among> among = {},
      absl::Duration timeout = absl::ZeroDuration()) = 0;

  // As BeginStep, of a part that goes straight into storage and takes no memory of the node: what is written is read where
  // it lies, and must neither go nor change before Commit returns. FAILED_PRECONDITION, of the commit: it has changed, or
  // this node has no storage. UNIMPLEMENTED: this session takes no descriptors.
  virtual StatusOr<std::unique_ptr<StepWriter>> BeginStored(
      Step step, std::optional<Among> among = {},
      absl::Duration timeout = absl::ZeroDuration()) = 0;

  // Goes on with what HandOver gave, in this process or another. FAILED_PRECONDITION: it is gone, as when the session
  // that wrote it has ended.
  virtual StatusOr<std::unique_ptr<StepWriter>> TakeOver(
      const std::string& handed_over, absl::Duration timeout = absl::ZeroDuration()) = 0;

  virtual StatusOr<std::unique_ptr<OpenObject>> Open(
      const CheckpointRef& checkpoint, const std::string& name, OpenMode mode,
      absl::Duration timeout = absl::ZeroDuration()) = 0;
  virtual StatusOr<LatestCheckpoint> Latest(const std::string& job = "") = 0;
  // Says where this attempt goes on from; kNoStep: from nothing. Returns that checkpoint, or one with
  // key.step kNoStep.
  virtual StatusOr<LatestCheckpoint> Resume(Step step) = 0;
  // This complete checkpoint counts from now on. FAILED_PRECONDITION while writers of the newest attempt
  // live, unless `fence`.
  virtual StatusOr<LatestCheckpoint> Use(const CheckpointRef& checkpoint, bool fence) = 0;
  virtual StatusOr<CheckpointInfo> Stat(const CheckpointRef& checkpoint) = 0;
  virtual StatusOr<ObjectInfo> StatObject(const CheckpointRef& checkpoint,
                                          const std::string& name) = 0;
  // The paths are those of ListPath in common/keys.h. Follows cursors to the end.
  virtual StatusOr<Listing> List(const std::string& path) = 0;
  virtual StatusOr<CheckpointInfo> Wait(const CheckpointRef& checkpoint, Level level,
                                        absl::Duration timeout) = 0;
  // The first complete step above `step` (kNoStep: any), or the newest one if another attempt or decision is at the
  // head of the line by then: other than `head`, with 0 other than now. With `revision` >= 0 also a
  // newer revision of the step.
  virtual StatusOr<CheckpointInfo> WaitAfter(Step step, absl::Duration timeout, Attempt head = 0,
                                             Revision revision = -1) = 0;
  virtual Status Persist(const CheckpointRef& checkpoint) = 0;
  virtual Status Remove(const CheckpointRef& checkpoint, bool memory_only, bool force) = 0;
  virtual Status Pin(const CheckpointRef& checkpoint, bool pinned) = 0;
  virtual Status SetPolicy(const JobPolicy& policy) = 0;
  // What retention would delete of the job's files under `policy`, or under its own.
  virtual StatusOr<PolicyPreview> PreviewPolicy(const std::string& job,
                                                const std::optional<JobPolicy>& policy) = 0;
  // NodeStatus of proto/cairn.thrift as JSON: its field names, enumerators as people write them.
  virtual StatusOr<std::string> StatusJson() = 0;

  // The ring as the catalog has it. FAILED_PRECONDITION where the daemon's members do not stand there.
  virtual StatusOr<RingInfo> Ring() = 0;
  // Another number of ranks, 1 to 1,024; the epoch from which on.
  virtual StatusOr<int64_t> ResizeRing(int32_t size) = 0;
  // The node admits nothing new, and secures what only it has; or, with false, serves again.
  virtual Status Drain(bool on) = 0;
  // IndexReply of proto/cairn.thrift as JSON: what the catalog that a ring shares knows, of all jobs that this user may
  // see ("") or of one and its newest `limit` checkpoints (at most 1000); with 0 of neither, but what each node last said of itself. UNAVAILABLE: none
  // is shared, or it does not answer by `timeout`, which counts up to 10 s.
  virtual StatusOr<std::string> IndexJson(const std::string& job, int limit,
                                          absl::Duration timeout) = 0;
};

}  // namespace cairn::client
