#include "server/storage/part_writer.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <deque>
#include <system_error>
#include <thread>

#include "absl/strings/match.h"
#include "common/checksum.h"
#include "common/mutex.h"
#include "server/storage/files.h"
#include "server/storage/owner.h"

namespace cairn::storage {
namespace {

// How often one file is written anew after its data could not be synced.
constexpr int kMaxWrites = 3;
constexpr unsigned kFileMode = 0644;

uint64_t RoundedUp(uint64_t length) { return (length + kPageBytes - 1) / kPageBytes * kPageBytes; }

// Whether the same bytes may still reach the disk through another inode.
bool WorthRewriting(const Status& status) {
  return !absl::IsResourceExhausted(status) && !absl::IsPermissionDenied(status) &&
         !absl::IsNotFound(status);
}

Status SyncAndClose(UniqueFd fd, AtomicCounters* counters) {
  Status status = Sync(fd.get());
  if (status.ok()) status = Close(std::move(fd));
  if (!status.ok()) counters->sync_failures.fetch_add(1, std::memory_order_relaxed);
  return status;
}

// Memory for one block on its way: of huge pages where there are any. A direct write of small pages
// reaches the disk in many pieces.
class BlockBuffer {
 public:
  static StatusOr<BlockBuffer> Make(uint64_t length) {
    BlockBuffer buffer;
    const uint64_t whole = (length + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
    CAIRN_ASSIGN_OR_RETURN(buffer.mapping_, Mapping::Anonymous(whole + kHugePageBytes));
    const auto start = reinterpret_cast<uintptr_t>(buffer.mapping_.data());
    const uint64_t skip = (kHugePageBytes - start % kHugePageBytes) % kHugePageBytes;
    buffer.data_ = buffer.mapping_.data() + skip;
    // A small one would have to clear a page that is larger than itself.
    if (length >= kHugePageBytes) (void)::madvise(buffer.data_, whole, MADV_HUGEPAGE);
    return buffer;
  }
  char* data() const { return data_; }

 private:
  static constexpr uint64_t kHugePageBytes = 2 << 20;
  Mapping mapping_;
  char* data_ = nullptr;
};

// One object on its way to disk. The first thread that comes sets `fd`, under `mu`; the descriptor
// stays the same until the thread that wrote the last block takes it.
struct File {
  const ObjectEntry* entry = nullptr;
  const ObjectSource* source = nullptr;
  PathParts name;           // the object's
  uint64_t first_task = 0;  // number of its first block among all blocks of the part

  Mutex mu;
  UniqueFd fd ABSL_GUARDED_BY(mu);
  bool opened ABSL_GUARDED_BY(mu) = false;
  std::atomic<bool> direct{false};
  std::atomic<uint64_t> blocks_left{0};

  // An empty object is one task without bytes.
  uint64_t Blocks() const { return BlockCount(entry->length, entry->block_bytes); }
  uint64_t Tasks() const { return std::max<uint64_t>(1, Blocks()); }
};

class PartWriter {
 public:
  PartWriter(int directory, const PartToWrite& part, const WriteOptions& options,
             AtomicCounters* counters)
      : directory_(directory),
        options_(options),
        most_threads_(std::max(1, std::min(options.threads, part.most_threads))),
        counters_(counters) {
    for (size_t i = 0; i < part.manifest->objects.size(); ++i) {
      File& file = files_.emplace_back();
      file.entry = &part.manifest->objects[i];
      file.source = part.sources[i];
      file.name = SplitPath(file.entry->name);
      file.first_task = tasks_;
      file.blocks_left = file.Tasks();
      tasks_ += file.Tasks();
      largest_block_ =
          std::max(largest_block_,
                   RoundedUp(std::min<uint64_t>(file.entry->length, file.entry->block_bytes)));
    }
  }

  Status Run() {
    std::vector<std::thread> threads;
    const uint64_t wanted = std::min<uint64_t>(static_cast<uint64_t>(most_threads_), tasks_);
    for (uint64_t i = 1; i < wanted; ++i) {
      try {
        threads.emplace_back([this] {
          auto as = AsOwner::Become(options_.owner);
          if (!as.ok()) return Fail(as.status());
          Work();
        });
      } catch (const std::system_error&) {
        break;  // no more threads can be had: the ones there are do all of it
      }
    }
    Work();
    for (std::thread& thread : threads) thread.join();
    MutexLock lock(&mu_);
    return status_;
  }

