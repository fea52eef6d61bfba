// Weights in a slab of this process, read as a client of a daemon reads an object in memory: through a descriptor.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/cpp/weights_index.h"
#include "client/gpu/source.h"
#include "common/checksum.h"
#include "common/fd.h"
#include "common/keys.h"
#include "tests/support/measure.h"

namespace cairn::gpu {

class SlabSource : public Source {
 public:
  // `bytes` of it, other ones for each seed; every page is there.
  SlabSource(uint64_t bytes, uint64_t seed)
      : bytes_(bytes),
        fd_(testing::Must(MakeMemfd("weights", bytes, 0600))),
        mapping_(
            testing::Must(Mapping::Map(fd_.get(), 0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED))),
        crcs_(BlockCount(bytes, kBlockBytes)) {
    Fill(seed);
  }

  void Fill(uint64_t seed) {
    const size_t threads = std::max(1u, std::thread::hardware_concurrency());
    std::vector<std::thread> fillers;
    for (size_t t = 0; t < threads; ++t) {
      fillers.emplace_back([this, seed, t, threads] {
        for (size_t block = t; block < crcs_.size(); block += threads) {
          const uint64_t begin = block * kBlockBytes;
          const uint64_t n = std::min<uint64_t>(kBlockBytes, bytes_ - begin);
          auto* const words = reinterpret_cast<uint64_t*>(mapping_.data() + begin);
          for (uint64_t i = 0; i < n / 8; ++i) {
            words[i] = (seed + begin + i) * 0x9e3779b97f4a7c15u;
          }
          crcs_[block] = Crc32c(0, words, n);
        }
      });
    }
    for (std::thread& filler : fillers) filler.join();
    memory_ = "slab of seed " + std::to_string(seed);
  }

  bool is_mapped = true;  // or read through the descriptor
  const char* data() const { return mapping_.data(); }
  const std::string& what() const override { return what_; }
  uint64_t length() const override { return bytes_; }
  const std::vector<uint32_t>& block_crcs() const override { return crcs_; }

  const char* Mapped(uint64_t block) override {
    return is_mapped ? mapping_.data() + block * kBlockBytes : nullptr;
  }
  const std::string& memory() const override { return memory_; }

  client::StandingPlace standing() override {
    return {what_, 0, [this](const std::function<void()>&) { return MapForGood(); }};
  }

  Status Read(uint64_t block, void* into, uint32_t* crc) override {
    const uint64_t begin = block * kBlockBytes;
    const uint64_t n = std::min<uint64_t>(kBlockBytes, bytes_ - begin);
    if (crc == nullptr) return PreadAll(fd_.get(), into, n, begin);
    *crc = 0;
    for (uint64_t at = 0; at < n; at += kCheckedReadBytes) {
      const uint64_t piece = std::min(kCheckedReadBytes, n - at);
      char* const to = static_cast<char*>(into) + at;
      CAIRN_RETURN_IF_ERROR(PreadAll(fd_.get(), to, piece, begin + at));
      *crc = Crc32c(*crc, to, piece);
    }
    return absl::OkStatus();
  }
  Status ReadChecked(uint64_t block, void* into) override {
    uint32_t crc = 0;
    CAIRN_RETURN_IF_ERROR(Read(block, into, &crc));
    if (crc == crcs_[block]) return absl::OkStatus();
    return absl::DataLossError(what_ + ": a block does not match its checksum");
  }

 private:
  struct Standing : client::StandingMapping {
    explicit Standing(Mapping of) : mapping(std::move(of)) {}
    char* data() const override { return mapping.data(); }
    uint64_t bytes() const override { return mapping.length(); }
    Mapping mapping;
  };
  StatusOr<std::unique_ptr<client::StandingMapping>> MapForGood() const {
    CAIRN_ASSIGN_OR_RETURN(Mapping mapping,
                           Mapping::Map(fd_.get(), 0, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED));
    return std::make_unique<Standing>(std::move(mapping));
  }

  const std::string what_ = "a slab";
  const uint64_t bytes_;
  const UniqueFd fd_;
  const Mapping mapping_;
  std::vector<uint32_t> crcs_;
  std::string memory_;
};

// `count` tensors of `rows` × `columns` bytes, one after the other, in one object.
inline client::WeightsIndex EvenWeights(uint64_t count, uint64_t rows, uint64_t columns) {
  client::WeightsIndex index;
  index.objects = {"model.safetensors"};
  for (uint64_t i = 0; i < count; ++i) {
    index.tensors.push_back({"layers." + std::to_string(i),
                             "U8",
                             {rows, columns},
                             {{0, i * rows * columns, {0, 0}, {rows, columns}}}});
  }
  return index;
}

}  // namespace cairn::gpu
