// The system calls that storage is made of, each behind its failpoint (common/failpoint.h), so that
// a test can die before, or fail, any one of them. Names are single components below a directory
// that is open already: what the kernel is not told to look up, no symbolic link can divert.
#pragma once

#include <cstdint>
#include <string>

#include "common/fd.h"
#include "common/status.h"

namespace cairn::storage {

// As OpenBeneath. `path` may have several components.
StatusOr<UniqueFd> OpenAt(int directory, const std::string& path, int flags, unsigned mode = 0);
// Opens a directory so that it can be listed and synced.
StatusOr<UniqueFd> OpenDirectoryAt(int directory, const std::string& path);
// Makes a directory or finds it there.
Status MakeDirectoryAt(int directory, const std::string& name, unsigned mode);
// Makes every directory of `path` and opens the last.
StatusOr<UniqueFd> MakeDirectoriesAt(int directory, const std::string& path);

// Reserves room; OK as well where the file system can't.
Status Allocate(int fd, uint64_t length);
// Writes everything. With *direct the description is O_DIRECT; when the file system refuses that
// for this write, it is turned off and *direct becomes false.
Status WriteAt(int fd, const char* bytes, size_t length, uint64_t offset, bool* direct);
Status Truncate(int fd, uint64_t length);
Status Sync(int fd);
Status SyncDirectoryAt(int directory, const std::string& path);  // "" or ".": itself
// Closes and says what close(2) said.
Status Close(UniqueFd fd);

// `flags` of renameat2.
Status RenameAt(int from_directory, const std::string& from, int to_directory,
                const std::string& to, unsigned flags);
Status UnlinkAt(int directory, const std::string& name, bool is_directory = false);
// Removes `name` and all below it; OK when it is not there.
Status RemoveTreeAt(int directory, const std::string& name);

}  // namespace cairn::storage
