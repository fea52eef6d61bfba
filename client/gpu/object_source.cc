#include "client/gpu/object_source.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cpp/copy_engine.h"
#include "common/keys.h"

namespace cairn::gpu {

ObjectSource::ObjectSource(std::shared_ptr<client::OpenObject> object)
    : object_(std::move(object)),
      what_(absl::StrCat(object_->checkpoint().DebugString(), " object ", object_->info().name)) {
  for (std::string memory = object_->memory(); !memory.empty();) {
    StatusOr<client::OpenObject::View> view = object_->Map();
    if (!view.ok()) return;
    view_ = *std::move(view);
    memory_ = std::exchange(memory, object_->memory());
    if (memory == memory_) return;  // another thread may have opened another copy between the two
  }
  view_ = {};
  memory_.clear();
}

uint64_t ObjectSource::BytesOf(uint64_t block) const {
  return std::min<uint64_t>(kBlockBytes, length() - block * kBlockBytes);
}

const char* ObjectSource::Mapped(uint64_t block) {
  if (view_.data == nullptr) return nullptr;
  char* const at = view_.data + block * kBlockBytes;
  client::Populate(at, at + BytesOf(block));
  return at;
}

Status ObjectSource::Read(uint64_t block, void* into, uint32_t* crc) {
  return object_->ReadUnchecked(block, into, crc);
}

Status ObjectSource::ReadChecked(uint64_t block, void* into) {
  return object_->ReadRange(block * kBlockBytes, BytesOf(block), into);
}

}  // namespace cairn::gpu
