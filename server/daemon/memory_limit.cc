#include "server/daemon/memory_limit.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/fd.h"

namespace cairn::daemon {
namespace {

// What the daemon needs beside slabs: code, stacks, the journal's touched pages; and what it keeps of each
// object in memory, about 300 bytes for a page of 4 KiB at least.
constexpr uint64_t kOwnBytes = uint64_t{128} << 20;
constexpr uint64_t kTablesShare = 13;
uint64_t OwnBytes(uint64_t budget) { return kOwnBytes + budget / kTablesShare; }
// v1 writes "no limit" as the largest page multiple below 2^63.
constexpr uint64_t kUnlimited = uint64_t{1} << 62;

std::string Join(const std::string& root, absl::string_view path) {
  return absl::StrCat(absl::StripSuffix(root, "/"), path);
}

std::optional<uint64_t> ReadNumber(const std::string& path) {
  StatusOr<std::string> text = ReadFile(path);
  uint64_t value = 0;
  if (!text.ok() || !absl::SimpleAtoi(absl::StripAsciiWhitespace(*text), &value)) return {};
  return value;
}

uint64_t MeminfoBytes(absl::string_view meminfo, absl::string_view field) {
  for (absl::string_view line : absl::StrSplit(meminfo, '\n')) {
    if (!absl::ConsumePrefix(&line, field) || !absl::ConsumePrefix(&line, ":")) continue;
    uint64_t kib = 0;
    if (absl::SimpleAtoi(absl::StripAsciiWhitespace(absl::StripSuffix(line, "kB")), &kib)) {
      return kib << 10;
    }
  }
  return 0;
}

// `path` and its ancestors up to the root of the hierarchy, deepest first.
std::vector<std::string> WithAncestors(absl::string_view path) {
  std::vector<std::string> all;
  while (!path.empty() && path != "/") {
    all.emplace_back(path);
    path = path.substr(0, path.rfind('/'));
  }
  all.emplace_back("");
  return all;
}

void Tighten(MemoryLimit* limit, uint64_t bytes, std::string source) {
  if (bytes >= kUnlimited || bytes >= limit->bytes) return;
  limit->bytes = bytes;
  limit->source = std::move(source);
}

}  // namespace

StatusOr<MemoryLimit> ReadMemoryLimit(const std::string& root) {
  StatusOr<std::string> meminfo = ReadFile(Join(root, "/proc/meminfo"));
  if (!meminfo.ok()) return Annotate(meminfo.status(), "memory.budget");
  MemoryLimit limit;
  limit.bytes = MeminfoBytes(*meminfo, "MemTotal");
  limit.source = "MemTotal";
  limit.available_bytes = MeminfoBytes(*meminfo, "MemAvailable");
  if (limit.bytes == 0)
    return absl::UnavailableError("memory.budget: /proc/meminfo has no MemTotal");

  StatusOr<std::string> cgroups = ReadFile(Join(root, "/proc/self/cgroup"));
  if (!cgroups.ok()) return limit;  // a kernel without cgroups
  for (absl::string_view line : absl::StrSplit(*cgroups, '\n')) {
    // "hierarchy:controllers:path"
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    const std::vector<std::string> controllers = absl::StrSplit(fields[1], ',');
    const bool v2 = fields[1].empty();
    const bool v1 = std::count(controllers.begin(), controllers.end(), "memory") > 0;
    if (!v1 && !v2) continue;
    const char* const mount = v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    const char* const file = v2 ? "memory.max" : "memory.limit_in_bytes";
    // In a container the path may name what only the host sees; then the mount's own root is ours,
    // and it is looked at in any case as the last "ancestor".
    for (const std::string& group : WithAncestors(fields[2])) {
      if (std::optional<uint64_t> bytes =
              ReadNumber(Join(root, absl::StrCat(mount, group, "/", file)))) {
        Tighten(&limit, *bytes,
                absl::StrCat("cgroup ", v2 ? "v2 " : "v1 ", group.empty() ? "/" : group, " (", file,
                             ")"));
      }
    }
  }
  return limit;
}

uint64_t DefaultBudget(const MemoryLimit& limit) {
  const uint64_t half = std::min(limit.bytes, limit.available_bytes) / 2;
  const uint64_t rest = limit.bytes - std::min(limit.bytes, kOwnBytes);
  const uint64_t fits = rest / (kTablesShare + 1) * kTablesShare;
  return std::min(half, fits) & ~uint64_t{(1 << 20) - 1};
}

Status CheckBudget(uint64_t budget, const MemoryLimit& limit) {
  const uint64_t own = OwnBytes(budget);
  if (budget <= limit.bytes && limit.bytes - budget >= own) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("memory.budget: ", budget, " bytes and ", own,
                                                   " for the daemon itself exceed the limit of ",
                                                   limit.bytes, " bytes set by ", limit.source));
}

}  // namespace cairn::daemon
