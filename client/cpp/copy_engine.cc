#include "client/cpp/copy_engine.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "client/cpp/device_reader.h"
#include "client/cpp/object_bytes.h"
#include "client/cpp/process.h"
#include "common/checksum.h"
#include "common/copy.h"

namespace cairn::client {
namespace {

// A record this small stays in the second-level cache between its CRC-32 and its copy, so its header
// can be written first and no checksum has to be combined afterwards. This is what makes archives of
// many small tensors fast.
constexpr uint64_t kSmallRecord = 128 << 10;

// Part of a block whose checksum was taken in one go.
struct Run {
  uint64_t offset = 0;
  uint64_t length = 0;
  uint32_t crc32c = 0;
  uint32_t zip_crc = 0;
  int32_t record = -1;
  int32_t segment = -1;    // of a literal that is still to be written; -1: none
  bool on_device = false;  // a piece that its device brings
};

uint64_t BlockEnd(uint64_t length, uint64_t block) {
  return std::min<uint64_t>(length, (block + 1) * kBlockBytes);
}

void Progress(ProgressPage* page, uint64_t bytes) {
  if (page == nullptr) return;
  std::atomic_ref<uint64_t>(page->bytes_done).fetch_add(bytes, std::memory_order_relaxed);
}

// What one device brings.
struct DevicePieces {
  DeviceReader* device = nullptr;
  std::vector<DeviceReader::Piece> pieces;

  Status Read(ProgressPage* progress) {
    CAIRN_RETURN_IF_ERROR(device->Read(absl::MakeSpan(pieces)));
    uint64_t bytes = 0;
    for (const DeviceReader::Piece& piece : pieces) bytes += piece.bytes;
    Progress(progress, bytes);
    return absl::OkStatus();
  }
};

// The copy of one object. Many threads copy its blocks; no two of them write the same memory.
class ObjectCopy {
 public:
  explicit ObjectCopy(const CopyTask& task)
      : layout_(*task.layout),
        into_(task.into),
        populate_(task.populate),
        runs_(BlockCount(layout_.length(), kBlockBytes)),
        crcs_(layout_.records(), 0) {}

  size_t blocks() const { return runs_.size(); }

  // What devices bring of it, in the order of the object, each piece within a block and a segment.
  void AddPieces(std::vector<DevicePieces>* devices) {
    if (layout_.devices().empty()) return;
    for (size_t i = 0; i < layout_.segments().size(); ++i) {
      const Segment& segment = layout_.segments()[i];
      if (segment.device == nullptr) continue;
      const uint64_t begin = layout_.starts()[i], end = begin + segment.length;
      auto device = std::find_if(devices->begin(), devices->end(), [&](const DevicePieces& of) {
        return of.device == segment.device;
      });
      if (device == devices->end()) device = devices->insert(devices->end(), {segment.device, {}});
      for (uint64_t at = begin; at < end;) {
        const uint64_t n = std::min(end, BlockEnd(layout_.length(), at / kBlockBytes)) - at;
        pieces_.emplace_back(device - devices->begin(), device->pieces.size());
        device->pieces.push_back(DevicePieceOf(segment, at - begin, into_ + at, n));
        at += n;
      }
    }
  }

  Status CopyBlock(size_t block, ProgressPage* progress) {
    const uint64_t begin = block * uint64_t{kBlockBytes};
    const uint64_t end = BlockEnd(layout_.length(), block);
    if (populate_) Populate(into_ + begin, into_ + end);
    const auto& starts = layout_.starts();
    const auto& segments = layout_.segments();
    size_t i = static_cast<size_t>(std::upper_bound(starts.begin(), starts.end(), begin) -
                                   starts.begin()) -
               1;
    std::vector<Run>& runs = runs_[block];
    uint64_t brought = 0;  // by devices
    for (uint64_t at = begin; at < end; ++i) {
      const Segment& segment = segments[i];
      const uint64_t skip = at - starts[i];
      const uint64_t n = std::min(segment.length - skip, end - at);
      if (n == 0) continue;
      if (segment.literal >= 0) {
        if (skip == 0 && SmallRecordFollows(i, end)) {
          const uint64_t done = CopySmallRecord(&i, at, end, &runs);
          if (done == 0) return absl::InternalError("zip header of an unexpected length");
          at += done;
          continue;
        }
        runs.push_back({at, n, 0, 0, -1, static_cast<int32_t>(i)});
      } else if (segment.device != nullptr) {
        runs.push_back({at, n, 0, 0, segment.record, -1, true});
        brought += n;
      } else {
        Run* run = Extend(&runs, at, segment.record);
        const char* from = static_cast<const char*>(segment.data) + skip;
        if (segment.fd >= 0) {
          CAIRN_RETURN_IF_ERROR(
              ReadSourceFile(segment.fd, segment.offset + skip, into_ + at, n, &run->crc32c));
        } else if (segment.record >= 0) {
          CopyCrcs(into_ + at, from, n, &run->crc32c, &run->zip_crc);
        } else {
          run->crc32c = CopyCrc32c(into_ + at, from, n, run->crc32c);
        }
        run->length += n;
      }
      at += n;
    }
    Progress(progress, end - begin - brought);
    return absl::OkStatus();
  }