 private:
  void Fail(const Status& status) {
    MutexLock lock(&mu_);
    if (status_.ok()) status_ = status;
    failed_.store(true, std::memory_order_relaxed);
  }

  void Work() {
    StatusOr<BlockBuffer> block = BlockBuffer::Make(largest_block_);
    if (!block.ok()) return Fail(block.status());
    while (!failed_.load(std::memory_order_relaxed)) {
      const uint64_t task = next_task_.fetch_add(1, std::memory_order_relaxed);
      if (task >= tasks_) return;
      const auto after =
          std::upper_bound(files_.begin(), files_.end(), task,
                           [](uint64_t t, const File& file) { return t < file.first_task; });
      File& file = *std::prev(after);
      const Status status = DoTask(&file, task - file.first_task, block->data());
      if (!status.ok()) Fail(Annotate(status, file.entry->name));
    }
  }

  // `buffer` is this thread's, page-aligned, and as long as the largest block.
  Status DoTask(File* file, uint64_t block, char* buffer) {
    Status status;
    int fd = -1;
    {
      MutexLock lock(&file->mu);
      if (!file->opened) {
        file->opened = true;
        CAIRN_ASSIGN_OR_RETURN(file->fd, Open(file));
      }
      // The thread that failed to open it has reported that.
      if (!file->fd.valid()) return absl::OkStatus();
      fd = file->fd.get();
    }
    CAIRN_RETURN_IF_ERROR(WriteBlock(file, fd, block, buffer));
    if (file->blocks_left.fetch_sub(1, std::memory_order_acq_rel) != 1) return absl::OkStatus();
    MutexLock lock(&file->mu);
    status = Finish(file, std::move(file->fd));
    for (int writes = 1; !status.ok() && WorthRewriting(status); ++writes) {
      if (writes == kMaxWrites) {
        return Annotate(status, absl::StrCat("given up after ", kMaxWrites, " new files"));
      }
      status = Rewrite(file, buffer);
    }
    return status;
  }

  StatusOr<UniqueFd> Open(File* file) {
    UniqueFd made;
    if (!file->name.directory.empty()) {
      CAIRN_ASSIGN_OR_RETURN(made, MakeDirectoriesAt(directory_, file->name.directory));
    }
    const int directory = made.valid() ? made.get() : directory_;
    constexpr int kFlags = O_CREAT | O_EXCL | O_WRONLY;
    StatusOr<UniqueFd> fd;
    file->direct = options_.direct && file->entry->length > 0;
    if (file->direct) {
      fd = OpenAt(directory, file->name.base, kFlags | O_DIRECT, kFileMode);
      // A file system without O_DIRECT answers EINVAL, some only after making the file.
      if (absl::IsInvalidArgument(fd.status())) {
        file->direct = false;
        CAIRN_RETURN_IF_ERROR(RemoveFileAt(directory, file->name.base));
      }
    }
    if (!file->direct) fd = OpenAt(directory, file->name.base, kFlags, kFileMode);
    CAIRN_RETURN_IF_ERROR(fd.status());
    CAIRN_RETURN_IF_ERROR(
        Allocate(fd->get(), file->direct ? RoundedUp(file->entry->length) : file->entry->length));
    return fd;
  }

  Status WriteBlock(File* file, int fd, uint64_t block, char* buffer) {
    if (file->Blocks() == 0) return absl::OkStatus();
    const uint64_t offset = block * file->entry->block_bytes;
    const uint64_t length =
        std::min<uint64_t>(file->entry->block_bytes, file->entry->length - offset);
    CAIRN_RETURN_IF_ERROR(ReadVerified(*file, block, offset, length, buffer));
    bool direct = file->direct;
    // Direct writes end on a page boundary. Finish cuts off what that adds to the last block.
    std::fill(buffer + length, buffer + RoundedUp(length), '\0');
    const Status status = WriteAt(fd, buffer, direct ? RoundedUp(length) : length, offset, &direct);
    if (!direct) file->direct = false;
    return status;
  }

