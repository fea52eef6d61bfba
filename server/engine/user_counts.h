// How many of something each user has. One user's greed is refused to that user alone.
#pragma once

#include <cstdint>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "server/engine/options.h"

namespace cairn::engine {

class UserCounts {
 public:
  // `what` is counted ("sessions"), `option` names its limit for all.
  UserCounts(absl::string_view what, absl::string_view option) : what_(what), option_(option) {}

  void Add(uint32_t uid) {
    ++counts_[uid];
    ++total_;
  }
  void Drop(uint32_t uid) {
    const auto at = counts_.find(uid);
    if (--at->second == 0) counts_.erase(at);
    --total_;
  }
  int64_t total() const { return total_; }
  int64_t Of(uint32_t uid) const {
    const auto at = counts_.find(uid);
    return at == counts_.end() ? 0 : at->second;
  }

  // RESOURCE_EXHAUSTED when the user may not have one more.
  Status CheckRoom(const Options& options, int64_t limit, uint32_t uid) const {
    if (total_ >= limit) {
      return absl::ResourceExhaustedError(
          absl::StrCat(what_, ": ", total_, " in all, the limit is ", option_, " = ", limit));
    }
    if (Of(uid) >= options.OfUser(limit, uid)) {
      return absl::ResourceExhaustedError(absl::StrCat(
          what_, ": uid ", uid, " has ", Of(uid), ", the limit is ", options.user_percent,
          " % (limits.user_percent) of ", option_, " = ", limit));
    }
    return absl::OkStatus();
  }

 private:
  const std::string what_, option_;
  absl::flat_hash_map<uint32_t, int64_t> counts_;
  int64_t total_ = 0;
};

}  // namespace cairn::engine
