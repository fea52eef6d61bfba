#include "common/policy.h"

#include <iterator>

#include "absl/strings/escaping.h"
#include "absl/strings/str_join.h"

namespace cairn {
namespace {

// By the enumerators' numbers.
constexpr absl::string_view kPersistModes[] = {"on-demand", "every", "newest"};
constexpr absl::string_view kReaders[] = {"owner", "group", "all"};
static_assert(std::size(kPersistModes) == static_cast<size_t>(PersistMode::kNewest) + 1);
static_assert(std::size(kReaders) == static_cast<size_t>(Readers::kAll) + 1);

template <typename Enumeration, size_t N>
absl::string_view NameOf(const absl::string_view (&names)[N], Enumeration value) {
  const auto index = static_cast<size_t>(value);
  return index < N ? names[index] : "unknown";
}

template <typename Enumeration, size_t N>
StatusOr<Enumeration> Parse(const absl::string_view (&names)[N], absl::string_view name) {
  for (size_t i = 0; i < N; ++i) {
    if (name == names[i]) return static_cast<Enumeration>(i);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("\"", absl::CHexEscape(name), "\" is none of ", absl::StrJoin(names, ", ")));
}

}  // namespace

absl::string_view PersistModeName(PersistMode mode) { return NameOf(kPersistModes, mode); }
absl::string_view ReadersName(Readers readers) { return NameOf(kReaders, readers); }
StatusOr<PersistMode> ParsePersistMode(absl::string_view name) {
  return Parse<PersistMode>(kPersistModes, name);
}
StatusOr<Readers> ParseReaders(absl::string_view name) { return Parse<Readers>(kReaders, name); }

}  // namespace cairn
