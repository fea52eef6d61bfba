#include "server/transport/grant_table.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"

namespace cairn::transport {
namespace {

bool Before(const ExtentRef& a, const ExtentRef& b) {
  return std::tie(a.slab, a.offset) < std::tie(b.slab, b.offset);
}

}  // namespace

bool InOrder(const std::vector<ExtentRef>& extents) {
  return std::is_sorted(extents.begin(), extents.end(), Before);
}

bool Covers(const std::vector<ExtentRef>& extents, const ExtentRef& asked) {
  auto after = std::upper_bound(extents.begin(), extents.end(), asked, Before);
  if (after == extents.begin()) return false;
  const ExtentRef& extent = *--after;
  if (extent.slab != asked.slab) return false;
  const uint64_t skipped = asked.offset - extent.offset;
  return skipped < extent.length && asked.length <= extent.length - skipped;
}

Status NotPermitted() { return absl::PermissionDeniedError("token: it permits no such read"); }

Status GrantTable::Add(const GrantToken& token, PeerId reader, std::vector<ExtentRef> extents,
                       const std::function<Status(const ExtentRef&)>& look) {
  std::sort(extents.begin(), extents.end(), Before);
  if (grants_.size() >= kMaxGrants || extents.size() > kMaxGrantedExtents - extents_) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "grants: ", grants_.size(), " of at most ", kMaxGrants, ", with ", extents_, " of at most ",
        kMaxGrantedExtents, " extents; this one has ", extents.size()));
  }
  const auto [at, inserted] = grants_.try_emplace(token);
  if (!inserted) return absl::AlreadyExistsError("token: there is a grant with it");
  for (const ExtentRef& extent : extents) by_slab_[extent.slab].insert(token);
  extents_ += extents.size();
  at->second = {reader, std::move(extents), RealClock()->Now()};
  for (const ExtentRef& extent : at->second.extents) {
    const Status may = look(extent);
    if (may.ok()) continue;
    Erase(token);
    return may;
  }
  return absl::OkStatus();
}

bool GrantTable::Erase(const GrantToken& token) {
  const auto at = grants_.find(token);
  if (at == grants_.end()) return false;
  for (const ExtentRef& extent : at->second.extents) {
    const auto named = by_slab_.find(extent.slab);
    if (named == by_slab_.end()) continue;  // an earlier extent's
    named->second.erase(token);
    if (named->second.empty()) by_slab_.erase(named);
  }
  extents_ -= at->second.extents.size();
  grants_.erase(at);
  return true;
}

GrantTable::Entry* GrantTable::Find(const GrantToken& token) {
  const auto at = grants_.find(token);
  return at == grants_.end() ? nullptr : &at->second;
}
const GrantTable::Entry* GrantTable::Find(const GrantToken& token) const {
  const auto at = grants_.find(token);
  return at == grants_.end() ? nullptr : &at->second;
}

std::vector<GrantToken> GrantTable::OfPeer(PeerId reader) const {
  std::vector<GrantToken> tokens;
  for (const auto& [token, entry] : grants_) {
    if (entry.reader == reader) tokens.push_back(token);
  }
  return tokens;
}

std::vector<GrantToken> GrantTable::OfSlab(SlabId slab) const {
  const auto at = by_slab_.find(slab);
  if (at == by_slab_.end()) return {};
  return {at->second.begin(), at->second.end()};
}

}  // namespace cairn::transport
