#include "server/cache/cache.h"

#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <list>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "common/checksum.h"
#include "common/mutex.h"
#include "server/cache/slab.h"

namespace cairn::cache {
namespace {

// The errors that Make may report. RESOURCE_EXHAUSTED stays as it is, because the caller then waits
// for memory; INVALID_ARGUMENT blames the caller's size; all others become INTERNAL.
Status AsMakeError(SlabId slab, const Status& status) {
  const Status named = Annotate(status, absl::StrCat("slab ", slab));
  if (absl::IsResourceExhausted(named) || absl::IsInvalidArgument(named)) return named;
  return absl::InternalError(named.message());
}

class CacheImpl final : public Cache {
 public:
  CacheImpl(const Options& options, SlabHolder* holder) : options_(options), holder_(holder) {}
  ~CacheImpl() override { Stop(); }

  Status StartThreads() {
    try {
      for (int i = 0; i < options_.prefault_threads; ++i) {
        threads_.emplace_back([this] { Prefault(); });
      }
      threads_.emplace_back([this] { Reap(); });
    } catch (const std::system_error& error) {
      return absl::ResourceExhaustedError(absl::StrCat("starting a cache thread: ", error.what()));
    }
    return absl::OkStatus();
  }

  void Make(SlabId slab, uint64_t bytes, fact::SlabUse use, Pages pages,
            std::function<void(Status)> done) override {
    auto making = std::make_shared<Making>();
    making->slab_id = slab;
    making->bytes = bytes;
    making->use = use;
    making->urgent = pages != Pages::kInTurn;
    if (pages == Pages::kByWriting) making->next_offset = bytes;
    making->done = std::move(done);
    MutexLock lock(&mu_);
    auto place = queue_.end();
    if (making->urgent) {
      place = std::find_if(queue_.begin(), queue_.end(), [](const auto& m) { return !m->urgent; });
    }
    queue_.insert(place, std::move(making));
    work_.NotifyAll();
  }

  void Hurry(SlabId slab) override {
    MutexLock lock(&mu_);
    const auto found = std::find_if(queue_.begin(), queue_.end(),
                                    [slab](const auto& m) { return m->slab_id == slab; });
    if (found == queue_.end()) return;
    (*found)->urgent = true;
    queue_.splice(queue_.begin(), queue_, found);
    work_.NotifyAll();  // a thread may sleep because only urgent slabs may be worked on
  }

  void Destroy(SlabId slab, std::function<void()> done) override {
    MutexLock lock(&mu_);
    std::shared_ptr<Slab> dying;
    if (const auto found = slabs_.find(slab); found != slabs_.end()) {
      dying = std::move(found->second);
      slabs_.erase(found);
    }
    dying_.push_back({slab, std::move(dying), std::move(done)});
    reap_.NotifyOne();
  }

  Status Adopt(SlabId slab, uint64_t bytes, UniqueFd fd) override {
    StatusOr<std::shared_ptr<Slab>> adopted = Slab::Adopt(std::move(fd), bytes);
    if (!adopted.ok()) return Annotate(adopted.status(), absl::StrCat("slab ", slab));
    MutexLock lock(&mu_);
    if (!slabs_.emplace(slab, *std::move(adopted)).second) {
      return absl::AlreadyExistsError(absl::StrCat("slab ", slab, ": adopted twice"));
    }
    return absl::OkStatus();
  }

  StatusOr<UniqueFd> Lend(SlabId slab, LeaseId lease, LeaseMode mode) override {
    CAIRN_ASSIGN_OR_RETURN(const auto found, Find(slab));
    lends_.fetch_add(1, std::memory_order_relaxed);
    return found->Lend(lease,
                       /*writable=*/mode == LeaseMode::kWrite || mode == LeaseMode::kStanding);
  }

  StatusOr<bool> LeaseOpen(SlabId slab, LeaseId lease) override {
    CAIRN_ASSIGN_OR_RETURN(const auto found, Find(slab));
    return found->LeaseOpen(lease);
  }

