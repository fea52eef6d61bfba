#include "server/node/options.h"

#include "absl/strings/str_cat.h"

namespace cairn::node {
namespace {

Status Within(absl::string_view name, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": ", value, " is not ", least, " to ", most));
}

constexpr int64_t kMost = int64_t{1} << 50;
constexpr MonotonicNanos kLongest = 3600 * kNanosPerSecond;

}  // namespace

Status GranterOptions::Validate() const {
  CAIRN_RETURN_IF_ERROR(Within("max_grants", static_cast<int64_t>(max_grants), 1, 4096));
  return Within("without_progress", without_progress, kNanosPerMilli, kLongest);
}

Status MoverOptions::Validate() const {
  const auto bytes = [](uint64_t value) { return static_cast<int64_t>(value); };
  CAIRN_RETURN_IF_ERROR(Within("in_flight_bytes", bytes(in_flight_bytes), kBlockBytes, kMost));
  CAIRN_RETURN_IF_ERROR(Within("in_flight_bytes_per_peer", bytes(in_flight_bytes_per_peer),
                               kBlockBytes, bytes(in_flight_bytes)));
  CAIRN_RETURN_IF_ERROR(Within("reads_per_peer", bytes(reads_per_peer), 1, 4096));
  CAIRN_RETURN_IF_ERROR(Within("active_fetches", bytes(active_fetches), 1, 1024));
  CAIRN_RETURN_IF_ERROR(
      Within("replication_bytes_per_second", bytes(replication_bytes_per_second), 0, kMost));
  CAIRN_RETURN_IF_ERROR(Within("threads", threads, 1, 64));
  CAIRN_RETURN_IF_ERROR(Within("grant_timeout", grant_timeout, kNanosPerMilli, kLongest));
  CAIRN_RETURN_IF_ERROR(Within("read_timeout", read_timeout, kNanosPerMilli, kLongest));
  CAIRN_RETURN_IF_ERROR(Within("back_off", back_off, kNanosPerMilli, kLongest));
  CAIRN_RETURN_IF_ERROR(Within("source_tries", source_tries, 1, 100));
  CAIRN_RETURN_IF_ERROR(Within("last_source_tries", last_source_tries, source_tries, 100));
  return Within("advance_interval", advance_interval, kNanosPerMilli, kLongest);
}

}  // namespace cairn::node
