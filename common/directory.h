// The way to a directory that an operator named by its path, for a program that may be root and makes
// something there.
#pragma once

#include <string>

#include "common/fd.h"
#include "common/status.h"

namespace cairn {

// "/a/b/" is "b" in "/a", "b" is "b" in "."; "/" has no base.
struct DirectoryPath {
  std::string parent, base;
};
DirectoryPath SplitDirectoryPath(const std::string& path);

// Opens a directory with O_PATH: good for fstat and for the calls that end in "at". A symbolic link on
// the way is followed, unless somebody else may have planted it: PERMISSION_DENIED for one that stands
// in a directory that everybody may write to and that is neither root's, this user's nor the directory
// owner's. That is the kernel's own rule where fs.protected_symlinks is set. NOT_FOUND: a component
// is missing. FAILED_PRECONDITION: one is not a directory.
StatusOr<UniqueFd> OpenDirectoryWarily(const std::string& path);

// Whether a directory has no entry but "." and "..".
StatusOr<bool> IsEmptyDirectory(int directory);

// Makes the directory `name` in `parent`, with this mode whatever the umask. False, and nothing is
// changed, when something of that name exists: it may be somebody else's.
StatusOr<bool> MakeDirectoryWithMode(int parent, const std::string& name, unsigned mode);

}  // namespace cairn
