// The system calls that storage is made of, each behind its failpoint (common/failpoint.h), so that
// a test can die before any one of them, or let it fail. Most names are single components below a
// directory that is already open: a path that the kernel does not look up cannot be diverted by a
// symbolic link.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "common/fd.h"
#include "common/status.h"

namespace cairn::storage {

// A relative path's last component and what stands before it, "" when it has one component.
struct PathParts {
  std::string directory, base;
};
PathParts SplitPath(const std::string& path);
// Every directory on the way to `path`.
void AddDirectoriesOf(const std::string& path, std::set<std::string>* directories);

// How deep a tree below a checkpoint can be, at most: no object's name (512 bytes) has as many
// components.
inline constexpr int kMaxTreeDepth = 300;

// As OpenBeneath. `path` may have several components.
StatusOr<UniqueFd> OpenAt(int directory, const std::string& path, int flags, unsigned mode = 0);
// Opens a directory so that it can be listed and synced.
StatusOr<UniqueFd> OpenDirectoryAt(int directory, const std::string& path);
// Makes a directory or finds it there.
Status MakeDirectoryAt(int directory, const std::string& name, unsigned mode = 0755);
// Makes every directory of `path` and opens the last.
StatusOr<UniqueFd> MakeDirectoriesAt(int directory, const std::string& path);

// Reserves space; also OK where the file system cannot.
Status Allocate(int fd, uint64_t length);
// Calls that a file system of this process's storage does not know and that are left out, each said once, with the
// place where it was met first.
std::vector<std::string> CallsLeftOut();
// Writes everything. With *direct the description is O_DIRECT; when the file system refuses that
// for this write, it is turned off and *direct becomes false.
Status WriteAt(int fd, const char* bytes, size_t length, uint64_t offset, bool* direct);
Status Truncate(int fd, uint64_t length);
// Also OK of a directory where the file system can sync none (CallsLeftOut).
Status Sync(int fd);
Status SyncDirectoryAt(int directory, const std::string& path);  // "" or ".": itself
// Closes and says what close(2) said.
Status Close(UniqueFd fd);

// `flags` of renameat2. An error although it happened, as a network file system may answer after a
// lost reply, is settled by looking, and is OK. Without a flag for it in the file system,
// RENAME_NOREPLACE of a directory is a look before, and RENAME_EXCHANGE is UNIMPLEMENTED.
Status RenameAt(int from_directory, const std::string& from, int to_directory,
                const std::string& to, unsigned flags);
// Gives a file one more name; OK where that is its name already. ALREADY_EXISTS: another file has it.
// UNIMPLEMENTED: this file system has no links.
Status LinkAt(int from_directory, const std::string& from, int to_directory, const std::string& to);
// Marks a directory as changed now, and returns that time in seconds since the epoch, as the file
// system's own clock has it. Also possible when the disk is full.
StatusOr<int64_t> Touch(int directory);
Status UnlinkAt(int directory, const std::string& name, bool is_directory = false);
// Removes a file; OK when it is not there.
Status RemoveFileAt(int directory, const std::string& name);
// Removes `name` and all below it; OK when it is not there.
Status RemoveTreeAt(int directory, const std::string& name);

}  // namespace cairn::storage
