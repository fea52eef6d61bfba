#include "common/stored.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace cairn {

void Summarize(StoredPart* part) {
  part->summed_objects = part->Objects();
  part->summed_bytes = part->Bytes();
  part->manifest.objects = {};
}

std::vector<absl::string_view> StoredCheckpoint::Digests() const {
  std::vector<absl::string_view> digests;
  digests.reserve(parts.size());
  for (const StoredPart& part : parts) digests.push_back(part.digest);
  return digests;
}

Status CheckAllRead(const StoredJob& stored, Step from) {
  const Unread* first = nullptr;
  size_t matter = 0;
  for (const Unread& unread : stored.unread) {
    if (unread.step != kNoStep && unread.step < from) continue;
    if (first == nullptr) first = &unread;
    ++matter;
  }
  if (first == nullptr) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("not all of it can be read: ", first->why,
                   matter > 1 ? absl::StrCat(" (and ", matter - 1, " more)") : ""));
}

std::map<Attempt, AttemptLine> AttemptsOf(const StoredJob& stored) {
  std::map<Attempt, AttemptLine> attempts;
  std::map<Attempt, Step> said_at;  // at which step an attempt's lineage was read
  for (const StoredCheckpoint& checkpoint : stored.checkpoints) {
    if (checkpoint.parts.empty()) continue;
    const auto& [job, step, attempt, revision] = checkpoint.key.Tie();
    const auto [at, fresh] = attempts.try_emplace(attempt);
    AttemptLine& line = at->second;
    if (fresh) line.lineage = Lineage::OfUnknown();
    // Writer 0's stands first. Of those that know, the lowest step's counts: later ones repeat it.
    const Manifest& manifest = checkpoint.parts.front().manifest;
    if (line.first == kNoStep || (manifest.first != kNoStep && manifest.first < line.first)) {
      line.first = manifest.first;
    }
    if (manifest.writer == 0 && !manifest.lineage.Unknown()) {
      const auto [said, first] = said_at.try_emplace(attempt, step);
      if (first || step < said->second) {
        said->second = step;
        line.lineage = manifest.lineage;
      }
    }
    if (!checkpoint.Complete()) continue;
    Revision& newest = line.complete.try_emplace(step, revision).first->second;
    newest = std::max(newest, revision);
  }
  for (const LineRecord& record : stored.records) {
    const auto attempt = attempts.find(record.number);
    if (record.kind != LineRecordKind::kOrigin || attempt == attempts.end()) continue;
    attempt->second.lineage = record.lineage;
  }
  return attempts;
}

History HistoryOf(const StoredJob& stored) {
  History history{AttemptsOf(stored), {}};
  for (const LineRecord& record : stored.records) {
    if (record.kind == LineRecordKind::kOrigin) continue;
    history.decisions[record.number] = record.lineage;
  }
  return history;
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
