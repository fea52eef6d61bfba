#include "server/node/transfer_schedule.h"

#include <algorithm>

namespace cairn::node {

using engine::Rank;

void TransferSchedule::Add(uint64_t id, engine::action::FetchFor what_for,
                           std::vector<uint32_t> lengths, const std::vector<bool>& there) {
  Fetch& fetch = fetches_[id];
  fetch.what_for = what_for;
  for (const uint32_t length : lengths) fetch.left += length;
  fetch.lengths = std::move(lengths);
  for (uint32_t block = 0; block < there.size(); ++block) {
    fetch.fresh = block + 1;
    if (!there[block]) {
      fetch.again.insert(block);
      continue;
    }
    fetch.left -= fetch.lengths[block];
    fetch.verified += fetch.lengths[block];
    ++fetch.verified_blocks;
  }
  order_.emplace(what_for, id);
}

void TransferSchedule::Remove(uint64_t id) {
  const auto at = fetches_.find(id);
  if (at == fetches_.end()) return;
  order_.erase({at->second.what_for, id});
  fetches_.erase(at);
}

void TransferSchedule::AddSource(uint64_t id, Rank source) {
  const auto at = fetches_.find(id);
  if (at != fetches_.end()) at->second.sources.insert(source);
}

void TransferSchedule::RemoveSource(uint64_t id, Rank source) {
  const auto at = fetches_.find(id);
  if (at != fetches_.end()) at->second.sources.erase(source);
}

bool TransferSchedule::Complete(uint64_t id) const {
  const auto at = fetches_.find(id);
  return at != fetches_.end() && at->second.verified_blocks == at->second.lengths.size();
}

uint64_t TransferSchedule::VerifiedBytes(uint64_t id) const {
  const auto at = fetches_.find(id);
  return at == fetches_.end() ? 0 : at->second.verified;
}

size_t TransferSchedule::UnderWay(uint64_t id) const {
  const auto at = fetches_.find(id);
  return at == fetches_.end() ? 0 : at->second.under_way;
}

// --- what begins

std::optional<TransferSchedule::Read> TransferSchedule::Next(MonotonicNanos now) {
  Refill(now);
  for (const auto& [what_for, id] : order_) {
    Fetch& fetch = fetches_.at(id);
    const std::optional<uint32_t> block = NextBlock(fetch);
    if (!block.has_value()) continue;
    const uint32_t length = fetch.lengths[*block];
    // What comes first waits for room in which it fits; shorter reads must not keep it from it.
    if (in_flight_ > 0 && in_flight_ + length > options_.in_flight_bytes) return std::nullopt;
    if (Limited(fetch)) continue;
    const Rank source = Choose(fetch, *block);
    if (source == engine::kNoRank) continue;
    if (*block == fetch.fresh) {
      ++fetch.fresh;
    } else {
      fetch.again.erase(*block);
    }
    fetch.left -= length;
    ++fetch.under_way;
    if (what_for == engine::action::FetchFor::kReplica) tokens_ -= length;
    in_flight_ += length;
    Peer& peer = peers_[source];
    if (peer.reads == 0) peer.since = now;
    peer.bytes += length;
    ++peer.reads;
    return Read{id, *block, length, source, fetch.bad.contains(*block)};
  }
  return std::nullopt;
}

std::optional<uint32_t> TransferSchedule::NextBlock(const Fetch& fetch) {
  if (!fetch.again.empty()) return *fetch.again.begin();
  if (fetch.fresh < fetch.lengths.size()) return fetch.fresh;
  return std::nullopt;
}

const TransferSchedule::Peer& TransferSchedule::PeerOf(Rank source) const {
  static const Peer kNone;
  const auto at = peers_.find(source);
  return at == peers_.end() ? kNone : at->second;
}

bool TransferSchedule::HasCredit(Rank source, uint32_t length) const {
  const Peer& peer = PeerOf(source);
  if (peer.reads == 0) return true;
  if (peer.reads >= options_.reads_per_peer) return false;
  if (peer.reads >= kProbes && peer.bytes + length > peer.rate() * kQueueNanos) return false;
  return peer.bytes + length <= options_.in_flight_bytes_per_peer;
}

bool TransferSchedule::MayServe(const Fetch& fetch, uint32_t block, Rank source) const {
  const auto at = fetch.bad.find(block);
  if (at == fetch.bad.end()) return true;
  const auto wrong = [&](Rank rank) {
    const auto of = at->second.find(rank);
    return of == at->second.end() ? 0 : of->second;
  };
  if (wrong(source) < 2) return true;
  return std::all_of(fetch.sources.begin(), fetch.sources.end(),
                     [&](Rank other) { return wrong(other) >= 2; });
}

Rank TransferSchedule::Choose(const Fetch& fetch, uint32_t block) const {
  const uint32_t length = fetch.lengths[block];
  Rank best = engine::kNoRank;
  double best_at = 0;
  for (const Rank source : fetch.sources) {
    if (!HasCredit(source, length) || !MayServe(fetch, block, source)) continue;
    const Peer& peer = PeerOf(source);
    const bool unknown = peer.rate() <= 0;  // then it is tried first
    const double at = unknown ? static_cast<double>(peer.bytes) - 1e18
                              : static_cast<double>(peer.bytes + length) / peer.rate();
    if (best == engine::kNoRank || at < best_at) {
      best = source;
      best_at = at;
    }
  }
  if (best != engine::kNoRank && HoldsUp(fetch, block, best)) return engine::kNoRank;
  return best;
}

// Whether the fetch would be done earlier if the source did not get the block. It is only ever declined
// in favour of a source that is out of credit, and so has reads whose end brings the next choice.
bool TransferSchedule::HoldsUp(const Fetch& fetch, uint32_t block, Rank source) const {
  const double length = fetch.lengths[block];
  const Peer& peer = PeerOf(source);
  if (peer.rate() <= 0) return false;
  double rates = 0, left = static_cast<double>(fetch.left), soonest = 0;
  for (const Rank other : fetch.sources) {
    const Peer& of_other = PeerOf(other);
    if (other == source || of_other.rate() <= 0 || !MayServe(fetch, block, other)) continue;
    const double at = (static_cast<double>(of_other.bytes) + length) / of_other.rate();
    soonest = rates > 0 ? std::min(soonest, at) : at;
    rates += of_other.rate();
    left += static_cast<double>(of_other.bytes);
  }
  if (rates <= 0) return false;
  return (static_cast<double>(peer.bytes) + length) / peer.rate() > std::max(left / rates, soonest);
}

// --- the rate of replicas

void TransferSchedule::Refill(MonotonicNanos now) {
  const double rate = static_cast<double>(options_.replication_bytes_per_second);
  const double most = std::max<double>(rate / 4, kBlockBytes);
  if (refilled_ == 0) tokens_ = most;
  const double seconds =
      static_cast<double>(std::max<MonotonicNanos>(0, now - refilled_)) / kNanosPerSecond;
  if (refilled_ != 0) tokens_ = std::min(most, tokens_ + rate * seconds);
  refilled_ = now;
}

bool TransferSchedule::Limited(const Fetch& fetch) const {
  return fetch.what_for == engine::action::FetchFor::kReplica &&
         options_.replication_bytes_per_second > 0 && tokens_ <= 0;
}

MonotonicNanos TransferSchedule::WakeAt(MonotonicNanos now) const {
  if (options_.replication_bytes_per_second == 0 || tokens_ > 0) return 0;
  const bool waits = std::any_of(fetches_.begin(), fetches_.end(), [&](const auto& of) {
    return Limited(of.second) && !of.second.sources.empty() && NextBlock(of.second).has_value();
  });
  if (!waits) return 0;
  const double seconds = -tokens_ / static_cast<double>(options_.replication_bytes_per_second);
  return now + static_cast<MonotonicNanos>(seconds * kNanosPerSecond) + kNanosPerMilli;
}

// --- what ends

bool TransferSchedule::Ended(const Read& read, How how, MonotonicNanos now) {
  in_flight_ -= read.length;
  Peer& peer = peers_[read.source];
  peer.bytes -= read.length;
  --peer.reads;
  if (how != How::kFailed) Came(&peer, read.length, now);
  const auto at = fetches_.find(read.fetch);
  if (at == fetches_.end()) return true;
  Fetch& fetch = at->second;
  --fetch.under_way;
  if (how == How::kVerified) {
    fetch.verified += read.length;
    ++fetch.verified_blocks;
    fetch.bad.erase(read.block);
    return true;
  }
  fetch.left += read.length;
  fetch.again.insert(read.block);
  if (how == How::kFailed) return true;
  std::map<Rank, int>& bad = fetch.bad[read.block];
  ++bad[read.source];
  int times = 0;
  for (const auto& [rank, wrong] : bad) times += wrong;
  const bool all = std::all_of(fetch.sources.begin(), fetch.sources.end(),
                               [&](Rank source) { return bad.contains(source); });
  return times < kLostAfter || !all;
}

void TransferSchedule::Came(Peer* peer, uint32_t bytes, MonotonicNanos now) {
  constexpr double kKept = 0.9;  // of what is known with each block: some ten count
  peer->came = peer->came * kKept + bytes;
  peer->in = peer->in * kKept + static_cast<double>(std::max<MonotonicNanos>(0, now - peer->since));
  peer->since = now;
}

}  // namespace cairn::node
