#include "server/engine/tally.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "common/manifest.h"
#include "server/engine/view.h"

namespace cairn::engine {

Tally::~Tally() = default;

void Tally::Add(Rank rank, Writer writer, const PartReport& part) {
  ++worlds_[part.world_size];
  Parts& parts = parts_[writer];
  digest_known_ &= !parts.empty() && parts.front().part->digest == part.digest;
  if (!parts.empty()) Sum(writer, parts, -1);
  const auto at = std::lower_bound(parts.begin(), parts.end(), rank,
                                   [](const Copy& copy, Rank of) { return copy.rank < of; });
  parts.insert(at, {rank, &part});
  Sum(writer, parts, +1);
  Claim(writer, part.names, +1);
}

void Tally::Remove(Rank rank, Writer writer, const PartReport& part) {
  Claim(writer, part.names, -1);
  AdjustCount(&worlds_, part.world_size, -1);
  const auto of_writer = parts_.find(writer);
  Parts& parts = of_writer->second;
  digest_known_ &= parts.size() > 1 && !disputed_.contains(writer);
  Sum(writer, parts, -1);
  parts.erase(std::find_if(parts.begin(), parts.end(),
                           [&](const Copy& copy) { return copy.rank == rank; }));
  if (parts.empty()) {
    parts_.erase(of_writer);
  } else {
    Sum(writer, parts, +1);
  }
}

void Tally::Replace(Writer writer, PartReport* part, const PartReport& next) {
  const Parts& parts = parts_.at(writer);
  digest_known_ &= part->digest == next.digest;
  Sum(writer, parts, -1);
  *part = next;
  Sum(writer, parts, +1);
}

CheckpointVerdict Tally::Judge(bool stored) {
  CheckpointVerdict verdict;
  verdict.world_size = World();
  verdict.stored = stored;
  verdict.bytes = bytes_;
  verdict.conflict = Conflict();
  const bool all = Lacking() == 0;
  verdict.complete = verdict.conflict.empty() && (all || stored);
  if (verdict.complete && all) {
    const int least = copies_.begin()->first;
    verdict.digest = Digest();
    verdict.in_memory = least > 0;
    verdict.replicas = std::max(0, least - 1);
  }
  return verdict;
}

void Tally::Sum(Writer writer, const Parts& parts, int sign) {
  uint64_t bytes = 0;
  int kept = 0, fetched = 0;
  bool disputed = false;
  for (const Copy& copy : parts) {
    bytes = std::max(bytes, copy.part->bytes);
    if (copy.part->in_memory) ++(copy.part->role == PartRole::kFetched ? fetched : kept);
    disputed |= copy.part->digest != parts.front().part->digest;
  }
  bytes_ += sign * static_cast<int64_t>(bytes);
  AdjustCount(&copies_, CopiesThatCount(kept, fetched), sign);
  if (disputed && sign > 0) disputed_.insert(writer);
  if (disputed && sign < 0) disputed_.erase(writer);
}

void Tally::Claim(Writer writer, const NameHashes& names, int sign) {
  if (names == nullptr) return;
  for (const uint64_t name : *names) {
    if (const auto at = contested_.find(name); at != contested_.end()) {
      Contest(name, &at->second, writer, sign);
      continue;
    }
    const auto at = claims_.try_emplace(name, Claimed{writer, 0}).first;
    if (at->second.writer == writer) {
      at->second.reports += sign;
      if (at->second.reports == 0) claims_.erase(at);
      continue;
    }
    // A second writer: from now on both are counted there.
    std::map<Writer, int>& writers = contested_[name];
    writers[at->second.writer] = at->second.reports;
    claims_.erase(at);
    Contest(name, &writers, writer, sign);
  }
}

void Tally::Contest(uint64_t name, std::map<Writer, int>* writers, Writer writer, int sign) {
  const auto pair = [writers] {
    return std::pair(writers->begin()->first, std::next(writers->begin())->first);
  };
  if (writers->size() > 1) AdjustCount(&conflicts_, pair(), -1);
  AdjustCount(writers, writer, sign);
  if (writers->size() > 1) {
    AdjustCount(&conflicts_, pair(), +1);
    return;
  }
  const auto [left, reports] = *writers->begin();
  contested_.erase(name);
  claims_[name] = {left, reports};
}

std::string Tally::Conflict() const {
  if (worlds_.size() > 1) return WorldConflict(worlds_.begin()->first, World());
  if (!disputed_.empty()) return DigestConflict(*disputed_.begin());
  if (conflicts_.empty()) return "";
  return NameConflict(conflicts_.begin()->first.first, conflicts_.begin()->first.second);
}

const std::string& Tally::Digest() {
  if (digest_known_) return digest_;
  std::vector<absl::string_view> digests(parts_.size());
  for (const auto& [writer, parts] : parts_) {
    digests[static_cast<size_t>(writer)] = parts.front().part->digest;
  }
  digest_ = CheckpointDigest(digests);
  digest_known_ = true;
  return digest_;
}

}  // namespace cairn::engine
