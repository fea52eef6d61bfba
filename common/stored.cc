#include "common/stored.h"

#include "absl/container/flat_hash_map.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace cairn {

std::vector<std::string> StoredCheckpoint::Digests() const {
  std::vector<std::string> digests;
  digests.reserve(parts.size());
  for (const StoredPart& part : parts) digests.push_back(part.digest);
  return digests;
}

std::string ManifestConflict(const std::vector<const Manifest*>& manifests) {
  if (manifests.empty()) return "";
  const Manifest& first = *manifests.front();
  absl::flat_hash_map<absl::string_view, Writer> owner_of;
  for (const Manifest* manifest : manifests) {
    if (!(manifest->Checkpoint() == first.Checkpoint())) {
      return absl::StrCat("writer ", manifest->writer, " is of ",
                          manifest->Checkpoint().DebugString(), ", writer ", first.writer, " of ",
                          first.Checkpoint().DebugString());
    }
    if (manifest->world_size != first.world_size) {
      return absl::StrCat("world_size is ", first.world_size, " for writer ", first.writer, " and ",
                          manifest->world_size, " for writer ", manifest->writer);
    }
    for (const ObjectEntry& object : manifest->objects) {
      const auto [at, is_new] = owner_of.try_emplace(object.name, manifest->writer);
      if (!is_new) {
        return absl::StrCat("name \"", absl::CHexEscape(object.name), "\" is of writers ",
                            at->second, " and ", manifest->writer);
      }
    }
  }
  for (const auto& [name, writer] : owner_of) {
    const auto directory = FindDirectoryOf(name, owner_of);
    if (directory != owner_of.end()) {
      return absl::StrCat("name \"", absl::CHexEscape(directory->first), "\" of writer ",
                          directory->second, " is a directory of \"", absl::CHexEscape(name),
                          "\" of writer ", writer);
    }
  }
  return "";
}

std::string PartConflict(const std::vector<StoredPart>& parts) {
  std::vector<const Manifest*> manifests;
  manifests.reserve(parts.size());
  for (const StoredPart& part : parts) manifests.push_back(&part.manifest);
  return ManifestConflict(manifests);
}

}  // namespace cairn
