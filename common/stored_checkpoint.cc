#include "common/stored_checkpoint.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/fd.h"
#include "common/layout.h"

namespace cairn {
namespace {

// UNAVAILABLE: it stands there and cannot be read now.
StatusOr<StoredPart> ReadManifest(int directory, const std::string& name, ManifestDetail detail,
                                  uint64_t max_bytes, const EachObject& each_object) {
  const auto fd = OpenBeneath(directory, name, O_RDONLY);
  if (!fd.ok()) return WhyNotOpened(directory, name, S_IFREG, fd.status());
  StatusOr<StoredPart> part = ReadManifestFile(fd->get(), detail, max_bytes, each_object);
  if (part.ok() || absl::IsDataLoss(part.status()) || absl::IsUnimplemented(part.status()) ||
      absl::IsResourceExhausted(part.status())) {
    return part;
  }
  return absl::UnavailableError(part.status().message());
}

// By writer.
StatusOr<std::vector<std::pair<Writer, std::string>>> ListManifests(int meta) {
  CAIRN_ASSIGN_OR_RETURN(const auto names, ListDirectory(meta));
  std::vector<std::pair<Writer, std::string>> files;
  for (const std::string& name : names) {
    const Writer writer = ParseManifestName(name);
    if (writer >= 0) files.emplace_back(writer, name);
  }
  std::sort(files.begin(), files.end());
  return files;
}

// Each name of the parts whose manifests stand in `meta`, and of `others`; with the number of its part.
Status ForEachName(int meta, const std::vector<const StoredPart*>& parts,
                   const std::vector<const Manifest*>& others,
                   const std::function<void(size_t, const std::string&)>& each) {
  size_t at = 0;
  for (const StoredPart* part : parts) {
    const std::string file = ManifestName(part->manifest.writer);
    const auto again = ReadManifest(meta, file, ManifestDetail::kSummary, kMaxManifestBytes,
                                    [&](const ObjectEntry& object) { each(at, object.name); });
    if (!again.ok() || again->digest != part->digest) {
      return absl::UnavailableError(absl::StrCat(file, ": changed while it was read"));
    }
    ++at;
  }
  for (const Manifest* other : others) {
    for (const ObjectEntry& object : other->objects) each(at, object.name);
    ++at;
  }
  return absl::OkStatus();
}

std::vector<const StoredPart*> PointersTo(const std::vector<StoredPart>& parts) {
  std::vector<const StoredPart*> pointers;
  for (const StoredPart& part : parts) pointers.push_back(&part);
  return pointers;
}

// As ConflictBelow; `names` has had the first pass.
StatusOr<std::string> ConflictOf(int meta, const std::vector<const StoredPart*>& parts,
                                 const std::vector<const Manifest*>& others, NamesSeen* names) {
  while (names->NextPass()) {
    CAIRN_RETURN_IF_ERROR(ForEachName(meta, parts, others,
                                      [&](size_t, const std::string& name) { names->Add(name); }));
  }
  if (names->too_many()) return std::string("it has more names than can be compared");
  std::vector<const Manifest*> together;
  for (const StoredPart* part : parts) together.push_back(&part->manifest);
  together.insert(together.end(), others.begin(), others.end());
  if (!names->may_conflict()) return ManifestConflict(together);
  // With the names alone that are in each other's way: of each part one, or two.
  std::map<size_t, Manifest> concerned;
  CAIRN_RETURN_IF_ERROR(ForEachName(meta, parts, others, [&](size_t of, const std::string& name) {
    if (!names->Concerns(name)) return;
    const auto [at, fresh] = concerned.try_emplace(of);
    if (fresh) {
      at->second = *together[of];
      at->second.objects.clear();
    }
    if (names->IsIt(name) || at->second.objects.empty()) {
      at->second.objects.push_back({.name = name});
    }
  }));
  for (const auto& [of, manifest] : concerned) together[of] = &manifest;
  return ManifestConflict(together);
}

}  // namespace

// One function: what is left of each bound passes from one manifest to the next.
StatusOr<StoredCheckpoint> ReadStoredCheckpoint(int directory, const std::string& path,
                                                ManifestDetail detail, const StoredLimits& limits,
                                                std::vector<std::string>* problems,
                                                std::vector<std::string>* unread) {
  const auto meta = OpenBeneath(directory, kMetaDirectory, O_RDONLY | O_DIRECTORY);
  if (!meta.ok()) {
    const Status why = WhyNotOpened(directory, kMetaDirectory, S_IFDIR, meta.status());
    if (!absl::IsNotFound(why)) {
      (IsUnread(why) ? unread : problems)->push_back(absl::StrCat(path, ": ", why.message()));
    }
    return why;
  }
  const auto files = ListManifests(meta->get());
  if (!files.ok()) {
    unread->push_back(absl::StrCat(path, ": ", files.status().message()));
    return absl::UnavailableError(unread->back());
  }
  StoredCheckpoint stored;
  stored.location = Location(path);
  bool vanished = files->empty();
  const size_t unread_before = unread->size();
  uint64_t bytes_left =
      detail == ManifestDetail::kWhole ? limits.manifest_bytes : kMaxManifestBytes;
  uint64_t memory = MemoryOf(stored);
  NamesSeen names;
  const bool alone = files->size() == 1;
  for (const auto& [writer, name] : *files) {
    const auto problem = [&, &file = name](const Status& status) {
      std::vector<std::string>* const into = IsUnread(status) ? unread : problems;
      if (into->size() >= kMaxSaid) return;
      into->push_back(absl::StrCat(path, "/", kMetaDirectory, "/", file, ": ", status.message()));
    };
    if (memory > limits.memory_bytes) {
      return absl::ResourceExhaustedError(
          absl::StrCat(path, ": its manifests take more than ", limits.memory_bytes, " bytes"));
    }
    StatusOr<StoredPart> part =
        ReadManifest(meta->get(), name, detail, bytes_left, [&](const ObjectEntry& object) {
          if (!alone) names.Add(object.name);
        });
    if (absl::IsNotFound(part.status())) {
      vanished = true;
      continue;
    }
    if (absl::IsResourceExhausted(part.status())) return Annotate(part.status(), path);
    if (part.ok() && part->manifest.writer != writer) {
      part = absl::DataLossError(absl::StrCat("is the manifest of writer ", part->manifest.writer));
    }
    if (!part.ok()) {
      problem(part.status());
      continue;
    }
    if (detail == ManifestDetail::kWhole) bytes_left -= part->manifest_bytes;
    memory += MemoryOf(*part);
    stored.parts.push_back(*std::move(part));
  }
  if (stored.parts.empty()) {
    if (unread->size() > unread_before) return absl::UnavailableError(unread->back());
    return vanished ? absl::NotFoundError(absl::StrCat(path, ": has no manifest"))
                    : absl::DataLossError("has no manifest that can be read");
  }
  stored.key = stored.parts.front().manifest.Checkpoint();
  stored.world_size = stored.parts.front().manifest.world_size;
  auto conflict = detail == ManifestDetail::kWhole
                      ? StatusOr<std::string>(PartConflict(stored.parts))
                      : ConflictOf(meta->get(), PointersTo(stored.parts), {}, &names);
  if (!conflict.ok()) {
    unread->push_back(absl::StrCat(path, ": ", conflict.status().message()));
    return conflict.status();
  }
  stored.conflict = *std::move(conflict);
  return stored;
}

StatusOr<std::string> ConflictBelow(int directory, const std::vector<const StoredPart*>& parts,
                                    const std::vector<const Manifest*>& others) {
  UniqueFd meta;
  if (!parts.empty()) {
    CAIRN_ASSIGN_OR_RETURN(meta, OpenBeneath(directory, kMetaDirectory, O_RDONLY | O_DIRECTORY));
  }
  NamesSeen names;
  CAIRN_RETURN_IF_ERROR(ForEachName(meta.get(), parts, others,
                                    [&](size_t, const std::string& name) { names.Add(name); }));
  return ConflictOf(meta.get(), parts, others, &names);
}

}  // namespace cairn
