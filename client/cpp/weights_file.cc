#include "client/cpp/weights_file.h"

#include <algorithm>
#include <utility>

#include "client/cpp/process.h"
#include "common/fd.h"
#include "common/safetensors.h"

namespace cairn::client {
namespace {

constexpr uint64_t kMostBlocks = 16;  // of one read, so that all copy threads have work

// How many blocks from `first` on lie one behind the other in their object.
size_t RunOfBlocks(const std::vector<PlannedBlock>& blocks, size_t first) {
  size_t n = 1;
  while (n < kMostBlocks && first + n < blocks.size() &&
         blocks[first + n].object == blocks[first].object &&
         blocks[first + n].block == blocks[first].block + n) {
    ++n;
  }
  return n;
}

// The pieces of one block, which lies at `bytes`. Adds what it writes to `written`.
Status WritePieces(const WeightsFile& file, const PlannedBlock& block, const char* bytes, int fd,
                   uint64_t* written) {
  for (const PlannedPiece& piece : block.pieces) {
    for (uint64_t i = 0; i < piece.count; ++i) {
      CAIRN_RETURN_IF_ERROR(PwriteAll(fd, bytes + piece.from + i * piece.from_pitch, piece.width,
                                      file.begin[piece.tensor] + piece.to + i * piece.to_pitch));
    }
    *written += piece.count * piece.width;
  }
  return absl::OkStatus();
}

}  // namespace

StatusOr<WeightsFile> LayOutFile(const Weights& weights, const Selection& selection) {
  WeightsFile file;
  CAIRN_ASSIGN_OR_RETURN(file.plan, MakePlan(weights.index(), selection));
  std::vector<TensorEntry> entries;
  for (const WantedTensor& tensor : file.plan.tensors) {
    entries.push_back({tensor.name, tensor.dtype, tensor.shape});
  }
  const std::vector<size_t> order = StorageOrder(entries);
  std::vector<TensorEntry> in_order;
  for (const size_t i : order) in_order.push_back(entries[i]);
  CAIRN_ASSIGN_OR_RETURN(file.header, EncodeSafetensorsHeader(in_order, weights.metadata()));
  file.begin.resize(order.size());
  file.bytes = file.header.size();
  for (const size_t i : order) {
    file.begin[i] = file.bytes;
    file.bytes += file.plan.tensors[i].bytes;
  }
  return file;
}

Status WriteFile(const Weights& weights, const WeightsFile& file, int fd, const std::string& where,
                 absl::FunctionRef<void(uint64_t bytes)> written) {
  return Contain([&]() -> Status {
    CAIRN_RETURN_IF_ERROR(
        Annotate(PwriteAll(fd, file.header.data(), file.header.size(), 0), where));
    uint64_t done = file.header.size();
    const std::vector<PlannedBlock>& blocks = file.plan.blocks;
    std::string bytes;
    for (size_t first = 0; first < blocks.size();) {
      const size_t n = RunOfBlocks(blocks, first);
      OpenObject* const object = weights.objects()[blocks[first].object].get();
      const uint64_t begin = blocks[first].block * kBlockBytes;
      bytes.resize(std::min<uint64_t>(n * kBlockBytes, object->info().length - begin));
      CAIRN_RETURN_IF_ERROR(object->ReadRange(begin, bytes.size(), bytes.data()));
      for (size_t i = 0; i < n; ++i) {
        CAIRN_RETURN_IF_ERROR(Annotate(
            WritePieces(file, blocks[first + i], bytes.data() + i * kBlockBytes, fd, &done),
            where));
      }
      written(done);
      first += n;
    }
    return absl::OkStatus();
  });
}

}  // namespace cairn::client
