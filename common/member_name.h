// How a certificate names a member of a ring: the URI of its subject's alternative name,
// "cairn://cluster/NAME/rank/N", or ".../rank/any" of one who may have any rank of a ring whose members stand in the
// catalog. `cairn cluster init` writes it, both ends of a connection check it.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "common/status.h"

namespace cairn {

// Of a ring: [A-Za-z0-9][A-Za-z0-9._-]{0,127}, as a job's.
Status ValidateCluster(absl::string_view cluster);

inline constexpr int32_t kAnyRank = -1;

struct MemberName {
  std::string cluster;
  int32_t rank = 0;  // or kAnyRank
  bool operator==(const MemberName&) const = default;
};

std::string MemberUri(const MemberName& name);
// Exactly what MemberUri writes; false for anything else.
bool ParseMemberUri(absl::string_view uri, MemberName* name);

}  // namespace cairn
