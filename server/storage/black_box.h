// What outlives a daemon of its work in storage: a page of shared memory that the keeper holds and hands to
// each daemon. It says which calls were under way, below which job's directory, and which jobs are
// suspected of ending daemons (suspects.h has the rule).
//
// It is written with plain stores, at every call of storage: first what an entry says, then its length,
// with which it counts. So a daemon may die between any two of them. What the next one finds is not
// trusted: what makes no sense is as if it were not there, and a page of another layout is empty.
//
// Its owner synchronizes the calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/fd.h"
#include "common/status.h"

namespace cairn::storage {

// What is done below a job's directory. The numbers stand in the page.
enum class Use : uint8_t {
  kScan,
  kListLine,
  kReadTables,
  kReadOwner,
  kOpen,
  kWriteParts,
  kWriteLine,
  kPublish,
  kReinstate,
  kSweep,
  kDelete,
};
inline constexpr uint32_t kUses = 11;
inline uint32_t BitOf(Use use) { return uint32_t{1} << static_cast<uint32_t>(use); }
absl::string_view UseName(Use use);  // "scanning"

// A call that a daemon was in when it died.
struct UnderWay {
  std::string job;
  Use use = Use::kScan;
  bool alone = false;  // no other call was under way since it began
};

struct Suspect {
  std::string job;
  uint32_t deaths = 0;  // of daemons, in a call below its directory
  uint32_t uses = 0;    // bits: in which calls, of those that have not ended well since
  uint32_t set_asides = 0;
  MonotonicNanos last_death = 0;
};

class BlackBox {
 public:
  static constexpr size_t kCalls = 128, kSuspects = 128;
  static constexpr size_t kBytes = 64 << 10;  // of the page; the layout takes less
  static constexpr int kNoSlot = -1;

  // INTERNAL when the page is shorter, or could be made so.
  static StatusOr<std::unique_ptr<BlackBox>> Open(UniqueFd page);

  // --- what the daemon before left
  bool ended_in_order() const;
  std::vector<UnderWay> Calls() const;
  std::vector<Suspect> Suspects(MonotonicNanos now) const;

  // --- this daemon's own
  // Its life begins: no call is under way, and its end will be a death until it says otherwise.
  void Begin();
  void EndInOrder();
  // The slot of a call that begins. kNoSlot when none is free: the call is not in the box.
  int Enter(const std::string& job, Use use, bool alone);
  void NotAlone(int slot);
  void Leave(int slot);
  // The latest kSuspects of them.
  void Put(std::vector<Suspect> suspects);

 private:
  struct Layout;

  explicit BlackBox(Mapping page);

  Mapping mapping_;
  Layout* const page_;
  std::vector<int> free_;  // slots
};

}  // namespace cairn::storage
