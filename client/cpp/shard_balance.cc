#include "client/cpp/shard_balance.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <tuple>

#include "absl/strings/str_cat.h"

namespace cairn::client {
namespace {

Status CheckHolders(absl::Span<const HeldShard> shards, int32_t ranks) {
  for (size_t i = 0; i < shards.size(); ++i) {
    if (shards[i].holders.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("shard ", i, ": no rank holds it"));
    }
    for (const int32_t rank : shards[i].holders) {
      if (rank < 0 || rank >= ranks) {
        return absl::InvalidArgumentError(
            absl::StrCat("shard ", i, ": rank ", rank, " is not in 0 … ", ranks - 1));
      }
    }
  }
  return absl::OkStatus();
}

// All but the names.
struct Turn {
  uint64_t bytes = 0;  // inverted: the larger come first
  uint32_t late_and_holders = 0;
  uint32_t shard = 0;
};

// Stable: by one byte after the other, the last first, and by none that is the same in all of them. A comparison of
// numbers that differ at random is guessed wrongly half of the time, and that takes longer than to move them.
template <typename Number>
void SortBy(Number Turn::*field, std::vector<Turn>* turns, std::vector<Turn>* room) {
  Number differing = 0;
  for (const Turn& turn : *turns) differing |= turn.*field ^ turns->front().*field;
  for (int shift = 0; shift < std::numeric_limits<Number>::digits; shift += 8) {
    if ((differing >> shift & 0xff) == 0) continue;
    std::array<uint32_t, 256> ends{};
    for (const Turn& turn : *turns) ++ends[turn.*field >> shift & 0xff];
    std::exclusive_scan(ends.begin(), ends.end(), ends.begin(), uint32_t{0});
    for (const Turn& turn : *turns) (*room)[ends[turn.*field >> shift & 0xff]++] = turn;
    turns->swap(*room);
  }
}

std::vector<uint32_t> InTurn(absl::Span<const HeldShard> shards, SortByName sort_by_name) {
  std::vector<Turn> turns;
  turns.reserve(shards.size());
  for (uint32_t i = 0; i < shards.size(); ++i) {
    const uint32_t late = shards[i].of_others ? uint32_t{1} << 31 : 0;
    turns.push_back({~shards[i].bytes, late | static_cast<uint32_t>(shards[i].holders.size()), i});
  }
  std::vector<Turn> room(turns.size());
  SortBy(&Turn::bytes, &turns, &room);
  SortBy(&Turn::late_and_holders, &turns, &room);
  std::vector<uint32_t> order;
  order.reserve(turns.size());
  for (size_t begin = 0; begin < turns.size();) {
    size_t end = begin;
    for (; end < turns.size() && turns[end].bytes == turns[begin].bytes &&
           turns[end].late_and_holders == turns[begin].late_and_holders;
         ++end) {
      order.push_back(turns[end].shard);
    }
    if (end - begin > 1) sort_by_name(absl::MakeSpan(order).subspan(begin));
    begin = end;
  }
  return order;
}

}  // namespace

StatusOr<std::vector<ShardOfRank>> BalanceShards(absl::Span<const HeldShard> shards, int32_t ranks,
                                                 SortByName sort_by_name) {
  CAIRN_RETURN_IF_ERROR(CheckHolders(shards, ranks));
  std::vector<uint64_t> loads(static_cast<size_t>(std::max(ranks, 0)), 0);
  std::vector<ShardOfRank> given;
  given.reserve(shards.size());
  for (const uint32_t number : InTurn(shards, sort_by_name)) {
    const HeldShard& shard = shards[number];
    int32_t least = shard.holders[0];
    for (const int32_t rank : shard.holders.subspan(1)) {
      if (std::tie(loads[rank], rank) < std::tie(loads[least], least)) least = rank;
    }
    loads[least] += shard.bytes;
    given.push_back({number, least});
  }
  return given;
}

}  // namespace cairn::client
