// Which of the ranks that hold the same shard saves it, or loads it for all: one each, so that the bytes of
// the ranks are balanced. The rule is Megatron-Core's (dist_checkpointing.exchange_utils, 0.16.1,
// distribute_shards_to_ranks), and so is every result: ranks that plan with either agree.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "common/status.h"

namespace cairn::client {

struct HeldShard {
  uint64_t bytes = 0;
  absl::Span<const int32_t> holders;  // ranks; at least one
  bool of_others = false;  // the main copy is in another group: it goes behind all that are not
};

struct ShardOfRank {
  uint32_t shard = 0;  // index
  int32_t rank = 0;
};

// Puts shards (by index), of which nothing but their names says who comes first, into the order of these. They come
// ascending. To look at names costs the most, so it is called only for those.
using SortByName = absl::FunctionRef<void(absl::Span<uint32_t> shards)>;

// One for each shard, in the order in which they were given out: what others have last, then what few hold,
// then what is large, then by name. Each goes to the holder with the fewest bytes so far, of equals to the
// lowest rank.
// INVALID_ARGUMENT: a shard without a holder, or a holder that is not in 0 … ranks−1, by index.
StatusOr<std::vector<ShardOfRank>> BalanceShards(absl::Span<const HeldShard> shards, int32_t ranks,
                                                 SortByName sort_by_name);

}  // namespace cairn::client
