#include "common/member_name.h"

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "common/keys.h"

namespace cairn {
namespace {

constexpr char kBegin[] = "cairn://cluster/";
constexpr char kRank[] = "/rank/";
constexpr char kAny[] = "any";

}  // namespace

Status ValidateCluster(absl::string_view cluster) {
  if (ValidateJob(cluster).ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("\"", cluster, "\" is not [A-Za-z0-9][A-Za-z0-9._-]{0,127}"));
}

std::string MemberUri(const MemberName& name) {
  return absl::StrCat(kBegin, name.cluster, kRank,
                      name.rank == kAnyRank ? kAny : absl::StrCat(name.rank));
}

bool ParseMemberUri(absl::string_view uri, MemberName* name) {
  absl::string_view rest = uri;
  if (!absl::ConsumePrefix(&rest, kBegin)) return false;
  const size_t end = rest.find('/');
  if (end == absl::string_view::npos) return false;
  MemberName read;
  read.cluster = std::string(rest.substr(0, end));
  rest.remove_prefix(end);
  if (!absl::ConsumePrefix(&rest, kRank)) return false;
  if (rest == kAny) {
    read.rank = kAnyRank;
  } else if (!absl::SimpleAtoi(rest, &read.rank) || read.rank < 0) {
    return false;
  }
  if (!ValidateCluster(read.cluster).ok() || MemberUri(read) != uri) return false;
  *name = read;
  return true;
}

}  // namespace cairn
