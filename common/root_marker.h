// The identity of a storage root of files: a marker in the root, one line with a UUID. A path is not
// an identity, for another file system may be mounted there, or none. The daemon writes and deletes
// only below a root that has the marker it knows; people make one with `cairn storage init`.
//
// A copy of a root has the same marker, and so is the same root with other contents.
#pragma once

#include <string>

#include "common/status.h"

namespace cairn {

inline constexpr char kRootMarker[] = ".cairn-root";

// A root as it is found at its path at one time.
struct RootIdentity {
  std::string id;  // in the marker
  // Tells directories with the same marker apart: a copy, or a mount made anew. Equal: it is the same
  // directory, and nobody has written the marker since.
  std::string instance;
  bool operator==(const RootIdentity&) const = default;
};

// "xxxxxxxx-xxxx-4xxx-xxxx-xxxxxxxxxxxx", random.
std::string DrawRootId();
Status CheckRootId(const std::string& id);  // INVALID_ARGUMENT unless it looks like one

// `root` is open for listing. NOT_FOUND when it has no marker, DATA_LOSS when the marker's text is not
// an identity.
StatusOr<RootIdentity> ReadRootMarker(int root);

// Gives the root the marker `id`, durably, and only if it has none: of several at once one succeeds.
// ALREADY_EXISTS: it has one, perhaps of the same identity.
Status MakeRootMarker(int root, const std::string& id);

}  // namespace cairn