  StatusOr<SharedFd> Description(SlabId slab) override {
    CAIRN_ASSIGN_OR_RETURN(const auto found, Find(slab));
    return SharedFd(found, &found->description());
  }

  StatusOr<uint64_t> Inode(SlabId slab) override {
    CAIRN_ASSIGN_OR_RETURN(const auto found, Find(slab));
    struct stat stat = {};
    if (::fstat(found->fd(), &stat) != 0) return ErrnoStatus(errno, "fstat of a slab");
    return static_cast<uint64_t>(stat.st_ino);
  }

  StatusOr<bool> Probe(SlabId slab) override {
    CAIRN_ASSIGN_OR_RETURN(const auto found, Find(slab));
    probes_.fetch_add(1, std::memory_order_relaxed);
    return found->Probe();
  }

  Status Read(SlabId slab, uint64_t offset, absl::Span<char> into) override {
    CAIRN_ASSIGN_OR_RETURN(const auto found, FindRange(slab, offset, into.size()));
    if (into.empty()) return absl::OkStatus();
    return Annotate(Counted(found->Read(offset, into)), Name(slab));
  }

  Status Write(SlabId slab, uint64_t offset, absl::string_view bytes) override {
    CAIRN_ASSIGN_OR_RETURN(const auto found, FindRange(slab, offset, bytes.size()));
    if (bytes.empty()) return absl::OkStatus();
    return Annotate(found->Write(offset, bytes), Name(slab));
  }

  StatusOr<std::vector<uint32_t>> Crcs(const ExtentRef& extent, uint64_t length,
                                       uint32_t block_bytes) override {
    if (block_bytes == 0) return absl::InvalidArgumentError("block_bytes: 0");
    if (length > extent.length) {
      return absl::OutOfRangeError(absl::StrCat("slab ", extent.slab, ": ", length,
                                                " bytes of an extent of ", extent.length));
    }
    CAIRN_ASSIGN_OR_RETURN(const auto found, FindRange(extent.slab, extent.offset, length));
    std::vector<uint32_t> crcs(BlockCount(length, block_bytes));
    std::string piece(std::min<uint64_t>(kCheckedReadBytes, length), '\0');
    for (uint64_t at = 0; at < length;) {
      const uint64_t block = at / block_bytes;
      const uint64_t end = std::min(length, (block + 1) * block_bytes);
      const uint64_t n = std::min<uint64_t>(piece.size(), end - at);
      const Status read = Counted(found->Read(extent.offset + at, absl::MakeSpan(piece.data(), n)));
      if (!read.ok()) return Annotate(read, Name(extent.slab));
      crcs[block] = Crc32c(crcs[block], piece.data(), n);
      at += n;
    }
    return crcs;
  }

  Counters counters() const override {
    Counters counters;
    counters.slabs_made = slabs_made_.load(std::memory_order_relaxed);
    counters.slabs_destroyed = slabs_destroyed_.load(std::memory_order_relaxed);
    counters.bytes_faulted = bytes_faulted_.load(std::memory_order_relaxed);
    counters.lends = lends_.load(std::memory_order_relaxed);
    counters.probes = probes_.load(std::memory_order_relaxed);
    counters.bad_reads = bad_reads_.load(std::memory_order_relaxed);
    return counters;
  }

 private:
  // A slab that is being made. It is queued, then one thread prepares it, then one thread at a time
  // faults pieces of it (Slab::Populate says why only one). The thread that ends the last piece
  // finishes the slab.
  struct Making {
    SlabId slab_id = 0;
    uint64_t bytes = 0;
    fact::SlabUse use = fact::SlabUse::kObjects;
    bool urgent = false;
    std::function<void(Status)> done;

    enum class Stage { kQueued, kPreparing, kFaulting } stage = Stage::kQueued;
    std::shared_ptr<Slab> slab;  // set when kPreparing ends
    bool held = false;           // by the holder
    uint64_t next_offset = 0;    // of the next piece; all before it is faulted or being faulted
    bool piece_under_way = false;
    Status status;  // the first failure; no piece begins after it

