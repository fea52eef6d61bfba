#include "client/cpp/block_reader.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>
#include <utility>

#include "client/cpp/process.h"
#include "common/checksum.h"
#include "common/keys.h"
#include "common/mutex.h"

namespace cairn::client {
namespace {

Status CheckCount(const BlockSource& source) {
  const uint64_t blocks = BlockCount(source.length, kBlockBytes);
  if (source.block_crcs->size() == blocks) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(source.what, ": ", source.block_crcs->size(),
                                          " checksums for ", blocks, " blocks"));
}

Status CheckBlock(const BlockSource& source, uint64_t block, uint32_t crc) {
  if ((*source.block_crcs)[block] == crc) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(source.what, ": block ", block, " of ",
                                          source.block_crcs->size(),
                                          " does not match its checksum"));
}

// Memory of kCheckedReadBytes each for as many threads as ask at once: they are used for one block after the other,
// and stay in those threads' caches.
class Buffers {
 public:
  std::unique_ptr<char[]> Take() {
    MutexLock lock(&mu_);
    if (free_.empty()) return std::make_unique_for_overwrite<char[]>(kCheckedReadBytes);
    std::unique_ptr<char[]> taken = std::move(free_.back());
    free_.pop_back();
    return taken;
  }
  void Return(std::unique_ptr<char[]> buffer) {
    MutexLock lock(&mu_);
    free_.push_back(std::move(buffer));
  }

 private:
  Mutex mu_;
  std::vector<std::unique_ptr<char[]>> free_ ABSL_GUARDED_BY(mu_);
};

// Runs `work` for the blocks [first, last). Returns the failure of the lowest block that failed.
Status ForBlocks(CopyThreads* threads, uint64_t first, uint64_t last,
                 absl::FunctionRef<Status(uint64_t block)> work) {
  std::atomic<bool> failed{false};
  Mutex mu;
  Status status;
  uint64_t failed_block = std::numeric_limits<uint64_t>::max();
  const auto run = [&](size_t i) {
    if (failed.load(std::memory_order_relaxed)) return;
    const Status one = Contain([&] { return work(first + i); });
    if (one.ok()) return;
    MutexLock lock(&mu);
    if (first + i < failed_block) {
      failed_block = first + i;
      status = one;
    }
    failed = true;
  };
  threads->Run(last - first, run);
  return status;
}

}  // namespace

Status ReadBlocks(CopyThreads* threads, const BlockSource& source, uint64_t offset, uint64_t length,
                  char* into, ReadPiece read) {
  if (offset > source.length || length > source.length - offset) {
    return absl::OutOfRangeError(absl::StrCat(source.what, ": range ", offset, " + ", length,
                                              " is beyond its ", source.length, " bytes"));
  }
  CAIRN_RETURN_IF_ERROR(CheckCount(source));
  if (length == 0) return absl::OkStatus();
  const uint64_t end = offset + length;
  return ForBlocks(threads, offset / kBlockBytes, (end + kBlockBytes - 1) / kBlockBytes,
                   [&](uint64_t block) -> Status {
                     const uint64_t begin = block * kBlockBytes;
                     const uint64_t stop = std::min<uint64_t>(source.length, begin + kBlockBytes);
                     const bool whole = begin >= offset && stop <= end;
                     std::vector<char> aside(whole ? 0 : stop - begin);
                     char* const to = whole ? into + (begin - offset) : aside.data();
                     uint32_t crc = 0;
                     for (uint64_t at = begin; at < stop; at += kCheckedReadBytes) {
                       const uint64_t n = std::min(kCheckedReadBytes, stop - at);
                       CAIRN_RETURN_IF_ERROR(read(at, n, to + (at - begin)));
                       crc = Crc32c(crc, to + (at - begin), n);
                     }
                     CAIRN_RETURN_IF_ERROR(CheckBlock(source, block, crc));
                     if (!whole) {
                       const uint64_t from = std::max(begin, offset), until = std::min(stop, end);
                       std::copy(aside.data() + (from - begin), aside.data() + (until - begin),
                                 into + (from - offset));
                     }
                     return absl::OkStatus();
                   });
}

