#include "common/stored_checkpoint.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/fd.h"
#include "common/layout.h"

namespace cairn {
namespace {

// As ReadPart, in the checkpoint's `.cairn`.
StatusOr<StoredPart> ReadManifest(int meta, Writer writer, ManifestDetail detail,
                                  uint64_t max_bytes, const EachObject& each_object) {
  Status missing;
  for (const bool laid_out : {true, false, true}) {  // a publisher may lay it out between the looks
    const std::string name =
        laid_out ? ManifestName(writer)
                 : absl::StrCat(kPartsDirectory, "/", writer, "/", ManifestFile(writer));
    const auto fd = OpenBeneath(meta, name, O_RDONLY);
    if (absl::IsNotFound(fd.status())) {
      missing = fd.status();
      continue;
    }
    if (!fd.ok()) return WhyNotOpened(meta, name, S_IFREG, fd.status());
    StatusOr<StoredPart> part = ReadManifestFile(fd->get(), detail, max_bytes, each_object);
    if (part.ok() && !laid_out) part->directory = PartDirectory(writer);
    if (part.ok() || absl::IsDataLoss(part.status()) || absl::IsUnimplemented(part.status()) ||
        absl::IsResourceExhausted(part.status())) {
      return part;
    }
    return absl::UnavailableError(part.status().message());
  }
  return missing;
}

// Those of whom something stands in a checkpoint's `.cairn`.
StatusOr<std::set<Writer>> ListWriters(int meta) {
  std::set<Writer> writers;
  const auto take = [&](int directory, Writer (*parse)(absl::string_view)) -> Status {
    CAIRN_ASSIGN_OR_RETURN(const auto names, ListDirectory(directory));
    for (const std::string& name : names) writers.insert(parse(name));
    return absl::OkStatus();
  };
  // The second look finds a part that a publisher lays out between the two.
  const auto parts = OpenBeneath(meta, kPartsDirectory, O_RDONLY | O_DIRECTORY);
  if (parts.ok()) {
    CAIRN_RETURN_IF_ERROR(take(parts->get(), ParsePartName));
  } else if (const Status why = WhyNotOpened(meta, kPartsDirectory, S_IFDIR, parts.status());
             IsUnread(why)) {
    return why;
  }
  CAIRN_RETURN_IF_ERROR(take(meta, ParseManifestName));
  writers.erase(-1);
  return writers;
}

// Each name of the parts whose manifests stand in `meta`, and of `others`; with the number of its part.
Status ForEachName(int meta, const std::vector<const StoredPart*>& parts,
                   const std::vector<const Manifest*>& others,
                   const std::function<void(size_t, const std::string&)>& each) {
  size_t at = 0;
  for (const StoredPart* part : parts) {
    const Writer writer = part->manifest.writer;
    const auto again = ReadManifest(meta, writer, ManifestDetail::kSummary, kMaxManifestBytes,
                                    [&](const ObjectEntry& object) { each(at, object.name); });
    if (!again.ok() || again->digest != part->digest) {
      return absl::UnavailableError(
          absl::StrCat(ManifestName(writer), ": changed while it was read"));
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
  const auto writers = ListWriters(meta->get());
  if (!writers.ok()) {
    unread->push_back(absl::StrCat(path, ": ", writers.status().message()));
    return absl::UnavailableError(unread->back());
  }
  StoredCheckpoint stored;
  stored.location = Location(path);
  bool vanished = writers->empty();
  const size_t unread_before = unread->size();
  uint64_t bytes_left =
      detail == ManifestDetail::kWhole ? limits.manifest_bytes : kMaxManifestBytes;
  uint64_t memory = MemoryOf(stored);
  NamesSeen names;
  const bool alone = writers->size() == 1;
  for (const Writer writer : *writers) {
    const auto problem = [&](const Status& status) {
      std::vector<std::string>* const into = IsUnread(status) ? unread : problems;
      if (into->size() >= kMaxSaid) return;
      into->push_back(absl::StrCat(path, "/", ManifestFile(writer), ": ", status.message()));
    };
    if (memory > limits.memory_bytes) {
      return absl::ResourceExhaustedError(
          absl::StrCat(path, ": its manifests take more than ", limits.memory_bytes, " bytes"));
    }
    StatusOr<StoredPart> part =
        ReadManifest(meta->get(), writer, detail, bytes_left, [&](const ObjectEntry& object) {
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

StatusOr<StoredPart> ReadPart(int directory, Writer writer, ManifestDetail detail,
                              const EachObject& each_object) {
  CAIRN_ASSIGN_OR_RETURN(const UniqueFd meta,
                         OpenBeneath(directory, kMetaDirectory, O_RDONLY | O_DIRECTORY));
  return ReadManifest(meta.get(), writer, detail, kMaxManifestBytes, each_object);
}

StatusOr<UniqueFd> OpenPartFile(int directory, const StoredPart& part, const std::string& name,
                                int flags) {
  if (!part.directory.empty()) {
    auto file = OpenBeneath(directory, absl::StrCat(part.directory, "/", name), flags);
    if (!absl::IsNotFound(file.status())) return file;
  }
  return OpenBeneath(directory, name, flags);
}

namespace {

Status CheckFile(int directory, const StoredPart& part, const ObjectEntry& object) {
  const auto damaged = [&](absl::string_view why) {
    return absl::DataLossError(
        absl::StrCat("file ", object.name, " of writer ", part.manifest.writer, " ", why));
  };
  const auto fd = OpenPartFile(directory, part, object.name, O_PATH);
  if (absl::IsNotFound(fd.status())) return damaged("is gone");
  if (!fd.ok()) {
    const Status why = WhyNotOpened(directory, object.name, S_IFREG, fd.status());
    return IsUnread(why) ? why : damaged("is not a file");
  }
  struct stat info = {};
  if (::fstat(fd->get(), &info) != 0) return ErrnoStatus(errno, object.name);
  if (!S_ISREG(info.st_mode)) return damaged("is not a file");
  if (static_cast<uint64_t>(info.st_size) != object.length) {
    return damaged(absl::StrCat("has ", info.st_size, " bytes, not ", object.length));
  }
  return absl::OkStatus();
}

}  // namespace

Status CheckPartFiles(int directory, const StoredPart& part) {
  const Writer writer = part.manifest.writer;
  Status files;
  const auto read =
      ReadPart(directory, writer, ManifestDetail::kSummary, [&](const ObjectEntry& object) {
        if (files.ok()) files = CheckFile(directory, part, object);
      });
  if (IsUnread(read.status())) return read.status();
  if (!read.ok() || read->digest != part.digest) {
    return absl::DataLossError(absl::StrCat(ManifestFile(writer), " is another than before"));
  }
  return files;
}

Status CheckStoredFiles(int directory, const StoredCheckpoint& stored) {
  for (const StoredPart& part : stored.parts) {
    CAIRN_RETURN_IF_ERROR(CheckPartFiles(directory, part));
  }
  return absl::OkStatus();
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
