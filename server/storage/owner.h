// Acting as a job's owner. The user and groups that the file system checks belong to a thread, so
// every thread that touches a job's files becomes its owner for that time.
#pragma once

#include <sys/types.h>

#include <vector>

#include "common/status.h"
#include "server/storage/storage.h"

namespace cairn::storage {

// While it lives, this thread's file system access is checked as that of `owner`, who is in no
// other group. It is made and destroyed on one thread. Two of them must not nest.
class AsOwner {
 public:
  // PERMISSION_DENIED, naming both uids, when this process has no right to become `owner`.
  static StatusOr<AsOwner> Become(Owner owner);
  AsOwner(AsOwner&& other) noexcept;
  AsOwner& operator=(AsOwner&&) = delete;
  ~AsOwner();

 private:
  AsOwner() = default;

  bool changed_ = false;
  uid_t uid_ = 0;  // to go back to
  gid_t gid_ = 0;
  std::vector<gid_t> groups_;
};

}  // namespace cairn::storage