  // Bytes that a writer changed since sealing go no further.
  static Status ReadVerified(const File& file, uint64_t block, uint64_t offset, uint64_t length,
                             char* into) {
    if (block >= file.entry->block_crcs.size()) {
      return absl::DataLossError(absl::StrCat("no checksum of block ", block));
    }
    uint32_t crc = 0;
    for (uint64_t done = 0; done < length;) {
      const uint64_t n = std::min(kCheckedReadBytes, length - done);
      CAIRN_RETURN_IF_ERROR(file.source->Read(offset + done, absl::MakeSpan(into + done, n)));
      crc = Crc32c(crc, into + done, n);
      done += n;
    }
    if (crc == file.entry->block_crcs[block]) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat("block ", block, " is not what was sealed"));
  }

  // Makes the whole file durable.
  Status Finish(File* file, UniqueFd fd) {
    CAIRN_RETURN_IF_ERROR(Truncate(fd.get(), file->entry->length));
    CAIRN_RETURN_IF_ERROR(SyncAndClose(std::move(fd), counters_));
    counters_->objects_written.fetch_add(1, std::memory_order_relaxed);
    counters_->bytes_written.fetch_add(file->entry->length, std::memory_order_relaxed);
    return absl::OkStatus();
  }

  // Writes the whole file anew, by this thread alone, to a new inode: the old inode may have lost
  // bytes although the kernel no longer counts their pages as unwritten.
  Status Rewrite(File* file, char* buffer) {
    counters_->rewrites.fetch_add(1, std::memory_order_relaxed);
    {
      UniqueFd inner;
      if (!file->name.directory.empty()) {
        CAIRN_ASSIGN_OR_RETURN(inner, OpenDirectoryAt(directory_, file->name.directory));
      }
      CAIRN_RETURN_IF_ERROR(
          RemoveFileAt(inner.valid() ? inner.get() : directory_, file->name.base));
    }
    CAIRN_ASSIGN_OR_RETURN(UniqueFd fd, Open(file));
    for (uint64_t block = 0; block < file->Blocks(); ++block) {
      CAIRN_RETURN_IF_ERROR(WriteBlock(file, fd.get(), block, buffer));
    }
    return Finish(file, std::move(fd));
  }

  const int directory_;
  const WriteOptions& options_;
  const int most_threads_;
  AtomicCounters* const counters_;
  std::deque<File> files_;
  uint64_t tasks_ = 0;
  uint64_t largest_block_ = kPageBytes;  // in whole pages

  std::atomic<uint64_t> next_task_{0};
  std::atomic<bool> failed_{false};
  Mutex mu_;
  Status status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

Counters AtomicCounters::Read() const {
  Counters now;
  now.objects_written = objects_written.load(std::memory_order_relaxed);
  now.bytes_written = bytes_written.load(std::memory_order_relaxed);
  now.sync_failures = sync_failures.load(std::memory_order_relaxed);
  now.rewrites = rewrites.load(std::memory_order_relaxed);
  now.published = published.load(std::memory_order_relaxed);
  return now;
}

Status WriteObjects(int directory, const PartToWrite& part, const WriteOptions& options,
                    AtomicCounters* counters) {
  return PartWriter(directory, part, options, counters).Run();
}

Status WriteSmallFile(int directory, const std::string& name, absl::string_view bytes,
                      AtomicCounters* counters) {
  Status status;
  for (int writes = 0; writes < kMaxWrites; ++writes) {
    if (writes > 0) counters->rewrites.fetch_add(1, std::memory_order_relaxed);
    CAIRN_ASSIGN_OR_RETURN(UniqueFd fd,
                           OpenAt(directory, name, O_CREAT | O_EXCL | O_WRONLY, kFileMode));
    bool direct = false;
    status = WriteAt(fd.get(), bytes.data(), bytes.size(), 0, &direct);
    if (status.ok()) status = SyncAndClose(std::move(fd), counters);
    if (status.ok()) return status;
    CAIRN_RETURN_IF_ERROR(RemoveFileAt(directory, name));
    if (!WorthRewriting(status)) break;
  }
  return Annotate(status, name);
}

}  // namespace cairn::storage
