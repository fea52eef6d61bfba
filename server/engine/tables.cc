#include "server/engine/tables.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace cairn::engine {
namespace {

constexpr size_t kKept = 4;  // checkpoints

}  // namespace

Tables::~Tables() = default;

bool Tables::Await(const Caller& caller, Checkpoint* checkpoint, MonotonicNanos deadline,
                   const Event& event) {
  if (checkpoint->content->without_table == 0) return false;
  if (!callers_.Park(this, caller, checkpoint->key.job, deadline, event)) return true;
  Read(checkpoint);
  reading_[checkpoint->key].insert(caller.request);
  waiting_[caller.request] = checkpoint->key;
  return true;
}

void Tables::Read(Checkpoint* checkpoint) {
  if (checkpoint->content->without_table > 0) ReadParts(*checkpoint);
}

void Tables::ReadParts(const Checkpoint& checkpoint) {
  const auto [reading, fresh] = reading_.try_emplace(checkpoint.key);
  if (fresh) out_.Do(action::ReadTables{checkpoint.key});
}

Checkpoint* Tables::On(const event::TablesRead& event) {
  const auto reading = reading_.find(event.checkpoint);
  if (reading == reading_.end()) return nullptr;
  const std::set<RequestId> waiting = std::move(reading->second);
  reading_.erase(reading);
  Checkpoint* checkpoint = parts_.Find(event.checkpoint);
  Status status = event.stored.status();
  if (checkpoint != nullptr && status.ok()) {
    for (const StoredPart& stored : event.stored->parts) {
      Part* part = Parts::PartOf(*checkpoint, stored.manifest.writer);
      if (part == nullptr || part->content->digest != stored.digest) continue;
      parts_.TakeTable(part, TableOf(stored.manifest, {}));
    }
    Keep(checkpoint);
    if (checkpoint->content->without_table > 0) {
      status = absl::UnavailableError(
          absl::StrCat(event.checkpoint.DebugString(), " has moved in storage; ask again"));
    }
  }
  for (const RequestId request : waiting) {
    waiting_.erase(request);
    const std::unique_ptr<Parked> parked = callers_.Unpark(request);
    if (parked == nullptr) continue;
    if (checkpoint == nullptr || status.ok()) {
      again_(parked->event);
    } else {
      out_.Answer(request, Annotate(status, event.checkpoint.DebugString()));
    }
  }
  return parts_.Find(event.checkpoint);
}

void Tables::Keep(Checkpoint* checkpoint) {
  std::erase(kept_, checkpoint->key);
  kept_.push_back(checkpoint->key);
  if (kept_.size() <= kKept) return;
  Checkpoint* oldest = parts_.Find(kept_.front());
  kept_.pop_front();
  if (oldest != nullptr) parts_.DropTables(oldest);
}

void Tables::Left(const Parked& parked) {
  const auto at = waiting_.find(parked.request);
  if (at == waiting_.end()) return;
  if (const auto reading = reading_.find(at->second); reading != reading_.end()) {
    reading->second.erase(parked.request);
  }
  waiting_.erase(at);
}

void Tables::TimeUp(const Parked& parked) {
  callers_.Answer(parked.request,
                  absl::UnavailableError(absl::StrCat(
                      waiting_.at(parked.request).DebugString(),
                      ": storage, which alone knows what it holds, has not answered")));
}

}  // namespace cairn::engine
