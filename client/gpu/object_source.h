// An opened object as a Source: from a mapping of its slab, from a file in storage (direct reads), or in chunks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "client/cpp/session.h"
#include "client/gpu/source.h"

namespace cairn::gpu {

class ObjectSource : public Source {
 public:
  explicit ObjectSource(std::shared_ptr<client::OpenObject> object);

  const std::string& what() const override { return what_; }
  uint64_t length() const override { return object_->info().length; }
  const std::vector<uint32_t>& block_crcs() const override { return object_->info().block_crcs; }
  const char* Mapped(uint64_t block) override;
  const std::string& memory() const override { return memory_; }
  client::StandingPlace standing() override { return object_->standing(); }
  Status Read(uint64_t block, void* into, uint32_t* crc) override;
  Status ReadChecked(uint64_t block, void* into) override;

 private:
  uint64_t BytesOf(uint64_t block) const;

  const std::shared_ptr<client::OpenObject> object_;
  const std::string what_;
  client::OpenObject::View view_;  // without data: Read
  std::string memory_;
};

}  // namespace cairn::gpu
