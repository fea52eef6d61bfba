#include "client/cpp/shard_balance.h"

#include <algorithm>
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

// All but the names, so that most comparisons touch nothing else.
struct Turn {
  uint64_t late_and_holders = 0;
  uint64_t bytes = 0;
  uint32_t shard = 0;
};

std::vector<Turn> InTurn(absl::Span<const HeldShard> shards,
                         absl::FunctionRef<bool(uint32_t, uint32_t)> before) {
  std::vector<Turn> turns;
  turns.reserve(shards.size());
  for (uint32_t i = 0; i < shards.size(); ++i) {
    const uint64_t late = shards[i].of_others ? uint64_t{1} << 63 : 0;
    turns.push_back({late | shards[i].holders.size(), shards[i].bytes, i});
  }
  std::sort(turns.begin(), turns.end(), [](const Turn& a, const Turn& b) {
    if (a.late_and_holders != b.late_and_holders) return a.late_and_holders < b.late_and_holders;
    return a.bytes > b.bytes;
  });
  // Names are compared only where nothing else decides: to look at them costs the most.
  for (auto begin = turns.begin(); begin != turns.end();) {
    const auto end = std::find_if(begin, turns.end(), [&begin](const Turn& turn) {
      return turn.late_and_holders != begin->late_and_holders || turn.bytes != begin->bytes;
    });
    std::sort(begin, end,
              [&before](const Turn& a, const Turn& b) { return before(a.shard, b.shard); });
    begin = end;
  }
  return turns;
}

}  // namespace

StatusOr<std::vector<ShardOfRank>> BalanceShards(
    absl::Span<const HeldShard> shards, int32_t ranks,
    absl::FunctionRef<bool(uint32_t, uint32_t)> before) {
  CAIRN_RETURN_IF_ERROR(CheckHolders(shards, ranks));
  std::vector<uint64_t> loads(static_cast<size_t>(std::max(ranks, 0)), 0);
  std::vector<ShardOfRank> given;
  given.reserve(shards.size());
  for (const Turn& turn : InTurn(shards, before)) {
    const HeldShard& shard = shards[turn.shard];
    int32_t least = shard.holders[0];
    for (const int32_t rank : shard.holders.subspan(1)) {
      if (std::tie(loads[rank], rank) < std::tie(loads[least], least)) least = rank;
    }
    loads[least] += shard.bytes;
    given.push_back({turn.shard, least});
  }
  return given;
}

}  // namespace cairn::client