  // Called after the last block and the last piece of `devices`: writes the literals, then sums up the blocks' checksums
  // and the ranges that were written.
  Status Finish(const std::vector<DevicePieces>& devices, Written* result) {
    auto next = pieces_.begin();
    for (auto& runs : runs_) {
      for (Run& run : runs) {
        if (run.on_device) {
          const auto& [device, index] = *next++;
          const DeviceReader::Piece& piece = devices[device].pieces[index];
          run.crc32c = piece.crc32c;
          run.zip_crc = piece.zip_crc;
        }
        if (run.record < 0) continue;
        crcs_[run.record] = ZipCrc32Combine(crcs_[run.record], run.zip_crc, run.length);
      }
    }
    CAIRN_RETURN_IF_ERROR(WriteLiterals());
    for (const auto& runs : runs_) {
      uint32_t crc = 0;
      for (const Run& run : runs) {
        crc = crc == 0 ? run.crc32c : Crc32cCombine(crc, run.crc32c, run.length);
        if (!result->covered.empty() && result->covered.back().second == run.offset) {
          result->covered.back().second += run.length;
        } else {
          result->covered.emplace_back(run.offset, run.offset + run.length);
        }
      }
      result->block_crcs.push_back(crc);
    }
    return absl::OkStatus();
  }

 private:
  // The run to which bytes at `at` are added. Bytes of different records belong to different runs,
  // because each run has one CRC-32.
  static Run* Extend(std::vector<Run>* runs, uint64_t at, int32_t record) {
    if (runs->empty() || runs->back().segment >= 0 || runs->back().record != record ||
        runs->back().on_device) {
      runs->push_back({at, 0, 0, 0, record, -1});
    }
    return &runs->back();
  }

  // True when literal `i` is the header of a small record whose data ends at or before `end`.
  bool SmallRecordFollows(size_t i, uint64_t end) const {
    const auto& segments = layout_.segments();
    const int32_t record = segments[i].record;
    if (record < 0 || segments[i].behind) return false;
    size_t j = i + 1;
    for (; j < segments.size() && segments[j].literal < 0 && segments[j].record == record; ++j) {
      if (segments[j].device != nullptr) return false;
    }
    const uint64_t stop = layout_.starts()[j];
    return stop <= end && stop - layout_.starts()[i + 1] <= kSmallRecord;
  }

  // Writes header and data of the record whose header is segment *i, and the literal behind it where that carries no
  // other's CRC-32 and ends at or before `end`; leaves *i at the last segment written.
  // Returns the bytes written, 0 when a literal was not as long as planned.
  uint64_t CopySmallRecord(size_t* i, uint64_t at, uint64_t end, std::vector<Run>* runs) {
    const auto& segments = layout_.segments();
    const int32_t record = segments[*i].record;
    size_t j = *i + 1;
    uint32_t zip_crc = 0;
    for (; j < segments.size() && segments[j].literal < 0 && segments[j].record == record; ++j) {
      zip_crc = ZipCrc32(zip_crc, segments[j].data, segments[j].length);
    }
    crcs_[record] = zip_crc;
    Run* run = Extend(runs, at, -1);
    const uint64_t before = run->length;
    const auto add = [&](const void* from, uint64_t length) {
      run->crc32c = CopyCrc32c(into_ + at + (run->length - before), from, length, run->crc32c);
      run->length += length;
    };
    const auto add_literal = [&](const Segment& segment) {
      const StatusOr<std::string> bytes = layout_.Literal(segment, crcs_);
      if (!bytes.ok() || bytes->size() != segment.length) return false;
      add(bytes->data(), bytes->size());
      return true;
    };
    if (!add_literal(segments[*i])) return 0;
    for (size_t k = *i + 1; k < j; ++k) add(segments[k].data, segments[k].length);
    if (j < segments.size() && segments[j].behind && layout_.starts()[j + 1] <= end) {
      if (!add_literal(segments[j])) return 0;
      ++j;
    }
    *i = j - 1;
    return run->length - before;
  }

  Status WriteLiterals() {
    int32_t made = -1;  // a literal may lie in several blocks, one after the other
    std::string bytes;
    for (auto& runs : runs_) {
      for (Run& run : runs) {
        if (run.segment < 0) continue;
        const Segment& segment = layout_.segments()[run.segment];
        if (made != run.segment) {
          CAIRN_ASSIGN_OR_RETURN(bytes, layout_.Literal(segment, crcs_));
          if (bytes.size() != segment.length) {
            return absl::InternalError(
                absl::StrCat("zip literal of ", bytes.size(), " bytes, planned: ", segment.length));
          }
          made = run.segment;
        }
        const uint64_t skip = run.offset - layout_.starts()[run.segment];
        run.crc32c = CopyCrc32c(into_ + run.offset, bytes.data() + skip, run.length, 0);
      }
    }
    return absl::OkStatus();
  }

