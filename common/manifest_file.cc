#include "common/manifest_file.h"

#include <openssl/evp.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "common/fd.h"

namespace cairn {
namespace {

constexpr size_t kReadPieceBytes = 256 << 10;
constexpr size_t kFirstPieceBytes = 4 << 10;

}  // namespace

uint64_t MemoryOf(const StoredPart& part) {
  constexpr uint64_t kAround = 128;  // its strings, and where it is kept
  const uint64_t decoded = part.manifest.objects.empty() ? 0 : 3 * part.manifest_bytes;
  return sizeof(part) + kAround + decoded +
         part.manifest.lineage.entries.capacity() * sizeof(LineageEntry);
}

uint64_t MemoryOf(const StoredCheckpoint& checkpoint) {
  constexpr uint64_t kAround = 256;  // its location, and the maps that it is in
  uint64_t bytes = sizeof(checkpoint) + kAround;
  for (const StoredPart& part : checkpoint.parts) bytes += MemoryOf(part);
  return bytes;
}

void NamesSeen::Add(absl::string_view name) {
  const auto conflict = [this](uint64_t hash) {
    if (!conflict_.has_value()) conflict_ = hash;
  };
  const absl::Hash<absl::string_view> hash_of;
  const uint64_t own = hash_of(name);
  if (now_.Has(own) && (!names_.insert(own).second || directories_.contains(own))) conflict(own);
  for (size_t slash = name.find('/'); slash != absl::string_view::npos;
       slash = name.find('/', slash + 1)) {
    const uint64_t directory = hash_of(name.substr(0, slash));
    if (!now_.Has(directory)) continue;
    if (names_.contains(directory)) conflict(directory);
    directories_.insert(directory);
  }
  while (names_.size() + directories_.size() > most_) Narrow();
}

// Half of what is held waits for a pass of its own.
void NamesSeen::Narrow() {
  passes_.push_back({now_.rest | (uint64_t{1} << now_.bits), now_.bits + 1});
  ++now_.bits;
  const auto is_left_out = [this](uint64_t hash) { return !now_.Has(hash); };
  absl::erase_if(names_, is_left_out);
  absl::erase_if(directories_, is_left_out);
}

bool NamesSeen::NextPass() {
  if (passes_.empty() || may_conflict() || ++taken_ > kMaxPasses) return false;
  now_ = passes_.back();
  passes_.pop_back();
  names_.clear();
  directories_.clear();
  return true;
}

bool NamesSeen::IsIt(absl::string_view name) const {
  return absl::Hash<absl::string_view>()(name) == conflict_;
}

bool NamesSeen::Concerns(absl::string_view name) const {
  for (size_t slash = name.find('/'); slash != absl::string_view::npos;
       slash = name.find('/', slash + 1)) {
    if (IsIt(name.substr(0, slash))) return true;
  }
  return IsIt(name);
}

StatusOr<StoredPart> ReadManifestFile(int fd, ManifestDetail detail, uint64_t max_bytes,
                                      const EachObject& each_object) {
  struct stat info = {};
  // What the machine cannot read now is never taken for damaged.
  if (::fstat(fd, &info) != 0) {
    return absl::UnavailableError(ErrnoStatus(errno, "fstat").message());
  }
  if (!S_ISREG(info.st_mode)) return absl::DataLossError("is not a regular file");
  const auto size = static_cast<uint64_t>(info.st_size);
  ManifestDecoder decoder(detail, each_object);
  ManifestDigester digester;
  std::string piece;
  for (uint64_t at = 0; at < size; at += piece.size()) {
    piece.resize(std::min<uint64_t>(at == 0 ? kFirstPieceBytes : kReadPieceBytes, size - at));
    if (const Status read = PreadAll(fd, piece.data(), piece.size(), at); !read.ok()) {
      return absl::UnavailableError(read.message());
    }
    CAIRN_RETURN_IF_ERROR(decoder.Add(piece));
    digester.Add(piece);
    if (at > 0) continue;
    if (decoder.total_bytes() != size) {
      return absl::DataLossError(absl::StrCat("manifest: the file has ", size, " bytes, and says ",
                                              decoder.total_bytes()));
    }
    if (size > max_bytes) {
      return absl::ResourceExhaustedError(
          absl::StrCat("manifest: has ", size, " bytes, at most ", max_bytes, " are read at once"));
    }
  }
  StoredPart part;
  part.manifest_bytes = size;
  part.summed_objects = decoder.objects();
  part.summed_bytes = decoder.object_bytes();
  CAIRN_ASSIGN_OR_RETURN(part.manifest, std::move(decoder).Finish());
  part.digest = digester.Finish();
  if (detail == ManifestDetail::kSummary && part.manifest.writer != 0) part.manifest.lineage = {};
  return part;
}

}  // namespace cairn
