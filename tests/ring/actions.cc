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

void SimNode::Do(action::MakeSlab& a) {
  const MonotonicNanos takes = a.urgent ? world_.Millis(1, 20) : world_.Millis(1, 200);
  After(takes, [this, slab = a.slab, bytes = a.bytes] {
    memory_.Make(slab, bytes);
    Apply(event::SlabMade{slab, absl::OkStatus()});
  });
}

void SimNode::Do(action::DestroySlab& a) {
  memory_.Destroy(a.slab);
  users_.Destroyed(a.slab);
  records_.erase(records_.lower_bound({a.slab, 0}), records_.lower_bound({a.slab + 1, 0}));
  Soon(event::SlabDestroyed{a.slab});
}

void SimNode::Do(action::ProbeSlab& a) {
  After(kMilli, [this, a] { Apply(users_.Probe(a)); });
}

void SimNode::Do(action::WriteManifest& a) {
  const std::string encoded = EncodeManifest(*a.table);
  std::string digest = ManifestDigest(encoded);
  After(kMilli, [this, a, digest] {
    records_[{a.extent.slab, a.extent.offset}] = {digest, a.table};
    Apply(event::ManifestWritten{a.part, a.extent, absl::OkStatus(), digest});
  });
}

void SimNode::Do(action::Verify& a) {
  After(world_.Millis(1, 10), [this, a] {
    const std::string wrong = memory_.Wrong(a.entry, a.extent);
    const Status status = wrong.empty() ? absl::OkStatus() : absl::DataLossError(wrong);
    if (!status.ok() && world_.options.lie == Lie::kNone) {
      world_.Fail(absl::StrCat("node ", id_, ": ", a.part.DebugString(), ": ", wrong));
    }
    Apply(event::Verified{a.verification, status, unix_ms()});
  });
}

void SimNode::Do(action::Persist& a) {
  uint64_t bytes = 0;
  for (const auto& part : a.parts) {
    for (const auto& entry : part->entries) bytes += entry->length;
  }
  After(StorageTime(bytes), [this, a] { EndPersist(a); });
}

void SimNode::EndPersist(const action::Persist& persist) {
  for (const auto& part : persist.parts) {
    for (size_t i = 0; i < part->entries.size(); ++i) {
      const std::string wrong = memory_.Wrong(*part->entries[i], part->extents[i]);
      if (wrong.empty()) continue;
      return world_.Fail(absl::StrCat("node ", id_, " writes to storage what is not there: ",
                                      part->head.Part().DebugString(), ": ", wrong));
    }
  }
  const StatusOr<bool> written = world_.storage.Write(persist, world_.clock.UnixMs());
  if (world_.storage.Published(persist.checkpoint)) world_.truth.Stored(persist.checkpoint);
  world_.report.Count(written.ok() ? (*written ? "published" : "part written") : "not written");
  event::Persisted persisted{persist.checkpoint, written.status()};
  persisted.awaits_others = written.ok() && !*written;
  persisted.location = Location(absl::StrCat(persist.checkpoint.job, "/", persist.checkpoint.step));
  Apply(std::move(persisted));
}

void SimNode::Do(action::WriteLineRecord& a) {
  After(StorageTime(0), [this, a] {
    Apply(
        event::LineRecordWritten{a.record, world_.storage.Write(a.record, world_.clock.UnixMs())});
  });
}

void SimNode::Do(action::DeleteFiles& a) {
  After(StorageTime(0), [this, a] {
    Apply(event::FilesDeleted{a.checkpoint, world_.storage.Delete(a)});
  });
}

void SimNode::Do(action::ScanJob& a) {
  After(StorageTime(0), [this, a] {
    Apply(event::JobScanned{a.job, world_.storage.Scan(a.job, world_.clock.UnixMs()), kUid, kUid});
  });
}

void SimNode::Do(action::ReadTables& a) {
  After(StorageTime(0), [this, a] {
    Apply(event::TablesRead{a.checkpoint, world_.storage.Read(a.checkpoint)});
  });
}

void SimNode::Do(action::ReadLineNumbers& a) {
  After(StorageTime(0), [this, a] {
    Apply(event::LineNumbersRead{a.job, world_.storage.Numbers(a.job)});
  });
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