    bool HasPiece() const {
      return stage == Stage::kFaulting && !piece_under_way && status.ok() && next_offset < bytes;
    }
    bool Finished() const {
      return stage == Stage::kFaulting && !piece_under_way &&
             (!status.ok() || next_offset >= bytes);
    }
  };
  struct Dying {
    SlabId slab_id = 0;
    std::shared_ptr<Slab> slab;  // null when there was none
    std::function<void()> done;
  };

  static std::string Name(SlabId slab) { return absl::StrCat("slab ", slab); }

  Status Counted(Status read) {
    if (!read.ok()) bad_reads_.fetch_add(1, std::memory_order_relaxed);
    return read;
  }

  StatusOr<std::shared_ptr<Slab>> Find(SlabId slab) {
    MutexLock lock(&mu_);
    const auto found = slabs_.find(slab);
    if (found == slabs_.end()) return absl::NotFoundError(absl::StrCat("slab ", slab));
    return found->second;
  }

  StatusOr<std::shared_ptr<Slab>> FindRange(SlabId slab, uint64_t offset, uint64_t length) {
    CAIRN_ASSIGN_OR_RETURN(auto found, Find(slab));
    if (offset > found->bytes() || length > found->bytes() - offset) {
      return absl::OutOfRangeError(absl::StrCat("slab ", slab, ": ", length, " bytes at ", offset,
                                                " are beyond its ", found->bytes()));
    }
    return found;
  }

  // --- prefault threads

  void Prefault() {
    mu_.Lock();
    while (!stopping_) {
      const std::shared_ptr<Making> making = NextWork();
      if (making == nullptr) {
        work_.Wait(&mu_);
        continue;
      }
      if (making->stage == Making::Stage::kQueued) {
        making->stage = Making::Stage::kPreparing;
        const bool twice = slabs_.contains(making->slab_id);
        mu_.Unlock();
        Status status = twice ? absl::InternalError("made twice") : Prepare(making.get());
        mu_.Lock();
        making->status = std::move(status);
        making->stage = Making::Stage::kFaulting;
        work_.NotifyAll();
      } else {
        const uint64_t offset = making->next_offset;
        const uint64_t length = std::min(options_.prefault_piece_bytes, making->bytes - offset);
        making->next_offset += length;
        making->piece_under_way = true;
        mu_.Unlock();
        Status status = making->slab->Populate(offset, length);
        mu_.Lock();
        making->piece_under_way = false;
        if (status.ok()) {
          bytes_faulted_.fetch_add(length, std::memory_order_relaxed);
        } else if (making->status.ok()) {
          making->status = std::move(status);
        }
      }
      if (making->Finished()) Finish(making);
    }
    mu_.Unlock();
  }

  // The other slabs wait while an urgent one is being made, even if a thread idles meanwhile:
  // memory limits faulting more than threads do, and a caller waits for the urgent slab.
  std::shared_ptr<Making> NextWork() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const bool only_urgent = !queue_.empty() && queue_.front()->urgent;
    for (const auto& making : queue_) {
      if (only_urgent && !making->urgent) break;
      if (making->stage == Making::Stage::kQueued || making->HasPiece()) return making;
    }
    return nullptr;
  }

  // Called without the lock, by the thread that set kPreparing; until it is done no other thread
  // uses these fields.
  Status Prepare(Making* making) {
    CAIRN_ASSIGN_OR_RETURN(making->slab,
                           Slab::Make(absl::StrCat("cairn-slab-", making->slab_id), making->bytes));
    // The holder gets the slab before its first page exists: pages that were faulted in must
    // survive this process and be charged only once.
    CAIRN_RETURN_IF_ERROR(
        holder_->Hold(making->slab_id, making->bytes, making->use, making->slab->fd()));
    making->held = true;
    return absl::OkStatus();
  }

