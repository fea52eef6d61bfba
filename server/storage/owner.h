// Acting as a job's owner. The file system's user and groups belong to a thread, so every thread
// that touches a job's files becomes its owner for that long.
#pragma once

#include <sys/types.h>

#include <vector>

#include "common/status.h"
#include "server/storage/storage.h"

namespace cairn::storage {

// While it lives, file system access of this thread is checked as `owner`'s, who is in no further
// group. Made and destroyed on one thread; they don't nest.
class AsOwner {
 public:
  // PERMISSION_DENIED, naming both uids, when this process may not become `owner`.
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
