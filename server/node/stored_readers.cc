#include "server/node/stored_readers.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"

namespace cairn::node {
namespace {

constexpr size_t kMaxOpenPerSession = 64;

}  // namespace

LeaseId StoredReaders::NextLease() {
  MutexLock lock(&mu_);
  return kStoredBit | ++last_lease_;
}

Status StoredReaders::Add(SessionId session, LeaseId lease,
                          std::shared_ptr<const storage::Reader> reader) {
  MutexLock lock(&mu_);
  size_t held = 0;
  for (const auto& [id, open] : open_) held += open.session == session ? 1 : 0;
  if (held >= kMaxOpenPerSession) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "objects open in storage: ", held, " of this session, the limit is ", kMaxOpenPerSession));
  }
  open_[lease] = OpenReader{session, std::move(reader)};
  return absl::OkStatus();
}

StatusOr<std::string> StoredReaders::Read(SessionId session, LeaseId lease, uint64_t offset,
                                          uint64_t length) const {
  std::shared_ptr<const storage::Reader> reader;
  {
    MutexLock lock(&mu_);
    const auto it = open_.find(lease);
    if (it == open_.end() || it->second.session != session) {
      return absl::NotFoundError(absl::StrCat("lease: ", lease, " is not this session's"));
    }
    reader = it->second.reader;
  }
  std::string bytes(length, '\0');
  CAIRN_RETURN_IF_ERROR(reader->ReadAt(offset, absl::MakeSpan(bytes)));
  return bytes;
}

void StoredReaders::Release(SessionId session, LeaseId lease) {
  MutexLock lock(&mu_);
  const auto it = open_.find(lease);
  if (it != open_.end() && it->second.session == session) open_.erase(it);
}

void StoredReaders::ReleaseAll(SessionId session) {
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
