#include "server/transport/rdma_options.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/transport/transport.h"

namespace cairn::transport {
namespace {

Status Within(absl::string_view name, uint64_t value, uint64_t least, uint64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": ", static_cast<int64_t>(value), " is not ", least, " to ", most));
}

}  // namespace

Status RdmaOwnerOptions::Validate() const {
  CAIRN_RETURN_IF_ERROR(Within("max_connections", static_cast<uint64_t>(max_connections), 1, 4096));
  return Within("max_queue_pairs", static_cast<uint64_t>(max_queue_pairs), 1, 64);
}

Status RdmaReaderOptions::Validate() const {
  CAIRN_RETURN_IF_ERROR(Within("queue_pairs", static_cast<uint64_t>(queue_pairs), 1, 8));
  CAIRN_RETURN_IF_ERROR(Within("chunk_bytes", chunk_bytes, 4096, kMaxReadBytes));
  CAIRN_RETURN_IF_ERROR(Within("chunks", static_cast<uint64_t>(chunks), 1, 1024));
  CAIRN_RETURN_IF_ERROR(Within("max_peers", static_cast<uint64_t>(max_peers), 1, 1024));
  CAIRN_RETURN_IF_ERROR(Within("max_waiting", max_waiting, 1, 65536));
  if (ask < kNanosPerMilli || stall < kNanosPerMilli || idle < stall) {
    return absl::InvalidArgumentError("stall: at least 1 ms, as ask, and idle not less");
  }
  return absl::OkStatus();
}

Status RdmaSlabOptions::Validate() const {
  CAIRN_RETURN_IF_ERROR(Within("most_anew", static_cast<uint64_t>(most_anew), 1, 1024));
  if (believed >= 0 && anew_within >= kNanosPerMilli) return absl::OkStatus();
  return absl::InvalidArgumentError("anew_within: at least 1 ms, and believed not negative");
}

Status RdmaOptions::Validate() const {
  CAIRN_RETURN_IF_ERROR(owner.Validate());
  CAIRN_RETURN_IF_ERROR(reader.Validate());
  return slabs.Validate();
}

int SlotsOf(const RdmaReaderOptions& options, const VerbsLimits& limits) {
  const int asked = (options.chunks + options.queue_pairs - 1) / options.queue_pairs;
  const int completions = limits.completions / options.queue_pairs;
  return std::max(1, std::min({asked, limits.queued, completions}));
}

}  // namespace cairn::transport
