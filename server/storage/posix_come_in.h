// How a part comes among the others of its checkpoint: from a directory that only its writer uses, by one rename.
#pragma once

#include <functional>
#include <string>

#include "common/layout.h"
#include "common/status.h"
#include "server/storage/files.h"
#include "server/storage/posix_place.h"
#include "server/storage/posix_root.h"

namespace cairn::storage {

// A directory of this call's own, for one part; it is removed at the end unless it came in.
class OwnDirectory {
 public:
  OwnDirectory(PosixRoot* root, const JobDirectories& at, const CheckpointKey& checkpoint)
      : at_(at), name_(NumberedName(checkpoint, root->UniqueNumber())) {}
  ~OwnDirectory() {
    if (!name_.empty()) (void)RemoveTreeAt(at_.writing.get(), name_);
  }
  OwnDirectory(const OwnDirectory&) = delete;
  OwnDirectory& operator=(const OwnDirectory&) = delete;

  const std::string& name() const { return name_; }
  void CameIn() { name_.clear(); }

 private:
  const JobDirectories& at_;
  std::string name_;
};

// Whether a place holds what is to be stored, whole. ALREADY_EXISTS: it holds something else in its stead.
using Holds = std::function<StatusOr<bool>(const Place&)>;

// True when it already stands in the published checkpoint, or in one on its way there; then the names are durable
// too. FAILED_PRECONDITION when a newer revision of the same attempt is published: what is written would never be.
StatusOr<bool> StandsPublished(const JobDirectories& at, const CheckpointKey& checkpoint,
                               const Holds& holds);

// Brings the writer's part, whole in `own`, among the checkpoint's others. OK also when it stands there, or
// published, from another.
Status ComeIn(PosixRoot* root, const JobDirectories& at, const CheckpointKey& checkpoint,
              Writer writer, const Holds& holds, OwnDirectory* own);

}  // namespace cairn::storage
