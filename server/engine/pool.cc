#include "server/engine/pool.h"

#include <algorithm>

#include "server/engine/own_parts.h"

namespace cairn::engine {
namespace {

constexpr MonotonicNanos kPauseAfterNotMade = 5 * kNanosPerSecond;

}  // namespace

void Pool::Remember(const Part& part) {
  if (!IsOwn(part, options_.ring)) return;
  // One that came back from another member was never granted here.
  if (!part.content->slabs.empty() && *part.checkpoint->verdict->node_total == 0) return;
  LastSave& last = part.checkpoint->job->saves.Edit().last[part.key.writer];
  last.table = part.content->table;
  last.node_total = part.checkpoint->verdict->node_total;
  last.slabs.clear();
  for (const auto& [slab, objects] : part.content->slabs) {
    last.slabs.push_back(ledger_.Find(slab)->bytes);
  }
  std::sort(last.slabs.begin(), last.slabs.end());
}

void Pool::RememberStored(const Checkpoint& checkpoint) {
  const auto node_total =
      options_.ring.Alone() ? std::make_shared<uint64_t>(0) : std::shared_ptr<uint64_t>();
  std::map<Writer, LastSave>& saves = checkpoint.job->saves.Edit().last;
  for (const auto& [writer, part] : checkpoint.content->parts) {
    if (saves.contains(writer) || part->content->table == nullptr) continue;
    LastSave& last = saves[writer];
    std::vector<event::ObjectSpec> as_created;
    for (const auto& entry : part->content->table->entries) {
      as_created.push_back({entry->name, entry->length, entry->kind, false});
    }
    for (const Need& need : PlanNeeds(as_created)) last.slabs.push_back(SlabBytesFor(need.bytes));
    std::sort(last.slabs.begin(), last.slabs.end());
    for (const uint64_t bytes : last.slabs) {
      if (node_total != nullptr) *node_total += bytes;
    }
    last.table = part->content->table;
    last.node_total = node_total;
  }
}

void Pool::Provision(const Job& job, SessionId session, Writer writer, int steps) {
  const auto last = job.saves->last.find(writer);
  if (last == job.saves->last.end() || out_.now() < provision_at_ || admission_.waiting() ||
      mode_.draining || !mode_.safe_mode.empty()) {
    return;
  }
  std::vector<uint64_t> ready = ledger_.ReadyFor(SlabOwner{job.owner->uid, job.name}, session);
  for (int i = 0; i < steps; ++i) {
    // Both ascend: each size takes the first ready slab that fits it.
    std::vector<uint64_t> left;
    auto next = ready.begin();
    for (uint64_t bytes : last->second.slabs) {
      while (next != ready.end() && *next < bytes) left.push_back(*next++);
      if (next != ready.end() && *next <= LargestFit(bytes)) {
        ++next;
        continue;
      }
      if (ledger_.UnusedBudget() < bytes || ledger_.live_slabs() >= options_.max_slabs) return;
      ledger_.Make(bytes);
    }
    left.insert(left.end(), next, ready.end());
    ready = std::move(left);
  }
}

void Pool::ProvisionAll(const Job& job, int steps) {
  for (SessionId id : std::set<SessionId>(job.sessions->all)) {
    const Session& session = *sessions_.Find(id);
    if (session.writer >= 0) Provision(job, id, session.writer, steps);
  }
}

void Pool::NotMade() { provision_at_ = out_.now() + kPauseAfterNotMade; }

void Pool::Start() {
  if (!mode_.safe_mode.empty()) return;
  std::multiset<uint64_t> there;
  for (const auto& [id, slab] : ledger_.slabs()) there.insert(slab.bytes);
  for (uint64_t bytes : options_.pool_slabs) {
    const auto same = there.find(bytes);
    if (same != there.end()) {
      there.erase(same);
    } else if (ledger_.UnusedBudget() >= bytes && ledger_.live_slabs() < options_.max_slabs) {
      ledger_.Make(bytes);
    }
  }
}

}  // namespace cairn::engine
