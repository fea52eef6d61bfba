#include "server/node/mappers.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace cairn::node {
namespace {

struct CloseDir {
  void operator()(DIR* directory) const { closedir(directory); }
};
using Directory = std::unique_ptr<DIR, CloseDir>;

constexpr char kMemfd[] = "/memfd:";

// Lines of maps: "address perms offset dev inode path".
void AddMapped(const std::string& path, const std::set<uint64_t>& wanted,
               std::set<uint64_t>* found) {
  std::ifstream maps(path);
  std::string line;
  while (std::getline(maps, line)) {
    if (!absl::StrContains(line, kMemfd)) continue;
    std::istringstream fields(line);
    std::string address, permissions, offset, device;
    uint64_t inode = 0;
    if (fields >> address >> permissions >> offset >> device >> inode && wanted.contains(inode)) {
      found->insert(inode);
    }
  }
}

void AddOpen(const std::string& path, const std::set<uint64_t>& wanted, std::set<uint64_t>* found) {
  const Directory directory(opendir(path.c_str()));
  if (directory == nullptr) return;
  while (const dirent* entry = readdir(directory.get())) {
    const std::string link = absl::StrCat(path, "/", entry->d_name);
    char target[64] = {};
    if (readlink(link.c_str(), target, sizeof(target) - 1) <= 0) continue;
    if (!absl::StartsWith(target, kMemfd)) continue;
    struct stat attributes = {};
    if (stat(link.c_str(), &attributes) == 0 && wanted.contains(attributes.st_ino)) {
      found->insert(attributes.st_ino);
    }
  }
}

}  // namespace

std::map<uint64_t, std::set<int32_t>> FindMappers(const std::set<uint64_t>& inodes,
                                                  const std::string& proc, int max_processes) {
  std::map<uint64_t, std::set<int32_t>> mappers;
  if (inodes.empty()) return mappers;
  const Directory directory(opendir(proc.c_str()));
  if (directory == nullptr) return mappers;
  while (const dirent* entry = readdir(directory.get())) {
    int32_t pid = 0;
    if (!absl::SimpleAtoi(entry->d_name, &pid)) continue;
    if (pid == getpid() || pid == getppid()) continue;
    if (max_processes-- <= 0) break;
    std::set<uint64_t> found;
    AddMapped(absl::StrCat(proc, "/", pid, "/maps"), inodes, &found);
    AddOpen(absl::StrCat(proc, "/", pid, "/fd"), inodes, &found);
    for (uint64_t inode : found) mappers[inode].insert(pid);
  }
  return mappers;
}

}  // namespace cairn::node
