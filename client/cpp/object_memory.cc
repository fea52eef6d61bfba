#include "client/cpp/object_memory.h"

#include <sys/mman.h>

#include <utility>

#include "common/keys.h"

namespace cairn::client {
namespace {

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

int AdvisePages(const char* begin, const char* end, int advice, bool whole) {
  auto from = reinterpret_cast<uintptr_t>(begin), to = reinterpret_cast<uintptr_t>(end);
  constexpr uintptr_t kInPage = kPageBytes - 1;
  if (whole) {  // only what belongs to nobody else
    from += kInPage;
  } else {
    to += kInPage;
  }
  from &= ~kInPage;
  to &= ~kInPage;
  return from < to ? madvise(reinterpret_cast<void*>(from), to - from, advice) : 0;
}

}  // namespace

ObjectMemory::ObjectMemory(std::shared_ptr<MappedSlab> written, uint64_t offset)
    : written_(std::move(written)), data_(written_->data() + offset) {}

ObjectMemory ObjectMemory::Map(int fd, uint64_t offset, uint64_t length) {
  ObjectMemory memory;
  const uint64_t skip = offset % kPageBytes;
  StatusOr<Mapping> mapping =
      Mapping::MapSealed(fd, offset - skip, length + skip, PROT_READ, MAP_SHARED);
  if (!mapping.ok()) return memory;
  memory.mapping_ = *std::move(mapping);
  memory.data_ = memory.mapping_.data() + skip;
  return memory;
}

const char* ObjectMemory::Enter(uint64_t begin, uint64_t end) const {
  if (data_ == nullptr) return nullptr;
  return AdvisePages(data_ + begin, data_ + end, MADV_POPULATE_READ, false) == 0 ? data_ + begin
                                                                                 : nullptr;
}

void ObjectMemory::Leave(uint64_t begin, uint64_t end) const {
  if (mapping_.valid()) (void)AdvisePages(data_ + begin, data_ + end, MADV_DONTNEED, true);
}

}  // namespace cairn::client
