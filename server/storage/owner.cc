#include "server/storage/owner.h"

#include <grp.h>
#include <sys/fsuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace cairn::storage {
namespace {

constexpr uid_t kAsk = static_cast<uid_t>(-1);  // changes nothing and tells the present one

// The library's setgroups changes every thread of the process; the system call, its own.
int SetThreadGroups(const std::vector<gid_t>& groups) {
  return static_cast<int>(::syscall(SYS_setgroups, groups.size(), groups.data()));
}

}  // namespace

StatusOr<AsOwner> AsOwner::Become(Owner owner) {
  AsOwner as;
  as.uid_ = static_cast<uid_t>(::setfsuid(kAsk));
  if (owner.uid == as.uid_) return as;
  const auto denied = [&](absl::string_view what) {
    return absl::PermissionDeniedError(absl::StrCat("storage: a daemon of uid ", as.uid_,
                                                    " may not act as uid ", owner.uid, " (", what,
                                                    "): it persists only its own user's jobs"));
  };
  const int count = ::getgroups(0, nullptr);
  if (count < 0) return ErrnoStatus(errno, "getgroups");
  as.groups_.resize(static_cast<size_t>(count));
  if (::getgroups(count, as.groups_.data()) != count) return ErrnoStatus(errno, "getgroups");
  as.gid_ = static_cast<gid_t>(::setfsgid(kAsk));

  if (SetThreadGroups({owner.gid}) != 0) return denied("setgroups");
  as.changed_ = true;  // from here on the destructor goes back
  ::setfsgid(owner.gid);
  if (static_cast<gid_t>(::setfsgid(kAsk)) != owner.gid) return denied("setfsgid");
  ::setfsuid(owner.uid);
  if (static_cast<uid_t>(::setfsuid(kAsk)) != owner.uid) return denied("setfsuid");
  return as;
}

AsOwner::AsOwner(AsOwner&& other) noexcept
    : changed_(std::exchange(other.changed_, false)),
      uid_(other.uid_),
      gid_(other.gid_),
      groups_(std::move(other.groups_)) {}

AsOwner::~AsOwner() {
  if (!changed_) return;
  ::setfsuid(uid_);
  ::setfsgid(gid_);
  SetThreadGroups(groups_);
}

}  // namespace cairn::storage
