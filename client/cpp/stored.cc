#include "client/cpp/stored.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "absl/strings/strip.h"
#include "client/cpp/open_object.h"
#include "client/cpp/process.h"
#include "common/checksum.h"
#include "common/fd.h"
#include "common/layout.h"
#include "common/line.h"
#include "common/stored_checkpoint.h"
#include "common/stored_job.h"

namespace cairn::client {
namespace {

const StoredCheckpoint* FindExact(const StoredJob& stored, const CheckpointKey& key) {
  const StoredCheckpoint* found = nullptr;
  for (const StoredCheckpoint& checkpoint : stored.checkpoints) {
    if (checkpoint.key == key && (found == nullptr || checkpoint.published)) found = &checkpoint;
  }
  return found;
}

StatusOr<UniqueFd> OpenRoot(const std::string& root) {
  UniqueFd fd(open(root.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, absl::StrCat("storage root ", root));
  return fd;
}

Status Moved(const StoredCheckpoint& checkpoint) {
  return absl::AbortedError(
      absl::StrCat(checkpoint.location.text(), ": no longer holds ", checkpoint.key.DebugString()));
}

// The directory at which it was found. ABORTED when it has moved.
StatusOr<UniqueFd> OpenDirectoryOf(const std::string& root, const StoredCheckpoint& checkpoint) {
  // Beneath the root only: no symbolic link is followed.
  CAIRN_ASSIGN_OR_RETURN(const UniqueFd root_fd, OpenRoot(root));
  const std::string& location = checkpoint.location.text();
  const std::string below(absl::StripPrefix(absl::StripPrefix(location, root), "/"));
  StatusOr<UniqueFd> directory = OpenBeneath(root_fd.get(), below, O_PATH | O_DIRECTORY);
  if (absl::IsNotFound(directory.status())) return Moved(checkpoint);
  CAIRN_RETURN_IF_ERROR(Annotate(directory.status(), location));
  return directory;
}

// Whether its files are there: DATA_LOSS names one that is not.
Status CheckFiles(const std::string& root, const StoredCheckpoint& checkpoint) {
  const auto directory = OpenDirectoryOf(root, checkpoint);
  CAIRN_RETURN_IF_ERROR(directory.status());
  return Annotate(CheckStoredFiles(directory->get(), checkpoint), checkpoint.location.text());
}

// The complete checkpoint that `ref` names. The latest is one whose files are there; `passed_over` says why a higher
// step is not it.
StatusOr<const StoredCheckpoint*> Resolve(const std::string& root, const StoredJob& stored,
                                          const CheckpointRef& ref, std::string* passed_over) {
  const std::string what =
      ref.step == kNoStep
          ? absl::StrCat(ref.job, ": no complete checkpoint in storage")
          : absl::StrCat(ref.job, "/", ref.step, ": no complete checkpoint in storage");
  const auto not_found = [&]() -> Status {
    CAIRN_RETURN_IF_ERROR(Annotate(CheckAllRead(stored), ref.job));
    if (!passed_over->empty()) return absl::DataLossError(absl::StrCat(what, "; ", *passed_over));
    return absl::NotFoundError(what);
  };
  if (ref.step != kNoStep && ref.attempt != 0) {
    const StoredCheckpoint* best = nullptr;
    for (const StoredCheckpoint& c : stored.checkpoints) {
      if (!c.Complete() || c.key.step != ref.step || c.key.attempt != ref.attempt) continue;
      if (ref.revision >= 0 && c.key.revision != ref.revision) continue;
      if (best == nullptr || best->key.revision < c.key.revision) best = &c;
    }
    if (best == nullptr) return not_found();
    return best;
  }
  const std::vector<LineStep> line = ComputeLine(HistoryOf(stored));
  for (auto it = line.rbegin(); it != line.rend(); ++it) {
    if (ref.step != kNoStep && it->step != ref.step) continue;
    if (const auto* found = FindExact(stored, {ref.job, it->step, it->attempt, it->revision})) {
      // What could not be read may be newer.
      if (ref.step == kNoStep) {
        CAIRN_RETURN_IF_ERROR(Annotate(CheckAllRead(stored, it->step), ref.job));
        const Status files = CheckFiles(root, *found);
        if (absl::IsDataLoss(files)) {
          if (passed_over->empty()) *passed_over = std::string(files.message());
          continue;
        }
        CAIRN_RETURN_IF_ERROR(files);
      }
      return found;
    }
  }
  return not_found();
}

CheckpointFacts FactsOf(const StoredCheckpoint& checkpoint) {
  CheckpointFacts facts;
  facts.complete = checkpoint.Complete();
  facts.persisted = facts.complete;
  facts.in_conflict = !checkpoint.conflict.empty();
  return facts;
}

CheckpointInfo Describe(const StoredCheckpoint& checkpoint, bool on_line) {
  CheckpointInfo info;
  info.key = checkpoint.key;
  info.world_size = checkpoint.world_size;
  info.facts = FactsOf(checkpoint);
  info.level = info.facts.complete ? Level::kPersisted : Level::kWriting;
  info.on_line = on_line;
  info.why = checkpoint.conflict;
  constexpr size_t kMostNamed = 64;
  size_t next = 0;
  for (Writer w = 0; w < checkpoint.world_size && info.missing_writers.size() < kMostNamed; ++w) {
    while (next < checkpoint.parts.size() && checkpoint.parts[next].manifest.writer < w) ++next;
    if (next >= checkpoint.parts.size() || checkpoint.parts[next].manifest.writer != w) {
      info.missing_writers.push_back(w);
    }
  }
  for (const StoredPart& part : checkpoint.parts) {
    info.bytes += part.Bytes();
    info.objects += part.Objects();
    info.created_unix_ms = std::max(info.created_unix_ms, part.manifest.created_unix_ms);
  }
  if (info.facts.complete) info.digest = CheckpointDigest(checkpoint.Digests());
  return info;
}

ObjectInfo Describe(const StoredCheckpoint& checkpoint, Writer writer, const ObjectEntry& entry) {
  ObjectInfo info;
  info.name = entry.name;
  info.writer = writer;
  info.kind = entry.kind;
  info.length = entry.length;
  info.facts = FactsOf(checkpoint);
  info.level = Level::kPersisted;
  info.block_crcs = entry.block_crcs;
  return info;
}

StatusOr<StoredJob> ReadSummary(const std::string& root, const std::string& job) {
  return ReadStoredJob(root, job, ManifestDetail::kSummary);
}

Status ListCheckpoints(const StoredJob& stored, Listing* out) {
  const std::vector<LineStep> line = ComputeLine(HistoryOf(stored));
  std::vector<CheckpointKey> shown;
  for (const StoredCheckpoint& checkpoint : stored.checkpoints) {
    // A checkpoint that moves may be seen twice.
    if (FindExact(stored, checkpoint.key) != &checkpoint) continue;
    const LineStep step = {checkpoint.key.step, checkpoint.key.attempt, checkpoint.key.revision};
    const bool on_line = std::find(line.begin(), line.end(), step) != line.end();
    CheckpointInfo info = Describe(checkpoint, on_line);
    // Not on the line, and not an older revision of what is.
    info.facts.abandoned =
        info.facts.complete && std::none_of(line.begin(), line.end(), [&](const LineStep& at) {
          return at.step == step.step && at.attempt == step.attempt;
        });
    out->checkpoints.push_back(std::move(info));
  }
  std::sort(out->checkpoints.begin(), out->checkpoints.end(),
            [](const CheckpointInfo& a, const CheckpointInfo& b) { return a.key < b.key; });
  return absl::OkStatus();
}

// The part of which `summary` was read, with its objects; `directory` is its checkpoint's. ABORTED when
// another has taken its place.
StatusOr<StoredPart> ReadWhole(int directory, const StoredCheckpoint& checkpoint,
                               const StoredPart& summary) {
  StatusOr<StoredPart> whole =
      ReadPart(directory, summary.manifest.writer, ManifestDetail::kWhole, nullptr);
  if (absl::IsUnavailable(whole.status())) {
    return Annotate(whole.status(), checkpoint.location.text());
  }
  if (!whole.ok() || whole->digest != summary.digest) return Moved(checkpoint);
  return whole;
}

// A checkpoint that was replaced or set aside since it was found is looked for again.
template <typename F>
Status LookAgainWhileItMoves(F look_once) {
  constexpr int kMaxLooks = 3;
  Status status;
  for (int look = 0; look < kMaxLooks; ++look) {
    status = look_once();
    if (!absl::IsAborted(status)) break;
  }
  return status;
}

// The file of the part's object in `directory`, the checkpoint's.
StatusOr<UniqueFd> OpenFileOf(int directory, const StoredCheckpoint& checkpoint,
                              const StoredPart& part, const ObjectEntry& entry) {
  const std::string what = absl::StrCat(checkpoint.location.text(), "/", entry.name);
  if (entry.block_bytes != kBlockBytes) {
    return absl::UnimplementedError(
        absl::StrCat(what, ": blocks of ", entry.block_bytes, " bytes"));
  }
  StatusOr<UniqueFd> file = OpenPartFile(directory, part, entry.name, O_RDONLY);
  if (absl::IsNotFound(file.status())) {
    return absl::DataLossError(
        absl::StrCat(what, ": its manifest stands there, the file does not"));
  }
  CAIRN_RETURN_IF_ERROR(Annotate(file.status(), what));
  struct stat info;
  if (fstat(file->get(), &info) != 0) return ErrnoStatus(errno, what);
  if (!S_ISREG(info.st_mode) || static_cast<uint64_t>(info.st_size) != entry.length) {
    return absl::DataLossError(
        absl::StrCat(what, ": ", info.st_size, " bytes, the manifest says ", entry.length));
  }
  return file;
}

// As OpenStored; ABORTED when the checkpoint moved meanwhile. One manifest is read at a time: all of them
// may be gigabytes.
Status OpenOnce(const std::string& root, const CheckpointRef& ref, const std::string& name,
                int copy_threads, std::unique_ptr<OpenObject>* out) {
  CAIRN_ASSIGN_OR_RETURN(const StoredJob stored, ReadSummary(root, ref.job));
  std::string passed_over;
  CAIRN_ASSIGN_OR_RETURN(const StoredCheckpoint* found, Resolve(root, stored, ref, &passed_over));
  CAIRN_ASSIGN_OR_RETURN(const UniqueFd directory, OpenDirectoryOf(root, *found));
  for (const StoredPart& summary : found->parts) {
    CAIRN_ASSIGN_OR_RETURN(const StoredPart part, ReadWhole(directory.get(), *found, summary));
    const ObjectEntry* entry = part.manifest.Find(name);
    if (entry == nullptr) continue;
    CAIRN_ASSIGN_OR_RETURN(UniqueFd file, OpenFileOf(directory.get(), *found, part, *entry));
    *out = OpenObjectImpl::OfFile(found->key, Describe(*found, part.manifest.writer, *entry),
                                  std::move(file), copy_threads);
    return absl::OkStatus();
  }
  return absl::NotFoundError(
      absl::StrCat(found->key.DebugString(), ": no object ", name, " in storage"));
}

// As ListStored of a step; ABORTED when the checkpoint moved meanwhile.
Status ListObjects(const std::string& root, const CheckpointRef& ref, Listing* out) {
  CAIRN_ASSIGN_OR_RETURN(const StoredJob stored, ReadSummary(root, ref.job));
  std::string passed_over;
  CAIRN_ASSIGN_OR_RETURN(const StoredCheckpoint* found, Resolve(root, stored, ref, &passed_over));
  CAIRN_ASSIGN_OR_RETURN(const UniqueFd directory, OpenDirectoryOf(root, *found));
  for (const StoredPart& summary : found->parts) {
    CAIRN_ASSIGN_OR_RETURN(const StoredPart part, ReadWhole(directory.get(), *found, summary));
    for (const ObjectEntry& entry : part.manifest.objects) {
      out->objects.push_back(Describe(*found, part.manifest.writer, entry));
    }
  }
  std::sort(out->objects.begin(), out->objects.end(),
            [](const ObjectInfo& a, const ObjectInfo& b) { return a.name < b.name; });
  return absl::OkStatus();
}

}  // namespace

StatusOr<LatestCheckpoint> StoredLatest(const std::string& root, const std::string& job) {
  LatestCheckpoint out;
  const Status status = Contain([&]() -> Status {
    CAIRN_RETURN_IF_ERROR(ValidateJob(job));
    return LookAgainWhileItMoves([&]() -> Status {
      CAIRN_ASSIGN_OR_RETURN(const StoredJob stored, ReadSummary(root, job));
      CheckpointRef ref;
      ref.job = job;
      out.passed_over.clear();
      CAIRN_ASSIGN_OR_RETURN(const StoredCheckpoint* checkpoint,
                             Resolve(root, stored, ref, &out.passed_over));
      out.key = checkpoint->key;
      out.world_size = checkpoint->world_size;
      out.digest = CheckpointDigest(checkpoint->Digests());
      out.source = "storage";
      out.as_of_unix_ms = RealClock()->UnixMillis();
      return absl::OkStatus();
    });
  });
  if (!status.ok()) return status;
  return out;
}

StatusOr<Listing> ListStored(const std::string& root, const std::string& path) {
  Listing out;
  const Status status = Contain([&]() -> Status {
    if (path.empty()) {
      CAIRN_ASSIGN_OR_RETURN(out.jobs, ListStoredJobs(root));
      return absl::OkStatus();
    }
    CAIRN_ASSIGN_OR_RETURN(const ListPath parsed, ParseListPath(path));
    if (!parsed.names_step) {
      CAIRN_ASSIGN_OR_RETURN(const StoredJob stored, ReadSummary(root, parsed.ref.job));
      return ListCheckpoints(stored, &out);
    }
    return LookAgainWhileItMoves([&] { return ListObjects(root, parsed.ref, &out); });
  });
  if (!status.ok()) return status;
  return out;
}

StatusOr<std::unique_ptr<OpenObject>> OpenStored(const std::string& root, const CheckpointRef& ref,
                                                 const std::string& name, int copy_threads) {
  std::unique_ptr<OpenObject> out;
  const Status status = Contain([&]() -> Status {
    CAIRN_RETURN_IF_ERROR(ValidateJob(ref.job));
    CAIRN_RETURN_IF_ERROR(ValidateObjectName(name));
    return LookAgainWhileItMoves([&] { return OpenOnce(root, ref, name, copy_threads, &out); });
  });
  if (!status.ok()) return status;
  return out;
}

}  // namespace cairn::client
