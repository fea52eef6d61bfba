// What the engine has on the heap, counted by operator new itself: no allocator's slack, no page that
// somebody else touched. Only this program has such an operator new; it has one thread.
#pragma once

#include <cstdint>
#include <utility>

namespace cairn::year {

struct Heap {
  int64_t bytes = 0, blocks = 0;  // that live
  uint64_t allocations = 0;       // that ever were
};

namespace internal {
extern bool in_engine;
extern Heap heap;
}  // namespace internal

// While one lives, what is allocated is the engine's, whoever frees it and whenever.
class InEngine {
 public:
  InEngine() : was_(std::exchange(internal::in_engine, true)) {}
  ~InEngine() { internal::in_engine = was_; }
  InEngine(const InEngine&) = delete;
  InEngine& operator=(const InEngine&) = delete;

 private:
  const bool was_;
};

inline const Heap& EngineHeap() { return internal::heap; }

}  // namespace cairn::year