Status ReadPiecesOf(CopyThreads* threads, const BlockSource& source,
                    absl::Span<const StridedPiece> wanted, ReadPiece read,
                    const ObjectMemory& memory) {
  CAIRN_RETURN_IF_ERROR(CheckCount(source));
  CAIRN_ASSIGN_OR_RETURN(const StridedPieces pieces, StridedPieces::Make(wanted, source.length));
  const std::vector<uint64_t>& blocks = pieces.blocks();
  Buffers buffers;
  return ForBlocks(threads, 0, blocks.size(), [&](uint64_t i) -> Status {
    const uint64_t begin = blocks[i] * kBlockBytes;
    const uint64_t stop = std::min<uint64_t>(source.length, begin + kBlockBytes);
    std::unique_ptr<char[]> buffer = buffers.Take();
    const char* const there = memory.Enter(begin, stop);
    uint32_t crc = 0;
    for (uint64_t at = begin; at < stop; at += kCheckedReadBytes) {
      const uint64_t n = std::min(kCheckedReadBytes, stop - at);
      if (there != nullptr) {
        crc = pieces.CopyOnce(i, at, n, there + (at - begin), buffer.get(), crc);
        continue;
      }
      CAIRN_RETURN_IF_ERROR(read(at, n, buffer.get()));
      crc = pieces.Copy(i, at, n, buffer.get(), crc);
    }
    if (there != nullptr) memory.Leave(begin, stop);
    buffers.Return(std::move(buffer));
    return CheckBlock(source, blocks[i], crc);
  });
}

Status PutBlocks(const BlockSource& source, const StridedPieces& pieces, uint64_t first,
                 const char* bytes, uint64_t length) {
  CAIRN_RETURN_IF_ERROR(CheckCount(source));
  const uint64_t begin = first * kBlockBytes;
  if (first >= source.block_crcs->size() || length > source.length - begin ||
      (length % kBlockBytes != 0 && length != source.length - begin)) {
    return absl::InvalidArgumentError(absl::StrCat(source.what, ": ", length, " bytes at block ",
                                                   first, " are not whole blocks of its ",
                                                   source.length, " bytes"));
  }
  const std::vector<uint64_t>& blocks = pieces.blocks();
  const auto found = std::lower_bound(blocks.begin(), blocks.end(), first);
  for (auto i = static_cast<size_t>(found - blocks.begin());
       i < blocks.size() && blocks[i] * kBlockBytes < begin + length; ++i) {
    const uint64_t at_block = blocks[i] * kBlockBytes;
    const uint64_t stop = std::min<uint64_t>(source.length, at_block + kBlockBytes);
    uint32_t crc = 0;
    for (uint64_t at = at_block; at < stop; at += kCheckedReadBytes) {
      const uint64_t n = std::min(kCheckedReadBytes, stop - at);
      crc = pieces.Copy(i, at, n, bytes + (at - begin), crc);
    }
    CAIRN_RETURN_IF_ERROR(CheckBlock(source, blocks[i], crc));
  }
  return absl::OkStatus();
}

Status CheckBlocks(CopyThreads* threads, const BlockSource& source, ReadPiece read) {
  CAIRN_RETURN_IF_ERROR(CheckCount(source));
  return ForBlocks(threads, 0, source.block_crcs->size(), [&](uint64_t block) -> Status {
    const uint64_t begin = block * kBlockBytes;
    const uint64_t stop = std::min<uint64_t>(source.length, begin + kBlockBytes);
    std::vector<char> piece(std::min(kCheckedReadBytes, stop - begin));
    uint32_t crc = 0;
    for (uint64_t at = begin; at < stop; at += piece.size()) {
      const uint64_t n = std::min<uint64_t>(piece.size(), stop - at);
      CAIRN_RETURN_IF_ERROR(read(at, n, piece.data()));
      crc = Crc32c(crc, piece.data(), n);
    }
    return CheckBlock(source, block, crc);
  });
}

}  // namespace cairn::client
