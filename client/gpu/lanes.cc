#include "client/gpu/lanes.h"

#include <sched.h>

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/fd.h"

namespace cairn::gpu {

StatusOr<std::unique_ptr<Lane>> Lane::Make(Device* device, size_t slots,
                                           std::optional<StreamId> shared) {
  std::unique_ptr<Lane> lane(new Lane(device, slots));
  if (!shared.has_value()) {
    CAIRN_ASSIGN_OR_RETURN(lane->own_, NewStream(device));
  }
  lane->stream_ = shared.value_or(lane->own_.get());
  CAIRN_ASSIGN_OR_RETURN(lane->reached_, NewEvent(device));
  return lane;
}

StatusOr<Slot*> Lane::Next() {
  if (slots_.size() < wanted_) {
    auto slot = std::make_unique<Slot>();
    StatusOr<PinnedBlock> memory = NewPinnedBlock(device_, kBlockBytes);
    if (memory.ok()) {
      slot->memory = *std::move(memory);
      CAIRN_ASSIGN_OR_RETURN(slot->copied, NewEvent(device_));
      slots_.push_back(std::move(slot));
      return slots_.back().get();
    }
    if (!absl::IsResourceExhausted(memory.status()) || slots_.empty()) return memory.status();
    wanted_ = slots_.size();
  }
  Slot* const slot = slots_[next_].get();
  next_ = (next_ + 1) % slots_.size();
  CAIRN_RETURN_IF_ERROR(device_->Synchronize(slot->copied.get()));
  return slot;
}

StatusOr<std::vector<std::unique_ptr<Lane>>> LanePool::Take(size_t wanted) {
  MutexLock lock(&mutex_);
  if (!device_->IsHost() && !shared_.valid()) {
    CAIRN_ASSIGN_OR_RETURN(shared_, NewStream(device_));
  }
  const std::optional<StreamId> shared =
      shared_.valid() ? std::optional<StreamId>(shared_.get()) : std::nullopt;
  std::vector<std::unique_ptr<Lane>> taken;
  while (taken.size() < wanted && !idle_.empty()) {
    taken.push_back(std::move(idle_.back()));
    idle_.pop_back();
  }
  while (taken.size() < wanted && out_ + taken.size() < most_) {
    StatusOr<std::unique_ptr<Lane>> lane = Lane::Make(device_, slots_, shared);
    if (!lane.ok()) {
      if (!taken.empty()) break;
      return lane.status();
    }
    taken.push_back(*std::move(lane));
  }
  if (taken.empty()) {
    return absl::ResourceExhaustedError(absl::StrCat("streams to this device use all ", most_,
                                                     " lanes of this process; end one first"));
  }
  out_ += taken.size();
  return taken;
}

void LanePool::Return(std::vector<std::unique_ptr<Lane>> lanes) {
  MutexLock lock(&mutex_);
  out_ -= lanes.size();
  for (std::unique_ptr<Lane>& lane : lanes) idle_.push_back(std::move(lane));
}

void RunOnNode(int node) {
  if (node < 0) return;
  const StatusOr<std::string> list =
      ReadFile(absl::StrCat("/sys/devices/system/node/node", node, "/cpulist"));
  if (!list.ok()) return;
  cpu_set_t allowed, wanted;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  CPU_ZERO(&wanted);
  for (absl::string_view range : absl::StrSplit(absl::StripAsciiWhitespace(*list), ',')) {
    const std::vector<absl::string_view> ends = absl::StrSplit(range, '-');
    int first = 0, last = 0;
    if (!absl::SimpleAtoi(ends.front(), &first) || !absl::SimpleAtoi(ends.back(), &last)) return;
    for (int cpu = std::max(first, 0); cpu <= std::min(last, CPU_SETSIZE - 1); ++cpu) {
      if (CPU_ISSET(cpu, &allowed)) CPU_SET(cpu, &wanted);
    }
  }
  // What this process may not use is not asked for.
  if (CPU_COUNT(&wanted) > 0) (void)sched_setaffinity(0, sizeof wanted, &wanted);
}

}  // namespace cairn::gpu