  const ObjectLayout& layout_;
  char* const into_;
  const bool populate_;
  std::vector<std::vector<Run>> runs_;             // per block, in order
  std::vector<uint32_t> crcs_;                     // CRC-32 per record
  std::vector<std::pair<size_t, size_t>> pieces_;  // which of which device, in order
};

}  // namespace

void Populate(char* from, char* to) {
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
  const uintptr_t begin = reinterpret_cast<uintptr_t>(from) & ~uintptr_t{kPageBytes - 1};
  const uintptr_t end =
      (reinterpret_cast<uintptr_t>(to) + kPageBytes - 1) & ~uintptr_t{kPageBytes - 1};
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_POPULATE_READ);
}

Status CopyObjects(CopyThreads* threads, absl::Span<const CopyTask> tasks, ProgressPage* progress,
                   std::vector<Written>* results, const std::atomic<bool>* beside) {
  std::vector<ObjectCopy> copies;
  copies.reserve(tasks.size());
  std::vector<DevicePieces> devices;
  std::vector<std::pair<uint32_t, uint32_t>> units;  // task, block
  for (const CopyTask& task : tasks) {
    copies.emplace_back(task);
    copies.back().AddPieces(&devices);
    for (size_t block = 0; block < copies.back().blocks(); ++block) {
      units.emplace_back(static_cast<uint32_t>(copies.size() - 1), static_cast<uint32_t>(block));
    }
  }
  std::atomic<bool> failed{false};
  Mutex mu;
  Status first;
  const auto run = [&](size_t i) {
    if (failed.load(std::memory_order_relaxed)) return;
    const Status status = Contain([&] {
      // First, so that what devices do goes on beside the copies.
      if (i < devices.size()) return devices[i].Read(progress);
      const auto [task, block] = units[i - devices.size()];
      return copies[task].CopyBlock(block, progress);
    });
    if (status.ok()) return;
    MutexLock lock(&mu);
    if (first.ok()) first = status;
    failed = true;
  };
  threads->Run(devices.size() + units.size(), run, beside);
  CAIRN_RETURN_IF_ERROR(first);
  results->assign(tasks.size(), Written());
  for (size_t i = 0; i < tasks.size(); ++i) {
    CAIRN_RETURN_IF_ERROR(copies[i].Finish(devices, &(*results)[i]));
  }
  return absl::OkStatus();
}

void ChecksumObjects(CopyThreads* threads, absl::Span<const ChecksumTask> tasks,
                     ProgressPage* progress, std::vector<Written>* results,
                     const std::atomic<bool>* beside) {
  results->assign(tasks.size(), Written());
  std::vector<std::pair<uint32_t, uint32_t>> units;  // task, block
  for (size_t i = 0; i < tasks.size(); ++i) {
    Written& written = (*results)[i];
    written.block_crcs.resize(BlockCount(tasks[i].length, kBlockBytes));
    if (tasks[i].length > 0) written.covered.emplace_back(0, tasks[i].length);
    for (size_t block = 0; block < written.block_crcs.size(); ++block) {
      units.emplace_back(static_cast<uint32_t>(i), static_cast<uint32_t>(block));
    }
  }
  const auto run = [&](size_t i) {
    const auto [task, block] = units[i];
    const uint64_t begin = block * uint64_t{kBlockBytes};
    const uint64_t length = BlockEnd(tasks[task].length, block) - begin;
    (*results)[task].block_crcs[block] = Crc32c(0, tasks[task].bytes + begin, length);
    Progress(progress, length);
  };
  threads->Run(units.size(), run, beside);
}

Status SendObject(const ObjectLayout& layout, ProgressPage* progress,
                  absl::FunctionRef<Status(uint64_t offset, absl::string_view bytes)> send,
                  Written* result) {
  CAIRN_ASSIGN_OR_RETURN(const ObjectBytes bytes, ObjectBytes::Make(&layout));
  *result = Written();
  std::string block;
  for (uint64_t sent = 0; sent < bytes.length(); sent += block.size()) {
    block.resize(std::min<uint64_t>(kBlockBytes, bytes.length() - sent));
    CAIRN_RETURN_IF_ERROR(bytes.Read(sent, block.size(), block.data()));
    CAIRN_RETURN_IF_ERROR(send(sent, block));
    result->block_crcs.push_back(Crc32c(0, block.data(), block.size()));
    Progress(progress, block.size());
  }
  if (bytes.length() > 0) result->covered.emplace_back(0, bytes.length());
  return absl::OkStatus();
}

}  // namespace cairn::client
