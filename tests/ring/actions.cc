// What a node's engine asks for, but for fetches (fetching.cc).
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/ring/node.h"
#include "tests/ring/world.h"

namespace cairn::engine::ringsim {

MonotonicNanos SimNode::StorageTime(uint64_t bytes) const {
  const MonotonicNanos takes = world_.TransferTime(bytes) + world_.Millis(1, 30);
  return world_.storage.slow ? takes * 20 + world_.Millis(500, 5000) : takes;
}

void SimNode::Do(action::Reply& a) {
  const auto at = calls_.find(a.request);
  if (at == calls_.end()) {
    return world_.Fail(
        absl::StrCat("node ", id_, " answers a call twice, or one that nobody made"));
  }
  if (a.body.ok()) {
    const auto* granted = std::get_if<reply::Create>(&*a.body);
    if (granted != nullptr && !granted->extents.empty() && superseded() && seat_ != nullptr) {
      return world_.Fail(absl::StrCat("node ", id_, " admits a save, and knows that rank ", rank(),
                                      " is another one's"));
    }
    if (const auto* hello = std::get_if<reply::Hello>(&*a.body)) live_.insert(hello->session);
  } else {
    world_.report.Note(
        [&] { return absl::StrCat("node ", id_, " -> ", a.body.status().ToString()); });
  }
  const Answer answer = std::move(at->second);
  calls_.erase(at);
  answer(a.body);
}

MonotonicNanos SimNode::Takes(const world::Task& task) const {
  using Kind = world::Task::Kind;
  if (task.OfStorage()) return StorageTime(task.bytes);
  if (task.kind == Kind::kMake) return world_.Millis(1, task.urgent ? 20 : 200);
  if (task.kind == Kind::kVerify) return world_.Millis(1, 10);
  if (task.kind != Kind::kDestroy) return kMilli;
  return static_cast<MonotonicNanos>(world_.rng.Between(1, 2000)) * 1000;
}

void SimNode::Begin(world::Task task) {
  const MonotonicNanos takes = Takes(task);
  After(takes, [this, end = std::move(task.end)] { Apply(end(absl::OkStatus())); });
}

int64_t SimNode::storage_unix_ms() const { return world_.clock.UnixMs(); }

void SimNode::Do(action::DestroySlab& a) {
  memory_.Destroy(a.slab);
  users_.Destroyed(a.slab);
  records_.erase(records_.lower_bound({a.slab, 0}), records_.lower_bound({a.slab + 1, 0}));
  Executor::Do(a);
}

Status SimNode::WriteRecord(const action::WriteManifest& write, std::string manifest) {
  records_[{write.extent.slab, write.extent.offset}] = {ManifestDigest(manifest), write.table};
  return absl::OkStatus();
}

Status SimNode::Verify(const action::Verify& verify) {
  const std::string wrong = memory_.Wrong(verify.entry, verify.extent);
  if (wrong.empty()) return absl::OkStatus();
  if (world_.options.lie == Lie::kNone) {
    world_.Fail(absl::StrCat("node ", id_, ": ", verify.part.DebugString(), ": ", wrong));
  }
  return absl::DataLossError(wrong);
}

StatusOr<bool> SimNode::Write(const action::Persist& persist) {
  for (const auto& part : persist.parts) {
    for (size_t i = 0; i < part->entries.size(); ++i) {
      const std::string wrong = memory_.Wrong(*part->entries[i], part->extents[i]);
      if (wrong.empty()) continue;
      world_.Fail(absl::StrCat("node ", id_, " writes to storage what is not there: ",
                               part->head.Part().DebugString(), ": ", wrong));
      return absl::InternalError(wrong);
    }
  }
  StatusOr<bool> written = Executor::Write(persist);
  if (world_.storage.Published(persist.checkpoint)) world_.truth.Stored(persist.checkpoint);
  world_.report.Count(written.ok() ? (*written ? "published" : "part written") : "not written");
  return written;
}

void SimNode::Do(action::Tell& a) {
  world_.report.Count("told");
  if (world_.shape.checked) world_.truth.Said(*this, a.rank, a.message);
  world_.net.Tell(this, a.rank, std::move(a.message));
}

void SimNode::Do(action::WakeAt& a) {
  wake_at_ = a.at;
  const MonotonicNanos delay = std::max<MonotonicNanos>(a.at - now(), 0) +
                               static_cast<MonotonicNanos>(world_.rng.Below(2000)) * 1000;
  After(delay, [this, at = a.at] {
    if (wake_at_ != at) return;
    wake_at_ = 0;
    Apply(event::Tick{});
  });
}

void SimNode::Do(action::Log& a) {
  world_.report.Note([&] { return absl::StrCat("node ", id_, " logs: ", a.message); });
}

}  // namespace cairn::engine::ringsim
