#include "client/cpp/huge_memory.h"

#include <sys/mman.h>

#include "common/keys.h"

namespace cairn::client {

StatusOr<HugeMemory> HugeMemory::Make(uint64_t bytes) {
  constexpr uint64_t kHugePage = 2 << 20;
  static_assert(kBlockBytes % kHugePage == 0);
  const uint64_t slack = bytes >= kHugePage ? kHugePage : 0;  // never touched, so never there
  HugeMemory memory;
  CAIRN_ASSIGN_OR_RETURN(memory.mapping_, Mapping::Anonymous(bytes + slack));
  char* const begin = memory.mapping_.data();
  if (slack > 0) madvise(begin, memory.mapping_.length(), MADV_HUGEPAGE);  // only faster
  const uint64_t past = reinterpret_cast<uintptr_t>(begin) % kHugePage;
  memory.data_ = begin + (slack == 0 || past == 0 ? 0 : kHugePage - past);
  memory.length_ = bytes;
  return memory;
}

}  // namespace cairn::client
