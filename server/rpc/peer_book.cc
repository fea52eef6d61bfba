#include "server/rpc/peer_book.h"

#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/ring_nodes.h"
#include "glog/logging.h"

namespace cairn::rpc {
namespace {

using engine::MemberId;

// OK: `life` may follow on `met`, or is the same.
Status CheckNewer(const MemberId& life, const MemberId& met) {
  if (life.incarnation > met.incarnation || life == met) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      MemberText(life),
      life.incarnation < met.incarnation ? ": an older life than was met at its address, "
                                         : ": of the same incarnation was met at its address ",
      MemberText(met)));
}

}  // namespace

std::string MemberText(const MemberId& member) {
  return absl::StrCat("rank ", member.rank, ", incarnation ", member.incarnation, ", instance ",
                      absl::BytesToHexString(member.instance));
}

PeerBook::PeerBook(const engine::RingOptions& ring, std::function<void(engine::Rank)> look)
    : look_(std::move(look)), nodes_(RingNodesText(ring.members)) {
  for (const auto& [rank, address] : ring.members) {
    if (rank != ring.rank) pages_[rank].address = address;
  }
}

Status PeerBook::Met(const MemberId& who, MonotonicNanos asked) {
  MutexLock lock(&mu_);
  const auto at = pages_.find(who.rank);
  if (at == pages_.end()) {
    return absl::FailedPreconditionError(
        absl::StrCat("rank: ", who.rank, " is not another member"));
  }
  Page& page = at->second;
  if (page.newest.has_value()) CAIRN_RETURN_IF_ERROR(CheckNewer(who, *page.newest));
  page.newest = who;
  page.asked = std::max(page.asked, asked);
  if (page.claimed == page.newest) page.claimed.reset();
  return absl::OkStatus();
}

void PeerBook::Lists(engine::Rank rank, const std::string& nodes) {
  MutexLock lock(&mu_);
  const auto at = pages_.find(rank);
  if (at == pages_.end()) return;
  const std::string other = nodes == nodes_ ? "" : nodes;
  if (other == std::exchange(at->second.other_nodes, other) || other.empty()) return;
  LOG(WARNING) << "rank " << rank << " has another ring.nodes: \"" << absl::CHexEscape(other)
               << "\", here it is \"" << nodes_ << "\"";
}

std::string PeerBook::OtherLists() const {
  MutexLock lock(&mu_);
  std::string ranks;
  for (const auto& [rank, page] : pages_) {
    if (!page.other_nodes.empty()) absl::StrAppend(&ranks, ranks.empty() ? "" : ", ", rank);
  }
  return ranks.empty() ? "" : absl::StrCat("another ring.nodes than this node's: rank ", ranks);
}

Status PeerBook::Judge(const MemberId& claim, MonotonicNanos now) {
  {
    MutexLock lock(&mu_);
    const auto at = pages_.find(claim.rank);
    if (at == pages_.end()) {
      return absl::FailedPreconditionError(
          absl::StrCat("rank: ", claim.rank, " is not another member"));
    }
    Page& page = at->second;
    if (page.newest.has_value()) {
      if (claim == *page.newest) return absl::OkStatus();
      CAIRN_RETURN_IF_ERROR(CheckNewer(claim, *page.newest));
      // Whoever answered at the address after the claim was made is the one.
      if (page.claimed == claim && page.asked > page.claimed_at) {
        return absl::FailedPreconditionError(
            absl::StrCat(MemberText(claim), ": its address shows ", MemberText(*page.newest)));
      }
    }
    if (page.claimed != claim) {
      page.claimed = claim;
      page.claimed_at = now;
    }
  }
  look_(claim.rank);
  return absl::UnavailableError(
      absl::StrCat(MemberText(claim), ": not met yet at its address, which is dialled now"));
}

std::string PeerBook::AddressOf(engine::Rank rank) const {
  MutexLock lock(&mu_);
  const auto at = pages_.find(rank);
  return at == pages_.end() ? "" : at->second.address;
}

void PeerBook::SetView(const engine::RingView& view) {
  std::vector<engine::Rank> moved;
  {
    MutexLock lock(&mu_);
    if (view == view_) return;
    view_ = view;
    ++view_version_;
    for (auto& [rank, page] : pages_) {
      if (rank < 0 || rank >= static_cast<engine::Rank>(view.seats.size())) continue;
      const std::string& address = view.seats[rank].address;
      if (address == page.address) continue;
      page.address = address;
      moved.push_back(rank);
    }
  }
  for (const engine::Rank rank : moved) look_(rank);
}

engine::RingView PeerBook::View() const {
  MutexLock lock(&mu_);
  return view_;
}

uint64_t PeerBook::view_version() const {
  MutexLock lock(&mu_);
  return view_version_;
}

std::optional<MemberId> PeerBook::Newest(engine::Rank rank) const {
  MutexLock lock(&mu_);
  const auto at = pages_.find(rank);
  return at == pages_.end() ? std::nullopt : at->second.newest;
}

}  // namespace cairn::rpc
