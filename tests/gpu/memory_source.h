// An object in this process's memory, as a Source, with faults that tests ask for.
#pragma once

#include <atomic>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "client/gpu/source.h"
#include "common/checksum.h"
#include "common/keys.h"
#include "common/mutex.h"

namespace cairn::gpu {

class MemorySource : public Source {
 public:
  MemorySource(std::string what, std::shared_ptr<const std::string> bytes, bool mapped = false)
      : what_(std::move(what)),
        memory_(mapped ? what_ : ""),
        bytes_(std::move(bytes)),
        crcs_(BlockCrcs(bytes_->data(), bytes_->size(), kBlockBytes)) {}

  // Read gives this block with one bit changed; ReadChecked finds it good, or has no copy that is.
  void Damage(uint64_t block, bool for_good = false) {
    MutexLock lock(&mutex_);
    (for_good ? lost_ : damaged_).insert(block);
  }
  void FailReads(Status with) {
    MutexLock lock(&mutex_);
    reads_fail_ = std::move(with);
  }
  uint64_t reads() const { return reads_; }
  // Changes a bit of what is mapped, and read; ReadChecked still has it right.
  void FlipMapped(uint64_t at) {
    MutexLock lock(&mutex_);
    flipped_ = *bytes_;
    flipped_[at] ^= 1;
  }

  const std::string& what() const override { return what_; }
  uint64_t length() const override { return bytes_->size(); }
  const std::vector<uint32_t>& block_crcs() const override { return crcs_; }

  const char* Mapped(uint64_t block) override {
    MutexLock lock(&mutex_);
    if (memory_.empty()) return nullptr;
    return (flipped_.empty() ? *bytes_ : flipped_).data() + block * kBlockBytes;
  }
  const std::string& memory() const override { return memory_; }

  Status Read(uint64_t block, void* into, uint32_t* crc) override {
    ++reads_;
    MutexLock lock(&mutex_);
    if (!reads_fail_.ok()) return reads_fail_;
    const uint64_t n = Copy(flipped_.empty() ? *bytes_ : flipped_, block, into);
    if (damaged_.contains(block) || lost_.contains(block)) static_cast<char*>(into)[n / 2] ^= 1;
    if (crc != nullptr) *crc = Crc32c(0, into, n);
    return absl::OkStatus();
  }

  Status ReadChecked(uint64_t block, void* into) override {
    MutexLock lock(&mutex_);
    if (lost_.contains(block)) {
      return absl::DataLossError(what_ + ": block " + std::to_string(block) +
                                 " does not match its checksum");
    }
    Copy(*bytes_, block, into);
    return absl::OkStatus();
  }

 private:
  static uint64_t Copy(const std::string& from, uint64_t block, void* into) {
    const uint64_t n = std::min<uint64_t>(kBlockBytes, from.size() - block * kBlockBytes);
    std::memcpy(into, from.data() + block * kBlockBytes, n);
    return n;
  }

  const std::string what_;
  const std::string memory_;
  const std::shared_ptr<const std::string> bytes_;
  const std::vector<uint32_t> crcs_;
  std::atomic<uint64_t> reads_{0};
  Mutex mutex_;
  std::set<uint64_t> damaged_ ABSL_GUARDED_BY(mutex_), lost_ ABSL_GUARDED_BY(mutex_);
  std::string flipped_ ABSL_GUARDED_BY(mutex_);
  Status reads_fail_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cairn::gpu