  void Finish(const std::shared_ptr<Making>& making) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    queue_.remove(making);
    work_.NotifyAll();  // this may have been the last urgent slab; then the others go on
    const Status status = making->status;
    if (status.ok()) {
      slabs_[making->slab_id] = std::move(making->slab);
      slabs_made_.fetch_add(1, std::memory_order_relaxed);
    }
    mu_.Unlock();
    if (!status.ok()) {
      if (making->held) holder_->Drop(making->slab_id);
      Discard(std::move(making->slab));
    }
    making->done(status.ok() ? status : AsMakeError(making->slab_id, status));
    mu_.Lock();
  }

  // --- the reaper thread

  void Reap() {
    mu_.Lock();
    while (!stopping_) {
      if (dying_.empty()) {
        reap_.Wait(&mu_);
        continue;
      }
      Dying dying = std::move(dying_.front());
      dying_.pop_front();
      mu_.Unlock();
      // The holder first: a slab that it would hand to the next daemon must have all of its pages. It may
      // have one that could not be adopted here.
      holder_->Drop(dying.slab_id);
      if (dying.slab != nullptr) {
        Discard(std::move(dying.slab));
        slabs_destroyed_.fetch_add(1, std::memory_order_relaxed);
      }
      dying.done();
      mu_.Lock();
    }
    mu_.Unlock();
  }

  // Frees the pages now, for the holder may close its descriptor later. When that fails, the pages
  // go with the last descriptor.
  static void Discard(std::shared_ptr<Slab> slab) {
    if (slab != nullptr) slab->Free().IgnoreError();
  }

  void Stop() {
    {
      MutexLock lock(&mu_);
      stopping_ = true;
      work_.NotifyAll();
      reap_.NotifyAll();
    }
    for (std::thread& thread : threads_) thread.join();
    MutexLock lock(&mu_);
    for (const auto& making : queue_) {
      if (making->held) holder_->Drop(making->slab_id);
    }
  }

  // Constant after construction.
  const Options options_;
  SlabHolder* const holder_;
  std::vector<std::thread> threads_;

  std::atomic<uint64_t> slabs_made_{0}, slabs_destroyed_{0}, bytes_faulted_{0}, lends_{0},
      probes_{0}, bad_reads_{0};

  // Never held while a page is touched, the holder is called or a callback runs.
  Mutex mu_;
  CondVar work_;  // queue_, stopping_ or the set of slabs that may be worked on changed
  CondVar reap_;  // dying_ or stopping_ changed
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  // Urgent slabs stand before the others, each kind in order of arrival; Hurry moves one to the
  // front. A slab is in queue_, in slabs_ or in dying_, never in two of them.
  std::list<std::shared_ptr<Making>> queue_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<SlabId, std::shared_ptr<Slab>> slabs_ ABSL_GUARDED_BY(mu_);
  std::deque<Dying> dying_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

Status Options::Validate() const {
  if (prefault_threads < 1 || prefault_threads > 256) {
    return absl::InvalidArgumentError(
        absl::StrCat("prefault_threads: ", prefault_threads, " is not in 1 … 256"));
  }
  if (prefault_piece_bytes == 0 || prefault_piece_bytes % kPageBytes != 0) {
    return absl::InvalidArgumentError(absl::StrCat("prefault_piece_bytes: ", prefault_piece_bytes,
                                                   " is not a positive multiple of ", kPageBytes));
  }
  return absl::OkStatus();
}

StatusOr<std::unique_ptr<Cache>> Cache::Start(const Options& options, SlabHolder* holder) {
  CAIRN_RETURN_IF_ERROR(options.Validate());
  // The kernel sends SIGIO to the daemon when a process opens a slab by path during a probe. Its
  // default action ends the process.
  if (::signal(SIGIO, SIG_IGN) == SIG_ERR) return ErrnoStatus(errno, "ignoring SIGIO");
  auto cache = std::make_unique<CacheImpl>(options, holder);
  CAIRN_RETURN_IF_ERROR(cache->StartThreads());
  return cache;
}

}  // namespace cairn::cache
