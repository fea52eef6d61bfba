#include "client/gpu/buckets.h"

#include <algorithm>
#include <utility>

namespace cairn::gpu {
namespace {

constexpr uint32_t kNone = ~uint32_t{0};

// Fills in where each tensor begins and ends. One without bytes comes with the one before it.
void FindTensors(size_t tensors, std::vector<Bucket>* buckets) {
  std::vector<uint32_t> first(tensors, kNone), last(tensors, 0);
  for (uint32_t b = 0; b < buckets->size(); ++b) {
    for (const client::PlannedBlock& block : (*buckets)[b].blocks) {
      for (const client::PlannedPiece& piece : block.pieces) {
        first[piece.tensor] = std::min(first[piece.tensor], b);
        last[piece.tensor] = b;
      }
    }
  }
  if (buckets->empty() && tensors > 0) buckets->emplace_back();
  for (uint32_t t = 0; t < tensors; ++t) {
    if (first[t] == kNone) first[t] = last[t] = t == 0 ? 0 : last[t - 1];
    (*buckets)[first[t]].begins.push_back(t);
    (*buckets)[last[t]].ends.push_back(t);
  }
}

}  // namespace

uint64_t WantedBytes(const client::PlannedBlock& block) {
  uint64_t bytes = 0;
  for (const client::PlannedPiece& piece : block.pieces) bytes += piece.width * piece.count;
  return bytes;
}

std::vector<Bucket> CutByBytes(client::Plan& plan, uint64_t first, uint64_t bytes) {
  std::vector<Bucket> buckets;
  uint64_t left = 0;
  for (client::PlannedBlock& block : plan.blocks) {
    const uint64_t wanted = WantedBytes(block);
    if (buckets.empty() || left < wanted) {
      left = buckets.empty() ? first : bytes;
      buckets.emplace_back();
    }
    left -= std::min(left, wanted);
    buckets.back().blocks.push_back(std::move(block));
  }
  plan.blocks.clear();
  FindTensors(plan.tensors.size(), &buckets);
  return buckets;
}

ViewBuckets CutByTensors(client::Plan& plan, uint64_t bytes, uint64_t alignment) {
  ViewBuckets cut;
  std::vector<uint32_t> bucket_of;
  uint32_t bucket = 0;
  uint64_t used = 0;
  for (const client::WantedTensor& tensor : plan.tensors) {
    if (tensor.bytes > bytes) {
      cut.offset.push_back(kNoBuffer);
    } else {
      const uint64_t rounded = (tensor.bytes + alignment - 1) / alignment * alignment;
      if (used > 0 && used + tensor.bytes > bytes) {
        ++bucket;
        used = 0;
      }
      cut.offset.push_back(used);
      used += rounded;
    }
    bucket_of.push_back(bucket);
  }
  if (!plan.tensors.empty()) cut.buckets.resize(bucket + 1);
  for (client::PlannedBlock& block : plan.blocks) {
    for (client::PlannedPiece& piece : block.pieces) {
      std::vector<client::PlannedBlock>& blocks = cut.buckets[bucket_of[piece.tensor]].blocks;
      if (blocks.empty() || blocks.back().object != block.object ||
          blocks.back().block != block.block) {
        blocks.push_back({block.object, block.block, {}});
      }
      blocks.back().pieces.push_back(piece);
    }
  }
  plan.blocks.clear();
  for (uint32_t t = 0; t < plan.tensors.size(); ++t) {
    cut.buckets[bucket_of[t]].begins.push_back(t);
    cut.buckets[bucket_of[t]].ends.push_back(t);
  }
  return cut;
}

}  // namespace cairn::gpu
