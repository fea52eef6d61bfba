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

constexpr size_t kPieceBytes = 256 << 10;
constexpr size_t kFirstPieceBytes = 4 << 10;

}  // namespace

void NamesSeen::Add(absl::string_view name) {
  const absl::Hash<absl::string_view> hash;
  const uint64_t own = hash(name);
  if (!names_.insert(own).second || directories_.contains(own)) may_conflict_ = true;
  for (size_t slash = name.find('/'); slash != absl::string_view::npos;
       slash = name.find('/', slash + 1)) {
    const uint64_t directory = hash(name.substr(0, slash));
    if (names_.contains(directory)) may_conflict_ = true;
    directories_.insert(directory);
  }
}

StatusOr<StoredPart> ReadManifestFile(int fd, ManifestDetail detail, uint64_t max_bytes,
                                      NamesSeen* names) {
  struct stat info = {};
  // What the machine cannot read now is never taken for damaged.
  if (::fstat(fd, &info) != 0) {
    return absl::UnavailableError(ErrnoStatus(errno, "fstat").message());
  }
  if (!S_ISREG(info.st_mode)) return absl::DataLossError("is not a regular file");
  const auto size = static_cast<uint64_t>(info.st_size);
  ManifestDecoder decoder(detail, [names](absl::string_view name) {
    if (names != nullptr) names->Add(name);
  });
  ManifestDigester digester;
  std::string piece;
  for (uint64_t at = 0; at < size; at += piece.size()) {
    piece.resize(std::min<uint64_t>(at == 0 ? kFirstPieceBytes : kPieceBytes, size - at));
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
  return part;
}

}  // namespace cairn
