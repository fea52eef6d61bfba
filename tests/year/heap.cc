#include "tests/year/heap.h"

#include <cstdlib>
#include <new>

namespace cairn::year::internal {

bool in_engine = false;
Heap heap;

namespace {

// Stands before each block, and keeps what follows aligned.
struct alignas(alignof(std::max_align_t)) Header {
  uint64_t bytes;
  bool of_engine;
};

void* Allocate(size_t bytes) noexcept {
  auto* header = static_cast<Header*>(std::malloc(sizeof(Header) + bytes));
  if (header == nullptr) return nullptr;
  *header = {bytes, in_engine};
  if (in_engine) {
    heap.bytes += static_cast<int64_t>(bytes);
    ++heap.blocks;
    ++heap.allocations;
  }
  return header + 1;
}

void Free(void* block) noexcept {
  if (block == nullptr) return;
  Header* header = static_cast<Header*>(block) - 1;
  if (header->of_engine) {
    heap.bytes -= static_cast<int64_t>(header->bytes);
    --heap.blocks;
  }
  std::free(header);
}

}  // namespace
}  // namespace cairn::year::internal

// All of them, for a sanitizer has each of its own; but those for greater alignments, which have deletes of
// their own, too.
using cairn::year::internal::Allocate;
using cairn::year::internal::Free;

void* operator new(size_t bytes) {
  void* block = Allocate(bytes);
  if (block == nullptr) throw std::bad_alloc();
  return block;
}
void* operator new[](size_t bytes) { return operator new(bytes); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return Allocate(bytes); }
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept { return Allocate(bytes); }

void operator delete(void* block) noexcept { Free(block); }
void operator delete(void* block, size_t) noexcept { Free(block); }
void operator delete(void* block, const std::nothrow_t&) noexcept { Free(block); }
void operator delete[](void* block) noexcept { Free(block); }
void operator delete[](void* block, size_t) noexcept { Free(block); }
void operator delete[](void* block, const std::nothrow_t&) noexcept { Free(block); }
