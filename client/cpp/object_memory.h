// An object that lies in a slab, as memory of this process for the time of one read. To copy out of a mapping takes half of
// the time that pread of it takes, and none where the slab is mapped already because this session writes into it.
#pragma once

#include <cstdint>
#include <memory>

#include "client/cpp/slab_map.h"
#include "common/fd.h"

namespace cairn::client {

// Whoever may write the slab can change what is read: what counts is copied, or summed, once. Thread-safe.
class ObjectMemory {
 public:
  ObjectMemory() = default;  // there is none
  // `offset` is the object's in the slab.
  ObjectMemory(std::shared_ptr<MappedSlab> written, uint64_t offset);
  // `length` bytes of `fd` from `offset` on, which is sealed against losing them. None where it cannot be mapped.
  static ObjectMemory Map(int fd, uint64_t offset, uint64_t length);

  bool valid() const { return data_ != nullptr; }
  // [begin, end) of the object. nullptr: those pages cannot be had (they are lost, or this kernel does not say), and the
  // descriptor is read instead. A touch would be a signal.
  const char* Enter(uint64_t begin, uint64_t end) const;
  // Nobody reads [begin, end) any more. Threads share the cost of unmapping.
  void Leave(uint64_t begin, uint64_t end) const;

 private:
  std::shared_ptr<MappedSlab> written_;
  Mapping mapping_;
  char* data_ = nullptr;
};

}  // namespace cairn::client
