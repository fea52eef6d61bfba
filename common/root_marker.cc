#include "common/root_marker.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/fd.h"

namespace cairn {
namespace {

constexpr size_t kIdLength = 36;
constexpr uint64_t kMaxMarkerBytes = 4096;

bool IsDash(size_t at) { return at == 8 || at == 13 || at == 18 || at == 23; }

}  // namespace

std::string DrawRootId() {
  std::array<uint8_t, 16> bytes = {};
  // Of so few bytes getrandom gives all; it fails only on kernels that lack it.
  (void)!::getrandom(bytes.data(), bytes.size(), 0);
  bytes[6] = (bytes[6] & 0x0f) | 0x40;  // version 4, random
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  std::string id;
  for (uint8_t byte : bytes) {
    if (IsDash(id.size())) id += '-';
    absl::StrAppend(&id, absl::Hex(byte, absl::kZeroPad2));
  }
  return id;
}

Status CheckRootId(const std::string& id) {
  bool good = id.size() == kIdLength;
  for (size_t i = 0; good && i < id.size(); ++i) {
    const char c = id[i];
    good = IsDash(i) ? c == '-' : (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
  }
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "identity: \"", id.substr(0, kIdLength), "\" is not a UUID of 36 characters in lower case"));
}

StatusOr<RootIdentity> ReadRootMarker(int root) {
  CAIRN_ASSIGN_OR_RETURN(const UniqueFd marker, OpenBeneath(root, kRootMarker, O_RDONLY));
  struct stat directory = {}, file = {};
  if (::fstat(root, &directory) != 0 || ::fstat(marker.get(), &file) != 0) {
    return ErrnoStatus(errno, kRootMarker);
  }
  CAIRN_ASSIGN_OR_RETURN(const std::string text, ReadRegularFile(marker.get(), kMaxMarkerBytes));
  RootIdentity found;
  found.id = std::string(absl::StripTrailingAsciiWhitespace(text));
  if (!CheckRootId(found.id).ok()) {
    return absl::DataLossError(absl::StrCat(kRootMarker, " does not hold an identity"));
  }
  found.instance = absl::StrCat(directory.st_dev, ":", directory.st_ino, ":", file.st_ino, ":",
                                file.st_ctim.tv_sec, ".", file.st_ctim.tv_nsec);
  return found;
}

Status MakeRootMarker(int root, const std::string& id) {
  CAIRN_RETURN_IF_ERROR(CheckRootId(id));
  // Under a name of its own first, so that nobody reads half of it.
  const std::string temporary = absl::StrCat(kRootMarker, ".", DrawRootId());
  const auto write = [&]() -> Status {
    CAIRN_ASSIGN_OR_RETURN(const UniqueFd file,
                           OpenBeneath(root, temporary, O_WRONLY | O_CREAT | O_EXCL, 0444));
    const std::string text = id + "\n";
    CAIRN_RETURN_IF_ERROR(PwriteAll(file.get(), text.data(), text.size(), 0));
    if (::fsync(file.get()) != 0) return ErrnoStatus(errno, kRootMarker);
    if (::renameat2(root, temporary.c_str(), root, kRootMarker, RENAME_NOREPLACE) != 0) {
      return ErrnoStatus(errno, kRootMarker);
    }
    if (::fsync(root) != 0) return ErrnoStatus(errno, "the root's directory");
    return absl::OkStatus();
  };
  const Status written = write();
  if (!written.ok()) ::unlinkat(root, temporary.c_str(), 0);
  return written;
}

}  // namespace cairn
