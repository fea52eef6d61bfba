// One node reads a part of another's memory: it asks the first source for a grant, reads a piece at a time,
// compares what it has with the manifest, and goes on from where it was at the next source when one fails.
// Pieces take time by their bytes. A grant that nothing was read under for its time is made useless by its
// owner.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/ring/node.h"
#include "tests/ring/world.h"

namespace cairn::engine::ringsim {
namespace {

constexpr MonotonicNanos kGrantTime = 10 * kSecond;
constexpr MonotonicNanos kAnswerTime = 3 * kSecond;  // a source that says nothing for so long …
constexpr uint64_t kPieces = 4;                      // of a transfer that has a rate of its own
constexpr uint64_t kSharedPieces = 64;               // of one that shares links with others

uint64_t BytesOf(const PartTable& table) {
  uint64_t bytes = 0;
  for (const auto& entry : table.entries) bytes += entry->length;
  return bytes;
}

}  // namespace

// --- the owner's side

std::shared_ptr<const PartTable> SimNode::ReadUnder(uint64_t grant) {
  const auto at = grants_.find(grant);
  if (at == grants_.end() || !well() || data_blocked) return nullptr;
  at->second.until = now() + kGrantTime;
  const PartTable& table = *at->second.table;
  if (world_.options.lie == Lie::kGrantIgnored && world_.rng.Permille(100)) {
    memory_.Write(table.extents[0].slab, table.extents[0].offset, {1, kPageBytes});
  }
  for (size_t i = 0; i < table.entries.size(); ++i) {
    const std::string wrong = memory_.Wrong(*table.entries[i], table.extents[i]);
    if (wrong.empty()) continue;
    world_.Fail(absl::StrCat("node ", id_, ": ", at->second.part.DebugString(),
                             " was granted, and ", wrong));
    return nullptr;
  }
  return at->second.table;
}

void SimNode::EndGrant(uint64_t grant) {
  if (grants_.erase(grant) != 0) Apply(event::GrantEnded{grant});
}

void SimNode::Do(action::RevokeGrant& a) {
  After(kMilli, [this, grant = a.grant] {
    grants_.erase(grant);
    Apply(event::GrantEnded{grant});
  });
}

void SimNode::WatchGrant(uint64_t grant) {
  const auto at = grants_.find(grant);
  if (at == grants_.end()) return;
  if (at->second.until <= now()) {
    world_.report.Count("grant timed out");
    return EndGrant(grant);
  }
  After(at->second.until - now(), [this, grant] { WatchGrant(grant); });
}

// --- the reader's

void SimNode::Do(action::Fetch& a) {
  world_.report.Count("fetch");
  Transfer& transfer = transfers_[a.fetch];
  transfer.fetch = a;
  After(kMilli, [this, fetch = a.fetch] { NextSource(fetch); });
}

void SimNode::Do(action::FetchFrom& a) {
  const auto at = transfers_.find(a.fetch);
  if (at == transfers_.end()) return;
  at->second.fetch.sources = a.sources;
  at->second.next_source = 0;
}

void SimNode::Do(action::CancelFetch& a) {
  After(kMilli, [this, fetch = a.fetch] { EndTransfer(fetch, absl::CancelledError("cancelled")); });
}

void SimNode::NextSource(uint64_t fetch) {
  const auto at = transfers_.find(fetch);
  if (at == transfers_.end()) return;
  Transfer& transfer = at->second;
  if (transfer.next_source >= transfer.fetch.sources.size()) {
    return EndTransfer(fetch, transfer.why);
  }
  transfer.source = world_.Dial(*this, transfer.fetch.sources[transfer.next_source++]);
  transfer.grant = 0;
  AskGrant(fetch);
}

void SimNode::AskGrant(uint64_t fetch) {
  Transfer& transfer = transfers_.at(fetch);
  const uint64_t tries = ++transfer.tries;
  SimNode* source = transfer.source;
  const bool there = source != nullptr && !source->dead() && source->daemon_up() &&
                     world_.net.Carries(*this, *source) && world_.net.Carries(*source, *this) &&
                     world_.net.Knows(*source, *this);
  // When no answer has come by then.
  After(there ? kAnswerTime : world_.Millis(1, 1000), [this, fetch, tries] {
    const auto at = transfers_.find(fetch);
    if (at == transfers_.end() || at->second.tries != tries || at->second.grant != 0) return;
    at->second.why = absl::UnavailableError("a source did not answer");
    NextSource(fetch);
  });
  if (!there) return;
  transfer.source_daemon = source->daemon();
  event::GrantAsked asked{{}, member_, {transfer.fetch.part, transfer.fetch.digest}};
  const uint64_t daemon = daemon_;
  source->After(kMilli, [this, source, asked, fetch, tries, daemon] {
    source->Call(0, asked, [this, source, fetch, tries, daemon](const StatusOr<reply::Body>& body) {
      uint64_t grant = 0;
      std::shared_ptr<const PartTable> table;
      if (body.ok()) {
        const auto& granted = std::get<reply::Granted>(*body);
        grant = granted.grant;
        table = granted.table;
        source->grants_[grant] = {table->head.Part(), table, source->now() + kGrantTime};
        source->WatchGrant(grant);
      }
      if (daemon != daemon_) return;
      After(kMilli, [this, fetch, tries, grant, table, status = body.status()] {
        if (grant != 0) return TakeGrant(fetch, tries, grant, table);
        const auto at = transfers_.find(fetch);
        if (at == transfers_.end() || at->second.tries != tries) return;
        at->second.why = status;
        NextSource(fetch);
      });
    });
  });
}

void SimNode::TakeGrant(uint64_t fetch, uint64_t tries, uint64_t grant,
                        std::shared_ptr<const PartTable> table) {
  const auto at = transfers_.find(fetch);
  if (at == transfers_.end() || at->second.tries != tries) return;  // its time ends it
  Transfer& transfer = at->second;
  transfer.grant = grant;
  transfer.table = std::move(table);
  const std::string encoded = EncodeManifest(*transfer.table);
  if (ManifestDigest(encoded) != transfer.fetch.digest && !transfer.fetch.digest.empty()) {
    transfer.why = absl::DataLossError("another manifest");
    return NextSource(fetch);
  }
  ReadSome(fetch, tries);
}

void SimNode::ReadSome(uint64_t fetch, uint64_t tries) {
  Transfer& transfer = transfers_.at(fetch);
  const uint64_t total = BytesOf(*transfer.table);
  const uint64_t pieces = world_.shape.links ? kSharedPieces : kPieces;
  const uint64_t piece = std::min(std::max<uint64_t>(total / pieces + 1, kBlockBytes),
                                  total - std::min(total, transfer.done));
  After(world_.ReadTime(piece, transfer.source, this), [this, fetch, tries, total, piece] {
    const auto at = transfers_.find(fetch);
    if (at == transfers_.end() || at->second.tries != tries) return;
    Transfer& reading = at->second;
    SimNode* source = reading.source;
    const bool reached = source->daemon() == reading.source_daemon &&
                         world_.net.Carries(*source, *this) && world_.net.Carries(*this, *source);
    if (!reached || source->ReadUnder(reading.grant) == nullptr) {
      reading.why = absl::UnavailableError("a source was cut off");
      const uint64_t stuck = ++reading.tries;
      reading.grant = 0;
      return After(world_.Millis(100, 3000), [this, fetch, stuck] {
        const auto again = transfers_.find(fetch);
        if (again != transfers_.end() && again->second.tries == stuck) NextSource(fetch);
      });
    }
    reading.done += piece;
    if (reading.done < total) {
      Apply(event::FetchAdvanced{fetch, reading.done});
      return transfers_.contains(fetch) ? ReadSome(fetch, tries) : void();
    }
    EndTransfer(fetch, absl::OkStatus());
  });
}

// Into its slab: the objects in the manifest's order, each at the next whole page.
std::shared_ptr<const PartTable> SimNode::Land(const Transfer& transfer, Status* status) {
  std::vector<ExtentRef> extents;
  uint64_t offset = 0;
  for (const auto& entry : transfer.table->entries) {
    Content content{entry->block_crcs.empty() ? 0 : entry->block_crcs.front(), entry->length};
    if (world_.options.lie == Lie::kFetchChangesBytes && world_.rng.Permille(100)) {
      ++content.number;
    }
    if (!memory_.Has(transfer.fetch.slab)) {
      world_.Fail(absl::StrCat("node ", id_, " gave up the slab of a fetch that had not ended"));
    } else if (!memory_.Write(transfer.fetch.slab, offset, content)) {
      *status = absl::ResourceExhaustedError("the part is larger than its slab");
    }
    const uint64_t room = (entry->length + kPageBytes - 1) / kPageBytes * kPageBytes;
    extents.push_back({transfer.fetch.slab, offset, room});
    offset += room;
  }
  return TableOf(transfer.table->Whole(), std::move(extents));
}

void SimNode::EndTransfer(uint64_t fetch, Status status) {
  const auto at = transfers_.find(fetch);
  if (at == transfers_.end()) return;
  const Transfer transfer = std::move(at->second);
  transfers_.erase(at);
  event::Fetched fetched{fetch, std::move(status)};
  if (fetched.status.ok()) {
    fetched.table = Land(transfer, &fetched.status);
    fetched.digest = ManifestDigest(EncodeManifest(*transfer.table));
  }
  world_.report.Count(fetched.status.ok() ? "fetched" : "not fetched");
  if (transfer.grant != 0 && !world_.rng.Permille(50) &&
      world_.net.Carries(*this, *transfer.source)) {  // else the owner's patience ends it
    transfer.source->After(
        kMilli, [source = transfer.source, grant = transfer.grant] { source->EndGrant(grant); });
  }
  Apply(std::move(fetched));
}

}  // namespace cairn::engine::ringsim
