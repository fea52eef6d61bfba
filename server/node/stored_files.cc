#include "server/node/stored_files.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace cairn::node {
namespace {

constexpr size_t kMaxOpenPerSession = 64;

}  // namespace

LeaseId StoredFiles::NextLease() {
  MutexLock lock(&mu_);
  return kStoredBit | ++last_lease_;
}

Status StoredFiles::Add(SessionId session, LeaseId lease, UniqueFd file, uint64_t length) {
  MutexLock lock(&mu_);
  size_t held = 0;
  for (const auto& [id, open] : open_) held += open.session == session ? 1 : 0;
  if (held >= kMaxOpenPerSession) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "open files in storage: ", held, " of this session, the limit is ", kMaxOpenPerSession));
  }
  open_[lease] = OpenFile{session, std::move(file), length};
  return absl::OkStatus();
}

StatusOr<std::string> StoredFiles::Read(SessionId session, LeaseId lease, uint64_t offset,
                                        uint64_t length) const {
  UniqueFd file;  // of our own: a release must not close what is being read
  {
    MutexLock lock(&mu_);
    const auto it = open_.find(lease);
    if (it == open_.end() || it->second.session != session) {
      return absl::NotFoundError(absl::StrCat("lease: ", lease, " is not this session's"));
    }
    const OpenFile& open = it->second;
    if (offset > open.length || length > open.length - offset) {
      return absl::OutOfRangeError(
          absl::StrCat("offset: ", offset, " + ", length, " is beyond the object's ", open.length));
    }
    CAIRN_ASSIGN_OR_RETURN(file, open.file.Dup());
  }
  std::string bytes(length, '\0');
  CAIRN_RETURN_IF_ERROR(PreadAll(file.get(), bytes.data(), length, offset));
  return bytes;
}

void StoredFiles::Release(SessionId session, LeaseId lease) {
  MutexLock lock(&mu_);
  const auto it = open_.find(lease);
  if (it != open_.end() && it->second.session == session) open_.erase(it);
}

void StoredFiles::ReleaseAll(SessionId session) {
  MutexLock lock(&mu_);
  for (auto it = open_.begin(); it != open_.end();) {
    if (it->second.session == session) {
      open_.erase(it++);
    } else {
      ++it;
    }
  }
}

}  // namespace cairn::node
